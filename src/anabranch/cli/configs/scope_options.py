"""Whose settings are meant: Kafka's flags --topic, --group, --broker and --broker-defaults."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from anabranch.cli.completion.live_names import complete_groups, complete_topics
from anabranch.cli.options import Connection

if TYPE_CHECKING:
    from anabranch.cli.configs.resources import Cluster, Resource

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFlags:
    """The flags as they were given, at most one of them."""

    topic: str | None
    group: str | None
    broker: int | None
    is_all_brokers: bool

    @property
    def is_given(self) -> bool:
        return self != ScopeFlags(topic=None, group=None, broker=None, is_all_brokers=False)

    def open(self, connection: Connection) -> "tuple[Cluster, Resource]":
        """The cluster, and what is meant in it; CliError when it is not there."""
        from anabranch.cli.cluster import require_topics
        from anabranch.cli.configs.resources import Resource, open_cluster
        from anabranch.cli.errors import CliError
        from anabranch.config.setting import Scope

        cluster = open_cluster(connection)
        if self.topic is not None:
            require_topics(cluster.metadata, [self.topic])
            return cluster, Resource(Scope.TOPIC, self.topic)
        if self.group is not None:
            return cluster, Resource(Scope.GROUP, self.group)
        if self.is_all_brokers:
            return cluster, Resource(Scope.BROKER, "")
        present = sorted(cluster.metadata.brokers)
        if self.broker is None:
            return cluster, Resource(Scope.BROKER, str(present[0]))
        if self.broker not in present:
            raise CliError(
                f"There is no broker {self.broker}",
                f"the cluster has {', '.join(map(str, present))}",
                "choose one of them, or leave --broker out",
            )
        return cluster, Resource(Scope.BROKER, str(self.broker))


def scope_options(command: Command) -> Command:
    """Accept the flags; the command gets `scope`."""
    options = (
        click.option(
            "--topic",
            metavar="TOPIC",
            shell_complete=complete_topics,
            help="The settings of a topic.",
        ),
        click.option(
            "--group",
            metavar="GROUP",
            shell_complete=complete_groups,
            help="The settings of a group, which need not exist yet.",
        ),
        click.option(
            "--broker",
            type=click.IntRange(min=0),
            metavar="ID",
            help="The settings of a broker.  [default: the first of the cluster]",
        ),
        click.option(
            "--broker-defaults",
            "is_all_brokers",
            is_flag=True,
            help="What was altered for all brokers.",
        ),
    )

    @functools.wraps(command)
    def with_scope(**values: Any) -> Any:
        scope = ScopeFlags(
            topic=values.pop("topic"),
            group=values.pop("group"),
            broker=values.pop("broker"),
            is_all_brokers=values.pop("is_all_brokers"),
        )
        given = [scope.topic, scope.group, scope.broker, scope.is_all_brokers or None]
        if sum(each is not None for each in given) > 1:
            raise click.UsageError(
                "--topic, --group, --broker and --broker-defaults exclude each other"
            )
        return command(scope=scope, **values)

    wrapped: Any = with_scope
    for option in reversed(options):
        wrapped = option(wrapped)
    result: Command = wrapped
    return result
