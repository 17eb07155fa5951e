"""What the broker says about a group, as Kafka's admin client reads it."""

from __future__ import annotations

import functools
import json
import subprocess
import threading
from typing import Any

from member_process import java_command


class GroupWatcher:
    """One Java virtual machine that describes groups, for every check; `close` ends it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [*java_command("anabranch.compat.GroupWatcher"), bootstrap_servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def describe(self, group: str) -> dict[str, Any]:
        """The document of `GroupWatcher.java`; it has `error` alone when there was no answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(group + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, "the watcher has ended"
        document: dict[str, Any] = json.loads(line)
        return document

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@functools.cache
def watcher_of(bootstrap_servers: str) -> GroupWatcher:
    """The watcher of this broker, started when it is first needed."""
    return GroupWatcher(bootstrap_servers)
