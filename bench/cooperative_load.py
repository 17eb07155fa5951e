"""Records for the benchmark of cooperative consumption: keys, ready-made batches, and their sender.

Batches are built before a run and sent as they are, a few megabytes in a few milliseconds: all
records are there almost at once, and no producer takes CPU time from those who are measured. Every
contender gets the same bytes.
"""

from __future__ import annotations

import bisect
import itertools
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, NewTopic

from anabranch.wire.header import write_request_header
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.wire.record_batch import Record, build_batch
from server_process import HOST, ServerProcess

UNIFORM, ZIPF = "uniform", "Zipf 1.0"
VALUE_BYTES = 100
# About 16 KB, which is what the Java producer fills by default.
BATCH_RECORDS = 128

_LIMIT_S = 30.0
_VERSION = 9
_SIZE = struct.Struct(">i")
_topic_numbers = itertools.count(1)


class LoadError(Exception):
    """Records could not be written, or a run did not end as it should."""


# Keys ---------------------------------------------------------------------------------------------


def draw_keys(distribution: str, keys: int, count: int, seed: int = 1) -> list[int]:
    """The number of the key of each of `count` records."""
    dice = random.Random(seed)
    if distribution == UNIFORM:
        return [dice.randrange(keys) for _ in range(count)]
    sums = list(itertools.accumulate(1 / rank for rank in range(1, keys + 1)))
    return [bisect.bisect(sums, dice.random() * sums[-1]) for _ in range(count)]


def hottest_share(distribution: str, keys: int) -> float:
    """The part of all records that the most frequent key has, in the long run."""
    return 1 / keys if distribution == UNIFORM else 1 / sum(1 / n for n in range(1, keys + 1))


def key_bytes(number: int) -> bytes:
    return b"customer-%06d" % number


def ideal_seconds(keys: Sequence[int], workers: int, work_s: float, *, is_ordered: bool) -> float:
    """How long the work takes at least: no worker idles, and no key has two workers at once."""
    longest = max(Counter(keys).values()) if is_ordered else 1
    return max(-(-len(keys) // workers), longest) * work_s


# Batches ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """Records that are ready to be sent; the n-th gets the offset n in a topic of its own."""

    keys: Sequence[int]
    batches: Sequence[bytes]
    batch_records: int

    def __len__(self) -> int:
        return len(self.keys)


def make_load(keys: Sequence[int], batch_records: int = BATCH_RECORDS) -> Load:
    now_ms = round(time.time() * 1000)
    value = b"." * VALUE_BYTES
    batches = []
    for start in range(0, len(keys), batch_records):
        part = keys[start : start + batch_records]
        records = [Record(at, now_ms, key_bytes(key), value) for at, key in enumerate(part)]
        batches.append(build_batch(records, base_offset=0, partition_leader_epoch=-1))
    return Load(keys, batches, batch_records)


class Sender:
    """A connection that appends batches to the only partition of a topic, in order."""

    def __init__(self, server: ServerProcess, topic: str) -> None:
        self._name = server.name
        self._topic = topic
        self._connection = socket.create_connection((HOST, server.port), timeout=_LIMIT_S)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._connection.close()

    def send(self, batches: Sequence[bytes]) -> None:
        """Returns when all are in the log."""
        frames = b"".join(_frame(self._topic, batch, at) for at, batch in enumerate(batches))
        sending = threading.Thread(target=self._connection.sendall, args=[frames], daemon=True)
        sending.start()
        for _ in batches:
            (size,) = _SIZE.unpack(_receive(self._connection, _SIZE.size))
            # After the correlation id and the header's empty tags.
            answer, _ = PRODUCE.decode_response(_VERSION)(_receive(self._connection, size), 5)
            found = answer.responses[0].partition_responses[0]
            if found.error_code:
                raise LoadError(f"{self._name} refused records: error {found.error_code}")
        sending.join()


def _frame(topic: str, batch: bytes, number: int) -> bytes:
    message = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=0, records=batch)]
            )
        ],
    )
    head = write_request_header(PRODUCE.key, _VERSION, number, "bench", flexible=True)
    body = b"".join([head, *PRODUCE.encode_request(_VERSION)(message)])
    return _SIZE.pack(len(body)) + body


def _receive(connection: socket.socket, size: int) -> memoryview:
    buffer = bytearray(size)
    view = memoryview(buffer)
    filled = 0
    while filled < size:
        got = connection.recv_into(view[filled:])
        if not got:
            raise LoadError("the broker closed the connection while records were written")
        filled += got
    return view


# Topics -------------------------------------------------------------------------------------------


def create_topic(server: ServerProcess, configs: Mapping[str, str] | None = None) -> str:
    """A new topic of one partition, once that has a leader."""
    topic = f"work-{next(_topic_numbers)}"
    admin = _admin(server)
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=dict(configs or {}))
    admin.create_topics([new])[topic].result(_LIMIT_S)
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        found = admin.list_topics(topic, timeout=_LIMIT_S).topics[topic].partitions
        if len(found) == 1 and found[0].leader >= 0:
            return topic
        time.sleep(0.05)
    raise LoadError(f"{topic} has no leader on {server.name} after {_LIMIT_S:.0f} s")


def delete_topic(server: ServerProcess, topic: str) -> None:
    admin = _admin(server)
    admin.delete_topics([topic])[topic].result(_LIMIT_S)


def _admin(server: ServerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
