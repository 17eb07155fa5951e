"""How a member goes: by its own will, for a while, or because it was not heard from.

Rules
- Whoever leaves (-1), is silent for a session, or does not give up in time what it was told to, is
  forgotten; the group epoch grows, and the others get what it had as soon as they speak.
- A static member that leaves for a while (-2) keeps its place and its partitions until its session
  ends; it comes back under the same instance id.
- Whoever goes, for whatever reason, has the transactions aborted in which it acknowledged records:
  nobody else could have those before they end. Who gives up a range and stays ends them itself.
"""

from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_commands import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
)
from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.consumer_regex import drop_unused_regex
from anabranch.coordinator.group.consumer_state import (
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
)
from anabranch.coordinator.group.consumer_target import settle_target
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode, KafkaError


def leave(draft: ConsumerDraft, command: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
    """The member goes for good."""
    member = _leaving(draft, command)
    forget(draft, [member], Cause.LEAVE)
    return ConsumerHeartbeatAnswer(member_id=member.member_id, member_epoch=LEAVING_EPOCH)


def leave_for_a_while(draft: ConsumerDraft, command: ConsumerHeartbeat) -> Result:
    """The static member goes and will be back; nobody gets its partitions meanwhile."""
    member = _leaving(draft, command)
    draft.abort_transactions(member.member_id)
    draft.write_current(
        member.with_(
            member_epoch=STATIC_LEAVING_EPOCH,
            # No grace for a heartbeat that was overtaken by this one: it would make the member
            # look alive, and its next self would be refused.
            previous_member_epoch=STATIC_LEAVING_EPOCH,
            state=MemberState.STABLE,
            # A commit of any epoch was before this, and none can come after (KIP-1251).
            assigned=dict.fromkeys(member.assigned, 0),
            pending_revocation={},
        )
    )
    return draft.result(
        ConsumerHeartbeatAnswer(member_id=member.member_id, member_epoch=STATIC_LEAVING_EPOCH)
    )


def _leaving(draft: ConsumerDraft, command: ConsumerHeartbeat) -> ConsumerMember:
    instance_id, member_id = command.instance_id, command.member_id
    if instance_id is None:
        member = draft.member(member_id)
        who = f"Member {member_id}"
    else:
        member = draft.holder_of(instance_id)
        who = f"Instance id {instance_id}"
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"{who} is not a member of group {draft.group_id}."
        )
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Member {member_id} was fenced in group {draft.group_id}: member {member.member_id} "
            f"has the instance id {instance_id} now.",
        )
    return member


def forget(draft: ConsumerDraft, members: list[ConsumerMember], cause: Cause) -> None:
    """Members are gone: what they had is free, and the others are to share it."""
    for member in members:
        draft.remove(member)
    for regex in dict.fromkeys(member.subscribed_topic_regex for member in members):
        drop_unused_regex(draft, regex)
    settle_target(draft, [cause])


def session_is_over(draft: ConsumerDraft, member_id: str) -> None:
    """A member was not heard from."""
    member = draft.member(member_id)
    if member is not None:
        forget(draft, [member], Cause.SESSION_EXPIRED)


def rebalance_time_is_up(draft: ConsumerDraft, member_id: str) -> None:
    """A member did not give up in time what it was told to."""
    member = draft.member(member_id)
    if member is not None and member.state is MemberState.UNREVOKED_PARTITIONS:
        forget(draft, [member], Cause.REBALANCE_TIMEOUT)
