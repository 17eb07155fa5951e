"""What simulated members say to each other: subscriptions, assignments, and two assignors.

Layouts are those of Kafka's ConsumerProtocol (subscription version 3, assignment version 1) with
one topic. Partitions are numbers. `assign_range` is what an eager group does: everybody has given
up everything, the leader deals all partitions anew. `assign_cooperative` is the first half of
KIP-429's protocol: whoever has too much keeps less, and what it gives up stays with nobody until
it has said so by joining again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

TOPIC = "rebalance"

_RAW_TOPIC = TOPIC.encode()
_TOPIC_AND_COUNT = struct.Struct(f">ih{len(_RAW_TOPIC)}si")
_SUBSCRIPTION_START = struct.Struct(f">hih{len(_RAW_TOPIC)}si")
_NO_USER_DATA = struct.pack(">i", -1)
_ASSIGNMENT_VERSION = struct.pack(">h", 1)
_NO_RACK = struct.pack(">h", -1)

Assignment = dict[str, tuple[int, ...]]


class RebalanceError(Exception):
    """A group did not do what it should; the message says what."""


def write_subscription(owned: Sequence[int], generation_id: int) -> bytes:
    """The metadata of a JoinGroup: the topic, and what the member still owns."""
    start = _SUBSCRIPTION_START.pack(3, 1, len(_RAW_TOPIC), _RAW_TOPIC, -1)
    return start + _write_partitions(owned) + struct.pack(">i", generation_id) + _NO_RACK


def read_owned(subscription: bytes) -> tuple[int, ...]:
    return _read_partitions(subscription, _SUBSCRIPTION_START.size)


def write_assignment(partitions: Sequence[int]) -> bytes:
    return _ASSIGNMENT_VERSION + _write_partitions(partitions) + _NO_USER_DATA


def read_assignment(assignment: bytes) -> tuple[int, ...]:
    return _read_partitions(assignment, 2)


def _write_partitions(partitions: Sequence[int]) -> bytes:
    if not partitions:
        return struct.pack(">i", 0)
    start = _TOPIC_AND_COUNT.pack(1, len(_RAW_TOPIC), _RAW_TOPIC, len(partitions))
    return start + struct.pack(f">{len(partitions)}i", *partitions)


def _read_partitions(raw: bytes, position: int) -> tuple[int, ...]:
    (topics,) = struct.unpack_from(">i", raw, position)
    if topics == 0:
        return ()
    *_, count = _TOPIC_AND_COUNT.unpack_from(raw, position)
    return struct.unpack_from(f">{count}i", raw, position + _TOPIC_AND_COUNT.size)


def assign_range(owned: Mapping[str, Sequence[int]], partition_count: int) -> Assignment:
    """Contiguous shares in the order of the member ids; what anybody owned does not matter."""
    least, larger = divmod(partition_count, len(owned))
    assignment: Assignment = {}
    start = 0
    for place, member_id in enumerate(sorted(owned)):
        stop = start + least + (place < larger)
        assignment[member_id] = tuple(range(start, stop))
        start = stop
    return assignment


def assign_cooperative(owned: Mapping[str, Sequence[int]], partition_count: int) -> Assignment:
    """Everybody keeps what fits into a fair share; only what nobody owns is handed out."""
    least, larger = divmod(partition_count, len(owned))
    # Those that own most keep the larger shares, so that as little as possible moves.
    by_size = sorted(owned, key=lambda member_id: (-len(owned[member_id]), member_id))
    share = {member_id: least + (place < larger) for place, member_id in enumerate(by_size)}
    kept = {member_id: list(owned[member_id][: share[member_id]]) for member_id in by_size}
    claimed = {partition for partitions in owned.values() for partition in partitions}
    free = iter([partition for partition in range(partition_count) if partition not in claimed])
    for member_id in by_size:
        for _ in range(share[member_id] - len(kept[member_id])):
            partition = next(free, None)
            if partition is not None:
                kept[member_id].append(partition)
    return {member_id: tuple(partitions) for member_id, partitions in kept.items()}
