"""Level a crew, and let racks decide between choices that are equally good without them."""

from collections.abc import Sequence
from itertools import islice

from anabranch.coordinator.group.assignors.crews import Buckets, Crew, SortedKeys
from anabranch.coordinator.group.assignors.index import TargetIndex
from anabranch.coordinator.group.assignors.level import Leveling
from anabranch.coordinator.group.assignors.plan import Plan, Pool, Stack, Strip
from anabranch.coordinator.group.assignors.racks import Kind, Places, RackView, allot
from anabranch.model.units import Unit

# How many members are looked at before one unit each is taken from some of them: so many for each
# that is needed, and a few more. Looking at all would cost the size of the group.
LOOKS_PER_GIVER = 2
LOOKS_MORE = 8


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
        wanted = self._wanted
        return any(near in wanted for near in kind) - (rack in kind)

    def _choose(self, member_id: str, count: int) -> Sequence[Unit]:
        rack = self.index.holders[member_id].rack
        kinds = self._racks
        ranked = sorted(
            self.plan.kept(member_id),
            key=lambda unit: (self._gain(kinds.of(unit), rack), unit),
            reverse=True,
        )
        chosen = ranked[:count]
        for unit in chosen:
            self._promise(kinds.of(unit))
        return chosen

    def _promise(self, kind: Kind) -> None:
        """One more unit is on its way to a rack of its own, the one that wants most."""
        racks = [rack for rack in kind if rack in self._wanted]
        if racks:
            rack = max(racks, key=lambda rack: (self._wanted[rack], rack))
            self._wanted[rack] -= 1
            if not self._wanted[rack]:
                del self._wanted[rack]

    def _take_one_each(self, by_rack: list[tuple[str, SortedKeys]], count: int) -> None:
        looks = count * LOOKS_PER_GIVER + LOOKS_MORE
        share = -(-looks // len(by_rack))
        candidates = []
        for rack, keys in by_rack:
            for order, key in enumerate(islice(reversed(keys), max(share, count))):
                kept = self.plan.kept(self.index.member_ids[key])
                gain = max(self._gain(self._racks.of(unit), rack) for unit in kept)
                candidates.append((-gain, order, rack, key))
        candidates.sort()
        for _, _, _, key in candidates[:count]:
            self._take(key, 1)

    # Giving ---------------------------------------------------------------------------------------

    def _hand_out(self, extras: int) -> None:
        by_kind = self._racks.by_kind(self.pool.segments())
        supply = {
            kind: sum(len(partitions) for _, partitions in segments)
            for kind, segments in by_kind.items()
        }
        stacks = {kind: Stack(segments) for kind, segments in by_kind.items()}
        for rack, allotment in allot(supply, self._places(extras), extras).items():
            strip = Strip(
                segment
                for kind, count in allotment.units.items()
                for segment in stacks[kind].take(count)
            )
            start, extras = 0, allotment.extras
            for load in sorted(self.buckets.by_load):
                keys = self.buckets.by_load[load].get(rack)
                if keys is not None:
                    start, lucky = self._fill(keys, load, extras, strip, start)
                    extras -= lucky
            assert start == len(strip), "some units were left over"

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
