"""One of the two brokers: raw requests through kafka-python's codecs, comparable answers."""

from __future__ import annotations

import importlib
import socket
import struct
import time
import uuid
from collections.abc import Mapping
from typing import Any

_MODULES = {
    "AlterConfigs": "admin.configs",
    "ApiVersions": "metadata.api_versions",
    "CreatePartitions": "admin.topics",
    "CreateTopics": "admin.topics",
    "DeleteRecords": "admin.topics",
    "DeleteTopics": "admin.topics",
    "DescribeCluster": "admin.cluster",
    "DescribeConfigs": "admin.configs",
    "DescribeLogDirs": "admin.cluster",
    "DescribeProducers": "admin.transactions",
    "DescribeTopicPartitions": "admin.topics",
    "Fetch": "consumer.fetch",
    "FindCoordinator": "metadata.find_coordinator",
    "IncrementalAlterConfigs": "admin.configs",
    "InitProducerId": "producer.transaction",
    "ListOffsets": "consumer.offsets",
    "Metadata": "metadata.metadata",
    "OffsetForLeaderEpoch": "consumer.offsets",
    "Produce": "producer.produce",
}

# What may differ between two honest brokers: their words, their names, their clocks.
_LEFT_OUT = {
    "throttle_time_ms",
    "error_message",
    "batch_index_error_message",
    "cluster_id",
    "host",
    "port",
    "controller_id",
    "documentation",
    "last_timestamp",
    "total_bytes",
    "usable_bytes",
    "log_dir",
}
_NODES = {"leader_id", "node_id", "broker_id"}
_NODE_LISTS = {"replica_nodes", "isr_nodes"}


class Closed(Exception):
    """The broker closed the connection instead of answering."""


def message_class(api: str, kind: str) -> Any:
    module = importlib.import_module(f"kafka.protocol.{_MODULES[api]}")
    return getattr(module, f"{api}{kind}")


def build(container: Any, values: Mapping[str, Any], version: int) -> Any:
    """An instance of a kafka-python message class from nested dicts."""
    fields = {}
    for name, value in values.items():
        field = container.fields[name]
        if isinstance(value, list) and field.is_struct_array():
            value = [build(field.data_class, each, version) for each in value]
        elif isinstance(value, dict) and field.is_struct():
            value = build(field.data_class, value, version)
        fields[name] = value
    return container(version=version, **fields)


class Side:
    """A connection to one broker; opened again after the broker has closed it."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self._port = port
        self._connection: socket.socket | None = None
        self._correlation_id = 0
        self._topic_names: dict[uuid.UUID, str] = {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def raw(self, api: str, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """The decoded answer as it came."""
        request = build(message_class(api, "Request"), values, version)
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id="answers")
        frame = self.exchange(bytes(request.encode(header=True, framed=True)))
        response = message_class(api, "Response")
        return dict(response.decode(frame, version=version, header=True).to_dict())

    def ask(self, api: str, version: int, values: Mapping[str, Any]) -> Any:
        """The answer without what may differ; or "closed" or "no answer"."""
        try:
            return self._comparable(self.raw(api, version, values))
        except Closed:
            return "closed"
        except TimeoutError:
            self.close()
            return "no answer"

    def exchange(self, framed: bytes) -> bytes:
        """Send one framed request and return the payload of the response."""
        try:
            if self._connection is None:
                self._connection = socket.create_connection(("127.0.0.1", self._port), 4)
            self._connection.sendall(framed)
            (size,) = struct.unpack(">i", self._read(4))
            return self._read(size)
        except (ConnectionError, EOFError) as problem:
            self.close()
            raise Closed from problem

    def _read(self, size: int) -> bytes:
        assert self._connection is not None
        data = bytearray()
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> uuid.UUID:
        """A topic that is ready to be written to; its id is shown as its name in answers."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": n.replace("_", "."), "value": v} for n, v in configs.items()],
        }
        answer = self.raw("CreateTopics", 7, {"topics": [topic], "timeout_ms": 10_000})
        created = answer["topics"][0]
        assert created["error_code"] == 0, created
        topic_id = uuid.UUID(str(created["topic_id"]))
        self._topic_names[topic_id] = name
        wanted = [
            {"partition_index": p, "current_leader_epoch": -1, "timestamp": -1}
            for p in range(partitions)
        ]
        query = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": name, "partitions": wanted}],
        }
        for _ in range(200):
            found = self.raw("ListOffsets", 7, query)["topics"][0]["partitions"]
            if all(each["error_code"] == 0 for each in found):
                return topic_id
            time.sleep(0.05)
        raise AssertionError(f"{name} is not ready")

    def _comparable(self, value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {k: self._comparable(v, k) for k, v in value.items() if k not in _LEFT_OUT}
        if isinstance(value, list | tuple):
            if key in _NODE_LISTS:
                return ["node"] * len(value)
            # The order of topics in an answer follows Kafka's hash maps.
            return sorted((self._comparable(each) for each in value), key=repr)
        if key == "topic_id" and value is not None:
            found = uuid.UUID(str(value))
            return self._topic_names.get(found, "zero" if found.int == 0 else "some id")
        if key in _NODES and isinstance(value, int) and value >= 0:
            return "node"
        if key == "session_id" and value:
            return "session"
        if key == "producer_id" and value >= 0:
            return "producer id"
        if key == "log_append_time_ms" and value > 0:
            return "now"
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).hex()
        return value
