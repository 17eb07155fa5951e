"""Slot indexes that are built as records arrive, written when complete, and bounded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.branch.slots import slot_of_key
from anabranch.broker.broker import Broker
from anabranch.broker.partition import Partition
from anabranch.config.load import load_settings
from anabranch.log.slot_index import slot_indexes_of
from anabranch.wire.record_batch import Record, build_batch
from support.fake_loop import FakeLoop

NOW_MS = 1_700_000_000_000
MIB = 1024 * 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(
        load_settings(environ={}, overrides=[f"log.dirs={tmp_path}"]), now_ms=lambda: NOW_MS
    )
    yield made
    made.close()


def source_of(broker: Broker, build: str = "append") -> Partition:
    configs = {"branch.index.build": build, "segment.bytes": str(4 * MIB)}
    source = broker.create_topic("orders", 1, configs)
    broker.topics.create_branch_topic("by-key", source, 4, {})
    return source.partitions[0]


def produce(broker: Broker, partition: Partition, key: bytes, value_bytes: int = 10) -> None:
    batch = bytearray(build_batch([Record(0, NOW_MS, key, bytes(value_bytes), ())], base_offset=0))
    partition.log.append(memoryview(batch), now_ms=NOW_MS)
    broker.purgatory.mark(partition, len(batch))
    broker.wake_fetches()


def is_indexed(partition: Partition) -> bool:
    indexes = slot_indexes_of(partition.log)
    return indexes.missing(partition.slot_rule, 0, partition.log.log_end_offset) is None


def test_records_are_indexed_as_they_arrive(broker: Broker, loop: FakeLoop) -> None:
    """Nobody has read them, and the slots are there."""
    partition = source_of(broker)
    for key in (b"a", b"b", b"c"):
        produce(broker, partition, key)
    assert is_indexed(partition)
    blocks = slot_indexes_of(partition.log).blocks(partition.slot_rule, 0, 3)
    text = b"".join(blocks)
    for key in (b"a", b"b", b"c"):
        assert slot_of_key(key).to_bytes(2, "little") in text


def test_only_where_it_is_asked_for(broker: Broker, loop: FakeLoop) -> None:
    """By default producers pay nothing: slots are computed with the first filtered read."""
    partition = source_of(broker, "read")
    produce(broker, partition, b"a")
    assert partition.log.slot_indexes is None


def test_much_is_indexed_by_a_thread(broker: Broker, loop: FakeLoop) -> None:
    """One job at a time for a log, which goes on with what arrived meanwhile."""
    partition = source_of(broker)
    for _ in range(4):
        produce(broker, partition, b"k", 500_000)
    assert len(loop.jobs) == 1
    assert not is_indexed(partition)
    while loop.finish_jobs():
        pass
    assert is_indexed(partition)


def test_complete_segments_are_written(broker: Broker, loop: FakeLoop) -> None:
    """The file of a sealed segment appears beside it; memory over the limit is let go of."""
    partition = source_of(broker)
    for _ in range(10):
        produce(broker, partition, b"k", 900_000)
        while loop.finish_jobs():
            pass
    log = partition.log
    assert len(log.segments) == 3
    loop.run(broker.slot_indexing.tidy([log]))
    assert [segment.path(".slots").exists() for segment in log.segments] == [True, True, False]
    before_bytes = slot_indexes_of(log).size_bytes
    broker.branches.cache.max_bytes = 0
    loop.run(broker.slot_indexing.tidy([log]))
    assert slot_indexes_of(log).size_bytes < before_bytes


def test_indexes_share_the_cache_s_limit(broker: Broker, loop: FakeLoop) -> None:
    """What indexes take is not there for sorted records."""
    partition = source_of(broker)
    cache = broker.branches.cache
    for key in (b"a", b"b"):
        produce(broker, partition, key)
    branch = broker.topics.partition("by-key", 0)
    broker.branches.read(branch, 0, MIB, 1, min_one_batch=True)
    produce(broker, partition, b"c")
    broker.branches.read(branch, 2, MIB, 3, min_one_batch=True)
    assert len(cache) == 2
    cache.max_bytes = cache.size_bytes
    loop.run(broker.slot_indexing.tidy([partition.log]))
    assert len(cache) == 1
