"""A cluster of Kafka Connect: its workers are processes, and it is told what to do by REST.

All workers have one group id. They keep their connectors, the sources' offsets and the tasks'
states in three topics of the broker, and share the tasks in a classic group whose protocol type
is `connect`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from server_process import HOST, ServerProcess, free_port

HERE = Path(__file__).resolve().parent
GROUP = "connect-cluster"
SESSION_MS = 3_000
PATIENCE_SECONDS = 120.0
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
# A race of the Java producer under load, which ends a source's task; see FINDINGS.md.
_PRODUCER_RACE = "InvalidTxnStateException"
# What Connect calls the group of a sink's tasks.
SINK_GROUP_PREFIX = "connect-"
_JAVA_OPTIONS = [
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
]
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"
_SETTINGS: dict[str, Any] = {
    "group.id": GROUP,
    "key.converter": _STRINGS,
    "value.converter": _STRINGS,
    "config.storage.topic": "connect-configs",
    "config.storage.replication.factor": 1,
    "offset.storage.topic": "connect-offsets",
    "offset.storage.replication.factor": 1,
    "offset.storage.partitions": 3,
    "status.storage.topic": "connect-status",
    "status.storage.replication.factor": 1,
    "status.storage.partitions": 2,
    "offset.flush.interval.ms": 1_000,
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": SESSION_MS // 4,
    # Five minutes by default: how long the tasks of a lost worker wait for its return.
    "scheduled.rebalance.max.delay.ms": 1_000,
    "consumer.session.timeout.ms": SESSION_MS,
    "consumer.heartbeat.interval.ms": SESSION_MS // 4,
    "plugin.discovery": "service_load",
}


def wait_for(condition: Callable[[], bool], what: str, state: Callable[[], object] = str) -> None:
    """Wait until other processes have made it true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in {PATIENCE_SECONDS:.0f} s: {what}. {state()}"
        time.sleep(0.1)


class Worker:
    """One worker process; ready when its REST interface answers."""

    def __init__(
        self, name: str, classpath: str, work_dir: Path, own_settings: dict[str, Any]
    ) -> None:
        self.name = name
        self.port = free_port()
        self.log_path = work_dir / f"{name}.log"
        settings = {**_SETTINGS, **own_settings, "listeners": f"http://{HOST}:{self.port}"}
        properties = work_dir / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main_class = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = ["java", *_JAVA_OPTIONS, "-cp", classpath, main_class, str(properties)]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    @property
    def id(self) -> str:
        """What tasks call it."""
        return f"{HOST}:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: gone without a word to the group."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Leave in order."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end: {self.log_tail()}") from None

    def log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer of its REST interface; URLError or OSError when there is none."""
        request = urllib.request.Request(
            f"http://{self.id}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of a connector as the cluster shows it."""

    number: int
    state: str
    worker_id: str
    trace: str = ""


class Cluster:
    """The workers on one broker; `with` ends those that are left."""

    def __init__(
        self, server: ServerProcess, classpath: str, work_dir: Path, *, is_exactly_once: bool
    ) -> None:
        self.server = server
        self.work_dir = work_dir
        self.is_exactly_once = is_exactly_once
        self.workers: list[Worker] = []
        # How many tasks had to be started again because of the producer's race.
        self.restarts = 0
        self._classpath = classpath
        self._started = 0

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            if worker.is_alive:
                worker.kill()

    @property
    def servers(self) -> str:
        return self.server.bootstrap_servers

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def create_topic(self, name: str, partitions: int) -> str:
        # The name keeps the client alive, without which its futures fail.
        admin = self.admin
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
        return name

    # Workers --------------------------------------------------------------------------------------

    def start(self, count: int) -> None:
        """Have so many workers that know each other."""
        settings = {
            "bootstrap.servers": self.servers,
            # A source's records and offsets are written in one transaction (KIP-618).
            "exactly.once.source.support": "enabled" if self.is_exactly_once else "disabled",
        }
        while len(self.workers) < count:
            self._started += 1
            name = f"worker-{self._started}"
            self.workers.append(Worker(name, self._classpath, self.work_dir, settings))
        for worker in self.workers:
            wait_for(functools.partial(self._is_ready, worker), f"{worker.name} answers")

    @staticmethod
    def _is_ready(worker: Worker) -> bool:
        assert worker.is_alive, f"{worker.name} ended: {worker.log_tail()}"
        try:
            worker.ask("GET", "/connectors")
        except (urllib.error.URLError, OSError):
            return False
        return True

    def kill(self, worker_id: str) -> None:
        worker = next(one for one in self.workers if one.id == worker_id)
        self.workers.remove(worker)
        worker.kill()

    def close_all(self) -> None:
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.close()

    # Connectors -----------------------------------------------------------------------------------

    def create(self, name: str, config: dict[str, Any]) -> None:
        """A connector; returns when all of its tasks run."""
        body = {"name": name, "config": {**config, "tasks.max": str(config["tasks.max"])}}
        wait_for(lambda: self._is_told("POST", "/connectors", body), f"{name} is created")
        self.wait_until_running(name, int(config["tasks.max"]))

    def delete(self, name: str) -> None:
        wait_for(lambda: self._is_told("DELETE", f"/connectors/{name}"), f"{name} is deleted")

    def _is_told(self, method: str, path: str, body: object = None) -> bool:
        """Whether the cluster took a command; while it rebalances it answers with a conflict."""
        try:
            self.workers[0].ask(method, path, body)
        except urllib.error.HTTPError as refusal:
            assert refusal.code in (409, 500, 503), f"{path}: {refusal.code} {refusal.read()!r}"
            return False
        except OSError:
            return False
        return True

    def tasks(self, name: str) -> list[Task]:
        try:
            status = self.workers[0].ask("GET", f"/connectors/{name}/status")
        except OSError:
            return []
        return [
            Task(
                number=task["id"],
                state=task["state"],
                worker_id=task["worker_id"],
                trace=task.get("trace", ""),
            )
            for task in status["tasks"]
        ]

    def check_tasks(self, name: str) -> None:
        """No task of a connector has failed, but for the race, after which it is started again."""
        for task in self.tasks(name):
            if task.state == "FAILED":
                assert _PRODUCER_RACE in task.trace, f"{name}: {task.trace[:400]}"
                path = f"/connectors/{name}/tasks/{task.number}/restart"
                self.restarts += self._is_told("POST", path)

    def wait_until_running(self, name: str, tasks: int) -> None:
        """All tasks run, on workers that live."""

        def is_running() -> bool:
            self.check_tasks(name)
            living = {worker.id for worker in self.workers}
            found = self.tasks(name)
            running = [t for t in found if t.state == "RUNNING" and t.worker_id in living]
            return len(running) == tasks == len(found)

        wait_for(is_running, f"{tasks} tasks of {name} run", lambda: self.tasks(name))
