"""`anabranch groups` on consumer groups (KIP-848): epochs, targets, and who waits for whom."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_group_kit import WireMember
from groups_kit import GroupsKit

from anabranch.cli.groups.consumer_details import can_ask, movements_of
from anabranch.cli.groups.lookup import Member
from anabranch.cli.options import Connection
from anabranch.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest

Stuck = tuple[str, WireMember, WireMember]


def eventually(look: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def stuck(kit: GroupsKit, request: pytest.FixtureRequest) -> Iterator[Stuck]:
    """A group half way: member `a` was told to give up what `b` waits for, and does not."""
    name = re.sub(r"\W", "-", request.node.name)
    kit.topic(name, records=2, partitions=4)
    first = WireMember(kit.bootstrap, name, "a", name, instance_id="box-1")
    second = WireMember(kit.bootstrap, name, "b", name)

    def is_told() -> bool:
        first.beat()
        return len(first.owned) == 2

    eventually(is_told)
    second.beat()
    yield name, first, second
    for member in (first, second):
        member.leave()


def settle(first: WireMember, second: WireMember) -> None:
    def is_settled() -> bool:
        first.confirm()
        second.confirm()
        return len(second.owned) == 2 and first.epoch == second.epoch

    eventually(is_settled)


def tables(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_list_shows_states_that_librdkafka_has_no_names_for(
    groups: Callable, kit: GroupsKit, stuck: Stuck
) -> None:
    """A group on its way is Reconciling in the list, and can be asked for by that."""
    name, first, second = stuck
    kit.commit(f"{name}-classic", name, {0: 1})
    rows = {row["group"]: row for row in groups("list", "--format", "json").document}
    assert rows[name] == {
        "group": name,
        "type": "Consumer",
        "protocol": "consumer",
        "state": "Reconciling",
    }
    assert rows[f"{name}-classic"]["type"] == "Classic"
    listed = groups("list", "--state", "reconciling")
    assert listed.code == 0
    assert tables(listed.out)[1:] == [[name, "Consumer", "consumer", "Reconciling"]]
    assert name not in groups("list", "--state", "Stable").out
    both = groups("list", "--type", "consumer", "--state", "Stable", "--state", "Reconciling")
    assert name in both.out and f"{name}-classic" not in both.out
    settle(first, second)
    assert name in groups("list", "--state", "Stable", "--type", "consumer").out


def test_movements(groups: Callable, stuck: Stuck) -> None:
    """Each partition on its way is told with who has it, who waits for it, and since when."""
    name, first, second = stuck
    moving = sorted({0, 1, 2, 3} - set(first.owned))
    result = groups("describe", name, "--movements")
    assert (result.code, result.err) == (
        0,
        f"Consumer group '{name}' is rebalancing (Reconciling).\n",
    )
    header, *rows = tables(result.out)
    assert " ".join(header) == (
        "GROUP TOPIC PARTITION SLOTS STATE FROM-CONSUMER-ID TO-CONSUMER-ID SINCE"
    )
    assert [row[:-1] for row in rows] == [
        [name, name, str(partition), "all", "revoking", "a", "b"] for partition in moving
    ]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z", row[-1]) for row in rows)
    first.confirm()
    freed = groups("describe", name, "--movements")
    assert [row[2:-1] for row in tables(freed.out)[1:]] == [
        [str(partition), "all", "assigning", "-", "b"] for partition in moving
    ]
    settle(first, second)
    settled = groups("describe", name, "--movements")
    assert (settled.err, len(tables(settled.out))) == ("", 1)


def test_members(groups: Callable, stuck: Stuck) -> None:
    """Current and target assignment with their epochs, in the columns of Kafka's tool."""
    name, first, _second = stuck
    result = groups("describe", name, "--members", "--verbose")
    assert result.err == (
        f"Consumer group '{name}' is rebalancing (Reconciling), 2 partitions on the way: see"
        " --movements.\n"
    )
    kept = ",".join(map(str, first.owned))
    moving = ",".join(map(str, sorted({0, 1, 2, 3} - set(first.owned))))
    (state,) = groups("describe", name, "--state", "--format", "json").document
    epoch = state["group_epoch"]
    assert tables(result.out)[1:] == [
        [
            *(name, "a", "box-1", "/127.0.0.1", "a-client", "4"),
            *(str(first.epoch), f"{name}:0,1,2,3", str(epoch), f"{name}:{kept}", "true"),
        ],
        [
            *(name, "b", "-", "/127.0.0.1", "b-client", "0"),
            *(str(epoch), "-", str(epoch), f"{name}:{moving}", "true"),
        ],
    ]
    assert first.epoch < epoch
    short = groups("describe", name, "--members")
    assert "EPOCH" not in short.out


def test_state(groups: Callable, kit: GroupsKit, stuck: Stuck) -> None:
    """State, assignor and epochs; type and protocol are ours and come last."""
    name, first, second = stuck
    plain = groups("describe", name, "--state")
    assert tables(plain.out)[1] == [name, kit.bootstrap, "(1)", "uniform", "Reconciling", "2"]
    header, row = tables(groups("describe", name, "--state", "--verbose").out)
    assert " ".join(header) == (
        "GROUP COORDINATOR (ID) ASSIGNMENT-STRATEGY STATE GROUP-EPOCH TARGET-ASSIGNMENT-EPOCH"
        " #MEMBERS TYPE PROTOCOL"
    )
    epoch = str(second.epoch)
    assert row[3:] == ["uniform", "Reconciling", epoch, epoch, "2", "Consumer", "consumer"]
    settle(first, second)
    assert tables(groups("describe", name, "--summary").out)[1] == [
        *(name, "Consumer", "Stable", "2", "8"),
    ]


def test_json_has_everything(groups: Callable, stuck: Stuck) -> None:
    """One document with all views in it."""
    name, first, second = stuck
    (document,) = groups("describe", name, "--format", "json").document
    moving = sorted({0, 1, 2, 3} - set(first.owned))
    assert {key: document[key] for key in ("type", "protocol", "state", "assignor")} == {
        "type": "Consumer",
        "protocol": "consumer",
        "state": "Reconciling",
        "assignor": "uniform",
    }
    assert document["group_epoch"] == document["target_assignment_epoch"] == second.epoch
    one, other = document["members"]
    assert (one["consumer_id"], one["epoch"], one["upgraded"]) == ("a", first.epoch, True)
    assert one["assignment"] == [{"topic": name, "partitions": [0, 1, 2, 3]}]
    assert one["target_assignment"] == [{"topic": name, "partitions": first.owned}]
    assert (other["assignment"], other["epoch"]) == ([], second.epoch)
    assert other["target_assignment"] == [{"topic": name, "partitions": moving}]
    now_ms = time.time() * 1000
    for movement, partition in zip(document["movements"], moving, strict=True):
        assert now_ms - 60_000 < movement.pop("since_ms") <= now_ms
        assert movement == {
            "topic": name,
            "partition": partition,
            "first_slot": None,
            "last_slot": None,
            "from_consumer_id": "a",
            "to_consumer_id": "b",
            "state": "revoking",
        }
    assert document["total_lag"] == 8
    assert {row["consumer_id"] for row in document["partitions"]} == {"a"}


def test_several_groups_at_once(groups: Callable, kit: GroupsKit, stuck: Stuck) -> None:
    """Classic and consumer groups are in one table; a group that is not there is told as ever."""
    name, _, _ = stuck
    kit.commit(f"{name}-old", name, {0: 1})
    result = groups("describe", name, f"{name}-old", "--state", "--verbose")
    rows = {row[0]: row[3:] for row in tables(result.out)[1:]}
    assert rows[f"{name}-old"] == ["-", "Empty", "-", "-", "0", "Classic", "-"]
    assert rows[name][1] == "Reconciling"
    assert "There is no group 'nobody-at-all'" in groups("describe", name, "nobody-at-all").err


def test_an_active_group_is_not_reset(groups: Callable, stuck: Stuck) -> None:
    """The refusal names the state that the group is in."""
    name, _, _ = stuck
    result = groups("reset", name, "--topic", name, "--to-earliest", "--yes")
    assert result.code == 1
    assert f"Group '{name}' is Reconciling with 2 members" in result.err


def test_a_stock_member(groups: Callable, kit: GroupsKit) -> None:
    """A member of librdkafka in a consumer group is shown like any other."""
    topic = kit.topic("stock-848", records=1)
    settings: dict[str, Any] = {"group_protocol": "consumer", "client_id": "stock"}
    with kit.member("stock-848", topic, owning=3, **without_classic(settings)):
        (document,) = groups("describe", "stock-848", "--format", "json").document
        assert (document["type"], document["state"], document["movements"]) == (
            "Consumer",
            "Stable",
            [],
        )
        (member,) = document["members"]
        assert member["assignment"] == member["target_assignment"]
        assert member["epoch"] == document["group_epoch"]
    assert tables(groups("list", "--type", "consumer", "--state", "Empty").out)[1][0] == "stock-848"


def without_classic(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what librdkafka refuses beside the consumer protocol; None leaves it out."""
    return {**settings, "heartbeat_interval_ms": None}


def test_a_way_that_is_secured(tmp_path: Path) -> None:
    """TLS and SASL are librdkafka's alone so far."""
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SASL_SSL\n")
    secured = Connection(bootstrap_server="h:1", command_config=config, timeout_s=1, is_debug=False)
    assert not can_ask(secured)
    config.write_text("security.protocol=PLAINTEXT\n")
    assert can_ask(secured)


@pytest.mark.parametrize("is_secured", [False, True])
def test_movements_without_the_tag(
    groups: Callable, stuck: Stuck, monkeypatch: pytest.MonkeyPatch, is_secured: bool
) -> None:
    """A broker that does not tell of movements is shown with those that its assignments mean."""
    name, first, _ = stuck
    if is_secured:
        target = "anabranch.cli.groups.consumer_details.can_ask"
        monkeypatch.setattr(target, lambda connection: False)
    else:
        target = "anabranch.cli.groups.consumer_details.ConsumerGroupDescribeRequest"
        monkeypatch.setattr(
            target, lambda group_ids, include_movements: ConsumerGroupDescribeRequest(group_ids)
        )
    (document,) = groups("describe", name, "--format", "json").document
    moving = sorted({0, 1, 2, 3} - set(first.owned))
    assert [
        (m["partition"], m["from_consumer_id"], m["to_consumer_id"], m["state"], m["since_ms"])
        for m in document["movements"]
    ] == [(partition, "a", "b", "revoking", None) for partition in moving]
    assert (document["group_epoch"] is None) == is_secured


def test_what_movements_follow_from() -> None:
    """What a member has beyond its target goes, what it lacks comes; no target says nothing."""

    def member(name: str, has: tuple[int, ...], wants: tuple[int, ...] | None) -> Member:
        return Member(
            consumer_id=name,
            group_instance_id=None,
            host="",
            client_id="",
            partitions=tuple(("t", p) for p in has),
            target=None if wants is None else tuple(("t", p) for p in wants),
        )

    found = movements_of([member("a", (0, 1, 5), (0,)), member("b", (2,), (1, 2, 3))])
    assert [(m.partition, m.from_consumer_id, m.to_consumer_id, m.state) for m in found] == [
        (1, "a", "b", "revoking"),
        (3, None, "b", "assigning"),
        (5, "a", None, "revoking"),
    ]
    assert movements_of([member("a", (0,), None)]) == ()
