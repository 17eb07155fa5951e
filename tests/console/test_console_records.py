"""Records for people: every way through a topic meets each record once, and says how far."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_kit import append, append_in_transaction

from anabranch.branch.slots import branch_of_slot, slot_of_key
from anabranch.broker.broker import Broker
from anabranch.broker.topics import Topic
from anabranch.config.load import load_settings
from anabranch.console import record_reading
from anabranch.console.record_reading import (
    CUT_BYTES,
    Cursors,
    Direction,
    RecordReader,
    ShownRecord,
    TransactionMark,
    Wanted,
    browse,
)
from anabranch.log.compaction import compact
from anabranch.wire.compression import GZIP
from anabranch.wire.control_records import ABORT, COMMIT
from anabranch.wire.record_batch import Record

T = TypeVar("T")
NOW_MS = 1_760_000_000_000


def at_broker(folder: Path, scenario: Callable[[Broker, RecordReader], Awaitable[T]]) -> T:
    """Play a scenario with a broker that nobody talks to."""

    async def play() -> T:
        broker = Broker(load_settings(environ={}, overrides=[f"log.dirs={folder}"]))
        try:
            with ThreadPoolExecutor(1) as executor:
                return await scenario(broker, RecordReader(executor))
        finally:
            broker.close()

    return asyncio.run(play())


def record(key: bytes | None = b"k", value: bytes | None = b"v", at_ms: int = NOW_MS) -> Record:
    return Record(0, at_ms, key, value, ())


async def walk(
    reader: RecordReader, topic: Topic, start: Cursors, wanted: Wanted
) -> list[ShownRecord]:
    """All records from some cursors on, page by page."""
    found: list[ShownRecord] = []
    cursors = start
    while True:
        page = await browse(reader, topic.partitions.__getitem__, cursors, wanted)
        found += page.records
        assert len(page.records) <= wanted.limit
        if not page.has_onward:
            return found
        assert page.onward != cursors, "it does not get on"
        cursors = page.onward


def places(records: Sequence[ShownRecord]) -> list[tuple[int, int]]:
    return [(one.partition, one.offset) for one in records]


@settings(max_examples=40)
@given(
    batches=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 50)), max_size=20
    ),
    limit=st.integers(1, 12),
    piece_bytes=st.sampled_from([1, 200, 100_000]),
)
def test_pages_meet_every_record_once(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[int, int, int]],
    limit: int,
    piece_bytes: int,
) -> None:
    """Newer or older, whatever the batches and the times: each record once, partitions in order."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 3)
        for number, count, minute in batches:
            log = topic.partitions[number].log
            times = [NOW_MS + 60_000 * minute + i for i in range(count)]
            append(log, [record(at_ms=at_ms) for at_ms in times], NOW_MS)
        expected = {
            (one.index, offset)
            for one in topic.partitions
            for offset in range(one.log.log_end_offset)
        }
        for direction, start in (
            (Direction.NEWER, {0: 0, 1: 0, 2: 0}),
            (Direction.OLDER, {p.index: p.log.high_watermark for p in topic.partitions}),
        ):
            found = places(await walk(reader, topic, start, Wanted(direction, limit)))
            assert len(found) == len(expected)
            assert set(found) == expected
            for number in range(3):
                offsets = [offset for partition, offset in found if partition == number]
                assert offsets == sorted(offsets, reverse=direction is Direction.OLDER)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_reading, "_PIECE_BYTES", piece_bytes)
        at_broker(tmp_path_factory.mktemp("pages"), scenario)


def test_newest_of_all_partitions_come_first(tmp_path: Path) -> None:
    """The newest records of a topic are those with the largest times of all partitions."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 2)
        for i in range(10):
            log = topic.partitions[i % 2].log
            append(log, [record(value=str(i).encode(), at_ms=NOW_MS + i)], NOW_MS)
        ends = {one.index: one.log.high_watermark for one in topic.partitions}
        page = await browse(reader, topic.partitions.__getitem__, ends, Wanted(Direction.OLDER, 3))
        assert [one.value for one in page.records] == [b"9", b"8", b"7"]
        assert not page.has_backward
        # And from where the page ended, back to its beginning.
        assert page.onward == {0: 4, 1: 3}
        back = await browse(
            reader, topic.partitions.__getitem__, page.onward, Wanted(Direction.NEWER, 9)
        )
        assert [one.value for one in back.records] == [b"7", b"8", b"9"]

    at_broker(tmp_path, scenario)


def test_key_is_looked_for_within_a_budget(tmp_path: Path) -> None:
    """A search ends where its bytes do, says how far it came, and goes on from there."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 1)
        log = topic.partitions[0].log
        for i in range(400):
            append(log, [record(key=f"k{i % 200}".encode(), value=bytes(1000))], NOW_MS)
        for direction, start, expected in (
            (Direction.NEWER, 0, [7, 207]),
            (Direction.OLDER, 400, [207, 7]),
        ):
            wanted = Wanted(direction, 10, b"k7", budget_bytes=50_000)
            first = await browse(reader, topic.partitions.__getitem__, {0: start}, wanted)
            assert first.has_onward
            # A budget is kept to a piece or two.
            assert 40_000 < first.looked_bytes < 50_000 + 2 * record_reading._PIECE_BYTES
            assert 0 < first.looked_records < 400
            found = await walk(reader, topic, {0: start}, wanted)
            assert [one.offset for one in found] == expected
        none = await walk(reader, topic, {0: 0}, Wanted(Direction.NEWER, 10, b"k"))
        assert none == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_reading, "_PIECE_BYTES", 20_000)
        at_broker(tmp_path, scenario)


def test_gaps_of_compaction_are_stepped_over(tmp_path: Path) -> None:
    """Backwards and forwards, offsets that have no record any more cost no record that has one."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 1, {"cleanup.policy": "compact"})
        log = topic.partitions[0].log
        for _ in range(300):
            append(log, [record(key=b"same", value=bytes(300))] * 5, NOW_MS)
            append(log, [record(key=b"other")], NOW_MS)
        append(log, [record(key=b"kept", value=b"last of all")], NOW_MS)
        log.roll(NOW_MS)
        compact(log, None, NOW_MS)
        append(log, [record(key=b"same", value=b"new")], NOW_MS)
        expected = [(1798, b"same"), (1799, b"other"), (1800, b"kept"), (1801, b"same")]
        for direction, start in ((Direction.NEWER, 0), (Direction.OLDER, log.high_watermark)):
            found = await walk(reader, topic, {0: start}, Wanted(direction, 2))
            shown = [(one.offset, one.key) for one in found]
            assert shown[:: 1 if direction is Direction.NEWER else -1] == expected

    at_broker(tmp_path, scenario)


def test_marks_of_transactions(tmp_path: Path) -> None:
    """Records say whether their transaction was committed or aborted, or is open."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 1)
        log = topic.partitions[0].log
        append(log, [record(value=b"plain")], NOW_MS)
        for producer_id, end in ((1, COMMIT), (2, ABORT), (3, None)):
            append_in_transaction(log, producer_id, record(value=b"x"), NOW_MS)
            if end is not None:
                log.transactions.end(producer_id, log.log_end_offset, end)
        found = await walk(reader, topic, {0: 0}, Wanted(Direction.NEWER, 10))
        assert [one.mark for one in found] == [
            TransactionMark.NONE,
            TransactionMark.COMMITTED,
            TransactionMark.ABORTED,
            TransactionMark.OPEN,
        ]

    at_broker(tmp_path, scenario)


def test_branches_have_their_keys(tmp_path: Path) -> None:
    """A branch shows the records of its range of keys and no others."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        source = broker.create_topic("orders", 1)
        keys = [f"customer-{i}".encode() for i in range(60)]
        append(source.partitions[0].log, [record(key=key) for key in keys], NOW_MS)
        topic = broker.create_topic("branches", 4, {"branch.source.topic": "orders"})
        for branch in range(4):
            expected = [key for key in keys if branch_of_slot(slot_of_key(key), 4) == branch]
            for direction, start in ((Direction.NEWER, 0), (Direction.OLDER, 60)):
                found = await walk(reader, topic, {branch: start}, Wanted(direction, 7))
                shown = [one.key for one in found]
                assert shown[:: 1 if direction is Direction.NEWER else -1] == expected

    at_broker(tmp_path, scenario)


def test_large_values_are_cut(tmp_path: Path) -> None:
    """What is shown of a value has a limit, its size is told, and compression changes nothing."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 1)
        log = topic.partitions[0].log
        append(log, [record(value=b"x" * 500_000)], NOW_MS, codec=GZIP)
        append(log, [Record(0, NOW_MS, None, None, (("h\udcff", b"1"),))], NOW_MS)
        big, null = await walk(reader, topic, {0: 0}, Wanted(Direction.NEWER, 10))
        assert big.value == b"x" * CUT_BYTES
        assert big.value_size == 500_000
        assert (null.key, null.key_size, null.value, null.value_size) == (None, -1, None, -1)
        # A name that is no text can still be written to a page.
        null.headers[0][0].encode()

    at_broker(tmp_path, scenario)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A batch that the disk has changed is a sentence; its neighbours are shown."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 1)
        log = topic.partitions[0].log
        for value in (b"one", b"two", b"three"):
            append(log, [record(value=value)], NOW_MS)
        path = log.segments[0].path()
        content = path.read_bytes().replace(b"two", b"tow")
        with path.open("r+b") as file:
            file.write(content)
        page = await browse(
            reader, topic.partitions.__getitem__, {0: 0}, Wanted(Direction.NEWER, 10)
        )
        assert [one.value for one in page.records] == [b"one", b"three"]
        assert page.problems == [
            "Partition 0: the batch at offset 1 cannot be read: its CRC-32C does not match."
        ]
        assert not page.has_onward

    at_broker(tmp_path, scenario)


def test_log_that_is_gone_is_told(tmp_path: Path) -> None:
    """A topic that is deleted meanwhile ends in a sentence."""

    async def scenario(broker: Broker, reader: RecordReader) -> None:
        topic = broker.create_topic("orders", 1)
        append(topic.partitions[0].log, [record()], NOW_MS)
        broker.delete_topic(topic)
        page = await browse(
            reader, topic.partitions.__getitem__, {0: 0}, Wanted(Direction.NEWER, 10)
        )
        assert page.records == []
        assert "closed" in page.problems[0]

    at_broker(tmp_path, scenario)
