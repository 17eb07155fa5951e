"""Which topics a consumer subscribed to, read from the metadata of its JoinGroup.

The metadata is opaque to the protocol and is handed on byte for byte. It is looked into only to
protect committed offsets of topics that are still in use, and only for the `consumer` protocol
type; whatever cannot be read counts as unknown, which protects everything.
"""

import struct

from anabranch.coordinator.group.classic_state import CONSUMER_PROTOCOL_TYPE, ClassicGroup

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a ConsumerProtocolSubscription of any version; None when it is not one."""
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        topics = set()
        pos = _VERSION_AND_COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, pos)
            pos += _LENGTH.size
            if length < 0 or pos + length > len(metadata):
                return None
            topics.add(metadata[pos : pos + length].decode())
            pos += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def group_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that any member is subscribed to; None when that cannot be known."""
    if not group.members:
        return frozenset()
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        of_member = subscribed_topics(member.metadata(group.protocol_name))
        if of_member is None:
            return None
        topics |= of_member
    return frozenset(topics)
