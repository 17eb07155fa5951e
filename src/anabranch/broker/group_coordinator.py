"""The group coordinator of this broker: its shards, and which group belongs to which.

One shard for each partition of `__consumer_offsets` (see `shard_driver`), which is made when the
first group appears. Commands go to the shard that owns their group; queries read its state. With
the first individual commit a second journal comes to it, `__individual_commit_offsets`, with a
partition for each shard.
"""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from anabranch.broker.branch_progress import BranchProgress
from anabranch.broker.dispositions import Dispositions
from anabranch.broker.group_configs import GroupConfigValues, group_settings_over
from anabranch.broker.group_metrics import GroupMetrics
from anabranch.broker.member_sessions import heard_ago_ms
from anabranch.broker.partition import Partition
from anabranch.broker.range_loads import RangeLoads
from anabranch.broker.shard_driver import ShardDriver
from anabranch.broker.stuck_ranges import StuckRanges
from anabranch.broker.topics import Topic
from anabranch.config.branch_settings import COMMIT_SOURCE_CONFIG
from anabranch.config.group_config import migration_policy
from anabranch.config.layers import DynamicConfigs, overlay_topic_values
from anabranch.coordinator.cooperative.book import GroupProgress
from anabranch.coordinator.cooperative.commands import CountStuck, TakeAcks
from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.cooperative.records import Place, ProgressWritten
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.coordinator.group.commands import Command, CommittedOffset
from anabranch.coordinator.group.consumer_commands import ClusterChanged, MoveRanges
from anabranch.coordinator.group.consumer_draft import Environment
from anabranch.coordinator.group.consumer_records import MemberWritten
from anabranch.coordinator.group.consumer_settings import ConsumerSettings, MigrationPolicy
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.coordinator.group.records import OffsetCommitted
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import Group, GroupShard
from anabranch.coordinator.group.surroundings import Surroundings
from anabranch.coordinator.runtime.result import WaiterId
from anabranch.engine.journal.partitions import partition_for
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.observe.metrics import INDIVIDUAL_COMMIT_BYTES, Metric, Values

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

JOURNAL_TOPIC = "__consumer_offsets"
INDIVIDUAL_JOURNAL_TOPIC = "__individual_commit_offsets"
# A whole group is one record, and a decision is one batch: large groups need large batches.
_JOURNAL_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class GroupCoordinator:
    """All shards of this broker."""

    def __init__(self, broker: "Broker", steady_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._steady_ms = steady_ms
        self._settings = _group_settings(broker)
        self._surroundings = Surroundings(
            assignors=build_registry(broker.settings.get_list("group.consumer.assignors")),
            consumer_settings=self._consumer_settings,
            broker_members=self.consumer_members,
            cooperative_settings=self.cooperative_settings,
            slot_weights=self._slot_weights,
            progress_bytes=self.progress_bytes,
        )
        self._cooperative: tuple[DynamicConfigs, CooperativeSettings] | None = None
        # Of groups that set something for themselves.
        self._cooperative_of: dict[str, CooperativeSettings] = {}
        self._consumer_settings_of: dict[GroupConfigValues, ConsumerSettings] = {}
        broker.group_configs.on_change = self._group_config_changed
        self.metrics = GroupMetrics(steady_ms)
        # A thread of its own: counting what a group has left must hold up neither loop nor fetches.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="branch-progress")
        self.branch_progress = BranchProgress(
            broker.topics,
            self._executor,
            offsets=self.offsets,
            project=self._project,
            is_projected=self._is_projected,
            now_ms=broker.now_ms,
            steady_ms=steady_ms,
        )
        self.dispositions = Dispositions(broker)
        self.stuck_ranges = StuckRanges(broker, self, self._executor, steady_ms)
        self.range_loads = RangeLoads(broker, self, self._executor, steady_ms)
        self._drivers: list[ShardDriver] = []
        self._is_started = False
        self._waiters = itertools.count(1)
        topic = broker.topics.get(JOURNAL_TOPIC)
        if topic is not None:
            self._open(topic)

    def _open(self, topic: Topic) -> None:
        self._drivers = [
            ShardDriver(
                partition,
                self._settings,
                self._surroundings,
                self._broker,
                self._steady_ms,
                self.metrics,
                self._recorded,
            )
            for partition in topic.partitions
        ]
        individual = self._broker.topics.get(INDIVIDUAL_JOURNAL_TOPIC)
        if individual is not None:
            self._open_individual(individual)
        for driver in self._drivers:
            driver.load()
        for group in self.all_groups():
            if isinstance(group, ConsumerGroup):
                self._broker.deliveries.group_loaded(group.group_id, group.group_epoch)

    def _open_individual(self, topic: Topic) -> None:
        """Give each shard its partition of the journal of individual commits."""
        count = len(self._drivers)
        if len(topic.partitions) < count:
            # It was made while the other journal had fewer partitions, or was not there yet.
            self._broker.topics.grow(topic, count, self._broker.now_ms())
        for driver, partition in zip(self._drivers, topic.partitions, strict=False):
            driver.individual = partition

    def start(self) -> None:
        """The loop runs: let the timers of what was loaded run too."""
        self._is_started = True
        for driver in self._drivers:
            driver.arm()
        self.branch_progress.start([group.group_id for group in self.all_groups()])
        self.stuck_ranges.start()
        self.dispositions.start()

    def stop(self) -> None:
        self.dispositions.stop()
        self.branch_progress.stop()
        self.stuck_ranges.stop()
        self.range_loads.stop()
        self._executor.shutdown(wait=True, cancel_futures=True)
        for driver in self._drivers:
            driver.stop()

    def _ensure_journal(self) -> None:
        """See to it that there is a journal when the first group appears."""
        if not self._drivers:
            self._open(self._journal_topic(JOURNAL_TOPIC))

    def _ensure_individual_journal(self, driver: ShardDriver) -> None:
        """See to it that there is a journal when the first individual commit comes."""
        if driver.individual is None:
            self._open_individual(self._journal_topic(INDIVIDUAL_JOURNAL_TOPIC))

    def _journal_topic(self, name: str) -> Topic:
        """The topic of a journal; made if there is none."""
        topic = self._broker.topics.get(name)
        if topic is not None:
            return topic
        try:
            return self._broker.create_topic(name)
        except KafkaError as error:
            logs.error("coordinator.journal.failed", topic=name, reason=error.message)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error

    def journal_shape(self, name: str) -> tuple[int, dict[str, str]]:
        """The number of partitions and the settings that a journal's topic is made with."""
        count = len(self._drivers) or self._broker.get_int("offsets.topic.num.partitions")
        segment_bytes = self._broker.get_int(
            "individual.commit.log.segment.bytes"
            if name == INDIVIDUAL_JOURNAL_TOPIC
            else "offsets.topic.segment.bytes"
        )
        return count, {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(segment_bytes),
            "max.message.bytes": str(_JOURNAL_MAX_MESSAGE_BYTES),
        }

    # What shards look at --------------------------------------------------------------------------

    def _consumer_settings(self, group_id: str) -> ConsumerSettings:
        values = self._broker.group_configs.effective(group_id)
        settings = self._consumer_settings_of.get(values)
        if settings is None:
            settings = self._consumer_settings_of[values] = _make_settings(self._broker, values)
        return settings

    def cooperative_settings(self, group_id: str) -> CooperativeSettings:
        """What counts for individual commits of a group."""
        dynamic = self._broker.dynamic_configs
        if self._cooperative is None or self._cooperative[0] is not dynamic:
            self._cooperative = dynamic, _make_cooperative_settings(self._broker)
            self._cooperative_of.clear()
        own = self._broker.group_configs.configs_of(group_id)
        if not own:
            return self._cooperative[1]
        settings = self._cooperative_of.get(group_id)
        if settings is None:
            settings = self._cooperative_of[group_id] = group_settings_over(
                self._cooperative[1], own
            )
        return settings

    def _slot_weights(self, group_id: str) -> Mapping[Place, SlotWeights]:
        return self.range_loads.weights_of(group_id)

    def _group_config_changed(self, group_id: str) -> None:
        self._consumer_settings_of.clear()
        self._cooperative_of.clear()
        self.dispositions.look_again([group_id] if group_id else self.groups_with_progress())

    def consumer_members(self) -> int:
        """How many members all consumer groups have, who share the budget of heartbeats."""
        return sum([driver.shard.consumer_members for driver in self._drivers])

    def progress_bytes(self) -> int:
        """About how much memory all that takes which groups have done record by record."""
        return sum([driver.shard.progress_bytes for driver in self._drivers])

    # Commands -------------------------------------------------------------------------------------

    def do(self, command: CountStuck | MoveRanges) -> int:
        """Have the shard of a group do what nobody waits for; how many records it took."""
        return _do(self._driver(command.group_id), command)

    def new_waiter(self) -> WaiterId:
        """A number for a request that may have to wait."""
        return next(self._waiters)

    @staticmethod
    def new_unique() -> str:
        """What makes a new member id unique."""
        return str(uuid.uuid4())

    def submit(self, group_id: str, command: Command, waiter: WaiterId | None = None) -> Any:
        """Hand a command to the shard that owns the group."""
        driver = self._driver(group_id)
        if type(command) is TakeAcks:
            self._ensure_individual_journal(driver)
        return driver.submit(command, waiter)

    def end_transaction(
        self,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> list[Partition]:
        """End a transaction in one partition of the journal: its offsets count now, or never.

        It is done when this returns, with the partitions of journals that it was written to.
        INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED when somebody newer wrote; with any
        other KafkaError it has to be asked for again.
        """
        if partition >= len(self._drivers):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{JOURNAL_TOPIC} has no {partition}."
            )
        command = c.EndTransaction(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=is_commit,
        )
        return self._drivers[partition].end_transaction(command)

    def is_in_transaction(self, group_id: str, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer's transaction has something pending in the shard of a group."""
        driver = self._driver(group_id)
        if driver.shard.pending_acks.epoch_of(producer_id) == producer_epoch:
            return True
        entry = driver.partition.log.producer_states.entries.get(producer_id)
        return (
            entry is not None
            and entry.producer_epoch == producer_epoch
            and entry.current_txn_first_offset >= 0
        )

    def offsets_partition(self, group_id: str) -> tuple[str, int]:
        """The partition of the journal that has what a group commits; made if there is none."""
        self._ensure_journal()
        return JOURNAL_TOPIC, partition_for(group_id, len(self._drivers))

    def _driver(self, group_id: str) -> ShardDriver:
        self._ensure_journal()
        return self._drivers[partition_for(group_id, len(self._drivers))]

    def _recorded(self, records: tuple[Any, ...]) -> None:
        """A shard has replayed the records of a decision."""
        self.branch_progress.recorded(records)
        if type(records[0]) is OffsetCommitted:
            return  # nobody comes or goes with a commit
        self.stuck_ranges.recorded(records)
        for record in records:
            # Before the loop runs, what was prepared is committed; the start looks at all of it.
            if type(record) is ProgressWritten and self._is_started:
                self.dispositions.recorded(record)
            elif type(record) is MemberWritten and record.member is None:
                self._broker.deliveries.forget_member(record.group_id, record.member_id)

    def _is_projected(self, topic: Topic) -> bool:
        values = overlay_topic_values(self._broker.topic_defaults, topic.configs)
        return values[COMMIT_SOURCE_CONFIG] is True

    def _project(self, command: c.ProjectOffsets) -> None:
        """Commit for a group what follows from its commits on a branch topic."""
        if _do(self._driver(command.group_id), command):
            self._broker.wake_fetches()

    # Queries --------------------------------------------------------------------------------------

    def _shard(self, group_id: str) -> GroupShard | None:
        """The state to read a group from; there is none before the first group.

        NOT_COORDINATOR when the shard cannot be read: nothing is better than something wrong.
        """
        if not self._drivers:
            return None
        driver = self._drivers[partition_for(group_id, len(self._drivers))]
        driver.check_serving()
        return driver.shard

    def group(self, group_id: str) -> Group | None:
        shard = self._shard(group_id)
        return shard.group(group_id) if shard is not None else None

    def offsets(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """What a group has committed; nothing for a group that does not exist."""
        shard = self._shard(group_id)
        return shard.offsets(group_id) if shard is not None else {}

    def pending_offsets(self, group_id: str) -> Collection[tuple[str, int]]:
        """The partitions for which a group has something pending in transactions that are open."""
        shard = self._shard(group_id)
        return shard.pending(group_id) if shard is not None else ()

    def progress(self, group_id: str) -> GroupProgress:
        """What a group has committed record by record, by topic id and partition."""
        shard = self._shard(group_id)
        return shard.progress(group_id) if shard is not None else {}

    def is_acknowledged(
        self, group_id: str, topic_id: bytes, partition: int, slot: int, offset: int
    ) -> bool:
        """Whether a record is acknowledged in a transaction that is open."""
        shard = self._shard(group_id)
        place = (topic_id, partition)
        return shard is not None and shard.pending_acks.has_record(group_id, place, slot, offset)

    def groups_with_progress(self) -> list[str]:
        """The groups that have done something record by record, as far as they can be read."""
        return [
            group_id
            for driver in self._drivers
            if driver.refusal is None
            for group_id in driver.shard.groups_with_progress()
        ]

    def refusals(self) -> list[str]:
        """Why shards serve nobody, of those that do not."""
        return [driver.refusal.message for driver in self._drivers if driver.refusal is not None]

    def heard_ago_ms(self, group: Group) -> Mapping[str, int]:
        """How long ago each member was heard from; who waits in a request is left out."""
        if not group.members:
            return {}
        return heard_ago_ms(group, self._driver(group.group_id).left_ms, self.environment)

    def environment(self, group_id: str) -> Environment:
        """What decisions about a consumer group know beside it."""
        shard = self._shard(group_id)
        assert shard is not None, "there is no group without a shard"
        return shard.environment(group_id)

    def group_ids(self) -> list[str]:
        """The names of all groups, as far as they can be read."""
        readable = [driver.shard for driver in self._drivers if driver.refusal is None]
        return sorted(group_id for shard in readable for group_id in shard.group_ids())

    def all_groups(self) -> list[Group]:
        """Every group, by name; those of a shard that cannot be read are not known."""
        found: list[Group] = []
        for driver in self._drivers:
            for group_id in driver.shard.group_ids() if driver.refusal is None else ():
                group = driver.shard.group(group_id)
                if group is not None:
                    found.append(group)
        return sorted(found, key=lambda group: group.group_id)

    def collect_metrics(self) -> Iterable[tuple[Metric, Values]]:
        """What was counted, and the groups as they are; nothing of shards that cannot be read."""
        yield from self.metrics.collect(
            driver.shard for driver in self._drivers if driver.refusal is None
        )
        yield from self.branch_progress.collect_metrics()
        yield from self.stuck_ranges.collect_metrics()
        yield from self.range_loads.collect_metrics()
        yield from self.dispositions.collect_metrics()
        yield INDIVIDUAL_COMMIT_BYTES, {(): self.progress_bytes()}

    # Chores ---------------------------------------------------------------------------------------

    def topic_changed(self, topic: str) -> None:
        """A topic was created, grew or went: the groups that want it share it out anew."""
        self.branch_progress.topic_changed(topic)
        if not self._drivers:
            return
        command = ClusterChanged(image=self._broker.topics.image, changed=frozenset({topic}))
        for driver in self._drivers:
            _do(driver, command)

    def topic_deleted(self, topic: str) -> None:
        """What was committed for a topic goes with it."""
        forgotten = sum(_do(driver, c.DeleteTopicOffsets(topic=topic)) for driver in self._drivers)
        if forgotten:
            logs.info("coordinator.offsets.deleted", topic=topic, offsets=forgotten)

    async def expire_offsets(self) -> None:
        """Forget what expired, one shard after the other."""
        for driver in list(self._drivers):
            forgotten = _do(driver, c.ExpireOffsets())
            if forgotten:
                name = driver.partition.log.folder.name
                logs.info("coordinator.offsets.expired", shard=name, records=forgotten)
                self._broker.wake_fetches()
            await asyncio.sleep(0)


def _do(driver: ShardDriver, command: Command) -> int:
    """Have a shard do what nobody waits for; how many records it took.

    A shard that cannot do it keeps no other from it.
    """
    try:
        return driver.do(command)
    except KafkaError as error:
        logs.error(
            "coordinator.chore.failed",
            shard=driver.partition.log.folder.name,
            chore=type(command).__name__,
            reason=error.message,
        )
        return 0


def _group_settings(broker: "Broker") -> GroupSettings:
    return GroupSettings(
        min_session_timeout_ms=broker.get_int("group.min.session.timeout.ms"),
        max_session_timeout_ms=broker.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=broker.get_int("group.initial.rebalance.delay.ms"),
        max_size=broker.get_int("group.max.size"),
        offset_metadata_max_bytes=broker.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=broker.get_int("offsets.retention.minutes") * 60_000,
    )


def _make_settings(broker: "Broker", values: GroupConfigValues) -> ConsumerSettings:
    return ConsumerSettings(
        session_timeout_ms=values.session_timeout_ms,
        heartbeat_interval_ms=values.heartbeat_interval_ms,
        heartbeat_rate_budget=values.heartbeat_rate_budget,
        heartbeat_fast_interval_ms=broker.get_int("group.consumer.heartbeat.fast.interval.ms"),
        assignment_interval_ms=values.assignment_interval_ms,
        max_size=broker.get_int("group.consumer.max.size"),
        migration_policy=MigrationPolicy(migration_policy(broker.settings)),
        regex_refresh_interval_ms=broker.get_int("group.consumer.regex.refresh.interval.ms"),
    )


def _make_cooperative_settings(broker: "Broker") -> CooperativeSettings:
    return CooperativeSettings(
        max_ranges=broker.get_int("coop.max.ranges"),
        max_window_offsets=broker.get_int("coop.max.window.offsets"),
        max_state_bytes=broker.get_int("coop.max.state.bytes"),
        stuck_ms=broker.get_int("coop.stuck.ms"),
        delivery_limit=broker.get_int("coop.delivery.limit"),
        retry_backoff_ms=broker.get_int("coop.retry.backoff.ms"),
        retry_backoff_max_ms=broker.get_int("coop.retry.backoff.max.ms"),
        disposition=broker.get_str("coop.disposition"),
        dlq_topic=broker.get_str("coop.dlq.topic"),
        txn_order=broker.get_str("coop.txn.order"),
    )
