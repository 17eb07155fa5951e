"""Kafka's words for where a value comes from, and ours for one that is not shown."""

from typing import Final

HIDDEN: Final = "[hidden]"
DEFAULT_SOURCE: Final = "DEFAULT_CONFIG"
TOPIC_SOURCE: Final = "DYNAMIC_TOPIC_CONFIG"
GROUP_SOURCE: Final = "DYNAMIC_GROUP_CONFIG"
BROKER_SOURCES: Final = (
    *("DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG", "STATIC_BROKER_CONFIG"),
)
# By the number that DescribeConfigs has for it.
SOURCES: Final = {
    1: TOPIC_SOURCE,
    2: BROKER_SOURCES[0],
    3: BROKER_SOURCES[1],
    4: BROKER_SOURCES[2],
    5: DEFAULT_SOURCE,
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: GROUP_SOURCE,
}
