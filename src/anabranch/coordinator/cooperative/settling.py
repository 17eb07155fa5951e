"""What is still true of the progress that was read, when the logs are looked at after a start.

Rules
- The journal of progress and the committed offsets are written one after the other: of both the
  higher counts, for each was true when it was written.
- A log may have lost its end, and got other records in its place. Where the leader epoch of an
  offset, a committed one or that of the progress, ended below it, nothing from there on was done.
- Progress without a committed offset belongs to a group that was deleted, or was never answered. It
  does not count, and is forgotten, lest a later committed offset bring it back.
- What is acknowledged in transactions that are open is measured by its own leader epoch. It is
  written anew only when it is progress.
- What changes here is not written at once, but with the next record, which then is a snapshot; a
  timer sees to it that there is one. Until then every start comes to the same result.
"""

import dataclasses
from collections.abc import Collection, Mapping

from anabranch.coordinator.cooperative.book import (
    GroupProgress,
    ProgressBook,
    ProgressDraft,
    expired,
    with_acked,
)
from anabranch.coordinator.cooperative.commands import LogState
from anabranch.coordinator.cooperative.individual_commit import is_behind, projection
from anabranch.coordinator.cooperative.pending_acks import GroupPending, forgotten, joined
from anabranch.coordinator.cooperative.progress import (
    PartitionProgress,
    with_done,
    without_lost,
)
from anabranch.coordinator.cooperative.records import (
    AckedRange,
    AcksSettled,
    Place,
    ProgressSettled,
)
from anabranch.coordinator.group.commands import CommittedOffset
from anabranch.coordinator.group.offsets import Offsets, committed_offset
from anabranch.coordinator.group.records import GroupRecord, OffsetCommitted
from anabranch.coordinator.runtime.result import Result, TimerChange, TimerKey
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.offset_ranges import EMPTY
from anabranch.model.units import ALL_SLOTS


def settle_timer(group_id: str) -> TimerKey:
    """The time to write down what was found at the start."""
    return ("settle", group_id)


def epochs_in_doubt(
    known: GroupProgress, pending: GroupPending, offsets: Offsets, image: ClusterImage
) -> Mapping[Place, set[int]]:
    """The leader epochs whose ends have to be looked up in each log."""
    epochs: dict[Place, set[int]] = {}
    for place, tracked in known.items():
        committed = _committed(offsets, image, place)
        asked = {tracked.progress.leader_epoch}
        if committed is not None:
            asked.add(committed.leader_epoch)
        asked.update(one.leader_epoch for one in pending.get(place, {}).values())
        epochs[place] = {epoch for epoch in asked if epoch >= 0}
    return epochs


def logs_found(
    group_id: str,
    known: GroupProgress,
    offsets: Offsets,
    image: ClusterImage,
    logs: Mapping[Place, LogState],
    now_ms: int,
) -> Result:
    """Settle the progress of one group; nothing of it is durable."""
    records = []
    is_due = False
    for place, tracked in known.items():
        log = logs.get(place)
        if log is None:
            is_due = True  # the topic is gone: to be forgotten when there is time
            continue
        committed = _committed(offsets, image, place)
        settled = None
        if committed is not None:
            settled = _settled(tracked.progress, committed, log)
            is_due |= is_behind(settled, committed)
        if settled != tracked.progress:
            is_due = True
            records.append(
                ProgressSettled(
                    group_id=group_id, topic_id=place[0], partition=place[1], progress=settled
                )
            )
    timers = (TimerChange(settle_timer(group_id), now_ms),) if is_due else ()
    return Result(records=tuple(records), timers=timers)


def acks_found(pending: GroupPending, logs: Mapping[Place, LogState]) -> list[AcksSettled]:
    """What is still true of what one group has acknowledged in transactions that are open."""
    settled = []
    for place, of_place in pending.items():
        log = logs.get(place)
        for key, one in of_place.items() if log is not None else ():
            assert log is not None
            end_offset = _end_for(one.leader_epoch, log)
            acked = joined(
                AckedRange(part.slots, min(part.watermark, end_offset), part.done.below(end_offset))
                for part in one.acked
            )
            if acked != one.acked:
                settled.append(
                    AcksSettled(
                        group_id=key.group_id,
                        topic_id=place[0],
                        partition=place[1],
                        producer_id=key.producer_id,
                        member_id=key.member_id,
                        acked=acked,
                    )
                )
    return settled


def _settled(
    progress: PartitionProgress, committed: CommittedOffset, log: LogState
) -> PartitionProgress:
    settled = without_lost(progress, _end_for(progress.leader_epoch, log))
    offset = min(committed.offset, _end_for(committed.leader_epoch, log))
    settled = with_done(settled, ALL_SLOTS, offset, EMPTY)
    settled = with_acked(settled, expired(settled, log.log_start_offset))
    if settled == progress:
        return progress
    return dataclasses.replace(settled, leader_epoch=log.leader_epoch)


def _end_for(epoch: int, log: LogState) -> int:
    """Up to where the log has what it had in a leader epoch, as far as anybody can tell."""
    return min(log.epoch_ends.get(epoch, log.log_end_offset), log.log_end_offset)


def settle(
    group_id: str,
    book: ProgressBook,
    offsets: Offsets,
    image: ClusterImage,
    now_ms: int,
    blocked: Collection[tuple[str, int]] = (),
) -> Result:
    """Write down what was found at the start.

    Nothing is projected over offsets that are pending in transactions; their end sees to it.
    """
    known = book.of_group(group_id)
    draft = ProgressDraft(group_id, known)
    for place, sequence in book.left_of(group_id).items():
        draft.records += map(forgotten, book.pending.of_place(group_id, place))
        draft.forget(place, sequence)
    projected: list[GroupRecord] = []
    for (topic_id, partition), tracked in known.items():
        topic = image.by_id.get(topic_id)
        if topic is None:
            draft.records += map(forgotten, book.pending.of_place(group_id, (topic_id, partition)))
            draft.forget((topic_id, partition), tracked.sequence)
            continue
        if tracked.needs_snapshot:
            draft.begin((topic_id, partition), tracked.progress)
        committed = committed_offset(offsets, topic.name, topic_id, partition)
        is_blocked = (topic.name, partition) in blocked
        if not is_blocked and is_behind(tracked.progress, committed):
            projected.append(
                OffsetCommitted(
                    group_id=group_id,
                    topic=topic.name,
                    partition=partition,
                    value=projection(tracked.progress, topic_id, now_ms),
                )
            )
    return Result(records=(*draft.records, *projected))


def _committed(offsets: Offsets, image: ClusterImage, place: Place) -> CommittedOffset | None:
    topic = image.by_id.get(place[0])
    if topic is None:
        return None
    return committed_offset(offsets, topic.name, topic.topic_id, place[1])
