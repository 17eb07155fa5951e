"""Judging: each rule looks at one thing that must never happen.

The names S1 to S8 are those of the safety invariants of docs/reference/history.md. Tenures of a
slot are put in order by the epoch that the coordinator gave each of them. Times decide only between
processes of one machine, whose monotonic clock they share.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from anabranch.client.history.reading import (
    NEVER,
    Ack,
    Event,
    Partition,
    Record,
    Step,
    Tenure,
    read,
)

_COUNTED = ("crash", "pause", "forgotten", "truncated", "fail", "decided")


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
    """Judge the events of all processes; UnreadableHistory when they are not events."""
    ordered = sorted(events, key=lambda event: float(event["at"]))
    problems: list[str] = []
    numbers: Counter[str] = Counter()
    for event in ordered:
        if event["type"] in _COUNTED:
            numbers[event["type"]] += 1
        elif event["type"] == "failed":
            problems.append(f"failed: {event.get('member')} ended with {event.get('error')}")
    for partition in read(ordered):
        found = [*partition.problems, *_judge(partition, numbers)]
        problems += [f"{problem} [{partition.name}]" for problem in found]
    return Verdict(problems, dict(sorted(numbers.items())))


def _judge(partition: Partition, numbers: Counter[str]) -> list[str]:
    problems = [*_acks(partition), *_fences(partition)]
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


# Acknowledgements ---------------------------------------------------------------------------------


class _Coverage:
    """What acknowledgements cover, one after the other; below a watermark only what is new."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._seen: dict[int, int] = defaultdict(int)

    def of(self, ack: Ack, slots: tuple[int, int]) -> Iterator[Record]:
        # What came to an offset after the log was cut cannot have been meant.
        limit = min((cut for at, cut in self._partition.cuts if at > ack.sent_at), default=NEVER)
        for slot in self._partition.slots_in(slots):
            records = self._partition.by_slot[slot]
            low = self._seen[slot]
            high = bisect_left(records, min(ack.watermark, limit), key=lambda one: one.offset)
            self._seen[slot] = max(low, high)
            yield from records[low:high]
            for first, last in ack.done:
                at = bisect_left(records, first, key=lambda one: one.offset)
                while at < len(records) and records[at].offset <= min(last, limit - 1):
                    yield records[at]
                    at += 1

    def not_meant(self, record: Record) -> None:
        """The acknowledgement was of what had the offset before; others may be of the record."""
        records = self._partition.by_slot[record.slot]
        index = bisect_left(records, record.offset, key=lambda one: one.offset)
        self._seen[record.slot] = min(self._seen[record.slot], index)

    def forget(self, low: int) -> None:
        """What was acknowledged from an offset on will be acknowledged again."""
        for slot, seen in self._seen.items():
            records = self._partition.by_slot[slot]
            index = bisect_left(records, low, key=lambda one: one.offset)
            self._seen[slot] = min(seen, index)


def _acks(partition: Partition) -> Iterator[str]:
    """S7, S8: nobody acknowledges what was not done, or another record than the one that was."""
    sent = _Coverage(partition)
    for ack in partition.acks:
        for record in sent.of(ack, ack.slots):
            was_done = record.was_done_by(ack.process, ack.sent_at)
            what = f"{_name(ack)} acknowledged {record.offset}"
            if not record.is_meant_by(ack):
                sent.not_meant(record)  # it cannot know that the log was cut; nobody may take it
                continue
            if record.done_at > ack.sent_at:
                yield f"ack-before-done: {what}"
            elif record.ack_sent_at == NEVER and not was_done:
                yield f"ack-of-others: {what}, which it had not done, and nobody had before"
            record.ack_sent_at = min(record.ack_sent_at, ack.sent_at)
    confirmed = _Coverage(partition)
    in_time = sorted(
        ((at, slots, ack) for ack in partition.acks for slots, at in ack.ok),
        key=lambda one: one[0],
    )
    wipes = partition.wipes
    wiped_at = -NEVER
    for at, slots, ack in in_time:
        while wipes and wipes[0][0] < at:
            wiped_at, low = wipes.pop(0)
            confirmed.forget(low)
        for record in confirmed.of(ack, slots):
            is_stored = bool(record.confirmed) and record.confirmed[-1][0] >= wiped_at
            # Whoever has the slot later says so too of what its owner before it has stored.
            if not record.is_meant_by(ack, is_stored=is_stored):
                yield (
                    f"ack-other-record: {_name(ack)}'s at leader epoch {ack.leader_epoch} counted"
                    f" for {record.offset} of {record.leader_epoch}"
                )
                continue
            if not is_stored:
                record.confirmed.append((ack.sent_at, at))


def _fences(partition: Partition) -> Iterator[str]:
    """S7: what is somebody else's by now is not acknowledged."""
    granted: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for tenure in sorted(partition.tenures, key=lambda one: one.since):
        before = granted[tenure.slot][-1][1] if granted[tenure.slot] else -1
        granted[tenure.slot].append((tenure.since, max(before, tenure.epoch)))
    for ack in partition.acks:
        for slot in [one for slots, _ in ack.ok for one in partition.slots_in(slots)]:
            index = bisect_left(granted[slot], (ack.sent_at, -1)) - 1
            if index >= 0 and granted[slot][index][1] > ack.epoch:
                yield (
                    f"ack-not-fenced: {_name(ack)}'s of slot {slot} with epoch {ack.epoch} counted"
                    f" after {granted[slot][index][1]} was granted"
                )
                break


def _name(ack: Ack) -> str:
    return f"{ack.process[0]}/{ack.process[1]}"


# Owners and order ---------------------------------------------------------------------------------


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
            has_failed = before.failed_at < step.began_at
            is_again = step.record is before.record and has_failed
            is_open = has_failed and before.record.ack_sent_at > step.began_at
            if not is_again and (step.record.offset <= before.record.offset or is_open):
                yield f"key-order: {tenure} began {offsets}"
            if before.over_at > step.began_at:
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
            elif min(before.over_at, owner.until) > first.began_at and owner.ending == "revoke":
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


# What comes again, and what does not come ---------------------------------------------------------


def _again(partition: Partition, numbers: Counter[str]) -> Iterator[str]:
    """S6 and 6.3: what comes again, a process that was killed or fenced had and had not stored."""
    steps: dict[int, list[tuple[Step, Tenure]]] = defaultdict(list)
    for tenure in partition.tenures:
        for step in tenure.steps:
            steps[step.record.offset].append((step, tenure))
    wipes = partition.wipes
    duplicates = 0
    for offset, found in sorted(steps.items()):
        numbers["starts"] += len(found)
        found.sort(key=lambda one: one[0].began_at)
        for (before, owner), (step, tenure) in pairwise(found):
            by_now = [wipe for wipe in wipes if wipe[0] < step.began_at]
            is_stored = step.record.is_stored(tenure.since, by_now)
            if before.failed_at < step.began_at and not is_stored:
                numbers["retries"] += 1
                continue
            duplicates += 1
            is_forgotten = not is_stored and step.record.is_stored(tenure.since, ())
            if is_stored:
                yield f"acked-again: {tenure} began {offset}, which was confirmed before"
            elif owner.ended_in_order and not is_forgotten and not step.is_woken:
                yield f"needless: {tenure} began {offset} again, which was {owner}'s"
    bound = _duplicates_bound(partition)
    numbers["duplicates"] += duplicates
    numbers["duplicates bound"] += bound
    if duplicates > bound:
        yield f"too-many-duplicates: {duplicates}, explained are {bound}"


def _duplicates_bound(partition: Partition) -> int:
    """How many records processes had begun and not stored when they were killed or fenced."""
    bound = 0
    wipes = partition.wipes
    for in_turn in partition.tenures_by_slot():
        for number, tenure in enumerate(in_turn):
            bound += sum(step.is_woken for step in tenure.steps)
            if not tenure.ended_in_order:
                # Who was stopped is fenced when the next one begins, and knows it later.
                at = min([tenure.until, *(one.since for one in in_turn[number + 1 :])])
                by_then = [wipe for wipe in wipes if wipe[0] < at]
                held = [step.record for step in tenure.steps if step.failed_at == NEVER]
                bound += len({one.offset for one in held if not one.is_stored(at, by_then)})
    for number, (at, stable) in enumerate(wipes):
        bound += sum(
            record.offset >= stable and record.is_stored(at, wipes[:number])
            for record in partition.records.values()
        )
    return bound


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
        # What was above a cut is not there any more.
        later = [cut for at, cut in partition.cuts if at > one.told_at]
        below = bisect_left(offsets, min([one.offset, *later]))
        if below and done_by[below - 1] > one.told_at:
            yield f"stable-ahead: {one.offset} was told while a record below was not done"
        before = bisect_right(times, one.asked_at) - 1
        earlier = [cut for at, cut in partition.cuts if at < one.told_at]
        if before >= 0 and min([highest[before], *earlier]) > one.offset:
            yield f"stable-fell: {one.offset} was told after {highest[before]}"


def _missing(partition: Partition) -> Iterator[str]:
    """Nothing is lost: in the end every record was done, and the group knows it."""
    missing = [record.offset for record in partition.records.values() if record.done_at == NEVER]
    if missing:
        yield f"lost: {len(missing)} records were never done, the first is {min(missing)}"
    end = partition.end_offset
    if end is not None and partition.stable_by(NEVER) < end:
        yield f"not-stored: the stable offset ended at {partition.stable_by(NEVER)}, not {end}"
