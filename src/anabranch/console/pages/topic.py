"""One topic: its messages, partitions, groups, configuration and branches."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from markupsafe import Markup
from starlette.requests import Request

from anabranch.broker.branch_topics import shown_configs
from anabranch.broker.partition import Partition
from anabranch.broker.survey import GroupSummary
from anabranch.broker.topics import Topic
from anabranch.config.definitions import TOPIC_SETTINGS
from anabranch.config.describe import ConfigRow, describe_branch_topic, describe_topic
from anabranch.config.layers import ConfigSource, topic_defaults
from anabranch.config.setting import render
from anabranch.console import words
from anabranch.console.frame import Console, Page, not_found, page_route
from anabranch.console.pages.messages import make_messages
from anabranch.console.pages.topic_branches import make_branches
from anabranch.console.setting_text import changed_only, documentation_cell, value_cell
from anabranch.console.tables import Column, make_table
from anabranch.console.topic_lags import TopicLag
from anabranch.model.topics import format_topic_id

MakeTab = Callable[[Request, Console, Topic, Page], Awaitable[Page]]

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "this topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "altered for this broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "altered for the cluster",
    ConfigSource.STATIC_BROKER_CONFIG: "the broker's start",
    ConfigSource.DEFAULT_CONFIG: "default",
}


# Partitions -------------------------------------------------------------------------------------


def newest_ms(partition: Partition) -> int | None:
    newest = partition.log.segments[-1].max_timestamp
    return newest if newest >= 0 else None


def _failed_cell(partition: Partition) -> Markup:
    failed = partition.log.failed
    if failed is None:
        return words.state("ok")
    return Markup('<span class="state error" title="{}">failed</span>').format(failed)


PARTITION_COLUMNS: list[Column[Partition]] = [
    Column("partition", "Partition", lambda one: one.index, is_number=True),
    Column(
        "start_offset",
        "Start",
        lambda one: one.log.log_start_offset,
        is_number=True,
        hint="The first offset that can be read.",
    ),
    Column(
        "end_offset",
        "End",
        lambda one: one.log.high_watermark,
        is_number=True,
        hint="The offset that the next record gets.",
    ),
    Column(
        "stable_offset",
        "Last stable offset",
        lambda one: one.log.last_stable_offset,
        is_number=True,
        hint="Readers of committed records read up to here: no transaction is open below it.",
    ),
    Column(
        "open_transactions",
        "Open transactions",
        lambda one: len(one.log.transactions.open),
        is_number=True,
        hint="Transactions that have records here and are not decided.",
    ),
    Column(
        "size_bytes",
        "Size",
        lambda one: one.log.size_bytes,
        lambda one: words.size(one.log.size_bytes),
        is_number=True,
        hint="Bytes of the records on disk.",
    ),
    Column(
        "segments",
        "Segments",
        lambda one: len(one.log.segments),
        is_number=True,
        hint="Files that the records are in; retention removes whole ones.",
    ),
    Column(
        "leader_epoch",
        "Leader epoch",
        lambda one: one.log.leader_epoch,
        is_number=True,
        hint="Rises with every start of the broker.",
    ),
    Column(
        "producers",
        "Producers",
        lambda one: len(one.log.producer_states.entries),
        is_number=True,
        hint="Idempotent and transactional producers that the partition remembers.",
    ),
    Column(
        "last_write_ms",
        "Newest record",
        newest_ms,
        is_number=True,
        hint="The largest timestamp that was written since the broker started.",
    ),
    Column(
        "log",
        "Log",
        lambda one: one.log.failed or "ok",
        _failed_cell,
        hint="A log that could not be written or synced takes no more until it is recovered.",
    ),
]


async def _partitions(request: Request, console: Console, topic: Topic, page: Page) -> Page:
    now_ms = console.broker.now_ms()
    columns = [
        column
        if column.key != "last_write_ms"
        else Column(
            column.key,
            column.title,
            column.value,
            lambda one: words.time(newest_ms(one), now_ms),
            is_number=True,
            hint=column.hint,
        )
        for column in PARTITION_COLUMNS
    ]
    if topic.source is not None:
        # Everything but the numbers of partitions is the source's; that is in its own tab.
        raise not_found("A branch topic has no partitions of its own. See its branches.")
    table = make_table("partitions", columns, topic.partitions, request.query_params)
    return _tab(page, "topic_partitions.html", table)


# Groups -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupRow:
    group: GroupSummary
    lag: TopicLag


GROUP_COLUMNS: list[Column[GroupRow]] = [
    Column(
        "group",
        "Group",
        lambda row: row.group.group_id,
        lambda row: words.link(row.group.group_id, "groups", row.group.group_id),
        is_searched=True,
    ),
    Column("state", "State", lambda row: row.group.state, lambda row: words.state(row.group.state)),
    Column("members", "Members", lambda row: row.group.members, is_number=True),
    Column(
        "partitions",
        "Partitions",
        lambda row: row.lag.partitions,
        is_number=True,
        hint="Partitions of this topic that the group has committed on, or is assigned.",
    ),
    Column(
        "lag_records",
        "Lag",
        lambda row: row.lag.lag_records,
        is_number=True,
        hint="Records of this topic that the group has yet to read.",
    ),
    Column(
        "lag_ms",
        "Lag in time",
        lambda row: row.lag.lag_ms,
        lambda row: words.duration(row.lag.lag_ms),
        is_number=True,
        hint="How long ago the oldest of these was written.",
    ),
]


async def _groups(request: Request, console: Console, topic: Topic, page: Page) -> Page:
    survey = await console.broker.surveyor.recent()
    lags = (await console.topic_lags.of(survey)).get(topic.name, {})
    rows = [
        GroupRow(survey.groups[group_id], lag)
        for group_id, lag in lags.items()
        if group_id in survey.groups
    ]
    table = make_table(
        "groups",
        GROUP_COLUMNS,
        rows,
        request.query_params,
        sort="-lag_records",
        empty="No group reads this topic.",
    )
    return _tab(page, "topic_groups.html", table)


# Configuration ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicSettingRow:
    config: ConfigRow
    default: str

    @property
    def source(self) -> str:
        return _SOURCES.get(self.config.source, self.config.source.name)


CONFIG_COLUMNS: list[Column[TopicSettingRow]] = [
    Column("name", "Name", lambda row: row.config.name, is_searched=True),
    Column(
        "value",
        "Value",
        lambda row: row.config.value,
        lambda row: value_cell(row.config.value),
        is_searched=True,
    ),
    Column(
        "source",
        "From",
        lambda row: row.source,
        hint="Where the value comes from: the topic's own counts before the broker's.",
        is_searched=True,
    ),
    Column(
        "default",
        "Without its own",
        lambda row: row.default,
        lambda row: value_cell(row.default),
        hint="What a topic has that sets nothing for itself.",
    ),
    Column(
        "documentation",
        "Meaning",
        lambda row: row.config.documentation,
        lambda row: documentation_cell(row.config.documentation),
        is_searched=True,
    ),
]


async def _configuration(request: Request, console: Console, topic: Topic, page: Page) -> Page:
    broker = console.broker
    if topic.source is not None:
        found = describe_branch_topic(broker.settings, broker.dynamic_configs, shown_configs(topic))
    else:
        found = describe_topic(broker.settings, broker.dynamic_configs, topic.configs)
    defaults = topic_defaults(broker.settings, broker.dynamic_configs)
    rows = [
        TopicSettingRow(row, render(defaults.get(row.name)) or "")
        for row in sorted(found, key=lambda row: row.name)
        if row.name in TOPIC_SETTINGS
    ]
    wanted, address = changed_only(request.query_params)
    shown = [row for row in rows if not wanted or row.config.source != ConfigSource.DEFAULT_CONFIG]
    table = make_table(
        "configuration",
        CONFIG_COLUMNS,
        shown,
        request.query_params,
        empty="This topic sets nothing for itself, and the broker nothing for topics.",
        size=100,
    )
    return _tab(
        page,
        "topic_configuration.html",
        table,
        {"is_changed_only": wanted, "changed_address": address},
    )


# The page ---------------------------------------------------------------------------------------


def _tab(page: Page, template: str, table: object, values: dict[str, object] | None = None) -> Page:
    return Page(
        template=template,
        title=page.title,
        crumbs=page.crumbs,
        tables=[table],  # type: ignore[list-item]
        values={**page.values, **(values or {})},
    )


_TABS: dict[str, tuple[str, MakeTab]] = {
    "messages": ("Messages", make_messages),
    "partitions": ("Partitions", _partitions),
    "groups": ("Groups", _groups),
    "configuration": ("Configuration", _configuration),
    "branches": ("Branches", make_branches),
}


def _tabs_of(topic: Topic) -> list[str]:
    hidden = set()
    if topic.source is not None:
        hidden.add("partitions")
    elif not topic.branch_topics:
        hidden.add("branches")
    return [name for name in _TABS if name not in hidden]


async def make(request: Request, console: Console) -> Page:
    name = request.path_params["topic"]
    topic = console.broker.topics.get(name)
    if topic is None:
        raise not_found(f"There is no topic {name}. It may have been deleted.")
    tabs = _tabs_of(topic)
    wanted = request.query_params.get("tab", tabs[0])
    if wanted not in tabs:
        raise not_found(f"The page of {name} has no tab “{wanted}”.")
    survey = await console.broker.surveyor.recent()
    page = Page(
        template="",
        title=name,
        crumbs=[("Topics", "/topics")],
        values={
            "topic": topic,
            "topic_id": format_topic_id(topic.topic_id),
            # None for a topic that was made since.
            "summary": survey.topics.get(name),
            "tab": wanted,
            "tabs": [(key, _TABS[key][0]) for key in tabs],
        },
    )
    return await _TABS[wanted][1](request, console, topic, page)


ROUTES = [page_route("/topics/{topic}", make)]
