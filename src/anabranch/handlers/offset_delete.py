"""OffsetDelete (47), version 0: forget committed offsets of topics nobody is subscribed to."""

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import DeleteOffsets, DeleteOffsetsAnswer
from anabranch.handlers.group_answers import answer
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Deferred[OffsetDeleteResponse]:
    response = OffsetDeleteResponse()
    wanted: list[tuple[str, int]] = []
    waiting: list[OffsetDeleteResponsePartition] = []
    for topic in request.topics:
        answers = []
        known = broker.topics.get(topic.name)
        for partition in topic.partitions:
            answered = OffsetDeleteResponsePartition(partition_index=partition.partition_index)
            answers.append(answered)
            if known is not None and known.has_partition(partition.partition_index):
                wanted.append((topic.name, partition.partition_index))
                waiting.append(answered)
            else:
                answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
    command = DeleteOffsets(group_id=request.group_id, partitions=tuple(wanted))

    def respond(outcome: DeleteOffsetsAnswer | KafkaError) -> OffsetDeleteResponse:
        if isinstance(outcome, KafkaError):
            return OffsetDeleteResponse(error_code=outcome.code)
        if outcome.error:
            return OffsetDeleteResponse(error_code=outcome.error)
        for partition, code in zip(waiting, outcome.errors, strict=True):
            partition.error_code = code
        return response

    return answer(broker, request.group_id, command, respond)


ROUTE = route(OFFSET_DELETE, "0", handle)
