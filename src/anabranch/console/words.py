"""How values read: numbers, sizes, times, and a sentence for every state."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

MISSING: Final = "\N{EN DASH}"

STATE_HINTS: Final = {
    "Stable": "All members have their partitions and read.",
    "Empty": "Nobody is a member now; only the offsets are there.",
    "PreparingRebalance": "Members are called together to share the partitions anew.",
    "CompletingRebalance": "The members have come; their leader hands out the partitions.",
    "Assigning": "Something has changed, and a new assignment is being made.",
    "Reconciling": "Partitions are on their way from one member to another.",
    "Dead": "The group is gone.",
}


def number(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def rate(value: float | None) -> str:
    """Something per second."""
    if value is None:
        return MISSING
    return f"{value:,.0f}/s" if abs(value) >= 10 or value == 0 else f"{value:,.1f}/s"


def size(value: int | None) -> str:
    if value is None:
        return MISSING
    scaled = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if scaled < 1024:
            return f"{scaled:,.0f} {unit}" if unit == "B" else f"{scaled:,.1f} {unit}"
        scaled /= 1024
    return f"{scaled:,.1f} TiB"


def size_rate(value: float | None) -> str:
    """Bytes per second."""
    return MISSING if value is None else f"{size(round(value))}/s"


def duration(milliseconds: float | None) -> str:
    """`340 ms`, `2.1 s`, `4 min`, `3 h`, `2 d`."""
    if milliseconds is None:
        return MISSING
    if milliseconds < 1_000:
        return f"{milliseconds:,.0f} ms"
    seconds = milliseconds / 1_000
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, scale, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / scale:,.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def time(at_ms: int | None, now_ms: int) -> Markup | str:
    """How long ago, with the time itself on hover."""
    if at_ms is None or at_ms < 0:
        return MISSING
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)  # producers may write any number
    exact = moment.isoformat(sep=" ", timespec="milliseconds")
    ago = "now" if abs(now_ms - at_ms) < 1000 else f"{duration(abs(now_ms - at_ms))} ago"
    if at_ms > now_ms + 1000:
        ago = f"in {duration(at_ms - now_ms)}"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, ago)


def clock(at_ms: int | None, now_ms: int) -> Markup | str:
    """The time itself, of the last day without the date; how long ago it is on hover."""
    if at_ms is None or at_ms < 0:
        return MISSING
    try:
        exact = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)  # producers may write any number
    text = exact.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    if abs(now_ms - at_ms) < 43_200_000:
        text = text[11:]
    ago = duration(abs(now_ms - at_ms)) + (" ago" if at_ms <= now_ms else " ahead")
    return Markup('<time datetime="{0}" title="{1}, UTC">{2}</time>').format(
        exact.isoformat(timespec="milliseconds"), ago, text
    )


def trend(per_s: float | None) -> Markup | str:
    """How a lag changes, with an arrow."""
    if per_s is None:
        return MISSING
    if abs(per_s) < 0.05:
        return Markup('<span title="The lag stays as it is.">\N{RIGHTWARDS ARROW} steady</span>')
    grows = per_s > 0
    return Markup('<span class="{}" title="{}">{} {}</span>').format(
        "bad" if grows else "good",
        "The lag grows." if grows else "The lag shrinks.",
        "\N{NORTH EAST ARROW}" if grows else "\N{SOUTH EAST ARROW}",
        rate(abs(per_s)),
    )


def drain(lag_records: int | None, drain_s: float | None, trend_per_s: float | None) -> str:
    """How long until there is no lag."""
    if lag_records == 0:
        return "no lag"
    if drain_s is not None:
        return duration(drain_s * 1000)
    return MISSING if lag_records is None or trend_per_s is None else "not at this rate"


def state(name: str) -> Markup:
    """A state as a coloured word with its sentence."""
    return Markup('<span class="state {0}" title="{1}">{2}</span>').format(
        name.lower(), STATE_HINTS.get(name, ""), name
    )


def path(*parts: object) -> str:
    """The address of a page; the parts of its path may hold anything."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def link(text: object, *parts: object) -> Markup:
    """A link to a path whose parts may hold anything."""
    return Markup('<a href="{0}">{1}</a>').format(path(*parts), escape(text))


def tab_link(text: object, tab: str, *parts: object) -> Markup:
    """A link to a tab of a page."""
    return Markup('<a href="{0}?tab={1}">{2}</a>').format(path(*parts), tab, escape(text))


def badge(text: str, css: str, hint: str = "") -> Markup:
    """A coloured word that is no state; `css` is good, warn or bad."""
    return Markup('<span class="badge {0}" title="{1}">{2}</span>').format(css, hint, text)


def with_query(query: Mapping[str, str], **changes: object) -> str:
    """The query of an address with other parameters; an empty one is left out."""
    kept = {**query, **{name: str(value) for name, value in changes.items()}}
    return "?" + urlencode({name: value for name, value in kept.items() if value != ""})


FILTERS: Final = {
    "number": number,
    "rate": rate,
    "size": size,
    "duration": duration,
    "time": time,
    "clock": clock,
    "trend": trend,
    "drain": drain,
    "state": state,
    "quoted": lambda text: quote(str(text), safe=""),
}
