"""Offsets that are committed with a transaction (KIP-98, KIP-447).

Rules
- An offset that a producer commits in its transaction is pending until the transaction ends. Then
  all that it has pending here is committed, or forgotten.
- Whoever commits for a group names the member it consumes as, and is fenced like that member. Old
  clients name nobody, and are believed whatever the state of the group: their transactional id
  fences them. A generation that waits for its assignment may commit: what it commits was consumed
  before.
- Older clients know generations and no epochs here: whatever says that a member is not of today is
  ILLEGAL_GENERATION for them.
- The later of two commits counts, and a pending one is as old as its request, whenever its
  transaction ends. So what is committed, forgotten or decided by another transaction meanwhile
  leaves nothing of what was pending before. (In Kafka it stays pending, and counts for nothing.)
- A group with pending offsets is neither expired nor deleted, and nothing is projected over them.
  Offsets that an administrator deletes, and those of topics that are gone, go with what is pending.
- Where a group has progress of its own on a partition (individual commits), an offset that is
  committed with a transaction is what a plain commit of a member is (`cooperative.plain_commit`).
- A partition of a group has offsets pending, or acknowledgements, never both: what is said second
  is refused until the transaction of the other has ended. So the stable offset, which follows from
  acknowledgements, is never taken for a later commit than an offset that is pending; and nothing
  that is not a commit of a member (the stable offset, or a branch's) is written over one.
- What ends a transaction is in `txn_end`.
"""

from collections.abc import Collection, KeysView, Mapping

from anabranch.coordinator.cooperative.book import GroupProgress
from anabranch.coordinator.cooperative.holdings import is_shared
from anabranch.coordinator.cooperative.plain_commit import check_owner
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicState
from anabranch.coordinator.group.classic_sync import check_generation
from anabranch.coordinator.group.commands import (
    CommitAnswer,
    CommitOffsets,
    CommittedOffset,
    CommitTxnOffsets,
)
from anabranch.coordinator.group.consumer_offsets import check_commit as check_consumer_commit
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.records import (
    GroupRecord,
    OffsetCommitted,
    OffsetPending,
)
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode

Group = ClassicGroup | ConsumerGroup
# A group, a topic and a partition of it.
OffsetKey = tuple[str, str, int]

_NOBODY: Mapping[tuple[str, int], set[int]] = {}
_NOT_OF_TODAY = frozenset((ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND))


class PendingOffsets:
    """The offsets of the open transactions of one shard."""

    def __init__(self) -> None:
        # Of each producer, in the order they came, with the number that says which came later.
        self._of_producer: dict[int, dict[OffsetKey, tuple[int, OffsetCommitted]]] = {}
        # The producers that have something pending, by group and partition.
        self._producers: dict[str, dict[tuple[str, int], set[int]]] = {}
        self._replayed = 0

    # Looking --------------------------------------------------------------------------------------

    def of_group(self, group_id: str) -> Mapping[tuple[str, int], set[int]]:
        """The partitions of a group with pending offsets, and the producers that have them."""
        return self._producers.get(group_id, _NOBODY)

    def groups(self) -> KeysView[str]:
        return self._producers.keys()

    def of_producer(self, producer_id: int) -> list[OffsetCommitted]:
        """What becomes committed if a producer's transaction is."""
        return [offset for _, offset in self._of_producer.get(producer_id, {}).values()]

    # Changing -------------------------------------------------------------------------------------

    def replay_pending(self, record: OffsetPending) -> None:
        key = _key_of(record.offset)
        pending = self._of_producer.setdefault(record.producer_id, {})
        pending.pop(key, None)  # so that it goes to the end
        self._replayed += 1
        pending[key] = (self._replayed, record.offset)
        producers = self._producers.setdefault(key[0], {})
        producers.setdefault(key[1:], set()).add(record.producer_id)

    def replay_committed(self, record: OffsetCommitted) -> None:
        """Something was committed or forgotten: nothing that came before counts any more."""
        if self._producers:
            self._drop(_key_of(record), self._replayed)

    def end(self, producer_id: int, *, is_commit: bool) -> list[OffsetCommitted]:
        """A transaction is over; the offsets that count from now on.

        They replace what others have pending for longer, too.
        """
        ended = list(self._of_producer.get(producer_id, {}).items())
        for key, (number, _) in ended:
            self._drop_one(producer_id, key)
            if is_commit:
                self._drop(key, number)
        return [offset for _, (_, offset) in ended] if is_commit else []

    def _drop(self, key: OffsetKey, upto: int) -> None:
        producers = self.of_group(key[0]).get(key[1:], ())
        for producer_id in list(producers):
            if self._of_producer[producer_id][key][0] <= upto:
                self._drop_one(producer_id, key)

    def _drop_one(self, producer_id: int, key: OffsetKey) -> None:
        pending = self._of_producer[producer_id]
        del pending[key]
        if not pending:
            del self._of_producer[producer_id]
        producers = self._producers[key[0]]
        producers[key[1:]].discard(producer_id)
        if not producers[key[1:]]:
            del producers[key[1:]]
        if not producers:
            del self._producers[key[0]]


def _key_of(offset: OffsetCommitted) -> OffsetKey:
    return offset.group_id, offset.topic, offset.partition


# Commit -----------------------------------------------------------------------------------------


def commit_txn_offsets(
    group: Group | None,
    command: CommitTxnOffsets,
    progress: GroupProgress,
    settings: GroupSettings,
    now_ms: int,
    acknowledged: Collection[Place] = (),
) -> Result:
    """Let offsets be pending until the transaction ends.

    `acknowledged` is where records of the group are acknowledged in transactions that are open.
    """
    error = _check_commit(group, command)
    if error is not ErrorCode.NONE:
        return Result(response=CommitAnswer(error=error))
    records: list[GroupRecord] = []
    errors: list[ErrorCode] = []
    for asked in command.offsets:
        # Characters, whatever the setting's name says, as Kafka counts.
        if asked.metadata is not None and len(asked.metadata) > settings.offset_metadata_max_bytes:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        place = (asked.topic_id, asked.partition)
        error = ErrorCode.NONE
        if isinstance(group, ConsumerGroup):
            error = _check_owner(group, command, place, progress)
        if error is ErrorCode.NONE and place in acknowledged:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        errors.append(error)
        if error is not ErrorCode.NONE:
            continue
        value = CommittedOffset(
            offset=asked.offset,
            leader_epoch=asked.leader_epoch,
            metadata=asked.metadata or "",
            commit_timestamp_ms=now_ms,
            topic_id=asked.topic_id,
        )
        records.append(
            OffsetPending(
                producer_id=command.producer_id,
                producer_epoch=command.producer_epoch,
                offset=OffsetCommitted(
                    group_id=command.group_id,
                    topic=asked.topic,
                    partition=asked.partition,
                    value=value,
                ),
            )
        )
    return Result(records=tuple(records), response=CommitAnswer(errors=tuple(errors)))


def _check_commit(group: Group | None, command: CommitTxnOffsets) -> ErrorCode:
    if not command.group_id:
        return ErrorCode.INVALID_GROUP_ID
    is_anonymous = command.generation_id < 0
    if is_anonymous and not command.member_id and command.group_instance_id is None:
        return ErrorCode.NONE
    if isinstance(group, ConsumerGroup):
        return _told(check_consumer_commit(group, _plain(command)), command)
    if is_anonymous and (group is None or group.state is ClassicState.EMPTY):
        return ErrorCode.NONE
    if group is None:
        return _told(ErrorCode.GROUP_ID_NOT_FOUND, command)
    return check_generation(
        group, command.member_id, command.group_instance_id, command.generation_id
    )


def _check_owner(
    group: ConsumerGroup, command: CommitTxnOffsets, place: Place, progress: GroupProgress
) -> ErrorCode:
    """Whether a whole partition may be committed for, where others may have a part in it."""
    if command.member_id in group.members:
        return _told(check_owner(group, command.member_id, place, progress), command)
    if group.members and (place in progress or is_shared(group.owners, *place)):
        return ErrorCode.ILLEGAL_GENERATION  # nobody speaks for those who work on it
    return ErrorCode.NONE


def _plain(command: CommitTxnOffsets) -> CommitOffsets:
    """The commit without its transaction."""
    return CommitOffsets(
        group_id=command.group_id,
        member_id=command.member_id,
        group_instance_id=command.group_instance_id,
        generation_id=command.generation_id,
        retention_ms=-1,
        knows_group_id_not_found=True,
        offsets=command.offsets,
    )


def _told(error: ErrorCode, command: CommitTxnOffsets) -> ErrorCode:
    if error in _NOT_OF_TODAY and not command.knows_member_epochs:
        return ErrorCode.ILLEGAL_GENERATION
    return error
