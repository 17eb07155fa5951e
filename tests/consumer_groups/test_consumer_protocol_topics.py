"""Topics come, grow and go under the members of consumer groups, who are told by the broker."""

from stage import Stage

# None of these clients asks for metadata on its own within the time of a test: the interval of
# librdkafka is five minutes. What they hear of, they hear in the answers to their heartbeats.
SOON_S = 5


def test_regular_expression(stage: Stage) -> None:
    """Topics that are created live and match a regular expression are soon assigned."""
    stage.create("orders-eu", 2)
    members = [stage.join("^orders-.*"), stage.join("^orders-.*")]
    stage.shared(members)
    stage.flowing()
    for topic in ("orders-us", "orders-asia"):
        stage.create(topic, 4)
        stage.shared(members, timeout_s=SOON_S)
        stage.flowing()
    stage.finish()


def test_names_and_expressions_side_by_side(stage: Stage) -> None:
    """A member gets only what it subscribed to, by name or by expression."""
    stage.create("orders", 4)
    stage.create("logs-a", 2)
    by_name, by_expression = stage.join("orders"), stage.join("^logs-.*")
    stage.wait_for(
        lambda: by_name.owned | by_expression.owned == stage.load.partitions, "assignments"
    )
    stage.create("logs-b", 2)
    logs = {"logs-a-0", "logs-a-1", "logs-b-0", "logs-b-1"}
    stage.wait_for(lambda: by_expression.owned == logs, "the new topic", SOON_S)
    assert by_name.owned == {f"orders-{number}" for number in range(4)}
    stage.flowing()
    stage.finish()


def test_a_topic_before_its_time(stage: Stage) -> None:
    """A member that waits for a topic that does not exist is assigned it when it is created."""
    member = stage.join("orders")
    stage.wait_for(lambda: len(stage.describe().members) == 1, "the join")
    stage.create("orders", 3)
    stage.shared([member], timeout_s=SOON_S)
    stage.flowing()
    stage.finish()


def test_growth(stage: Stage) -> None:
    """New partitions of a topic are shared out, and what the members had stays with them."""
    stage.create("orders", 4)
    members = [stage.join(), stage.join()]
    stage.shared(members)
    stage.flowing()
    before = [member.owned for member in members]
    revocations = [len(member.of("revoked")) for member in members]
    stage.grow("orders", 4, 10)
    stage.shared(members, timeout_s=SOON_S)
    assert all(had <= member.owned for had, member in zip(before, members, strict=True))
    assert [len(member.of("revoked")) for member in members] == revocations
    stage.flowing()
    stage.finish()


def test_deletion(stage: Stage) -> None:
    """The partitions of a deleted topic are taken back; the other topic is not disturbed."""
    stage.create("orders", 4)
    stage.create("returns", 4)
    members = [stage.join("orders,returns"), stage.join("orders,returns")]
    stage.shared(members)
    stage.flowing()
    stage.delete("returns")
    stage.shared(members)
    stage.flowing()
    for member in members:
        assert all(partition.startswith("returns-") for partition, _ in member.refusals)
    stage.finish(faulty=members)
