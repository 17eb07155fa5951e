"""DescribeTransactions and ListTransactions."""

import pytest
from transaction_story import ID, START_MS, X0, X1, X2, P, Story

from anabranch.coordinator.transaction.describe import (
    DescribedTransaction,
    ListedTransaction,
    ListFilters,
    describe_transaction,
    list_transactions,
)
from anabranch.model.errors import ErrorCode, KafkaError


def described(story: Story, name: str = ID) -> DescribedTransaction:
    transaction = story.shard.transaction(name)
    is_decided = transaction is not None and transaction.state.is_decided
    return describe_transaction(
        name, transaction, story.shard.missing(name) if is_decided else None
    )


def listed(story: Story, **filters: object) -> list[str]:
    found = list_transactions(
        story.shard.transactions.values(), ListFilters(**filters), story.now_ms
    )
    return [one.transactional_id for one in found.transactions]


def some() -> Story:
    """a is Empty, b Ongoing since 1000 ms, c Ongoing since 10 ms, d CompleteCommit."""
    story = Story()
    story.init(transactional_id="a")
    story.init(transactional_id="b")
    story.init(transactional_id="c")
    story.init(transactional_id="d")
    story.add(P + 3, 0, X0, transactional_id="d")
    story.end(P + 3, 0, commit=True, transactional_id="d")
    story.markers(name="d")
    story.add(P + 1, 0, X0, transactional_id="b")
    story.wait(980)
    story.add(P + 2, 0, X0, transactional_id="c")
    story.wait(10)
    return story


def test_a_transaction_is_described():
    """With its partitions in order."""
    story = Story()
    story.init()
    story.add(P, 0, X2, ("a", 1), X0)

    assert described(story) == DescribedTransaction(
        transactional_id=ID,
        state="Ongoing",
        producer_id=P,
        producer_epoch=0,
        timeout_ms=60_000,
        start_timestamp_ms=START_MS + 20,
        partitions=(("a", 1), X0, X2),
    )


def test_an_id_without_a_transaction_is_described():
    """It began at no time."""
    story = Story()
    story.init()

    assert described(story) == DescribedTransaction(
        transactional_id=ID, state="Empty", producer_id=P, producer_epoch=0, timeout_ms=60_000
    )


def test_a_decided_transaction_shows_where_its_marker_is_missing():
    """As Kafka does."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=True)
    assert described(story).partitions == (X0, X1)
    story.markers(X1)
    assert described(story).partitions == (X0,)
    story.wait(100)
    story.markers()
    assert described(story).partitions == ()
    assert story.shard.missing(ID) == frozenset()


def test_what_is_not_there_is_told():
    """An empty id is no id."""
    story = Story()

    assert described(story, "other") == DescribedTransaction(
        transactional_id="other", error=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    )
    assert described(story, "").error is ErrorCode.INVALID_REQUEST


def test_all_are_listed_by_id():
    """With their producer and state."""
    found = list_transactions(some().shard.transactions.values(), ListFilters(), 0)

    assert found.unknown_states == ()
    assert found.transactions == (
        ListedTransaction(transactional_id="a", producer_id=P, state="Empty"),
        ListedTransaction(transactional_id="b", producer_id=P + 1, state="Ongoing"),
        ListedTransaction(transactional_id="c", producer_id=P + 2, state="Ongoing"),
        ListedTransaction(transactional_id="d", producer_id=P + 3, state="CompleteCommit"),
    )


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"states": ["Ongoing"]}, "bc"),
        ({"states": ["Ongoing", "Empty"]}, "abc"),
        ({"states": ["Dead"]}, ""),
        ({"states": ["ongoing"]}, ""),
        ({"states": ["Nonsense"]}, ""),
        ({"producer_ids": [P, P + 3, 5]}, "ad"),
        ({"producer_ids": [5]}, ""),
        # One that has not begun counts as one that began long ago.
        ({"duration_ms": 999}, "abd"),
        ({"duration_ms": 1000}, "ad"),
        ({"duration_ms": 0}, "abcd"),
        ({"duration_ms": 10, "states": ["Ongoing"]}, "b"),
        ({"duration_ms": -1}, "abcd"),
        ({"transactional_id_pattern": "[ab]"}, "ab"),
        ({"transactional_id_pattern": ""}, "abcd"),
        ({"transactional_id_pattern": None}, "abcd"),
        ({"transactional_id_pattern": "b|ccc"}, "b"),
        ({"transactional_id_pattern": "[b-d]", "states": ["Ongoing"]}, "bc"),
        ({"transactional_id_pattern": "z"}, ""),
    ],
)
def test_filters_are_all_to_be_passed(filters, names):
    """States by name, producer ids, age, and a pattern for the whole id."""
    assert "".join(listed(some(), **filters)) == names


def test_states_that_mean_nothing_are_told():
    """Those that Kafka has are known, also where no transaction is ever in them."""
    states = ["Nonsense", "Ongoing", "Dead", "PrepareEpochFence", "empty"]
    found = list_transactions([], ListFilters(states=states), 0)

    assert found.unknown_states == ("Nonsense", "empty")


def test_a_pattern_has_to_be_one():
    """Whoever asks is told what is wrong with it."""
    with pytest.raises(KafkaError, match="no RE2 expression") as refused:
        list_transactions([], ListFilters(transactional_id_pattern="("), 0)

    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
