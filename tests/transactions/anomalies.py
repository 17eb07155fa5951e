"""Judges what clients of transactions told: the anomalies of Jepsen's Kafka workload, by its names.

    python tests/transactions/anomalies.py FOLDER_OR_FILE... [--json]

A history is JSON lines, one event each, of all processes together. Every event has `at` (seconds of
the machine's monotonic clock), `process` (one thing at a time; who comes back has another name),
`f` and `type`:

- `f` is `txn`, `send` or `poll` (these have a `value`, a list of steps), `assign` (`value`: each
  partition and the offset where it is read from), `subscribe` (`group`), or `end` (`group`, and
  `value`: each partition and the group's offset in the end).
- `type` is `invoke` before it begins, `commit` just before the commit is asked for, and then `ok`,
  `fail` (it has certainly not happened) or `info` (nobody knows).

Steps are `["send", partition, [offset or null, value]]` and `["poll", {partition: [[offset, value],
...]}]`. A value is sent once, to one partition. Polls are of committed records only. Who fails to
commit goes on reading where it was before. `moved` are the partitions that a group gave and took
meanwhile: nobody knows where reading goes on there.

A transaction that was begun and neither ended nor asked to commit cannot have happened; one that
was asked to commit may have. When one of its records is read, it has, and all of it counts.

| anomaly | what was seen |
|---|---|
| `G1a` | aborted read: a record of a transaction that failed |
| `early-read` | a record of a transaction whose commit had not been asked for |
| `G1c` | transactions that have read each other's records, in a circle |
| `lost-write` | a committed record that nobody read, though somebody read beyond it |
| `unseen` | a committed record that nobody read |
| `duplicate` | a record at two offsets |
| `inconsistent-offsets` | two records at one offset |
| `unknown-value` | a record that nobody sent, or that was sent elsewhere |
| `poll-skip`, `int-poll-skip` | a process, a transaction, read on and left a committed record out |
| `nonmonotonic-poll`, `int-nonmonotonic-poll` | a process, a transaction, read back |
| `nonmonotonic-send`, `int-nonmonotonic-send` | what was sent later has the lower offset |
| `consume-twice` | a group's transactions took in one record twice |
| `consume-skip` | the offset of a group is beyond a record that no transaction took in |

`early-read`, `unknown-value` and the two of groups are our own: Jepsen does not know when a commit
is asked for, and what a group has. What it allows is only counted: records of others between two of
a transaction (int-send-skip), which is how several write to one log.
"""

import argparse
import json
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from anabranch.client.history import Event, UnreadableHistory, Verdict, load

OK, FAIL, INFO = "ok", "fail", "info"
_WITH_STEPS = ("txn", "send", "poll")
_ORDERS = ("assign", "subscribe", "end")
PROBLEMS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Place:
    """A record where somebody saw or wrote it; the offset is None where nobody told."""

    partition: str
    offset: int | None
    value: str


@dataclass(slots=True)
class Op:
    """Something that a process did."""

    process: str
    f: str
    began_at: float
    ended_at: float = float("inf")
    outcome: str = ""
    commit_at: float | None = None
    sends: list[Place] = field(default_factory=list)
    polls: list[Place] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    group: str | None = None

    def __str__(self) -> str:
        return f"{self.process}'s {self.f} at {self.began_at:.3f} ({self.outcome})"

    def of(self, places: Sequence[Place]) -> dict[str, list[Place]]:
        """By partition, in the order in which it went."""
        found: dict[str, list[Place]] = defaultdict(list)
        for one in places:
            found[one.partition].append(one)
        return found


@dataclass(slots=True)
class History:
    """All that is known."""

    ops: list[Op] = field(default_factory=list)
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """The offset of each group in the end, by partition."""
    writers: dict[str, Op] = field(default_factory=dict)
    """Who sent a value."""
    places: dict[str, Place] = field(default_factory=dict)
    """What was sent, by its value; with its offset as soon as anybody knows."""
    read: set[str] = field(default_factory=set)
    orders: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """The committed records of each partition, in the order of the log."""

    def has_committed(self, op: Op) -> bool:
        """Certainly: it says so, or one of its records was read."""
        if op.outcome == INFO:
            return any(one.value in self.read for one in op.sends)
        return op.outcome == OK

    def between(self, partition: str, low: int, high: int) -> list[str]:
        """The committed records after one offset and before another."""
        order = self.orders.get(partition, [])
        first = bisect_right(order, low, key=lambda one: one[0])
        return [value for _, value in order[first : bisect_left(order, high, key=lambda o: o[0])]]


# Reading ------------------------------------------------------------------------------------------


def read(events: Iterable[Event]) -> History:
    """What the events, of any order, say."""
    history = History()
    running: dict[str, Op] = {}
    groups: dict[str, str | None] = {}
    try:
        for event in sorted(events, key=lambda one: float(one["at"])):
            _take(history, running, groups, event)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UnreadableHistory(f"an event is not what it should be: {error!r}") from error
    for op in running.values():  # whoever was at it was killed
        op.outcome = FAIL if op.f == "txn" and op.commit_at is None else INFO
        history.ops.append(op)
    history.ops.sort(key=lambda one: one.began_at)
    for op in history.ops:
        for one in op.sends:
            history.writers[one.value] = op
            history.places[one.value] = one
        history.read.update(one.value for one in op.polls)
    _put_in_order(history)
    return history


def _take(
    history: History, running: dict[str, Op], groups: dict[str, str | None], event: Event
) -> None:
    process, f, kind, at = event["process"], event["f"], event["type"], float(event["at"])
    if f in _ORDERS:
        if kind != OK:
            return
        if f == "end":
            history.ends.setdefault(event["group"], {}).update(event["value"])
            return
        groups[process] = event["group"] if f == "subscribe" else None
        positions = dict(event["value"]) if f == "assign" else {}
        history.ops.append(Op(process, f, at, at, OK, positions=positions))
    elif f in _WITH_STEPS:
        if kind == "invoke":
            running[process] = Op(process, f, at, group=groups.get(process))
        op = running[process]
        op.sends, op.polls = [*_sends(event["value"])], [*_polls(event["value"])]
        if kind == "commit":
            op.commit_at = at
        elif kind in (OK, FAIL, INFO):
            op.outcome, op.ended_at = kind, at
            op.moved = frozenset(event.get("moved", ()))
            history.ops.append(running.pop(process))


def _sends(steps: Sequence[Any]) -> Iterator[Place]:
    for step in steps:
        if step[0] == "send":
            _, partition, (offset, value) = step
            yield Place(partition, offset, value)


def _polls(steps: Sequence[Any]) -> Iterator[Place]:
    for step in steps:
        if step[0] == "poll" and len(step) > 1:
            for partition, found in step[1].items():
                for offset, value in found:
                    yield Place(partition, int(offset), value)


def _put_in_order(history: History) -> None:
    for op in history.ops:
        for one in op.polls:
            known = history.places.get(one.value)
            if known is not None and known.offset is None and known.partition == one.partition:
                history.places[one.value] = one
    orders: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for value, place in history.places.items():
        if place.offset is not None and history.has_committed(history.writers[value]):
            orders[place.partition].append((place.offset, value))
    history.orders = {partition: sorted(order) for partition, order in orders.items()}


# Judging ------------------------------------------------------------------------------------------


def check(events: Iterable[Event]) -> Verdict:
    """Judge the events of all processes; UnreadableHistory when they are not events."""
    history = read(events)
    numbers: Counter[str] = Counter()
    for op in history.ops:
        numbers[f"{op.f} {op.outcome}"] += 1
        numbers["records sent"] += len(op.sends)
        numbers["records polled"] += len(op.polls)
        numbers["partitions moved"] += len(op.moved)
    numbers["records committed"] = sum(len(order) for order in history.orders.values())
    problems = [
        *_uncommitted_reads(history),
        *_circles(history),
        *_lost(history),
        *_offsets(history),
        *_poll_order(history),
        *_send_order(history, numbers),
        *_groups(history),
    ]
    return Verdict(problems, dict(sorted(numbers.items())))


def _uncommitted_reads(history: History) -> Iterator[str]:
    for op in history.ops:
        for one in op.polls:
            writer = history.writers.get(one.value)
            if writer is None or history.places[one.value].partition != one.partition:
                yield f"unknown-value: {op} read {one}"
            elif writer.outcome == FAIL:
                yield f"G1a: {op} read {one.value!r} of {writer}"
            elif writer.commit_at is not None and op.ended_at < writer.commit_at:
                yield f"early-read: {op} read {one.value!r} of {writer}"
            elif writer is op:
                yield f"early-read: {op} read its own {one.value!r}"


def _circles(history: History) -> Iterator[str]:
    """Take away who has read from nobody that is left; what remains depends on a circle."""
    readers: dict[int, set[int]] = defaultdict(set)
    before: Counter[int] = Counter()
    by_id = {id(op): op for op in history.ops if history.has_committed(op)}
    for reader in by_id.values():
        for value in {one.value for one in reader.polls}:
            writer = history.writers.get(value)
            if writer is None or writer is reader or id(writer) not in by_id:
                continue
            if id(reader) not in readers[id(writer)]:
                readers[id(writer)].add(id(reader))
                before[id(reader)] += 1
    free = [one for one in by_id if not before[one]]
    left = set(by_id)
    while free:
        one = free.pop()
        left.discard(one)
        for reader_id in readers[one]:
            before[reader_id] -= 1
            if not before[reader_id]:
                free.append(reader_id)
    if left:
        some = sorted((by_id[one] for one in left), key=lambda op: op.began_at)[:4]
        yield f"G1c: {len(left)} have read each other's: {'; '.join(map(str, some))}"


def _lost(history: History) -> Iterator[str]:
    highest: dict[str, int] = defaultdict(lambda: -1)
    for op in history.ops:
        for one in op.polls:
            assert one.offset is not None
            highest[one.partition] = max(highest[one.partition], one.offset)
    for value, place in history.places.items():
        writer = history.writers[value]
        if value in history.read or not history.has_committed(writer):
            continue
        if place.offset is not None and place.offset < highest[place.partition]:
            yield f"lost-write: {value!r} of {writer} at {place.partition} {place.offset}"
        else:
            yield f"unseen: {value!r} of {writer}, sent to {place.partition}"


def _offsets(history: History) -> Iterator[str]:
    at: dict[tuple[str, int], set[str]] = defaultdict(set)
    of: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for op in history.ops:
        for one in (*op.sends, *op.polls):
            if one.offset is not None:
                at[one.partition, one.offset].add(one.value)
                of[one.value].add((one.partition, one.offset))
    for place, values in at.items():
        if len(values) > 1:
            yield f"inconsistent-offsets: {place} has {sorted(values)}"
    for value, places in of.items():
        if len(places) > 1:
            yield f"duplicate: {value!r} is at {sorted(places)}"


def _poll_order(history: History) -> Iterator[str]:
    last: dict[str, dict[str, int]] = defaultdict(dict)
    for op in history.ops:
        position = last[op.process]
        if op.f in _ORDERS:
            position.clear()
            position.update((name, offset - 1) for name, offset in op.positions.items())
            continue
        for partition in op.moved:
            position.pop(partition, None)
        for partition, places in op.of(op.polls).items():
            offsets = [one.offset for one in places if one.offset is not None]
            if partition not in op.moved:
                if partition in position:
                    yield from _step(history, op, partition, "", position[partition], offsets[0])
                for low, high in pairwise(offsets):
                    yield from _step(history, op, partition, "int-", low, high)
            if op.outcome == OK and partition not in op.moved:
                position[partition] = offsets[-1]
        if op.outcome == INFO:
            position.clear()


def _step(
    history: History, op: Op, partition: str, scope: str, low: int, high: int
) -> Iterator[str]:
    if high <= low:
        yield f"{scope}nonmonotonic-poll: {op} read {partition} {high} after {low}"
    elif skipped := history.between(partition, low, high):
        yield f"{scope}poll-skip: {op} read {partition} {high} after {low}, without {skipped[:5]}"


def _send_order(history: History, numbers: Counter[str]) -> Iterator[str]:
    last: dict[tuple[str, str], int] = {}
    for op in history.ops:
        for partition, places in op.of(op.sends).items():
            known = [history.places[one.value].offset for one in places]
            offsets = [one for one in known if one is not None]
            for low, high in pairwise(offsets):
                if high <= low:
                    yield f"int-nonmonotonic-send: {op} wrote {partition} {high} after {low}"
                numbers["int-send-skip"] += bool(history.between(partition, low, high))
            before = last.get((op.process, partition))
            if offsets and before is not None and offsets[0] <= before:
                yield f"nonmonotonic-send: {op} wrote {partition} {offsets[0]} after {before}"
            if offsets:
                last[op.process, partition] = offsets[-1]


def _groups(history: History) -> Iterator[str]:
    taken: dict[tuple[str, str], list[Op]] = defaultdict(list)
    maybe: set[tuple[str, str]] = set()
    for op in history.ops:
        if op.group is not None:
            for value in {one.value for one in op.polls}:
                if history.has_committed(op):
                    taken[op.group, value].append(op)
                elif op.outcome == INFO:
                    maybe.add((op.group, value))
    for (group, value), ops in taken.items():
        if len(ops) > 1:
            yield f"consume-twice: {group} took {value!r}: {'; '.join(map(str, ops))}"
    for group, ends in history.ends.items():
        for partition, end in ends.items():
            for value in history.between(partition, -1, end):
                if (group, value) not in taken and (group, value) not in maybe:
                    yield f"consume-skip: {group} is at {partition} {end} without {value!r}"


# The tool -----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the files that are named. 0 nothing is wrong, 1 something is, 2 it is no history."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("paths", nargs="+", type=Path, help=".jsonl files, or folders of them")
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")
    options = parser.parse_args(arguments)
    try:
        verdict = check(load(options.paths))
    except (OSError, UnreadableHistory) as error:
        print(f"the history cannot be read: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"problems": verdict.problems, "numbers": verdict.numbers}))
    else:
        tell(verdict.numbers, verdict.problems)
    return 1 if verdict.problems else 0


def tell(numbers: Mapping[str, int], problems: Sequence[str]) -> None:
    for name, number in numbers.items():
        print(f"{name + ':':<20}{number}")
    for problem in problems[:PROBLEMS_SHOWN]:
        print(f"  {problem}")
    if len(problems) > PROBLEMS_SHOWN:
        print(f"  and {len(problems) - PROBLEMS_SHOWN} more")
    print("WRONG" if problems else "nothing is wrong")


if __name__ == "__main__":
    sys.exit(main())
