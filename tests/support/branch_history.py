"""What the histories of consumers say together: was everything done, and every key in order?

A *tenure* is the time that one consumer holds one partition, by its own account; it ends when the
partition is given back, lost, or the consumer killed. For all histories together:

- a record is worked on only by who holds its partition, and no two hold a partition at once;
- a key is in one partition; its records begin in the order of their offsets within a tenure;
- tenures of a key do not interleave: the next one begins when the last one's work is over;
- a tenure skips nothing: it begins at or below the first record that nobody committed, and goes on
  without gaps;
- a tenure does nothing again whose commit was confirmed before;
- in the end every record was done at least once.

What came more than once is no fault after a crash, but counted: by how the earlier tenure ended.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

Event = Mapping[str, Any]


@dataclass(slots=True)
class Step:
    """One record in the hands of a consumer."""

    offset: int
    key: str
    began_at: float
    done_at: float = math.inf
    """Never, if the consumer was killed before."""


@dataclass(slots=True)
class Tenure:
    """One consumer's time with one partition."""

    worker: int
    partition: int
    since: float
    until: float = math.inf
    ending: str = "open"
    steps: list[Step] = field(default_factory=list)
    asked_commit: int = 0
    """The largest offset that it tried to commit: it may count though nobody confirmed it."""
    confirmed_commit: int = 0

    def __str__(self) -> str:
        return f"worker {self.worker}'s tenure of partition {self.partition} ({self.ending})"

    def work_over_at(self, step: Step) -> float:
        return min(step.done_at, self.until)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, and what was done more than once, by how the tenure before it ended."""

    problems: list[str]
    replays: Counter[str]
    tenures: int
    keys_that_moved: int


@dataclass(frozen=True, slots=True)
class History:
    """What one consumer told, and when it was killed, if it was."""

    events: Sequence[Event]
    killed_at: float | None = None


def judge(histories: Sequence[History], produced: Mapping[int, str]) -> Verdict:
    """Judge the histories of all consumers of a topic; `produced` are the keys by offset."""
    problems: list[str] = []
    tenures: list[Tenure] = []
    for worker, history in enumerate(histories):
        found, strays = read_tenures(worker, history)
        tenures += found
        problems += strays
    tenures.sort(key=lambda tenure: (tenure.partition, tenure.since))
    problems += _lost(tenures, produced)
    problems += _out_of_order(tenures)
    problems += _interleaved(tenures)
    replays: Counter[str] = Counter()
    for _, group in groupby(tenures, key=lambda tenure: tenure.partition):
        in_turn = list(group)
        problems += _overlaps(in_turn)
        problems += _skips(in_turn)
        problems += _needless(in_turn)
        replays += _replays(in_turn)
    moved = _owners_by_key(tenures)
    return Verdict(problems, replays, len(tenures), sum(len(who) > 1 for who in moved.values()))


# Reading ------------------------------------------------------------------------------------------


def read_tenures(worker: int, history: History) -> tuple[list[Tenure], list[str]]:
    """The tenures of one consumer, and what it did outside of them."""
    held: dict[int, Tenure] = {}
    ended: list[Tenure] = []
    strays: list[str] = []

    def end(partitions: Iterable[int], at: float, ending: str) -> None:
        for partition in [p for p in partitions if p in held]:
            tenure = held.pop(partition)
            tenure.until, tenure.ending = at, ending
            ended.append(tenure)

    for event in history.events:
        kind, at = event["event"], event["at"]
        if kind == "assigned":
            for partition in event["partitions"]:
                held.setdefault(partition, Tenure(worker, partition, at))
        elif kind in ("revoked", "lost"):
            end(event["partitions"], at, kind)
        elif kind == "start":
            tenure = held.get(event["partition"])
            if tenure is None:
                strays.append(f"worker {worker} began {event} without holding its partition")
            else:
                tenure.steps.append(Step(event["offset"], event["key"], at))
        elif kind == "done" and (tenure := held.get(event["partition"])) is not None:
            tenure.steps[-1].done_at = at
        elif kind in ("committing", "committed"):
            _note_commits(held, event)
        elif kind == "crashed":
            strays.append(f"worker {worker} crashed: {event}")
        elif kind == "closing":  # what a client still goes through while it leaves is not work
            end(list(held), at, "closed")
            break
    if history.killed_at is not None:
        end(list(held), history.killed_at, "killed")
    else:
        end(list(held), math.inf, "open")
    return ended, strays


def _note_commits(held: Mapping[int, Tenure], event: Event) -> None:
    for partition, offset in event["offsets"].items():
        tenure = held.get(int(partition))
        if tenure is not None:
            tenure.asked_commit = max(tenure.asked_commit, offset)
            if event["event"] == "committed":
                tenure.confirmed_commit = max(tenure.confirmed_commit, offset)


# Judging ------------------------------------------------------------------------------------------


def _lost(tenures: Sequence[Tenure], produced: Mapping[int, str]) -> Iterator[str]:
    done: dict[int, str] = {}
    places: dict[str, set[int]] = defaultdict(set)
    for tenure in tenures:
        for step in tenure.steps:
            places[step.key].add(tenure.partition)
            if step.done_at < math.inf:
                done[step.offset] = step.key
    missing = sorted(produced.keys() - done.keys())
    if missing:
        yield f"{len(missing)} records were never done, the first is {missing[0]}"
    for offset, key in done.items():
        if produced.get(offset) != key:
            yield f"record {offset} had key {key!r}, not {produced.get(offset)!r}"
    for key, partitions in places.items():
        if len(partitions) > 1:
            yield f"key {key!r} was in the partitions {sorted(partitions)}"


def _out_of_order(tenures: Sequence[Tenure]) -> Iterator[str]:
    for tenure in tenures:
        for one, next_one in pairwise(tenure.steps):
            if next_one.offset <= one.offset:
                yield f"{tenure}: {next_one.offset} came after {one.offset}"
            if next_one.began_at < one.done_at < math.inf:
                yield f"{tenure}: {next_one.offset} began before {one.offset} was done"


def _interleaved(tenures: Sequence[Tenure]) -> Iterator[str]:
    """Keys of which another tenure did something before the last one was through with them."""
    by_key: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for number, tenure in enumerate(tenures):
        for step in tenure.steps:
            by_key[step.key].append((step.began_at, tenure.work_over_at(step), number))
    for key, steps in by_key.items():
        steps.sort()
        seen: set[int] = set()
        for number, _ in groupby(step[2] for step in steps):
            if number in seen:
                yield f"key {key!r} went back to {tenures[number]}"
            seen.add(number)
        for (_, over_at, one), (began_at, _, next_one) in pairwise(steps):
            if began_at < over_at and one != next_one:
                yield f"key {key!r} was in two hands: {tenures[one]} and {tenures[next_one]}"


def _overlaps(in_turn: Sequence[Tenure]) -> Iterator[str]:
    for one, next_one in pairwise(in_turn):
        if next_one.since < one.until:
            yield f"{next_one} began {one.until - next_one.since:.3f} s before the end of {one}"


def _skips(in_turn: Sequence[Tenure]) -> Iterator[str]:
    """Tenures that left something out that nobody had committed, or that lay between."""
    offsets = sorted({step.offset for tenure in in_turn for step in tenure.steps})
    asked = 0
    for tenure in in_turn:
        mine = {step.offset for step in tenure.steps}
        if mine:
            left_out = [o for o in offsets if asked <= o <= max(mine) and o not in mine]
            left_out += [o for o in offsets if min(mine) < o < asked and o not in mine]
            if left_out:
                yield f"{tenure} left out {len(left_out)} records, the first is {left_out[0]}"
        asked = max(asked, tenure.asked_commit)


def _needless(in_turn: Sequence[Tenure]) -> Iterator[str]:
    """Tenures that did something again whose commit was confirmed."""
    confirmed = 0
    for tenure in in_turn:
        again = [step.offset for step in tenure.steps if step.offset < confirmed]
        if again:
            yield f"{tenure} did {len(again)} committed records again, the first is {again[0]}"
        confirmed = max(confirmed, tenure.confirmed_commit)


def _replays(in_turn: Sequence[Tenure]) -> Counter[str]:
    """How many records were done before, by how the last tenure with them ended."""
    endings: dict[int, str] = {}
    found: Counter[str] = Counter()
    for tenure in in_turn:
        found.update(endings[s.offset] for s in tenure.steps if s.offset in endings)
        endings.update((step.offset, tenure.ending) for step in tenure.steps)
    return found


def _owners_by_key(tenures: Sequence[Tenure]) -> dict[str, set[int]]:
    owners: dict[str, set[int]] = defaultdict(set)
    for tenure in tenures:
        for step in tenure.steps:
            owners[step.key].add(tenure.worker)
    return owners
