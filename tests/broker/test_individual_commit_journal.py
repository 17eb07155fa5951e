"""The journal of individual commits: when it is made, in which order it is written and read."""

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from group_kit import GROUP, NOW_MS, Groups, Waiting, failing_append

from anabranch.broker.housekeeping import Housekeeping
from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.book import Tracked
from anabranch.coordinator.cooperative.commands import PartitionAcks, TakeAcks
from anabranch.coordinator.cooperative.progress import Interval
from anabranch.engine.journal.batch import build_entries
from anabranch.engine.journal.partitions import partition_for
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS
from anabranch.wire.record_batch import Record, build_batch, iter_headers

NONE = ErrorCode.NONE
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
JOURNAL = "__individual_commit_offsets"
TOPIC = "orders"
MakeGroups = Callable[..., Groups]
Lines = list[tuple[str, dict[str, Any]]]


def source(groups: Groups) -> PartitionLog:
    """The log that is worked on; 100 records in batches of ten."""
    topic = groups.broker.topics.get(TOPIC)
    if topic is None:
        topic = groups.broker.create_topic(TOPIC, 2, {"range.fetch.enable": "true"})
        for _ in range(10):
            records = [Record(i, NOW_MS, b"k", b"v", ()) for i in range(10)]
            batch = memoryview(bytearray(build_batch(records, base_offset=0)))
            topic.partitions[0].log.append(batch, now_ms=NOW_MS)
    return topic.partitions[0].log


def part(groups: Groups, watermark: int, *pairs: tuple[int, int], partition: int = 0) -> Any:
    log = source(groups)
    return PartitionAcks(
        topic=TOPIC,
        topic_id=log.topic_id,
        partition=partition,
        facts=LogFacts(log.log_start_offset, 100, 100, 100),
        leader_epoch=log.leader_epoch,
        acks=(Ack(ALL_SLOTS, -1, watermark, OffsetRanges(pairs)),),
    )


def take(groups: Groups, watermark: int, *pairs: tuple[int, int], group_id: str = GROUP) -> Waiting:
    parts = (part(groups, watermark, *pairs),)
    return groups.submit(
        TakeAcks(group_id=group_id, member_id="", member_epoch=-1, partitions=parts)
    )


def tracked(groups: Groups, group_id: str = GROUP) -> Tracked | None:
    return groups.broker.groups.progress(group_id).get((source(groups).topic_id, 0))


def known(groups: Groups, group_id: str = GROUP) -> tuple[Interval, ...] | None:
    found = tracked(groups, group_id)
    return found.progress.intervals if found is not None else None


def committed(groups: Groups, group_id: str = GROUP) -> int | None:
    found = groups.broker.groups.offsets(group_id).get((TOPIC, 0))
    return found.offset if found is not None else None


def journal(groups: Groups) -> PartitionLog:
    individual = groups.driver.individual
    assert individual is not None
    return individual.log


def interval(watermark: int, *pairs: tuple[int, int]) -> tuple[Interval, ...]:
    return (Interval(ALL_SLOTS, watermark, OffsetRanges(pairs)),)


# Made -------------------------------------------------------------------------------------------


def test_it_is_made_with_the_first_individual_commit(make_groups: MakeGroups) -> None:
    """With as many partitions as the other journal, compacted, and with its own segments."""
    groups = make_groups("individual.commit.log.segment.bytes=2097152")
    groups.commit(1)
    assert groups.broker.topics.get(JOURNAL) is None
    assert take(groups, 5).error is NONE
    topic = groups.broker.topics.get(JOURNAL)
    assert topic is not None
    assert topic.is_internal
    assert len(topic.partitions) == 1
    config = topic.partitions[0].log.config
    assert (config.cleanup_policy, config.segment_bytes) == ({"compact"}, 2097152)


def test_a_group_is_in_the_same_partition_of_both(make_groups: MakeGroups) -> None:
    """So that one shard has all of it."""
    groups = make_groups("offsets.topic.num.partitions=5")
    take(groups, 5)
    topic = groups.broker.topics.get(JOURNAL)
    assert topic is not None
    written = [p.index for p in topic.partitions if p.log.log_end_offset]
    assert (len(topic.partitions), written) == (5, [partition_for(GROUP, 5)])


def test_nobody_chooses_its_partitions(make_groups: MakeGroups) -> None:
    """Whoever creates it first gets as many as there are of the other journal, or will be."""
    groups = make_groups("offsets.topic.num.partitions=3")
    topic = groups.broker.create_topic(JOURNAL, 7, {"cleanup.policy": "delete"})
    assert len(topic.partitions) == 3
    assert topic.partitions[0].log.config.cleanup_policy == {"compact"}


def test_it_grows_with_the_other_journal(make_groups: MakeGroups) -> None:
    """Somebody made the other one larger than it would have been."""
    groups = make_groups("offsets.topic.num.partitions=3")
    topic = groups.broker.create_topic(JOURNAL)
    groups.broker.create_topic("__consumer_offsets", 5)
    assert take(groups, 5).error is NONE
    assert len(topic.partitions) == 5
    assert groups.driver.individual is topic.partitions[partition_for(GROUP, 5)]


def test_it_cannot_be_made(groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    """The commit is refused, to be tried again; everybody else goes on."""
    source(groups)
    groups.commit(1)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(groups.broker, "create_topic", refuse)
        assert take(groups, 5).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert lines == [
        ("coordinator.journal.failed", {"topic": JOURNAL, "reason": "the disk is full"})
    ]
    assert groups.commit(2).error is NONE
    assert take(groups, 5).error is NONE


# Written ----------------------------------------------------------------------------------------


def test_a_decision_is_one_batch(groups: Groups) -> None:
    """Whole or absent after a crash, however many partitions it is about."""
    parts = (part(groups, 5, (7, 8)), part(groups, 6, partition=1))
    command = TakeAcks(group_id=GROUP, member_id="", member_epoch=-1, partitions=parts)
    assert groups.submit(command).error is NONE
    for log in (journal(groups), groups.log):
        (batch,) = iter_headers(log.read(0, 1 << 20))
        assert batch[1].records_count == 2


def test_what_writes_nothing_of_progress(groups: Groups) -> None:
    """Plain commits of groups without progress leave it alone."""
    take(groups, 5)
    end_offset = journal(groups).log_end_offset
    groups.commit(3, group_id="plain")
    assert journal(groups).log_end_offset == end_offset


def test_readers_of_the_journals_are_told(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both, that of progress first."""
    take(groups, 5)
    marked: list[Any] = []
    monkeypatch.setattr(
        groups.broker.purgatory, "mark", lambda partition, size: marked.append(partition)
    )
    take(groups, 6)
    assert marked == [groups.driver.individual, groups.driver.partition]


def test_a_crash_between_the_journals(
    groups: Groups, make_groups: MakeGroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done is kept; the committed offset follows soon after the start."""
    take(groups, 5, (7, 8))
    folders: list[Path] = []

    def crash(*args: Any, **kwargs: Any) -> Any:
        folders.append(groups.copied(tmp_path / "crashed"))
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the write failed")

    with monkeypatch.context() as patched:
        patched.setattr(groups.log, "append", crash)
        assert take(groups, -1, (5, 6)).error is NOT_COORDINATOR
    again = make_groups(folder=folders[0])
    assert (known(again), committed(again)) == (interval(9), 5)
    again.broker.groups.start()
    again.pass_ms(0)
    assert (known(again), committed(again)) == (interval(9), 9)


def test_the_other_journal_fails(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the first is true: both are read again, and the commit may be repeated."""
    take(groups, 5)
    with monkeypatch.context() as patched:
        patched.setattr(groups.log, "append", failing_append)
        assert take(groups, 9).error is NOT_COORDINATOR
    assert (known(groups), committed(groups)) == (interval(9), 5)
    assert take(groups, 9).error is NONE
    assert committed(groups) == 9


def test_a_refusal_of_the_other_journal_comes_too_late(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too large for it has been written to the first all the same."""
    take(groups, 5)

    def too_large(*args: Any, **kwargs: Any) -> Any:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")

    with monkeypatch.context() as patched:
        patched.setattr(groups.log, "append", too_large)
        assert take(groups, 9).error is NOT_COORDINATOR
    assert known(groups) == interval(9)


def test_it_fails_itself(groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    """Nothing has changed in either, and the next commit is taken."""
    take(groups, 5)
    end_offset = groups.log.log_end_offset
    with monkeypatch.context() as patched:
        patched.setattr(journal(groups), "append", failing_append)
        assert take(groups, 9).error is NOT_COORDINATOR
    assert (known(groups), committed(groups)) == (interval(5), 5)
    assert groups.log.log_end_offset == end_offset
    assert [name for name, _ in lines] == ["coordinator.shard.failed"]
    assert take(groups, 9).error is NONE


def test_it_is_too_large(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the request suffers."""
    take(groups, 5)
    shard = groups.driver.shard

    def too_large(*args: Any, **kwargs: Any) -> Any:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")

    with monkeypatch.context() as patched:
        patched.setattr(journal(groups), "append", too_large)
        assert take(groups, 9).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.driver.shard is shard
    assert take(groups, 9).error is NONE


def test_it_takes_no_more(groups: Groups, lines: Lines) -> None:
    """A journal that failed for good ends the service of its shard, as the other does."""
    take(groups, 5)
    journal(groups).failed = "syncing to disk failed"
    assert take(groups, 9).error is NOT_COORDINATOR
    assert groups.commit(3).error is NOT_COORDINATOR
    assert "coordinator.shard.refused" in [name for name, _ in lines]
    journal(groups).failed = None


# Synced -----------------------------------------------------------------------------------------


def synced(groups: Groups, *names: str) -> None:
    take(groups, 1)
    for name in names:
        topic = groups.broker.topics.get(name)
        assert topic is not None
        groups.broker.topics.set_configs(topic, {**topic.configs, "flush.on.acks.all": "true"})


@pytest.mark.parametrize(
    ("names", "jobs"),
    [((), 0), ((JOURNAL,), 1), (("__consumer_offsets",), 1), ((JOURNAL, "__consumer_offsets"), 2)],
)
def test_no_answer_before_the_sync(groups: Groups, names: tuple[str, ...], jobs: int) -> None:
    """Of every journal that asks for it."""
    synced(groups, *names)
    taken = take(groups, 5)
    assert len(groups.loop.jobs) == jobs
    for _ in range(jobs):
        assert not taken.is_answered
        groups.loop.jobs.pop(0).finish()
    assert taken.error is NONE


def test_a_sync_that_fails(groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    """Nobody is told that something is safe when one of two journals may not be."""
    synced(groups, JOURNAL, "__consumer_offsets")
    taken = take(groups, 5)

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("os.fdatasync", broken)
        groups.loop.jobs.pop(0).finish()
    assert not taken.is_answered
    groups.loop.finish_jobs()
    assert taken.error is NOT_COORDINATOR
    assert groups.commit(1).error is NOT_COORDINATOR
    with pytest.raises(Exception, match="failed"):
        groups.close()


# Read -------------------------------------------------------------------------------------------


def test_kill_and_start(groups: Groups, make_groups: MakeGroups, tmp_path: Path) -> None:
    """Hundreds of commits later everything is there, and goes on from its sequence."""
    for offset in range(0, 98, 2):
        for group_id in (GROUP, "other"):
            take(groups, -1, (offset, offset), group_id=group_id)
        take(groups, offset // 2, group_id="third")
    before = {name: tracked(groups, name) for name in (GROUP, "other", "third")}
    again = make_groups(folder=groups.copied(tmp_path / "crashed"))
    assert {name: tracked(again, name) for name in before} == before
    assert take(again, 90).error is NONE
    assert known(again) == interval(91, (92, 92), (94, 94), (96, 96))


def test_an_orderly_stop(groups: Groups, make_groups: MakeGroups) -> None:
    """Is nothing special."""
    take(groups, 5, (7, 8))
    groups.close()
    assert known(make_groups()) == interval(5, (7, 8))


async def _compact(housekeeping: Housekeeping) -> None:
    await housekeeping.compact()


def test_compaction(groups: Groups, make_groups: MakeGroups, tmp_path: Path) -> None:
    """Leaves the last of each key, from which the same progress is read."""
    for offset in range(99):
        take(groups, -1, ((offset * 37) % 99, (offset * 37) % 99))
        if offset % 20 == 19:
            journal(groups).roll(NOW_MS)
    journal(groups).roll(NOW_MS)
    before, size_bytes = tracked(groups), journal(groups).size_bytes
    groups.broker.set_broker_configs("", {"log.cleaner.min.cleanable.ratio": "0.01"})
    folder = groups.copied(tmp_path / "crashed")
    groups.close()
    again = make_groups(folder=folder)
    housekeeping = Housekeeping(again.broker)
    with ThreadPoolExecutor(1) as thread:  # where there is no running loop
        thread.submit(asyncio.run, _compact(housekeeping)).result()
    housekeeping.cleaner.close()
    assert journal(again).size_bytes < size_bytes
    again.driver.load()
    assert tracked(again) == before


def test_the_journal_is_gone(groups: Groups, make_groups: MakeGroups, tmp_path: Path) -> None:
    """Groups go on from their committed offsets: at least once."""
    take(groups, 5, (7, 8))
    folder = groups.copied(tmp_path / "crashed")
    shutil.rmtree(folder / f"{JOURNAL}-0")
    again = make_groups(folder=folder)
    assert (known(again), committed(again)) == (None, 5)
    assert take(again, -1, (6, 6)).error is NONE
    assert known(again) == interval(5, (6, 6))


def test_a_journal_that_is_damaged(
    groups: Groups, make_groups: MakeGroups, tmp_path: Path, lines: Lines
) -> None:
    """Nothing is served that might be wrong; what to do is said, and helps."""
    take(groups, 5, (7, 8))
    take(groups, 6)
    journal(groups).flush(NOW_MS)
    folder = groups.copied(tmp_path / "crashed")
    groups.close()
    again = make_groups(folder=folder)
    (segment,) = (folder / f"{JOURNAL}-0").glob("*.log")
    position = segment.read_bytes().index(GROUP.encode() + source(again).topic_id)
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(b"?")
    again.driver.load()
    refused = again.commit(1)
    assert refused.error is NOT_COORDINATOR
    assert "without that folder groups go on from their committed offsets" in str(refused.answer)
    assert str(folder / f"{JOURNAL}-0") in str(refused.answer)
    assert [name for name, _ in lines] == ["coordinator.shard.refused"]


def test_a_type_of_record_from_another_time(groups: Groups, lines: Lines) -> None:
    """Is passed over, and said."""
    take(groups, 5)
    batch = build_entries([(b"\x00\x63unknown", b"\x00\x00")], timestamp_ms=NOW_MS)
    journal(groups).append(memoryview(batch), now_ms=NOW_MS, is_client=False)
    groups.driver.load()
    assert lines == [
        ("coordinator.records.skipped", {"shard": f"{JOURNAL}-0", "records": 1, "types": "99"})
    ]
    assert known(groups) == interval(5)


# The log that is worked on ----------------------------------------------------------------------


def test_a_log_that_lost_its_end(groups: Groups, make_groups: MakeGroups, tmp_path: Path) -> None:
    """After a power failure the log ends earlier: what follows is done by nobody."""
    take(groups, 95, (97, 99))
    folder = groups.copied(tmp_path / "crashed")
    (segment,) = (folder / f"{TOPIC}-0").glob("*.log")
    content = segment.read_bytes()
    segment.write_bytes(content[: len(content) * 8 // 10])
    again = make_groups(folder=folder)
    assert source(again).log_end_offset == 80
    assert known(again) == interval(80)
    again.broker.groups.start()
    again.pass_ms(0)
    assert committed(again) == 80
    found = again.broker.groups.offsets(GROUP)[TOPIC, 0]
    assert found.leader_epoch == source(again).leader_epoch
    twice = make_groups(folder=again.copied(tmp_path / "twice"))
    assert known(twice) == interval(80)


def test_a_topic_that_is_deleted(groups: Groups, make_groups: MakeGroups, tmp_path: Path) -> None:
    """Its progress goes with it, in the journal too."""
    take(groups, 5)
    groups.broker.delete_topic(groups.broker.topics.get(TOPIC))  # type: ignore[arg-type]
    assert groups.broker.groups.progress(GROUP) == {}
    again = make_groups(folder=groups.copied(tmp_path / "crashed"))
    assert again.broker.groups.progress(GROUP) == {}
    assert known(again) is None


def test_a_topic_that_went_in_a_crash(groups: Groups) -> None:
    """It was deleted, and the journals were not told: they are when there is time."""
    take(groups, 5)
    topic = groups.broker.topics.get(TOPIC)
    assert topic is not None
    groups.broker.topics.delete(topic)
    groups.driver.load()
    assert list(groups.broker.groups.progress(GROUP)) == [(topic.topic_id, 0)]
    groups.driver.arm()
    groups.pass_ms(0)
    assert groups.broker.groups.progress(GROUP) == {}
    groups.driver.load()
    assert groups.broker.groups.progress(GROUP) == {}
