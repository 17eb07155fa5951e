"""The `line-cut` assignor: whole partitions first, then cuts; even by load; as few moves as can be.

All partitions with the same subscribers lie end to end on a line. Each slot has a weight, its load;
where none is known all slots weigh the same. The line is cut into as many pieces of equal weight as
there are members.

Rules
- Members that do not share, and stock members, get whole partitions, before anybody else: each at
  least one while there are any, and more as long as that lowers the load of the others. Topics that
  do not allow sharing are given whole as well.
- A slot is never split. One that is heavier than a member's fair load is a hot slot: whoever has it
  has nothing else that counts, and it is reported.
- The rest is shared by the members that share: partitions that fit go whole, what is left is cut.
  A member has at most two parts of partitions of a line, and a partition that is left over goes to
  as few members as the tolerance allows, because each of them makes the broker read all of it.
- Of all cuts into pieces in a row the one whose largest piece is smallest is taken.
- What is assigned stays while nobody's load is further than the tolerance from what a new cut would
  give. Otherwise members give up what they have too much and get what they lack, and no more; a
  part of a partition may then be several ranges. If that does not lead to a balance, would give a
  member parts of too many partitions, or leaves more cut than a little more moving would, the line
  is cut anew, and each piece goes to the member that has most of it: of all ways to hand out the
  pieces the one that moves least.
- A cut that comes very near to an edge that was there is made at that edge.
- With several subscriptions, lines share members: loads are leveled between lines until it helps no
  more, and each line is cut by itself.
- Co-partitioned topics with the same subscribers and equally many partitions may be cut alike, so
  that a key of both meets one member.

The same members, topics, weights and owners give the same answer, in whatever order they come, and
asking again changes nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from anabranch.coordinator.cooperative.cuts import Partition, RangeMember, RangeTopic
from anabranch.coordinator.cooperative.line_draft import Draft
from anabranch.coordinator.cooperative.line_group import (
    DEFAULT_RULES,
    Assignment,
    Cover,
    HotSlot,
    Lane,
    LineCutRules,
    LineGroup,
    Way,
)
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.model.units import Unit

__all__ = ["NAME", "Assignment", "HotSlot", "LineCutRules", "Way", "line_cut"]

NAME = "line-cut"


def line_cut(
    members: Iterable[RangeMember],
    topics: Iterable[RangeTopic],
    held: Mapping[str, Collection[Unit]],
    weights: Mapping[Partition, SlotWeights] | None = None,
    rules: LineCutRules = DEFAULT_RULES,
) -> Assignment:
    """Targets for all members; `held` is what they have, or were to have, until now."""
    group = LineGroup(members, topics, weights or {}, rules)
    before = group.covers_of(held)
    legal = group.legal(before)
    fresh = Draft(group, None)
    fresh.cut()
    fair = group.loads(fresh.covers)
    if group.is_complete(legal) and group.is_even(group.loads(legal), fair):
        return group.assignment(legal, before, fresh.hot, Way.KEPT)
    due = group.ranked(fair, group.loads(legal))
    cut = group.handed_out(fresh.covers, before)
    draft = Draft(group, legal, due)
    if any(draft.fixed):
        # Another new cut, around whole partitions and hot slots that stay where they are.
        around = Draft(group, legal, due)
        around.cut()
        if group.is_even(group.loads(around.covers), fair):
            cut = group.handed_out(around.covers, before)
    if (
        draft.level()
        and group.is_even(group.loads(draft.covers), fair)
        and group.is_well_shaped(draft.covers, legal)
        and group.cost(draft.covers, before) <= group.cost(cut, before)
    ):
        return _rounded(group, draft.covers, before, fair, fresh.hot, Way.LEVELED)
    return _rounded(group, cut, before, fair, fresh.hot, Way.CUT)


def _rounded(
    group: LineGroup,
    covers: Sequence[Cover],
    before: Sequence[Cover],
    fair: Sequence[int],
    hot: Iterable[tuple[Lane, int]],
    way: Way,
) -> Assignment:
    """Cuts at edges that are there, if that is as even."""
    rounded = group.without_slivers(covers, before)
    if group.is_even(group.loads(rounded), fair):
        covers = rounded
    return group.assignment(covers, before, hot, way)
