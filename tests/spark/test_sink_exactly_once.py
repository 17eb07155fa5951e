"""Batches of a sink on a real broker: each is there once, whatever is run again or dies."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from anabranch.spark import link as links  # noqa: E402
from anabranch.spark import producing, sink  # noqa: E402
from anabranch.spark.encode import Identity, RowError  # noqa: E402
from anabranch.spark.errors import BrokerRefusal, LinkError  # noqa: E402
from anabranch.spark.sink_options import ProducerSettings  # noqa: E402
from anabranch.spark.sink_transactions import Batch, TaskMessage, Transactions  # noqa: E402
from support.broker_process import BrokerProcess  # noqa: E402
from support.confluent_client import ConfluentKafka  # noqa: E402
from support.stock_clients import EARLIEST, ToSend  # noqa: E402
from support.topics import create_topic  # noqa: E402

SCHEMA = types.StructType().add("value", "binary")


@pytest.fixture(autouse=True)
def closed_links() -> Iterator[None]:
    """Tasks leave their links and producers to the next task of their process; tests do not."""
    yield
    for left in links._links.values():
        left.close()
    links._links.clear()
    producing._idle.clear()


class Task:
    """What Spark tells a task about itself."""

    def __init__(self, batch_id: int, partition: int = 0, attempt: int = 0) -> None:
        self._batch_id = batch_id
        self._partition = partition
        self._attempt = attempt

    def partitionId(self) -> int:
        return self._partition

    def attemptNumber(self) -> int:
        return self._attempt

    def getLocalProperty(self, name: str) -> str | None:
        return {"streaming.sql.batchId": str(self._batch_id), "sql.streaming.queryId": "query-7"}[
            name
        ]


class Query:
    """A streaming query as its sink sees it: tasks write, then the driver commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess, **options: str):
        self._monkeypatch = monkeypatch
        self.broker = broker
        self._options = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "topic": "out",
            "exactlyOnce": "true",
            "kafka.retry.backoff.ms": "10",
            **options,
        }

    def writer(self) -> Any:
        """Spark makes a new one wherever it needs one."""
        return sink.stream_writer(self._options, SCHEMA, False)

    def write(self, task: Task, values: Any) -> TaskMessage:
        self._monkeypatch.setattr(sink, "_task", lambda: task)
        message: TaskMessage = self.writer().write(iter(values))
        return message

    def run_tasks(self, batch_id: int, values: list[bytes], tasks: int) -> list[TaskMessage]:
        return [
            self.write(Task(batch_id, n), [rows_of(values[n::tasks])] if values[n::tasks] else [])
            for n in range(tasks)
        ]

    def run(self, batch_id: int, values: list[bytes], tasks: int = 2) -> None:
        self.writer().commit(self.run_tasks(batch_id, values, tasks), batch_id)


def rows_of(values: list[bytes]) -> Any:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


_ends = itertools.count()


def committed(broker: BrokerProcess, partitions: int = 2) -> list[bytes]:
    """What a reader of committed records finds, up to records that are written now."""
    end = b"end-%d" % next(_ends)
    with ConfluentKafka().producer(broker.bootstrap) as producer:
        producer.send("out", [ToSend(end, partition=p) for p in range(partitions)])
    starts = dict.fromkeys(range(partitions), EARLIEST)
    found: list[bytes] = []
    missing = set(range(partitions))
    with ConfluentKafka().consumer(broker.bootstrap, "out", starts) as consumer:
        while missing:
            (record,) = consumer.take(1)
            value = record.value or b""
            if value == end:
                missing.discard(record.partition)
            elif not value.startswith(b"end-"):
                found.append(value)
    return sorted(found)


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    made = make_broker()
    create_topic(made.bootstrap, "out", 2)
    return made


def values_of(batch_id: int, count: int = 40) -> list[bytes]:
    return [b"%d:%02d" % (batch_id, n) for n in range(count)]


def test_a_batch_is_committed_as_one(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks' rows are there when the driver has committed, all of them, batch after batch."""
    query = Query(monkeypatch, broker)
    expected: list[bytes] = []
    for batch_id in range(3):
        query.run(batch_id, values_of(batch_id), tasks=batch_id + 1)
        expected += values_of(batch_id)
        assert committed(broker) == sorted(expected)


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_a_replayed_batch_is_dropped(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """Spark died after the sink's commit: whatever the number of splits, nothing is there twice."""
    query = Query(monkeypatch, broker)
    query.run(0, values_of(0))
    query.run(1, values_of(1), tasks=2)
    messages = query.run_tasks(1, values_of(1), tasks)
    assert [message.identity for message in messages] == [None] * tasks
    assert sum(message.rows for message in messages) == 40
    query.writer().commit(messages, 1)
    query.run(2, values_of(2), tasks)
    assert committed(broker) == sorted(values_of(0) + values_of(1) + values_of(2))


def test_a_driver_that_died_before_its_commit(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its tasks prepared is aborted when the batch is run again, also by fewer tasks."""
    query = Query(monkeypatch, broker)
    lost = query.run_tasks(0, values_of(0), 3)
    assert all(message.identity for message in lost)
    query.run(0, values_of(0), tasks=2)
    assert committed(broker) == values_of(0)
    # The old driver was not dead, only late.
    query.writer().commit(lost, 0)
    assert committed(broker) == values_of(0)


def test_a_replay_that_began_before_the_commit(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two drivers run the same batch: one of them is committed."""
    query = Query(monkeypatch, broker)
    early = query.run_tasks(0, values_of(0), 1)
    late = [query.write(Task(0, 4), [rows_of(values_of(0))])]
    query.writer().commit(early, 0)
    query.writer().commit(late, 0)
    assert committed(broker) == values_of(0)


def test_attempts_that_fail(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails leaves nothing behind; the next attempt counts."""
    query = Query(monkeypatch, broker)

    def breaking() -> Iterator[Any]:
        yield rows_of(values_of(0))
        raise RowError("a row that cannot be written")

    with pytest.raises(RowError):
        query.write(Task(0, 1, attempt=0), breaking())
    messages = [
        query.write(Task(0, 0), [rows_of(values_of(0)[:20])]),
        query.write(Task(0, 1, attempt=1), [rows_of(values_of(0)[20:])]),
    ]
    query.writer().commit(messages, 0)
    assert committed(broker) == values_of(0)


@pytest.mark.parametrize("sink_id", ["query-7", "a.b (c)"])
def test_attempts_that_die(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, sink_id: str
) -> None:
    """What a worker that was killed left open is aborted with the batch: readers wait for none."""
    query = Query(monkeypatch, broker, sinkId=sink_id, **{"kafka.linger.ms": "0"})
    other = Query(monkeypatch, broker, sinkId=f"{sink_id}.1", **{"kafka.linger.ms": "0"})

    def dying() -> Iterator[Any]:
        yield rows_of(values_of(0))
        raise SystemExit

    with monkeypatch.context() as dead:
        dead.setattr(Transactions, "abort", lambda *_: None)
        dead.setattr(producing.Producer, "close", producing.Producer.flush)
        for attempt in (0, 1):
            with pytest.raises(SystemExit):
                query.write(Task(0, 0, attempt=attempt), dying())
    waiting = other.run_tasks(0, values_of(1), 1)
    messages = [query.write(Task(0, 0, attempt=2), [rows_of(values_of(0))])]
    query.writer().commit(messages, 0)
    other.writer().commit(waiting, 0)
    assert committed(broker) == sorted(values_of(0) + values_of(1))


def test_a_driver_that_is_late(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it commits was committed before, and tasks of the next batch are left alone."""
    query = Query(monkeypatch, broker, **{"kafka.linger.ms": "0"})
    late = query.run_tasks(0, values_of(0), 3)
    query.run(0, values_of(0))

    def rows() -> Iterator[Any]:
        yield rows_of(values_of(1)[:20])
        query.writer().commit(late, 0)
        yield rows_of(values_of(1)[20:])

    query.writer().commit([query.write(Task(1), rows())], 1)
    assert committed(broker) == sorted(values_of(0) + values_of(1))


def test_an_aborted_batch(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of which a task failed is aborted by the driver, and can be run again."""
    query = Query(monkeypatch, broker)
    messages: list[Any] = [*query.run_tasks(0, values_of(0), 2), None]
    query.writer().abort(messages, 0)
    assert committed(broker) == []
    query.run(0, values_of(0))
    assert committed(broker) == values_of(0)


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_broker_that_ends_between_prepare_and_commit(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """What is prepared waits for its batch, over the end of the broker; so does the memory."""
    query = Query(monkeypatch, broker)
    messages = query.run_tasks(0, values_of(0), 2)
    getattr(broker, ending)()
    broker.start()
    query.writer().commit(messages, 0)
    getattr(broker, ending)()
    broker.start()
    query.run(0, values_of(0), tasks=3)
    assert committed(broker) == values_of(0)


def test_a_broker_that_ends_in_a_task(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task goes on when the broker is back, in the same transaction."""
    query = Query(monkeypatch, broker, **{"kafka.linger.ms": "0", "kafka.batch.size": "100"})

    def rows() -> Iterator[Any]:
        yield rows_of(values_of(0)[:20])
        broker.kill()
        broker.start()
        yield rows_of(values_of(0)[20:])

    query.writer().commit([query.write(Task(0), rows())], 0)
    assert committed(broker) == values_of(0)


def test_tasks_without_rows(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no transaction; a batch without any row is a batch all the same."""
    query = Query(monkeypatch, broker, sinkId="named")
    query.run(0, values_of(0, 1), tasks=3)
    query.run(1, [], tasks=2)
    query.run(1, values_of(1), tasks=2)
    query.run(2, values_of(2), tasks=2)
    assert committed(broker) == sorted(values_of(0, 1) + values_of(2))


def test_sinks_do_not_know_each_other(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 0 of one sink is not batch 0 of another."""
    Query(monkeypatch, broker, sinkId="a").run(0, values_of(0, 5))
    Query(monkeypatch, broker, sinkId="b").run(0, values_of(1, 5))
    Query(monkeypatch, broker).run(0, values_of(2, 5))
    assert committed(broker) == sorted(values_of(0, 5) + values_of(1, 5) + values_of(2, 5))


def test_a_table_is_written_as_one(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch query commits all its tasks at once; with a number, only once."""
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": "out",
        "exactlyOnce": "true",
    }
    for numbered in ({}, {"sinkId": "table", "batchId": "3"}, {"sinkId": "table", "batchId": "3"}):
        writer = sink.batch_writer({**options, **numbered}, SCHEMA, False)
        messages = []
        for n in range(2):
            monkeypatch.setattr(sink, "_task", lambda n=n: Task(0, n))
            messages.append(writer.write(iter([rows_of(values_of(n, 5))])))
        writer.commit(messages)
    assert committed(broker) == sorted((values_of(0, 5) + values_of(1, 5)) * 2)
    writer = sink.batch_writer(options, SCHEMA, False)
    writer.abort([writer.write(iter([rows_of([b"never"])]))])
    assert b"never" not in committed(broker)


def test_a_refused_batch_says_why(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that another task has taken over cannot be committed: nothing is."""
    query = Query(monkeypatch, broker)
    first, second = query.run_tasks(0, values_of(0), 2)
    query.write(Task(0, 1), [rows_of([b"taken over"])])
    with pytest.raises(BrokerRefusal, match=r"committing batch 0 of sink query-7 .*query-7\.1\.0"):
        query.writer().commit([first, second], 0)
    query.run(0, values_of(0))
    assert committed(broker) == values_of(0)


class OldBroker:
    """A link to a broker that knows nothing of sinks."""

    def ask_coordinator(self, key: str, api: Any, message: Any, **versions: Any) -> Any:
        return type("Answer", (), {"sinks": None, "prepare": None, "batch": None, "error_code": 0})

    def retrying(self, what: str, work: Any, **limits: Any) -> Any:
        return work()


def test_a_broker_that_does_not_know_sinks() -> None:
    """Exactly once is not promised where it cannot be kept."""
    link: Any = OldBroker()
    transactions = Transactions(link, ProducerSettings())
    identity = Identity(1, 0, "s.0.0")
    for ask in (
        lambda: transactions.last_batch("s"),
        lambda: transactions.prepare(identity, Batch("s", 1)),
        lambda: transactions.end_batch(Batch("s", 1), [], committed=True),
    ):
        with pytest.raises(LinkError, match="'exactlyOnce' needs an Anabranch broker"):
            ask()


def test_a_checkpoint_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess
) -> None:
    """A query that is further back than a replay can be fails; its rows would be dropped."""
    query = Query(monkeypatch, broker, sinkId="bills")
    for batch_id in (3, 4):
        query.run(batch_id, values_of(batch_id))
    query.run(4, values_of(4), tasks=3)
    with pytest.raises(LinkError, match="'sinkId'"):
        query.run(3, values_of(3))
    assert committed(broker) == sorted(values_of(3) + values_of(4))
