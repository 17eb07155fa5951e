"""`anabranch produce` and `anabranch consume` against a broker."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.cli.errors import CliError
from anabranch.cli.options import Connection
from anabranch.cli.records.consume import Reading
from support.broker_process import BrokerProcess


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, from its definition."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    for i in range(0, len(data) - 3, 4):
        k = int.from_bytes(data[i : i + 4], "little") * multiplier & mask
        k = (k ^ (k >> 24)) * multiplier & mask
        h = (h * multiplier & mask) ^ k
    tail = data[len(data) & ~3 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * multiplier & mask
    h = (h ^ (h >> 13)) * multiplier & mask
    return h ^ (h >> 15)


# Where Java's client puts these keys in a topic with three partitions.
JAVA_PLACES = [f"{key}{(murmur2(key.encode()) & 0x7FFFFFFF) % 3}" for key in "abcd"]


@pytest.fixture
def client(run: Callable, shared_broker: BrokerProcess) -> Callable:
    """Any command line on the shared broker."""

    def run_client(*arguments: object, stdin: bytes = b"") -> object:
        return run(*arguments, "--bootstrap-server", shared_broker.bootstrap, stdin=stdin)

    return run_client


@pytest.fixture
def topic(client: Callable, request: pytest.FixtureRequest) -> str:
    """A fresh topic with one partition, named after the test."""
    name = request.node.name.replace("[", "-").replace("]", "")
    assert client("topics", "create", name, "--partitions", 1).code == 0
    return name


def test_lines_go_in_and_come_out(client: Callable, topic: str) -> None:
    """Lines from stdin are values; they come back in order, and the count is told on stderr."""
    sent = client("produce", topic, stdin="eins\nzwei\n\ndrei ä\n".encode())
    assert (sent.code, sent.out) == (0, "")
    assert sent.err == f"Delivered 4 records to {topic!r}.\n"
    read = client("consume", topic, "--exit-at-end")
    assert (read.code, read.err) == (0, "")
    assert read.out == "eins\nzwei\n\ndrei ä\n"


def test_keys_headers_and_nulls(client: Callable, topic: str, tmp_path: Path) -> None:
    """Keys, headers and nulls arrive as given, by file as by stdin."""
    path = tmp_path / "input.txt"
    path.write_bytes(b"alice\t1\nbob\tNULL\n")
    sent = client(
        "produce", topic, "--file", path, "--key-separator", "\\t", "--null-marker", "NULL",
        "--header", "source=test", "--header", "n=1", "--format", "json",
    )  # fmt: skip
    assert (sent.code, sent.err) == (0, "")
    assert sent.document == {"topic": topic, "delivered": 2, "failed": 0, "errors": []}
    read = client(
        "consume", topic, "--exit-at-end", "--template", "%t %p %o %k=%s (%S) [%h]\\n",
        "--null-marker", "-",
    )  # fmt: skip
    assert read.out == (
        f"{topic} 0 0 alice=1 (1) [source=test,n=1]\n{topic} 0 1 bob=- (-1) [source=test,n=1]\n"
    )


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_codec_and_acks(client: Callable, topic: str, compression: str, acks: str) -> None:
    """Whatever the codec and the acks, records arrive."""
    lines = b"".join(b"the same again and again %d\n" % n for n in range(200))
    sent = client("produce", topic, "--compression", compression, "--acks", acks, stdin=lines)
    assert sent.code == 0
    read = client("consume", topic, "--max-messages", 200)
    assert read.out.encode() == lines


def test_json_round_trip(client: Callable, topic: str) -> None:
    """What consume writes as JSON, produce takes, timestamps and binary data included."""
    given = [
        {"key": "k", "value": "v", "timestamp": 1_700_000_000_123, "headers": {"h": "x"}},
        {"value": "/wA=", "value_encoding": "base64", "timestamp": 1_700_000_000_456},
        {"key": None, "value": None, "timestamp": 1_700_000_000_789},
    ]
    lines = "\n".join(json.dumps(document) for document in given).encode()
    assert client("produce", topic, "--input", "json", stdin=lines).code == 0
    first = client("consume", topic, "--exit-at-end", "--format", "json")
    assert first.documents[0] == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_700_000_000_123,
        "timestamp_type": "CreateTime",
        "key": "k",
        "key_encoding": "utf-8",
        "value": "v",
        "value_encoding": "utf-8",
        "headers": [{"key": "h", "value": "x", "value_encoding": "utf-8"}],
    }
    again = client("produce", topic, "--input", "json", stdin=first.out.encode())
    assert again.code == 0
    second = client("consume", topic, "--exit-at-end", "--from", "3", "--format", "json")
    assert [document | {"offset": document["offset"] - 3} for document in second.documents] == (
        first.documents
    )


def test_partitions(client: Callable) -> None:
    """Partitions are chosen on either side; by default all are read, and keys spread as in Java."""
    assert client("topics", "create", "parts", "--partitions", 3).code == 0
    for partition in range(3):
        client("produce", "parts", "--partition", partition, stdin=b"p%d\n" % partition)
    assert client("consume", "parts", "--exit-at-end", "--partition", 1).out == "p1\n"
    both = client("consume", "parts", "--exit-at-end", "--partition", 2, "--partition", 0)
    assert sorted(both.out.split()) == ["p0", "p2"]
    assert sorted(client("consume", "parts", "--exit-at-end").out.split()) == ["p0", "p1", "p2"]
    client("produce", "parts", "--key-separator", ":", stdin=b"a:\nb:\nc:\nd:\n")
    read = client("consume", "parts", "--exit-at-end", "--from", "1", "--template", "%k%p\\n")
    assert sorted(read.out.split()) == JAVA_PLACES


def test_where_to_start(client: Callable, topic: str) -> None:
    """Each form of --from begins where it says."""
    lines = "".join(
        json.dumps({"value": f"v{n}", "timestamp": 1_700_000_000_000 + n * 60_000}) + "\n"
        for n in range(5)
    )
    assert client("produce", topic, "--input", "json", stdin=lines.encode()).code == 0
    expected = {
        "earliest": ["v0", "v1", "v2", "v3", "v4"],
        "latest": [],
        "3": ["v3", "v4"],
        "5": [],
        "-2": ["v3", "v4"],
        "-99": ["v0", "v1", "v2", "v3", "v4"],
        "2023-11-14T22:15:20Z": ["v2", "v3", "v4"],
        "2023-11-14T22:15:21": ["v3", "v4"],
        "2033-01-01": [],
        "5s": [],
    }
    for start, values in expected.items():
        result = client("consume", topic, "--exit-at-end", "--from", start)
        assert (result.code, result.out.split(), result.err) == (0, values, ""), start


def test_the_last_records(client: Callable, topic: str) -> None:
    """--last takes a number of records or a duration, and excludes --from."""
    client("produce", topic, "--partition", 0, stdin=b"a\nb\nc\n")
    arguments = ("consume", topic, "--partition", 0, "--exit-at-end")
    assert client(*arguments, "--last", 2).out == "b\nc\n"
    assert client(*arguments, "--last", "1h").out == "a\nb\nc\n"
    assert client(*arguments, "--last", "1h", "--from", "earliest").code == 2
    assert client(*arguments, "--last", "an hour").code == 2


def test_max_messages(client: Callable, topic: str) -> None:
    """--max-messages stops exactly there, without waiting for the end."""
    client("produce", topic, stdin=b"".join(b"%d\n" % n for n in range(1200)))
    assert len(client("consume", topic, "--max-messages", 1).out.split()) == 1
    assert len(client("consume", topic, "--max-messages", 700).out.split()) == 700
    assert (
        len(client("consume", topic, "--max-messages", 5000, "--exit-at-end").out.split()) == 1200
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--from", "7"),
            (
                "Offset 7 is not in partition 0 of '{topic}' - it has offsets 0 to 1"
                " - choose one of those, or one --partition"
            ),
        ),
        (
            ("--partition", "5"),
            "Topic '{topic}' has no partition 5 - its partitions are 0 to 0 - choose one of them",
        ),
    ],
    ids=["offset", "partition"],
)
def test_refused_positions(
    client: Callable, topic: str, arguments: tuple[str, ...], sentence: str
) -> None:
    """Offsets and partitions that are not there are told with those that are."""
    client("produce", topic, stdin=b"one\n")
    result = client("consume", topic, *arguments)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"error: {sentence.format(topic=topic)}\n"


def test_consume_of_an_unknown_topic(client: Callable) -> None:
    """Reading never creates a topic."""
    assert "There is no topic 'never-made'" in client("consume", "never-made").err
    names = [row["topic"] for row in client("topics", "list", "--format", "json").document]
    assert "never-made" not in names


def test_failed_records_are_counted(client: Callable, topic: str) -> None:
    """Records that are refused are counted by reason, the others delivered, the exit code 1."""
    lines = b"small\n" + b"x" * 2_000_000 + b"\nsmall again\n"
    result = client("produce", topic, "--format", "json", stdin=lines)
    assert result.code == 1
    assert result.document == {
        "topic": topic,
        "delivered": 2,
        "failed": 1,
        "errors": [{"error": "MSG_SIZE_TOO_LARGE", "records": 1}],
    }
    assert result.err.startswith("error: 1 record was not delivered - ")
    assert "raise the topic's max.message.bytes" in result.err


def test_a_partition_that_is_not_there(client: Callable, topic: str) -> None:
    """Sending to a partition that does not exist fails with the reason."""
    result = client("produce", topic, "--partition", 9, "--timeout", 2, stdin=b"a\nb\n")
    assert result.code == 1
    assert result.err == (
        f"Delivered 0 records to {topic!r}.\n"
        "error: 2 records were not delivered - unknown partition"
        " - see `anabranch topics describe TOPIC`\n"
    )


def test_bad_input_stops_the_input_only(client: Callable, topic: str) -> None:
    """A line that cannot be sent ends the run with its number; those before it are delivered."""
    result = client("produce", topic, "--key-separator", ":", stdin=b"a:1\noops\nb:2\n")
    assert result.code == 1
    assert result.err.splitlines()[0] == f"Delivered 1 record to {topic!r}."
    assert result.err.splitlines()[1].startswith("error: Cannot send line 2 - ")
    assert client("consume", topic, "--exit-at-end").out == "1\n"


def test_nothing_to_send(client: Callable, topic: str) -> None:
    """Empty input is no failure."""
    result = client("produce", topic)
    assert (result.code, result.err) == (0, f"Delivered 0 records to {topic!r}.\n")
    assert client("consume", topic, "--exit-at-end").out == ""


def read_line(process: object) -> bytes:
    line: bytes = process.stdout.readline()
    return line


def test_tail_until_interrupted(
    client: Callable, start: Callable, topic: str, shared_broker: BrokerProcess
) -> None:
    """Without a limit new records appear as they come, until Ctrl-C ends it quietly."""
    client("produce", topic, stdin=b"old\n")
    process = start("consume", topic, "--bootstrap-server", shared_broker.bootstrap)
    assert read_line(process) == b"old\n"
    client("produce", topic, stdin=b"new\n")
    assert read_line(process) == b"new\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (-signal.SIGINT, b"", b"")


def test_tail_into_a_closed_pipe(
    client: Callable, start: Callable, topic: str, shared_broker: BrokerProcess
) -> None:
    """When the reader goes away, the next record ends the command quietly with exit code 0."""
    client("produce", topic, stdin=b"old\n")
    process = start("consume", topic, "--bootstrap-server", shared_broker.bootstrap)
    assert read_line(process) == b"old\n"
    process.stdout.close()
    client("produce", topic, stdin=b"new\n")
    assert process.wait(60) == 0
    assert process.stderr.read() == b""


def test_interrupted_produce_still_reports(
    client: Callable, start: Callable, topic: str, shared_broker: BrokerProcess
) -> None:
    """Ctrl-C while reading input sends what was read, tells how much, and ends by the signal."""
    process = start("produce", topic, "--bootstrap-server", shared_broker.bootstrap)
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    assert client("consume", topic, "--max-messages", 2).out == "one\ntwo\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    assert process.stdout.read() == b""
    assert process.stderr.read() == b"Interrupted after 2 records had been delivered.\n"


def test_a_broker_that_dies(run: Callable, start: Callable, broker: BrokerProcess) -> None:
    """A tail says that it lost the broker, and goes on when there is one again."""
    flags = ("--bootstrap-server", broker.bootstrap)
    assert run("produce", "riding", *flags, stdin=b"before\n").code == 0
    process = start("consume", "riding", *flags)
    assert read_line(process) == b"before\n"
    broker.kill()
    assert process.stderr.readline() == (
        f"Lost the broker at {broker.bootstrap}; trying to reach it again.\n".encode()
    )
    broker.start()
    assert run("produce", "riding", *flags, stdin=b"after\n").code == 0
    assert read_line(process) == b"after\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_a_bounded_read_gives_up() -> None:
    """With an end to reach, a broker that stays away is a failure after the timeout."""
    reading = Reading(topic="t", offsets={0: (0, 5)}, max_messages=None, exit_at_end=True)
    connection = Connection(
        bootstrap_server="127.0.0.1:1", command_config=None, timeout_s=0.2, is_debug=False
    )
    with pytest.raises(CliError, match=r"Cannot reach a broker at 127\.0\.0\.1:1 - the connection"):
        reading.read_all(connection, print)


def test_log_dump_reads_what_the_broker_wrote(
    client: Callable, run: Callable, topic: str, shared_broker: BrokerProcess
) -> None:
    """The files under a running broker are sound and hold what was sent."""
    client("produce", topic, "--compression", "zstd", stdin=b"on disk\n" * 50)
    result = run(
        "log", "dump", shared_broker.data_dir / f"{topic}-0", "--records", "--format", "json"
    )
    assert (result.code, result.err) == (0, "")
    values = [d["value"] for d in result.documents if d["type"] == "record"]
    assert values == ["on disk"] * 50


def test_throughput_is_reported(client: Callable, topic: str, record_property: Callable) -> None:
    """A hundred thousand lines go in and out; the rates are recorded, not asserted."""
    lines = b"".join(b"%d\n" % n for n in range(100_000))
    started_s = time.perf_counter()
    assert client("produce", topic, stdin=lines).code == 0
    produced_s = time.perf_counter()
    read = client("consume", topic, "--exit-at-end")
    record_property("produce_per_s", round(100_000 / (produced_s - started_s)))
    record_property("consume_per_s", round(100_000 / (time.perf_counter() - produced_s)))
    assert read.out.encode() == lines
