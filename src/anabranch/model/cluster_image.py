"""What a coordinator may know of the cluster: an immutable picture of its topics.

The broker makes a new image whenever a topic is created, grows or goes, and hands it to the
coordinators; a decision sees one image from its beginning to its end. Topics that did not change
are the same objects in the next image, so that whoever compares images can do so by identity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic: its id, its number of partitions, and the racks that hold replicas of each.

    `racks` is empty, or has one set per partition.
    """

    name: str
    topic_id: bytes
    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    # Whether members of a group may share its partitions by key range (`range.fetch.enable`).
    is_shareable: bool = False


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All topics, and a number that grows with every change."""

    version: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)

    def with_topics(self, topics: Mapping[str, TopicImage]) -> "ClusterImage":
        return ClusterImage(
            self.version + 1, topics, {topic.topic_id: topic for topic in topics.values()}
        )
