"""Where the fuzz tests fight: a broker without sockets, judged after every round and at the end."""

import asyncio
import dataclasses
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_wire import LIMITS, FakeWire, open_broker
from hypothesis import settings
from request_strategies import TOPIC_ID, TOPICS

from anabranch.broker.broker import Broker
from anabranch.handlers.registry import ROUTES
from anabranch.server.dispatch import Dispatch
from anabranch.server.listener import Listener
from anabranch.wire.header import read_request_header, skip_header_tags
from anabranch.wire.messages.produce import PRODUCE
from anabranch.wire.primitives import DecodeError, read_uvarint, skip_tags
from anabranch.wire.record_batch import crc_ok, iter_headers
from support.log_walker import walk_segment

_TOPIC_CONFIGS = {
    "fuzz": {},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime", "compression.type": "gzip"},
}
assert set(_TOPIC_CONFIGS) == set(TOPICS)
_TOPICS_MAX = 20
_SECONDS = int(os.environ.get("ANABRANCH_FUZZ_SECONDS", "0"))
_FUZZ_TESTS = 4
_SEGMENT_BYTES = 1000


def fuzzing(examples: int) -> settings:
    """So many examples, the same each time; new ones each time when there are seconds to spend."""
    return settings(max_examples=examples, derandomize=not _SECONDS, print_blob=True)


def attack(test: Callable[[], None]) -> None:
    """Run a Hypothesis test once, or for its share of ANABRANCH_FUZZ_SECONDS."""
    end_s = time.monotonic() + _SECONDS / _FUZZ_TESTS
    test()
    while time.monotonic() < end_s:
        test()


class Arena:
    """One broker for all rounds of a test; topics that an attack deletes are made again."""

    def __init__(self, broker: Broker, events: Any) -> None:
        self.broker = broker
        self.events = events
        self._dispatch = Dispatch(broker)
        self._listener = Listener("PLAINTEXT", self._dispatch, LIMITS)
        self._loop_failures: list[dict[str, Any]] = []
        self._runner = asyncio.Runner()
        self._rss_bytes = 0

    def close(self) -> None:
        self._runner.close()

    def fight(self, stream: bytes, piece_bytes: int) -> None:
        """Send a stream of bytes; whatever it is, it ends in answers or in one reason."""
        self._prepare()
        stream = stream.replace(TOPIC_ID, self.broker.topics.get("fuzz").topic_id)
        self._runner.run(self._fight(stream, piece_bytes))
        assert not self._loop_failures, self._loop_failures
        unwanted = {"handler.failed", "connection.failed", "response.unencodable"}
        found = [event for event in self.events.all if event[0] in unwanted]
        assert not found, found
        assert len(self.events.reasons) <= 1

    def _prepare(self) -> None:
        topics = self.broker.topics
        for name, configs in _TOPIC_CONFIGS.items():
            if topics.get(name) is None:
                for partition in self.broker.create_topic(name, 2, configs).partitions:
                    # Smaller than settings allow, so that segments roll all the time.
                    config = dataclasses.replace(partition.log.config, segment_bytes=_SEGMENT_BYTES)
                    partition.log.config = config
        for topic in list(topics)[_TOPICS_MAX:]:
            if topic.name not in TOPICS:
                self.broker.delete_topic(topic)
        self.events.all.clear()

    async def _fight(self, stream: bytes, piece_bytes: int) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, what: self._loop_failures.append(what)
        )
        wire = FakeWire(self._listener, self._dispatch)
        wire.feed(stream, piece_bytes)
        await wire.settle()
        for topic in self.broker.topics:
            self.broker.purgatory.finish_all(topic.partitions)
        await wire.settle()
        self._judge(wire, stream)
        wire.lose()
        assert self._listener.connection_count == 0
        for topic in self.broker.topics:
            for partition in topic.partitions:
                assert not partition.parked_fetches

    def _judge(self, wire: FakeWire, stream: bytes) -> None:
        """Every answer belongs to a request, in order, and can be read; none is missing."""
        frames = _frames(stream)
        is_closed = not wire.transport.is_open
        assert is_closed == bool(self.events.reasons)
        for response in wire.responses():
            body = next(frames, None)
            while body is not None and _wants_no_answer(body):
                body = next(frames, None)
            assert body is not None, "an answer that nobody asked for"
            _check_answer(body, response)
        if not is_closed and not wire.connection._slots:
            assert all(_wants_no_answer(body) for body in frames), "a request without an answer"

    def check_memory(self) -> None:
        """After the first call, the process must not have grown by more than a little."""
        with open("/proc/self/statm") as statm:
            rss_bytes = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        self._rss_bytes = self._rss_bytes or rss_bytes
        assert rss_bytes - self._rss_bytes < 200 * 1024 * 1024

    def check_logs(self) -> None:
        """Every partition reads back as whole batches with right CRCs and offsets without gaps."""
        for topic in self.broker.topics:
            for partition in topic.partitions:
                log = partition.log
                assert log.failed is None
                next_offset = log.segments[0].base_offset
                for segment in log.segments:
                    content = segment.slice(0, segment.size_bytes) if segment.size_bytes else b""
                    end = 0
                    for position, header in iter_headers(content):
                        assert crc_ok(content, position, header.size_bytes)
                        assert header.base_offset == next_offset
                        next_offset = header.next_offset
                        end = position + header.size_bytes
                    assert end == segment.size_bytes
                assert next_offset == log.log_end_offset


@contextmanager
def open_arena(folder: Path, events: Any) -> Iterator[Arena]:
    """A broker to fight; at the end its folder must open again, in order and after a crash."""
    with open_broker(folder) as broker:
        arena = Arena(broker, events)
        yield arena
        arena.close()
        arena.check_logs()
        ends = _log_ends(broker)
    marks = list(folder.glob(".kafka_cleanshutdown"))
    assert marks
    for path in folder.glob("*-*/*.log"):
        walk_segment(path)
    for is_clean in (True, False):
        if not is_clean:
            (folder / ".kafka_cleanshutdown").unlink()
        with open_broker(folder) as broker:
            assert _log_ends(broker) == ends


def _log_ends(broker: Broker) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        key: (log.log_start_offset, log.log_end_offset) for key, log in broker.engine.logs.items()
    }


def _frames(stream: bytes) -> Iterator[memoryview]:
    """The whole frames at the start of a stream, up to the first impossible size."""
    view = memoryview(stream)
    while len(view) >= 4:
        (size,) = struct.unpack_from(">i", view)
        if not 8 <= size <= LIMITS.request_max_bytes or 4 + size > len(view):
            return
        yield view[4 : 4 + size]
        view = view[4 + size :]


def _wants_no_answer(body: memoryview) -> bool:
    """Whether a frame is a produce with acks=0."""
    try:
        key, version, _, _, pos = read_request_header(body)
        if key != PRODUCE.key or version not in PRODUCE.versions:
            return False
        if PRODUCE.is_flexible(version):
            pos = skip_header_tags(body, pos)
        request: Any = PRODUCE.decode_request(version)(body, pos)[0]
    except DecodeError:
        return False
    return bool(request.acks == 0)


def _check_answer(body: memoryview, response: bytes) -> None:
    key, version, correlation_id, _, _ = read_request_header(body)
    assert struct.unpack_from(">i", response) == (correlation_id,)
    route = ROUTES[key]
    if version not in route.versions:
        assert key == 18
        version = 0
    pos = 4
    if route.api.has_tagged_response_header(version):
        count, pos = read_uvarint(response, pos)
        pos = skip_tags(response, pos, count)
    _, end = route.api.decode_response(version)(memoryview(response), pos)
    assert end == len(response)
