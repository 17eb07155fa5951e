"""What the sink takes: options, settings of the producer, columns; errors name what is wrong."""

from typing import Any

import pytest

from anabranch.spark.errors import OptionError
from anabranch.spark.sink_options import SinkOptions, check_columns, parse_sink_options
from anabranch.wire.compression import GZIP, LZ4, NONE, ZSTD

HEADERS = "array<struct<key:string,value:binary>>"


def parsed(is_streaming: bool = True, **options: Any) -> SinkOptions:
    named = {name.replace("_", "."): str(value) for name, value in options.items()}
    return parse_sink_options(
        {"kafka.bootstrap.servers": "localhost:9092", **named}, is_streaming=is_streaming
    )


def test_defaults() -> None:
    """Idempotent, acknowledged by all, not compressed, at least once: as Kafka's producer."""
    made = parsed()
    assert (made.topic, made.is_exactly_once, made.sink_id) == (None, False, None)
    producer = made.producer
    assert (producer.acks, producer.is_idempotent, producer.codec) == (-1, True, NONE)
    assert (producer.in_flight_max, producer.delivery_timeout_ms) == (5, 120_000)
    assert producer.batch_bytes <= producer.request_bytes == 1024 * 1024


def test_settings_of_the_producer() -> None:
    """Kafka's names, with Kafka's meaning."""
    producer = parsed(
        kafka_compression_type="LZ4",
        kafka_compression_lz4_level=9,
        kafka_compression_zstd_level=3,
        kafka_batch_size=5000,
        kafka_linger_ms=0,
        kafka_max_request_size=100_000,
        kafka_retries=7,
        kafka_delivery_timeout_ms=5,
        kafka_max_block_ms=6,
    ).producer
    assert (producer.codec, producer.level) == (LZ4, 9)
    assert (producer.batch_bytes, producer.request_bytes) == (5000, 100_000)
    assert (producer.linger_ms, producer.retries) == (0, 7)
    assert (producer.delivery_timeout_ms, producer.block_ms) == (5, 6)
    assert parsed(kafka_compression_type="zstd").producer.codec == ZSTD
    assert parsed(kafka_compression_type="gzip", kafka_batch_size=0).producer.codec == GZIP


def test_a_batch_is_not_larger_than_a_request() -> None:
    """A small request makes small batches."""
    assert parsed(kafka_max_request_size=1000).producer.batch_bytes == 1000


def test_acks_and_idempotence() -> None:
    """As in Kafka: acks=1 turns idempotence off, unless somebody insists on it."""
    producer = parsed(kafka_acks=1).producer
    assert (producer.acks, producer.is_idempotent, producer.in_flight_max) == (1, False, 1)
    assert not parsed(kafka_enable_idempotence="false").producer.is_idempotent
    with pytest.raises(OptionError, match=r"'kafka.enable.idempotence' needs kafka.acks=all"):
        parsed(kafka_acks=1, kafka_enable_idempotence="true")


def test_exactly_once() -> None:
    """A sink may be named; a batch query may also say which batch it is."""
    made = parsed(exactlyOnce="true", sinkId="billing")
    assert (made.is_exactly_once, made.sink_id) == (True, "billing")
    assert parsed(exactlyOnce="TRUE").sink_id is None
    made = parsed(False, exactlyOnce="true", sinkId="billing", batchId=7)
    assert (made.sink_id, made.batch_id) == ("billing", 7)
    assert parsed(False, exactlyOnce="true").batch_id is None


def test_what_spark_adds_is_no_mistake() -> None:
    """Spark hands its own options of the query to the sink."""
    assert parsed(checkpointLocation="/tmp/x", path="y", topic="t").topic == "t"


def test_settings_without_effect_are_told() -> None:
    """Sizes of buffers that there are none of are no error, but worth a warning."""
    assert parsed(kafka_buffer_memory=5).warnings == (
        "option 'kafka.buffer.memory' has no effect on this sink",
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"kafka_bootstrap_servers": " "}, "'kafka.bootstrap.servers' must be set"),
        ({"topik": "t"}, "'topik' of the sink is unknown; did you mean 'topic'"),
        ({"subscribe": "t"}, "'subscribe' of the sink is unknown"),
        ({"topic": " "}, "'topic' is empty"),
        ({"kafka_akcs": "all"}, "'kafka.akcs' of the sink is unknown; did you mean 'kafka.acks'"),
        ({"kafka_group_id": "g"}, "'kafka.group.id' of the sink is unknown"),
        ({"kafka_acks": 0}, "'kafka.acks' is 0: .*lost in silence"),
        ({"kafka_acks": 2}, "'kafka.acks' is all, -1 or 1, not '2'"),
        ({"kafka_batch_size": "big"}, "'kafka.batch.size' must be a number"),
        ({"kafka_linger_ms": -1}, "'kafka.linger.ms' must be a number"),
        ({"kafka_compression_type": "brotli"}, "'kafka.compression.type' is one of none, gzip"),
        (
            {"kafka_compression_type": "gzip", "kafka_compression_gzip_level": 10},
            "'kafka.compression.gzip.level' is a number from -1 to 9, not '10'",
        ),
        (
            {"kafka_max_in_flight_requests_per_connection": 6},
            "'kafka.max.in.flight.requests.per.connection' is at most 5",
        ),
        ({"kafka_key_serializer": "x"}, "'kafka.key.serializer' is not supported"),
        (
            {"kafka_transactional_id": "x"},
            "'kafka.transactional.id' is not .*exactlyOnce",
        ),
        ({"kafka_ssl_protocol": "x"}, "'kafka.ssl.protocol' is not supported"),
        ({"kafka_enable_idempotence": "yes"}, "'kafka.enable.idempotence' is true or false"),
        ({"exactlyOnce": "yes"}, "'exactlyOnce' is true or false, not 'yes'"),
        ({"includeHeaders": "yes"}, "'includeHeaders' is true or false"),
        ({"sinkId": "s"}, "'sinkId' has no meaning without exactlyOnce=true"),
        ({"batchId": "1"}, "'batchId' has no meaning without exactlyOnce=true"),
        ({"exactlyOnce": "true", "sinkId": ""}, "'sinkId' is empty"),
        ({"exactlyOnce": "true", "batchId": "1"}, "'batchId' is for batch queries"),
        ({"exactlyOnce": "true", "kafka_acks": "1"}, "'exactlyOnce' needs kafka.acks=all"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], what: str) -> None:
    """The error names the option, and the one that was meant."""
    with pytest.raises(OptionError, match=what):
        parsed(**options)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"sinkId": "s"}, "'sinkId' and 'batchId' belong together"),
        ({"batchId": "1"}, "'sinkId' and 'batchId' belong together"),
        ({"sinkId": "s", "batchId": "-1"}, "'batchId' is a number from 0 on, not '-1'"),
    ],
)
def test_batches_that_are_refused(options: dict[str, Any], what: str) -> None:
    """A batch of a sink has a name and a number."""
    with pytest.raises(OptionError, match=what):
        parsed(False, exactlyOnce="true", **options)


# --- Columns --------------------------------------------------------------------------------------


def test_columns_that_are_written() -> None:
    """Those of Spark's kafka sink; the source's others are passed over."""
    fields = [
        ("key", "string"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("headers", HEADERS),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert check_columns(fields, None) == {"key", "value", "topic", "partition", "headers"}
    assert check_columns([("value", "string")], "t") == {"value"}


@pytest.mark.parametrize(
    ("fields", "topic", "what"),
    [
        ([], "t", "column 'value' is missing: .* no columns"),
        ([("key", "string")], "t", "column 'value' is missing: .* 'key'"),
        ([("value", "string")], None, "neither option 'topic' nor column 'topic'"),
        ([("value", "int")], "t", "column 'value' is string or binary, not int"),
        ([("value", "string"), ("key", "bigint")], "t", "column 'key' is string or binary"),
        ([("value", "string"), ("topic", "binary")], "t", "column 'topic' is string, not binary"),
        ([("value", "string"), ("partition", "bigint")], "t", "column 'partition' is int, not"),
        (
            [("value", "string"), ("headers", "map<string,binary>")],
            "t",
            "'headers' is array",
        ),
        ([("value", "string"), ("Key", "string")], "t", "column 'Key' is none .*mean 'key'"),
        ([("value", "string"), ("amount", "int")], "t", "column 'amount' is none that"),
    ],
)
def test_columns_that_are_refused(
    fields: list[tuple[str, str]], topic: str | None, what: str
) -> None:
    """The error names the column and what it should be."""
    with pytest.raises(OptionError, match=what):
        check_columns(fields, topic)
