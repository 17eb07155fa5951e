"""A broker in a process of its own, as users run it: to be talked to over sockets, and killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_SERVE = (
    "import sys; from anabranch.server.run import run; sys.exit(run(None, sys.argv[1:], False))"
)


class BrokerProcess:
    """Start, stop, kill and restart one broker on one data folder."""

    serve = _SERVE

    def __init__(self, data_dir: Path, overrides: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.overrides = overrides or {}
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._log_path = data_dir.parent / f"{data_dir.name}.log"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_text(self) -> str:
        """What the broker wrote to stderr, over all its starts."""
        return self._log_path.read_text() if self._log_path.exists() else ""

    def start(self) -> None:
        """Start and wait until it listens; a restart keeps the port, so that clients reconnect."""
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.data_dir),
            "console.listeners": "",
            **self.overrides,
        }
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self.serve, *(f"{k}={v}" for k, v in settings.items())],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={k: v for k, v in os.environ.items() if not k.startswith("KAFKA_")},
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "listeners" in line:
                self.port = int(line.rsplit(":", 1)[1])
                return
        self._process.wait(60)
        raise AssertionError(f"the broker did not start:\n{self.log_text}")

    def stop(self, timeout_s: float = 60) -> int:
        """Ask it to stop in order (SIGTERM) and return its exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        self._end(signal.SIGKILL, 60)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(timeout_s)
        if process.stdout is not None:
            process.stdout.close()
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


def wait_until(condition, timeout_s: float = 60, period_s: float = 0.02) -> bool:  # type: ignore[no-untyped-def]
    """Poll a fact of another process; False when it did not come true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(period_s)
    return bool(condition())
