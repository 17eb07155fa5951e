"""The transaction coordinator of this broker: its shards, and which id belongs to which.

One shard for each partition of `__transaction_state` (see `transaction_driver`), which is made when
the first transactional producer appears. Commands go to the shard that owns their transactional id;
queries read its state.

Loading carries out what was decided before the broker went down, and so has to come after the logs
and the groups, and before any client can write: a marker ends whatever its producer has open.
Batches of sinks are about several shards: see `sink_batches`.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from anabranch.broker.deferred import Deferred
from anabranch.broker.sink_batches import SinkBatches
from anabranch.broker.topics import Topic
from anabranch.broker.transaction_driver import TransactionDriver
from anabranch.broker.transaction_metrics import TransactionMetrics
from anabranch.config.transaction_settings import TWO_PHASE_COMMIT
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.describe import DescribedTransaction, describe_transaction
from anabranch.coordinator.transaction.producer import init_producer_id
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.state import Transaction, TransactionState
from anabranch.engine.journal.partitions import partition_for
from anabranch.engine.metadata_store import STORE_ERRORS
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.observe import metrics as m

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

TRANSACTION_TOPIC = "__transaction_state"
# An id is one record with all its partitions: large transactions need large batches.
_JOURNAL_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# What may take another producer id, where the epochs of the present one are used up.
_TAKE_PRODUCER_ID = (c.InitProducerId, c.EndTxn, c.AbortTransaction, c.EndPrepared)


class TransactionCoordinator:
    """All shards of this broker."""

    def __init__(self, broker: "Broker", steady_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._steady_ms = steady_ms
        self._settings = TransactionSettings(
            max_timeout_ms=broker.get_int("transaction.max.timeout.ms"),
            id_expiration_ms=broker.get_int("transactional.id.expiration.ms"),
            is_two_phase_commit_enabled=broker.get_bool(TWO_PHASE_COMMIT),
            prepared_retention_ms=broker.get_int("transaction.prepared.retention.ms"),
            sink_expiration_ms=broker.get_int("transaction.sink.expiration.ms"),
        )
        self.metrics = TransactionMetrics()
        self._drivers: list[TransactionDriver] = []
        self.sinks = SinkBatches(self)
        topic = broker.topics.get(TRANSACTION_TOPIC)
        if topic is not None:
            self._open(topic)

    def _open(self, topic: Topic) -> None:
        self._drivers = [
            TransactionDriver(
                partition,
                self._settings,
                self._broker,
                self._steady_ms,
                self.metrics,
                self.sinks,
            )
            for partition in topic.partitions
        ]
        for driver in self._drivers:
            driver.load()
        self.sinks.resume()

    def start(self) -> None:
        """The loop runs: let the timers of what was loaded run too."""
        for driver in self._drivers:
            driver.start()

    def stop(self) -> None:
        for driver in self._drivers:
            driver.stop()

    def ensure_journal(self) -> None:
        """See to it that there is a journal when the first transactional producer appears."""
        if self._drivers:
            return
        topic = self._broker.topics.get(TRANSACTION_TOPIC)
        if topic is None:
            try:
                topic = self._broker.create_topic(TRANSACTION_TOPIC)
            except KafkaError as error:
                logs.error(
                    "coordinator.journal.failed", topic=TRANSACTION_TOPIC, reason=error.message
                )
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        self._open(topic)

    def journal_shape(self) -> tuple[int, dict[str, str]]:
        """The number of partitions and the settings that the journal's topic is made with."""
        segment_bytes = self._broker.get_int("transaction.state.log.segment.bytes")
        return self._broker.get_int("transaction.state.log.num.partitions"), {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(segment_bytes),
            "max.message.bytes": str(_JOURNAL_MAX_MESSAGE_BYTES),
        }

    # Commands -------------------------------------------------------------------------------------

    def submit(self, transactional_id: str | None, command: c.Command) -> Any:
        """Hand a command to the shard that owns the transactional id.

        The answer, or a Deferred when it has to wait for the disk, which may be completed with a
        KafkaError in place of an answer. A producer without an id belongs to no shard, and needs
        none.
        """
        if transactional_id is None:
            assert isinstance(command, c.InitProducerId)
            return self._init_idempotent(command)
        driver = self.driver(transactional_id)
        if (
            isinstance(command, _TAKE_PRODUCER_ID)
            and transactional_id
            and driver.shard.needs_producer_id(transactional_id)
        ):
            command = dataclasses.replace(command, new_producer_id=self._new_producer_id())
        return driver.submit(command)

    def abort(self, producers: Collection[tuple[int, int]]) -> None:
        """Abort the transactions that producers have open, if they still have that epoch.

        What cannot be aborted now ends with its own time.
        """
        wanted = frozenset(producers)
        found = [
            one.transactional_id
            for driver in self._drivers
            if driver.refusal is None
            for one in driver.shard.transactions.values()
            if one.state is TransactionState.ONGOING
            and (one.producer_id, one.producer_epoch) in wanted
        ]
        for transactional_id in found:
            try:
                answer = self.submit(
                    transactional_id, c.AbortTransaction(transactional_id=transactional_id)
                )
                code = ErrorCode.NONE if isinstance(answer, Deferred) else answer.error
            except KafkaError as error:
                code = error.code
            if code is not ErrorCode.NONE:
                logs.warning(
                    "transaction.abort.failed", transactional_id=transactional_id, code=code.name
                )

    def patience_ms(self, transactional_id: str) -> int:
        """Until when a request of an open transaction may wait, to be answered before its time is
        up; in the past where none is open."""
        transaction = self.driver(transactional_id).shard.transaction(transactional_id)
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            return 0
        if transaction.deadline_ms is None:
            return 0  # prepared: it takes nothing more
        return transaction.deadline_ms - transaction.timeout_ms // 10

    def _init_idempotent(self, command: c.InitProducerId) -> c.InitProducerIdAnswer:
        now_ms = self._broker.now_ms()
        answer: c.InitProducerIdAnswer
        answer = init_producer_id(None, command, self._settings, now_ms).response
        if answer.error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return answer  # whatever is wrong with it, no producer id is used up
        command = dataclasses.replace(command, new_producer_id=self._new_producer_id())
        answer = init_producer_id(None, command, self._settings, now_ms).response
        return answer

    @property
    def drivers(self) -> Sequence[TransactionDriver]:
        """All shards; none while there is no journal."""
        return self._drivers

    def driver(self, name: str) -> TransactionDriver:
        """The shard that owns a transactional id, or a sink."""
        self.ensure_journal()
        return self._drivers[partition_for(name, len(self._drivers))]

    def _new_producer_id(self) -> int | None:
        """Another producer id, or None while none can be had, the disk being full for example."""
        try:
            return self._broker.producer_ids.next()
        except STORE_ERRORS as error:
            logs.error("producer.ids.failed", reason=str(error))
            return None

    # Queries --------------------------------------------------------------------------------------

    def all_transactions(self) -> list[Transaction]:
        """Every transactional id; COORDINATOR_LOAD_IN_PROGRESS when not all of them are known."""
        found: list[Transaction] = []
        for driver in self._drivers:
            if driver.refusal is not None:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, driver.refusal.message)
            found.extend(driver.shard.transactions.values())
        return found

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """One transactional id as it is now; NOT_COORDINATOR when its shard cannot be read."""
        if not self._drivers:
            return describe_transaction(transactional_id, None)
        driver = self.driver(transactional_id)
        driver.check_serving()
        transaction = driver.shard.transaction(transactional_id)
        if transaction is None or not transaction.state.is_decided:
            return describe_transaction(transactional_id, transaction)
        missing = driver.shard.missing(transactional_id)
        return describe_transaction(transactional_id, transaction, missing)

    def is_prepared(self, transactional_id: str) -> bool:
        """Whether a transaction takes no records any more, whatever its partitions say.

        Where its shard cannot be read it may be so.
        """
        if not self._drivers:
            return False
        driver = self.driver(transactional_id)
        transaction = driver.shard.transaction(transactional_id)
        is_prepared = transaction is not None and transaction.is_prepared
        return is_prepared or driver.refusal is not None

    def refusals(self) -> list[str]:
        """Why shards serve nobody, of those that do not."""
        return [driver.refusal.message for driver in self._drivers if driver.refusal is not None]

    def collect_metrics(self) -> Iterator[tuple[m.Metric, m.Values]]:
        """What was counted, and the transactions as they are; nothing of refused shards."""
        yield from self.metrics.collect(
            (
                transaction
                for driver in self._drivers
                if driver.refusal is None
                for transaction in driver.shard.transactions.values()
            ),
            self._broker.now_ms(),
        )

    # Chores ---------------------------------------------------------------------------------------

    async def expire_ids(self) -> None:
        """Forget the transactional ids that nobody has used for long, one shard after the other."""
        for driver in list(self._drivers):
            try:
                driver.submit(c.ExpireTransactionalIds())
            except KafkaError as error:  # a shard that cannot do it keeps no other from it
                logs.error(
                    "coordinator.chore.failed",
                    shard=driver.partition.log.folder.name,
                    chore="transactional id expiry",
                    reason=error.message,
                )
            await asyncio.sleep(0)
