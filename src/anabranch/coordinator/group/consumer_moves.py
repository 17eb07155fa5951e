"""Key ranges that change hands while nobody comes or goes: `MoveRanges`.

Somebody outside has looked at the group, at its load or at a record that is stuck, and says which
slots should be with whom. By the time it is said the group may have gone on.

Rules
- Moves were decided for one group epoch. A group that has another one, that waits for a target, or
  whose topics are no longer those of its epoch, stays as it is: a new target is there or comes.
- Slots go from a member that shares to another one that shares, is there, and subscribes to the
  topic; the topic must still allow it. What does not fit stays where it is, without a word.
- Without a target the slots go to whoever has least of all who may have them, their owner left
  out: by weight where weights are known, else by number of slots. With nobody else they stay.
- Later moves see what earlier ones did. If nothing is different in the end nothing is written.
- What moves is a new target at a new group epoch: ranges are then given up, drained and granted as
  after any other change.
"""

from collections.abc import Mapping

from anabranch.coordinator.cooperative.cuts import (
    Partition,
    Piece,
    covers_of,
    overlay,
    units_of,
)
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.group.consumer_commands import MoveRanges, RangeMove
from anabranch.coordinator.group.consumer_draft import ConsumerDraft
from anabranch.coordinator.group.consumer_state import STATIC_LEAVING_EPOCH
from anabranch.coordinator.group.consumer_target import put_target, wanted_hash
from anabranch.model.units import SLOT_COUNT, SlotRange

_EVERY_SLOT_ALIKE = SlotWeights()


def move_ranges(draft: ConsumerDraft, command: MoveRanges) -> None:
    """Have the ranges change hands that still can."""
    group = draft.group
    if draft.group_epoch != command.group_epoch or draft.target_epoch != command.group_epoch:
        return
    if wanted_hash(draft) != group.metadata_hash:
        return
    before = {member_id: draft.target(member_id) for member_id in draft.members()}
    covers = covers_of(before, before)
    for move in command.moves:
        _apply(draft, covers, move)
    after = units_of(covers)
    # Units that lie side by side count as one here, and as several in the target.
    merged = units_of(covers_of(before, before))
    changed = {
        member_id: after.get(member_id, frozenset())
        for member_id in before
        if after.get(member_id) != merged.get(member_id)
    }
    if changed:
        draft.write_epoch(draft.group_epoch + 1, group.metadata_hash, command.cause)
        put_target(draft, changed)


_Covers = dict[Partition, list[Piece[str | None]]]


def _apply(draft: ConsumerDraft, covers: _Covers, move: RangeMove) -> None:
    """One move, owner by owner of the slots that it names."""
    topic_id, partition, (first, end) = move.unit
    topic = draft.environment.image.by_id.get(topic_id)
    place = (topic_id, partition)
    if topic is None or not topic.is_shareable or place not in covers:
        return
    sharers = {
        member.member_id: member
        for member in draft.members().values()
        if member.shares and topic.name in draft.topics_of(member)
    }
    # Who is away for a while could not take anything before it is back.
    present = [
        member_id
        for member_id, member in sharers.items()
        if member.member_epoch != STATIC_LEAVING_EPOCH
    ]
    for piece in list(covers[place]):
        slots = SlotRange(max(first, piece.first), min(end, piece.end))
        if slots.first >= slots.end or piece.owner not in sharers:
            continue
        heirs = [member_id for member_id in present if member_id != piece.owner]
        if move.target is not None:
            heirs = [member_id for member_id in heirs if member_id == move.target]
        if len(heirs) > 1:
            loads = _loads(covers, draft.environment.slot_weights())
            heirs.sort(key=lambda member_id: (loads.get(member_id, 0), member_id))
        if heirs:
            covers[place] = overlay(covers[place], *slots, heirs[0])


def _loads(
    covers: Mapping[Partition, list[Piece[str | None]]], weights: Mapping[Partition, SlotWeights]
) -> dict[str | None, int]:
    """What everybody has; where nothing is known of a partition it counts like others do."""
    known = [weights[place] for place in covers if place in weights]
    usual = _EVERY_SLOT_ALIKE
    if known:
        usual = SlotWeights(
            base=max(1, sum(some.total for some in known) // (len(known) * SLOT_COUNT))
        )
    loads: dict[str | None, int] = {}
    for place, cover in covers.items():
        of = weights.get(place, usual).of
        for first, end, owner in cover:
            loads[owner] = loads.get(owner, 0) + of(first, end)
    return loads
