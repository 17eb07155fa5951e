"""How a batch is cut into tasks: by key range, never by offset. Pure.

A split is (partition, offsets [start, end), slots). All splits of a partition have the same
offsets, and their slots tile all slots there are. So every record is in exactly one split; a key
has one slot, so all its records are in one split, in their order; and since batches follow one
another, they are in order across batches too, however the cuts differ from one to the next.

Cuts follow the load where it is known: the largest split is as small as it can be. They stay as
they were while that is not much better: a broker keeps a table for each cut. A single key is never
cut, so it is what limits the rest.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Literal

from anabranch.branch.slots import BRANCHES_MAX, slots_of_branch
from anabranch.model.units import SLOT_COUNT, SlotRange

Place = tuple[str, int]
Cut = tuple[SlotRange, ...]

AUTO_RECORDS: Final = 10_000
"""With `branches=auto`, there is a split for each so many records, ..."""
AUTO_MAX: Final = 16
"""... up to so many of one partition."""
_SAMPLES_PER_RANGE = 16
_GOOD_ENOUGH = 1.05


@dataclass(frozen=True, slots=True)
class Wish:
    """How many splits the options ask for."""

    branches: int | Literal["auto"] | None = None
    min_partitions: int | None = None
    max_records: int | None = None
    min_records: int = 1000


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads."""

    topic: str
    topic_id: bytes
    partition: int
    start_offset: int
    end_offset: int
    slots: SlotRange
    firsts: tuple[int, ...]
    """The first slots of all splits of the partition: who reads beside this one. Each split has
    them, and there may be a thousand: so only these."""

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def cut(self) -> Cut:
        return tuple(SlotRange(*pair) for pair in pairwise((*self.firsts, SLOT_COUNT)))


def split_counts(sizes: Mapping[Place, int], wish: Wish) -> dict[Place, int]:
    """Into how many splits each partition is cut, by how many offsets of it there are to read."""
    counts: dict[Place, int] = {}
    for place, size in sizes.items():
        if wish.branches == "auto":
            wanted = min(AUTO_MAX, -(-size // AUTO_RECORDS))
        else:
            wanted = wish.branches or 1
        counts[place] = wanted
    if wish.min_partitions is not None and sum(counts.values()) < wish.min_partitions:
        for place, share in _shares(sizes, wish.min_partitions).items():
            counts[place] = max(counts[place], share)
    for place, size in sizes.items():
        worth = max(1, size // wish.min_records)
        needed = -(-size // wish.max_records) if wish.max_records is not None else 1
        counts[place] = min(BRANCHES_MAX, max(1, needed, min(counts[place], worth)))
    return counts


def _shares(sizes: Mapping[Place, int], total: int) -> dict[Place, int]:
    """`total` splits, shared by size; each partition has one, the largest rests come first."""
    everything = sum(sizes.values())
    exact = {place: total * size / everything for place, size in sizes.items()}
    shares = {place: max(1, int(share)) for place, share in exact.items()}
    missing = total - sum(shares.values())
    by_rest = sorted(sizes, key=lambda place: (shares[place] - exact[place], place))
    for place in by_rest[: max(0, missing)]:
        shares[place] += 1
    return shares


def equal_cut(count: int) -> Cut:
    """Ranges of the same number of slots."""
    return tuple(slots_of_branch(index, count) for index in range(count))


def cut_by_load(count: int, loads: Mapping[int, float], before: Cut = ()) -> Cut:
    """At most `count` ranges that tile all slots, the most loaded of which has least.

    `loads` are records, or whatever is counted, by slot, as a sample found them; with few of them
    the ranges are equal. The cut that was used `before` is kept if it is nearly as good.
    """
    if count == 1:
        return equal_cut(1)
    if sum(loads.values()) < count * _SAMPLES_PER_RANGE:
        return before if len(before) == count else equal_cut(count)
    slots = sorted(loads)
    sums = [0.0, *accumulate(loads[slot] for slot in slots)]
    capacity = _least_capacity(sums, count)
    if len(before) == min(count, len(slots)):
        worst = max(_load_between(slots, sums, one) for one in before)
        if worst <= capacity * _GOOD_ENOUGH:
            return before
    ends = _even_ends(sums, count, capacity)
    firsts = [0, *(slots[end] for end in ends[:-1]), SLOT_COUNT]
    return tuple(SlotRange(first, end) for first, end in pairwise(firsts) if first < end)


def _load_between(slots: Sequence[int], sums: Sequence[float], one: SlotRange) -> float:
    return sums[bisect_left(slots, one.end)] - sums[bisect_left(slots, one.first)]


def _filled(sums: Sequence[float], start: int, capacity: float) -> int:
    """How far a range may go that has no more than this."""
    return bisect_right(sums, sums[start] + capacity) - 1


def _least_capacity(sums: Sequence[float], count: int) -> float:
    """The smallest load that the largest of so many ranges can have."""
    low = max(b - a for a, b in pairwise(sums))
    low, high = max(low, sums[-1] / count), sums[-1]
    for _ in range(40):
        middle = (low + high) / 2
        position = 0
        for _ in range(count):
            position = _filled(sums, position, middle)
        if position == len(sums) - 1:
            high = middle
        else:
            low = middle
        if high - low <= high * 1e-3:
            break
    return high


def _even_ends(sums: Sequence[float], count: int, capacity: float) -> list[int]:
    """Where each range ends: as even as it can be with none above the capacity."""
    last = len(sums) - 1
    # From where on the rest fits into the ranges that follow.
    least = [last]
    for _ in range(count - 1):
        least.append(bisect_left(sums, sums[least[-1]] - capacity))
    least.reverse()
    ends: list[int] = []
    position = 0
    for index in range(count):
        left = count - index
        target = sums[position] + (sums[last] - sums[position]) / left
        near = bisect_left(sums, target)
        if near > position + 1 and target - sums[near - 1] < sums[min(near, last)] - target:
            near -= 1
        # Every range has something, as long as there is anything.
        near = max(near, position + 1, least[index])
        position = min(near, max(position + 1, _filled(sums, position, capacity)), last)
        ends.append(position)
        if position == last:
            break
    ends[-1] = last
    return ends
