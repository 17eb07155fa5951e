"""The options and columns of the sink, as Spark's `kafka` sink has them, and our own. Pure.

Columns: `value` (text or binary) must be there; `key` (text or binary), `headers`, `partition` and
`topic` may be. The columns of the source that mean nothing to a sink (`offset`, `timestamp`,
`timestampType`) are passed over, so that what was read can be written back; any other column is
refused, because its content would be lost in silence.

Of our own: `exactlyOnce`, `sinkId` and `batchId`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anabranch.spark.errors import OptionError
from anabranch.spark.link_settings import LinkSettings, link_settings_of, positive_int
from anabranch.spark.options_kafka import PREFIX, near_miss, split_kafka
from anabranch.wire.compression import CODEC_NAMES, GZIP, LZ4, ZSTD

NAMES: Final = ("topic", "includeHeaders", "exactlyOnce", "sinkId", "batchId")
# Spark's own, which it hands to sinks too.
_OF_SPARK: Final = frozenset({"checkpointlocation", "path", "queryname", "outputmode", "mode"})
_OF_SPARK_PREFIXES: Final = ("asyncprogresstracking", "_asyncprogresstracking", "__")

SOURCE_ONLY_COLUMNS: Final = ("offset", "timestamp", "timestampType")
COLUMNS: Final = ("value", "key", "headers", "partition", "topic")
_HEADERS_TEXT: Final = "array<struct<key:string,value:binary>>"

BATCH_BYTES: Final = 256 * 1024
REQUEST_BYTES: Final = 1024 * 1024
_IN_FLIGHT_MAX: Final = 5
"""Of how many batches a broker knows that it has them already."""
_RETRIES_MAX: Final = 2**31 - 1
_ALL: Final = -1
_ACKS: Final = {"all": _ALL, "-1": _ALL, "1": 1}
_LEVELS: Final = {GZIP: (-1, 9), LZ4: (1, 17), ZSTD: (-131_072, 22)}

_LEVEL_SETTINGS: Final = {
    f"compression.{CODEC_NAMES[codec]}.level": codec for codec in (GZIP, LZ4, ZSTD)
}
_WRITE_SETTINGS: Final = frozenset(
    {
        "acks",
        "batch.size",
        "bootstrap.servers",
        "client.id",
        "compression.type",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "security.protocol",
        "transaction.timeout.ms",
        *_LEVEL_SETTINGS,
    }
)
# Settings of Kafka's producer that change nothing about what is written.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "buffer.memory",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_REFUSED: Final = {
    "key.serializer": "keys are text or binary columns; cast them",
    "value.serializer": "values are text or binary columns; cast them",
    "interceptor.classes": "there is no Java client whose records could be intercepted",
    "partitioner.class": "rows go to the partition in column 'partition', or that of their key",
    "partitioner.ignore.keys": "leave column 'key' out of the partitioning by setting 'partition'",
    "transactional.id": "set 'exactlyOnce' to true; ids of transactions are chosen for each task",
    "transaction.two.phase.commit.enable": "set 'exactlyOnce' to true",
}


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How records are written."""

    acks: int = _ALL
    is_idempotent: bool = True
    codec: int = 0
    level: int | None = None
    batch_bytes: int = BATCH_BYTES
    request_bytes: int = REQUEST_BYTES
    linger_ms: int = 100
    in_flight_max: int = _IN_FLIGHT_MAX
    retries: int = _RETRIES_MAX
    delivery_timeout_ms: int = 120_000
    block_ms: int = 60_000
    transaction_timeout_ms: int = 15 * 60 * 1000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All that was asked for; plain data, so that it travels to executors."""

    link: LinkSettings
    producer: ProducerSettings
    topic: str | None = None
    is_exactly_once: bool = False
    sink_id: str | None = None
    batch_id: int | None = None
    warnings: tuple[str, ...] = ()


def parse_sink_options(options: Mapping[str, str], *, is_streaming: bool) -> SinkOptions:
    """The options, checked; OptionError names the one that is wrong."""
    own, kafka = split_kafka(options)
    for name in sorted(own):
        is_sparks = name in _OF_SPARK or name.startswith(_OF_SPARK_PREFIXES)
        if name not in {one.lower() for one in NAMES} and not is_sparks:
            raise OptionError(f"option '{name}' of the sink is unknown{near_miss(name, NAMES)}")
    warnings = _check_kafka(kafka)
    topic = own.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("option 'topic' is empty; name the topic that rows are written to")
    _flag(own, "includeHeaders", True)  # the column says it, here as in Spark's own sink
    is_exactly_once = _flag(own, "exactlyOnce", False)
    sink_id, batch_id = _batch_named(own, is_exactly_once, is_streaming)
    return SinkOptions(
        link=link_settings_of(kafka),
        producer=_producer_settings(kafka, is_exactly_once),
        topic=topic,
        is_exactly_once=is_exactly_once,
        sink_id=sink_id,
        batch_id=batch_id,
        warnings=tuple(warnings),
    )


def _batch_named(
    own: Mapping[str, str], is_exactly_once: bool, is_streaming: bool
) -> tuple[str | None, int | None]:
    """By which name, and in a batch query by which number, the broker knows a batch again."""
    sink_id, number = own.get("sinkid"), own.get("batchid")
    for name, value in (("sinkId", sink_id), ("batchId", number)):
        if value is not None and not is_exactly_once:
            raise OptionError(f"option '{name}' has no meaning without exactlyOnce=true")
    if sink_id is not None and not sink_id.strip():
        raise OptionError("option 'sinkId' is empty; name what the query writes")
    if is_streaming:
        if number is not None:
            raise OptionError("option 'batchId' is for batch queries; a stream has its own numbers")
        return sink_id, None
    if (sink_id is None) != (number is None):
        raise OptionError(
            "options 'sinkId' and 'batchId' belong together in a batch query: they say that this"
            " is batch number 'batchId' of the sink, and is dropped if it was written before"
        )
    if number is None:
        return None, None
    if not number.isdigit() or int(number) >= 2**63:
        raise OptionError(f"option 'batchId' is a number from 0 on, not {number!r}")
    return sink_id, int(number)


def _check_kafka(kafka: Mapping[str, str]) -> list[str]:
    """Refuse what cannot be; returns what has no effect."""
    ignored: list[str] = []
    for name in sorted(kafka):
        if name in _REFUSED:
            raise OptionError(f"option 'kafka.{name}' is not supported: {_REFUSED[name]}")
        if name in _WITHOUT_EFFECT:
            ignored.append(f"option 'kafka.{name}' has no effect on this sink")
        elif name not in _WRITE_SETTINGS and not name.startswith(("ssl.", "sasl.")):
            known = (PREFIX + one for one in _WRITE_SETTINGS | _WITHOUT_EFFECT)
            raise OptionError(
                f"option 'kafka.{name}' of the sink is unknown{near_miss(PREFIX + name, known)}"
            )
    return ignored


def _producer_settings(kafka: Mapping[str, str], is_exactly_once: bool) -> ProducerSettings:
    acks_text = kafka.get("acks", "all").strip().lower()
    if acks_text == "0":
        raise OptionError(
            "option 'kafka.acks' is 0: rows that do not arrive would be lost in silence; use all"
        )
    if acks_text not in _ACKS:
        raise OptionError(f"option 'kafka.acks' is all, -1 or 1, not {acks_text!r}")
    acks = _ACKS[acks_text]
    # As in Kafka: it is on, unless acks say otherwise, and a contradiction is an error.
    is_idempotent = _flag(kafka, "enable.idempotence", acks == _ALL, prefix=PREFIX)
    if is_idempotent and acks != _ALL:
        raise OptionError("option 'kafka.enable.idempotence' needs kafka.acks=all")
    if is_exactly_once and not is_idempotent:
        raise OptionError("option 'exactlyOnce' needs kafka.acks=all and kafka.enable.idempotence")
    in_flight = positive_int(kafka, "max.in.flight.requests.per.connection", _IN_FLIGHT_MAX)
    if in_flight > _IN_FLIGHT_MAX and is_idempotent:
        raise OptionError(
            "option 'kafka.max.in.flight.requests.per.connection' is at most"
            f" {_IN_FLIGHT_MAX} with kafka.enable.idempotence, not {in_flight}"
        )
    codec, level = _compression(kafka)
    request_bytes = positive_int(kafka, "max.request.size", REQUEST_BYTES)
    return ProducerSettings(
        acks=acks,
        is_idempotent=is_idempotent,
        codec=codec,
        level=level,
        batch_bytes=min(_not_negative(kafka, "batch.size", BATCH_BYTES), request_bytes),
        request_bytes=request_bytes,
        linger_ms=_not_negative(kafka, "linger.ms", 100),
        # Without sequences a second batch in flight could overtake a first that is sent again.
        in_flight_max=in_flight if is_idempotent else 1,
        retries=_not_negative(kafka, "retries", _RETRIES_MAX),
        delivery_timeout_ms=positive_int(kafka, "delivery.timeout.ms", 120_000),
        block_ms=positive_int(kafka, "max.block.ms", 60_000),
        transaction_timeout_ms=positive_int(kafka, "transaction.timeout.ms", 15 * 60 * 1000),
    )


def _compression(kafka: Mapping[str, str]) -> tuple[int, int | None]:
    name = kafka.get("compression.type", "none").strip().lower()
    if name not in CODEC_NAMES:
        raise OptionError(
            f"option 'kafka.compression.type' is one of {', '.join(CODEC_NAMES)}, not {name!r}"
        )
    codec = CODEC_NAMES.index(name)
    for setting, of_codec in _LEVEL_SETTINGS.items():
        if setting not in kafka or of_codec != codec:
            continue
        first, last = _LEVELS[codec]
        try:
            level = int(kafka[setting])
        except ValueError:
            level = last + 1
        if not first <= level <= last:
            raise OptionError(
                f"option 'kafka.{setting}' is a number from {first} to {last}, not"
                f" {kafka[setting]!r}"
            )
        return codec, level
    return codec, None


def _not_negative(kafka: Mapping[str, str], name: str, default: int) -> int:
    text = kafka.get(name)
    if text is not None and text.strip() == "0":
        return 0
    return positive_int(kafka, name, default)


def _flag(options: Mapping[str, str], name: str, default: bool, prefix: str = "") -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"option '{prefix}{name}' is true or false, not {text!r}")
    return text.strip().lower() == "true"


# Columns ------------------------------------------------------------------------------------------


def check_columns(fields: Sequence[tuple[str, str]], topic: str | None) -> frozenset[str]:
    """The columns that are written; `fields` are names and types as Spark writes them."""
    types = dict(fields)
    if "value" not in types:
        raise OptionError(
            "column 'value' is missing: the sink writes it as the value of each record; there are"
            f" {', '.join(map(repr, types)) or 'no columns'}"
        )
    if topic is None and "topic" not in types:
        raise OptionError(
            "neither option 'topic' nor column 'topic' says which topic the rows are written to"
        )
    for name, type_ in types.items():
        if name in SOURCE_ONLY_COLUMNS:
            continue
        if name not in COLUMNS:
            raise OptionError(
                f"column '{name}' is none that the sink can write; it takes"
                f" {', '.join(COLUMNS)}{near_miss(name, COLUMNS)}; drop the column, or make it a"
                " part of the value"
            )
        wanted = _wanted_types(name)
        if type_.replace(" ", "") not in wanted:
            raise OptionError(f"column '{name}' is {' or '.join(wanted)}, not {type_}")
    return frozenset(types) & frozenset(COLUMNS)


def _wanted_types(name: str) -> tuple[str, ...]:
    if name in ("key", "value"):
        return "string", "binary"
    return {"topic": ("string",), "partition": ("int",), "headers": (_HEADERS_TEXT,)}[name]


def fields_of(schema: Any) -> list[tuple[str, str]]:
    """Names and types of a Spark schema."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
