"""How far a group is with its partitions, as anybody may ask: data, and how it is read. Pure.

Offsets are not records: members say what they have done of their own keys, and a stretch of
offsets that is done may have records of other keys within it. So what is counted here is the most
that it can be.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from anabranch.client.errors import ProtocolError
from anabranch.client.records import KeyRange, TopicPartition
from anabranch.model.errors import KafkaError
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import SlotRange, slot_of_hash
from anabranch.wire import offset_set
from anabranch.wire.messages.cooperation import IndividualProgress
from anabranch.wire.messages.cooperation import RangeProgress as WireRangeProgress

# How long a record rests that is not tried again.
_NEVER_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRange:
    """A key range that is equally far and has one owner, or none.

    Everything below `watermark` is done (-1: nobody has said anything), and what is in `done` above
    it. `delivered_offset` follows the last offset that the owner was shown, where that is known.
    """

    key_range: KeyRange
    watermark: int
    done: OffsetRanges = EMPTY
    owner: str | None = None
    client_id: str | None = None
    epoch: int | None = None
    delivered_offset: int | None = None

    @property
    def slots(self) -> SlotRange:
        return self.key_range.slots

    @property
    def slots_text(self) -> str:
        return f"{self.slots.first}-{self.slots.end - 1}"

    @property
    def end_offset(self) -> int:
        """Nothing at or above it is done."""
        return self.done.last + 1 if self.done else max(self.watermark, 0)

    @property
    def gaps(self) -> OffsetRanges:
        """What is open between the watermark and the last offset that is done."""
        return self.done.gaps(max(self.watermark, 0), self.done.last) if self.done else EMPTY

    @property
    def in_flight(self) -> int | None:
        """How many offsets its owner was shown and has not done, at most; None: not known."""
        open_offsets = self.shown_and_open
        return None if open_offsets is None else open_offsets.offsets_count

    @property
    def shown_and_open(self) -> OffsetRanges | None:
        """What its owner was shown and has not done; None: not known."""
        if self.owner is None:
            return EMPTY
        if self.delivered_offset is None:
            return None
        return self.done.gaps(max(self.watermark, 0), self.delivered_offset - 1)

    def is_done(self, offset: int) -> bool:
        return offset < self.watermark or offset in self.done

    def done_from(self, offset: int) -> OffsetRanges:
        """What is done at or above an offset."""
        below = OffsetRanges([(offset, self.watermark - 1)]) if offset < self.watermark else EMPTY
        return below.union(self.done.at_or_above(offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedRecord:
    """A record that failed; a `rest_ms` of None has no end: somebody must decide about it."""

    offset: int
    attempts: int
    rest_ms: int | None
    reason: str = ""
    key_hash: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DivertedKey:
    """A key whose records go to the dead-letter topic, from an offset on."""

    key_hash: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRange:
    """Keys that are more work than a fair share, and the one that is most of it, if known."""

    key_range: KeyRange
    share: float
    key: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestRecord:
    """The first record of a partition that is not done."""

    offset: int
    slot: int
    key: bytes | None
    timestamp_ms: int
    age_ms: int | None  # None: it has no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A key range of a partition that is on its way; None is nobody."""

    key_range: KeyRange
    from_member: str | None
    to_member: str | None
    since_ms: int  # since the epoch of Unix


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """How far a group is with a partition; a `stable_offset` of None is not there yet.

    `stalled_ms` is how long it has stood still although members were shown more; None when it has
    not, or nobody knows. `oldest` is None when nothing is open, or (`is_searched` is False) when it
    was not found within reason.
    """

    topic: str
    partition: int
    stable_offset: int | None
    high_watermark: int | None = None
    ranges: tuple[GroupRange, ...] = ()
    retried: tuple[RetriedRecord, ...] = ()
    diverted: tuple[DivertedKey, ...] = ()
    hot: tuple[HotRange, ...] = ()
    stalled_ms: int | None = None
    oldest: OldestRecord | None = None
    is_searched: bool = False
    is_shareable: bool | None = None  # the topic's switch; None: not known
    handovers: tuple[Handover, ...] = ()

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def window(self) -> int | None:
        """How far ahead of the stable offset somebody is."""
        if self.stable_offset is None or not self.ranges:
            return None
        return max(row.end_offset for row in self.ranges) - self.stable_offset

    @property
    def in_flight(self) -> int | None:
        """How many offsets members were shown and have not done, at most; None: not known."""
        found = EMPTY
        for row in self.ranges:
            open_offsets = row.shown_and_open
            if open_offsets is None:
                return None
            found = found.union(open_offsets)
        return found.offsets_count

    @property
    def oldest_age_ms(self) -> int | None:
        return self.oldest.age_ms if self.oldest is not None else None

    def done_from(self, offset: int) -> int:
        """How many offsets at or above this one somebody has done."""
        return _offsets_done(self.ranges, offset)

    def oldest_open_offset(self, row: GroupRange) -> int | None:
        """The offset that a range waits for; None when it has nothing left to do."""
        if row.watermark < 0 or row.watermark >= (self.high_watermark or 0):
            return None
        return row.watermark

    def range_of_slot(self, slot: int) -> GroupRange | None:
        """The range that has a slot."""
        return next((row for row in self.ranges if row.slots.first <= slot < row.slots.end), None)

    def range_of(self, retried: RetriedRecord) -> GroupRange | None:
        """The range of a record that failed; None when it may be one of several."""
        if retried.key_hash is not None:
            return self.range_of_slot(slot_of_hash(retried.key_hash))
        open_ranges = [row for row in self.ranges if not row.is_done(retried.offset)]
        return open_ranges[0] if len(open_ranges) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """How far a group is with all that it has begun.

    `is_enabled` says whether the broker takes individual commits now.
    """

    group_id: str
    state: str | None  # None: no group of KIP-848
    is_enabled: bool
    partitions: tuple[PartitionProgress, ...]


def _offsets_done(rows: Iterable[GroupRange], offset: int) -> int:
    done = EMPTY
    for row in rows:
        done = done.union(row.done_from(offset))
    return done.offsets_count


# What is on the wire ----------------------------------------------------------------------------


def read_partition(
    place: TopicPartition,
    found: IndividualProgress,
    *,
    high_watermark: int | None = None,
    client_ids: Mapping[str, str] | None = None,
    is_shareable: bool | None = None,
    handovers: tuple[Handover, ...] = (),
) -> PartitionProgress:
    """What a broker said of a partition; ProtocolError when it makes no sense."""
    rows = tuple(_read_range(one, client_ids or {}) for one in found.ranges)
    # The high watermark may have been asked for before, and what is done can only be below it.
    end_offset = max((row.end_offset for row in rows), default=0)
    return PartitionProgress(
        topic=place.topic,
        partition=place.partition,
        stable_offset=found.stable_offset if found.stable_offset >= 0 else None,
        high_watermark=None if high_watermark is None else max(high_watermark, end_offset),
        ranges=rows,
        retried=tuple(
            RetriedRecord(
                offset=one.offset,
                attempts=one.attempts,
                rest_ms=None if one.not_before_ms == _NEVER_MS else one.not_before_ms,
                reason=one.reason,
                key_hash=one.key_hash if one.key_hash >= 0 else None,
            )
            for one in found.retried
        ),
        diverted=tuple(
            DivertedKey(key_hash=one.key_hash, offset=one.offset) for one in found.diverted
        ),
        hot=tuple(
            HotRange(
                key_range=_key_range(one.first_hash, one.last_hash),
                share=one.share_permille / 1000,
                key=None if one.key is None else bytes(one.key),
            )
            for one in found.hot
        ),
        stalled_ms=found.stalled_ms if found.stalled_ms >= 0 else None,
        is_shareable=is_shareable,
        handovers=handovers,
    )


def _read_range(found: WireRangeProgress, client_ids: Mapping[str, str]) -> GroupRange:
    try:
        done = offset_set.decode(found.done)
    except KafkaError as error:
        raise ProtocolError(f"what is done of a key range: {error.message}") from error
    return GroupRange(
        key_range=_key_range(found.first_hash, found.last_hash),
        watermark=found.watermark,
        done=done,
        owner=found.owner,
        client_id=client_ids.get(found.owner) if found.owner is not None else None,
        epoch=found.epoch if found.epoch >= 0 else None,
        delivered_offset=found.delivered_offset if found.delivered_offset >= 0 else None,
    )


def _key_range(first_hash: int, last_hash: int) -> KeyRange:
    found = KeyRange(first_hash, last_hash)
    try:
        _ = found.slots
    except ValueError as error:
        raise ProtocolError(f"the broker's answer about key ranges: {error}") from error
    return found
