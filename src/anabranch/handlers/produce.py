"""Produce (0), versions 3-13: append record batches.

Version notes: 3 transactional ids; 5 log start offset; 7 zstd allowed (KIP-110); 8 record errors
(KIP-467); 9 flexible; 11 TRANSACTION_ABORTABLE; 12 the broker adds partitions to the transaction
(KIP-890); 13 topic ids (KIP-516). Versions 0-2 are advertised, because librdkafka decides by them
whether a broker can do anything at all (KAFKA-18659), and answered with
UNSUPPORTED_FOR_MESSAGE_FORMAT: they carry message formats that Kafka 4 dropped, and so do we.
"""

import contextlib
import functools

from anabranch.broker.branch_topics import produce_refusal
from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.broker.partition import Partition
from anabranch.broker.topics import INTERNAL_TOPICS
from anabranch.coordinator.transaction.state import TopicPartition
from anabranch.handlers.route import RequestContext, route
from anabranch.handlers.transactional_produce import (
    Producer,
    Refusals,
    ask_coordinator,
    check_one_producer,
    producer_of,
)
from anabranch.log.append_checks import RecordValidationError
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.produce import (
    PRODUCE,
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from anabranch.wire.record_batch import is_one_batch

_FIRST_WITH_TOPIC_IDS = 13
_FIRST_WITH_ZSTD = 7
_FIRST_SERVED = 3
# An answer that would name more wrong records than this stops naming them: compressed batches can
# hold so many that the answer would not fit in the memory.
_RECORD_ERRORS_MAX = 10_000
_FOUND_IN_A_BATCH = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    )
)
"""Errors beside which Kafka names the start of the log."""


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    refusal = _refusal(context, request)
    if refusal is None and request.transactional_id is not None:
        return _produce_in_transaction(broker, context, request, request.transactional_id)
    return _produce(broker, context, request, refusal, {})


def _produce_in_transaction(
    broker: Broker, context: RequestContext, request: ProduceRequest, transactional_id: str
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    """Take transactional batches if the coordinator lets their partitions be in the transaction."""
    producers: list[Producer] = []
    partitions: dict[TopicPartition, Partition] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            producer = producer_of(data.records)
            if producer is None:
                continue
            producers.append(producer)
            with contextlib.suppress(KafkaError):  # said when it is the partition's turn
                partition = _partition(broker, context, topic, data.index)
                partitions[partition.log.topic, data.index] = partition
    refusal = check_one_producer(producers)
    if refusal is not None or not partitions:
        return _produce(broker, context, request, refusal, {})
    refused = ask_coordinator(broker, context.version, transactional_id, producers[0], partitions)
    if not isinstance(refused, Deferred):
        return _produce(broker, context, request, None, refused)
    answer: Deferred[ProduceResponse] = Deferred()

    def go_on(refused: Refusals) -> None:
        try:
            outcome = _produce(broker, context, request, None, refused)
        except Exception as error:
            answer.fail(error)
            return
        if isinstance(outcome, Deferred):
            outcome.deliver_to(answer.complete, answer.fail)
        elif outcome is not None:
            answer.complete(outcome)

    refused.deliver_to(go_on, answer.fail)
    return answer if request.acks else None


def _produce(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    refusal: KafkaError | None,
    refused: Refusals,
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    """Append everything that is not refused."""
    has_transactional_id = request.transactional_id is not None
    response = ProduceResponse()
    unsynced: dict[PartitionLog, list[PartitionProduceResponse]] = {}
    failure = ""
    named_count = 0
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            partition = None
            try:
                if refusal is not None:
                    raise refusal
                partition = _partition(broker, context, topic, data.index)
                if refused and (partition.log.topic, data.index) in refused:
                    raise refused[partition.log.topic, data.index]
                answer = _append(broker, context, partition, data, has_transactional_id)
                if broker.must_sync(partition, request.acks):
                    unsynced.setdefault(partition.log, []).append(answer)
            except KafkaError as error:
                failure = failure or str(error)
                answer = _refused(data, partition, error)
                named_count += len(answer.record_errors)
                if named_count > _RECORD_ERRORS_MAX:
                    answer.record_errors = []
            answers.append(answer)
        response.responses.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=answers
            )
        )
    if request.acks == 0:
        if failure:
            # A producer that wants no answer learns of an error only by losing its connection.
            context.close(f"a produce with acks=0 failed: {failure}")
        return None
    if unsynced:
        return _answer_when_synced(broker, response, unsynced)
    return response


def _refusal(context: RequestContext, request: ProduceRequest) -> KafkaError | None:
    """Why the whole request is refused, if it is."""
    if context.version < _FIRST_SERVED:
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "Message formats v0 and v1 are not accepted. Use a client of Kafka 0.11 or newer.",
        )
    if request.acks not in (-1, 0, 1):
        return KafkaError(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; -1, 0 and 1 are possible."
        )
    return None


def _partition(
    broker: Broker, context: RequestContext, asked: TopicProduceData, index: int
) -> Partition:
    name = asked.name
    if context.version >= _FIRST_WITH_TOPIC_IDS:
        topic = broker.topics.get_by_id(asked.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
        name = topic.name
    if name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}."
        )
    partition = broker.topics.partition(name, index)
    if partition.branch is not None:
        raise produce_refusal(broker.topics, name)
    return partition


def _append(
    broker: Broker,
    context: RequestContext,
    partition: Partition,
    data: PartitionProduceData,
    has_transactional_id: bool,
) -> PartitionProduceResponse:
    records = data.records
    if records is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "The request has no records for the partition.")
    log = partition.log
    info = log.append(
        memoryview(records),
        now_ms=broker.now_ms(),
        zstd_allowed=context.version >= _FIRST_WITH_ZSTD,
        has_transactional_id=has_transactional_id,
    )
    if not info.is_duplicate:
        broker.purgatory.mark(partition, len(records))
    return PartitionProduceResponse(
        index=data.index,
        base_offset=info.first_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=log.log_start_offset,
    )


def _refused(
    data: PartitionProduceData, partition: Partition | None, error: KafkaError
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=data.index, error_code=error.code, base_offset=-1, error_message=error.message
    )
    if isinstance(error, RecordValidationError):
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
            for index, why in error.record_errors
        ]
    # Kafka knows the log by the time it looks into a batch, but not yet when it counts batches.
    if (
        partition is not None
        and error.code in _FOUND_IN_A_BATCH
        and is_one_batch(data.records or b"")
    ):
        answer.log_start_offset = partition.log.log_start_offset
    return answer


def _answer_when_synced(
    broker: Broker,
    response: ProduceResponse,
    unsynced: dict[PartitionLog, list[PartitionProduceResponse]],
) -> Deferred[ProduceResponse]:
    """Hold the answer until every log that asks for it is on disk."""
    deferred: Deferred[ProduceResponse] = Deferred()
    left = len(unsynced)

    def synced(answers: list[PartitionProduceResponse], is_safe: bool) -> None:
        nonlocal left
        if not is_safe:
            for answer in answers:
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                answer.base_offset = -1
        left -= 1
        if not left:
            deferred.complete(response)

    for log, answers in unsynced.items():
        broker.flusher.sync(log, functools.partial(synced, answers))
    return deferred


ROUTE = route(PRODUCE, "0-13", handle)
