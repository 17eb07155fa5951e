"""The reference page of metrics, made from their table.

python -m anabranch.observe.reference_page > docs/reference/metrics.md
"""

from textwrap import fill

from anabranch.observe.broker_metrics import BROKER_METRICS
from anabranch.observe.exporter_metrics import EXPORTER_METRICS
from anabranch.observe.metrics import METRICS, Metric

_HEAD = """\
# Metrics

Set `metrics.listeners` to have them served in the text format of Prometheus, or in that of
OpenMetrics where a scraper asks for it:

    anabranch serve --override metrics.listeners=localhost:9400
    curl http://localhost:9400/metrics

The console serves them too. There is no access control: keep both on a network that you trust.
`deploy/` in the source tree has dashboards and alerts made of them.

Beside them are `/health`, which answers 200 while the process serves, and `/ready`, which answers
200 when clients can work with the broker (its groups and transactions are loaded, its folders can
be written to) and 503 with a line for each reason when they cannot. Restart by the first, route
traffic by the second.

Counters begin at 0 with each start of the broker, but for `anabranch_messages_in_total`.

No metric has a member or a client in its labels. How many series there are goes with the number of
topics, groups and partitions: `metrics.granularity` leaves out those by partition, or by topic as
well, and `metrics.series.max` bounds them all. A scrape costs some microseconds for each series, in
slices of a fifth of a millisecond, so that it holds up nobody else.

`protocol` is `classic` or `consumer`. `cause` is one of `join`, `leave`, `session-expired` (not
heard from for a session), `rebalance-timeout` (did not do in time what a rebalance asked of it),
`subscription` (a member wants other topics), `topics` (created, grown or deleted), `regex` (a
regular expression matches other topics), `assignor` (the members prefer another one), `load` and
`stuck` (key ranges move from members that have too much, or do not finish a record) and `other`.
`error` is the name of Kafka's error code.
"""

_SECTIONS = (
    (
        "Groups and transactions",
        (
            "Those about the progress of groups that read branch topics have the source as `topic` "
            "and `partition`. They are looked at again soon after commits; records that arrive "
            "meanwhile count as unprocessed."
        ),
        METRICS,
    ),
    (
        "The broker",
        "",
        BROKER_METRICS,
    ),
    (
        "Names of kafka_exporter",
        (
            "So that dashboards and alerts made for kafka_exporter work unchanged. Lag is never "
            "-1: what a group has committed nothing for counts from the oldest record on."
        ),
        EXPORTER_METRICS,
    ),
)


def render() -> str:
    """The page."""
    parts = [_HEAD]
    for title, text, metrics in _SECTIONS:
        parts.append(f"\n## {title}\n\n")
        parts.append(f"{fill(text, 100)}\n\n" if text else "")
        parts.append("| Metric | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n")
        parts += [_line(metric) for metric in metrics]
    return "".join(parts)


def _line(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.documentation} |\n"


if __name__ == "__main__":
    print(render(), end="")
