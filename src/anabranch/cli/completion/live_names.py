"""Names that exist right now, for the shell to offer: topics, groups, members, and so on.

Whoever presses Tab waits, so the broker has a second in all, and every failure means that there is
nothing to offer. All imports that cost something are inside, because commands import this module to
name their completions, and help must stay quick.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from anabranch.cli.options import Connection

PATIENCE_S: Final = 1.0

Question = Callable[[Connection], Iterable[str]]


def complete_topics(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Topics; internal ones only when the name begins as theirs do."""
    names = _asked(context, _topics)
    if not incomplete.startswith("_"):
        names = [name for name in names if not name.startswith("_")]
    return _offered(context, parameter, names, incomplete)


def complete_groups(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _offered(context, parameter, _asked(context, _groups), incomplete)


def complete_members(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Members of the groups that the line names, or of all."""
    # Behind a flag whose value is still missing, click has not yet sorted out the arguments.
    wanted = tuple(context.params.get("names") or context.args)

    def members(connection: Connection) -> Iterable[str]:
        return _members(connection, wanted)

    return _offered(context, parameter, _asked(context, members), incomplete)


def complete_transactional_ids(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _offered(context, parameter, _asked(context, _transactional_ids), incomplete)


def complete_config_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Settings of what the line is about, with what they do."""
    return _settings(_scope_words(context), incomplete, suffix="")


def complete_config_pairs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The same as `name=`, to be followed by a value."""
    return _settings(_scope_words(context), incomplete, suffix="=")


def complete_topic_config_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _settings(("topic",), incomplete, suffix="")


def complete_topic_config_pairs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _settings(("topic",), incomplete, suffix="=")


def complete_broker_config_pairs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _settings(("broker",), incomplete, suffix="=")


# Names that need no broker ----------------------------------------------------------------------


def _scope_words(context: click.Context) -> tuple[str, ...]:
    """Whose settings a line of `anabranch configs` means."""
    given = context.params
    if given.get("types"):
        return tuple(given["types"])
    if context.info_name == "explain":
        return ("broker", "topic", "group")
    return next(((word,) for word in ("topic", "group") if given.get(word)), ("broker",))


def _settings(words: tuple[str, ...], incomplete: str, *, suffix: str) -> list[CompletionItem]:
    from anabranch.config.definitions import TABLES

    found = {
        setting.name: setting.documentation
        for scope, table in TABLES.items()
        if scope.value in words
        for setting in table.values()
        if setting.name.startswith(incomplete) and not setting.internal
    }
    return [
        CompletionItem(name + suffix, help=documentation.partition(". ")[0])
        for name, documentation in sorted(found.items())
    ]


# Names that a broker has ------------------------------------------------------------------------


def _offered(
    context: click.Context, parameter: click.Parameter, names: Iterable[str], incomplete: str
) -> list[CompletionItem]:
    """Those that fit, without what the line names already."""
    given = context.params.get(parameter.name or "")
    taken = set(given) if isinstance(given, tuple | list) else set()
    return [
        CompletionItem(name) for name in sorted(set(names) - taken) if name.startswith(incomplete)
    ]


def _asked(context: click.Context, question: Question) -> Sequence[str]:
    """The answer, or nothing when there is none in time."""
    from pathlib import Path

    given = context.params
    path = given.get("command_config")
    connection = Connection(
        bootstrap_server=given.get("bootstrap_server"),
        command_config=None if path is None else Path(path),
        timeout_s=PATIENCE_S,
        is_debug=False,
    )
    answers: list[str] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # whatever it is, the shell could not show it
            answers.extend(question(connection))

    asking = threading.Thread(target=ask, name="live-names", daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return [] if asking.is_alive() else answers


def _topics(connection: Connection) -> Iterable[str]:
    if not _can_ask(connection):
        from anabranch.cli.connection import open_admin

        return list(open_admin(connection)[1].topics)
    return [topic.name for topic in _metadata(connection).topics if topic.name]


def _groups(connection: Connection) -> Iterable[str]:
    if not _can_ask(connection):
        from anabranch.cli.connection import open_admin
        from anabranch.cli.groups.lookup import list_groups

        admin, _ = open_admin(connection)
        return [each.group for each in list_groups(admin, connection, set(), set())[0]]
    from anabranch.wire.messages.list_groups import LIST_GROUPS, ListGroupsRequest

    return [
        each.group_id
        for answer in _every_broker(connection, LIST_GROUPS, ListGroupsRequest())
        for each in answer.groups
    ]


def _members(connection: Connection, groups: Sequence[str]) -> Iterable[str]:
    from anabranch.cli.connection import open_admin
    from anabranch.cli.groups.lookup import describe_groups

    names = list(groups or _groups(connection))
    admin, _ = open_admin(connection)
    described = describe_groups(admin, connection, names)
    return [member.consumer_id for group in described.values() for member in group.members]


def _transactional_ids(connection: Connection) -> Iterable[str]:
    from anabranch.wire.messages.list_transactions import (
        LIST_TRANSACTIONS,
        ListTransactionsRequest,
    )

    return [
        each.transactional_id
        for answer in _every_broker(connection, LIST_TRANSACTIONS, ListTransactionsRequest())
        for each in answer.transaction_states
    ]


def _can_ask(connection: Connection) -> bool:
    from anabranch.cli.groups.consumer_details import can_ask

    return can_ask(connection)


def _metadata(connection: Connection) -> Any:
    from anabranch.cli.raw_client import first_client
    from anabranch.wire.messages.metadata import METADATA, MetadataRequest

    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    with first_client(connection) as client:
        return client.send(METADATA, request)


def _every_broker(connection: Connection, api: Any, request: Any) -> Iterable[Any]:
    """What each broker of the cluster says; no one knows of the others' groups."""
    from anabranch.cli.raw_client import RawClient

    for broker in _metadata(connection).brokers:
        with RawClient(broker.host, broker.port, connection.timeout_s) as client:
            answer = client.send(api, request)
        if answer is not None:
            yield answer
