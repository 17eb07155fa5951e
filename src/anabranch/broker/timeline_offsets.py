"""What happened to offsets and to single records of a group, other than that they were done."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from anabranch.broker.timeline_events import (
    NAMED_MAX,
    GroupDeleted,
    OffsetChange,
    OffsetMoved,
    OffsetsChanged,
    RecordFate,
    RecordFated,
    TimelineEvent,
)
from anabranch.coordinator.cooperative.commands import (
    NO_OFFSET,
    Action,
    CountStuck,
    Decision,
    TakeAcks,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.progress import Attempt
from anabranch.coordinator.cooperative.retries import is_exhausted
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.records import OffsetCommitted
from anabranch.coordinator.group.shard import GroupShard

_CHANGES = {
    c.CommitOffsets: OffsetChange.SET,
    c.DeleteOffsets: OffsetChange.DELETED,
    c.DeleteTopicOffsets: OffsetChange.TOPIC_DELETED,
    c.ExpireOffsets: OffsetChange.EXPIRED,
}
_FATES = {
    Action.RELEASE: RecordFate.RELEASED,
    Action.SKIP: RecordFate.SKIPPED,
    Action.DLQ: RecordFate.DEAD_LETTERED,
}


def offset_events(
    shard: GroupShard, command: Any, records: tuple[Any, ...], now_ms: int
) -> list[TimelineEvent]:
    """What a command of no member is about to do to offsets."""
    kind = type(command)
    if kind is c.DeleteGroup:
        return [GroupDeleted(at_ms=now_ms, group_id=command.group_id)]
    if kind is c.CommitOffsets and command.generation_id >= 0:
        return []  # what members do all the time
    moved: dict[str, list[OffsetMoved]] = {}
    counts: dict[str, int] = {}
    for record in records:
        if type(record) is not OffsetCommitted:
            continue
        group_id, place = record.group_id, (record.topic, record.partition)
        before = shard.offsets(group_id).get(place)
        offset_before = before.offset if before is not None else None
        offset_after = record.value.offset if record.value is not None else None
        counts[group_id] = counts.get(group_id, 0) + 1
        named = moved.setdefault(group_id, [])
        one = OffsetMoved(
            topic=record.topic,
            partition=record.partition,
            before=offset_before,
            after=offset_after,
        )
        if len(named) < NAMED_MAX:
            named.append(one)
        elif _goes_back(one) and not any(map(_goes_back, named)):
            # Whether anything went back is told by those that are named.
            named[-1] = one
    return [
        OffsetsChanged(
            at_ms=now_ms,
            group_id=group_id,
            change=_CHANGES[kind],
            moved=tuple(some),
            partitions=counts[group_id],
            last_ms=now_ms,
        )
        for group_id, some in moved.items()
    ]


def _goes_back(one: OffsetMoved) -> bool:
    return one.before is not None and one.after is not None and one.after < one.before


def joined_changes(known: OffsetsChanged, new: OffsetsChanged) -> OffsetsChanged:
    """One event for commits that just go on."""
    before = {(one.topic, one.partition): one.before for one in known.moved}
    moved = {(one.topic, one.partition): one for one in known.moved}
    for one in new.moved:
        place = (one.topic, one.partition)
        if place in moved or len(moved) < NAMED_MAX:
            moved[place] = dataclasses.replace(one, before=before.get(place, one.before))
    return dataclasses.replace(
        known,
        moved=tuple(moved.values()),
        partitions=max(known.partitions, new.partitions, len(moved)),
        count=known.count + 1,
        last_ms=new.last_ms,
    )


def record_events(
    shard: GroupShard, command: Any, waiting: list[Decision], now_ms: int
) -> Iterator[TimelineEvent]:
    """What became of records that failed, or were decided about; the shard has it by now."""
    match command:
        case TakeAcks():
            for part in command.partitions:
                for failure in part.failures:
                    attempt = _attempt(shard, command.group_id, part, failure.offset)
                    if attempt is not None and is_exhausted(attempt):
                        yield _fated(
                            shard,
                            command,
                            part,
                            RecordFate.BLOCKED,
                            failure.offset,
                            now_ms,
                            attempt.reason,
                        )
        case CountStuck():
            attempt = _attempt(shard, command.group_id, command, command.offset)
            is_last = attempt is not None and is_exhausted(attempt)
            fate = RecordFate.BLOCKED if is_last else RecordFate.STUCK
            yield _fated(shard, command, command, fate, command.offset, now_ms, command.reason)
        case TakeDecisions():
            for decision in waiting:
                offset = None if decision.offset == NO_OFFSET else decision.offset
                if offset is not None and _attempt(shard, command.group_id, command, offset):
                    continue  # it waits on: this was refused
                yield _fated(shard, command, command, _FATES[decision.action], offset, now_ms)


def decisions_to_take(shard: GroupShard, command: TakeDecisions) -> list[Decision]:
    """The decisions about what waits for one; others are refused."""
    tracked = shard.progress(command.group_id).get((command.topic_id, command.partition))
    if tracked is None:
        return []
    progress = tracked.progress
    hashes = {one.key_hash for one in progress.attempts.values() if is_exhausted(one)}
    found = []
    for decision in command.decisions:
        if decision.offset == NO_OFFSET:
            if decision.key_hash in hashes or decision.key_hash in progress.diverted:
                found.append(decision)
        else:
            attempt = progress.attempts.get(decision.offset)
            if attempt is not None and is_exhausted(attempt):
                found.append(decision)
    return found


def _attempt(shard: GroupShard, group_id: str, place: Any, offset: int) -> Attempt | None:
    tracked = shard.progress(group_id).get((place.topic_id, place.partition))
    return tracked.progress.attempts.get(offset) if tracked is not None else None


def _fated(
    shard: GroupShard,
    command: Any,
    place: Any,
    fate: RecordFate,
    offset: int | None,
    now_ms: int,
    reason: str = "",
) -> RecordFated:
    topic = shard.image.by_id.get(place.topic_id)
    return RecordFated(
        at_ms=now_ms,
        group_id=command.group_id,
        fate=fate,
        topic=topic.name if topic is not None else "a topic that is gone",
        partition=place.partition,
        offset=offset,
        reason=reason,
    )
