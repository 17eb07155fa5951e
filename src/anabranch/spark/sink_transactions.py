"""Batches of a sink, each written once: what tasks and the driver ask brokers for.

Rules (the broker's are in `anabranch.wire.messages.sink_batches`)
- A task writes in a transaction of its own, which it prepares when all records are acknowledged. A
  task without records has none.
- The driver lists the prepared transactions of all tasks in one request: all of them become
  visible, or none. The broker remembers the batch, so that a batch that is run again is dropped,
  whatever the number of its tasks.
- The id of a transaction is made of the sink, the task's partition and its attempt. It is used
  again in the next batch, and whoever uses it ends what an earlier user left behind: a task of a
  driver that died cannot commit any more.
- When a batch is committed, nobody is at work for the sink: what is open under its ids was left by
  attempts that died, and is aborted. Until then readers of committed records would get nothing that
  was written after it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import WriterCommitMessage

from anabranch.spark.encode import Identity
from anabranch.spark.errors import BrokerRefusal, LinkError
from anabranch.spark.link import Link
from anabranch.spark.sink_options import ProducerSettings
from anabranch.wire.messages.describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
)
from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest
from anabranch.wire.messages.find_coordinator import KEY_TYPE_TRANSACTION
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.list_transactions import LIST_TRANSACTIONS, ListTransactionsRequest
from anabranch.wire.messages.sink_batches import (
    NO_BATCH,
    PrepareTxn,
    SinkBatch,
    SinksQuestion,
    SinkTransaction,
)

T = TypeVar("T")

_TAGGED_VERSION: Final = 3  # of EndTxn: the first that has tags
_PATTERN_VERSION: Final = 2  # of ListTransactions: the first that takes a pattern
_BLOCK_OPTION: Final = "kafka.max.block.ms"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a sink."""

    sink_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} of sink {self.sink_id}"


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver; `identity` is that of its transaction, if it has one."""

    rows: int
    batch: Batch | None = None
    identity: Identity | None = None


class Transactions:
    """Asks about transactions, through one link."""

    def __init__(self, link: Link, settings: ProducerSettings) -> None:
        self._link = link
        self._settings = settings

    def last_batch(self, sink_id: str) -> int:
        """The last batch of a sink that was committed; -1 if there was none."""

        def ask() -> int:
            request = DescribeTransactionsRequest(sinks=SinksQuestion(sink_ids=[sink_id]))
            answer = self._ask(sink_id, DESCRIBE_TRANSACTIONS, request)
            if answer.sinks is None:
                raise _unknown_to_broker()
            (state,) = answer.sinks.sinks
            if state.error_code:
                raise BrokerRefusal(state.error_code, f"asking for the last batch of {sink_id}")
            return int(state.last_batch_id)

        return self._retrying(f"asking for the last batch of sink {sink_id}", ask)

    def begin(self, transactional_id: str) -> Identity:
        """The identity under which a task writes; whoever had the id before has it no more."""
        what = f"beginning the transaction {transactional_id}"

        def ask() -> Identity:
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=self._settings.transaction_timeout_ms,
            )
            answer = self._ask(transactional_id, INIT_PRODUCER_ID, request)
            if answer.error_code:
                raise BrokerRefusal(answer.error_code, what)
            return Identity(answer.producer_id, answer.producer_epoch, transactional_id)

        return self._retrying(what, ask)

    def prepare(self, identity: Identity, batch: Batch) -> bool:
        """Have the transaction wait for its batch; False when the batch was committed before."""
        prepare = PrepareTxn(sink_id=batch.sink_id, batch_id=batch.batch_id)

        def ask() -> bool:
            answer = self._end(identity, prepare=prepare)
            if answer.prepare is None and not answer.error_code:
                raise _unknown_to_broker()
            message = answer.prepare.error_message if answer.prepare is not None else None
            if answer.error_code:
                raise BrokerRefusal(answer.error_code, f"preparing {batch}", message)
            return bool(answer.prepare.last_batch_id < batch.batch_id)

        return self._retrying(f"preparing {batch}", ask)

    def abort(self, identity: Identity) -> None:
        """End a transaction that is not prepared."""
        answer = self._end(identity)
        if answer.error_code:
            raise BrokerRefusal(answer.error_code, f"aborting {identity.transactional_id}")

    def end_batch(self, batch: Batch, identities: list[Identity], *, committed: bool) -> bool:
        """Commit or abort the transactions of a batch; False when it was committed before."""
        what = f"{'committing' if committed else 'aborting'} {batch}"
        request = EndTxnRequest(
            transactional_id=batch.sink_id,
            producer_id=-1,
            producer_epoch=-1,
            committed=committed,
            batch=SinkBatch(
                batch_id=batch.batch_id,
                transactions=[
                    SinkTransaction(
                        transactional_id=one.transactional_id or "",
                        producer_id=one.producer_id,
                        producer_epoch=one.epoch,
                    )
                    for one in identities
                ],
            ),
        )

        def ask() -> bool:
            answer = self._ask(batch.sink_id, END_TXN, request, _TAGGED_VERSION)
            if answer.batch is None and not answer.error_code:
                raise _unknown_to_broker()
            if answer.error_code:
                raise BrokerRefusal(answer.error_code, what, _why(answer.batch))
            return not answer.batch.is_replay

        return self._retrying(what, ask)

    def abort_left_over(self, sink_id: str) -> None:
        """Abort what is open under the ids of a sink's tasks, of which none is at work."""
        own = re.compile(rf"{re.escape(sink_id)}\.\d+\.\d+")
        what = f"looking for open transactions of sink {sink_id}"

        def ask() -> list[str]:
            request = ListTransactionsRequest(
                state_filters=["Ongoing"], transactional_id_pattern=own.pattern
            )
            answer = self._ask(sink_id, LIST_TRANSACTIONS, request, _PATTERN_VERSION)
            if answer.error_code:
                raise BrokerRefusal(answer.error_code, what)
            return [one.transactional_id for one in answer.transaction_states]

        for transactional_id in self._retrying(what, ask):
            if own.fullmatch(transactional_id):
                self.begin(transactional_id)  # which ends what was begun before

    def _end(self, identity: Identity, prepare: PrepareTxn | None = None) -> Any:
        transactional_id = identity.transactional_id or ""
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=False,
            prepare=prepare,
        )
        return self._ask(transactional_id, END_TXN, request, _TAGGED_VERSION)

    def _ask(self, key: str, api: Any, request: Any, least_version: int = 0) -> Any:
        return self._link.ask_coordinator(
            key, api, request, key_type=KEY_TYPE_TRANSACTION, least_version=least_version
        )

    def _retrying(self, what: str, ask: Callable[[], T]) -> T:
        return self._link.retrying(
            what, ask, limit_ms=self._settings.block_ms, option=_BLOCK_OPTION
        )


def _why(answer: Any) -> str | None:
    """What the broker says against a batch."""
    if answer is None:
        return None
    refused = [f"{one.transactional_id}: {one.error_message}" for one in answer.refused]
    return "; ".join(filter(None, [answer.error_message, *refused])) or None


def _unknown_to_broker() -> LinkError:
    return LinkError(
        "option 'exactlyOnce' needs an Anabranch broker that knows batches of sinks; this one does"
        " not, and without it the sink writes each row at least once"
    )


def is_committed(last_batch_id: int, batch: Batch) -> bool:
    """Whether a batch was committed before. LinkError when later ones were, too.

    Spark runs the last batch again and none before it. So a query that is further back has another
    checkpoint than the one that wrote the sink before: dropping its rows would lose them.
    """
    if NO_BATCH < batch.batch_id < last_batch_id:
        raise LinkError(
            f"{batch} comes after batch {last_batch_id} of the same sink: the query has a new or an"
            " older checkpoint. With a new one set option 'sinkId' to a name that was not used"
            " before; rows of batches that were written come again then"
        )
    return NO_BATCH < batch.batch_id == last_batch_id
