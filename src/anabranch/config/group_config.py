"""Changing the configs of groups: what a client may set on one, and what stands behind its names.

Codes and reasons are Kafka's. A group that does not exist has configs all the same: they are kept
under its name and count as soon as it comes into being.
"""

from collections.abc import Mapping

from anabranch.config.consumer_group_bounds import IntOf, is_within
from anabranch.config.consumer_group_settings import (
    BOUNDED_SETTINGS,
    HEARTBEAT_INTERVAL,
    MIGRATION_POLICY,
    PROTOCOLS,
    SESSION_TIMEOUT,
    BoundedSetting,
)
from anabranch.config.definitions import BROKER_SETTINGS, GROUP_SETTINGS
from anabranch.config.setting import parse
from anabranch.config.settings import Settings
from anabranch.config.topic_config import name_hint, parse_or_refuse
from anabranch.model.errors import ErrorCode, KafkaError


def validate_group_configs(configs: Mapping[str, str], int_of: IntOf) -> None:
    """Check what a group would set for itself; `int_of` answers the broker's numbers as of now."""
    for name in configs:
        if name not in GROUP_SETTINGS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Unknown group config name: {name}{name_hint(name, GROUP_SETTINGS)}",
            )
    numbers: dict[str, int] = {}
    for name, text in configs.items():
        value = parse_or_refuse(GROUP_SETTINGS[name], text, ErrorCode.INVALID_CONFIG)
        if isinstance(value, int):
            numbers[name] = value
    for bounded in BOUNDED_SETTINGS:
        number = numbers.get(bounded.group_name)
        if number is not None and not is_within(number, bounded, int_of):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, _out_of_range(bounded.group_name, bounded, int_of)
            )
    session = numbers.get(SESSION_TIMEOUT.group_name, int_of(SESSION_TIMEOUT.name))
    heartbeat = numbers.get(HEARTBEAT_INTERVAL.group_name, int_of(HEARTBEAT_INTERVAL.name))
    if session <= heartbeat:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{SESSION_TIMEOUT.group_name} must be greater than {HEARTBEAT_INTERVAL.group_name}, "
            f"and {session} is not greater than {heartbeat}.",
        )


def check_altered_bounds(configs: Mapping[str, str], int_of: IntOf) -> None:
    """Refuse broker settings that clients alter to a value outside of their bounds."""
    for bounded in BOUNDED_SETTINGS:
        if bounded.name not in configs:
            continue
        value = parse(BROKER_SETTINGS[bounded.name], configs[bounded.name])
        if isinstance(value, int) and not is_within(value, bounded, int_of):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, _out_of_range(bounded.name, bounded, int_of)
            )


def _out_of_range(name: str, bounded: BoundedSetting, int_of: IntOf) -> str:
    return (
        f"{name} must be in the range {int_of(bounded.least)} to {int_of(bounded.most)} inclusive. "
        f"{bounded.least} and {bounded.most} of the broker set it."
    )


def serves_consumer_protocol(settings: Settings) -> bool:
    """Whether members may come with ConsumerGroupHeartbeat."""
    return "consumer" in settings.get_list(PROTOCOLS)


def migration_policy(settings: Settings) -> str:
    """`bidirectional`, `upgrade`, `downgrade` or `disabled`."""
    return settings.get_str(MIGRATION_POLICY).lower()
