"""EndTxn in both versions, and ends that nobody asked for: time that is up, and admins."""

import pytest
from transaction_story import (
    ID,
    NOBODY,
    START_MS,
    TIMEOUT_MS,
    V0,
    V2,
    X0,
    EndAnswer,
    InitAnswer,
    P,
    Story,
)

from anabranch.coordinator.transaction import commands as c
from anabranch.model.errors import ErrorCode

LAST = 32766


def markers_of(
    *, epoch: int, commit: bool, at_ms: int, version: int = 2, producer_id: int = P
) -> c.WriteMarkers:
    """The work that ends the transaction of x-0 and x-1."""
    return c.WriteMarkers(
        transactional_id=ID,
        producer_id=producer_id,
        producer_epoch=epoch,
        is_commit=commit,
        partitions=frozenset({("x", 0), ("x", 1)}),
        transaction_version=version,
        decided_ms=START_MS + at_ms,
    )


# Version 0: the epoch stays ---------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "how"), [(True, "Commit"), (False, "Abort")])
def test_a_transaction_ends_in_the_same_epoch(commit, how):
    """The answer does not wait for the markers, and tells no producer."""
    story = Story()
    story.begun(version=V0)

    story.end(P, 0, commit=commit).gives(
        answer=EndAnswer(),
        records=[f"Prepare{how} {P}/0 60000 v0 +20 +30 x-0 x-1"],
        timers={"timeout": None},
        tasks=[markers_of(epoch=0, commit=commit, version=0, at_ms=30)],
    )
    story.markers().gives(
        records=[f"Complete{how} {P}/0 60000 v0 +20 +40"], timers={"markers": None}
    )


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_end_may_come_again(commit):
    """While markers are written the producer waits; then it has ended, and only so."""
    story = Story()
    story.begun(version=V0)
    story.end(P, 0, commit=commit)

    story.end(P, 0, commit=commit).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.end(P, 0, commit=not commit).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.markers()
    story.end(P, 0, commit=commit).gives(answer=EndAnswer())
    story.end(P, 0, commit=not commit).fails(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("commit", [True, False])
def test_what_has_not_begun_does_not_end(commit):
    """In version 0."""
    story = Story()
    story.init()

    story.end(P, 0, commit=commit).fails(ErrorCode.INVALID_TXN_STATE)


def test_only_the_producer_ends():
    """Also while markers are written, and after them."""
    story = Story()
    story.begun(3, version=V0)

    for prepare in (lambda: None, lambda: story.end(P, 3, commit=True), story.markers):
        prepare()
        story.end(NOBODY, 3, commit=True).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        story.end(P, 2, commit=True).fails(ErrorCode.PRODUCER_FENCED)
        story.end(P, 4, commit=True).fails(ErrorCode.PRODUCER_FENCED)
        story.end(P, 2, commit=True, knows_producer_fenced=False).fails(
            ErrorCode.INVALID_PRODUCER_EPOCH
        )


def test_an_id_that_is_not_known_has_nothing_to_end():
    """And an empty one is none."""
    story = Story()

    for act in (story.end, story.end2):
        act(P, 0, commit=True).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        act(P, 0, commit=True, transactional_id="").fails(ErrorCode.INVALID_REQUEST)


def test_version_0_does_not_use_up_epochs():
    """The last one can be used for as many transactions as there are."""
    story = Story()
    story.begun(LAST, version=V0)
    story.gives_producer_ids = False

    assert story.end(P, LAST, commit=True).answer == EndAnswer()
    story.markers()
    assert story.line == f"CompleteCommit {P}/{LAST} 60000 v0 +20 +40"


# Version 2: the next epoch (KIP-890) -------------------------------------------------------------


@pytest.mark.parametrize(("commit", "how"), [(True, "Commit"), (False, "Abort")])
def test_a_transaction_ends_in_the_next_epoch(commit, how):
    """Markers have it, and the producer goes on with it."""
    story = Story()
    story.begun()

    story.end2(P, 0, commit=commit).gives(
        answer=EndAnswer(producer_id=P, producer_epoch=1),
        records=[f"Prepare{how} {P}/1 60000 v2 +20 +30 last 0 x-0 x-1"],
        timers={"timeout": None},
        tasks=[markers_of(epoch=1, commit=commit, at_ms=30)],
    )
    story.markers().gives(
        records=[f"Complete{how} {P}/1 60000 v2 +20 +40 last 0"], timers={"markers": None}
    )


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_is_asked_for_again_tells_the_same(commit):
    """Once the markers are written; also after a restart."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=commit)

    story.end2(P, 0, commit=commit).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.end2(P, 0, commit=not commit).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.end2(NOBODY, 0, commit=commit).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.markers()
    story.restart()
    for _ in range(2):
        story.end2(P, 0, commit=commit).gives(answer=EndAnswer(producer_id=P, producer_epoch=1))
    story.end2(P, 0, commit=not commit).fails(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("commit", [True, False])
def test_the_present_epoch_is_about_the_next_transaction(commit):
    """It has not begun: it can be aborted, and that takes another epoch, but not committed."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=commit)
    story.markers()

    story.end2(P, 1, commit=True).fails(ErrorCode.INVALID_TXN_STATE)
    story.end2(P, 1, commit=False).gives(
        answer=EndAnswer(producer_id=P, producer_epoch=2),
        records=[
            f"PrepareAbort {P}/2 60000 v2 +60 +60 last 1",
            f"CompleteAbort {P}/2 60000 v2 +60 +60 last 1",
        ],
        timers={"timeout": None},
    )


def test_an_abort_of_what_has_not_begun_ends_at_once():
    """There is nowhere to write a marker to."""
    story = Story()
    story.init()

    story.end2(P, 0, commit=True).fails(ErrorCode.INVALID_TXN_STATE)
    story.end2(P, 0, commit=False).gives(
        answer=EndAnswer(producer_id=P, producer_epoch=1),
        records=[
            f"PrepareAbort {P}/1 60000 v2 +30 +30 last 0",
            f"CompleteAbort {P}/1 60000 v2 +30 +30 last 0",
        ],
        timers={"timeout": None},
    )
    assert story.end2(P, 0, commit=False).answer == EndAnswer(producer_id=P, producer_epoch=1)


def test_the_epoch_before_is_fenced_where_nothing_has_ended():
    """And so is every other one."""
    story = Story()
    story.begun(5)

    for epoch in (4, 3, 6):
        story.end2(P, epoch, commit=True).fails(ErrorCode.PRODUCER_FENCED)
    story.end2(NOBODY, 5, commit=True).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    story.end2(P, 4, commit=True, knows_producer_fenced=False).fails(
        ErrorCode.INVALID_PRODUCER_EPOCH
    )
    story.end2(P, 5, commit=True)
    story.markers()
    for epoch in (4, 7):
        story.end2(P, epoch, commit=True).fails(ErrorCode.PRODUCER_FENCED)
    story.end2(NOBODY, 5, commit=True).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_a_producer_that_goes_on_is_told_nothing_of_its_last_end():
    """InitProducerId came after it."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=True)
    story.markers()
    story.init(P, 0)

    story.end2(P, 0, commit=True).fails(ErrorCode.PRODUCER_FENCED)


def test_a_fenced_producer_is_not_told_that_its_successor_s_commit_is_its_own():
    """The successor speaks version 0, so that its epoch is the next one after the commit too."""
    story = Story()
    story.init()
    story.init()
    story.add(P, 1, X0)
    story.end(P, 1, commit=True)
    story.markers()

    story.end2(P, 0, commit=True).fails(ErrorCode.PRODUCER_FENCED)


def test_no_epoch_is_not_the_epoch_before():
    """Where nobody may ask again, nobody does by asking without."""
    story = Story()
    story.begun(version=V0)
    story.end(P, 0, commit=True)
    story.markers()

    story.end2(P, -1, commit=True).fails(ErrorCode.PRODUCER_FENCED)


def test_the_last_epoch_ends_in_another_producer_id():
    """Markers are written with the old one; the producer goes on with the new one from 0."""
    story = Story()
    story.begun(LAST)

    story.end2(P, LAST, commit=True).gives(
        answer=EndAnswer(producer_id=P + 1, producer_epoch=0),
        records=[f"PrepareCommit {P}/{LAST + 1} 60000 v2 +20 +30 last {LAST} next {P + 1} x-0 x-1"],
        timers={"timeout": None},
        tasks=[markers_of(epoch=LAST + 1, commit=True, at_ms=30)],
    )
    story.markers().gives(
        records=[f"CompleteCommit {P + 1}/0 60000 v2 +20 +40 last {LAST} before {P}"],
        timers={"markers": None},
    )
    again = EndAnswer(producer_id=P + 1, producer_epoch=0)
    story.end2(P, LAST, commit=True).gives(answer=again)
    story.restart()
    story.end2(P, LAST, commit=True).gives(answer=again)
    story.end2(P, LAST, commit=False).fails(ErrorCode.INVALID_TXN_STATE)
    story.end2(P, LAST - 1, commit=True).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    story.end2(NOBODY, LAST, commit=True).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert story.add(P + 1, 0, X0).answer.error is ErrorCode.NONE


def test_the_epoch_before_the_last_ends_as_any_other():
    """Another producer id is not needed yet."""
    story = Story()
    story.begun(LAST - 1)

    answer = story.end2(P, LAST - 1, commit=True).answer
    assert answer == EndAnswer(producer_id=P, producer_epoch=LAST)


def test_an_epoch_that_is_used_up_does_not_end_without_another_producer_id():
    """The producer comes again."""
    story = Story()
    story.begun(LAST)
    story.gives_producer_ids = False

    story.end2(P, LAST, commit=True).fails(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    story.abort().fails(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


# Time -------------------------------------------------------------------------------------------


def test_a_transaction_ends_when_its_time_is_up():
    """It is aborted in the next epoch; its producer has no part in it any more."""
    story = Story()
    story.begun(version=V0)

    (step,) = story.wait(TIMEOUT_MS)
    step.gives(
        records=[f"PrepareAbort {P}/1 60000 v2 +20 +60020 last 0 x-0 x-1"],
        timers={"timeout": None},
        tasks=[markers_of(epoch=1, commit=False, at_ms=60_020)],
    )
    story.markers()
    story.end(P, 0, commit=True).fails(ErrorCode.PRODUCER_FENCED)
    story.add(P, 0, X0).fails(ErrorCode.PRODUCER_FENCED)


def test_a_producer_of_version_2_whose_time_is_up_finds_its_transaction_aborted():
    """It cannot commit; it may abort, and goes on with the next epoch."""
    story = Story()
    story.begun()
    story.wait(TIMEOUT_MS)
    story.markers()

    story.end2(P, 0, commit=True).fails(ErrorCode.INVALID_TXN_STATE)
    story.end2(P, 0, commit=False).gives(answer=EndAnswer(producer_id=P, producer_epoch=1))


def test_a_transaction_has_its_whole_time():
    """To the millisecond, from its first partition on."""
    story = Story()
    story.begun()

    assert story.wait(TIMEOUT_MS - 1) == []
    assert len(story.wait(1)) == 1


def test_a_timer_of_before_ends_nothing():
    """Neither another transaction, nor one whose time was counted by another clock."""
    story = Story()
    key = ("timeout", ID)
    story.submit(c.TimerFired(key=key)).does_nothing()
    story.init()
    story.submit(c.TimerFired(key=key)).does_nothing()
    story.add(P, 0, X0)

    story.submit(c.TimerFired(key=key)).gives(timers={"timeout": TIMEOUT_MS - 10})
    story.end(P, 0, commit=True)
    story.submit(c.TimerFired(key=key)).does_nothing()
    story.markers()
    story.submit(c.TimerFired(key=key)).does_nothing()


def test_in_the_last_epoch_time_is_up_when_there_is_another_producer_id():
    """It is asked for first, and then looked again."""
    story = Story()
    story.begun(LAST)
    wanted = c.AllocateProducerId(transactional_id=ID)

    (step,) = story.wait(TIMEOUT_MS)
    step.gives(timers={"timeout": 100}, tasks=[wanted])
    (step,) = story.wait(100)
    step.gives(timers={"timeout": 100}, tasks=[wanted])
    story.allocated(9000).gives(
        records=[f"PrepareAbort {P}/{LAST + 1} 60000 v2 +20 +60130 last {LAST} next 9000 x-0 x-1"],
        timers={"timeout": None},
        tasks=[markers_of(epoch=LAST + 1, commit=False, at_ms=60_130)],
    )
    story.markers()
    assert story.init().answer == InitAnswer(producer_id=9000, producer_epoch=1)


def test_a_producer_id_that_comes_too_late_is_not_used():
    """The transaction has ended meanwhile, or the id is gone."""
    story = Story()
    story.begun(LAST, version=V0)
    story.wait(TIMEOUT_MS)
    story.end(P, LAST, commit=True)

    story.allocated(9000).does_nothing()
    story.markers()
    story.submit(c.ProducerIdAllocated(transactional_id="other", new_producer_id=1)).does_nothing()


# Admins -----------------------------------------------------------------------------------------


def test_an_admin_aborts_a_transaction():
    """Its producer is fenced."""
    story = Story()
    story.begun()

    story.abort().gives(
        answer=c.AbortAnswer(),
        records=[f"PrepareAbort {P}/1 60000 v2 +20 +30 last 0 x-0 x-1"],
        timers={"timeout": None},
        tasks=[markers_of(epoch=1, commit=False, at_ms=30)],
    )
    story.abort().fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.markers()
    story.abort().fails(ErrorCode.INVALID_TXN_STATE)
    story.add(P, 0, X0, transaction_version=V2).fails(ErrorCode.PRODUCER_FENCED)


def test_an_admin_aborts_only_what_is_under_way():
    """Neither an unknown id nor one without a transaction."""
    story = Story()

    story.abort().fails(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    story.init()
    story.abort().fails(ErrorCode.INVALID_TXN_STATE)
