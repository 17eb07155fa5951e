"""Produce, Fetch and offsets: what is asked of both brokers."""

from __future__ import annotations

import gzip
import time
import uuid
from typing import Any

from batches import NOW_MS, ZSTD_RECORD, batch, record
from side import Side

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 18)
NOBODY = uuid.UUID("00000000-0000-4000-8000-00000000beef")


def produce(
    side: Side, version: int, topic: Any, records: bytes | None, *, acks: int = -1, index: int = 0
) -> Any:
    key = "topic_id" if version >= 13 else "name"
    data = {key: topic, "partition_data": [{"index": index, "records": records}]}
    return side.ask("Produce", version, {"acks": acks, "timeout_ms": 5_000, "topic_data": [data]})


def produce_every_version(side: Side) -> Any:
    topic_id = side.create_topic("produce-versions")
    return [
        produce(side, v, topic_id if v >= 13 else "produce-versions", batch([b"a", b"b"]))
        for v in PRODUCE_VERSIONS
    ]


def produce_codecs_by_version(side: Side) -> Any:
    """zstd came with version 7; the payload is not looked at before."""
    side.create_topic("produce-codecs")
    return [
        produce(side, version, "produce-codecs", batch([b"a"], attributes=4, payload=ZSTD_RECORD))
        for version in (3, 6, 7, 9)
    ]


def produce_wrong_places(side: Side) -> Any:
    topic_id = side.create_topic("produce-places")
    return [
        produce(side, 9, "not-there", batch([b"a"])),
        produce(side, 9, "produce-places", batch([b"a"]), index=7),
        produce(side, 9, "produce-places", batch([b"a"]), index=-1),
        produce(side, 13, NOBODY, batch([b"a"])),
        produce(side, 13, topic_id, batch([b"a"]), index=7),
        produce(side, 9, "produce-places", batch([b"a"]), acks=2),
        produce(side, 9, "produce-places", batch([b"a"]), acks=-2),
        produce(side, 9, "__consumer_offsets_not", batch([b"a"])),
    ]


def produce_wrong_batches(side: Side) -> Any:
    good = batch([b"a", b"b"])
    wrong = {
        "null": None,
        "empty": b"",
        "crc": batch([b"a"], crc_error=1),
        "magic 1": batch([b"a"], magic=1),
        "magic 3": batch([b"a"], magic=3),
        "truncated": good[:-3],
        "header only": good[:30],
        "two bytes": good[:2],
        "length 13": good[:8] + (13).to_bytes(4) + good[12:],
        "length 20": good[:8] + (20).to_bytes(4) + good[12:],
        "negative length": good[:8] + b"\xff" * 4 + good[12:],
        "magic 0, truncated": batch([b"a"], magic=0)[:-3],
        "trailing bytes": good + b"xyz",
        "two batches": good + good,
        "last offset delta too large": batch([b"a", b"b"], last_offset_delta=5),
        "last offset delta too small": batch([b"a", b"b"], last_offset_delta=0),
        "no records": batch([], last_offset_delta=0),
        "count too large": batch([b"a"], record_count=2, last_offset_delta=1),
        "control": batch([b"a"], attributes=0x20),
        "transactional without id": batch([b"a"], attributes=0x10),
        "codec 5": batch([b"a"], attributes=5),
        "codec 7": batch([b"a"], attributes=7),
        "gzip of nothing": batch([b"a"], attributes=1, payload=b"not gzip"),
        "no record inside": batch([b"a"], payload=b"\xff\xff\xff"),
        "offset deltas with a gap": batch(
            [b"a", b"b"], payload=record(0, b"a") + record(5, b"b"), last_offset_delta=1
        ),
        "garbage inside": batch([b"a"], payload=b"\xff" * 20),
        "more records than counted": batch([b"a"], payload=record(0, b"a") + record(1, b"b")),
        "far future": batch([b"a"], timestamp_ms=NOW_MS * 2),
        "negative timestamp": batch([b"a"], timestamp_ms=-5),
        "base offset": batch([b"a"], base_offset=500),
        "leader epoch": batch([b"a"], leader_epoch=33),
        "log append time": batch([b"a"], attributes=8),
    }
    answers = {}
    for number, (name, data) in enumerate(wrong.items()):
        topic = f"wrong-{number}"
        side.create_topic(topic)
        answer = produce(side, 9, topic, data)
        is_answer = isinstance(answer, dict)
        answers[name] = answer["responses"][0]["partition_responses"][0] if is_answer else answer
    return answers


def produce_sequences(side: Side) -> Any:
    side.create_topic("produce-sequences")
    pid = new_producer_id(side)

    def send(sequence: int, epoch: int = 0, producer_id: int = pid, count: int = 1) -> Any:
        data = batch(
            [b"x"] * count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        answer = produce(side, 9, "produce-sequences", data)
        (partition,) = answer["responses"][0]["partition_responses"]
        return partition["error_code"], partition["base_offset"]

    return {
        "first": send(0),
        "second": send(1, count=3),
        "duplicate of the second": send(1, count=3),
        "duplicate of the first": send(0),
        "inside the second": send(2),
        "gap": send(9),
        "next": send(4),
        "negative sequence": send(-1),
        "new epoch, wrong sequence": send(5, epoch=1),
        "new epoch": send(0, epoch=1),
        "old epoch": send(1, epoch=0),
        "unknown producer at 0": send(0, producer_id=pid + 500_000),
        "unknown producer at 7": send(7, producer_id=pid + 600_000),
        "five more": [send(number, epoch=1) for number in range(1, 7)],
        "duplicate too old": send(0, epoch=1),
        "no epoch": send(0, epoch=-1),
    }


def new_producer_id(side: Side) -> int:
    """Apache Kafka has to ask its controller for the first one, and says so meanwhile."""
    for _ in range(100):
        answer = side.raw("InitProducerId", 4, producer_id_request())
        if answer["error_code"] == 0:
            return int(answer["producer_id"])
        time.sleep(0.1)
    raise AssertionError(f"{side.name} gives no producer id: {answer}")


def producer_id_request(**changes: Any) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    } | changes


def produce_wrong_records(side: Side) -> Any:
    """Which records of a batch are wrong is said by their index (KIP-467)."""
    hour_ms = 3_600_000
    side.create_topic("keys", cleanup_policy="compact")
    side.create_topic("times", message_timestamp_before_max_ms="1000")
    side.create_topic(
        "both", cleanup_policy="compact", message_timestamp_before_max_ms=str(20_000 * hour_ms)
    )
    side.create_topic("stamped", message_timestamp_type="LogAppendTime")
    side.create_topic("unstamped")
    now_ms = int(time.time() * 1000)
    some_keys = record(0, b"a", b"k") + record(1, b"b") + record(2, b"c", b"") + record(3, b"d")
    some_times = record(0, b"a") + record(1, b"b", timestamp_delta_ms=1 - now_ms)
    some_times += record(2, b"c", timestamp_delta_ms=2 * hour_ms)
    both = record(0, b"a") + record(1, b"b", b"k", timestamp_delta_ms=2 * hour_ms)
    both += record(2, b"c", b"k") + record(3, b"d", timestamp_delta_ms=2 * hour_ms)
    wrong = {
        "keys": batch([b""] * 4, timestamp_ms=now_ms, payload=some_keys),
        "keys, gzip": batch(
            [b""] * 4, timestamp_ms=now_ms, attributes=1, payload=gzip.compress(some_keys)
        ),
        "keys, unreadable": batch([b""], timestamp_ms=now_ms, payload=b"\xff\xff\xff"),
        "times": batch(
            [b""] * 3,
            timestamp_ms=now_ms,
            max_timestamp_ms=now_ms + 2 * hour_ms,
            payload=some_times,
        ),
        "both": batch(
            [b""] * 4, timestamp_ms=now_ms, max_timestamp_ms=now_ms + 2 * hour_ms, payload=both
        ),
        "stamped": batch([b"a", b"b"], timestamp_ms=now_ms, attributes=8),
        "unstamped": batch([b"a", b"b"], timestamp_ms=-1, attributes=8),
        "unstamped, late": batch([b"a"], timestamp_ms=now_ms + 2 * hour_ms, attributes=8),
    }
    answers = {name: produce(side, 9, name.partition(",")[0], data) for name, data in wrong.items()}
    produce(side, 9, "unstamped", batch([b"a", b"b"], timestamp_ms=NOW_MS, attributes=8))
    answers["taken back"] = side.ask("Fetch", 12, fetch_request(12, "unstamped"))
    side.create_topic("lying")
    produce(side, 9, "lying", batch([b"a"], timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS - 5))
    answers["lying"] = side.ask("Fetch", 12, fetch_request(12, "lying"))
    return answers


def produce_after_deletion(side: Side) -> Any:
    """Where the log begins is told with some refusals."""
    side.create_topic("deleted", cleanup_policy="compact,delete", max_message_bytes="500")
    pid = new_producer_id(side)
    keyed = [b""] * 3
    payload = b"".join(record(delta, b"v", b"k") for delta in range(3))
    produce(side, 9, "deleted", batch(keyed, payload=payload))
    partition = {"partition_index": 0, "offset": 2}
    topics = [{"name": "deleted", "partitions": [partition]}]
    side.ask("DeleteRecords", 2, {"topics": topics, "timeout_ms": 5_000})
    wrong = {
        "no key": batch([b"a"]),
        "control": batch([b"a"], attributes=0x20),
        "crc": batch([b"a"], crc_error=1),
        "two batches": batch([b"a"]) * 2,
        "truncated": batch([b"a"])[:-1],
        "magic 1": batch([b"a"], magic=1),
        "base offset": batch([b"a"], base_offset=7),
        "too large": batch([b"a" * 600]),
        "sequence": batch(
            keyed, payload=payload, producer_id=pid, producer_epoch=0, base_sequence=-5
        ),
        "right": batch(keyed, payload=payload, producer_id=pid, producer_epoch=0, base_sequence=0),
        "gap": batch(keyed, payload=payload, producer_id=pid, producer_epoch=0, base_sequence=9),
        "no epoch": batch(
            keyed, payload=payload, producer_id=pid, producer_epoch=-1, base_sequence=3
        ),
        "duplicate": batch(
            keyed, payload=payload, producer_id=pid, producer_epoch=0, base_sequence=0
        ),
    }
    return {name: produce(side, 9, "deleted", data) for name, data in wrong.items()}


def produce_limits(side: Side) -> Any:
    side.create_topic("small", max_message_bytes="200")
    side.create_topic("compacted", cleanup_policy="compact")
    side.create_topic("append-time", message_timestamp_type="LogAppendTime")
    side.create_topic("old", message_timestamp_before_max_ms="1000")
    return {
        "too large": produce(side, 9, "small", batch([b"x" * 300])),
        "keyless on compacted": produce(side, 9, "compacted", batch([b"x"])),
        "log append time": produce(side, 9, "append-time", batch([b"x"])),
        "too old": produce(side, 9, "old", batch([b"x"], timestamp_ms=1_000)),
    }


def fetch_request(version: int, topic: Any, **changes: Any) -> dict[str, Any]:
    partition = {
        "partition": changes.pop("index", 0),
        "current_leader_epoch": changes.pop("epoch", -1),
        "fetch_offset": changes.pop("offset", 0),
        "partition_max_bytes": changes.pop("partition_max_bytes", 1_000_000),
        "log_start_offset": -1,
    }
    if version >= 12:
        partition["last_fetched_epoch"] = changes.pop("last_fetched_epoch", -1)
    key = "topic_id" if version >= 13 else "topic"
    request = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "isolation_level": 0,
        "topics": [{key: topic, "partitions": [partition]}],
    }
    if version < 15:
        request["replica_id"] = -1
    if version >= 7:
        request |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
    if version >= 11:
        request["rack_id"] = ""
    return request | changes


def fetch_every_version(side: Side) -> Any:
    topic_id = side.create_topic("fetch-versions")
    for value in (b"a", b"b", b"c"):
        produce(side, 9, "fetch-versions", batch([value, value]))
    answers = []
    for v in FETCH_VERSIONS:
        topic = topic_id if v >= 13 else "fetch-versions"
        for offset in (0, 3, 6):
            answers.append(side.ask("Fetch", v, fetch_request(v, topic, offset=offset)))
    return answers


def fetch_edges(side: Side) -> Any:
    topic_id = side.create_topic("fetch-edges", 2)
    produce(side, 9, "fetch-edges", batch([b"a", b"b"]))

    def fetch(version: int = 13, topic: Any = topic_id, **changes: Any) -> Any:
        return side.ask("Fetch", version, fetch_request(version, topic, **changes))

    return {
        "beyond the end": fetch(offset=3),
        "negative": fetch(offset=-1),
        "unknown partition": fetch(index=9),
        "unknown id": fetch(topic=NOBODY),
        "unknown name": fetch(version=12, topic="not-there"),
        "epoch 0": fetch(epoch=0),
        "epoch too large": fetch(epoch=5),
        "diverging epoch": fetch(last_fetched_epoch=0, offset=2),
        "diverging beyond the end": fetch(last_fetched_epoch=0, offset=3),
        "diverging, committed": fetch(last_fetched_epoch=0, offset=3, isolation_level=1),
        "diverging below the start": fetch(last_fetched_epoch=0, offset=-1),
        "last epoch too large": fetch(last_fetched_epoch=4, offset=1),
        "last epoch of an empty partition": fetch(index=1, last_fetched_epoch=0),
        "beyond an empty partition": fetch(index=1, last_fetched_epoch=0, offset=1),
        "max bytes 0": fetch(max_bytes=0),
        "partition max bytes 0": fetch(partition_max_bytes=0),
        "max bytes 1": fetch(max_bytes=1, partition_max_bytes=1),
        "read committed": fetch(isolation_level=1),
        "isolation 7": fetch(isolation_level=7),
        "isolation 7, v12": fetch(version=12, topic="fetch-edges", isolation_level=7),
        "isolation 7, v6": fetch(version=6, topic="fetch-edges", isolation_level=7),
        "empty partition": fetch(index=1),
        "new session": fetch(session_epoch=0),
        "unknown session": fetch(session_id=987_654, session_epoch=1),
        "close unknown session": fetch(session_id=987_654, session_epoch=-1),
        "epoch without session": fetch(session_epoch=4),
        "no topics": fetch(topics=[]),
    }


def fetch_session(side: Side) -> Any:
    topic_id = side.create_topic("fetch-session", 2)
    produce(side, 9, "fetch-session", batch([b"a"]))
    first = side.raw("Fetch", 13, fetch_request(13, topic_id, session_epoch=0))
    session = first["session_id"]

    def fetch(epoch: int, **changes: Any) -> Any:
        request = fetch_request(13, topic_id, session_id=session, session_epoch=epoch, **changes)
        return side.ask("Fetch", 13, request)

    forgotten = [{"topic_id": topic_id, "partitions": [0]}]
    return {
        "nothing new": fetch(1, offset=1),
        "incremental without topics": fetch(2, topics=[]),
        "wrong epoch": fetch(7, topics=[]),
        "other partition": fetch(3, index=1),
        "diverging": fetch(4, offset=2, last_fetched_epoch=0),
        "still diverging": fetch(5, topics=[]),
        "no longer": fetch(6, offset=1, last_fetched_epoch=0),
        "forget": fetch(7, topics=[], forgotten_topics_data=forgotten),
        "closed": fetch(-1, topics=[]),
        "after it was closed": fetch(8, topics=[]),
    }


def list_offsets(side: Side) -> Any:
    side.create_topic("list-offsets", 2)
    for number in (3, 1, 2):
        produce(side, 9, "list-offsets", batch([b"x"], timestamp_ms=NOW_MS + number))
    answers = {}
    for version in range(1, 12):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, NOW_MS + 2, NOW_MS + 4):
            for index in (0, 1, 9):
                if timestamp in range(-7, -2) and version < 11:
                    # Kafka took these with the version that introduced them.
                    continue
                request = list_offsets_request(version, timestamp, index)
                answers[f"v{version} {timestamp} of {index}"] = side.ask(
                    "ListOffsets", version, request
                )
    for epoch in (0, 4):
        request = list_offsets_request(7, -1, 0, epoch=epoch)
        answers[f"epoch {epoch}"] = side.ask("ListOffsets", 7, request)
    request = list_offsets_request(7, -1, 0) | {"isolation_level": 7}
    answers["isolation 7"] = side.ask("ListOffsets", 7, request)
    old = ((1, -7), (1, -3), (6, -3), (7, -3), (7, -4), (8, -4), (8, -5), (9, -5), (11, -(1 << 63)))
    for version, timestamp in old:
        request = list_offsets_request(version, timestamp, 0)
        answers[f"v{version} {timestamp}"] = side.ask("ListOffsets", version, request)
    return answers


def list_offsets_request(
    version: int, timestamp: int, index: int, *, epoch: int = -1
) -> dict[str, Any]:
    partition: dict[str, Any] = {"partition_index": index, "timestamp": timestamp}
    if version >= 4:
        partition["current_leader_epoch"] = epoch
    request: dict[str, Any] = {
        "replica_id": -1,
        "topics": [{"name": "list-offsets", "partitions": [partition]}],
    }
    if version >= 2:
        request["isolation_level"] = 0
    if version >= 10:
        request["timeout_ms"] = 1_000
    return request


def leader_epochs(side: Side) -> Any:
    side.create_topic("epochs")
    produce(side, 9, "epochs", batch([b"x"]))
    answers = []
    for version in (2, 3, 4):
        for current, wanted in ((-1, 0), (-1, 7), (0, 0), (9, 0), (-1, -1)):
            answers.append(leader_epoch(side, version, 0, current, wanted))
        answers.append(leader_epoch(side, version, 9, -1, 0))
    return answers


def leader_epoch(side: Side, version: int, index: int, current: int, wanted: int) -> Any:
    partition = {"partition": index, "current_leader_epoch": current, "leader_epoch": wanted}
    request: dict[str, Any] = {"topics": [{"topic": "epochs", "partitions": [partition]}]}
    if version >= 3:
        request["replica_id"] = -1
    return side.ask("OffsetForLeaderEpoch", version, request)


def delete_records(side: Side) -> Any:
    side.create_topic("delete-records")
    produce(side, 9, "delete-records", batch([b"x"] * 10))
    answers = []
    for version in (0, 1, 2):
        for offset, index in ((2, 0), (1, 0), (11, 0), (-1, 9), (-2, 0), (5, 0)):
            partition = {"partition_index": index, "offset": offset}
            topics = [{"name": "delete-records", "partitions": [partition]}]
            answers.append(
                side.ask("DeleteRecords", version, {"topics": topics, "timeout_ms": 5_000})
            )
    topics = [{"name": "not-there", "partitions": [{"partition_index": 0, "offset": 0}]}]
    answers.append(side.ask("DeleteRecords", 2, {"topics": topics, "timeout_ms": 1_000}))
    return answers


def describe_producers(side: Side) -> Any:
    side.create_topic("producers")
    pid = new_producer_id(side)
    data = batch([b"x"] * 4, producer_id=pid, producer_epoch=0, base_sequence=0)
    produce(side, 9, "producers", data)
    topics = [
        {"name": "producers", "partition_indexes": [0, 9]},
        {"name": "not-there", "partition_indexes": [0]},
    ]
    return side.ask("DescribeProducers", 0, {"topics": topics})


def init_producer_id(side: Side) -> Any:
    answers = {}
    for version in range(7):
        plain = {"transactional_id": None, "transaction_timeout_ms": 1_000}
        answers[f"v{version}"] = side.ask("InitProducerId", version, plain)
    odd: dict[str, dict[str, Any]] = {
        "timeout 0": {"transaction_timeout_ms": 0},
        "negative timeout": {"transaction_timeout_ms": -1},
        "empty id": {"transactional_id": ""},
        "epoch alone": {"producer_epoch": 3},
        "id alone": {"producer_id": 77},
        "both": {"producer_id": 77, "producer_epoch": 3},
    }
    for name, changes in odd.items():
        answers[name] = side.ask("InitProducerId", 4, producer_id_request(**changes))
    return answers


DATA_CASES = {
    "Produce v3-13": produce_every_version,
    "Produce of zstd by version": produce_codecs_by_version,
    "Produce to wrong places": produce_wrong_places,
    "Produce of wrong batches": produce_wrong_batches,
    "Produce with sequences": produce_sequences,
    "Produce of wrong records": produce_wrong_records,
    "Produce after deletion": produce_after_deletion,
    "Produce against topic limits": produce_limits,
    "Fetch v4-17": fetch_every_version,
    "Fetch edges": fetch_edges,
    "Fetch session": fetch_session,
    "ListOffsets v1-11": list_offsets,
    "OffsetForLeaderEpoch v2-4": leader_epochs,
    "DeleteRecords v0-2": delete_records,
    "DescribeProducers": describe_producers,
    "InitProducerId v0-6": init_producer_id,
}
