"""The driver of `crash_app` from outside: started, held, killed, and what came of it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from patience import TOO_SLOW
from source_kit import create

from support.broker_process import BrokerProcess, wait_until

LIMIT_S = 600
PARTITIONS = 2
KEYS = 20


class Held(NamedTuple):
    """Who is held, and in which batch."""

    pid: int
    batch_id: int


class Application:
    """A driver, over all its lives; one folder."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.folder = folder
        self.broker = broker
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("queries", "holds", "checkpoints"):
            (folder / name).mkdir(parents=True)

    # Its life -------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        (self.folder / "pids").unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (self.folder / "app.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("crash_app.py")), str(self.folder)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self.folder,
            )

    def pids(self) -> tuple[int, int]:
        """Of Python and its JVM, once the session is up."""
        path = self.folder / "pids"
        self.wait(path.exists, "the session")
        python, java = json.loads(path.read_text())
        return python, java

    def kill(self) -> None:
        """The driver is gone at once, both of its processes."""
        assert self._process is not None
        for pid in reversed(self.pids()):
            os.kill(pid, signal.SIGKILL)
        self._process.wait(60)
        self._process = None

    def stop(self) -> None:
        if self._process is None:
            return
        (self.folder / "stop").touch()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            if (self.folder / "pids").exists():
                self.kill()
            else:
                self._process.kill()
                self._process.wait(60)

    def wait(self, condition: Any, what: str) -> None:
        ok = wait_until(lambda: condition() or not self.is_running, LIMIT_S, 0.02)
        assert ok and condition(), f"waited for {what}; {self.story()}"

    def story(self) -> str:
        log = (self.folder / "app.log").read_text(errors="replace")[-3000:]
        return f"running: {self.is_running}; failures: {self.failures()}\n{log}"

    def failures(self) -> list[tuple[str, str]]:
        """Queries that failed, and why; they were started again.

        Without those whose processes took longer to start than Spark waits: a busy machine.
        """
        path = self.folder / "failures"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [(name, why) for name, why in map(json.loads, lines)]
        return [(name, why) for name, why in found if TOO_SLOW not in why]

    def children(self, of: int, word: str) -> list[int]:
        """Processes below another one whose command line has a word."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
                parents[int(path.parent.name)] = int(fields[1])
            except (OSError, IndexError):
                continue  # it ended
        below, found = {of}, []
        while more := {pid for pid, parent in parents.items() if parent in below} - below:
            below |= more
        for pid in below - {of}:
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if word in line:
                found.append(pid)
        return found


@dataclass(slots=True)
class Query:
    """A query from one topic to another, and all that was sent to the first."""

    application: Application
    name: str
    starting: str
    is_exactly_once: bool
    sent: dict[tuple[int, int], tuple[bytes, int]]
    count: int = 0

    @classmethod
    def make(
        cls, application: Application, name: str, starting: str, *, exactly_once: bool
    ) -> "Query":
        bootstrap = application.broker.bootstrap
        for topic in (f"{name}-in", f"{name}-out"):
            create(bootstrap, topic, PARTITIONS)
        return cls(application, name, starting, exactly_once, {})

    def _file(self, point: str, ending: str) -> Path:
        return self.application.folder / "holds" / f"{self.name}.{point}.{ending}"

    def run(self) -> None:
        """Have the application run it, now and whenever it is up."""
        bootstrap = self.application.broker.bootstrap
        given = {
            "source": {
                "kafka.bootstrap.servers": bootstrap,
                "subscribe": f"{self.name}-in",
                "startingOffsets": self.starting,
                "branches": "2",
                "minRecordsPerBranch": "1",
                "kafka.group.id": self.name,
            },
            "sink": {
                "kafka.bootstrap.servers": bootstrap,
                "topic": f"{self.name}-out",
                "exactlyOnce": str(self.is_exactly_once).lower(),
                "kafka.linger.ms": "0",
            },
        }
        path = self.application.folder / "queries" / f"{self.name}.new"
        path.write_text(json.dumps(given))
        path.rename(path.with_suffix(".json"))

    def end(self) -> None:
        (self.application.folder / "queries" / f"{self.name}.json").unlink()

    # Records --------------------------------------------------------------------------------------

    def send(self, count: int) -> None:
        """Write numbered records, and note where they are."""
        producer = Producer(
            {"bootstrap.servers": self.application.broker.bootstrap, "linger.ms": 5}
        )

        def note(error: Any, message: Any) -> None:
            assert error is None, error
            place = (message.partition(), message.offset())
            self.sent[place] = (message.key(), int(message.value()))

        for number in range(self.count, self.count + count):
            key = number % KEYS
            producer.produce(
                f"{self.name}-in",
                key=b"key-%d" % key,
                value=b"%d" % number,
                partition=key % PARTITIONS,
                on_delivery=note,
            )
        assert producer.flush(60) == 0
        self.count += count

    # Holding --------------------------------------------------------------------------------------

    def arm(self, point: str) -> None:
        for ending in ("held", "go"):
            self._file(point, ending).unlink(missing_ok=True)
        self._file(point, "arm").touch()

    def held(self, point: str) -> Held:
        path = self._file(point, "held")
        self.application.wait(path.exists, f"{self.name} at {point}")
        found = json.loads(path.read_text())
        return Held(found["pid"], found["batch"])

    def let_go(self, point: str) -> None:
        self._file(point, "go").touch()

    # What is known of it --------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.application.folder / "checkpoints" / self.name

    def is_logged(self, folder: str, batch_id: int) -> bool:
        """Whether Spark has written a batch into its log `offsets` or `commits`."""
        return (self.checkpoint / folder / str(batch_id)).exists()

    def lags(self) -> list[int]:
        """The group's lag by partition; all of the log where it has committed nothing."""
        consumer = Consumer(
            {"bootstrap.servers": self.application.broker.bootstrap, "group.id": self.name}
        )
        try:
            places = [TopicPartition(f"{self.name}-in", number) for number in range(PARTITIONS)]
            committed = consumer.committed(places, timeout=30)
            ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
            return [end - max(0, place.offset) for place, end in zip(committed, ends, strict=True)]
        finally:
            consumer.close()

    def wait_for_all(self) -> None:
        """Until the group shows that all that was sent is done, by Spark's own log."""
        self.application.wait(lambda: not any(self.lags()), f"{self.name} to get on")

    def began_at(self) -> dict[int, int]:
        """Where the checkpoint says that the query began."""
        lines = (self.checkpoint / "offsets" / "0").read_text().splitlines()
        began = json.loads(lines[-1])["__from__"][f"{self.name}-in"]
        return {int(partition): offset for partition, offset in began.items()}

    def check(self) -> None:
        """Gapless; and with the exactly-once sink duplicate-free and in the order of keys."""
        began = self.began_at()
        expected: dict[bytes, list[int]] = defaultdict(list)
        for (partition, offset), (key, number) in sorted(self.sent.items()):
            if offset >= began[partition]:
                expected[key].append(number)
        found: dict[bytes, list[int]] = defaultdict(list)
        for key, number in self._written():
            found[key].append(number)
        if not self.is_exactly_once:
            found = {key: list(dict.fromkeys(sorted(numbers))) for key, numbers in found.items()}
        assert found == expected, self.name

    def _written(self) -> list[tuple[bytes, int]]:
        """What a reader of committed records finds, up to records that are written now."""
        bootstrap, topic = self.application.broker.bootstrap, f"{self.name}-out"
        producer = Producer({"bootstrap.servers": bootstrap})
        for partition in range(PARTITIONS):
            producer.produce(topic, value=b"end", partition=partition)
        assert producer.flush(60) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "crash-kit",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found: list[tuple[bytes, int]] = []
        missing = set(range(PARTITIONS))
        try:
            while missing:
                message = consumer.poll(60)
                assert message is not None, f"the end of {topic} cannot be read: {missing}"
                assert message.error() is None, message.error()
                if message.value() == b"end":
                    missing.discard(message.partition())
                else:
                    found.append((message.key(), int(message.value())))
        finally:
            consumer.close()
        return found


class Trickle:
    """Records that keep coming, to some queries, while something else happens."""

    def __init__(self, queries: list[Query]) -> None:
        self._queries = queries
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Trickle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        # A source waits for records for half a second before it takes the log as it is.
        while not self._done.wait(0.2):
            for query in self._queries:
                query.send(2 * KEYS)
