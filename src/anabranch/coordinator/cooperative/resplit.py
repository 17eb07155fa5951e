"""Moving small ranges between members while they work, when the load has been uneven for a while.

A pure decision: what was decided before, who has what, how much each slot is, and the time go in;
moves and a new state come out. Whoever calls every few seconds writes the moves into the target;
slots then change hands as in every other assignment.

Rules
- Loads are uneven if a member has more than 1.25 times the mean, and could have less. Who has only
  a hot slot could not: a slot is never split.
- It acts after three uneven ticks of 5 s in a row. While a move or an assignment is under way the
  loads say nothing, and ticks start over.
- After it acted it pauses: 30 s while the load grows or stays, because somebody is overloaded, and
  5 min while it shrinks, because then time helps too. A group that works off a backlog has less to
  do all the time, and is overloaded nevertheless (`is_behind`).
- One round moves a fifth of the load at most, in intervals of an eighth of a fair load, and takes
  no more than half of its load from anybody. A slot that is heavier than that moves as the only one
  of its round. The most overloaded member gives first, light slots before heavy ones, to whoever
  has least of those who read the same partitions, and beside ranges that the taker has.
- A move never takes somebody below a fair load or lifts somebody above it, except by a single slot
  that leaves both better off. So the squares of the loads add up to less with every round, and
  under a constant load the moves end.
- Only members that share give and take, only slots of topics that allow it and whose load is known
  move, and every slot keeps having one owner: a move says from whom to whom.
- A slot that is more than a fair load is hot and is named, with its owner and share.
- If nothing can be moved that helps although somebody is overloaded, it says so (`stuck`); a new
  cut by `line-cut` with the same weights may still help, at the price of larger moves.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from anabranch.coordinator.cooperative.cuts import (
    Partition,
    Piece,
    RangeMember,
    RangeTopic,
    covers_of,
    member_order,
    overlay,
    units_of,
)
from anabranch.coordinator.cooperative.line_group import HotSlot
from anabranch.coordinator.cooperative.load import SlotWeights, water_level
from anabranch.model.units import SlotRange, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class ResplitRules:
    """When to act, and how much at once; shares are of a fair load if nothing else is said."""

    tick_ms: int = 5_000
    # Uneven is a load of more than so many times the mean, for so many ticks.
    imbalance: float = 1.25
    ticks: int = 3
    growing_pause_ms: int = 30_000
    shrinking_pause_ms: int = 300_000
    # Of the load of all, and of that of a member, in one round.
    moved_max: float = 0.2
    given_max: float = 0.5
    interval_max: float = 0.125
    # Or as many as there are members, if these are more.
    moves_max: int = 64
    # What is not worth a move.
    gain_min: float = 0.05
    interval_min: float = 0.01
    # Nobody is overloaded with less than so much work per second: 2 % of a worker's time.
    load_min: int = 20_000_000
    partials_max: int = 3
    ranges_max: int = 8


DEFAULT_RULES = ResplitRules()
# A load that fell by less than this is taken for one that stays: measured loads waver.
_SHRUNK = 0.8


@dataclass(frozen=True, slots=True)
class ResplitState:
    """What has to be remembered of the ticks before; nothing is lost if it is forgotten."""

    tick_ms: int | None = None
    uneven_ticks: int = 0
    acted_ms: int | None = None
    acted_rate: float = 0.0


class Verdict(Enum):
    """Why moves were made, or none."""

    EARLY = "early"
    UNSETTLED = "unsettled"
    EVEN = "even"
    WATCHING = "watching"
    PAUSING = "pausing"
    STUCK = "stuck"
    MOVING = "moving"


class Move(NamedTuple):
    """Slots that go from one member to another, and their load."""

    unit: Unit
    source: str
    target: str
    load: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and what to come back with; `imbalance` is the highest load over the mean."""

    state: ResplitState
    moves: tuple[Move, ...]
    verdict: Verdict
    imbalance: float = 1.0
    hot: tuple[HotSlot, ...] = ()


def decide(
    state: ResplitState,
    members: Iterable[RangeMember],
    topics: Iterable[RangeTopic],
    owners: Mapping[str, Collection[Unit]],
    weights: Mapping[Partition, SlotWeights],
    now_ms: int,
    *,
    is_settled: bool = True,
    is_behind: bool = False,
    rate: float | None = None,
    rules: ResplitRules = DEFAULT_RULES,
) -> Decision:
    """One tick. `is_settled` is whether members have what `owners` says, with nothing under way.

    `is_behind` is whether there is more to do than what arrives. Whether the load shrinks is told
    by `rate`, the records per second, where it is known: what a record costs is measured, and
    seems to fall when members are not as busy any more.
    """
    since_ms = rules.tick_ms if state.tick_ms is None else now_ms - state.tick_ms
    # A clock that was set back is a tick too, else it would be waited for.
    if 0 <= since_ms < rules.tick_ms:
        return Decision(state, (), Verdict.EARLY)
    if not is_settled:
        state = replace(state, tick_ms=now_ms, uneven_ticks=0)
        return Decision(state, (), Verdict.UNSETTLED)
    view = _Round(members, topics, owners, weights, rules)
    is_in_a_row = 0 <= since_ms <= 2 * rules.tick_ms
    ticks = (state.uneven_ticks if is_in_a_row else 0) + 1 if view.is_uneven() else 0
    state = replace(state, tick_ms=now_ms, uneven_ticks=min(ticks, rules.ticks))
    moves: tuple[Move, ...] = ()
    rate = view.total if rate is None else rate
    if not ticks:
        verdict = Verdict.EVEN
    elif ticks < rules.ticks:
        verdict = Verdict.WATCHING
    elif _is_pausing(state, rate, is_behind, now_ms, rules):
        verdict = Verdict.PAUSING
    else:
        moves = tuple(view.run())
        verdict = Verdict.MOVING if moves else Verdict.STUCK
        if moves:
            state = ResplitState(now_ms, 0, now_ms, acted_rate(rate, is_behind=is_behind))
    return Decision(state, moves, verdict, view.imbalance, view.hot)


def acted_rate(rate: float, *, is_behind: bool) -> float:
    """What later rates are compared with: a backlog that is gone is not a load that shrinks."""
    return 0.0 if is_behind else rate


def _is_pausing(
    state: ResplitState, rate: float, is_behind: bool, now_ms: int, rules: ResplitRules
) -> bool:
    if state.acted_ms is None:
        return False
    is_shrinking = rate < state.acted_rate * _SHRUNK and not is_behind
    pause_ms = rules.shrinking_pause_ms if is_shrinking else rules.growing_pause_ms
    return 0 <= now_ms - state.acted_ms < pause_ms


def moved(
    owners: Mapping[str, Collection[Unit]], moves: Iterable[Move]
) -> dict[str, frozenset[Unit]]:
    """Who has what after these moves."""
    covers = covers_of(owners, owners)
    for (topic_id, partition, (first, end)), _, target, _ in moves:
        key = (topic_id, partition)
        covers[key] = overlay(covers[key], first, end, target)
    nothing: dict[str, frozenset[Unit]] = dict.fromkeys(owners, frozenset())
    return nothing | units_of(covers)


_Cover = list[Piece[str | None]]


class _Offer(NamedTuple):
    """Slots that could move; the first two say how well they fit."""

    is_beside: bool
    is_at_edge: bool
    load: int
    key: Partition
    first: int
    end: int


class _Round:
    """Loads as they are and, move by move, as they will be."""

    def __init__(
        self,
        members: Iterable[RangeMember],
        topics: Iterable[RangeTopic],
        owners: Mapping[str, Collection[Unit]],
        weights: Mapping[Partition, SlotWeights],
        rules: ResplitRules,
    ) -> None:
        self.rules = rules
        self.weights = weights
        ordered = sorted(members, key=member_order)
        self.topics = {topic.topic_id: topic for topic in topics}
        self.covers = covers_of(owners, {one.member_id for one in ordered})
        names = {self.topics[key[0]].name for key in self.covers if self._may_move(key)}
        # Those who could have some of what can be moved; others are no measure.
        self.sharers = {
            one.member_id: one.topics
            for one in ordered
            if one.is_sharing and not names.isdisjoint(one.topics)
        }
        # Where each has something.
        self.places: dict[str, set[Partition]] = {name: set() for name in self.sharers}
        self.loads: dict[str, int] = dict.fromkeys(self.sharers, 0)
        self.fixed: dict[str, int] = dict.fromkeys(self.sharers, 0)
        for key, cover in self.covers.items():
            for first, end, owner in cover:
                if owner in self.loads:
                    self.places[owner].add(key)
                if owner in self.loads and key in weights:
                    load = weights[key].of(first, end)
                    self.loads[owner] += load
                    if not self._may_move(key):
                        self.fixed[owner] += load
        self.total = sum(self.loads.values())
        self.mean = self.total / max(1, len(self.loads))
        self.imbalance = max(self.loads.values(), default=0) / self.mean if self.total else 1.0
        self.hot = self._find_hot()
        self.due = self._find_due()
        # What the round, and the member that gives, may still move.
        self._budget = self._allowance = 0.0
        self._moves_left = 0
        self._is_untouched = True

    def _may_move(self, key: Partition) -> bool:
        topic = self.topics.get(key[0])
        return topic is not None and topic.is_shareable and key in self.weights

    def _find_hot(self) -> tuple[HotSlot, ...]:
        found: list[HotSlot] = []
        if not self.total:
            return ()
        line = max(self.mean, self.rules.load_min)
        for key, cover in self.covers.items():
            if self._may_move(key):
                weights = self.weights[key]
                for slot in weights.heavier_than(line):
                    (owner,) = (p.owner for p in cover if p.first <= slot < p.end)
                    if owner in self.loads:
                        share = weights.of(slot, slot + 1) / self.total
                        found.append(HotSlot(*key, slot, owner, share))
        return tuple(sorted(found, key=lambda hot: (-hot.share, hot)))

    def _find_due(self) -> dict[str, float]:
        """What everybody should have: a fair load, or what cannot be taken from it."""
        fixed = self.fixed.copy()
        # Of several hot slots of one member all but the first have to go elsewhere.
        for name, load in {hot.member_id: hot.share for hot in reversed(self.hot)}.items():
            fixed[name] += round(load * self.total)
        level = water_level(self.total - sum(fixed.values()), fixed.values())
        return {name: max(level, load) for name, load in fixed.items()}

    def _surplus(self, name: str) -> float:
        return self.loads[name] - self.due[name]

    def is_uneven(self) -> bool:
        """Whether somebody has too much and could have less."""
        if len(self.loads) < 2:
            return False
        line = max(self.rules.imbalance * self.mean, self.rules.load_min)
        gain = self.rules.gain_min * self.mean
        return any(load > line and self._surplus(n) >= gain for n, load in self.loads.items())

    # Moves ----------------------------------------------------------------------------------------

    def run(self) -> list[Move]:
        """The moves of one round; the loads are then as they will be."""
        rules = self.rules
        self._budget = rules.moved_max * self.total
        self._moves_left = max(rules.moves_max, len(self.loads))
        enough = rules.gain_min * self.mean
        sources = [name for name in self.loads if self._surplus(name) >= enough]
        takers = [name for name in self.loads if self._surplus(name) < enough]
        moves: list[Move] = []
        for source in sorted(sources, key=lambda name: (-self._surplus(name), name)):
            self._allowance = rules.given_max * self.loads[source]
            for move in self._light_moves(source, takers):
                moves.append(move)
            # Only heavier slots are left.
            while self._surplus(source) >= enough:
                heavy = self._heavy_move(source, takers)
                if heavy is None:
                    break
                moves.append(heavy)
        return moves

    def _limit(self) -> float:
        return min(self._budget, self._allowance) if self._moves_left else 0.0

    def _light_moves(self, source: str, takers: Iterable[str]) -> Iterator[Move]:
        """Intervals that bring both members nearer to their due; one taker after the other.

        Those come first who have a part of the same partitions: parts of many are bad for all.
        """
        rules = self.rules
        places = self.places[source]
        least = rules.interval_min * self.mean
        for target in sorted(
            takers,
            key=lambda name: (places.isdisjoint(self.places[name]), self._surplus(name), name),
        ):
            while True:
                room = min(self._surplus(source), -self._surplus(target))
                amount = min(self._limit(), room, rules.interval_max * self.mean)
                offer = self._best_offer(source, target, amount) if amount >= least else None
                if offer is None or offer.load < least:
                    break
                yield self._move(offer, source, target)
            if self._surplus(source) < least:
                return

    def _heavy_move(self, source: str, takers: Iterable[str]) -> Move | None:
        """A single slot, if both members are better off with it at the other one."""
        least = self.rules.interval_min * self.mean
        gain = self.rules.gain_min * self.mean
        for target in sorted(takers, key=lambda name: (self.loads[name], name)):
            gap = self.loads[source] - self.loads[target]
            limit = self._limit()
            amount = gap - gain if self._is_untouched else min(limit, gap - gain)
            if amount < least:
                return None
            offer = self._heavy_offer(source, target, amount, gap / 2)
            if offer is not None and offer.load >= least:
                move = self._move(offer, source, target)
                if move.load > limit:
                    # The finest move there is was too much for a round, and is all of it.
                    self._moves_left = 0
                return move
        return None

    def _move(self, offer: _Offer, source: str, target: str) -> Move:
        _, _, load, key, first, end = offer
        cover = self.covers[key] = overlay(self.covers[key], first, end, target)
        self.places[target].add(key)
        if not any(piece.owner == source for piece in cover):
            self.places[source].discard(key)
        self.loads[source] -= load
        self.loads[target] += load
        self._budget -= load
        self._allowance -= load
        self._moves_left -= 1
        self._is_untouched = False
        return Move(Unit(*key, SlotRange(first, end)), source, target, load)

    def _open_pieces(
        self, source: str, target: str
    ) -> Iterator[tuple[Partition, _Cover, int, bool]]:
        """Pieces of one member that may go to another, and whether only if they join its own."""
        rules = self.rules
        partials = {key for key in self.places[target] if len(self.covers[key]) > 1}
        for key in sorted(self.places[source]):
            topic = self.topics.get(key[0])
            if topic is None or not self._may_move(key) or topic.name not in self.sharers[target]:
                continue
            if key not in partials and len(partials) >= rules.partials_max:
                continue
            cover = self.covers[key]
            ranges = sum(piece.owner == target for piece in cover)
            for at, piece in enumerate(cover):
                if piece.owner == source:
                    yield key, cover, at, ranges >= rules.ranges_max

    def _best_offer(self, source: str, target: str, amount: float) -> _Offer | None:
        """The slots that weigh nearly so much and fit best: none heavier than that."""
        best = None
        for key, cover, at, must_join in self._open_pieces(source, target):
            weights = self.weights[key]
            if weights.base > amount:
                continue
            first, end, _ = cover[at]
            is_left = at > 0 and cover[at - 1].owner == target
            is_right = at + 1 < len(cover) and cover[at + 1].owner == target
            begin = first
            for heavy in (*weights.heavier_than(amount, first, end), end):
                if begin < heavy:
                    up_to = weights.reach(begin, heavy, amount)
                    down_to = weights.reach_back(begin, heavy, amount)
                    load_up, load_down = weights.of(begin, up_to), weights.of(down_to, heavy)
                    offers = (
                        _Offer(
                            is_left and begin == first, begin == first, load_up, key, begin, up_to
                        ),
                        _Offer(
                            is_right and heavy == end, heavy == end, load_down, key, down_to, heavy
                        ),
                    )
                    for offer in offers:
                        if must_join and not offer.is_beside:
                            continue
                        if best is None or _fitness(offer, amount) > _fitness(best, amount):
                            best = offer
                begin = heavy + 1
        return best

    def _heavy_offer(self, source: str, target: str, amount: float, ideal: float) -> _Offer | None:
        """The single slot up to so much that comes nearest to the ideal."""
        best = None
        for key, cover, at, must_join in self._open_pieces(source, target):
            weights = self.weights[key]
            first, end, _ = cover[at]
            floor = max(self.rules.interval_min * self.mean, weights.base)
            for slot in weights.heavier_than(floor, first, end):
                load = weights.of(slot, slot + 1)
                near = (
                    (slot == first and at > 0 and cover[at - 1].owner == target)
                    or (slot + 1 == end and at + 1 < len(cover) and cover[at + 1].owner == target)
                )  # fmt: skip
                if load <= amount and (near or not must_join):
                    offer = _Offer(near, slot in (first, end - 1), load, key, slot, slot + 1)
                    if best is None or abs(load - ideal) < abs(best.load - ideal):
                        best = offer
        return best


def _fitness(offer: _Offer, amount: float) -> tuple[bool, bool, bool, int, tuple[bytes, int, int]]:
    """At least half of what is wanted; then beside the taker's, at an edge, and as much as can."""
    place = (offer.key[0], -offer.key[1], -offer.first)
    return 2 * offer.load >= amount, offer.is_beside, offer.is_at_edge, offer.load, place
