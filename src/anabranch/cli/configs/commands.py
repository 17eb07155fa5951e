"""`anabranch configs`: the family, with `list` and `describe`; the others are beside it."""

from typing import TYPE_CHECKING, Any

import click

from anabranch.cli.completion.live_names import complete_config_names
from anabranch.cli.configs.alter import alter
from anabranch.cli.configs.explain import explain
from anabranch.cli.configs.scope_options import ScopeFlags, scope_options
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import write_json, write_table

if TYPE_CHECKING:
    from anabranch.cli.configs.resources import Cluster, Entry, Resource


@click.group(
    epilog=examples(
        """
anabranch configs list
anabranch configs describe --topic orders
anabranch configs explain retention.ms
anabranch configs alter --topic orders --set retention.ms=86400000
"""
    ),
)
@debug_option
def configs() -> None:
    """See, explain and change the settings of brokers, topics and groups.

    Works with Apache Kafka as well. SOURCE says where a value comes from, in Kafka's words:
    DYNAMIC_TOPIC_CONFIG and DYNAMIC_GROUP_CONFIG were set for the topic or group,
    DYNAMIC_BROKER_CONFIG for the broker while it ran, DYNAMIC_DEFAULT_BROKER_CONFIG for all
    brokers, STATIC_BROKER_CONFIG in its file, environment or command line, and DEFAULT_CONFIG
    nowhere. Secrets are shown as [hidden].
    """


configs.add_command(alter)
configs.add_command(explain)


@configs.command(
    "describe",
    short_help="Show the settings of a broker, topic or group.",
    epilog=examples(
        """
anabranch configs describe
anabranch configs describe --topic orders --overrides
anabranch configs describe --group billing --docs
anabranch configs describe num.partitions log.retention.hours --format json
"""
    ),
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_config_names)
@scope_options
@click.option("--overrides", "only_overrides", is_flag=True, help="Only what was set.")
@click.option("--docs", "with_docs", is_flag=True, help="Add what each setting does.")
@connection_options
@format_option
@debug_option
def describe_configs(
    connection: Connection,
    output_format: str,
    names: tuple[str, ...],
    scope: ScopeFlags,
    only_overrides: bool,
    with_docs: bool,
) -> None:
    """Show the settings of a broker, a topic or a group: value, source and default.

    Without --topic, --group and --broker it is the broker that answers. With NAME, only these.
    """
    from anabranch.cli.configs.names import require_names
    from anabranch.cli.configs.resources import describe, own_entries

    cluster, resource = scope.open(connection)
    entries = describe(cluster, resource)
    require_names(resource, entries, names, f"Cannot show a setting of {resource}")
    shown = own_entries(resource, entries) if only_overrides else entries.values()
    chosen = [entry for entry in shown if not names or entry.name in names]
    if output_format == "json":
        write_json([_document(resource, entry) for entry in chosen])
        return
    columns = ["NAME", "VALUE", "SOURCE", "DEFAULT", *(["DOCUMENTATION"] if with_docs else [])]
    write_table(
        columns,
        [
            (
                *(entry.name, entry.shown_value, entry.source, entry.default),
                *((entry.documentation,) if with_docs else ()),
            )
            for entry in chosen
        ],
    )


def _document(resource: "Resource", entry: "Entry") -> dict[str, Any]:
    return {
        "resource_type": resource.scope.value,
        "resource": resource.name,
        "name": entry.name,
        "value": entry.shown_value,
        "source": entry.source,
        "default": entry.default,
        "type": entry.type,
        "is_read_only": entry.is_read_only,
        "is_sensitive": entry.is_sensitive,
        "documentation": entry.documentation,
    }


@configs.command(
    "list",
    short_help="List what is set, on all brokers, topics and groups.",
    epilog=examples(
        """
anabranch configs list
anabranch configs list --type topic
anabranch configs list --format tsv | cut -f 2-4
"""
    ),
)
@click.option(
    "--type",
    "types",
    type=click.Choice(("broker", "topic", "group")),
    multiple=True,
    help="Only of resources of this type; may be given again.",
)
@connection_options
@format_option
@debug_option
def list_configs(connection: Connection, output_format: str, types: tuple[str, ...]) -> None:
    """List every setting that somebody has set: on brokers, topics and groups.

    What is not in the list has its default, see `anabranch configs explain`.
    """
    from anabranch.cli.configs.resources import open_cluster

    rows = _set_entries(open_cluster(connection), types or ("broker", "topic", "group"))
    if output_format == "json":
        write_json([_document(resource, entry) for resource, entry in rows])
        return
    write_table(
        ("TYPE", "RESOURCE", "NAME", "VALUE", "SOURCE"),
        [
            (resource.scope.value, resource.name, entry.name, entry.shown_value, entry.source)
            for resource, entry in rows
        ],
    )


def _set_entries(cluster: "Cluster", types: tuple[str, ...]) -> "list[tuple[Resource, Entry]]":
    from anabranch.cli.configs.resources import describe_all, find_resources, own_entries
    from anabranch.cli.progress import progress_bar

    resources = find_resources(cluster, types)
    with progress_bar("Reading settings", len(resources)) as advance:
        found = describe_all(cluster, resources, advance)
    return [
        (resource, entry)
        for resource in resources
        for entry in own_entries(resource, found[resource])
    ]
