"""One shard: the groups and offsets of one partition of the journal.

Rules
- `decide` looks and changes nothing; `replay` changes and decides nothing.
- The durable records alone, replayed in order into an empty shard, give the same groups and offsets
  as the living shard has, but for what only the living process can know (see `classic_state`).
"""

from collections.abc import Mapping
from typing import assert_never

from anabranch.coordinator.group import commands as c
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
from anabranch.coordinator.group.draft import Draft
from anabranch.coordinator.group.offsets import (
    commit_offsets,
    delete_group,
    delete_offsets,
    delete_topic_offsets,
    expire_offsets,
)
from anabranch.coordinator.group.records import (
    ClassicGroupChanged,
    GroupRecord,
    GroupWritten,
    OffsetCommitted,
)
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey

_NO_OFFSETS: dict[tuple[str, int], CommittedOffset] = {}


class GroupShard:
    """The state of one shard."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}

    # Looking --------------------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, ClassicGroup]:
        return self._groups

    def group(self, group_id: str) -> ClassicGroup | None:
        """A group, also one that has never had a member and only holds offsets."""
        group = self._groups.get(group_id)
        if group is None and group_id in self._offsets:
            return ClassicGroup(group_id=group_id)
        return group

    def offsets(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        return self._offsets.get(group_id, _NO_OFFSETS)

    def group_ids(self) -> list[str]:
        return sorted(self._groups.keys() | self._offsets.keys())

    # Deciding -------------------------------------------------------------------------------------

    def decide(self, command: Command, now_ms: int) -> Result:
        match command:
            case c.JoinGroup():
                # A group that only holds offsets becomes known with its first member.
                group = self._groups.get(command.group_id)
                return join_group(group, command, self.settings, now_ms)
            case c.SyncGroup():
                return sync_group(self.group(command.group_id), command, now_ms)
            case c.Heartbeat():
                return heartbeat(self.group(command.group_id), command, now_ms)
            case c.LeaveGroup():
                return leave_group(self.group(command.group_id), command, self.settings, now_ms)
            case c.CommitOffsets():
                group = self.group(command.group_id)
                return commit_offsets(group, command, self.settings, now_ms)
            case c.DeleteOffsets():
                group_id = command.group_id
                return delete_offsets(self.group(group_id), self.offsets(group_id), command)
            case c.DeleteGroup():
                group_id = command.group_id
                return delete_group(self.group(group_id), self.offsets(group_id))
            case c.DeleteTopicOffsets():
                return delete_topic_offsets(self._offsets, command.topic)
            case c.ExpireOffsets():
                return self._expire(now_ms)
            case c.TimerFired():
                return self._timer_fired(command.key, now_ms)
            case c.Loaded():
                return self._loaded(now_ms)
            case _:
                assert_never(command)

    def _expire(self, now_ms: int) -> Result:
        records: list[GroupRecord] = []
        for group_id in self.group_ids():
            group = self.group(group_id)
            assert group is not None
            records += expire_offsets(group, self.offsets(group_id), self.settings, now_ms)
        return Result(records=tuple(records))

    def _timer_fired(self, key: TimerKey, now_ms: int) -> Result:
        assert isinstance(key, tuple)
        kind, group_id, *rest = key
        group = self._groups.get(group_id)
        if group is None:
            return Result()
        draft = Draft(group, now_ms)
        if kind == "join":
            join_time_is_up(draft, self.settings)
        elif kind == "sync":
            sync_time_is_up(draft, self.settings)
        else:
            session_is_over(draft, rest[0], self.settings)
        return draft.result()

    def _loaded(self, now_ms: int) -> Result:
        """Every member gets a whole session to be heard from again, as after a long pause."""
        records: list[GroupRecord] = []
        timers: list[TimerChange] = []
        for group in self._groups.values():
            draft = Draft(group, now_ms)
            for member in group.members.values():
                draft.restart_session(member)
            if len(group.members) > self.settings.max_size:
                # The limit was lowered: the first to rejoin are those that stay.
                prepare(draft, self.settings)
            result = draft.result()
            records += result.records
            timers += result.timers
        return Result(records=tuple(records), timers=tuple(timers))

    # Changing -------------------------------------------------------------------------------------

    def replay(self, record: GroupRecord) -> None:
        match record:
            case OffsetCommitted():
                self._replay_offset(record)
            case GroupWritten():
                if record.group is None:
                    self._groups.pop(record.group_id, None)
                else:
                    self._groups[record.group_id] = record.group
            case ClassicGroupChanged():
                self._groups[record.group.group_id] = record.group
            case _:
                assert_never(record)

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
