"""The source's options: names, precedence, defaults, and refusals that name the option."""

import dataclasses
import pickle

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from anabranch.spark.errors import OptionError
from anabranch.spark.options import Limit, duration_ms, parse_options
from anabranch.spark.source import AnabranchDataSource
from anabranch.spark.source_schema import columns_of

LEAST = {"kafka.bootstrap.servers": "one:9092, two", "subscribe": "orders"}


def parsed(is_streaming: bool = True, **options: str):  # type: ignore[no-untyped-def]
    more = {name.replace("__", "."): value for name, value in options.items()}
    return parse_options({**LEAST, **more}, is_streaming=is_streaming)


def test_defaults_are_those_of_sparks_source() -> None:
    """A stream begins at the end, a batch at the beginning; losing data is an error."""
    options = parsed()
    assert options.link.servers == (("one", 9092), ("two", 9092))
    assert options.subscription.topics == ("orders",)
    assert options.start == Limit("startingOffsets", everywhere="latest")
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.is_committed_only
    assert not options.commits_group
    assert options.branches is options.min_partitions is None
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    batch = parsed(is_streaming=False)
    assert (batch.start.everywhere, batch.end.everywhere) == ("earliest", "latest")


def test_names_are_case_insensitive_and_travel() -> None:
    """Spark hands names over in lower case, and pickles what was read of them."""
    options = {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "Subscribe": "t", "FAILONDATALOSS": "False"}
    found = parse_options(options, is_streaming=True)
    assert not found.fail_on_data_loss
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("given", "option", "field", "expected"),
    [
        ({"startingOffsets": "EARLIEST"}, "startingOffsets", "everywhere", "earliest"),
        (
            {"startingOffsets": '{"orders":{"0":23,"1":-2,"2":-1}}'},
            "startingOffsets",
            "offsets",
            ((("orders", 0), 23), (("orders", 1), -2), (("orders", 2), -1)),
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders":{"0":7}}', "startingOffsets": "earliest"},
            "startingOffsetsByTimestamp",
            "timestamps_ms",
            ((("orders", 0), 7),),
        ),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"orders":{"0":7}}'},
            "startingTimestamp",
            "timestamp_ms",
            5,
        ),
    ],
)
def test_where_it_begins(given: dict[str, str], option: str, field: str, expected: object) -> None:
    """One time for all goes before times for each, and these before offsets."""
    start = parsed(**given).start
    assert start.option == option
    assert getattr(start, field) == expected


def test_group_options() -> None:
    """Naming a group shows it the progress, unless that is turned off."""
    assert parsed(kafka__group__id="g").commits_group
    assert not parsed(kafka__group__id="g", commitGroupOffsets="false").commits_group
    assert parsed(kafka__group__id="g", startingOffsets="group").start.everywhere == "group"


def test_settings_without_effect_are_told() -> None:
    """A setting of Kafka's consumer that changes nothing about what is read is a warning."""
    options = parsed(kafka__max__poll__records="5", groupIdPrefix="x")
    assert len(options.warnings) == 2
    assert "kafka.max.poll.records" in options.warnings[0]
    assert "groupIdPrefix" in options.warnings[1]
    batch = parsed(is_streaming=False, maxOffsetsPerTrigger="5")
    assert "maxOffsetsPerTrigger" in batch.warnings[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffset": "latest"}, "'startingoffset' .*did you mean 'startingOffsets'"),
        ({"kafka.isolation.levl": "x"}, r"kafka\.isolation\.levl.*kafka\.isolation\.level"),
        ({"kafka.no.such.thing": "x"}, r"kafka\.no\.such\.thing' is unknown"),
        ({"path": "/x"}, "'path' is unknown"),
        ({"kafka.bootstrap.servers": " "}, r"kafka\.bootstrap\.servers' must be set"),
        ({"kafka.bootstrap.servers": "h:x"}, r"kafka\.bootstrap\.servers.*host:port"),
        ({"subscribe": " , "}, "'subscribe' names no topic"),
        ({"assign": '{"t":[0]}'}, "exactly one of.*'subscribe' and 'assign'"),
        ({"startingOffsets": "soon"}, "'startingOffsets' is earliest, latest, group"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "'startingOffsets': t-0 cannot be -3"),
        ({"startingOffsets": '{"t":[1]}'}, "'startingOffsets' must be JSON"),
        ({"startingTimestamp": "-1"}, "'startingTimestamp' must be"),
        ({"startingOffsetsByTimestamp": "{"}, "'startingOffsetsByTimestamp' must be JSON"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "Strategy' is error or latest"),
        ({"endingOffsets": "latest"}, "'endingOffsets' is for batch"),
        ({"endingTimestamp": "1"}, "'endingTimestamp' is for batch"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss' must be true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' must be"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            r"'minOffsetsPerTrigger' \(9\).*'maxOffsetsPerTrigger' \(8\)",
        ),
        ({"maxTriggerDelay": "soon"}, "'maxTriggerDelay' must be"),
        ({"minPartitions": "-1"}, "'minPartitions' must be"),
        ({"maxRecordsPerPartition": "x"}, "'maxRecordsPerPartition' must be"),
        ({"branches": "many"}, "'branches' must be a number from 1 to 1024, or auto"),
        ({"branches": "1025"}, "'branches' must be"),
        ({"commitGroupOffsets": "true"}, r"'commitGroupOffsets=true' needs 'kafka\.group\.id'"),
        ({"startingOffsets": "group"}, r"'startingOffsets=group' needs 'kafka\.group\.id'"),
        ({"kafka.auto.offset.reset": "latest"}, r"kafka\.auto\.offset\.reset.*'startingOffsets'"),
        ({"kafka.enable.auto.commit": "true"}, r"kafka\.enable\.auto\.commit' is not supported"),
        ({"kafka.key.deserializer": "x"}, r"kafka\.key\.deserializer' is not supported"),
        ({"kafka.value.deserializer": "x"}, r"kafka\.value\.deserializer' is not supported"),
        ({"kafka.interceptor.classes": "x"}, r"kafka\.interceptor\.classes' is not supported"),
        ({"kafka.isolation.level": "x"}, r"kafka\.isolation\.level' is read_uncommitted"),
        ({"kafka.request.timeout.ms": "0"}, r"kafka\.request\.timeout\.ms' must be"),
        ({"kafka.security.protocol": "X"}, r"kafka\.security\.protocol' is one of"),
        ({"kafka.ssl.ca.location": "x"}, r"kafka\.ssl\.ca\.location' has no effect"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "x.jks"},
            r"kafka\.ssl\.truststore\.type' must be PEM",
        ),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.cipher.suites": "x"},
            r"kafka\.ssl\.cipher\.suites' is not supported",
        ),
        ({"kafka.security.protocol": "SASL_SSL"}, r"kafka\.sasl\.mechanism' is one of"),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"},
            r"kafka\.sasl\.username",
        ),
    ],
)
def test_refusals_name_the_option(given: dict[str, str], words: str) -> None:
    """Whatever makes no sense is refused, in words that name it."""
    with pytest.raises(OptionError, match=words):
        parse_options({**LEAST, **given}, is_streaming=True)


def test_something_must_be_read() -> None:
    """Without a subscription there is nothing to read."""
    with pytest.raises(OptionError, match=r"exactly one of the options.*none of them"):
        parse_options({"kafka.bootstrap.servers": "h"}, is_streaming=True)
    with pytest.raises(OptionError, match="'subscribePattern' is no regular expression"):
        parse_options({"kafka.bootstrap.servers": "h", "subscribePattern": "(x"}, is_streaming=True)
    for text in ("[]", "{}", '{"t":["a"]}', "t", '{"t":3}'):
        with pytest.raises(OptionError, match="'assign' must"):
            parse_options({"kafka.bootstrap.servers": "h", "assign": text}, is_streaming=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "latest"}, "'startingOffsets'=latest: a batch query cannot begin"),
        ({"startingOffsets": '{"t":{"1":-1}}'}, r"'startingOffsets' \(t-1: -1\)"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' is latest or JSON|cannot end"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, r"'endingOffsets' \(t-0: -2\)"),
    ],
)
def test_batches_have_two_ends(given: dict[str, str], words: str) -> None:
    """A batch neither begins at the end nor ends at the beginning."""
    with pytest.raises(OptionError, match=words):
        parse_options({**LEAST, **given}, is_streaming=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7),
        ("5ms", 5),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2 h", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_times(text: str, expected: int) -> None:
    """Times are written as Spark writes them."""
    assert duration_ms(text) == expected


def test_security() -> None:
    """TLS by PEM files and SASL by name and password, which also stand in a JAAS entry."""
    tls = parsed(
        kafka__security__protocol="SSL",
        kafka__ssl__ca__location="ca.pem",
        kafka__ssl__keystore__type="PEM",
        kafka__ssl__keystore__location="me.pem",
        kafka__ssl__endpoint__identification__algorithm="",
    ).link.security
    assert (tls.has_tls, tls.ca_file, tls.certificate_file) == (True, "ca.pem", "me.pem")
    assert not tls.checks_host_name
    entry = "org.apache.kafka.common.security.scram.ScramLoginModule required "
    sasl = parsed(
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config=entry + 'username="me" password="a\\"b;c";',
    ).link.security
    assert (sasl.sasl_mechanism, sasl.username, sasl.password) == ("SCRAM-SHA-512", "me", 'a"b;c')
    assert "a\\" not in repr(sasl)
    assert 'a"b' not in repr(sasl)


def test_load_refuses_early() -> None:
    """What neither a batch nor a stream would take is refused when the schema is asked for."""
    source = AnabranchDataSource({**LEAST, "endingOffsets": "latest", "includeHeaders": "true"})
    assert source.schema().names[-1] == "headers"
    with pytest.raises(OptionError, match="'bogus' is unknown"):
        AnabranchDataSource({**LEAST, "bogus": "1"}).schema()


def test_user_schema_chooses_columns() -> None:
    """A schema of the user's own names columns in any order, with their types."""
    assert columns_of(_parse("offset bigint, key binary")) == ("offset", "key")
    for text, words in (
        ("id bigint", "has a column 'id'"),
        ("key string", "'key' is binary"),
        ("key binary not null", "NOT NULL"),
    ):
        with pytest.raises(OptionError, match=words):
            columns_of(_parse(text))


def _parse(text: str) -> StructType:
    """A schema without a JVM, which parses them in Spark."""
    types = {"binary": BinaryType(), "bigint": LongType(), "string": StringType()}
    fields = []
    for part in text.split(","):
        name, kind, *rest = part.split()
        fields.append(StructField(name, types[kind], not rest))
    return StructType(fields)


def test_options_are_plain_data() -> None:
    """Executors get them pickled, once for each task: nothing in them is alive."""
    for field in dataclasses.fields(parsed()):
        value = getattr(parsed(), field.name)
        assert pickle.loads(pickle.dumps(value)) == value
