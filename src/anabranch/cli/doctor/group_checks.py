"""Checks of groups, each over what a survey has seen. Pure."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from anabranch.cli.doctor.findings import Finding, found_or_ok, problem, skipped, warning
from anabranch.cli.doctor.survey import Survey
from anabranch.cli.groups.describe_output import total_lag
from anabranch.cli.groups.lookup import Group, TopicPartitionKey
from anabranch.cli.output import counted

_GROWTH_MIN: Final = 100  # records; less is what comes between two commits
_GROWTH_SHARE: Final = 0.01


def check_groups(seen: Survey) -> list[Finding]:
    """All checks of groups that need no further question."""
    if not seen.groups:
        return [skipped("groups", "there are no groups", "start a consumer with a group.id")]
    return [
        *found_or_ok(_abandoned(seen), "abandoned-groups", "every group with lag has members"),
        *found_or_ok(_restless(seen), "rebalancing", "no group keeps rebalancing"),
        *found_or_ok(_uncommitted(seen), "no-commits", "every group with members commits"),
        *found_or_ok(_growing(seen), "growing-lag", "no group falls behind while we look"),
        *found_or_ok(_crowded(seen), "idle-members", "every member has partitions"),
        *found_or_ok(_twice(seen), "branch-and-source", "no group reads records twice"),
        *found_or_ok(_lost(seen), "lost-records", "no group has missed records"),
    ]


def _abandoned(seen: Survey) -> list[Finding]:
    found = []
    for name, group in sorted(seen.groups.items()):
        behind = total_lag(seen.rows[name])
        if group.state == "Empty" and behind:
            found.append(
                warning(
                    "abandoned-groups",
                    name,
                    f"it is Empty with a lag of {behind}",
                    why="nobody reads these records any more",
                    next_step="start its consumers, or if it is not needed run"
                    f" `anabranch groups delete {name}`",
                )
            )
    return found


def _restless(seen: Survey) -> list[Finding]:
    """Groups that are never at rest, or whose members come and go, in most of the looks."""
    found = []
    most = (len(seen.looks) + 1) // 2 + 1
    for name in sorted(seen.groups):
        seen_at = [look.groups[name] for look in seen.looks if name in look.groups]
        moving = sum(group.is_rebalancing for group in seen_at)
        changes = sum(_ids(before) != _ids(after) for before, after in pairwise(seen_at))
        if moving < most and changes + 1 < most:
            continue
        what = (
            f"it was {seen_at[-1].state} in {moving} of {len(seen_at)} looks"
            if moving >= most
            else f"its members changed {counted(changes, 'time')} within {seen.duration_s:.0f} s"
        )
        found.append(
            warning(
                "rebalancing",
                name,
                what,
                why="consumers that restart, or process for longer than max.poll.interval.ms,"
                " make it start again; a classic group reads nothing meanwhile",
                next_step=f"see `anabranch groups describe {name} --members` twice; raise"
                " max.poll.interval.ms or lower max.poll.records",
            )
        )
    return found


def _ids(group: Group) -> set[str]:
    return {member.consumer_id for member in group.members}


def _uncommitted(seen: Survey) -> list[Finding]:
    found = []
    for name, group in sorted(seen.groups.items()):
        rows = [row for row in seen.rows[name] if row.member is not None]
        with_records = [row for row in rows if (row.log_end_offset or 0) > 0]
        if not group.members or not with_records:
            continue
        if all(row.current_offset is None for row in seen.rows[name]):
            found.append(
                warning(
                    "no-commits",
                    name,
                    f"its {counted(len(group.members), 'member')} have committed no offset",
                    why="after a restart they begin where auto.offset.reset says, and read again"
                    " or skip",
                    next_step="set enable.auto.commit=true, or call commit() after processing",
                )
            )
    return found


def _growing(seen: Survey) -> list[Finding]:
    found = []
    for name, group in sorted(seen.groups.items()):
        if name not in seen.rows_before or not group.members:
            continue  # one without members is told of by another check
        before, after = total_lag(seen.rows_before[name]), total_lag(seen.rows[name])
        if after - before < max(_GROWTH_MIN, before * _GROWTH_SHARE):
            continue
        rate = (after - before) / max(seen.duration_s, 0.001)
        found.append(
            warning(
                "growing-lag",
                name,
                f"its lag grew from {before} to {after}, by {rate:.0f} records a second",
                why="more is produced than its members process",
                next_step="add members up to the number of partitions, or share partitions by key:"
                " see `anabranch topics branch --help`",
            )
        )
    return found


def _crowded(seen: Survey) -> list[Finding]:
    """More members than partitions: the rest of them does nothing."""
    found = []
    for name, group in sorted(seen.groups.items()):
        idle = [member for member in group.members if not member.partitions]
        if group.is_rebalancing or not idle or len(idle) == len(group.members):
            continue
        topics = sorted({topic for member in group.members for topic, _ in member.partitions})
        partitions = len({key for member in group.members for key in member.partitions})
        source = _largest(seen, name) or topics[0]
        found.append(
            warning(
                "idle-members",
                name,
                f"{len(idle)} of {len(group.members)} members have nothing to read",
                why=f"they share {counted(partitions, 'partition')} of {', '.join(topics)}",
                next_step=f"run `anabranch topics branch {source} --into"
                f" {_branches(seen, source, len(group.members))}` and subscribe to that, or stop"
                " them",
            )
        )
    return found


def _largest(seen: Survey, group: str) -> str | None:
    lags: Counter[str] = Counter()
    for row in seen.rows[group]:
        lags[row.topic] += (row.lag or 0) + 1
    return lags.most_common(1)[0][0] if lags else None


def _branches(seen: Survey, topic: str, members: int) -> int:
    """The smallest multiple of the topic's partitions that has one for every member."""
    partitions = max(1, sum(name == topic for name, _ in seen.ranges))
    return -(-members // partitions) * partitions


def _twice(seen: Survey) -> list[Finding]:
    found = []
    for name, group in sorted(seen.groups.items()):
        owned = {topic for member in group.members for topic, _ in member.partitions}
        for branch in seen.branch_topics.values():
            if branch.name in owned and branch.source in owned:
                found.append(
                    problem(
                        "branch-and-source",
                        name,
                        f"it reads {branch.name!r} and its source {branch.source!r}",
                        why="both are the same records, so each is processed twice",
                        next_step=f"subscribe to one of them only; {branch.name!r} has more"
                        " partitions",
                    )
                )
    return found


def _lost(seen: Survey) -> list[Finding]:
    found = []
    for name, group in sorted(seen.groups.items()):
        missed: Counter[str] = Counter()
        for row in {(row.topic, row.partition): row for row in seen.rows[name]}.values():
            start = row.log_start_offset
            if row.current_offset is not None and start is not None and row.current_offset < start:
                missed[row.topic] += start - row.current_offset
        for topic, count in sorted(missed.items()):
            tell = problem if group.members else warning
            found.append(
                tell(
                    "lost-records",
                    f"{name} on {topic}",
                    f"{counted(count, 'record')} went before the group had read them",
                    why="retention, or DeleteRecords, took them away behind its offset",
                    next_step=f"raise retention.ms of {topic!r}: `anabranch configs alter --topic"
                    f" {topic} --set retention.ms=MS`, and find out why it was late",
                )
            )
    return found


def check_retention(
    seen: Survey, safe_from: Mapping[TopicPartitionKey, int], share: float
) -> list[Finding]:
    """`safe_from`: by partition, the first offset that is younger than `share` of its time."""
    found = []
    for name in sorted(seen.groups):
        late: dict[str, int] = {}
        for row in seen.rows[name]:
            limit = safe_from.get((row.topic, row.partition))
            position = max(row.current_offset or 0, row.log_start_offset or 0)
            if limit is not None and row.lag and position < limit:
                late[row.topic] = late.get(row.topic, 0) + limit - position
        for topic, count in sorted(late.items()):
            found.append(
                warning(
                    "retention",
                    f"{name} on {topic}",
                    f"{counted(count, 'record')} that it has not read will soon be deleted",
                    why=f"they are older than {share:.0%} of retention.ms"
                    f" ({seen.configs.get(topic, {}).get('retention.ms')})",
                    next_step=f"raise it in time: `anabranch configs alter --topic {topic} --set"
                    " retention.ms=MS`, or have the group catch up",
                )
            )
    return found_or_ok(found, "retention", "no group is close to losing records")
