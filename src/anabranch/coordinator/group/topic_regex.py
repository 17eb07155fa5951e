"""Regular expressions over topic names: RE2, the whole name has to match (KIP-848).

RE2 never takes exponential time, whoever writes the expression; Python's own module would let one
member of one group hold up everybody. It is loaded when the first expression comes.
"""

from collections.abc import Iterable
from typing import Any


def why_invalid(regex: str) -> str | None:
    """What is wrong with an expression, or None."""
    import re2

    try:
        _compile(re2, regex)
    except re2.error as error:
        (text,) = error.args or ("",)
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return None


def match_topics(regexes: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """The names that each expression matches; one that cannot be read matches none."""
    import re2

    names = list(names)
    matches: dict[str, frozenset[str]] = {}
    for regex in regexes:
        try:
            compiled = _compile(re2, regex)
        except re2.error:
            matches[regex] = frozenset()
            continue
        matches[regex] = frozenset(name for name in names if compiled.fullmatch(name))
    return matches


def _compile(re2: Any, regex: str) -> Any:
    options = re2.Options()
    options.log_errors = False  # the member is told; the broker's standard error is not its place
    return re2.compile(regex, options)
