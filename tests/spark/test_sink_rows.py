"""Rows on their way through the sink: collected, cut into batches, counted."""

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from anabranch.spark import sink  # noqa: E402
from anabranch.spark.encode import Encoded  # noqa: E402
from anabranch.spark.errors import LinkError, OptionError  # noqa: E402
from anabranch.spark.link import TopicView  # noqa: E402
from anabranch.spark.sink_options import SinkOptions, parse_sink_options  # noqa: E402

VALUE = types.StructType().add("value", "binary")


class FakeProducer:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.link = None
        self.sent: list[Encoded] = []
        self.flushed_after = -1

    def send(self, encoded: Encoded) -> None:
        self.sent.append(encoded)

    def flush(self) -> None:
        self.flushed_after = len(self.sent)


def options_of(**options: str) -> SinkOptions:
    named = {name.replace("_", "."): value for name, value in options.items()}
    given = {"kafka.bootstrap.servers": "nowhere:1", "topic": "t", **named}
    return parse_sink_options(given, is_streaming=True)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Any:
    view = TopicView("t", bytes(16), {0: 0})
    monkeypatch.setattr(sink, "topic_to_write", lambda *_: view)
    return FakeProducer()


def rows_of(count: int, size: int = 1) -> Any:
    return pa.record_batch({"value": pa.array([b"v" * size] * count, pa.binary())})


def test_small_batches_of_rows_are_collected(producer: Any) -> None:
    """What comes in quick succession is written together, and flushed at the end."""
    rows = (rows_of(10) for _ in range(50))
    options = options_of(kafka_linger_ms="100")
    assert sink.write_rows(options, frozenset({"value"}), producer, rows, clock=lambda: 1.0) == 500
    assert [one.records_count for one in producer.sent] == [500]
    assert producer.flushed_after == 1


def test_rows_do_not_wait_for_long(producer: Any) -> None:
    """After linger.ms rows are written; with 0 they never wait."""
    clock = (number / 16 for number in range(1000)).__next__
    options = options_of(kafka_linger_ms="100")
    rows = [rows_of(10) for _ in range(6)]
    assert sink.write_rows(options, frozenset({"value"}), producer, rows, clock=clock) == 60
    assert [one.records_count for one in producer.sent] == [20, 20, 20]
    producer.sent.clear()
    options = options_of(kafka_linger_ms="0")
    sink.write_rows(options, frozenset({"value"}), producer, rows, clock=lambda: 1.0)
    assert [one.records_count for one in producer.sent] == [10] * 6


def test_many_bytes_do_not_wait(producer: Any) -> None:
    """Memory is bounded: a few megabytes are written at once."""
    rows = [rows_of(100, 20_000) for _ in range(9)]
    options = options_of(kafka_linger_ms="100", kafka_batch_size="1000000")
    sink.write_rows(options, frozenset({"value"}), producer, rows, clock=lambda: 1.0)
    assert sum(one.records_count for one in producer.sent) == 900
    # Three times three pieces of 2 MB, cut into batches of 1 MB each.
    assert [one.records_count for one in producer.sent] == [49] * 6 + [6] + [49] * 6 + [6] + [
        49
    ] * 6 + [6]


def test_a_task_without_rows_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker has to be there for nothing; the driver still learns of the batch."""
    task = type("Task", (), {"partitionId": lambda _: 0, "getLocalProperty": lambda _, name: "7"})
    monkeypatch.setattr(sink, "_task", task)
    for options in ({}, {"exactlyOnce": "true"}):
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **options}
        writer = sink.stream_writer(given, VALUE, False)
        message = writer.write(iter([rows_of(0), rows_of(0)]))
        assert message.rows == 0
        assert message.identity is None
        assert (message.batch is not None) == bool(options)


def test_modes_that_replace_are_refused() -> None:
    """A topic keeps what it has."""
    given = {"kafka.bootstrap.servers": "nowhere:1", "topic": "t"}
    with pytest.raises(OptionError, match="mode 'overwrite' is not possible"):
        sink.batch_writer(given, VALUE, True)
    with pytest.raises(OptionError, match="output mode 'complete'"):
        sink.stream_writer(given, VALUE, True)


def test_settings_without_effect_are_warned_about() -> None:
    """Once, where the query is started."""
    given = {"kafka.bootstrap.servers": "nowhere:1", "topic": "t", "kafka.buffer.memory": "1"}
    with pytest.warns(UserWarning, match=r"'kafka.buffer.memory' has no effect"):
        sink.batch_writer(given, VALUE, False)


def test_outside_of_spark() -> None:
    """Rows are written by tasks: a writer that is called by anybody else says so."""
    given = {"kafka.bootstrap.servers": "nowhere:1", "topic": "t"}
    writer = sink.stream_writer(given, VALUE, False)
    with pytest.raises(LinkError, match="by tasks of Spark only"):
        writer.write(iter([rows_of(1)]))
