"""The end of a transaction: what was committed and acknowledged with it counts, or is forgotten.

Rules
- All that a producer has pending in the shard ends in one decision. The marker is its last word in
  the journal of groups, and what becomes progress is in that of individual commits before it: after
  a crash in between nothing is pending that was written, and the marker is asked for again.
- The stable offset is projected after the marker, as it is after any other commit, but not where
  somebody else has an offset pending. A crash before that leaves it behind, which is found at the
  start.
"""

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.coordinator.cooperative.book import ProgressBook, ProgressDraft
from anabranch.coordinator.cooperative.individual_commit import is_behind, is_old, projection
from anabranch.coordinator.cooperative.pending_acks import forgotten
from anabranch.coordinator.cooperative.plain_commit import take_plain_commit
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.cooperative.txn_acks import apply_acks
from anabranch.coordinator.group.commands import CommittedOffset, EndTransaction
from anabranch.coordinator.group.offsets import Offsets, committed_offset
from anabranch.coordinator.group.records import GroupRecord, OffsetCommitted, TransactionEnded
from anabranch.coordinator.group.txn_offsets import PendingOffsets
from anabranch.coordinator.runtime.result import Result
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionAnswer:
    """The offsets that count from now on."""

    applied: tuple[OffsetCommitted, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a shard knows when a transaction ends."""

    pending: PendingOffsets
    book: ProgressBook
    offsets: Callable[[str], Offsets]
    image: ClusterImage


def end_transaction(known: Known, command: EndTransaction, now_ms: int) -> Result:
    """Commit or forget what a transaction has pending in this shard, if it is anything."""
    pending, book = known.pending, known.book
    ended = pending.of_producer(command.producer_id)
    acks = book.pending.of_producer(command.producer_id)
    drafts: dict[str, ProgressDraft] = {}

    def draft_of(group_id: str) -> ProgressDraft:
        if group_id not in drafts:
            drafts[group_id] = ProgressDraft(group_id, book.of_group(group_id))
        return drafts[group_id]

    applied: dict[tuple[str, Place], CommittedOffset] = {}
    if command.is_commit:
        for key, one in acks.items():
            apply_acks(draft_of(key.group_id), key, one)
        for record in ended:
            assert record.value is not None, "nothing is forgotten in a transaction"
            group_id, place = record.group_id, (_topic_id(record), record.partition)
            applied[group_id, place] = record.value
            acknowledged = book.pending.of_place(group_id, place)
            draft = draft_of(group_id)
            take_plain_commit(draft, place, record.value.offset, acknowledged, is_reset=False)
    marker = TransactionEnded(
        producer_id=command.producer_id,
        producer_epoch=command.producer_epoch,
        coordinator_epoch=command.coordinator_epoch,
        is_commit=command.is_commit,
    )
    touched = [(key.group_id, key.place) for key in acks]
    touched += [(one.group_id, (_topic_id(one), one.partition)) for one in ended]
    found = [
        _projected(known, draft_of(group_id), applied, place, command, now_ms)
        for group_id, place in dict.fromkeys(touched)
    ]
    projected = [record for record in found if record is not None]
    progressed: list[GroupRecord] = [r for draft in drafts.values() for r in draft.records]
    progressed += [forgotten(key) for key in acks]
    return Result(
        records=(*progressed, marker, *projected),
        response=EndTransactionAnswer(applied=tuple(ended) if command.is_commit else ()),
    )


def _topic_id(pending: OffsetCommitted) -> bytes:
    assert pending.value is not None, "nothing is forgotten in a transaction"
    return pending.value.topic_id


def _projected(
    known: Known,
    draft: ProgressDraft,
    applied: dict[tuple[str, Place], CommittedOffset],
    place: Place,
    command: EndTransaction,
    now_ms: int,
) -> OffsetCommitted | None:
    """The stable offset as a committed one, if it is another one than is committed by now."""
    group_id = draft.group_id
    tracked = draft.get(place)
    topic = known.image.by_id.get(place[0])
    if tracked is None or topic is None:
        return None
    producers = known.pending.of_group(group_id).get((topic.name, place[1]), set())
    if producers - {command.producer_id}:
        return None
    committed = applied.get((group_id, place)) or committed_offset(
        known.offsets(group_id), topic.name, topic.topic_id, place[1]
    )
    is_due = is_behind(tracked.progress, committed)
    if not is_due and not (command.is_commit and is_old(committed, now_ms)):
        return None
    return OffsetCommitted(
        group_id=group_id,
        topic=topic.name,
        partition=place[1],
        value=projection(tracked.progress, topic.topic_id, now_ms),
    )
