"""The settings of the console."""

from anabranch.config.metrics_settings import ADDRESS_RULE
from anabranch.config.setting import ConfigType, Importance, Scope, Setting

CONSOLE_LISTENERS = "console.listeners"
CONSOLE_READ_ONLY = "console.read.only"

CONSOLE_SETTING_LINES = (
    Setting(
        name=CONSOLE_LISTENERS,
        type=ConfigType.LIST,
        default=("localhost:8080",),
        documentation=(
            "Where the console is served over HTTP, and with it `/metrics`, `/health` and `/ready` "
            "(see [the console](../console.md)). There is no login: keep it on an address that "
            "only people you trust can reach. Empty means nowhere. When the default address is in "
            "use, the broker says so and goes without a console."
        ),
        scope=Scope.BROKER,
        subject="Console",
        importance=Importance.MEDIUM,
        rule=ADDRESS_RULE,
        ours=True,
    ),
    Setting(
        name=CONSOLE_READ_ONLY,
        type=ConfigType.BOOLEAN,
        default=True,
        documentation=(
            "Whether the console only shows. With `false` whoever reaches it may move the offsets "
            "of groups."
        ),
        scope=Scope.BROKER,
        subject="Console",
        importance=Importance.MEDIUM,
        ours=True,
    ),
)
