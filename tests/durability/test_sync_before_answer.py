"""With `flush.on.acks.all` an acknowledgement means that the disk has the record.

The broker runs inside the test, so that the test can hold the disk's answer back.
"""

import asyncio
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.config.load import load_settings
from anabranch.engine.log_directory import DirectoryError
from anabranch.model.errors import ErrorCode
from anabranch.server.run import Server
from anabranch.wire.messages.produce import PRODUCE
from support.raw_client import RawClient, batch_of, produce_request
from support.topics import create_topic

TIMEOUT_S = 60


class Disk:
    """Stands in for fdatasync: counts, and waits or fails when it is told to."""

    def __init__(self) -> None:
        self.calls = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None

    def fdatasync(self, fd: int) -> None:
        self.calls.release()
        assert self.gate.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error

    def wait_for_call(self) -> None:
        assert self.calls.acquire(timeout=TIMEOUT_S)

    @property
    def was_called(self) -> bool:
        return self.calls.acquire(blocking=False)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    yield disk
    disk.gate.set()


class InProcessBroker:
    """A broker in a thread of this process."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.bootstrap = ""
        self.stop_error: DirectoryError | None = None
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._is_up.wait(TIMEOUT_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        overrides = [f"log.dirs={self.data_dir}", "listeners=PLAINTEXT://127.0.0.1:0"]
        server = Server(load_settings(environ={}, overrides=overrides))
        await server.start()
        self.bootstrap = server.addresses[0].removeprefix("PLAINTEXT://")
        self._is_up.set()
        await self._stopping.wait()
        try:
            await server.stop()
        except DirectoryError as error:
            self.stop_error = error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(TIMEOUT_S)


@pytest.fixture
def broker(tmp_path: Path, disk: Disk) -> Iterator[InProcessBroker]:
    """A broker with a topic that syncs and one that does not."""
    broker = InProcessBroker(tmp_path / "data")
    try:
        create_topic(broker.bootstrap, "synced", configs={"flush.on.acks.all": "true"})
        create_topic(broker.bootstrap, "plain")
        yield broker
    finally:
        disk.gate.set()
        broker.stop()


@pytest.fixture
def bootstrap(broker: InProcessBroker) -> str:
    return broker.bootstrap


def _has_answer(client: RawClient) -> bool:
    readable, _, _ = select.select([client.fileno()], [], [], 0)
    return bool(readable)


def test_the_answer_waits_for_the_disk(bootstrap: str, disk: Disk) -> None:
    """While the sync runs others are served, and the producer hears nothing; then it does."""
    disk.gate.clear()
    with RawClient(bootstrap) as producer, RawClient(bootstrap) as other:
        posted = producer.post(PRODUCE, 9, produce_request("synced", 0, batch_of([b"v"])))
        disk.wait_for_call()
        assert other.metadata("synced").topics[0].error_code == 0
        assert other.produce("plain", 0, batch_of([b"v"])).error_code == 0
        assert not _has_answer(producer)
        disk.gate.set()
        response = producer.receive(PRODUCE, 9, posted)
    answer = response.responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


def test_produces_during_a_sync_share_the_next_one(bootstrap: str, disk: Disk) -> None:
    """Group commit: two syncs are enough for one produce and the twenty that came meanwhile."""
    request = produce_request("synced", 0, batch_of([b"v"]))
    disk.gate.clear()
    with RawClient(bootstrap) as first, RawClient(bootstrap) as client:
        posted_first = first.post(PRODUCE, 9, request)
        disk.wait_for_call()
        posted = [client.post(PRODUCE, 9, request) for _ in range(20)]
        with RawClient(bootstrap) as other:
            # Requests of a connection are handled in order; this one comes after the twenty.
            last = client.post(PRODUCE, 9, produce_request("plain", 0, batch_of([b"v"])))
            while other.offset_for_time("plain", 0, -1)[0] == 0:
                pass
        assert not _has_answer(client)
        disk.gate.set()
        first.receive(PRODUCE, 9, posted_first)
        answers = [client.receive(PRODUCE, 9, one) for one in [*posted, last]]
    offsets = [a.responses[0].partition_responses[0].base_offset for a in answers[:-1]]
    assert offsets == list(range(1, 21))
    disk.wait_for_call()
    assert not disk.was_called


@pytest.mark.parametrize(("topic", "acks"), [("synced", 1), ("plain", 1), ("plain", -1)])
def test_other_produces_do_not_wait(bootstrap: str, disk: Disk, topic: str, acks: int) -> None:
    """Without the setting, or with acks=1, nobody syncs before the answer."""
    disk.gate.clear()
    with RawClient(bootstrap) as client:
        assert client.produce(topic, 0, batch_of([b"v"]), acks=acks).base_offset == 0
    assert not disk.was_called


def test_a_sync_that_fails_is_a_storage_error(broker: InProcessBroker, disk: Disk) -> None:
    """Nobody knows what a disk holds after a failed sync: the partition takes no more.

    The folder gets no mark of an orderly stop, so that the next start checks it.
    """
    disk.error = OSError(5, "Input/output error")
    with RawClient(broker.bootstrap) as client:
        answer = client.produce("synced", 0, batch_of([b"v"]))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        disk.error = None
        again = client.produce("synced", 0, batch_of([b"v"]))
        assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce("plain", 0, batch_of([b"v"])).error_code == ErrorCode.NONE
    broker.stop()
    assert "synced-0 failed" in str(broker.stop_error)
    assert not (broker.data_dir / ".kafka_cleanshutdown").exists()


def test_a_stop_without_failures_leaves_the_mark(broker: InProcessBroker) -> None:
    """The other side of the test above."""
    with RawClient(broker.bootstrap) as client:
        assert client.produce("synced", 0, batch_of([b"v"])).error_code == ErrorCode.NONE
    broker.stop()
    assert broker.stop_error is None
    assert (broker.data_dir / ".kafka_cleanshutdown").exists()
