"""What Kafka's own tools must be able to do with branch topics, one function per check."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from group_tool_checks import GROUPS, described, new_group, reset
from tool_checks import Target
from tools import run_tool

from branch_topics import (
    SOURCE_CONFIG,
    Sent,
    create_branch_topic,
    require_branch_topics,
    sample,
    send,
)

PARTITIONS = 2
RANGES = 4
BRANCHES = PARTITIONS * RANGES
RECORDS = 400
AGE_SECONDS = 3600  # of the first record; they are a millisecond apart
SHOWN = [
    word
    for name in ("partition", "offset", "timestamp", "key", "headers", "epoch")
    for word in ("--formatter-property", f"print.{name}=true")
]


def new_branch_topic(target: Target, source: str, branches: int = BRANCHES) -> str:
    """Made with another client, because kafka-topics knows its own settings only."""
    name = f"{source}.by-key-{time.time_ns() % 10**6}"
    return create_branch_topic(target.bootstrap_servers, name, source, branches)


def filled(target: Target) -> tuple[str, str, list[Sent]]:
    """A source with records of known keys and times, and a branch topic of it."""
    require_branch_topics(target.bootstrap_servers)
    source = target.new_topic("branched", PARTITIONS)
    records = sample(PARTITIONS, RECORDS, int((time.time() - AGE_SECONDS) * 1000))
    half = RECORDS // 2
    for part, codec in ((records[:half], "lz4"), (records[half:], "none")):
        send(target.bootstrap_servers, source, part, compression_type=codec, linger_ms="20")
    return source, new_branch_topic(target, source), records


def in_partition(records: list[Sent], partition: int) -> int:
    return sum(record.partition == partition for record in records)


def topics(target: Target) -> None:
    """kafka-topics lists, describes and deletes branch topics, and says why it cannot.

    It refuses to create one by itself, before it has asked anybody.
    """
    require_branch_topics(target.bootstrap_servers)
    source = target.new_topic("branched", 3, "retention.ms=7200000")
    branches = new_branch_topic(target, source, 12)
    assert {source, branches} <= set(target.run("kafka-topics", "--list").split())
    output = target.run("kafka-topics", "--describe", "--topic", branches)
    assert "PartitionCount: 12" in output and "ReplicationFactor: 1" in output, output
    assert f"{SOURCE_CONFIG}={source}" in output, output
    assert len(re.findall(r"Leader: \d+\tReplicas: \d+\tIsr: \d+", output)) == 12, output
    refused = ("--create", "--topic", f"{source}-refused", "--config", f"{SOURCE_CONFIG}={source}")
    output = target.run("kafka-topics", *refused, code=1)
    assert f"Unknown topic config name: {SOURCE_CONFIG}" in output, output
    output = target.run("kafka-topics", "--describe", "--under-replicated-partitions")
    assert branches not in output, output
    more = ("--alter", "--topic", branches, "--partitions", "24")
    output = target.run("kafka-topics", *more, code=1)
    assert f"Add partitions to {source}" in output, output
    output = target.run("kafka-topics", "--delete", "--topic", source, code=1)
    assert "PolicyViolationException" in output and branches in output, output
    target.run("kafka-topics", "--alter", "--topic", source, "--partitions", "4")
    output = target.run("kafka-topics", "--describe", "--topic", branches)
    assert "PartitionCount: 16" in output, output
    target.run("kafka-topics", "--delete", "--topic", branches)
    left = target.run("kafka-topics", "--list").split()
    assert source in left and branches not in left, left


def configs(target: Target) -> None:
    """kafka-configs shows the settings of a branch topic, and changes what may change."""
    source, branches, _ = filled(target)
    entity = ("--entity-type", "topics", "--entity-name", branches)
    output = target.run("kafka-configs", "--describe", *entity)
    assert f"{SOURCE_CONFIG}={source} " in output, output
    assert f"branch.source.partitions={PARTITIONS} " in output, output
    add = ("--alter", *entity, "--add-config")
    target.run("kafka-configs", *add, "branch.commit.source=true")
    output = target.run("kafka-configs", "--describe", *entity)
    assert "branch.commit.source=true " in output, output
    for setting in ("retention.ms=1000", f"{SOURCE_CONFIG}=not-there", "branch.null.key=ordered"):
        output = target.run("kafka-configs", *add, setting, code=1)
        assert "InvalidConfigurationException" in output and "cannot change" in output, output
    output = target.run("kafka-configs", "--describe", "--all", *entity)
    assert re.search(r"^\s+retention.ms=604800000 ", output, re.MULTILINE), output


def read_to_end(target: Target, topic: str, *options: str) -> list[str]:
    """Every record as kafka-console-consumer shows it; it ends when nothing comes any more."""
    read = ("--topic", topic, "--timeout-ms", "2500", *SHOWN)
    output = target.run("kafka-console-consumer", *read, *options)
    return [line for line in output.splitlines() if "Offset:" in line]


def shown_record(line: str, partitions: int) -> tuple[str, ...]:
    """A shown line with the partition that the record has in the source."""
    words = line.split("\t")
    (place,) = (place for place, word in enumerate(words) if word.startswith("Partition:"))
    number = int(words[place].removeprefix("Partition:"))
    return (*words[:place], str(number % partitions), *words[place + 1 :])


def console(target: Target) -> None:
    """kafka-console-consumer shows the same records of a branch topic as of its source."""
    source, branches, records = filled(target)
    plain = Counter(
        shown_record(line, PARTITIONS) for line in read_to_end(target, source, "--from-beginning")
    )
    assert plain.total() == RECORDS, f"{plain.total()} records of the source"
    for protocol in ("classic", "consumer"):
        group = new_group(f"branch-console-{protocol}")
        as_group = ("--group", group, "--command-property", f"group.protocol={protocol}")
        lines = read_to_end(target, branches, "--from-beginning", *as_group)
        assert Counter(shown_record(line, PARTITIONS) for line in lines) == plain, (
            f"{len(lines)} records of the branches by {protocol}"
        )
        ends = {(branches, b): str(in_partition(records, b % PARTITIONS)) for b in range(BRANCHES)}
        # What it commits in the end is its position, also where no record was its own.
        assert described(target, group) == ends, described(target, group)


def console_partitions(target: Target) -> None:
    """kafka-console-consumer of single branches; together they are the source."""
    source, branches, _ = filled(target)
    plain = Counter(
        shown_record(line, PARTITIONS)
        for line in read_to_end(target, source, "--partition", "1", "--offset", "earliest")
    )
    found: Counter[tuple[str, ...]] = Counter()
    for branch in range(1, BRANCHES, PARTITIONS):
        where = ("--partition", str(branch), "--offset", "earliest")
        found.update(
            shown_record(line, PARTITIONS) for line in read_to_end(target, branches, *where)
        )
    assert found == plain, f"{found.total()} records in branches, {plain.total()} in the source"
    later = read_to_end(target, branches, "--partition", "1", "--offset", "150")
    offsets = [int(each) for line in later for each in re.findall(r"Offset:(\d+)", line)]
    assert offsets and min(offsets) >= 150 and offsets == sorted(offsets), offsets


def consumers(target: Target) -> None:
    """kafka-verifiable-consumer and kafka-consumer-perf-test read all of a branch topic."""
    _, branches, _ = filled(target)
    for protocol in ("classic", "consumer"):
        read = ("--topic", branches, "--group-id", new_group("branch-verifiable"))
        options = ("--max-messages", str(RECORDS), "--reset-policy", "earliest")
        output = target.run(
            "kafka-verifiable-consumer", *read, *options, "--group-protocol", protocol
        )
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        consumed = sum(event["count"] for event in events if event["name"] == "records_consumed")
        assert consumed == RECORDS, output[-800:]
    output = target.run("kafka-consumer-perf-test", "--topic", branches, "--num-records", "400")
    assert re.search(r", 400, ", output), output


def produce(target: Target) -> None:
    """kafka-console-producer, -verifiable-producer and -producer-perf-test are refused at once."""
    source, branches, _ = filled(target)
    began = time.monotonic()
    output = target.run("kafka-console-producer", "--topic", branches, stdin="a\n", code=None)
    assert "InvalidTopicException" in output and f"produce to {source}" in output, output
    options = ("--topic", branches, "--max-messages", "2")
    output = target.run("kafka-verifiable-producer", *options, code=None)
    assert "InvalidTopicException" in output and '"acked":0' in output, output
    amount = ("--num-records", "5", "--record-size", "10", "--throughput", "-1")
    server = ("--producer-props", f"bootstrap.servers={target.bootstrap_servers}")
    output = run_tool(
        target.classpath,
        "kafka-producer-perf-test",
        *("--topic", branches, *amount, *server),
        code=None,
    )
    assert f"produce to {source}" in output, output
    seconds = time.monotonic() - began
    assert seconds < 45, f"three tools took {seconds:.0f} s"
    output = target.run("kafka-get-offsets", "--topic", source)
    sums = [int(line.rsplit(":", 1)[1]) for line in output.split() if line.startswith(source)]
    assert sum(sums) == RECORDS, output


def get_offsets(target: Target) -> None:
    """kafka-get-offsets: the offsets of a branch are those of its source's partition."""
    source, branches, records = filled(target)
    middle = records[RECORDS // 2].timestamp_ms
    for when in ("-1", "-2", "max-timestamp", str(middle)):
        both = f"{source}.*"
        output = target.run("kafka-get-offsets", "--topic", both, "--time", when)
        lines = re.findall(r"^(\S+):(\d+):(\d+)$", output, re.MULTILINE)
        found = {(topic, int(number)): int(offset) for topic, number, offset in lines}
        expected = {(branches, b): found[source, b % PARTITIONS] for b in range(BRANCHES)}
        shown = {key: offset for key, offset in found.items() if key[0] == branches}
        assert shown == expected, f"--time {when}: {found}"


def groups(target: Target) -> None:
    """kafka-consumer-groups describes and resets the offsets of a branch topic."""
    _, branches, records = filled(target)
    group = new_group("branch-offsets")
    ends = [in_partition(records, b % PARTITIONS) for b in range(BRANCHES)]
    everywhere = ("--topic", branches)
    middle = records[RECORDS // 2].timestamp_ms
    moment = datetime.fromtimestamp(middle / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    since = [
        sum(r.partition == b % PARTITIONS and r.timestamp_ms < middle for r in records)
        for b in range(BRANCHES)
    ]
    for form, offsets in (
        (("--to-earliest",), [0] * BRANCHES),
        (("--to-latest",), ends),
        (("--shift-by", "-5"), [end - 5 for end in ends]),
        (("--to-datetime", moment), since),
        (("--to-offset", "33"), [33] * BRANCHES),
        (("--to-current",), [33] * BRANCHES),
    ):
        wanted = {(branches, b): offset for b, offset in enumerate(offsets)}
        found = reset(target, group, *everywhere, *form, "--execute")
        assert found == wanted, f"{form}: {found}, not {wanted}"
    output = target.run(GROUPS, "--describe", "--group", group)
    lags = [line.split()[3:6] for line in output.splitlines() if line.startswith(group)]
    # The tool subtracts offsets, so it counts the records of the other branches too.
    assert sorted(lags) == sorted(["33", str(end), str(end - 33)] for end in ends), output
    some = reset(target, group, "--topic", f"{branches}:1,3", "--to-latest", "--execute")
    assert some == {(branches, 1): ends[1], (branches, 3): ends[3]}, some
    output = target.run(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{branches}:0")
    assert "Successful" in output, output
    assert (branches, 0) not in described(target, group)
    # From where it was set back to, it goes on.
    reset(target, group, "--topic", branches, "--to-datetime", moment, "--execute")
    lines = read_to_end(target, branches, "--group", group)
    assert len(lines) == RECORDS - RECORDS // 2, f"{len(lines)} records since {moment}"


def records_and_logs(target: Target) -> None:
    """kafka-delete-records is refused; kafka-log-dirs and kafka-transactions find the source."""
    source, branches, _ = filled(target)
    request = target.work_dir / "delete-branch-records.json"
    partition = {"topic": branches, "partition": 0, "offset": 2}
    request.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    output = target.run("kafka-delete-records", "--offset-json-file", str(request), code=None)
    assert "PolicyViolation" in output or f"records of {source}" in output, output
    both = f"{source},{branches}"
    output = target.run("kafka-log-dirs", "--describe", "--topic-list", both)
    line = next((line for line in output.splitlines() if line.startswith("{")), "{}")
    (broker,) = json.loads(line)["brokers"]
    names = [each["partition"] for folder in broker["logDirs"] for each in folder["partitions"]]
    assert sorted(names) == [f"{source}-0", f"{source}-1"], line


BRANCH_TOOL_CHECKS: dict[str, Callable[[Target], None]] = {
    "kafka-topics and branch topics": topics,
    "kafka-configs of a branch topic": configs,
    "kafka-console-consumer of a branch topic, in groups": console,
    "kafka-console-consumer of single branches": console_partitions,
    "verifiable and perf consumers of a branch topic": consumers,
    "producing tools and a branch topic": produce,
    "kafka-get-offsets of a branch topic": get_offsets,
    "kafka-consumer-groups and a branch topic": groups,
    "kafka-delete-records and kafka-log-dirs of a branch topic": records_and_logs,
}
