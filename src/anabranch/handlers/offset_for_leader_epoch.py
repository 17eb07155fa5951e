"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ended (KIP-320).

Consumers ask it after the leader epoch changed, to find out whether the log was cut below their
position.
"""

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import KafkaError
from anabranch.wire.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_offset(broker, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_offset(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    try:
        log = broker.topics.partition(topic, asked.partition).log
        broker.check_leader_epoch(log, asked.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = log.offset_for_leader_epoch(asked.leader_epoch)
    except KafkaError as error:
        answer.error_code = error.code
    return answer


ROUTE = route(OFFSET_FOR_LEADER_EPOCH, "2-4", handle)
