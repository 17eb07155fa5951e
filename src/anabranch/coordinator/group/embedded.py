"""Units as classic consumers name them: topics and partitions in bytes of their own protocol."""

from collections.abc import Collection, Iterable, Iterator

from anabranch.coordinator.group.consumer_protocol import (
    ConsumerProtocolError,
    TopicPartitions,
    decode_subscription,
    encode_assignment,
)
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.units import Unit, whole_partitions


def units_of(partitions: Iterable[TopicPartitions], image: ClusterImage) -> Iterator[Unit]:
    """The units of partitions by name; topics that are not there any more have none."""
    for name, numbers in partitions:
        topic = image.topics.get(name)
        if topic is not None:
            yield from whole_partitions(topic.topic_id, numbers)


def assignment_bytes(units: Collection[Unit], subscription: bytes, image: ClusterImage) -> bytes:
    """What a leader would have sent to the member with this subscription."""
    by_topic: dict[str, list[int]] = {}
    for unit in sorted(units):
        topic = image.by_id.get(unit.topic_id)
        if topic is not None:
            by_topic.setdefault(topic.name, []).append(unit.partition)
    return encode_assignment(_version(subscription), sorted(by_topic.items()))


def _version(subscription: bytes) -> int:
    """The version that a member can read; 0 where it says nothing that we can read ourselves."""
    try:
        return decode_subscription(subscription).version
    except ConsumerProtocolError:
        return 0
