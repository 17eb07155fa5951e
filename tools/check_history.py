#!/usr/bin/env python3
"""Judge what the members of a cooperative group told: was every key in order, and nothing lost?

    python tools/check_history.py FOLDER_OR_FILE... [--json]

Reads JSON lines, one event each, of all processes together; docs/reference/history.md says what
events there are and what is checked. Exit code: 0 nothing is wrong, 1 something is, 2 the history
cannot be read. Needs nothing but Python.

A *tenure* is the time that one process has one slot, by its own account: from a grant until it was
given back, lost, or the process was killed. Tenures of a slot are put in order by the epoch that
the coordinator gave each of them. Times decide only between processes of one machine, whose
monotonic clock they share.
"""

import argparse
import json
import math
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]
Process = tuple[str, int]
"""A member's name, and the how manieth process of it."""
NEVER = math.inf
PROBLEMS_SHOWN = 20


class UnreadableHistory(Exception):
    """The files are no history."""


@dataclass(slots=True)
class Record:
    """One record of the log, and when something became of it for the first time."""

    offset: int
    key: str
    slot: int
    done_at: float = NEVER
    ack_sent_at: float = NEVER
    ack_ok_at: float = NEVER


@dataclass(slots=True)
class Step:
    """One record in the hands of a process."""

    record: Record
    attempt: int
    began_at: float
    done_at: float = NEVER
    is_woken: bool = False
    """The first that its process told after it had been stopped: it may have been taken before."""


@dataclass(slots=True)
class Tenure:
    """One process's time with one slot."""

    process: Process
    slot: int
    epoch: int
    since: float
    until: float = NEVER
    ending: str = "open"
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        name, incarnation = self.process
        return f"{name}/{incarnation}'s tenure {self.epoch} of slot {self.slot} ({self.ending})"


@dataclass(frozen=True, slots=True)
class Stable:
    """A stable offset that somebody was told, and when it was asked for."""

    offset: int
    asked_at: float
    told_at: float


@dataclass(slots=True)
class Ack:
    """What one request said about one range of slots."""

    process: Process
    slots: tuple[int, int]
    epoch: int
    watermark: int
    done: list[tuple[int, int]]
    sent_at: float
    ok: list[tuple[tuple[int, int], float]] = field(default_factory=list)


@dataclass(slots=True)
class Partition:
    """All that is known of one partition."""

    name: str
    records: dict[int, Record] = field(default_factory=dict)
    by_slot: dict[int, list[Record]] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    tenures: list[Tenure] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    stables: list[Stable] = field(default_factory=list)
    forgotten_at: list[float] = field(default_factory=list)
    end_offset: int | None = None
    problems: list[str] = field(default_factory=list)
    refused: int = 0

    def slots_in(self, slots: Sequence[int]) -> list[int]:
        """The slots of a range that have records."""
        return self.slots[bisect_left(self.slots, slots[0]) : bisect_left(self.slots, slots[1])]

    def tenures_by_slot(self) -> Iterator[list[Tenure]]:
        """The tenures of each slot in the order that the coordinator gave them."""
        ordered = sorted(self.tenures, key=lambda one: (one.slot, one.epoch, one.since))
        for _, group in groupby(ordered, key=lambda one: one.slot):
            yield list(group)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, by rule, and the numbers of the run."""

    problems: list[str]
    numbers: dict[str, int]

    @property
    def rules(self) -> set[str]:
        """The rules that were broken."""
        return {problem.split(":", 1)[0] for problem in self.problems}


def check(events: Iterable[Event]) -> Verdict:
    """Judge the events of all processes."""
    ordered = sorted(events, key=lambda event: float(event["at"]))
    problems: list[str] = []
    numbers: Counter[str] = Counter()
    for event in ordered:
        if event["type"] in ("crash", "pause", "forgotten"):
            numbers[event["type"]] += 1
        elif event["type"] == "failed":
            problems.append(f"failed: {event['member']} ended with {event.get('error')}")
    for partition in read(ordered):
        found = [*partition.problems, *_judge(partition, numbers)]
        problems += [f"{problem} [{partition.name}]" for problem in found]
    return Verdict(problems, dict(sorted(numbers.items())))


# Reading ------------------------------------------------------------------------------------------


def load(paths: Iterable[Path]) -> list[Event]:
    """The events of files, and of the .jsonl files of folders."""
    events: list[Event] = []
    for path in paths:
        files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        for file in files:
            lines = file.read_bytes().split(b"\n")
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    event = json.loads(line)
                    float(event["at"]), str(event["type"])
                except (ValueError, KeyError, TypeError) as error:
                    if number == len(lines):
                        continue  # the process was killed while it wrote
                    raise UnreadableHistory(f"{file}:{number}: not an event: {error}") from error
                events.append(event)
    if not events:
        raise UnreadableHistory("there are no events")
    return events


def read(ordered: Sequence[Event]) -> list[Partition]:
    """The partitions that the events, in order of time, speak of."""
    partitions: dict[tuple[str, int], Partition] = {}
    for event in ordered:
        if event["type"] == "record":
            place = (event["topic"], event["partition"])
            partition = partitions.setdefault(place, Partition(f"{place[0]}-{place[1]}"))
            record = Record(event["offset"], event["key"], event["slot"])
            partition.records[record.offset] = record
    for partition in partitions.values():
        for record in sorted(partition.records.values(), key=lambda one: one.offset):
            partition.by_slot.setdefault(record.slot, []).append(record)
        partition.slots = sorted(partition.by_slot)
    readers = {place: _Reader(partition) for place, partition in partitions.items()}
    for event in ordered:
        place = (event.get("topic"), event.get("partition"))
        for key, reader in readers.items():
            if place == key or place[0] is None:
                reader.take(event)
    for reader in readers.values():
        reader.end()
    return list(partitions.values())


class _Reader:
    """Follows the events of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._held: dict[Process, dict[int, Tenure]] = defaultdict(dict)
        self._running: dict[tuple[Process, int], Step] = {}
        self._acks: dict[tuple[Process, int], Ack] = {}
        self._woken: set[Process] = set()

    def take(self, event: Event) -> None:
        process = (event.get("member", ""), event.get("incarnation", 0))
        is_woken = process in self._woken
        take = getattr(self, f"_take_{event['type']}", None)
        if take is not None:
            take(event, process, float(event["at"]))
        if is_woken:
            self._woken.discard(process)

    def end(self) -> None:
        for held in self._held.values():
            self._partition.tenures += held.values()

    def _take_grant(self, event: Event, process: Process, at: float) -> None:
        held = self._held[process]
        for slot in self._partition.slots_in(event["slots"]):
            if slot in held:
                self._end(process, [slot], at, "replaced")
            held[slot] = Tenure(process, slot, event["epoch"], at)

    def _take_revoke(self, event: Event, process: Process, at: float) -> None:
        self._end(process, self._partition.slots_in(event["slots"]), at, "revoke")

    def _take_lost(self, event: Event, process: Process, at: float) -> None:
        self._end(process, self._partition.slots_in(event["slots"]), at, "lost")

    def _take_crash(self, event: Event, process: Process, at: float) -> None:
        self._end(process, list(self._held[process]), at, "crash")

    def _take_resume(self, event: Event, process: Process, at: float) -> None:
        self._woken.add(process)

    def _end(self, process: Process, slots: Iterable[int], at: float, ending: str) -> None:
        held = self._held[process]
        for slot in slots:
            tenure = held.pop(slot, None)
            if tenure is not None:
                tenure.until, tenure.ending = at, ending
                self._partition.tenures.append(tenure)

    def _take_start(self, event: Event, process: Process, at: float) -> None:
        problems = self._partition.problems
        record = self._partition.records.get(event["offset"])
        what = f"{process[0]}/{process[1]} began {event['offset']}"
        if record is None or (record.key, record.slot) != (event["key"], event["slot"]):
            problems.append(f"unknown-record: {what} of key {event['key']!r}, which is not there")
            return
        step = Step(record, event.get("attempt", 1), at, is_woken=process in self._woken)
        self._running[process, record.offset] = step
        tenure = self._held[process].get(record.slot)
        if tenure is None or tenure.epoch != event["epoch"]:
            problems.append(f"not-held: {what} with epoch {event['epoch']} but has {tenure}")
        else:
            tenure.steps.append(step)

    def _take_done(self, event: Event, process: Process, at: float) -> None:
        step = self._running.pop((process, event["offset"]), None)
        if step is not None:
            step.done_at = at
            step.record.done_at = min(step.record.done_at, at)

    def _take_ack_sent(self, event: Event, process: Process, at: float) -> None:
        first, end = event["slots"]
        done = [(low, high) for low, high in event.get("done", ())]
        ack = Ack(process, (first, end), event["epoch"], event["watermark"], done, at)
        self._acks[process, event["ack"]] = ack
        self._partition.acks.append(ack)

    def _take_ack_ok(self, event: Event, process: Process, at: float) -> None:
        ack = self._acks.get((process, event["ack"]))
        if ack is None:
            self._partition.problems.append(f"unknown-ack: {process} was answered {event}")
            return
        first, end = event.get("slots", ack.slots)
        ack.ok.append(((first, end), at))
        if event.get("stable", -1) >= 0:
            self._partition.stables.append(Stable(event["stable"], ack.sent_at, at))

    def _take_ack_refused(self, event: Event, process: Process, at: float) -> None:
        self._partition.refused += 1

    def _take_stable(self, event: Event, process: Process, at: float) -> None:
        self._partition.stables.append(Stable(event["offset"], event.get("asked_at", at), at))

    def _take_forgotten(self, event: Event, process: Process, at: float) -> None:
        self._partition.forgotten_at.append(at)

    def _take_end(self, event: Event, process: Process, at: float) -> None:
        self._partition.end_offset = event["offset"]


# Judging ------------------------------------------------------------------------------------------


def _judge(partition: Partition, numbers: Counter[str]) -> list[str]:
    problems = [*_acks(partition)]
    for in_turn in partition.tenures_by_slot():
        problems += _leases(in_turn)
        problems += _epochs(in_turn)
        problems += _order(in_turn)
        problems += _interleaved(in_turn)
        problems += _skipped(in_turn, partition.by_slot[in_turn[0].slot])
    problems += _again(partition, numbers)
    problems += _stable(partition)
    problems += _missing(partition)
    numbers["records"] += len(partition.records)
    numbers["tenures"] += len(partition.tenures)
    numbers["acks refused"] += partition.refused
    numbers["acks confirmed"] += sum(bool(ack.ok) for ack in partition.acks)
    numbers["slots that moved"] += sum(
        len({one.process for one in in_turn}) > 1 for in_turn in partition.tenures_by_slot()
    )
    return problems


def _acks(partition: Partition) -> Iterator[str]:
    """S7: nobody acknowledges what was not done, or what is somebody else's by now."""
    marked: dict[tuple[int, bool], int] = defaultdict(int)

    def covered(ack: Ack, slots: tuple[int, int], is_ok: bool) -> Iterator[Record]:
        for slot in partition.slots_in(slots):
            records = partition.by_slot[slot]
            low = marked[slot, is_ok]
            high = bisect_left(records, ack.watermark, key=lambda one: one.offset)
            yield from records[low:high]
            marked[slot, is_ok] = max(low, high)
            for first, last in ack.done:
                at = bisect_left(records, first, key=lambda one: one.offset)
                while at < len(records) and records[at].offset <= last:
                    yield records[at]
                    at += 1

    for ack in partition.acks:
        for record in covered(ack, ack.slots, False):
            if record.done_at > ack.sent_at:
                yield f"ack-before-done: {ack.process} acknowledged {record.offset}"
            record.ack_sent_at = min(record.ack_sent_at, ack.sent_at)
    confirmed = [(at, slots, ack) for ack in partition.acks for slots, at in ack.ok]
    granted: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for tenure in sorted(partition.tenures, key=lambda one: one.since):
        before = granted[tenure.slot][-1][1] if granted[tenure.slot] else -1
        granted[tenure.slot].append((tenure.since, max(before, tenure.epoch)))
    for at, slots, ack in sorted(confirmed, key=lambda one: one[0]):
        for record in covered(ack, slots, True):
            record.ack_ok_at = min(record.ack_ok_at, at)
        for slot in partition.slots_in(slots):
            index = bisect_left(granted[slot], (ack.sent_at, -1)) - 1
            if index >= 0 and granted[slot][index][1] > ack.epoch:
                yield (
                    f"ack-not-fenced: {ack.process}'s of slot {slot} with epoch {ack.epoch} counted"
                    f" after {granted[slot][index][1]} was granted"
                )
                break


def _leases(in_turn: Sequence[Tenure]) -> Iterator[str]:
    """S1: who gives a slot back has it until then; who is silent may lose it earlier."""
    for one, next_one in pairwise(sorted(in_turn, key=lambda tenure: tenure.since)):
        if one.ending in ("revoke", "open") and next_one.since < one.until:
            yield f"two-owners: {next_one} began before the end of {one}"


def _epochs(in_turn: Sequence[Tenure]) -> Iterator[str]:
    """S2: epochs of a slot rise with each change of its owner."""
    firsts = [
        (step.began_at, tenure)
        for tenure in in_turn
        if (step := next((one for one in tenure.steps if not one.is_woken), None)) is not None
    ]
    firsts.sort(key=lambda first: first[0])
    for (_, one), (_, next_one) in pairwise(firsts):
        if next_one.epoch < one.epoch:
            yield f"epoch-fell: {next_one} came after {one}"
    for one, next_one in pairwise(in_turn):
        if next_one.epoch == one.epoch and next_one.process != one.process:
            yield f"epoch-twice: {one} and {next_one}"


def _order(in_turn: Sequence[Tenure]) -> Iterator[str]:
    """S4: within a tenure the records of a key begin in the order of the log, one at a time."""
    for tenure in in_turn:
        last: dict[str, Step] = {}
        for step in tenure.steps:
            before = last.get(step.record.key)
            last[step.record.key] = step
            if before is None:
                continue
            offsets = f"{before.record.offset} and then {step.record.offset}"
            is_retry = step.record is before.record and step.attempt > before.attempt
            if step.record.offset <= before.record.offset and not is_retry:
                yield f"key-order: {tenure} began {offsets}"
            # A handler that failed is not done; it is over when the next attempt begins.
            if before.done_at > step.began_at and not is_retry:
                yield f"key-at-once: {tenure} had {offsets} at once"


def _interleaved(in_turn: Sequence[Tenure]) -> Iterator[str]:
    """S3, S4: the next tenure of a key begins when the last one begins nothing more of it."""
    last: dict[str, tuple[Step, Tenure]] = {}
    for tenure in in_turn:
        firsts: dict[str, Step] = {}
        for step in tenure.steps:
            firsts.setdefault(step.record.key, step)
        for key, first in firsts.items():
            if key not in last:
                continue
            before, owner = last[key]
            if before.began_at > first.began_at and not before.is_woken:
                yield (
                    f"interleaved: {owner} began {before.record.offset} of key {key!r} after"
                    f" {tenure} had begun {first.record.offset}"
                )
            elif min(before.done_at, owner.until) > first.began_at and owner.ending == "revoke":
                yield f"two-hands: {owner} and {tenure} had key {key!r} at once"
        for step in tenure.steps:
            last[step.record.key] = (step, tenure)


def _skipped(in_turn: Sequence[Tenure], records: Sequence[Record]) -> Iterator[str]:
    """S4: a tenure begins at or below the first record that was not acknowledged, without gaps."""
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(record)
    for tenure in in_turn:
        at: dict[str, int] = defaultdict(int)
        for step in tenure.steps:
            of_key = by_key[step.record.key]
            while at[step.record.key] < len(of_key):
                record = of_key[at[step.record.key]]
                if record.offset > step.record.offset:
                    break
                at[step.record.key] += 1
                if record is not step.record and record.ack_sent_at > step.began_at:
                    yield f"skipped: {tenure} began {step.record.offset} before {record.offset}"


def _again(partition: Partition, numbers: Counter[str]) -> Iterator[str]:
    """S6 and 6.3: what comes again, a process that was killed or fenced had and had not stored."""
    steps: dict[int, list[tuple[Step, Tenure]]] = defaultdict(list)
    for tenure in partition.tenures:
        for step in tenure.steps:
            steps[step.record.offset].append((step, tenure))
    bound = _duplicates_bound(partition)
    for offset, found in sorted(steps.items()):
        numbers["starts"] += len(found)
        found.sort(key=lambda one: one[0].began_at)
        for (_, owner), (step, tenure) in pairwise(found):
            if owner is tenure and step.attempt > 1:
                numbers["retries"] += 1
                continue
            numbers["duplicates"] += 1
            acked_at = step.record.ack_ok_at
            wiped = [at for at in partition.forgotten_at if acked_at < at < step.began_at]
            if acked_at < tenure.since:
                if not any(_stable_by(partition, at) <= offset for at in wiped):
                    yield f"acked-again: {tenure} began {offset}, which was confirmed before"
            elif owner.ending not in ("crash", "lost") and not step.is_woken:
                yield f"needless: {tenure} began {offset} again, which was {owner}'s"
    numbers["duplicates bound"] += bound
    if numbers["duplicates"] > numbers["duplicates bound"]:
        yield f"too-many-duplicates: {numbers['duplicates']}, explained are {bound}"


def _duplicates_bound(partition: Partition) -> int:
    """How many records processes had begun and not stored when they were killed or fenced."""
    bound = 0
    for in_turn in partition.tenures_by_slot():
        for number, tenure in enumerate(in_turn):
            bound += sum(step.is_woken for step in tenure.steps)
            if tenure.ending in ("crash", "lost"):
                # Who was stopped is fenced when the next one begins, and knows it later.
                at = min([tenure.until, *(one.since for one in in_turn[number + 1 :])])
                bound += len({s.record.offset for s in tenure.steps if s.record.ack_ok_at > at})
    for at in partition.forgotten_at:
        stable = _stable_by(partition, at)
        bound += sum(
            record.offset >= stable and record.ack_ok_at < at
            for record in partition.records.values()
        )
    return bound


def _stable_by(partition: Partition, at: float) -> int:
    """The largest stable offset that anybody was told by then."""
    return max((one.offset for one in partition.stables if one.told_at <= at), default=0)


def _stable(partition: Partition) -> Iterator[str]:
    """S5: the stable offset passes nothing that is not done, and never goes back."""
    ordered = sorted(partition.records.values(), key=lambda one: one.offset)
    offsets = [record.offset for record in ordered]
    done_by: list[float] = []
    for record in ordered:
        done_by.append(max(record.done_at, done_by[-1] if done_by else -NEVER))
    told = sorted(partition.stables, key=lambda one: one.told_at)
    times = [one.told_at for one in told]
    highest: list[int] = []
    for one in told:
        highest.append(max(one.offset, highest[-1] if highest else 0))
    for one in told:
        below = bisect_left(offsets, one.offset)
        if below and done_by[below - 1] > one.told_at:
            yield f"stable-ahead: {one.offset} was told while a record below was not done"
        before = bisect_right(times, one.asked_at) - 1
        if before >= 0 and highest[before] > one.offset:
            yield f"stable-fell: {one.offset} was told after {highest[before]}"


def _missing(partition: Partition) -> Iterator[str]:
    """Nothing is lost: in the end every record was done, and the group knows it."""
    missing = [record.offset for record in partition.records.values() if record.done_at == NEVER]
    if missing:
        yield f"lost: {len(missing)} records were never done, the first is {min(missing)}"
    end = partition.end_offset
    if end is not None and _stable_by(partition, NEVER) < end:
        yield f"not-stored: the stable offset ended at {_stable_by(partition, NEVER)}, not {end}"


# Telling ------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the history of a cooperative group.")
    parser.add_argument("paths", nargs="+", type=Path, help=".jsonl files, or folders of them")
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")
    options = parser.parse_args(arguments)
    try:
        verdict = check(load(options.paths))
    except (OSError, UnreadableHistory, KeyError, TypeError, ValueError) as error:
        print(f"the history cannot be read: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"problems": verdict.problems, "numbers": verdict.numbers}))
    else:
        for name, number in verdict.numbers.items():
            print(f"{name + ':':<20}{number}")
        for problem in verdict.problems[:PROBLEMS_SHOWN]:
            print(f"  {problem}")
        if len(verdict.problems) > PROBLEMS_SHOWN:
            print(f"  and {len(verdict.problems) - PROBLEMS_SHOWN} more")
        print("WRONG" if verdict.problems else "nothing is wrong")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
