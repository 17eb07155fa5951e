"""Metrics as text: what a scraper reads is what was counted."""

import subprocess
import sys

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from anabranch.observe.metrics import (
    GROUP_PARTITIONS_MOVED,
    GROUP_REBALANCE_DURATION,
    GROUP_REBALANCES,
    GROUPS,
    Histogram,
    Kind,
    Metric,
    Stream,
    Values,
)
from anabranch.observe.table import ALL_METRICS
from anabranch.observe.text_format import TextWriter, render_text


def scraped(
    *metrics: tuple[Metric, Values | Stream], accept: str = ""
) -> dict[tuple[str, ...], float]:
    text, content_type = render_text(metrics, accept)
    is_open = "openmetrics" in content_type
    parse = parse_openmetrics if is_open else text_string_to_metric_families
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def test_counters_and_gauges() -> None:
    """Each combination of labels is a series; a counter keeps its `_total`."""
    values = {("classic", "Empty"): 2, ("consumer", "Stable"): 1}
    found = scraped((GROUPS, values), (GROUP_PARTITIONS_MOVED, {(): 7}))
    assert found == {
        ("anabranch_groups", "classic", "Empty"): 2,
        ("anabranch_groups", "consumer", "Stable"): 1,
        ("anabranch_group_partitions_moved_total",): 7,
    }


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_histograms(accept: str) -> None:
    """Buckets are cumulative, a bound belongs to its bucket, and nothing is lost above the last."""
    histogram = Histogram()
    for duration_s in (0.0, 0.01, 0.011, 1.0, 1000.0):
        histogram.observe(duration_s)
    assert histogram.count == 5
    found = scraped((GROUP_REBALANCE_DURATION, {("consumer",): histogram}), accept=accept)
    name = GROUP_REBALANCE_DURATION.name
    buckets = {
        (set(key[1:]) - {"consumer"}).pop(): value
        for key, value in found.items()
        if key[0] == f"{name}_bucket"
    }
    assert buckets["0.01"] == 2
    assert buckets["0.025"] == buckets["0.5"] == 3
    assert buckets["1.0"] == buckets["300.0"] == 4
    assert buckets["+Inf"] == found[f"{name}_count", "consumer"] == 5
    assert found[f"{name}_sum", "consumer"] == pytest.approx(1001.021)


def test_values_may_be_made_as_they_are_written() -> None:
    """Very many of them are not all in memory at once."""
    made = []

    def values():  # type: ignore[no-untyped-def]
        for number in range(3):
            made.append(number)
            yield ("classic", f"s{number}"), number

    writer = TextWriter()
    lines = writer.family(GROUPS, Stream(values()))
    next(lines), next(lines)
    assert made == [0]
    assert len(list(lines)) == 2 and writer.series == 3


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_labels_may_be_anything(accept: str) -> None:
    """Groups are named by clients: quotes, line breaks and backslashes come back as they were."""
    names = ['a"b', "a\nb", "a\\b", "a\\n", "ü{}=,", ""]
    found = scraped((GROUPS, {(name, "Empty"): 1 for name in names}), accept=accept)
    assert sorted(key[1] for key in found) == sorted(names)


def test_what_is_too_much_is_left_out_and_counted() -> None:
    """A limit holds over all metrics with labels; those without are always there."""
    writer = TextWriter(series_max=3)
    many = {("classic", f"s{number}"): 1 for number in range(5)}
    text = "".join(writer.family(GROUPS, many))
    text += "".join(writer.family(GROUP_REBALANCES, {("classic", "join"): 1}))
    text += "".join(writer.family(GROUP_PARTITIONS_MOVED, {(): 1}))
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == 4 and series[-1] == "anabranch_group_partitions_moved_total 1"
    assert writer.left_out == 3


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3", True),
        ('application/openmetrics-text; version="0.0.1"', True),
        ("application/openmetrics-text;version=9.0.0,text/plain", False),
    ],
)
def test_openmetrics_is_for_those_who_ask(accept: str, is_open: bool) -> None:
    """And only in a version that we write."""
    text, content_type = render_text([(GROUPS, {})], accept)
    assert ("openmetrics" in content_type) == is_open
    assert text.endswith(b"# EOF\n") == is_open


# The words that a label may have as its name; none of them is unbounded but by topics and groups.
LABELS = {
    "api", "address", "branch_topic", "cause", "consumergroup", "error", "folder", "group", "id",
    "kind", "listener", "outcome", "partition", "protocol", "result", "state", "topic", "unit",
    "version",
}  # fmt: skip


def test_names_keep_the_rules() -> None:
    """One prefix, `_total` on counters and nowhere else, units last, each name once."""
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)
    for metric in ALL_METRICS:
        assert metric.name.startswith(("anabranch_", "kafka_", "process_"))
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.name.endswith("_seconds") or metric.kind is not Kind.HISTOGRAM
        assert metric.documentation.endswith(".")
        assert set(metric.labels) <= LABELS, metric.name


# kafka_exporter 1.9.0, kafka_exporter.go: what it describes, without what is ZooKeeper's.
KAFKA_EXPORTER = {
    "kafka_brokers": (),
    "kafka_broker_info": ("id", "address"),
    "kafka_topic_partitions": ("topic",),
    "kafka_topic_partition_current_offset": ("topic", "partition"),
    "kafka_topic_partition_oldest_offset": ("topic", "partition"),
    "kafka_topic_partition_leader": ("topic", "partition"),
    "kafka_topic_partition_replicas": ("topic", "partition"),
    "kafka_topic_partition_in_sync_replica": ("topic", "partition"),
    "kafka_topic_partition_leader_is_preferred": ("topic", "partition"),
    "kafka_topic_partition_under_replicated_partition": ("topic", "partition"),
    "kafka_consumergroup_current_offset": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_current_offset_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_lag": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_lag_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_members": ("consumergroup",),
}


def test_the_names_of_kafka_exporter_are_all_there() -> None:
    """With its labels, in its order, all of them gauges: dashboards made for it work."""
    ours = {m.name: m for m in ALL_METRICS if m.name.startswith("kafka_")}
    assert {name: metric.labels for name, metric in ours.items()} == KAFKA_EXPORTER
    assert {metric.kind for metric in ours.values()} == {Kind.GAUGE}


def test_a_broker_does_not_load_prometheus_client() -> None:
    """The text is our own; the library is for tests."""
    code = (
        "import sys, anabranch.server.run, anabranch.server.metrics_listener; "
        "sys.exit(any(name.startswith('prometheus_client') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
