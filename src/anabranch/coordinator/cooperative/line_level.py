"""Leveling one line: members give up what they have too much and get what they lack, no more.

Three steps. Who has more than its quota and the slack gives up what is above the quota: parts of
partitions first, and the smallest first, so that cuts heal. Who has less than its quota less the
slack is fed up to the quota, from what is free and then from members that can spare something,
partition by partition. What is still free goes to those who have room for it. Neighbours come
first in each step, because what joins a member's range is no new range.

Nothing here promises a balance; whoever calls looks at what came out.
"""

from bisect import bisect_left
from collections.abc import Mapping, MutableSequence, Sequence

from anabranch.coordinator.cooperative.cuts import Piece, overlay
from anabranch.coordinator.cooperative.line_group import FREE, Cover, Lane
from anabranch.model.units import SLOT_COUNT

# Members that lack something times pieces: about half a second.
_EFFORT_MAX = 100_000


class Leveling:
    """A line whose members are leveled; `covers` are those of all lanes and are changed."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        covers: MutableSequence[Cover],
        quotas: Mapping[int, float],
        slack: Mapping[int, float],
        partials_max: int,
    ) -> None:
        self.lanes = lanes
        self.covers = covers
        self.quotas = quotas
        self.slack = slack
        self.partials_max = partials_max
        self.have = dict.fromkeys(quotas, 0)
        # What each member has of each lane.
        self.of_lane: dict[int, dict[int, int]] = {number: {} for number in quotas}
        self.takers: set[int] = set()
        for lane in lanes:
            for piece in covers[lane.number]:
                if piece.owner >= 0:
                    self._count(lane, piece.owner, lane.weights.of(piece.first, piece.end))

    def run(self) -> bool:
        """All three steps; False if it is not worth the effort.

        So it is where nobody has anything, and where very many lack something in a long line:
        then most of it moves in any case.
        """
        quotas, slack = self.quotas, self.slack
        takers = [n for n, have in self.have.items() if have < quotas[n] - slack[n]]
        pieces = sum(len(self.covers[lane.number]) for lane in self.lanes)
        if not any(self.have.values()) or len(takers) * pieces > _EFFORT_MAX:
            return False
        self._release()
        takers = [n for n, have in self.have.items() if have < quotas[n] - slack[n]]
        self.takers.update(takers)
        whole = [lane for lane in self.lanes if self.covers[lane.number] == _NOTHING]
        whole.sort(key=lambda lane: (-lane.weights.total, lane.number))
        for number in sorted(takers, key=lambda n: (self.have[n] - quotas[n], n)):
            self._feed(number, whole)
        self._place(whole)
        return True

    def _count(self, lane: Lane, number: int, weight: int) -> None:
        self.have[number] += weight
        of_lane = self.of_lane[number]
        of_lane[lane.number] = of_lane.get(lane.number, 0) + weight
        if not of_lane[lane.number]:
            del of_lane[lane.number]

    def _move(self, lane: Lane, first: int, end: int, old: int, new: int) -> int:
        """Slots of one owner find another; their weight."""
        weight = lane.weights.of(first, end)
        if weight:
            self.covers[lane.number] = overlay(self.covers[lane.number], first, end, new)
            if old >= 0:
                self._count(lane, old, -weight)
            if new >= 0:
                self._count(lane, new, weight)
        return weight

    def _lacks(self, number: int) -> float:
        return self.quotas[number] - self.have[number]

    def _room(self, number: int) -> float:
        return self._lacks(number) + self.slack[number]

    def _spare(self, number: int) -> float:
        """What a member can give away although it does not have to."""
        return 0.0 if number in self.takers else self.slack[number] - self._lacks(number)

    # Giving up ------------------------------------------------------------------------------------

    def _release(self) -> None:
        givers = [n for n, have in self.have.items() if have > self.quotas[n] + self.slack[n]]
        cells: dict[int, list[tuple[bool, int, int, Lane, Piece[int]]]] = {n: [] for n in givers}
        for lane in self.lanes:
            cover = self.covers[lane.number]
            for piece in cover:
                if piece.owner in cells:
                    weight = lane.weights.of(piece.first, piece.end)
                    cells[piece.owner].append((len(cover) == 1, weight, lane.number, lane, piece))
        # Slots are coarse: what one giver keeps above its quota the next one keeps less.
        over = 0.0
        for number in sorted(givers, key=lambda n: (self._lacks(n), n)):
            due = self.quotas[number] - over
            self._give_up(number, self.have[number] - due, sorted(cells[number]))
            over = self.have[number] - due

    def _give_up(
        self, number: int, amount: float, cells: Sequence[tuple[bool, int, int, Lane, Piece[int]]]
    ) -> None:
        rest = []
        for cell in cells:
            _, weight, _, lane, (first, end, _) = cell
            if weight <= amount + _margin(lane):
                amount -= self._move(lane, first, end, number, FREE)
            else:
                rest.append((lane, first, end))
        for lane, first, end in rest:
            weights, margin = lane.weights, _margin(lane)
            for from_left in self._sides(lane, first):
                if amount < weights.base:
                    return
                if from_left:
                    at = weights.reach(first, end, amount + margin)
                    amount -= self._move(lane, first, at, number, FREE)
                    first = at
                else:
                    at = weights.reach_back(first, end, amount + margin)
                    amount -= self._move(lane, at, end, number, FREE)
                    end = at

    def _sides(self, lane: Lane, first: int) -> tuple[bool, bool]:
        """Which end of a range to begin at: that of a neighbour who is in want, else the right."""
        left, right = self._neighbours(lane, first)
        begin_left = self._wants(left) and not self._wants(right)
        return begin_left, not begin_left

    def _neighbours(self, lane: Lane, first: int) -> tuple[int | None, int | None]:
        """The owners of the pieces beside a piece."""
        cover = self.covers[lane.number]
        at = bisect_left(cover, (first,))
        left = cover[at - 1].owner if at else None
        right = cover[at + 1].owner if at + 1 < len(cover) else None
        return left, right

    def _wants(self, number: int | None) -> bool:
        if number is None:
            return False
        return number == FREE or (number >= 0 and self._lacks(number) > self.slack[number])

    # Getting --------------------------------------------------------------------------------------

    def _partials(self, number: int) -> set[int]:
        """The lanes that a member has a part of."""
        return {lane for lane in self.of_lane[number] if len(self.covers[lane]) > 1}

    def _feed(self, number: int, whole: list[Lane]) -> None:
        for lane in whole.copy():
            if lane.weights.total <= self._room(number):
                whole.remove(lane)
                self._move(lane, 0, SLOT_COUNT, FREE, number)
        # What is free has to go somewhere; only what is not enough is asked of others.
        for may_ask in (False, True):
            while self._lacks(number) >= 1:
                best = self._best_lane(number, may_ask)
                if best is None or not self._take(number, best, may_ask):
                    break
                if best in whole:
                    whole.remove(best)

    def _best_lane(self, number: int, may_ask: bool) -> Lane | None:
        """Where to take a part: where the member has one, then where most can be had."""
        partials = self._partials(number)
        may_begin = len(partials) < self.partials_max
        lacks = self._lacks(number)
        best: tuple[bool, float, int, int] | None = None
        found = None
        for lane in self.lanes:
            if lane.number not in partials and not may_begin:
                continue
            free, supply = self._supply(lane, number, may_ask)
            if supply < lane.weights.base:
                continue
            score = (lane.number in partials, min(supply, lacks), free, -lane.number)
            if best is None or score > best:
                best, found = score, lane
        return found

    def _supply(self, lane: Lane, number: int, may_ask: bool) -> tuple[int, float]:
        """How much of a lane is free, and how much can be had altogether."""
        free = 0
        holders = set()
        for first, end, owner in self.covers[lane.number]:
            if owner == FREE:
                free += lane.weights.of(first, end)
            elif may_ask and owner >= 0 and owner != number:
                holders.add(owner)
        supply = float(free)
        for holder in holders:
            supply += max(0.0, min(self._spare(holder), self.of_lane[holder][lane.number]))
        return free, supply

    def _take(self, number: int, lane: Lane, may_ask: bool) -> bool:
        """Take what a member lacks from a lane; whether anything was there."""
        has_taken = False
        useless: set[tuple[int, int]] = set()
        while self._lacks(number) >= 1:
            best = None
            cover = self.covers[lane.number]
            for at, piece in enumerate(cover):
                if piece[:2] in useless or piece.owner == number or piece.owner < FREE:
                    continue
                spare = self._spare(piece.owner) if may_ask and piece.owner >= 0 else 0.0
                if piece.owner != FREE and spare < lane.weights.base:
                    continue
                is_left = at > 0 and cover[at - 1].owner == number
                is_near = is_left or (at + 1 < len(cover) and cover[at + 1].owner == number)
                score = (piece.owner == FREE, is_near, spare, -piece.first)
                if best is None or score > best[0]:
                    best = (score, piece, is_left)
            if best is None:
                return has_taken
            _, piece, is_left = best
            if self._take_of(number, lane, piece, is_left):
                has_taken = True
            else:
                useless.add(piece[:2])
        return has_taken

    def _take_of(self, number: int, lane: Lane, piece: Piece[int], from_left: bool) -> int:
        first, end, owner = piece
        weights = lane.weights
        amount = self._lacks(number)
        if owner != FREE:
            amount = min(amount, self._spare(owner))
        if from_left:
            at = weights.reach(first, end, amount)
            short = amount - weights.of(first, at)
            if owner == FREE and at < end and weights.of(first, at + 1) - amount <= short:
                at += 1
            return self._move(lane, first, at, owner, number)
        at = weights.reach_back(first, end, amount)
        short = amount - weights.of(at, end)
        if owner == FREE and at > first and weights.of(at - 1, end) - amount <= short:
            at -= 1
        return self._move(lane, at, end, owner, number)

    # What is left ---------------------------------------------------------------------------------

    def _place(self, whole: Sequence[Lane]) -> None:
        """Find owners for what is still free: a whole lane whole, a part beside its neighbour."""
        for lane in whole:
            number = max(self.quotas, key=lambda n: (self._room(n), -n))
            if self._room(number) >= lane.weights.total:
                self._move(lane, 0, SLOT_COUNT, FREE, number)
        for lane in self.lanes:
            while True:
                free = next((p for p in self.covers[lane.number] if p.owner == FREE), None)
                if free is None:
                    break
                self._place_part(lane, free.first, free.end)

    def _place_part(self, lane: Lane, first: int, end: int) -> None:
        left, right = self._neighbours(lane, first)
        weights = lane.weights
        near = [n for n in (left, right) if n is not None and n >= 0]
        near = [n for n in near if weights.reach(first, end, self._room(n)) > first]
        if near:
            number = max(near, key=lambda n: (self._room(n), -n))
        else:
            holders = {piece.owner for piece in self.covers[lane.number]}
            number = max(
                self.quotas,
                key=lambda n: (
                    self._room(n) >= weights.base
                    and (n in holders or len(self._partials(n)) < self.partials_max),
                    self._room(n),
                    -n,
                ),
            )
        amount = max(self._room(number), 1.0)
        if number == right and number != left:
            at = min(weights.reach_back(first, end, amount), end - 1)
            self._move(lane, at, end, FREE, number)
        else:
            at = max(weights.reach(first, end, amount), first + 1)
            self._move(lane, first, at, FREE, number)


def _margin(lane: Lane) -> float:
    """How much more than it has to a member gives up: a heavy slot does not stay for so little."""
    return 0.01 * lane.weights.heaviest


_NOTHING: Cover = [Piece(0, SLOT_COUNT, FREE)]
