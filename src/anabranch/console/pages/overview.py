"""Overview: is all well, how much goes on, and what somebody should look at."""

from collections import Counter

from starlette.requests import Request

from anabranch.broker.timeline_events import RebalanceEnded
from anabranch.console import words
from anabranch.console.attention import Attention, needs_attention
from anabranch.console.frame import Console, Page, page_route
from anabranch.console.hanging import find_hanging
from anabranch.console.tables import Column, make_table
from anabranch.console.throughput import HEIGHT, WIDTH, count_of, draw
from anabranch.observe import broker_metrics as b

_ATTENTION_ROWS = 15
_REBALANCES = 8
# So many events are looked through for them.
_EVENTS = 2_000

ATTENTION_COLUMNS: list[Column[Attention]] = [
    Column(
        "group",
        "Group",
        lambda one: one.group_id,
        lambda one: words.link(one.group_id, "groups", one.group_id),
        is_searched=True,
    ),
    Column(
        "what",
        "What",
        lambda one: one.what,
        lambda one: words.badge(one.what, "bad" if one.rank == 0 else "warn", one.sentence),
        is_searched=True,
    ),
    Column("why", "Why", lambda one: one.sentence, is_searched=True),
    Column(
        "lag_records",
        "Lag",
        lambda one: one.lag_records,
        is_number=True,
        hint="Records that the group has yet to read.",
    ),
]


def _rebalance_columns(now_ms: int) -> list[Column[RebalanceEnded]]:
    return [
        Column(
            "at_ms",
            "Ended",
            lambda one: one.at_ms,
            lambda one: words.time(one.at_ms, now_ms),
            is_number=True,
        ),
        Column(
            "group",
            "Group",
            lambda one: one.group_id,
            lambda one: words.tab_link(one.group_id, "timeline", "groups", one.group_id),
        ),
        Column(
            "duration_ms",
            "Took",
            lambda one: one.duration_ms,
            lambda one: words.duration(one.duration_ms),
            is_number=True,
            hint="From the first change until all members had what they should have.",
        ),
        Column(
            "moved",
            "Moved",
            lambda one: one.moved,
            is_number=True,
            hint="Partitions or key ranges that somebody has now and had not before.",
        ),
        Column("members", "Members", lambda one: one.members, is_number=True),
        Column("cause", "Because", lambda one: one.cause),
    ]


async def make(request: Request, console: Console) -> Page:
    broker = console.broker
    survey = await broker.surveyor.recent()
    samples = await console.throughput.samples()
    topics = [topic for topic in survey.topics.values() if not topic.is_internal]
    last = samples[-1] if samples else None
    attention = make_table(
        "attention",
        ATTENTION_COLUMNS,
        needs_attention(broker, survey),
        request.query_params,
        is_only=False,
        size=_ATTENTION_ROWS,
        empty="No group needs anybody: nothing is blocked, rebalancing, or falling behind.",
    )
    rebalances = make_table(
        "rebalances",
        _rebalance_columns(broker.now_ms()),
        [one for one in broker.timeline.latest(_EVENTS) if isinstance(one, RebalanceEnded)],
        request.query_params,
        is_only=False,
        size=_REBALANCES,
        empty="No group has rebalanced since the broker started.",
    )
    return Page(
        template="overview.html",
        title="Overview",
        tables=[attention, rebalances],
        values={
            "vitals": await console.vitals.read(),
            "hanging": await find_hanging(broker),
            "topics": len(topics),
            "branch_topics": sum(topic.source is not None for topic in topics),
            "partitions": sum(topic.partitions for topic in topics if topic.source is None),
            "size_bytes": sum(topic.size_bytes for topic in survey.topics.values()),
            "groups": len(survey.groups),
            "states": Counter(group.state for group in survey.groups.values()).most_common(),
            "members": sum(group.members for group in survey.groups.values()),
            "connections": int(count_of(broker, b.CONNECTIONS)),
            "lag_records": sum(group.lag_records or 0 for group in survey.groups.values()),
            "charts": [
                (
                    "Records per second",
                    words.rate,
                    draw(
                        samples,
                        [
                            ("written", "line-in", lambda one: one.records_in),
                            ("done by groups", "line-out", lambda one: one.records_out),
                        ],
                    ),
                ),
                (
                    "Bytes per second",
                    words.size_rate,
                    draw(
                        samples,
                        [
                            ("from producers", "line-in", lambda one: one.bytes_in),
                            ("to consumers", "line-out", lambda one: one.bytes_out),
                        ],
                    ),
                ),
            ],
            "last": last,
            "width": WIDTH,
            "height": HEIGHT,
            "since_ms": broker.timeline.since_ms,
        },
    )


ROUTES = [page_route("/", make)]
