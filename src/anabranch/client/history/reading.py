"""From the events of all processes to what is known of each partition.

A *tenure* is the time that one process has one slot, by its own account: from a grant until it was
given back, lost, or the process was killed. The coordinator gives each an epoch.

A record is what the log has in the end at an offset. Where a log was cut, another record was there
before: what was done with that one is not done with this one.
"""

import json
import math
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]
Process = tuple[str, int]
"""A member's name, and the how manieth process of it."""
NEVER = math.inf
_ANY_EPOCH = -1
# The slots are somebody else's by now.
_FENCED = {"FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"}


class UnreadableHistory(Exception):
    """The files are no history."""


@dataclass(slots=True)
class Record:
    """One record of the log, and when something became of it for the first time."""

    offset: int
    key: str
    slot: int
    leader_epoch: int = _ANY_EPOCH
    ident: object = None
    done_at: float = NEVER
    ack_sent_at: float = NEVER
    confirmed: list[tuple[float, float]] = field(default_factory=list)
    """When acknowledgements that were taken were sent and answered; more than one only where what
    was stored has been forgotten since."""
    done_by: dict[Process, float] = field(default_factory=dict)
    former_by: set[Process] = field(default_factory=set)
    """Who began another record that had this offset before the log was cut."""

    def was_done_by(self, process: Process, at: float) -> bool:
        return self.done_by.get(process, NEVER) <= at

    def is_stored(self, by: float, wipes: Sequence[tuple[float, int]]) -> bool:
        """Whether it was confirmed before a time, and has not been forgotten since in `wipes`, each
        with the offset that nothing below was forgotten of."""
        return any(
            answered_at < by and not any(sent_at < at and low <= self.offset for at, low in wipes)
            for sent_at, answered_at in self.confirmed
        )

    def is_meant_by(self, ack: "Ack", *, is_stored: bool = False) -> bool:
        """Whether an acknowledgement is of this record, and not of what had its offset before.

        Of a record that is stored already everybody may say that it is done, who knows its log.
        """
        if 0 <= ack.leader_epoch < self.leader_epoch:
            return False
        is_former = ack.process in self.former_by and not is_stored
        return not is_former or self.was_done_by(ack.process, ack.sent_at)


@dataclass(slots=True)
class Step:
    """One record in the hands of a process."""

    record: Record
    attempt: int
    began_at: float
    done_at: float = NEVER
    failed_at: float = NEVER
    is_woken: bool = False
    """The first that its process told after it had been stopped: it may have been taken before."""

    @property
    def over_at(self) -> float:
        return min(self.done_at, self.failed_at)


@dataclass(slots=True)
class Tenure:
    """One process's time with one slot."""

    process: Process
    slot: int
    epoch: int
    since: float
    until: float = NEVER
    ending: str = "open"
    is_refused: bool = False
    """The broker would not store its progress, though the slot was its own."""
    steps: list[Step] = field(default_factory=list)

    @property
    def ended_in_order(self) -> bool:
        return self.ending not in ("crash", "lost") and not self.is_refused

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
    leader_epoch: int
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
    cuts: list[tuple[float, int]] = field(default_factory=list)
    """When the log was cut, and at which offset."""
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

    def was_cut(self, offset: int, after: float) -> bool:
        """Whether the log lost an offset after a time."""
        return any(after < at and cut <= offset for at, cut in self.cuts)

    @property
    def wipes(self) -> list[tuple[float, int]]:
        """When what was stored record by record was forgotten, and the stable offset then."""
        return [(at, self.stable_by(at)) for at in self.forgotten_at]

    def stable_by(self, at: float) -> int:
        """The largest stable offset that anybody was told by then."""
        return max((one.offset for one in self.stables if one.told_at <= at), default=0)


def load(paths: Iterable[Path]) -> list[Event]:
    """The events of files, and of the .jsonl files of folders."""
    events: list[Event] = []
    for path in paths:
        for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
            events += _load_file(file)
    if not events:
        raise UnreadableHistory("there are no events")
    return events


def _load_file(file: Path) -> Iterator[Event]:
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line, object_pairs_hook=_with_common_strings)
            float(event["at"]), str(event["type"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return  # the process was killed while it wrote
            raise UnreadableHistory(f"{file}:{number}: not an event: {error!r}") from error
        yield event


def _with_common_strings(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An event; millions of them have the same few names and keys, which are kept once."""
    return {sys.intern(k): sys.intern(v) if type(v) is str else v for k, v in pairs}


def read(ordered: Sequence[Event]) -> list[Partition]:
    """The partitions that the events, in order of time, speak of."""
    try:
        return _read(ordered)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableHistory(f"an event is not what it should be: {error!r}") from error


def _read(ordered: Sequence[Event]) -> list[Partition]:
    partitions: dict[tuple[str, int], Partition] = {}
    for event in ordered:
        if event["type"] == "record":
            place = (event["topic"], event["partition"])
            partition = partitions.setdefault(place, Partition(f"{place[0]}-{place[1]}"))
            record = Record(event["offset"], event["key"], event["slot"], *_identity(event))
            partition.records[record.offset] = record
    for event in ordered:
        found = partitions.get((event.get("topic", ""), event.get("partition", -1)))
        if found is not None and event["type"] == "truncated":
            found.cuts.append((float(event["at"]), event["offset"]))
        elif found is not None and event["type"] == "start":
            # Of some slots all records may be gone.
            found.by_slot.setdefault(event["slot"], [])
    for partition in partitions.values():
        for record in sorted(partition.records.values(), key=lambda one: one.offset):
            partition.by_slot.setdefault(record.slot, []).append(record)
        partition.slots = sorted(partition.by_slot)
    readers = {place: _Reader(partition) for place, partition in partitions.items()}
    for event in ordered:
        if event.get("topic") is None:
            for reader in readers.values():
                reader.take(event)
        elif (event["topic"], event["partition"]) in readers:
            readers[event["topic"], event["partition"]].take(event)
    for reader in readers.values():
        reader.end()
    return list(partitions.values())


def _identity(event: Event) -> tuple[int, object]:
    """What tells records of an offset apart, as far as it was told."""
    return event.get("leader_epoch", _ANY_EPOCH), event.get("id")


class _Reader:
    """Follows the events of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._held: dict[Process, dict[int, Tenure]] = defaultdict(dict)
        self._last: dict[tuple[Process, int], Tenure] = {}
        self._running: dict[tuple[Process, int], Step] = {}
        self._acks: dict[tuple[Process, int], Ack] = {}
        self._woken: set[Process] = set()
        # Who was stopped, until when, and has not asked since and been told that it is a member.
        self._silent: dict[Process, float] = {}

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

    # Who has what ---------------------------------------------------------------------------------

    def _take_grant(self, event: Event, process: Process, at: float) -> None:
        held = self._held[process]
        self._silent.pop(process, None)
        for slot in self._partition.slots_in(event["slots"]):
            if slot in held:
                self._end(process, [slot], at, "replaced")
            tenure = Tenure(process, slot, event["epoch"], at)
            held[slot] = self._last[process, slot] = tenure

    def _take_revoke(self, event: Event, process: Process, at: float) -> None:
        # Who wakes up may give back what has been somebody else's for long.
        ending = "lost" if process in self._silent else "revoke"
        self._end(process, self._partition.slots_in(event["slots"]), at, ending)

    def _take_lost(self, event: Event, process: Process, at: float) -> None:
        self._end(process, self._partition.slots_in(event["slots"]), at, "lost")

    def _take_crash(self, event: Event, process: Process, at: float) -> None:
        self._end(process, list(self._held[process]), at, "crash")

    def _take_resume(self, event: Event, process: Process, at: float) -> None:
        self._woken.add(process)
        self._silent[process] = at

    def _end(self, process: Process, slots: Iterable[int], at: float, ending: str) -> None:
        held = self._held[process]
        for slot in slots:
            tenure = held.pop(slot, None)
            if tenure is not None:
                tenure.until, tenure.ending = at, ending
                self._partition.tenures.append(tenure)

    # What is done ---------------------------------------------------------------------------------

    def _take_start(self, event: Event, process: Process, at: float) -> None:
        record = self._record_of(event, process)
        if record is None:
            return
        step = Step(record, event.get("attempt", 1), at, is_woken=process in self._woken)
        self._running[process, record.offset] = step
        tenure = self._held[process].get(record.slot)
        if tenure is None or tenure.epoch != event["epoch"]:
            self._partition.problems.append(
                f"not-held: {process[0]}/{process[1]} began {record.offset} with epoch"
                f" {event['epoch']} but has {tenure}"
            )
        else:
            tenure.steps.append(step)

    def _record_of(self, event: Event, process: Process) -> Record | None:
        """The record that a process begins; None when the log has another one in the end."""
        offset = event["offset"]
        record = self._partition.records.get(offset)
        if record is not None and (record.key, record.slot) == (event["key"], event["slot"]):
            leader_epoch, ident = _identity(event)
            if leader_epoch in (record.leader_epoch, _ANY_EPOCH) and ident in (record.ident, None):
                return record
        # Who has had the slot since before the cut may not have heard of it.
        tenure = self._held[process].get(event["slot"])
        if tenure is not None and self._partition.was_cut(offset, tenure.since):
            if record is not None:
                record.former_by.add(process)
            return None
        self._partition.problems.append(
            f"unknown-record: {process[0]}/{process[1]} began {offset} of key {event['key']!r},"
            " which is not there"
        )
        return None

    def _take_done(self, event: Event, process: Process, at: float) -> None:
        step = self._running.pop((process, event["offset"]), None)
        if step is not None:
            step.done_at = at
            self._done(step.record, process, at)

    def _take_fail(self, event: Event, process: Process, at: float) -> None:
        step = self._running.pop((process, event["offset"]), None)
        if step is not None:
            step.failed_at = at

    def _take_decided(self, event: Event, process: Process, at: float) -> None:
        record = self._partition.records.get(event["offset"])
        if record is not None:
            self._done(record, process, at)
            record.ack_sent_at = min(record.ack_sent_at, at)

    @staticmethod
    def _done(record: Record, process: Process, at: float) -> None:
        record.done_at = min(record.done_at, at)
        record.done_by.setdefault(process, at)

    # What is told ---------------------------------------------------------------------------------

    def _take_ack_sent(self, event: Event, process: Process, at: float) -> None:
        first, end = event["slots"]
        done = [(low, high) for low, high in event.get("done", ())]
        leader_epoch, _ = _identity(event)
        epoch, watermark = event["epoch"], event["watermark"]
        ack = Ack(process, (first, end), epoch, leader_epoch, watermark, done, at)
        self._acks[process, event["ack"]] = ack
        self._partition.acks.append(ack)

    def _take_ack_ok(self, event: Event, process: Process, at: float) -> None:
        ack = self._acks.get((process, event["ack"]))
        if ack is None:
            self._partition.problems.append(f"unknown-ack: {process} was answered {event}")
            return
        if ack.sent_at > self._silent.get(process, NEVER):
            del self._silent[process]
        first, end = event.get("slots", ack.slots)
        ack.ok.append(((first, end), at))
        self._refused(process, ack.epoch, (first, end), False)
        if event.get("stable", -1) >= 0:
            self._partition.stables.append(Stable(event["stable"], ack.sent_at, at))

    def _take_ack_refused(self, event: Event, process: Process, at: float) -> None:
        self._partition.refused += 1
        if event.get("error", "") not in _FENCED and "slots" in event:
            self._refused(process, event.get("epoch", _ANY_EPOCH), event["slots"], True)

    def _refused(self, process: Process, epoch: int, slots: Sequence[int], is_so: bool) -> None:
        for slot in self._partition.slots_in(slots):
            tenure = self._last.get((process, slot))
            if tenure is not None and tenure.epoch == epoch:
                tenure.is_refused = is_so

    def _take_stable(self, event: Event, process: Process, at: float) -> None:
        self._partition.stables.append(Stable(event["offset"], event.get("asked_at", at), at))

    # What befalls them ----------------------------------------------------------------------------

    def _take_forgotten(self, event: Event, process: Process, at: float) -> None:
        self._partition.forgotten_at.append(at)

    def _take_end(self, event: Event, process: Process, at: float) -> None:
        self._partition.end_offset = event["offset"]
