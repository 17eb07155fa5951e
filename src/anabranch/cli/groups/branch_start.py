"""Where a group starts on a new branch topic, so that it goes on from what it has done elsewhere.

What the group has done is told by its commits on another branch topic of the same source, or on the
source itself. Ranges that are cut differently cannot all start where their predecessors stopped:
each starts at its first record that is not done. Nothing is skipped, and what is done above the
start is processed again, which is counted.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.branch.layout import Branch, BranchLayout
from anabranch.cli.errors import CliError, reason_of
from anabranch.cli.groups.branch_progress import RangeStart, SourceRow
from anabranch.cli.groups.branch_questions import ask_plan
from anabranch.cli.groups.commit import commit_offsets
from anabranch.cli.groups.lookup import (
    Group,
    TopicPartitionKey,
    committed_offsets,
    describe_groups,
    still_active,
    unknown_group,
)
from anabranch.cli.options import Connection
from anabranch.cli.output import counted, note, write_blank_line, write_table
from anabranch.cli.topics.branch_lookup import find_branch_topics

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The progress that a group goes on from."""

    group: Group
    source: str
    topic: str  # a branch topic of the source, or the source itself


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """Where each range of a new branch topic begins, by partition of the source."""

    origin: Origin
    topic: str
    layout: BranchLayout
    partitions: list[SourceRow]

    @property
    def replayed_records(self) -> int:
        return sum(_replayed(row) for row in self.partitions)

    def branches(self, row: SourceRow) -> Iterator[tuple[int, RangeStart]]:
        """The partitions of the branch topic that stand for one of the source's."""
        for number, start in enumerate(row.plan):
            yield self.layout.index_of(Branch(row.source_partition, number)), start

    def offsets(self) -> dict[TopicPartitionKey, int]:
        """The offset to commit for each partition of the branch topic."""
        return {
            (self.topic, index): start.start_offset
            for row in self.partitions
            for index, start in self.branches(row)
        }

    def document(self) -> dict[str, Any]:
        """The plan as JSON shows it."""
        return {
            "group": self.origin.group.group,
            "from_topic": self.origin.topic,
            "replayed_records": self.replayed_records,
            "partitions": [
                {
                    "source_partition": row.source_partition,
                    "stable_offset": row.stable_offset,
                    "high_watermark": row.high_watermark,
                    "unprocessed_records": row.unprocessed_records,
                    "replayed_records": _replayed(row),
                    "branches": [
                        {"partition": index, **dataclasses.asdict(start)}
                        for index, start in self.branches(row)
                    ],
                }
                for row in self.partitions
            ],
        }

    def write(self, *, is_dry_run: bool) -> None:
        """The plan as a table by partition of the source, and what it comes to."""
        group, source = self.origin.group.group, self.origin.source
        write_blank_line()
        write_table(
            (
                *("GROUP", "SOURCE", "PARTITION", "STABLE-OFFSET", "START-OFFSET"),
                *("UNPROCESSED", "REPLAYED"),
            ),
            [
                (
                    group,
                    source,
                    row.source_partition,
                    row.stable_offset,
                    min(start.start_offset for start in row.plan),
                    row.unprocessed_records,
                    _replayed(row),
                )
                for row in self.partitions
            ],
        )
        starts = "would start" if is_dry_run else "starts"
        replayed = counted(self.replayed_records, "finished record")
        note(
            f"{group} {starts} on {self.topic} from its progress on {self.origin.topic}:"
            f" nothing is skipped, and {replayed} will be processed again."
        )


def _replayed(row: SourceRow) -> int:
    return sum(one.replayed_records for one in row.plan)


def find_origin(
    admin: "AdminClient",
    connection: Connection,
    metadata: "ClusterMetadata",
    group: str,
    source: str,
    from_topic: str | None,
    *,
    is_dry_run: bool,
) -> Origin:
    """Which progress of a group is meant.

    CliError when there is none or several, and while the group has members, unless only looking.
    """
    topics = find_branch_topics(connection, metadata)
    sources = {name: topic.source for name, topic in topics.items()}
    found = describe_groups(admin, connection, [group])[group]
    if not found.exists:
        raise unknown_group(admin, connection, group)
    if found.is_active and not is_dry_run:
        raise still_active(found, "it can take its progress to another topic")
    committed = {topic for topic, _ in committed_offsets(admin, connection, [group])[group]}
    branched = sorted(name for name in committed if sources.get(name) == source)
    if from_topic is not None:
        _check_origin(group, source, from_topic, sources, committed)
        topic = from_topic
    elif len(branched) > 1:
        raise CliError(
            f"Group {group!r} has progress on {len(branched)} branch topics of {source!r}",
            f"they are {', '.join(branched)}",
            "choose one with --from-topic",
        )
    elif branched:
        (topic,) = branched
    elif source in committed:
        topic = source
    else:
        raise CliError(
            f"Group {group!r} has no progress on {source!r}",
            "it has committed nothing on it, nor on a branch topic of it",
            "leave --from-group out, the group starts anew then",
        )
    return Origin(group=found, source=source, topic=topic)


def _check_origin(
    group: str, source: str, topic: str, sources: Mapping[str, str], committed: set[str]
) -> None:
    """CliError when nothing can be taken over from a topic."""
    if topic != source and sources.get(topic) != source:
        raise CliError(
            f"Progress on {topic!r} says nothing about {source!r}",
            f"it is no branch topic of {source!r}",
            f"give one of those with --from-topic, or {source!r} itself",
        )
    if topic not in committed:
        candidates = sorted(t for t in committed if t == source or sources.get(t) == source)
        raise CliError(
            f"Group {group!r} has no progress on {topic!r}",
            "it has committed nothing on it",
            f"there is some on {', '.join(candidates)}"
            if candidates
            else "leave --from-group out, the group starts anew then",
        )


def plan_start(
    connection: Connection, metadata: "ClusterMetadata", origin: Origin, topic: str, branches: int
) -> StartPlan:
    """Where a group would start on a branch topic of so many partitions; nothing is changed."""
    partitions = len(metadata.topics[origin.source].partitions)
    layout = BranchLayout(partitions, branches // partitions)
    rows = ask_plan(connection, origin.group, origin.topic, layout.ranges)
    return StartPlan(origin=origin, topic=topic, layout=layout, partitions=rows)


def start_group(
    admin: "AdminClient", connection: Connection, metadata: "ClusterMetadata", planned: StartPlan
) -> StartPlan:
    """Commit where a group starts on a branch topic that was made as planned.

    The plan is made again: what decides the range of a record may have been set with the topic.
    """
    origin, topic = planned.origin, planned.topic
    group = origin.group.group
    what = f"Topic {topic!r} was created, but group {group!r} has no offsets on it"
    next_step = f"delete {topic!r}, and run this again"
    try:
        rows = ask_plan(connection, origin.group, origin.topic, planned.layout.ranges)
    except CliError as error:
        raise CliError(what, error.why, next_step) from error
    made = find_branch_topics(connection, metadata).get(topic)
    # The source may have grown between the plan and the topic.
    layout = planned.layout if made is None else made.layout
    plan = StartPlan(origin=origin, topic=topic, layout=layout, partitions=rows)
    errors = commit_offsets(admin, connection, group, plan.offsets(), failure=what)
    if any(refused.name() == "UNKNOWN_MEMBER_ID" for refused in errors.values()):
        why = "somebody has joined it meanwhile"
        raise CliError(what, why, f"stop its members, {next_step}")
    if errors:
        raise CliError(what, reason_of(next(iter(errors.values()))), next_step)
    return plan
