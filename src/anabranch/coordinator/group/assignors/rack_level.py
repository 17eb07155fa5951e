"""Level a crew, and let racks decide between choices that are equally good without them."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from anabranch.coordinator.group.assignors.crews import Buckets, Crew, Holder, SortedKeys
from anabranch.coordinator.group.assignors.index import TargetIndex
from anabranch.coordinator.group.assignors.level import Leveling
from anabranch.coordinator.group.assignors.plan import Plan, Pool, Stack, Strip
from anabranch.coordinator.group.assignors.racks import Kind, Places, RackView, allot
from anabranch.model.units import Unit

# How many members, beside those who are needed, are looked at before one unit each is taken from
# some of them. Looking at all would cost the size of the group.
LOOKS_MORE = 8
# How many units of such a member are looked at.
UNITS_MAX = 16


class RackLeveling(Leveling):
    """One crew whose members have racks."""

    def __init__(
        self,
        plan: Plan,
        index: TargetIndex,
        crew: Crew,
        buckets: Buckets,
        load: int,
        pool: Pool,
        racks: RackView,
    ) -> None:
        super().__init__(plan, index, crew, buckets, load, pool)
        self._racks = racks
        self._need = self._needs()
        self._gains: dict[str, dict[Kind, int]] = {}
        self._wanted = {rack: need for rack, need in self._need.items() if rack and need}

    def _needs(self) -> dict[str, int]:
        """How many units the members of each rack are short of."""
        need: dict[str, int] = {}
        for load, by_rack in self.buckets.by_load.items():
            if load < self.quota:
                for rack, keys in by_rack.items():
                    need[rack] = need.get(rack, 0) + (self.quota - load) * len(keys)
        return need

    # Taking ---------------------------------------------------------------------------------------

    def _gain(self, kind: Kind, rack: str) -> int:
        """What it brings to take such a unit out of a rack: units near their owner, -1 to 1."""
        return any(near in self._wanted for near in kind) - (rack in kind)

    def _choose(self, member_id: str, count: int) -> Sequence[Unit]:
        holder = self.index.holders[member_id]
        if count == 1:
            chosen = [self._best(holder)[1]]
        else:
            left = self.plan.left(holder)
            left = sorted(left, key=lambda unit: self._gain(self._racks.of(unit), holder.rack))
            chosen = left[-count:]
        for unit in chosen:
            self._promise(self._racks.of(unit))
        return chosen

    def _best(self, holder: Holder) -> tuple[int, Unit]:
        """The last of the units that it brings most to take from a member, and how much."""
        kind_of = self._racks.of
        gains = self._gains.setdefault(holder.rack, {})
        best_gain = -2
        for unit in self.plan.left(holder)[-UNITS_MAX:]:
            kind = kind_of(unit)
            gain = gains.get(kind)
            if gain is None:
                gain = gains[kind] = self._gain(kind, holder.rack)
            if gain >= best_gain:
                best_gain, best = gain, unit
        return best_gain, best

    def _promise(self, kind: Kind) -> None:
        """One more unit is on its way to a rack of its own, the one that wants most."""
        racks = [rack for rack in kind if rack in self._wanted]
        if racks:
            rack = max(racks, key=lambda rack: (self._wanted[rack], rack))
            self._wanted[rack] -= 1
            if not self._wanted[rack]:
                del self._wanted[rack]
                self._gains.clear()

    def _take_one_each(self, by_rack: list[tuple[str, SortedKeys]], count: int) -> None:
        # Some of each rack, by turns, until enough were looked at.
        looks = count + max(LOOKS_MORE, count // 2)
        candidates = []
        for order, key in enumerate(islice(_by_turns(keys for _, keys in by_rack), looks)):
            holder = self.index.holders[self.index.member_ids[key]]
            gain, unit = self._best(holder)
            candidates.append((-gain, order, holder, unit))
        # The order is different for each, so that holders are not compared.
        candidates.sort()
        for negative_gain, _, holder, unit in candidates[:count]:
            if self._gain(self._racks.of(unit), holder.rack) != -negative_gain:
                # Meanwhile the rack that wanted it has enough.
                unit = self._best(holder)[1]
            self._promise(self._racks.of(unit))
            self.plan.take(holder.member_id, (unit,))
            self.pool.add_units((unit,))

    # Giving ---------------------------------------------------------------------------------------

    def _hand_out(self, extras: int) -> None:
        by_kind = self._racks.by_kind(self.pool.segments())
        supply = {kind: sum(map(len, segments)) for kind, segments in by_kind.items()}
        stacks = {kind: Stack(segments) for kind, segments in by_kind.items()}
        for rack, allotment in allot(supply, self._places(extras), extras).items():
            strip = Strip(
                segment
                for kind, count in allotment.units.items()
                for segment in stacks[kind].take(count)
            )
            start = first = self.plan.add_strip(strip)
            extras = allotment.extras
            for load in sorted(self.buckets.by_load):
                keys = self.buckets.by_load[load].get(rack)
                if keys is not None:
                    start, lucky = self._fill(keys, load, extras, start)
                    extras -= lucky
            assert start - first == len(strip), "some units were left over"

    def _places(self, extras: int) -> dict[str, Places]:
        room: dict[str, int] = {}
        for load, by_rack in self.buckets.by_load.items():
            if extras and load <= self.quota:
                for rack, keys in by_rack.items():
                    room[rack] = room.get(rack, 0) + len(keys)
        return {
            rack: Places(self._need.get(rack, 0), room.get(rack, 0))
            for rack in sorted(self._need.keys() | room.keys())
        }


def _by_turns(sources: Iterable[SortedKeys]) -> Iterator[str]:
    """The last key of each source, then the last but one, as long as there are any."""
    waiting = deque(map(reversed, sources))
    while waiting:
        source = waiting.popleft()
        key = next(source, None)
        if key is not None:
            yield key
            waiting.append(source)
