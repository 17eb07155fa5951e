"""Stock clients walk branch topics to the end: nothing lost, nothing twice, nobody hangs.

A branch topic's partitions are key ranges of its source's partitions, with the source's offsets;
most of the offsets of a partition have no record there. The clients take that as they take a
compacted log, provided that the broker moves them on where nothing is for them.
"""

import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from support.branch_topics import (
    branch_of_key,
    create_branched,
    keys_of_branch,
    mixed_batches,
    read_plainly,
    send_batches,
)
from support.branch_walk import CLIENTS, walker
from support.broker_process import BrokerProcess
from support.confluent_client import ConfluentKafka
from support.stock_clients import EARLIEST, Received, ToSend

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
PARTITIONS = 2
# Does not divide the slots evenly.
RANGES = 5
BRANCHES = PARTITIONS * RANGES

every_client = pytest.mark.parametrize("client", CLIENTS)


@dataclass(frozen=True, slots=True)
class BranchedLog:
    """A topic with records, read plainly, and a branch topic over it."""

    bootstrap: str
    topic: str
    plain: list[Received]

    @property
    def ends(self) -> dict[int, int]:
        """The offsets after the last record, for each partition of the branch topic."""
        ends = {p: max(r.offset for r in self.plain if r.partition == p) + 1 for p in (0, 1)}
        return {branch: ends[branch % PARTITIONS] for branch in range(BRANCHES)}

    def of_branch(self, branch: int, from_offset: int = 0) -> list[int]:
        """The offsets of the records with a key that belong to one partition of the branch topic.

        Where the others are is up to the broker.
        """
        return [
            record.offset
            for record in self.plain
            if record.partition == branch % PARTITIONS
            and record.key is not None
            and branch_of_key(record.key, RANGES) == branch // PARTITIONS
            and record.offset >= from_offset
        ]


@pytest.fixture(scope="module")
def walk_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all walks, whose groups do not wait for more members to come."""
    overrides = {"group.initial.rebalance.delay.ms": "0"}
    broker = BrokerProcess(tmp_path_factory.mktemp("walks") / "data", overrides)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def log(walk_broker: BrokerProcess) -> BranchedLog:
    """A log with everything that is awkward in it, in two partitions, differently."""
    topic = create_branched(walk_broker.bootstrap, "mixed", RANGES, PARTITIONS)
    batches = mixed_batches(RANGES)
    send_batches(walk_broker.bootstrap, "mixed", batches)
    other = [(codec, [replace(r, partition=1) for r in rs]) for codec, rs in batches[10:] * 2]
    send_batches(walk_broker.bootstrap, "mixed", other)
    count = sum(len(records) for _, records in batches + other)
    plain = read_plainly(walk_broker.bootstrap, "mixed", count, PARTITIONS)
    return BranchedLog(walk_broker.bootstrap, topic, plain)


def by_branch(records: list[Received]) -> dict[int, list[Received]]:
    found: dict[int, list[Received]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record)
    return found


def check_whole(log: BranchedLog, received: list[Received]) -> None:
    """The branches together are the log, byte for byte and each record once; all are in order."""
    as_source = [replace(r, partition=r.partition % PARTITIONS) for r in received]
    assert sorted(as_source, key=lambda r: (r.partition, r.offset)) == log.plain
    found = by_branch(received)
    assert len(found) == BRANCHES
    for branch, records in found.items():
        offsets = [record.offset for record in records]
        assert offsets == sorted(offsets)
        assert [r.offset for r in records if r.key is not None] == log.of_branch(branch)


# To the end ---------------------------------------------------------------------------------------


@every_client
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"partition_fetch_bytes": 300}, id="small-fetches"),
        pytest.param({"fetch_min_bytes": 500_000, "fetch_wait_ms": 50}, id="patient-fetches"),
        pytest.param({"isolation": "read_committed"}, id="read-committed"),
    ],
)
def test_all_branches_are_the_whole_log(
    log: BranchedLog, client: str, settings: Mapping[str, object]
) -> None:
    """A consumer that was assigned all branches gets every record of the source once, in order."""
    starts = dict.fromkeys(range(BRANCHES), EARLIEST)
    with walker(client, log.bootstrap, log.topic, starts=starts, **settings) as consumer:
        check_whole(log, consumer.walk(log.ends))


@every_client
def test_a_group_reads_the_whole_log_once(log: BranchedLog, client: str) -> None:
    """A member of a group gets every record; the next one begins where it committed, at the end."""
    group = f"readers-{client}"
    with walker(client, log.bootstrap, log.topic, group=group) as consumer:
        check_whole(log, consumer.walk(log.ends))
        consumer.commit(log.ends)
    with walker(client, log.bootstrap, log.topic, group=group) as consumer:
        assert consumer.walk(log.ends) == []


@every_client
def test_each_branch_can_be_walked_alone(log: BranchedLog, client: str) -> None:
    """Consumers of one branch each come to the end, and have the log together."""
    received = []
    for branch in range(BRANCHES):
        starts = {branch: EARLIEST}
        with walker(client, log.bootstrap, log.topic, starts=starts, fetch_wait_ms=20) as consumer:
            received += consumer.walk({branch: log.ends[branch]})
    check_whole(log, received)


@every_client
def test_a_walk_begins_in_the_middle(log: BranchedLog, client: str) -> None:
    """From an offset on that need not be the branch's own, inside a batch too."""
    for from_offset in (1, 79, 500, 1003, log.ends[0] - 100):
        starts = dict.fromkeys(range(BRANCHES), from_offset)
        with walker(client, log.bootstrap, log.topic, starts=starts, fetch_wait_ms=20) as consumer:
            found = by_branch(consumer.walk(log.ends))
        for branch in range(BRANCHES):
            offsets = [r.offset for r in found[branch] if r.key is not None]
            assert offsets == log.of_branch(branch, from_offset)
        places = sorted((r.partition % PARTITIONS, r.offset) for rs in found.values() for r in rs)
        assert places == [(r.partition, r.offset) for r in log.plain if r.offset >= from_offset]


@every_client
def test_a_walk_begins_at_a_time(log: BranchedLog, client: str) -> None:
    """The offset that a branch has for a time is before all of its records from then on."""
    times = [record.timestamp_ms for record in log.plain if record.partition == 0]
    since_ms = times[len(times) // 2]
    branches = range(0, BRANCHES, PARTITIONS)  # of partition 0, whose times rise
    with walker(client, log.bootstrap, log.topic, starts={0: EARLIEST}) as consumer:
        starts = {b: consumer.offset_for_time(b, since_ms) for b in branches}
        assert consumer.offset_for_time(0, times[-1] + 1) is None
    assert None not in starts.values()
    with walker(client, log.bootstrap, log.topic, starts=starts) as consumer:
        received = consumer.walk({b: log.ends[b] for b in branches})
    wanted = [r.offset for r in log.plain if r.partition == 0 and r.timestamp_ms >= since_ms]
    assert sorted(record.offset for record in received) == wanted


@every_client
def test_a_branch_without_records_has_an_end(
    walk_broker: BrokerProcess, topic: str, client: str
) -> None:
    """Consumers of branches that have nothing come to the log's end like all others."""
    branch_topic = create_branched(walk_broker.bootstrap, topic, 8)
    key = next(keys_of_branch(3, 8))
    records = [ToSend(b"%d" % i, key) for i in range(200)]
    send_batches(walk_broker.bootstrap, topic, [(c, records) for c in ("none", "lz4")])
    ends = dict.fromkeys(range(8), 400)
    starts = dict.fromkeys(range(8), EARLIEST)
    with walker(client, walk_broker.bootstrap, branch_topic, starts=starts) as consumer:
        received = consumer.walk(ends)
        assert [(r.partition, r.offset) for r in received] == [(3, i) for i in range(400)]
    with walker(client, walk_broker.bootstrap, branch_topic, starts={5: EARLIEST}) as consumer:
        assert consumer.walk({5: 400}) == []
    with walker(client, walk_broker.bootstrap, branch_topic, group=topic) as consumer:
        assert len(consumer.walk(ends)) == 400
    empty = create_branched(walk_broker.bootstrap, f"{topic}-empty", 3)
    with walker(client, walk_broker.bootstrap, empty, group=f"{topic}-empty") as consumer:
        assert consumer.walk(dict.fromkeys(range(3), 0)) == []


@pytest.fixture(scope="module")
def frugal_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that looks through little of a log for one fetch, and remembers nothing of it."""
    overrides = {"branch.scan.max.bytes": "100000", "branch.cache.max.bytes": "0"}
    broker = BrokerProcess(tmp_path_factory.mktemp("frugal") / "data", overrides)
    broker.start()
    yield broker
    broker.kill()


@every_client
def test_a_rare_key_is_found_in_a_long_log(
    frugal_broker: BrokerProcess, topic: str, client: str
) -> None:
    """Where a fetch ends before it found anything, the next one goes on from there."""
    branch_topic = create_branched(frugal_broker.bootstrap, topic, 8)
    rare, usual = next(keys_of_branch(7, 8)), next(keys_of_branch(0, 8))
    records = [ToSend(b"x" * 1000, usual) for _ in range(1500)]
    sent = [*records, ToSend(b"found", rare), *records, ToSend(b"found", rare), *records]
    with ConfluentKafka().producer(frugal_broker.bootstrap) as producer:
        producer.send(topic, sent)
    starts = dict.fromkeys((3, 7), EARLIEST)
    with walker(client, frugal_broker.bootstrap, branch_topic, starts=starts) as consumer:
        received = consumer.walk(dict.fromkeys((3, 7), len(sent)))
    assert [(r.partition, r.offset) for r in received] == [(7, 1500), (7, 3001)]


# While things happen ------------------------------------------------------------------------------


@every_client
def test_a_waiting_fetch_is_woken_by_its_records(
    walk_broker: BrokerProcess, topic: str, client: str
) -> None:
    """A record of the branch arrives at once, whatever others do: the fetch's time is 25 s away."""
    branch_topic = create_branched(walk_broker.bootstrap, topic, 8)
    mine, others = next(keys_of_branch(2, 8)), next(keys_of_branch(6, 8))
    with (
        ConfluentKafka().producer(walk_broker.bootstrap) as producer,
        walker(
            client,
            walk_broker.bootstrap,
            branch_topic,
            starts={2: EARLIEST},
            fetch_wait_ms=25_000,
        ) as consumer,
    ):
        for number in range(5):
            box: list[Received] = []
            taker = threading.Thread(target=lambda box=box: box.extend(consumer.take(1)))
            taker.start()
            producer.send(topic, [ToSend(b"other", others)] * 3)
            producer.send(topic, [ToSend(b"%d" % number, mine)])
            taker.join()
            assert [record.value for record in box] == [b"%d" % number]


@every_client
def test_an_idle_branch_keeps_up_with_the_log(
    walk_broker: BrokerProcess, topic: str, client: str
) -> None:
    """Its consumer gets nothing, but follows the end that others move: it is not behind."""
    branch_topic = create_branched(walk_broker.bootstrap, topic, 8)
    key = next(keys_of_branch(1, 8))
    with (
        ConfluentKafka().producer(walk_broker.bootstrap) as producer,
        walker(client, walk_broker.bootstrap, branch_topic, starts={4: EARLIEST}) as consumer,
    ):
        for end in range(100, 400, 100):
            producer.send(topic, [ToSend(b"v", key) for _ in range(100)])
            assert consumer.walk({4: end}) == []
            assert consumer.lag(4) == 0


@every_client
def test_a_topic_is_walked_while_it_is_written(
    walk_broker: BrokerProcess, topic: str, client: str
) -> None:
    """All records come once and in order, to consumers that began before them."""
    branch_topic = create_branched(walk_broker.bootstrap, topic, 6)
    count, batch = 3000, 60

    def write() -> None:
        with ConfluentKafka().producer(walk_broker.bootstrap, linger_ms=0) as producer:
            for first in range(0, count, batch):
                records = [
                    ToSend(b"%d" % i, b"key-%d" % (i % 97)) for i in range(first, first + batch)
                ]
                producer.send(topic, records)

    starts = dict.fromkeys(range(6), EARLIEST)
    with walker(client, walk_broker.bootstrap, branch_topic, starts=starts) as consumer:
        writer = threading.Thread(target=write)
        writer.start()
        received = consumer.walk(dict.fromkeys(range(6), count))
        writer.join()
    assert sorted(r.offset for r in received) == list(range(count))
    for branch, records in by_branch(received).items():
        assert [r.offset for r in records] == sorted(r.offset for r in records)
        assert {branch_of_key(r.key or b"", 6) for r in records} == {branch}
    for number in range(97):
        mine = [int(r.value or b"") for r in received if r.key == b"key-%d" % number]
        assert mine == list(range(number, count, 97))


# kcat ---------------------------------------------------------------------------------------------

needs_kcat = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(log: BranchedLog, *arguments: str) -> list[tuple[int, int]]:
    """Consume up to the end; partition and offset of each record."""
    command = [str(KCAT), "-b", log.bootstrap, "-q", "-f", "%p %o\n", *arguments]
    more = ["-X", "fetch.wait.max.ms=50", "-X", "auto.offset.reset=earliest"]
    ended = subprocess.run(command + more, capture_output=True, text=True, check=True, timeout=60)
    places = [line.split() for line in ended.stdout.splitlines()]
    return [(int(partition), int(offset)) for partition, offset in places]


@needs_kcat
@pytest.mark.parametrize("size", ["300", "1000000"])
def test_kcat_walks_all_branches(log: BranchedLog, size: str) -> None:
    """It prints every record once and ends by itself, also when it fetches little at a time."""
    places = kcat(
        log, "-C", "-t", log.topic, "-o", "beginning", "-e", "-X", f"fetch.message.max.bytes={size}"
    )
    as_source = sorted((branch % PARTITIONS, offset) for branch, offset in places)
    assert as_source == [(record.partition, record.offset) for record in log.plain]
    for branch in range(BRANCHES):
        mine = [offset for found, offset in places if found == branch]
        assert mine == sorted(mine)
        assert set(log.of_branch(branch)) <= set(mine)


@needs_kcat
def test_kcat_begins_in_the_middle_and_at_times(log: BranchedLog) -> None:
    """-o takes an offset and a time; a branch whose last records are long past ends too."""
    branch = BRANCHES - 2  # of partition 0, whose tail is all of branch 0
    walk = ("-C", "-t", log.topic, "-p", str(branch), "-e", "-o")
    all_of_it = kcat(log, *walk, "beginning")
    assert set(log.of_branch(branch)) <= {offset for _, offset in all_of_it}
    assert kcat(log, *walk, "700") == [place for place in all_of_it if place[1] >= 700]
    time_ms = next(r.timestamp_ms for r in log.plain if (r.partition, r.offset) == (0, 700))
    assert kcat(log, *walk, f"s@{time_ms}") == [place for place in all_of_it if place[1] >= 700]
    assert kcat(log, *walk, str(log.ends[branch] - 120)) == []
    assert kcat(log, *walk, "end") == []
