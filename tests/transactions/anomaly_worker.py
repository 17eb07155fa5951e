"""Random transactions of one stock client in a process of its own, telling what becomes of them.

    python anomaly_worker.py BOOTSTRAP HISTORY PROCESS TRANSACTIONAL_ID MODE SEED PARTITIONS

The events are those of `anomalies`. MODE says how the client reads: `assign` reads partitions of
its own choice, `kafka-python` does so and writes with that client, `classic` and `consumer` are
members of the group of that name, whose offsets go with the transactions. SIGTERM ends it after the
present transaction; SIGUSR1 makes one transaction last longer than its timeout; after SIGHUP it
stops itself (SIGSTOP) when it has read something and is about to commit it.

Exit code: 0, or FENCED when somebody else has the transactional id.
"""

import faulthandler
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anomaly_clients import Aborted, Fenced, KafkaPythonProducer, call
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from worker import Telling

FENCED = 4
GROUPS = ("classic", "consumer")
TIMEOUT_MS = 6_000
SESSION_MS = 4_000
_CALL_S = 10.0
_POLL_MAX = 10

Steps = list[list[Any]]


def partition_of(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


class Reader:
    """The consumer of a worker: where it is, and what moved meanwhile."""

    def __init__(self, bootstrap: str, mode: str, partitions: Sequence[str]) -> None:
        self._bootstrap = bootstrap
        self.group = mode if mode in GROUPS else None
        self._partitions = partitions
        self.positions: dict[str, int] = {}
        """Where the partitions that were chosen are read from after the present transaction."""
        self.first: dict[str, int] = {}
        """What was read first in the present transaction, of what has not moved since."""
        self.ends: dict[str, int] = {}
        self.moved: set[str] = set()
        self.is_torn = False
        """Something that was read in the present transaction is somebody else's now."""
        self.metadata: Any = None
        self.consumer = self._make()

    def _make(self) -> Consumer:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self.group or "nobody",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        if self.group == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings["session.timeout.ms"] = SESSION_MS
            settings["heartbeat.interval.ms"] = 500
        return Consumer(settings)

    def subscribe(self) -> None:
        topics = sorted({partition_of(one)[0] for one in self._partitions})
        self.consumer.subscribe(
            topics, on_assign=self._move, on_revoke=self._move, on_lost=self._move
        )

    def assign(self, partitions: Sequence[str]) -> dict[str, int]:
        """Read other partitions, each from where it was left."""
        places = {one: self.positions.get(one, 0) for one in partitions}
        self.positions.update(places)
        self.consumer.assign([TopicPartition(*partition_of(p), o) for p, o in places.items()])
        return places

    def _move(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            name = f"{one.topic}-{one.partition}"
            self.moved.add(name)
            self.is_torn = self.is_torn or name in self.ends
            self.first.pop(name, None)

    def begin(self) -> None:
        self.first, self.ends, self.moved = {}, {}, set()
        self.is_torn, self.metadata = False, None

    def poll(self, count: int, timeout_s: float) -> dict[str, list[list[Any]]]:
        found: dict[str, list[list[Any]]] = {}
        for _ in range(count):
            message = self.consumer.poll(timeout_s)
            timeout_s = 0.0
            if message is None or message.error() is not None:
                continue
            name = f"{message.topic()}-{message.partition()}"
            found.setdefault(name, []).append([message.offset(), message.value().decode()])
            self.first.setdefault(name, message.offset())
            self.ends[name] = message.offset() + 1
        if found and self.group is not None:
            # As soon as possible: librdkafka forgets who it was when it is told that it is nobody,
            # and offsets without a member are not fenced.
            self.metadata = self.consumer.consumer_group_metadata()
            if not self.consumer.memberid():
                self.is_torn = True
        return found

    def offsets(self) -> list[TopicPartition]:
        return [TopicPartition(*partition_of(name), end) for name, end in self.ends.items()]

    def go_on(self) -> None:
        """The transaction counts."""
        self.positions.update((k, v) for k, v in self.ends.items() if k in self.positions)

    def go_back(self, *, asks: bool) -> bool:
        """The transaction does not count; False when another consumer had to be made.

        Who `asks` goes to what the broker says is committed, others to what they remember.
        """
        if self.group is None:
            places = [
                TopicPartition(one.topic, one.partition, self.positions[self._name(one)])
                for one in self.consumer.assignment()
            ]
            self.consumer.assign(places)
            return True
        places = [TopicPartition(*partition_of(name), o) for name, o in self.first.items()]
        try:
            if asks and places:
                places = self.consumer.committed(places, timeout=_CALL_S)
            for one in places:
                one.offset = max(one.offset, 0)  # nothing was ever committed there
                self.consumer.seek(one)
        except KafkaException:
            self.consumer.close()
            self.consumer = self._make()
            return False
        return True

    @staticmethod
    def _name(one: TopicPartition) -> str:
        return f"{one.topic}-{one.partition}"


class Worker:
    """The client."""

    def __init__(
        self,
        bootstrap: str,
        tell: Telling,
        process: str,
        transactional_id: str,
        mode: str,
        seed: int,
        partitions: Sequence[str],
    ) -> None:
        self._told = tell
        self._process = process
        self._random = random.Random(f"{seed} {process}")
        self._partitions = partitions
        self._numbers = 0
        self._is_ending = self._is_slow = self._stops = False
        self._reader = Reader(bootstrap, mode, partitions)
        self._producer = _producer(bootstrap, transactional_id, mode)

    def _tell(self, f: str, kind: str, **facts: Any) -> None:
        self._told(kind, process=self._process, f=f, **facts)

    def end(self, *_: Any) -> None:
        self._is_ending = True

    def be_slow(self, *_: Any) -> None:
        self._is_slow = True

    def stop_soon(self, *_: Any) -> None:
        self._stops = True

    def run(self) -> None:
        call(self._producer.init_transactions)
        self._read_anew()
        while not self._is_ending:
            if self._reader.group is None and self._random.random() < 0.1:
                self._read_anew()
            self._transact()
            time.sleep(self._random.uniform(0.0, 0.03))
        self._reader.consumer.close()

    def _read_anew(self) -> None:
        if self._reader.group is not None:
            self._reader.subscribe()
            self._tell("subscribe", "ok", group=self._reader.group)
            return
        count = self._random.randint(1, len(self._partitions))
        places = self._reader.assign(self._random.sample(self._partitions, count))
        self._tell("assign", "ok", value=places)

    # A transaction --------------------------------------------------------------------------------

    def _plan(self) -> Steps:
        steps: Steps = []
        for _ in range(self._random.randint(1, 5)):
            if self._random.random() < 0.45:
                steps.append(["poll", {}])
            else:
                self._numbers += 1
                partition = self._random.choice(self._partitions)
                steps.append(["send", partition, [None, f"{self._process}-{self._numbers}"]])
        return steps

    def _transact(self) -> None:
        steps = self._plan()
        has_sends = any(step[0] == "send" for step in steps)
        has_asked = False
        self._reader.begin()
        self._tell("txn", "invoke", value=steps)
        try:
            self._producer.begin_transaction()
            for step in steps:
                self._take(step)
            self._send_offsets()
            if self._random.random() < 0.15:
                raise Aborted("as planned")
            if self._is_slow:
                self._is_slow = False
                time.sleep(TIMEOUT_MS / 1000 * 1.3)
            call(self._producer.flush) if has_sends else None
            has_asked = True
            self._tell("txn", "commit", value=steps)
            call(self._producer.commit_transaction)
            self._producer.poll(0)
        except Aborted as reason:
            self._give_up(steps, str(reason), has_asked)
        except (Fenced, KafkaException) as reason:
            outcome = "info" if has_asked else "fail"
            self._end(outcome, steps, str(reason))
            raise Fenced(str(reason)) from reason
        else:
            self._reader.go_on()
            self._end("ok", steps)

    def _take(self, step: list[Any]) -> None:
        if step[0] == "poll":
            found = self._reader.poll(self._random.randint(1, _POLL_MAX), 0.1)
            step[1].update(found)
            if self._reader.is_torn:
                raise Aborted("rebalanced")
            return
        _, name, sent = step
        topic, partition = partition_of(name)

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                sent[0] = message.offset()

        self._producer.produce(topic, sent[1], partition=partition, on_delivery=delivered)
        if self._random.random() < 0.5:
            call(self._producer.flush)

    def _send_offsets(self) -> None:
        if self._reader.metadata is not None:
            if self._stops:
                self._stops = False
                os.kill(os.getpid(), signal.SIGSTOP)
            call(
                self._producer.send_offsets_to_transaction,
                self._reader.offsets(),
                self._reader.metadata,
            )

    def _give_up(self, steps: Steps, reason: str, has_asked: bool) -> None:
        try:
            call(self._producer.abort_transaction)
        except (Aborted, Fenced) as error:
            self._end("info" if has_asked else "fail", steps, f"{reason}, {error}")
            raise Fenced(str(error)) from error
        self._end("fail", steps, reason)
        if not self._reader.go_back(asks=self._random.random() < 0.5):
            self._read_anew()

    def _end(self, outcome: str, steps: Steps, error: str = "") -> None:
        self._tell("txn", outcome, value=steps, moved=sorted(self._reader.moved), error=error)


def _producer(bootstrap: str, transactional_id: str, mode: str) -> Any:
    if mode == "kafka-python":
        return KafkaPythonProducer(bootstrap, transactional_id, TIMEOUT_MS)
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
            # librdkafka forgets its brokers when none is there, and then offsets may wait for
            # good for one of those (its issue 5511, open with 2.16).
            "metadata.recovery.strategy": "none",
            "log_level": 0,
            "error_cb": lambda error: None,
        }
    )


def main() -> int:
    bootstrap, history, process, transactional_id, mode, seed, partitions = sys.argv[1:]
    tell = Telling(Path(history))
    worker = Worker(
        bootstrap, tell, process, transactional_id, mode, int(seed), partitions.split(",")
    )
    faulthandler.register(signal.SIGUSR2)  # says where it hangs
    signal.signal(signal.SIGUSR1, worker.be_slow)
    signal.signal(signal.SIGHUP, worker.stop_soon)
    signal.signal(signal.SIGTERM, worker.end)
    tell("ready", process=process, f="ready")
    try:
        worker.run()
    except Fenced as error:
        print(f"fenced: {error}", file=sys.stderr)
        return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main())
