"""Decisions about records that are not tried again, on the wire: a tag of our own on OffsetCommit.

They come from whoever looks after a group, who is no member of it; its members, if there are any,
go on working. Each decision is answered for itself, in the order of the request:

    the record does not wait, or the key has none that does     RESOURCE_NOT_FOUND
    the record is tried again by itself, is of another key,
    or cannot be released without its key                       INVALID_REQUEST
    the dead-letter topic cannot be written                     the code of that

Those that send records to the dead-letter topic are answered when the records are there.
"""

from collections.abc import Sequence

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.topics import Topic
from anabranch.coordinator.cooperative.commands import (
    NO_HASH,
    NO_OFFSET,
    Action,
    Decision,
    DecisionOutcome,
    DecisionsAnswer,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.decisions import waiting_attempt, waiting_offsets_of
from anabranch.handlers.group_answers import answer, gather
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages import cooperation as wire
from anabranch.wire.messages.offset_commit import OffsetCommitResponsePartition

Outcome = DecisionOutcome | Deferred[DecisionOutcome]


def decide(
    broker: Broker,
    group_id: str,
    topic: Topic,
    partition: int,
    asked: wire.Decisions,
    answered: OffsetCommitResponsePartition,
) -> Deferred[None] | None:
    """Take the decisions about one partition and fill in its answer, at once or later."""
    if asked.version != wire.COOPERATION_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Decisions are version {wire.COOPERATION_VERSION} here.",
        )
    decisions = [_read(one) for one in asked.decisions]
    plain = [one for one in decisions if isinstance(one, Decision) and one.action != Action.DLQ]
    command = TakeDecisions(
        group_id=group_id,
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition,
        log_start_offset=topic.partitions[partition].log.log_start_offset,
        decisions=tuple(plain),
    )

    def decided(outcome: DecisionsAnswer | KafkaError) -> list[DecisionOutcome]:
        if isinstance(outcome, KafkaError):
            return [_refusal(outcome)] * len(plain)
        return list(outcome.outcomes)

    first = answer(broker, group_id, command, decided) if plain else []
    place = (topic.topic_id, partition)
    buried = [
        _bury(broker, group_id, place, one)
        for one in decisions
        if isinstance(one, Decision) and one.action == Action.DLQ
    ]

    def fill(outcomes: list[list[DecisionOutcome]]) -> None:
        taken, sent = iter(outcomes[0]), iter(outcomes[1])
        found = [
            one if isinstance(one, DecisionOutcome) else next(sent if _is_dlq(one) else taken)
            for one in decisions
        ]
        answered.decisions = _answer(broker, group_id, place, found)

    filled: Deferred[None] | None = gather([first, gather(buried, list)], fill)
    return filled


def refuse(answered: OffsetCommitResponsePartition, error: KafkaError) -> None:
    """Answer that no decision about a partition was taken."""
    answered.error_code = error.code
    answered.decisions = wire.DecisionsAnswer()


def _is_dlq(decision: Decision) -> bool:
    return decision.action is Action.DLQ


def _read(one: wire.RecordDecision) -> Decision | DecisionOutcome:
    try:
        action = Action(one.action)
    except ValueError:
        message = f"There is no action {one.action}; 0 releases, 1 skips, 2 is the dead-letter one."
        return DecisionOutcome(ErrorCode.INVALID_REQUEST, message)
    if one.offset < 0 and one.key_hash < 0:
        return DecisionOutcome(
            ErrorCode.INVALID_REQUEST, "A decision names a record by its offset, or a key."
        )
    return Decision(action, max(one.offset, NO_OFFSET), max(one.key_hash, NO_HASH))


def _bury(broker: Broker, group_id: str, place: tuple[bytes, int], decision: Decision) -> Outcome:
    """Send a record, or all records of a key that wait, to the dead-letter topic."""
    try:
        tracked = broker.groups.progress(group_id).get(place)
        progress = tracked.progress if tracked is not None else None
        if decision.offset != NO_OFFSET:
            waiting_attempt(progress, decision.offset, decision.key_hash)
            return broker.groups.dispositions.bury(group_id, place, decision.offset)
        offsets = waiting_offsets_of(progress, decision.key_hash)
    except KafkaError as error:
        return _refusal(error)
    if not offsets:
        message = f"No record of the key with hash {decision.key_hash} waits."
        return DecisionOutcome(ErrorCode.RESOURCE_NOT_FOUND, message)
    buried = [broker.groups.dispositions.bury(group_id, place, offset) for offset in offsets]
    outcome: Outcome = gather(buried, _worst)
    return outcome


def _worst(outcomes: Sequence[DecisionOutcome]) -> DecisionOutcome:
    return next((one for one in outcomes if one.error_code), DecisionOutcome())


def _refusal(error: KafkaError) -> DecisionOutcome:
    return DecisionOutcome(error.code, error.message)


def _answer(
    broker: Broker, group_id: str, place: tuple[bytes, int], outcomes: list[DecisionOutcome]
) -> wire.DecisionsAnswer:
    stable_offset = NO_OFFSET
    try:
        tracked = broker.groups.progress(group_id).get(place)
        if tracked is not None:
            stable_offset = tracked.progress.stable_offset
    except KafkaError:
        pass  # whether each was taken is known all the same
    return wire.DecisionsAnswer(
        stable_offset=stable_offset,
        outcomes=[
            wire.DecisionOutcome(error_code=one.error_code, error_message=one.message)
            for one in outcomes
        ],
    )
