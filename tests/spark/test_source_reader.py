"""The source against a broker, driven as Spark drives it: what is read, lost and told."""

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from source_kit import (
    Engine,
    Sent,
    admin,
    batch,
    create,
    grow,
    numbered,
    produce,
    rows_of,
    stream,
    values_of,
)

from anabranch.spark import source_read
from anabranch.spark.errors import DataLossError, LinkTimeoutError, OptionError
from anabranch.spark.link import Link
from anabranch.spark.source_plan import sample_bytes
from support.broker_process import BrokerProcess, wait_until


@pytest.fixture
def bootstrap(shared_broker: BrokerProcess) -> str:
    return shared_broker.bootstrap


def lag_of(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """How far a group is behind, as lag tools count it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = []
        for one in consumer.committed(places, timeout=30):
            _, end = consumer.get_watermark_offsets(one, timeout=30)
            found.append(end - max(one.offset, 0))
        return found
    finally:
        consumer.close()


def keys_of(tasks: list[list[dict[str, Any]]]) -> list[set[bytes]]:
    return [{row["key"] for row in rows} for rows in tasks]


# Splits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["broker", "client", "branch", "deaf"])
def test_splits_have_everything_once_and_in_order(
    bootstrap: str, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Filtered by the broker or by the tasks: each record in one task, each key too, in order."""
    topic = f"splits-{where}"
    create(bootstrap, topic, 2)
    read_topic, partitions = topic, 2
    if where == "branch":
        read_topic, partitions = f"{topic}-by-key", 4
        create(bootstrap, read_topic, 4, branch_source_topic=topic)
    if where == "deaf":
        # It announces key ranges, and passes over the tag.
        monkeypatch.setattr(source_read, "RangeFetch", lambda **_: None)
        monkeypatch.setattr(source_read, "RangeCut", lambda **_: None)
    if where == "client":
        monkeypatch.setattr(Link, "knows_key_ranges", lambda self, node_id: False)
    monkeypatch.setattr(source_read, "_unfiltered", set())
    sent = numbered(4000, partitions=2)
    sent += [Sent(i % 2, None, b"%d" % (4000 + i)) for i in range(1000)]
    produce(bootstrap, topic, sent, batch_size=4000)
    reader = batch(bootstrap, read_topic, branches=4, minRecordsPerBranch=1)
    with caplog.at_level(logging.WARNING, "anabranch.spark"):
        splits = reader.partitions()
        tasks = rows_of(reader, splits)
    assert len(tasks) > partitions
    assert values_of(tasks) == list(range(5000))
    for rows in tasks:
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(offsets)
        assert len({row["partition"] for row in rows}) <= 1
    keys = [key for found in keys_of(tasks) for key in found - {None}]
    assert len(keys) == len(set(keys)) == 50
    said = [one for one in caplog.records if "by key range in the tasks" in one.message]
    assert len(said) == (0 if where == "broker" else 1)


def test_boundaries_follow_the_load(bootstrap: str) -> None:
    """A key that becomes hot gets a task of its own in the next batches; order is kept."""
    create(bootstrap, "moving", 1)
    reader = stream(
        bootstrap, "moving", branches=4, minRecordsPerBranch=1, startingOffsets="earliest"
    )
    engine = Engine()
    seen: dict[bytes, list[int]] = {}
    cuts = []
    for round_number in range(3):
        hot = b"hot-%d" % round_number
        produce(
            bootstrap,
            "moving",
            [
                Sent(0, hot if i % 2 else b"key-%d" % (i % 40), b"%d" % (round_number * 2000 + i))
                for i in range(2000)
            ],
        )
        tasks = engine.run(reader)
        assert tasks is not None
        cuts.append(reader._planner._cuts["moving", 0])
        for rows in tasks:
            for row in rows:
                seen.setdefault(row["key"], []).append(int(row["value"]))
        sizes = sorted(len(rows) for rows in tasks)
        assert sizes[-1] < 1400, sizes
        assert sum(sizes) == 2000
    assert len(set(cuts)) == 3
    for values in seen.values():
        assert values == sorted(values)
    assert sorted(value for values in seen.values() for value in values) == list(range(6000))


def test_tasks_are_even(bootstrap: str) -> None:
    """Enough is looked at for eight tasks of a partition to have about the same."""
    create(bootstrap, "even", 1)
    records = [Sent(0, b"customer-%d" % (i % 3000), b"x" * 100) for i in range(24_000)]
    produce(bootstrap, "even", records, batch_num_messages=200)
    reader = stream(bootstrap, "even", branches=8, startingOffsets="earliest")
    tasks = Engine().run(reader)
    assert tasks is not None
    sizes = [len(rows) for rows in tasks]
    assert len(sizes) == 8
    assert sum(sizes) == 24_000
    assert max(sizes) < 3000 * 1.05, sizes


def test_samples_of_many_partitions_are_small() -> None:
    """The driver looks at a megabyte of a partition, at a few of all, at enough of each."""
    assert sample_bytes(1) == sample_bytes(8) == 1024 * 1024
    assert sample_bytes(16) == 512 * 1024
    assert sample_bytes(10_000) == 64 * 1024


def test_no_task_is_too_small(bootstrap: str) -> None:
    """A few records are one task, whatever the options ask for."""
    create(bootstrap, "small", 3)
    produce(bootstrap, "small", numbered(300, partitions=2))
    splits = batch(bootstrap, "small", branches=8, minPartitions=100).partitions()
    assert len(splits) == 2  # the third partition is empty


def test_ordering_rule_of_the_topic(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that filter by themselves do it by the topic's rule, as the broker does."""
    create(bootstrap, "ordered-null", 1, branch_null_key="ordered")
    produce(bootstrap, "ordered-null", [Sent(0, None, b"%d" % i) for i in range(500)])
    produce(bootstrap, "ordered-null", numbered(500))
    for knows in (True, False):
        monkeypatch.setattr(Link, "knows_key_ranges", lambda self, node_id, knows=knows: knows)
        reader = batch(bootstrap, "ordered-null", branches=4, minRecordsPerBranch=1)
        tasks = rows_of(reader, reader.partitions())
        assert len(tasks) == 4
        assert sorted(sum(row["key"] is None for row in rows) for rows in tasks) == [0, 0, 0, 500]


# Where it begins and ends -------------------------------------------------------------------------


def test_batch_limits(bootstrap: str) -> None:
    """Offsets, times, and partitions by number say what a batch reads."""
    create(bootstrap, "limits", 2)
    produce(bootstrap, "limits", numbered(100, partitions=2))
    time.sleep(0.05)
    middle_ms = round(time.time() * 1000)
    time.sleep(0.05)
    produce(bootstrap, "limits", numbered(100, first=100, partitions=2))

    def count(**options: Any) -> int:
        reader = batch(bootstrap, "limits", **options)
        return sum(map(len, rows_of(reader, reader.partitions())))

    assert count() == 200
    assert count(startingOffsets='{"limits":{"0":90,"1":-2}}') == 110
    assert count(endingOffsets='{"limits":{"0":10,"1":-1}}') == 110
    assert count(startingTimestamp=middle_ms) == 100
    assert count(endingTimestamp=middle_ms) == 100
    assert count(endingTimestamp=middle_ms + 10**9) == 200
    by_time = json.dumps({"limits": {"0": middle_ms, "1": 0}})
    assert count(startingOffsetsByTimestamp=by_time) == 150
    assert count(subscribe=None, assign='{"limits":[1]}') == 100
    assert count(subscribe=None, subscribePattern="limit.") == 200
    assert count(subscribe=None, subscribePattern="limit") == 0
    with pytest.raises(OptionError, match=r"startingTimestamp.*Strategy"):
        count(startingTimestamp=middle_ms + 10**9)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert count(startingTimestamp=middle_ms + 10**9, **latest) == 0
    with pytest.raises(OptionError, match=r"'startingOffsets' must name every.*limits-1 is not"):
        count(startingOffsets='{"limits":{"0":90}}')
    with pytest.raises(DataLossError, match=r"limits-0.*failOnDataLoss"):
        count(
            startingOffsets='{"limits":{"0":150,"1":0}}', endingOffsets='{"limits":{"0":160,"1":0}}'
        )


def test_what_does_not_exist(bootstrap: str) -> None:
    """A topic or partition that is not there is an error that names the option."""
    create(bootstrap, "one-of-two", 1)
    for options, words in (
        ({"subscribe": "one-of-two,nowhere"}, "'subscribe' names what does not exist: nowhere"),
        ({"subscribe": None, "assign": '{"one-of-two":[0,7]}'}, "'assign' .*one-of-two-7"),
    ):
        with pytest.raises(OptionError, match=words):
            batch(bootstrap, "", **options).partitions()
        with pytest.raises(OptionError, match=words):
            stream(bootstrap, "", **options).initialOffset()
        restarted = stream(bootstrap, "", **options)
        with pytest.raises(OptionError, match=words):
            restarted.latestOffset({"one-of-two": {"0": 0}}, ReadAllAvailable())


# Batches of a stream ------------------------------------------------------------------------------


def test_latest_survives_a_crash_in_batch_0(bootstrap: str) -> None:
    """Batch 0 carries where it began: records between a crash and the restart are not lost."""
    create(bootstrap, "crash-0", 2)
    produce(bootstrap, "crash-0", numbered(100, partitions=2))
    engine = Engine()
    reader = stream(bootstrap, "crash-0")
    reader.initialOffset()
    produce(bootstrap, "crash-0", numbered(10, first=100, partitions=2))
    engine.write_ahead(reader)
    assert "__from__" in engine.end()
    produce(bootstrap, "crash-0", numbered(10, first=110, partitions=2))
    again = stream(bootstrap, "crash-0")
    assert values_of(engine.run(again) or []) == list(range(100, 110))
    assert values_of(engine.run(again) or []) == list(range(110, 120))
    assert "__from__" not in engine.end()
    assert engine.run(again) is None


def test_latest_survives_a_crash_in_an_empty_batch_0(bootstrap: str) -> None:
    """Spark begins with a batch of nothing: it carries where it began, too."""
    create(bootstrap, "empty-0", 2)
    produce(bootstrap, "empty-0", numbered(100, partitions=2))
    engine = Engine()
    engine.write_ahead(stream(bootstrap, "empty-0"))
    produce(bootstrap, "empty-0", numbered(10, first=100, partitions=2))
    again = stream(bootstrap, "empty-0")
    assert values_of(engine.run(again) or []) == []
    assert values_of(engine.run(again) or []) == list(range(100, 110))
    assert engine.run(again) is None


def test_a_replayed_batch_is_the_same(bootstrap: str) -> None:
    """A batch that was written ahead has the same records after a restart with other branches."""
    create(bootstrap, "replay", 1)
    produce(bootstrap, "replay", numbered(500))
    engine = Engine()
    first = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100, "minRecordsPerBranch": 1}
    reader = stream(bootstrap, "replay", branches=2, **first)
    engine.run(reader)
    engine.write_ahead(reader)
    again = stream(bootstrap, "replay", branches=7, **first)
    assert values_of(engine.run(again) or []) == list(range(100, 200))


def test_kafkas_checkpoint_is_taken_over(bootstrap: str) -> None:
    """A query goes on from offsets that Spark's own source wrote, in whatever order."""
    create(bootstrap, "takeover", 3)
    produce(bootstrap, "takeover", [Sent(p, b"k", b"%d" % i) for p in range(3) for i in range(10)])
    engine = Engine()
    engine.log, engine.committed = ['{"takeover":{"2":10,"1":4,"0":7}}'], 1
    reader = stream(bootstrap, "takeover")
    tasks = engine.run(reader)
    assert tasks is not None
    assert sorted(len(rows) for rows in tasks) == [3, 6]
    assert json.dumps(engine.end()) == '{"takeover": {"2": 10, "1": 10, "0": 10}}'
    assert engine.run(reader) is None


def test_admission(bootstrap: str) -> None:
    """A batch has about as many offsets as the limit says; the engine's own limit goes first."""
    create(bootstrap, "admission", 2)
    produce(bootstrap, "admission", numbered(1000, partitions=2))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 300}
    engine, reader = Engine(), stream(bootstrap, "admission", **options)
    sizes = [sum(map(len, engine.run(reader) or [])) for _ in range(4)]
    assert sizes == [300, 300, 300, 100]
    again = stream(bootstrap, "admission", **options)
    assert sum(map(len, Engine().run(again, ReadAllAvailable()) or [])) == 1000


def test_a_batch_waits_for_enough(bootstrap: str) -> None:
    """Fewer offsets than the least are left, until the longest delay is over."""
    create(bootstrap, "least", 1)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 100}
    engine, reader = Engine(), stream(bootstrap, "least", maxTriggerDelay="10m", **options)
    assert engine.run(reader) == []
    produce(bootstrap, "least", numbered(60))
    assert engine.run(reader) is None
    produce(bootstrap, "least", numbered(60, first=60))
    assert len(values_of(engine.run(reader) or [])) == 120
    produce(bootstrap, "least", numbered(5, first=120))
    late = stream(bootstrap, "least", maxTriggerDelay="1ms", **options)
    assert len(values_of(engine.run(late) or [])) == 5


def test_available_now_has_an_end(bootstrap: str) -> None:
    """What comes after the query began is left for the next one, and the group has no lag."""
    create(bootstrap, "now", 2)
    produce(bootstrap, "now", numbered(500, partitions=2))
    options = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 200,
        "minOffsetsPerTrigger": 190,
        "kafka.group.id": "now-group",
    }
    engine, reader = Engine(), stream(bootstrap, "now", **options)
    reader.prepareForTriggerAvailableNow()
    found: list[int] = []
    while (tasks := engine.run(reader)) is not None:
        if not found:
            produce(bootstrap, "now", numbered(50, first=500, partitions=2))
        found += values_of(tasks)
    assert sorted(found) == list(range(500))
    assert lag_of(bootstrap, "now-group", "now", 2) == [25, 25]


def test_the_group_follows(bootstrap: str) -> None:
    """Each batch that is done is shown to the group, the last one too, and none too early."""
    create(bootstrap, "followed", 1)
    options = {"startingOffsets": "earliest", "kafka.group.id": "follower"}
    engine, reader = Engine(), stream(bootstrap, "followed", **options)
    produce(bootstrap, "followed", numbered(10))
    engine.write_ahead(reader)
    assert lag_of(bootstrap, "follower", "followed", 1) == [10]
    engine.work(reader)
    assert engine.run(reader) is None
    assert lag_of(bootstrap, "follower", "followed", 1) == [0]
    produce(bootstrap, "followed", numbered(10, first=10))
    restarted = stream(
        bootstrap, "followed", startingOffsets="group", **{"kafka.group.id": "follower"}
    )
    assert values_of(Engine().run(restarted) or []) == list(range(10, 20))


def test_a_group_with_members_is_left_alone(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Progress that cannot be shown is a warning; the query goes on by its checkpoint."""
    create(bootstrap, "occupied", 1)
    produce(bootstrap, "occupied", numbered(10))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "taken", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe(["occupied"])
        assert wait_until(lambda: consumer.poll(0.2) is not None, 60)
        options = {"startingOffsets": "earliest", "kafka.group.id": "taken"}
        engine, reader = Engine(), stream(bootstrap, "occupied", **options)
        with caplog.at_level(logging.WARNING, "anabranch.spark"):
            assert len(values_of(engine.run(reader) or [])) == 10
            engine.run(reader)
        said = [one.message for one in caplog.records]
        assert len([text for text in said if "kafka.group.id" in text]) == 1
    finally:
        consumer.close()


def test_an_idle_query_waits_at_the_broker(bootstrap: str) -> None:
    """Without records `latestOffset` takes its time; with some it answers at once."""
    create(bootstrap, "idle", 1)
    engine, reader = Engine(), stream(bootstrap, "idle")
    assert engine.run(reader) == []
    began_at = time.monotonic()
    assert engine.run(reader) is None
    assert time.monotonic() - began_at >= 0.4
    sender = threading.Timer(0.1, produce, [bootstrap, "idle", numbered(1)])
    sender.start()
    try:
        assert wait_until(lambda: engine.run(reader) is not None, 30, 0)
    finally:
        sender.join()
    assert reader.reportLatestOffset() == {"idle": {"0": 1}}


def test_new_partitions_begin_at_their_beginning(bootstrap: str) -> None:
    """A partition that is added while the query runs is read whole, also with latest."""
    create(bootstrap, "growing", 1)
    engine, reader = Engine(), stream(bootstrap, "growing")
    assert engine.run(reader) == []
    grow(bootstrap, "growing", 2)
    produce(bootstrap, "growing", [Sent(1, b"k", b"%d" % i) for i in range(30)])
    assert values_of(engine.run(reader) or []) == list(range(30))
    grow(bootstrap, "growing", 3)
    produce(bootstrap, "growing", numbered(90, partitions=3))
    assert values_of(engine.run(reader) or []) == list(range(90))


# What is lost -------------------------------------------------------------------------------------


def delete_below(bootstrap: str, topic: str, offset: int) -> None:
    client = admin(bootstrap)
    (gone,) = client.delete_records([TopicPartition(topic, 0, offset)]).values()
    gone.result(30)


@pytest.mark.parametrize("when", ["planned", "read"])
def test_deleted_records(bootstrap: str, when: str, caplog: pytest.LogCaptureFixture) -> None:
    """Records that were deleted unread are an error, or passed over with a warning."""
    topic = f"deleted-{when}"
    create(bootstrap, topic, 1)
    produce(bootstrap, topic, numbered(100), batch_num_messages=10)
    strict, lenient = (
        stream(bootstrap, topic, startingOffsets="earliest", failOnDataLoss=fails)
        for fails in ("true", "false")
    )
    start, end = strict.initialOffset(), {topic: {"0": 100}}
    lenient.initialOffset()
    if when == "planned":
        delete_below(bootstrap, topic, 40)
    plans = []
    for reader in (strict, lenient):
        if when == "planned" and reader is strict:
            with pytest.raises(DataLossError, match=r"begins at offset 40.*'failOnDataLoss'"):
                reader.partitions(start, end)
        else:
            plans.append((reader, reader.partitions(start, end)))
    if when == "read":
        delete_below(bootstrap, topic, 40)
        (_, planned), *_ = plans
        with pytest.raises(DataLossError, match=r"begins at 40.*'failOnDataLoss'"):
            rows_of(strict, planned)
    reader, planned = plans[-1]
    with caplog.at_level(logging.WARNING, "anabranch.spark"):
        assert values_of(rows_of(reader, planned)) == list(range(40, 100))


def delete(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    (gone,) = client.delete_topics([topic]).values()
    gone.result(30)


def recreate(bootstrap: str, topic: str) -> None:
    delete(bootstrap, topic)
    create(bootstrap, topic, 1)


def test_a_topic_that_is_deleted_under_a_task(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task says so soon, and does not wait for as long as it would for a broker."""
    monkeypatch.setattr("anabranch.spark.source_read._GONE_MS", 300)
    create(bootstrap, "taken-away", 1)
    produce(bootstrap, "taken-away", numbered(100))
    strict, lenient = (
        stream(bootstrap, "taken-away", startingOffsets="earliest", failOnDataLoss=fails)
        for fails in ("true", "false")
    )
    planned = strict.partitions(strict.initialOffset(), {"taken-away": {"0": 100}})
    delete(bootstrap, "taken-away")
    with pytest.raises(DataLossError, match=r"the topic was deleted\. .*'failOnDataLoss'"):
        rows_of(strict, planned)
    assert rows_of(lenient, planned) == [[]]


def test_a_topic_that_was_made_again(bootstrap: str) -> None:
    """The offsets of the old one mean nothing: an error, or the new one from its beginning."""
    create(bootstrap, "again", 1)
    produce(bootstrap, "again", numbered(100))
    options = {"startingOffsets": "earliest"}
    engine, reader = Engine(), stream(bootstrap, "again", **options)
    engine.run(reader)
    planned = reader.partitions({"again": {"0": 0}}, {"again": {"0": 100}})
    recreate(bootstrap, "again")
    produce(bootstrap, "again", numbered(30, first=1000))
    with pytest.raises(DataLossError, match=r"made again while the query ran.*'failOnDataLoss'"):
        engine.run(reader)
    with pytest.raises(DataLossError, match="ends at offset 30, the checkpoint is at 100"):
        engine.run(stream(bootstrap, "again", **options))
    with pytest.raises(DataLossError, match="made again"):
        rows_of(reader, planned)
    lenient = stream(bootstrap, "again", failOnDataLoss="false", **options)
    assert rows_of(lenient, planned) == [[]]
    assert values_of(engine.run(lenient) or []) == list(range(1000, 1030))
    assert engine.run(lenient) is None


def test_a_checkpoint_of_another_topic(bootstrap: str) -> None:
    """It is refused, in words that name both."""
    create(bootstrap, "mine", 1)
    engine = Engine()
    engine.log, engine.committed = ['{"other":{"0":5}}'], 1
    with pytest.raises(DataLossError, match=r"subscribe=mine.*other-0.*failOnDataLoss"):
        engine.run(stream(bootstrap, "mine"))


# Transactions -------------------------------------------------------------------------------------


def test_committed_records_only(bootstrap: str) -> None:
    """With read_committed a batch ends before open transactions, and has no aborted records."""
    create(bootstrap, "transactions", 1)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "spark-tx"})
    producer.init_transactions(30)

    def send(first: int, count: int) -> None:
        producer.begin_transaction()
        for i in range(first, first + count):
            producer.produce("transactions", key=b"k%d" % (i % 20), value=b"%d" % i)
        producer.flush(30)

    send(0, 100)
    producer.commit_transaction(30)
    send(1000, 100)
    producer.abort_transaction(30)
    options = {"startingOffsets": "earliest", "branches": 3, "minRecordsPerBranch": 1}
    committed = {"kafka.isolation.level": "read_committed", **options}
    engine, reader = Engine(), stream(bootstrap, "transactions", **committed)
    send(2000, 100)
    assert values_of(engine.run(reader) or []) == list(range(100))
    assert engine.run(reader) is None
    everything = values_of(Engine().run(stream(bootstrap, "transactions", **options)) or [])
    assert len(everything) == 300
    producer.commit_transaction(30)
    assert values_of(engine.run(reader) or []) == list(range(2000, 2100))


# A broker that goes away --------------------------------------------------------------------------


def test_a_broker_that_returns(make_broker: Callable[..., BrokerProcess]) -> None:
    """A task and the driver wait for a broker that is started again, and lose nothing."""
    broker = make_broker()
    create(broker.bootstrap, "away", 1)
    produce(broker.bootstrap, "away", numbered(3000), batch_num_messages=100)
    options = {"startingOffsets": "earliest", "kafka.max.partition.fetch.bytes": 2000}
    engine, reader = Engine(), stream(broker.bootstrap, "away", **options)
    engine.write_ahead(reader)
    (split,) = reader.partitions(json.loads(json.dumps(reader.initialOffset())), engine.end())
    reading = reader.read(split)
    found = list(next(reading).to_pylist())
    broker.kill()
    starting = threading.Timer(0.5, broker.start)
    starting.start()
    try:
        found += [row for more in reading for row in more.to_pylist()]
    finally:
        starting.join()
    assert values_of([found]) == list(range(3000))
    broker.kill()
    starting = threading.Timer(0.5, broker.start)
    starting.start()
    try:
        assert len(values_of(engine.run(reader) or [])) == 3000
    finally:
        starting.join()


def test_a_broker_that_does_not(make_broker: Callable[..., BrokerProcess]) -> None:
    """Waiting has an end, and the error names the option that says when."""
    broker = make_broker()
    create(broker.bootstrap, "gone", 1)
    produce(broker.bootstrap, "gone", numbered(10))
    options = {
        "startingOffsets": "earliest",
        "kafka.default.api.timeout.ms": 300,
        "kafkaConsumer.pollTimeoutMs": 300,
    }
    reader = stream(broker.bootstrap, "gone", **options)
    planned = reader.partitions(reader.initialOffset(), {"gone": {"0": 10}})
    broker.kill()
    with pytest.raises(LinkTimeoutError, match=r"'kafkaConsumer\.pollTimeoutMs'"):
        rows_of(reader, planned)
    with pytest.raises(LinkTimeoutError, match=r"'kafka\.default\.api\.timeout\.ms'"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
