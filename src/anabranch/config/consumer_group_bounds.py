"""Settings of consumer groups that bound each other: at the start of the broker.

Like Kafka, the broker does not start with a value outside of its bounds, or with heartbeats that
are further apart than a session is long.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping

from anabranch.config.consumer_group_settings import (
    ASSIGNMENT_INTERVAL,
    BOUNDED_SETTINGS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    BoundedSetting,
)
from anabranch.config.definitions import BROKER_SETTINGS
from anabranch.config.serve_flags import SERVE_FLAGS
from anabranch.config.settings import GivenValue, Settings

IntOf = Callable[[str], int]
"""The value of a broker setting that is a number."""


def clamp(value: int, bounded: BoundedSetting, int_of: IntOf) -> int:
    """The value within the bounds that count now."""
    return max(int_of(bounded.least), min(value, int_of(bounded.most)))


def is_within(value: int, bounded: BoundedSetting, int_of: IntOf) -> bool:
    return clamp(value, bounded, int_of) == value


def settle_bounds(given: MutableMapping[str, GivenValue]) -> None:
    """Add to the given values what follows from them.

    A flag moves the bounds that nobody gave. And the default of the assignment interval gives way
    to bounds: it is not Kafka's, so bounds that suit Kafka's default must not stop the start.
    """
    for bounded in BOUNDED_SETTINGS:
        value = given.get(bounded.name)
        if value is None or value.origin.place not in SERVE_FLAGS:
            continue
        number = _number(given, bounded.name)
        moved = GivenValue(value.text, number, value.origin)
        if bounded.least not in given and number < _number(given, bounded.least):
            given[bounded.least] = moved
        if bounded.most not in given and number > _number(given, bounded.most):
            given[bounded.most] = moved

    bounded = ASSIGNMENT_INTERVAL
    if bounded.name in given:
        return
    for bound, nearest in ((bounded.least, max), (bounded.most, min)):
        number = nearest(_number(given, bounded.name), _number(given, bound))
        if number != _number(given, bounded.name):
            given[bounded.name] = GivenValue(str(number), number, given[bound].origin)


def _number(given: Mapping[str, GivenValue], name: str) -> int:
    value = given[name].value if name in given else BROKER_SETTINGS[name].default
    assert isinstance(value, int)
    return value


def conflicts(settings: Settings) -> Iterator[str]:
    """A sentence for each two settings that cannot both be."""
    number = settings.get_int
    for bounded in BOUNDED_SETTINGS:
        name, least, most = bounded.name, bounded.least, bounded.most
        if number(least) > number(most):
            yield _sentence(settings, least, "more than", most)
        elif number(name) < number(least):
            yield _sentence(settings, name, "less than", least)
        elif number(name) > number(most):
            yield _sentence(settings, name, "more than", most)
    if number(HEARTBEAT_INTERVAL.name) >= number(SESSION_TIMEOUT.name):
        text = "not less than"
        yield _sentence(settings, HEARTBEAT_INTERVAL.name, text, SESSION_TIMEOUT.name)


def _sentence(settings: Settings, name: str, relation: str, other: str) -> str:
    """What is wrong, with the place of whichever of the two somebody gave."""
    place = settings.source(name if settings.is_set(name) else other)
    return (
        f"{place}: {name}={settings.get_int(name)} is {relation} "
        f"{other}={settings.get_int(other)}. Change one of them."
    )
