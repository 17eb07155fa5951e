"""A wire-level member of a consumer group (KIP-848): ConsumerGroupHeartbeat v1, nothing else.

It does with its heartbeats what stock clients do: it makes its own id, joins with epoch 0, speaks
again when the interval of the last answer has passed since it last spoke (a new interval counts at
once), drops what an assignment no longer holds, takes what is new in it, and says so at once. It
has no records to fetch and no callbacks to run, so that reconciling takes no time. Frames are made
once and patched, because a thousand members share a process.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from anabranch.model.errors import ErrorCode
from anabranch.wire.primitives import encode_uvarint, read_uvarint

API_KEY = 68
_VERSION = 1
_JOIN, _LEAVE = 0, -1
_REBALANCE_TIMEOUT_MS = 300_000
_UNCHANGED = -1
_NULL = b"\0"

_SIZE = struct.Struct(">i")
_INT32 = struct.Struct(">i")
_EPOCH_AND_INTERVAL = struct.Struct(">ii")
# Correlation id, no tags, throttle time, error code.
_ANSWER_START = struct.Struct(">ibih")
_CLIENT_ID = b"rebalance"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a ConsumerGroupHeartbeat was answered with; no partitions means "as they were"."""

    error_code: int
    error_message: str
    member_epoch: int
    interval_ms: int
    topic_id: bytes
    partitions: frozenset[int] | None


def read_answer(frame: bytes) -> Answer:
    *_, error_code = _ANSWER_START.unpack_from(frame)
    size, position = read_uvarint(frame, _ANSWER_START.size)
    message = frame[position : position + max(size - 1, 0)].decode()
    size, position = read_uvarint(frame, position + max(size - 1, 0))
    position += max(size - 1, 0)
    epoch, interval_ms = _EPOCH_AND_INTERVAL.unpack_from(frame, position)
    position += _EPOCH_AND_INTERVAL.size
    topic_id, partitions = b"", None
    if frame[position] == 1:
        topic_id, partitions = _read_assignment(frame, position + 1)
    return Answer(error_code, message, epoch, interval_ms, topic_id, partitions)


def _read_assignment(frame: bytes, position: int) -> tuple[bytes, frozenset[int]]:
    topics, position = read_uvarint(frame, position)
    if topics <= 1:
        return b"", frozenset()
    assert topics == 2, "members subscribe to one topic"
    topic_id = frame[position : position + 16]
    count, position = read_uvarint(frame, position + 16)
    return topic_id, frozenset(struct.unpack_from(f">{count - 1}i", frame, position))


def _write_owned(topic_id: bytes, partitions: Iterable[int]) -> bytes:
    owned = sorted(partitions)
    if not owned:
        return encode_uvarint(1)
    numbers = encode_uvarint(len(owned) + 1) + struct.pack(f">{len(owned)}i", *owned)
    return encode_uvarint(2) + topic_id + numbers + _NULL


def _write_string(text: str) -> bytes:
    raw = text.encode()
    return encode_uvarint(len(raw) + 1) + raw


class ConsumerEvents(Protocol):
    """What a member tells its group, as it happens."""

    group_id: str
    topic: str
    heartbeat_count: int

    def dropped(self, member: ConsumerMember, partitions: frozenset[int]) -> None: ...
    def took(self, member: ConsumerMember, partitions: frozenset[int]) -> None: ...
    def acknowledged(self, member: ConsumerMember) -> None: ...
    def failed(self, reason: str) -> None: ...


class ConsumerMember(asyncio.Protocol):
    """One member on its own connection, with one request under way, or two when it leaves."""

    def __init__(self, group: ConsumerEvents) -> None:
        self.owned: frozenset[int] = frozenset()
        self.is_settled = False  # it owns something, or nothing, and has said so
        self.has_left = False
        self.interval_s = 0.0
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._received = b""
        self._topic_id = b""
        self._member_epoch = 0
        self._is_under_way = False
        self._is_acknowledging = False
        self._must_acknowledge = False
        self._sent_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._goodbye: asyncio.Future[None] | None = None
        header = struct.pack(">hhih", API_KEY, _VERSION, 0, len(_CLIENT_ID)) + _CLIENT_ID + _NULL
        member_id = _write_string(str(uuid.uuid4()))
        self._start = header + _write_string(group.group_id) + member_id
        self._heartbeat_frame = b""

    # Connection -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.has_left:
            self._group.failed("the broker closed a member's connection")
        self._say_goodbye()

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        while len(received) >= 4:
            end = 4 + _SIZE.unpack_from(received)[0]
            if len(received) < end:
                break
            self._answered(read_answer(received[4:end]))
            received = received[end:]
        self._received = received

    def close(self) -> None:
        self.has_left = True
        self._cancel_timer()
        self._transport.close()

    # Speaking -------------------------------------------------------------------------------------

    def join(self) -> None:
        topics = encode_uvarint(2) + _write_string(self._group.topic)
        self._write(self._frame(_JOIN, _REBALANCE_TIMEOUT_MS, topics, _write_owned(b"", ())))

    def leave(self) -> asyncio.Future[None]:
        """Say goodbye at once, even while a heartbeat is under way."""
        self.stop()
        self._write(self._frame(_LEAVE))
        self._goodbye = self._loop.create_future()
        return self._goodbye

    def stop(self) -> None:
        """No more heartbeats."""
        self.has_left = True
        self._cancel_timer()

    def _heartbeat(self) -> None:
        self._timer = None
        if self._must_acknowledge:
            self._must_acknowledge = False
            self._is_acknowledging = True
            owned = _write_owned(self._topic_id, self.owned)
            self._write(self._frame(self._member_epoch, owned=owned))
        else:
            self._write(self._heartbeat_frame)

    def _frame(
        self,
        member_epoch: int,
        rebalance_timeout_ms: int = _UNCHANGED,
        topics: bytes = _NULL,
        owned: bytes = _NULL,
    ) -> bytes:
        body = b"".join(
            (
                self._start,
                _INT32.pack(member_epoch),
                _NULL,  # instance id
                _NULL,  # rack id
                _INT32.pack(rebalance_timeout_ms),
                topics,
                _NULL,  # regular expression
                _NULL,  # assignor
                owned,
                _NULL,  # tags
            )
        )
        return _SIZE.pack(len(body)) + body

    def _write(self, frame: bytes) -> None:
        self._cancel_timer()
        self._is_under_way = True
        self._sent_at_s = time.monotonic()
        self._group.heartbeat_count += 1
        self._transport.write(frame)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Hearing --------------------------------------------------------------------------------------

    def _answered(self, answer: Answer) -> None:
        self._is_under_way = False
        if self.has_left:
            if answer.member_epoch == _LEAVE or answer.error_code:
                self._say_goodbye()
            return
        if answer.error_code:
            self.stop()
            name = ErrorCode(answer.error_code).name
            self._group.failed(f"a heartbeat was answered with {name}: {answer.error_message}")
            return
        if answer.member_epoch != self._member_epoch:
            self._member_epoch = answer.member_epoch
            self._heartbeat_frame = self._frame(answer.member_epoch)
        self.interval_s = answer.interval_ms / 1000
        was_acknowledging, self._is_acknowledging = self._is_acknowledging, False
        if answer.partitions is not None and answer.partitions != self.owned:
            self._reconcile(answer.topic_id, answer.partitions)
        elif was_acknowledging or not self.is_settled:
            self.is_settled = True
            self._group.acknowledged(self)
        if self._must_acknowledge:
            self._heartbeat()
            return
        delay_s = max(0.0, self._sent_at_s + self.interval_s - time.monotonic())
        self._timer = self._loop.call_later(delay_s, self._heartbeat)

    def _reconcile(self, topic_id: bytes, partitions: frozenset[int]) -> None:
        self.is_settled = False
        self._must_acknowledge = True
        self._topic_id = topic_id or self._topic_id
        before, self.owned = self.owned, partitions
        if gone := before - partitions:
            self._group.dropped(self, gone)
        if new := partitions - before:
            self._group.took(self, new)

    def _say_goodbye(self) -> None:
        if self._goodbye is not None and not self._goodbye.done():
            self._goodbye.set_result(None)
