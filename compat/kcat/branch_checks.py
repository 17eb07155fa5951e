"""What kcat must be able to do with branch topics; one function per check.

`kcat -e` ends when every partition has reported its end, also those whose branches have no
records: that it ends is a check by itself.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from kcat_broker import CODECS, Broker

from branch_topics import Sent, create_branched, sample, send
from report import CommandFailure

PARTITIONS = 2
RANGES = 4
BRANCHES = PARTITIONS * RANGES
RECORDS = 1_000
T0_MS = 1_700_000_000_000
# Everything that kcat tells of a record; %K and %S are -1 for null.
FORMAT = "%p\t%o\t%T\t%K\t%k\t%S\t%s\t%h\n"


def branched(broker: Broker, purpose: str, codec: str = "none") -> tuple[str, str, list[Sent]]:
    """A source with records of every kind, and a branch topic of it."""
    source = broker.topic(f"branched-{purpose}")
    branches = create_branched(broker.bootstrap_servers, source, PARTITIONS, BRANCHES)
    records = sample(PARTITIONS, RECORDS, T0_MS)
    settings = {"compression_type": codec, "linger_ms": "5"}
    send(broker.bootstrap_servers, source, records, **settings)
    return source, branches, records


class Shown(NamedTuple):
    """A record as kcat shows it."""

    partition: int
    offset: int
    timestamp_ms: int
    rest: tuple[str, ...]


def shown(output: str) -> list[Shown]:
    lines = (line.split("\t") for line in output.splitlines())
    return [Shown(int(p), int(offset), int(ms), tuple(rest)) for p, offset, ms, *rest in lines]


def walk(broker: Broker, topic: str, *options: str) -> list[Shown]:
    """Every partition until its end."""
    return shown(broker.kcat("-C", "-q", "-e", "-t", topic, "-f", FORMAT, *options))


def in_source(records: list[Shown]) -> Counter[Shown]:
    """With the partition that each record has in the source."""
    return Counter(each._replace(partition=each.partition % PARTITIONS) for each in records)


def union(codec: str) -> Callable[[Broker], None]:
    def check(broker: Broker) -> None:
        source, branches, _ = branched(broker, codec, codec)
        plain = walk(broker, source, "-o", "beginning")
        assert len(plain) == RECORDS, f"{len(plain)} records in the source"
        found = walk(broker, branches, "-o", "beginning", "-X", "check.crcs=true")
        assert in_source(found) == in_source(plain), f"{len(found)} records in the branches"
        assert {record.partition for record in found} == set(range(BRANCHES)), (
            "branches with records"
        )
        for branch in range(BRANCHES):
            offsets = [record.offset for record in found if record.partition == branch]
            assert offsets == sorted(set(offsets)), f"branch {branch} is not in order"
        small = ("-X", "max.partition.fetch.bytes=1000", "-X", "isolation.level=read_committed")
        assert in_source(walk(broker, branches, "-o", "beginning", *small)) == in_source(plain)

    return check


def lists(broker: Broker) -> None:
    """-L shows branch topics as topics, as text and as JSON."""
    source, branches, _ = branched(broker, "listed")
    text = broker.kcat("-L")
    assert f'topic "{branches}" with {BRANCHES} partitions' in text, text
    assert f'topic "{source}" with {PARTITIONS} partitions' in text, text
    document = json.loads(broker.kcat("-L", "-J", "-t", branches))
    (described,) = document["topics"]
    numbers = [each["partition"] for each in described["partitions"]]
    assert sorted(numbers) == list(range(BRANCHES)), document
    assert all(each["leader"] == document["brokers"][0]["id"] for each in described["partitions"])


def idle(broker: Broker) -> None:
    """Branches without records reach their end."""
    source = broker.topic("branched-idle")
    branches = create_branched(broker.bootstrap_servers, source, 1, 8)
    assert walk(broker, branches, "-o", "beginning") == []
    records = [Sent(0, b"the only key", b"x" * 1_000, T0_MS)] * 20_000
    send(broker.bootstrap_servers, source, records, linger_ms="5")
    found = walk(broker, branches, "-o", "beginning", "-X", "fetch.wait.max.ms=100")
    assert len(found) == len(records) and len({record.partition for record in found}) == 1, len(
        found
    )
    assert [record.offset for record in found] == list(range(len(records))), "offsets"


def quiet(broker: Broker) -> None:
    """A consumer waits on a branch without records while others get theirs, and is not disturbed.

    librdkafka takes an answer with bytes and without records for a record that does not fit, and
    after ten of them tells its program of an error.
    """
    source = broker.topic("branched-quiet")
    branches = create_branched(broker.bootstrap_servers, source, 1, 8)
    busy = Sent(0, b"the only key", b"x", T0_MS)
    send(broker.bootstrap_servers, source, [busy])
    ((home, *_),) = walk(broker, branches, "-o", "beginning")
    others = [str(branch) for branch in range(8) if branch != home]
    command = ["kcat", "-b", broker.bootstrap_servers, "-C", "-q", "-u", "-t", branches]
    options = ["-p", others[0], "-o", "beginning", "-X", "fetch.wait.max.ms=20"]
    waiting = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(40):
            send(broker.bootstrap_servers, source, [busy])
            time.sleep(0.05)
            if waiting.poll() is not None:
                assert waiting.stderr is not None
                raise AssertionError(f"kcat ended: {waiting.stderr.read().strip()}")
    finally:
        waiting.kill()
        waiting.communicate()


def offsets(broker: Broker) -> None:
    """Absolute and timestamp offsets, and the query of an offset by time."""
    source, branches, _ = branched(broker, "offsets", "lz4")
    everything = walk(broker, branches, "-o", "beginning")
    middle = T0_MS + RECORDS // 2
    since = walk(broker, branches, "-o", f"s@{middle}")
    assert Counter(since) == Counter(r for r in everything if r.timestamp_ms >= middle), len(since)
    until = walk(broker, branches, "-o", "s@0", "-o", f"e@{middle}")
    assert Counter(until) == Counter(r for r in everything if r.timestamp_ms < middle), len(until)
    one = [record for record in everything if record.partition == 3]
    found = walk(broker, branches, "-p", "3", "-o", "100")
    assert found == [record for record in one if record.offset >= 100], len(found)
    assert walk(broker, branches, "-o", "end") == []
    for branch in range(BRANCHES):
        asked = [f"{source}:{branch % PARTITIONS}:{middle}", f"{branches}:{branch}:{middle}"]
        plain, found_offset = (broker.kcat("-Q", "-t", each).split()[-1] for each in asked)
        assert plain == found_offset, f"branch {branch}: {found_offset}, not {plain}"


def relative_offsets(broker: Broker) -> None:
    """-o -N counts the offsets of the source: at most so many records come."""
    _, branches, _ = branched(broker, "relative")
    everything = walk(broker, branches, "-o", "beginning")
    ends = [
        max(r.offset for r in everything if r.partition % PARTITIONS == p) + 1
        for p in range(PARTITIONS)
    ]
    found = walk(broker, branches, "-o", "-100")
    expected = [r for r in everything if r.offset >= ends[r.partition % PARTITIONS] - 100]
    assert Counter(found) == Counter(expected), f"{len(found)}, not {len(expected)}"


def group(broker: Broker) -> None:
    """-G reads every branch until its end and commits; its successor goes on from there."""
    source, branches, _ = branched(broker, "group")
    plain = in_source(walk(broker, source, "-o", "beginning"))
    name = f"{branches}-group"
    read = ("-G", name, "-q", "-e", "-f", FORMAT, "-X", "auto.offset.reset=earliest", branches)

    def in_group() -> Counter[Shown]:
        return in_source(shown(broker.kcat(*read)))

    assert in_group() == plain
    more = [Sent(1, b"another key", b"more", T0_MS)] * 10
    send(broker.bootstrap_servers, source, more)
    found = in_group()
    assert found.total() == len(more), f"{found.total()} records for the successor"


def produce(broker: Broker) -> None:
    """-P to a branch topic is refused at once."""
    source, branches, _ = branched(broker, "produce")
    for settings in (
        ("-X", "enable.idempotence=true"),
        ("-X", "acks=1"),
    ):
        began = time.monotonic()
        try:
            broker.kcat("-P", "-t", branches, "-p", "1", *settings, stdin="a\n")
        except CommandFailure as refusal:
            assert "Invalid topic" in str(refusal), refusal
        else:
            raise AssertionError(f"the record was taken with {settings}")
        seconds = time.monotonic() - began
        assert seconds < 10, f"refused only after {seconds:.0f} s"
    assert len(walk(broker, source, "-o", "beginning")) == RECORDS


BRANCH_CHECKS: dict[str, Callable[[Broker], None]] = {
    "branch topics are listed": lists,
    **{f"branches are the topic, codec {name}": union(name) for name in CODECS},
    "branches without records reach their end": idle,
    "a quiet branch beside a busy one": quiet,
    "branches: offsets absolute and by time": offsets,
    "branches: offsets relative to the end": relative_offsets,
    "branches in a group": group,
    "branch topics: produce is refused": produce,
}
