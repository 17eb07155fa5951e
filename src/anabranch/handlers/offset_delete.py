"""OffsetDelete (47), version 0: forget committed offsets of topics nobody is subscribed to."""

from anabranch.broker.broker import Broker
from anabranch.coordinator.group.commands import DeleteOffsets
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
) -> OffsetDeleteResponse:
    response = OffsetDeleteResponse()
    wanted: list[tuple[str, int]] = []
    waiting: list[OffsetDeleteResponsePartition] = []
    for topic in request.topics:
        answers = []
        is_known = broker.topics.get(topic.name) is not None
        for partition in topic.partitions:
            answer = OffsetDeleteResponsePartition(partition_index=partition.partition_index)
            answers.append(answer)
            if is_known:
                wanted.append((topic.name, partition.partition_index))
                waiting.append(answer)
            else:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
    command = DeleteOffsets(group_id=request.group_id, partitions=tuple(wanted))
    try:
        answered = broker.groups.submit(request.group_id, command)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    if answered.error:
        return OffsetDeleteResponse(error_code=answered.error)
    for answer, code in zip(waiting, answered.errors, strict=True):
        answer.error_code = code
    return response


ROUTE = route(OFFSET_DELETE, "0", handle)
