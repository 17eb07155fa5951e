"""Branch topics in the hands of Spark's own connector: P x R partitions, so P x R tasks.

Partition r * P + p of a branch topic shows the records of partition p of its source whose keys
are in range r, with the offsets that they have there; so what is read of it is held against what
was sent to the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka.admin import NewPartitions
from connector import Place, Target, assert_rows, assert_says, by_place, values_of
from pyspark.sql import Row

from branch_topics import Sent, create_branch_topic, require_branch_topics, sample

_FIRST_MS = 1_790_000_000_000
_PARTITIONS = 3
_BRANCHES = 24


def _branched(
    target: Target, records: Iterable[Sent], branches: int = _BRANCHES
) -> tuple[str, str]:
    """A topic with the records and a branch topic of it."""
    require_branch_topics(target.bootstrap_servers)
    source = target.topic("source", _PARTITIONS)
    target.send(source, records)
    name = f"{source}.by-key"
    return source, create_branch_topic(target.bootstrap_servers, name, source, branches)


def _at_the_source(rows: Iterable[Row], partitions: int = _PARTITIONS) -> list[Row]:
    """The rows with the partition of the source in place of the branch."""
    return [Row(**{**row.asDict(), "partition": row["partition"] % partitions}) for row in rows]


def _assert_keys(rows: Iterable[Row]) -> None:
    """A key is in one branch of its partition."""
    places: dict[tuple[int, bytes], set[int]] = {}
    for row in rows:
        if row["key"] is not None:
            place = (row["partition"] % _PARTITIONS, bytes(row["key"]))
            places.setdefault(place, set()).add(row["partition"])
    assert places and all(len(branches) == 1 for branches in places.values())
    used = {branch for branches in places.values() for branch in branches}
    assert len(used) > 2 * _PARTITIONS, f"keys in {len(used)} branches only"


def _batch(target: Target) -> None:
    records = sample(_PARTITIONS, 900, _FIRST_MS)
    _, branch_topic = _branched(target, records)
    frame = target.read(subscribe=branch_topic)
    assert frame.rdd.getNumPartitions() == _BRANCHES, frame.rdd.getNumPartitions()
    rows = frame.collect()
    assert_rows(_at_the_source(rows), by_place(records))
    _assert_keys(rows)


def _order(target: Target) -> None:
    """Inside a task a key's records come in the order of the source, without a shuffle."""
    records = sample(_PARTITIONS, 900, _FIRST_MS)
    _, branch_topic = _branched(target, records)
    tasks = target.read(subscribe=branch_topic).select("partition", "key", "offset").rdd.glom()
    homes: dict[tuple[int, bytes], int] = {}
    for number, rows in enumerate(tasks.collect()):
        last: dict[tuple[int, bytes], int] = {}
        for row in rows:
            if row["key"] is None:
                continue
            key = (row["partition"] % _PARTITIONS, bytes(row["key"]))
            assert homes.setdefault(key, number) == number, f"{key} is in two tasks"
            assert last.get(key, -1) < row["offset"], f"{key} went back"
            last[key] = row["offset"]
    assert homes


def _offsets_and_times(target: Target) -> None:
    records = sample(_PARTITIONS, 900, _FIRST_MS)
    _, branch_topic = _branched(target, records)
    placed = by_place(records)

    def chosen(wanted: Callable[[Place, Sent], bool]) -> dict[Place, Sent]:
        return {place: record for place, record in placed.items() if wanted(place, record)}

    numbers = [str(number) for number in range(_BRANCHES)]
    rows = target.read(
        subscribe=branch_topic,
        startingOffsets=json.dumps({branch_topic: dict.fromkeys(numbers, 40)}),
        endingOffsets=json.dumps({branch_topic: dict.fromkeys(numbers, 200)}),
    ).collect()
    assert_rows(_at_the_source(rows), chosen(lambda place, _: 40 <= place[1] < 200))
    # A branch has its own first record after a time: never later than the source's.
    first_ms = _FIRST_MS + 300
    frame = target.read(subscribe=branch_topic, startingTimestamp=first_ms)
    expected = chosen(lambda _, record: record.timestamp_ms >= first_ms)
    assert_rows(_at_the_source(frame.collect()), expected)


def _split_by_offset(target: Target) -> None:
    records = sample(_PARTITIONS, 900, _FIRST_MS)
    _, branch_topic = _branched(target, records)
    frame = target.read(subscribe=branch_topic, minPartitions=60)
    assert frame.rdd.getNumPartitions() >= 60, frame.rdd.getNumPartitions()
    assert_rows(_at_the_source(frame.collect()), by_place(records))


def _stream(target: Target) -> None:
    """AvailableNow, three times from its checkpoint; maxOffsetsPerTrigger counts offsets."""
    records, folder = sample(_PARTITIONS, 900, _FIRST_MS), target.folder()
    source, branch_topic = _branched(target, records[:500])
    for part in ([], records[500:], []):
        target.send(source, part)
        frame = target.stream(
            subscribe=branch_topic, startingOffsets="earliest", maxOffsetsPerTrigger=2_000
        )
        target.drain(frame, folder)
    rows = target.files(folder)
    assert_rows(_at_the_source(rows), by_place(records))
    _assert_keys(rows)


def _running(target: Target) -> None:
    """A query that runs on while records come, most of them for few branches."""
    folder = target.folder()
    hot = [Sent(0, b"hot", str(n).encode(), _FIRST_MS + n) for n in range(400)]
    records = sample(_PARTITIONS, 100, _FIRST_MS) + hot
    source, branch_topic = _branched(target, records[:100])
    frame = target.stream(subscribe=branch_topic, startingOffsets="earliest")
    query = target.to_files(frame, folder, available_now=False)
    try:
        for first in range(100, 500, 100):
            target.send(source, records[first : first + 100])
            query.processAllAvailable()
    finally:
        query.stop()
    assert_rows(_at_the_source(target.files(folder)), by_place(records))


def _growing(target: Target) -> None:
    """The source gets a partition: its branches follow at the end and are read too."""
    folder = target.folder()
    source, branch_topic = _branched(target, sample(_PARTITIONS, 300, _FIRST_MS))
    options = {"subscribe": branch_topic, "startingOffsets": "earliest"}
    target.drain(target.stream(**options), folder)
    target.admin.create_partitions([NewPartitions(source, 4)])[source].result(20)
    target.send(source, [Sent(3, b"key%d" % n, b"new", _FIRST_MS + n) for n in range(100)])
    target.drain(target.stream(**options), folder)
    rows = target.files(folder)
    assert len(rows) == 400, len(rows)
    new = [row for row in rows if row["partition"] >= _BRANCHES]
    assert len(new) == 100 and all(bytes(row["value"]) == b"new" for row in new), len(new)


def _transactions(target: Target) -> None:
    records = sample(_PARTITIONS, 240, _FIRST_MS)
    source, branch_topic = _branched(target, [])
    plan = [
        ("commit", records[:80]),
        ("abort", records[80:120]),
        ("commit", records[120:200]),
        ("open", records[200:]),
    ]
    producer = target.transactional(source, plan)
    try:
        for topic in (source, branch_topic):
            frame = target.read(subscribe=topic, kafka_isolation_level="read_committed")
            found = values_of(frame.collect())
            expected = sorted(record.value or b"" for record in records[:80] + records[120:200])
            assert found == expected, f"{topic}: {len(found)} records"
            assert target.read(subscribe=topic).count() == 240
    finally:
        producer.abort_transaction(30)


def _write(target: Target) -> None:
    """A branch topic is for reading; the error says so."""
    _, branch_topic = _branched(target, [])
    frame = target.spark.sql("SELECT 'x' AS value")
    try:
        target.write(frame, topic=branch_topic)
    except Exception as problem:
        assert_says(problem, "produce to")
    else:
        raise AssertionError("a branch topic was written to")


BRANCH_CHECKS: Mapping[str, Callable[[Target], None]] = {
    "branch topic: a task for each branch, each record once": _batch,
    "branch topic: a key in one task, in order": _order,
    "branch topic: offsets and times": _offsets_and_times,
    "branch topic: minPartitions": _split_by_offset,
    "branch topic: AvailableNow, restarted": _stream,
    "branch topic: a running query and a hot key": _running,
    "branch topic: the source grows": _growing,
    "branch topic: read_committed": _transactions,
    "branch topic: a write is refused": _write,
}
