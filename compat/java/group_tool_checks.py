"""What Kafka's own tools must be able to do with groups, one function per check."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tool_checks import Target
from tools import run_tool, start_program

GROUPS = "kafka-consumer-groups"
PARTITIONS = 3
RECORDS = 10  # in each partition, a minute apart
AGE_SECONDS = 3600  # of the first ones
SINCE_MOMENT = "(the time since)"


@contextlib.contextmanager
def at_work(target: Target, group: str, topic: str, count: int, *settings: str) -> Iterator[None]:
    """Members of a group that own all partitions, and leave at the end of the block."""
    arguments = (target.bootstrap_servers, group, topic, str(PARTITIONS), str(count))
    main_class = "anabranch.compat.GroupAtWork"
    with start_program(target.classpath, main_class, *arguments, *settings) as program:
        assert program.stdin is not None and program.stdout is not None
        line = program.stdout.readline()
        assert line == "STARTED\n", line
        yield
        program.stdin.close()
        program.wait(30)


def filled_topic(target: Target) -> tuple[str, float]:
    """A topic with records of known times, and the time of the first ones in seconds."""
    began = time.time() - AGE_SECONDS
    arguments = (str(PARTITIONS), str(RECORDS), str(int(began * 1000)))
    main_class = "anabranch.compat.FilledTopic"
    with start_program(
        target.classpath, main_class, target.bootstrap_servers, *arguments
    ) as program:
        output = program.communicate(timeout=60)[0]
    assert program.returncode == 0, output
    return output.strip(), began


def new_group(purpose: str) -> str:
    return f"tools-{purpose}-{time.time_ns() % 10**9}"


def rows(output: str, *columns: str) -> list[list[str]]:
    """The lines below the header with these columns, as words."""
    lines = [line.split() for line in output.splitlines()]
    assert list(columns) in lines, f"no header {' '.join(columns)} in: {output}"
    below = lines[lines.index(list(columns)) + 1 :]
    return [line for line in below if len(line) >= len(columns) and line != list(columns)]


def described(target: Target, group: str) -> dict[tuple[str, int], str]:
    """CURRENT-OFFSET of each partition, as kafka-consumer-groups --describe shows it."""
    output = target.run(GROUPS, "--describe", "--group", group)
    columns = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
    return {(row[1], int(row[2])): row[3] for row in rows(output, *columns.split())}


def reset(target: Target, group: str, *options: str) -> dict[tuple[str, int], int]:
    """NEW-OFFSET of each partition, as --reset-offsets shows it."""
    output = target.run(GROUPS, "--reset-offsets", "--group", group, *options)
    found = rows(output, "GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
    assert {row[0] for row in found} <= {group}, output
    return {(row[1], int(row[2])): int(row[3]) for row in found}


def lists(target: Target) -> None:
    """--list, with the filters of state and type."""
    topic, _ = filled_topic(target)
    busy, idle = new_group("busy"), new_group("idle")
    reset(target, idle, "--topic", topic, "--to-earliest", "--execute")
    with at_work(target, busy, topic, 1):
        assert {busy, idle} <= set(target.run(GROUPS, "--list").split())
        states = rows(target.run(GROUPS, "--list", "--state"), "GROUP", "STATE")
        assert [busy, "Stable"] in states and [idle, "Empty"] in states, states
        only = target.run(GROUPS, "--list", "--state", "stable,completingRebalance").split()
        assert busy in only and idle not in only, only
        types = rows(target.run(GROUPS, "--list", "--type"), "GROUP", "TYPE")
        assert [busy, "Classic"] in types and [idle, "Classic"] in types, types
        assert busy not in target.run(GROUPS, "--list", "--type", "consumer")
        both = target.run(GROUPS, "--list", "--type", "classic", "--state", "Empty")
        assert [idle, "Classic", "Empty"] in rows(both, "GROUP", "TYPE", "STATE"), both
        output = target.run("kafka-groups", "--list")
        assert [busy, "Classic", "consumer"] in rows(output, "GROUP", "TYPE", "PROTOCOL"), output
        assert busy in target.run("kafka-groups", "--list", "--consumer")
        assert busy not in target.run("kafka-groups", "--list", "--share")


def describes(target: Target) -> None:
    """--describe: offsets, members, state, all of them also verbose, all groups."""
    topic, _ = filled_topic(target)
    group = new_group("described")
    reset(target, group, "--topic", f"{topic}:0", "--to-offset", "4", "--execute")
    output = target.run(GROUPS, "--describe", "--group", group)
    assert f"Consumer group '{group}' has no active members." in output, output
    columns = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
    assert rows(output, *columns.split()) == [[group, topic, "0", "4", "10", "6", *"---"]], output
    with at_work(target, group, topic, 2, "group.instance.id=box-"):
        output = target.run(GROUPS, "--describe", "--group", group)
        found = rows(output, *columns.split())
        assert sorted((row[2], row[4]) for row in found) == [(str(p), "10") for p in range(3)]
        assert {row[7] for row in found} == {"/127.0.0.1"}, output
        assert {row[8] for row in found} == {"worker-0", "worker-1"}, output
        output = target.run(GROUPS, "--describe", "--group", group, "--verbose")
        assert "LEADER-EPOCH" in output, output
        members = ("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
        output = target.run(GROUPS, "--describe", "--group", group, "--members")
        found = rows(output, *members)
        assert sorted((row[2], row[4]) for row in found) == [
            ("box-0", "worker-0"),
            ("box-1", "worker-1"),
        ], output
        assert sorted(row[5] for row in found) == ["1", "2"], output
        output = target.run(GROUPS, "--describe", "--group", group, "--members", "--verbose")
        assignments = re.findall(rf"{re.escape(topic)}:([\d,]+)", output)
        assert sorted(",".join(assignments).split(",")) == ["0", "1", "2"], output
        state = ("GROUP", "COORDINATOR", "(ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
        output = target.run(GROUPS, "--describe", "--group", group, "--state")
        (row,) = rows(output, *state)
        assert [row[0], row[1], *row[3:]] == [
            group,
            target.bootstrap_servers,
            "range",
            "Stable",
            "2",
        ], output
        output = target.run(GROUPS, "--describe", "--group", group, "--state", "--verbose")
        assert "GROUP-EPOCH" in output and "Stable" in output, output
        for view in ("--offsets", "--members", "--state"):
            assert group in target.run(GROUPS, "--describe", "--all-groups", view)


def describes_unknown(target: Target) -> None:
    """--describe of a group that does not exist says so."""
    for view in ("--offsets", "--members", "--state"):
        output = target.run(GROUPS, "--describe", "--group", "not-there", view)
        assert "Group not-there not found." in output, output


def resets(target: Target) -> None:
    """--reset-offsets in every form as a dry run, and some of them for good."""
    topic, began = filled_topic(target)
    group = new_group("resets")
    everywhere = ("--topic", topic)
    reset(target, group, *everywhere, "--to-offset", "5", "--execute")
    moment = datetime.fromtimestamp(began + 150, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    future = datetime.fromtimestamp(began + 86_400, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    forms: list[tuple[tuple[str, ...], int]] = [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-current",), 5),
        (("--to-offset", "7"), 7),
        (("--to-offset", "70"), 10),
        (("--to-datetime", moment), 3),
        (("--to-datetime", future), 10),
        (("--by-duration", SINCE_MOMENT), 3),
        (("--shift-by", "2"), 7),
        (("--shift-by", "-3"), 2),
        (("--shift-by", "-100"), 0),
    ]
    for form, expected in forms:
        # Between two records there is a minute, which is more than the tool needs to start.
        since_moment = f"PT{int(time.time() - began - 150)}S"
        words = tuple(word.replace(SINCE_MOMENT, since_moment) for word in form)
        planned = reset(target, group, *everywhere, *words, "--dry-run")
        assert planned == {(topic, p): expected for p in range(3)}, f"{words}: {planned}"
    assert described(target, group) == {(topic, p): "5" for p in range(3)}
    # In this order none of them leaves the offsets where they were.
    for form in (("--shift-by", "2"), ("--to-datetime", moment), ("--to-latest",)):
        done = {(topic, p): dict(forms)[form] for p in range(3)}
        assert reset(target, group, *everywhere, *form, "--execute") == done, form
        assert described(target, group) == {key: str(offset) for key, offset in done.items()}, form


def reset_scopes(target: Target) -> None:
    """--reset-offsets of some partitions, of all topics, of several groups, of a new group."""
    topic, _ = filled_topic(target)
    group, other = new_group("scopes"), new_group("scopes-other")
    done = reset(target, group, "--topic", f"{topic}:0,2", "--to-offset", "3", "--execute")
    assert done == {(topic, 0): 3, (topic, 2): 3}, done
    done = reset(target, group, "--all-topics", "--shift-by", "1", "--execute")
    assert done == {(topic, 0): 4, (topic, 2): 4}, done
    reset(target, other, "--topic", f"{topic}:1", "--to-offset", "9", "--execute")
    both = ("--reset-offsets", "--group", group, "--group", other, "--all-topics", "--to-earliest")
    found = rows(
        target.run(GROUPS, *both, "--execute"), "GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"
    )
    assert sorted(found) == sorted(
        [[group, topic, "0", "0"], [group, topic, "2", "0"], [other, topic, "1", "0"]]
    )
    assert described(target, other) == {(topic, 1): "0"}


def export_and_import(target: Target) -> None:
    """--export writes what --from-file reads, for one group and for several."""
    topic, _ = filled_topic(target)
    group, other = new_group("exports"), new_group("exports-other")
    reset(target, group, "--topic", topic, "--to-offset", "2", "--execute")
    reset(target, group, "--topic", f"{topic}:1", "--to-offset", "6", "--execute")
    reset(target, other, "--topic", f"{topic}:0", "--to-offset", "8", "--execute")
    wanted = described(target, group)
    for groups in ((group,), (group, other)):
        names = [word for name in groups for word in ("--group", name)]
        export = ("--all-topics", "--to-current", "--export", "--dry-run")
        output = target.run(GROUPS, "--reset-offsets", *names, *export)
        lines = [line for line in output.splitlines() if re.fullmatch(r"\S+,\d+,\d+", line)]
        assert len(lines) == (3 if len(groups) == 1 else 4), output
        file = target.work_dir / "offsets.csv"
        file.write_text("\n".join(lines) + "\n")
        for name in groups:
            reset(target, name, "--all-topics", "--to-latest", "--execute")
        load = ("--reset-offsets", *names, "--from-file", str(file))
        target.run(GROUPS, *load, "--dry-run")
        assert set(described(target, group).values()) == {"10"}
        target.run(GROUPS, *load, "--execute")
        assert described(target, group) == wanted, output
    assert described(target, other) == {(topic, 0): "8"}


def refusals(target: Target) -> None:
    """A group with members is not reset, deleted, or robbed of its offsets."""
    topic, _ = filled_topic(target)
    group = new_group("refuses")
    with at_work(target, group, topic, 1):
        for way in ("--dry-run", "--execute"):
            options = ("--topic", topic, "--to-earliest", way)
            output = target.run(GROUPS, "--reset-offsets", "--group", group, *options)
            assert f"group '{group}' is inactive, but the current state is Stable" in output, output
        output = target.run(GROUPS, "--delete", "--group", group)
        assert "GroupNotEmptyException" in output, output
        output = target.run(GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
        assert output.count("GroupSubscribedToTopicException") == 3, output
    for_good = ("--to-earliest", "--execute")
    output = target.run(
        GROUPS, "--reset-offsets", "--group", group, "--topic", "not-there", *for_good
    )
    assert "UnknownTopicOrPartitionException" in output, output
    output = target.run(
        GROUPS, "--reset-offsets", "--group", group, "--topic", f"{topic}:9", *for_good
    )
    assert f'The partitions "{topic}-9" do not exist' in output, output


def deletes(target: Target) -> None:
    """--delete-offsets of some partitions and all, --delete of one group and several."""
    topic, _ = filled_topic(target)
    group, other = new_group("deletes"), new_group("deletes-other")
    for name in (group, other):
        reset(target, name, "--topic", topic, "--to-latest", "--execute")
    output = target.run(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert rows(output, "TOPIC", "PARTITION", "STATUS") == [[topic, "1", "Successful"]], output
    assert set(described(target, group)) == {(topic, 0), (topic, 2)}
    output = target.run(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:9")
    assert "UnknownTopicOrPartitionException" in output, output
    output = target.run(GROUPS, "--delete-offsets", "--group", "not-there", "--topic", topic)
    assert "The group id does not exist." in output, output
    output = target.run(GROUPS, "--delete", "--group", group)
    assert f"Deletion of requested consumer groups ('{group}') was successful." in output, output
    output = target.run(GROUPS, "--delete", "--group", group, "--group", other)
    assert f"Group '{group}' could not be deleted" in output, output
    assert f"deleted successfully: '{other}'" in output, output
    left = target.run(GROUPS, "--list").split()
    assert group not in left and other not in left, left


def consumers(target: Target) -> None:
    """kafka-console-consumer, kafka-verifiable-consumer and kafka-consumer-perf-test in groups."""
    topic, _ = filled_topic(target)
    group = new_group("console")
    read = ("--topic", topic, "--group", group, "--timeout-ms", "15000")
    output = target.run("kafka-console-consumer", *read, "--from-beginning", "--max-messages", "30")
    assert "Processed a total of 30 messages" in output, output
    assert described(target, group) == {(topic, p): "10" for p in range(3)}
    group = new_group("verifiable")
    options = ("--topic", topic, "--group-id", group, "--max-messages", "30")
    output = target.run("kafka-verifiable-consumer", *options, "--reset-policy", "earliest")
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    consumed = sum(event["count"] for event in events if event["name"] == "records_consumed")
    assert consumed == 30, output[-800:]
    assert described(target, group) == {(topic, p): "10" for p in range(3)}
    output = target.run("kafka-consumer-perf-test", "--topic", topic, "--num-records", "30")
    assert re.search(r", 30, ", output), output


def journal(target: Target) -> None:
    """Kafka's own formatters read what is kept in __consumer_offsets."""
    topic, _ = filled_topic(target)
    group, gone = new_group("journal"), new_group("journal-gone")
    reset(target, group, "--topic", f"{topic}:1", "--to-offset", "7", "--execute")
    reset(target, gone, "--topic", f"{topic}:0", "--to-offset", "1", "--execute")
    target.run(GROUPS, "--delete", "--group", gone)
    with at_work(target, group, topic, 2, "group.instance.id=box-"):
        pass
    entries = journal_entries(target, "OffsetsMessageFormatter")
    ours = [entry for entry in entries if entry["key"]["data"]["group"] == group]
    keys = {(entry["key"]["data"]["topic"], entry["key"]["data"]["partition"]) for entry in ours}
    assert (topic, 1) in keys, entries
    first = next(entry for entry in ours if entry["key"]["data"]["partition"] == 1)
    assert first["value"]["data"]["offset"] == 7, first
    removed = [entry for entry in entries if entry["key"]["data"]["group"] == gone]
    assert [entry["value"] is None for entry in removed] == [False, True], removed
    entries = journal_entries(target, "GroupMetadataMessageFormatter")
    ours = [entry for entry in entries if entry["key"]["data"]["group"] == group]
    assert ours, entries
    values = [entry["value"]["data"] for entry in ours]
    stable = next(value for value in values if len(value["members"]) == 2)
    assert (stable["protocolType"], stable["protocol"]) == ("consumer", "range"), stable
    instances = sorted(member["groupInstanceId"] for member in stable["members"])
    assert instances == ["box-0", "box-1"], stable
    if target.log_dir is not None:
        check_journal_files(target, target.log_dir, group)


def check_journal_files(target: Target, log_dir: Path, group: str) -> None:
    """kafka-dump-log decodes the files, also while the broker writes them."""
    logs = sorted(log_dir.glob("__consumer_offsets-*/*.log"))
    names = ",".join(str(log) for log in logs if log.stat().st_size)
    output = run_tool(target.classpath, "kafka-dump-log", "--offsets-decoder", "--files", names)
    assert "isvalid: false" not in output and "isvalid: true" in output, output[:2000]
    assert f'"group":"{group}"' in output, output[-2000:]


def journal_entries(target: Target, formatter: str) -> list[dict[str, Any]]:
    """The records of __consumer_offsets as one of Kafka's formatters shows them."""
    read = ("--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "5000")
    formatter_class = f"org.apache.kafka.tools.consumer.{formatter}"
    output = target.run("kafka-console-consumer", *read, "--formatter", formatter_class)
    decoder = json.JSONDecoder()
    entries, end = [], 0
    while (start := output.find('{"key"', end)) >= 0:  # one after the other, without a newline
        entry, end = decoder.raw_decode(output, start)
        entries.append(entry)
    return entries


GROUP_TOOL_CHECKS: dict[str, Callable[[Target], None]] = {
    "kafka-consumer-groups --list, kafka-groups --list": lists,
    "kafka-consumer-groups --describe": describes,
    "kafka-consumer-groups --describe of an unknown group": describes_unknown,
    "kafka-consumer-groups --reset-offsets, every form": resets,
    "kafka-consumer-groups --reset-offsets, every scope": reset_scopes,
    "kafka-consumer-groups --export and --from-file": export_and_import,
    "kafka-consumer-groups and groups with members": refusals,
    "kafka-consumer-groups --delete and --delete-offsets": deletes,
    "console, verifiable and perf consumers in groups": consumers,
    "__consumer_offsets read by Kafka's formatters": journal,
}
