"""A `line-cut` assignment in the making: whole lanes, hot slots, quotas, and the new cut.

See `line_cut` for the rules. A draft begins from nothing, or from a cover that is not even; both
ways lead over the same steps, which keep what they find where that is as good.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from anabranch.coordinator.cooperative.cuts import Piece, merge, overlay
from anabranch.coordinator.cooperative.line_group import FREE, PINNED, Cover, Lane, LineGroup
from anabranch.coordinator.cooperative.line_level import Leveling
from anabranch.coordinator.cooperative.load import Strip, cut_evenly, water_level
from anabranch.model.units import SLOT_COUNT

# How often lines are leveled against each other at most.
_ROUNDS_MAX = 32


class Draft:
    """A cover of all lanes in the making, from scratch or from one that is not even."""

    def __init__(
        self, group: LineGroup, covers: Sequence[Cover] | None, caps: Sequence[int] | None = None
    ) -> None:
        self.group = group
        nothing = [Piece(0, SLOT_COUNT, FREE)]
        self.covers: list[Cover] = list(covers) if covers else [nothing for _ in group.lanes]
        # What members have that leveling cannot touch: whole lanes and hot slots.
        self.fixed: list[int] = [0] * len(group.members)
        self.hot: list[tuple[Lane, int]] = []
        wholes = {lane.number for lane in group.lanes if not lane.is_divisible}
        placed = self._keep(wholes, caps) if caps else set()
        self._place([group.lanes[number] for number in sorted(wholes - placed)])
        self._pick(placed)
        self.fluid: list[list[Lane]] = [[] for _ in group.lines]
        self.weight = [lane.weights.total for lane in group.lanes]
        for lane in group.lanes:
            if lane.number not in wholes and lane.number not in placed:
                self.fluid[lane.line].append(lane)
                self._free(lane)
        self._pin_hot()

    # Whole lanes ----------------------------------------------------------------------------------

    def _give_whole(self, lane: Lane, owner: int) -> None:
        self.covers[lane.number] = [Piece(0, SLOT_COUNT, owner)]
        self.fixed[owner] += lane.weights.total

    def _keep(self, wholes: Collection[int], caps: Sequence[int]) -> set[int]:
        """Let members who have lanes that are to be whole keep them, up to their due."""
        kept = set()
        members = self.group.members
        for lane in sorted(self.group.lanes, key=lambda lane: (-lane.weights.total, lane.number)):
            cover = self.covers[lane.number]
            owner = cover[0].owner
            if len(cover) > 1 or owner == FREE:
                continue
            if lane.number not in wholes and members[owner].is_sharing:
                continue
            if self.fixed[owner] + lane.weights.total <= caps[owner]:
                self._give_whole(lane, owner)
                kept.add(lane.number)
        return kept

    def _place(self, lanes: Iterable[Lane]) -> None:
        """Give lanes that cannot be cut away, the heaviest first, each to whoever has least."""
        heaps: dict[int, list[tuple[int, bool, int]]] = {}
        members = self.group.members
        for lane in sorted(lanes, key=lambda lane: (-lane.weights.total, lane.number)):
            heap = heaps.get(lane.line)
            if heap is None:
                numbers = self.group.lines[lane.line].members
                heap = heaps[lane.line] = [
                    (self.fixed[n], members[n].is_sharing, n) for n in numbers
                ]
                heapify(heap)
            while heap[0][0] != self.fixed[heap[0][2]]:
                _, is_sharing, number = heap[0]
                heapreplace(heap, (self.fixed[number], is_sharing, number))
            self._give_whole(lane, heap[0][2])

    def _pick(self, placed: set[int]) -> None:
        """Members that do not share take whole lanes that others could share, and mark them."""
        group = self.group
        open_lanes: list[list[tuple[int, bool, int]]] = [[] for _ in group.lines]
        for lane in group.lanes:
            if lane.is_divisible and lane.number not in placed:
                is_taken = self.covers[lane.number][0].owner != FREE
                open_lanes[lane.line].append((lane.weights.total, is_taken, lane.number))
        burden = [0.0] * len(group.lines)
        for number, (line, lanes) in enumerate(zip(group.lines, open_lanes, strict=True)):
            lanes.sort()
            burden[number] = sum(weight for weight, _, _ in lanes)
            burden[number] += sum(self.fixed[sharer] for sharer in line.sharers)
        heap = [(self.fixed[n], n) for n, m in enumerate(group.members) if not m.is_sharing]
        heapify(heap)
        mine: dict[frozenset[str], list[int]] = {}
        while heap:
            load, number = heappop(heap)
            topics = group.members[number].topics
            if topics not in mine:
                lines = enumerate(group.lines)
                mine[topics] = [at for at, line in lines if number in line.members and line.sharers]
            lines_left = [at for at in mine[topics] if open_lanes[at]]
            if not lines_left:
                continue
            at = max(lines_left, key=lambda at: (burden[at] / len(group.lines[at].sharers), -at))
            level = burden[at] / len(group.lines[at].sharers)
            lanes = open_lanes[at]
            # The heaviest that fits, of equals the first one, if possible one that is free.
            fits = bisect_left(lanes, (level - load, False, -1))
            if load and not fits:
                continue
            weight = lanes[fits - 1 if fits else 0][0]
            _, _, taken = lanes.pop(bisect_left(lanes, (weight, False, -1)))
            burden[at] -= weight
            self._give_whole(group.lanes[taken], number)
            placed.add(taken)
            heappush(heap, (self.fixed[number], number))

    def _free(self, lane: Lane) -> None:
        """Take a lane that is to be shared from members that do not."""
        members = self.group.members
        self.covers[lane.number] = merge(
            piece
            if piece.owner != FREE and members[piece.owner].is_sharing
            else Piece(piece.first, piece.end, FREE)
            for piece in self.covers[lane.number]
        )

    # Hot slots and quotas -------------------------------------------------------------------------

    def _pin_hot(self) -> None:
        """Give slots that are more than a fair load to members of their own, and find quotas."""
        group = self.group
        pinned: set[tuple[int, int]] = set()
        shares = self._shares()
        while True:
            self.quotas = self._leveled(shares)
            self.due = [float(load) for load in self.fixed]
            for quota in self.quotas:
                for number, weight in quota.items():
                    self.due[number] += weight
            found = []
            for at, line in enumerate(group.lines):
                if not self.quotas[at]:
                    continue
                level = max(self.due[number] for number in line.sharers)
                for lane in self.fluid[at]:
                    for slot in lane.weights.heavier_than(level + group.grain):
                        if (lane.number, slot) not in pinned:
                            weight = lane.weights.of(slot, slot + 1)
                            found.append((-weight, lane.number, slot))
            if not found:
                return
            for weight, number, slot in sorted(found):
                pinned.add((number, slot))
                self._pin(group.lanes[number], slot, -weight)

    def _pin(self, lane: Lane, slot: int, weight: int) -> None:
        cover = self.covers[lane.number]
        (owner,) = (p.owner for p in cover if p.first <= slot < p.end)
        sharers = self.group.lines[lane.line].sharers
        owner = min(sharers, key=lambda number: (self.fixed[number], number != owner, number))
        self.covers[lane.number] = overlay(cover, slot, slot + 1, PINNED - owner)
        self.fixed[owner] += weight
        self.weight[lane.number] -= weight
        self.hot.append((lane, slot))

    def _shares(self) -> list[dict[int, float]]:
        """What sharers have of each line."""
        found: list[dict[int, float]] = []
        for at, line in enumerate(self.group.lines):
            shares = dict.fromkeys(line.sharers, 0.0) if self.fluid[at] else {}
            for lane in self.fluid[at]:
                for first, end, owner in self.covers[lane.number]:
                    if owner != FREE:
                        shares[owner] += lane.weights.of(first, end)
            found.append(shares)
        return found

    def _leveled(self, shares: Sequence[Mapping[int, float]]) -> list[dict[int, float]]:
        """What sharers should have of each line, so that loads are as even as lines allow.

        Line by line, given the others, until nothing changes: the loads' squares add up to less
        each time, and there is only one way for them to be least.
        """
        found = [dict(share) for share in shares]
        loads = [float(load) for load in self.fixed]
        for share in found:
            for number, weight in share.items():
                loads[number] += weight
        amounts = [sum(self.weight[lane.number] for lane in lanes) for lanes in self.fluid]
        busy = [at for at, share in enumerate(found) if share]
        for _ in range(_ROUNDS_MAX if len(busy) > 1 else 1):
            change = 0.0
            for at in busy:
                share = found[at]
                for number, weight in share.items():
                    loads[number] -= weight
                level = water_level(amounts[at], [loads[number] for number in share])
                for number, weight in share.items():
                    share[number] = max(0.0, level - loads[number])
                    loads[number] += share[number]
                    change = max(change, abs(share[number] - weight))
            if change <= self.group.grain:
                break
        return found

    def slack(self, number: int) -> float:
        """How far a member's load may be from its due."""
        return self.group.rules.tolerance * self.due[number]

    # The rest of the lanes ------------------------------------------------------------------------

    def cut(self) -> None:
        """Share out what is not whole: each line is cut into pieces in a row."""
        for at, quotas in enumerate(self.quotas):
            for lane in self.fluid[at]:
                self.covers[lane.number] = merge(
                    Piece(first, end, min(owner, FREE))
                    for first, end, owner in self.covers[lane.number]
                )
            if quotas:
                self._cut_line(at, quotas)
        self._unpin()

    def level(self) -> bool:
        """Share out what is not whole: members give up and get as much as they have to.

        False if there is so little to be kept that it is not worth the effort.
        """
        for at, quotas in enumerate(self.quotas):
            if quotas:
                slack = {number: self.slack(number) for number in quotas}
                partials_max = self.group.rules.partials_max
                if not Leveling(self.fluid[at], self.covers, quotas, slack, partials_max).run():
                    return False
        self._unpin()
        return True

    def _unpin(self) -> None:
        for lane, _ in self.hot:
            cover = self.covers[lane.number]
            self.covers[lane.number] = merge(
                Piece(first, end, owner if owner > PINNED else PINNED - owner)
                for first, end, owner in cover
            )

    def _cut_line(self, at: int, quotas: Mapping[int, float]) -> None:
        left = dict(quotas)
        slack = {number: self.slack(number) for number in quotas}
        # What those who still lack something may lack in the end: so much may others have above
        # their quotas.
        bearable = sum(slack[number] for number in left if left[number] > slack[number])
        rest = []
        heap = [(-quota, number) for number, quota in left.items()]
        heapify(heap)
        for lane in sorted(
            self.fluid[at], key=lambda lane: (-self.weight[lane.number], lane.number)
        ):
            weight = self.weight[lane.number]
            number = heap[0][1]
            # A lane with a hot slot is cut already.
            is_whole = weight == lane.weights.total
            after = left[number] - weight
            cost = max(0.0, -after)
            if left[number] > slack[number] >= after:
                cost += slack[number]
            if is_whole and after >= -slack[number] and (after >= 0 or cost <= bearable):
                self.covers[lane.number] = [Piece(0, SLOT_COUNT, number)]
                left[number] = after
                bearable -= cost
                heapreplace(heap, (-after, number))
            else:
                rest.append(lane)
        if not rest:
            return
        rest.sort()
        parts = [
            (lane, first, end)
            for lane in rest
            for first, end, owner in self.covers[lane.number]
            if owner == FREE
        ]
        strip = Strip((lane.weights, first, end) for lane, first, end in parts)
        takers = _takers(left, slack, strip.total)
        places = cut_evenly(strip, list(takers.values()))
        for number, begin, until in zip(takers, places, places[1:], strict=False):
            for part, first, end in strip.pieces(begin, until):
                lane = parts[part][0]
                self.covers[lane.number] = overlay(self.covers[lane.number], first, end, number)


def _takers(
    left: Mapping[int, float], slack: Mapping[int, float], weight: float
) -> dict[int, float]:
    """Who gets how much of what was too heavy to go whole.

    Everybody who lacks more than the tolerance; others only as far as these cannot take it all,
    because every part of a partition costs a reader.
    """
    takers: dict[int, float] = {}
    room = 0.0
    for number in sorted(left, key=lambda number: (-left[number], number)):
        if left[number] <= slack[number] and room >= weight:
            break
        takers[number] = left[number]
        room += left[number] + slack[number]
    more = (weight - sum(takers.values())) / len(takers)
    return {number: max(0.0, takers[number] + more) for number in sorted(takers)}
