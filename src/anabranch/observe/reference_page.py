"""The reference page of metrics, made from their table.

python -m anabranch.observe.reference_page > docs/reference/metrics.md
"""

from anabranch.observe.metrics import METRICS

_HEAD = """\
# Metrics

Set `metrics.listeners` to have them served in the text format of Prometheus, or in that of
OpenMetrics where a scraper asks for it:

    anabranch serve --override metrics.listeners=localhost:9400
    curl http://localhost:9400/metrics

Only `GET /metrics` is answered. There is no access control: keep the listener on a network that
you trust. Without the setting nothing listens. Counters begin at 0 with each start of the broker.

No metric has a member or a client in its labels, so that their number is bounded. Two have a group:
those about the progress of groups that read branch topics, whose `topic` and `partition` are the
source's. They are looked at again soon after commits; records that arrive meanwhile count as
unprocessed.

`protocol` is `classic` or `consumer`. `cause` is one of `join`, `leave`, `session-expired` (not
heard from for a session), `rebalance-timeout` (did not do in time what a rebalance asked of it),
`subscription` (a member wants other topics), `topics` (created, grown or deleted), `regex` (a
regular expression matches other topics), `assignor` (the members prefer another one) and `other`.
`error` is the name of Kafka's error code.

| Metric | Type | Labels | Meaning |
| --- | --- | --- | --- |
"""


def render() -> str:
    """The page."""
    lines = [
        f"| `{metric.name}` | {metric.kind.value} "
        f"| {', '.join(f'`{label}`' for label in metric.labels) or '-'} "
        f"| {metric.documentation} |\n"
        for metric in METRICS
    ]
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    print(render(), end="")
