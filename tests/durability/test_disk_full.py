"""A full disk: the partition says so, the broker lives, and goes on when there is room."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
)
from support.broker_process import BrokerProcess, wait_until
from support.confluent_client import ConfluentKafka
from support.log_walker import check_partition
from support.mounts import SmallDisk, small_disk
from support.raw_client import RawClient, batch_of
from support.stock_clients import EARLIEST, ToSend

DISK_BYTES = 24 * 1024 * 1024
BATCH = batch_of([b"v" * 100_000])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def full_broker(disk: SmallDisk) -> Iterator[BrokerProcess]:
    """A broker whose disk is full of topic `filler`; topics `t` and `u` have one record each."""
    broker = BrokerProcess(disk.path, {"log.segment.bytes": str(4 * 1024 * 1024)})
    broker.start()
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", "u", "filler", auto_create=True)
        for topic in ("t", "u"):
            assert client.produce(topic, 0, batch_of([b"first"])).error_code == 0
        fill(client, "filler")
    yield broker
    if broker.is_running:
        broker.kill()


def fill(client: RawClient, topic: str) -> int:
    """Produce until the disk takes no more; returns how many batches were acknowledged."""
    for i in range(2 * DISK_BYTES // len(BATCH)):
        answer = client.produce(topic, 0, BATCH)
        if answer.error_code:
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left" in (answer.error_message or "")
            return i
    raise AssertionError("the disk did not fill up")


def test_a_full_disk_is_a_storage_error_and_reads_go_on(full_broker: BrokerProcess) -> None:
    """Everything acknowledged is served, and small writes that no longer fit are refused too."""
    with RawClient(full_broker.bootstrap) as client:
        records = client.read_all("filler", 0)
        assert len(records) > 100
        assert [record.offset for record in records] == list(range(len(records)))
        while client.produce("t", 0, batch_of([b"." * 3000])).error_code == 0:
            pass
        assert client.produce("t", 0, BATCH).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.read_all("u", 0)[0].value == b"first"
        assert client.produce("u", 0, BATCH).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(client.read_all("filler", 0)) == len(records)
    assert full_broker.is_running


def test_writing_works_again_when_a_topic_is_deleted(full_broker: BrokerProcess) -> None:
    """Room that another topic gives back is used at once, without a restart."""
    with RawClient(full_broker.bootstrap) as client:
        assert client.produce("t", 0, BATCH).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        client.delete_topic("filler")
        assert wait_until(lambda: client.produce("t", 0, BATCH).error_code == 0)
        assert [record.offset for record in client.read_all("t", 0)] == [0, 1]
    assert full_broker.stop() == 0
    check_partition(full_broker.data_dir / "t-0")


def test_writing_works_again_when_the_disk_grows(
    full_broker: BrokerProcess, disk: SmallDisk
) -> None:
    """The partition that filled the disk goes on where it stopped, over several segments."""
    with RawClient(full_broker.bootstrap) as client:
        count = len(client.read_all("filler", 0))
        disk.resize(2 * DISK_BYTES)
        more = fill(client, "filler")
        assert more > 100
        assert len(client.read_all("filler", 0)) == count + more
    disk.resize(3 * DISK_BYTES)
    assert full_broker.stop() == 0
    assert len(check_partition(full_broker.data_dir / "filler-0")) > 8


@pytest.mark.parametrize("is_crash", [False, True], ids=["stop", "kill"])
def test_a_broker_ended_on_a_full_disk_starts_when_there_is_room(
    full_broker: BrokerProcess, disk: SmallDisk, is_crash: bool
) -> None:
    """Closing needs room that is not there; nothing acknowledged is lost by that."""
    with RawClient(full_broker.bootstrap) as client:
        count = len(client.read_all("filler", 0))
        while client.produce("t", 0, batch_of([b"." * 100])).error_code == 0:
            pass
        count_t = len(client.read_all("t", 0))
    if is_crash:
        full_broker.kill()
    else:
        assert full_broker.stop() == 1
        assert full_broker.log_text.splitlines()[-1].startswith("anabranch: The log directory")
        assert "could not be closed in order" in full_broker.log_text
    assert not (full_broker.data_dir / ".kafka_cleanshutdown").exists()
    disk.resize(2 * DISK_BYTES)
    full_broker.start()
    with RawClient(full_broker.bootstrap) as client:
        assert len(client.read_all("filler", 0)) == count
        assert len(client.read_all("t", 0)) == count_t
        for topic in ("filler", "t"):
            assert client.produce(topic, 0, BATCH).error_code == 0
    assert full_broker.stop() == 0
    for topic in ("filler", "t"):
        check_partition(full_broker.data_dir / f"{topic}-0")


def test_a_start_on_a_full_disk_fails_with_a_sentence(
    full_broker: BrokerProcess, disk: SmallDisk
) -> None:
    """The sentence names the disk's state; the start works once there is room."""
    full_broker.kill()
    (disk.path / "ballast").write_bytes(b"")
    with pytest.raises(OSError, match="No space"), (disk.path / "ballast").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    before = len(full_broker.log_text)
    with pytest.raises(AssertionError, match="did not start"):
        full_broker.start()
    (line,) = full_broker.log_text[before:].splitlines()
    assert "metadata.db cannot be used: database or disk is full" in line
    (disk.path / "ballast").unlink()
    full_broker.start()
    with RawClient(full_broker.bootstrap) as client:
        assert len(client.read_all("filler", 0)) > 100


def test_a_topic_cannot_be_made_on_a_full_disk(full_broker: BrokerProcess, disk: SmallDisk) -> None:
    """CreateTopics answers KAFKA_STORAGE_ERROR, leaves nothing half made, and works later."""
    wanted = CreatableTopic(name="new", num_partitions=3, replication_factor=1)
    with RawClient(full_broker.bootstrap) as client:
        while client.produce("t", 0, batch_of([b"." * 100])).error_code == 0:
            pass
        (refused,) = client.send(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[wanted])).topics
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.metadata("new").topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not list(full_broker.data_dir.glob("new-*"))
        disk.resize(2 * DISK_BYTES)
        (made,) = client.send(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[wanted])).topics
        assert made.error_code == ErrorCode.NONE
        assert client.produce("new", 2, BATCH).base_offset == 0


def test_an_idempotent_producer_waits_for_room(full_broker: BrokerProcess, disk: SmallDisk) -> None:
    """For a stock client the error is one to retry: its records arrive once, when they can."""
    records = [ToSend(b"%d" % i * 1000) for i in range(200)]
    client = ConfluentKafka()
    with (
        client.producer(full_broker.bootstrap, idempotent=True) as producer,
        client.consumer(full_broker.bootstrap, "t", {0: EARLIEST}) as consumer,
    ):
        consumer.take(1)
        deliveries: list[int] = []
        sender = threading.Thread(
            target=lambda: deliveries.extend(d.offset for d in producer.send("t", records))
        )
        sender.start()
        with RawClient(full_broker.bootstrap) as raw:
            # The producer has met the full disk when not even the smallest batch fits any more.
            assert wait_until(lambda: raw.produce("u", 0, batch_of([b"."])).error_code != 0)
        disk.resize(2 * DISK_BYTES)
        received = consumer.take(200)
        sender.join()
    assert [record.value for record in received] == [record.value for record in records]
    assert deliveries == list(range(1, 201))
