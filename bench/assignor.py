"""What the server-side assignors cost: a whole assignment, one join, one leave, many joins.

    .venv/bin/python bench/assignor.py            # two to five minutes
    .venv/bin/python bench/assignor.py --quick    # the smallest size only

No broker runs: this is the assignor and its index. All figures are CPU time of the process, so
that a busy machine does not count; "best" is the least of all runs. Kafka's figures beside them
were published by their authors (see KAFKA below) and come from other machines: they show the order
of magnitude, nothing more.

first      all members are there, nothing is assigned: the answer, as pieces of topics
 + sets    ... and every target as a set of units
 + replay  ... and written into the index, as after the journal's append
again      nothing to do: how long it takes to find that out
join       one more member: the answer with all targets that change
leave      one member less
replay     the records of a join or leave, into the index
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from anabranch.coordinator.group.assignors.api import (
    Assignor,
    MemberSpec,
    TargetIndex,
    Targets,
    compute_targets,
)
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.model.cluster_image import ClusterImage, TopicImage
from machine import describe_machine

RESULTS = Path(__file__).resolve().parent / "results"
TOPICS = 100
RACKS = ("rack-a", "rack-b", "rack-c")
Changes = dict[str, MemberSpec | None]
ASSIGNORS = build_registry(["uniform", "range"], plugins=[])


@dataclass(frozen=True, slots=True)
class Case:
    """A group to be measured."""

    assignor: str
    members: int
    partitions: int
    subscriptions: int = 1
    has_racks: bool = False

    @property
    def label(self) -> str:
        kind = self.assignor
        if self.subscriptions > 1:
            kind += f", {self.subscriptions} subscriptions"
        if self.has_racks:
            kind += ", racks"
        return f"{kind}, {self.members // 1000}k x {self.partitions // 1000}k"


SIZES = ((1_000, 10_000), (10_000, 100_000), (10_000, 500_000))
CASES = [
    Case(assignor, members, partitions, subscriptions, has_racks)
    for members, partitions in SIZES
    for assignor, subscriptions, has_racks in (
        ("uniform", 1, False),
        ("uniform", 1, True),
        ("uniform", 5, False),
        ("range", 1, False),
        ("range", 5, False),
    )
]

# Milliseconds per assignment, from pull requests to apache/kafka: 100 topics (* 1000 topics).
# first: FULL of its benchmark; join: INCREMENTAL.
KAFKA: dict[str, dict[str, tuple[float, str]]] = {
    "uniform, 1k x 10k": {"join": (0.10, "#20000")},
    "uniform, 10k x 100k": {"first": (2.88, "#19677"), "join": (1.98, "#16088")},
    "uniform, 10k x 500k": {"first": (12.4, "#19677")},
    "uniform, 5 subscriptions, 10k x 100k": {"first": (22.9, "#17385")},
    "range, 10k x 100k": {"join": (5.64, "#16504")},
    "range, 5 subscriptions, 10k x 100k": {"join": (18.6, "#16504")},
    "range, 10k x 500k": {"first": (24.3, "#19677 *")},
    "range, 5 subscriptions, 10k x 500k": {"first": (118.5, "#19677 *")},
}


@dataclass(slots=True)
class Figures:
    """CPU times in microseconds."""

    case: Case
    first: list[float] = field(default_factory=list)
    first_sets: list[float] = field(default_factory=list)
    first_replay: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    join: list[float] = field(default_factory=list)
    join_replay: list[float] = field(default_factory=list)
    leave: list[float] = field(default_factory=list)
    leave_replay: list[float] = field(default_factory=list)
    moved_by_join: list[float] = field(default_factory=list)
    near_percent: float | None = None


T = TypeVar("T")


def timed(into: list[float], action: Callable[[], T]) -> T:
    start = time.process_time_ns()
    result = action()
    into.append((time.process_time_ns() - start) / 1_000)
    return result


class Bench:
    """One group, from the first assignment on."""

    def __init__(self, case: Case) -> None:
        self.figures = Figures(case)
        self._case = case
        self._random = random.Random(1)
        self._assignor: Assignor = ASSIGNORS.get(case.assignor) or ASSIGNORS.default
        names = [f"topic-{number:04}" for number in range(TOPICS)]
        # As in Kafka's benchmark, each set of members subscribes to a larger part of the topics.
        self._subscriptions = [
            frozenset(names[: len(names) * (number + 1) // case.subscriptions])
            for number in range(case.subscriptions)
        ]
        self._image = ClusterImage().with_topics({name: self._topic(name) for name in names})
        self._joined = 0

    def _topic(self, name: str) -> TopicImage:
        count = self._case.partitions // TOPICS
        racks: tuple[frozenset[str], ...] = ()
        if self._case.has_racks:
            pairs = [frozenset((RACKS[at], RACKS[(at + 1) % 3])) for at in range(3)]
            racks = tuple(pairs[partition % 3] for partition in range(count))
        return TopicImage(name, self._random.randbytes(16), count, racks)

    def _member(self) -> MemberSpec:
        self._joined += 1
        return MemberSpec(
            member_id=str(uuid.UUID(int=self._random.getrandbits(128))),
            rack_id=self._random.choice(RACKS) if self._case.has_racks else None,
            topics=self._subscriptions[self._joined % len(self._subscriptions)],
        )

    def _empty(self) -> TargetIndex:
        index = TargetIndex()
        index.set_image(self._image)
        return index

    def run(self, rounds: int, changes: int) -> Figures:
        index = self._empty()
        for _ in range(self._case.members):
            index.set_member(self._member())
        self._first(index, rounds)
        member_ids = list(index.members)
        for _ in range(changes):
            self._join(index, member_ids)
            self._leave(index, member_ids)
        if self._case.has_racks:
            self.figures.near_percent = 100 * self._near(index)
        return self.figures

    def _first(self, index: TargetIndex, rounds: int) -> None:
        figures = self.figures
        for _ in range(rounds):
            answer = timed(figures.first, lambda: compute_targets(self._assignor, index))
        for _ in range(3):
            gc.collect()
            targets = timed(figures.first_sets, lambda: dict(answer))
        timed(
            figures.first_replay,
            lambda: [index.set_target(key, target) for key, target in targets.items()],
        )
        for _ in range(rounds):
            timed(figures.again, lambda: compute_targets(self._assignor, index))

    def _join(self, index: TargetIndex, member_ids: list[str]) -> None:
        spec = self._member()
        changes: Changes = {spec.member_id: spec}
        targets = timed(
            self.figures.join, lambda: dict(compute_targets(self._assignor, index, changes))
        )
        timed(self.figures.join_replay, lambda: self._replay(index, changes, targets))
        self.figures.moved_by_join.append(len(targets.get(spec.member_id, ())))
        member_ids.append(spec.member_id)

    def _leave(self, index: TargetIndex, member_ids: list[str]) -> None:
        at = self._random.randrange(len(member_ids))
        member_ids[at], member_ids[-1] = member_ids[-1], member_ids[at]
        changes: Changes = {member_ids.pop(): None}
        targets = timed(
            self.figures.leave, lambda: dict(compute_targets(self._assignor, index, changes))
        )
        timed(self.figures.leave_replay, lambda: self._replay(index, changes, targets))

    def _replay(self, index: TargetIndex, changes: Changes, targets: Targets) -> None:
        for member_id, spec in changes.items():
            if spec is None:
                index.set_target(member_id, None)
                index.remove_member(member_id)
            else:
                index.set_member(spec)
        for member_id, target in targets.items():
            index.set_target(member_id, target)

    def _near(self, index: TargetIndex) -> float:
        near = sum(
            index.members[key].rack_id in self._image.by_id[unit.topic_id].racks[unit.partition]
            for key, target in index.targets.items()
            for unit in target
        )
        return near / self._case.partitions

    def joins_from_empty(self) -> float:
        """Seconds of CPU for all members to join one after the other."""
        index = self._empty()
        specs = [self._member() for _ in range(self._case.members)]
        gc.collect()
        start = time.process_time()
        for spec in specs:
            changes: Changes = {spec.member_id: spec}
            targets = dict(compute_targets(self._assignor, index, changes))
            self._replay(index, changes, targets)
        return time.process_time() - start


# The table ----------------------------------------------------------------------------------------

HEADER = (
    f"{'CPU, best of all runs':42}{'first':>9}{'+ sets':>9}{'+ replay':>9}{'again':>9}"
    f"{'join':>9}{'p50':>9}{'p99':>9}{'leave':>9}{'p50':>9}{'p99':>9}{'replay':>9}"
    f"   {'Kafka first':>18}{'Kafka join':>18}"
)


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def show_time(us: float) -> str:
    if us < 1_000:
        return f"{us:.0f} us"
    return f"{us / 1_000:.3g} ms" if us < 999_500 else f"{us / 1e6:.3g} s"


def row(figures: Figures) -> str:
    first = min(figures.first)
    sets = first + min(figures.first_sets)
    kafka = KAFKA.get(figures.case.label, {})
    published = [
        f"{kafka[key][0]:g} ms {kafka[key][1]}" if key in kafka else "-"
        for key in ("first", "join")
    ]
    cells = [
        f"{figures.case.label:42}",
        f"{show_time(first):>9}",
        f"{show_time(sets):>9}",
        f"{show_time(sets + min(figures.first_replay)):>9}",
        f"{show_time(min(figures.again)):>9}",
    ]
    for times in (figures.join, figures.leave):
        cells.append(f"{show_time(min(times)):>9}")
        cells.extend(f"{show_time(percentile(times, percent)):>9}" for percent in (50, 99))
    cells.append(f"{show_time(min(figures.join_replay)):>9}")
    cells.append(f"   {published[0]:>18}{published[1]:>18}")
    return "".join(cells)


def summary(figures: Figures) -> dict[str, object]:
    result: dict[str, object] = {"case": asdict(figures.case), "label": figures.case.label}
    for key in Figures.__dataclass_fields__:
        values = getattr(figures, key)
        if isinstance(values, list):
            result[f"{key}_us" if key != "moved_by_join" else key] = {
                "best": min(values),
                "p50": percentile(values, 50),
                "p99": percentile(values, 99),
                "count": len(values),
            }
    result["near_percent"] = figures.near_percent
    result["kafka_published_ms"] = KAFKA.get(figures.case.label, {})
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="the smallest size, few changes")
    arguments = parser.parse_args()
    cases = CASES[:5] if arguments.quick else CASES
    changes = 200 if arguments.quick else 1_000
    print(HEADER, flush=True)
    results = []
    for case in cases:
        # Each answer of `range` may be the size of the group; a few are enough.
        count = changes if case.assignor == "uniform" else 20
        figures = Bench(case).run(rounds=30, changes=count)
        print(row(figures), flush=True)
        results.append(summary(figures))
    print("\nKafka: published by its authors, other machines (* with 1000 topics).")
    for figures in results:
        if figures["near_percent"] is not None:
            print(
                f"{figures['label']}: {figures['near_percent']:.1f} % of partitions near their "
                f"owner after {2 * changes} joins and leaves (2 of 3 racks have a replica)"
            )
    joins_case = cases[0] if arguments.quick else Case("uniform", 10_000, 100_000)
    seconds = Bench(joins_case).joins_from_empty()
    print(
        f"{joins_case.members:,} joins one after the other from an empty group, "
        f"{joins_case.partitions:,} partitions, replay included: {seconds:.2f} s "
        f"({seconds / joins_case.members * 1e6:.0f} us each)"
    )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"assignor-{time.strftime('%Y%m%d-%H%M%S')}.json"
    document = {
        "machine": describe_machine(),
        "cases": results,
        "joins_from_empty": {"case": asdict(joins_case), "seconds": seconds},
    }
    path.write_text(json.dumps(document, indent=1))
    print(
        f"All figures: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
