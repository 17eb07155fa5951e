"""DeleteRecords (21), versions 0-2: hide the records before an offset (KIP-107).

Versions differ only in their encoding. -1 means the high watermark, so everything. The files go
with the next retention check; the new log start offset counts at once.
"""

from anabranch.broker.branch_topics import check_can_delete_records
from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_NO_LOW_WATERMARK = -1


def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_result(broker, topic.name, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _result(
    broker: Broker, name: str, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=_NO_LOW_WATERMARK
    )
    try:
        result.low_watermark = _delete(broker, name, asked)
    except KafkaError as error:
        result.error_code = error.code
    except OSError:
        # The leader epochs could not be written.
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return result


def _delete(broker: Broker, name: str, asked: DeleteRecordsPartition) -> int:
    log = broker.topics.partition(name, asked.partition_index).log
    topic = broker.topics.get(name)
    if topic is not None:
        check_can_delete_records(topic)
    if topic is not None and topic.is_internal:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {name}."
        )
    if log.config.is_compacted and not log.config.is_deleted_by_retention:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Records of {name}-{asked.partition_index} cannot be deleted because its "
            "cleanup.policy is compact only.",
        )
    return log.delete_records_before(asked.offset)


ROUTE = route(DELETE_RECORDS, "0-2", handle)
