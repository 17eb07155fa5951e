"""How much work each slot is: measured arrivals times what a record costs its owner.

    load(slot) = arrivals per second x busy time per record

in nanoseconds of work per second: a slot with 1,000,000,000 keeps one worker busy all the time.
Weights are integers, so that sums are exact and the same loads give the same answer anywhere.

Rules
- Arrivals are counted by the broker and averaged exponentially: a count that is one half-life old
  counts half.
- The cost of a record is what its owner reports for the interval it owns: time spent on records,
  and how many, the older the less. It belongs to the slots and stays with them when they move.
  Where nothing was reported it is the mean of what was, else the fallback: only proportions matter.
- Few records prove little: the first of a member takes twenty times as long as the later ones. So
  each cost is measured from the mean, as if `PRIOR_RECORDS` more had cost that.
- Every slot weighs something (`base`), because a key that was never seen may come. The share of a
  partition's load that is spread over all slots alike is `SMOOTHING`.

Nothing here looks at a clock: whoever calls says what time it is.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

from anabranch.coordinator.cooperative.cuts import Piece
from anabranch.model.units import SLOT_COUNT, SlotRange

HALF_LIFE_MS = 30_000
FALLBACK_COST_NS = 1_000_000
SMOOTHING = 0.01
PRIOR_RECORDS = 30.0
# Rates below this are forgotten: one record in about three years.
_RATE_MIN = 1e-8


class SlotWeights:
    """The weights of one partition's slots: `base` for each, and more for those that are named."""

    __slots__ = ("_before", "_extra", "_slots", "_starts", "base", "heaviest", "total")

    def __init__(self, extra: Mapping[int, int] | None = None, base: int = 1) -> None:
        slots = sorted(extra) if extra else []
        self._fill(slots, map(extra.__getitem__, slots) if extra else (), base)

    @classmethod
    def in_order(cls, slots: Iterable[int], extra: Iterable[int], base: int) -> "SlotWeights":
        """The same from slots in ascending order and what each weighs above the base."""
        weights = cls.__new__(cls)
        weights._fill(slots, extra, base)
        return weights

    def _fill(self, slots: Iterable[int], extra: Iterable[int], base: int) -> None:
        if base < 1:
            raise ValueError("every slot weighs something: base has to be 1 or more")
        self.base = base
        self._slots: array[int] = array("H", slots)
        self._extra: array[int] = array("q", extra)
        # What the named slots before each weigh above the base, and all slots before it together.
        self._before: array[int] = array("q", accumulate(self._extra, initial=0))
        self._starts: array[int] = array(
            "q", map(add, map(base.__mul__, self._slots), self._before)
        )
        self.total: int = SLOT_COUNT * base + self._before[-1]
        self.heaviest = base + max(self._extra, default=0)

    def of(self, first: int, end: int) -> int:
        """The weight of slots from `first` up to but without `end`."""
        slots = self._slots
        if not slots:
            return (end - first) * self.base
        more = self._before[bisect_left(slots, end)] - self._before[bisect_left(slots, first)]
        return (end - first) * self.base + more

    def reach(self, first: int, end: int, weight: float) -> int:
        """The last slot up to which slots from `first` on weigh no more than so much."""
        if weight <= 0:
            return first
        slots = self._slots
        if not slots:
            return min(end, first + int(weight) // self.base)
        goal = first * self.base + self._before[bisect_left(slots, first)] + int(weight)
        at = bisect_right(self._starts, goal) - 1
        if at < 0:
            return min(end, goal // self.base)
        slot = slots[at]
        behind = self._starts[at] + self._extra[at] + self.base
        if goal < behind:
            return min(end, slot)
        return min(end, slot + 1 + (goal - behind) // self.base)

    def reach_back(self, first: int, end: int, weight: float) -> int:
        """The first slot from which slots up to `end` weigh no more than so much."""
        left = self.of(first, end) - int(weight)
        if left <= 0:
            return first
        at = self.reach(first, end, left)
        return at if self.of(first, at) >= left else at + 1

    def heavier_than(self, weight: float, first: int = 0, end: int = SLOT_COUNT) -> list[int]:
        """The slots that weigh more than so much."""
        if self.heaviest <= weight:
            return []
        if self.base > weight:
            return list(range(first, end))
        more = weight - self.base
        low, high = bisect_left(self._slots, first), bisect_left(self._slots, end)
        some = zip(self._slots[low:high], self._extra[low:high], strict=True)
        return [slot for slot, extra in some if extra > more]

    @property
    def named(self) -> Iterator[tuple[int, int]]:
        """The slots that weigh more than the base, and how much more."""
        return zip(self._slots, self._extra, strict=True)


def sum_of(weights: Iterable[SlotWeights]) -> SlotWeights:
    """Partitions that are cut alike, as one."""
    extra: dict[int, int] = {}
    base = 0
    for some in weights:
        base += some.base
        for slot, more in some.named:
            extra[slot] = extra.get(slot, 0) + more
    return SlotWeights(extra, base)


# Weights in a row ---------------------------------------------------------------------------------


class Strip:
    """Slots of several partitions end to end; a place on it is the number of slots before it."""

    __slots__ = ("_ends", "_parts", "_places", "length", "total")

    def __init__(self, parts: Iterable[tuple[SlotWeights, int, int]]) -> None:
        self._parts = list(parts)
        widths = [end - first for _, first, end in self._parts]
        self._places = list(accumulate(widths, initial=0))
        some = (weights.of(first, end) for weights, first, end in self._parts)
        self._ends = list(accumulate(some, initial=0))
        self.length = self._places[-1]
        self.total = self._ends[-1]

    def before(self, place: int) -> int:
        """The weight of what is before a place."""
        at = bisect_right(self._places, place) - 1
        if at == len(self._parts):
            return self.total
        weights, first, _ = self._parts[at]
        return self._ends[at] + weights.of(first, first + place - self._places[at])

    def reach(self, weight: float) -> int:
        """The last place with no more than so much before it."""
        at = bisect_right(self._ends, weight) - 1
        if at >= len(self._parts):
            return self.length
        if at < 0:
            return 0
        weights, first, end = self._parts[at]
        return self._places[at] + weights.reach(first, end, weight - self._ends[at]) - first

    def first_with(self, weight: float) -> int:
        """The first place with so much or more before it."""
        place = self.reach(weight)
        return place if self.before(place) >= weight or place == self.length else place + 1

    def nearest(self, weight: float) -> int:
        """The place where what is before it comes closest to so much; the later one of two."""
        place = self.reach(weight)
        if place < self.length and self.before(place + 1) - weight <= weight - self.before(place):
            place += 1
        return place

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """What lies between two places: the part's number, and its slots."""
        at = bisect_right(self._places, first) - 1
        while first < end:
            begin = self._parts[at][1] - self._places[at]
            until = min(end, self._places[at + 1])
            yield at, begin + first, begin + until
            first = until
            at += 1


def cut_evenly(strip: Strip, quotas: Sequence[float]) -> list[int]:
    """Where to cut so that each piece in turn weighs its quota; both ends of the strip included.

    The quotas add up to the strip's weight. No cut into pieces in this order has a piece that is
    further above its quota than the one of these that is furthest; among such cuts each is as near
    to its due place as can be.
    """
    if not quotas:
        return [0]
    due = list(accumulate(quotas))
    due[-1] = float(strip.total)
    places = [0, *map(strip.nearest, due)]
    places[-1] = strip.length
    excess = _excess(strip, places, quotas)
    grain = strip.total / max(strip.length, 1)
    if excess <= grain:
        return places
    low, high = 0.0, excess
    while high - low > grain:
        middle = (low + high) / 2
        if _forward(strip, quotas, middle)[-1] == strip.length:
            high = middle
        else:
            low = middle
    latest = _forward(strip, quotas, high)
    if latest[-1] != strip.length:
        return places
    earliest = _backward(strip, quotas, high)
    found = [0]
    for number, quota in enumerate(quotas):
        reach = strip.reach(strip.before(found[-1]) + quota + high)
        upper = min(latest[number + 1], reach)
        lower = max(earliest[number + 1], found[-1])
        found.append(max(lower, min(places[number + 1], upper)))
    return found


def _excess(strip: Strip, places: Sequence[int], quotas: Sequence[float]) -> float:
    weights = list(map(strip.before, places))
    return max(b - a - quota for a, b, quota in zip(weights, weights[1:], quotas, strict=False))


def _forward(strip: Strip, quotas: Sequence[float], excess: float) -> list[int]:
    """The latest places to cut at if no piece may be further above its quota."""
    places = [0]
    for quota in quotas:
        places.append(strip.reach(strip.before(places[-1]) + quota + excess))
    return places


def _backward(strip: Strip, quotas: Sequence[float], excess: float) -> list[int]:
    """The earliest places."""
    places = [strip.length]
    for quota in reversed(quotas):
        places.append(strip.first_with(max(0, strip.before(places[-1]) - quota - excess)))
    return places[::-1]


def water_level(weight: float, loads: Iterable[float]) -> float:
    """How far all loads below it have to rise to take up so much weight together."""
    level = spent = 0.0
    count = 0
    for load in sorted(loads):
        if count and spent + (load - level) * count >= weight:
            break
        spent += (load - level) * count
        level = load
        count += 1
    return level + (weight - spent) / count if count else level


# Arrivals -----------------------------------------------------------------------------------------


class ArrivalRates:
    """Records per second of each slot of one partition, averaged exponentially."""

    __slots__ = ("_half_life_ms", "_rates", "_scale", "_unseen", "_updated_ms")

    def __init__(self, now_ms: int, half_life_ms: int = HALF_LIFE_MS) -> None:
        self._half_life_ms = half_life_ms
        self._updated_ms = now_ms
        # All rates fade alike: one common factor spares a look at each.
        self._scale = 1.0
        self._rates: dict[int, float] = {}
        # The weight of the time before the first look, for which nothing is known.
        self._unseen = 1.0

    def update(self, counts: Mapping[int, float], now_ms: int) -> None:
        """Take in what arrived since the last update; at the price of the slots that are named."""
        elapsed_ms = now_ms - self._updated_ms
        if elapsed_ms <= 0:
            # A clock that was set back, or a second look at the same time: spread over one.
            elapsed_ms = 1
        self._updated_ms = max(now_ms, self._updated_ms)
        kept: float = 0.5 ** (elapsed_ms / self._half_life_ms)
        self._scale *= kept
        self._unseen *= kept
        if self._scale < 1e-9:
            self._rescale()
        gain = (1 - kept) * 1000 / elapsed_ms / self._scale
        rates = self._rates
        for slot, count in counts.items():
            rates[slot] = rates.get(slot, 0.0) + gain * count

    def _rescale(self) -> None:
        scale = self._scale
        self._rates = {
            slot: rate * scale for slot, rate in self._rates.items() if rate * scale > _RATE_MIN
        }
        self._scale = 1.0

    @property
    def per_second(self) -> dict[int, float]:
        """The rate of each slot that has one."""
        scale = self._factor
        return {
            slot: rate * scale for slot, rate in self._rates.items() if rate * scale > _RATE_MIN
        }

    @property
    def _factor(self) -> float:
        return self._scale / (1 - self._unseen) if self._unseen < 1 else 0.0


# Costs --------------------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """What was reported of some slots: the newest in full, older the less the older it is."""

    records: float
    busy_ns: float
    since_ms: int

    def part(self, share: float) -> "Evidence":
        return Evidence(self.records * share, self.busy_ns * share, self.since_ms)


class RecordCosts:
    """Busy time per record of the slots of one partition, as their owners report it."""

    __slots__ = ("_half_life_ms", "_pieces", "_prior_records", "fallback_ns")

    def __init__(
        self,
        half_life_ms: int = HALF_LIFE_MS,
        fallback_ns: float = FALLBACK_COST_NS,
        prior_records: float = PRIOR_RECORDS,
    ) -> None:
        self._half_life_ms = half_life_ms
        self._prior_records = prior_records
        self.fallback_ns = fallback_ns
        # What is known, in order.
        self._pieces: list[Piece[Evidence]] = []

    def report(self, slots: SlotRange, busy_ns: int, records: int, now_ms: int) -> None:
        """An owner spent so much time on so many records of an interval since it last said so."""
        if records <= 0 or busy_ns < 0:
            return
        first, end = slots
        before, inside, after = self._parted(first, end)
        told = Evidence(records, busy_ns, now_ms)
        fresh: list[Piece[Evidence]] = []

        def add(begin: int, until: int, known: Evidence) -> None:
            share = (until - begin) / (end - first)
            kept = 0.5 ** (max(now_ms - known.since_ms, 0) / self._half_life_ms)
            sums = Evidence(
                known.records * kept + told.records * share,
                known.busy_ns * kept + told.busy_ns * share,
                max(now_ms, known.since_ms),
            )
            fresh.append(Piece(begin, until, sums))

        at = first
        for piece in inside:
            if piece.first > at:
                add(at, piece.first, _NO_EVIDENCE)
            add(piece.first, piece.end, piece.owner)
            at = piece.end
        if at < end:
            add(at, end, _NO_EVIDENCE)
        self._pieces = [*before, *_alike(fresh), *after]

    def _parted(
        self, first: int, end: int
    ) -> tuple[list[Piece[Evidence]], list[Piece[Evidence]], list[Piece[Evidence]]]:
        """What is known below, inside and above a range."""
        before, inside, after = [], [], []
        for piece in self._pieces:
            if piece.first < first:
                before.append(_part(piece, piece.first, min(piece.end, first)))
            if piece.first < end and piece.end > first:
                inside.append(_part(piece, max(piece.first, first), min(piece.end, end)))
            if piece.end > end:
                after.append(_part(piece, max(piece.first, end), piece.end))
        return before, inside, after

    @property
    def mean_ns(self) -> float:
        """What a record costs where nothing was reported."""
        records = sum(piece.owner.records for piece in self._pieces)
        if not records:
            return self.fallback_ns
        return sum(piece.owner.busy_ns for piece in self._pieces) / records

    def weights(self, rates: Mapping[int, float], smoothing: float = SMOOTHING) -> SlotWeights:
        """The load of each slot that records arrive at, and a little for all others."""
        slots = sorted(rates)
        mean, prior = self.mean_ns, self._prior_records
        loads: list[float] = []
        at = 0
        for first, end, known in self._pieces:
            below, above = bisect_left(slots, first, at), bisect_left(slots, end, at)
            cost = (known.busy_ns + prior * mean) / (known.records + prior)
            loads.extend([rates[slot] * mean for slot in slots[at:below]])
            loads.extend([rates[slot] * cost for slot in slots[below:above]])
            at = above
        loads.extend([rates[slot] * mean for slot in slots[at:]])
        base = max(1, round(sum(loads) * smoothing / SLOT_COUNT))
        return SlotWeights.in_order(slots, [int(load * (1 - smoothing)) for load in loads], base)


_NO_EVIDENCE = Evidence(0.0, 0.0, 0)


def _part(piece: Piece[Evidence], first: int, end: int) -> Piece[Evidence]:
    share = (end - first) / (piece.end - piece.first)
    return Piece(first, end, piece.owner if share == 1 else piece.owner.part(share))


def _alike(pieces: list[Piece[Evidence]]) -> list[Piece[Evidence]]:
    """Neighbours of one report whose costs have come within a hundredth of each other are one.

    Without this the cuts of all times would be remembered.
    """
    found: list[Piece[Evidence]] = []
    for piece in pieces:
        first, end, known = piece
        if found:
            last = found[-1].owner
            difference = known.busy_ns * last.records - last.busy_ns * known.records
            if abs(difference) <= 0.01 * last.busy_ns * known.records:
                sums = Evidence(
                    last.records + known.records,
                    last.busy_ns + known.busy_ns,
                    max(last.since_ms, known.since_ms),
                )
                found[-1] = Piece(found[-1].first, end, sums)
                continue
        found.append(Piece(first, end, known))
    return found
