"""What Kafka's own tools must be able to do with groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import json
from collections.abc import Callable

from group_tool_checks import GROUPS, at_work, described, filled_topic, new_group, rows
from tool_checks import Target
from tools import run_tool

CONFIGS = "kafka-configs"
BY_CONSUMER_PROTOCOL = "group.protocol=consumer"


def lists_and_describes(target: Target) -> None:
    """--list by type and state, --describe in every view, and what is refused to a busy group."""
    topic, _ = filled_topic(target)
    group = new_group("consumer-protocol")
    settings = (BY_CONSUMER_PROTOCOL, "group.instance.id=box-", "group.remote.assignor=range")
    with at_work(target, group, topic, 2, *settings):
        both = target.run(GROUPS, "--list", "--type", "consumer", "--state", "stable")
        assert [group, "Consumer", "Stable"] in rows(both, "GROUP", "TYPE", "STATE"), both
        assert group not in target.run(GROUPS, "--list", "--type", "classic")
        assert group not in target.run(GROUPS, "--list", "--state", "assigning,reconciling,empty")
        output = target.run("kafka-groups", "--list", "--group-type", "consumer")
        assert [group, "Consumer", "consumer"] in rows(output, "GROUP", "TYPE", "PROTOCOL"), output
        _check_members(target, group, topic)
        _check_state(target, group, "range", "Stable", "2")
        output = target.run(GROUPS, "--delete", "--group", group)
        assert "GroupNotEmptyException" in output, output
        output = target.run(GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
        assert output.count("GroupSubscribedToTopicException") == 3, output


def _check_members(target: Target, group: str, topic: str) -> None:
    """The members with both assignments and their epochs."""
    describe = ("--describe", "--group", group, "--members", "--verbose")
    output = target.run(GROUPS, *describe)
    columns = (
        "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID #PARTITIONS"
        " CURRENT-EPOCH CURRENT-ASSIGNMENT TARGET-EPOCH TARGET-ASSIGNMENT"
    )
    found = rows(output, *columns.split())
    assert sorted(row[2] for row in found) == ["box-0", "box-1"], output
    assert {row[3] for row in found} == {"/127.0.0.1"}, output
    assert sorted((row[5], row[7]) for row in found) == [
        ("1", f"{topic}:2"),
        ("2", f"{topic}:0,1"),
    ], output
    assert all(row[6] == row[8] and row[7] == row[9] for row in found), output


def _check_state(target: Target, group: str, assignor: str, state: str, members: str) -> None:
    """The group's assignor, state and number of members, and that it has epochs."""
    columns = (
        "GROUP COORDINATOR (ID) ASSIGNMENT-STRATEGY STATE"
        " GROUP-EPOCH TARGET-ASSIGNMENT-EPOCH #MEMBERS"
    )
    output = target.run(GROUPS, "--describe", "--group", group, "--state", "--verbose")
    ((*_, found_assignor, found_state, epoch, target_epoch, count),) = rows(
        output, *columns.split()
    )
    assert (found_assignor, found_state, count) == (assignor, state, members), output
    assert int(epoch) >= int(target_epoch) > 0, output


def consumers(target: Target) -> None:
    """kafka-console-consumer and kafka-verifiable-consumer by the consumer protocol."""
    topic, _ = filled_topic(target)
    console, verifiable = new_group("consumer-console"), new_group("consumer-verifiable")
    read = ("--topic", topic, "--group", console, "--timeout-ms", "15000", "--from-beginning")
    options = ("--max-messages", "30", "--command-property", BY_CONSUMER_PROTOCOL)
    output = target.run("kafka-console-consumer", *read, *options)
    assert "Processed a total of 30 messages" in output, output
    read = ("--topic", topic, "--group-id", verifiable, "--max-messages", "30")
    options = ("--group-protocol", "consumer", "--group-remote-assignor", "range")
    output = target.run("kafka-verifiable-consumer", *read, *options, "--reset-policy", "earliest")
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    consumed = sum(event["count"] for event in events if event["name"] == "records_consumed")
    assert consumed == 30, output[-800:]
    for group in (console, verifiable):
        assert described(target, group) == {(topic, p): "10" for p in range(3)}
    _check_state(target, verifiable, "uniform", "Empty", "0")  # nobody asks for another
    if target.log_dir is not None:
        logs = sorted(target.log_dir.glob("__consumer_offsets-*/*.log"))
        names = ",".join(str(log) for log in logs if log.stat().st_size)
        output = run_tool(target.classpath, "kafka-dump-log", "--offsets-decoder", "--files", names)
        assert "isvalid: false" not in output, output[:2000]
        lines = [line for line in output.splitlines() if f'"groupId":"{verifiable}"' in line]
        for record_type in (3, 5, 6, 7, 8):  # its epoch, member, target (two) and assignment
            assert any(f'key: {{"type":"{record_type}"' in line for line in lines), lines
        assert any('"serverAssignor":"range"' in line for line in lines), lines


def configs(target: Target) -> None:
    """kafka-configs sets, shows and takes back the settings of a group."""
    group = new_group("configured")
    entity = ("--entity-type", "groups", "--entity-name", group)
    added = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=2000"
    output = target.run(CONFIGS, "--alter", *entity, "--add-config", added)
    assert f"Completed updating config for group {group}." in output, output
    output = target.run(CONFIGS, "--describe", "--entity-type", "groups")
    assert f"Dynamic configs for group {group} are:" in output, output
    for setting in added.split(","):
        assert f"  {setting} sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{setting}" in output
    target.run(CONFIGS, "--alter", *entity, "--delete-config", "consumer.heartbeat.interval.ms")
    output = target.run(CONFIGS, "--describe", *entity, "--all")
    assert "consumer.session.timeout.ms=50000 " in output, output
    assert "consumer.heartbeat.interval.ms=2000" not in output, output
    for wrong in ("consumer.session.timeout.ms=5", "nonsense=5"):
        output = target.run(CONFIGS, "--alter", *entity, "--add-config", wrong, code=1)
        assert "InvalidConfigurationException" in output, output


CONSUMER_GROUP_TOOL_CHECKS: dict[str, Callable[[Target], None]] = {
    "consumer groups in kafka-consumer-groups and kafka-groups": lists_and_describes,
    "console and verifiable consumers by the consumer protocol": consumers,
    "kafka-configs --entity-type groups": configs,
}
