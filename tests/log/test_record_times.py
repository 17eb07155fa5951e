"""When the record at an offset was written, from headers or exactly."""

from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.config.load import load_settings
from anabranch.log.partition_log import PartitionLog
from anabranch.log.record_times import timestamp_at
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import Record, build_batch

NOW_MS = 1_700_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    settings = load_settings(environ={}, overrides=[f"log.dirs={tmp_path}"])
    made = Broker(settings, now_ms=lambda: NOW_MS)
    yield made
    made.groups.stop()
    made.close()


def a_log(broker: Broker, **configs: str) -> PartitionLog:
    given = {key.replace("_", "."): value for key, value in configs.items()}
    return broker.create_topic("t", 1, given).partitions[0].log


def append(log: PartitionLog, *timestamps: int, now_ms: int = NOW_MS) -> None:
    records = [Record(i, timestamp, b"k", b"v") for i, timestamp in enumerate(timestamps)]
    log.append(memoryview(bytearray(build_batch(records, base_offset=0))), now_ms=now_ms)


def test_first_of_a_batch_and_within_one(broker: Broker) -> None:
    """The first record has the header's time; those after it an estimate, or their own."""
    log = a_log(broker)
    append(log, 100, 110, 190, 200)
    append(log, 300)
    assert [timestamp_at(log, offset) for offset in range(5)] == [100, 133, 166, 200, 300]
    exact = [timestamp_at(log, offset, is_exact=True) for offset in range(5)]
    assert exact == [100, 110, 190, 200, 300]
    assert timestamp_at(log, 5) is None
    log.delete_records_before(2)
    assert timestamp_at(log, 0, is_exact=True) == 190


def test_the_time_of_the_append(broker: Broker) -> None:
    """Where the log sets the time, all records of a batch have the same."""
    log = a_log(broker, message_timestamp_type="LogAppendTime")
    append(log, 100, 200, now_ms=5_000)
    assert timestamp_at(log, 0) == timestamp_at(log, 1, is_exact=True) == 5_000


def test_over_segments_and_gaps(broker: Broker) -> None:
    """Also where compaction has emptied the end of a segment: the next record counts."""
    log = a_log(broker)
    for timestamp in (100, 200, 300):
        append(log, timestamp)
    log.roll(NOW_MS)
    append(log, 400)
    assert [timestamp_at(log, offset) for offset in range(4)] == [100, 200, 300, 400]
    first = log.segments[0]
    first.size_bytes = first.position_of(2)
    assert timestamp_at(log, 2) == 400


def test_what_has_no_time_or_cannot_be_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-1 is none; a disk that fails says so; a log that is closed has nothing to tell."""
    log = a_log(broker)
    append(log, -1)
    assert timestamp_at(log, 0) is None

    class Broken:
        base_offset, size_bytes, is_mapped = 0, 100, True

        def position_of(self, offset: int) -> int:
            raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(log, "_segments", [Broken()])
        with pytest.raises(KafkaError, match="t-0: reading failed: gone"):
            timestamp_at(log, 0)
        patched.setattr(log, "is_closed", True)
        assert timestamp_at(log, 0) is None
