"""`anabranch dev`: a broker that lives as long as a command, or until it is told to stop."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from command_result import Result

_PRINT_TOPICS = """
import json, os
from confluent_kafka.admin import AdminClient
names = ("KAFKA_BOOTSTRAP_SERVERS", "BOOTSTRAP_SERVERS", "ANABRANCH_BOOTSTRAP_SERVER")
(address,) = {os.environ[name] for name in names}
topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).topics
print(json.dumps({name: len(topic.partitions) for name, topic in topics.items()}))
raise SystemExit(7)
"""


def _ended(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    return process.communicate(timeout=120)


def test_a_command_finds_the_broker_and_its_exit_code_counts(
    start: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    """The address is in the environment, the topics are there, and the data is gone afterwards."""
    process = start(
        *("dev", "--topic", "orders:3", "--topic", "audit", "--", sys.executable, "-c"),
        _PRINT_TOPICS,
    )
    out, err = _ended(process)
    assert process.returncode == 7, err
    assert json.loads(out) == {"orders": 3, "audit": 1}
    folder = err.decode().split("its data in ")[1].split(".\n")[0]
    assert not Path(folder).exists()


def test_without_a_command_it_ends_when_it_is_told_and_keeps_a_folder_that_was_named(
    start: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    """Ctrl-C ends it with 0, the broker with it; --folder stays."""
    folder = tmp_path / "kept"
    process = start("dev", "--port", 0, "--folder", folder, "--topic", "orders")
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    assert line.startswith("A broker is ready on 127.0.0.1:")
    port = int(line.split(",")[0].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    process.send_signal(signal.SIGINT)
    _ended(process)
    assert process.returncode == 0
    assert (folder / "data" / "orders-0").is_dir()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_command_that_is_not_there_is_told(run: Callable[..., Result]) -> None:
    """The broker is stopped again, and the error names what to do."""
    result = run("dev", "--", "no-such-program-anywhere")
    assert result.code == 1
    assert "Cannot run 'no-such-program-anywhere'" in result.err


def test_a_topic_without_a_number_of_partitions_is_refused(run: Callable[..., Result]) -> None:
    """A wrong --topic is wrong usage, before anything is started."""
    result = run("dev", "--topic", "orders:many")
    assert result.code == 2
    assert "NAME:PARTITIONS" in result.err


def test_a_port_that_is_taken_is_told(run: Callable[..., Result]) -> None:
    """The broker's own words are the reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("dev", "--port", taken.getsockname()[1])
    assert result.code == 1
    assert "The broker did not start" in result.err
    assert "in use" in result.err
