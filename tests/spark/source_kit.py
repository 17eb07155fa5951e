"""Topics with records in them, and a source that is driven as Spark drives it, without Spark."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql.streaming.datasource import ReadLimit

from anabranch.spark.source import AnabranchDataSource, BatchReader, StreamReader
from anabranch.spark.source_schema import kafka_schema


class Sent(NamedTuple):
    """A record that was produced."""

    partition: int
    key: bytes | None
    value: bytes | None


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    config = {name.replace("_", "."): value for name, value in configs.items()}
    client = admin(bootstrap)
    (made,) = client.create_topics([NewTopic(topic, partitions, config=config)]).values()
    made.result(30)


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    client = admin(bootstrap)
    (grown,) = client.create_partitions([NewPartitions(topic, partitions)]).values()
    grown.result(30)


def produce(bootstrap: str, topic: str, records: Iterable[Sent], **config: Any) -> None:
    """Write records, in their order, and wait until they are all there."""
    failures: list[Any] = []
    settings = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **settings})

    def note(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    for one in records:
        while True:
            try:
                producer.produce(
                    topic, key=one.key, value=one.value, partition=one.partition, on_delivery=note
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    assert not failures


def numbered(count: int, *, first: int = 0, partitions: int = 1, keys: int = 50) -> list[Sent]:
    """Records whose values are numbers, and whose keys stay in their partitions."""
    return [
        Sent(i % keys % partitions, b"key-%d" % (i % keys), b"%d" % i)
        for i in range(first, first + count)
    ]


def options_of(bootstrap: str, topic: str, **more: Any) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    given.update({name.replace("__", "."): str(value) for name, value in more.items()})
    return {name: value for name, value in given.items() if value != "None"}


def stream(bootstrap: str, topic: str, **more: Any) -> StreamReader:
    source = AnabranchDataSource(options_of(bootstrap, topic, **more))
    reader = source.streamReader(kafka_schema(include_headers=False))
    assert isinstance(reader, StreamReader)
    return reader


def batch(bootstrap: str, topic: str, **more: Any) -> BatchReader:
    source = AnabranchDataSource(options_of(bootstrap, topic, **more))
    reader = source.reader(kafka_schema(include_headers=False))
    assert isinstance(reader, BatchReader)
    return reader


def rows_of(reader: Any, partitions: Iterable[Any]) -> list[list[dict[str, Any]]]:
    """The rows of each task."""
    return [[row for found in reader.read(one) for row in found.to_pylist()] for one in partitions]


def values_of(tasks: Iterable[Iterable[dict[str, Any]]]) -> list[int]:
    return sorted(int(row["value"]) for rows in tasks for row in rows)


class Engine:
    """Calls a stream reader as Spark's micro-batch engine does, and keeps what it keeps.

    `log` are the offsets of batches as they are written ahead, `committed` how many of them were
    done. A new reader on the same log is a query that was restarted.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.committed = 0

    def run(self, reader: StreamReader, limit: ReadLimit | None = None) -> list[list[Any]] | None:
        """One trigger: the rows of each task, or None when there was nothing to do."""
        if self.committed == len(self.log):
            end = self._construct(reader, limit or reader.getDefaultReadLimit())
            if end is None:
                return None
            self.log.append(end)
        return self.work(reader)

    def _construct(self, reader: StreamReader, limit: ReadLimit) -> str | None:
        start = self.log[-1] if self.log else json.dumps(reader.initialOffset())
        end = json.dumps(reader.latestOffset(json.loads(start), limit))
        if end == start and self.log:
            return None  # only of batch 0 there is one with nothing in it
        if len(self.log) > 1:
            reader.commit(json.loads(self.log[-2]))
        return end

    def write_ahead(self, reader: StreamReader) -> None:
        """Only decide about a batch: then comes a crash."""
        end = self._construct(reader, reader.getDefaultReadLimit())
        assert end is not None
        self.log.append(end)

    def work(self, reader: StreamReader) -> list[list[Any]]:
        """Do the batch that was last decided about."""
        start = self.log[-2] if len(self.log) > 1 else json.dumps(reader.initialOffset())
        partitions = reader.partitions(json.loads(start), json.loads(self.log[-1]))
        rows = rows_of(reader, partitions)
        self.committed = len(self.log)
        return rows

    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.log[-1])
        return found
