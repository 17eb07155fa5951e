"""Committed offsets: commit, project, delete, expire.

Rules
- A commit is accepted from a member of the present generation, or from nobody in particular while
  the group has no members (an admin client, or a consumer that assigns itself its partitions).
- While a generation waits for its assignment nothing can be committed: its members own nothing yet.
- An offset that follows from what the group committed elsewhere is written whoever is in the group,
  upwards and downwards, but not over a commit that is newer than all that it follows from: then
  the group reads that partition itself by now.
- Where a group has progress of its own on a partition (individual commits), a plain commit by the
  owner of the whole partition is a watermark of all its slots, and one by nobody in particular, in
  a group without members, starts over from there. Members that do not own the whole partition
  cannot speak for the others, and nothing is projected over progress.
- The empty group id is a group like any other here, for clients from before groups, as in Kafka.
- An offset expires `offsets.retention.minutes` after its group became empty, or after its commit
  where the group has no protocol or a consuming group is not subscribed to the topic any more
  (KIP-211). An empty group without offsets is forgotten.
- What is pending in a transaction protects its group, and the offset that it may replace, from
  being forgotten by time or with the group (see `txn_offsets`).
"""

import dataclasses
from collections.abc import Collection, Mapping

from anabranch.coordinator.cooperative.book import GroupProgress, ProgressDraft
from anabranch.coordinator.cooperative.pending_acks import PendingAcks
from anabranch.coordinator.cooperative.plain_commit import check_owner, take_plain_commit
from anabranch.coordinator.group.classic_state import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicState,
)
from anabranch.coordinator.group.classic_sync import check_generation
from anabranch.coordinator.group.commands import (
    CommitAnswer,
    CommitOffsets,
    CommittedOffset,
    DeleteGroupAnswer,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    OffsetToCommit,
    ProjectedOffset,
    ProjectOffsets,
)
from anabranch.coordinator.group.consumer_downgrade import tombstones
from anabranch.coordinator.group.consumer_offsets import check_commit as check_consumer_commit
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.draft import session_timer
from anabranch.coordinator.group.records import GroupRecord, GroupWritten, OffsetCommitted
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.subscription import group_topics
from anabranch.coordinator.group.txn_offsets import PendingOffsets
from anabranch.coordinator.runtime.result import Result, TimerChange
from anabranch.model.errors import ErrorCode

Group = ClassicGroup | ConsumerGroup
# The committed offsets of one group, by (topic, partition).
Offsets = Mapping[tuple[str, int], CommittedOffset]
# The partitions for which a group has offsets pending in transactions, by (topic, partition).
Pending = Collection[tuple[str, int]]

_NO_TOPIC_ID = bytes(16)
_NO_TIMESTAMP = -1
_MAX_TIMESTAMP_MS = 2**63 - 1

# Fetch ------------------------------------------------------------------------------------------


def committed_offset(
    offsets: Offsets, topic: str, topic_id: bytes, partition: int
) -> CommittedOffset | None:
    """What was committed; None also when it was for a former topic of that name."""
    committed = offsets.get((topic, partition))
    if committed is None:
        return None
    if committed.topic_id in (_NO_TOPIC_ID, topic_id) or topic_id == _NO_TOPIC_ID:
        return committed
    return None


# Commit -----------------------------------------------------------------------------------------


def commit_offsets(
    group: Group | None,
    command: CommitOffsets,
    progress: GroupProgress,
    settings: GroupSettings,
    now_ms: int,
    pending: PendingAcks,
) -> Result:
    """Commit offsets; `pending` is what is acknowledged in transactions."""
    if isinstance(group, ConsumerGroup):
        error = check_consumer_commit(group, command)
    else:
        error = _check_commit(group, command)
    if error is not ErrorCode.NONE:
        return Result(response=CommitAnswer(error=error))
    records: list[GroupRecord] = []
    errors: list[ErrorCode] = []
    draft = ProgressDraft(command.group_id, progress)
    for asked in command.offsets:
        # Characters, whatever the setting's name says, as Kafka counts.
        if asked.metadata is not None and len(asked.metadata) > settings.offset_metadata_max_bytes:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        place = (asked.topic_id, asked.partition)
        if isinstance(group, ConsumerGroup):
            error = check_owner(group, command.member_id, place, progress)
        errors.append(error)
        if error is not ErrorCode.NONE:
            continue
        acknowledged = pending.of_place(command.group_id, place)
        is_reset = command.generation_id < 0
        take_plain_commit(draft, place, asked.offset, acknowledged, is_reset=is_reset)
        records.append(
            OffsetCommitted(
                group_id=command.group_id,
                topic=asked.topic,
                partition=asked.partition,
                value=_committed(asked, command.retention_ms, now_ms),
            )
        )
    return Result(
        records=(*draft.records, *records),
        response=CommitAnswer(errors=tuple(errors)),
        timers=_session_restarted(group, command.member_id, now_ms),
    )


def _committed(asked: OffsetToCommit, retention_ms: int, now_ms: int) -> CommittedOffset:
    committed = CommittedOffset(
        offset=asked.offset,
        leader_epoch=asked.leader_epoch,
        metadata=asked.metadata or "",
        commit_timestamp_ms=now_ms,
        topic_id=asked.topic_id,
    )
    if retention_ms < 0:
        return committed
    # The journal's record with a retention of its own has no room for leader epoch and topic id.
    return dataclasses.replace(
        committed,
        leader_epoch=-1,
        topic_id=_NO_TOPIC_ID,
        expire_timestamp_ms=min(now_ms + retention_ms, _MAX_TIMESTAMP_MS),
    )


def _check_commit(group: ClassicGroup | None, command: CommitOffsets) -> ErrorCode:
    is_anonymous = command.generation_id < 0
    if group is None:
        if is_anonymous:
            return ErrorCode.NONE
        if command.knows_group_id_not_found:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION
    if is_anonymous and group.state is ClassicState.EMPTY:
        return ErrorCode.NONE
    error = check_generation(
        group, command.member_id, command.group_instance_id, command.generation_id
    )
    if error is not ErrorCode.NONE:
        return error
    if group.state is ClassicState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _session_restarted(group: Group | None, member_id: str, now_ms: int) -> tuple[TimerChange, ...]:
    """A commit of a classic group's member is a sign of life like a heartbeat."""
    if not isinstance(group, ClassicGroup) or member_id not in group.members:
        return ()
    key = session_timer(group.group_id, member_id)
    return (TimerChange(key, now_ms + group.members[member_id].session_timeout_ms),)


# Project ----------------------------------------------------------------------------------------


def project_offsets(
    group: Group | None,
    offsets: Offsets,
    command: ProjectOffsets,
    progress: GroupProgress,
    pending: Pending,
) -> Result:
    """Commit what follows from other commits of the group, where that says something new."""
    if group is None:
        return Result()  # it was deleted meanwhile, and nothing may make it again
    return Result(
        records=tuple(
            OffsetCommitted(
                group_id=command.group_id,
                topic=projected.topic,
                partition=projected.partition,
                value=CommittedOffset(
                    offset=projected.offset,
                    # The time when it was true: whatever is committed from then on is newer.
                    commit_timestamp_ms=projected.read_ms,
                    topic_id=projected.topic_id,
                ),
            )
            for projected in command.offsets
            if (projected.topic_id, projected.partition) not in progress
            and (projected.topic, projected.partition) not in pending
            and _is_news(offsets, projected)
        )
    )


def _is_news(offsets: Offsets, projected: ProjectedOffset) -> bool:
    present = committed_offset(offsets, projected.topic, projected.topic_id, projected.partition)
    if present is None:
        return True
    is_older = present.commit_timestamp_ms <= projected.newest_commit_ms
    return is_older and present.offset != projected.offset


# Delete -----------------------------------------------------------------------------------------


def delete_offsets(
    group: Group | None, offsets: Offsets, command: DeleteOffsets, pending: Pending
) -> Result:
    """Forget offsets of topics that nobody in the group is subscribed to."""
    error = _check_delete_offsets(group, command)
    if error is not ErrorCode.NONE:
        return Result(response=DeleteOffsetsAnswer(error=error))
    assert group is not None
    topics = _topics_in_use(group)
    records: list[GroupRecord] = []
    errors: list[ErrorCode] = []
    for topic, partition in command.partitions:
        if topics is None or topic in topics:
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        errors.append(ErrorCode.NONE)
        if (topic, partition) in offsets or (topic, partition) in pending:
            records.append(_forgotten(group.group_id, topic, partition))
    return Result(records=tuple(records), response=DeleteOffsetsAnswer(errors=tuple(errors)))


def _topics_in_use(group: Group) -> frozenset[str] | None:
    """The topics that any member is subscribed to; None when that cannot be known."""
    if isinstance(group, ConsumerGroup):
        return group.subscribed_topics
    return group_topics(group)


def _check_delete_offsets(group: Group | None, command: DeleteOffsets) -> ErrorCode:
    if not command.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if isinstance(group, ConsumerGroup):
        return ErrorCode.NONE
    if group.state is not ClassicState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def delete_group(group: Group | None, offsets: Offsets, pending: Pending) -> Result:
    """Forget an empty group and everything it committed.

    Ids that were handed out and not joined with yet go too; their clients join anew.
    """
    error = _check_delete_group(group, pending)
    if error is not ErrorCode.NONE:
        return Result(response=DeleteGroupAnswer(error=error))
    assert group is not None
    pending_members = group.pending_members if isinstance(group, ClassicGroup) else ()
    return Result(
        records=_forget_group(group, offsets),
        response=DeleteGroupAnswer(),
        timers=tuple(
            TimerChange(session_timer(group.group_id, member_id), None)
            for member_id in sorted(pending_members)
        ),
    )


def _check_delete_group(group: Group | None, pending: Pending) -> ErrorCode:
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if not _is_empty(group) or pending:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def _is_empty(group: Group) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is ClassicState.EMPTY


def _forget_group(group: Group, offsets: Offsets) -> tuple[GroupRecord, ...]:
    group_id = group.group_id
    forgotten = [_forgotten(group_id, topic, partition) for topic, partition in offsets]
    if isinstance(group, ConsumerGroup):
        return (*forgotten, *tombstones(group))
    return (*forgotten, GroupWritten(group_id=group_id, group=None))


def _forgotten(group_id: str, topic: str, partition: int) -> OffsetCommitted:
    return OffsetCommitted(group_id=group_id, topic=topic, partition=partition, value=None)


def delete_topic_offsets(
    offsets_by_group: Mapping[str, Offsets], pending: PendingOffsets, topic: str
) -> Result:
    """The topic is gone; in every group of the shard nothing was committed for it."""
    groups = dict.fromkeys((*offsets_by_group, *pending.groups()))
    return Result(
        records=tuple(
            _forgotten(group_id, name, partition)
            for group_id in groups
            for name, partition in dict.fromkeys(
                (*offsets_by_group.get(group_id, ()), *pending.of_group(group_id))
            )
            if name == topic
        )
    )


# Expiry -----------------------------------------------------------------------------------------


def expire_offsets(
    group: Group, offsets: Offsets, pending: Pending, settings: GroupSettings, now_ms: int
) -> tuple[GroupRecord, ...]:
    """What of one group has expired; the group itself when nothing and nobody is left."""
    topics = _protected_topics(group)
    expired = [
        (topic, partition)
        for (topic, partition), offset in offsets.items()
        if (topic, partition) not in pending
        and _is_expired(group, topic, topics, offset, settings, now_ms)
    ]
    # Kafka forgets a group also while somebody it gave an id to is about to join.
    is_unused = _is_empty(group) and not (isinstance(group, ClassicGroup) and group.pending_members)
    if is_unused and not pending and len(expired) == len(offsets):
        return _forget_group(group, offsets)
    return tuple(_forgotten(group.group_id, topic, partition) for topic, partition in expired)


def _protected_topics(group: Group) -> frozenset[str] | None:
    """The topics that are in use, looked up once for all offsets.

    Only a Stable classic group's subscriptions are known to be current.
    """
    if isinstance(group, ConsumerGroup) or group.state is ClassicState.STABLE:
        return _topics_in_use(group)
    return None


def _is_expired(
    group: Group,
    topic: str,
    topics: frozenset[str] | None,
    offset: CommittedOffset,
    settings: GroupSettings,
    now_ms: int,
) -> bool:
    since_ms = _counts_from(group, topic, topics, offset)
    if since_ms is None:
        return False
    if offset.expire_timestamp_ms != _NO_TIMESTAMP:
        return now_ms >= offset.expire_timestamp_ms
    return now_ms - since_ms >= settings.offsets_retention_ms


def _counts_from(
    group: Group, topic: str, topics: frozenset[str] | None, offset: CommittedOffset
) -> int | None:
    """When an offset's retention began to run, or None while it is protected (KIP-211).

    `topics` are those that a Stable group is subscribed to, None where that is not known.
    """
    if isinstance(group, ConsumerGroup):
        is_in_use = topics is not None and topic in topics
        return None if is_in_use else offset.commit_timestamp_ms
    if group.protocol_type is None:
        return offset.commit_timestamp_ms
    if group.state is ClassicState.EMPTY:
        if group.state_timestamp_ms != _NO_TIMESTAMP:
            return group.state_timestamp_ms
        return offset.commit_timestamp_ms
    if topics is not None and topic not in topics:
        return offset.commit_timestamp_ms
    return None
