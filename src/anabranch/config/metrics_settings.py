"""The settings of what the broker tells about itself."""

from typing import NamedTuple

from anabranch.config.rules import at_least, one_of
from anabranch.config.setting import (
    ConfigType,
    DynamicMode,
    Importance,
    Rule,
    Scope,
    Setting,
    Value,
)

METRICS_LISTENERS = "metrics.listeners"
METRICS_GRANULARITY = "metrics.granularity"
METRICS_SERIES_MAX = "metrics.series.max"


class Address(NamedTuple):
    """Where to listen; an empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host or '*'}:{self.port}"


def parse_address(entry: str) -> Address:
    """One entry of `metrics.listeners` or `console.listeners`, which was checked."""
    host, _, port = entry.rpartition(":")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _check_addresses(value: Value) -> str | None:
    assert isinstance(value, tuple)
    for entry in value:
        why = _why_no_address(entry)
        if why is not None:
            return f"{entry!r} {why}, write it as localhost:9400"
    return None


def _why_no_address(entry: str) -> str | None:
    host, colon, port = entry.rpartition(":")
    if "://" in entry or "/" in entry:
        return "has more than a host and a port"
    if not colon:
        return "has no port"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        return "has no port from 1 to 65535, or 0 for any free one"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "has several colons, so put an IPv6 address in brackets"
    return None


ADDRESS_RULE = Rule(_check_addresses, "`host:port`; an empty host means every interface")

METRICS_SETTING_LINES = (
    Setting(
        name=METRICS_LISTENERS,
        type=ConfigType.LIST,
        default=(),
        documentation=(
            "Where metrics are served over HTTP, under `/metrics` (see [metrics](metrics.md)), and "
            "beside them `/health` and `/ready`. Nowhere unless it is set. Whoever reaches it may "
            "read them, so keep it on a network you trust."
        ),
        scope=Scope.BROKER,
        subject="Metrics",
        importance=Importance.MEDIUM,
        rule=ADDRESS_RULE,
        ours=True,
    ),
    Setting(
        name=METRICS_GRANULARITY,
        type=ConfigType.STRING,
        default="partition",
        documentation=(
            "How fine metrics are: `partition` has everything, `topic` leaves out those by "
            "partition, `group` those by topic as well. For large clusters, or a small Prometheus."
        ),
        scope=Scope.BROKER,
        subject="Metrics",
        importance=Importance.LOW,
        rule=one_of("partition", "topic", "group"),
        dynamic=DynamicMode.CLUSTER_WIDE,
        ours=True,
    ),
    Setting(
        name=METRICS_SERIES_MAX,
        type=ConfigType.INT,
        default=100_000,
        documentation=(
            "How many series one scrape has at most. What is left out is counted in "
            "`anabranch_metrics_series_left_out`."
        ),
        scope=Scope.BROKER,
        subject="Metrics",
        importance=Importance.LOW,
        rule=at_least(1),
        dynamic=DynamicMode.CLUSTER_WIDE,
        ours=True,
    ),
)
