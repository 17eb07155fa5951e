"""A broker of one's own for as long as a block runs: for `dev` and `demo`."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from anabranch.cli.connection import open_admin, result_of
from anabranch.cli.errors import CliError, kafka_error_of, refusal
from anabranch.cli.options import Connection

START_MAX_S: Final = 60.0
_STOP_MAX_S: Final = 20.0


@contextmanager
def own_broker(folder: Path, settings: Mapping[str, str], *, port: int = 0) -> Iterator[str]:
    """A broker as a process of its own, its data and its log in `folder`; ends with the block.

    Gives its address; port 0 is any free one.
    """
    port = port or free_port()
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "anabranch.cli", "serve"]
    given = {
        "listeners": f"PLAINTEXT://{address}",
        "log.dirs": str(folder / "data"),
        **settings,
    }
    for name, value in given.items():
        command += ["--override", f"{name}={value}"]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "broker.log"
    with log.open("wb") as output:
        # In a session of its own: Ctrl-C is for who uses the broker, and may need it to stop well.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        _wait_for(process, port, log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(_STOP_MAX_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of this machine that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    end_s = time.monotonic() + START_MAX_S
    while True:
        if process.poll() is not None or time.monotonic() > end_s:
            lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise CliError("The broker did not start", lines[-1], "try `anabranch serve`")
        # The banner comes when all addresses are bound; a port that answers may be another's.
        if b" is ready." in log.read_bytes():
            return
        time.sleep(0.02)


def create_topics(address: str, topics: Sequence[tuple[str, int]]) -> None:
    """Create topics with so many partitions each, those that are not there."""
    if not topics:
        return
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    connection = Connection(
        bootstrap_server=address, command_config=None, timeout_s=START_MAX_S, is_debug=False
    )
    admin, metadata = open_admin(connection)
    missing = [NewTopic(name, count) for name, count in topics if name not in metadata.topics]
    for name, future in admin.create_topics(missing).items() if missing else ():
        try:
            result_of(future, connection)
        except KafkaException as exception:
            raise refusal(f"Cannot create topic {name!r}", kafka_error_of(exception)) from exception
