"""Request and response headers, and the size prefix around them.

Request header v1 is (api key, api version, correlation id, client id); v2, used by flexible
versions, adds a tag section. The client id keeps its old, non-compact form even there, so that a
broker can read it before it knows whether the version is flexible (KIP-482). Response header v0 is
the correlation id; v1 adds a tag section.
"""

import struct

from anabranch.wire.primitives import DecodeError, read_uvarint, skip_tags

_START_AND_CLIENT_ID_LENGTH = struct.Struct(">hhih")
_SIZE_AND_CORRELATION_ID = struct.Struct(">ii")
_SIZE_CORRELATION_ID_AND_NO_TAGS = struct.Struct(">iix")

FIXED_SIZE = _START_AND_CLIENT_ID_LENGTH.size


def read_request_header(frame: memoryview) -> tuple[int, int, int, bytes | None, int]:
    """Read (api key, version, correlation id, raw client id, position after them)."""
    try:
        key, version, correlation_id, length = _START_AND_CLIENT_ID_LENGTH.unpack_from(frame)
    except struct.error:
        raise DecodeError("the request is shorter than a request header") from None
    if length < 0:
        return key, version, correlation_id, None, FIXED_SIZE
    stop = FIXED_SIZE + length
    if stop > len(frame):
        raise DecodeError("the client id runs past the end of the request")
    return key, version, correlation_id, bytes(frame[FIXED_SIZE:stop]), stop


def skip_header_tags(frame: memoryview, pos: int) -> int:
    """Pass over the tag section of a flexible request header."""
    try:
        count, pos = read_uvarint(frame, pos)
        return skip_tags(frame, pos, count) if count else pos
    except IndexError:
        raise DecodeError("the request ends inside its header") from None


def write_request_header(
    key: int, version: int, correlation_id: int, client_id: str, *, flexible: bool
) -> bytes:
    raw = client_id.encode()
    tags = b"\0" if flexible else b""
    return _START_AND_CLIENT_ID_LENGTH.pack(key, version, correlation_id, len(raw)) + raw + tags


def frame_response(
    parts: list[bytes | memoryview], correlation_id: int, *, tagged: bool
) -> list[bytes | memoryview]:
    """Put size and response header before a body of small parts."""
    body = b"".join(parts)
    head = _SIZE_CORRELATION_ID_AND_NO_TAGS if tagged else _SIZE_AND_CORRELATION_ID
    return [head.pack(len(body) + head.size - 4, correlation_id) + body]


def frame_response_with_records(
    parts: list[bytes | memoryview], correlation_id: int, *, tagged: bool
) -> list[bytes | memoryview]:
    """The same for a body with record batches, which are views of mapped segments.

    They must not be copied; everything between two of them becomes one byte string, so that the
    socket sees few buffers.
    """
    head = _SIZE_CORRELATION_ID_AND_NO_TAGS if tagged else _SIZE_AND_CORRELATION_ID
    size = sum(map(len, parts)) + head.size - 4
    out: list[bytes | memoryview] = []
    run: list[bytes | memoryview] = [head.pack(size, correlation_id)]
    for part in parts:
        if type(part) is memoryview and len(part) > 512:
            out.append(b"".join(run))
            out.append(part)
            run = []
        else:
            run.append(part)
    if run:
        out.append(b"".join(run))
    return out
