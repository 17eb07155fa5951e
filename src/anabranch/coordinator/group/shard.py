"""One shard: the groups and offsets of one partition of the journal.

Rules
- `decide` looks and changes nothing; `replay` changes and decides nothing.
- The durable records alone, replayed in order into an empty shard, give the same groups and offsets
  as the living shard has, but for what only the living process can know (see `classic_state`).
- A group is of one kind, classic or consumer, until it is empty or its members migrate it; an empty
  one becomes what the next member speaks.
"""

import dataclasses
from collections.abc import Collection, Mapping
from functools import partial
from typing import assert_never

from anabranch.coordinator.cooperative.book import GroupProgress, ProgressBook
from anabranch.coordinator.cooperative.commands import (
    AcksAnswer,
    CountStuck,
    LogsFound,
    ResumeAcks,
    TakeAcks,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.decisions import take_decisions
from anabranch.coordinator.cooperative.individual_commit import take_individual_commits
from anabranch.coordinator.cooperative.pending_acks import PendingAcks
from anabranch.coordinator.cooperative.records import (
    AcksForgotten,
    AcksPending,
    AcksSettled,
    Place,
    ProgressForgotten,
    ProgressSettled,
    ProgressWritten,
)
from anabranch.coordinator.cooperative.settling import (
    acks_found,
    epochs_in_doubt,
    logs_found,
    settle,
)
from anabranch.coordinator.cooperative.stuck import count_stuck
from anabranch.coordinator.cooperative.txn_acks import take_txn_acks
from anabranch.coordinator.cooperative.txn_order import (
    AcksParked,
    AcksUnparked,
    ParkedAcks,
    answered,
)
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.classic_in_consumer import (
    heartbeat_in_consumer_group,
    join_consumer_group,
    join_time_is_up_in_consumer_group,
    leave_consumer_group,
    sync_in_consumer_group,
    sync_time_is_up_in_consumer_group,
)
from anabranch.coordinator.group.classic_join import join_group
from anabranch.coordinator.group.classic_rebalance import (
    join_time_is_up,
    prepare,
    session_is_over,
    sync_time_is_up,
)
from anabranch.coordinator.group.classic_state import ClassicGroup
from anabranch.coordinator.group.classic_sync import heartbeat, leave_group, sync_group
from anabranch.coordinator.group.commands import Command, CommittedOffset
from anabranch.coordinator.group.consumer_downgrade import downgrade_if_alone, started_over
from anabranch.coordinator.group.consumer_draft import ConsumerDraft, Environment, refresh_timer
from anabranch.coordinator.group.consumer_heartbeat import consumer_heartbeat
from anabranch.coordinator.group.consumer_leave import rebalance_time_is_up
from anabranch.coordinator.group.consumer_leave import (
    session_is_over as consumer_session_is_over,
)
from anabranch.coordinator.group.consumer_loading import group_loaded
from anabranch.coordinator.group.consumer_moves import move_ranges
from anabranch.coordinator.group.consumer_regex import regexes_resolved, topics_may_have_changed
from anabranch.coordinator.group.consumer_state import JOINING_EPOCH, ConsumerGroup
from anabranch.coordinator.group.consumer_target import bring_up_target
from anabranch.coordinator.group.consumer_upgrade import heartbeat_that_upgrades
from anabranch.coordinator.group.draft import Draft
from anabranch.coordinator.group.offsets import (
    commit_offsets,
    delete_group,
    delete_offsets,
    delete_topic_offsets,
    expire_offsets,
    project_offsets,
)
from anabranch.coordinator.group.progress_forgetting import with_progress_forgotten
from anabranch.coordinator.group.records import (
    ClassicGroupChanged,
    GroupRecord,
    GroupWritten,
    OffsetCommitted,
    OffsetPending,
    TransactionEnded,
)
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.surroundings import Surroundings
from anabranch.coordinator.group.txn_end import Known, end_transaction
from anabranch.coordinator.group.txn_offsets import PendingOffsets, commit_txn_offsets
from anabranch.coordinator.group.txn_waiters import (
    joined_results,
    orphans,
    orphans_timer,
    with_waiters,
)
from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit

Group = ClassicGroup | ConsumerGroup

_NO_OFFSETS: dict[tuple[str, int], CommittedOffset] = {}


class GroupShard:
    """The state of one shard."""

    def __init__(self, settings: GroupSettings, surroundings: Surroundings | None = None) -> None:
        self.settings = settings
        self._surroundings = surroundings or Surroundings()
        self.image = ClusterImage()
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self.pending_offsets = PendingOffsets()
        self._book = ProgressBook()
        self._parked_acks = ParkedAcks()
        # The members of consumer groups here: a share of the broker's heartbeats is each one's.
        self.consumer_members = 0

    # Looking --------------------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, Group]:
        return self._groups

    def group(self, group_id: str) -> Group | None:
        """A group, also one that has never had a member and only holds offsets."""
        group = self._groups.get(group_id)
        if group is None and (group_id in self._offsets or self.pending_offsets.of_group(group_id)):
            return ClassicGroup(group_id=group_id)
        return group

    def offsets(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        return self._offsets.get(group_id, _NO_OFFSETS)

    def progress(self, group_id: str) -> GroupProgress:
        """What a group has done record by record, by topic id and partition."""
        return self._book.of_group(group_id)

    @property
    def progress_bytes(self) -> int:
        """About how much memory that takes."""
        return self._book.state_bytes

    @property
    def pending_acks(self) -> PendingAcks:
        """What is acknowledged in transactions that are open."""
        return self._book.pending

    def pending(self, group_id: str) -> Collection[tuple[str, int]]:
        """The partitions of a group that transactions may yet change something of."""
        pending = self.pending_offsets.of_group(group_id)
        acknowledged = self.pending_acks.of_group(group_id)
        if not acknowledged:
            return pending
        by_id = self.image.by_id
        return {
            *pending,
            *((by_id[topic_id].name, p) for topic_id, p in acknowledged if topic_id in by_id),
        }

    def groups_with_progress(self) -> list[str]:
        """The groups that have done something record by record."""
        return list(self._book)

    def epochs_in_doubt(self) -> Mapping[Place, set[int]]:
        """The leader epochs whose ends `LogsFound` has to know, for each log."""
        epochs: dict[Place, set[int]] = {}
        for group_id in self._book:
            pending = self.pending_acks.of_group(group_id)
            found = epochs_in_doubt(
                self.progress(group_id), pending, self.offsets(group_id), self.image
            )
            for place, some in found.items():
                epochs.setdefault(place, set()).update(some)
        return epochs

    def group_ids(self) -> list[str]:
        return sorted(self._groups.keys() | self._offsets.keys() | self.pending_offsets.groups())

    def environment(self, group_id: str) -> Environment:
        """What a decision about a consumer group may know beside the group."""
        return Environment(
            image=self.image,
            assignors=self._surroundings.assignors,
            settings=self._surroundings.consumer_settings(group_id),
            slot_weights=partial(self._surroundings.slot_weights, group_id),
            broker_members=self._surroundings.broker_members(),
            is_acknowledged=partial(self.pending_acks.touches, group_id),
            is_committed=partial(self._has_pending_offset, group_id),
            producers_of=partial(self.pending_acks.producers_of, group_id),
        )

    def _has_pending_offset(self, group_id: str, unit: Unit) -> bool:
        topic = self.image.by_id.get(unit.topic_id)
        pending = self.pending_offsets.of_group(group_id)
        return topic is not None and (topic.name, unit.partition) in pending

    def _draft(self, group: ConsumerGroup, now_ms: int) -> ConsumerDraft:
        return ConsumerDraft(group, self.environment(group.group_id), now_ms)

    # Deciding -------------------------------------------------------------------------------------

    def decide(self, command: Command, now_ms: int) -> Result:
        result = self._decide(command, now_ms)
        if not self._parked_acks:
            return result
        return with_waiters(self._parked_acks, self._groups, self._book, command, result)

    def _decide(self, command: Command, now_ms: int) -> Result:
        match command:
            case cc.ConsumerHeartbeat():
                return self._consumer_heartbeat(command, now_ms)
            case c.JoinGroup() | c.SyncGroup() | c.Heartbeat() | c.LeaveGroup():
                group = self.group(command.group_id)
                if isinstance(group, ConsumerGroup):
                    return self._classic_in_consumer(group, command, now_ms)
                return self._classic(group, command, now_ms)
            case c.CommitOffsets():
                group, progress = self.group(command.group_id), self.progress(command.group_id)
                result = commit_offsets(
                    group, command, progress, self.settings, now_ms, self.pending_acks
                )
                return self._forgetting(result)
            case c.CommitTxnOffsets():
                group, progress = self.group(command.group_id), self.progress(command.group_id)
                acknowledged = self.pending_acks.of_group(command.group_id)
                return commit_txn_offsets(
                    group, command, progress, self.settings, now_ms, acknowledged
                )
            case c.EndTransaction():
                return self._end_transaction(command, now_ms)
            case c.ProjectOffsets() | c.DeleteOffsets() | c.DeleteGroup() | c.DeleteTopicOffsets():
                return self._forgetting(self._change_offsets(command))
            case c.ExpireOffsets():
                return self._expire(now_ms)
            case TakeAcks():
                return self._take_acks(command, now_ms)
            case ResumeAcks():
                return self._resume_acks(command, now_ms)
            case TakeDecisions():
                group_id = command.group_id
                offsets, progress = self.offsets(group_id), self.progress(group_id)
                blocked = self.pending_offsets.of_group(group_id)
                return take_decisions(offsets, progress, command, now_ms, blocked)
            case CountStuck():
                settings = self._surroundings.cooperative_settings(command.group_id)
                progress = self.progress(command.group_id)
                return count_stuck(progress, command, settings, now_ms, self.pending_acks)
            case c.TimerFired():
                return self._timer_fired(command.key, now_ms)
            case c.Loaded():
                return self._loaded(now_ms)
            case LogsFound():
                return self._logs_found(command, now_ms)
            case cc.ClusterChanged():
                return self._cluster_changed(command, now_ms)
            case cc.RegexesResolved():
                group = self._groups.get(command.group_id)
                if not isinstance(group, ConsumerGroup):
                    return Result()
                draft = self._draft(group, now_ms)
                regexes_resolved(draft, command)
                return draft.result()
            case cc.MoveRanges():
                group = self._groups.get(command.group_id)
                if not isinstance(group, ConsumerGroup):
                    return Result()
                draft = self._draft(group, now_ms)
                move_ranges(draft, command)
                return draft.result()
            case _:
                assert_never(command)

    def _change_offsets(
        self, command: c.ProjectOffsets | c.DeleteOffsets | c.DeleteGroup | c.DeleteTopicOffsets
    ) -> Result:
        if isinstance(command, c.DeleteTopicOffsets):
            return delete_topic_offsets(self._offsets, self.pending_offsets, command.topic)
        group_id = command.group_id
        group, offsets = self.group(group_id), self.offsets(group_id)
        pending = self.pending(group_id)
        match command:
            case c.ProjectOffsets():
                return project_offsets(group, offsets, command, self.progress(group_id), pending)
            case c.DeleteOffsets():
                return delete_offsets(group, offsets, command, pending)
            case c.DeleteGroup():
                return delete_group(group, offsets, pending)

    def _consumer_heartbeat(self, command: cc.ConsumerHeartbeat, now_ms: int) -> Result:
        group = self._groups.get(command.group_id)
        environment = self.environment(command.group_id)
        if isinstance(group, ClassicGroup):
            if command.member_epoch == JOINING_EPOCH:
                return heartbeat_that_upgrades(group, command, environment, self.settings, now_ms)
            group = None  # nobody has joined it by this protocol
        return consumer_heartbeat(group, command, environment, self.settings, now_ms)

    def _classic(
        self,
        group: ClassicGroup | None,
        command: c.JoinGroup | c.SyncGroup | c.Heartbeat | c.LeaveGroup,
        now_ms: int,
    ) -> Result:
        match command:
            case c.JoinGroup():
                # A group that only holds offsets becomes known with its first member.
                known = group if command.group_id in self._groups else None
                return join_group(known, command, self.settings, now_ms)
            case c.SyncGroup():
                return sync_group(group, command, now_ms)
            case c.Heartbeat():
                return heartbeat(group, command, now_ms)
            case c.LeaveGroup():
                return leave_group(group, command, self.settings, now_ms)

    def _classic_in_consumer(
        self,
        group: ConsumerGroup,
        command: c.JoinGroup | c.SyncGroup | c.Heartbeat | c.LeaveGroup,
        now_ms: int,
    ) -> Result:
        """A member that speaks the classic protocol, in a consumer group (KIP-848 migration)."""
        if isinstance(command, c.JoinGroup) and not group.members:
            # Nobody is left who speaks the other protocol: the group starts over as a classic one.
            return started_over(group, join_group(None, command, self.settings, now_ms))
        draft = self._draft(group, now_ms)
        match command:
            case c.JoinGroup():
                return join_consumer_group(draft, command, self.settings)
            case c.SyncGroup():
                return sync_in_consumer_group(draft, command)
            case c.Heartbeat():
                return heartbeat_in_consumer_group(draft, command)
            case c.LeaveGroup():
                return leave_consumer_group(draft, command, self.settings)

    def _expire(self, now_ms: int) -> Result:
        records: list[GroupRecord] = []
        for group_id in self.group_ids():
            group = self.group(group_id)
            assert group is not None
            offsets, pending = self.offsets(group_id), self.pending(group_id)
            records += expire_offsets(group, offsets, pending, self.settings, now_ms)
        return self._forgetting(Result(records=tuple(records)))

    def _timer_fired(self, key: TimerKey, now_ms: int) -> Result:
        assert isinstance(key, tuple)
        kind, group_id, *rest = key
        if kind == "settle":
            blocked = self.pending_offsets.of_group(group_id)
            offsets = self.offsets(group_id)
            return settle(group_id, self._book, offsets, self.image, now_ms, blocked)
        if kind == "txn-order":
            parked = self._parked_acks.get(rest[0])
            late = AcksAnswer(error=ErrorCode.TRANSACTION_ABORTABLE)
            return answered(parked, late) if parked is not None else Result()
        if kind == "orphans":
            return Result(tasks=tuple(orphans(self.pending_acks, self._groups, group_id)))
        group = self._groups.get(group_id)
        if group is None:
            return Result()
        if isinstance(group, ConsumerGroup):
            return self._consumer_timer_fired(self._draft(group, now_ms), kind, *rest)
        draft = Draft(group, now_ms)
        if kind == "join":
            join_time_is_up(draft, self.settings)
        elif kind == "sync":
            sync_time_is_up(draft, self.settings)
        elif kind == "session":
            session_is_over(draft, rest[0], self.settings)
        return draft.result()

    def _consumer_timer_fired(self, draft: ConsumerDraft, kind: str, *rest: str) -> Result:
        if kind == "session":
            consumer_session_is_over(draft, rest[0])
        elif kind == "rebalance":
            rebalance_time_is_up(draft, rest[0])
        elif kind == "member-join":
            join_time_is_up_in_consumer_group(draft, rest[0])
        elif kind == "member-sync":
            sync_time_is_up_in_consumer_group(draft, rest[0])
        elif kind == "target":
            bring_up_target(draft)
        elif kind == "refresh":
            topics_may_have_changed(draft)
        return downgrade_if_alone(draft, self.settings)

    def _loaded(self, now_ms: int) -> Result:
        """Every member gets a whole session to be heard from again, as after a long pause."""
        records: list[GroupRecord] = []
        timers: list[TimerChange] = []
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                timers += group_loaded(self._draft(group, now_ms))
                continue
            draft = Draft(group, now_ms)
            for member in group.members.values():
                draft.restart_session(member)
            if len(group.members) > self.settings.max_size:
                # The limit was lowered: the first to rejoin are those that stay.
                prepare(draft, self.settings)
            elif group.members and group.leader_id is None:
                # It was a consumer group, and had yet to find an assignment of its own.
                prepare(draft, self.settings)
            result = draft.result()
            records += result.records
            timers += result.timers
        timers += [
            TimerChange(orphans_timer(group_id), now_ms)
            for group_id in self.pending_acks
            if orphans(self.pending_acks, self._groups, group_id)
        ]
        return Result(records=tuple(records), timers=tuple(timers))

    def _cluster_changed(self, command: cc.ClusterChanged, now_ms: int) -> Result:
        """Groups look at the topics again, each in its turn, when the image has been replayed."""
        changed = command.changed
        timers = [
            TimerChange(refresh_timer(group.group_id), now_ms)
            for group in self._groups.values()
            if isinstance(group, ConsumerGroup)
            and group.members
            and (group.regex_subscribers or not changed.isdisjoint(group.index.subscribed_topics))
        ]
        return Result(records=(cr.ImageChanged(image=command.image),), timers=tuple(timers))

    # Transactions ---------------------------------------------------------------------------------

    def _end_transaction(self, command: c.EndTransaction, now_ms: int) -> Result:
        known = Known(
            pending=self.pending_offsets, book=self._book, offsets=self.offsets, image=self.image
        )
        result = end_transaction(known, command, now_ms)
        applied = Result(records=result.response.applied)
        forgotten = [
            record
            for record in self._forgetting(applied).records
            if type(record) in (ProgressForgotten, AcksForgotten)
        ]
        return dataclasses.replace(result, records=(*forgotten, *result.records))

    # Individual commits ---------------------------------------------------------------------------

    def _take_acks(self, command: TakeAcks, now_ms: int) -> Result:
        group_id = command.group_id
        take = take_individual_commits if command.producer is None else take_txn_acks
        return take(
            self.group(group_id),
            self.offsets(group_id),
            self.progress(group_id),
            command,
            self._surroundings.cooperative_settings(group_id),
            now_ms,
            self.pending_acks,
            self.pending_offsets.of_group(group_id),
            self._surroundings.progress_bytes(),
        )

    def _resume_acks(self, command: ResumeAcks, now_ms: int) -> Result:
        parked = self._parked_acks.get(command.waiter)
        if parked is None:
            return Result()
        taken = self._take_acks(parked.command, now_ms)
        if taken.response is None:
            return Result()  # it waits on
        told = answered(parked, taken.response)
        return joined_results(dataclasses.replace(taken, response=None), told)

    def _logs_found(self, command: LogsFound, now_ms: int) -> Result:
        records: list[GroupRecord] = []
        timers: list[TimerChange] = []
        for group_id in self._book:
            offsets, progress = self.offsets(group_id), self.progress(group_id)
            result = logs_found(group_id, progress, offsets, self.image, command.logs, now_ms)
            records += result.records
            timers += result.timers
        for group_id in self.pending_acks:
            records += acks_found(self.pending_acks.of_group(group_id), command.logs)
        return Result(records=tuple(records), timers=tuple(timers))

    def _forgetting(self, result: Result) -> Result:
        return with_progress_forgotten(result, self._book, self.offsets, self.image)

    # Changing -------------------------------------------------------------------------------------

    def replay(self, record: GroupRecord) -> None:
        match record:
            case OffsetCommitted():
                self.pending_offsets.replay_committed(record)
                self._replay_offset(record)
            case OffsetPending():
                self.pending_offsets.replay_pending(record)
            case TransactionEnded():
                ended = self.pending_offsets.end(record.producer_id, is_commit=record.is_commit)
                for offset in ended:
                    self._replay_offset(offset)
            case GroupWritten():
                if record.group is not None:
                    self._put_classic(record.group)
                elif not isinstance(self._groups.get(record.group_id), ConsumerGroup):
                    self._groups.pop(record.group_id, None)
            case ClassicGroupChanged():
                self._put_classic(record.group)
            case (
                ProgressWritten()
                | ProgressForgotten()
                | ProgressSettled()
                | AcksPending()
                | AcksForgotten()
                | AcksSettled()
            ):
                self._book.replay(record)
            case AcksParked() | AcksUnparked():
                self._parked_acks.replay(record)
            case cr.ImageChanged():
                self.image = record.image
                for group in self._groups.values():
                    if isinstance(group, ConsumerGroup):
                        group.replay_image(record.image)
            case _:
                self._replay_consumer(record)

    def _put_classic(self, group: ClassicGroup) -> None:
        self._drop_consumer_group(group.group_id)
        self._groups[group.group_id] = group

    def _drop_consumer_group(self, group_id: str) -> None:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer_members -= len(group.members)
            del self._groups[group_id]

    def _replay_consumer(self, record: cr.ConsumerGroupRecord) -> None:
        group = self._consumer_group(record)
        if group is None:
            return
        members = len(group.members)
        match record:
            case cr.CurrentWritten():
                group.replay_current(record.member_id, record.member)
            case cr.MemberWritten():
                group.replay_member(record.member_id, record.member)
            case cr.TargetWritten():
                group.replay_target(record.member_id, record.target)
            case cr.TargetEpochWritten():
                if record.epoch is not None:
                    group.replay_target_epoch(record.epoch, record.timestamp_ms)
            case cr.GroupEpochWritten():
                if record.epoch is None:
                    self._drop_consumer_group(record.group_id)
                    return
                group.replay_epoch(record.epoch, record.metadata_hash)
            case cr.RegexWritten():
                group.replay_regex(record.regex, record.resolved)
            case _:
                assert_never(record)
        self.consumer_members += len(group.members) - members

    def _consumer_group(self, record: cr.ConsumerGroupRecord) -> ConsumerGroup | None:
        """The group of a record; made by the first one that is not a tombstone."""
        group = self._groups.get(record.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if cr.is_tombstone(record):
            return None
        made = self._groups[record.group_id] = ConsumerGroup(record.group_id, self.image)
        return made

    def _replay_offset(self, record: OffsetCommitted) -> None:
        key = (record.topic, record.partition)
        if record.value is not None:
            self._offsets.setdefault(record.group_id, {})[key] = record.value
            return
        offsets = self._offsets.get(record.group_id)
        if offsets is not None:
            offsets.pop(key, None)
            if not offsets:
                del self._offsets[record.group_id]
