"""`anabranch topics configs`: show a topic's settings, or change them with a look before."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.completion.live_names import (
    complete_topic_config_names,
    complete_topic_config_pairs,
    complete_topics,
)
from anabranch.cli.configs.words import HIDDEN, SOURCES, TOPIC_SOURCE
from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CliError, kafka_error_of, refusal
from anabranch.cli.options import (
    Connection,
    confirm,
    connection_options,
    debug_option,
    dry_run_option,
    examples,
    format_option,
    key_value_pairs,
    yes_option,
)
from anabranch.cli.output import counted, note, write_json, write_table
from anabranch.cli.topics.refusals import topic_refusal
from anabranch.config.branch_settings import COMMIT_SOURCE_CONFIG, FIXED_CONFIGS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@click.command(
    "configs",
    epilog=examples(
        """
anabranch topics configs orders
anabranch topics configs orders --overrides
anabranch topics configs orders --set retention.ms=86400000 --set cleanup.policy=compact
anabranch topics configs orders --unset retention.ms --yes
"""
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--set",
    "set_pairs",
    metavar="NAME=VALUE",
    multiple=True,
    shell_complete=complete_topic_config_pairs,
    help="Set one; may be given again.",
)
@click.option(
    "--unset",
    "unset_names",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_topic_config_names,
    help="Go back to the broker's value; may be given again.",
)
@click.option("--overrides", "only_overrides", is_flag=True, help="Show the topic's own only.")
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def configs(
    connection: Connection,
    output_format: str,
    topic: str,
    set_pairs: tuple[str, ...],
    unset_names: tuple[str, ...],
    only_overrides: bool,
    is_confirmed: bool,
    is_dry_run: bool,
) -> None:
    """Show a topic's settings, or change them.

    SOURCE says where a value comes from: DYNAMIC_TOPIC_CONFIG was set for the topic, the others
    are the broker's. A branch topic shows the settings of its source, which hold for its records.
    A change shows BEFORE and AFTER, then asks; with --dry-run the broker checks it and changes
    nothing.
    """
    changes: dict[str, str | None] = dict(key_value_pairs("--set", set_pairs))
    for name in unset_names:
        if name in changes:
            raise click.UsageError(f"--set and --unset both name {name!r}")
        changes[name] = None
    admin, _ = open_admin(connection)
    entries = describe_topics(admin, connection, [topic])[topic]
    if changes:
        _change(admin, connection, topic, entries, changes, is_confirmed, is_dry_run, output_format)
    else:
        _show(topic, entries, only_overrides, output_format)


def topic_overrides(
    admin: "AdminClient", connection: Connection, names: list[str]
) -> dict[str, dict[str, str]]:
    """Per topic, the settings made for it, sorted by name."""
    return {
        topic: {
            name: HIDDEN if entry.is_sensitive else entry.value
            for name, entry in sorted(entries.items())
            if _is_own(name, entries)
        }
        for topic, entries in describe_topics(admin, connection, names).items()
    }


def _is_own(name: str, entries: dict[str, Any]) -> bool:
    """Whether a setting was made for the topic itself; a branch topic also shows its source's."""
    if SOURCES.get(entries[name].source) != TOPIC_SOURCE:
        return False
    is_branch_topic = any(fixed in entries for fixed in FIXED_CONFIGS)
    return not is_branch_topic or name in FIXED_CONFIGS or name == COMMIT_SOURCE_CONFIG


def describe_topics(
    admin: "AdminClient", connection: Connection, names: list[str]
) -> dict[str, dict[str, Any]]:
    """The settings of each topic as librdkafka tells them; CliError when the broker refuses."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    futures = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names],
        request_timeout=connection.timeout_s,
    )
    result: dict[str, dict[str, Any]] = {}
    for resource, future in futures.items():
        try:
            result[resource.name] = result_of(future, connection)
        except KafkaException as exception:
            raise refusal(
                f"Cannot read the settings of topic {resource.name!r}", kafka_error_of(exception)
            ) from exception
    return result


def _show(topic: str, entries: dict[str, Any], only_overrides: bool, output_format: str) -> None:
    rows = [
        {
            "topic": topic,
            "name": name,
            "value": _value_of(entry),
            "source": SOURCES.get(entry.source, "UNKNOWN"),
            "is_read_only": bool(entry.is_read_only),
            "is_sensitive": bool(entry.is_sensitive),
        }
        for name, entry in sorted(entries.items())
        if not only_overrides or _is_own(name, entries)
    ]
    if output_format == "json":
        write_json(rows)
    else:
        write_table(
            ("NAME", "VALUE", "SOURCE"),
            [(row["name"], row["value"], row["source"]) for row in rows],
        )


def _change(
    admin: "AdminClient",
    connection: Connection,
    topic: str,
    entries: dict[str, Any],
    changes: dict[str, str | None],
    is_confirmed: bool,
    is_dry_run: bool,
    output_format: str,
) -> None:
    _require_names(topic, entries, changes)
    before = {name: _value_of(entries[name]) for name in changes}
    # The broker's own check comes before the question, so that nobody agrees to what it refuses.
    _alter(admin, connection, topic, changes, is_dry_run=True)
    if output_format != "json":
        after = {
            name: "(the broker's value)" if value is None else value
            for name, value in changes.items()
        }
        write_table(
            ("NAME", "BEFORE", "AFTER"), [(name, before[name], after[name]) for name in changes]
        )
    if not is_dry_run:
        if not is_confirmed:
            confirm(f"Change topic {topic!r}?")
        _alter(admin, connection, topic, changes, is_dry_run=False)
        entries = describe_topics(admin, connection, [topic])[topic]
    if output_format == "json":
        write_json(
            [
                {
                    "topic": topic,
                    "name": name,
                    "before": before[name],
                    "after": changes[name] if is_dry_run else _value_of(entries[name]),
                    "status": "valid" if is_dry_run else "changed",
                }
                for name in changes
            ]
        )
    elif is_dry_run:
        note("Nothing was changed (--dry-run); the broker accepts it.")
    else:
        note(f"Changed {counted(len(changes), 'setting')} of topic {topic!r}.")


def _require_names(topic: str, entries: dict[str, Any], changes: dict[str, str | None]) -> None:
    for name in changes:
        if name in entries:
            continue
        from difflib import get_close_matches

        near = get_close_matches(name, entries, n=1)
        raise CliError(
            f"Topic {topic!r} was not changed",
            f"there is no topic setting {name!r}",
            f"did you mean {near[0]!r}?" if near else f"see `anabranch topics configs {topic}`",
        )


def _alter(
    admin: "AdminClient",
    connection: Connection,
    topic: str,
    changes: dict[str, str | None],
    *,
    is_dry_run: bool,
) -> None:
    from confluent_kafka import KafkaException

    try:
        alter_topic(admin, connection, topic, changes, is_dry_run=is_dry_run)
    except KafkaException as exception:
        raise topic_refusal(
            f"Topic {topic!r} was not changed", kafka_error_of(exception)
        ) from exception


def alter_topic(
    admin: "AdminClient",
    connection: Connection,
    topic: str,
    changes: Mapping[str, str | None],
    *,
    is_dry_run: bool,
) -> None:
    """Set what has a value and unset the rest; KafkaException when the broker refuses."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(
                name,
                value,
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for name, value in changes.items()
        ],
    )
    futures = admin.incremental_alter_configs(
        [resource], validate_only=is_dry_run, request_timeout=connection.timeout_s
    )
    for future in futures.values():
        result_of(future, connection)


def _value_of(entry: Any) -> str | None:
    value: str | None = HIDDEN if entry.is_sensitive else entry.value
    return value
