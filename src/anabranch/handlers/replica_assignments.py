"""Replicas that a client chose by hand: with one broker, only that broker can be meant."""

from anabranch.broker.broker import Broker
from anabranch.model.errors import ErrorCode, KafkaError


def check_replicas(broker: Broker, broker_ids: list[int]) -> None:
    """Refuse anything but this broker, once, with INVALID_REPLICA_ASSIGNMENT."""
    if broker_ids == [broker.node_id]:
        return
    unknown = [broker_id for broker_id in broker_ids if broker_id != broker.node_id]
    if not broker_ids:
        reason = "an empty replica list"
    elif unknown:
        reason = f"broker {min(unknown)}, but no such broker is registered"
    else:
        reason = f"the broker {broker.node_id} more than once"
    raise KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"The manual partition assignment includes {reason}. The only broker is {broker.node_id}.",
    )
