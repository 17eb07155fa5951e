"""`anabranch configs alter`: change settings, with a look before."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.completion.live_names import complete_config_names, complete_config_pairs
from anabranch.cli.configs.scope_options import ScopeFlags, scope_options
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

if TYPE_CHECKING:
    from anabranch.cli.configs.resources import Cluster, Entry, Resource


@click.command(
    "alter",
    short_help="Change settings of a broker, topic or group.",
    epilog=examples(
        """
anabranch configs alter --topic orders --set retention.ms=86400000
anabranch configs alter --group billing --set consumer.session.timeout.ms=30000 --dry-run
anabranch configs alter --broker 1 --unset log.retention.ms --yes
anabranch configs alter --broker-defaults --set message.max.bytes=2097152
"""
    ),
)
@scope_options
@click.option(
    "--set",
    "set_pairs",
    metavar="NAME=VALUE",
    multiple=True,
    shell_complete=complete_config_pairs,
    help="Set one; may be given again.",
)
@click.option(
    "--unset",
    "unset_names",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_config_names,
    help="Go back to what holds without it; may be given again.",
)
@yes_option
@dry_run_option
@connection_options
@format_option
@debug_option
def alter(
    connection: Connection,
    output_format: str,
    scope: ScopeFlags,
    set_pairs: tuple[str, ...],
    unset_names: tuple[str, ...],
    is_confirmed: bool,
    is_dry_run: bool,
) -> None:
    """Change settings of a broker, a topic or a group; the others stay as they are.

    Shows BEFORE and AFTER, then asks; with --dry-run the broker checks the change and nothing
    happens. A broker takes only those settings that need no restart.
    """
    from anabranch.cli.configs import resources
    from anabranch.cli.configs.names import require_names

    changes: dict[str, str | None] = dict(key_value_pairs("--set", set_pairs))
    for name in unset_names:
        if name in changes:
            raise click.UsageError(f"--set and --unset both name {name!r}")
        changes[name] = None
    if not changes:
        raise click.UsageError("say what to change: --set NAME=VALUE or --unset NAME")
    if not scope.is_given:
        raise click.UsageError("say whose: --topic, --group, --broker or --broker-defaults")
    cluster, resource = scope.open(connection)
    entries = resources.describe(cluster, resource)
    require_names(resource, entries, changes, f"The settings of {resource} were not changed")
    # The broker's own check comes before the question, so that nobody agrees to what it refuses.
    resources.alter(cluster, resource, changes, is_dry_run=True)
    if output_format != "json":
        _write_table(entries, changes)
    if not is_dry_run:
        if not is_confirmed:
            confirm(f"Change {counted(len(changes), 'setting')} of {resource}?")
        resources.alter(cluster, resource, changes, is_dry_run=False)
    _report(cluster, resource, entries, changes, output_format, is_dry_run=is_dry_run)


def _write_table(entries: "dict[str, Entry]", changes: dict[str, str | None]) -> None:
    from anabranch.cli.configs.words import HIDDEN

    rows = []
    for name, value in changes.items():
        entry = entries.get(name)
        after = "(not set)" if value is None else value
        if entry is not None and entry.is_sensitive and value is not None:
            after = HIDDEN
        rows.append((name, None if entry is None else entry.shown_value, after))
    write_table(("NAME", "BEFORE", "AFTER"), rows)


def _report(
    cluster: "Cluster",
    resource: "Resource",
    before: "dict[str, Entry]",
    changes: dict[str, str | None],
    output_format: str,
    *,
    is_dry_run: bool,
) -> None:
    """Tell what is there now, read from the broker again."""
    from anabranch.cli.configs.resources import describe
    from anabranch.cli.configs.words import HIDDEN

    if output_format == "json":
        after = {} if is_dry_run else describe(cluster, resource)

        def shown(name: str) -> Any:
            entry = before.get(name)
            if is_dry_run:
                is_secret = entry is not None and entry.is_sensitive
                return HIDDEN if is_secret and changes[name] is not None else changes[name]
            return after[name].shown_value if name in after else None

        write_json(
            [
                {
                    "resource_type": resource.scope.value,
                    "resource": resource.name,
                    "name": name,
                    "before": before[name].shown_value if name in before else None,
                    "after": shown(name),
                    "status": "valid" if is_dry_run else "changed",
                }
                for name in changes
            ]
        )
    elif is_dry_run:
        note("Nothing was changed (--dry-run); the broker accepts it.")
    else:
        note(f"Changed {counted(len(changes), 'setting')} of {resource}.")
