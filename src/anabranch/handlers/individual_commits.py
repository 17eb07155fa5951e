"""Individual commits on the wire: tags of our own on OffsetCommit, TxnOffsetCommit and OffsetFetch.

What is refused for a whole partition is its error code, with one of KIP-X's own codes beside it;
what became of each part is in the outcomes: first those of the acknowledgements, in their order and
in parts where their slots have different owners, then one for each failure, for the slot of its
key.

    the broker's switch is off      INVALID_REQUEST, INDIVIDUAL_COMMIT_NOT_ALLOWED
    the topic's switch is off       INVALID_REQUEST, TOPIC_RANGE_FETCH_NOT_ALLOWED
    too many ranges, or too far     THROTTLING_QUOTA_EXCEEDED, MAX_INDIVIDUAL_COMMIT_REACHED, in an
    ahead of the stable offset      outcome
    in another open transaction     CONCURRENT_TRANSACTIONS, PENDING_IN_OTHER_TRANSACTION, in an
                                    outcome

A failure after which the record is not tried again is taken, with the sub-code 6.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from anabranch.broker.broker import Broker
from anabranch.broker.range_loads import HotKey
from anabranch.broker.topics import Topic
from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.book import expired, with_acked
from anabranch.coordinator.cooperative.commands import (
    NO_OFFSET,
    AcksAnswer,
    Failure,
    FailureOutcome,
    PartitionAcks,
    PartitionAnswer,
)
from anabranch.coordinator.cooperative.holdings import OwnedSlots, holdings_of, owners_by_place
from anabranch.coordinator.cooperative.progress import (
    Attempt,
    PartitionProgress,
    new_progress,
    without_lost,
)
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.cooperative.retries import NEVER_MS, is_exhausted
from anabranch.coordinator.cooperative.views import RangeView, ranges_with_owners
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import SlotRange, hashes_of, slots_between
from anabranch.wire import offset_set
from anabranch.wire.messages.cooperation import (
    COOPERATION_VERSION,
    DivertedKey,
    FailedRecord,
    HotRange,
    IndividualCommit,
    IndividualCommitAnswer,
    IndividualProgress,
    RangeAck,
    RangeOutcome,
    RangeProgress,
    RetriedRecord,
)
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponsePartition,
)
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponsePartition,
)

CommitRequest = OffsetCommitRequest | TxnOffsetCommitRequest
CommittedPartition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
AnsweredPartition = OffsetCommitResponsePartition | TxnOffsetCommitResponsePartition

_HASH_MAX = (1 << 63) - 1


class IndividualCommitError(KafkaError):
    """A refusal with one of KIP-X's own codes."""

    def __init__(self, code: ErrorCode, message: str, sub_code: SubCode = SubCode.NONE) -> None:
        super().__init__(code, message)
        self.sub_code = sub_code


# Commit -----------------------------------------------------------------------------------------


def read_acks(
    broker: Broker,
    request: CommitRequest,
    topic: Topic,
    partition: CommittedPartition,
    individual: IndividualCommit,
) -> PartitionAcks:
    """What a member did of a partition, with the facts it is judged by."""
    if individual.version != COOPERATION_VERSION:
        raise IndividualCommitError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Individual commits are version {COOPERATION_VERSION} here.",
        )
    if partition.committed_offset != NO_OFFSET:
        raise IndividualCommitError(
            ErrorCode.INVALID_REQUEST,
            "An individual commit says itself what is done. Commit -1 beside it.",
        )
    _check_allowed(broker, request.group_id, topic, partition.partition_index)
    log = topic.partitions[partition.partition_index].log
    delivered_offset = _delivered_offset(broker, request, topic, partition.partition_index)
    return PartitionAcks(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition.partition_index,
        facts=LogFacts(
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            delivered_offset=log.log_end_offset if delivered_offset is None else delivered_offset,
            epoch_end_offset=_epoch_end_offset(log, individual.leader_epoch),
        ),
        leader_epoch=log.leader_epoch,
        acks=tuple(_read_ack(ack) for ack in individual.acks),
        failures=tuple(_read_failure(failure) for failure in individual.failures),
    )


def _check_allowed(broker: Broker, group_id: str, topic: Topic, partition: int) -> None:
    if not broker.get_bool("group.individual.commit.enable"):
        raise IndividualCommitError(
            ErrorCode.INVALID_REQUEST,
            "This broker takes no individual commits. Commit offsets, or have "
            "group.individual.commit.enable set.",
            SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED,
        )
    if topic.image.is_shareable:
        return
    # What was begun is finished, or what members hold when the switch is turned would be lost.
    if (topic.topic_id, partition) not in broker.groups.progress(group_id):
        raise IndividualCommitError(
            ErrorCode.INVALID_REQUEST,
            f"{topic.name} takes no individual commits. Set range.fetch.enable=true on it.",
            SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED,
        )


def _delivered_offset(
    broker: Broker, request: CommitRequest, topic: Topic, partition: int
) -> int | None:
    """How far the member was shown the partition since it holds any of it, if that is known."""
    group = broker.groups.group(request.group_id)
    if not isinstance(group, ConsumerGroup) or request.member_id not in group.members:
        return None
    held = holdings_of(group.members[request.member_id], topic.topic_id, partition).slots
    if not held:
        return None
    return broker.deliveries.delivered(
        request.group_id, topic.topic_id, partition, request.member_id, min(held.values())
    )


def _epoch_end_offset(log: PartitionLog, leader_epoch: int) -> int:
    if leader_epoch < 0:
        return log.log_end_offset  # nobody said which records are meant
    end_offset = log.offset_for_leader_epoch(leader_epoch)[1]
    if end_offset < 0:
        raise IndividualCommitError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"The leader epoch is {log.leader_epoch}; {leader_epoch} is not known here.",
        )
    return end_offset


def _read_ack(ack: RangeAck) -> Ack:
    slots = slots_between(ack.first_hash, ack.last_hash)
    if slots is None:
        raise IndividualCommitError(
            ErrorCode.INVALID_REQUEST,
            f"The key range [{ack.first_hash}, {ack.last_hash}] does not begin and end at slots, "
            "which are multiples of 2^47.",
        )
    return Ack(slots, ack.epoch, ack.watermark, offset_set.decode(ack.done))


def _read_failure(failed: FailedRecord) -> Failure:
    if not 0 <= failed.key_hash <= _HASH_MAX:
        raise IndividualCommitError(
            ErrorCode.INVALID_REQUEST, f"{failed.key_hash} is no hash of a key."
        )
    return Failure(failed.offset, failed.key_hash, failed.retry_after_ms, failed.reason)


def refuse(answered: AnsweredPartition, error: KafkaError) -> None:
    """Answer that nothing of a partition's individual commit was taken."""
    sub_code = error.sub_code if isinstance(error, IndividualCommitError) else SubCode.NONE
    answered.error_code = error.code
    answered.individual = IndividualCommitAnswer(sub_code=sub_code)


def answer_acks(waiting: Sequence[AnsweredPartition], outcome: AcksAnswer | KafkaError) -> None:
    """Answer what became of each partition, which were asked for in this order."""
    if isinstance(outcome, KafkaError):
        for answered in waiting:
            refuse(answered, outcome)
        return
    if outcome.error:
        for answered in waiting:
            refuse(answered, KafkaError(outcome.error, "See the code."))
        return
    for answered, partition in zip(waiting, outcome.partitions, strict=True):
        answered.individual = _answer(partition)


def _answer(partition: PartitionAnswer) -> IndividualCommitAnswer:
    outcomes = [_outcome(one.slots, one.error_code, one.sub_code) for one in partition.outcomes]
    outcomes += [_failure_outcome(one) for one in partition.failures]
    return IndividualCommitAnswer(stable_offset=partition.stable_offset, outcomes=outcomes)


def _failure_outcome(outcome: FailureOutcome) -> RangeOutcome:
    slot = outcome.failure.slot
    sub_code: int = outcome.sub_code
    if outcome.attempt is not None and is_exhausted(outcome.attempt):
        sub_code = SubCode.DELIVERY_LIMIT_REACHED
    return _outcome(SlotRange(slot, slot + 1), outcome.error_code, sub_code)


def _outcome(slots: SlotRange, error_code: ErrorCode, sub_code: int) -> RangeOutcome:
    first_hash, last_hash = hashes_of(slots)
    return RangeOutcome(
        first_hash=first_hash, last_hash=last_hash, error_code=error_code, sub_code=sub_code
    )


# Fetch ------------------------------------------------------------------------------------------


class GroupView(NamedTuple):
    """What is known of a group, for the answers about all its partitions."""

    progress: Mapping[Place, PartitionProgress]
    owners: Mapping[Place, Sequence[OwnedSlots]]
    # How long the stable offset of a partition has stood still, with something to finish; or -1.
    stalled_ms: Callable[[Place], int]
    # How far a partition was shown to a member since an epoch, if that is known.
    delivered: Callable[[Place, str, int], int | None]
    # The slots that are more work than a fair share.
    hot: Callable[[Place], Sequence[HotKey]]


def view_group(broker: Broker, group_id: str) -> GroupView:
    """What a group has done, and who works on what. KafkaError when it cannot be read."""
    group = broker.groups.group(group_id)
    known = broker.groups.progress(group_id)
    return GroupView(
        {place: tracked.progress for place, tracked in known.items()},
        owners_by_place(group) if isinstance(group, ConsumerGroup) else {},
        lambda place: broker.groups.stuck_ranges.stalled_ms(group_id, *place),
        lambda place, member, epoch: broker.deliveries.delivered(group_id, *place, member, epoch),
        lambda place: broker.groups.range_loads.hot_keys(group_id, *place),
    )


def individual_progress(
    view: GroupView, topic: Topic | None, partition: int, committed_offset: int, now_ms: int
) -> IndividualProgress:
    """How far a group is with a partition, range by range; of what is not known, nothing."""
    if topic is None or not topic.has_partition(partition):
        return IndividualProgress()
    place = (topic.topic_id, partition)
    log = topic.partitions[partition].log
    progress = view.progress.get(place)
    if progress is None:
        progress = new_progress(committed_offset)
    else:
        progress = with_acked(progress, expired(progress, log.log_start_offset))
    # Who was told to begin beyond the end would ask again and again.
    progress = without_lost(progress, log.log_end_offset)
    return IndividualProgress(
        stable_offset=progress.stable_offset,
        stalled_ms=view.stalled_ms(place),
        ranges=[
            _range_progress(one, _delivered_to(view, place, one))
            for one in ranges_with_owners(progress, view.owners.get(place, ()))
        ],
        retried=[
            RetriedRecord(
                offset=offset,
                key_hash=attempt.key_hash,
                attempts=attempt.count,
                not_before_ms=_rest_ms(attempt, now_ms),
                reason=attempt.reason,
            )
            for offset, attempt in sorted(progress.attempts.items())
        ],
        diverted=[
            DivertedKey(key_hash=key_hash, offset=offset)
            for key_hash, offset in sorted(progress.diverted.items())
        ],
        hot=[_hot_range(one) for one in view.hot(place)],
    )


def _hot_range(hot: HotKey) -> HotRange:
    slot = hot.slot.slot
    first_hash, last_hash = hashes_of(SlotRange(slot, slot + 1))
    return HotRange(
        first_hash=first_hash,
        last_hash=last_hash,
        share_permille=round(1000 * hot.slot.share),
        key=hot.key,
    )


def _delivered_to(view: GroupView, place: Place, found: RangeView) -> int:
    """How far the owner of a range was shown its records, or -1."""
    if found.owner is None:
        return NO_OFFSET
    offset = view.delivered(place, found.owner, found.epoch)
    return NO_OFFSET if offset is None else offset


def _range_progress(view: RangeView, delivered_offset: int) -> RangeProgress:
    first_hash, last_hash = hashes_of(view.slots)
    return RangeProgress(
        first_hash=first_hash,
        last_hash=last_hash,
        watermark=view.watermark,
        done=offset_set.encode(view.done),
        owner=view.owner,
        epoch=view.epoch,
        delivered_offset=delivered_offset,
    )


def _rest_ms(attempt: Attempt, now_ms: int) -> int:
    """How long a record still rests; an exhausted one for ever."""
    if is_exhausted(attempt):
        return NEVER_MS
    return max(0, attempt.not_before_ms - now_ms)
