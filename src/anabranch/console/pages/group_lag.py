"""Group, Lag: how it went lately, and how far the group is with each partition."""

from typing import Any

from starlette.requests import Request

from anabranch.broker.survey import GroupSummary, PartitionLag
from anabranch.console import words
from anabranch.console.branch_sharing import BranchedPartition, branch_topics, read_branched
from anabranch.console.frame import Console, Page
from anabranch.console.group_found import found_group
from anabranch.console.lag_chart import make_chart
from anabranch.console.member_names import MemberNames
from anabranch.console.tables import Column, Table, make_table

# Partitions of a source, whose branches are looked at one by one.
_SOURCES_MAX = 500


def _columns(names: MemberNames, now_ms: int) -> list[Column[PartitionLag]]:
    return [
        Column(
            "topic",
            "Topic",
            lambda one: one.topic,
            lambda one: words.link(one.topic, "topics", one.topic),
            is_searched=True,
        ),
        Column("partition", "Partition", lambda one: one.partition, is_number=True),
        Column(
            "committed_offset",
            "Committed",
            lambda one: one.committed_offset,
            is_number=True,
            hint="The next offset that the group reads. None: nothing was committed, and lag "
            "counts from the log's start.",
        ),
        Column(
            "end_offset",
            "End",
            lambda one: one.log_end_offset,
            is_number=True,
            hint="The offset that the next record gets. None: there is no such partition any more.",
        ),
        Column(
            "lag",
            "Lag",
            lambda one: one.lag_records,
            is_number=True,
            hint="Records that the group has yet to process.",
        ),
        Column(
            "lag_ms",
            "Lag time",
            lambda one: one.lag_ms,
            lambda one: words.duration(one.lag_ms),
            is_number=True,
            hint="How long ago the first record was written that is not committed.",
        ),
        Column(
            "owner",
            "Owner",
            lambda one: one.member_id,
            lambda one: names.cell(one.member_id),
            hint="The member that has it. None: nobody, or several share it.",
            is_searched=True,
        ),
        Column(
            "committed_ms",
            "Committed at",
            lambda one: one.committed_ms,
            lambda one: words.time(one.committed_ms, now_ms),
            is_number=True,
            hint="When the group committed this offset.",
        ),
        Column(
            "metadata",
            "Metadata",
            lambda one: one.metadata or None,
            hint="What the client stored beside the offset.",
            is_searched=True,
        ),
    ]


BRANCHED_COLUMNS: list[Column[BranchedPartition]] = [
    Column(
        "source",
        "Source",
        lambda one: one.source,
        lambda one: words.link(one.source, "topics", one.source),
        is_searched=True,
    ),
    Column("partition", "Partition", lambda one: one.partition, is_number=True),
    Column(
        "branch_topic",
        "Branch topic",
        lambda one: one.topic,
        lambda one: words.link(one.topic, "topics", one.topic),
        is_searched=True,
    ),
    Column(
        "stable_offset",
        "Stable offset",
        lambda one: one.stable_offset,
        is_number=True,
        hint="Everything below it is done, in all branches: what one plain consumer would have "
        "committed on the source.",
    ),
    Column("end_offset", "End", lambda one: one.high_watermark, is_number=True),
    Column(
        "unprocessed",
        "Unprocessed",
        lambda one: one.unprocessed,
        is_number=True,
        hint="Records of the source that the group has yet to process, each counted once.",
    ),
]


async def make_tab(request: Request, console: Console, group_id: str) -> Page:
    broker, query = console.broker, request.query_params
    summary = found_group(request)
    names = MemberNames(broker.groups.group(group_id))
    tables: list[Table[Any]] = [
        make_table(
            "partitions",
            _columns(names, broker.now_ms()),
            summary.partitions,
            query,
            sort="-lag",
            empty="The group has committed nothing and has no partitions.",
            is_only=False,
        )
    ]
    branched = _branched(console, summary)
    if branched:
        tables.append(make_table("sources", BRANCHED_COLUMNS, branched, query, is_only=False))
    history = broker.surveyor.history(group_id)
    return Page(
        template="group_lag.html",
        title=group_id,
        tables=tables,
        values={
            "is_branched": bool(branched),
            "lag_chart": make_chart("Lag in records", history, [("lag", lambda s: s.lag_records)]),
            "rate_chart": make_chart(
                "Records per second",
                history,
                [
                    ("produced", lambda s: s.produce_per_s),
                    ("consumed", lambda s: s.consume_per_s),
                ],
                unit="/s",
            ),
        },
    )


def _branched(console: Console, summary: GroupSummary) -> list[BranchedPartition]:
    found: list[BranchedPartition] = []
    for topic in branch_topics(console.broker, summary.group_id):
        assert topic.source is not None
        for number in range(len(topic.source.partitions)):
            if len(found) == _SOURCES_MAX:
                return found
            found.append(read_branched(console.broker, summary, topic, number, {}))
    return found
