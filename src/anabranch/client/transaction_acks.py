"""Acknowledgements that count when a transaction is committed, together with its records.

Rules
- A record that is acknowledged in a transaction is *held*: it stays open, so that no commit passes
  it, and in flight, so that its range is not given back, until the transaction has ended.
- Before the end the broker is told. It keeps what it takes apart until then, hands none of it over,
  and refuses what is not the member's any more: then the transaction is aborted.
- Committed, they are done. Aborted, they come again, each key in order. When nobody here will know
  which (the producer was fenced), they stay open and do not come again: the broker knows, and tells
  whoever has the range next.
"""

from collections.abc import Callable, Iterable
from functools import partial

from anabranch.client.acks import Ack, Progress, confirm, gather_held, requests
from anabranch.client.committing import NOT_OURS, error_of, limit_epoch, tell
from anabranch.client.core import Core
from anabranch.client.errors import (
    BrokerError,
    ConsumerError,
    CooperationNotSupportedError,
    IndividualCommitNotAllowedError,
    RetriableBrokerError,
    TransactionAbortedError,
    broker_error,
)
from anabranch.client.hand_over import HandOver
from anabranch.client.membership import Membership
from anabranch.client.range_work import Place, RangeWork
from anabranch.client.records import STARTED, ConsumerRecord, TopicPartition
from anabranch.client.timing import Attempts
from anabranch.client.transaction_session import TransactionSession
from anabranch.client.transactional_producer import Transaction
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.cooperation import IndividualCommit
from anabranch.wire.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from anabranch.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
)

_NO_OFFSET = -1
_ANONYMOUS = -1
_GROUP_RESOURCE = 32
_ORDER_CONFIG = "coop.txn.order"
# The member's epoch is another one since; the next heartbeat brings it.
_STALE = {ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION}


class AckTeller:
    """Tells the broker what is held for a transaction."""

    def __init__(self, core: Core, membership: Membership | None, hand_over: HandOver) -> None:
        self._core = core
        self._membership = membership
        self._hand_over = hand_over

    async def is_in_order(self) -> bool:
        """Whether the group takes acknowledgements of transactions in the order of offsets only."""
        resource = DescribeConfigsResource(
            resource_type=_GROUP_RESOURCE,
            resource_name=self._core.settings.group_id or "",
            configuration_keys=[_ORDER_CONFIG],
        )
        request = DescribeConfigsRequest(resources=[resource])
        attempts = Attempts(self._core.settings.retry_backoff, self._hand_over.random_share)
        while True:
            try:
                answer = await self._core.cluster.ask_any(DESCRIBE_CONFIGS, request)
                break
            except ConsumerError as error:
                await self._hand_over.wait_after(error, attempts)
        return any(one.value == "stable" for found in answer.results for one in found.configs)

    async def tell(
        self, session: TransactionSession, records: Iterable[ConsumerRecord]
    ) -> list[tuple[Progress, int]]:
        """Tell it, and return what was told, with the stable offset of each partition.

        TransactionAbortedError when some of it does not count.
        """
        core = self._core
        with core.lock:
            lost = next((one for one in records if not core.workload.is_held(one)), None)
            told = [] if lost is not None else gather_held(records)
        if lost is not None:
            raise TransactionAbortedError(f"the key range of {lost!r} is not ours any more")
        stable: dict[Place, int] = {}
        for batch in requests(
            told,
            max_ranges=core.settings.max_num_ranges_to_commit,
            max_bytes=core.settings.commit_max_bytes,
        ):
            await session.commit_offsets(
                partial(self._request, batch), partial(self._judge, batch, stable)
            )
        return [(one, stable[_place_of(one.work)]) for one in told]

    def _request(self, batch: list[Ack]) -> TxnOffsetCommitRequest:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        commits: dict[TopicPartition, IndividualCommit] = {}
        for ack in batch:
            work = ack.work
            commit = commits.get(work.place)
            if commit is None:
                commit = commits[work.place] = IndividualCommit(leader_epoch=work.leader_epoch)
                topic = topics.setdefault(
                    work.place.topic, TxnOffsetCommitRequestTopic(name=work.place.topic)
                )
                topic.partitions.append(
                    TxnOffsetCommitRequestPartition(
                        partition_index=work.place.partition,
                        committed_offset=_NO_OFFSET,
                        committed_metadata="",
                        individual=commit,
                    )
                )
            tell(commit, ack)
            limit_epoch(commit, work.leader_epoch)
        membership = self._membership
        return TxnOffsetCommitRequest(
            group_id=self._core.settings.group_id or "",
            generation_id=membership.epoch if membership is not None else _ANONYMOUS,
            member_id=membership.member_id if membership is not None else "",
            group_instance_id=self._core.settings.group_instance_id,
            topics=list(topics.values()),
        )

    def _judge(
        self, batch: list[Ack], stable: dict[Place, int], answer: TxnOffsetCommitResponse
    ) -> None:
        found = {
            TopicPartition(topic.name, one.partition_index): one
            for topic in answer.topics
            for one in topic.partitions
        }
        for ack in batch:
            answered = found.get(ack.work.place)
            if answered is None:
                raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, "TxnOffsetCommit", "no answer")
            stable[_place_of(ack.work)] = self._check(ack, answered)

    def _check(self, ack: Ack, answered: TxnOffsetCommitResponsePartition) -> int:
        """The stable offset, if what was told is taken."""
        individual = answered.individual
        what = f"acknowledging records of {ack.work.place} in a transaction"
        error: BrokerError | None = None
        if answered.error_code:
            sub_code = individual.sub_code if individual is not None else 0
            error = broker_error(answered.error_code, what, None, sub_code)
        elif individual is None:
            raise CooperationNotSupportedError(
                "TxnOffsetCommit",
                self._core.cluster.coordinator_place,
                "without the cooperative tag, which it has to know for acks_in",
            )
        else:
            error = error_of(ack, individual.outcomes)
        if error is None:
            assert individual is not None
            return individual.stable_offset
        if error.code in _STALE and self._membership is not None:
            self._membership.beat_soon()
            raise RetriableBrokerError(error.code, what, "the member has a newer epoch") from error
        if error.code in NOT_OURS and self._membership is not None:
            self._membership.beat_soon()
        if error.code == ErrorCode.FENCED_LEADER_EPOCH:
            self._hand_over.reload([ack.work])
            raise TransactionAbortedError(str(error)) from error
        if isinstance(error, IndividualCommitNotAllowedError):
            self._core.fail(error)
        raise error


class HeldAcks:
    """What is held for one transaction."""

    def __init__(
        self,
        core: Core,
        teller: Callable[[], AckTeller],
        records: list[ConsumerRecord],
        on_aborted: Callable[[list[ConsumerRecord]], None],
    ) -> None:
        self._core = core
        self._teller = teller
        self._records = records
        self._on_aborted = on_aborted
        self._told: list[tuple[Progress, int]] = []

    async def prepare(self, session: TransactionSession) -> None:
        if self._records:
            self._told = await self._teller().tell(session, self._records)

    def committed(self) -> None:
        core = self._core
        with core.lock:
            core.workload.settle(self._records)
            for progress, stable_offset in self._told:
                confirm(progress, stable_offset)
        self._note_ended()

    def aborted(self) -> None:
        self._on_aborted(self._records)
        self._note_ended()

    def given_up(self) -> None:
        with self._core.lock:
            self._core.workload.forsake(self._records)
        self._note_ended()

    def _note_ended(self) -> None:
        works = {id(record._work): record._work for record in self._records}
        for work in works.values():
            self._core.note_finished(work)


class TransactionAcks(HeldAcks):
    """What the application acknowledges in one transaction: see `CooperativeConsumer.acks_in`."""

    def __init__(
        self, core: Core, teller: Callable[[], AckTeller], transaction: Transaction
    ) -> None:
        super().__init__(core, teller, [], self._take_back)
        self._transaction = transaction
        transaction.join(self)

    def ack(self, record: ConsumerRecord) -> None:
        """The record is processed, and counts with the transaction.

        TransactionAbortedError when its key range is not ours any more: then somebody else
        processes it, and the transaction, which has what became of it, is not to be committed.
        """
        self._transaction.check_usable()
        with self._core.lock:
            is_ours = self._core.workload.hold(record)
        if not is_ours:
            error = TransactionAbortedError(
                f"{record!r} is not ours to acknowledge: its key range is somebody else's by now,"
                " it was taken back, or it was acknowledged before"
            )
            self._transaction.fail(error)
            raise error
        self._records.append(record)

    def _take_back(self, records: list[ConsumerRecord]) -> None:
        """Everything comes again that was handed out and is not done: nobody will go on with it."""
        core = self._core
        with core.lock:
            handed_out = [
                record
                for work in core.workload
                for record in work.open.values()
                if record._state == STARTED
            ]
            core.workload.recall([*records, *handed_out])
        core.on_ready()


def _place_of(work: RangeWork) -> Place:
    return work.unit[:2]
