"""Level a crew: the same number of units for everybody, or one more, with as few moves as can be.

Rules
- With q = units div members and e = units mod members, e members end with q + 1 units, the others
  with q. Those who have most keep the extra ones, so that a crew that is level stays as it is.
- Who has too many gives up what is too much, and nothing else. Static members give last.
- Who has too few gets what was given up and what was free.
- All choices left are by order of members and units, or by rack (see `rack_level`).
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from anabranch.coordinator.group.assignors.crews import Buckets, Crew, SortedKeys
from anabranch.coordinator.group.assignors.index import TargetIndex
from anabranch.coordinator.group.assignors.plan import Plan, Pool, Strip
from anabranch.model.units import Unit


class Leveling:
    """One crew, what it has and what comes to it."""

    def __init__(
        self, plan: Plan, index: TargetIndex, crew: Crew, buckets: Buckets, load: int, pool: Pool
    ) -> None:
        """`buckets` and `load` are those of the crew after what it gave to other crews."""
        self.plan = plan
        self.index = index
        self.buckets = buckets
        self.pool = pool
        self.quota, self.extras = divmod(load + pool.size, crew.size)

    def run(self) -> None:
        """Write into the plan what makes the crew level."""
        quota = self.quota
        high = sum(self.buckets.count(load) for load in self.buckets.by_load if load > quota)
        down = max(0, high - self.extras)
        for key, count in self._far_above(down):
            self._take(key, count)
        far = sum(self.buckets.count(load) for load in self.buckets.by_load if load > quota + 1)
        if down > far:
            self._take_one_each(self.buckets.racks_at(quota + 1), down - far)
        if self.pool.size:
            self._hand_out(max(0, self.extras - high))

    # Taking ---------------------------------------------------------------------------------------

    def _far_above(self, down: int) -> Iterator[tuple[str, int]]:
        """Those with more than one unit above the quota; `down` of them go down to it."""
        for load in sorted(self.buckets.by_load, reverse=True):
            if load <= self.quota + 1:
                return
            for _, keys in self.buckets.racks_at(load):
                for key in reversed(keys):
                    yield key, load - self.quota - (0 if down > 0 else 1)
                    down -= 1

    def _take(self, key: str, count: int) -> None:
        member_id = self.index.member_ids[key]
        units = self._choose(member_id, count)
        self.plan.take(member_id, units)
        self.pool.add_units(units)

    def _choose(self, member_id: str, count: int) -> Sequence[Unit]:
        """The units that a member gives up: the last ones."""
        return self.plan.left(self.index.holders[member_id])[-count:]

    def _take_one_each(self, by_rack: list[tuple[str, SortedKeys]], count: int) -> None:
        """Take one unit from so many of these members."""
        for _, keys in by_rack:
            for key in islice(reversed(keys), count):
                self._take(key, 1)
                count -= 1

    # Giving ---------------------------------------------------------------------------------------

    def _hand_out(self, extras: int) -> None:
        """Fill everybody up to the quota, and `extras` members one above it."""
        strip = Strip(self.pool.segments())
        start = first = self.plan.add_strip(strip)
        for load in sorted(self.buckets.by_load):
            for _, keys in self.buckets.racks_at(load):
                start, lucky = self._fill(keys, load, extras, start)
                extras -= lucky
        assert start - first == len(strip), "some units were left over"

    def _fill(self, keys: SortedKeys, load: int, extras: int, start: int) -> tuple[int, int]:
        """Fill members with equally many units; where the strip goes on, and the extras used."""
        need = self.quota - load
        if need < 0 or (need == 0 and extras == 0):
            return start, 0
        lucky = min(extras, len(keys))
        # With nothing but extras to give, the others need not be looked at.
        chosen = islice(keys, lucky) if need == 0 else keys
        member_ids = list(map(self.index.member_ids.__getitem__, chosen))
        if lucky:
            start = self.plan.give(member_ids[:lucky], need + 1, start, has_units=load > 0)
        if need and lucky < len(member_ids):
            start = self.plan.give(member_ids[lucky:], need, start, has_units=load > 0)
        return start, lucky
