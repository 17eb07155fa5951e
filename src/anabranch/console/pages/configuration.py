"""Configuration: every setting of the broker, its value, where that came from, and its words."""

from dataclasses import dataclass

from starlette.requests import Request

from anabranch.config.definitions import BROKER_SETTINGS
from anabranch.config.layers import effective_broker_value
from anabranch.config.setting import ConfigType, Setting
from anabranch.config.settings import DEFAULT_ORIGIN
from anabranch.console.frame import Console, Page, page_route
from anabranch.console.setting_text import changed_only, documentation_cell, value_cell
from anabranch.console.tables import Column, make_table

_HIDDEN = "[hidden]"


@dataclass(frozen=True, slots=True)
class SettingRow:
    setting: Setting
    value: str
    source: str


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(entry) for entry in value)
    return "" if value is None else str(value)


def _row(console: Console, name: str, setting: Setting) -> SettingRow:
    broker = console.broker
    dynamic = broker.dynamic_configs
    if name in dynamic.per_broker:
        source = "altered for this broker"
    elif name in dynamic.cluster_default:
        source = "altered for the cluster"
    else:
        source = str(broker.settings.source(name))
    value = effective_broker_value(broker.settings, dynamic, name)
    is_secret = setting.type is ConfigType.PASSWORD and value is not None
    return SettingRow(setting, _HIDDEN if is_secret else _text(value), source)


COLUMNS: list[Column[SettingRow]] = [
    Column("name", "Name", lambda row: row.setting.name, is_searched=True),
    Column(
        "value",
        "Value",
        lambda row: row.value,
        lambda row: value_cell(row.value),
        hint="What counts now.",
        is_searched=True,
    ),
    Column(
        "source",
        "From",
        lambda row: row.source,
        hint="Where the value comes from; what clients altered counts before the broker's start.",
        is_searched=True,
    ),
    Column(
        "default",
        "Default",
        lambda row: _text(row.setting.default),
        lambda row: value_cell(_text(row.setting.default)),
    ),
    Column("subject", "Subject", lambda row: row.setting.subject, is_searched=True),
    Column(
        "documentation",
        "Meaning",
        lambda row: row.setting.documentation,
        lambda row: documentation_cell(row.setting.documentation),
        is_searched=True,
    ),
]


async def make(request: Request, console: Console) -> Page:
    rows = [
        _row(console, name, setting)
        for name, setting in sorted(BROKER_SETTINGS.items())
        if not setting.internal
    ]
    is_changed_only, address = changed_only(request.query_params)
    shown = [row for row in rows if row.source != str(DEFAULT_ORIGIN)] if is_changed_only else rows
    table = make_table(
        "settings",
        COLUMNS,
        shown,
        request.query_params,
        empty="Every setting has its default.",
        size=100,
    )
    return Page(
        template="configuration.html",
        title="Configuration",
        tables=[table],
        values={"is_changed_only": is_changed_only, "changed_address": address},
    )


ROUTES = [page_route("/configuration", make)]
