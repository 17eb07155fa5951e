"""What members of consumer groups go through while others come and go and the broker dies."""

import math
from itertools import pairwise

from consumers import ConsumerMember
from stage import Stage

from anabranch.wire.messages.consumer_group_describe import DescribedGroup


def test_commits_under_churn(stage: Stage) -> None:
    """Members that commit all the time are never refused, whoever comes and goes (KIP-1251)."""
    stage.create("orders", 12)
    steady = [stage.join(commit="flow") for _ in range(2)]
    stage.shared(steady)
    for _ in range(4):
        visitors = [stage.join(commit="flow"), stage.join(commit="each")]
        stage.shared([*steady, *visitors])
        stage.close(visitors)
        stage.shared(steady)
    epochs = stage.stable().group_epoch
    assert epochs > 4, "the group has moved on again and again"
    assert all(len(member.of("confirmed")) > 50 for member in steady)
    stage.finish()
    assert [member.refusals for member in stage.members] == [[]] * len(stage.members)


def test_broker_dies_during_a_revocation(stage: Stage) -> None:
    """A broker that dies while partitions are on their way brings them there afterwards."""
    stage.create("orders", 8)
    slow = stage.join(hold_revoke="1")
    stage.shared([slow])
    stage.flowing()
    newcomer = stage.join()
    stage.wait_for(lambda: bool(slow.of("revoking")), "the revocation")
    before = stage.describe()
    assert before.group_state == "Reconciling"
    assert {movement.state for movement in before.movements} == {"revoking"}
    stage.crash_broker()
    after = stage.describe()
    assert (after.group_state, after.group_epoch) == (before.group_state, before.group_epoch)
    assert _epochs(after) == _epochs(before)
    assert _ways(after) == _ways(before)
    assert newcomer.owned == set()
    slow.let_revoke()
    stage.shared([slow, newcomer])
    assert stage.stable().group_epoch == before.group_epoch
    stage.flowing()
    stage.finish()


def test_broker_dies_again_and_again(stage: Stage) -> None:
    """A broker that dies at any moment of a rebalance takes the group on from there."""
    stage.create("orders", 12)
    members = [stage.join()]
    stage.shared(members)
    for _ in range(3):
        comer = stage.join()
        members.append(comer)
        stage.wait_for(lambda comer=comer: bool(comer.of("joining")), "somebody new")
        stage.describe()
        stage.crash_broker()
        stage.describe()
        stage.shared(members)
        stage.stable()
    stage.flowing()
    stage.finish(faulty=members)


def test_unmoved_partitions_flow_on(stage: Stage) -> None:
    """A rebalance does not hold up the partitions that stay where they are."""
    stage.create("orders", 12)
    steady = [stage.join(commit="flow") for _ in range(2)]
    stage.shared(steady)
    stage.flowing()
    for _ in range(3):
        visitor = stage.join(commit="flow")
        stage.shared([*steady, visitor])
        stage.flowing()
        visitor.close()
        stage.shared(steady)
        stage.flowing()
    pauses = [pause for member in steady for pause in _pauses(member)]
    # A record comes every 60 ms. How much flows is measured by bench/rebalance, on a quiet machine.
    assert max(pauses) < 2
    stage.finish()


def _pauses(member: ConsumerMember) -> list[float]:
    """The times between two records of a partition that a member never gave up while it lived."""
    left_at = member.of("leaving")[0]["at"] if member.of("leaving") else math.inf
    moved = {p for e in member.of("revoked") if e["at"] < left_at for p in e["partitions"]}
    times: dict[str, list[float]] = {}
    for event in member.of("record"):
        if event["partition"] not in moved:
            times.setdefault(event["partition"], []).append(event["at"])
    assert times, "some partition stays"
    return [later - earlier for some in times.values() for earlier, later in pairwise(some)]


def _epochs(group: DescribedGroup) -> dict[str, int]:
    return {member.member_id: member.member_epoch for member in group.members}


def _ways(group: DescribedGroup) -> list[tuple[int, str, str]]:
    return [(m.partition, m.from_member_id, m.to_member_id) for m in group.movements]
