"""What configs belong to: the resource types of DescribeConfigs and the alterations."""

from enum import IntEnum

from anabranch.broker.broker import Broker
from anabranch.model.errors import ErrorCode, KafkaError


class ResourceType(IntEnum):
    """Kafka's numbers for what has configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_NOT_SERVED = {
    ResourceType.BROKER_LOGGER: "Log levels cannot be described or altered on this broker.",
    ResourceType.CLIENT_METRICS: "Client metrics are not available on this broker.",
}


def unserved_type(resource_type: int) -> KafkaError:
    """Why configs of this type are refused."""
    for known, reason in _NOT_SERVED.items():
        if resource_type == known:
            return KafkaError(ErrorCode.INVALID_REQUEST, reason)
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}.")


def check_broker_name(broker: Broker, name: str) -> None:
    """Refuse a broker resource that is neither this broker nor all of them, which is ""."""
    if name in ("", str(broker.node_id)):
        return
    if not (name.isascii() and name.isdecimal()):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name[:80]}"
        )
    if int(name[-20:]) != broker.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id} or empty string, "
            f"but received {name[:80]}",
        )
