"""What a transactional producer says to brokers: one producer id, one epoch at a time.

Rules
- `start` fences whoever had the transactional id before. From then on the producer id and the epoch
  say who speaks, so a producer that was fenced itself is refused everywhere.
- Batches of a partition go one after the other, numbered from 0 in each epoch. What was not
  answered is sent again with the same number: the broker knows whether it has it.
- With transaction version 2 (KIP-890) the broker adds partitions and groups to the transaction when
  they are first used, and every end brings another epoch. Before that they are added first, the
  epoch stays, and after an abort with something unanswered the producer asks for another one
  (KIP-360), so that nothing late can count.
- An end that was not answered is asked for again, with the same epoch: the coordinator knows how
  the transaction of that epoch has ended.
- What passes is tried again until `delivery_timeout_ms` is over. What is left are errors of the
  transaction, after which it can only be aborted, and being fenced, after which nothing goes.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from anabranch.client.cluster import Cluster, Coordinated, is_worth_retrying
from anabranch.client.core import log
from anabranch.client.errors import (
    BrokerError,
    ConsumerError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionUncertainError,
    broker_error,
)
from anabranch.client.outbox import Outgoing, encode_batch
from anabranch.client.producer_settings import ProducerSettings
from anabranch.client.records import TopicPartition
from anabranch.client.timing import Attempts
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.add_offsets_to_txn import ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest
from anabranch.wire.messages.add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from anabranch.wire.messages.find_coordinator import KEY_TYPE_TRANSACTION
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from anabranch.wire.messages.txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

T = TypeVar("T")

_PRODUCE_LANE = 0
_ALL_REPLICAS = -1
_SEQUENCE_MASK = 0x7FFFFFFF
_FEATURE = "transaction.version"
_VERSION_2 = 2
# From these versions on requests speak of transaction version 2.
_PRODUCE_V2, _OFFSETS_V2, _END_V2 = 12, 5, 5
_FIRST_TRANSACTIONAL_PRODUCE = 3
# Versions above are for brokers.
_ADD_PARTITIONS_MAX = 3
_KNOWS_MEMBERS = 3
_KNOWS_FENCING = 2
_COORDINATOR_ERRORS = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
# Not a matter of this transaction: the next one would end the same way.
_FATAL = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}


class _TimeIsUp(Exception):
    """Trying again has taken too long."""

    def __init__(self, last: ConsumerError) -> None:
        super().__init__(str(last))
        self.last = last


class TransactionSession:
    """One producer's part in its transactions."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self.cluster = Cluster(settings, needs_cooperation=False)
        self._self = Coordinated(settings.transactional_id, KEY_TYPE_TRANSACTION)
        self.producer_id = -1
        self.producer_epoch = -1
        self._is_version_2 = False
        # The number of the next record of each partition.
        self._sequences: dict[TopicPartition, int] = {}
        # Whether the coordinator may have heard of the present transaction.
        self._has_begun = False
        self._partitions: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._learned_at: dict[str, float] = {}

    async def close(self) -> None:
        await self.cluster.close()

    @property
    def is_version_2(self) -> bool:
        return self._is_version_2

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    # The producer's id ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the transactional id; what its producer before left open is aborted."""
        await self._init_producer_id(-1, -1)

    async def _init_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._settings.transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

        async def ask() -> None:
            answer = await self.cluster.ask_coordinator(
                INIT_PRODUCER_ID, request, least_version=_KNOWS_FENCING, of=self._self
            )
            if answer.error_code:
                raise broker_error(answer.error_code, f"starting {self._named}")
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

        try:
            await self._retried(self._self, ask)
        except _TimeIsUp as up:
            raise up.last from None
        self._is_version_2 = self.cluster.finalized_features.get(_FEATURE, 0) >= _VERSION_2
        self._sequences.clear()
        log.info("%s has producer id %d, epoch %d", self._named, *self._producer)

    @property
    def _named(self) -> str:
        return f"producer {self._settings.transactional_id}"

    @property
    def _producer(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch

    # Records --------------------------------------------------------------------------------------

    async def learn_partitions(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has; TransactionAbortedError when there is no such one."""
        now = asyncio.get_running_loop().time()
        oldest = now - self._settings.metadata_max_age_ms / 1000
        found = {
            name: topic
            for name in topics
            if (topic := self.cluster.topic(name)) is not None
            and self._learned_at.get(name, oldest) > oldest
        }
        missing = set(topics) - found.keys()

        async def ask() -> None:
            await self.cluster.refresh(names=missing, may_create=True)
            for name in missing:
                topic = self.cluster.topic(name)
                if topic is None or not topic.leaders:
                    raise broker_error(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"writing to {name}",
                        "there is no such topic",
                    )
                found[name] = topic
                self._learned_at[name] = now

        if missing:
            await self._in_transaction(self._retried(self._self, ask))
        return {name: max(topic.leaders) + 1 for name, topic in found.items()}

    async def produce(self, batches: Mapping[TopicPartition, list[Outgoing]]) -> None:
        """Write one batch to each of these partitions."""
        self._has_begun = True
        if not self._is_version_2:
            await self._add_partitions(batches.keys() - self._partitions)
        left = {
            place: encode_batch(
                records,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                sequence=self._sequences.get(place, 0),
                codec=self._settings.codec,
            )
            for place, records in batches.items()
        }

        async def ask() -> None:
            failures = await self._produce_once(left)
            for place in batches.keys() - left.keys() - written:
                written.add(place)
                sequence = self._sequences.get(place, 0) + len(batches[place])
                self._sequences[place] = sequence & _SEQUENCE_MASK
            if failures:
                await self.cluster.refresh(names={place.topic for place in left})
                raise next((one for one in failures if not is_worth_retrying(one)), failures[0])

        written: set[TopicPartition] = set()
        await self._in_transaction(self._retried(self._self, ask))

    async def _produce_once(self, left: dict[TopicPartition, bytes]) -> list[ConsumerError]:
        """Send what is left to the leaders; what they have leaves `left`."""
        by_node: dict[int, list[TopicPartition]] = {}
        failures: list[ConsumerError] = []
        for place in left:
            topic = self.cluster.topic(place.topic)
            leader = topic.leaders.get(place.partition) if topic is not None else None
            if leader is None:
                failures.append(
                    broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"writing to {place}", "no leader")
                )
            else:
                by_node.setdefault(leader.node_id, []).append(place)
        answers = await asyncio.gather(
            *(self._produce_to(node_id, places, left) for node_id, places in by_node.items())
        )
        return failures + [error for some in answers for error in some]

    async def _produce_to(
        self, node_id: int, places: list[TopicPartition], left: dict[TopicPartition, bytes]
    ) -> list[ConsumerError]:
        topics: dict[str, TopicProduceData] = {}
        for place in places:
            known = self.cluster.topic(place.topic)
            assert known is not None
            data = topics.setdefault(
                place.topic, TopicProduceData(name=place.topic, topic_id=known.topic_id)
            )
            data.partition_data.append(
                PartitionProduceData(index=place.partition, records=left[place])
            )
        names = {data.topic_id: name for name, data in topics.items()}
        request = ProduceRequest(
            transactional_id=self._settings.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        is_2 = self._is_version_2
        try:
            answer: ProduceResponse = await self.cluster.ask_node(
                node_id,
                _PRODUCE_LANE,
                PRODUCE,
                request,
                least_version=_PRODUCE_V2 if is_2 else _FIRST_TRANSACTIONAL_PRODUCE,
                most_version=None if is_2 else _PRODUCE_V2 - 1,
            )
        except ConsumerError as error:
            return [error]
        failures: list[ConsumerError] = []
        for topic in answer.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for one in topic.partition_responses:
                place = TopicPartition(name, one.index)
                if one.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    left.pop(place, None)
                else:
                    failures.append(
                        broker_error(one.error_code, f"writing to {place}", one.error_message)
                    )
        if not failures and any(place in left for place in places):
            failures.append(broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, "Produce", "no answer"))
        return failures

    async def _add_partitions(self, places: Iterable[TopicPartition]) -> None:
        wanted = sorted(places)
        if not wanted:
            return
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for place in wanted:
            topic = topics.setdefault(place.topic, AddPartitionsToTxnTopic(name=place.topic))
            topic.partitions.append(place.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._settings.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )

        async def ask() -> None:
            answer: AddPartitionsToTxnResponse = await self.cluster.ask_coordinator(
                ADD_PARTITIONS_TO_TXN, request, most_version=_ADD_PARTITIONS_MAX, of=self._self
            )
            codes = {
                one.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            } - {ErrorCode.NONE}
            # Those that were not attempted do not say why.
            for code in sorted(codes, key=lambda one: one == ErrorCode.OPERATION_NOT_ATTEMPTED):
                raise broker_error(code, f"adding partitions to the transaction of {self._named}")

        await self._in_transaction(self._retried(self._self, ask))
        self._partitions.update(wanted)

    # Offsets --------------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        make_request: Callable[[], TxnOffsetCommitRequest],
        judge: Callable[[TxnOffsetCommitResponse], None],
    ) -> None:
        """Commit offsets of a group with the transaction.

        `make_request` makes the request without what names the producer, anew for each attempt;
        `judge` raises what is wrong with an answer.
        """
        self._has_begun = True
        group_id = make_request().group_id
        of = Coordinated(group_id)
        if not self._is_version_2 and group_id not in self._groups:
            await self._add_group(group_id)

        async def ask() -> None:
            request = make_request()
            request.transactional_id = self._settings.transactional_id
            request.producer_id, request.producer_epoch = self._producer
            answer = await self.cluster.ask_coordinator(
                TXN_OFFSET_COMMIT,
                request,
                least_version=_OFFSETS_V2 if self._is_version_2 else _KNOWS_MEMBERS,
                # Versions after that have ids of topics in the place of names.
                most_version=_OFFSETS_V2 if self._is_version_2 else _OFFSETS_V2 - 1,
                of=of,
            )
            judge(answer)

        await self._in_transaction(self._retried(of, ask))

    async def _add_group(self, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self._settings.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group_id,
        )

        async def ask() -> None:
            answer = await self.cluster.ask_coordinator(ADD_OFFSETS_TO_TXN, request, of=self._self)
            if answer.error_code:
                raise broker_error(
                    answer.error_code, f"adding {group_id} to the transaction of {self._named}"
                )

        await self._in_transaction(self._retried(self._self, ask))
        self._groups.add(group_id)

    # The end --------------------------------------------------------------------------------------

    async def end(self, *, is_commit: bool) -> None:
        """Commit or abort what was written since the last end."""
        if self._has_begun:
            try:
                await self._retried(self._self, lambda: self._end_once(is_commit=is_commit))
            except _TimeIsUp as up:
                raise TransactionUncertainError(
                    f"it is not known yet how the transaction of {self._named} has ended: {up.last}"
                ) from up.last
            if not is_commit and not self._is_version_2:
                await self._init_producer_id(*self._producer)
        self._has_begun = False
        self._partitions.clear()
        self._groups.clear()
        if self._is_version_2:
            self._sequences.clear()

    async def _end_once(self, *, is_commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._settings.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )
        answer: EndTxnResponse = await self.cluster.ask_coordinator(
            END_TXN,
            request,
            least_version=_END_V2 if self._is_version_2 else 0,
            most_version=None if self._is_version_2 else _END_V2 - 1,
            of=self._self,
        )
        code = answer.error_code
        what = f"{'committing' if is_commit else 'aborting'} the transaction of {self._named}"
        if code == ErrorCode.INVALID_TXN_STATE:
            if is_commit:
                raise TransactionAbortedError(
                    f"{what}: the coordinator has aborted it (it took longer than"
                    " transaction_timeout_ms, or somebody else aborted it)"
                )
            if not self._is_version_2:
                return  # the coordinator has not heard of it
        if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
            raise _fenced(what)
        if code:
            error = broker_error(code, what)
            if is_commit and not is_worth_retrying(error) and not is_fatal(error):
                raise TransactionAbortedError(str(error)) from error
            raise error
        if answer.producer_id >= 0:
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    # Trying again ---------------------------------------------------------------------------------

    async def _retried(self, of: Coordinated, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer; _TimeIsUp when there is none for too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.delivery_timeout_ms / 1000
        attempts = Attempts(self._settings.retry_backoff, random.random)
        while True:
            try:
                return await ask()
            except ConsumerError as error:
                if not is_worth_retrying(error):
                    raise
                if getattr(error, "code", None) in _COORDINATOR_ERRORS:
                    self.cluster.forget_coordinator(of)
                delay_s = attempts.failed()
                if loop.time() + delay_s > deadline:
                    raise _TimeIsUp(error) from error
                log.info("%s: %s; trying again in %.2f s", self._named, error, delay_s)
            await asyncio.sleep(delay_s)

    async def _in_transaction(self, work: Awaitable[T]) -> T:
        """What fails here is the transaction's failure, unless it is the producer's."""
        try:
            return await work
        except _TimeIsUp as up:
            raise TransactionAbortedError(f"{self._named}: {up.last}") from up.last
        except TransactionAbortedError:
            raise
        except BrokerError as error:
            if is_fatal(error):
                raise
            raise TransactionAbortedError(f"{self._named}: {error}") from error


def is_fatal(error: ConsumerError) -> bool:
    """Whether the producer cannot go on, and nothing can be aborted either."""
    return getattr(error, "code", None) in _FATAL


def _fenced(what: str) -> ProducerFencedError:
    return ProducerFencedError(
        ErrorCode.PRODUCER_FENCED,
        what,
        "another producer has started under the same transactional id, or somebody has aborted"
        " the transaction; this producer must stop",
    )
