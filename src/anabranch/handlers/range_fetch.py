"""Fetches that name key ranges: a tag of our own on a partition of Fetch.

Without a group anybody may read any ranges. With one, the member must own them: what it reads is
what it will acknowledge. It may still read what it has been told to give up, until it did. While
the window of its group is nearly full, it reads no further than any member has.

Readers without a group who say how they have cut the partition among them, such as the tasks of a
Spark query, may do so on every topic but branch topics: whether groups may share it is another
question.
"""

from collections.abc import Iterable
from itertools import pairwise

from anabranch.branch.slots import BRANCHES_MAX
from anabranch.broker.broker import Broker
from anabranch.broker.fetch_sessions import FetchedPartition
from anabranch.broker.partition import Partition
from anabranch.broker.topics import Topic
from anabranch.coordinator.cooperative.holdings import holdings_of, owners_by_place
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.handlers.consumer_group_heartbeat import read_key_range
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import ALL_SLOTS, SlotRange, hashes_of
from anabranch.wire.messages.cooperation import KeyRange, RangeCut, RangeFetch, RangeFetchAnswer


class RangeFetchError(KafkaError):
    """A refusal with one of KIP-X's own codes."""

    def __init__(self, code: ErrorCode, sub_code: SubCode, message: str) -> None:
        super().__init__(code, message)
        self.sub_code = sub_code


def range_partition(
    broker: Broker,
    topic: Topic,
    partition: Partition,
    asked: RangeFetch,
    cut: RangeCut | None = None,
) -> Partition:
    """What a reader with these ranges reads."""
    is_free = cut is not None and not asked.group_id
    if topic.source is not None or not (is_free or topic.image.is_shareable):
        raise RangeFetchError(
            ErrorCode.INVALID_REQUEST,
            SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED,
            f"{topic.name} may not be read by key range. Set range.fetch.enable=true on it.",
        )
    ranges = asked_ranges(asked)
    siblings: list[tuple[SlotRange, ...]] = []
    if asked.group_id:
        siblings = _checked_siblings(broker, topic, partition, asked, ranges)
    elif cut is not None:
        siblings = [(slots,) for slots in _sorted_ranges(cut.ranges)]
    return broker.range_tails.partition(partition, ranges, siblings)


def asked_ranges(asked: RangeFetch) -> tuple[SlotRange, ...]:
    """The slots that are asked for, in order; none stands for all."""
    return _joined(_sorted_ranges(asked.ranges) or [ALL_SLOTS])


def _sorted_ranges(ranges: Iterable[KeyRange]) -> list[SlotRange]:
    """Ranges as slots, in order; refused when they overlap, or are too many for one table."""
    found = sorted(map(read_key_range, ranges))
    if any(after.first < before.end for before, after in pairwise(found)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The key ranges overlap.")
    if len(found) > BRANCHES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{len(found)} key ranges; a partition is cut into {BRANCHES_MAX} at most.",
        )
    return found


def _checked_siblings(
    broker: Broker,
    topic: Topic,
    partition: Partition,
    asked: RangeFetch,
    ranges: tuple[SlotRange, ...],
) -> list[tuple[SlotRange, ...]]:
    """The ranges of all members, that of the reader among them if it reads all it has."""
    group = broker.groups.group(asked.group_id)
    member = group.members.get(asked.member_id) if isinstance(group, ConsumerGroup) else None
    if not isinstance(group, ConsumerGroup) or member is None:
        raise RangeFetchError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            SubCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED,
            f"{asked.member_id} is not a member of group {asked.group_id}. It has to join it.",
        )
    held = holdings_of(member, topic.topic_id, partition.index)
    epochs = (member.member_epoch, member.previous_member_epoch)
    if asked.member_epoch not in epochs or not _covers(held.slots, ranges):
        raise RangeFetchError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            SubCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED,
            f"{asked.member_id} is at epoch {member.member_epoch} and does not hold all of the "
            "ranges that it asks for. Its next heartbeat tells what it has.",
        )
    by_owner: dict[str, list[SlotRange]] = {}
    owners = owners_by_place(group).get((topic.topic_id, partition.index), [])
    for slots, owner, _ in owners:
        by_owner.setdefault(owner, []).append(slots)
    return [_joined(slots) for slots in by_owner.values()]


def _covers(held: Iterable[SlotRange], ranges: tuple[SlotRange, ...]) -> bool:
    assembled = _joined(sorted(held))
    return all(
        any(one.first <= wanted.first and wanted.end <= one.end for one in assembled)
        for wanted in ranges
    )


def _joined(slots: list[SlotRange]) -> tuple[SlotRange, ...]:
    joined: list[SlotRange] = []
    for one in slots:
        if joined and one.first == joined[-1].end:
            joined[-1] = SlotRange(joined[-1].first, one.end)
        else:
            joined.append(one)
    return tuple(joined)


def done_of(broker: Broker, wanted: FetchedPartition) -> OffsetRanges:
    """What the reader's group has done of its ranges already, above where it reads.

    A record is withheld if it is done whichever of the ranges it is in. Where ranges are not
    equally far, the reader, who knows what is done of each, leaves out the rest itself.
    """
    asked = wanted.range_fetch
    topic_id = broker.topics.id_of(wanted.topic)
    if asked is None or not asked.group_id or topic_id is None:
        return EMPTY
    tracked = broker.groups.progress(asked.group_id).get((topic_id, wanted.index))
    if tracked is None or not tracked.progress.ranges_count:
        return EMPTY
    done: OffsetRanges | None = None
    for slots in asked_ranges(asked):
        for interval in tracked.progress.within(slots):
            below = OffsetRanges([(0, interval.watermark - 1)] if interval.watermark > 0 else [])
            of_interval = interval.done.union(below)
            done = of_interval if done is None else done.intersection(of_interval)
    return (done or EMPTY).at_or_above(wanted.fetch_offset)


def readable_end(broker: Broker, wanted: FetchedPartition, end_offset: int) -> int:
    """Up to where the reader may read of what may be read at all."""
    asked = wanted.range_fetch
    topic_id = broker.topics.id_of(wanted.topic)
    if asked is None or not asked.group_id or topic_id is None:
        return end_offset
    held_offset = broker.groups.stuck_ranges.held_offset(asked.group_id, topic_id, wanted.index)
    if held_offset is None:
        return end_offset
    # Who has got further, before the broker was started, is where it is.
    return min(end_offset, max(held_offset, wanted.fetch_offset))


def range_answer(asked: RangeFetch, covered_offset: int) -> RangeFetchAnswer:
    """What was applied: who does not find it in the answer was not understood."""
    applied = []
    for slots in asked_ranges(asked):
        first_hash, last_hash = hashes_of(slots)
        applied.append(KeyRange(first_hash=first_hash, last_hash=last_hash))
    return RangeFetchAnswer(covered_offset=covered_offset, ranges=applied)
