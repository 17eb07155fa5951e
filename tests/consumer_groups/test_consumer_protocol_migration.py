"""A group under load changes its protocol member by member, and back: stock librdkafka."""

import pytest
from stage import Stage


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_upgrade_and_back(stage: Stage, strategy: str) -> None:
    """A rolling restart takes a classic group to the consumer protocol, another one back."""
    classic = {"protocol": "classic", "strategy": strategy}
    stage.create("orders", 9)
    members = [stage.join(**classic) for _ in range(3)]
    stage.shared(members)
    stage.flowing()
    assert stage.group_type() == "classic"
    for options, type_after in (({"protocol": "consumer"}, "consumer"), (classic, "classic")):
        for number in range(3):
            members[number].close()
            members[number] = stage.join(**options)
            stage.shared(members)
            stage.flowing()
        assert stage.group_type() == type_after
    stage.finish()
