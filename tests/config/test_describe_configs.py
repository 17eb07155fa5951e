"""DescribeConfigs shows every setting with its value, its source and what stands behind it."""

from dataclasses import replace

import pytest

from anabranch.config.branch_settings import COMMIT_SOURCE_CONFIG, FIXED_CONFIGS
from anabranch.config.definitions import ALIASES, BROKER_SETTINGS, TOPIC_SETTINGS
from anabranch.config.describe import (
    ConfigRow,
    describe_branch_topic,
    describe_broker,
    describe_cluster_default,
    describe_topic,
)
from anabranch.config.layers import ConfigSource, DynamicConfigs
from anabranch.config.load import Settings, load_settings
from anabranch.config.setting import ConfigType

NOTHING = DynamicConfigs()


def settings(*overrides: str) -> Settings:
    return load_settings(environ={}, overrides=overrides)


def topic_row(name: str, *given: str, dynamic: DynamicConfigs = NOTHING, **own: str) -> ConfigRow:
    overrides = {key.replace("_", "."): value for key, value in own.items()}
    (row,) = describe_topic(settings(*given), dynamic, overrides, [name])
    return row


def broker_row(name: str, *given: str, dynamic: DynamicConfigs = NOTHING) -> ConfigRow:
    (row,) = describe_broker(settings(*given), dynamic, [name])
    return row


def behind(row: ConfigRow) -> list[tuple[int, str, str | None]]:
    return [(synonym.source.value, synonym.name, synonym.value) for synonym in row.synonyms]


def test_source_numbers_are_kafkas() -> None:
    """Clients turn these numbers into words."""
    assert ConfigSource.DYNAMIC_TOPIC_CONFIG == 1
    assert ConfigSource.DYNAMIC_BROKER_CONFIG == 2
    assert ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG == 3
    assert ConfigSource.STATIC_BROKER_CONFIG == 4
    assert ConfigSource.DEFAULT_CONFIG == 5
    assert ConfigSource.DYNAMIC_GROUP_CONFIG == 8


def test_a_default_of_a_topic() -> None:
    """A topic that sets nothing shows defaults, and the broker settings they come from."""
    row = topic_row("segment.bytes")
    assert (row.value, row.source, row.is_default) == ("1073741824", 5, True)
    assert behind(row) == [(5, "log.segment.bytes", "1073741824")]
    assert row.type is ConfigType.INT
    assert row.documentation == TOPIC_SETTINGS["segment.bytes"].documentation
    assert not row.read_only
    assert not row.sensitive


def test_values_are_spelled_as_kafka_spells_them() -> None:
    """Booleans are lower case, lists are joined by commas, empty lists are empty."""
    assert topic_row("preallocate").value == "false"
    assert topic_row("cleanup.policy", cleanup_policy=" compact , delete").value == "compact,delete"
    assert topic_row("leader.replication.throttled.replicas").value == ""
    assert topic_row("min.cleanable.dirty.ratio").value == "0.5"
    assert topic_row("flush.ms").value == "9223372036854775807"


def test_all_layers_of_a_topic_setting_in_order() -> None:
    """The value that counts is first, and its source is the source of the row."""
    dynamic = DynamicConfigs({"log.retention.ms": "2"}, {"log.retention.ms": "3"})
    row = topic_row(
        "retention.ms",
        "log.retention.ms=4",
        "log.retention.hours=5",
        dynamic=dynamic,
        retention_ms=" 1 ",
    )
    assert (row.value, row.source, row.is_default) == ("1", 1, False)
    assert behind(row) == [
        (1, "retention.ms", "1"),
        (2, "log.retention.ms", "2"),
        (3, "log.retention.ms", "3"),
        (4, "log.retention.ms", "4"),
        (4, "log.retention.hours", "5"),
        (5, "log.retention.hours", "168"),
    ]


def test_a_topic_value_from_a_coarser_spelling() -> None:
    """The value is converted, what stands behind it is shown as it was given."""
    row = topic_row("retention.ms", "log.retention.hours=24")
    assert (row.value, row.source) == ("86400000", 4)
    assert behind(row)[0] == (4, "log.retention.hours", "24")


def test_a_topic_shows_every_setting_once() -> None:
    """All settings are there except those of branch topics and, unless set, those for tests."""
    names = [row.name for row in describe_topic(settings(), NOTHING, {})]
    absent = {"internal.segment.bytes", COMMIT_SOURCE_CONFIG, *FIXED_CONFIGS}
    assert sorted(names) == sorted(TOPIC_SETTINGS.keys() - absent)
    assert topic_row("internal.segment.bytes", internal_segment_bytes="9").value == "9"


def test_a_branch_topic_shows_every_setting_once() -> None:
    """Its own and its source's; only whether it commits to the source is there to be set."""
    overrides = {"branch.ranges": "8", "branch.commit.source": "true", "retention.ms": "5"}
    rows = {row.name: row for row in describe_branch_topic(settings(), NOTHING, overrides)}
    assert sorted(rows) == sorted(TOPIC_SETTINGS.keys() - {"internal.segment.bytes"})
    assert [name for name, row in rows.items() if not row.read_only] == ["branch.commit.source"]
    assert (rows["branch.ranges"].value, rows["branch.ranges"].source) == ("8", 1)
    assert (rows["retention.ms"].value, rows["retention.ms"].source) == ("5", 1)
    assert (rows["branch.null.key"].value, rows["branch.null.key"].source) == ("unordered", 5)
    (row,) = describe_branch_topic(settings(), NOTHING, overrides, ["branch.commit.source", "x"])
    assert (row.value, row.source, row.read_only) == ("true", 1, False)


def test_unknown_names_are_left_out() -> None:
    """Asking for a name that does not exist is no error."""
    rows = describe_topic(settings(), NOTHING, {}, ["no.such", "flush.ms"])
    assert [row.name for row in rows] == ["flush.ms"]


def test_a_broker_shows_every_setting_once() -> None:
    """All settings and their other names."""
    names = [row.name for row in describe_broker(settings(), NOTHING)]
    assert sorted(names) == sorted({*BROKER_SETTINGS, *ALIASES} - {"internal.segment.bytes"})


def test_a_broker_setting_given_at_the_start() -> None:
    """What a file, the environment or an override gave is static."""
    row = broker_row("num.partitions", "num.partitions=3")
    assert (row.value, row.source, row.read_only) == ("3", 4, True)
    assert behind(row) == [(4, "num.partitions", "3"), (5, "num.partitions", "1")]


def test_a_broker_setting_that_was_altered() -> None:
    """What clients altered counts before what was given at the start."""
    dynamic = DynamicConfigs({"max.connections": "2"}, {"max.connections": "3"})
    row = broker_row("max.connections", "max.connections=4", dynamic=dynamic)
    assert (row.value, row.source, row.read_only) == ("2", 2, False)
    assert [source for source, _, _ in behind(row)] == [2, 3, 4, 5]


def test_a_spelling_that_nobody_set_has_nothing_behind_it() -> None:
    """As in Kafka, `log.retention.ms` without a value does not borrow that of the hours."""
    row = broker_row("log.retention.ms", "log.retention.hours=1")
    assert (row.value, row.source, behind(row)) == (None, 5, [])
    assert behind(broker_row("log.retention.hours", "log.retention.hours=1")) == [
        (4, "log.retention.hours", "1"),
        (5, "log.retention.hours", "168"),
    ]
    assert behind(broker_row("log.flush.interval.ms", "log.flush.interval.ms=7")) == [
        (4, "log.flush.interval.ms", "7"),
        (5, "log.flush.scheduler.interval.ms", "9223372036854775807"),
    ]


def test_the_old_name_of_a_setting_is_shown() -> None:
    """Tools that look for `broker.id` find it."""
    row = broker_row("broker.id", "node.id=4")
    assert (row.value, behind(row)[0]) == ("4", (4, "broker.id", "4"))


def test_a_setting_is_altered_under_its_first_name() -> None:
    """The other name is shown with the same value, as one that cannot be altered."""
    dynamic = DynamicConfigs({"branch.cache.max.bytes": "7"})
    first = broker_row("branch.cache.max.bytes", dynamic=dynamic)
    other = broker_row("max.bytes.key.range.cache", dynamic=dynamic)
    assert (first.value, first.source, first.read_only) == ("7", 2, False)
    assert (other.value, other.source, other.read_only) == ("7", 2, True)


def test_what_was_altered_for_all_brokers() -> None:
    """The resource without a name shows only that."""
    dynamic = DynamicConfigs({"max.connections": "2"}, {"log.retention.ms": "3"})
    (row,) = describe_cluster_default(dynamic)
    assert (row.name, row.value, row.source) == ("log.retention.ms", "3", 3)
    assert behind(row) == [(3, "log.retention.ms", "3")]
    assert describe_cluster_default(dynamic, ["max.connections"]) == []


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password has no value in any row or synonym, and no error repeats it."""
    secret = replace(BROKER_SETTINGS["broker.rack"], type=ConfigType.PASSWORD)
    monkeypatch.setitem(BROKER_SETTINGS, "broker.rack", secret)
    row = broker_row("broker.rack", "broker.rack=s3cret")
    assert row.sensitive
    assert (row.value, behind(row)) == (None, [(4, "broker.rack", None)])
    assert "s3cret" not in repr(row)
