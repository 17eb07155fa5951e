"""Many workers on one partition: records per second, ours beside what others offer.

A group forms on an empty topic; then all records come at once. The time runs from the first record
that is handed to a handler until the last one is done. Contenders take turns in every cell.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cooperative_crew import (
    Contender,
    Crew,
    Outcome,
    build_peers,
    member_command,
)
from cooperative_load import (
    UNIFORM,
    ZIPF,
    Load,
    LoadError,
    draw_keys,
    hottest_share,
    ideal_seconds,
    make_load,
)
from server_process import ServerProcess

KEYS = 10_000
DISTRIBUTIONS = (UNIFORM, ZIPF)
MOST_WORKERS = 64

OURS, OURS_THREADS, OURS_4, OURS_16 = "ours", "ours, threads", "ours, 4 proc.", "ours, 16 proc."
PLAIN, PARALLEL, PARALLEL_AT_OURS, SHARE = "plain", "PC", "PC at ours", "share"
CONTROL = "no client"
PEERS = (PLAIN, PARALLEL, SHARE)
_NAMES = (CONTROL, OURS, OURS_THREADS, OURS_4, OURS_16, PLAIN, PARALLEL, PARALLEL_AT_OURS, SHARE)

_LIMIT_S = 90.0
_LEAST_RECORDS = 100
_WARM_UP_RECORDS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePlan:
    """How much is measured."""

    workers: tuple[int, ...]
    work_us: tuple[int, ...]
    rounds: int
    # What a cell takes at the ideal rate, and how many records it has at most.
    seconds: float
    records_max: int


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What is measured: keys, work of each record, workers."""

    distribution: str
    work_us: int
    workers: int

    def count(self, plan: RatePlan) -> int:
        """How many records it takes for about `plan.seconds`."""
        if not self.work_us:
            return plan.records_max
        per_record_s = self.work_us / 1e6 * self.bound_share
        return max(_LEAST_RECORDS, min(plan.records_max, round(plan.seconds / per_record_s)))

    @property
    def bound_share(self) -> float:
        """What part of all work the busiest worker has at least."""
        return max(1 / self.workers, hottest_share(self.distribution, KEYS))


Outcomes = dict[Cell, dict[str, list[Outcome]]]


def contenders_of(ours: ServerProcess, kafka: ServerProcess | None) -> list[Contender]:
    found = [
        Contender(name=CONTROL, kind="control", server=ours),
        Contender(name=OURS, kind="async", server=ours),
        Contender(name=OURS_THREADS, kind="threads", server=ours),
        Contender(name=OURS_4, kind="async", server=ours, processes=4),
        Contender(name=OURS_16, kind="async", server=ours, processes=16),
    ]
    if kafka is not None:
        found += [
            Contender(name=PLAIN, kind="plain", server=kafka),
            Contender(name=PARALLEL, kind="parallel", server=kafka),
            Contender(name=PARALLEL_AT_OURS, kind="parallel", server=ours),
            Contender(name=SHARE, kind="share", server=kafka),
        ]
    return found


def takes_part(contender: Contender, cell: Cell) -> bool:
    """Whether a cell is measured with a contender, or its figure follows from another one."""
    if contender.name == CONTROL:
        return cell.work_us > 0 and cell.distribution == UNIFORM
    if contender.name == PLAIN:  # one partition is one worker
        return cell.workers == 1
    if contender.name in (OURS_THREADS, OURS_16, PARALLEL_AT_OURS):
        return cell.workers == MOST_WORKERS
    return cell.workers >= 4 * contender.processes or contender.processes == 1


def measure_rates(
    ours: ServerProcess,
    kafka: ServerProcess | None,
    folder: Path,
    plan: RatePlan,
    progress: Callable[[str], None],
) -> tuple[Outcomes, list[str]]:
    """All outcomes, and what went wrong without being the end."""
    cells = [
        Cell(distribution, work_us, workers)
        for work_us in plan.work_us
        for distribution in DISTRIBUTIONS
        for workers in plan.workers
    ]
    outcomes: Outcomes = {cell: defaultdict(list) for cell in cells}
    failures: list[str] = []
    with ExitStack() as stack:
        crews = _start(contenders_of(ours, kafka), folder, stack)
        _warm_up(crews, plan, progress)
        for number in range(1, plan.rounds + 1):
            for cell in cells:
                load = make_load(draw_keys(cell.distribution, KEYS, cell.count(plan), number))
                for crew in crews:
                    if not takes_part(crew.contender, cell):
                        continue
                    name = crew.contender.name
                    progress(f"round {number}: {title(cell)}, {len(load):,} records: {name}")
                    try:
                        outcomes[cell][name].append(_run(crew, cell, load))
                    except LoadError as problem:
                        failures.append(f"{title(cell)}: {name}: {problem}")
                        crew.close()
                        crew.start()
    return outcomes, failures


def _start(contenders: Sequence[Contender], folder: Path, stack: ExitStack) -> list[Crew]:
    crews = []
    for number, contender in enumerate(contenders):
        command = build_peers() if contender.is_java else member_command()
        crew = Crew(contender, command, folder / f"crew-{number}")
        stack.callback(crew.close)
        crews.append(crew)
    return crews


def _warm_up(crews: Sequence[Crew], plan: RatePlan, progress: Callable[[str], None]) -> None:
    """A run without work, so that what is compiled on the way is compiled."""
    load = make_load(draw_keys(UNIFORM, KEYS, min(_WARM_UP_RECORDS, plan.records_max)))
    for crew in crews:
        progress(f"warm-up: {crew.contender.name}")
        crew.run(load, workers=MOST_WORKERS, work_us=0, limit_s=_LIMIT_S)


def _run(crew: Crew, cell: Cell, load: Load) -> Outcome:
    return crew.run(load, workers=cell.workers, work_us=cell.work_us, limit_s=_LIMIT_S)


# Figures ------------------------------------------------------------------------------------------


def title(cell: Cell) -> str:
    return f"{cell.work_us / 1000:g} ms, {cell.distribution}, {cell.workers} workers"


@functools.cache
def ideal_rate(cell: Cell, records: int, *, is_ordered: bool = True, seed: int = 1) -> float:
    """What the work allows: no worker idles, and no key has two workers at once."""
    keys = draw_keys(cell.distribution, KEYS, records, seed)
    return records / ideal_seconds(keys, cell.workers, cell.work_us / 1e6, is_ordered=is_ordered)


def rate_of(outcomes: Outcomes, cell: Cell, name: str) -> float | None:
    """The median rate of a contender in a cell."""
    if name == PLAIN:
        cell = Cell(cell.distribution, cell.work_us, 1)
    taken = outcomes.get(cell, {}).get(name)
    return median(one.rate for one in taken) if taken else None


def share_of_ideal(outcomes: Outcomes, cell: Cell, name: str) -> float | None:
    """The median of a contender's rate, as a part of the ideal of the same round's records."""
    taken = outcomes.get(cell, {}).get(name)
    if not taken or not cell.work_us:
        return None
    ordered = name not in (SHARE, CONTROL)
    return median(
        one.rate / ideal_rate(cell, one.records, is_ordered=ordered, seed=number)
        for number, one in enumerate(taken, start=1)
    )


def rate_rows(outcomes: Outcomes) -> list[list[str]]:
    """Records per second, with the share of the ideal; ratios of ours in one process to peers."""
    names = [one for one in _NAMES if any(taken.get(one) for taken in outcomes.values())]
    peers = [one for one in PEERS if one in names]
    rows = [["work", "keys", "workers", "ideal", *names, *(f"x {one}" for one in peers)]]
    rows.append(["ms", "", "", "1/s", *("1/s" for _ in names), *("" for _ in peers)])
    for cell, taken in outcomes.items():
        ours = rate_of(outcomes, cell, OURS)
        records = next((some[0].records for some in taken.values() if some), 0)
        ideal = f"{ideal_rate(cell, records):,.0f}" if cell.work_us and records else ""
        row = [f"{cell.work_us / 1000:g}", cell.distribution, str(cell.workers), ideal]
        row += [_rate_text(outcomes, cell, name) for name in names]
        for peer in peers:
            theirs = rate_of(outcomes, cell, peer)
            row.append(f"{ours / theirs:.2f}" if ours and theirs else "")
        rows.append(row)
    return rows


def _rate_text(outcomes: Outcomes, cell: Cell, name: str) -> str:
    rate = rate_of(outcomes, cell, name)
    if rate is None:
        return ""
    share = share_of_ideal(outcomes, cell, name)
    text = f"{rate:,.0f}"
    if not all(one.is_complete for one in outcomes.get(cell, {}).get(name, ())):
        text += "*"
    return f"{text} ({share:.0%})" if share is not None else text


def cpu_rows(outcomes: Outcomes) -> list[list[str]]:
    """CPU time of a record with the most workers, which a busy machine changes less."""
    names = [one for one in _NAMES if any(taken.get(one) for taken in outcomes.values())]
    rows = [["work", "keys", *names], ["ms", "", *("us" for _ in names)]]
    for cell in outcomes:
        if cell.workers == MOST_WORKERS:
            row = [f"{cell.work_us / 1000:g}", cell.distribution]
            rows.append(row + [_cpu_text(outcomes, cell, name) for name in names])
    return rows


def _cpu_text(outcomes: Outcomes, cell: Cell, name: str) -> str:
    if name == PLAIN:
        cell = Cell(cell.distribution, cell.work_us, 1)
    taken = outcomes.get(cell, {}).get(name)
    if not taken:
        return ""
    worker = median(one.worker_cpu_seconds / max(one.done, 1) for one in taken)
    server = median(one.server_cpu_seconds / max(one.done, 1) for one in taken)
    return f"{worker * 1e6:,.0f} + {server * 1e6:,.0f}"


def rate_goals(outcomes: Outcomes) -> list[str]:
    lines = []
    shares = {
        cell: share
        for cell in outcomes
        if cell.work_us == 10_000 and (share := share_of_ideal(outcomes, cell, OURS)) is not None
    }
    if shares:
        worst = min(shares, key=lambda cell: shares[cell])
        verdict = "reached" if shares[worst] >= 0.95 else "missed"
        lines.append(
            f"goal, 10 ms: at least 95% of the ideal up to {MOST_WORKERS} workers: {verdict} "
            f"(least {shares[worst]:.1%}: {title(worst)})"
        )
    ratios = {
        cell: ours / theirs
        for cell in outcomes
        if not cell.work_us
        and (ours := rate_of(outcomes, cell, OURS))
        and (theirs := rate_of(outcomes, cell, PARALLEL))
    }
    if ratios:
        worst = min(ratios, key=lambda cell: ratios[cell])
        verdict = "reached" if ratios[worst] >= 1 else "missed"
        lines.append(
            f"goal, 0 ms: at least Parallel Consumer's rate: {verdict} "
            f"(least {ratios[worst]:.1f}x: {title(worst)})"
        )
    lines += _faults(outcomes)
    return lines


def _faults(outcomes: Outcomes) -> list[str]:
    """Records that were not done, done twice, or done after a later one of their key."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for taken in outcomes.values():
        for name, some in taken.items():
            for one in some:
                sums[name][0] += one.records - one.done
                sums[name][1] += one.repeated
                sums[name][2] += one.disordered
    return [
        f"{name}: {left:,} not done in {_LIMIT_S:.0f} s, {repeated:,} repeated,"
        f" {late:,} after a later one of their key"
        for name, (left, repeated, late) in sums.items()
        if left or repeated or late
    ]


def rate_figures(outcomes: Outcomes) -> list[Mapping[str, object]]:
    """All single figures, for the file of results."""
    return [
        {
            "distribution": cell.distribution,
            "work_us": cell.work_us,
            "workers": cell.workers,
            "contender": name,
            "rates": [round(one.rate, 1) for one in some],
            "records": [one.records for one in some],
            "share_of_ideal": share_of_ideal(outcomes, cell, name),
            "server_cpu_seconds": [round(one.server_cpu_seconds, 3) for one in some],
            "worker_cpu_seconds": [round(one.worker_cpu_seconds, 3) for one in some],
            "done": [one.done for one in some],
            "repeated": [one.repeated for one in some],
            "disordered": [one.disordered for one in some],
            "per_process": [one.per_process for one in some],
        }
        for cell, taken in outcomes.items()
        for name, some in taken.items()
    ]
