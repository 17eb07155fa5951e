"""Topics: what there is, how much, how fast it grows, and who is how far with it."""

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup
from starlette.requests import Request

from anabranch.broker.survey import TopicSummary
from anabranch.console import words
from anabranch.console.frame import Console, Page, page_route
from anabranch.console.tables import Column, make_table
from anabranch.console.topic_lags import TopicLag

_GROUPS_SHOWN = 3
_NOBODY: Mapping[str, TopicLag] = {}


@dataclass(frozen=True, slots=True)
class TopicRow:
    summary: TopicSummary
    lags: Mapping[str, TopicLag]

    @property
    def lag_records(self) -> int | None:
        """Of the group that is furthest behind."""
        known = [lag.lag_records for lag in self.lags.values() if lag.lag_records is not None]
        return max(known) if known else None


def group_link(group_id: str) -> Markup:
    return words.link(group_id, "groups", group_id)


def _groups_text(row: TopicRow) -> str:
    return ", ".join(
        lag.group_id if lag.lag_records is None else f"{lag.group_id} {lag.lag_records}"
        for lag in row.lags.values()
    )


def _groups_cell(row: TopicRow) -> Markup:
    """The groups that are furthest behind, and how many others there are."""
    worst = sorted(row.lags.values(), key=lambda lag: (-(lag.lag_records or 0), lag.group_id))
    shown = [
        Markup('<span class="pair">{} <span class="soft">{}</span></span>').format(
            group_link(lag.group_id), words.number(lag.lag_records)
        )
        for lag in worst[:_GROUPS_SHOWN]
    ]
    if len(worst) > _GROUPS_SHOWN:
        address = words.path("topics", row.summary.name) + "?tab=groups"
        shown.append(
            Markup('<a class="pair" href="{}">and {} more</a>').format(
                address, len(worst) - _GROUPS_SHOWN
            )
        )
    return Markup(" ").join(shown) if shown else Markup('<span class="soft">none</span>')


def _source_cell(row: TopicRow) -> Markup | str:
    source = row.summary.source
    return words.MISSING if source is None else words.link(source, "topics", source)


COLUMNS: list[Column[TopicRow]] = [
    Column(
        "topic",
        "Topic",
        lambda row: row.summary.name,
        lambda row: words.link(row.summary.name, "topics", row.summary.name),
        is_searched=True,
    ),
    Column(
        "partitions",
        "Partitions",
        lambda row: row.summary.partitions,
        is_number=True,
        hint="Of a branch topic: ranges of keys of its source's partitions.",
    ),
    Column(
        "records",
        "Records",
        lambda row: row.summary.records,
        is_number=True,
        hint="Offsets from the start to the end of all partitions; what was compacted away and "
        "the markers of transactions count too.",
    ),
    Column(
        "size_bytes",
        "Size",
        lambda row: row.summary.size_bytes,
        lambda row: words.size(row.summary.size_bytes if row.summary.source is None else None),
        is_number=True,
        hint="Bytes of the records on disk; a branch topic takes none.",
    ),
    Column(
        "produce_per_s",
        "Written",
        lambda row: row.summary.produce_per_s,
        lambda row: words.rate(row.summary.produce_per_s),
        is_number=True,
        hint="Records that arrived per second, lately.",
    ),
    Column(
        "source",
        "Branches of",
        lambda row: row.summary.source,
        _source_cell,
        hint="The topic whose records a branch topic shows.",
        is_searched=True,
    ),
    Column(
        "lag",
        "Largest lag",
        lambda row: row.lag_records,
        is_number=True,
        hint="Records that the group that is furthest behind has yet to read here.",
    ),
    Column(
        "groups",
        "Groups and their lag",
        _groups_text,
        _groups_cell,
        hint="Who reads it, and how many records each is behind.",
        is_searched=True,
    ),
]


async def make(request: Request, console: Console) -> Page:
    survey = await console.broker.surveyor.recent()
    lags = await console.topic_lags.of(survey)
    with_internal = request.query_params.get("internal") == "1"
    rows = [
        TopicRow(summary, lags.get(name, _NOBODY))
        for name, summary in survey.topics.items()
        if with_internal or not summary.is_internal
    ]
    table = make_table(
        "topics",
        COLUMNS,
        rows,
        request.query_params,
        sort="topic",
        empty="There are no topics yet. `anabranch topics create NAME` makes one.",
    )
    return Page(
        template="topics.html",
        title="Topics",
        tables=[table],
        values={
            "internal": sum(one.is_internal for one in survey.topics.values()),
            "with_internal": with_internal,
            "internal_address": words.with_query(
                request.query_params, internal="" if with_internal else "1", page="", format=""
            ),
        },
    )


ROUTES = [page_route("/topics", make)]
