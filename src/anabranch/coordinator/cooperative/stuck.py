"""A record that a member was shown and does not finish: who has it, and that this is a failure too.

Rules
- A record that is done, or rests after a failure, is with nobody: it cannot be stuck. Nor is one
  that is acknowledged in a transaction: its owner is through with it.
- Who is about to give its slot back is on the way to being rid of it, whatever it does.
- Being stuck counts as an attempt that failed, whoever is to try next. Nobody in particular says
  so, hence nobody is fenced: whoever finishes the record after all has finished it.
"""

from typing import NamedTuple

from anabranch.coordinator.cooperative.book import GroupProgress, ProgressDraft
from anabranch.coordinator.cooperative.commands import CountStuck, Failure
from anabranch.coordinator.cooperative.pending_acks import PendingAcks
from anabranch.coordinator.cooperative.progress import PartitionProgress, with_attempt
from anabranch.coordinator.cooperative.records import FailedAttempt, ProgressDelta
from anabranch.coordinator.cooperative.retries import attempt_after
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.runtime.result import Result
from anabranch.model.units import SlotRange, slot_of_hash


def count_stuck(
    known: GroupProgress,
    command: CountStuck,
    settings: CooperativeSettings,
    now_ms: int,
    pending: PendingAcks,
) -> Result:
    draft = ProgressDraft(command.group_id, known)
    place = (command.topic_id, command.partition)
    tracked = draft.get(place)
    if tracked is None:
        return Result()
    progress, offset = tracked.progress, command.offset
    slot = slot_of_hash(command.key_hash)
    if progress.is_done(slot, offset):
        return Result()
    if pending.has_record(command.group_id, place, slot, offset):
        return Result()
    if is_resting(progress, offset, now_ms):
        return Result()
    before = progress.attempts.get(offset)
    if before is None and len(progress.attempts) >= settings.max_ranges:
        return Result()
    failure = Failure(offset, command.key_hash, 0, command.reason)
    attempt = attempt_after(progress, failure, settings, now_ms)
    assert attempt is not None, "it is not said of a record that was left out"
    delta = ProgressDelta(
        leader_epoch=progress.leader_epoch, failed=(FailedAttempt(offset, attempt),)
    )
    draft.add(place, delta, with_attempt(progress, offset, attempt))
    return Result(records=tuple(draft.records))


def is_resting(progress: PartitionProgress, offset: int, now_ms: int) -> bool:
    """Whether nobody is to work on a record now, or ever again by itself."""
    attempt = progress.attempts.get(offset)
    return attempt is not None and now_ms < attempt.not_before_ms


class Holder(NamedTuple):
    """Who has a slot, with which others and since which epoch."""

    member_id: str
    slots: SlotRange
    epoch: int
    is_leaving: bool


def holder_of(group: ConsumerGroup, topic_id: bytes, partition: int, slot: int) -> Holder | None:
    """The member that has a slot of a partition, if one has."""
    for member in group.members.values():
        for units in (member.assigned, member.pending_revocation):
            for unit, epoch in units.items():
                if unit[:2] == (topic_id, partition) and slot in range(*unit.slots):
                    stays = units is member.assigned and unit in group.target(member.member_id)
                    return Holder(member.member_id, unit.slots, epoch, not stays)
    return None
