"""All shards of a broker: their journal topic, restarts, damage, compaction, topics, expiry."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from group_kit import GROUP, NOW_MS, SESSION_MS, TOPIC, Groups

from anabranch.broker.housekeeping import Housekeeping
from anabranch.coordinator.group.classic_state import ClassicState
from anabranch.coordinator.group.commands import DeleteGroup
from anabranch.engine.journal.batch import build_entries
from anabranch.engine.journal.partitions import partition_for
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import HEADER_SIZE

JOURNAL = "__consumer_offsets"
NONE = ErrorCode.NONE
Lines = list[tuple[str, dict[str, Any]]]


def append(log: PartitionLog, *entries: tuple[bytes, bytes | None]) -> None:
    """Write keys and values into a journal as they are."""
    log.append(memoryview(build_entries(entries, timestamp_ms=NOW_MS)), now_ms=NOW_MS)


# The journal topic ------------------------------------------------------------------------------


def test_the_journal_is_made_when_it_is_needed(make_groups: Callable[..., Groups]) -> None:
    """There is no journal before the first group, and then one as Kafka would make it."""
    groups = make_groups(
        "offsets.topic.num.partitions=3",
        "offsets.topic.segment.bytes=2000000",
        "num.partitions=9",
        "cleanup.policy=delete",
        folder="other",
    )
    assert groups.broker.groups.all_groups() == []
    assert groups.broker.groups.offsets(GROUP) == {}
    assert groups.broker.groups.group(GROUP) is None
    assert groups.broker.topics.get(JOURNAL) is None
    groups.broker.groups.topic_deleted("t")
    expire(groups)
    assert groups.broker.topics.get(JOURNAL) is None
    groups.commit(1)
    topic = groups.broker.topics.get(JOURNAL)
    assert topic is not None
    assert len(topic.partitions) == 3
    config = topic.partitions[0].log.config
    assert config.cleanup_policy == {"compact"}
    assert config.compression_type == "producer"
    assert config.segment_bytes == 2_000_000
    assert config.max_message_bytes == 64 * 1024 * 1024


def test_fifty_partitions_by_default(make_groups: Callable[..., Groups]) -> None:
    """A group is where Kafka would have put it."""
    groups = make_groups("offsets.topic.num.partitions=50")
    groups.commit(1, group_id="my-group")
    topic = groups.broker.topics.get(JOURNAL)
    assert topic is not None
    written = [p.index for p in topic.partitions if p.log.log_end_offset]
    assert written == [partition_for("my-group", 50)]


@pytest.mark.parametrize("partitions", [-1, 4])
def test_a_journal_that_a_client_asked_for(
    make_groups: Callable[..., Groups], partitions: int
) -> None:
    """However the topic comes to be it is compacted; the number of partitions is a wish."""
    groups = make_groups("offsets.topic.num.partitions=2")
    configs = {"cleanup.policy": "delete", "flush.on.acks.all": "true"}
    topic = groups.broker.create_topic(JOURNAL, partitions, configs)
    assert len(topic.partitions) == (2 if partitions == -1 else 4)
    assert topic.partitions[0].log.config.cleanup_policy == {"compact"}
    assert topic.partitions[0].syncs_acks_all
    commit = groups.commit(1)
    assert groups.broker.topics.get(JOURNAL) is topic
    groups.loop.finish_jobs()
    assert commit.error is NONE
    assert groups.offset() == 1


def test_a_journal_that_cannot_be_made(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Clients are told to ask again, and may succeed then."""

    def full(topics: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(groups.broker.engine.store, "create_topics", full)
        assert groups.commit(1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert groups.join("a").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [name for name, _ in lines] == ["coordinator.journal.failed"] * 2
    assert "No space left" in lines[0][1]["reason"]
    assert groups.commit(1).error is NONE


# Restarts ---------------------------------------------------------------------------------------


def fill(groups: Groups) -> None:
    """Groups of all kinds: Stable, Empty with offsets, simple, and one on its way."""
    groups.broker.create_topic(TOPIC, 3)
    ids = groups.stable("a", "b")
    groups.commit(10, 0, 1, member_id=ids[0], generation_id=1)
    groups.commit(11, 1, member_id=ids[1], generation_id=1)
    groups.commit(5, 0, 2, group_id="simple")
    gone = groups.stable("s", group_id="static", group_instance_id="i1")
    groups.commit(3, group_id="static", member_id=gone[0], generation_id=1)
    groups.heartbeat(ids[0], 1)
    groups.heartbeat(ids[1], 1)


@pytest.mark.parametrize("is_crash", [False, True])
def test_everything_is_there_after_a_restart(
    make_groups: Callable[..., Groups], tmp_path: Path, is_crash: bool
) -> None:
    """Groups, members, generations, assignments and offsets are what they were."""
    groups = make_groups()
    fill(groups)
    before = groups.image()
    assert before[GROUP][1] == 1
    if is_crash:
        folder = groups.copied(tmp_path / "crashed")
    else:
        folder = groups.folder
        groups.close()
    again = make_groups(folder=folder)
    assert again.image() == before
    again.broker.groups.start()
    (alarm,) = again.loop.armed[-1:]
    assert alarm.due_ms - again.loop.now_ms == SESSION_MS
    ids = list(before[GROUP][5])
    assert again.heartbeat(ids[0], 1).error is NONE
    assert again.commit(12, member_id=ids[1], generation_id=1).error is NONE
    assert again.sync(ids[1], 1).answer.assignment == before[GROUP][5][ids[1]][3]


def test_members_that_do_not_come_back(make_groups: Callable[..., Groups]) -> None:
    """After a restart every member has a whole session to be heard from again."""
    groups = make_groups()
    ids = groups.stable("a")
    groups.close()
    groups.pass_ms(10 * SESSION_MS)
    again = make_groups()
    again.broker.groups.start()
    again.pass_ms(SESSION_MS - 1)
    assert again.state() == (ClassicState.STABLE, 1, ids)
    again.pass_ms(1)
    assert again.state() == (ClassicState.EMPTY, 2, [])


def test_a_rebalance_that_a_restart_ended(make_groups: Callable[..., Groups]) -> None:
    """Who was on the way in when the broker died begins anew; who was in is still in."""
    groups = make_groups()
    ids = groups.stable("a")
    groups.join("b")
    folder = groups.copied(groups.folder.with_name("crashed"))
    again = make_groups(folder=folder)
    assert again.state() == (ClassicState.STABLE, 1, ids)
    assert again.join("b", "b-2").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_lower_group_size_counts_at_the_start(make_groups: Callable[..., Groups]) -> None:
    """A group that is too large by the new setting rebalances when it is loaded."""
    groups = make_groups()
    ids = groups.stable("a", "b", "c")
    groups.close()
    again = make_groups("group.max.size=2")
    again.broker.groups.start()
    assert again.state() == (ClassicState.PREPARING_REBALANCE, 1, ids)
    assert again.heartbeat(ids[0], 1).error is ErrorCode.REBALANCE_IN_PROGRESS
    joins = [again.join(member_id[0], member_id) for member_id in ids]
    assert joins[2].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [join.answer.generation_id for join in joins[:2]] == [2, 2]


# Journals that are not what they should be ------------------------------------------------------


def test_unknown_record_types_are_passed_over(
    make_groups: Callable[..., Groups], lines: Lines
) -> None:
    """Records of a newer Kafka are left alone, and one line says how many there are."""
    groups = make_groups()
    groups.commit(1)
    append(groups.log, (b"\x00\x63new", b"value"), (b"\x00\x63new", b"later"))
    append(groups.log, (b"\x00\x62gone", None))
    groups.commit(2)
    groups.close()
    again = make_groups()
    assert again.offset() == 2
    assert lines == [
        (
            "coordinator.records.skipped",
            {"shard": "__consumer_offsets-0", "records": 2, "types": "98 99"},
        )
    ]


def damaged(groups: Groups, damage: str) -> None:
    """Write what cannot be read into the shard of GROUP, and stop."""
    log = groups.log
    if damage == "key":
        append(log, (b"\x00\x01\x00", b""))
    elif damage == "value":
        append(log, (b"\x00\x02\x00\x01g", b"\x00\x03rubbish"))
    elif damage == "version":
        append(log, (b"\x00\x02\x00\x01g", b"\x00\x63"))
    groups.close()
    if damage == "bit":
        path = log.folder / "00000000000000000000.log"
        content = bytearray(path.read_bytes())
        content[HEADER_SIZE + 20] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("key", "the batch at offset 1: a record of __consumer_offsets cannot be read"),
        ("value", "the batch at offset 1: a record of __consumer_offsets cannot be read"),
        ("version", "no version 99"),
        ("bit", "the batch at offset 0 does not match its CRC-32C"),
    ],
)
def test_a_shard_that_cannot_be_read(
    make_groups: Callable[..., Groups], lines: Lines, damage: str, reason: str
) -> None:
    """The broker starts, says what is wrong, and refuses the groups of that shard alone.

    Not a byte of its journal changes, so nothing that can be repaired is lost; a consumer told
    that its group has committed nothing would begin somewhere else.
    """
    groups = make_groups("offsets.topic.num.partitions=2")
    other = next(f"g{i}" for i in range(99) if partition_for(f"g{i}", 2) != partition_for(GROUP, 2))
    groups.commit(1)
    groups.commit(2, group_id=other)
    damaged(groups, damage)
    again = make_groups("offsets.topic.num.partitions=2")
    (name, facts), *rest = lines
    assert (name, rest) == ("coordinator.shard.refused", [])
    assert facts["shard"] == f"{JOURNAL}-{partition_for(GROUP, 2)}"
    assert reason in facts["reason"]
    assert "restore the folder" in facts["next_step"]

    again.broker.groups.start()
    end_offset = again.log.log_end_offset
    for refused in (again.commit(3), again.join("a"), again.heartbeat("m", 1), again.leave("m")):
        assert refused.error is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError, match="cannot be read"):
        again.broker.groups.offsets(GROUP)
    assert again.log.log_end_offset == end_offset
    assert again.offset(other) == 2
    assert again.commit(4, group_id=other).error is NONE
    assert [group.group_id for group in again.broker.groups.all_groups()] == [other]


def test_a_bad_record_that_was_replaced_does_not_matter(
    make_groups: Callable[..., Groups], lines: Lines
) -> None:
    """Only the last record of a key is looked at, as after a compaction."""
    groups = make_groups()
    append(groups.log, (b"\x00\x02\x00\x01g", b"\x00\x03rubbish"))
    groups.joined("a")
    append(groups.log, (b"\x00\x02\x00\x01g", None))
    groups.close()
    again = make_groups()
    assert again.broker.groups.group(GROUP) is None
    assert lines == []


# Compaction -------------------------------------------------------------------------------------


def test_compaction_keeps_the_state(make_groups: Callable[..., Groups]) -> None:
    """Of very many commits the last ones are left, of groups that went their absence."""
    groups = make_groups("log.cleaner.min.cleanable.ratio=0.01")
    fill(groups)
    topic = groups.broker.topics.get(JOURNAL)
    assert topic is not None
    groups.broker.topics.set_configs(topic, {**topic.configs, "internal.segment.bytes": "5000"})
    for offset in range(300):
        groups.commit(offset, 0, 1, 2, group_id="simple")
        groups.commit(offset, group_id=f"short-lived-{offset % 7}")
    for number in range(7):
        groups.submit(DeleteGroup(group_id=f"short-lived-{number}"))
    ids = groups.group().members
    groups.commit(400, 0, 1, 2, member_id=next(iter(ids)), generation_id=1)
    before = groups.image()
    size_bytes = groups.log.size_bytes
    groups.loop.run(_compact(groups))
    assert groups.log.size_bytes < size_bytes / 10
    assert groups.image() == before
    groups.close()
    again = make_groups()
    assert again.image() == before
    assert set(before) == {GROUP, "simple", "static"}
    assert again.commit(401, group_id="simple").error is NONE


async def _compact(groups: Groups) -> None:
    housekeeping = Housekeeping(groups.broker)
    await housekeeping.compact()
    housekeeping.cleaner.close()


# Topics and time --------------------------------------------------------------------------------


def test_a_topic_takes_its_offsets_with_it(
    make_groups: Callable[..., Groups], lines: Lines
) -> None:
    """What was committed for a deleted topic is forgotten in every shard, durably."""
    groups = make_groups("offsets.topic.num.partitions=4")
    topic = groups.broker.create_topic(TOPIC, 2)
    for group_id in ("a", "b", "c", "d"):
        groups.commit(1, 0, 1, group_id=group_id)
        groups.commit(2, group_id=group_id, topic="kept")
    groups.broker.delete_topic(topic)
    assert lines == [("coordinator.offsets.deleted", {"topic": TOPIC, "offsets": 8})]
    groups.close()
    again = make_groups("offsets.topic.num.partitions=4")
    for group_id in ("a", "b", "c", "d"):
        assert list(again.broker.groups.offsets(group_id)) == [("kept", 0)]


def test_a_topic_is_deleted_whatever_its_groups_do(
    make_groups: Callable[..., Groups], monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """A shard whose journal fails keeps neither the others nor the topic from going."""
    groups = make_groups("offsets.topic.num.partitions=2")
    topic = groups.broker.create_topic(TOPIC, 1)
    ids = ["g0", next(f"g{i}" for i in range(9) if partition_for(f"g{i}", 2) != 1)]
    ids = sorted(ids, key=lambda group_id: partition_for(group_id, 2))
    for group_id in ids:
        groups.commit(1, group_id=group_id)
    first = groups.broker.groups._drivers[0]

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the write failed")

    monkeypatch.setattr(first.partition.log, "append", refuse)
    groups.broker.delete_topic(topic)
    assert groups.broker.topics.get(TOPIC) is None
    assert [groups.offset(group_id) for group_id in ids] == [1, None]
    assert [name for name, _ in lines] == [
        "coordinator.shard.failed",
        "coordinator.chore.failed",
        "coordinator.offsets.deleted",
    ]


def expire(groups: Groups) -> None:
    groups.loop.run(groups.broker.groups.expire_offsets())


def test_offsets_expire(make_groups: Callable[..., Groups], lines: Lines) -> None:
    """Offsets go offsets.retention.minutes after their commit or after their group was left."""
    groups = make_groups("offsets.retention.minutes=60")
    ids = groups.stable("a")
    groups.commit(1, member_id=ids[0], generation_id=1)
    groups.commit(2, group_id="simple")
    hour_ms = 3_600_000
    groups.now_ms += hour_ms - 1
    expire(groups)
    assert lines == []
    groups.now_ms += 1
    expire(groups)
    assert (groups.offset(), groups.offset("simple")) == (1, None)
    assert groups.broker.groups.group("simple") is None
    groups.leave(ids[0])
    groups.now_ms += hour_ms - 1
    expire(groups)
    assert groups.offset() == 1
    groups.now_ms += 1
    expire(groups)
    assert groups.broker.groups.all_groups() == []
    assert [(name, facts["records"]) for name, facts in lines] == [
        ("coordinator.offsets.expired", 2),
        ("coordinator.offsets.expired", 2),
    ]
    groups.close()
    assert make_groups().broker.groups.all_groups() == []


def test_expiry_goes_on_after_a_shard_that_fails(
    make_groups: Callable[..., Groups], monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """One shard in trouble keeps no other from its turn."""
    groups = make_groups("offsets.topic.num.partitions=2", "offsets.retention.minutes=1")
    of = {partition_for(f"g{i}", 2): f"g{i}" for i in range(9)}
    for group_id in of.values():
        groups.commit(1, group_id=group_id)
    groups.now_ms += 60_000
    groups.broker.groups._drivers[0].refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "broken")
    expire(groups)
    assert groups.broker.groups.all_groups() == []
    assert [name for name, _ in lines] == [
        "coordinator.chore.failed",
        "coordinator.offsets.expired",
    ]


def test_housekeeping_expires_offsets(make_groups: Callable[..., Groups]) -> None:
    """The chore goes by offsets.retention.check.interval.ms."""
    groups = make_groups("offsets.retention.check.interval.ms=77", "offsets.retention.minutes=1")
    groups.commit(1)
    housekeeping = Housekeeping(groups.broker)
    (chore,) = (one for one in housekeeping.chores() if one.name == "offset expiry")
    assert chore.period_ms() == 77
    groups.now_ms += 60_000

    async def run() -> None:
        await chore.run()

    groups.loop.run(run())
    assert groups.broker.groups.all_groups() == []
    housekeeping.cleaner.close()
