"""kcat, an older librdkafka client, against a broker; one row per check.

    .venv/bin/python compat/kcat/run.py                  # against Anabranch of this checkout
    .venv/bin/python compat/kcat/run.py --apache-kafka   # the baseline: everything must pass
    .venv/bin/python compat/kcat/run.py --bootstrap-server HOST:PORT

Without kcat it says how to get it and ends with code 0. Ends with 1 when a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE.parent)]

from branch_checks import BRANCH_CHECKS  # noqa: E402 - the path is set just above
from kcat_broker import CODECS, TIMEOUT_SECONDS, Broker  # noqa: E402

from apache_kafka import apache_kafka  # noqa: E402
from report import report, rows_of  # noqa: E402
from server_process import ServerError, anabranch, terminated_as_exit  # noqa: E402


def lists(broker: Broker) -> None:
    """Metadata of the cluster and of one topic, as text and JSON."""
    topic = broker.topic("list")
    broker.produce(topic, "a\n")
    text = broker.kcat("-L")
    assert f'topic "{topic}"' in text and "1 brokers:" in text, text
    document = json.loads(broker.kcat("-L", "-J", "-t", topic))
    (described,) = document["topics"]
    assert described["topic"] == topic and described["partitions"], document
    assert all(each["leader"] == document["brokers"][0]["id"] for each in described["partitions"])


def codec(name: str) -> Callable[[Broker], None]:
    def check(broker: Broker) -> None:
        topic = broker.topic(name)
        lines = [f"{name} {number} " + "x" * 100 for number in range(500)]
        broker.produce(topic, "\n".join(lines) + "\n", "-z", name, "-X", "linger.ms=50")
        assert broker.consume(topic, "-o", "beginning", "-X", "check.crcs=true") == lines
        assert broker.consume(topic, "-o", "250") == lines[250:]

    return check


def keys_and_headers(broker: Broker) -> None:
    """Keys, null values and headers."""
    topic = broker.topic("keys")
    broker.produce(topic, "k1:v1\nk2:\n", "-K", ":", "-Z", "-H", "a=1", "-H", "b=2")
    shown = broker.consume(topic, "-o", "beginning", "-f", "%k|%S|%h|%o\n")
    assert shown == ["k1|2|a=1,b=2|0", "k2|-1|a=1,b=2|1"], shown


def offsets(broker: Broker) -> None:
    """Relative, absolute and timestamp offsets."""
    topic = broker.topic("offsets")
    lines = [str(number) for number in range(10)]
    broker.produce(topic, "\n".join(lines[:6]) + "\n")
    time.sleep(0.05)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.05)
    broker.produce(topic, "\n".join(lines[6:]) + "\n")
    assert broker.consume(topic, "-o", "-3") == lines[-3:]
    assert broker.consume(topic, "-o", "4", "-c", "2") == lines[4:6]
    assert broker.consume(topic, "-o", "end") == []
    assert broker.consume(topic, "-o", f"s@{middle_ms}") == lines[6:]
    assert broker.consume(topic, "-o", "s@0", "-o", f"e@{middle_ms}") == lines[:6]
    found = broker.kcat("-Q", "-t", f"{topic}:0:{middle_ms}")
    assert f"{topic} [0] offset 6" in found, found


def json_envelope(broker: Broker) -> None:
    """The JSON envelope of a consumed record."""
    topic = broker.topic("json")
    broker.produce(topic, "k:v\n", "-K", ":")
    (line,) = broker.consume(topic, "-o", "beginning", "-J")
    record = json.loads(line)
    assert (record["topic"], record["offset"], record["key"], record["payload"]) == (
        topic,
        0,
        "k",
        "v",
    ), record
    assert record["tstype"] == "create" and abs(record["ts"] / 1000 - time.time()) < 60, record


def idempotence(broker: Broker) -> None:
    """Producing with idempotence on."""
    topic = broker.topic("idempotent")
    lines = [str(number) for number in range(5_000)]
    broker.produce(topic, "\n".join(lines) + "\n", "-X", "enable.idempotence=true")
    assert broker.consume(topic, "-o", "beginning") == lines


def acknowledgements(broker: Broker) -> None:
    """acks 0, 1 and all."""
    topic = broker.topic("acks")
    for acks in ("0", "1", "all"):
        broker.produce(topic, f"{acks}\n", "-X", f"acks={acks}")
    assert broker.consume(topic, "-o", "beginning") == ["0", "1", "all"]


def large(broker: Broker) -> None:
    """A message of 900 KB from a file."""
    topic = broker.topic("large")
    broker.produce(topic, "x" * 900_000)
    assert broker.consume(topic, "-o", "beginning", "-f", "%S\n") == ["900000"]


def tail(broker: Broker) -> None:
    """A waiting consumer sees what is produced later."""
    topic = broker.topic("tail")
    broker.produce(topic, "before\n")
    command = ["kcat", "-b", broker.bootstrap_servers, "-C", "-q", "-u", "-t", topic, "-p", "0"]
    waiting = subprocess.Popen([*command, "-o", "-1", "-c", "4"], stdout=subprocess.PIPE, text=True)
    try:
        assert waiting.stdout is not None
        # The first line shows that the consumer is attached; then it waits at the end.
        assert waiting.stdout.readline() == "before\n"
        for word in ("one", "two", "three"):
            broker.produce(topic, f"{word}\n")
            assert waiting.stdout.readline() == f"{word}\n"
        assert waiting.wait(TIMEOUT_SECONDS) == 0
    finally:
        if waiting.poll() is None:
            waiting.kill()
            waiting.wait()


def every_partition(broker: Broker) -> None:
    """Produce by key and consume all partitions of a topic."""
    topic = broker.topic("all")
    lines = {f"{number}:{number}" for number in range(200)}
    broker.kcat("-P", "-t", topic, "-K", ":", stdin="\n".join(sorted(lines)) + "\n")
    output = broker.kcat("-C", "-q", "-e", "-t", topic, "-o", "beginning", "-K", ":")
    assert set(output.split()) == lines, output[:300]


def refusals(broker: Broker) -> None:
    """An offset out of range, a partition and a topic that are not there."""
    topic = broker.topic("refused")
    broker.produce(topic, "a\n")
    broker.kcat("-C", "-e", "-t", topic, "-p", "99", "-o", "beginning", code=1)
    output = broker.consume(topic, "-o", "777", "-X", "auto.offset.reset=earliest")
    assert output == ["a"], output
    broker.kcat("-P", "-t", "not a name", "-X", "message.timeout.ms=3000", stdin="a\n", code=1)


CHECKS: dict[str, Callable[[Broker], None]] = {
    "lists brokers and topics": lists,
    **{f"codec {name}": codec(name) for name in CODECS},
    "keys, null values and headers": keys_and_headers,
    "offsets: relative, absolute, by time": offsets,
    "JSON envelope": json_envelope,
    "idempotent producer": idempotence,
    "acks 0, 1 and all": acknowledgements,
    "a message of 900 KB": large,
    "tail": tail,
    "all partitions, by key": every_partition,
    "refusals": refusals,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--bootstrap-server", help="a broker that runs already")
    parser.add_argument("--apache-kafka", action="store_true", help="start Apache Kafka instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name has it")
    arguments = parser.parse_args()
    if shutil.which("kcat") is None:
        print("compat/kcat: skipped, kcat is not on PATH (Debian: apt install kcat)")
        return 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminated_as_exit())
        servers = arguments.bootstrap_server
        if not servers:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-kcat-")))
            start = apache_kafka if arguments.apache_kafka else anabranch
            server = stack.enter_context(start(data_dir=work / "data"))
            print(f"{server.name} {server.version} on {server.bootstrap_servers}", flush=True)
            servers = server.bootstrap_servers
        rows = rows_of("kcat", CHECKS | BRANCH_CHECKS, Broker(servers), arguments.only)
        return report(rows, HERE / "allow.txt")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerError as problem:
        sys.exit(f"compat/kcat: {problem}")
