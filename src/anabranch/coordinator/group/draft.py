"""A decision in the making: the group as it would be, and what follows from it.

A draft lives inside one `decide` call. Protocol functions replace its group by new values and note
records, timers and wakes; `result` turns it into the `Result`. The shard's state is not touched.
"""

from typing import Any

from anabranch.coordinator.group.classic_state import (
    ClassicGroup,
    ClassicMember,
    without_soft_state,
)
from anabranch.coordinator.group.records import ClassicGroupChanged, GroupWritten
from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey, WaiterId, Wake


def join_timer(group_id: str) -> TimerKey:
    """The end of the wait for members to rejoin."""
    return ("join", group_id)


def sync_timer(group_id: str) -> TimerKey:
    """The end of the wait for members to ask for their assignment."""
    return ("sync", group_id)


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """The end of a member that is not heard from."""
    return ("session", group_id, member_id)


class Draft:
    """The group after the decision, and the effects so far."""

    def __init__(self, group: ClassicGroup, now_ms: int) -> None:
        self.group = group
        self.now_ms = now_ms
        self._before = group
        self._durable: list[Any] = []
        self._timers: dict[TimerKey, TimerChange] = {}
        self._wakes: list[Wake] = []

    # Changing the group -------------------------------------------------------------------------

    def change(self, **changes: object) -> None:
        self.group = self.group.with_(**changes)

    def put_member(self, member: ClassicMember) -> None:
        self.change(members={**self.group.members, member.member_id: member})

    def drop_member(self, member_id: str) -> None:
        """Remove a member; another one, if there is any, leads in its place."""
        members = dict(self.group.members)
        del members[member_id]
        leader_id = self.group.leader_id
        if leader_id == member_id:
            leader_id = next(iter(members), None)
        self.change(members=members, leader_id=leader_id)
        self.no_longer_awaits_sync(member_id)
        self.cancel(session_timer(self.group.group_id, member_id))

    def no_longer_awaits_sync(self, member_id: str) -> None:
        """One member less whose SyncGroup is awaited; the last one stops the clock."""
        if member_id not in self.group.pending_syncs:
            return
        self.change(pending_syncs=self.group.pending_syncs - {member_id})
        if not self.group.pending_syncs:
            self.cancel(sync_timer(self.group.group_id))

    def drop_pending(self, member_id: str) -> None:
        """Forget an id that was handed out and has not been joined with."""
        self.change(pending_members=self.group.pending_members - {member_id})
        self.cancel(session_timer(self.group.group_id, member_id))

    # Effects --------------------------------------------------------------------------------------

    def write(self) -> None:
        """Make the group as it is now durable."""
        durable = without_soft_state(self.group)
        self._durable.append(GroupWritten(group_id=self.group.group_id, group=durable))

    def set_timer(self, key: TimerKey, delay_ms: int) -> None:
        self._timers[key] = TimerChange(key, self.now_ms + delay_ms)

    def cancel(self, key: TimerKey) -> None:
        self._timers[key] = TimerChange(key, None)

    def restart_session(self, member: ClassicMember) -> None:
        """The member was heard from, or was just let speak again: its time starts anew."""
        self.set_timer(
            session_timer(self.group.group_id, member.member_id), member.session_timeout_ms
        )

    def wake(self, waiter: WaiterId | None, response: Any) -> None:
        if waiter is not None:
            self._wakes.append(Wake(waiter, response))

    def result(self, response: Any = None) -> Result:
        soft = () if self.group is self._before else (ClassicGroupChanged(group=self.group),)
        return Result(
            records=(*self._durable, *soft),
            response=response,
            timers=tuple(self._timers.values()),
            wakes=tuple(self._wakes),
        )
