"""Group, Members: who they are, what they have, how fast they are, and who is slow."""

from functools import partial
from weakref import WeakKeyDictionary

from markupsafe import Markup
from starlette.requests import Request

from anabranch.console import words
from anabranch.console.frame import Console, Page
from anabranch.console.group_found import found_group
from anabranch.console.group_members import MemberPaces, MemberRow, member_rows, partitions_text
from anabranch.console.tables import Column, make_table

# How much of a list a cell shows; the rest is in the export.
_TEXT_MAX = 120

_paces: WeakKeyDictionary[Console, MemberPaces] = WeakKeyDictionary()


def _member_cell(row: MemberRow) -> Markup:
    marks = Markup("")
    if row.is_leader:
        marks += Markup(' <span class="state" title="It makes the assignment.">leader</span>')
    if row.slow:
        marks += Markup(' <span class="state error" title="{}">slow</span>').format(row.slow)
    return Markup('<code title="{0}">{1}</code>{2}').format(
        row.member_id, row.instance_id or row.member_id, marks
    )


def _state_cell(row: MemberRow) -> Markup:
    return Markup('<span class="state {}" title="{}">{}</span>').format(
        row.state.colour, row.state.hint, row.state.name
    )


def _heard_cell(now_ms: int, row: MemberRow) -> Markup | str:
    if row.heard_ago_ms is None:
        return Markup('<span class="soft" title="{}">in a request</span>').format(
            "It waits in a request of its own and needs no heartbeat meanwhile."
        )
    return words.time(now_ms - row.heard_ago_ms, now_ms)


def _units_text(row: MemberRow) -> str:
    text = partitions_text((one.topic, one.partition) for one in row.partitions)
    if not row.ranges:
        return text
    ranges = "1 key range" if row.ranges == 1 else f"{row.ranges:,} key ranges"
    return f"{text}; {ranges}" if text else ranges


def _short_cell(text: str) -> Markup | str:
    if not text:
        return words.MISSING
    if len(text) <= _TEXT_MAX:
        return text
    return Markup('<span title="{}">{}\N{HORIZONTAL ELLIPSIS}</span>').format(
        text, text[:_TEXT_MAX].rsplit(" ", 1)[0]
    )


_WHO: list[Column[MemberRow]] = [
    Column(
        "member_id",
        "Member",
        lambda row: row.member_id,
        _member_cell,
        hint="The instance id of a static member, or the member id.",
        is_searched=True,
    ),
    Column("client_id", "Client id", lambda row: row.client_id, is_searched=True),
    Column("host", "Host", lambda row: row.host, is_searched=True),
    Column(
        "state",
        "State",
        lambda row: row.state.name,
        _state_cell,
        hint="What it is doing; rest on a state to read what it means.",
    ),
]
_WORK: list[Column[MemberRow]] = [
    Column(
        "count",
        "#",
        lambda row: len(row.partitions) + row.ranges,
        is_number=True,
        hint="How many partitions and key ranges it has.",
    ),
    Column(
        "partitions",
        "Partitions",
        _units_text,
        lambda row: _short_cell(_units_text(row)),
        is_searched=True,
    ),
    Column(
        "lag",
        "Lag",
        lambda row: row.lag_records,
        is_number=True,
        hint="Records that its partitions have yet to be processed; of shared partitions see "
        "Sharing.",
    ),
    Column(
        "lag_ms",
        "Lag time",
        lambda row: row.lag_ms,
        lambda row: words.duration(row.lag_ms),
        is_number=True,
        hint="How long ago the oldest record was written that it has not committed.",
    ),
    Column(
        "consume_per_s",
        "Commits",
        lambda row: row.consume_per_s,
        lambda row: words.rate(row.consume_per_s),
        is_number=True,
        hint="Records per second that it commits, over the last seconds that somebody looked.",
    ),
    Column(
        "slow",
        "Slow",
        lambda row: row.slow or None,
        hint="Why it is marked as slow: twice the lag of the others per partition, or more.",
    ),
    Column(
        "subscription",
        "Subscribed to",
        lambda row: row.subscription or None,
        lambda row: _short_cell(row.subscription),
        hint="Topics by name, and a regular expression between slashes.",
        is_searched=True,
    ),
]


def columns(now_ms: int, epoch_title: str) -> list[Column[MemberRow]]:
    """The columns, with times as they are now."""
    return [
        *_WHO,
        Column(
            "epoch",
            epoch_title,
            lambda row: row.epoch,
            is_number=True,
            hint="The assignment that it has caught up with.",
        ),
        Column(
            "heard_ago_ms",
            "Last heard",
            lambda row: row.heard_ago_ms,
            partial(_heard_cell, now_ms),
            is_number=True,
            hint="When its last heartbeat came, or what stands for one.",
        ),
        *_WORK,
    ]


async def make_tab(request: Request, console: Console, group_id: str) -> Page:
    broker = console.broker
    summary = found_group(request)
    paces = _paces.setdefault(console, MemberPaces())
    rows = await member_rows(broker, summary, paces, broker.now_ms())
    is_classic = summary.type == "Classic"
    table = make_table(
        "members",
        columns(broker.now_ms(), "Generation" if is_classic else "Epoch"),
        rows,
        request.query_params,
        sort="-lag",
        empty="Nobody is a member now.",
    )
    return Page(
        template="group_members.html",
        title=group_id,
        tables=[table],
        values={"slow": [row for row in rows if row.slow]},
    )
