"""`anabranch groups` list, describe, delete, delete-offsets: golden text and JSON, refusals."""

import re
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer
from groups_kit import GroupsKit

from support.broker_process import BrokerProcess

# --- list -----------------------------------------------------------------------------------


def test_no_groups(run: Callable, broker: BrokerProcess) -> None:
    """Without groups, text is headers alone and JSON is an empty list."""
    flags = ("--bootstrap-server", broker.bootstrap)
    assert run("groups", "list", *flags).out == "GROUP  TYPE  PROTOCOL  STATE\n"
    assert run("groups", "list", *flags, "--format", "json").out == "[]\n"
    assert run("groups", "describe", "--all", *flags, "--format", "json").out == "[]\n"
    assert run("groups", "describe", "--all", *flags).out == (
        "GROUP  TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST"
        "  CLIENT-ID\n"
    )


def test_list(run: Callable, make_broker: Callable) -> None:
    """Groups are listed by name with type and state, all of them or those of a state or type."""
    broker = make_broker(**{"group.initial.rebalance.delay.ms": "0"})
    kit = GroupsKit(broker.bootstrap)
    flags = ("--bootstrap-server", broker.bootstrap)
    topic = kit.topic("listed")
    kit.commit("z-offsets-only", topic, {0: 0})
    with kit.member("a-consuming", topic, owning=3):
        result = run("groups", "list", *flags)
        assert (result.code, result.err) == (0, "")
        assert result.out == (
            "GROUP           TYPE     PROTOCOL  STATE\n"
            "a-consuming     Classic  consumer  Stable\n"
            "z-offsets-only  Classic  -         Empty\n"
        )
        assert run("groups", "list", *flags, "--format", "json", "--state", "stable").document == [
            {"group": "a-consuming", "type": "Classic", "protocol": "consumer", "state": "Stable"}
        ]
        both = run(
            "groups", "list", *flags, "--format", "json", "--state", "Stable", "--state", "Empty"
        )
        assert [row["group"] for row in both.document] == ["a-consuming", "z-offsets-only"]
        assert run("groups", "list", *flags, "--type", "classic", "--format", "json").document
        assert run("groups", "list", *flags, "--type", "consumer", "--format", "json").out == "[]\n"
    assert run("groups", "list", *flags, "--state", "Happy").code == 2


# --- describe -------------------------------------------------------------------------------


def test_describe_offsets(groups: Callable, kit: GroupsKit) -> None:
    """Offsets and lag in kafka-consumer-groups' columns; what was not committed lags from start."""
    topic = kit.topic("described", records=10)
    kit.delete_records(topic, 2, 4)
    kit.commit("describe-a", topic, {0: 3, 1: 10})
    with kit.member("describe-a", topic, owning=3):
        result = groups("describe", "describe-a")
    assert (result.code, result.err) == (0, "")
    (member,) = set(re.findall(r"describe-a-client-[0-9a-f-]{36}", result.out))
    header, *rows = [line.split() for line in result.out.splitlines()]
    assert " ".join(header) == (
        "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
    )
    end = [member, "/127.0.0.1", "describe-a-client"]
    assert rows == [
        ["describe-a", "described", "0", "3", "10", "7", *end],
        ["describe-a", "described", "1", "10", "10", "0", *end],
        ["describe-a", "described", "2", "-", "10", "6", *end],
    ]


def test_describe_a_group_without_members(groups: Callable, kit: GroupsKit) -> None:
    """Nobody there: offsets all the same, and a notice on stderr."""
    topic = kit.topic("left", records=5)
    kit.commit("describe-left", topic, {0: 3})
    result = groups("describe", "describe-left")
    assert result.out == (
        "GROUP          TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST"
        "  CLIENT-ID\n"
        "describe-left  left   0          3               5               2    -            -   "
        "  -\n"
    )
    assert result.err == "Consumer group 'describe-left' has no active members.\n"
    verbose = groups("describe", "describe-left", "--verbose").out
    assert "PARTITION  LEADER-EPOCH  CURRENT-OFFSET" in verbose
    assert groups("describe", "describe-left", "--format", "json").document == [
        {
            "group": "describe-left",
            "type": "Classic",
            "protocol": None,
            "state": "Empty",
            "group_epoch": None,
            "target_assignment_epoch": None,
            "assignor": None,
            "coordinator": {
                "id": 1,
                "host": "127.0.0.1",
                "port": int(kit.bootstrap.rpartition(":")[2]),
            },
            "members": [],
            "movements": [],
            "total_lag": 2,
            "partitions": [
                {
                    "topic": "left",
                    "partition": 0,
                    "current_offset": 3,
                    "leader_epoch": None,
                    "log_start_offset": 0,
                    "log_end_offset": 5,
                    "lag": 2,
                    "consumer_id": None,
                    "host": None,
                    "client_id": None,
                }
            ],
        }
    ]


def test_describe_members(groups: Callable, kit: GroupsKit) -> None:
    """Members with what they own; one more than there are partitions owns nothing and is shown."""
    topic = kit.topic("membered", partitions=1)
    with (
        kit.member("members", topic, owning=1, group_instance_id="box-1", client_id="c1") as first,
        kit.member("members", topic, group_instance_id="box-2", client_id="c2") as second,
    ):
        wait_for_members(groups, "members", first, second)
        result = groups("describe", "members", "--members", "--verbose")
        offsets = groups("describe", "members")
        document = groups("describe", "members", "--members", "--format", "json").document
    assert (result.code, result.err) == (0, "")
    header, *rows = [line.split() for line in result.out.splitlines()]
    assert " ".join(header) == (
        "GROUP CONSUMER-ID GROUP-INSTANCE-ID HOST CLIENT-ID #PARTITIONS CURRENT-EPOCH"
        " CURRENT-ASSIGNMENT TARGET-EPOCH TARGET-ASSIGNMENT UPGRADED"
    )
    assert sorted(row[2:] for row in rows) == sorted(
        [
            ["box-1", "/127.0.0.1", "c1", "1", "-", "membered:0", "-", "-", "-"],
            ["box-2", "/127.0.0.1", "c2", "0", *"-----"],
        ]
    )
    idle = [line.split() for line in offsets.out.splitlines() if "box-2" in line]
    assert [row[:6] + row[7:] for row in idle] == [["members", *"-----", "/127.0.0.1", "c2"]]
    assert "partitions" not in document[0]
    assert [member["assignment"] for member in document[0]["members"]] == [
        [{"topic": "membered", "partitions": [0]}],
        [],
    ]


def wait_for_members(groups: Callable, group: str, *consumers: Consumer) -> None:
    """Let the consumers work until the group is Stable with all of them."""
    for _ in range(400):
        for consumer in consumers:
            consumer.poll(0.02)
        (state,) = groups("describe", group, "--state", "--format", "json").document
        if (state["state"], len(state["members"])) == ("Stable", len(consumers)):
            return
    raise AssertionError(state)


def test_describe_state_and_summary(groups: Callable, kit: GroupsKit) -> None:
    """One line for each group: who coordinates it and how it is, or how far it is behind."""
    topic = kit.topic("stated", records=4)
    kit.commit("state-b", topic, {0: 4, 1: 1})
    with kit.member("state-a", topic, owning=3, partition_assignment_strategy="roundrobin"):
        states = groups("describe", "state-a", "state-b", "--state")
        summary = groups("describe", "state-b", "state-a", "--summary")
    assert (states.code, states.err, summary.err) == (0, "", "")
    place = kit.bootstrap
    width = max(len(f"{place} (1)"), len("COORDINATOR (ID)"))
    assert states.out == (
        f"GROUP    {'COORDINATOR (ID)'.ljust(width)}  ASSIGNMENT-STRATEGY  STATE   #MEMBERS\n"
        f"state-a  {f'{place} (1)'.ljust(width)}  roundrobin           Stable  1\n"
        f"state-b  {f'{place} (1)'.ljust(width)}  -                    Empty   0\n"
    )
    assert summary.out == (
        "GROUP    TYPE     STATE   MEMBERS  TOTAL-LAG\n"
        "state-b  Classic  Empty   0        3\n"
        "state-a  Classic  Stable  1        12\n"
    )


def test_describe_all(groups: Callable, kit: GroupsKit) -> None:
    """--all shows every group there is, and excludes naming some."""
    topic = kit.topic("in-all")
    kit.commit("in-all-group", topic, {0: 0})
    shown = [row["group"] for row in groups("describe", "--all", "--format", "json").document]
    listed = [row["group"] for row in groups("list", "--format", "json").document]
    assert "in-all-group" in shown
    assert shown == listed
    assert groups("describe").code == 2
    assert groups("describe", "--all", "in-all-group").code == 2
    assert groups("describe", "in-all-group", "--state", "--members").code == 2


def test_unknown_groups_get_the_nearest_name(groups: Callable, kit: GroupsKit) -> None:
    """A group that is not there is told with the name that was probably meant."""
    kit.commit("shipments-2024", kit.topic("for-unknown"), {0: 0})
    for verb in (
        ("describe", "shipment-2024"),
        ("describe", "shipments-2024", "shipment-2024"),
        ("delete-offsets", "shipment-2024", "--topic", "for-unknown", "--yes"),
    ):
        result = groups(*verb)
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            "error: There is no group 'shipment-2024' - nobody has joined it or committed offsets"
            " in it - did you mean 'shipments-2024'?\n"
        )
    assert "see `anabranch groups list`" in groups("describe", "zzzzzzzzzz").err


def test_a_rebalancing_group_is_told(groups: Callable, kit: GroupsKit) -> None:
    """While partitions change hands, a notice says why the table is as it is."""
    topic = kit.topic("rebalancing")
    with (
        kit.member("rebalances", topic, owning=3),
        kit.member("rebalances", topic) as second,
    ):
        # The first member does not poll, so the group waits for it in PreparingRebalance.
        for _ in range(400):
            second.poll(0.02)
            result = groups("describe", "rebalances", "--members")
            if "is rebalancing" in result.err:
                break
        assert result.err == "Consumer group 'rebalances' is rebalancing (PreparingRebalance).\n"


# --- delete ---------------------------------------------------------------------------------


def test_delete(groups: Callable, kit: GroupsKit) -> None:
    """Shows what goes and what is refused before the question; the rest goes."""
    topic = kit.topic("deleted", records=1)
    kit.commit("delete-a", topic, {0: 1, 2: 1})
    kit.commit("delete-b", topic, {0: 0})
    dry = groups("delete", "delete-a", "--dry-run")
    assert dry.out == "GROUP     STATE  MEMBERS  OFFSETS\ndelete-a  Empty  0        2\n"
    assert dry.err == "Nothing was deleted (--dry-run).\n"
    assert groups("delete", "delete-a").code == 2
    with kit.member("delete-living", topic, owning=3):
        result = groups("delete", "delete-a", "delete-living", "qqqqqqqq", "--yes")
        assert result.code == 1
        assert result.out == (
            "GROUP          STATE   MEMBERS  OFFSETS\n"
            "delete-a       Empty   0        2\n"
            "delete-living  Stable  1        0\n"
        )
        assert result.err == (
            "error: Group 'delete-living' is Stable with 1 member - it can only be deleted when it"
            " is Empty - stop the members, see `anabranch groups describe delete-living"
            " --members`\n"
            "error: There is no group 'qqqqqqqq' - nobody has joined it or committed offsets in"
            " it - see `anabranch groups list`\n"
            "Deleted 1 group.\n"
        )
        assert groups("describe", "delete-living", "--state").code == 0
    assert groups("describe", "delete-a").code == 1
    done = groups("delete", "delete-b", "--yes", "--format", "json")
    assert (done.code, done.err) == (0, "")
    assert done.document == [
        {
            "group": "delete-b",
            "state": "Empty",
            "members": 0,
            "offsets": 1,
            "status": "deleted",
            "error": None,
        }
    ]


def test_delete_asks(groups: Callable, kit: GroupsKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """No means no, and yes means yes; with nothing to delete nobody is asked."""
    kit.commit("delete-asked", kit.topic("asked"), {0: 0})
    questions: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        questions.append(question)
        return len(questions) > 1

    monkeypatch.setattr("anabranch.cli.options.click.confirm", confirm)
    monkeypatch.setattr("anabranch.cli.options.is_interactive", lambda: True)
    assert groups("delete", "delete-asked").err == "Nothing was changed.\n"
    assert groups("delete", "delete-asked").err == "Deleted 1 group.\n"
    assert groups("delete", "delete-asked").code == 1
    assert questions == ["Delete 1 group with all offsets?"] * 2


# --- delete-offsets -------------------------------------------------------------------------


def test_delete_offsets(groups: Callable, kit: GroupsKit) -> None:
    """Offsets of a topic or some of its partitions go, the others stay."""
    topic, other = kit.topic("forgotten"), kit.topic("remembered")
    kit.commit("forget", topic, {0: 0, 1: 0, 2: 0})
    kit.commit("forget", other, {0: 0})
    dry = groups("delete-offsets", "forget", "--topic", "forgotten:1", "--dry-run")
    assert dry.out == (
        "GROUP   TOPIC      PARTITION  CURRENT-OFFSET\nforget  forgotten  1          0\n"
    )
    assert groups("delete-offsets", "forget", "--topic", "forgotten:1").code == 2
    assert len(kit.committed("forget")) == 4
    done = groups("delete-offsets", "forget", "--topic", "forgotten:1", "--yes", "--format", "json")
    assert (done.code, done.err) == (0, "")
    assert done.document == [
        {
            "group": "forget",
            "topic": "forgotten",
            "partition": 1,
            "offset": 0,
            "status": "deleted",
            "error": None,
        }
    ]
    assert set(kit.committed("forget")) == {("forgotten", 0), ("forgotten", 2), ("remembered", 0)}
    done = groups("delete-offsets", "forget", "--topic", "forgotten", "--yes")
    assert (done.code, done.err) == (0, "Deleted 2 offsets.\n")
    assert set(kit.committed("forget")) == {("remembered", 0)}


def test_delete_offsets_of_nothing(groups: Callable, kit: GroupsKit) -> None:
    """A topic or partition without an offset is told, and nothing goes."""
    kit.commit("forget-less", kit.topic("forgotten-less"), {0: 0})
    for flag, place in (
        ("forgotten-less:0,2", "partition 2 of topic 'forgotten-less'"),
        ("nowhere", "topic 'nowhere'"),
    ):
        result = groups("delete-offsets", "forget-less", "--topic", flag, "--yes")
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            f"error: There is nothing to delete for {place} - group 'forget-less' has committed no"
            " offset there - see `anabranch groups describe forget-less`\n"
        )
    assert len(kit.committed("forget-less")) == 1


def test_delete_offsets_of_a_subscribed_topic(groups: Callable, kit: GroupsKit) -> None:
    """The broker refuses while a member is subscribed, and the row says why."""
    topic = kit.topic("subscribed")
    kit.commit("subscriber", topic, {0: 0})
    with kit.member("subscriber", topic, owning=3):
        result = groups(
            "delete-offsets", "subscriber", "--topic", topic, "--yes", "--format", "json"
        )
    assert result.code == 1
    assert result.document[0]["status"] == "failed"
    assert "subscribed" in result.document[0]["error"]
    assert result.err.startswith("error: Offset of subscribed-0 was not deleted - ")
    assert len(kit.committed("subscriber")) == 1
