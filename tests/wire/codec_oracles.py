"""Other people's codecs, to hold ours against: kio first, kafka-python for what kio has dropped.

An oracle takes one of our messages and says what its bytes must be. `ORACLES` names the one that
covers each version; a version that is served without an oracle fails a test.
"""

import dataclasses
import datetime
import importlib
import io
import struct
import typing
import uuid
from collections.abc import Callable
from typing import Any

import kafka.protocol.old.admin
import kafka.protocol.old.commit
import kafka.protocol.old.produce
import kio.schema.errors
import kio.serial
from kio.index import load_request_schema, load_response_schema

from anabranch.wire.messages.api_versions import API_VERSIONS
from anabranch.wire.messages.delete_groups import DELETE_GROUPS
from anabranch.wire.messages.txn_offset_commit import TXN_OFFSET_COMMIT
from anabranch.wire.schema import Primitive, Versions, fields_of, parse_versions

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)

# (API key) -> versions, by oracle.
KIO = {
    0: "3-13",
    1: "4-18",
    2: "1-11",
    3: "0-13",
    8: "2-10",
    9: "1-10",
    10: "0-6",
    11: "0-9",
    12: "0-4",
    13: "0-5",
    14: "0-5",
    15: "0-6",
    16: "0-5",
    18: "0-4",
    19: "2-7",
    20: "1-6",
    21: "0-2",
    22: "0-6",
    23: "2-4",
    24: "0-5",
    25: "0-4",
    26: "0-5",
    27: "1-2",
    28: "0-5",
    32: "1-4",
    33: "0-2",
    35: "1-5",
    37: "0-3",
    42: "0-2",
    44: "0-1",
    47: "0",
    60: "0-2",
    61: "0",
    65: "0",
    66: "0-2",
    68: "0-1",
    69: "0-1",
    74: "0-1",
    75: "0",
}
KAFKA_PYTHON = {0: "0-2", 8: "0-1", 9: "0", 19: "0-1"}
# No library knows these yet. ApiVersions v5 is v4 with two more plain fields in the request,
# DeleteGroups v3 is v2 with one more in each result, TxnOffsetCommit v6 has ids in place of names.
BY_HAND = {18: "5", 28: "6", 42: "3"}

Oracle = Callable[[int, int, str, Any], bytes]


def oracle_for(key: int, version: int) -> tuple[str, Oracle]:
    """The name and the encode function of the oracle that covers a version."""
    for name, covered, encode in (
        ("kio", KIO, encode_by_kio),
        ("kafka-python", KAFKA_PYTHON, encode_by_kafka_python),
        ("by hand", BY_HAND, encode_by_hand),
    ):
        if key in covered and version in parse_versions(covered[key]):
            return name, encode
    raise LookupError(f"no oracle covers API {key} version {version}")


def covered_versions(key: int) -> list[int]:
    """All versions any oracle covers."""
    ranges: list[Versions] = [
        parse_versions(covered[key]) for covered in (KIO, KAFKA_PYTHON, BY_HAND) if key in covered
    ]
    return sorted(v for r in ranges for v in range(r.first, r.last + 1))


# kio ----------------------------------------------------------------------------------------


def kio_class(key: int, version: int, kind: str) -> type[Any]:
    load = load_request_schema if kind == "request" else load_response_schema
    loaded: type[Any] = load(key, version)
    return loaded


def encode_by_kio(key: int, version: int, kind: str, message: Any) -> bytes:
    cls = kio_class(key, version, kind)
    buffer = io.BytesIO()
    kio.serial.entity_writer(cls)(buffer, to_kio(message, cls))
    return buffer.getvalue()


def decode_by_kio(key: int, version: int, kind: str, data: bytes) -> tuple[Any, int]:
    """kio's entity and the bytes it read."""
    entity, size = kio.serial.entity_reader(kio_class(key, version, kind))(data, 0)
    return entity, size


def to_kio(message: Any, cls: type[Any]) -> Any:
    """Our message as kio's class, field by field, matched by name."""
    ours = {field.name: field for field in fields_of(type(message))}
    hints = _hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        # kio drops the unit of what it holds as a timedelta or a datetime.
        name = field.name if field.name in ours else f"{field.name}_ms"
        spec, value = ours[name], getattr(message, name)
        if value is None and spec.placement.nullable == parse_versions("none"):
            continue  # left out: kio's default stands for it
        if isinstance(spec.element, Primitive):
            kafka_type = field.metadata["kafka_type"]
            values[field.name] = (
                tuple(_to_kio_value(kafka_type, item) for item in value)
                if spec.is_array and value is not None
                else _to_kio_value(kafka_type, value)
            )
        elif value is None:
            values[field.name] = None
        else:
            inner = _entity_class(hints[field.name])
            values[field.name] = (
                tuple(to_kio(item, inner) for item in value)
                if spec.is_array
                else to_kio(value, inner)
            )
    return cls(**values)


def inner_classes(ours: type[Any], theirs: type[Any]) -> list[tuple[type[Any], type[Any]]]:
    """The structs inside a struct, ours beside kio's."""
    hints = _hints(theirs)
    specs = {field.name: field.element for field in fields_of(ours)}
    return [
        (element, _entity_class(hints[field.name]))
        for field in dataclasses.fields(theirs)
        if (element := specs.get(field.name)) and not isinstance(element, Primitive)
    ]


def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls, vars(importlib.import_module(cls.__module__)))


def _entity_class(hint: Any) -> type[Any]:
    """The dataclass inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return hint
    return next(_entity_class(arg) for arg in typing.get_args(hint) if arg is not type(None))


def _to_kio_value(kafka_type: str, value: Any) -> Any:
    if value is None:
        return None
    match kafka_type:
        case "error_code":
            return kio.schema.errors.ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else EPOCH + datetime.timedelta(milliseconds=value)
        case "uuid":
            return None if value == bytes(16) else uuid.UUID(bytes=value)
        case _:
            return value


# kafka-python -------------------------------------------------------------------------------


def encode_by_kafka_python(key: int, version: int, kind: str, message: Any) -> bytes:
    module, name = {
        0: (kafka.protocol.old.produce, "Produce"),
        8: (kafka.protocol.old.commit, "OffsetCommit"),
        9: (kafka.protocol.old.commit, "OffsetFetch"),
        19: (kafka.protocol.old.admin, "CreateTopics"),
    }[key]
    schema = getattr(module, f"{name}{kind.capitalize()}_v{version}").SCHEMA
    encoded: bytes = schema.encode(_to_kafka_python(message, schema))
    return encoded


def _to_kafka_python(message: Any, schema: Any) -> list[Any]:
    values = []
    for name, kind in zip(schema.names, schema.fields, strict=True):
        value = getattr(message, name)
        inner = getattr(kind, "array_of", None)
        if hasattr(inner, "names"):
            value = [_to_kafka_python(item, inner) for item in value]
        values.append(value)
    return values


# By hand ------------------------------------------------------------------------------------


def encode_by_hand(key: int, version: int, kind: str, message: Any) -> bytes:
    """The bytes of a version that only the protocol's own description covers."""
    by_hand = {
        (API_VERSIONS.key, 5): _api_versions_5,
        (DELETE_GROUPS.key, 3): _delete_groups_3,
        (TXN_OFFSET_COMMIT.key, 6): _txn_offset_commit_6,
    }
    return by_hand[key, version](kind, message)


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    data = text.encode()
    length = len(data) + 1
    prefix = bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])
    return prefix + data


def _api_versions_5(kind: str, message: Any) -> bytes:
    """ApiVersions v5 from v4's bytes: KIP-1242 added the request's cluster and node ids."""
    base = encode_by_kio(API_VERSIONS.key, 4, kind, message)
    if kind == "response":
        return base
    node_id = message.node_id.to_bytes(4, "big", signed=True)
    return base[:-1] + _compact_string(message.cluster_id) + node_id + base[-1:]


def _delete_groups_3(kind: str, message: Any) -> bytes:
    """DeleteGroups v3: KIP-1331 added the message at the end of each result."""
    if kind == "request":
        return encode_by_kio(DELETE_GROUPS.key, 2, kind, message)
    results = b"".join(
        _compact_string(result.group_id)
        + result.error_code.to_bytes(2, "big", signed=True)
        + _compact_string(result.error_message)
        + b"\x00"
        for result in message.results
    )
    throttle_time_ms = message.throttle_time_ms.to_bytes(4, "big", signed=True)
    return throttle_time_ms + bytes([len(message.results) + 1]) + results + b"\x00"


def _txn_offset_commit_6(kind: str, message: Any) -> bytes:
    """TxnOffsetCommit v6: KIP-1319 put the id of a topic in the place of its name."""
    topics = b"".join(
        topic.topic_id
        + bytes([len(topic.partitions) + 1])
        + b"".join(_txn_offset_commit_partition(kind, one) + b"\x00" for one in topic.partitions)
        + b"\x00"
        for topic in message.topics
    )
    if kind == "response":
        head = struct.pack(">i", message.throttle_time_ms)
    else:
        head = (
            _compact_string(message.transactional_id)
            + _compact_string(message.group_id)
            + struct.pack(
                ">qhi", message.producer_id, message.producer_epoch, message.generation_id
            )
            + _compact_string(message.member_id)
            + _compact_string(message.group_instance_id)
        )
    return head + bytes([len(message.topics) + 1]) + topics + b"\x00"


def _txn_offset_commit_partition(kind: str, partition: Any) -> bytes:
    if kind == "response":
        return struct.pack(">ih", partition.partition_index, partition.error_code)
    offset, epoch = partition.committed_offset, partition.committed_leader_epoch
    packed = struct.pack(">iqi", partition.partition_index, offset, epoch)
    return packed + _compact_string(partition.committed_metadata)
