"""What groups set for themselves, and the values that count for each group.

Configs of a group are kept under its name whether it exists or not, as in Kafka. A value that was
within the broker's bounds when it was set and is not any more counts as the nearest bound.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.broker.topics import storage_errors
from anabranch.config.consumer_group_bounds import IntOf, clamp
from anabranch.config.consumer_group_settings import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    HEARTBEAT_RATE_BUDGET,
    SESSION_TIMEOUT,
    BoundedSetting,
)
from anabranch.config.cooperative_settings import DELIVERY_LIMIT, DISPOSITION, DLQ_TOPIC, TXN_ORDER
from anabranch.config.definitions import GROUP_SETTINGS
from anabranch.config.setting import InvalidValueError, parse
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.engine.metadata_store import MetadataStore
from anabranch.observe import logs

_COOPERATIVE_FIELDS = {
    DELIVERY_LIMIT: "delivery_limit",
    DISPOSITION: "disposition",
    DLQ_TOPIC: "dlq_topic",
    TXN_ORDER: "txn_order",
}

EVERY_GROUP = ""
"""What `on_change` is called with when a setting of the broker changed."""


@dataclass(frozen=True, slots=True)
class GroupConfigValues:
    """The values that count for one group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    heartbeat_rate_budget: int


class GroupConfigs:
    """The configs of all groups that have some."""

    def __init__(self, store: MetadataStore, int_of: IntOf) -> None:
        self.on_change: Callable[[str], None] | None = None
        self._store = store
        self._int_of = int_of
        self._configs: dict[str, Mapping[str, str]] = {}
        for group_id, configs in store.group_configs().items():
            if usable := _usable(group_id, configs):
                self._configs[group_id] = usable
        self._compute_all()

    def group_ids(self) -> list[str]:
        """The groups that have configs of their own, whether they exist or not."""
        return sorted(self._configs)

    def configs_of(self, group_id: str) -> Mapping[str, str]:
        """What a group sets for itself, as the client spelled it."""
        return self._configs.get(group_id, {})

    def effective(self, group_id: str) -> GroupConfigValues:
        """The values that count for a group now."""
        return self._effective.get(group_id, self._default)

    def set(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace what a group sets for itself; `configs` was checked."""
        with storage_errors(f"The configs of the group '{group_id}' could not be written"):
            self._store.set_group_configs(group_id, configs)
        if configs:
            self._configs[group_id] = dict(configs)
            self._effective[group_id] = self._compute(group_id, configs)
        else:
            self._configs.pop(group_id, None)
            self._effective.pop(group_id, None)
        if self.on_change is not None:
            self.on_change(group_id)

    def broker_changed(self) -> None:
        """Settings of the broker were altered, so those behind the groups' may be others."""
        self._compute_all()
        if self.on_change is not None:
            self.on_change(EVERY_GROUP)

    def _compute_all(self) -> None:
        self._default = self._compute(EVERY_GROUP, {})
        self._effective = {
            group_id: self._compute(group_id, configs)
            for group_id, configs in self._configs.items()
        }

    def _compute(self, group_id: str, configs: Mapping[str, str]) -> GroupConfigValues:
        def value(name: str) -> int:
            own = configs.get(name.removeprefix("group."))
            return self._int_of(name) if own is None else int(own)

        def within(bounded: BoundedSetting) -> int:
            wanted = value(bounded.name)
            counting = clamp(wanted, bounded, self._int_of)
            if counting != wanted:
                name = bounded.group_name if group_id else bounded.name
                _warn_of_bounds(group_id, name, wanted, counting)
            return counting

        session_ms, heartbeat_ms = within(SESSION_TIMEOUT), within(HEARTBEAT_INTERVAL)
        if heartbeat_ms >= session_ms:
            # Bounds that overlap can bring the two into this order, and every member of the group
            # would be taken out of it between two heartbeats.
            safe_ms = max(1, session_ms // 3)
            _warn_of_bounds(group_id, HEARTBEAT_INTERVAL.group_name, heartbeat_ms, safe_ms)
            heartbeat_ms = safe_ms
        return GroupConfigValues(
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=heartbeat_ms,
            assignment_interval_ms=within(ASSIGNMENT_INTERVAL),
            heartbeat_rate_budget=value(HEARTBEAT_RATE_BUDGET),
        )


def group_settings_over(
    settings: CooperativeSettings, configs: Mapping[str, str]
) -> CooperativeSettings:
    """The settings of individual commits of a group that sets these configs for itself."""
    own: dict[str, Any] = {
        field: parse(GROUP_SETTINGS[name], configs[name])
        for name, field in _COOPERATIVE_FIELDS.items()
        if name in configs
    }
    return dataclasses.replace(settings, **own) if own else settings


def _usable(group_id: str, configs: Mapping[str, str]) -> dict[str, str]:
    """The stored configs without those that only another version of the broker took."""
    usable = {}
    for name, text in configs.items():
        setting = GROUP_SETTINGS.get(name)
        try:
            if setting is not None:
                parse(setting, text)
                usable[name] = text
                continue
            reason = "there is no such config"
        except InvalidValueError as error:
            reason = error.reason
        logs.warning("group.config.dropped", group=group_id, config=name, reason=reason)
    return usable


def _warn_of_bounds(group_id: str, name: str, value: int, counting: int) -> None:
    logs.warning("group.config.capped", group=group_id, config=name, value=value, counts=counting)
