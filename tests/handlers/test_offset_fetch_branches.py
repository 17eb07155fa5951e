"""OffsetFetch tells who asks for it how far groups are with the sources of branch topics."""

from collections.abc import Callable
from typing import Any

import pytest
from group_calls import GROUP, GroupNode
from handler_calls import NOW_MS, Call

from anabranch.branch.slots import branch_of_slot, slot_of_key
from anabranch.broker import slot_scans
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.offset_fetch import (
    BranchProgressAnswer,
    BranchProgressPartition,
    BranchProgressQuestion,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    PlannedRange,
)
from anabranch.wire.record_batch import Record, build_batch

SOURCE, BRANCHED = "orders", "by-key"
RANGES = 2
LOW, HIGH = (
    next(key for key in (b"%d" % n for n in range(100)) if branch_of_slot(slot_of_key(key), 2) == r)
    for r in range(2)
)
VERSIONS = pytest.mark.parametrize("version", [8, 9, 10])


@pytest.fixture
def stage(make_group_node: Callable[..., GroupNode]) -> "Stage":
    return Stage(make_group_node())


class Stage:
    """A topic of one partition, two branches of it, and a group that has read some."""

    def __init__(self, node: GroupNode) -> None:
        self.node = node
        self.source = node.create_topic(SOURCE)
        self.topic = node.broker.topics.create_branch_topic(BRANCHED, self.source, RANGES, {})

    def produce(self, *keys: bytes) -> None:
        records = [Record(i, NOW_MS, key, b"v", ()) for i, key in enumerate(keys)]
        batch = memoryview(bytearray(build_batch(records, base_offset=0)))
        self.source.partitions[0].log.append(batch, now_ms=NOW_MS)

    def commit(self, *offsets: int) -> None:
        for index, offset in enumerate(offsets):
            assert self.node.commit(offset, index, topic=BRANCHED) == [0]

    def begin(
        self, question: BranchProgressQuestion | None, *groups: str, version: int = 10
    ) -> Call:
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=g, topics=None) for g in groups or (GROUP,)],
            branch_progress=question,
        )
        return self.node.begin(request, version)

    def ask(self, *topics: str, version: int = 10, **more: Any) -> BranchProgressAnswer:
        question = BranchProgressQuestion(topics=list(topics), **more)
        call = self.begin(question, version=version)
        while not call.is_answered:
            assert self.node.loop.finish_jobs(), "it waits for nothing"
        answer: BranchProgressAnswer = call.answer.groups[0].branch_progress
        return answer


def partition(**changes: Any) -> BranchProgressPartition:
    values: dict[str, Any] = {
        "topic": BRANCHED,
        "source_topic": SOURCE,
        "source_partition": 0,
        "ranges": RANGES,
        "committed_ranges": RANGES,
        "stable_offset": 2,
        "log_start_offset": 0,
        "high_watermark": 5,
        "unprocessed_records": 2,
    }
    return BranchProgressPartition(**values | changes)


@VERSIONS
def test_progress_comes_beside_the_offsets(stage: Stage, version: int) -> None:
    """Stable offset, ends of the log and true lag of each partition of the source."""
    stage.produce(LOW, LOW, HIGH, LOW, HIGH)
    stage.commit(5, 1)
    assert stage.ask(version=version) == BranchProgressAnswer(partitions=[partition()])
    call = stage.begin(BranchProgressQuestion(), version=version)
    (topic,) = call.answer.groups[0].topics
    assert [p.committed_offset for p in topic.partitions] == [5, 1]


@VERSIONS
def test_nobody_gets_it_unasked(stage: Stage, version: int) -> None:
    """Clients that never heard of it get the answer at once, in Kafka's bytes."""
    stage.produce(LOW, HIGH)
    stage.commit(1, 1)
    call = stage.begin(None, version=version)
    assert call.deferred is None
    assert call.answer.groups[0].branch_progress is None


def test_a_range_without_a_commit_is_to_be_done_from_the_start(stage: Stage) -> None:
    """And the answer says how many ranges have one."""
    stage.produce(LOW, LOW, HIGH, LOW, HIGH)
    stage.commit(1)
    (found,) = stage.ask().partitions
    assert (found.committed_ranges, found.ranges) == (1, 2)
    assert (found.stable_offset, found.unprocessed_records) == (1, 4)


def test_a_plan_for_other_ranges(stage: Stage) -> None:
    """Where each new range begins, and what it replays, per partition of the source."""
    stage.produce(LOW, LOW, HIGH, LOW, HIGH)
    stage.commit(5, 1)
    found = stage.ask(BRANCHED, planned_ranges=1)
    planned = [PlannedRange(start_offset=2, replayed_records=1)]
    assert found == BranchProgressAnswer(partitions=[partition(planned_ranges=planned)])


def test_a_plan_from_the_plain_topic(stage: Stage) -> None:
    """A group that read the source as it is goes on from what it committed there."""
    stage.produce(LOW, LOW, HIGH, LOW, HIGH)
    stage.node.commit(3, 0, topic=SOURCE)
    (found,) = stage.ask(SOURCE, planned_ranges=2).partitions
    assert (found.topic, found.source_topic, found.ranges) == (SOURCE, SOURCE, 1)
    assert [p.start_offset for p in found.planned_ranges] == [3, 4]
    assert [p.replayed_records for p in found.planned_ranges] == [0, 0]


@pytest.mark.parametrize(
    ("topics", "planned_ranges", "code"),
    [
        (["nowhere"], 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([SOURCE], 0, ErrorCode.INVALID_REQUEST),
        ([BRANCHED], -1, ErrorCode.INVALID_REQUEST),
        ([BRANCHED], 1025, ErrorCode.INVALID_REQUEST),
        (["nowhere"], 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([], 2, ErrorCode.INVALID_REQUEST),
        ([BRANCHED, SOURCE], 2, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_told_is_an_error_of_its_own(
    stage: Stage, topics: list[str], planned_ranges: int, code: ErrorCode
) -> None:
    """The offsets are told all the same."""
    stage.commit(1)
    call = stage.begin(BranchProgressQuestion(topics=topics, planned_ranges=planned_ranges))
    (group,) = call.answer.groups
    assert group.error_code == 0
    assert group.topics[0].partitions[0].committed_offset == 1
    assert group.branch_progress.error_code == code
    assert group.branch_progress.error_message
    assert group.branch_progress.partitions == []


def test_several_groups_are_answered_together(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last of them is counted; a group that is unknown has nothing to tell."""
    monkeypatch.setattr(slot_scans, "_INLINE_STEP_BYTES", 0)
    stage.produce(LOW, HIGH)
    stage.commit(1, 2)
    stage.node.commit(0, 1, topic=BRANCHED, group_id="other")
    call = stage.begin(BranchProgressQuestion(), GROUP, "other", "unknown")
    assert not call.is_answered
    while not call.is_answered:
        assert stage.node.loop.finish_jobs()
    found = {
        group.group_id: [p.stable_offset for p in group.branch_progress.partitions]
        for group in call.answer.groups
    }
    assert found == {GROUP: [2], "other": [0], "unknown": []}


def test_a_log_that_is_gone_while_it_is_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic was deleted: the question has an error, and the offsets are as they were."""
    monkeypatch.setattr(slot_scans, "_INLINE_STEP_BYTES", 0)
    stage.produce(LOW, HIGH)
    stage.commit(1, 1)
    call = stage.begin(BranchProgressQuestion())
    stage.source.partitions[0].log.is_closed = True
    stage.node.loop.finish_jobs()
    answer = call.answer.groups[0].branch_progress
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    stage.source.partitions[0].log.is_closed = False


def test_who_went_away_is_not_counted_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that closes ends its part of the work, and no other's."""
    monkeypatch.setattr(slot_scans, "_INLINE_STEP_BYTES", 0)
    stage.produce(LOW, HIGH)
    stage.commit(1, 2)
    gone, here = (stage.begin(BranchProgressQuestion()) for _ in range(2))
    assert gone.deferred is not None
    gone.deferred.cancel()
    while not here.is_answered:
        assert stage.node.loop.finish_jobs()
    assert here.answer.groups[0].branch_progress.partitions[0].stable_offset == 2
    assert not gone.is_answered
