"""The records of individual commits as bytes of `__individual_commit_offsets`.

The layout is in `wire.journal.individual_commits`. A record is one key and value, but for what is
forgotten: then every key is deleted that the journal may have of it.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from anabranch.coordinator.cooperative.progress import Attempt, Interval, PartitionProgress
from anabranch.coordinator.cooperative.records import (
    SNAPSHOT_EVERY,
    AckedRange,
    AcksForgotten,
    AcksPending,
    DivertedKey,
    DurableProgressRecord,
    FailedAttempt,
    ProgressDelta,
    ProgressForgotten,
    ProgressWritten,
)
from anabranch.engine.journal.batch import Entry
from anabranch.engine.journal.errors import JournalError
from anabranch.model.errors import KafkaError
from anabranch.model.units import SLOT_COUNT, SlotRange, hashes_of, slot_of_hash
from anabranch.wire import offset_set
from anabranch.wire.journal.individual_commits import (
    PENDING_ACKS,
    PROGRESS_DELTA,
    PROGRESS_SNAPSHOT,
    DoneSlots,
    FailedRecord,
    PendingAcksKey,
    PendingAcksValue,
    ProgressDeltaKey,
    ProgressValue,
)
from anabranch.wire.journal.individual_commits import DivertedKey as StoredKey
from anabranch.wire.journal.record_type import read_prefix
from anabranch.wire.primitives import DecodeError

_VERSION = 0
_NO_HASH = -1

_snapshot_key = PROGRESS_SNAPSHOT.key_encoder()
_delta_key = PROGRESS_DELTA.key_encoder()
_value = PROGRESS_SNAPSHOT.value_encoder(_VERSION)
_pending_key = PENDING_ACKS.key_encoder()
_pending_value = PENDING_ACKS.value_encoder(_VERSION)

# Writing ----------------------------------------------------------------------------------------


def encode_progress(records: Sequence[DurableProgressRecord]) -> list[Entry]:
    """The keys and values of a decision's records; no value for a tombstone."""
    return [entry for record in records for entry in _entries(record)]


def _entries(record: DurableProgressRecord) -> Iterator[Entry]:
    if isinstance(record, AcksForgotten):
        yield _pending_key(record), None
    elif isinstance(record, AcksPending):
        value = PendingAcksValue(
            producer_epoch=record.producer_epoch,
            leader_epoch=record.leader_epoch,
            slots=_done_slots(record.acked),
        )
        yield _pending_key(record), _pending_value(value)
    elif isinstance(record, ProgressForgotten):
        yield _snapshot_key(record), None
        for number in range(1, min(record.sequence, SNAPSHOT_EVERY - 1) + 1):
            yield _key_of_delta(record, number), None
    elif isinstance(record.value, PartitionProgress):
        yield _snapshot_key(record), _value(_snapshot_value(record.sequence, record.value))
    else:
        number = record.sequence % SNAPSHOT_EVERY
        yield _key_of_delta(record, number), _value(_delta_value(record.sequence, record.value))


def _key_of_delta(record: ProgressWritten | ProgressForgotten, number: int) -> bytes:
    return _delta_key(
        ProgressDeltaKey(
            group_id=record.group_id,
            topic_id=record.topic_id,
            partition=record.partition,
            number=number,
        )
    )


def _snapshot_value(sequence: int, progress: PartitionProgress) -> ProgressValue:
    failed = (FailedAttempt(offset, attempt) for offset, attempt in progress.attempts.items())
    return ProgressValue(
        sequence=sequence,
        leader_epoch=progress.leader_epoch,
        slots=_done_slots(progress.intervals),
        failed=_failed_records(failed),
        diverted=_diverted_keys(DivertedKey(*one) for one in progress.diverted.items()),
    )


def _delta_value(sequence: int, delta: ProgressDelta) -> ProgressValue:
    return ProgressValue(
        sequence=sequence,
        leader_epoch=delta.leader_epoch,
        slots=_done_slots(delta.acked),
        failed=_failed_records(delta.failed),
        diverted=_diverted_keys(delta.diverted),
        forgiven_offsets=list(delta.forgiven),
        released_hashes=list(delta.released),
    )


def _done_slots(ranges: Iterable[Interval | AckedRange]) -> list[DoneSlots]:
    return [
        DoneSlots(
            first_slot=one.slots.first,
            end_slot=one.slots.end,
            watermark=one.watermark,
            done=offset_set.encode(one.done),
        )
        for one in ranges
    ]


def _failed_records(failed: Iterable[FailedAttempt]) -> list[FailedRecord]:
    return [
        FailedRecord(
            offset=one.offset,
            slot=one.attempt.slot,
            attempts=one.attempt.count,
            not_before_ms=one.attempt.not_before_ms,
            reason=one.attempt.reason,
            key_hash=one.attempt.key_hash,
        )
        for one in failed
    ]


def _diverted_keys(diverted: Iterable[DivertedKey]) -> list[StoredKey]:
    return [StoredKey(key_hash=one.key_hash, offset=one.offset) for one in diverted]


# Reading ----------------------------------------------------------------------------------------


def decode_progress(key: bytes, value: bytes | None) -> DurableProgressRecord | None:
    """The record of a key and a value; None for a type that is not known here.

    Anything malformed is a JournalError.
    """
    try:
        number = read_prefix(key)
        if number == PENDING_ACKS.number:
            return _pending(key, value)
        if number not in (PROGRESS_SNAPSHOT.number, PROGRESS_DELTA.number):
            return None
        is_delta = number == PROGRESS_DELTA.number
        place = (PROGRESS_DELTA if is_delta else PROGRESS_SNAPSHOT).key_decoder()(key)
        # A few names are in all the records of a journal: each is held once.
        where: dict[str, Any] = {
            "group_id": sys.intern(place.group_id),
            "topic_id": place.topic_id,
            "partition": place.partition,
        }
        if value is None:
            # Those of deltas come together with that of the snapshot, and say the same.
            return ProgressForgotten(**where)
        said: ProgressValue = PROGRESS_SNAPSHOT.value_decoder(read_prefix(value))(value)
        read = _delta(said) if is_delta else _progress(said)
        return ProgressWritten(**where, sequence=said.sequence, value=read)
    except (DecodeError, KafkaError, ValueError) as error:
        raise JournalError(
            f"a record of __individual_commit_offsets cannot be read: {error}"
        ) from error


def _pending(key: bytes, value: bytes | None) -> AcksPending | AcksForgotten:
    whose: PendingAcksKey = PENDING_ACKS.key_decoder()(key)
    where: dict[str, Any] = {
        "group_id": sys.intern(whose.group_id),
        "topic_id": whose.topic_id,
        "partition": whose.partition,
        "producer_id": whose.producer_id,
        "member_id": whose.member_id,
    }
    if value is None:
        return AcksForgotten(**where)
    said: PendingAcksValue = PENDING_ACKS.value_decoder(read_prefix(value))(value)
    return AcksPending(
        **where,
        producer_epoch=said.producer_epoch,
        leader_epoch=said.leader_epoch,
        acked=_acked(said.slots),
    )


def _acked(slots: Iterable[DoneSlots]) -> tuple[AckedRange, ...]:
    return tuple(
        AckedRange(_slots(one), one.watermark, offset_set.decode(one.done)) for one in slots
    )


def _progress(said: ProgressValue) -> PartitionProgress:
    intervals = [
        Interval(_slots(one), one.watermark, offset_set.decode(one.done)) for one in said.slots
    ]
    position = 0
    for interval in intervals:
        if interval.slots.first != position:
            raise ValueError(f"its slots go from {position} to {interval.slots.first}")
        position = interval.slots.end
    if position != SLOT_COUNT:
        raise ValueError(f"its slots end at {position}")
    attempts = {one.offset: one.attempt for one in _failed(said)}
    diverted = {one.key_hash: one.offset for one in said.diverted}
    return PartitionProgress(tuple(intervals), attempts, said.leader_epoch, diverted)


def _delta(said: ProgressValue) -> ProgressDelta:
    return ProgressDelta(
        leader_epoch=said.leader_epoch,
        acked=_acked(said.slots),
        failed=tuple(_failed(said)),
        forgiven=tuple(said.forgiven_offsets),
        diverted=tuple(DivertedKey(one.key_hash, one.offset) for one in said.diverted),
        released=tuple(said.released_hashes),
    )


def _slots(one: DoneSlots) -> SlotRange:
    slots = SlotRange(one.first_slot, one.end_slot)
    if not 0 <= slots.first < slots.end <= SLOT_COUNT:
        raise ValueError(f"there are no slots from {slots.first} to {slots.end}")
    return slots


def _failed(said: ProgressValue) -> Iterator[FailedAttempt]:
    for one in said.failed:
        if not 0 <= one.slot < SLOT_COUNT:
            raise ValueError(f"there is no slot {one.slot}")
        key_hash = one.key_hash
        if key_hash == _NO_HASH:
            # Written before hashes were: the first of its slot stands for it.
            key_hash, _ = hashes_of(SlotRange(one.slot, one.slot + 1))
        elif slot_of_hash(key_hash) != one.slot:
            raise ValueError(f"the hash {key_hash} is not of slot {one.slot}")
        attempt = Attempt(key_hash, one.attempts, one.not_before_ms, one.reason)
        yield FailedAttempt(one.offset, attempt)
