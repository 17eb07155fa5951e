"""What EndTxn and DescribeTransactions say of batches of sinks, in tags of our own.

How they are used is in `wire.messages.sink_batches`. A tag is answered to who sent one, also when
the request is refused, so that the client knows that it was understood.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.sink_state import Listed
from anabranch.coordinator.transaction.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionState,
)
from anabranch.handlers.transaction_answers import error_of
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from anabranch.wire.messages.sink_batches import (
    PrepareTxn,
    PrepareTxnAnswer,
    RefusedTransaction,
    SinkBatch,
    SinkBatchAnswer,
    SinksAnswer,
    SinksQuestion,
    SinkState,
)

T = TypeVar("T")
Response = EndTxnResponse | Deferred[EndTxnResponse]

# One request names so many transactions in its error message; `refused` has them all.
_NAMED = 3


# Preparing --------------------------------------------------------------------------------------


def prepare(broker: Broker, request: EndTxnRequest, wanted: PrepareTxn) -> Response:
    """A transaction waits for its batch from now on."""
    if request.committed or request.batch is not None:
        return _prepared(
            KafkaError(
                ErrorCode.INVALID_REQUEST,
                "A transaction is prepared by an EndTxn that does not commit and has no batch.",
            )
        )
    command = c.PrepareTxn(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        sink_id=wanted.sink_id,
        batch_id=wanted.batch_id,
    )
    return _responded(broker.transactions.sinks.prepare(command), _prepared)


def _prepared(outcome: tuple[c.PrepareAnswer, int] | KafkaError) -> EndTxnResponse:
    if isinstance(outcome, KafkaError):
        tag = PrepareTxnAnswer(error_message=outcome.message)
        return EndTxnResponse(error_code=outcome.code, prepare=tag)
    answer, last_batch_id = outcome
    tag = PrepareTxnAnswer(last_batch_id=last_batch_id, error_message=_why(answer.error))
    return EndTxnResponse(error_code=answer.error, prepare=tag)


def _why(code: ErrorCode) -> str | None:
    match code:
        case ErrorCode.NONE:
            return None
        case ErrorCode.INVALID_REQUEST:
            return "A transactional id, a sink's id and a batch of 0 or more are needed."
        case ErrorCode.PRODUCER_FENCED:
            return "The transaction was ended, or another producer has its id: write it again."
        case ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return "The transactional id does not have this producer id: write it again."
        case ErrorCode.INVALID_TXN_STATE:
            return "The transaction has no records, or is prepared for another batch."
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return "The transaction before is being completed. Try again."
        case _:
            return f"The transaction cannot be prepared ({code.name})."


# Batches ----------------------------------------------------------------------------------------


def end_batch(broker: Broker, request: EndTxnRequest, wanted: SinkBatch) -> Response:
    """Commit transactions as a batch of a sink, or abort them."""
    sink_id = request.transactional_id
    nobody = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    if (request.producer_id, request.producer_epoch) != nobody:
        return _ended(
            KafkaError(
                ErrorCode.INVALID_REQUEST,
                "A batch is of a sink, not of a producer: producer id and epoch have to be -1.",
            )
        )
    batch = [
        Listed(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
        )
        for one in wanted.transactions
    ]
    sinks = broker.transactions.sinks
    try:
        if not request.committed:
            return _responded(sinks.abort(sink_id, batch), lambda found: _aborted(batch, found))
        return _responded(sinks.commit(sink_id, wanted.batch_id, batch), _ended)
    except KafkaError as error:
        return _ended(error)


def _ended(outcome: c.BatchAnswer | KafkaError) -> EndTxnResponse:
    if isinstance(outcome, KafkaError):
        tag = SinkBatchAnswer(error_message=outcome.message)
        return EndTxnResponse(error_code=outcome.code, batch=tag)
    refused = [_refused(one.listed, one.error, one.state) for one in outcome.refused]
    message = None
    if refused:
        message = _message("Nothing was committed", refused)
    elif outcome.error is not ErrorCode.NONE:
        message = (
            "A batch needs a sink's id, a number of 0 or more, and each transactional id once."
        )
    return EndTxnResponse(
        error_code=outcome.error,
        batch=SinkBatchAnswer(
            last_batch_id=outcome.last_batch_id,
            is_replay=outcome.is_replay,
            error_message=message,
            refused=refused,
        ),
    )


def _aborted(batch: Sequence[Listed], outcomes: Sequence[Any]) -> EndTxnResponse:
    refused = [
        _refused(one, error_of(outcome), None)
        for one, outcome in zip(batch, outcomes, strict=True)
        if error_of(outcome) is not ErrorCode.NONE
    ]
    if not refused:
        return EndTxnResponse(batch=SinkBatchAnswer())
    tag = SinkBatchAnswer(error_message=_message("Not all are aborted", refused), refused=refused)
    return EndTxnResponse(error_code=refused[0].error_code, batch=tag)


def _refused(one: Listed, error: ErrorCode, state: TransactionState | None) -> RefusedTransaction:
    return RefusedTransaction(
        transactional_id=one.transactional_id,
        error_code=error,
        error_message=_why_not(one, error, state),
    )


def _why_not(one: Listed, error: ErrorCode, state: TransactionState | None) -> str:
    match error:
        case ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return "nobody has the transactional id"
        case ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return f"it does not belong to producer id {one.producer_id}"
        case ErrorCode.PRODUCER_FENCED:
            now = "" if state is None else f" (it is {state.value} now)"
            return f"its epoch is not {one.producer_epoch} any more: it was ended or taken{now}"
        case ErrorCode.INVALID_TXN_STATE:
            return "it is not prepared for this batch of this sink"
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return "it is in a batch that is being committed"
        case _:
            return f"it cannot be ended now ({error.name})"


def _message(what: str, refused: Sequence[RefusedTransaction]) -> str:
    named = "; ".join(f"{one.transactional_id}: {one.error_message}" for one in refused[:_NAMED])
    more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
    return f"{what}. {named}{more}."


# Questions --------------------------------------------------------------------------------------


def describe_sinks(
    broker: Broker, question: SinksQuestion, respond: Callable[[SinksAnswer], T]
) -> T | Deferred[T]:
    """The response with what is known of sinks; where answers wait for the disk, it does too."""

    def answered(found: Sequence[c.SinkAnswer | KafkaError]) -> T:
        states = [
            _state(sink_id, one) for sink_id, one in zip(question.sink_ids, found, strict=True)
        ]
        return respond(SinksAnswer(sinks=states))

    outcome = broker.transactions.sinks.ask_all(question.sink_ids)
    return outcome.then(answered) if isinstance(outcome, Deferred) else answered(outcome)


def _state(sink_id: str, found: c.SinkAnswer | KafkaError) -> SinkState:
    if isinstance(found, KafkaError):
        return SinkState(error_code=found.code, sink_id=sink_id)
    sink = found.sink
    if sink is None:
        return SinkState(sink_id=sink_id)
    return SinkState(
        sink_id=sink_id,
        last_batch_id=sink.last_batch_id,
        last_batch_time_ms=sink.last_update_timestamp_ms,
        pending_transactions=len(sink.pending),
    )


def _responded(outcome: Any, convert: Any) -> Response:
    response: Response
    response = outcome.then(convert) if isinstance(outcome, Deferred) else convert(outcome)
    return response
