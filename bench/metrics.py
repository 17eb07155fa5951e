"""The figures of the broker benchmark: names, units, direction, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    key: str
    label: str
    unit: str
    is_higher_better: bool
    decimals: int = 0


METRICS = (
    Metric("produce_100_acks_1", "produce 100 B, acks=1", "k msg/s", True),
    Metric("produce_100_acks_all", "produce 100 B, acks=all", "k msg/s", True),
    Metric("produce_1024_acks_1", "produce 1 KB, acks=1", "MB/s", True),
    Metric("produce_1024_acks_all", "produce 1 KB, acks=all", "MB/s", True),
    Metric("consume_100", "consume 100 B", "k msg/s", True),
    Metric("consume_1024", "consume 1 KB", "MB/s", True),
    Metric("latency_p50", "one-record produce latency p50", "us", False),
    Metric("latency_p99", "one-record produce latency p99", "us", False),
    Metric("latency_p999", "one-record produce latency p99.9", "us", False),
    Metric("rps_metadata", "Metadata, 50 connections", "k req/s", True, 1),
    Metric("rps_metadata_x8", "Metadata, 50 connections, 8 in flight", "k req/s", True, 1),
    Metric("rps_api_versions", "ApiVersions, 50 connections", "k req/s", True, 1),
    Metric("cpu_produce_100", "server CPU, produce 100 B acks=all", "s/M msg", False, 3),
    Metric("cpu_produce_1024", "server CPU, produce 1 KB acks=all", "s/GB", False, 2),
    Metric("cpu_consume_1024", "server CPU, consume 1 KB", "s/GB", False, 2),
    Metric("cpu_latency", "server CPU, one-record produce", "us/req", False),
    Metric("cpu_rps_metadata", "server CPU, Metadata", "us/req", False, 1),
    Metric("start_seconds", "start until Metadata is answered", "s", False, 2),
    Metric("idle_rss", "resident memory, idle", "MB", False),
    Metric("idle_anonymous", "  of it anonymous", "MB", False),
    Metric("loaded_rss", "resident memory, after the load", "MB", False),
    Metric("loaded_anonymous", "  of it anonymous", "MB", False),
    Metric("peak_rss", "resident memory, peak", "MB", False),
)

Figures = Mapping[str, Sequence[float]]


def best(metric: Metric, values: Sequence[float]) -> float:
    return max(values) if metric.is_higher_better else min(values)


def ratio(metric: Metric, ours: float, theirs: float) -> float:
    """How many times better ours is; more than 1 is better in both directions."""
    better, worse = (ours, theirs) if metric.is_higher_better else (theirs, ours)
    return better / worse if worse else float("inf")


def table(theirs: Figures, ours: Figures, metrics: Sequence[Metric] = METRICS) -> str:
    """The aligned comparison; rows without a value on either side are left out."""
    header = [
        "",
        "unit",
        "better",
        "Kafka best",
        "median",
        "Anabranch best",
        "median",
        "ratio of bests",
        "of medians",
    ]
    rows = [header]
    for metric in metrics:
        left, right = theirs.get(metric.key, ()), ours.get(metric.key, ())
        if not left or not right:
            continue
        figures = [best(metric, left), median(left), best(metric, right), median(right)]
        rows.append(
            [
                metric.label,
                metric.unit,
                "more" if metric.is_higher_better else "less",
                *(f"{figure:,.{metric.decimals}f}" for figure in figures),
                f"{ratio(metric, figures[2], figures[0]):.2f}x",
                f"{ratio(metric, figures[3], figures[1]):.2f}x",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)
