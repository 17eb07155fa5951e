"""`anabranch configs explain`: what a setting does, without a broker."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.completion.live_names import complete_config_names
from anabranch.cli.options import debug_option, examples, format_option
from anabranch.cli.output import write_json, write_table

if TYPE_CHECKING:
    from anabranch.config.setting import Setting


@click.command(
    "explain",
    short_help="Say what settings do; needs no broker.",
    epilog=examples(
        """
anabranch configs explain retention.ms
anabranch configs explain retention --type topic
anabranch configs explain --format json | jq -r '.[].name'
"""
    ),
)
@click.argument("words", metavar="[NAME]...", nargs=-1, shell_complete=complete_config_names)
@click.option(
    "--type",
    "types",
    type=click.Choice(("broker", "topic", "group")),
    multiple=True,
    help="Only settings of this type of resource; may be given again.",
)
@format_option
@debug_option
def explain(output_format: str, words: tuple[str, ...], types: tuple[str, ...]) -> None:
    """Say what settings do: type, default, valid values, and whether they need a restart.

    NAME is a setting, or a part of its name, which finds all that have it. Without NAME it is all
    settings. CHANGE is when one can be changed with `anabranch configs alter`: `any-time`, while
    the broker runs (`per-broker` or `cluster-wide`), or not: `at-creation` of the topic alone, or
    in the properties file and with a `restart`.
    """
    found = _found(words, types)
    if output_format == "json":
        write_json([_document(setting) for setting in found])
        return
    write_table(
        ("NAME", "RESOURCE", "TYPE", "DEFAULT", "VALID-VALUES", "CHANGE", "DOCUMENTATION"),
        [tuple(_cells(setting).values()) for setting in found],
    )


def _found(words: tuple[str, ...], types: tuple[str, ...]) -> "list[Setting]":
    from anabranch.cli.configs.names import unknown_name
    from anabranch.config.definitions import TABLES

    every = [
        setting
        for scope, table in TABLES.items()
        if not types or scope.value in types
        for setting in sorted(table.values(), key=lambda setting: setting.name)
        if not setting.internal
    ]
    if not words:
        return every
    found: list[Setting] = []
    for word in words:
        exact = [one for one in every if word == one.name or word in one.aliases]
        matching = exact or [one for one in every if word.lower() in one.name]
        if not matching:
            names = [one.name for one in every]
            raise unknown_name(word, names, f"Cannot explain {word!r}", None)
        found += [one for one in matching if one not in found]
    return found


def _cells(setting: "Setting") -> dict[str, Any]:
    from anabranch.config.setting import DynamicMode, Scope, render

    is_fixed = setting.dynamic is DynamicMode.READ_ONLY
    is_of_broker = setting.scope is Scope.BROKER
    change = setting.dynamic.value if is_of_broker else "any-time"
    if is_fixed:
        change = "restart" if is_of_broker else "at-creation"
    return {
        "name": setting.name,
        "resource_type": setting.scope.value,
        "type": setting.type.name,
        "default": render(setting.default),
        "valid_values": None if setting.rule is None else setting.rule.text,
        "change": change,
        "documentation": setting.documentation,
    }


def _document(setting: "Setting") -> dict[str, Any]:
    from anabranch.config.load import environment_name
    from anabranch.config.setting import Scope

    return _cells(setting) | {
        "importance": setting.importance.value,
        "aliases": list(setting.aliases),
        "broker_settings": [synonym.name for synonym in setting.synonyms],
        "environment": environment_name(setting.name) if setting.scope is Scope.BROKER else None,
        "is_of_kafka": not setting.ours,
    }
