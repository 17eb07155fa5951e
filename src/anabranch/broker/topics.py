"""The topics of the broker, by name and by id.

Every change is written to the metadata store first and becomes visible here when it is durable.

A branch topic shows the branches of another topic, its source: its partitions read the source's
logs (see `anabranch.branch.layout`). It follows its source's growth and cannot outlive it.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from anabranch.branch.layout import BranchLayout
from anabranch.branch.slots import DEFAULT_RULE, SlotRule
from anabranch.broker.partition import BranchTail, Partition, PartitionBranch
from anabranch.engine.embedded import EmbeddedEngine
from anabranch.engine.metadata_store import BRANCH_SOURCE_CONFIG, STORE_ERRORS, StoredTopic
from anabranch.log.log_config import LogConfig
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.topics import (
    RESERVED_IDS,
    check_topic_name,
    colliding_name,
    format_topic_id,
    parse_topic_id,
)
from anabranch.observe import logs

# What Kafka calls internal, and KIP-X; any other topic with two underscores is a user's own.
INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__individual_commit_offsets",
    }
)

# What a branch topic keeps of its source besides the name: names can be given again.
BRANCH_SOURCE_ID_CONFIG: Final = "branch.source.topic.id"
BRANCH_SOURCE_PARTITIONS_CONFIG: Final = "branch.source.partitions"
BRANCH_RANGES_CONFIG: Final = "branch.ranges"


@dataclass(slots=True, eq=False)
class Topic:
    """A topic with its partitions and the settings that differ from the broker's."""

    name: str
    topic_id: bytes
    configs: Mapping[str, str]
    partitions: list[Partition] = field(default_factory=list)
    # What coordinators know of it; another object whenever that changes.
    image: TopicImage = field(default_factory=lambda: TopicImage("", b"", 0))
    # Of a branch topic: whose branches it shows, and how.
    source: "Topic | None" = None
    layout: BranchLayout | None = None
    # Of any other: the branch topics over it.
    branch_topics: "list[Topic]" = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def has_partition(self, index: int) -> bool:
        return 0 <= index < len(self.partitions)


class LogSettings(NamedTuple):
    """What a topic's settings mean for its partitions."""

    config: LogConfig
    syncs_acks_all: bool
    slot_rule: SlotRule = DEFAULT_RULE
    indexes_at_append: bool = False
    is_shareable: bool = False


class Topics:
    """All topics."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        log_settings_of: Callable[[Mapping[str, str]], LogSettings],
        rack: str | None = None,
    ) -> None:
        self._engine = engine
        self._log_settings_of = log_settings_of
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._rack = rack
        self._image: ClusterImage | None = None
        self._image_version = 0
        # Told the name of every topic that was created, grew or went.
        self.on_change: Callable[[str], None] | None = None

    def __iter__(self) -> Iterator[Topic]:
        """All topics in the order of their names."""
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def must_get(self, name: str) -> Topic:
        return self._by_name[name]

    def id_of(self, topic: str | bytes) -> bytes | None:
        """The id of a topic by its name or its id; None for a name that is none."""
        if isinstance(topic, bytes):
            return topic
        known = self._by_name.get(topic)
        return known.topic_id if known is not None else None

    def get_by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    @property
    def image(self) -> ClusterImage:
        """All topics as they are now, for coordinators; made anew when it is asked for."""
        if self._image is None:
            topics = {topic.name: topic.image for topic in self._by_name.values()}
            self._image = ClusterImage(
                self._image_version, topics, {topic.topic_id: topic for topic in topics.values()}
            )
        return self._image

    def _changed(self, topic: Topic) -> None:
        racks = (frozenset({self._rack}),) * len(topic.partitions) if self._rack else ()
        is_shareable = topic.source is None and self._log_settings_of(topic.configs).is_shareable
        topic.image = TopicImage(
            topic.name, topic.topic_id, len(topic.partitions), racks, is_shareable
        )
        self._image, self._image_version = None, self._image_version + 1
        if self.on_change is not None:
            self.on_change(topic.name)

    def partition(self, name: str, index: int) -> Partition:
        """A partition by topic name; UNKNOWN_TOPIC_OR_PARTITION when there is none."""
        topic = self._by_name.get(name)
        if topic is not None and 0 <= index < len(topic.partitions):
            return topic.partitions[index]
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{index}."
        )

    def open(self, now_ms: int) -> None:
        """Open everything that the engine keeps."""
        stored = self._engine.open_logs(
            lambda topic: self._log_settings_of(topic.configs).config, now_ms
        )
        for kept in sorted(stored, key=lambda kept: not kept.has_logs):
            topic = Topic(kept.name, kept.topic_id, dict(kept.configs))
            if kept.has_logs:
                self._add_partitions(topic, kept.partitions)
            elif not self._join_source(topic, kept):
                continue
            self._put(topic)
            self._changed(topic)

    def _join_source(self, topic: Topic, kept: StoredTopic) -> bool:
        """Find the source of a branch topic that was kept, and make its branches."""
        source = self._by_id.get(parse_topic_id(kept.configs[BRANCH_SOURCE_ID_CONFIG]))
        if source is None:
            logs.error(
                "topic.source.missing", topic=topic.name, source=kept.configs[BRANCH_SOURCE_CONFIG]
            )
            return False
        layout = BranchLayout(
            int(kept.configs[BRANCH_SOURCE_PARTITIONS_CONFIG]),
            int(kept.configs[BRANCH_RANGES_CONFIG]),
        )
        self._set_source(topic, source, layout)
        return True

    def _put(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _add_partitions(self, topic: Topic, count: int) -> None:
        for index in range(len(topic.partitions), count):
            log = self._engine.logs[topic.name, index]
            topic.partitions.append(Partition(index, log, syncs_acks_all=False))
        self.apply_configs(topic)

    def _set_source(self, topic: Topic, source: Topic, layout: BranchLayout) -> None:
        topic.source, topic.layout = source, layout
        self._add_branches(topic)
        source.branch_topics.append(topic)

    @staticmethod
    def _add_branches(topic: Topic) -> None:
        """Make the branches of all partitions of the source that have none yet."""
        source, layout = topic.source, topic.layout
        assert source is not None and layout is not None
        tails: dict[int, BranchTail] = {}
        for index in range(len(topic.partitions), layout.count(len(source.partitions))):
            branch = layout.branch_at(index)
            partition = source.partitions[branch.partition]
            if branch.partition not in tails:
                tail = BranchTail(partition, layout.ranges)
                tails[branch.partition] = tail
                partition.branch_tails.append(tail)
            part = Partition(index, partition.log, partition.syncs_acks_all)
            part.branch = PartitionBranch(tails[branch.partition], branch.range_index)
            # Ranges of one partition come in order, whatever comes between them.
            tails[branch.partition].branches.append(part)
            topic.partitions.append(part)

    # Changes ----------------------------------------------------------------------------------

    def check_new_name(self, name: str) -> None:
        """Refuse a name that is illegal, taken, or collides with another in metric names."""
        check_topic_name(name)
        if name in self._by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        flat = colliding_name(name)
        if flat != name or "_" in name:
            for other in self._by_name:
                if colliding_name(other) == flat:
                    raise KafkaError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION,
                        f"Topic '{name}' collides with existing topic: {other}.",
                    )

    def create(self, name: str, partitions: int, configs: Mapping[str, str], now_ms: int) -> Topic:
        """Create a topic whose name and settings were checked."""
        topic_id = self._new_id()
        stored = StoredTopic(name, topic_id, partitions, dict(configs))
        config = self._log_settings_of(configs).config
        with storage_errors(f"Topic '{name}' could not be created"):
            self._engine.store.create_topics([stored])
            try:
                self._engine.create_logs(stored, range(partitions), config, now_ms)
            except BaseException:
                # Half a topic is worse than none: a restart would complete it.
                self._engine.store.delete_topic(topic_id)
                raise
        topic = Topic(name, topic_id, dict(configs))
        self._add_partitions(topic, partitions)
        self._put(topic)
        self._changed(topic)
        return topic

    def create_branch_topic(
        self, name: str, source: Topic, ranges: int, configs: Mapping[str, str]
    ) -> Topic:
        """Create a topic that shows `ranges` branches of each partition of `source`."""
        layout = BranchLayout(len(source.partitions), ranges)
        kept = branch_topic_configs(source, layout, configs)
        topic = Topic(name, self._new_id(), kept)
        stored = StoredTopic(name, topic.topic_id, layout.count(layout.partitions), kept)
        with storage_errors(f"Topic '{name}' could not be created"):
            self._engine.store.create_topics([stored])
        self._set_source(topic, source, layout)
        self._put(topic)
        self._changed(topic)
        return topic

    def _new_id(self) -> bytes:
        topic_id = uuid.uuid4().bytes
        while topic_id in RESERVED_IDS or topic_id in self._by_id:
            topic_id = uuid.uuid4().bytes
        return topic_id

    def grow(self, topic: Topic, partitions: int, now_ms: int) -> None:
        """Give a topic more partitions, and its branch topics more branches."""
        stored = StoredTopic(topic.name, topic.topic_id, partitions, topic.configs)
        new = range(len(topic.partitions), partitions)
        with storage_errors(f"Topic '{topic.name}' could not be extended"):
            made = self._engine.create_logs(
                stored, new, self._log_settings_of(topic.configs).config, now_ms
            )
            try:
                self._engine.store.set_partitions(topic.topic_id, partitions)
            except STORE_ERRORS:
                self._engine.discard_logs(made)
                raise
        self._add_partitions(topic, partitions)
        self._changed(topic)
        for branch_topic in topic.branch_topics:
            # The store's count of a branch topic is what it was made with: this one follows.
            self._add_branches(branch_topic)
            self._changed(branch_topic)

    def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings; its logs follow at once."""
        with storage_errors(f"The settings of topic '{topic.name}' could not be written"):
            self._engine.store.set_topic_configs(topic.topic_id, configs)
        topic.configs = dict(configs)
        self.apply_configs(topic)
        # Whether it may be shared, or what is committed on its source, may have changed.
        self._changed(topic)

    def apply_configs(self, topic: Topic) -> None:
        """Let the logs of a topic follow its settings and the broker's."""
        if topic.source is not None:
            return
        settings = self._log_settings_of(topic.configs)
        for partition in topic.partitions:
            partition.log.config = settings.config
            partition.syncs_acks_all = settings.syncs_acks_all
            partition.slot_rule = settings.slot_rule
            partition.indexes_at_append = settings.indexes_at_append

    def delete(self, topic: Topic) -> None:
        """Forget a topic and move its folders out of the way; the files go later, off the loop."""
        with storage_errors(f"Topic '{topic.name}' could not be deleted"):
            self._engine.store.delete_topic(topic.topic_id)
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        if topic.source is not None:
            self._leave_source(topic, topic.source)
        else:
            for partition in topic.partitions:
                self._engine.remove_log(partition.log)
        self._changed(topic)

    @staticmethod
    def _leave_source(topic: Topic, source: Topic) -> None:
        source.branch_topics.remove(topic)
        tails = {part.branch.tail for part in topic.partitions if part.branch is not None}
        for partition in source.partitions:
            partition.branch_tails = [t for t in partition.branch_tails if t not in tails]


def branch_topic_configs(
    source: Topic, layout: BranchLayout, configs: Mapping[str, str]
) -> dict[str, str]:
    """All that a branch topic keeps: its own settings, and what it is."""
    return {
        **configs,
        BRANCH_SOURCE_CONFIG: source.name,
        BRANCH_SOURCE_ID_CONFIG: format_topic_id(source.topic_id),
        BRANCH_SOURCE_PARTITIONS_CONFIG: str(layout.partitions),
        BRANCH_RANGES_CONFIG: str(layout.ranges),
    }


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn what the disk or the store says into KAFKA_STORAGE_ERROR."""
    try:
        yield
    except STORE_ERRORS as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}.") from error
