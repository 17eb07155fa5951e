"""Batches of sinks: decided once and whole, carried out until it is done, and never twice."""

import pytest
from transaction_story import RETENTION_MS, SINK, X0, X1, P, Story

from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.sink_state import Listed
from anabranch.coordinator.transaction.state import TransactionState
from anabranch.model.errors import ErrorCode

DAY_MS = 24 * 3600 * 1000
RETRY_MS = 100


def listed(name: str, producer_id: int, epoch: int = 0) -> Listed:
    return Listed(transactional_id=name, producer_id=producer_id, producer_epoch=epoch)


A, B = listed("a", P), listed("b", P + 1)


def two_prepared(batch_id: int = 7) -> Story:
    """Transactions `a` and `b`, prepared for a batch; it is +60 by now."""
    story = Story()
    assert story.prepared("a", batch_id) == A
    assert story.prepared("b", batch_id) == B
    return story


def end(*commits: Listed, aborts: tuple[Listed, ...] = ()) -> c.EndListed:
    return c.EndListed(sink_id=SINK, commits=commits, aborts=aborts)


def refusal(one: Listed, error: ErrorCode, state: TransactionState | None) -> c.Refusal:
    return c.Refusal(listed=one, error=error, state=state)


def carry_out(story: Story) -> None:
    """Do all that batches want done, as the broker does."""
    for task in story.batches_under_way:
        for one in task.aborts:
            story.end_prepared(one, commit=False)
        ended = [
            one
            for one in task.commits
            if story.end_prepared(one, commit=True).answer == c.EndPreparedAnswer()
        ]
        if task.commits:
            story.listed_ended(*ended)
        else:
            story.tasks.remove(task)
    for task in story.markers_under_way:
        story.outcome(task, task.partitions)


def states(story: Story) -> dict[str, str]:
    return {name: t.state.value for name, t in story.shard.transactions.items()}


# The decision -----------------------------------------------------------------------------------


def test_a_batch_is_one_record():
    """It lists the transactions, which are committed by their own shards from then on."""
    story = two_prepared()
    story.batch(7, A, B).gives(
        answer=c.BatchAnswer(last_batch_id=7),
        records=[f"sink s 7 +70 a:{P}/0 b:{P + 1}/0"],
        timers={"sink": None},
        tasks=[end(A, B)],
    )
    assert states(story) == {"a": "Ongoing", "b": "Ongoing"}
    story.end_prepared(A, commit=True)
    story.end_prepared(B, commit=True)
    story.listed_ended(A, B).gives(records=["sink s 7 +70"], timers={"sink": None})
    assert states(story) == {"a": "PrepareCommit", "b": "PrepareCommit"}


def test_a_batch_without_transactions():
    """It counts all the same: it was run and had nothing to write."""
    story = Story()
    story.batch(0).gives(
        answer=c.BatchAnswer(last_batch_id=0), records=["sink s 0 +10"], timers={"sink": None}
    )


def test_batches_may_leave_numbers_out():
    """But come in their order."""
    story = Story()
    story.batch(3)
    story.batch(9).gives(
        answer=c.BatchAnswer(last_batch_id=9), records=["sink s 9 +20"], timers={"sink": None}
    )
    story.batch(8).gives(answer=c.BatchAnswer(last_batch_id=9, is_replay=True))


@pytest.mark.parametrize(
    ("batch_id", "batch", "sink_id"), [(-1, (A,), SINK), (0, (A, A), SINK), (0, (A,), "")]
)
def test_a_batch_that_makes_no_sense(batch_id, batch, sink_id):
    """A sink, a number of 0 or more, each transaction once."""
    story = two_prepared(0)
    story.batch(batch_id, *batch, sink_id=sink_id).fails(ErrorCode.INVALID_REQUEST)


def test_a_batch_with_something_in_the_way():
    """Nothing of it is committed, and each that is in the way is named with the reason."""
    story = two_prepared()
    story.prepared("late", 8)
    story.prepared("strange", 7, sink_id="other")
    story.init(transactional_id="open")
    story.add(P + 4, 0, X0, transactional_id="open")
    story.prepared("ended", 7)
    story.end2(P + 5, 0, commit=False, transactional_id="ended")
    wanted = [
        (listed("nobody", 1), ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None),
        (listed("a", 1), ErrorCode.INVALID_PRODUCER_ID_MAPPING, TransactionState.ONGOING),
        (listed("late", P + 2), ErrorCode.INVALID_TXN_STATE, TransactionState.ONGOING),
        (listed("strange", P + 3), ErrorCode.INVALID_TXN_STATE, TransactionState.ONGOING),
        (listed("open", P + 4), ErrorCode.INVALID_TXN_STATE, TransactionState.ONGOING),
        (listed("ended", P + 5), ErrorCode.PRODUCER_FENCED, TransactionState.PREPARE_ABORT),
        (listed("ended", P + 5, 1), ErrorCode.INVALID_TXN_STATE, TransactionState.PREPARE_ABORT),
    ]
    for one, error, state in wanted:
        answer = c.BatchAnswer(error=error, refused=(refusal(one, error, state),))
        story.batch(7, B, one).gives(answer=answer)
    first, second = wanted[0], wanted[2]
    story.batch(7, A, first[0], B, second[0]).gives(
        answer=c.BatchAnswer(error=first[1], refused=(refusal(*first), refusal(*second)))
    )
    assert story.shard.sink(SINK) is None
    assert states(story)["a"] == "Ongoing"


def test_a_batch_whose_time_was_up():
    """What was aborted for its age is not committed, and the batch is not either."""
    story = two_prepared()
    story.wait(RETENTION_MS)
    for name in ("a", "b"):
        story.markers(name=name)
    state = TransactionState.COMPLETE_ABORT
    fenced = ErrorCode.PRODUCER_FENCED
    refused = (refusal(A, fenced, state), refusal(B, fenced, state))
    story.batch(7, A, B).gives(answer=c.BatchAnswer(error=fenced, refused=refused))


# Run again --------------------------------------------------------------------------------------


def test_the_same_request_again():
    """Its answer was lost: what it has committed stays so."""
    story = two_prepared()
    story.batch(7, A, B)
    replay = c.BatchAnswer(last_batch_id=7, is_replay=True)
    story.batch(7, A, B).gives(answer=replay)
    carry_out(story)
    story.batch(7, A, B).gives(answer=replay)
    assert states(story) == {"a": "CompleteCommit", "b": "CompleteCommit"}


@pytest.mark.parametrize("batch_id", [6, 7])
def test_a_batch_that_was_run_again(batch_id):
    """With other transactions, as many as it may be: they are aborted."""
    story = two_prepared()
    story.batch(7, A, B)
    carry_out(story)
    more = [story.prepared(name, batch_id) for name in ("c", "d", "e")]
    story.batch(batch_id, *more).gives(
        answer=c.BatchAnswer(last_batch_id=7, is_replay=True),
        tasks=[end(aborts=tuple(more))],
    )
    carry_out(story)
    assert {states(story)[name] for name in "cde"} == {"CompleteAbort"}


def test_a_replay_leaves_what_is_being_committed_alone():
    """Even if it is still prepared, and what is not prepared, or for a later batch, too."""
    story = two_prepared()
    story.batch(7, A)
    later = story.prepared("c", 8)
    story.init(transactional_id="open")
    story.add(P + 3, 0, X0, transactional_id="open")
    story.batch(7, A, B, later, listed("open", P + 3), listed("nobody", 1)).gives(
        answer=c.BatchAnswer(last_batch_id=7, is_replay=True), tasks=[end(aborts=(B,))]
    )


def test_what_nobody_lists_is_aborted_with_its_batch():
    """Attempts that were given up leave transactions behind, of this batch or an earlier one."""
    story = two_prepared()
    old, later = story.prepared("old", 3), story.prepared("later", 8)
    other = story.prepared("other", 7, sink_id="other")
    story.batch(7, B).gives(
        answer=c.BatchAnswer(last_batch_id=7),
        records=[f"sink s 7 +160 b:{P + 1}/0"],
        timers={"sink": None},
        tasks=[end(B, aborts=(A, old))],
    )
    carry_out(story)
    assert states(story) == {
        "a": "CompleteAbort",
        "b": "CompleteCommit",
        "old": "CompleteAbort",
        "later": "Ongoing",
        "other": "Ongoing",
    }
    assert story.shard.prepared_for(SINK) == [story.transaction(later.transactional_id)]
    assert story.shard.prepared_for("other") == [story.transaction(other.transactional_id)]


# Carrying it out --------------------------------------------------------------------------------


def test_what_could_not_be_committed_is_tried_again():
    """Until nothing is left; what is done is not done again."""
    story = two_prepared()
    story.batch(7, A, B)
    story.end_prepared(B, commit=True)
    story.listed_ended(B).gives(records=[f"sink s 7 +70 a:{P}/0"], timers={"sink": RETRY_MS})
    (step,) = story.wait(RETRY_MS)
    step.gives(tasks=[end(A)])
    story.listed_ended().gives(timers={"sink": RETRY_MS})
    story.wait(RETRY_MS)
    story.end_prepared(A, commit=True)
    story.listed_ended(A).gives(records=["sink s 7 +70"], timers={"sink": None})
    story.listed_ended(A).does_nothing()


def test_the_next_batch_while_the_last_one_is_not_done():
    """Both are tried together, and the timer of the first is not needed any more."""
    story = two_prepared()
    story.batch(7, A)
    story.listed_ended().gives(timers={"sink": RETRY_MS})
    last = story.prepared("c", 8)
    story.batch(8, last).gives(
        answer=c.BatchAnswer(last_batch_id=8),
        records=[f"sink s 8 +120 a:{P}/0 c:{P + 2}/0"],
        timers={"sink": None},
        tasks=[end(A, last, aborts=(B,))],
    )


def test_a_restart_between_the_decision_and_the_rest():
    """The batch is carried out as soon as the journals are read; once only."""
    story = two_prepared()
    story.batch(7, A, B)
    step = story.restart()
    assert step.timers["sink"] == 0
    (again,) = story.wait(0)
    again.gives(tasks=[end(A, B)])
    carry_out(story)
    assert states(story) == {"a": "CompleteCommit", "b": "CompleteCommit"}
    assert "sink" not in story.restart().timers


def test_a_restart_in_the_middle_of_the_rest():
    """What is committed already, and may have gone on, is passed over."""
    story = two_prepared()
    story.batch(7, A, B)
    story.end_prepared(A, commit=True)
    story.restart()
    story.wait(0)
    carry_out(story)
    assert states(story) == {"a": "CompleteCommit", "b": "CompleteCommit"}
    assert story.transaction("a").producer_epoch == 1


def test_work_of_a_sink_that_is_gone():
    """Outcomes and timers that nobody waits for do nothing."""
    story = Story()
    story.listed_ended(A).does_nothing()
    story.submit(c.TimerFired(key=("sink", SINK))).does_nothing()
    story.batch(1)
    story.listed_ended(A).does_nothing()
    story.submit(c.TimerFired(key=("sink", SINK))).does_nothing()


# Remembering ------------------------------------------------------------------------------------


def test_the_last_batch_can_be_asked_for():
    """Nobody knows of batches of a sink that had none."""
    story = Story()
    ask = c.AskSink(sink_id=SINK)
    story.submit(ask).gives(answer=c.SinkAnswer(sink=None))
    story.batch(4)
    for _ in range(2):
        sink = story.shard.sink(SINK)
        assert sink is not None and sink.last_batch_id == 4
        story.submit(ask).gives(answer=c.SinkAnswer(sink=sink))
        story.restart().gives()


def test_a_sink_is_forgotten():
    """After a time without batches, but not while something of it is pending."""
    story = two_prepared()
    story.batch(7, A)
    story.batch(1, sink_id="other")
    story.now_ms += 30 * DAY_MS - 15
    story.expire().does_nothing()
    story.expire().gives(records=["sink other forgotten"])
    story.end_prepared(A, commit=True)
    story.markers(X0, X1, name="a")
    story.listed_ended(A)
    step = story.expire()
    assert "sink s forgotten" in step.records
    assert story.shard.sink(SINK) is None


def test_a_clock_that_is_set_back():
    """The last batch is not older than the one before it."""
    story = Story()
    story.batch(1)
    story.now_ms -= 5_000
    story.batch(2).gives(
        answer=c.BatchAnswer(last_batch_id=2), records=["sink s 2 +10"], timers={"sink": None}
    )
