"""The load of one group as it was measured, and what to do about it.

Whoever measures calls `report` as members tell how long they were busy, and `judge` every few
seconds with what arrives and what waits; the answer are ranges that should move, if any.

Rules
- What a slot weighs is its records per second, those that arrive and those that wait and should be
  done within a while, times what a record costs (see `load`). So a group that works off a backlog
  is balanced by what is left to do, and not by what happens to arrive meanwhile.
- When to move what is decided in `resplit`. Where small moves do not help any more although
  somebody has too much, the line is cut anew by the same weights, if that helps, and no more often
  than the pause between rounds.
- Who is a member, and what of, is what a state speaks of: when that changes it is forgotten. Costs
  belong to slots and stay.
- Weights are given to the assignor of later targets (`weights`) once ranges were moved by load:
  before that a group has ranges of equal width, as everybody expects. While a group has next to
  nothing to do the weights stay as they were when it had.
- A hot slot is named if it is work that counts.

Nothing here is stored: after a restart cuts are as they were, and loads are measured anew.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.coordinator.cooperative.cuts import (
    Partition,
    RangeMember,
    RangeTopic,
    covers_of,
    split,
)
from anabranch.coordinator.cooperative.line_cut import line_cut
from anabranch.coordinator.cooperative.line_group import HotSlot
from anabranch.coordinator.cooperative.load import RecordCosts, SlotWeights
from anabranch.coordinator.cooperative.resplit import (
    DEFAULT_RULES,
    Move,
    ResplitRules,
    ResplitState,
    Verdict,
    acted_rate,
    decide,
)
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group as it was when somebody looked."""

    group_epoch: int
    members: Sequence[RangeMember]
    topics: Sequence[RangeTopic]
    # What everybody should have, and whether they have it.
    owners: Mapping[str, Collection[Unit]]
    is_settled: bool

    @property
    def shape(self) -> object:
        """What a judgement depends on; another one starts over."""
        return frozenset((m.member_id, m.topics, m.is_sharing) for m in self.members)

    def shared_places(self) -> list[Partition]:
        """The partitions that members have of which they may have parts, in order."""
        shareable = {topic.topic_id for topic in self.topics if topic.is_shareable}
        sharing = (member.member_id for member in self.members if member.is_sharing)
        units = (unit for name in sharing for unit in self.owners.get(name, ()))
        return sorted({unit[:2] for unit in units if unit.topic_id in shareable})


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do; `imbalance` is the highest load of a member over the mean of all."""

    verdict: Verdict
    moves: tuple[Move, ...] = ()
    imbalance: float = 1.0
    hot: tuple[HotSlot, ...] = ()


def rules_for(interval_ms: int) -> ResplitRules:
    """The rules for a look every so often; pauses and half-lives are so many looks."""
    return ResplitRules(
        # A timer that fires a little early is a look all the same.
        tick_ms=interval_ms - interval_ms // 10,
        growing_pause_ms=6 * interval_ms,
        shrinking_pause_ms=60 * interval_ms,
    )


def half_life_for(interval_ms: int) -> int:
    """After which time a measurement counts half."""
    return 6 * interval_ms


class GroupBalance:
    """What is remembered of one group."""

    def __init__(self, half_life_ms: int) -> None:
        self._half_life_ms = half_life_ms
        self._costs: dict[Partition, RecordCosts] = {}
        # What was reported since the last judgement: records, and nanoseconds.
        self._reports: dict[tuple[Partition, SlotRange], tuple[int, int]] = {}
        self._state = ResplitState()
        self._shape: object = None
        self._recut_ms: int | None = None
        self._weights: dict[Partition, SlotWeights] = {}
        self._has_moved = False

    @property
    def weights(self) -> Mapping[Partition, SlotWeights]:
        """What the assignor goes by; nothing before ranges were moved by load."""
        return self._weights if self._has_moved else {}

    def report(self, place: Partition, slots: SlotRange, records: int, busy_ns: int) -> None:
        """A member was so long busy with so many records of slots that it has.

        No time at all is what a member says that does not measure it.
        """
        if records > 0 and busy_ns > 0:
            known_records, known_ns = self._reports.get((place, slots), (0, 0))
            self._reports[place, slots] = known_records + records, known_ns + busy_ns

    def judge(
        self,
        view: GroupView,
        rates: Mapping[Partition, Mapping[int, float]],
        now_ms: int,
        *,
        is_behind: bool = False,
        rules: ResplitRules = DEFAULT_RULES,
    ) -> Judgement:
        """Look at a group with what its slots have to do, in records per second.

        `is_behind` is whether that is much more than what arrives.
        """
        self._take_reports(rates, now_ms)
        weights = {place: self._costs[place].weights(of_slots) for place, of_slots in rates.items()}
        if view.shape != self._shape:
            self._shape = view.shape
            self._state = ResplitState()
            self._recut_ms = None
        rate = sum(sum(of_slots.values()) for of_slots in rates.values())
        decision = decide(
            self._state,
            view.members,
            view.topics,
            view.owners,
            weights,
            now_ms,
            is_settled=view.is_settled,
            is_behind=is_behind,
            rate=rate,
            rules=rules,
        )
        self._state = decision.state
        verdict, moves = decision.verdict, decision.moves
        if verdict is Verdict.STUCK and self._may_recut(now_ms, rules):
            self._recut_ms = now_ms
            moves = _recut(view, weights, rules)
            if moves:
                verdict = Verdict.MOVING
                self._state = ResplitState(now_ms, 0, now_ms, acted_rate(rate, is_behind=is_behind))
        self._has_moved = self._has_moved or bool(moves)
        if sum(some.total for some in weights.values()) >= rules.load_min:
            self._weights = weights
        hot = tuple(
            one
            for one in decision.hot
            if weights[one.topic_id, one.partition].of(one.slot, one.slot + 1) >= rules.load_min
        )
        return Judgement(verdict, moves, decision.imbalance, hot)

    def _take_reports(self, places: Collection[Partition], now_ms: int) -> None:
        for place in places:
            if place not in self._costs:
                self._costs[place] = RecordCosts(self._half_life_ms)
        for place in self._costs.keys() - set(places):
            del self._costs[place]
        reports, self._reports = self._reports, {}
        for (place, slots), (records, busy_ns) in sorted(reports.items()):
            if place in self._costs:
                self._costs[place].report(slots, busy_ns, records, now_ms)

    def _may_recut(self, now_ms: int, rules: ResplitRules) -> bool:
        if self._recut_ms is None:
            return True
        return not 0 <= now_ms - self._recut_ms < rules.growing_pause_ms


def _recut(
    view: GroupView, weights: Mapping[Partition, SlotWeights], rules: ResplitRules
) -> tuple[Move, ...]:
    """The moves to a new cut of the line, if whoever has most is better off by it."""
    cut = line_cut(view.members, view.topics, view.owners, weights)
    sharing = {member.member_id for member in view.members if member.is_sharing}
    moves = tuple(_differences(view.owners, cut.targets, weights))
    if any(move.source not in sharing or move.target not in sharing for move in moves):
        return ()  # whole partitions of others would have to move: not for the sake of load
    loads = {
        name: sum(weights[unit[:2]].of(*unit.slots) for unit in units if unit[:2] in weights)
        for name, units in view.owners.items()
        if name in sharing
    }
    before, mean = max(loads.values()), sum(loads.values()) / len(loads)
    for move in moves:
        loads[move.source] -= move.load
        loads[move.target] += move.load
    return moves if before - max(loads.values()) >= rules.gain_min * mean else ()


def _differences(
    before: Mapping[str, Collection[Unit]],
    after: Mapping[str, Collection[Unit]],
    weights: Mapping[Partition, SlotWeights],
) -> list[Move]:
    old, new = covers_of(before, before), covers_of(after, after)
    found = []
    for place, cover in new.items():
        was = old.get(place, [])
        bounds = [piece.first for piece in (*cover, *was)]
        for slots in split([ALL_SLOTS], bounds):
            (owner,) = (p.owner for p in cover if p.first <= slots.first < p.end)
            source = next((p.owner for p in was if p.first <= slots.first < p.end), None)
            if source != owner and source is not None and owner is not None:
                load = weights[place].of(*slots) if place in weights else 0
                unit = Unit(*place, slots if slots != (0, SLOT_COUNT) else ALL_SLOTS)
                found.append(Move(unit, source, owner, load))
    return found
