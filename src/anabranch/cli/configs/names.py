"""Names of settings that were given: are they there, and if not, which one was meant?"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from anabranch.cli.configs.resources import Entry, Resource
from anabranch.cli.errors import CliError
from anabranch.config.definitions import ALIASES, TABLES
from anabranch.config.setting import Scope


def require_names(
    resource: Resource, entries: Mapping[str, Entry], names: Iterable[str], what: str
) -> None:
    """CliError for a name that the resource does not have, with the nearest that it has."""
    known: dict[str, object] = {**entries}
    if resource.scope is Scope.BROKER and not resource.name:
        # Only what was altered for all brokers is told, and any broker setting may be.
        known |= {**TABLES[Scope.BROKER], **ALIASES}
    for name in names:
        if name not in known:
            raise unknown_name(name, known, what, resource.scope)


def unknown_name(name: str, known: Iterable[str], what: str, scope: Scope | None) -> CliError:
    """The sentence about a name that is none."""
    near = get_close_matches(name.lower(), list(known), n=1)
    elsewhere = [other.value for other in Scope if other is not scope and name in TABLES[other]]
    if elsewhere and scope is not None:
        return CliError(
            what,
            f"{name!r} is a setting of a {elsewhere[0]}, not of a {scope.value}",
            f"see `anabranch configs explain {name}`",
        )
    kind = "" if scope is None else f"{scope.value} "
    return CliError(
        what,
        f"there is no {kind}setting {name!r}",
        f"did you mean {near[0]!r}?" if near else "see `anabranch configs explain`",
    )
