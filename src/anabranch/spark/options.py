"""The options of the source, as Spark's `kafka` source has them, and our own. Pure.

Names are case-insensitive; Spark hands them over in lower case. An option that nobody knows is
refused, because a misspelled one that is passed over in silence reads other records than meant.

Of our own: `branches`, `minRecordsPerBranch`, `commitGroupOffsets` and `startingOffsets=group`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from anabranch.spark.errors import OptionError
from anabranch.spark.link_settings import LinkSettings, link_settings_of, positive_int
from anabranch.spark.options_kafka import check_kafka, near_miss, split_kafka

T = TypeVar("T")
Place = tuple[str, int]

LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
AUTO: Final = "auto"
BRANCHES_MAX: Final = 1024
_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_FETCH_BYTES = 8 * 1024 * 1024
_STRATEGIES = ("subscribe", "subscribePattern", "assign")

NAMES: Final = (
    "assign",
    "branches",
    "commitGroupOffsets",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "minRecordsPerBranch",
    "partition.metadata.cache.ttl.ms",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is read: topics, those that match a pattern, or some partitions."""

    option: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """Where reading begins or ends.

    `everywhere` is one rule for all partitions; `offsets` and `timestamps` name each of them.
    """

    option: str
    everywhere: Literal["earliest", "latest", "group"] | None = None
    offsets: tuple[tuple[Place, int], ...] = ()
    timestamp_ms: int | None = None
    timestamps_ms: tuple[tuple[Place, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All that was asked for; plain data, so that it travels to executors."""

    link: LinkSettings
    subscription: Subscription
    start: Limit
    end: Limit
    takes_latest_on_no_match: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60 * 1000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    branches: int | Literal["auto"] | None = None
    min_records_per_branch: int = 1000
    group_id: str | None = None
    commits_group: bool = False
    is_committed_only: bool = False
    poll_timeout_ms: int = 120_000
    metadata_ttl_ms: int = -1
    fetch_bytes: int = _FETCH_BYTES
    fetch_wait_ms: int = 500
    warnings: tuple[str, ...] = ()

    @property
    def isolation_level(self) -> int:
        """As requests have it."""
        return int(self.is_committed_only)


class _Reader:
    """Options in lower case, read by the names that people write."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def parsed(self, name: str, parse: Callable[[str], T], default: T, what: str) -> T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError as error:
            raise OptionError(f"option '{name}' must be {what}, not {text!r}") from error

    def positive(self, name: str, default: int | None = None) -> int | None:
        return self.parsed(name, _at_least(1), default, "a number greater than 0")

    def flag(self, name: str, default: bool) -> bool:
        return self.parsed(name, _flag, default, "true or false")


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(text)
        return number

    return parse


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def parse_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """The options of a query; OptionError names the one that is wrong."""
    own, kafka = split_kafka(options)
    for name in sorted(own):
        if name not in _BY_LOWER:
            hint = near_miss(name, (*NAMES, "kafka.bootstrap.servers", "kafka.group.id"))
            raise OptionError(f"option '{name}' is unknown to format(\"anabranch\"){hint}")
    warnings = [f"option '{name}' has no effect here" for name in check_kafka(kafka)]
    read = _Reader(own)
    subscription = _subscription_of(read)
    start, end = _limits_of(read, is_streaming=is_streaming)
    group_id = kafka.get("group.id")
    commits_group = read.flag("commitGroupOffsets", group_id is not None)
    if group_id is None and (commits_group or start.everywhere == "group"):
        option = "commitGroupOffsets=true" if commits_group else "startingOffsets=group"
        raise OptionError(f"option '{option}' needs 'kafka.group.id'")
    if read.has("groupIdPrefix"):
        warnings.append("option 'groupIdPrefix' has no effect here: no group is made up")
    warnings += [
        f"option '{name}' has no effect here: 'kafka.default.api.timeout.ms' says how long offsets"
        " are asked for"
        for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
        if read.has(name)
    ]
    if not is_streaming:
        warnings += [
            f"option '{name}' has no effect in a batch query"
            for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
            if read.has(name)
        ]
    least, most = read.positive("minOffsetsPerTrigger"), read.positive("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' ({least}) is greater than 'maxOffsetsPerTrigger'"
            f" ({most})"
        )
    isolation = kafka.get("isolation.level", _ISOLATION_LEVELS[0])
    if isolation not in _ISOLATION_LEVELS:
        raise OptionError(
            f"option 'kafka.isolation.level' is {' or '.join(_ISOLATION_LEVELS)}, not {isolation!r}"
        )
    return SourceOptions(
        link=link_settings_of(kafka),
        subscription=subscription,
        start=start,
        end=end,
        takes_latest_on_no_match=_strategy_of(read) == "latest",
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        include_headers=read.flag("includeHeaders", False),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=read.parsed(
            "maxTriggerDelay", duration_ms, 15 * 60 * 1000, "a time such as 500ms, 30s or 15m"
        ),
        min_partitions=read.positive("minPartitions"),
        max_records_per_partition=read.positive("maxRecordsPerPartition"),
        branches=read.parsed(
            "branches", _branches, None, f"a number from 1 to {BRANCHES_MAX}, or auto"
        ),
        min_records_per_branch=read.positive("minRecordsPerBranch", 1000) or 1000,
        group_id=group_id,
        commits_group=commits_group,
        is_committed_only=isolation == "read_committed",
        poll_timeout_ms=read.positive("kafkaConsumer.pollTimeoutMs", 120_000) or 120_000,
        metadata_ttl_ms=read.parsed(
            "partition.metadata.cache.ttl.ms", int, -1, "a number of milliseconds"
        ),
        fetch_bytes=positive_int(kafka, "max.partition.fetch.bytes", _FETCH_BYTES),
        fetch_wait_ms=min(500, positive_int(kafka, "fetch.max.wait.ms", 500)),
        warnings=tuple(warnings),
    )


_BY_LOWER = {name.lower(): name for name in NAMES}


def _branches(text: str) -> int | Literal["auto"]:
    if text.lower() == AUTO:
        return AUTO
    number = int(text)
    if not 1 <= number <= BRANCHES_MAX:
        raise ValueError(text)
    return number


_TIME = re.compile(r"(-?\d+)\s*([a-z]*)\Z")
_UNITS_MS = {
    "us": 0.001,
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def duration_ms(text: str) -> int:
    """A time as Spark writes it: a number and us, ms, s, m, min, h or d; without one, ms."""
    found = _TIME.match(text.lower())
    if found is None or found[2] not in _UNITS_MS or int(found[1]) < 0:
        raise ValueError(text)
    return int(int(found[1]) * _UNITS_MS[found[2]])


# What is read -------------------------------------------------------------------------------------


def _subscription_of(read: _Reader) -> Subscription:
    given = [name for name in _STRATEGIES if read.has(name)]
    if len(given) != 1:
        found = " and ".join(f"'{name}'" for name in given) or "none of them"
        raise OptionError(
            "exactly one of the options 'subscribe', 'subscribePattern' and 'assign' must be set;"
            f" found {found}"
        )
    (option,) = given
    text = (read.text(option) or "").strip()
    if option == "subscribe":
        topics = tuple(dict.fromkeys(filter(None, (one.strip() for one in text.split(",")))))
        if not topics:
            raise OptionError(f"option 'subscribe' names no topic: {text!r}")
        return Subscription(option, topics=topics)
    if option == "subscribePattern":
        if not text:
            raise OptionError("option 'subscribePattern' is empty")
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(
                f"option 'subscribePattern' is no regular expression: {error}: {text!r}"
            ) from error
        return Subscription(option, pattern=text)
    return Subscription(option, places=_assigned(text))


def _assigned(text: str) -> tuple[Place, ...]:
    example = '{"topic":[0,1]}'
    try:
        found = json.loads(text)
        places = [
            (topic, partition) for topic, partitions in found.items() for partition in partitions
        ]
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(
            f"option 'assign' must be JSON such as {example}, not {text!r}"
        ) from error
    if not places or not all(type(number) is int and number >= 0 for _, number in places):
        raise OptionError(
            f"option 'assign' must name partitions by number, as {example}, not {text!r}"
        )
    return tuple(sorted(set(places)))


# Where it begins and ends -------------------------------------------------------------------------


def _limits_of(read: _Reader, *, is_streaming: bool) -> tuple[Limit, Limit]:
    if is_streaming:
        for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
            if read.has(name):
                raise OptionError(f"option '{name}' is for batch queries: a stream has no end")
        return _limit_of(read, "starting", "latest", ("earliest", "latest", "group")), Limit(
            "endingOffsets", everywhere="latest"
        )
    start = _limit_of(read, "starting", "earliest", ("earliest", "latest", "group"))
    end = _limit_of(read, "ending", "latest", ("earliest", "latest"))
    _refuse_in_batch(start, "latest", LATEST_OFFSET, "begin at the end of the log")
    _refuse_in_batch(end, "earliest", EARLIEST_OFFSET, "end at the beginning of the log")
    return start, end


def _refuse_in_batch(limit: Limit, everywhere: str, offset: int, what: str) -> None:
    named = [place for place, found in limit.offsets if found == offset]
    if limit.everywhere == everywhere or named:
        where = f" ({named[0][0]}-{named[0][1]}: {offset})" if named else f"={everywhere}"
        raise OptionError(f"option '{limit.option}'{where}: a batch query cannot {what}")


def _limit_of(
    read: _Reader,
    side: Literal["starting", "ending"],
    default: Literal["earliest", "latest"],
    words: tuple[str, ...],
) -> Limit:
    """One time for all partitions goes before times for each, and these before offsets."""
    name = f"{side}Timestamp"
    timestamp = read.parsed(name, _at_least(0), None, "a time in milliseconds since 1970")
    if timestamp is not None:
        return Limit(name, timestamp_ms=timestamp)
    name = f"{side}OffsetsByTimestamp"
    if read.has(name):
        return Limit(name, timestamps_ms=_by_partition(name, read.text(name) or "", least=0))
    name = f"{side}Offsets"
    text = (read.text(name) or default).strip()
    word = text.lower()
    if word in words:
        return Limit(name, everywhere=word)  # type: ignore[arg-type]
    if not text.startswith("{"):
        raise OptionError(
            f"option '{name}' is {', '.join(words)} or JSON such as"
            f' {{"topic":{{"0":23,"1":-2}}}}, not {text!r}'
        )
    return Limit(name, offsets=_by_partition(name, text, least=EARLIEST_OFFSET))


def _by_partition(name: str, text: str, least: int) -> tuple[tuple[Place, int], ...]:
    example = '{"topic":{"0":23,"1":42}}'
    try:
        found = {
            (topic, int(partition)): number
            for topic, partitions in json.loads(text).items()
            for partition, number in partitions.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(
            f"option '{name}' must be JSON such as {example}, not {text!r}"
        ) from error
    for place, number in found.items():
        if type(number) is not int or number < least or place[1] < 0:
            raise OptionError(
                f"option '{name}': {place[0]}-{place[1]} cannot be {number!r}; expected is JSON"
                f" such as {example}"
            )
    return tuple(sorted(found.items()))


def _strategy_of(read: _Reader) -> str:
    name = "startingOffsetsByTimestampStrategy"
    strategy = (read.text(name) or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"option '{name}' is error or latest, not {strategy!r}")
    return strategy
