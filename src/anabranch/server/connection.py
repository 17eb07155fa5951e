"""One client connection: frames in, requests handled, responses out in order.

Rules
- Bytes are received into one scratch buffer shared by all connections of the loop; only a frame
  that did not arrive whole gets a buffer of its own. Handlers run before the next read, so they
  may look into the buffer but must not keep views of it.
- Every complete frame is handled at once, without a task per request. A handler that has to wait
  returns a Deferred and the frames behind it are handled meanwhile; responses still leave in the
  order of their requests, because each waits in its slot.
- A client that does not read its responses is not read from either: nothing is handled while the
  transport's write buffer is above its limit, or too many requests or too large answers wait.
- A client that sends many requests at once takes turns with the others.
- Bytes that make no sense end the connection with one log line that says why.
"""

import asyncio
import functools
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from anabranch.broker.deferred import Deferred
from anabranch.handlers.route import RequestContext
from anabranch.observe import logs
from anabranch.server.dispatch import Dispatch, Prepared, last_calls
from anabranch.wire.header import read_request_header, skip_header_tags
from anabranch.wire.primitives import DecodeError, EncodeError

if TYPE_CHECKING:
    from anabranch.server.listener import Listener

_SIZE = struct.Struct(">i")
_SCRATCH = memoryview(bytearray(256 * 1024))
# A frame's buffer grows with the bytes that arrive, so that a size prefix alone cannot make the
# broker allocate a hundred megabytes: this much at first, the second figure once that is filled,
# twice as much each time after that.
_FIRST_BUFFER_BYTES = 64 * 1024
_SECOND_BUFFER_BYTES = 1024 * 1024
_MAX_WAITING_REQUESTS = 1000
_WRITE_BUFFER_HIGH_BYTES = 1024 * 1024
# How long one client's pipelined requests may keep the others waiting.
_TURN_S = 0.02
# How long a connection that is being closed may take to read what it was still sent.
_CLOSE_GRACE_S = 5.0
_LOGGED_CLIENT_ID_LENGTH = 100
# A request up to this size cannot hold so many elements that counting them would be worth it.
_UNCOUNTED_REQUEST_MAX_BYTES = 64 * 1024


class Slot:
    """The place of one response in the order of its connection."""

    __slots__ = ("correlation_id", "deferred", "parts", "prepared")

    def __init__(self, prepared: Prepared, correlation_id: int) -> None:
        self.prepared = prepared
        self.correlation_id = correlation_id
        self.deferred: Deferred[Any] | None = None
        self.parts: list[bytes | memoryview] | None = None


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(self, listener: "Listener", dispatch: Dispatch) -> None:
        self._listener = listener
        self._dispatch = dispatch
        self._broker = dispatch.broker
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._slots: deque[Slot] = deque()
        self._slot_bytes = 0  # of answers that wait behind a parked request
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._in_read = False
        self._frame: bytearray | None = None  # a frame that did not arrive whole
        self._frame_filled = 0
        self._frame_size = 4  # its whole size; 4 while only the size prefix is awaited
        self._stash: bytearray | None = None  # bytes received but not handled while paused
        self._write_paused = False
        self._is_held = False  # by the listener, because too many bytes of requests are buffered
        self._closing = False
        self._ends_when_answered = False
        self._unsent_bytes = 0
        self._client_id_raw: bytes | None = b""
        self.client_id = ""
        self.client_host = ""
        self.last_active_s = time.monotonic()

    # Life -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        self.client_host = peer[0] if isinstance(peer, tuple) else str(peer or "")
        refusal = self._listener.admit(self)
        if refusal is not None:
            self._end(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._note_cut_off()
        self._closing = True
        self._release_frame()
        self._stash = None
        slots, self._slots = self._slots, deque()
        for slot in slots:
            if slot.deferred is not None:
                slot.deferred.cancel()
        self._out.clear()
        self._listener.forget(self)

    def eof_received(self) -> bool:
        """The client shut its writing side down; keep ours open while answers are owed."""
        self._note_cut_off()
        self._release_frame()
        self._ends_when_answered = True
        return bool(self._slots)

    def _note_cut_off(self) -> None:
        """Say so when the client leaves in the middle of a request."""
        if self._frame is not None and not self._closing:
            missing = self._frame_size - self._frame_filled
            what = "its size" if self._frame_size == 4 else f"{self._frame_size} bytes"
            self._log_end(
                f"the client left in the middle of a request: {missing} of {what} missing"
            )

    def sweep(self, now_s: float, idle_max_s: float) -> None:
        """Called by the clock: end what is idle, drop what does not let itself be closed."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:  # the client reads
            self._unsent_bytes = unsent_bytes
            self.last_active_s = now_s
        silent_s = now_s - self.last_active_s
        if self._closing:
            if silent_s > _CLOSE_GRACE_S:
                self._transport.abort()
            return
        # Silence is not idleness while a request is parked, unless the client closed its side.
        is_waiting = self._is_held or (self._slots and not self._ends_when_answered)
        if silent_s > idle_max_s > 0 and not is_waiting:
            self._end(f"it was silent for {silent_s:.0f} s (connections.max.idle.ms)")

    def _end(self, reason: str) -> None:
        if self._closing:
            return
        self._log_end(reason)
        self._close()

    def _log_end(self, reason: str) -> None:
        logs.info(
            "connection.closed",
            client=self.client_host,
            client_id=self.client_id[:_LOGGED_CLIENT_ID_LENGTH],
            listener=self._listener.name,
            reason=reason,
        )

    def _end_by_bug(self, error: Exception) -> None:
        """An exception that nobody foresaw costs this connection, never another one."""
        logs.error("connection.failed", error=repr(error), calls=last_calls(error))
        self._end("the broker failed while handling its requests")

    def _close(self) -> None:
        """Send what is answered, then close."""
        self._closing = True
        self.last_active_s = self._listener.clock_s
        self._flush()
        self._transport.close()

    def finish(self) -> None:
        """Shut down in order: read no more requests, answer those that wait, then close."""
        self._transport.pause_reading()
        self._release_frame()
        self._stash = None
        self._ends_when_answered = True
        if not self._slots:
            self._close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._closing = True
        self._transport.abort()

    # Receiving ------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            return _SCRATCH
        return memoryview(frame)[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active_s = self._listener.clock_s
        self._in_read = True
        try:
            if self._frame is None:
                self._consume(_SCRATCH[:nbytes])
            else:
                self._fill_frame(nbytes)
        except Exception as error:
            self._end_by_bug(error)
        finally:
            self._in_read = False
            self._flush()
        self._broker.wake_fetches()

    def _consume(self, view: memoryview) -> None:
        """Handle every whole frame in `view` and keep what is left."""
        pos, end = 0, len(view)
        turn_end_s = 0.0
        while end - pos >= 4:
            if self._closing:
                return
            if pos:  # more than one frame arrived at once
                if self._out_bytes > _WRITE_BUFFER_HIGH_BYTES:
                    self._flush()  # a client that does not read is noticed here
                now_s = time.monotonic()
                if not turn_end_s:
                    turn_end_s = now_s + _TURN_S
                elif now_s > turn_end_s:
                    self._pause(view[pos:])
                    self._loop.call_soon(self._resume)
                    return
            if self._write_paused or (self._slots and self._is_full()):
                self._pause(view[pos:])
                return
            (size,) = _SIZE.unpack_from(view, pos)
            if not self._size_ok(size):
                return
            stop = pos + 4 + size
            if stop > end:
                break
            self._handle(view[pos + 4 : stop])
            pos = stop
        if pos < end and not self._closing:
            self._begin_frame(view[pos:])

    def _size_ok(self, size: int) -> bool:
        if 8 <= size <= self._listener.request_max_bytes:
            return True
        limit = self._listener.request_max_bytes
        self._end(
            f"a request of {size} bytes was announced; between 8 and {limit} "
            "(socket.request.max.bytes) are possible"
        )
        return False

    def _begin_frame(self, rest: memoryview) -> None:
        """Move the beginning of a frame out of the scratch buffer."""
        have = len(rest)
        self._frame_size = 4 if have < 4 else 4 + _SIZE.unpack_from(rest)[0]
        self._frame = bytearray(min(self._frame_size, max(_FIRST_BUFFER_BYTES, 4 * have)))
        self._frame[:have] = rest
        self._frame_filled = have
        self._listener.admission.reserve(self, len(self._frame))

    def _fill_frame(self, nbytes: int) -> None:
        frame = self._frame
        assert frame is not None
        self._frame_filled += nbytes
        if self._frame_filled < len(frame):
            return
        if self._frame_size == 4:  # the size prefix itself had been cut in two
            (size,) = _SIZE.unpack_from(frame)
            if not self._size_ok(size):
                return
            self._frame_size = 4 + size
        if len(frame) < self._frame_size:
            floor = _FIRST_BUFFER_BYTES if len(frame) == 4 else _SECOND_BUFFER_BYTES
            bigger = bytearray(min(self._frame_size, max(2 * len(frame), floor)))
            bigger[: len(frame)] = frame
            self._frame = bigger
            self._listener.admission.reserve(self, len(bigger) - len(frame))
            return
        self._release_frame()
        self._consume(memoryview(frame))

    def _release_frame(self) -> None:
        if self._frame is not None:
            self._listener.admission.release(self, len(self._frame))
            self._frame = None

    # Back-pressure --------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._resume()

    def _is_full(self) -> bool:
        """Whether the client has to read, or a parked request to be answered, before more."""
        return (
            self._write_paused
            or self._slot_bytes > _WRITE_BUFFER_HIGH_BYTES
            or len(self._slots) >= _MAX_WAITING_REQUESTS
        )

    def _pause(self, rest: memoryview) -> None:
        """Stop reading; what was read already waits in a buffer of its own."""
        self._stash = bytearray(rest)
        self._transport.pause_reading()

    def _resume(self) -> None:
        """Go on with what waited, as far as the client's reading allows."""
        if self._stash is None or self._closing or self._in_read or self._is_full():
            return
        stash, self._stash = self._stash, None
        self._in_read = True
        try:
            self._consume(memoryview(stash))
        except Exception as error:
            self._end_by_bug(error)
        finally:
            self._in_read = False
            self._flush()
        self._set_reading()
        self._broker.wake_fetches()

    def hold_reading(self, hold: bool) -> None:
        """The listener's say when buffered requests reach `queued.max.request.bytes`."""
        self._is_held = hold
        self._set_reading()

    def _set_reading(self) -> None:
        """Read if nothing speaks against it."""
        if self._closing or self._ends_when_answered:
            return
        if self._is_held or self._stash is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Handling -------------------------------------------------------------------------------

    def _handle(self, frame: memoryview) -> None:
        try:
            key, version, correlation_id, client_id, pos = read_request_header(frame)
            prepared = self._dispatch.prepare(key, version)
            if prepared is None:
                self._end(self._dispatch.refusal(key, version))
                return
            if client_id != self._client_id_raw:
                self._client_id_raw = client_id
                self.client_id = (client_id or b"").decode("utf-8", "replace")
            if prepared.is_flexible:
                pos = skip_header_tags(frame, pos)
            decode = prepared.decode
            if len(frame) > _UNCOUNTED_REQUEST_MAX_BYTES and decode is not None:
                decode = prepared.api.decode_large_request(version)
            request = decode(frame, pos)[0] if decode is not None else None
        except DecodeError as error:
            self._end(f"the request cannot be read: {error}")
            return
        context = RequestContext(
            version, self.client_id, self.client_host, self._listener.name, self._end
        )
        try:
            answer = prepared.handle(self._broker, context, request)
        except Exception as error:
            answer = self._dispatch.failure(prepared, error)
            if answer is None:
                self._end(f"{prepared.api.name} failed: {error}")
                return
        if answer is None:
            return
        if isinstance(answer, Deferred):
            slot = Slot(prepared, correlation_id)
            slot.deferred = answer
            self._slots.append(slot)
            answer.deliver_to(
                functools.partial(self._fill, slot), functools.partial(self._fail, slot)
            )
            return
        parts = self._encode(answer, prepared, correlation_id)
        if self._slots:
            slot = Slot(prepared, correlation_id)
            slot.parts = parts
            self._slots.append(slot)
            self._slot_bytes += sum(map(len, parts))
        else:
            self._out += parts
            for part in parts:  # mostly one, for which this is the quickest sum
                self._out_bytes += len(part)

    def _encode(
        self, answer: Any, prepared: Prepared, correlation_id: int
    ) -> list[bytes | memoryview]:
        try:
            parts = prepared.encode(answer)
            return prepared.frame(parts, correlation_id, tagged=prepared.has_tagged_response_header)
        except (EncodeError, struct.error) as error:
            logs.error("response.unencodable", api=prepared.api.name, reason=str(error))
            self._end(f"the response of {prepared.api.name} cannot be written: {error}")
            return []

    def _fail(self, slot: Slot, error: Exception) -> None:
        """A parked request could not be answered."""
        if self._closing:
            return
        answer = self._dispatch.failure(slot.prepared, error)
        if answer is None:
            self._end(f"{slot.prepared.api.name} failed: {error}")
        else:
            self._fill(slot, answer)

    def _fill(self, slot: Slot, answer: Any) -> None:
        """A parked request was answered; send it and all that waited behind it."""
        if self._closing:
            return
        self.last_active_s = self._listener.clock_s
        slot.deferred = None
        slot.parts = self._encode(answer, slot.prepared, slot.correlation_id)
        self._slot_bytes += sum(map(len, slot.parts))
        while self._slots and (parts := self._slots[0].parts) is not None:
            self._slots.popleft()
            size = sum(map(len, parts))
            self._slot_bytes -= size
            self._out_bytes += size
            self._out += parts
        if self._in_read:
            return
        self._flush()
        if self._stash is not None:
            # Not at once: this may be another connection's turn.
            self._loop.call_soon(self._resume)
        if self._ends_when_answered and not self._slots:
            self._close()

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._out_bytes = 0
            if not self._transport.is_closing():
                self._transport.writelines(out)
