"""A Kafka Streams application that counts words: its input, its processes, and what it left.

The input is made here, so the true counts are known. The processes are killed from outside; what
they wrote is judged only by what the broker shows to a reader.
"""

from __future__ import annotations

import collections
import functools
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from member_history import HistoryProcess
from server_process import ServerProcess

HERE = Path(__file__).resolve().parent
SESSION_MS = 3_000
TRANSACTION_TIMEOUT_MS = 6_000
COMMIT_INTERVAL_MS = 100
PARTITION_COUNT = 4
LINE_COUNT = 10_000
LINES_PER_SECOND = 200
WORDS_PER_LINE = 6
PATIENCE_SECONDS = 60.0
_VOCABULARY = [f"word-{number}" for number in range(400)]
_JAVA_OPTIONS = [
    "-Xmx192m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
]
_SETTINGS = {
    "group.protocol": "classic",
    "commit.interval.ms": COMMIT_INTERVAL_MS,
    "num.stream.threads": 2,
    "num.standby.replicas": 0,
    "main.consumer.session.timeout.ms": SESSION_MS,
    "main.consumer.heartbeat.interval.ms": SESSION_MS // 4,
    "main.consumer.auto.offset.reset": "earliest",
    "producer.transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    # Records leave at once, so that a kill finds some of them in an open transaction.
    "producer.linger.ms": 0,
    # What has been counted is deleted from the repartition topic within the run.
    "repartition.purge.interval.ms": 2_000,
    "replication.factor": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One record of the output."""

    partition: int
    offset: int
    word: str
    count: int


@dataclass(slots=True, kw_only=True)
class Target:
    """What the stories run against, and what has been played so far."""

    server: ServerProcess
    classpath: str
    work_dir: Path
    seed: int
    processing_guarantee: str
    played: dict[str, WordCount] = field(default_factory=dict)


class Lines:
    """Lines that keep coming until `stop`, and at least `LINE_COUNT` of them."""

    def __init__(self, bootstrap_servers: str, topic: str, choice: random.Random) -> None:
        self.words: collections.Counter[str] = collections.Counter()
        self.count = 0
        self._topic = topic
        self._choice = choice
        # Idempotent: a restart of the broker must neither lose a line nor double it.
        settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}
        self._producer = Producer({**settings, "linger.ms": 5, "log_level": 0})
        self._problems: list[str] = []
        self._is_stopping = False
        # The words of a text are not equally frequent: some are in every transaction.
        self._weights = [1 / (rank + 1) for rank in range(len(_VOCABULARY))]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._is_stopping or self.count < LINE_COUNT:
            words = self._choice.choices(_VOCABULARY, self._weights, k=WORDS_PER_LINE)
            self.words.update(words)
            line = " ".join(words).encode()
            key = str(self.count).encode()
            self._producer.produce(self._topic, line, key, on_delivery=self._delivered)
            self._producer.poll(0)
            self.count += 1
            early = began + self.count / LINES_PER_SECOND - time.monotonic()
            # Once nothing more is going to be killed, the rest comes at full speed.
            if early > 0 and not self._is_stopping:
                time.sleep(early)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._problems.append(str(error))

    def stop(self) -> None:
        """Every line has been acknowledged."""
        self._is_stopping = True
        self._thread.join()
        left = self._producer.flush(PATIENCE_SECONDS)
        assert not left and not self._problems, f"{left} lines left, {self._problems[:3]}"


class Follower:
    """Reads the committed counts as they come, over all that happens to the broker."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.counts: list[Count] = []
        self._is_stopping = False
        self._consumer = _consumer(bootstrap_servers, "read_committed")
        self._consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITION_COUNT)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping:
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self.counts.append(_count_of(message))

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join()
        self._consumer.close()


class WordCount:
    """One application on a broker, with its topics, and the processes that it has had."""

    def __init__(self, target: Target, name: str) -> None:
        self.server = target.server
        self.name = name
        self.input_topic = f"{name}-lines"
        self.output_topic = f"{name}-counts"
        self.changelog_topic = f"{name}-counts-changelog"
        self.repartition_topic = f"{name}-words-repartition"
        self.choice = random.Random(f"{target.seed} {name}")
        self.processes: list[HistoryProcess] = []
        self.kill_count = 0
        self._target = target
        self._create_topics()
        self.follower = Follower(self.servers, self.output_topic)
        self.lines = Lines(self.servers, self.input_topic, random.Random(target.seed))

    @property
    def servers(self) -> str:
        return self.server.bootstrap_servers

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        topics = [NewTopic(t, PARTITION_COUNT, 1) for t in (self.input_topic, self.output_topic)]
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_SECONDS)

    # What is done to it ---------------------------------------------------------------------------

    def start(self, instance: str = "a") -> HistoryProcess:
        """A process; the same instance finds the state folder of its predecessor."""
        settings = {
            **_SETTINGS,
            "processing.guarantee": self._target.processing_guarantee,
            "state.dir": self.state_dir(instance),
        }
        name = f"{self.name}-{instance}-{len(self.processes)}"
        command = [
            *("java", *_JAVA_OPTIONS, "-cp", self._target.classpath, "anabranch.streams.WordCount"),
            *(self.servers, self.name, self.input_topic, self.output_topic),
            *(f"{key}={value}" for key, value in settings.items()),
        ]
        process = HistoryProcess(name, command, self._target.work_dir / f"{name}.log")
        self.processes.append(process)
        return process

    def state_dir(self, instance: str) -> Path:
        return self._target.work_dir / f"{self.name}-state-{instance}"

    def kill(self, process: HistoryProcess) -> None:
        process.check_alive()
        process.kill()
        self.kill_count += 1

    def lose_state(self, instance: str) -> None:
        """All is restored from the changelog, and the old transactional ids never come back."""
        shutil.rmtree(self.state_dir(instance))

    def sleep(self, shortest_seconds: float, longest_seconds: float) -> None:
        time.sleep(self.choice.uniform(shortest_seconds, longest_seconds))

    def wait_for_counts(self, more: int = 1) -> None:
        """Wait until some more words than now have been counted and committed."""
        wanted = len(self.follower.counts) + more
        self._wait(lambda: len(self.follower.counts) >= wanted, f"{more} more counts")

    def finish(self) -> None:
        """All lines are counted, and all processes have closed in order."""
        self.lines.stop()
        wanted = self.lines.words.total()
        self._wait(lambda: len(self.follower.counts) >= wanted, "a count for every word")
        # One too many would come soon.
        time.sleep(10 * COMMIT_INTERVAL_MS / 1000)
        for process in self.processes:
            if process.is_running:
                process.close()
        self.follower.stop()

    def end(self) -> None:
        """Whatever still runs is ended."""
        for process in self.processes:
            if process.is_running:
                process.kill()

    def _wait(self, is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            for process in self.processes:
                process.check_alive()
            assert time.monotonic() < deadline, (
                f"not in {PATIENCE_SECONDS:.0f} s: {what}; {len(self.follower.counts)} counts of"
                f" {self.lines.words.total()} words so far"
            )
            time.sleep(0.05)

    # What it left ---------------------------------------------------------------------------------

    def uncaught(self) -> list[str]:
        """What ended a thread of a process."""
        return [event["detail"] for p in self.processes for event in p.of("uncaught")]

    def output(self, isolation_level: str = "read_committed") -> list[Count]:
        """The output from its beginning to its end."""
        return [_count_of(m) for m in self._read(self.output_topic, isolation_level)]

    def input_words(self) -> collections.Counter[str]:
        messages = self._read(self.input_topic, "read_committed")
        return collections.Counter(w for m in messages for w in _text(m.value()).split(" "))

    def changelog(self) -> dict[str, int]:
        """The last committed state of the store, which has its counts as eight bytes."""
        messages = self._read(self.changelog_topic, "read_committed")
        return {_text(m.key()): int.from_bytes(m.value() or b"", "big") for m in messages}

    def input_lag(self) -> dict[int, int]:
        """How far the group's offsets are behind the end of the input, by partition."""
        consumer = _consumer(self.servers, "read_committed", self.name)
        try:
            partitions = [TopicPartition(self.input_topic, n) for n in range(PARTITION_COUNT)]
            committed = consumer.committed(partitions, timeout=PATIENCE_SECONDS)
            ends = [consumer.get_watermark_offsets(p, timeout=PATIENCE_SECONDS) for p in partitions]
            return {
                p.partition: end - p.offset for p, (_, end) in zip(committed, ends, strict=True)
            }
        finally:
            consumer.close()

    def unstable(self) -> dict[str, int]:
        """How many offsets an open transaction keeps from readers, by topic."""
        topics = (self.output_topic, self.changelog_topic, self.repartition_topic)
        partitions = [TopicPartition(topic, n) for topic in topics for n in range(PARTITION_COUNT)]
        ends: dict[str, list[int]] = {}
        for isolation_level in ("read_uncommitted", "read_committed"):
            consumer = _consumer(self.servers, isolation_level)
            watermarks = functools.partial(
                consumer.get_watermark_offsets, timeout=PATIENCE_SECONDS, cached=False
            )
            ends[isolation_level] = [watermarks(partition)[1] for partition in partitions]
            consumer.close()
        return {
            f"{partition.topic}-{partition.partition}": end - stable
            for partition, end, stable in zip(partitions, *ends.values(), strict=True)
            if end != stable
        }

    def purged(self) -> int:
        """How many records were deleted from the beginning of the repartition topic."""
        consumer = _consumer(self.servers, "read_committed")
        try:
            partitions = [TopicPartition(self.repartition_topic, n) for n in range(PARTITION_COUNT)]
            return sum(
                consumer.get_watermark_offsets(p, timeout=PATIENCE_SECONDS)[0] for p in partitions
            )
        finally:
            consumer.close()

    def _read(self, topic: str, isolation_level: str) -> list[Message]:
        consumer = _consumer(self.servers, isolation_level)
        messages: list[Message] = []
        try:
            consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITION_COUNT)])
            is_at_end = [False] * PARTITION_COUNT
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not all(is_at_end):
                assert time.monotonic() < deadline, f"the end of {topic} is not reached"
                for message in consumer.consume(1000, 0.5):
                    problem = message.error()
                    if problem is None:
                        messages.append(message)
                    elif problem.code() == KafkaError._PARTITION_EOF:
                        is_at_end[message.partition() or 0] = True
        finally:
            consumer.close()
        return messages


def _consumer(bootstrap_servers: str, isolation_level: str, group: str = "-") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )


def _count_of(message: Message) -> Count:
    return Count(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        word=_text(message.key()),
        count=int(message.value() or b"-1"),
    )


def _text(data: bytes | str | None) -> str:
    return data.decode() if isinstance(data, bytes) else data or ""
