"""The rebalance itself: the join barrier and the way to a new generation.

Rules
- A rebalance begins with `prepare` and completes when every member has rejoined and nobody is
  pending, or when its timer fires; then those that did not rejoin are removed, except static ones.
- The first rebalance of an empty group waits `group.initial.rebalance.delay.ms`, and as long again
  whenever somebody new came meanwhile, up to the longest rebalance timeout.
- Completing begins a generation: every waiting JoinGroup is answered, and only the leader is told
  who the members are. Members that do not ask for their assignment in time are removed.
- Whoever waits here is answered exactly once: also those who are removed, replaced or superseded by
  a later request of their own (Kafka forgets some of them and leaves the client to its timeout).
"""

from anabranch.coordinator.group.classic_state import ClassicMember, ClassicState
from anabranch.coordinator.group.commands import JoinAnswer, JoinedMember, SyncAnswer
from anabranch.coordinator.group.draft import Draft, join_timer, sync_timer
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.model.errors import ErrorCode

# A wait in which nobody can be answered is not cut into slices shorter than this, whatever timeout
# the members ask for: with 0 the timer would fire without end.
_MIN_FURTHER_WAIT_MS = 1_000


def rebalance_or_complete(draft: Draft, settings: GroupSettings) -> None:
    """Membership changed: begin a rebalance, or see whether the one under way is complete."""
    if draft.group.state is ClassicState.PREPARING_REBALANCE:
        complete_if_all_joined(draft)
    else:
        prepare(draft, settings)


def prepare(draft: Draft, settings: GroupSettings) -> None:
    """Enter PreparingRebalance."""
    group = draft.group
    if group.state is ClassicState.COMPLETING_REBALANCE:
        fail_waiting_syncs(draft, ErrorCode.REBALANCE_IN_PROGRESS)
    if group.pending_syncs:
        draft.cancel(sync_timer(group.group_id))
    is_initial = group.state is ClassicState.EMPTY
    draft.change(
        state=ClassicState.PREPARING_REBALANCE,
        pending_syncs=frozenset(),
        is_initial=is_initial,
        has_new_member=False,
    )
    if is_initial:
        delay_ms = settings.initial_rebalance_delay_ms
        left_ms = max(draft.group.rebalance_timeout_ms - delay_ms, 0)
        draft.change(join_delay_left_ms=left_ms)
        draft.set_timer(join_timer(group.group_id), delay_ms)
    elif draft.group.has_all_joined:
        complete(draft)
    else:
        draft.set_timer(join_timer(group.group_id), draft.group.rebalance_timeout_ms)


def complete_if_all_joined(draft: Draft) -> None:
    """Complete the join phase early; the initial delay is always waited out."""
    group = draft.group
    if (
        group.state is ClassicState.PREPARING_REBALANCE
        and not group.is_initial
        and group.has_all_joined
    ):
        complete(draft)


def join_time_is_up(draft: Draft, settings: GroupSettings) -> None:
    """The join timer fired: extend the initial delay if newcomers call for it, else complete."""
    group = draft.group
    if group.state is not ClassicState.PREPARING_REBALANCE:
        return
    if group.has_new_member and group.join_delay_left_ms > 0:
        delay_ms = min(settings.initial_rebalance_delay_ms, group.join_delay_left_ms)
        left_ms = group.join_delay_left_ms - delay_ms
        draft.change(has_new_member=False, join_delay_left_ms=left_ms)
        draft.set_timer(join_timer(group.group_id), delay_ms)
        return
    complete(draft)


def complete(draft: Draft) -> None:
    """End the join phase and begin the next generation with those that are there."""
    draft.cancel(join_timer(draft.group.group_id))
    for member in list(draft.group.members.values()):
        if member.join_waiter is None and member.group_instance_id is None:
            draft.drop_member(member.member_id)
    if draft.group.members and not _elect_joined_leader(draft):
        # Only static members are left and none has rejoined: go on waiting until one does or
        # their sessions are over.
        delay_ms = max(draft.group.rebalance_timeout_ms, _MIN_FURTHER_WAIT_MS)
        draft.set_timer(join_timer(draft.group.group_id), delay_ms)
        return
    _begin_generation(draft)


def _elect_joined_leader(draft: Draft) -> bool:
    """See to it that the leader is one that rejoined; False when nobody has."""
    members = draft.group.members.values()
    joined = [member.member_id for member in members if member.join_waiter is not None]
    if joined and draft.group.leader_id not in joined:
        draft.change(leader_id=joined[0])
    return bool(joined)


def _begin_generation(draft: Draft) -> None:
    group = draft.group
    generation_id = group.generation_id + 1
    if not group.members:
        draft.change(
            generation_id=generation_id,
            state=ClassicState.EMPTY,
            state_timestamp_ms=draft.now_ms,
            protocol_name=None,
            is_initial=False,
        )
        draft.write()
        return
    draft.change(
        generation_id=generation_id,
        state=ClassicState.COMPLETING_REBALANCE,
        protocol_name=group.select_protocol(),
        is_initial=False,
        pending_syncs=frozenset(group.members),
    )
    _answer_joins(draft)
    draft.set_timer(sync_timer(group.group_id), draft.group.rebalance_timeout_ms)


def _answer_joins(draft: Draft) -> None:
    members = {}
    leader = draft.group.members[draft.group.leader_id or ""]
    for member in draft.group.members.values():
        if member is not leader:
            draft.wake(member.join_waiter, join_answer(draft, member))
        draft.restart_session(member)
        members[member.member_id] = member.with_(join_waiter=None, is_new=False)
    # Last, so that the others ask for their assignment before it is there, and get it together:
    # in a cooperative group the first to give something up begins the next rebalance, and whoever
    # has not heard by then what to give up has to be told in yet another one.
    draft.wake(leader.join_waiter, join_answer(draft, leader))
    draft.change(members=members)


def join_answer(draft: Draft, member: ClassicMember) -> JoinAnswer:
    """What a member is told of the generation; the leader alone hears of the others."""
    group = draft.group
    is_leader = group.leader_id == member.member_id
    return JoinAnswer(
        member_id=member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id or "",
        members=joined_members(draft) if is_leader else (),
    )


def joined_members(draft: Draft) -> tuple[JoinedMember, ...]:
    group = draft.group
    return tuple(
        JoinedMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    )


def fail_waiting_syncs(draft: Draft, error: ErrorCode) -> None:
    """The generation will get no assignment: tell those who wait for theirs."""
    members = {}
    for member in draft.group.members.values():
        if member.sync_waiter is not None:
            draft.wake(member.sync_waiter, SyncAnswer(error=error))
            draft.restart_session(member)
        members[member.member_id] = member.with_(sync_waiter=None, assignment=b"")
    draft.change(members=members)


def remove_member(draft: Draft, member_id: str) -> None:
    """Take a member out of the group, refusing what it waits for; whoever calls rebalances."""
    member = draft.group.members[member_id]
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    draft.wake(member.join_waiter, JoinAnswer(error=unknown, member_id=""))
    draft.wake(member.sync_waiter, SyncAnswer(error=unknown))
    draft.drop_member(member_id)


def sync_time_is_up(draft: Draft, settings: GroupSettings) -> None:
    """Members of this generation that never asked for their assignment are gone."""
    if not draft.group.pending_syncs:
        return
    for member_id in sorted(draft.group.pending_syncs):
        remove_member(draft, member_id)
    prepare(draft, settings)


def session_is_over(draft: Draft, member_id: str, settings: GroupSettings) -> None:
    """A member was not heard from for its session timeout."""
    group = draft.group
    if member_id in group.pending_members:
        draft.drop_pending(member_id)
        complete_if_all_joined(draft)
        return
    member = group.members.get(member_id)
    if member is None:
        return
    if member.is_waiting and not member.is_new:
        # It cannot send heartbeats while its request is parked here; its answer restarts its time.
        return
    remove_member(draft, member_id)
    rebalance_or_complete(draft, settings)
