"""Requests for the fuzz tests: valid ones that reach far into the handlers, and damaged ones.

The fields of every message come from the schema tables, so an API that is added is attacked from
then on. Values are drawn so that they often name what exists: a topic, its id, a partition.
"""

import dataclasses
import struct
from functools import cache
from typing import Any

from crc32c import crc32c
from hypothesis import strategies as st
from victim import frame

from anabranch.handlers.registry import ROUTES
from anabranch.wire.api import Api
from anabranch.wire.header import write_request_header
from anabranch.wire.record_batch import Record, build_batch
from anabranch.wire.schema import FieldSpec, Primitive, fields_of

TOPICS = ("fuzz", "compacted", "stamped")
# Stands for the id of the first topic, which is known only when the broker runs.
TOPIC_ID = bytes(range(101, 117))
NOW_MS = 1_700_000_000_000

CASES: list[tuple[Api, int]] = [
    (route.api, version)
    for route in ROUTES.values()
    for version in range(route.versions.first, route.versions.last + 1)
]

_BITS = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16, "I": 32}
_NAMES = st.sampled_from([*TOPICS, *TOPICS, "new-1", "new-2", "", "..", "no such", "x" * 300, "é"])
_SMALL = st.sampled_from([0, 0, 1, 2, -1, -2, 3, 5])


# Record batches


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """One valid batch, perhaps of an idempotent producer, perhaps compressed."""
    count = draw(st.integers(1, 3))
    keys = draw(st.lists(st.none() | st.binary(max_size=4), min_size=count, max_size=count))
    values = draw(st.lists(st.none() | st.binary(max_size=20), min_size=count, max_size=count))
    is_idempotent = draw(st.booleans())
    batch = build_batch(
        [Record(i, NOW_MS + i, keys[i], values[i]) for i in range(count)],
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=draw(st.integers(0, 2)) if is_idempotent else -1,
        producer_epoch=draw(st.integers(-1, 2)) if is_idempotent else -1,
        base_sequence=draw(st.integers(-1, 6)) if is_idempotent else -1,
        codec=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])),
    )
    # The broker sets the base offset; what the client wrote there does not matter.
    return struct.pack(">q", draw(st.sampled_from([0, 0, 7, -1, 2**63 - 5]))) + batch[8:]


_HEADER_FORMATS = [
    (0, ">q"), (8, ">i"), (12, ">i"), (16, ">b"), (17, ">I"), (21, ">h"), (23, ">i"), (27, ">q"),
    (35, ">q"), (43, ">q"), (51, ">h"), (53, ">i"), (57, ">i"),
]  # fmt: skip


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytes:
    """A batch with a header field replaced, its CRC made right again or not, or bytes changed."""
    batch = bytearray(draw(batches()))
    for position, form in draw(st.lists(st.sampled_from(_HEADER_FORMATS), max_size=2)):
        struct.pack_into(form, batch, position, draw(_integers(form[1])))
    batch = bytearray(draw(mutations(bytes(batch)))) if draw(st.booleans()) else batch
    if draw(st.booleans()) and len(batch) > 21:
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


# Messages


def _integers(format: str) -> st.SearchStrategy[int]:
    bits = _BITS[format]
    low, high = (0, (1 << bits) - 1) if format in "HI" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return _SMALL.filter(lambda n: n >= low) | st.sampled_from([low, high]) | st.integers(low, high)


# What makes sense in a field, so that most requests get past the first check of their handler.
_SENSIBLE: dict[str, list[Any]] = {
    "acks": [-1, 1, 0],
    "current_leader_epoch": [-1],
    "fetch_offset": [0, 1, 2],
    "generation_id": [1, 0, -1],
    "generation_id_or_member_epoch": [1, -1],
    "group_id": ["group"],
    "group_instance_id": [None, None, "static"],
    "index": [0, 1],
    "isolation_level": [0, 1],
    "key": ["group"],
    "key_type": [0, 1],
    "leader_epoch": [-1, 0],
    "max_bytes": [1_000_000],
    "max_wait_ms": [0, 10, 500],
    "member_id": ["", "member"],
    "min_bytes": [0, 1, 1000],
    "name": [*TOPICS, "new-1", "new-2"],
    "offset": [0, 1, -1],
    "operation": [0, 1, 2, 3],
    "partition": [0, 1],
    "partition_index": [0, 1],
    "partition_max_bytes": [1_000_000],
    "partition_indexes": [0, 1],
    "protocol_type": ["consumer"],
    "rebalance_timeout_ms": [1000],
    "replica_id": [-1],
    "replication_factor": [1, -1],
    "resource_name": [*TOPICS, "0", ""],
    "resource_type": [2, 2, 4],
    "session_epoch": [-1, 0, 1],
    "session_id": [0],
    "session_timeout_ms": [10_000],
    "timestamp": [-1, -2, -3, NOW_MS],
    "topic": [*TOPICS],
    "transactional_id": [None],
}
_CONFIGS = [
    ("cleanup.policy", "compact"), ("retention.ms", "1000"), ("max.message.bytes", "100"),
    ("compression.type", "zstd"), ("message.timestamp.type", "LogAppendTime"),
    ("flush.messages", "1"), ("segment.bytes", "1048576"), ("min.insync.replicas", "x"),
]  # fmt: skip


def _sensible(field: FieldSpec, primitive: Primitive, version: int) -> st.SearchStrategy[Any]:
    """Mostly what makes sense, sometimes anything."""
    anything = _value(field, primitive)
    wanted = _SENSIBLE.get(field.name, [])
    if not (field.nullable_in(version) or field.default is None):
        wanted = [value for value in wanted if value is not None]
    if not wanted:
        return anything
    return st.integers(0, 7).flatmap(lambda n: anything if not n else st.sampled_from(wanted))


def _value(field: FieldSpec, primitive: Primitive) -> st.SearchStrategy[Any]:
    name = field.name
    if name in ("num_partitions", "count"):
        return _SMALL  # a large number is legal, and slow
    if name in ("client_software_name", "client_software_version"):
        return st.sampled_from(["fuzz", "1.0", "-bad-", ""])
    match primitive.name:
        case "bool":
            return st.booleans()
        case "uuid":
            return st.sampled_from([TOPIC_ID, TOPIC_ID, bytes(16), b"\xff" * 16])
        case "string":
            return _NAMES | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
        case "records":
            return batches() | batches() | damaged_batches()
        case "bytes":
            return st.binary(max_size=8)
        case "float64":
            return st.floats()
    assert primitive.format is not None
    return _integers(primitive.format)


@cache
def messages(cls: type[Any], version: int, flexible: bool) -> st.SearchStrategy[Any]:
    """Messages of one class that its version can carry."""
    values: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields_of(cls):
        if not field.exists_in(version, flexible=flexible):
            continue
        element = field.element
        value = (
            _sensible(field, element, version)
            if isinstance(element, Primitive)
            else messages(element, version, flexible)
        )
        if field.is_array:
            value = st.lists(value, max_size=2)
        if (field.nullable_in(version) or field.default is None) and field.name not in _SENSIBLE:
            value = st.none() | value | value
        values[field.name] = value
    built = st.builds(cls, **values)
    if {"name", "value"} <= set(values):  # a setting
        pairs = st.sampled_from(_CONFIGS).map(lambda pair: {"name": pair[0], "value": pair[1]})
        return built | st.builds(_with, built, pairs)
    return built


def _with(message: Any, facts: dict[str, Any]) -> Any:
    return dataclasses.replace(message, **facts)


def body_of(api: Api, version: int, message: Any) -> bytes:
    """Header and body of a request, without its size; the correlation id is set when it is sent."""
    head = write_request_header(api.key, version, 0, "fuzz", flexible=api.is_flexible(version))
    return head + b"".join(map(bytes, api.encode_request(version)(message)))


@st.composite
def valid_bodies(draw: st.DrawFn) -> bytes:
    api, version = draw(st.sampled_from(CASES))
    return body_of(api, version, draw(messages(api.request, version, api.is_flexible(version))))


# Damage


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """The same bytes with a few of them changed, removed, repeated or added."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        match draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat", "length"])):
            case "flip" if at < len(changed):
                changed[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if at < len(changed):
                changed[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case "cut":
                del changed[at : at + draw(st.integers(1, 8))]
            case "insert":
                changed[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "repeat":
                changed[at:at] = changed[at : at + 16]
            case "length" if at + 4 <= len(changed):
                struct.pack_into(">i", changed, at, draw(_integers("i")))
    return bytes(changed)


@st.composite
def damaged_bodies(draw: st.DrawFn) -> bytes:
    """A valid request damaged behind its api key and version, so that it gets that far."""
    body = draw(valid_bodies())
    return body[:4] + draw(mutations(body[4:]))


noise_bodies = st.builds(
    lambda key, version, rest: struct.pack(">hhih", key, version, 0, -1) + rest,
    st.sampled_from([*ROUTES, 4, 999, -1]),
    st.integers(-1, 20),
    st.binary(max_size=60),
)

bodies = valid_bodies() | damaged_bodies() | damaged_bodies() | noise_bodies
raw_bytes = st.binary(max_size=40)


def number(body: bytes, correlation_id: int) -> bytes:
    """A frame of a body with its correlation id in place; too short ones stay as they are."""
    if len(body) >= 8:
        body = body[:4] + struct.pack(">i", correlation_id) + body[8:]
    return frame(body)
