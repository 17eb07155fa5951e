"""Prepared transactions: they take nothing more, wait for long, and end with their batch."""

import pytest
from transaction_story import (
    ID,
    NOBODY,
    RETENTION_MS,
    SINK,
    START_MS,
    TIMEOUT_MS,
    V0,
    V2,
    X0,
    X1,
    X2,
    EndAnswer,
    InitAnswer,
    P,
    Story,
)

from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.sink_state import Listed
from anabranch.coordinator.transaction.state import NO_TIMEOUT_MS
from anabranch.model.errors import ErrorCode

LAST = 32766
PREPARED = f"Ongoing {P}/0 60000 v2 +20 +30 for {SINK}/7 +30 {RETENTION_MS} x-0 x-1"


def mine(epoch: int = 0, producer_id: int = P) -> Listed:
    return Listed(transactional_id=ID, producer_id=producer_id, producer_epoch=epoch)


def markers_of(*, epoch: int, commit: bool, at_ms: int) -> c.WriteMarkers:
    return c.WriteMarkers(
        transactional_id=ID,
        producer_id=P,
        producer_epoch=epoch,
        is_commit=commit,
        partitions=frozenset({X0, X1}),
        transaction_version=V2,
        decided_ms=START_MS + at_ms,
    )


def prepared_story(**settings: int) -> Story:
    story = Story(**settings)
    story.begun()
    story.prepare(P, 0, 7)
    return story


# Being prepared -----------------------------------------------------------------------------------


def test_a_transaction_is_prepared():
    """It waits for its batch, for the time of prepared transactions instead of its own."""
    story = Story()
    story.begun()
    story.prepare(P, 0, 7).gives(
        answer=c.PrepareAnswer(), records=[PREPARED], timers={"timeout": RETENTION_MS}
    )
    story.prepare(P, 0, 7).gives(answer=c.PrepareAnswer())


@pytest.mark.parametrize("changes", [{"batch_id": 8}, {"sink_id": "other"}])
def test_prepared_for_another_batch(changes):
    """It is in one batch of one sink."""
    prepared_story().prepare(P, 0, **{"batch_id": 7} | changes).fails(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("changes", [{"transactional_id": ""}, {"sink_id": ""}, {"batch_id": -1}])
def test_what_names_nothing_is_not_prepared(changes):
    """An id, a sink and a batch of 0 or more have to be there."""
    story = Story()
    story.begun()
    story.prepare(P, 0, **changes).fails(ErrorCode.INVALID_REQUEST)


def test_only_its_producer_prepares_it():
    """Nobody else does, whatever epoch they have, and no id is made by it."""
    story = Story()
    story.prepare(P, 0).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    story.begun(epoch=3)
    story.prepare(NOBODY, 3).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    story.prepare(P, 2).fails(ErrorCode.PRODUCER_FENCED)
    story.prepare(P, 4).fails(ErrorCode.PRODUCER_FENCED)


def test_only_what_is_ongoing_is_prepared():
    """What has not begun has nothing to wait with; what is being ended has to end first."""
    story = Story()
    story.init()
    story.prepare(P, 0).fails(ErrorCode.INVALID_TXN_STATE)
    story.add(P, 0, X0, X1, transaction_version=V2)
    story.end2(P, 0, commit=True)
    story.prepare(P, 1).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.prepare(P, 0).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.markers()
    story.prepare(P, 1).fails(ErrorCode.INVALID_TXN_STATE)


# Afterwards ---------------------------------------------------------------------------------------


def test_nothing_is_added_to_a_prepared_transaction():
    """No partition and no offsets, and what it has takes no more; a fenced producer hears that."""
    story = prepared_story()
    for partition in (X0, X2):
        story.add(P, 0, partition, transaction_version=V2).fails(ErrorCode.INVALID_TXN_STATE)
        story.verify(P, 0, partition).fails(ErrorCode.INVALID_TXN_STATE)
    story.offsets(P, 0).fails(ErrorCode.INVALID_TXN_STATE)
    story.add(P, 4, X0, transaction_version=V2).fails(ErrorCode.PRODUCER_FENCED)
    story.verify(P, 4, X0).fails(ErrorCode.PRODUCER_FENCED)
    assert story.line == PREPARED


@pytest.mark.parametrize("version", [V0, V2])
def test_its_producer_cannot_commit_it(version):
    """A part of a batch is not committed alone."""
    story = prepared_story()
    story.end(P, 0, commit=True, transaction_version=version).fails(ErrorCode.INVALID_TXN_STATE)
    assert story.line == PREPARED


@pytest.mark.parametrize(("version", "epoch"), [(V0, 0), (V2, 1)])
def test_its_producer_can_abort_it(version, epoch):
    """As any other, and nothing of it is left."""
    story = prepared_story()
    told = EndAnswer() if version is V0 else EndAnswer(producer_id=P, producer_epoch=1)
    step = story.end(P, 0, commit=False, transaction_version=version)
    assert step.answer == told
    assert step.timers == {"timeout": None}
    assert story.line.startswith(f"PrepareAbort {P}/{epoch} ")
    assert not story.transaction().is_prepared
    assert story.shard.prepared_for(SINK) == []


def test_its_own_time_does_not_end_it():
    """Only the time of prepared transactions does, from when it was prepared."""
    story = prepared_story()
    assert story.wait(RETENTION_MS - 1) == []
    assert story.line == PREPARED
    (step,) = story.wait(1)
    step.gives(
        records=[
            f"PrepareAbort {P}/1 60000 v2 +20 +{30 + RETENTION_MS} last 0 x-0 x-1",
        ],
        timers={"timeout": None},
        tasks=[markers_of(epoch=1, commit=False, at_ms=30 + RETENTION_MS)],
    )


def test_its_time_goes_on_after_a_restart():
    """The journal has the batch that it waits for, and until when."""
    story = prepared_story()
    story.restart().gives(timers={"timeout": RETENTION_MS})
    assert story.line == PREPARED


def test_another_setting_does_not_shorten_the_time_of_what_is_prepared():
    """The time is that of when it was prepared."""
    story = prepared_story(prepared_retention_ms=500)
    assert story.wait(499) == []
    (step,) = story.wait(1)
    assert step.records[0].startswith("PrepareAbort")


@pytest.mark.parametrize("pair", [(-1, -1), (P, 0)])
def test_another_producer_aborts_it(pair):
    """As KIP-939 has it for a producer that does not keep what is prepared."""
    story = prepared_story()
    step = story.init(*pair)
    assert step.answer == InitAnswer(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    assert step.records == [f"PrepareAbort {P}/1 60000 v2 +20 +40 last 0 x-0 x-1"]
    story.markers()
    assert story.init().answer == InitAnswer(producer_id=P, producer_epoch=2)


def test_an_admin_aborts_it():
    """Fencing its producer."""
    story = prepared_story()
    assert story.abort().answer == c.AbortAnswer()
    assert story.line.startswith(f"PrepareAbort {P}/1 ")


# Ended by its batch -------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "how"), [(True, "Commit"), (False, "Abort")])
def test_its_batch_ends_it(commit, how):
    """In the next epoch, whatever version its producer speaks, and once."""
    story = Story()
    story.begun(version=V0)
    story.prepare(P, 0, 7)
    story.end_prepared(mine(), commit=commit).gives(
        answer=c.EndPreparedAnswer(),
        records=[f"Prepare{how} {P}/1 60000 v2 +20 +40 last 0 x-0 x-1"],
        timers={"timeout": None},
        tasks=[markers_of(epoch=1, commit=commit, at_ms=40)],
    )
    story.end_prepared(mine(), commit=commit).gives(answer=c.EndPreparedAnswer())
    story.markers()
    story.end_prepared(mine(), commit=commit).gives(answer=c.EndPreparedAnswer())
    assert story.line.startswith(f"Complete{how} {P}/1 ")


@pytest.mark.parametrize("commit", [True, False])
def test_a_batch_ends_only_what_it_lists(commit):
    """Another epoch, producer or sink is not meant, nor is what is not prepared or not there."""
    story = Story()
    nothing = c.EndPreparedAnswer()
    story.begun()
    story.end_prepared(mine(), commit=commit).gives(answer=nothing)
    nobodys = Listed(transactional_id="nobody", producer_id=P, producer_epoch=0)
    story.end_prepared(nobodys, commit=commit).gives(answer=nothing)
    story.prepare(P, 0, 7)
    for other in (mine(epoch=1), mine(producer_id=NOBODY)):
        story.end_prepared(other, commit=commit).gives(answer=nothing)
    story.end_prepared(mine(), commit=commit, sink_id="other").gives(answer=nothing)
    assert story.transaction().is_prepared


def test_the_next_transaction_in_the_same_epoch_is_another():
    """What was prepared, and aborted in the old way, is not committed when it begins again."""
    story = Story()
    story.begun(version=V0)
    story.prepare(P, 0, 7)
    story.end(P, 0, commit=False)
    story.markers()
    story.end_prepared(mine(), commit=True).gives(answer=c.EndPreparedAnswer())
    story.add(P, 0, X0)
    story.end_prepared(mine(), commit=True).gives(answer=c.EndPreparedAnswer())


def test_a_used_up_epoch_ends_with_another_producer_id():
    """It is waited for, as with any end."""
    story = Story()
    story.begun(epoch=LAST)
    story.prepare(P, LAST, 7)
    story.end_prepared(mine(LAST), commit=True, new_producer_id=None).fails(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    story.end_prepared(mine(LAST), commit=True, new_producer_id=5000)
    story.markers()
    assert story.line.startswith("CompleteCommit 5000/0 ")


# Kept for a batch ---------------------------------------------------------------------------------


def claimed_story() -> Story:
    """The batch is decided, and its transactions are not committed yet."""
    story = prepared_story()
    story.batch(7, mine())
    return story


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s.init(),
        lambda s: s.init(P, 0),
        lambda s: s.end(P, 0, commit=False),
        lambda s: s.end2(P, 0, commit=False),
        lambda s: s.end2(P, 0, commit=True),
        lambda s: s.abort(),
        lambda s: s.end_prepared(mine(), commit=False),
    ],
)
def test_what_a_batch_has_decided_nobody_else_ends(act):
    """They are told to come again, and the batch goes on."""
    story = claimed_story()
    act(story).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert story.line == PREPARED
    assert story.end_prepared(mine(), commit=True).records[0].startswith("PrepareCommit")


def test_what_a_batch_has_decided_time_does_not_end():
    """It is looked at again later, and ends when the batch has let it go."""
    story = Story(prepared_retention_ms=500)
    story.begun()
    story.prepare(P, 0, 7)
    story.batch(7, mine())
    (step,) = story.wait(500)
    step.gives(timers={"timeout": 10_000})
    story.submit(c.ProducerIdAllocated(transactional_id=ID, new_producer_id=5)).gives(
        timers={"timeout": 10_000}
    )
    assert story.line.startswith("Ongoing")


def test_what_is_not_prepared_is_nobodys():
    """A batch that is pending says nothing of a later transaction in another epoch."""
    story = claimed_story()
    story.end_prepared(mine(), commit=True)
    story.markers()
    assert story.init().answer == InitAnswer(producer_id=P, producer_epoch=2)
    story.add(P, 2, X0, transaction_version=V2)
    assert story.abort().answer == c.AbortAnswer()


# Two-phase commit (KIP-939) -----------------------------------------------------------------------


def test_two_phase_commit_has_to_be_allowed():
    """In Kafka's words: who may not is not told whether others may."""
    story = Story()
    story.init(is_two_phase_commit=True).fails(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_no_time_ends_the_transactions_of_two_phase_commit():
    """Whatever the producer asks for, and after a restart too; the next producer decides anew."""
    story = Story(is_two_phase_commit_enabled=1)
    story.init(is_two_phase_commit=True, timeout_ms=0)
    assert story.transaction().timeout_ms == NO_TIMEOUT_MS
    step = story.add(P, 0, X0, transaction_version=V2)
    assert step.timers == {"timeout": None}
    assert story.wait(100 * RETENTION_MS) == []
    story.restart().gives()
    assert story.wait(100 * RETENTION_MS) == []
    late = story.submit(c.TimerFired(key=("timeout", ID)))
    late.gives(timers={"timeout": None})
    story.end2(P, 0, commit=True)
    story.markers()
    story.init()
    assert story.transaction().timeout_ms == TIMEOUT_MS


def test_a_transaction_of_two_phase_commit_can_be_prepared_too():
    """Then it has the time of prepared ones."""
    story = Story(is_two_phase_commit_enabled=1)
    story.init(is_two_phase_commit=True)
    story.add(P, 0, X0, transaction_version=V2)
    assert story.prepare(P, 0, 7).timers == {"timeout": RETENTION_MS}
