"""`anabranch groups describe --member`: one member, and what it owns."""

import time
from collections.abc import Callable

from command_result import Result
from confluent_kafka import Consumer
from groups_kit import GroupsKit


def test_only_one_member(groups: Callable[..., Result], kit: GroupsKit) -> None:
    """Other members and their partitions are left out, in all views and formats."""
    kit.topic("shared", records=2)
    joining = {"group_protocol": "consumer", "heartbeat_interval_ms": None}
    with (
        kit.member("pair", "shared", **joining) as first,
        kit.member("pair", "shared", **joining) as second,
    ):
        wait_until_shared(groups, first, second)
        chosen = first.memberid()
        (found,) = groups("describe", "pair", "--member", chosen, "--format", "json").document
        assert [one["consumer_id"] for one in found["members"]] == [chosen]
        mine = {(tp.topic, tp.partition) for tp in first.assignment()}
        assert {(one["topic"], one["partition"]) for one in found["partitions"]} == mine
        table = groups("describe", "pair", "--members", "--member", chosen, "--format", "tsv").out
        assert [line.split("\t")[1] for line in table.splitlines()[1:]] == [chosen]
        wrong = groups("describe", "pair", "--member", f"{chosen}x")
        assert (wrong.code, wrong.out) == (1, "")
        assert f"did you mean '{chosen}'?" in wrong.err


def wait_until_shared(groups: Callable[..., Result], *consumers: Consumer) -> None:
    """Until each of the consumers has a partition, and the group is at rest."""
    deadline_s = time.monotonic() + 60
    while True:
        for consumer in consumers:
            consumer.poll(0.05)
        (found,) = groups("describe", "pair", "--format", "json").document
        counts = [sum(len(t["partitions"]) for t in m["assignment"]) for m in found["members"]]
        owned = [len(consumer.assignment()) for consumer in consumers]
        if found["state"] == "Stable" and sorted(counts) == sorted(owned) == [1, 2]:
            return
        assert time.monotonic() < deadline_s, found
