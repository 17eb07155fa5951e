"""What classic consumers tell each other through JoinGroup and SyncGroup, as bytes.

To the classic protocol these bytes are opaque. A consumer group that has classic members in it
(KIP-848's online upgrade) speaks for the other side: it reads what such a member subscribed to and
owns, and writes the assignment that a leader would have sent.

    int16 version, then (lengths int16 for strings, int32 for the rest; -1 is null)
    subscription   topics, user data?, owned partitions (1+), generation (2+), rack? (3+)
    assignment     assigned partitions, user data?

Owned partitions came with cooperative rebalancing (KIP-429), the generation with KIP-792, the rack
with KIP-881; an assignment is the same in all versions. A version that is not known yet is read as
the latest that is, for fields are only ever added at the end, and what follows the known fields is
passed over; both as Kafka does it.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LATEST_VERSION = 3
NO_GENERATION = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

TopicPartitions = tuple[str, tuple[int, ...]]


class ConsumerProtocolError(ValueError):
    """Bytes that are not what a consumer sends, or values that have no place in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member brings to JoinGroup."""

    version: int = LATEST_VERSION
    topics: tuple[str, ...] = ()
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartitions, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a member gets from SyncGroup."""

    version: int = LATEST_VERSION
    partitions: tuple[TopicPartitions, ...] = ()
    user_data: bytes | None = None


def decode_subscription(data: bytes) -> Subscription:
    """Read a subscription; its version is the one it was read as, at most LATEST_VERSION."""
    try:
        version, pos = _read_version(data)
        topics, pos = _read_strings(data, pos)
        user_data, pos = _read_bytes(data, pos)
        owned_partitions: tuple[TopicPartitions, ...] = ()
        generation_id, rack_id = NO_GENERATION, None
        if version >= 1:
            owned_partitions, pos = _read_topic_partitions(data, pos)
        if version >= 2:
            generation_id, pos = _read_int32(data, pos)
        if version >= 3:
            rack_id, pos = _read_nullable_string(data, pos)
    except (struct.error, UnicodeDecodeError) as error:
        raise ConsumerProtocolError(f"not a subscription of a consumer: {error}") from None
    return Subscription(
        version=version,
        topics=topics,
        user_data=user_data,
        owned_partitions=owned_partitions,
        generation_id=generation_id,
        rack_id=rack_id,
    )


def decode_assignment(data: bytes) -> Assignment:
    """Read an assignment; its version is the one it was read as, at most LATEST_VERSION."""
    try:
        version, pos = _read_version(data)
        partitions, pos = _read_topic_partitions(data, pos)
        user_data, pos = _read_bytes(data, pos)
    except (struct.error, UnicodeDecodeError) as error:
        raise ConsumerProtocolError(f"not an assignment of a consumer: {error}") from None
    return Assignment(version=version, partitions=partitions, user_data=user_data)


def encode_subscription(subscription: Subscription) -> bytes:
    """Write a subscription in its version, without what that version has no place for."""
    version = subscription.version
    try:
        parts = [
            _version(version),
            _INT32.pack(len(subscription.topics)),
            *(_string(topic) for topic in subscription.topics),
            _bytes(subscription.user_data),
        ]
        if version >= 1:
            parts.append(_topic_partitions(subscription.owned_partitions))
        if version >= 2:
            parts.append(_INT32.pack(subscription.generation_id))
        if version >= 3:
            rack_id = subscription.rack_id
            parts.append(_INT16.pack(-1) if rack_id is None else _string(rack_id))
    except (struct.error, UnicodeEncodeError) as error:
        raise ConsumerProtocolError(f"the subscription cannot be written: {error}") from None
    return b"".join(parts)


def encode_assignment(
    version: int,
    partitions: Iterable[tuple[str, Sequence[int]]],
    user_data: bytes | None = None,
) -> bytes:
    """Write an assignment of (topic, partitions) in a version."""
    try:
        return _version(version) + _topic_partitions(partitions) + _bytes(user_data)
    except (struct.error, UnicodeEncodeError) as error:
        raise ConsumerProtocolError(f"the assignment cannot be written: {error}") from None


# Reading: (data, position) -> (value, position) ---------------------------------------------------


def _read_version(data: bytes) -> tuple[int, int]:
    (version,) = _INT16.unpack_from(data)
    if version < 0:
        raise ConsumerProtocolError(f"there is no version {version} of the consumer protocol")
    return min(version, LATEST_VERSION), _INT16.size


def _read_int32(data: bytes, pos: int) -> tuple[int, int]:
    (value,) = _INT32.unpack_from(data, pos)
    return value, pos + _INT32.size


def _read_count(data: bytes, pos: int) -> tuple[int, int]:
    """A count that promises too much is found out when the data ends, before it costs anything."""
    count, pos = _read_int32(data, pos)
    if count < 0:
        raise ConsumerProtocolError(f"a list cannot have {count} elements")
    return count, pos


def _slice(data: bytes, pos: int, length: int) -> bytes:
    if length < 0 or length > len(data) - pos:
        raise ConsumerProtocolError(f"the length {length} does not fit in {len(data) - pos} bytes")
    return data[pos : pos + length]


def _read_nullable_string(data: bytes, pos: int) -> tuple[str | None, int]:
    (length,) = _INT16.unpack_from(data, pos)
    pos += _INT16.size
    if length == -1:
        return None, pos
    return _slice(data, pos, length).decode(), pos + length


def _read_string(data: bytes, pos: int) -> tuple[str, int]:
    text, pos = _read_nullable_string(data, pos)
    if text is None:
        raise ConsumerProtocolError("a topic has no name")
    return text, pos


def _read_strings(data: bytes, pos: int) -> tuple[tuple[str, ...], int]:
    count, pos = _read_count(data, pos)
    texts = []
    for _ in range(count):
        text, pos = _read_string(data, pos)
        texts.append(text)
    return tuple(texts), pos


def _read_bytes(data: bytes, pos: int) -> tuple[bytes | None, int]:
    length, pos = _read_int32(data, pos)
    if length == -1:
        return None, pos
    return _slice(data, pos, length), pos + length


def _read_topic_partitions(data: bytes, pos: int) -> tuple[tuple[TopicPartitions, ...], int]:
    count, pos = _read_count(data, pos)
    topics = []
    for _ in range(count):
        topic, pos = _read_string(data, pos)
        size, pos = _read_count(data, pos)
        topics.append((topic, struct.unpack_from(f">{size}i", data, pos)))
        pos += size * _INT32.size
    return tuple(topics), pos


# Writing ------------------------------------------------------------------------------------------


def _version(version: int) -> bytes:
    if not 0 <= version <= LATEST_VERSION:
        raise ConsumerProtocolError(f"there is no version {version} of the consumer protocol")
    return _INT16.pack(version)


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _bytes(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data


def _topic_partitions(topics: Iterable[tuple[str, Sequence[int]]]) -> bytes:
    parts = [
        _string(topic) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
        for topic, partitions in topics
    ]
    return _INT32.pack(len(parts)) + b"".join(parts)
