"""THE table of settings: by scope and name, with what other names lead to them.

The loader, DescribeConfigs, the alteration of configs and the reference page all read it. To add
a setting, add a line to the module of its subject, make the broker honour it, and render the page
again.
"""

from anabranch.config.branch_settings import (
    BRANCH_BROKER_SETTING_LINES,
    BRANCH_TOPIC_SETTING_LINES,
)
from anabranch.config.broker_settings import BROKER_SETTING_LINES
from anabranch.config.console_settings import CONSOLE_SETTING_LINES
from anabranch.config.consumer_group_settings import (
    CONSUMER_GROUP_SETTING_LINES,
    GROUP_RESOURCE_SETTING_LINES,
)
from anabranch.config.cooperative_settings import (
    COOPERATIVE_BROKER_SETTING_LINES,
    COOPERATIVE_GROUP_SETTING_LINES,
    COOPERATIVE_TOPIC_SETTING_LINES,
)
from anabranch.config.group_settings import GROUP_SETTING_LINES
from anabranch.config.log_settings import LOG_SETTING_LINES
from anabranch.config.metrics_settings import METRICS_SETTING_LINES
from anabranch.config.setting import Scope, Setting
from anabranch.config.topic_settings import TOPIC_SETTING_LINES
from anabranch.config.transaction_settings import TRANSACTION_SETTING_LINES

BROKER_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        *BROKER_SETTING_LINES,
        *LOG_SETTING_LINES,
        *GROUP_SETTING_LINES,
        *CONSUMER_GROUP_SETTING_LINES,
        *TRANSACTION_SETTING_LINES,
        *METRICS_SETTING_LINES,
        *CONSOLE_SETTING_LINES,
        *BRANCH_BROKER_SETTING_LINES,
        *COOPERATIVE_BROKER_SETTING_LINES,
    )
}
TOPIC_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        *TOPIC_SETTING_LINES,
        *BRANCH_TOPIC_SETTING_LINES,
        *COOPERATIVE_TOPIC_SETTING_LINES,
    )
}
GROUP_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (*GROUP_RESOURCE_SETTING_LINES, *COOPERATIVE_GROUP_SETTING_LINES)
}

TABLES: dict[Scope, dict[str, Setting]] = {
    Scope.BROKER: BROKER_SETTINGS,
    Scope.TOPIC: TOPIC_SETTINGS,
    Scope.GROUP: GROUP_SETTINGS,
}

ALIASES: dict[str, str] = {
    alias: setting.name for setting in BROKER_SETTINGS.values() for alias in setting.aliases
}
"""Other names of broker settings, as `broker.id` for `node.id`."""

TOPIC_ALIASES: dict[str, str] = {
    alias: setting.name for setting in TOPIC_SETTINGS.values() for alias in setting.aliases
}
"""Other names of topic settings, which clients may use when they create or alter a topic."""


def nearest_name(name: str, candidates: dict[str, Setting]) -> str | None:
    """The name that was probably meant, or None when nothing is close."""
    from difflib import get_close_matches  # only a mistake pays for this import

    matches = get_close_matches(name.lower(), candidates, n=1, cutoff=0.75)
    return matches[0] if matches else None
