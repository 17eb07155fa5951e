"""A Kafka-speaking server as a child process on loopback: start, pause, measure, stop.

Both sides of the benchmark and the compatibility suites are started through this module, so
that "ready", "memory" and "CPU" mean the same thing for each of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
HOST = "127.0.0.1"

_CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# ApiVersions v0 and Metadata v1 with a null topic array (all topics), client id "probe".
_API_VERSIONS_V0 = struct.pack(">hhih5s", 18, 0, 1, 5, b"probe")
_METADATA_V1 = struct.pack(">hhih5si", 3, 1, 2, 5, b"probe", -1)


class ServerError(Exception):
    """The server did not start, or died; the message carries the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident memory of a process, from /proc/PID/status."""

    rss_bytes: int
    anonymous_bytes: int
    peak_rss_bytes: int


def free_port() -> int:
    """A loopback TCP port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command such that the kernel ends it when this process dies, even by SIGKILL."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else list(command)


class ServerProcess:
    """One server; its lifetime is `with ServerProcess(...) as server:`."""

    def __init__(
        self, name: str, command: Sequence[str], *, port: int, log_path: Path, version: str = ""
    ) -> None:
        self.name = name
        self.version = version
        self.port = port
        self.log_path = log_path
        self.start_seconds = 0.0
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not started"
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Start and return once ApiVersions and Metadata are answered; sets `start_seconds`."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                _dying_with_parent(self._command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            while not _answers(self.port):
                self._check_alive()
                if time.monotonic() - began > timeout_seconds:
                    raise ServerError(f"{self.name}: no answer after {timeout_seconds:.0f} s")
                time.sleep(0.005)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - began

    def stop(self, *, timeout_seconds: float = 20.0) -> float:
        """SIGTERM, then SIGKILL when that takes too long; returns the seconds it took."""
        process, self._process = self._process, None
        if process is None:
            return 0.0
        began = time.monotonic()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: the end without any warning."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Freeze the process, so that it takes nothing from the one being measured."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        while not _answers(self.port):
            self._check_alive()
            time.sleep(0.05)

    def memory(self) -> Memory:
        fields: dict[str, int] = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                fields[name] = int(value.split()[0]) * 1024
        return Memory(
            rss_bytes=fields["VmRSS"],
            anonymous_bytes=fields["RssAnon"],
            peak_rss_bytes=fields["VmHWM"],
        )

    def cpu_seconds(self) -> float:
        """User and system time of all its threads, dead ones included."""
        return process_cpu_seconds(self.pid)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _check_alive(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise ServerError(f"{self.name} ended with code {code}:\n{self.log_tail()}")


def process_cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, dead ones included."""
    # The command name may hold spaces and brackets; the numbers start after the last ")".
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / _CLOCK_TICKS_PER_SECOND


def _answers(port: int) -> bool:
    """Whether the server answers ApiVersions and then names at least one broker in Metadata."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection:
            error_code = struct.unpack_from(">h", _ask(connection, _API_VERSIONS_V0), 4)[0]
            broker_count = struct.unpack_from(">i", _ask(connection, _METADATA_V1), 4)[0]
    except (OSError, EOFError, struct.error):
        return False
    return bool(error_code == 0 and broker_count > 0)


def _ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _read(connection, 4))
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def anabranch(
    *, data_dir: Path, port: int | None = None, overrides: Sequence[str] = ()
) -> ServerProcess:
    """Our broker from this checkout's virtualenv, not started yet."""
    port = port or free_port()
    settings = [f"listeners=PLAINTEXT://{HOST}:{port}", f"log.dirs={data_dir}", *overrides]
    command = [str(ROOT / ".venv/bin/anabranch"), "serve"]
    for setting in settings:
        command += ["--override", setting]
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        check=False,
        capture_output=True,
        text=True,
    )
    return ServerProcess(
        "Anabranch",
        command,
        port=port,
        log_path=data_dir.with_name(data_dir.name + ".log"),
        version=commit.stdout.strip(),
    )


@contextlib.contextmanager
def terminated_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit for the time of the block, so that children are stopped."""

    def leave(signal_number: int, frame: FrameType | None) -> None:
        sys.exit(128 + signal_number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
