"""`anabranch bench`: what a broker does on this machine, seen by one client, in under a minute."""

import itertools
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from anabranch.cli.connection import Troubles, client_config, create_client, open_admin, result_of
from anabranch.cli.errors import CliError, kafka_error_of, refusal
from anabranch.cli.options import (
    Connection,
    connection_options,
    debug_option,
    examples,
    format_option,
)
from anabranch.cli.output import note, write_json, write_table
from anabranch.cli.progress import Advance, progress_bar

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

_LATENCY_WARM_UP: Final = 20
# Values differ, so that compression has the work that it has with real ones, but not random bytes.
_VALUES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the result."""

    what: str
    records: int
    seconds: float
    records_per_s: float
    megabytes_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None


@click.command(
    short_help="Measure produce, consume and latency of a broker.",
    epilog=examples(
        """
anabranch bench
anabranch bench --records 2000000 --size 1000 --compression lz4
anabranch bench --bootstrap-server kafka:9092 --acks 1 --format json
"""
    ),
)
@click.option(
    "--records",
    type=click.IntRange(1, 100_000_000),
    default=500_000,
    show_default=True,
    metavar="N",
    help="How many records to produce and consume.",
)
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="The size of a value.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    metavar="N",
    help="Partitions of the topic.",
)
@click.option(
    "--compression",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    default="none",
    show_default=True,
    help="How the producer compresses.",
)
@click.option(
    "--acks",
    type=click.Choice(("all", "1", "0")),
    default="all",
    show_default=True,
    help="What the producer waits for.",
)
@click.option(
    "--round-trips",
    type=click.IntRange(0, 1_000_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Single records to measure the latency of a produce with; 0 leaves it out.",
)
@click.option("--keep", "is_kept", is_flag=True, help="Leave the topic there afterwards.")
@connection_options
@format_option
@debug_option
def bench(
    connection: Connection,
    output_format: str,
    records: int,
    size_bytes: int,
    partitions: int,
    compression: str,
    acks: str,
    round_trips: int,
    is_kept: bool,
) -> None:
    """Measure what a broker does for one client: produce, consume, latency.

    A topic is created for it and deleted afterwards. One librdkafka client in this process is often
    the slower side, so compare only figures of the same client and the same machine. LATENCY is
    from the call until the broker's acknowledgement of one record, one at a time.
    """
    topic = f"anabranch-bench-{uuid.uuid4().hex[:12]}"
    admin, _ = open_admin(connection)
    _create(admin, connection, topic, partitions)
    settings = {"compression.type": compression, "acks": acks}
    figures = []
    try:
        values = [_value(number, size_bytes) for number in range(min(records, _VALUES))]
        figures.append(_produce(connection, topic, records, values, settings))
        figures.append(_consume(connection, topic, records, partitions))
        if round_trips:
            figures.append(_latency(connection, topic, round_trips, values[0], settings))
    finally:
        if is_kept:
            note(f"The records are in {topic}.")
        else:
            result_of(admin.delete_topics([topic])[topic], connection)
    if output_format == "json":
        write_json([_document(figure) for figure in figures])
    else:
        write_table(
            ("WHAT", "RECORDS", "SECONDS", "RECORDS/S", "MB/S", "P50-MS", "P99-MS"),
            [_cells(figure) for figure in figures],
        )


def _create(admin: "AdminClient", connection: Connection, topic: str, partitions: int) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    try:
        result_of(admin.create_topics([NewTopic(topic, partitions)])[topic], connection)
    except KafkaException as exception:
        raise refusal(
            "Cannot create the topic to measure with", kafka_error_of(exception)
        ) from exception


def _value(number: int, size_bytes: int) -> bytes:
    """Half text that repeats, half bytes that do not: about what JSON with ids compresses like."""
    text = f'{{"order": {number}, "state": "paid", "items": [1, 2, 3], "note": "'.encode()
    text = (text * (size_bytes // (2 * len(text)) + 1))[: size_bytes // 2]
    return (
        text
        + os.urandom((size_bytes - len(text) + 1) // 2).hex().encode()[: size_bytes - len(text)]
    )


def _produce(
    connection: Connection, topic: str, records: int, values: list[bytes], settings: dict[str, Any]
) -> Figure:
    failures: list[Any] = []
    producer = _producer(connection, {**settings, "linger.ms": 5}, failures)
    size = 0
    began_s = time.perf_counter()
    with progress_bar("produce", records) as advance:
        value_of = itertools.cycle(values)
        for number in range(records):
            value = next(value_of)
            size += len(value)
            _send(producer, topic, value)
            if number % 1000 == 999:
                advance(1000)
                producer.poll(0)
                _check(failures)
        _flush(producer, connection)
    _check(failures)
    return _figure("produce", records, size, time.perf_counter() - began_s)


def _send(producer: "Producer", topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            producer.poll(0.05)


def _producer(connection: Connection, settings: dict[str, Any], failures: list[Any]) -> "Producer":
    from confluent_kafka import Producer

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    config = {
        **client_config(connection, Troubles()),
        **settings,
        "on_delivery": delivered,
        "message.timeout.ms": int(connection.timeout_s * 1000) + 30_000,
    }
    return create_client(Producer, config)


def _check(failures: list[Any]) -> None:
    if failures:
        raise refusal("A record was not taken", failures[0])


def _flush(producer: "Producer", connection: Connection) -> None:
    left = producer.flush(connection.timeout_s + 30)
    if left:
        raise CliError(
            f"{left} records were not acknowledged", "the broker did not answer", "raise --timeout"
        )


def _consume(connection: Connection, topic: str, records: int, partitions: int) -> Figure:
    from confluent_kafka import Consumer, TopicPartition

    config = {
        **client_config(connection, Troubles()),
        "group.id": "anabranch-cli",  # librdkafka insists; with assign() none is joined
        "enable.auto.commit": False,
        "queued.min.messages": 1_000_000,
    }
    consumer: Consumer = create_client(Consumer, config)
    size = count = 0
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        began_s = heard_s = time.perf_counter()
        with progress_bar("consume", records) as advance:
            while count < records:
                count, size, heard_s = _take(consumer, count, size, heard_s, advance)
                if time.perf_counter() - heard_s > connection.timeout_s:
                    raise CliError(
                        f"Only {count} of {records} records came back",
                        f"the broker sent nothing for {connection.timeout_s:g} s",
                        "look at its log",
                    )
        return _figure("consume", count, size, time.perf_counter() - began_s)
    finally:
        consumer.close()


def _take(
    consumer: Any, count: int, size: int, heard_s: float, advance: Advance
) -> tuple[int, int, float]:
    messages = consumer.consume(num_messages=10_000, timeout=0.1)
    fresh = [message for message in messages if message.error() is None]
    if not fresh:
        return count, size, heard_s
    advance(len(fresh))
    size += sum([len(message.value()) for message in fresh])
    return count + len(fresh), size, time.perf_counter()


def _latency(
    connection: Connection, topic: str, count: int, value: bytes, settings: dict[str, Any]
) -> Figure:
    failures: list[Any] = []
    # Nagle's delay and lingering are what this is not about.
    quick = {"linger.ms": 0, "socket.nagle.disable": True}
    producer = _producer(connection, {**settings, **quick}, failures)
    for _ in range(_LATENCY_WARM_UP):
        _round_trip(producer, topic, value, connection)
    with progress_bar("latency", count) as advance:
        began_s = time.perf_counter()
        took_ms = []
        for _ in range(count):
            took_ms.append(_round_trip(producer, topic, value, connection))
            advance(1)
        seconds = time.perf_counter() - began_s
    _check(failures)
    took_ms.sort()
    return Figure(
        what="latency",
        records=count,
        seconds=seconds,
        records_per_s=count / seconds,
        p50_ms=_quantile(took_ms, 0.5),
        p99_ms=_quantile(took_ms, 0.99),
    )


def _round_trip(
    producer: "Producer",
    topic: str,
    value: bytes,
    connection: Connection,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    began_s = clock()
    producer.produce(topic, value)
    _flush(producer, connection)
    return (clock() - began_s) * 1000


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _figure(what: str, records: int, size_bytes: int, seconds: float) -> Figure:
    return Figure(
        what=what,
        records=records,
        seconds=seconds,
        records_per_s=records / seconds,
        megabytes_per_s=size_bytes / 1e6 / seconds,
    )


def _cells(figure: Figure) -> tuple[object, ...]:
    def fixed(value: float | None, digits: int) -> str | None:
        return None if value is None else f"{value:.{digits}f}"

    return (
        figure.what,
        figure.records,
        fixed(figure.seconds, 2),
        fixed(figure.records_per_s, 0),
        fixed(figure.megabytes_per_s, 1),
        fixed(figure.p50_ms, 3),
        fixed(figure.p99_ms, 3),
    )


def _document(figure: Figure) -> dict[str, Any]:
    return {name: getattr(figure, name) for name in Figure.__dataclass_fields__}
