"""How a group shares partitions by key: who owns which slots, how far they are, what is under way.

Everything is asked of the broker when a page is made, and of the partitions that the page shows
only. What is done is known by offsets and not by records, so what is counted here is the most that
it can be; `anabranch groups describe --ranges` says the same.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.broker.range_loads import HotKey
from anabranch.broker.topics import Topic
from anabranch.coordinator.cooperative.book import expired, with_acked
from anabranch.coordinator.cooperative.commands import NO_OFFSET
from anabranch.coordinator.cooperative.holdings import OwnedSlots
from anabranch.coordinator.cooperative.progress import (
    Attempt,
    PartitionProgress,
    new_progress,
    without_lost,
)
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.cooperative.retries import is_exhausted
from anabranch.coordinator.cooperative.views import RangeView, ranges_with_owners
from anabranch.coordinator.group.consumer_describe import Movement, movements
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.offsets import committed_offset
from anabranch.coordinator.group.shard import Group
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, slot_of_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRange:
    """Slots of a partition that are equally far and have one owner, or none."""

    topic: str
    partition: int
    slots: SlotRange
    owner: str | None
    client_id: str
    epoch: int | None
    # Everything below it is done; None: nobody has said anything.
    watermark: int | None
    # Done above the watermark, in offsets, and how many stretches in between are open.
    done_above: int
    gaps: int
    # Nothing at or above it is done.
    end_offset: int
    # Below which offset the owner was shown its records.
    delivered_offset: int | None
    in_flight: int | None
    # Who is to have it next, and since when it is on its way.
    heir: str | None
    moving_since_ms: int | None

    @property
    def slots_text(self) -> str:
        return slots_text(self.slots)

    @property
    def share(self) -> float:
        """How much of the key space it is."""
        return (self.slots.end - self.slots.first) / SLOT_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRecord:
    """A record that failed; a `rest_ms` of None has no end: somebody must decide about it."""

    topic: str
    partition: int
    offset: int
    key_hash: int
    attempts: int
    rest_ms: int | None
    reason: str

    @property
    def slot(self) -> int:
        return slot_of_hash(self.key_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class DivertedKey:
    """A key whose records go to the dead-letter topic, from an offset on."""

    topic: str
    partition: int
    key_hash: int
    from_offset: int

    @property
    def slot(self) -> int:
        return slot_of_hash(self.key_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPartition:
    """One partition as a group shares it."""

    place: Place
    topic: str
    partition: int
    stable_offset: int | None
    high_watermark: int
    ranges: tuple[SharedRange, ...]
    failed: tuple[FailedRecord, ...]
    diverted: tuple[DivertedKey, ...]
    hot: tuple[HotKey, ...]
    movements: tuple[Movement, ...]
    # Done above the stable offset, in offsets, and how many stretches in between are open.
    done_above: int
    gaps: int
    in_flight: int | None
    # How long the stable offset has stood still although there is something to finish.
    stalled_ms: int | None
    is_shareable: bool
    # What it was made of, to look for its oldest open record.
    progress: PartitionProgress

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def blocked(self) -> int:
        """Records that wait for a decision."""
        return sum(one.rest_ms is None for one in self.failed)

    @property
    def retries(self) -> int:
        """Attempts that failed, of the records that are still to be done."""
        return sum(one.attempts for one in self.failed)

    def range_of_slot(self, slot: int) -> SharedRange | None:
        return next((one for one in self.ranges if one.slots.first <= slot < one.slots.end), None)


def slots_text(slots: SlotRange) -> str:
    """The first and the last slot."""
    return f"{slots.first}-{slots.end - 1}"


def shared_places(broker: Broker, group_id: str) -> list[tuple[str, int, bytes]]:
    """The partitions that a group shares by key or has committed record by record, by name."""
    found: set[Place] = set(broker.groups.progress(group_id))
    group = broker.groups.group(group_id)
    if isinstance(group, ConsumerGroup) and (group.sharing_members or group.held_ranges):
        for member in group.members.values():
            wanted = group.target(member.member_id) if member.shares else ()
            for units in (member.assigned, member.pending_revocation, wanted):
                found.update(
                    (unit.topic_id, unit.partition)
                    for unit in units
                    if member.shares or unit.slots != ALL_SLOTS
                )
    names = {topic_id: broker.topics.get_by_id(topic_id) for topic_id, _ in found}
    places = []
    for topic_id, partition in found:
        topic = names[topic_id]
        if topic is not None and topic.source is None and topic.has_partition(partition):
            places.append((topic.name, partition, topic_id))
    return sorted(places)


class SharingReader:
    """Reads partitions of one group, as it is while the loop is not let go of."""

    def __init__(self, broker: Broker, group_id: str, wanted: Collection[Place]) -> None:
        self._broker = broker
        self._group_id = group_id
        self._progress = broker.groups.progress(group_id)
        self._offsets = broker.groups.offsets(group_id)
        self._now_ms = broker.now_ms()
        group = broker.groups.group(group_id)
        self._owners = _owners(group, wanted)
        self._movements = _movements(group, wanted)
        self.client_ids = client_ids(group)

    def read(self, place: Place) -> SharedPartition | None:
        """One of the partitions that were asked for; None when it is gone."""
        topic = self._broker.topics.get_by_id(place[0])
        if topic is None or not topic.has_partition(place[1]):
            return None
        log = topic.partitions[place[1]].log
        progress = self._progress_of(topic, place[1])
        moving = self._movements.get(place, ())
        views = ranges_with_owners(progress, self._owners.get(place, ()))
        shown = [self._delivered(place, view) for view in views]
        stable_offset = progress.stable_offset
        begun = stable_offset if stable_offset != NO_OFFSET else 0
        done = _done_above(views, begun)
        ranges = tuple(
            self._range(topic.name, place[1], view, delivered, moving)
            for view, delivered in zip(views, shown, strict=True)
        )
        broker, group_id = self._broker, self._group_id
        stalled_ms = broker.groups.stuck_ranges.stalled_ms(group_id, *place)
        return SharedPartition(
            place=place,
            topic=topic.name,
            partition=place[1],
            stable_offset=stable_offset if stable_offset != NO_OFFSET else None,
            high_watermark=log.high_watermark,
            ranges=ranges,
            failed=tuple(
                self._failed(topic.name, place[1], offset, attempt)
                for offset, attempt in sorted(progress.attempts.items())
            ),
            diverted=tuple(
                DivertedKey(
                    topic=topic.name, partition=place[1], key_hash=key_hash, from_offset=offset
                )
                for key_hash, offset in sorted(progress.diverted.items())
            ),
            hot=tuple(broker.groups.range_loads.hot_keys(group_id, *place)),
            movements=tuple(moving),
            done_above=done.offsets_count,
            gaps=sum(one.gaps for one in ranges),
            in_flight=_in_flight(views, shown),
            stalled_ms=stalled_ms if stalled_ms >= 0 else None,
            is_shareable=topic.image.is_shareable,
            progress=progress,
        )

    def _progress_of(self, topic: Topic, partition: int) -> PartitionProgress:
        """As OffsetFetch tells it: without what retention has removed, or the log has lost."""
        log = topic.partitions[partition].log
        tracked = self._progress.get((topic.topic_id, partition))
        if tracked is None:
            known = committed_offset(self._offsets, topic.name, topic.topic_id, partition)
            progress = new_progress(known.offset if known is not None else NO_OFFSET)
        else:
            progress = with_acked(tracked.progress, expired(tracked.progress, log.log_start_offset))
        return without_lost(progress, log.log_end_offset)

    def _delivered(self, place: Place, view: RangeView) -> int | None:
        """Below which offset the owner was shown its records; None when nobody knows."""
        if view.owner is None:
            return None
        deliveries, holder = self._broker.deliveries, (view.owner, view.epoch)
        shown = deliveries.delivered(self._group_id, *place, *holder)
        if shown is None and not deliveries.was_shown(self._group_id, *place, *holder, 0):
            return 0  # it has it since this process runs, and has not asked for any of it
        return shown

    def _range(
        self,
        topic: str,
        partition: int,
        view: RangeView,
        delivered_offset: int | None,
        moving: Sequence[Movement],
    ) -> SharedRange:
        move = _overlapping(moving, view.slots)
        is_known = view.watermark != NO_OFFSET
        done = view.done
        open_offsets = _open_offsets(view, delivered_offset)
        return SharedRange(
            topic=topic,
            partition=partition,
            slots=view.slots,
            owner=view.owner,
            client_id=self.client_ids.get(view.owner or "", ""),
            epoch=view.epoch if view.owner is not None else None,
            watermark=view.watermark if is_known else None,
            done_above=done.offsets_count,
            gaps=len(done.gaps(max(view.watermark, 0), done.last)) if done else 0,
            end_offset=done.last + 1 if done else max(view.watermark, 0),
            delivered_offset=delivered_offset,
            in_flight=None if open_offsets is None else open_offsets.offsets_count,
            heir=move.to_member_id if move is not None else None,
            moving_since_ms=move.since_ms if move is not None else None,
        )

    def _failed(self, topic: str, partition: int, offset: int, attempt: Attempt) -> FailedRecord:
        rest_ms = None
        if not is_exhausted(attempt):
            rest_ms = max(0, attempt.not_before_ms - self._now_ms)
        return FailedRecord(
            topic=topic,
            partition=partition,
            offset=offset,
            key_hash=attempt.key_hash,
            attempts=attempt.count,
            rest_ms=rest_ms,
            reason=attempt.reason,
        )


def client_ids(group: Group | None) -> Mapping[str, str]:
    """The client id of each member."""
    if group is None:
        return {}
    return {member_id: member.client_id for member_id, member in group.members.items()}


def _owners(group: Group | None, wanted: Collection[Place]) -> Mapping[Place, list[OwnedSlots]]:
    found: dict[Place, list[OwnedSlots]] = {}
    if isinstance(group, ConsumerGroup):
        for member in group.members.values():
            for units in (member.assigned, member.pending_revocation):
                for unit, epoch in units.items():
                    place = (unit.topic_id, unit.partition)
                    if place in wanted:
                        owned = OwnedSlots(unit.slots, member.member_id, epoch)
                        found.setdefault(place, []).append(owned)
    for owners in found.values():
        owners.sort()
    return found


def _movements(group: Group | None, wanted: Collection[Place]) -> Mapping[Place, list[Movement]]:
    found: dict[Place, list[Movement]] = {}
    if isinstance(group, ConsumerGroup):
        for one in movements(group):
            place = (one.unit.topic_id, one.unit.partition)
            if place in wanted:
                found.setdefault(place, []).append(one)
    return found


def _overlapping(moving: Sequence[Movement], slots: SlotRange) -> Movement | None:
    """The first movement that takes some of these slots away; movements are in their order."""
    start = bisect_right(moving, slots.first, key=lambda one: one.unit.slots.end)
    found = moving[start] if start < len(moving) else None
    return found if found is not None and found.unit.slots.first < slots.end else None


def _open_offsets(view: RangeView, delivered_offset: int | None) -> OffsetRanges | None:
    """What the owner of a range was shown and has not done; None: not known."""
    if view.owner is None:
        return EMPTY
    if delivered_offset is None:
        return None
    return view.done.gaps(max(view.watermark, 0), delivered_offset - 1)


def _in_flight(views: Iterable[RangeView], shown: Iterable[int | None]) -> int | None:
    found: list[tuple[int, int]] = []
    for view, delivered_offset in zip(views, shown, strict=True):
        open_offsets = _open_offsets(view, delivered_offset)
        if open_offsets is None:
            return None
        found.extend(open_offsets)
    return OffsetRanges(found).offsets_count


def _done_above(views: Iterable[RangeView], stable_offset: int) -> OffsetRanges:
    """What somebody has done above the stable offset."""
    found: list[tuple[int, int]] = []
    for view in views:
        if view.watermark > stable_offset:
            found.append((stable_offset, view.watermark - 1))
        found.extend(view.done)
    return OffsetRanges(found)
