"""The topics of the broker, by name and by id.

Every change is written to the metadata store first and becomes visible here when it is durable.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.broker.partition import Partition
from anabranch.engine.embedded import EmbeddedEngine
from anabranch.engine.metadata_store import STORE_ERRORS, StoredTopic
from anabranch.log.log_config import LogConfig
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.topics import RESERVED_IDS, check_topic_name, colliding_name

# What Kafka calls internal; any other topic with two underscores is a user's own.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(slots=True, eq=False)
class Topic:
    """A topic with its partitions and the settings that differ from the broker's."""

    name: str
    topic_id: bytes
    configs: Mapping[str, str]
    partitions: list[Partition] = field(default_factory=list)
    # What coordinators know of it; another object whenever that changes.
    image: TopicImage = field(default_factory=lambda: TopicImage("", b"", 0))

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def has_partition(self, index: int) -> bool:
        return 0 <= index < len(self.partitions)


class LogSettings(NamedTuple):
    """What a topic's settings mean for its partitions."""

    config: LogConfig
    syncs_acks_all: bool


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
        topic.image = TopicImage(topic.name, topic.topic_id, len(topic.partitions), racks)
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
        for kept in stored:
            topic = Topic(kept.name, kept.topic_id, dict(kept.configs))
            self._add_partitions(topic, kept.partitions)
            self._put(topic)
            self._changed(topic)

    def _put(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _add_partitions(self, topic: Topic, count: int) -> None:
        syncs_acks_all = self._log_settings_of(topic.configs).syncs_acks_all
        for index in range(len(topic.partitions), count):
            log = self._engine.logs[topic.name, index]
            topic.partitions.append(Partition(index, log, syncs_acks_all))

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
        topic_id = uuid.uuid4().bytes
        while topic_id in RESERVED_IDS or topic_id in self._by_id:
            topic_id = uuid.uuid4().bytes
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

    def grow(self, topic: Topic, partitions: int, now_ms: int) -> None:
        """Give a topic more partitions."""
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

    def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings; its logs follow at once."""
        with storage_errors(f"The settings of topic '{topic.name}' could not be written"):
            self._engine.store.set_topic_configs(topic.topic_id, configs)
        topic.configs = dict(configs)
        self.apply_configs(topic)

    def apply_configs(self, topic: Topic) -> None:
        """Let the logs of a topic follow its settings and the broker's."""
        config, syncs_acks_all = self._log_settings_of(topic.configs)
        for partition in topic.partitions:
            partition.log.config = config
            partition.syncs_acks_all = syncs_acks_all

    def delete(self, topic: Topic) -> None:
        """Forget a topic and move its folders out of the way; the files go later, off the loop."""
        with storage_errors(f"Topic '{topic.name}' could not be deleted"):
            self._engine.store.delete_topic(topic.topic_id)
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        for partition in topic.partitions:
            self._engine.remove_log(partition.log)
        self._changed(topic)


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn what the disk or the store says into KAFKA_STORAGE_ERROR."""
    try:
        yield
    except STORE_ERRORS as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}.") from error
