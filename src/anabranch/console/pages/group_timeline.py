"""Group, Timeline: what happened to it, from the coordinator's own decisions."""

from collections import Counter
from functools import partial

from markupsafe import Markup
from starlette.requests import Request

from anabranch.broker import timeline_events as e
from anabranch.broker.timeline_events import TimelineEvent
from anabranch.console import words
from anabranch.console.frame import Console, Page
from anabranch.console.tables import Column, make_table

# The kinds of events with the word that people see, and a class for its colour.
KINDS = {
    "rebalance": ("rebalance", "ok"),
    "rebalance-begin": ("rebalance begins", "warning"),
    "assignment": ("assignment", ""),
    "hand-over": ("hand-over", ""),
    "join": ("join", "ok"),
    "leave": ("leave", "warning"),
    "refusal": ("refusal", "error"),
    "record": ("record", "warning"),
    "offsets": ("offsets", ""),
    "protocol": ("protocol", ""),
    "deletion": ("deletion", "error"),
}


def duration_ms(event: TimelineEvent) -> int | None:
    """How long something took that is not over at once."""
    return event.duration_ms if isinstance(event, e.RebalanceEnded | e.HandOver) else None


def details(event: TimelineEvent) -> list[str]:
    """What there is to know beyond the sentence."""
    match event:
        case e.RebalanceEnded():
            return [f"{wait}: {words.duration(wait.duration_ms)}." for wait in event.waits]
        case e.MemberJoined():
            return [f"Member id {event.who.member_id}, {event.protocol} protocol."]
        case e.MemberLeft():
            held = "" if event.held is None else f" It had {_counted(event.held)}."
            return [f"Member id {event.who.member_id}.{held}"]
        case e.HandOver():
            return [str(one) for one in event.ranges[3:]]
        case e.OffsetsChanged():
            return [
                f"{one.topic}-{one.partition}: {words.number(one.before)} to "
                f"{words.number(one.after)}"
                for one in event.moved[1:]
            ]
        case _:
            return []


def _counted(units: int) -> str:
    return "1 partition or range" if units == 1 else f"{units:,} partitions or ranges"


def _kind_cell(event: TimelineEvent) -> Markup:
    text, colour = KINDS[event.kind]
    is_bad_leave = isinstance(event, e.MemberLeft) and event.reason in (
        e.LeaveReason.SESSION_EXPIRED,
        e.LeaveReason.REBALANCE_TIMEOUT,
    )
    return Markup('<span class="state {}">{}</span>').format(
        "error" if is_bad_leave else colour, text
    )


def _what_cell(event: TimelineEvent) -> Markup:
    more = details(event)
    if not more:
        return Markup("{}").format(event.sentence)
    items = Markup("").join(Markup("<li>{}</li>").format(line) for line in more)
    if len(more) == 1:
        return Markup('{}<br><span class="soft">{}</span>').format(event.sentence, more[0])
    return Markup('{}<ul class="soft details">{}</ul>').format(event.sentence, items)


def _time_cell(now_ms: int, event: TimelineEvent) -> Markup | str:
    last_ms = getattr(event, "last_ms", event.at_ms)
    if last_ms == event.at_ms:
        return words.time(event.at_ms, now_ms)
    return Markup("{}, last {}").format(
        words.time(event.at_ms, now_ms), words.time(last_ms, now_ms)
    )


def columns(now_ms: int) -> list[Column[TimelineEvent]]:
    return [
        Column(
            "at_ms",
            "When",
            lambda event: event.at_ms,
            partial(_time_cell, now_ms),
            is_number=True,
            hint="When it happened; rest on it for the exact time, in UTC.",
        ),
        Column(
            "kind",
            "Kind",
            lambda event: event.kind,
            _kind_cell,
            hint="What sort of event it is.",
            is_searched=True,
        ),
        Column(
            "what",
            "What happened",
            lambda event: " ".join([event.sentence, *details(event)]),
            _what_cell,
            is_searched=True,
        ),
        Column(
            "duration_ms",
            "Took",
            duration_ms,
            lambda event: words.duration(duration_ms(event)),
            is_number=True,
            hint="Of a rebalance: from its cause until all were settled. Of a hand-over: from "
            "when the giver was told to stop until the taker had it.",
        ),
    ]


async def make_tab(request: Request, console: Console, group_id: str) -> Page:
    timeline, query = console.broker.timeline, request.query_params
    events = timeline.of(group_id)[::-1]
    kind = query.get("kind", "")
    counts = Counter(event.kind for event in events)
    address = partial(words.with_query, dict(query), page="", format="", table="")
    table = make_table(
        "events",
        columns(console.broker.now_ms()),
        [event for event in events if kind in ("", event.kind)],
        query,
        empty="Nothing of that kind." if kind else "Nothing has happened to this group since then.",
    )
    choices = [("All", len(events), address(kind=""), not kind)]
    choices += [
        (text, counts[key], address(kind=key), key == kind)
        for key, (text, _) in KINDS.items()
        if counts[key] or key == kind
    ]
    return Page(
        template="group_timeline.html",
        title=group_id,
        tables=[table],
        values={"choices": choices, "since_ms": timeline.since_ms},
    )
