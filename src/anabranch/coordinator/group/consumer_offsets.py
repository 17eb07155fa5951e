"""Who may commit and fetch the offsets of a consumer group (KIP-848, KIP-1251).

Rules
- A commit carries the member's epoch. An older epoch is good for every partition that the member
  has held since then without a break: each unit knows the epoch it was assigned at. So a commit is
  never refused because the group has moved on, only because the partition has.
- A fetch of offsets carries the member's epoch too. Kafka refuses any but the present one, so that
  members that start together stumble over each other's epochs; here the one before is good as well,
  since what it may read is the same.
- Nobody in particular may commit while the group has no members.
- A member that speaks the classic protocol knows epochs as generations, and is told so.
"""

from anabranch.coordinator.group.commands import CommitOffsets
from anabranch.coordinator.group.consumer_state import ConsumerGroup, ConsumerMember
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit


def check_commit(group: ConsumerGroup, command: CommitOffsets) -> ErrorCode:
    """Whether the whole commit is accepted; one partition that is not takes the others with it."""
    epoch = command.generation_id
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(command.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and not command.knows_group_id_not_found:
        # Versions before 9 know no member epochs.
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.member_epoch:
        return ErrorCode.NONE
    if epoch > member.member_epoch or epoch < 0:
        return _stale(member)
    for asked in command.offsets:
        unit = Unit(asked.topic_id, asked.partition)
        since = member.assigned.get(unit, member.pending_revocation.get(unit))
        if since is None or since > epoch:
            return _stale(member)
    return ErrorCode.NONE


def check_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
    """Whether a member may ask how far its group has read."""
    if not member_id and member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member_epoch in (member.member_epoch, member.previous_member_epoch):
        return ErrorCode.NONE
    return _stale(member)


def _stale(member: ConsumerMember) -> ErrorCode:
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH
