"""Consumer groups that become classic ones when only classic members are left (KIP-848)."""

from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.consumer_records import (
    CurrentWritten,
    GroupEpochWritten,
    MemberWritten,
    RegexWritten,
    TargetEpochWritten,
    TargetWritten,
)
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.records import GroupRecord
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result


def downgrade_if_alone(
    draft: ConsumerDraft, settings: GroupSettings, response: object = None
) -> Result:
    """The result of a decision after which members are gone."""
    return draft.result(response)


def tombstones(group: ConsumerGroup) -> tuple[GroupRecord, ...]:
    """Everything that is known of a consumer group, forgotten."""
    group_id = group.group_id
    records: list[GroupRecord] = []
    for member_id in group.members:
        records.append(CurrentWritten(group_id=group_id, member_id=member_id, member=None))
    for member_id in group.targets:
        records.append(TargetWritten(group_id=group_id, member_id=member_id, target=None))
    records.append(TargetEpochWritten(group_id=group_id, epoch=None))
    for member_id in group.members:
        records.append(MemberWritten(group_id=group_id, member_id=member_id, member=None))
    for regex in group.regexes:
        records.append(RegexWritten(group_id=group_id, regex=regex, resolved=None))
    records.append(GroupEpochWritten(group_id=group_id, epoch=None))
    return tuple(records)
