"""ListOffsets (2), versions 1-11: offsets by time or by special place.

Version notes: 2 isolation level; 4 leader epochs; 7 the offset with the largest timestamp
(KIP-734); 8, 9 and 11 ask about tiered storage, of which there is none: the earliest local offset
(-4) is the log start, the latest tiered (-5) and the earliest pending upload (-6) are unknown (-1).
"""

from collections import Counter

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    LIST_OFFSETS,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
# The first version that may ask for a special place. No version may ask for other negative ones.
_SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_NEVER = 1 << 15


def handle(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    read_committed = request.isolation_level == _READ_COMMITTED
    counts = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            try:
                if counts[topic.name, asked.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition is asked for twice.")
                _check(context.version, request.isolation_level, asked.timestamp)
                log = broker.topics.partition(topic.name, asked.partition_index).log
                broker.check_leader_epoch(log, asked.current_leader_epoch)
                answers.append(_look_up(log, asked, read_committed))
            except KafkaError as error:
                answers.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=error.code
                    )
                )
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return response


def _check(version: int, isolation_level: int, timestamp: int) -> None:
    if isolation_level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"There is no isolation level {isolation_level}."
        )
    if timestamp < 0 and version < _SPECIAL_SINCE.get(timestamp, _NEVER):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"Version {version} has no timestamp {timestamp}."
        )


def _look_up(
    log: PartitionLog, asked: ListOffsetsPartition, read_committed: bool
) -> ListOffsetsPartitionResponse:
    end = log.last_stable_offset if read_committed else log.high_watermark
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    if asked.timestamp == LATEST:
        answer.offset, answer.leader_epoch = end, log.leader_epoch
    elif asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = log.log_start_offset
        answer.leader_epoch = log.leader_epochs.epoch_at(log.log_start_offset)
    elif asked.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        pass
    else:
        if asked.timestamp == MAX_TIMESTAMP:
            found = log.max_timestamp_offset()
        else:
            found = log.offset_for_timestamp(asked.timestamp)
        if found is not None and found.offset < end:
            answer.timestamp = found.timestamp
            answer.offset = found.offset
            answer.leader_epoch = found.leader_epoch
    return answer


ROUTE = route(LIST_OFFSETS, "1-11", handle)
