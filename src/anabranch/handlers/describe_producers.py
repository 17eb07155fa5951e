"""DescribeProducers (61), version 0: the producers that a partition remembers (KIP-664)."""

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
        response.active_producers = [
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_first_offset,
            )
            for producer in broker.topics.partition(name, index).log.producers()
        ]
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
    return response


ROUTE = route(DESCRIBE_PRODUCERS, "0", handle)
