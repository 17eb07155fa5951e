"""How far groups are with the sources of branch topics: asked, followed, shown and projected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from branch_progress_kit import (
    BRANCHED,
    PAUSE_MS,
    PROJECTED,
    RANGES,
    SOON_MS,
    SOURCE,
    Stage,
)
from group_kit import GROUP, Groups, Waiting

from anabranch.branch.slots import SlotRule, branch_of_slot, slot_of_offset
from anabranch.broker import slot_scans
from anabranch.coordinator.group import commands as c
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError

LABELS = (GROUP, SOURCE, "0", BRANCHED)


@pytest.fixture
def stage(groups: Groups) -> Stage:
    """One partition, four branches, not projected."""
    stage = Stage(groups)
    stage.start()
    return stage


@pytest.fixture
def projecting(groups: Groups) -> Stage:
    """The same with `branch.commit.source`."""
    stage = Stage(groups, **PROJECTED)
    stage.start()
    return stage


# Asked --------------------------------------------------------------------------------------------


def test_progress_is_told_as_of_now(stage: Stage) -> None:
    """From the commits and the log as they are when somebody asks."""
    stage.produce(0, 1, 2, 3, 0)
    stage.commit(5, 2, 3, 3)
    assert stage.stable() == [(3, 1)]
    stage.commit(None, None, None, 4)
    assert stage.stable() == [(5, 0)]
    stage.produce(1)
    assert stage.stable() == [(5, 1)]


def test_every_partition_of_a_topic_that_the_group_reads_is_told(groups: Groups) -> None:
    """Also those that it has committed nothing for; all of that is left to do."""
    stage = Stage(groups, partitions=2)
    stage.produce(0, 1, partition=0)
    stage.produce(2, 3, 2, partition=1)
    stage.commit(2, 2, partition=0)
    assert stage.stable() == [(2, 0), (0, 3)]


def test_a_group_without_commits_on_branch_topics_has_nothing_to_tell(stage: Stage) -> None:
    """Commits on plain topics are no progress of this kind; asked by name there is an answer."""
    stage.produce(0, 1)
    stage.commit_plain(1)
    assert stage.stable() == []
    assert stage.stable(BRANCHED) == [(0, 2)]


def test_only_branch_topics_can_be_asked_for(stage: Stage) -> None:
    """A plain topic, and one that does not exist, are refused with what to do."""
    for name, code in (
        (SOURCE, ErrorCode.INVALID_REQUEST),
        ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        with pytest.raises(KafkaError) as refused:
            stage.progress.of_group(GROUP, [name])
        assert refused.value.code is code
        assert name in refused.value.message


def test_commits_for_a_former_topic_of_the_same_name_do_not_count(groups: Groups) -> None:
    """Offsets belong to the topic that they were committed on."""
    stage = Stage(groups)
    stage.produce(0, 1, 2, 3)
    offset = c.OffsetToCommit(
        topic=BRANCHED,
        topic_id=b"another topic id",
        partition=0,
        offset=4,
        leader_epoch=-1,
        metadata=None,
    )
    groups.submit(
        c.CommitOffsets(
            group_id=GROUP,
            member_id="",
            group_instance_id=None,
            generation_id=-1,
            retention_ms=-1,
            knows_group_id_not_found=True,
            offsets=(offset,),
        )
    )
    assert stage.stable() == [(0, 4)]


def test_another_rule_makes_everything_new(stage: Stage) -> None:
    """What was known of ranges says nothing when records are in other ones."""
    stage.produce(*[1] * 64)
    stage.produce(*[None] * 3)  # all of one block of 64 offsets
    home = branch_of_slot(slot_of_offset(64), RANGES)
    assert home != 0
    stage.commit(*[67 if r in (1, home) else 0 for r in range(RANGES)])
    assert stage.stable() == [(67, 0)]
    stage.source.partitions[0].slot_rule = SlotRule(is_null_key_ordered=True)
    assert stage.stable() == [(64, 3)]


def test_a_long_log_is_indexed_by_a_thread_and_once_for_all(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who ask at the same time wait for the same steps; a third finds everything there."""
    monkeypatch.setattr(slot_scans, "_INLINE_STEP_BYTES", 0)
    monkeypatch.setattr(slot_scans, "_INLINE_BYTES", 0)
    stage = Stage(groups)
    for _ in range(20):
        stage.produce(0, 1, 2, 3)
    stage.commit(0, 0, 0, 0)
    first, second = (Waiting(stage.progress.of_group(GROUP)) for _ in range(2))
    assert not first.is_answered and not second.is_answered
    steps = 0
    while not (first.is_answered and second.is_answered):
        steps += stage.loop.finish_jobs()
    assert steps == 3  # index, count, count
    assert [w.answer[0].progress.unprocessed_records for w in (first, second)] == [80, 80]
    third = Waiting(stage.progress.of_group(GROUP))
    assert stage.loop.finish_jobs() == 1
    assert third.is_answered


def test_a_log_of_many_segments_is_counted_one_by_one(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their indexes are written beside them and let go of when they take too much memory."""
    monkeypatch.setattr(slot_scans, "_INLINE_STEP_BYTES", 0)
    monkeypatch.setattr(slot_scans, "_KEPT_BYTES", 200)
    stage = Stage(groups)
    log = stage.source.partitions[0].log
    for _ in range(6):
        for _ in range(4):
            stage.produce(0, 1, 2, 3, 0)
        log.roll(int(groups.now_ms))
    stage.commit(0, 60, 60, 60)
    assert stage.stable() == [(0, 48 + 3 * 12)]
    assert log.slot_indexes is not None
    assert log.slot_indexes.size_bytes <= 200
    assert len(list(log.folder.glob("*.slots"))) == 6
    assert stage.stable() == [(0, 48 + 3 * 12)]


def test_a_log_that_cannot_be_read_is_an_error_of_the_question(stage: Stage) -> None:
    """Nothing is told that might be wrong, and the next question is answered again."""
    stage.produce(0, 1)
    stage.commit(0, 0, 0, 0)
    log = stage.source.partitions[0].log
    log.is_closed = True
    failures: list[Exception] = []
    stage.progress.of_group(GROUP).deliver_to(lambda found: None, failures.append)
    assert [f.code for f in failures if isinstance(f, KafkaError)] == [
        ErrorCode.KAFKA_STORAGE_ERROR
    ]
    log.is_closed = False
    assert stage.stable() == [(0, 2)]


# Plans --------------------------------------------------------------------------------------------


def test_a_plan_for_other_ranges(stage: Stage) -> None:
    """Each new range begins at its first record that is not done; what is done above it returns."""
    stage.produce(0, 1, 2, 3, 0, 1)
    stage.commit(1, 6, 6, 6)
    # Of two ranges, the first one has the records 0, 1, 4, 5, of which 4 is left to do.
    assert stage.plan(BRANCHED, 2) == [[(4, 1), (6, 0)]]
    assert stage.plan(BRANCHED, 1) == [[(4, 1)]]


def test_a_plan_from_the_plain_topic(stage: Stage) -> None:
    """What the group committed on the source itself holds for all ranges; nothing is replayed."""
    stage.produce(0, 1, 2, 3, 0, 1)
    stage.commit_plain(3)
    assert stage.plan(SOURCE, 4) == [[(4, 0), (5, 0), (6, 0), (3, 0)]]


def test_a_plan_without_commits_starts_over(stage: Stage) -> None:
    """Nothing was done, so nothing may be skipped."""
    stage.produce(2, 2, 2)
    assert stage.plan(BRANCHED, 2) == [[(3, 0), (0, 0)]]


def test_a_plan_for_too_many_ranges_is_refused(stage: Stage) -> None:
    """The bounds are those of a branch topic."""
    for ranges in (0, -1, 1025):
        with pytest.raises(KafkaError) as refused:
            stage.progress.plan(GROUP, BRANCHED, ranges)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


# Followed -----------------------------------------------------------------------------------------


def test_commits_are_followed_a_moment_later(stage: Stage) -> None:
    """Without anybody asking, metrics know what a group has done."""
    stage.produce(0, 1, 2, 3)
    assert stage.metrics() == {}
    stage.commit(1, 2, 3, None)
    assert stage.metrics() == {}
    stage.pass_ms(SOON_MS)
    assert stage.metrics() == {LABELS: (3, 1)}


def test_nothing_happens_when_nothing_is_committed(stage: Stage) -> None:
    """No timer runs for a group that is at rest."""
    stage.produce(0, 1, 2, 3)
    stage.commit(1, 2, 3, 4)
    stage.settle()
    assert stage.loop.armed == []
    stage.commit_plain(2)
    assert stage.loop.armed == []


def test_a_busy_group_is_looked_at_once_a_second(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it commits; other groups do not wait for it."""
    looks: list[tuple[str, float]] = []
    survey = stage.progress._surveyor._survey

    def counting(subject: Any, last: Any) -> Any:
        looks.append((subject.group_id, stage.groups.now_ms))
        return survey(subject, last)

    monkeypatch.setattr(stage.progress._surveyor, "_survey", counting)
    began_ms = stage.groups.now_ms
    for number in range(50):
        stage.produce(0)
        stage.commit(number + 1, 0, 0, 0)
        if number == 25:
            stage.commit(1, group_id="other")
        stage.pass_ms(100)
    times = [at - began_ms for group, at in looks if group == GROUP]
    assert times == [SOON_MS + PAUSE_MS * n for n in range(5)]
    assert [group for group, _ in looks].count("other") == 1
    stage.settle()
    assert stage.metrics()[LABELS] == (50, 0)
    assert stage.loop.armed == []


def test_a_long_look_is_followed_by_a_longer_rest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the indexing of a long log does not take a core for itself."""
    monkeypatch.setattr(slot_scans, "_INLINE_STEP_BYTES", 0)
    stage.produce(0, 1)
    stage.commit(1, 0, 0, 0)
    stage.groups.pass_ms(SOON_MS)
    stage.commit(2, 2, 2, 2)
    stage.groups.pass_ms(500)  # so long it takes
    stage.loop.finish_jobs()
    assert stage.metrics() == {LABELS: (1, 1)}
    stage.groups.pass_ms(20 * 500 - 1)
    assert stage.metrics() == {LABELS: (1, 1)}
    stage.pass_ms(1)
    assert stage.metrics() == {LABELS: (2, 0)}


def test_records_that_arrive_while_nobody_commits_are_unprocessed(stage: Stage) -> None:
    """A group that stands still falls behind in the metrics, without a look at anything."""
    stage.produce(0, 1, 2, 3)
    stage.commit(4, 4, 4, 4)
    stage.settle()
    assert stage.metrics() == {LABELS: (4, 0)}
    stage.produce(0, 0, 1)
    assert stage.metrics() == {LABELS: (4, 3)}
    assert stage.loop.armed == []


def test_records_that_are_gone_are_not_unprocessed(stage: Stage) -> None:
    """Retention moves a group that stands still forward."""
    stage.produce(0, 1, 2, 3)
    stage.commit(0, 0, 0, 0)
    stage.settle()
    stage.source.partitions[0].log.delete_records_before(3)
    assert stage.metrics() == {LABELS: (3, 1)}


def test_a_group_that_is_deleted_is_not_shown_any_more(stage: Stage) -> None:
    """Its offsets went, and with them what followed from them."""
    stage.produce(0)
    stage.commit(1)
    stage.settle()
    assert stage.metrics().keys() == {LABELS}
    stage.groups.submit(c.DeleteGroup(group_id=GROUP))
    stage.settle()
    assert stage.metrics() == {}


def test_a_branch_topic_that_is_deleted_is_not_shown_any_more(stage: Stage) -> None:
    """At once, and without an error from the look that was due."""
    stage.produce(0)
    stage.commit(1)
    stage.settle()
    stage.commit(1, 1)
    stage.groups.broker.delete_topic(stage.topic)
    assert stage.metrics() == {}
    stage.settle()
    assert stage.metrics() == {}


def test_new_partitions_of_the_source_are_shown(stage: Stage) -> None:
    """They belong to the branch topic from the start, and all of them is left to do."""
    stage.produce(0)
    stage.commit(1)
    stage.settle()
    stage.groups.broker.topics.grow(stage.source, 2, int(stage.groups.now_ms))
    stage.produce(1, 2, partition=1)
    stage.settle()
    assert stage.metrics() == {LABELS: (1, 0), (GROUP, SOURCE, "1", BRANCHED): (0, 2)}


def test_a_look_that_fails_is_said_and_does_not_end_the_others(
    stage: Stage, lines: list[tuple[str, dict[str, Any]]]
) -> None:
    """The next commit has it tried again."""
    stage.produce(0)
    stage.commit(1)
    log = stage.source.partitions[0].log
    log.is_closed = True
    stage.settle()
    assert [name for name, _ in lines if name.startswith("branch.")] == ["branch.progress.failed"]
    log.is_closed = False
    stage.commit(1)
    stage.settle()
    assert stage.metrics() == {LABELS: (1, 0)}


def test_after_a_restart_metrics_are_there_without_commits(
    make_groups: Callable[..., Groups], stage: Stage
) -> None:
    """What was committed before is looked at when the broker starts."""
    stage.produce(0, 1)
    stage.commit(1, 1, 1, 1)
    stage.groups.close()
    again = Stage.reopened(make_groups())
    assert again.metrics() == {}
    again.start()
    again.settle()
    assert again.metrics() == {LABELS: (1, 1)}


# Projected ----------------------------------------------------------------------------------------


def test_the_stable_offset_becomes_the_offset_on_the_source(projecting: Stage) -> None:
    """It follows the slowest range, and only when that says something new."""
    projecting.produce(0, 1, 2, 3, 0)
    projecting.commit(5, 2, 3, 3)
    assert projecting.committed() is None
    projecting.settle()
    assert projecting.committed() == 3
    records = projecting.groups.log.log_end_offset
    projecting.commit(5)
    projecting.settle()
    assert projecting.groups.log.log_end_offset == records + 1  # the commit itself
    projecting.commit(None, None, None, 4)
    projecting.settle()
    assert projecting.committed() == 5


def test_without_the_setting_nothing_is_projected(stage: Stage) -> None:
    """It is the group's business alone what it commits on the source."""
    stage.produce(0)
    stage.commit(1, 1, 1, 1)
    stage.settle()
    assert stage.committed() is None


def test_the_setting_can_be_turned_on_and_off(stage: Stage) -> None:
    """From the next commit on it counts."""
    stage.produce(0, 0, 0)
    topics = stage.groups.broker.topics
    topics.set_configs(stage.topic, {**stage.topic.configs, **PROJECTED})
    stage.commit(1)
    stage.settle()
    assert stage.committed() == 1
    topics.set_configs(stage.topic, {**stage.topic.configs, "branch.commit.source": "false"})
    stage.commit(2)
    stage.settle()
    assert stage.committed() == 1


def test_nothing_is_projected_before_all_ranges_with_records_have_begun(
    projecting: Stage,
) -> None:
    """Else a group would be sent back to the start of the log while its members arrive."""
    projecting.produce(0, 1, 2)
    projecting.commit(1)
    projecting.settle()
    assert projecting.committed() is None
    projecting.commit(None, 2)
    projecting.settle()
    assert projecting.committed() is None
    # Range 3 has no records: clients commit nothing for it.
    projecting.commit(None, None, 3)
    projecting.settle()
    assert projecting.committed() == 3


def test_a_partition_that_nothing_was_committed_for_is_not_projected(groups: Groups) -> None:
    """Also when it is empty, and there is nothing to do."""
    stage = Stage(groups, partitions=2, **PROJECTED)
    stage.start()
    stage.produce(0)
    stage.commit(1)
    stage.settle()
    assert (stage.committed(0), stage.committed(1)) == (1, None)


def test_a_reset_of_the_branches_resets_the_source(projecting: Stage) -> None:
    """The offset is derived, not merely raised."""
    projecting.produce(0, 1, 2, 3)
    projecting.commit(4, 4, 4, 4)
    projecting.settle()
    assert projecting.committed() == 4
    projecting.commit(0, 0, 0, 0)
    projecting.settle()
    assert projecting.committed() == 0


def test_a_group_with_members_is_projected_too(projecting: Stage) -> None:
    """Nobody is fenced by it: its members commit on branches all the time."""
    [member] = projecting.groups.stable("a")
    projecting.produce(0, 1, 2, 3)
    projecting.commit(4, 4, 4, 4, member_id=member, generation_id=1)
    projecting.settle()
    assert projecting.committed() == 4
    assert not projecting.groups.heartbeat(member, 1).error


def test_a_group_that_went_back_to_the_plain_topic_is_left_alone(
    projecting: Stage, make_groups: Callable[..., Groups]
) -> None:
    """What it commits there stays, also over a restart, until it commits on branches again."""
    projecting.produce(0, 1, 2, 3)
    projecting.commit(2, 2, 2, 3)
    projecting.settle()
    assert projecting.committed() == 2
    projecting.commit_plain(4)
    projecting.settle()
    assert projecting.committed() == 4
    now_ms = projecting.groups.now_ms
    projecting.groups.close()
    groups = make_groups()
    groups.now_ms = now_ms + 60_000
    again = Stage.reopened(groups)
    again.start()
    again.settle()
    assert again.metrics() == {LABELS: (2, 2)}
    assert again.committed() == 4
    again.commit(2, 2, 3, 3)
    again.settle()
    assert again.committed() == 3


def test_what_was_not_projected_before_a_crash_is_projected_after_it(
    projecting: Stage, make_groups: Callable[..., Groups], tmp_path: Path
) -> None:
    """Commits are durable, and what follows from them follows after a restart too."""
    projecting.produce(0, 1, 2, 3)
    projecting.commit(1, 2, 3, 3)
    projecting.settle()
    assert projecting.committed() == 3
    projecting.pass_ms(10)
    projecting.commit(4, 4, 4, 4)
    copy = projecting.groups.copied(tmp_path / "crashed")
    now_ms = projecting.groups.now_ms
    groups = make_groups(folder=copy)
    groups.now_ms = now_ms
    again = Stage.reopened(groups)
    assert again.committed() == 3
    again.start()
    again.settle()
    assert again.committed() == 4


def test_an_offset_that_expired_is_projected_again(projecting: Stage) -> None:
    """Members of the branch topic keep their offsets there alive, but not those on the source."""
    projecting.produce(0)
    projecting.commit(1)
    projecting.settle()
    assert projecting.committed() == 1
    # As expiry does it, for this one offset.
    projecting.groups.submit(c.DeleteOffsets(group_id=GROUP, partitions=((SOURCE, 0),)))
    assert projecting.committed() is None
    projecting.settle()
    assert projecting.committed() == 1


def test_a_group_that_was_deleted_meanwhile_is_not_made_again(projecting: Stage) -> None:
    """A look may end after its group did."""
    projecting.produce(0)
    projecting.commit(1)
    projecting.groups.pass_ms(SOON_MS - 1)
    projecting.groups.submit(c.DeleteGroup(group_id=GROUP))
    projecting.settle()
    assert projecting.groups.broker.groups.group(GROUP) is None


def test_a_journal_that_refuses_is_said(
    projecting: Stage,
    lines: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker goes on; the next commit has it projected."""
    projecting.produce(0, 0)
    projecting.commit(1)

    def refuse(self: PartitionLog, *args: Any, **more: Any) -> Any:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the write failed")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", refuse)
        projecting.settle()
    assert "coordinator.chore.failed" in [name for name, _ in lines]
    assert projecting.committed() is None
    projecting.commit(2)
    projecting.settle()
    assert projecting.committed() == 2


def test_the_branch_topic_that_was_committed_on_last_is_projected(projecting: Stage) -> None:
    """Two branch topics of one source, of which a group left one for the other."""
    projecting.branch("wider", 8, **PROJECTED)
    projecting.produce(0, 1, 2, 3)
    projecting.commit(1, 1, 1, 1)
    projecting.settle()
    assert projecting.committed() == 1
    projecting.commit(4, 4, 4, 4, 4, 4, 4, 4, topic="wider")
    projecting.settle()
    assert projecting.committed() == 4
