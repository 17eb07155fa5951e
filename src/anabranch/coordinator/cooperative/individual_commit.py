"""Individual commits: what members acknowledge record by record, and what follows for the group.

Rules
- Whatever can be taken is taken, and everything is answered for itself (see `acks`).
- Nothing is taken of a partition while offsets of the group for it are pending in a transaction:
  the stable offset would be a later commit than they are, and have them forgotten. (Nor are such
  offsets taken while acknowledgements are pending, see `txn_offsets`.)
- Nobody in particular may acknowledge while the group has no members, as with plain commits; it
  counts as the owner of everything.
- What a group keeps of a partition is limited (see `window`).
- The stable offset is the group's committed offset. It is written after what it follows from: what
  a crash leaves is at worst a committed offset that is behind.
"""

import dataclasses
from collections.abc import Collection

from anabranch.coordinator.cooperative.acks import (
    Ack,
    AckOutcome,
    Holdings,
    LogFacts,
    is_elsewhere,
    judge,
    pending_elsewhere,
    take_acks,
)
from anabranch.coordinator.cooperative.book import (
    GroupProgress,
    ProgressDraft,
    expired,
    with_acked,
)
from anabranch.coordinator.cooperative.commands import (
    NO_OFFSET,
    AcksAnswer,
    Failure,
    FailureOutcome,
    PartitionAcks,
    PartitionAnswer,
    TakeAcks,
)
from anabranch.coordinator.cooperative.holdings import EVERYTHING, holdings_of
from anabranch.coordinator.cooperative.pending_acks import Pending, PendingAcks
from anabranch.coordinator.cooperative.progress import (
    PartitionProgress,
    new_progress,
)
from anabranch.coordinator.cooperative.records import AckedRange, FailedAttempt, ProgressDelta
from anabranch.coordinator.cooperative.retries import attempt_after
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.cooperative.window import is_over, limited
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicState
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.offsets import Group, Offsets, committed_offset
from anabranch.coordinator.group.records import OffsetCommitted
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import EMPTY, OffsetRanges
from anabranch.model.units import ALL_SLOTS, SlotRange

# A committed offset that does not move is written again after so long, for it must not expire
# while somebody works on what follows it.
_REFRESH_MS = 3_600_000


def take_individual_commits(
    group: Group | None,
    offsets: Offsets,
    known: GroupProgress,
    command: TakeAcks,
    settings: CooperativeSettings,
    now_ms: int,
    pending: PendingAcks,
    blocked: Collection[tuple[str, int]] = (),
    broker_bytes: int = 0,
) -> Result:
    """Take what a member did; `broker_bytes` is what all groups of the broker keep, about.

    `blocked` are the partitions with offsets that are pending in transactions.
    """
    error = check_sender(group, command)
    if error is not ErrorCode.NONE:
        return Result(response=AcksAnswer(error=error))
    draft = ProgressDraft(command.group_id, known)
    projected: dict[tuple[str, int], CommittedOffset] = {}
    answers = []
    for asked in command.partitions:
        place, name = (asked.topic_id, asked.partition), (asked.topic, asked.partition)
        committed = projected.get(name) or committed_offset(
            offsets, asked.topic, asked.topic_id, asked.partition
        )
        before = draft.get(place)
        taking = Taking(
            asked,
            holdings_in(group, command, asked),
            settings,
            now_ms,
            broker_bytes,
            tuple(pending.of_place(command.group_id, place).values()),
        )
        if name in blocked:
            answers.append(blocked_answer(taking, before.progress if before is not None else None))
            continue
        answers.append(_take_partition(taking, draft, command.member_epoch, committed))
        after = draft.get(place)
        if after is None:
            continue
        is_due = is_behind(after.progress, committed)
        if is_due or (after is not before and is_old(committed, now_ms)):
            projected[name] = projection(after.progress, asked.topic_id, now_ms)
    committed_records = (
        OffsetCommitted(group_id=command.group_id, topic=topic, partition=partition, value=value)
        for (topic, partition), value in projected.items()
    )
    return Result(
        records=(*draft.records, *committed_records),
        response=AcksAnswer(partitions=tuple(answers)),
    )


# Who acknowledges -------------------------------------------------------------------------------


def check_sender(group: Group | None, command: TakeAcks) -> ErrorCode:
    is_anonymous = command.member_epoch < 0
    if group is None:
        return ErrorCode.NONE if is_anonymous else ErrorCode.GROUP_ID_NOT_FOUND
    if isinstance(group, ClassicGroup):
        if is_anonymous and group.state is ClassicState.EMPTY:
            return ErrorCode.NONE
        if command.member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        # What classic members own is between them and their leader: nothing here could be fenced.
        return ErrorCode.INVALID_REQUEST
    if is_anonymous and not group.members:
        return ErrorCode.NONE
    member = group.members.get(command.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if is_anonymous or command.member_epoch > member.member_epoch:
        return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE


def holdings_in(group: Group | None, command: TakeAcks, asked: PartitionAcks) -> Holdings:
    """What the sender holds of a partition."""
    if not isinstance(group, ConsumerGroup) or not group.members:
        return EVERYTHING
    member = group.members[command.member_id]
    return holdings_of(member, asked.topic_id, asked.partition)


# What is taken ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Taking:
    """What one partition's acknowledgements are judged by.

    `pending` is what others have acknowledged in transactions that are open.
    """

    asked: PartitionAcks
    holdings: Holdings
    settings: CooperativeSettings
    now_ms: int
    broker_bytes: int
    pending: tuple[Pending, ...] = ()

    @property
    def facts(self) -> LogFacts:
        return self.asked.facts

    @property
    def elsewhere(self) -> list[AckedRange]:
        return [acked for one in self.pending for acked in one.acked]

    @property
    def pending_ranges(self) -> int:
        return sum(one.ranges_count for one in self.pending)


def blocked_answer(taking: Taking, progress: PartitionProgress | None) -> PartitionAnswer:
    """What is said where an offset of the partition is pending: that it has to end first."""
    outcomes = [
        pending_elsewhere(one.slots) if one.error_code is ErrorCode.NONE else one
        for ack in taking.asked.acks
        for one in judge(ack, taking.holdings, taking.facts)
    ]
    refused = pending_elsewhere(ALL_SLOTS)
    failures = [
        FailureOutcome(failure=one, error_code=refused.error_code, sub_code=refused.sub_code)
        for one in taking.asked.failures
    ]
    return PartitionAnswer(
        stable_offset=NO_OFFSET if progress is None else progress.stable_offset,
        outcomes=tuple(outcomes),
        failures=tuple(failures),
    )


def begun_progress(committed: CommittedOffset | None, facts: LogFacts) -> PartitionProgress:
    """The progress on a partition that nobody has spoken of.

    Its slots begin where their first owner does, as partitions do. A committed offset may be beyond
    the end of the log; what comes there is nobody's yet.
    """
    offset = committed.offset if committed is not None else NO_OFFSET
    return new_progress(min(offset, facts.log_end_offset))


def _take_partition(
    taking: Taking, draft: ProgressDraft, member_epoch: int, committed: CommittedOffset | None
) -> PartitionAnswer:
    asked = taking.asked
    place = (asked.topic_id, asked.partition)
    known = draft.get(place)
    before = known.progress if known is not None else begun_progress(committed, asked.facts)
    acked = expired(before, asked.facts.log_start_offset)
    progress = with_acked(before, acked)
    outcomes: list[AckOutcome] = []
    for ack in asked.acks:
        progress, parts = _take_ack(taking, progress, ack, outcomes)
        acked += parts
    failed: list[FailedAttempt] = []
    failures = []
    if asked.failures:
        # A member may report thousands at once: one copy is written into, and not one each made.
        attempts = dict(progress.attempts)
        progress = dataclasses.replace(progress, attempts=attempts)
    for failure in asked.failures:
        outcome = _take_failure(taking, progress, failure, member_epoch)
        failures.append(outcome)
        attempt = outcome.attempt
        if attempt is not None and attempt != attempts.get(failure.offset):
            attempts[failure.offset] = attempt
            failed.append(FailedAttempt(failure.offset, attempt))
    # The first word counts whatever it says, if it was taken; after that only what is news.
    is_news = _is_any_taken(outcomes, failures) if known is None else progress != before
    if is_news:
        epoch = max(before.leader_epoch, asked.leader_epoch)
        progress = dataclasses.replace(progress, leader_epoch=epoch)
        if known is None:
            draft.begin(place, progress)
        else:
            delta = ProgressDelta(leader_epoch=epoch, acked=tuple(acked), failed=tuple(failed))
            draft.add(place, delta, progress)
    return PartitionAnswer(
        stable_offset=progress.stable_offset,
        outcomes=tuple(outcomes),
        failures=tuple(failures),
    )


def _is_any_taken(outcomes: list[AckOutcome], failures: list[FailureOutcome]) -> bool:
    """Whether anything was said that counts, be it that nothing is done yet."""
    return any(one.error_code is ErrorCode.NONE for one in outcomes) or any(
        one.error_code is ErrorCode.NONE for one in failures
    )


def _take_ack(
    taking: Taking, progress: PartitionProgress, ack: Ack, outcomes: list[AckOutcome]
) -> tuple[PartitionProgress, list[AckedRange]]:
    """The progress after one acknowledgement, and the parts of it that were taken."""
    elsewhere = taking.elsewhere
    after, judged = take_acks(progress, [ack], taking.holdings, taking.facts, elsewhere)
    is_beyond = is_over(
        progress, after, taking.settings, taking.broker_bytes, taking.pending_ranges
    )
    if is_beyond:
        ack = dataclasses.replace(ack, done=EMPTY)
        after, judged = take_acks(progress, [ack], taking.holdings, taking.facts, elsewhere)
    taken = [one.slots for one in judged if one.error_code is ErrorCode.NONE]
    for one in judged:
        if is_beyond and one.error_code is ErrorCode.NONE:
            one = limited(one.slots)
        outcomes.append(one)
    if after == progress:
        return progress, []
    return after, [AckedRange(slots, ack.watermark, ack.done) for slots in taken]


def _take_failure(
    taking: Taking, progress: PartitionProgress, failure: Failure, member_epoch: int
) -> FailureOutcome:
    """What becomes of a failure; it is fenced as if the record were acknowledged."""
    offset, slot = failure.offset, failure.slot
    pretended = Ack(SlotRange(slot, slot + 1), member_epoch, done=OffsetRanges([(offset, offset)]))
    (judged,) = judge(pretended, taking.holdings, taking.facts)
    if judged.error_code is not ErrorCode.NONE:
        return FailureOutcome(failure=failure, error_code=judged.error_code)
    if progress.is_done(slot, offset):
        return FailureOutcome(failure=failure)
    said = AckedRange(judged.slots, NO_OFFSET, pretended.done)
    if is_elsewhere(progress, said, taking.elsewhere):
        refused = pending_elsewhere(judged.slots)
        return FailureOutcome(
            failure=failure, error_code=refused.error_code, sub_code=refused.sub_code
        )
    known = progress.attempts.get(offset)
    if known is not None and known.key_hash != failure.key_hash:
        # An offset is one record, which has one key.
        return FailureOutcome(failure=failure, error_code=ErrorCode.INVALID_REQUEST)
    if known is None and len(progress.attempts) >= taking.settings.max_ranges:
        refused = limited(judged.slots)
        return FailureOutcome(
            failure=failure, error_code=refused.error_code, sub_code=refused.sub_code
        )
    attempt = attempt_after(progress, failure, taking.settings, taking.now_ms)
    return FailureOutcome(failure=failure, attempt=attempt)


# The committed offset ---------------------------------------------------------------------------


def is_behind(progress: PartitionProgress, committed: CommittedOffset | None) -> bool:
    """Whether the group's committed offset is another one than its progress has."""
    return committed is None or committed.offset != progress.stable_offset


def is_old(committed: CommittedOffset | None, now_ms: int) -> bool:
    return committed is None or now_ms - committed.commit_timestamp_ms >= _REFRESH_MS


def projection(progress: PartitionProgress, topic_id: bytes, now_ms: int) -> CommittedOffset:
    """The stable offset as a committed one. By its leader epoch a log that was cut is noticed."""
    return CommittedOffset(
        offset=progress.stable_offset,
        leader_epoch=progress.leader_epoch,
        commit_timestamp_ms=now_ms,
        topic_id=topic_id,
    )
