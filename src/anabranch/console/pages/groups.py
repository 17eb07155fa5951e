"""Groups: all there are, also those without members, with their lag and what they are up to."""

from collections import Counter
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup
from starlette.requests import Request

from anabranch.broker.survey import GroupSummary
from anabranch.broker.timeline import Timeline
from anabranch.broker.timeline_events import RebalanceEnded
from anabranch.console import words
from anabranch.console.frame import Console, Page, page_route
from anabranch.console.tables import Column, Table, make_table

_TOPICS_SHOWN = 3
# In the order that somebody who looks for trouble wants them.
_STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Empty",
    "Dead",
)
_TYPES = ("Consumer", "Classic")


@dataclass(frozen=True, slots=True)
class GroupRow:
    summary: GroupSummary
    last_rebalance: RebalanceEnded | None
    # When the rebalance began that is under way.
    rebalancing_since_ms: int | None

    @property
    def rebalance_ms(self) -> int | None:
        if self.rebalancing_since_ms is not None:
            return self.rebalancing_since_ms
        return self.last_rebalance.at_ms if self.last_rebalance is not None else None


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter that can be chosen: how many pass it, and the address with it."""

    text: str
    hint: str
    count: int
    address: str
    is_chosen: bool


def _topics_cell(row: GroupRow) -> Markup:
    topics = row.summary.topics
    shown = [words.link(topic, "topics", topic) for topic in topics[:_TOPICS_SHOWN]]
    if len(topics) > _TOPICS_SHOWN:
        address = words.path("groups", row.summary.group_id)
        more = len(topics) - _TOPICS_SHOWN
        shown.append(Markup('<a href="{}">and {} more</a>').format(address, more))
    return Markup(", ").join(shown) if shown else Markup('<span class="soft">none</span>')


def _type_cell(row: GroupRow) -> Markup | str:
    if not row.summary.is_sharing:
        return row.summary.type
    return Markup(
        '{} <span class="state" title="Members share partitions by key range, or commit record '
        'by record.">shares</span>'
    ).format(row.summary.type)


def _rebalance_cell(now_ms: int, row: GroupRow) -> Markup | str:
    if row.rebalancing_since_ms is not None:
        return Markup('<span class="warn">under way, began {}</span>').format(
            words.time(row.rebalancing_since_ms, now_ms)
        )
    return words.time(row.rebalance_ms, now_ms)


_COLUMNS: list[Column[GroupRow]] = [
    Column(
        "group",
        "Group",
        lambda row: row.summary.group_id,
        lambda row: words.link(row.summary.group_id, "groups", row.summary.group_id),
        is_searched=True,
    ),
    Column(
        "state",
        "State",
        lambda row: row.summary.state,
        lambda row: words.state(row.summary.state),
        hint="What the group is doing; rest on a state to read what it means.",
    ),
    Column(
        "type",
        "Type",
        lambda row: row.summary.type,
        _type_cell,
        hint="Consumer: the protocol of KIP-848, where the broker assigns. Classic: the "
        "members' leader does.",
    ),
    Column(
        "protocol",
        "Protocol",
        lambda row: row.summary.protocol_type or None,
        hint="What the members are, by their own word; consumers say consumer.",
        is_searched=True,
    ),
    Column(
        "members",
        "Members",
        lambda row: row.summary.members,
        is_number=True,
        hint="How many are members now.",
    ),
    Column(
        "lag",
        "Lag",
        lambda row: row.summary.lag_records,
        is_number=True,
        hint="Records that the group has yet to process, over all its partitions. What was "
        "never committed counts from the log's start.",
    ),
    Column(
        "lag_ms",
        "Lag time",
        lambda row: row.summary.lag_ms,
        lambda row: words.duration(row.summary.lag_ms),
        is_number=True,
        hint="How long ago the oldest record was written that is not committed.",
    ),
    Column(
        "trend_per_s",
        "Trend",
        lambda row: row.summary.trend_per_s,
        lambda row: words.trend(row.summary.trend_per_s),
        is_number=True,
        hint="How fast the lag grows or shrinks, over the last seconds.",
    ),
    Column(
        "drain_s",
        "Drained in",
        lambda row: row.summary.drain_s,
        lambda row: words.drain(
            row.summary.lag_records, row.summary.drain_s, row.summary.trend_per_s
        ),
        is_number=True,
        hint="When there is no lag left if all goes on like this.",
    ),
    Column(
        "topics",
        "Topics",
        lambda row: ", ".join(row.summary.topics),
        _topics_cell,
        is_searched=True,
    ),
]


def columns(now_ms: int) -> list[Column[GroupRow]]:
    """The columns, with times as they are now."""
    return [
        *_COLUMNS,
        Column(
            "rebalanced_ms",
            "Last rebalance",
            lambda row: row.rebalance_ms,
            partial(_rebalance_cell, now_ms),
            is_number=True,
            hint="When the last rebalance ended, or when the one that is under way began; since "
            "the broker's start.",
        ),
        Column(
            "rebalance_took_ms",
            "Took",
            lambda row: row.last_rebalance.duration_ms if row.last_rebalance else None,
            lambda row: words.duration(
                row.last_rebalance.duration_ms if row.last_rebalance else None
            ),
            is_number=True,
            hint="From when the last rebalance began until all members were settled.",
        ),
        Column(
            "rebalance_cause",
            "Because",
            lambda row: row.last_rebalance.cause if row.last_rebalance else None,
            hint="Why the last rebalance began.",
            is_searched=True,
        ),
    ]


def _row(timeline: Timeline, summary: GroupSummary) -> GroupRow:
    under_way = timeline.under_way(summary.group_id)
    return GroupRow(
        summary,
        timeline.last_rebalance(summary.group_id),
        under_way.at_ms if under_way is not None else None,
    )


def _choices(
    request: Request, key: str, names: tuple[str, ...], counts: Counter[str]
) -> list[Choice]:
    query = dict(request.query_params)
    chosen = query.get(key, "")
    address = partial(words.with_query, query, page="", format="", table="")
    found = [Choice("All", "", counts.total(), address(**{key: ""}), not chosen)]
    for name in names:
        if counts[name] or name == chosen:
            hint = words.STATE_HINTS.get(name, "")
            found.append(Choice(name, hint, counts[name], address(**{key: name}), name == chosen))
    return found


async def make(request: Request, console: Console) -> Page:
    survey = await console.broker.surveyor.recent()
    state = request.query_params.get("state", "")
    kind = request.query_params.get("type", "")
    groups = survey.groups.values()
    rows = [
        _row(console.broker.timeline, one)
        for one in groups
        if state in ("", one.state) and kind in ("", one.type)
    ]
    table: Table[GroupRow] = make_table(
        "groups",
        columns(console.broker.now_ms()),
        rows,
        request.query_params,
        sort="group",
        empty=(
            "No group is like that now."
            if state or kind
            else "There are no groups yet. One appears with its first member or committed offset."
        ),
    )
    by_state = Counter(one.state for one in groups if kind in ("", one.type))
    by_type = Counter(one.type for one in groups if state in ("", one.state))
    return Page(
        template="groups.html",
        title="Groups",
        tables=[table],
        values={
            "states": _choices(request, "state", _STATES, by_state),
            "types": _choices(request, "type", _TYPES, by_type),
            "taken_ms": survey.taken_ms,
        },
    )


ROUTES = [page_route("/groups", make)]
