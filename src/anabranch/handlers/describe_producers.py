"""DescribeProducers (61), version 0: the producers that a partition remembers (KIP-664).

Those of a branch are those of its source, without their transactions: these are open in the source,
and tools that look for transactions without a coordinator would take them for such.
"""

from anabranch.broker.broker import Broker
from anabranch.handlers.route import RequestContext, route
from anabranch.model.errors import KafkaError
from anabranch.model.topics import check_topic_name
from anabranch.wire.messages.describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _describe(broker, topic.name, index) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(broker: Broker, name: str, index: int) -> PartitionResponse:
    response = PartitionResponse(partition_index=index)
    try:
        check_topic_name(name)
        topic = broker.topics.get(name)
        is_branch = topic is not None and topic.source is not None
        response.active_producers = [
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=-1 if is_branch else producer.current_txn_first_offset,
            )
            for producer in broker.topics.partition(name, index).log.producers()
        ]
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
    return response


ROUTE = route(DESCRIBE_PRODUCERS, "0", handle)
