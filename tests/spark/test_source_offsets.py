"""Offsets in the JSON of Spark's `kafka` source, and how much a batch takes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.spark.admission import is_due, limited, waiting
from anabranch.spark.errors import DataLossError
from anabranch.spark.offsets import FROM, from_json, start_of, to_json, with_start

PLACES = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 12))
OFFSETS = st.dictionaries(PLACES, st.integers(0, 10_000), max_size=12)


@given(OFFSETS)
def test_there_and_back(offsets: dict[tuple[str, int], int]) -> None:
    """What Spark hands back is what it was given."""
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


@given(OFFSETS, OFFSETS, st.randoms())
def test_order_is_kept(before: dict, after: dict, random) -> None:  # type: ignore
    """An offset that follows another has its order, whatever that is: Spark compares texts."""
    shuffled = list(before)
    random.shuffle(shuffled)
    like: dict[str, dict[str, int]] = {}
    for topic, partition in shuffled:
        like.setdefault(topic, {})[str(partition)] = before[topic, partition]
    same = to_json(before, like=like)
    assert json.dumps(same) == json.dumps(like)
    grown = to_json({**after, **before}, like=like)
    assert from_json(grown) == {**after, **before}
    known = [place for place in from_json(grown) if place in before]
    assert known == list(from_json(like))


def test_batch_0_carries_its_start() -> None:
    """The start that an end carries goes before what Spark says; only batch 0 has it."""
    end = with_start(to_json({("t", 0): 9}), {("t", 0): 4})
    assert end == {"t": {"0": 9}, FROM: {"t": {"0": 4}}}
    assert from_json(end) == {("t", 0): 9}
    assert start_of({"t": {"0": 7}}, end) == {("t", 0): 4}
    assert start_of({"t": {"0": 7}}, {"t": {"0": 9}}) == {("t", 0): 7}


def test_kafkas_own_text_is_read() -> None:
    """The offset log of Spark's `kafka` source is taken over."""
    assert from_json(json.loads('{"orders":{"2":7,"0":5,"1":0}}')) == {
        ("orders", 2): 7,
        ("orders", 0): 5,
        ("orders", 1): 0,
    }
    for strange in ({"logOffset": 4}, {"t": {"x": 1}}, {"t": {"0": None}}):
        with pytest.raises(DataLossError, match="checkpointLocation"):
            from_json(strange)


@given(st.integers(1, 5000), OFFSETS, OFFSETS)
def test_limits_are_shared(limit: int, start: dict, more: dict) -> None:  # type: ignore
    """Nobody gets more than there is, nobody with records gets none, and the sum is about right."""
    end = {place: start.get(place, 0) + count for place, count in more.items()}
    sizes = waiting(start, end)
    batch = limited(limit, start, end)
    assert batch.keys() == end.keys()
    taken = {place: batch[place] - start.get(place, 0) for place in sizes}
    assert all(1 <= count <= sizes[place] for place, count in taken.items())
    assert all(batch[place] == end[place] for place in end.keys() - sizes.keys())
    if sum(sizes.values()) > limit:
        assert sum(taken.values()) <= limit + len(sizes)
    else:
        assert batch == end


def test_limits_are_proportional() -> None:
    """Each partition gets its share by how much waits; a share below one is one."""
    end = {("t", 0): 900, ("t", 1): 99, ("t", 2): 1}
    assert limited(100, {}, end) == {("t", 0): 90, ("t", 1): 9, ("t", 2): 1}
    assert limited(50, {("t", 0): 800}, end) == {("t", 0): 825, ("t", 1): 24, ("t", 2): 1}
    assert limited(2000, {}, end) == end


def test_when_a_batch_is_due() -> None:
    """Not without records; with few of them when the delay is over."""
    assert not is_due(0, None, 1e9, 10)
    assert is_due(1, None, 0, 10)
    assert not is_due(4, 5, 9, 10)
    assert is_due(4, 5, 10, 10)
    assert is_due(5, 5, 0, 10)
