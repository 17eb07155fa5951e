"""InitProducerId: new producers, producers that go on, fencing, and epochs that are used up."""

import pytest
from transaction_story import (
    ID,
    NOBODY,
    START_MS,
    TIMEOUT_MS,
    V0,
    V2,
    X0,
    InitAnswer,
    P,
    Story,
)

from anabranch.coordinator.transaction import commands as c
from anabranch.model.errors import ErrorCode

LAST = 32766


def test_a_producer_without_a_transactional_id_gets_an_id_of_its_own():
    """Nothing is kept of it."""
    story = Story()

    story.init(transactional_id=None, timeout_ms=0, new_producer_id=7).gives(
        answer=InitAnswer(producer_id=7, producer_epoch=0)
    )


def test_a_producer_that_goes_on_without_a_transactional_id_gets_another_id():
    """What it had was nobody's but its own."""
    story = Story()

    story.init(5, 3, transactional_id=None, new_producer_id=7).gives(
        answer=InitAnswer(producer_id=7, producer_epoch=0)
    )


def test_the_first_producer_of_an_id_begins_with_epoch_0():
    """It is written as Kafka writes it, with the producer id before being the same."""
    story = Story()

    story.init().gives(
        answer=InitAnswer(producer_id=P, producer_epoch=0),
        records=[f"Empty {P}/0 60000 v0 - +10"],
    )


def test_the_next_producer_of_an_id_gets_the_next_epoch():
    """And its own timeout; the one before is fenced."""
    story = Story()
    story.init()

    story.init(timeout_ms=5000).gives(
        answer=InitAnswer(producer_id=P, producer_epoch=1),
        records=[f"Empty {P}/1 5000 v0 - +20"],
    )
    story.add(P, 0, X0).fails(ErrorCode.PRODUCER_FENCED)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_has_to_be_possible(timeout_ms):
    """More than none, and no more than transaction.max.timeout.ms."""
    story = Story()

    story.init(timeout_ms=timeout_ms).fails(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


def test_the_longest_timeout_is_possible():
    """The setting is a limit that can be reached."""
    story = Story(max_timeout_ms=1000)

    assert story.init(timeout_ms=1000).answer.error is ErrorCode.NONE
    story.init(timeout_ms=1001).fails(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


def test_an_empty_transactional_id_is_none():
    """Clients do not send it."""
    Story().init(transactional_id="").fails(ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(("producer_id", "epoch"), [(P, -1), (-1, 0)])
def test_a_producer_id_has_an_epoch(producer_id, epoch):
    """One without the other is no producer, with a transactional id or without."""
    story = Story()
    story.init()

    story.init(producer_id, epoch).fails(ErrorCode.INVALID_REQUEST)
    story.init(producer_id, epoch, transactional_id=None).fails(ErrorCode.INVALID_REQUEST)


# Going on (KIP-360) -----------------------------------------------------------------------------


def test_a_producer_goes_on_in_the_next_epoch():
    """It may not hear of it: the epoch that it had is kept."""
    story = Story()
    story.init()

    story.init(P, 0).gives(
        answer=InitAnswer(producer_id=P, producer_epoch=1),
        records=[f"Empty {P}/1 60000 v0 - +20 last 0"],
    )


def test_a_producer_that_asks_again_gets_the_same_epoch():
    """As often as it asks; also after a restart, where Kafka would fence it."""
    story = Story()
    story.init()
    story.init(P, 0)

    for _ in range(2):
        assert story.init(P, 0).answer == InitAnswer(producer_id=P, producer_epoch=1)
    story.restart()
    story.init(P, 0, timeout_ms=7000).gives(
        answer=InitAnswer(producer_id=P, producer_epoch=1),
        records=[f"Empty {P}/1 7000 v0 - +50 last 0"],
    )


def test_a_producer_cannot_go_on_when_another_has_started():
    """It does not get the epoch of its successor."""
    story = Story()
    story.init()
    story.init(P, 0)
    story.init()

    story.init(P, 0).fails(ErrorCode.PRODUCER_FENCED)
    story.init(P, 1).fails(ErrorCode.PRODUCER_FENCED)


def test_an_epoch_of_the_future_is_nobodys():
    """And a producer id of somebody else is none of this id."""
    story = Story()
    story.init()

    story.init(P, 1).fails(ErrorCode.PRODUCER_FENCED)
    story.init(NOBODY, 0).fails(ErrorCode.PRODUCER_FENCED)


def test_a_producer_goes_on_with_an_id_that_was_forgotten():
    """Nothing is known of it any more: it starts anew."""
    story = Story()

    story.init(NOBODY, 4).gives(
        answer=InitAnswer(producer_id=P, producer_epoch=0),
        records=[f"Empty {P}/0 60000 v0 - +10"],
    )


def test_old_clients_do_not_know_that_they_are_fenced():
    """They are told of their epoch."""
    story = Story()
    story.init()

    story.init(P, 5, knows_producer_fenced=False).fails(ErrorCode.INVALID_PRODUCER_EPOCH)


# Transactions under way -------------------------------------------------------------------------


def test_an_ongoing_transaction_is_aborted_first():
    """In an epoch that nobody is told; the producer comes again and gets the one after."""
    story = Story()
    story.begun(version=V0)

    step = story.init()
    task = c.WriteMarkers(
        transactional_id=ID,
        producer_id=P,
        producer_epoch=1,
        is_commit=False,
        partitions=frozenset({("x", 0), ("x", 1)}),
        transaction_version=V2,
        decided_ms=START_MS + 30,
    )
    step.gives(
        answer=InitAnswer(error=ErrorCode.CONCURRENT_TRANSACTIONS),
        records=[f"PrepareAbort {P}/1 60000 v2 +20 +30 last 0 x-0 x-1"],
        timers={"timeout": None},
        tasks=[task],
    )
    story.init().fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.markers().gives(
        records=[f"CompleteAbort {P}/1 60000 v2 +20 +50 last 0"], timers={"markers": None}
    )
    story.init().gives(
        answer=InitAnswer(producer_id=P, producer_epoch=2),
        records=[f"Empty {P}/2 60000 v2 - +60"],
    )


def test_the_producer_itself_may_go_on_in_the_middle_of_its_transaction():
    """Its transaction is aborted, and it gets the epoch of the abort."""
    story = Story()
    story.begun()

    assert story.init(P, 0).answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    story.markers()
    story.init(P, 0).gives(
        answer=InitAnswer(producer_id=P, producer_epoch=1),
        records=[f"Empty {P}/1 60000 v2 - +50 last 0"],
    )


def test_a_fenced_producer_aborts_nobodys_transaction():
    """It has been told, or not: the transaction is that of its successor."""
    story = Story()
    story.init()
    story.init(P, 0)
    story.add(P, 1, X0)

    story.init(P, 0).fails(ErrorCode.PRODUCER_FENCED)
    story.init(NOBODY, 1).fails(ErrorCode.PRODUCER_FENCED)
    assert story.line == f"Ongoing {P}/1 60000 v0 +30 +30 x-0"


def test_a_producer_may_start_over_after_a_commit():
    """The transaction that was last is not shown any more."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=True)
    story.markers()

    story.init().gives(
        answer=InitAnswer(producer_id=P, producer_epoch=2),
        records=[f"Empty {P}/2 60000 v2 - +50"],
    )


def test_a_producer_whose_transaction_was_ended_goes_on_with_the_epoch_it_was_not_told():
    """EndTxn of version 2 took the next epoch; its answer was lost."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=True)
    story.markers()

    assert story.init(P, 0).answer == InitAnswer(producer_id=P, producer_epoch=1)


# Epochs that are used up ------------------------------------------------------------------------


def test_the_last_epoch_that_a_producer_gets():
    """After it comes another producer id."""
    story = Story()
    story.init()
    story.wind(LAST - 1)

    assert story.init().answer == InitAnswer(producer_id=P, producer_epoch=LAST)
    story.init().gives(
        answer=InitAnswer(producer_id=P + 1, producer_epoch=0),
        records=[f"Empty {P + 1}/0 60000 v0 - +30 before {P}"],
    )


def test_a_producer_whose_epoch_is_used_up_goes_on_with_another_producer_id():
    """And may ask again for it, with the id that it had."""
    story = Story()
    story.init()
    story.wind(LAST)

    story.init(P, LAST).gives(
        answer=InitAnswer(producer_id=P + 1, producer_epoch=0),
        records=[f"Empty {P + 1}/0 60000 v0 - +20 last {LAST} before {P}"],
    )
    assert story.init(P, LAST).answer == InitAnswer(producer_id=P + 1, producer_epoch=0)


def test_the_producer_id_before_counts_only_in_its_last_epoch():
    """A producer that was fenced long ago has the right id and another epoch."""
    story = Story()
    story.init()
    story.wind(LAST)
    story.init(P, LAST)

    story.init(P, LAST - 1).fails(ErrorCode.PRODUCER_FENCED)
    story.init(P, 0).fails(ErrorCode.PRODUCER_FENCED)
    story.init(NOBODY, LAST).fails(ErrorCode.PRODUCER_FENCED)


def test_the_producer_id_before_counts_only_for_the_one_that_went_on():
    """Where another producer has started, nobody asks again."""
    story = Story()
    story.init()
    story.wind(LAST)
    story.init()

    story.init(P, LAST).fails(ErrorCode.PRODUCER_FENCED)


def test_who_asks_again_for_the_last_epoch_gets_it():
    """And no other one; Kafka has no answer here."""
    story = Story()
    story.init()
    story.wind(LAST - 1)
    story.init(P, LAST - 1)

    assert story.init(P, LAST - 1).answer == InitAnswer(producer_id=P, producer_epoch=LAST)
    story.init(P, LAST - 2).fails(ErrorCode.PRODUCER_FENCED)


def test_an_abort_in_the_last_epoch_takes_another_producer_id():
    """The markers are written with an epoch that no producer has."""
    story = Story()
    story.begun(LAST)

    step = story.init()
    assert step.answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert step.records == [
        f"PrepareAbort {P}/{LAST + 1} 60000 v2 +20 +30 last {LAST} next {P + 1} x-0 x-1"
    ]
    story.markers().gives(
        records=[f"CompleteAbort {P + 1}/0 60000 v2 +20 +40 last {LAST} before {P}"],
        timers={"markers": None},
    )
    assert story.init().answer == InitAnswer(producer_id=P + 1, producer_epoch=1)


@pytest.mark.parametrize("epoch", [-1, LAST])
def test_without_another_producer_id_the_producer_comes_again(epoch):
    """As in Kafka while it has none to give."""
    story = Story()
    story.init()
    story.wind(LAST)
    story.gives_producer_ids = False

    story.init(-1 if epoch < 0 else P, epoch).fails(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    story.add(P, LAST, X0)
    story.init().fails(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    story.init(transactional_id="other").fails(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    story.init(transactional_id=None).fails(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def test_another_producer_id_is_wanted_only_where_it_may_be_needed():
    """Ids are reserved on a disk."""
    story = Story()
    assert story.shard.needs_producer_id(None)
    assert story.shard.needs_producer_id(ID)
    story.init()
    assert not story.shard.needs_producer_id(ID)
    story.wind(LAST - 1)
    assert not story.shard.needs_producer_id(ID)
    story.wind(LAST)
    assert story.shard.needs_producer_id(ID)


# Expiry -----------------------------------------------------------------------------------------


def test_an_id_that_nobody_uses_is_forgotten():
    """After transactional.id.expiration.ms, and not before; its producer cannot go on then."""
    story = Story(id_expiration_ms=1000)
    story.init()
    story.wait(1000 - 20)
    story.expire().does_nothing()

    story.expire().gives(records=["forgotten"])
    assert story.line == "none"
    story.add(P, 0, X0).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_a_transaction_under_way_keeps_its_id():
    """However long it takes; it counts from the end on."""
    story = Story(id_expiration_ms=1000, max_timeout_ms=10**9)
    story.init(timeout_ms=10**8)
    story.add(P, 0, X0)
    story.wait(5000)
    story.expire().does_nothing()
    story.end(P, 0, commit=True)
    story.wait(5000)
    story.expire().does_nothing()
    story.markers()
    story.wait(900)
    story.expire().does_nothing()
    story.wait(1000)
    story.expire().gives(records=["forgotten"])


def test_all_ids_that_have_expired_are_forgotten():
    """And no other."""
    story = Story(id_expiration_ms=1000)
    story.init()
    story.init(transactional_id="a")
    story.wait(2000)
    story.init(transactional_id="b")

    assert story.expire().records == ["forgotten", "forgotten"]
    assert set(story.shard.transactions) == {"b"}


def test_a_clock_that_is_set_back_makes_nothing_older():
    """Changes stay in the order in which they came."""
    story = Story()
    story.init()
    story.now_ms -= 5000

    story.init().gives(
        answer=InitAnswer(producer_id=P, producer_epoch=1),
        records=[f"Empty {P}/1 {TIMEOUT_MS} v0 - +10"],
    )
