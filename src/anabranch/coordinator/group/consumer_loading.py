"""A consumer group that was read from the journal: the timers that a living one has."""

from anabranch.coordinator.group.consumer_draft import (
    ConsumerDraft,
    rebalance_timer,
    refresh_timer,
    target_timer,
)
from anabranch.coordinator.group.consumer_state import MemberState
from anabranch.coordinator.runtime.result import TimerChange


def group_loaded(draft: ConsumerDraft) -> tuple[TimerChange, ...]:
    """Every member gets a whole session to be heard from again."""
    group = draft.group
    for member in group.members.values():
        draft.restart_session(member)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            key = rebalance_timer(group.group_id, member.member_id)
            draft.set_timer(key, member.rebalance_timeout_ms)
    if group.members:
        # Topics may have come or gone, and a target may have been due, while nobody looked.
        draft.set_timer(refresh_timer(group.group_id), 0)
        if group.group_epoch > group.target_epoch:
            draft.set_timer(target_timer(group.group_id), 0)
    return draft.result().timers
