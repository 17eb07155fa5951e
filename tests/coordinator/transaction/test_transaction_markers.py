"""Markers: all of them are written, whatever fails, and whenever the broker is killed."""

import pytest
from transaction_story import ID, V0, V2, X0, X1, X2, P, Story

from anabranch.coordinator.transaction import commands as c
from anabranch.model.errors import ErrorCode


def test_markers_that_are_missing_are_written_later():
    """Only those, as often as it takes."""
    story = Story()
    story.begun()
    story.add(P, 0, X2)
    story.end2(P, 0, commit=True)

    story.markers(X1).gives(records=["missing x-0 x-2"], timers={"markers": 100})
    (step,) = story.wait(100)
    (task,) = step.tasks
    assert task.partitions == {X0, X2}
    assert (task.producer_epoch, task.is_commit, task.transaction_version) == (1, True, V2)
    step.gives(tasks=[task])
    story.markers(X0).gives(records=["missing x-2"], timers={"markers": 100})
    story.wait(100)
    assert story.line.startswith("PrepareCommit")
    story.markers().gives(
        records=[f"CompleteCommit {P}/1 60000 v2 +20 +{story.now_ms - 1_700_000_000_000} last 0"],
        timers={"markers": None},
    )


def test_no_marker_can_be_written_at_all():
    """All of them are tried again."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=False)
    (task,) = story.tasks

    story.outcome(task, frozenset()).gives(records=["missing x-0 x-1"], timers={"markers": 100})
    story.wait(100)
    assert story.tasks == [task]


def test_the_transaction_waits_for_the_last_marker():
    """Until then nothing else is possible."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=True)
    story.markers(X0)

    story.init().fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.add(P, 1, X0).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.end2(P, 0, commit=True).fails(ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("commit", [True, False])
def test_after_a_crash_the_same_markers_are_written_again(commit):
    """All of them: which ones are there is not in the journal."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=commit)
    tasks = list(story.tasks)

    for _ in range(2):
        story.restart().gives(tasks=tasks)
    story.markers(X0)
    story.restart().gives(tasks=tasks)
    story.markers()
    story.restart().does_nothing()
    assert story.transaction().state.is_complete


def test_after_a_crash_an_ongoing_transaction_still_ends_in_time():
    """Counted from its begin."""
    story = Story()
    story.begun()
    story.wait(59_000)

    story.restart().gives(timers={"timeout": 1000})
    (step,) = story.wait(1000)
    assert step.records[0].startswith(f"PrepareAbort {P}/1")


def test_a_transaction_whose_time_was_up_during_a_crash_ends_now():
    """The timer is in the past."""
    story = Story()
    story.begun()
    timers = story.timers
    story.timers = type(timers)()
    story.now_ms += 100_000

    story.restart().gives(timers={"timeout": 60_000 - 100_000})
    assert len(story.wait(0)) == 1


def test_what_waits_for_another_producer_id_waits_again_after_a_crash():
    """The timer comes back, and with it the question."""
    story = Story()
    story.begun(32766)
    story.wait(60_000)
    assert story.tasks == [c.AllocateProducerId(transactional_id=ID)]

    story.restart()
    (step,) = story.wait(0)
    step.gives(timers={"timeout": 100}, tasks=[c.AllocateProducerId(transactional_id=ID)])


def test_each_transaction_has_its_own_work():
    """After a crash too."""
    story = Story()
    story.init()
    story.add(P, 0, X0)
    story.init(transactional_id="b")
    story.add(P + 1, 0, X1, transactional_id="b")
    story.end(P, 0, commit=True)
    story.end(P + 1, 0, commit=False, transactional_id="b")
    story.init(transactional_id="c")
    story.add(P + 2, 0, X2, transactional_id="c")

    step = story.restart()
    assert {task.transactional_id: task.is_commit for task in step.tasks} == {ID: True, "b": False}
    assert step.timers == {"timeout": 60_000}
    story.markers()
    assert story.transaction("b").state.is_decided
    story.markers(name="b")
    assert story.transaction("b").state.is_complete
    assert story.transaction("c").partitions == {X2}


def test_work_of_before_a_crash_does_not_end_the_next_transaction():
    """The epoch is the same in version 0, and so are the partitions."""
    story = Story()
    story.begun(version=V0)
    story.end(P, 0, commit=True)
    (former,) = story.tasks
    story.restart()
    story.markers()
    story.add(P, 0, X0, X1)
    story.end(P, 0, commit=True)

    story.outcome(former, former.partitions).does_nothing()
    assert story.transaction().state.is_decided


def test_decisions_of_the_same_moment_are_told_apart():
    """Whatever the clock says, and where it goes back too."""
    story = Story()
    story.begun(version=V0)
    story.end(P, 0, commit=True)
    (former,) = story.tasks
    story.markers()
    story.now_ms = former.decided_ms - 20
    story.add(P, 0, X0, X1)
    story.end(P, 0, commit=True)

    story.outcome(former, former.partitions).does_nothing()
    assert story.tasks[0].decided_ms > former.decided_ms


def test_outcomes_nobody_waits_for_change_nothing():
    """Of an id that is gone, of a transaction that is over, and of a timer that rang for both."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=True)
    (task,) = story.tasks
    story.markers()

    story.outcome(task, task.partitions).does_nothing()
    story.submit(c.TimerFired(key=("markers", ID))).does_nothing()
    story.submit(c.TimerFired(key=("markers", "gone"))).does_nothing()
    gone = c.WriteMarkers(
        transactional_id="gone",
        producer_id=1,
        producer_epoch=0,
        is_commit=True,
        partitions=frozenset(),
        transaction_version=V2,
        decided_ms=0,
    )
    story.outcome(gone, frozenset()).does_nothing()


def test_a_transaction_that_kafka_left_without_partitions_is_completed():
    """There its end is written in two steps."""
    story = Story()
    story.init()
    story.end2(P, 0, commit=False)
    story.records.pop()

    step = story.restart()
    (task,) = story.tasks
    assert task.partitions == frozenset()
    step.gives(tasks=[task])
    story.now_ms -= 10
    story.outcome(task, frozenset()).gives(
        records=[f"CompleteAbort {P}/1 60000 v2 +20 +20 last 0"], timers={"markers": None}
    )
    # Nothing but the state tells it from the same once more.
    story.outcome(task, frozenset()).does_nothing()
