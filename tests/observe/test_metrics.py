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
    METRICS,
    Histogram,
    Kind,
    Metric,
    Values,
    render_text,
)


def scraped(*metrics: tuple[Metric, Values], accept: str = "") -> dict[tuple[str, ...], float]:
    text, content_type = render_text(lambda: metrics, accept)
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


OF_INDIVIDUAL_COMMITS = {
    "anabranch_group_window_offsets",
    "anabranch_group_window_ranges",
    "anabranch_group_window_stage",
    "anabranch_group_stalled_seconds",
    "anabranch_group_load_imbalance",
    "anabranch_group_hot_slots",
    "anabranch_group_blocked_records",
    "anabranch_group_diverted_keys",
    "anabranch_group_dead_letters_total",
}


def test_names_keep_the_rules() -> None:
    """One prefix, `_total` on counters and nowhere else, units last, each name once."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("anabranch_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.name.endswith("_seconds") or metric.kind is not Kind.HISTOGRAM
        assert metric.documentation.endswith(".")
        assert not {"member", "client"} & set(metric.labels)
        # Groups only where they read branch topics, or commit record by record: few of all do.
        is_of_few = "branch_topic" in metric.labels or metric.name in OF_INDIVIDUAL_COMMITS
        assert not {"group", "topic"} & set(metric.labels) or is_of_few


def test_nothing_is_registered_for_all() -> None:
    """The registry is our own: whoever embeds a broker keeps theirs."""
    from prometheus_client import REGISTRY

    scraped((GROUP_REBALANCES, {("classic", "join"): 1}))
    assert GROUP_REBALANCES.name not in {m.name for m in REGISTRY.collect()}


def test_a_broker_that_nobody_scrapes_does_not_load_it() -> None:
    """prometheus_client costs nothing until somebody asks."""
    code = (
        "import sys, anabranch.server.run; "
        "sys.exit(any(name.startswith('prometheus_client') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
