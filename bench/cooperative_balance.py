"""How evenly members are loaded when some keys are far more frequent than others.

Sixteen members share one partition whose keys follow Zipf's law. At first their ranges are equally
wide; then the broker moves ranges by the load it measures. The load of a member is what its keys
have of all records, by the law itself and by counting what it did.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from anabranch.branch.slots import slot_of_key
from anabranch.model.units import SLOT_COUNT
from cooperative_crew import (
    Contender,
    Slots,
    Worker,
    await_slots,
    member_command,
    slots_said,
    width,
)
from cooperative_load import ZIPF, LoadError, create_topic, hottest_share, key_bytes
from cooperative_stream import Stream, stream_load
from server_process import ServerProcess

MEMBERS = 16
WORKERS = 4
# Ten thousand keys would not do: the most frequent of them alone is 1.6 times a fair load.
KEYS = 100_000
RATE_PER_S = 1_000
WORK_US = 2_000
GOAL = 1.4

_END_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePlan:
    seconds: float
    # After the last move it is watched for so long.
    settle_seconds: float
    interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The busiest member's load as a multiple of the mean, at a time and by both ways to tell."""

    at_s: float
    by_law: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What came of it."""

    plan: BalancePlan
    bound: float
    spreads: tuple[Spread, ...]
    # The loads of the members at the end, by the keys' law, with the slots of each.
    last_loads: tuple[float, ...]
    last_slots: tuple[Slots, ...]
    measured_first: float
    measured_last: float

    @property
    def first(self) -> Spread:
        return self.spreads[0]

    @property
    def last(self) -> Spread:
        return self.spreads[-1]

    @property
    def goal_s(self) -> float | None:
        """How long it took until the goal was reached for good."""
        reached = None
        for spread in self.spreads:
            if spread.by_law > GOAL:
                reached = None
            elif reached is None:
                reached = spread.at_s
        return reached


def measure_balance(
    server: ServerProcess, folder: Path, plan: BalancePlan, progress: Callable[[str], None]
) -> Balance:
    progress(f"balance: {MEMBERS} members, {ZIPF}, up to {plan.seconds:.0f} s")
    folder.mkdir(parents=True, exist_ok=True)
    contender = Contender(name="ours", kind="logged", server=server)
    load = stream_load(ZIPF, KEYS, rate_per_s=RATE_PER_S, seconds=plan.seconds, tick_s=0.05)
    weights = slot_sums()
    topic = create_topic(server, contender.topic_configs)
    with ExitStack() as stack:
        workers = []
        for number in range(MEMBERS):
            worker = Worker(member_command(), server, folder / f"member-{number}.log")
            stack.callback(worker.close)
            worker.tell("run", "logged", topic, f"{topic}-group", WORKERS, WORK_US, 0)
            workers.append(worker)
        owned = await_slots(workers)
        began_ns = time.monotonic_ns()
        with Stream(server, topic, load, RATE_PER_S) as stream:
            spreads = _watch(workers, owned, weights, stream, plan)
            ended_ns = time.monotonic_ns()
        logs = _stop(workers, folder)
    changes_s = [spread.at_s for spread in spreads[1:]]
    first_change_ns = began_ns + round((changes_s[0] if changes_s else plan.seconds) * 1e9)
    last_change_ns = began_ns + round((changes_s[-1] if changes_s else 0.0) * 1e9)
    return Balance(
        plan=plan,
        bound=max(1.0, MEMBERS * hottest_share(ZIPF, KEYS)),
        spreads=tuple(spreads),
        last_loads=tuple(loads_by_law(owned, weights)),
        last_slots=tuple(owned),
        measured_first=_counted(logs, began_ns, min(first_change_ns, ended_ns)),
        measured_last=_counted(logs, last_change_ns, ended_ns),
    )


def _watch(
    workers: Sequence[Worker],
    owned: list[Slots],
    weights: Sequence[float],
    stream: Stream,
    plan: BalancePlan,
) -> list[Spread]:
    """See how ranges move, until nothing has for a while after the goal was reached."""
    began_s = time.monotonic()
    spreads = [Spread(at_s=0.0, by_law=spread_by_law(owned, weights))]
    while not stream.is_over:
        has_changed = False
        for number, worker in enumerate(workers):
            while line := worker.hear(0.0):
                if line[0] == "owns":
                    owned[number] = slots_said(line)
                    has_changed = True
        now_s = time.monotonic() - began_s
        # While ranges are on their way nobody has them.
        if has_changed and sum(map(width, owned)) == SLOT_COUNT:
            spreads.append(Spread(at_s=now_s, by_law=spread_by_law(owned, weights)))
        is_settled = now_s - spreads[-1].at_s > plan.settle_seconds
        if is_settled and spreads[-1].by_law <= GOAL:
            break
        time.sleep(0.02)
    return spreads


def _stop(workers: Sequence[Worker], folder: Path) -> list[array[int]]:
    paths = [folder / f"done-{number}" for number in range(len(workers))]
    for worker, path in zip(workers, paths, strict=True):
        worker.tell("stop", path)
    for worker in workers:
        while (line := worker.hear(_END_LIMIT_S)) and line[0] != "ended":
            pass
        if not line:
            raise LoadError("a member does not stop")
    return [array("q", path.read_bytes()) for path in paths]


# Figures ------------------------------------------------------------------------------------------


def slot_sums() -> list[float]:
    """For each slot, what all slots before it have of all records."""
    weights = [0.0] * SLOT_COUNT
    for number in range(KEYS):
        weights[slot_of_key(key_bytes(number))] += 1 / (number + 1)
    return [0.0, *itertools.accumulate(weights)]


def loads_by_law(owned: Sequence[Slots], sums: Sequence[float]) -> list[float]:
    """The load of each member as a multiple of the mean, if keys follow the law."""
    loads = [sum(sums[end] - sums[first] for first, end in slots) for slots in owned]
    return [load * len(loads) / sum(loads) for load in loads]


def spread_by_law(owned: Sequence[Slots], sums: Sequence[float]) -> float:
    """The heaviest member's load as a multiple of the mean, if keys follow the law."""
    return max(loads_by_law(owned, sums))


def _counted(logs: Sequence[array[int]], from_ns: int, until_ns: int) -> float:
    """The same by records that were done in a time."""
    counts = [sum(from_ns <= at < until_ns for at in log[2::3]) for log in logs]
    return max(counts) * len(counts) / sum(counts) if sum(counts) else 0.0


def balance_rows(balance: Balance) -> list[list[str]]:
    rows = [
        ["ranges", "busiest / mean", "busiest / mean", "after"],
        ["", "by the keys' law", "counted", "s"],
    ]
    first, last = balance.first, balance.last
    rows.append(["equally wide", f"{first.by_law:.2f}", f"{balance.measured_first:.2f}", "0.0"])
    if len(balance.spreads) > 1:
        counted = f"{balance.measured_last:.2f}"
        rows.append(["moved by load", f"{last.by_law:.2f}", counted, f"{last.at_s:.1f}"])
    return rows


def balance_goal(balance: Balance) -> str:
    if len(balance.spreads) == 1:
        return f"goal: at most {GOAL} times the mean: not measured, no range has moved"
    verdict = "reached" if balance.goal_s is not None else "missed"
    when = f" {balance.goal_s:.1f} s after the first record" if balance.goal_s is not None else ""
    return (
        f"goal: at most {GOAL} times the mean: {verdict}{when}, looking every"
        f" {balance.plan.interval_ms / 1000:g} s; the most frequent key alone is"
        f" {balance.bound:.2f} times the mean"
    )
