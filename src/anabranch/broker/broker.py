"""The broker: everything one process owns, put together.

Everything here runs on one event loop and nothing is locked. Handlers reach topics, logs, parked
fetches and settings through this object; it decides nothing about bytes or sockets.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anabranch.branch.slots import SlotRule
from anabranch.broker.branch_reader import BranchReader
from anabranch.broker.branch_topics import (
    BranchTopicPlan,
    check_can_be_deleted,
    plan_branch_topic,
)
from anabranch.broker.cleaner_offsets import CleanerOffsets
from anabranch.broker.deliveries import Deliveries
from anabranch.broker.fetch_sessions import FetchSessions
from anabranch.broker.flusher import Flusher
from anabranch.broker.group_configs import GroupConfigs
from anabranch.broker.group_coordinator import (
    INDIVIDUAL_JOURNAL_TOPIC,
    JOURNAL_TOPIC,
    GroupCoordinator,
)
from anabranch.broker.log_configs import make_log_config
from anabranch.broker.loop_delay import LoopDelay
from anabranch.broker.partition import Partition
from anabranch.broker.producer_ids import ProducerIds
from anabranch.broker.purgatory import Purgatory
from anabranch.broker.range_tails import RangeTails
from anabranch.broker.slot_indexing import SlotIndexing
from anabranch.broker.survey import Surveyor
from anabranch.broker.timeline import Timeline
from anabranch.broker.topics import LogSettings, Topic, Topics, storage_errors
from anabranch.broker.transaction_coordinator import TRANSACTION_TOPIC, TransactionCoordinator
from anabranch.config.layers import (
    DynamicConfigs,
    effective_broker_value,
    for_log,
    overlay_topic_values,
    topic_defaults,
)
from anabranch.config.settings import Settings
from anabranch.engine.embedded import EmbeddedEngine
from anabranch.engine.metadata_store import BRANCH_SOURCE_CONFIG
from anabranch.log.partition_log import PartitionLog, remove_folder
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.observe.metrics import Source


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_clock_ms() -> Callable[[], int]:
    """A clock that agrees with the wall clock now and never jumps afterwards.

    Sessions must not end because somebody set the machine's clock.
    """
    ahead_ms = wall_clock_ms() - time.monotonic_ns() // 1_000_000
    return lambda: ahead_ms + time.monotonic_ns() // 1_000_000


class Broker:
    """One node and all it holds."""

    def __init__(
        self,
        settings: Settings,
        now_ms: Callable[[], int] = wall_clock_ms,
        steady_ms: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self.now_ms = now_ms
        steady_ms = steady_ms or (now_ms if now_ms is not wall_clock_ms else steady_clock_ms())
        self.node_id = settings.get_int("node.id")
        self.rack = settings.get_optional_str("broker.rack")
        self.engine = EmbeddedEngine(
            [Path(folder) for folder in settings.log_dirs],
            cluster_id=settings.get_optional_str("cluster.id"),
        )
        self.cluster_id = self.engine.cluster_id
        self.branches = BranchReader()
        self.slot_indexing = SlotIndexing(self.branches)
        self.range_tails = RangeTails()
        self.purgatory = Purgatory(self._branched_appended)
        self.wake_fetches = self.purgatory.wake
        self.flusher = Flusher(now_ms)
        self.producer_ids = ProducerIds(self.engine.store)
        self.fetch_sessions = FetchSessions(
            settings.get_int("max.incremental.fetch.session.cache.slots")
        )
        # For file removal and checkpoints: work that must not hold up the loop.
        self.background = ThreadPoolExecutor(1, thread_name_prefix="background")
        self.cleaner_offsets = CleanerOffsets(self.engine, self.background)
        self._endpoints: dict[str, tuple[str, int]] = {}
        self.is_closed = False
        # Whoever else counts something: its metrics are shown with those of the broker.
        self.metric_sources: list[Source] = []
        self.loop_delay = LoopDelay()
        self._read_dynamic_configs()
        self.group_configs = GroupConfigs(self.engine.store, self.get_int)
        self.topics = Topics(self.engine, self.log_settings_of, self.rack)
        self.topics.open(now_ms())
        self.deliveries = Deliveries()
        self.timeline = Timeline(now_ms, steady_ms)
        self.groups = GroupCoordinator(self, steady_ms)
        self.topics.on_change = self.groups.topic_changed
        # Last, and before anybody is served: it writes what was decided before into the logs.
        self.transactions = TransactionCoordinator(self, steady_ms)
        self.surveyor = Surveyor(self, steady_ms)

    def close(self) -> None:
        """Finish what runs, close every log, leave the folder clean."""
        self.is_closed = True
        self.surveyor.stop()
        self.loop_delay.stop()
        self.flusher.close()
        self.branches.close()
        self.background.shutdown(wait=True)
        self.engine.close(self.now_ms())

    # Where clients find us ----------------------------------------------------------------------

    def set_endpoint(self, listener: str, host: str, port: int) -> None:
        self._endpoints[listener] = (host, port)

    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]:
        """The addresses that clients are told to use, by listener."""
        return self._endpoints

    def endpoint(self, listener: str) -> tuple[str, int]:
        """The address that clients of a listener are told to use.

        A listener that `advertised.listeners` leaves out sends its clients to one that it names.
        """
        return self._endpoints.get(listener) or next(iter(self._endpoints.values()))

    # Settings -----------------------------------------------------------------------------------

    def _read_dynamic_configs(self) -> None:
        """Take over the settings that clients altered, and what follows from them."""
        stored = self.engine.store.broker_configs()
        self.dynamic_configs = DynamicConfigs(
            per_broker=stored.get(str(self.node_id), {}), cluster_default=stored.get("", {})
        )
        self.topic_defaults = topic_defaults(self.settings, self.dynamic_configs)
        self.auto_creates_topics = self.get_bool("auto.create.topics.enable")
        self.fetch_max_bytes = self.get_int("fetch.max.bytes")
        self.branches.configure(
            cache_max_bytes=self.get_int("branch.cache.max.bytes"),
            scan_max_bytes=self.get_int("branch.scan.max.bytes"),
            linger_ms=self.get_int("branch.fetch.linger.ms"),
        )

    def get_int(self, name: str) -> int:
        """A broker setting as it is now, dynamic changes included."""
        value = effective_broker_value(self.settings, self.dynamic_configs, name)
        assert isinstance(value, int), name
        return value

    def get_str(self, name: str) -> str:
        value = effective_broker_value(self.settings, self.dynamic_configs, name)
        assert isinstance(value, str), name
        return value

    def get_bool(self, name: str) -> bool:
        value = effective_broker_value(self.settings, self.dynamic_configs, name)
        assert isinstance(value, bool), name
        return value

    def set_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Replace the dynamic settings of this node, or of the cluster (`broker` is "")."""
        with storage_errors("The settings of the broker could not be written"):
            self.engine.store.set_broker_configs(broker, configs)
        self._read_dynamic_configs()
        for topic in self.topics:
            self.topics.apply_configs(topic)
        self.group_configs.broker_changed()

    def log_settings_of(self, configs: Mapping[str, str]) -> LogSettings:
        """What a topic's own settings, on top of the broker's, mean for its logs."""
        values = overlay_topic_values(self.topic_defaults, configs)
        header = values["branch.ordering.key.header"]
        return LogSettings(
            make_log_config(for_log(values), self.get_int("producer.id.expiration.ms")),
            values["flush.on.acks.all"] is True,
            SlotRule(values["branch.null.key"] == "ordered", str(header).encode() or None),
            values["branch.index.build"] == "append",
            values.get("range.fetch.enable") is True,
        )

    # Topics ---------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = -1, configs: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic whose settings were checked; -1 means the default number of partitions."""
        self.topics.check_new_name(name)
        if configs and BRANCH_SOURCE_CONFIG in configs:
            plan = self.plan_branch_topic(name, partitions, configs)
            return self.topics.create_branch_topic(name, plan.source, plan.ranges, plan.own_configs)
        count = self.get_int("num.partitions")
        if name in (JOURNAL_TOPIC, INDIVIDUAL_JOURNAL_TOPIC):
            # Also when a client asks for it: with anything but compaction groups would be lost.
            count, shape = self.groups.journal_shape(name)
            configs = {**shape, **(configs or {}), "cleanup.policy": shape["cleanup.policy"]}
            if name == INDIVIDUAL_JOURNAL_TOPIC:
                partitions = count  # what a group has is in the same partition of both
        elif name == TRANSACTION_TOPIC:
            count, shape = self.transactions.journal_shape()
            configs = {**shape, **(configs or {}), "cleanup.policy": shape["cleanup.policy"]}
        if partitions != -1:
            count = partitions
        return self.topics.create(name, count, configs or {}, self.now_ms())

    def plan_branch_topic(
        self, name: str, partitions: int, configs: Mapping[str, str]
    ) -> BranchTopicPlan:
        """What a new topic that names its source among its settings would be, if it may be."""
        return plan_branch_topic(
            self.topics,
            name,
            partitions,
            configs,
            defaults=self.topic_defaults,
            ranges_default=self.get_int("branch.ranges.per.partition"),
        )

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic: gone from the metadata now, its files soon, off the loop."""
        check_can_be_deleted(topic)
        if topic.source is None:
            self.cleaner_offsets.forget([partition.log for partition in topic.partitions])
        self.topics.delete(topic)
        self.purgatory.finish_all(topic.partitions)
        self.groups.topic_deleted(topic.name)
        for partition in topic.partitions:
            self.branches.forget(partition.log)
            self.range_tails.forget(partition.log)
        if topic.source is not None:
            return  # the logs are those of the source, which stays
        for partition in topic.partitions:
            try:
                self.background.submit(remove_folder, partition.log.delete())
            except KafkaError as error:
                # The topic is gone all the same; the next start sets the folder aside.
                logs.error("log.delete.failed", log=partition.log.folder.name, reason=error.message)

    def _branched_appended(self, source: Partition) -> None:
        """Records arrived at a partition that has branches."""
        self.branches.appended(source)
        if source.indexes_at_append:
            self.slot_indexing.appended(source)

    # Partitions -----------------------------------------------------------------------------------

    def must_sync(self, partition: Partition, acks: int) -> bool:
        """Whether a produce is answered only when the disk has it."""
        if acks == -1 and partition.syncs_acks_all:
            return True
        log = partition.log
        return log.unflushed_messages >= log.config.flush_messages

    @staticmethod
    def check_leader_epoch(log: PartitionLog, epoch: int) -> None:
        """Refuse a client that knows an older or a newer leader than this one (KIP-320)."""
        if epoch == -1 or epoch == log.leader_epoch:
            return
        if epoch < log.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"The leader epoch is {log.leader_epoch}, not {epoch}. Refresh the metadata.",
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"The leader epoch is {log.leader_epoch}; {epoch} is not known here.",
        )
