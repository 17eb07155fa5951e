"""What a JavaScript client must be able to do alone: topics, records, transactions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, NewTopic
from js_client import CODECS, LIBRARIES, Target, produce, require_codec, run, walk

Check = Callable[[Target], None]
PARTITIONS = 2
_FIRST_TIMESTAMP_MS = 1_700_000_000_000
_ADMIN_ANSWERS = {
    "created": True,
    "createdTwice": False,
    "listed": True,
    "partitions": 3,
    "retention": "3600000",
    "retentionAfter": "7200000",
    "partitionsAfter": 5,
    "brokers": 1,
    "offsets": "0 to 4",
    "offsetsAfter": "2 to 4",
    "committed": 3,
    "groupListed": True,
    "groupState": "EMPTY",
    "groupListedAfter": False,
    "listedAfter": False,
    "deletedTwice": "UNKNOWN_TOPIC_OR_PARTITION",
}


def unique(library: str, purpose: str) -> str:
    return f"{library}-{purpose}-{time.time_ns() % 10**9}"


def new_topic(target: Target, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions)])[name].result(20)
    return name


def committed(target: Target, group: str) -> dict[tuple[str, int], int]:
    """The offsets of a group, as librdkafka reads them."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers, "log_level": 0})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {(p.topic, p.partition): p.offset for p in future.result(20).topic_partitions}


def administer(library: str) -> Check:
    """Topics, partitions, configs, records and groups: made, shown, changed, deleted."""

    def check(target: Target) -> None:
        names = {"topic": unique(library, "admin"), "group": unique(library, "admin-group")}
        (told,) = run(target, library, "administer", **names)
        told["groupState"] = told["groupState"].upper()
        assert told == _ADMIN_ANSWERS, {
            name: (told.get(name), wanted)
            for name, wanted in _ADMIN_ANSWERS.items()
            if told.get(name) != wanted
        }

    return check


def mixed_records(count: int) -> list[dict[str, Any]]:
    """With and without keys, values and headers; bytes that are no text; some long ones."""
    chosen = random.Random(count)
    records = []
    for number in range(count):
        raw = bytes(chosen.randrange(256) for _ in range(chosen.randrange(1, 40)))
        kinds = (f"value {number} " * chosen.randrange(1, 20), raw.decode("latin-1"), "", None)
        headers = [["kind", f"{number % 4}"], ["raw", raw.decode("latin-1")], ["empty", ""]]
        records.append(
            {
                "partition": number % PARTITIONS,
                "key": (None, f"key{number % 7}", raw.decode("latin-1"))[number % 3],
                "value": kinds[number % 4],
                "headers": headers[: number % 4],
                "timestamp": _FIRST_TIMESTAMP_MS + number,
            }
        )
    return records


def round_trip(library: str, codec: str) -> Check:
    """What it sends, with this codec, itself and the other read back the same in every field."""

    def check(target: Target) -> None:
        require_codec(target, codec)
        sent = mixed_records(800)
        (other,) = set(LIBRARIES) - {library}
        for idempotent, reader, limit in ((False, library, 4_000), (True, other, 0)):
            topic = new_topic(target, unique(library, codec))
            produce(target, library, topic, sent, codec=codec, idempotent=idempotent)
            wanted = []
            for partition in range(PARTITIONS):
                of_partition = [r for r in sent if r["partition"] == partition]
                wanted += [{**record, "offset": n} for n, record in enumerate(of_partition)]
            got = walk(target, reader, topic, len(sent), fetchBytes=limit)
            got.sort(key=lambda record: (record["partition"], record["offset"]))
            for found, expected in zip(got, wanted, strict=True):
                assert found == expected, f"{reader} read {found}, sent was {expected}"

    return check


def transactions(library: str, reader: str) -> Check:
    """Commit, abort, offsets in both, and a successor that fences its predecessor."""

    def check(target: Target) -> None:
        names = {part: unique(library, f"tx-{part}") for part in ("topic", "source", "group", "id")}
        new_topic(target, names["topic"])
        new_topic(target, names["source"], 1)
        two = [r for r in mixed_records(8) if r["partition"] == 0][:2]
        produce(target, library, names["source"], two, codec="none", idempotent=True)
        (told,) = run(target, library, "transact", **names)
        if told.get("successorByDefault"):
            print(f"{'':<26}a successor by default: {told['successorByDefault']}", flush=True)
        assert told["fenced"] in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"), told
        offsets = committed(target, names["group"])
        assert offsets == {(names["source"], 0): 1}, f"offsets of the group: {offsets}"
        visible = ["first, committed", "third, committed with offsets", "sixth, committed"]
        hidden = ["second, aborted", "fourth, aborted with offsets", "fifth, fenced"]
        for is_committed, wanted in ((False, visible + hidden), (True, visible)):
            # The last transaction is visible: what must be hidden would come before its end.
            count = len(wanted) * PARTITIONS * 3
            got = walk(target, reader, names["topic"], count, committed=is_committed)
            values = sorted((record["partition"], record["value"]) for record in got)
            expected = sorted(
                (partition, f"{name} {number}")
                for partition in range(PARTITIONS)
                for name in wanted
                for number in (1, 2, 3)
            )
            wrong = sorted(set(values) - set(expected))
            assert values == expected, f"read_committed {is_committed}, and there is {wrong[:4]}"

    return check


CHECKS: dict[str, Check] = {
    **{f"{library}: topics, configs, groups": administer(library) for library in LIBRARIES},
    **{
        f"{library}: produce and consume, codec {codec}": round_trip(library, codec)
        for library in LIBRARIES
        for codec in CODECS
    },
    **{
        f"{library}: transactions, read by {reader}": transactions(library, reader)
        for library in LIBRARIES
        for reader in LIBRARIES
    },
}
