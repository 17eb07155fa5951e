"""Topic, Branches: how a branch topic is laid out over its source, and who is how far with it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from anabranch.branch.layout import Branch
from anabranch.branch.slots import slots_of_branch
from anabranch.broker.branch_survey import SourceProgress
from anabranch.broker.survey import Survey
from anabranch.broker.topics import Topic
from anabranch.console import words
from anabranch.console.frame import Console, Page
from anabranch.console.tables import Column, Table, make_table
from anabranch.model.units import SLOT_COUNT


@dataclass(frozen=True, slots=True)
class BranchRow:
    number: int
    branch: Branch
    ranges: int

    @property
    def slots(self) -> str:
        slots = slots_of_branch(self.branch.range_index, self.ranges)
        return f"{slots.first}-{slots.end - 1}"

    @property
    def share(self) -> float:
        slots = slots_of_branch(self.branch.range_index, self.ranges)
        return (slots.end - slots.first) / SLOT_COUNT


BRANCH_COLUMNS: list[Column[BranchRow]] = [
    Column("partition", "Partition", lambda row: row.number, is_number=True),
    Column(
        "source_partition",
        "Of the source",
        lambda row: row.branch.partition,
        is_number=True,
        hint="The partition of the source whose records these are.",
    ),
    Column(
        "range",
        "Range",
        lambda row: row.branch.range_index,
        is_number=True,
        hint="Which of the equal ranges of keys, from 0 on.",
    ),
    Column(
        "slots",
        "Slots",
        lambda row: row.slots,
        hint="Every key has one of 65,536 slots by its hash; a branch has the keys of these.",
    ),
    Column(
        "share",
        "Share of keys",
        lambda row: row.share,
        lambda row: f"{row.share:.1%}",
        is_number=True,
        hint="The part of all slots. How many records that is depends on the keys.",
    ),
]


@dataclass(frozen=True, slots=True)
class BranchTopicRow:
    topic: Topic
    groups: Sequence[str]

    @property
    def ranges(self) -> int:
        assert self.topic.layout is not None
        return self.topic.layout.ranges


BRANCH_TOPIC_COLUMNS: list[Column[BranchTopicRow]] = [
    Column(
        "topic",
        "Branch topic",
        lambda row: row.topic.name,
        lambda row: words.link(row.topic.name, "topics", row.topic.name),
        is_searched=True,
    ),
    Column(
        "ranges",
        "Ranges",
        lambda row: row.ranges,
        is_number=True,
        hint="Into how many ranges of keys each partition is cut.",
    ),
    Column("partitions", "Partitions", lambda row: len(row.topic.partitions), is_number=True),
    Column("groups", "Groups", lambda row: ", ".join(row.groups), is_searched=True),
]


@dataclass(frozen=True, slots=True)
class ProgressRow:
    result: SourceProgress

    @property
    def group_id(self) -> str:
        return self.result.subject.group_id

    @property
    def via(self) -> str:
        return self.result.subject.topic.name

    @property
    def partition(self) -> int:
        return self.result.subject.partition

    @property
    def end_offset(self) -> int:
        subject = self.result.subject
        return subject.source.partitions[subject.partition].log.high_watermark

    @property
    def unprocessed(self) -> int:
        """What was left at the last look, and all that came since."""
        progress = self.result.progress
        arrived = max(self.end_offset - progress.high_watermark, 0)
        return progress.unprocessed_records + arrived


def _progress_columns(now_ms: int) -> list[Column[ProgressRow]]:
    return [
        Column(
            "group",
            "Group",
            lambda row: row.group_id,
            lambda row: words.link(row.group_id, "groups", row.group_id),
            is_searched=True,
        ),
        Column("branch_topic", "By way of", lambda row: row.via, is_searched=True),
        Column("partition", "Source's partition", lambda row: row.partition, is_number=True),
        Column(
            "stable_offset",
            "Stable offset",
            lambda row: row.result.progress.stable_offset,
            is_number=True,
            hint="Everything below it is done, in all ranges: what one plain consumer would have "
            "committed.",
        ),
        Column("end_offset", "End", lambda row: row.end_offset, is_number=True),
        Column(
            "unprocessed",
            "To do",
            lambda row: row.unprocessed,
            is_number=True,
            hint="Records that the group has not finished, counted one by one.",
        ),
        Column(
            "ranges_begun",
            "Ranges begun",
            lambda row: row.result.progress.committed_ranges,
            lambda row: (
                f"{row.result.progress.committed_ranges} of {len(row.result.progress.commits)}"
            ),
            is_number=True,
            hint="Ranges that something was committed for.",
        ),
        Column(
            "looked_ms",
            "As of",
            lambda row: row.result.read_ms,
            lambda row: words.time(row.result.read_ms, now_ms),
            is_number=True,
            hint="Commits have it looked at again; what arrives meanwhile counts as to do.",
        ),
    ]


async def _progress(console: Console, topics: Sequence[Topic], survey: Survey) -> list[ProgressRow]:
    rows: list[ProgressRow] = []
    for topic in topics:
        summary = survey.topics.get(topic.name)
        for group_id in summary.groups if summary is not None else ():
            results = console.broker.groups.branch_progress.last_of(group_id, topic.topic_id)
            rows += [ProgressRow(result) for _, result in sorted(results.items())]
            await asyncio.sleep(0)
    return rows


async def make_branches(request: Request, console: Console, topic: Topic, page: Page) -> Page:
    """The tab; `page` is the topic's page without it."""
    survey = await console.broker.surveyor.recent()
    query = request.query_params
    layout = topic.layout
    first: Table[BranchRow] | Table[BranchTopicRow]
    if layout is not None:
        branches = [
            BranchRow(number, layout.branch_at(number), layout.ranges)
            for number in range(len(topic.partitions))
        ]
        first = make_table("branches", BRANCH_COLUMNS, branches, query, is_only=False)
        topics = [topic]
    else:
        topics = sorted(topic.branch_topics, key=lambda one: one.name)
        found = [
            BranchTopicRow(one, survey.topics[one.name].groups if one.name in survey.topics else ())
            for one in topics
        ]
        first = make_table("branch_topics", BRANCH_TOPIC_COLUMNS, found, query, is_only=False)
    progress = make_table(
        "progress",
        _progress_columns(console.broker.now_ms()),
        await _progress(console, topics, survey),
        query,
        is_only=False,
        empty="No group has committed anything on these branches.",
    )
    return Page(
        template="topic_branches.html",
        title=page.title,
        crumbs=page.crumbs,
        tables=[first, progress],
        values={**page.values, "layout": layout},
    )
