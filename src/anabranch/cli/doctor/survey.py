"""What a cluster shows of itself: looked at several times, so that movement is seen.

A look is cheap and shows states; lag is read at the first and the last look.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anabranch.cli.cluster import known_offset_ranges
from anabranch.cli.groups.describe import partition_rows
from anabranch.cli.groups.describe_output import PartitionRow
from anabranch.cli.groups.lookup import Group, TopicPartitionKey, describe_groups, list_groups
from anabranch.cli.options import Connection
from anabranch.cli.topics.branch_lookup import BranchTopic, find_branch_topics
from anabranch.cli.topics.configs import describe_topics

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

Rows = Mapping[str, list[PartitionRow]]

LOOKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The groups at a moment."""

    at_s: float
    groups: Mapping[str, Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All that the checks of topics and groups are made from."""

    looks: tuple[Look, ...]
    rows_before: Rows
    rows: Rows
    ranges: Mapping[TopicPartitionKey, tuple[int, int]]  # first offset and end of all partitions
    configs: Mapping[str, Mapping[str, str | None]]  # by topic
    branch_topics: Mapping[str, BranchTopic]

    @property
    def groups(self) -> Mapping[str, Group]:
        """As they were at the last look."""
        return self.looks[-1].groups

    @property
    def duration_s(self) -> float:
        return self.looks[-1].at_s - self.looks[0].at_s

    def topics(self) -> list[str]:
        """Those that users made."""
        return sorted({topic for topic, _ in self.ranges if not topic.startswith("__")})

    def records_of(self, topic: str) -> int:
        return sum(end - start for (name, _), (start, end) in self.ranges.items() if name == topic)


def survey(
    admin: "AdminClient",
    connection: Connection,
    metadata: "ClusterMetadata",
    *,
    watch_s: float,
    on_look: Callable[[int], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Survey:
    """Look at the cluster for a while."""
    looks: list[Look] = []
    rows_before: Rows = {}
    for number in range(LOOKS):
        if number:
            sleep(watch_s / (LOOKS - 1))
        looks.append(_look(admin, connection))
        if not number:
            rows_before = _rows(admin, connection, metadata, looks[0])
        on_look(1)
    topics = sorted(metadata.topics)
    places = [
        (topic, partition) for topic in topics for partition in metadata.topics[topic].partitions
    ]
    return Survey(
        looks=tuple(looks),
        rows_before=rows_before,
        rows=_rows(admin, connection, metadata, looks[-1]),
        ranges=known_offset_ranges(admin, connection, metadata, places),
        configs=_configs(admin, connection, topics),
        branch_topics=find_branch_topics(connection, metadata),
    )


def _look(admin: "AdminClient", connection: Connection) -> Look:
    listings, _ = list_groups(admin, connection, set(), set())
    groups = describe_groups(admin, connection, [listing.group for listing in listings])
    present = {name: group for name, group in groups.items() if group.exists}
    return Look(at_s=time.monotonic(), groups=present)


def _rows(
    admin: "AdminClient", connection: Connection, metadata: "ClusterMetadata", look: Look
) -> Rows:
    return partition_rows(admin, connection, metadata, list(look.groups.values()))


def _configs(
    admin: "AdminClient", connection: Connection, topics: list[str]
) -> dict[str, dict[str, str | None]]:
    described: dict[str, dict[str, Any]] = {}
    if topics:
        described = describe_topics(admin, connection, topics)
    return {
        topic: {name: entry.value for name, entry in entries.items()}
        for topic, entries in described.items()
    }
