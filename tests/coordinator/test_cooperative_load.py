"""Loads of slots: weights and their sums, rates that fade, costs that move with slots."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.cooperative.load import (
    ArrivalRates,
    RecordCosts,
    SlotWeights,
    Strip,
    cut_evenly,
    sum_of,
    water_level,
)
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange

# Slots near each other and at both ends, so that what is beside a heavy slot is tried too.
SLOT = st.one_of(st.integers(0, 12), st.integers(SLOT_COUNT - 6, SLOT_COUNT - 1))
WEIGHTS = st.builds(
    SlotWeights, st.dictionaries(SLOT, st.integers(1, 50), max_size=8), st.integers(1, 4)
)


def plain(weights: SlotWeights) -> list[int]:
    """The weight of each slot."""
    found = [weights.base] * SLOT_COUNT
    for slot, more in weights.named:
        found[slot] += more
    return found


# Weights


@given(WEIGHTS, SLOT, SLOT, st.integers(0, 200))
def test_weights_of_ranges(weights: SlotWeights, one: int, other: int, amount: int) -> None:
    """Sums and reaches are those of adding slot by slot."""
    first, end = min(one, other), max(one, other) + 1
    slots = plain(weights)
    assert weights.total == sum(slots) and weights.heaviest == max(slots)
    assert weights.of(first, end) == sum(slots[first:end])
    at = weights.reach(first, end, amount)
    assert sum(slots[first:at]) <= amount and (at == end or sum(slots[first : at + 1]) > amount)
    at = weights.reach_back(first, end, amount)
    assert sum(slots[at:end]) <= amount and (at == first or sum(slots[at - 1 : end]) > amount)
    assert weights.heavier_than(amount) == [s for s, weight in enumerate(slots) if weight > amount]


@given(WEIGHTS, WEIGHTS)
def test_sum_of_weights(one: SlotWeights, other: SlotWeights) -> None:
    """Partitions cut alike weigh what both weigh, slot by slot."""
    both = sum_of([one, other])
    assert plain(both) == [a + b for a, b in zip(plain(one), plain(other), strict=True)]


def test_every_slot_weighs_something() -> None:
    """A base of nothing is refused: a key that was never seen may come."""
    with pytest.raises(ValueError, match="base"):
        SlotWeights({}, 0)


PARTS = st.lists(
    st.tuples(WEIGHTS, st.integers(0, 9), st.integers(1, 9)).map(
        lambda part: (part[0], part[1], part[1] + part[2])
    ),
    min_size=1,
    max_size=4,
)


@given(PARTS, st.integers(0, 300))
def test_strips(parts: list[tuple[SlotWeights, int, int]], amount: int) -> None:
    """Places on a strip are those of its slots written one after the other."""
    strip = Strip(parts)
    slots = [weight for weights, first, end in parts for weight in plain(weights)[first:end]]
    before = [sum(slots[:place]) for place in range(len(slots) + 1)]
    assert [strip.before(place) for place in range(strip.length + 1)] == before
    assert strip.reach(amount) == max(p for p, weight in enumerate(before) if weight <= amount)
    wanted = min(amount, strip.total)
    assert strip.first_with(wanted) == next(p for p, w in enumerate(before) if w >= wanted)
    near = strip.nearest(amount)
    assert abs(before[near] - amount) == min(abs(weight - amount) for weight in before)
    written = [(part, s) for part, f, e in strip.pieces(0, strip.length) for s in range(f, e)]
    assert written == [(n, s) for n, (_, f, e) in enumerate(parts) for s in range(f, e)]


def _least_excess(slots: list[int], quotas: list[float]) -> float:
    """By trying all cuts: how far the worst piece has to be above its quota."""
    if len(quotas) == 1:
        return sum(slots) - quotas[0]
    return min(
        max(sum(slots[:cut]) - quotas[0], _least_excess(slots[cut:], quotas[1:]))
        for cut in range(len(slots) + 1)
    )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 4), st.data())
def test_even_cuts_are_the_best(slots: list[int], count: int, data: st.DataObject) -> None:
    """No cut in this order has a smaller worst piece, to within what slots weigh on average."""
    weights = SlotWeights(dict(enumerate(slots)))
    strip = Strip([(weights, 0, len(slots))])
    parts = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    quotas = [strip.total * part / sum(parts) for part in parts]
    places = cut_evenly(strip, quotas)
    assert places[0] == 0 and places[-1] == strip.length and places == sorted(places)
    pieces = [strip.before(b) - strip.before(a) for a, b in itertools.pairwise(places)]
    worst = max(weight - quota for weight, quota in zip(pieces, quotas, strict=True))
    least = _least_excess([weight + 1 for weight in slots], quotas)
    assert worst <= max(least, 0) + strip.total / strip.length + 1e-6


@given(st.floats(0, 100), st.lists(st.floats(0, 50), min_size=1, max_size=6))
def test_water_level(weight: float, loads: list[float]) -> None:
    """What rises to the level takes up the weight, and nothing above it is touched."""
    level = water_level(weight, loads)
    assert sum(max(0.0, level - load) for load in loads) == pytest.approx(weight, abs=1e-6)


# Arrivals


def test_rates_settle_on_what_arrives() -> None:
    """A steady stream has its rate from the first look on; what stops fades by half-lives."""
    rates = ArrivalRates(0, half_life_ms=10_000)
    for tick in range(1, 30):
        rates.update({5: 500, 9: 5}, tick * 1_000)
        assert rates.per_second[5] == pytest.approx(500)
    rates.update({9: 50}, 39_000)
    assert rates.per_second[5] == pytest.approx(250, rel=0.1)
    assert rates.per_second[9] == pytest.approx(5, rel=0.1)


def test_rates_survive_a_long_silence() -> None:
    """What has faded away is forgotten, and new arrivals are not lost in old scales."""
    rates = ArrivalRates(0, half_life_ms=1_000)
    rates.update({1: 1_000_000}, 1_000)
    rates.update({}, 3_600_000)
    assert rates.per_second == {}
    rates.update({2: 10}, 3_601_000)
    assert rates.per_second.keys() == {2}
    assert rates.per_second[2] == pytest.approx(5, rel=0.01)


def test_clock_set_back() -> None:
    """A clock that goes back neither fails nor makes rates negative."""
    rates = ArrivalRates(10_000)
    rates.update({1: 10}, 15_000)
    rates.update({1: 10}, 5_000)
    rates.update({}, 15_000)
    assert all(rate > 0 for rate in rates.per_second.values())


# Costs


def test_cost_stays_with_the_slots() -> None:
    """What an owner reported of an interval holds for its slots, however they are cut later."""
    costs = RecordCosts(half_life_ms=1_000, prior_records=0)
    costs.report(SlotRange(0, 100), busy_ns=200_000, records=200, now_ms=0)
    costs.report(SlotRange(100, 200), busy_ns=600_000, records=200, now_ms=0)
    weights = costs.weights({50: 10.0, 150: 10.0}, smoothing=0.0)
    assert weights.of(50, 51) == 10_000 + 1 and weights.of(150, 151) == 30_000 + 1
    # One half-life later as many new records count twice as much, for the slots they were of only.
    costs.report(SlotRange(50, 120), busy_ns=140 * 7_000, records=140, now_ms=1_000)
    rates = dict.fromkeys((49, 50, 119, 120), 10.0)
    weights = costs.weights(rates, smoothing=0.0)
    assert [weights.of(s, s + 1) - 1 for s in rates] == [10_000, 50_000, 56_666, 30_000]


def test_cost_of_what_nobody_reported() -> None:
    """It is the mean of what is known, else the fallback; reports without records say nothing."""
    costs = RecordCosts(fallback_ns=100.0)
    assert costs.weights({1: 1000.0}, 0.0).of(1, 2) == 100_001
    costs.report(ALL_SLOTS, busy_ns=10, records=0, now_ms=0)
    assert costs.mean_ns == 100.0
    costs.report(SlotRange(0, 10), busy_ns=400, records=2, now_ms=0)
    assert costs.weights({5: 1000.0, 500: 1000.0}, 0.0).of(500, 501) == 200_001


def test_few_records_prove_little() -> None:
    """A first record that took long hardly changes what its slots weigh; many that did, do."""
    costs = RecordCosts(prior_records=100)
    costs.report(SlotRange(0, 100), busy_ns=10_000_000, records=10_000, now_ms=0)
    costs.report(SlotRange(100, 200), busy_ns=50_000, records=1, now_ms=0)

    def cost(slot: int) -> float:
        return costs.weights({slot: 1_000.0}, 0.0).of(slot, slot + 1) / 1_000

    assert cost(50) == pytest.approx(1_000, rel=0.01)
    assert cost(150) == pytest.approx(1_490, rel=0.01)
    costs.report(SlotRange(100, 200), busy_ns=50_000_000, records=1_000, now_ms=0)
    assert cost(150) > 40_000


def test_smoothing_spreads_a_little_over_all_slots() -> None:
    """A hundredth of the load is spread, so that slots without records are shared out too."""
    weights = RecordCosts(fallback_ns=1e6).weights({7: 65_536.0})
    assert weights.of(0, 1) == pytest.approx(10_000, rel=0.01)
    assert weights.total == pytest.approx(65_536e6, rel=0.001)


@given(
    st.lists(
        st.tuples(SLOT, SLOT, st.integers(0, 1000), st.integers(0, 5), st.integers(0, 5_000)),
        max_size=12,
    )
)
def test_reports_never_tear_the_costs(steps: list[tuple[int, int, int, int, int]]) -> None:
    """Whatever is reported, costs stay within what was said, and known pieces stay in order."""
    costs = RecordCosts()
    told = []
    for one, other, busy, records, now_ms in steps:
        costs.report(SlotRange(min(one, other), max(one, other) + 1), busy, records, now_ms)
        if records:
            told.append(busy / records)
    pieces = costs._pieces
    assert all(a.end <= b.first for a, b in itertools.pairwise(pieces))
    for _, _, (known, busy_ns, _) in pieces:
        assert min(told) - 1e-6 <= busy_ns / known <= max(told) + 1e-6
