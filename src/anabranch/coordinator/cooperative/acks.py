"""Taking acknowledgements of records, interval by interval.

A member acknowledges records of slots that it owns: all of them below a watermark, and ranges above
it. Each acknowledgement is judged by itself and in parts, so that a member that lost half of its
slots keeps the work that it did for the other half.

What is refused, and why
- slots that the member does not hold: somebody else does them now, or will (FENCED_MEMBER_EPOCH);
- slots that it holds since a later epoch than it speaks of: it lost them in between and may have
  forgotten what it did (STALE_MEMBER_EPOCH), as is an epoch that it has not reached;
- records that it was not given in this ownership, or that are not in the log (OFFSET_OUT_OF_RANGE):
  a mistake in a client must not skip records that nobody has seen;
- records of a leader epoch that ended below them (FENCED_LEADER_EPOCH): the log was cut since, and
  the same offsets hold other records now;
- records that are acknowledged in a transaction that is open, but by that transaction itself
  (CONCURRENT_TRANSACTIONS): whether they are done is decided with it.

What is not: the same acknowledgement again, or one below the stable offset. Both change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.coordinator.cooperative.progress import (
    PartitionProgress,
    intersect,
    with_done,
)
from anabranch.coordinator.cooperative.records import AckedRange
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import SlotRange

NO_WATERMARK = -1


@dataclass(frozen=True, slots=True)
class Ack:
    """Records of some slots that are done: below the watermark, and in the ranges."""

    slots: SlotRange
    epoch: int
    watermark: int = NO_WATERMARK
    done: OffsetRanges = EMPTY

    @property
    def end_offset(self) -> int:
        """Nothing at or above it is acknowledged."""
        return max(self.watermark, self.done.last + 1 if self.done else 0)


@dataclass(frozen=True, slots=True)
class AckOutcome:
    """What became of an acknowledgement, or of a part of it."""

    slots: SlotRange
    error_code: ErrorCode = ErrorCode.NONE
    sub_code: SubCode = SubCode.NONE


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a member holds of a partition, each range of slots since which epoch."""

    member_epoch: int
    slots: Mapping[SlotRange, int]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What an acknowledgement is measured against.

    `delivered_offset` follows the last offset that the member was shown in this ownership;
    `epoch_end_offset` is where the leader epoch of the acknowledgement ended.
    """

    log_start_offset: int
    log_end_offset: int
    delivered_offset: int
    epoch_end_offset: int


def take_acks(
    progress: PartitionProgress,
    acks: list[Ack],
    holdings: Holdings,
    facts: LogFacts,
    elsewhere: Sequence[AckedRange] = (),
) -> tuple[PartitionProgress, list[AckOutcome]]:
    """The progress after what could be taken, and what became of each part.

    `elsewhere` is what is pending in other transactions.
    """
    outcomes: list[AckOutcome] = []
    for ack in acks:
        for outcome in judge(ack, holdings, facts):
            if outcome.error_code is ErrorCode.NONE and elsewhere:
                said = AckedRange(outcome.slots, ack.watermark, ack.done)
                if is_elsewhere(progress, said, elsewhere):
                    outcome = pending_elsewhere(outcome.slots)
            if outcome.error_code is ErrorCode.NONE:
                progress = with_done(progress, outcome.slots, ack.watermark, ack.done)
            outcomes.append(outcome)
    return progress, outcomes


def pending_elsewhere(slots: SlotRange) -> AckOutcome:
    """What is said of an acknowledgement that a transaction has to end for."""
    return AckOutcome(
        slots, ErrorCode.CONCURRENT_TRANSACTIONS, SubCode.PENDING_IN_OTHER_TRANSACTION
    )


def news_of(
    progress: PartitionProgress, said: AckedRange
) -> Iterable[tuple[SlotRange, OffsetRanges]]:
    """What an acknowledgement says is done and was not: offsets, by the slots it is news for."""
    for interval in progress.within(said.slots):
        first = max(interval.watermark, 0)
        offsets = said.done.at_or_above(first)
        if said.watermark > first:
            offsets = offsets.union(OffsetRanges([(first, said.watermark - 1)]))
        offsets = offsets.without(interval.done)
        if offsets:
            yield interval.slots, offsets


def is_elsewhere(
    progress: PartitionProgress, said: AckedRange, elsewhere: Sequence[AckedRange]
) -> bool:
    """Whether some of what an acknowledgement adds is among what others have said."""
    return any(
        intersect(slots, other.slots) is not None
        and (offsets.below(other.watermark) or offsets.intersection(other.done))
        for slots, offsets in news_of(progress, said)
        for other in elsewhere
    )


def judge(ack: Ack, holdings: Holdings, facts: LogFacts) -> list[AckOutcome]:
    """What becomes of each part of an acknowledgement, in the order of the slots."""
    refused = _refusal(ack, holdings, facts)
    if refused is not None:
        return [AckOutcome(ack.slots, refused)]
    return [AckOutcome(part, code) for part, code in _judge(ack, holdings)]


def _refusal(ack: Ack, holdings: Holdings, facts: LogFacts) -> ErrorCode | None:
    """Why an acknowledgement is refused as a whole, if it is."""
    if ack.slots.first >= ack.slots.end or (ack.done and next(iter(ack.done)).first < 0):
        return ErrorCode.INVALID_REQUEST
    if ack.epoch > holdings.member_epoch:
        return ErrorCode.STALE_MEMBER_EPOCH
    if ack.end_offset > min(facts.delivered_offset, facts.log_end_offset):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if ack.end_offset > facts.epoch_end_offset:
        return ErrorCode.FENCED_LEADER_EPOCH
    return None


def _judge(ack: Ack, holdings: Holdings) -> list[tuple[SlotRange, ErrorCode]]:
    """The parts of an acknowledgement by who holds them, in the order of the slots."""
    parts: list[tuple[SlotRange, ErrorCode]] = []
    position = ack.slots.first
    for slots, epoch in sorted(holdings.slots.items()):
        part = intersect(slots, ack.slots)
        if part is None:
            continue
        if position < part.first:
            parts.append((SlotRange(position, part.first), ErrorCode.FENCED_MEMBER_EPOCH))
        is_since_then = epoch <= ack.epoch
        parts.append((part, ErrorCode.NONE if is_since_then else ErrorCode.STALE_MEMBER_EPOCH))
        position = part.end
    if position < ack.slots.end:
        parts.append((SlotRange(position, ack.slots.end), ErrorCode.FENCED_MEMBER_EPOCH))
    return parts
