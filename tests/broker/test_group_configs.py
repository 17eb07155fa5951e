"""The values that count for a group, and who hears when they change."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.group_configs import EVERY_GROUP, GroupConfigValues
from anabranch.config.group_config import validate_group_configs
from anabranch.config.load import load_settings
from anabranch.model.errors import ErrorCode, KafkaError

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT, BUDGET = "consumer.assignment.interval.ms", "consumer.heartbeat.rate.budget"
DEFAULTS = GroupConfigValues(45_000, 5_000, 50, 500)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start a broker on the same folder; the one before is stopped."""
    running: list[Broker] = []

    def stop() -> None:
        while running:
            running.pop().close()

    def make(*overrides: str) -> Broker:
        stop()
        settings = load_settings(environ={}, overrides=[f"log.dirs={tmp_path}", *overrides])
        running.append(Broker(settings, now_ms=lambda: 0))
        return running[0]

    yield make
    stop()


def test_defaults_and_own_values(start: Callable[..., Broker]) -> None:
    """A group has the broker's values but for those it sets itself."""
    configs = start().group_configs
    assert configs.effective("g") == DEFAULTS
    configs.set("g", {SESSION: " 50000 ", BUDGET: "0"})
    assert configs.effective("g") == GroupConfigValues(50_000, 5_000, 50, 0)
    assert configs.effective("other") == DEFAULTS
    configs.set("g", {})
    assert configs.effective("g") == DEFAULTS
    assert configs.group_ids() == []


def test_restart(start: Callable[..., Broker]) -> None:
    """What groups set outlives the broker."""
    start().group_configs.set("b", {ASSIGNMENT: "7"})
    start().group_configs.set("a", {HEARTBEAT: "6000"})
    configs = start("group.consumer.session.timeout.ms=46000").group_configs
    assert configs.group_ids() == ["a", "b"]
    assert configs.effective("a") == GroupConfigValues(46_000, 6_000, 50, 500)
    assert configs.effective("b") == GroupConfigValues(46_000, 5_000, 7, 500)


def test_who_hears_of_a_change(start: Callable[..., Broker]) -> None:
    """A change of a group tells its name; one of the broker tells that it may be every group."""
    broker = start()
    told: list[tuple[str, GroupConfigValues]] = []
    configs = broker.group_configs
    configs.on_change = lambda name: told.append((name, configs.effective(name or "g")))
    configs.set("g", {ASSIGNMENT: "7"})
    broker.set_broker_configs(
        "",
        {
            "group.consumer.heartbeat.rate.budget": "100",
            "group.consumer.assignment.interval.ms": "60",
        },
    )
    assert told == [
        ("g", GroupConfigValues(45_000, 5_000, 7, 500)),
        (EVERY_GROUP, GroupConfigValues(45_000, 5_000, 7, 100)),
    ]
    assert configs.effective("other") == GroupConfigValues(45_000, 5_000, 60, 100)


def test_bounds_that_changed(
    start: Callable[..., Broker], lines: list[tuple[str, dict[str, Any]]]
) -> None:
    """A value that the broker would not take any more counts as the nearest bound, and is kept."""
    configs = start().group_configs
    configs.set("g", {SESSION: "60000", HEARTBEAT: "5000"})
    narrow = "group.consumer.max.session.timeout.ms=50000"
    configs = start(
        narrow,
        "group.consumer.min.heartbeat.interval.ms=6000",
        "group.consumer.heartbeat.interval.ms=6000",
    ).group_configs
    assert configs.effective("g") == GroupConfigValues(50_000, 6_000, 50, 500)
    assert configs.configs_of("g") == {SESSION: "60000", HEARTBEAT: "5000"}
    assert [event for event in lines if event[0].startswith("group.config")] == [
        ("group.config.capped", {"group": "g", "config": SESSION, "value": 60000, "counts": 50000}),
        ("group.config.capped", {"group": "g", "config": HEARTBEAT, "value": 5000, "counts": 6000}),
    ]


def test_bounds_that_overlap(start: Callable[..., Broker]) -> None:
    """Bounds never leave a group with heartbeats further apart than its session is long."""
    configs = start(
        "group.consumer.min.session.timeout.ms=1000",
        "group.consumer.max.heartbeat.interval.ms=50000",
    ).group_configs
    configs.set("g", {SESSION: "60000", HEARTBEAT: "50000"})
    configs = start(
        "group.consumer.session.timeout.ms=9000",
        "group.consumer.min.session.timeout.ms=9000",
        "group.consumer.max.session.timeout.ms=9000",
    ).group_configs
    assert configs.effective("g") == GroupConfigValues(9_000, 3_000, 50, 500)


def test_an_altered_setting_outside_of_new_bounds(start: Callable[..., Broker]) -> None:
    """What clients altered for the broker keeps to the bounds that it is started with later."""
    start().set_broker_configs("", {"group.consumer.assignment.interval.ms": "9000"})
    configs = start("group.consumer.max.assignment.interval.ms=100").group_configs
    assert configs.effective("g").assignment_interval_ms == 100


def test_what_another_version_kept(
    start: Callable[..., Broker], lines: list[tuple[str, dict[str, Any]]]
) -> None:
    """Configs that this version does not take are dropped with a warning, not with the start."""
    stored = {SESSION: "50000", HEARTBEAT: "often", "consumer.colour": "red"}
    start().engine.store.set_group_configs("g", stored)
    start().engine.store.set_group_configs("h", {"consumer.colour": "red"})
    configs = start().group_configs
    assert configs.group_ids() == ["g"]
    assert configs.configs_of("g") == {SESSION: "50000"}
    dropped = {(e[1]["group"], e[1]["config"]) for e in lines if e[0] == "group.config.dropped"}
    assert dropped == {("g", HEARTBEAT), ("g", "consumer.colour"), ("h", "consumer.colour")}


def test_individual_commits_of_a_group(start: Callable[..., Broker]) -> None:
    """A group may have another limit, disposition and dead-letter topic than the broker says."""
    broker = start("coop.delivery.limit=3", "coop.disposition=dlq")
    settings = broker.groups.cooperative_settings
    broker.group_configs.set("g", {"coop.disposition": "dlq-key", "coop.dlq.topic": "dead"})
    broker.group_configs.set("other", {SESSION: "50000"})
    for group_id, expected in (
        ("g", (3, "dlq-key", "dead")),
        ("other", (3, "dlq", "")),
        ("third", (3, "dlq", "")),
    ):
        found = settings(group_id)
        assert (found.delivery_limit, found.disposition, found.dlq_topic) == expected
    broker.set_broker_configs("", {"coop.delivery.limit": "4"})
    assert settings("g").delivery_limit == 4
    broker.group_configs.set("g", {"coop.delivery.limit": "9"})
    assert (settings("g").delivery_limit, settings("g").disposition) == (9, "dlq")


def test_values_that_are_no_numbers(start: Callable[..., Broker]) -> None:
    """Are checked like those of the broker."""
    number_of = start().get_int
    validate_group_configs({"coop.disposition": "dlq", "coop.dlq.topic": "dead"}, number_of)
    for name, value in (("coop.disposition", "burn"), ("coop.delivery.limit", "0")):
        with pytest.raises(KafkaError) as refused:
            validate_group_configs({name: value}, number_of)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
