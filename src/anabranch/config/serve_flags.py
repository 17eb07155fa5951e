"""Flags of `anabranch serve` that are other names of settings.

They come after `--override`, so they count above it. One of them with a value outside of Kafka's
bounds moves the bound, unless somebody set that too: who writes a value on the command line means
it, and Kafka's bounds are narrow.
"""

from anabranch.config.console_settings import CONSOLE_LISTENERS
from anabranch.config.consumer_group_settings import (
    HEARTBEAT_INTERVAL,
    PROTOCOLS,
    SESSION_TIMEOUT,
)

SERVE_FLAGS: dict[str, str] = {
    "--consumer-session-timeout-ms": SESSION_TIMEOUT.name,
    "--consumer-heartbeat-interval-ms": HEARTBEAT_INTERVAL.name,
    "--consumer-assignors": "group.consumer.assignors",
    "--consumer-max-group-size": "group.consumer.max.size",
    "--enable-new-protocol": PROTOCOLS,
    "--no-enable-new-protocol": PROTOCOLS,
    "--console": CONSOLE_LISTENERS,
}
"""Each flag with the setting it stands for."""
