"""Metadata, topics, configs and the cluster: what is asked of both brokers."""

from __future__ import annotations

import struct
import uuid
from typing import Any

from data_cases import NOBODY
from side import Closed, Side


def metadata(side: Side) -> Any:
    topic_id = side.create_topic("metadata", 3)
    answers: dict[str, Any] = {}
    for version in range(14):
        for name in ("metadata", "not-there", "no spaces", "", "..", "x" * 250):
            request: dict[str, Any] = {"topics": [{"name": name}]}
            if version >= 4:
                request["allow_auto_topic_creation"] = False
            elif name == "not-there":
                continue
            answers[f"v{version} {name[:20]}"] = without_brokers(side, version, request)
        if version >= 1:
            request = {"topics": []}
            if version >= 4:
                request["allow_auto_topic_creation"] = False
            answers[f"v{version} none"] = without_brokers(side, version, request)
        if version >= 10:
            for topic in (
                {"topic_id": topic_id, "name": None},
                {"topic_id": NOBODY, "name": None},
                {"topic_id": topic_id, "name": "metadata"},
                {"topic_id": NOBODY, "name": "metadata"},
                {"topic_id": uuid.UUID(int=0), "name": ""},
                *([{"topic_id": uuid.UUID(int=0), "name": None}] if version < 12 else []),
            ):
                request = {"topics": [topic], "allow_auto_topic_creation": False}
                which = {topic_id: "known id", NOBODY: "other id"}.get(topic["topic_id"], "no id")
                answers[f"v{version} {topic['name']}, {which}"] = without_brokers(
                    side, version, request
                )
    request = {
        "topics": [{"name": "metadata"}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }
    answers["authorized"] = without_brokers(side, 12, request)
    twice = {"topics": [{"name": "metadata"}] * 2, "allow_auto_topic_creation": False}
    answers["twice"] = without_brokers(side, 12, twice)
    ids = [{"topic_id": topic_id, "name": None}, {"topic_id": NOBODY, "name": None}]
    twice = {"topics": ids * 2, "allow_auto_topic_creation": False}
    answers["ids twice"] = without_brokers(side, 12, twice)
    mixed = [{"topic_id": uuid.UUID(int=0), "name": "metadata"}, ids[0]]
    answers["v10, one by id"] = without_brokers(
        side, 10, {"topics": mixed, "allow_auto_topic_creation": False}
    )
    return answers


def without_brokers(side: Side, version: int, request: dict[str, Any]) -> Any:
    answer = side.ask("Metadata", version, request)
    if isinstance(answer, dict):
        answer["brokers"] = len(answer["brokers"])
    return answer


def new_topic(name: str, partitions: int = 1, factor: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [],
        "configs": [],
    } | changes


def create_topics(side: Side) -> Any:
    def create(version: int, *topics: dict[str, Any], **changes: Any) -> Any:
        request = {"topics": list(topics), "timeout_ms": 10_000, "validate_only": False} | changes
        answer = side.ask("CreateTopics", version, request)
        for topic in answer["topics"] if isinstance(answer, dict) else ():
            topic.pop("configs", None)
        return answer

    def config(name: str, value: str | None) -> dict[str, Any]:
        return new_topic("configured", configs=[{"name": name, "value": value}])

    answers = {f"v{v}": create(v, new_topic(f"create-v{v}", 2)) for v in range(2, 8)}
    odd = {
        "again": new_topic("create-v7"),
        "zero partitions": new_topic("odd-0", 0),
        "default partitions": new_topic("odd-1", -1, -1),
        "minus two partitions": new_topic("odd-2", -2),
        "factor 0": new_topic("odd-3", 1, 0),
        "factor 2": new_topic("odd-4", 1, 2),
        "bad name": new_topic("bad name"),
        "dots": new_topic(".."),
        "empty name": new_topic(""),
        "internal name": new_topic("__cluster_metadata"),
        "collision": new_topic("create.v7"),
        "unknown config": config("no.such", "1"),
        "bad value": config("retention.ms", "x"),
        "null value": config("retention.ms", None),
        "out of range": config("min.cleanable.dirty.ratio", "1.5"),
        "small segment": config("segment.bytes", "10"),
        "bad policy": config("cleanup.policy", "shred"),
        "codec alias": config("compression.type", "gz"),
        "tiered off": new_topic(
            "tiered-off", configs=[{"name": "remote.storage.enable", "value": "false"}]
        ),
        "tiered on": config("remote.storage.enable", "true"),
        "copy disabled": new_topic(
            "copy-disabled", configs=[{"name": "remote.log.copy.disable", "value": "true"}]
        ),
        "delete on disable": new_topic(
            "delete-on", configs=[{"name": "remote.log.delete.on.disable", "value": "true"}]
        ),
        "local retention": new_topic(
            "local",
            configs=[
                {"name": "local.retention.ms", "value": "1000"},
                {"name": "local.retention.bytes", "value": "-1"},
            ],
        ),
        "local retention too small": config("local.retention.bytes", "-3"),
        "format version": new_topic(
            "format", configs=[{"name": "message.format.version", "value": "3.0"}]
        ),
        "assignment gap": new_topic(
            "gap", -1, -1, assignments=[{"partition_index": 1, "broker_ids": [0]}]
        ),
        "assignment to nobody": new_topic(
            "nobody", -1, -1, assignments=[{"partition_index": 0, "broker_ids": [77]}]
        ),
        "assignment empty": new_topic(
            "empty", -1, -1, assignments=[{"partition_index": 0, "broker_ids": []}]
        ),
        "assignment and count": new_topic(
            "both", 1, 1, assignments=[{"partition_index": 0, "broker_ids": [0]}]
        ),
    }
    answers |= {name: create(7, topic) for name, topic in odd.items()}
    answers["twice in one request"] = create(7, new_topic("twice"), new_topic("twice"))
    answers["validate only"] = create(7, new_topic("only"), validate_only=True)
    answers["validate only, existing"] = create(7, new_topic("create-v7"), validate_only=True)
    answers["no topics"] = create(7)
    return answers


def delete_topics(side: Side) -> Any:
    topic_ids = {v: side.create_topic(f"delete-{v}") for v in range(1, 8)}
    answers: dict[str, Any] = {}
    for version in range(1, 6):
        request = {"topic_names": [f"delete-{version}", "not-there"], "timeout_ms": 5_000}
        answers[f"v{version}"] = side.ask("DeleteTopics", version, request)

    def delete(*topics: dict[str, Any]) -> Any:
        return side.ask("DeleteTopics", 6, {"topics": list(topics), "timeout_ms": 5_000})

    zero = uuid.UUID(int=0)
    answers["by name"] = delete({"name": "delete-6", "topic_id": zero})
    answers["by id"] = delete({"name": None, "topic_id": topic_ids[7]})
    answers["unknown id"] = delete({"name": None, "topic_id": NOBODY})
    answers["name and id"] = delete({"name": "delete-6", "topic_id": NOBODY})
    answers["neither"] = delete({"name": None, "topic_id": zero})
    answers["no topics"] = delete()
    return answers


def create_partitions(side: Side) -> Any:
    side.create_topic("partitions", 2)

    def grow(version: int, count: int, name: str = "partitions", **changes: Any) -> Any:
        topic = {"name": name, "count": count, "assignments": changes.pop("assignments", None)}
        request = {"topics": [topic], "timeout_ms": 5_000, "validate_only": False} | changes
        return side.ask("CreatePartitions", version, request)

    answers = {f"v{v}": grow(v, 3 + v) for v in range(4)}
    return answers | {
        "same": grow(3, 6),
        "fewer": grow(3, 1),
        "zero": grow(3, 0),
        "negative": grow(3, -1),
        "unknown": grow(3, 3, "not-there"),
        "validate only": grow(3, 9, validate_only=True),
        "to nobody": grow(3, 7, assignments=[{"broker_ids": [77]}]),
        "too few assignments": grow(3, 9, assignments=[{"broker_ids": [77]}]),
    }


def describe_configs(side: Side) -> Any:
    side.create_topic("configs", retention_ms="1234567")

    def describe(version: int, kind: int, name: str, keys: list[str] | None) -> Any:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        request: dict[str, Any] = {"resources": [resource], "include_synonyms": True}
        if version >= 3:
            request["include_documentation"] = False
        return side.ask("DescribeConfigs", version, request)

    keys = ["retention.ms", "cleanup.policy", "segment.bytes", "no.such.key"]
    answers = {f"v{v}": describe(v, 2, "configs", keys) for v in range(1, 5)}
    return answers | {
        "unknown topic": describe(4, 2, "not-there", None),
        "bad name": describe(4, 2, "no spaces", None),
        "empty name": describe(4, 2, "", None),
        "no keys": describe(4, 2, "configs", []),
        "broker that is not": describe(4, 4, "77", ["num.partitions"]),
        "broker by name": describe(4, 4, "abc", ["num.partitions"]),
        "type 0": describe(4, 0, "x", None),
        "type 1": describe(4, 1, "x", None),
        "type 99": describe(4, 99, "x", None),
    }


def alter_configs(side: Side) -> Any:
    side.create_topic("alter", retention_ms="1234567")

    def alter(version: int, *configs: tuple[str, int, str | None], name: str = "alter") -> Any:
        changes = [{"name": n, "config_operation": o, "value": v} for n, o, v in configs]
        resource = {"resource_type": 2, "resource_name": name, "configs": changes}
        request = {"resources": [resource], "validate_only": False}
        return side.ask("IncrementalAlterConfigs", version, request)

    answers = {
        "set v0": alter(0, ("flush.ms", 0, "10")),
        "set v1": alter(1, ("flush.ms", 0, "11"), ("retention.ms", 1, None)),
        "same key twice": alter(1, ("flush.ms", 0, "1"), ("flush.ms", 0, "2")),
        "null value": alter(1, ("flush.ms", 0, None)),
        "unknown key": alter(1, ("no.such", 0, "1")),
        "delete unknown key": alter(1, ("no.such", 1, None)),
        "append to a number": alter(1, ("flush.ms", 2, "1")),
        "operation 9": alter(1, ("flush.ms", 9, "1")),
        "append": alter(1, ("cleanup.policy", 2, "compact")),
        "subtract": alter(1, ("cleanup.policy", 3, "delete")),
        "nothing": alter(1),
        "unknown topic": alter(1, ("flush.ms", 0, "1"), name="not-there"),
        "empty name": alter(1, ("flush.ms", 0, "1"), name=""),
    }

    def replace(version: int, *configs: tuple[str, str | None], name: str = "alter") -> Any:
        changes = [{"name": n, "value": v} for n, v in configs]
        resource = {"resource_type": 2, "resource_name": name, "configs": changes}
        request = {"resources": [resource], "validate_only": False}
        return side.ask("AlterConfigs", version, request)

    answers |= {f"replace v{v}": replace(v, ("flush.ms", str(v + 5))) for v in range(3)}
    answers["replace with unknown"] = replace(2, ("no.such", "1"))
    answers["replace with null"] = replace(2, ("flush.ms", None))
    answers["replace of unknown topic"] = replace(2, ("flush.ms", "1"), name="not-there")
    resource = {
        "resource_type": 2,
        "resource_name": "alter",
        "configuration_keys": ["flush.ms", "cleanup.policy", "retention.ms"],
    }
    request = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    answers["afterwards"] = side.ask("DescribeConfigs", 4, request)
    return answers


def describe_cluster(side: Side) -> Any:
    answers = {}
    for version in range(3):
        request: dict[str, Any] = {"include_cluster_authorized_operations": version == 1}
        if version >= 1:
            request["endpoint_type"] = 1
        if version >= 2:
            request["include_fenced_brokers"] = False
        answers[f"v{version}"] = side.ask("DescribeCluster", version, request)
    wrong = {"include_cluster_authorized_operations": False, "endpoint_type": 9}
    answers["endpoint 9"] = side.ask("DescribeCluster", 1, wrong)
    return answers


def describe_log_dirs(side: Side) -> Any:
    side.create_topic("dirs", 2)
    answers = {}
    for version in range(1, 5):
        topics = [
            {"topic": "dirs", "partitions": [0, 9]},
            {"topic": "not-there", "partitions": [0]},
        ]
        answers[f"v{version}"] = side.ask("DescribeLogDirs", version, {"topics": topics})
    answers["no topics"] = side.ask("DescribeLogDirs", 4, {"topics": []})
    return answers


def describe_topic_partitions(side: Side) -> Any:
    for name in ("dtp-a", "dtp-b"):
        side.create_topic(name, 3)

    def describe(*names: str, limit: int = 2000, cursor: dict[str, Any] | None = None) -> Any:
        request = {
            "topics": [{"name": name} for name in names],
            "response_partition_limit": limit,
            "cursor": cursor,
        }
        return side.ask("DescribeTopicPartitions", 0, request)

    return {
        "two": describe("dtp-b", "dtp-a"),
        "unknown": describe("not-there", "dtp-a"),
        "bad name": describe("no spaces"),
        "limit 2": describe("dtp-a", "dtp-b", limit=2),
        "limit 0": describe("dtp-a", limit=0),
        "limit -1": describe("dtp-a", limit=-1),
        "cursor": describe("dtp-a", "dtp-b", cursor={"topic_name": "dtp-a", "partition_index": 1}),
        "cursor beyond": describe("dtp-a", cursor={"topic_name": "dtp-a", "partition_index": 9}),
        "cursor negative": describe("dtp-a", cursor={"topic_name": "dtp-a", "partition_index": -1}),
        "cursor elsewhere": describe("dtp-a", cursor={"topic_name": "dtp-0", "partition_index": 0}),
    }


def api_versions(side: Side) -> Any:
    answers: dict[str, Any] = {}
    for version in range(5):
        request = {}
        if version >= 3:
            request = {"client_software_name": "test", "client_software_version": "1.0"}
        answer = side.raw("ApiVersions", version, request)
        answers[f"v{version}"] = answer["error_code"]
    for name in ("", "no spaces", "-x", "x" * 300):
        answers[f"name {name[:12]!r}"] = api_versions_error(side, name)
    # Version 99 is answered in version 0 with the error and the range of ApiVersions alone.
    header = struct.pack(">hhih5sb", 18, 99, 7, 5, b"probe", 0)
    frame = side.exchange(struct.pack(">i", len(header)) + header)
    correlation_id, error_code, count = struct.unpack_from(">ihi", frame)
    keys = [struct.unpack_from(">h", frame, 10 + 6 * number)[0] for number in range(count)]
    answers["v99"] = (correlation_id, error_code, keys)
    return answers


def api_versions_error(side: Side, software_name: str) -> int:
    """The error code of ApiVersions v3 alone, which stands behind the correlation id."""
    name = software_name.encode()
    length = len(name) + 1
    size = bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])
    header = struct.pack(">hhih5sb", 18, 3, 7, 5, b"probe", 0)
    payload = header + size + name + b"\x041.0\0"
    frame = side.exchange(struct.pack(">i", len(payload)) + payload)
    return int(struct.unpack_from(">h", frame, 4)[0])


def nonsense(side: Side) -> Any:
    """What is no request at all ends the connection."""
    answers = {}
    for name, payload in {
        "unknown api": struct.pack(">hhih", 999, 0, 1, -1),
        "version beyond": struct.pack(">hhih", 3, 99, 1, -1),
        "negative version": struct.pack(">hhih", 3, -1, 1, -1),
        "truncated body": struct.pack(">hhih", 3, 1, 1, -1),
        "random": bytes(range(40)),
    }.items():
        try:
            answers[name] = side.exchange(struct.pack(">i", len(payload)) + payload).hex()
        except Closed:
            answers[name] = "closed"
    return answers


ADMIN_CASES = {
    "Metadata v0-13": metadata,
    "CreateTopics v2-7": create_topics,
    "DeleteTopics v1-6": delete_topics,
    "CreatePartitions v0-3": create_partitions,
    "DescribeConfigs v1-4": describe_configs,
    "IncrementalAlterConfigs and AlterConfigs": alter_configs,
    "DescribeCluster v0-2": describe_cluster,
    "DescribeLogDirs v1-4": describe_log_dirs,
    "DescribeTopicPartitions": describe_topic_partitions,
    "ApiVersions v0-4": api_versions,
    "no request at all": nonsense,
}
