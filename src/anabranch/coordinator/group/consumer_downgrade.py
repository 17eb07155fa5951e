"""Consumer groups that become classic ones when only classic members are left (KIP-848).

Rules
- When the last member that speaks the consumer protocol is gone, the group goes on as a classic
  one, if `group.consumer.migration.policy` and `group.max.size` let it; else it stays a consumer
  group of classic members, until the next of them goes.
- The group epoch is the generation, the protocol is voted for, and what everybody holds is what it
  was assigned. Then the members rejoin, for what the others had is nobody's. (In Kafka it is what
  they should own; should the group be upgraded again before they rejoin, a partition that one of
  them has yet to give up would be given to another.)
- Where a classic member took the place of the last other one under its instance id, nothing is
  free, and there is no rebalance unless something was on its way. (In Kafka it is enough that the
  target is not stale, so that what a member has yet to release is assigned to another, or what one
  waits for never comes.)
- A group that has yet to rebalance is written without a leader, so that it does so after a restart
  too; in Kafka what the last member had would be nobody's until the next rebalance.
"""

import dataclasses

from anabranch.coordinator.group.classic_rebalance import prepare
from anabranch.coordinator.group.classic_state import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from anabranch.coordinator.group.consumer_draft import (
    ConsumerDraft,
    member_join_timer,
    member_sync_timer,
    rebalance_timer,
    refresh_timer,
    target_timer,
)
from anabranch.coordinator.group.consumer_records import (
    CurrentWritten,
    GroupEpochWritten,
    MemberWritten,
    RegexWritten,
    TargetEpochWritten,
    TargetWritten,
)
from anabranch.coordinator.group.consumer_state import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from anabranch.coordinator.group.draft import Draft, session_timer
from anabranch.coordinator.group.embedded import assignment_bytes
from anabranch.coordinator.group.records import GroupRecord
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result, TimerChange


def downgrade_if_alone(
    draft: ConsumerDraft, settings: GroupSettings, response: object = None
) -> Result:
    """The result of a decision after which members are gone."""
    if draft.member_count < len(draft.group.members) and may_downgrade(draft, settings):
        classic = classic_draft(draft)
        begin_rebalance(classic, settings)
        return with_tombstones(draft, classic.result(response))
    return draft.result(response)


def may_downgrade(draft: ConsumerDraft, settings: GroupSettings) -> bool:
    """Whether only classic members are left, and may be a group of their own."""
    return (
        0 < draft.member_count <= settings.max_size
        and draft.classic_count == draft.member_count
        and draft.settings.migration_policy.allows_downgrade
    )


def classic_draft(draft: ConsumerDraft) -> Draft:
    """The members of a consumer group as a classic group, Stable and not written yet."""
    group = draft.group
    members = {member.member_id: _member(member) for member in draft.members().values()}
    classic = Draft(ClassicGroup(group_id=group.group_id), draft.now_ms)
    classic.change(
        state=ClassicState.STABLE,
        generation_id=group.group_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        leader_id=next(iter(members)),
        state_timestamp_ms=draft.now_ms,
        members=members,
    )
    protocol = classic.group.select_protocol()
    image = draft.environment.image
    for member_id, member in draft.members().items():
        metadata = members[member_id].metadata(protocol)
        assignment = assignment_bytes(tuple(member.held), metadata, image)
        members[member_id] = members[member_id].with_(assignment=assignment)
    classic.change(protocol_name=protocol, members=members)
    _change_timers(draft, classic)
    return classic


def _member(member: ConsumerMember) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
    )


def _change_timers(draft: ConsumerDraft, classic: Draft) -> None:
    """Sessions start anew; of what a consumer group waits for, nothing is waited for any more."""
    group_id = draft.group_id
    for member in draft.group.members.values():
        member_id = member.member_id
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            classic.cancel(rebalance_timer(group_id, member_id))
        if member.classic is not None:
            classic.cancel(member_join_timer(group_id, member_id))
            classic.cancel(member_sync_timer(group_id, member_id))
        classic.cancel(session_timer(group_id, member_id))
    for one in classic.group.members.values():
        classic.restart_session(one)


def begin_rebalance(
    classic: Draft, settings: GroupSettings, joining: ClassicMember | None = None
) -> None:
    """Write the group as one that has yet to rebalance, and begin with it.

    `joining` is a member that is there already, and waits.
    """
    leader_id = classic.group.leader_id
    classic.change(leader_id=None)
    classic.write()
    classic.change(leader_id=leader_id)
    if joining is not None:
        classic.put_member(joining)
    prepare(classic, settings)


def with_tombstones(draft: ConsumerDraft, result: Result) -> Result:
    """Everything of the consumer group is forgotten, whatever the draft had in mind for it.

    But for transactions of members that are gone.
    """
    return dataclasses.replace(_instead(draft.group, result), tasks=draft.aborts)


def started_over(group: ConsumerGroup, result: Result) -> Result:
    """The result of a JoinGroup to a group that has no members any more, and starts over."""
    return _instead(group, result) if result.records else result


def _instead(group: ConsumerGroup, result: Result) -> Result:
    group_timers = (target_timer(group.group_id), refresh_timer(group.group_id))
    return Result(
        records=(*tombstones(group), *result.records),
        response=result.response,
        timers=(*(TimerChange(key, None) for key in group_timers), *result.timers),
        wakes=result.wakes,
    )


def tombstones(group: ConsumerGroup) -> tuple[GroupRecord, ...]:
    """Everything that is known of a consumer group, forgotten."""
    group_id = group.group_id
    records: list[GroupRecord] = []
    for member_id in group.members:
        records.append(CurrentWritten(group_id=group_id, member_id=member_id, member=None))
    for member_id in dict.fromkeys((*group.members, *group.targets)):
        records.append(TargetWritten(group_id=group_id, member_id=member_id, target=None))
    records.append(TargetEpochWritten(group_id=group_id, epoch=None))
    for member_id in group.members:
        records.append(MemberWritten(group_id=group_id, member_id=member_id, member=None))
    for regex in group.regexes:
        records.append(RegexWritten(group_id=group_id, regex=regex, resolved=None))
    records.append(GroupEpochWritten(group_id=group_id, epoch=None))
    return tuple(records)
