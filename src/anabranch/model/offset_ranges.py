"""Sets of offsets as sorted ranges, both ends included: [43-45] and [48-49].

Ranges never touch or overlap: [45-47], [48-49] and [50-50] are one range, [45-50]. Every value is
immutable; whoever changes a set gets another one, so that a decision can be thrown away.

Offsets in ranges are inclusive at both ends, as KIP-X draws them, while every single offset of a
protocol (a watermark, a stable or committed offset) is the *next* one, as everywhere in Kafka: with
a watermark of 41 and [43-45] done, 41 and 42 are open.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int


class OffsetRanges:
    """A set of offsets."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """The union of any ranges, in any order; ValueError when one ends before it begins."""
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in sorted(ranges):
            if last < first:
                raise ValueError(f"a range cannot begin at {first} and end at {last}")
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        self._firsts = firsts
        self._lasts = lasts

    @classmethod
    def _of(cls, firsts: list[int], lasts: list[int]) -> "OffsetRanges":
        made = cls.__new__(cls)
        made._firsts, made._lasts = firsts, lasts
        return made

    # What is in it

    def __iter__(self) -> Iterator[OffsetRange]:
        return map(OffsetRange, self._firsts, self._lasts)

    def __len__(self) -> int:
        """How many ranges, not offsets."""
        return len(self._firsts)

    def __contains__(self, offset: int) -> bool:
        i = bisect_right(self._firsts, offset) - 1
        return i >= 0 and offset <= self._lasts[i]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    def __hash__(self) -> int:
        return hash((tuple(self._firsts), tuple(self._lasts)))

    def __repr__(self) -> str:
        return ", ".join(f"[{first}-{last}]" for first, last in self) or "none"

    @property
    def offsets_count(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def last(self) -> int:
        """The largest offset; ValueError when there is none."""
        if not self._lasts:
            raise ValueError("an empty set has no largest offset")
        return self._lasts[-1]

    def end_of_run(self, offset: int) -> int:
        """The first offset from `offset` on that is not in the set."""
        i = bisect_right(self._firsts, offset) - 1
        return self._lasts[i] + 1 if i >= 0 and offset <= self._lasts[i] else offset

    def gaps(self, first: int, last: int) -> "OffsetRanges":
        """What of [`first`, `last`] is not in the set."""
        return OffsetRanges([(first, last)]).without(self) if first <= last else EMPTY

    # Other sets

    def union(self, other: "OffsetRanges") -> "OffsetRanges":
        if not other:
            return self
        if not self:
            return other
        if len(other) == 1:
            return self._with_one(other._firsts[0], other._lasts[0])
        return OffsetRanges([*self, *other])

    def _with_one(self, first: int, last: int) -> "OffsetRanges":
        """Most unions add one range to many: two searches instead of a sort."""
        start = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if start < end:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[end - 1])
        return self._of(
            [*self._firsts[:start], first, *self._firsts[end:]],
            [*self._lasts[:start], last, *self._lasts[end:]],
        )

    def without(self, other: "OffsetRanges") -> "OffsetRanges":
        """What is in this set and not in the other."""
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in self:
            i = bisect_left(other._lasts, first)
            while i < len(other) and other._firsts[i] <= last:
                if first < other._firsts[i]:
                    firsts.append(first)
                    lasts.append(other._firsts[i] - 1)
                first = other._lasts[i] + 1
                i += 1
            if first <= last:
                firsts.append(first)
                lasts.append(last)
        return self._of(firsts, lasts)

    def intersection(self, other: "OffsetRanges") -> "OffsetRanges":
        return self.without(self.without(other))

    def at_or_above(self, offset: int) -> "OffsetRanges":
        """Without everything below `offset`."""
        i = bisect_left(self._lasts, offset)
        if i == len(self._lasts):
            return EMPTY
        if i == 0 and self._firsts[0] >= offset:
            return self
        return self._of([max(offset, self._firsts[i]), *self._firsts[i + 1 :]], self._lasts[i:])

    def below(self, offset: int) -> "OffsetRanges":
        """Without everything at or above `offset`."""
        i = bisect_left(self._firsts, offset)
        if i == 0:
            return EMPTY
        if self._lasts[i - 1] < offset:
            return self if i == len(self._firsts) else self._of(self._firsts[:i], self._lasts[:i])
        return self._of(self._firsts[:i], [*self._lasts[: i - 1], offset - 1])


EMPTY = OffsetRanges()
