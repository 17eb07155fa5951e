"""Where a group starts on a new branch topic, so that it goes on from what it has done elsewhere.

What the group has done is told by its commits on another branch topic of the same source, or on the
source itself. Ranges that are cut differently cannot all start where their predecessors stopped:
each starts at its first record that is not done. Nothing is skipped, and what is done above the
start is processed again, which is counted.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.branch.layout import Branch, BranchLayout
from anabranch.cli.errors import CliError, refusal
from anabranch.cli.groups.branch_progress import SourceRow
from anabranch.cli.groups.branch_questions import ask_plan
from anabranch.cli.groups.commit import commit_offsets
from anabranch.cli.groups.lookup import (
    Group,
    committed_offsets,
    describe_groups,
    still_active,
    unknown_group,
)
from anabranch.cli.options import Connection
from anabranch.cli.output import counted, note, write_blank_line, write_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient


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
    partitions: list[SourceRow]

    @property
    def replayed_records(self) -> int:
        return sum(_replayed(row) for row in self.partitions)

    def offsets(self, layout: BranchLayout) -> dict[int, int]:
        """The offset to commit for each partition of the branch topic."""
        return {
            layout.index_of(Branch(row.source_partition, number)): one.start_offset
            for row in self.partitions
            for number, one in enumerate(row.plan)
        }


def _replayed(row: SourceRow) -> int:
    return sum(one.replayed_records for one in row.plan)


def find_origin(
    admin: "AdminClient",
    connection: Connection,
    *,
    group: str,
    source: str,
    from_topic: str | None,
    sources: "Mapping[str, str]",
    is_dry_run: bool,
) -> Origin:
    """Which progress of a group is meant; `sources` has the source of each branch topic.

    CliError when there is none or several, and while the group has members, unless only looking.
    """
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
    group: str, source: str, topic: str, sources: "Mapping[str, str]", committed: set[str]
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


def plan_start(connection: Connection, origin: Origin, ranges: int) -> StartPlan:
    """Where the ranges of a branch topic would begin, each partition cut into so many."""
    rows = ask_plan(connection, origin.group, origin.topic, ranges)
    return StartPlan(origin=origin, partitions=rows)


def commit_start(
    admin: "AdminClient",
    connection: Connection,
    plan: StartPlan,
    name: str,
    layout: BranchLayout,
) -> None:
    """Commit the plan for a branch topic that was made for it; CliError when that is refused."""
    group = plan.origin.group.group
    failure = f"Topic {name!r} was created, but group {group!r} has no offsets on it yet"
    offsets = {(name, index): offset for index, offset in plan.offsets(layout).items()}
    errors = commit_offsets(admin, connection, group, offsets, failure=failure)
    if not errors:
        return
    if any(error.name() == "UNKNOWN_MEMBER_ID" for error in errors.values()):
        # Somebody joined after we looked.
        found = describe_groups(admin, connection, [group])[group]
        raise CliError(
            failure,
            f"the group is {found.state} with {counted(len(found.members), 'member')} by now",
            f"stop them, delete {name!r}, and run this again",
        )
    raise refusal(failure, next(iter(errors.values())))


# Showing ----------------------------------------------------------------------------------------


def start_document(plan: StartPlan, layout: BranchLayout) -> dict[str, Any]:
    """The plan as JSON shows it."""
    return {
        "group": plan.origin.group.group,
        "from_topic": plan.origin.topic,
        "replayed_records": plan.replayed_records,
        "partitions": [
            {
                "source_partition": row.source_partition,
                "stable_offset": row.stable_offset,
                "high_watermark": row.high_watermark,
                "unprocessed_records": row.unprocessed_records,
                "replayed_records": _replayed(row),
                "branches": [
                    {
                        "partition": layout.index_of(Branch(row.source_partition, number)),
                        "start_offset": one.start_offset,
                        "replayed_records": one.replayed_records,
                    }
                    for number, one in enumerate(row.plan)
                ],
            }
            for row in plan.partitions
        ],
    }


def write_start(plan: StartPlan, name: str, *, is_dry_run: bool) -> None:
    """The plan as a table by partition of the source, and what it comes to."""
    origin = plan.origin
    write_blank_line()
    write_table(
        (
            *("GROUP", "SOURCE", "PARTITION", "STABLE-OFFSET", "START-OFFSET"),
            *("UNPROCESSED", "REPLAYED"),
        ),
        [
            (
                origin.group.group,
                origin.source,
                row.source_partition,
                row.stable_offset,
                min(one.start_offset for one in row.plan),
                row.unprocessed_records,
                _replayed(row),
            )
            for row in plan.partitions
        ],
    )
    would = "would start" if is_dry_run else "starts"
    note(
        f"{origin.group.group} {would} on {name} from its progress on {origin.topic}: nothing is"
        f" skipped, {counted(plan.replayed_records, 'record')} that"
        f" {'was' if plan.replayed_records == 1 else 'were'} done will be processed again."
    )
