"""Durations and points in time as people write them."""

import re
from datetime import UTC, datetime
from typing import Final

_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_SHORT = re.compile(r"(?:\d+(?:ms|[smhdw]))+")
_SHORT_PART = re.compile(r"(\d+)(ms|[smhdw])")
# Kafka's tools take ISO 8601 durations with days and smaller, because months have no one length.
_ISO = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", re.IGNORECASE
)


def duration_ms(text: str) -> int:
    """`5m`, `1h30m`, `P1DT2H`, `PT0.5S`; ValueError for anything else."""
    if _SHORT.fullmatch(text):
        return sum(int(number) * _UNIT_MS[unit] for number, unit in _SHORT_PART.findall(text))
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration such as 5m, 1h30m or P1DT2H30M")
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups()[:4])
    fraction_ms = int((match[5] or "0").ljust(3, "0")[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000 + fraction_ms


def timestamp_ms(text: str) -> int:
    """An ISO time, UTC unless it has a zone, in ms since 1970; ValueError for anything else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time such as 2025-01-15T09:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(int(moment.timestamp() * 1000), 0)
