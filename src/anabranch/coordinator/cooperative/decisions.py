"""Decisions about records that are not tried again, and about keys that are diverted.

Rules
- Only a record that waits can be decided about: one that is exhausted (see `retries`) and not done.
  So a decision that comes twice, or too late, is refused and changes nothing.
- `RELEASE` forgets the attempts of a record: it is tried again at once, as if for the first time.
  Of a key it says that it is not diverted any more, and releases its records that wait.
- `SKIP` counts a record as done.
- `DLQ` counts a record as done that is in the dead-letter topic: the append comes first, so that a
  crash between the two leaves it there twice at worst, and never nowhere. In the same decision its
  key may be diverted, so that no later record of the key can be processed before.
- A record of a diverted key cannot be released without the key: it would come back at once.
- Decisions need no member and fence nobody: owners see what became of their records when they ask.
"""

import dataclasses
from collections.abc import Collection

from anabranch.coordinator.cooperative.book import (
    GroupProgress,
    ProgressDraft,
    apply_delta,
    expired,
)
from anabranch.coordinator.cooperative.commands import (
    NO_HASH,
    NO_OFFSET,
    Action,
    Decision,
    DecisionOutcome,
    DecisionsAnswer,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.individual_commit import is_behind, projection
from anabranch.coordinator.cooperative.progress import Attempt, PartitionProgress
from anabranch.coordinator.cooperative.records import AckedRange, DivertedKey, ProgressDelta
from anabranch.coordinator.cooperative.retries import exhausted_offsets, is_exhausted
from anabranch.coordinator.group.offsets import Offsets, committed_offset
from anabranch.coordinator.group.records import GroupRecord, OffsetCommitted
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS


def take_decisions(
    offsets: Offsets,
    known: GroupProgress,
    command: TakeDecisions,
    now_ms: int,
    blocked: Collection[tuple[str, int]] = (),
) -> Result:
    """Take what can be taken, and answer each decision for itself.

    Nothing is projected over offsets that are pending in transactions; their end sees to it.
    """
    place = (command.topic_id, command.partition)
    tracked = known.get(place)
    before = tracked.progress if tracked is not None else None
    progress, whole = before, ProgressDelta(leader_epoch=-1)
    if progress is not None:
        gone = tuple(expired(progress, command.log_start_offset))
        whole = ProgressDelta(leader_epoch=progress.leader_epoch, acked=gone)
        progress = apply_delta(progress, whole)
    outcomes = []
    for decision in command.decisions:
        try:
            delta = _decide(progress, decision)
        except KafkaError as error:
            outcomes.append(DecisionOutcome(error.code, error.message))
            continue
        assert progress is not None, "there is nothing to decide about"
        whole = _joined(whole, delta)
        progress = _decided(progress, delta)
        outcomes.append(DecisionOutcome())
    if before is None:
        return Result(response=DecisionsAnswer(outcomes=tuple(outcomes)))
    draft = ProgressDraft(command.group_id, known)
    progress = apply_delta(before, whole)
    if progress != before:
        draft.add(place, whole, progress)
    committed = committed_offset(offsets, command.topic, command.topic_id, command.partition)
    projected: list[GroupRecord] = []
    is_blocked = (command.topic, command.partition) in blocked
    if not is_blocked and is_behind(progress, committed):
        projected.append(
            OffsetCommitted(
                group_id=command.group_id,
                topic=command.topic,
                partition=command.partition,
                value=projection(progress, command.topic_id, now_ms),
            )
        )
    answer = DecisionsAnswer(stable_offset=progress.stable_offset, outcomes=tuple(outcomes))
    return Result(records=(*draft.records, *projected), response=answer)


def _decide(progress: PartitionProgress | None, decision: Decision) -> ProgressDelta:
    """What a decision adds to the progress; KafkaError when it cannot be taken."""
    if decision.offset == NO_OFFSET:
        return _decide_key(progress, decision)
    attempt = waiting_attempt(progress, decision.offset, decision.key_hash)
    assert progress is not None, "it has the attempt"
    if decision.action is Action.RELEASE:
        if progress.is_diverted(attempt.key_hash, decision.offset):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The key of record {decision.offset} is diverted, so it would come back at once. "
                "Release the key.",
            )
        return ProgressDelta(leader_epoch=progress.leader_epoch, forgiven=(decision.offset,))
    diverted: tuple[DivertedKey, ...] = ()
    if decision.diverts:
        diverted = (DivertedKey(attempt.key_hash, decision.offset),)
    return ProgressDelta(
        leader_epoch=progress.leader_epoch,
        acked=(_done(decision.offset),),
        diverted=diverted,
    )


def _decide_key(progress: PartitionProgress | None, decision: Decision) -> ProgressDelta:
    waiting = waiting_offsets_of(progress, decision.key_hash)
    assert progress is not None, "something of it waits"
    if decision.action is Action.RELEASE:
        return ProgressDelta(
            leader_epoch=progress.leader_epoch,
            forgiven=tuple(waiting),
            released=(decision.key_hash,),
        )
    if not waiting:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"No record of the key with hash {decision.key_hash} waits; the key is diverted. "
            "Release it, or leave it.",
        )
    return ProgressDelta(
        leader_epoch=progress.leader_epoch,
        acked=tuple(_done(offset) for offset in waiting),
    )


def waiting_attempt(
    progress: PartitionProgress | None, offset: int, key_hash: int = NO_HASH
) -> Attempt:
    """The attempts at a record that waits for a decision; KafkaError when it does not."""
    attempt = progress.attempts.get(offset) if progress is not None else None
    if attempt is None:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Record {offset} does not wait: it is done, or has not failed. See what waits with "
            "`anabranch groups describe --ranges`.",
        )
    if key_hash not in (NO_HASH, attempt.key_hash):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Record {offset} is of another key: its hash is {attempt.key_hash}, not {key_hash}.",
        )
    if not is_exhausted(attempt):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Record {offset} is tried again by itself after its rest. Only records after their "
            "last attempt are decided about.",
        )
    return attempt


def waiting_offsets_of(progress: PartitionProgress | None, key_hash: int) -> list[int]:
    """The records of a key that wait; KafkaError when none does and the key is not diverted."""
    waiting: list[int] = []
    if progress is not None:
        waiting = [
            offset
            for offset in exhausted_offsets(progress)
            if progress.attempts[offset].key_hash == key_hash
        ]
        if waiting or key_hash in progress.diverted:
            return waiting
    raise KafkaError(
        ErrorCode.RESOURCE_NOT_FOUND,
        f"No record of the key with hash {key_hash} waits, and the key is not diverted.",
    )


def _decided(progress: PartitionProgress, delta: ProgressDelta) -> PartitionProgress:
    """What the next decision of the same command looks at: what waits, and which keys are diverted.

    What is done follows for all of them together, which costs as much as for one.
    """
    attempts, diverted = dict(progress.attempts), dict(progress.diverted)
    for acked in delta.acked:
        for first, last in acked.done:
            for offset in range(first, last + 1):
                del attempts[offset]
    for offset in delta.forgiven:
        del attempts[offset]
    for key in delta.diverted:
        diverted[key.key_hash] = min(key.offset, diverted.get(key.key_hash, key.offset))
    for key_hash in delta.released:
        diverted.pop(key_hash, None)
    return dataclasses.replace(progress, attempts=attempts, diverted=diverted)


def _done(offset: int) -> AckedRange:
    """An offset is one record: other slots have nothing there that could be open.

    Said of all slots the stable offset can pass it at once, without a word of its owner.
    """
    return AckedRange(ALL_SLOTS, NO_OFFSET, OffsetRanges([(offset, offset)]))


def _joined(one: ProgressDelta, other: ProgressDelta) -> ProgressDelta:
    return dataclasses.replace(
        one,
        acked=one.acked + other.acked,
        forgiven=one.forgiven + other.forgiven,
        diverted=one.diverted + other.diverted,
        released=one.released + other.released,
    )
