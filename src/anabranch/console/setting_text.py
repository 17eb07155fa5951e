"""How settings are shown: long values wrapped, words about them without their markup."""

import re

from markupsafe import Markup, escape
from starlette.datastructures import QueryParams

from anabranch.console import words

# The pages that links lead to are not served here, so that their text has to do.
_MARKUP = re.compile(r"`([^`]+)`|\[([^\]]+)\]\([^)]*\)|\*\*([^*]+)\*\*")


def documentation_cell(text: str) -> Markup:
    """Sentences with the little Markdown that the reference pages have in them."""
    parts: list[Markup] = []
    end = 0
    for found in _MARKUP.finditer(text):
        parts.append(escape(text[end : found.start()]))
        code, linked, strong = found.groups()
        if code is not None:
            parts.append(Markup("<code>{}</code>").format(code))
        elif linked is not None:
            parts.append(escape(linked))
        else:
            parts.append(Markup("<strong>{}</strong>").format(strong))
        end = found.end()
    parts.append(escape(text[end:]))
    return Markup('<span class="prose">{}</span>').format(Markup("").join(parts))


def value_cell(value: str | None) -> Markup:
    """A value, which may be long and without blanks."""
    if value is None:
        return Markup("{}").format(words.MISSING)
    if value == "":
        return Markup('<span class="soft">empty</span>')
    return Markup('<code class="value">{}</code>').format(value)


def changed_only(query: QueryParams) -> tuple[bool, str]:
    """Whether only what differs from the defaults is wanted, and the address of the other."""
    is_wanted = query.get("changed") == "1"
    address = words.with_query(query, changed="" if is_wanted else "1", page="", format="")
    return is_wanted, address
