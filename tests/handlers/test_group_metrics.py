"""What happens to groups, counted: causes, durations, movements, fencings, states."""

from typing import Any

import pytest
from consumer_group_calls import PARTITIONS, ConsumerNode, Member, settle
from group_calls import DELAY_MS, GROUP, SESSION_MS

from anabranch.coordinator.group.consumer_describe import movements
from anabranch.observe.metrics import BUILD_INFO, METRICS, Histogram
from anabranch.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from support.fake_loop import FakeLoop


def counts(node: ConsumerNode) -> dict[tuple[str, ...], float]:
    """All series that are not zero, without the common prefix."""
    found: dict[tuple[str, ...], float] = {}
    for metric, values in node.broker.groups.collect_metrics():
        for labels, value in values.items():
            assert len(labels) == len(metric.labels)
            number = value.count if isinstance(value, Histogram) else value
            if number:
                found[metric.name.removeprefix("anabranch_").removeprefix("group_"), *labels] = (
                    number
                )
    return found


def causes(node: ConsumerNode, protocol: str) -> dict[str, float]:
    return {
        key[2]: number
        for key, number in counts(node).items()
        if key[0] == "rebalances_total" and key[1] == protocol
    }


def took_s(node: ConsumerNode, protocol: str) -> float:
    return node.broker.groups.metrics.durations[protocol].sum_s


def test_every_metric_of_the_table_is_collected(consumer_node: ConsumerNode) -> None:
    """Also before the first group and transaction: a series from 0 on can be alerted on.

    Those with a group in their labels have none before there is one.
    """
    broker = consumer_node.broker
    found = dict((*broker.groups.collect_metrics(), *broker.transactions.collect_metrics()))
    assert list(found) == [metric for metric in METRICS if metric is not BUILD_INFO]
    assert all(values for metric, values in found.items() if "group" not in metric.labels)
    assert counts(consumer_node) == {}


# Consumer groups ----------------------------------------------------------------------------------


def test_a_rebalance_from_join_to_settled(consumer_node: ConsumerNode) -> None:
    """It lasts from the new epoch until the last member has caught up, and moves what it moves."""
    first = Member(consumer_node, "a")
    assert causes(consumer_node, "consumer") == {"join": 1}
    assert counts(consumer_node)["partitions_moved_total",] == PARTITIONS
    assert counts(consumer_node)["rebalance_duration_seconds", "consumer"] == 1
    assert took_s(consumer_node, "consumer") == 0
    second = Member(consumer_node, "b")
    first.beat()
    consumer_node.pass_ms(1_500)
    moving = counts(consumer_node)["partitions_moving",]
    assert moving == len(list(movements(consumer_node.consumer_group))) == PARTITIONS // 2
    assert counts(consumer_node)["groups", "consumer", "Reconciling"] == 1
    settle(first, second)
    found = counts(consumer_node)
    assert causes(consumer_node, "consumer") == {"join": 2}
    assert found["partitions_moved_total",] == PARTITIONS + PARTITIONS // 2
    assert ("partitions_moving",) not in found
    assert found["rebalance_duration_seconds", "consumer"] == 2
    assert took_s(consumer_node, "consumer") == pytest.approx(1.5)
    assert found["groups", "consumer", "Stable"] == 1
    assert found["members", "consumer"] == 2


def test_plain_heartbeats(consumer_node: ConsumerNode) -> None:
    """They are counted, and nothing else is."""
    member = Member(consumer_node, "a")
    before = counts(consumer_node)
    for _ in range(5):
        member.beat()
    after = counts(consumer_node)
    assert after.pop(("heartbeats_total", "consumer")) == 6
    before.pop(("heartbeats_total", "consumer"))
    assert after == before


def test_two_changes_are_one_duration(consumer_node: ConsumerNode) -> None:
    """A group that changes again on its way is settled once."""
    members = [Member(consumer_node, "a")]
    consumer_node.pass_ms(1_000)
    members.append(Member(consumer_node, "b"))
    consumer_node.pass_ms(1_000)
    members.append(Member(consumer_node, "c"))
    settle(*members)
    assert causes(consumer_node, "consumer") == {"join": 3}
    assert counts(consumer_node)["rebalance_duration_seconds", "consumer"] == 2
    assert took_s(consumer_node, "consumer") == pytest.approx(1.0)


def test_causes_of_consumer_groups(consumer_node: ConsumerNode, loop: FakeLoop) -> None:
    """Each change is counted under what brought it about."""
    consumer_node.create_topic("u", 1)
    member = Member(consumer_node, "a")
    member.beat(subscribed_topic_names=["t", "u"])
    assert causes(consumer_node, "consumer") == {"join": 1, "subscription": 1}
    consumer_node.broker.topics.grow(consumer_node.broker.topics.get("u"), 2, consumer_node.now_ms)
    consumer_node.pass_ms(1)
    member.beat(server_assignor="range")
    member.beat(subscribed_topic_names=[], subscribed_topic_regex="t")
    loop.finish_jobs()
    found = causes(consumer_node, "consumer")
    assert found.pop("subscription") == 2
    assert found == {"join": 1, "topics": 1, "assignor": 1, "regex": 1}
    consumer_node.beat("a", -1)
    assert causes(consumer_node, "consumer")["leave"] == 1
    assert counts(consumer_node)["groups", "consumer", "Empty"] == 1


def test_members_that_are_put_out(consumer_node: ConsumerNode) -> None:
    """Silence and slowness are told apart; what they say afterwards is a fencing."""
    slow = Member(consumer_node, "a", rebalance_timeout_ms=5_000)
    Member(consumer_node, "b")
    slow.beat()
    consumer_node.pass_ms(5_001)
    assert causes(consumer_node, "consumer") == {"join": 2, "rebalance-timeout": 1}
    consumer_node.pass_ms(60_000)
    assert causes(consumer_node, "consumer")["session-expired"] == 1
    assert ("members", "consumer") not in counts(consumer_node)
    consumer_node.beat("a", slow.epoch)
    assert counts(consumer_node)["fencings_total", "consumer", "UNKNOWN_MEMBER_ID"] == 1


def test_fencings(consumer_node: ConsumerNode) -> None:
    """Refusals that put a member out count by their code; mistakes of form do not."""
    member = Member(consumer_node, "a", instance_id="i")
    consumer_node.beat("a", member.epoch + 1, instance_id="i")
    consumer_node.beat("x", 1, instance_id="i")
    consumer_node.enter("x", instance_id="i")
    consumer_node.beat("a", -3)
    consumer_node.commit(1, 0, member_id="a", generation_id=member.epoch + 5)
    found = {key[1:]: n for key, n in counts(consumer_node).items() if key[0] == "fencings_total"}
    assert found == {
        ("consumer", "FENCED_MEMBER_EPOCH"): 1,
        ("consumer", "FENCED_INSTANCE_ID"): 1,
        ("consumer", "UNRELEASED_INSTANCE_ID"): 1,
        ("consumer", "STALE_MEMBER_EPOCH"): 1,
    }


def test_a_static_member_that_comes_back(consumer_node: ConsumerNode) -> None:
    """Its partitions come to the new process; they are counted once."""
    Member(consumer_node, "a", instance_id="i")
    consumer_node.beat("a", -2, instance_id="i")
    Member(consumer_node, "a2", instance_id="i")
    assert counts(consumer_node)["partitions_moved_total",] == 2 * PARTITIONS


# Classic groups -----------------------------------------------------------------------------------


def leave(node: ConsumerNode, member_id: str) -> None:
    identity = MemberIdentity(member_id=member_id)
    node.call(LeaveGroupRequest(group_id=GROUP, members=[identity]))


def test_a_classic_group(consumer_node: ConsumerNode) -> None:
    """It rebalances from the first join to Stable, and with everyone who comes or goes."""
    first, second = consumer_node.stable(2)
    assert causes(consumer_node, "classic") == {"join": 1}
    found = counts(consumer_node)
    assert found["rebalance_duration_seconds", "classic"] == 1
    assert took_s(consumer_node, "classic") == pytest.approx(DELAY_MS / 1000, abs=3)
    assert found["groups", "classic", "Stable"] == 1
    assert found["members", "classic"] == 2
    consumer_node.heartbeat(first)
    consumer_node.heartbeat(second, generation_id=9)
    leave(consumer_node, second)
    found = counts(consumer_node)
    assert causes(consumer_node, "classic") == {"join": 1, "leave": 1}
    assert found["heartbeats_total", "classic"] == 2
    assert found["fencings_total", "classic", "ILLEGAL_GENERATION"] == 1
    assert found["groups", "classic", "PreparingRebalance"] == 1


def test_a_classic_member_that_is_silent(consumer_node: ConsumerNode) -> None:
    """The session that ends is the cause."""
    first, second = consumer_node.stable(2)
    for _ in range(3):
        consumer_node.pass_ms(SESSION_MS // 2)
        consumer_node.heartbeat(first)
    assert causes(consumer_node, "classic") == {"join": 1, "session-expired": 1}
    assert second not in consumer_node.group().members


def test_groups_that_only_hold_offsets(consumer_node: ConsumerNode) -> None:
    """They are Empty classic groups, as in a list."""
    consumer_node.commit(1, 0, group_id="x")
    assert counts(consumer_node) == {("groups", "classic", "Empty"): 1}


def test_labels_are_bounded(consumer_node: ConsumerNode) -> None:
    """However many groups there are, the series are the same."""

    def series() -> set[Any]:
        collected = consumer_node.broker.groups.collect_metrics()
        return {(metric.name, labels) for metric, values in collected for labels in values}

    before = series()
    for number in range(5):
        consumer_node.enter(f"m{number}", group_id=f"g{number}")
        consumer_node.beat(f"x{number}", 5, group_id=f"g{number}")
    assert series() == before
