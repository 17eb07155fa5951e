"""Plain commits where a group has progress, or members that work on parts of a partition.

Rules
- The owner of the whole partition speaks for all its slots: its committed offset is their
  watermark. What is done above it stays done; whoever commits less than everybody has done goes
  back, and has everything from there on done again.
- Nobody else in the group can: neither the owner of a part, who would skip what others have yet to
  do, nor somebody without any part of it.
- In a group without members an administrator, or a consumer that assigns itself its partitions, may
  commit: everything starts over from there.
- Who starts over or goes back has everything done again, so what is pending in transactions is
  forgotten, whichever way they end. Otherwise it stays: what is done is done in any order.
"""

import dataclasses
from collections.abc import Iterable

from anabranch.coordinator.cooperative.book import GroupProgress, ProgressDraft, apply_delta
from anabranch.coordinator.cooperative.holdings import holdings_of, is_shared
from anabranch.coordinator.cooperative.pending_acks import PendingKey, forgotten
from anabranch.coordinator.cooperative.progress import new_progress
from anabranch.coordinator.cooperative.records import AckedRange, Place, ProgressDelta
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT


def check_owner(
    group: ConsumerGroup, member_id: str, place: Place, progress: GroupProgress
) -> ErrorCode:
    """Whether a member, if there is any, may commit for a whole partition."""
    if not group.members or not (progress or group.held_ranges):
        return ErrorCode.NONE
    held = holdings_of(group.members[member_id], *place).slots
    if sum(slots.end - slots.first for slots in held) == SLOT_COUNT:
        return ErrorCode.NONE
    if held:
        return ErrorCode.INVALID_REQUEST
    if place in progress or is_shared(group.owners, *place):
        return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE


def take_plain_commit(
    draft: ProgressDraft,
    place: Place,
    offset: int,
    pending: Iterable[PendingKey],
    *,
    is_reset: bool,
) -> None:
    """The group committed an offset for the whole partition: everything below it is done.

    What is done above stays done when it was said by a member. A reset by an administrator, and a
    member that goes back, make everything from the offset on to be done again, what is `pending`
    there too.
    """
    known = draft.get(place)
    if known is None:
        return
    progress, offset = known.progress, max(offset, 0)
    epoch = progress.leader_epoch
    if is_reset or offset < progress.stable_offset:
        draft.begin(place, dataclasses.replace(new_progress(offset), leader_epoch=epoch))
        draft.records += map(forgotten, pending)
        return
    delta = ProgressDelta(leader_epoch=epoch, acked=(AckedRange(ALL_SLOTS, offset),))
    after = apply_delta(progress, delta)
    if after != progress:
        draft.add(place, delta, after)
