"""Individual commits in a transaction: acknowledgements that count if it is committed.

Rules
- They are judged as any others, by the same facts (see `acks`), and what is taken is pending under
  the producer and its epoch (see `pending_acks`). Transactions may be committed in any order.
- The same acknowledgement again changes nothing. What is pending in the transaction of another
  producer is refused: nobody can tell yet whether it is done.
- A producer that comes with a later epoch has lost its earlier transaction, and all that is pending
  in it. One with an earlier epoch is fenced.
- Progress begins with the first acknowledgement, so that there is something for those that are
  pending to hang on. Nothing of them is in it.
- Committed, they are progress in the decision that ends the transaction: the stable offset and what
  is projected of it move there. Aborted, they are forgotten. In the journals progress comes before
  the marker: a start that finds no marker has it written again, and nothing is pending by then.
- With `coop.txn.order=stable` they are taken in that order (see `txn_order`).
"""

import dataclasses
from collections.abc import Collection

from anabranch.coordinator.cooperative.acks import Ack, AckOutcome, news_of, take_acks
from anabranch.coordinator.cooperative.book import (
    GroupProgress,
    ProgressDraft,
    apply_delta,
    expired,
    with_acked,
)
from anabranch.coordinator.cooperative.commands import (
    AcksAnswer,
    PartitionAcks,
    PartitionAnswer,
    TakeAcks,
)
from anabranch.coordinator.cooperative.individual_commit import (
    Taking,
    begun_progress,
    blocked_answer,
    check_sender,
    holdings_in,
    is_behind,
    projection,
)
from anabranch.coordinator.cooperative.pending_acks import (
    Pending,
    PendingAcks,
    PendingKey,
    forgotten,
    joined,
)
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import (
    AckedRange,
    AcksPending,
    Place,
    ProgressDelta,
)
from anabranch.coordinator.cooperative.settings import STABLE_ORDER, CooperativeSettings
from anabranch.coordinator.cooperative.txn_order import lowest_that_waits, park
from anabranch.coordinator.cooperative.window import (
    Growth,
    is_growth_over,
    limited,
    pending_bytes,
)
from anabranch.coordinator.group.offsets import Group, Offsets, committed_offset
from anabranch.coordinator.group.records import GroupRecord, OffsetCommitted
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import EMPTY

# Taking -----------------------------------------------------------------------------------------


def take_txn_acks(
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
    """Let what a member did be pending; the rest as for `take_individual_commits`."""
    assert command.producer is not None, "a transaction has a producer"
    producer_id, producer_epoch = command.producer
    error = check_sender(group, command)
    if error is ErrorCode.NONE and pending.epoch_of(producer_id) > producer_epoch:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    if error is not ErrorCode.NONE:
        return Result(response=AcksAnswer(error=error))
    draft = ProgressDraft(command.group_id, known)
    records: list[GroupRecord] = [
        forgotten(key)
        for key, one in pending.of_producer(producer_id).items()
        if one.producer_epoch < producer_epoch
    ]
    projected: list[GroupRecord] = []
    # What the member has pending with what it says in this request.
    grown: dict[PendingKey, tuple[AckedRange, ...]] = {}
    waits: dict[Place, int] = {}
    answers = []
    for asked in command.partitions:
        place = (asked.topic_id, asked.partition)
        taking = Taking(asked, holdings_in(group, command, asked), settings, now_ms, broker_bytes)
        tracked = draft.get(place)
        if (asked.topic, asked.partition) in blocked:
            answers.append(blocked_answer(taking, tracked.progress if tracked else None))
            continue
        committed = committed_offset(offsets, asked.topic, asked.topic_id, asked.partition)
        progress = tracked.progress if tracked else begun_progress(committed, asked.facts)
        progress = with_acked(progress, expired(progress, asked.facts.log_start_offset))
        key = PendingKey(command.group_id, place, producer_id, command.member_id)
        accepted = _take_partition(taking, progress, key, producer_epoch, pending, grown.get(key))
        answers.append(accepted.answer)
        if accepted.waits_for is not None:
            waits.setdefault(place, accepted.waits_for)
        if accepted.record is not None:
            records.append(accepted.record)
            grown[key] = accepted.record.acked
        if tracked is None and accepted.is_any_taken:
            progress = dataclasses.replace(progress, leader_epoch=asked.leader_epoch)
            draft.begin(place, progress)
            if is_behind(progress, committed):
                projected.append(_projected(command.group_id, asked, progress, now_ms))
    if waits:
        return park(command, waits, now_ms)
    return Result(
        records=(*draft.records, *records, *projected),
        response=AcksAnswer(partitions=tuple(answers)),
    )


def _projected(
    group_id: str, asked: PartitionAcks, progress: PartitionProgress, now_ms: int
) -> OffsetCommitted:
    return OffsetCommitted(
        group_id=group_id,
        topic=asked.topic,
        partition=asked.partition,
        value=projection(progress, asked.topic_id, now_ms),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Accepted:
    """What came of one partition's acknowledgements, and what is pending then if it is news."""

    answer: PartitionAnswer
    record: AcksPending | None
    is_any_taken: bool
    waits_for: int | None


def _take_partition(
    taking: Taking,
    progress: PartitionProgress,
    key: PendingKey,
    producer_epoch: int,
    pending: PendingAcks,
    grown: tuple[AckedRange, ...] | None,
) -> _Accepted:
    of_place = pending.of_place(key.group_id, key.place)
    elsewhere = [one for other, one in of_place.items() if other.producer_id != key.producer_id]
    # Of the same transaction, and of all its members; what is of an earlier one is forgotten.
    same = {
        other: one
        for other, one in of_place.items()
        if other.producer_id == key.producer_id and one.producer_epoch == producer_epoch
    }
    known = same.pop(key, None)
    mine = grown or (known.acked if known is not None else ())
    taking = dataclasses.replace(taking, pending=tuple(elsewhere))
    room = _Room(taking, progress, [*elsewhere, *same.values()], mine)
    outcomes: list[AckOutcome] = []
    for ack in taking.asked.acks:
        outcomes += room.take(ack)
    waits_for = None
    if taking.settings.txn_order == STABLE_ORDER:
        own = [*mine, *(acked for one in same.values() for acked in one.acked)]
        waits_for = lowest_that_waits(progress, own, room.news)
    record = None
    if room.acked != mine:
        record = AcksPending(
            group_id=key.group_id,
            topic_id=key.place[0],
            partition=key.place[1],
            producer_id=key.producer_id,
            member_id=key.member_id,
            producer_epoch=producer_epoch,
            leader_epoch=taking.asked.leader_epoch,
            acked=room.acked,
        )
    return _Accepted(
        PartitionAnswer(stable_offset=progress.stable_offset, outcomes=tuple(outcomes)),
        record,
        any(one.error_code is ErrorCode.NONE for one in outcomes),
        waits_for,
    )


class _Room:
    """What a member has pending of a partition, as it grows with the acks of one request."""

    def __init__(
        self,
        taking: Taking,
        progress: PartitionProgress,
        others: list[Pending],
        mine: tuple[AckedRange, ...],
    ) -> None:
        self._taking = taking
        self._progress = progress
        self._others_ranges = sum(one.ranges_count for one in others)
        # As if everything were committed.
        self._whole = with_acked(progress, [acked for one in others for acked in one.acked])
        self._whole = with_acked(self._whole, mine)
        self._before = mine
        self.acked = mine
        # What this request has added.
        self.news: list[AckedRange] = []

    def take(self, ack: Ack) -> list[AckOutcome]:
        judged, news = self._judge(ack)
        if not news or not self._is_over(news):
            self._add(news)
            return judged
        judged, news = self._judge(dataclasses.replace(ack, done=EMPTY))
        self._add(news)
        return [limited(one.slots) if one.error_code is ErrorCode.NONE else one for one in judged]

    def _judge(self, ack: Ack) -> tuple[list[AckOutcome], list[AckedRange]]:
        """What becomes of the parts of an acknowledgement, and what of it is not done yet."""
        taking = self._taking
        _, judged = take_acks(
            self._progress, [ack], taking.holdings, taking.facts, taking.elsewhere
        )
        said = [
            AckedRange(one.slots, ack.watermark, ack.done)
            for one in judged
            if one.error_code is ErrorCode.NONE
        ]
        return judged, [one for one in said if any(True for _ in news_of(self._progress, one))]

    def _is_over(self, news: list[AckedRange]) -> bool:
        grown = joined([*self.acked, *news])
        growth = Growth(
            before=self._whole,
            after=with_acked(self._whole, news),
            ranges_count=self._others_ranges + sum(len(one.done) for one in grown),
            more_bytes=pending_bytes(grown) - (pending_bytes(self._before) if self._before else 0),
        )
        taking = self._taking
        return is_growth_over(self._progress, growth, taking.settings, taking.broker_bytes)

    def _add(self, news: list[AckedRange]) -> None:
        if news:
            self.news += news
            self.acked = joined([*self.acked, *news])
            self._whole = with_acked(self._whole, news)


# The end ----------------------------------------------------------------------------------------


def apply_acks(draft: ProgressDraft, key: PendingKey, pending: Pending) -> None:
    """What was acknowledged in a transaction that is committed is done."""
    tracked = draft.get(key.place)
    if tracked is None:
        return  # the group starts over without it, or it was never answered
    progress = tracked.progress
    epoch = max(progress.leader_epoch, pending.leader_epoch)
    delta = ProgressDelta(leader_epoch=epoch, acked=pending.acked)
    after = apply_delta(progress, delta)
    if after != progress:
        draft.add(key.place, delta, after)
