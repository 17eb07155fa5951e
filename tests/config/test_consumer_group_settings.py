"""Settings of the consumer protocol: what bounds what, and what the flags of `serve` do to it."""

from pathlib import Path

import pytest

from anabranch.config.consumer_group_settings import BOUNDED_SETTINGS, BoundedSetting
from anabranch.config.definitions import BROKER_SETTINGS
from anabranch.config.group_config import migration_policy, serves_consumer_protocol
from anabranch.config.load import ConfigError, Layer, Settings, load_settings
from anabranch.config.serve_flags import SERVE_FLAGS

SESSION = "group.consumer.session.timeout.ms"
MIN_SESSION = "group.consumer.min.session.timeout.ms"
MAX_SESSION = "group.consumer.max.session.timeout.ms"
HEARTBEAT = "group.consumer.heartbeat.interval.ms"
MIN_HEARTBEAT = "group.consumer.min.heartbeat.interval.ms"
MAX_HEARTBEAT = "group.consumer.max.heartbeat.interval.ms"
ASSIGNMENT = "group.consumer.assignment.interval.ms"
MIN_ASSIGNMENT = "group.consumer.min.assignment.interval.ms"
MAX_ASSIGNMENT = "group.consumer.max.assignment.interval.ms"
PROTOCOLS = "group.coordinator.rebalance.protocols"
POLICY = "group.consumer.migration.policy"


def load(*overrides: str, file: Path | None = None) -> Settings:
    return load_settings(properties_path=file, environ={}, overrides=overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return str(caught.value)


@pytest.mark.parametrize("bounded", BOUNDED_SETTINGS, ids=lambda b: b.name)
def test_a_value_lies_within_its_bounds(bounded: BoundedSetting) -> None:
    """The broker does not start with a value below the least or above the most."""
    default = load().get_int(bounded.name)
    low = [f"{bounded.name}={default}", f"{bounded.least}={default + 1}"]
    assert refusal(*low) == (
        f"--override: {bounded.name}={default} is less than {bounded.least}={default + 1}. "
        "Change one of them."
    )
    high = [f"{bounded.name}={default}", f"{bounded.most}={default - 1}"]
    assert f"{bounded.name}={default} is more than {bounded.most}={default - 1}" in refusal(
        *high, f"{bounded.least}=1"
    )
    assert f"{bounded.least}=9 is more than {bounded.most}=8" in refusal(
        f"{bounded.least}=9", f"{bounded.most}=8"
    )
    load(f"{bounded.name}={default}", f"{bounded.least}={default}", f"{bounded.most}={default}")


def test_heartbeats_come_within_a_session() -> None:
    """Heartbeats as far apart as a session is long are refused."""
    wide = [f"{MIN_SESSION}=1", f"{MAX_HEARTBEAT}=60000"]
    load(*wide, f"{SESSION}=5001")
    assert refusal(*wide, f"{SESSION}=5000") == (
        f"--override: {HEARTBEAT}=5000 is not less than {SESSION}=5000. Change one of them."
    )


def test_the_assignment_interval_gives_way() -> None:
    """Bounds that suit Kafka's default suit ours too: it moves, unless somebody set it."""
    assert load().get_int(ASSIGNMENT) == 50
    settings = load(f"{MIN_ASSIGNMENT}=1000")
    assert settings.get_int(ASSIGNMENT) == 1000
    assert str(settings.source(ASSIGNMENT)) == "--override"
    assert load(f"{MAX_ASSIGNMENT}=10").get_int(ASSIGNMENT) == 10
    assert "is less than" in refusal(f"{MIN_ASSIGNMENT}=1000", f"{ASSIGNMENT}=50")


def test_protocols() -> None:
    """`consumer` can be left out, `classic` cannot, and what Kafka has besides is accepted."""
    assert serves_consumer_protocol(load())
    assert serves_consumer_protocol(load(f"{PROTOCOLS}=classic,consumer,streams"))
    assert not serves_consumer_protocol(load(f"{PROTOCOLS}=classic"))
    assert "Disabling the 'classic' protocol" in refusal(f"{PROTOCOLS}=consumer")
    assert "Disabling the 'classic' protocol" in refusal(f"{PROTOCOLS}=")
    assert "String must be one of" in refusal(f"{PROTOCOLS}=classic,new")


def test_migration_policy() -> None:
    """The policy may be written in any case."""
    assert migration_policy(load()) == "bidirectional"
    assert migration_policy(load(f"{POLICY}=UPGRADE")) == "upgrade"
    assert "String must be one of (case insensitive)" in refusal(f"{POLICY}=sometimes")


def test_assignors_may_be_named_after_kafkas_classes() -> None:
    """A `server.properties` with class names is read; an empty list is not."""
    name = "org.apache.kafka.coordinator.group.assignor.RangeAssignor"
    settings = load(f"group.consumer.assignors={name},uniform")
    assert settings.get_list("group.consumer.assignors") == (name, "uniform")
    assert "must not be empty" in refusal("group.consumer.assignors=")


@pytest.mark.parametrize(
    "name",
    [
        "group.consumer.assignor.offload.enable",
        "group.coordinator.threads",
        "group.coordinator.background.threads",
        "group.coordinator.append.linger.ms",
        "group.coordinator.cached.buffer.max.bytes",
        "group.share.session.timeout.ms",
        "group.streams.session.timeout.ms",
    ],
)
def test_what_has_no_effect_is_information(name: str) -> None:
    """Settings of Kafka's coordinator that we do not need are no warning."""
    settings = load(f"{name}=1")
    assert settings.warnings == ()
    assert settings.infos == (f"--override: {name} is a setting of Kafka that has no effect here.",)


def test_a_typo_is_not_taken_for_a_setting_of_kafka() -> None:
    """A misspelled setting of groups is warned about like any other."""
    (warning,) = load("group.consumer.sesion.timeout.ms=1").warnings
    assert f"Did you mean {SESSION}?" in warning


def test_flags_stand_for_settings() -> None:
    """Each flag stands for a setting that exists."""
    assert set(SERVE_FLAGS.values()) <= BROKER_SETTINGS.keys()


def test_a_flag_counts_above_an_override(tmp_path: Path) -> None:
    """The flag is named wherever the value is, also in what is wrong with it."""
    file = tmp_path / "server.properties"
    file.write_text("group.consumer.max.size=10\n")
    settings = load("--consumer-max-group-size=1000", "group.consumer.max.size=20", file=file)
    assert settings.get_int("group.consumer.max.size") == 20
    settings = load("group.consumer.max.size=20", "--consumer-max-group-size=1000", file=file)
    assert settings.get_int("group.consumer.max.size") == 1000
    assert settings.source("group.consumer.max.size").layer is Layer.OVERRIDE
    assert refusal("--consumer-max-group-size=0").startswith(
        "--consumer-max-group-size: group.consumer.max.size=0 cannot be used: "
    )


@pytest.mark.parametrize(
    ("flag", "moved", "value"),
    [
        ("--consumer-session-timeout-ms=30000", MIN_SESSION, 30_000),
        ("--consumer-session-timeout-ms=90000", MAX_SESSION, 90_000),
        ("--consumer-heartbeat-interval-ms=1000", MIN_HEARTBEAT, 1_000),
        ("--consumer-heartbeat-interval-ms=20000", MAX_HEARTBEAT, 20_000),
    ],
)
def test_a_flag_moves_a_bound(flag: str, moved: str, value: int) -> None:
    """A flag outside of the bounds moves the one it is beyond, and leaves the other alone."""
    settings = load(flag)
    name = flag.partition("=")[0]
    assert settings.get_int(SERVE_FLAGS[name]) == settings.get_int(moved) == value
    assert str(settings.source(moved)) == name
    (bounded,) = [b for b in BOUNDED_SETTINGS if moved in (b.least, b.most)]
    (other,) = {bounded.least, bounded.most} - {moved}
    assert not settings.is_set(other)


def test_a_bound_that_is_set_is_not_moved() -> None:
    """Who sets both a value and a bound is told of the contradiction."""
    assert refusal(f"{MIN_SESSION}=45000", "--consumer-session-timeout-ms=30000") == (
        f"--consumer-session-timeout-ms: {SESSION}=30000 is less than {MIN_SESSION}=45000. "
        "Change one of them."
    )
    assert "is less than" in refusal(f"{SESSION}=30000")


def test_a_flag_within_the_bounds_moves_nothing() -> None:
    """Only the setting itself is given."""
    assert load("--consumer-session-timeout-ms=50000").given.keys() == {SESSION}
