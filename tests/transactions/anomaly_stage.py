"""A broker, some partitions, a crew of transactional clients, and a schedule of faults."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from anomaly_clients import PATIENCE_S
from anomaly_worker import FENCED, GROUPS, SESSION_MS, TIMEOUT_MS, partition_of
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from worker import Telling

from support.broker_process import BrokerProcess
from support.topics import create_topic

HERE = Path(__file__).parent
TOPICS = {"x": 2, "y": 2}
PARTITIONS = [f"{topic}-{number}" for topic, size in TOPICS.items() for number in range(size)]
BROKER_SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


class Process:
    """One incarnation of a client."""

    def __init__(self, name: str, mode: str, number: int, folder: Path) -> None:
        self.name = f"{name}.{number}"
        self.history = folder / f"{self.name}.jsonl"
        self._transactional_id = name
        self._mode = mode
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, bootstrap: str, seed: int) -> None:
        self.history.touch()
        arguments = [bootstrap, str(self.history), self.name, self._transactional_id]
        arguments += [self._mode, str(seed), ",".join(PARTITIONS)]
        paths = [str(HERE.parent / "cooperative"), os.environ.get("PYTHONPATH", "")]
        with self.history.with_suffix(".log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(HERE / "anomaly_worker.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_stopped(self) -> bool:
        assert self.process is not None
        with contextlib.suppress(FileNotFoundError):
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    @property
    def code(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    def committed(self) -> int:
        """How many transactions it says are committed."""
        return self.history.read_bytes().count(b'"type":"ok","process":"%b","f":"txn"' % self.raw)

    @property
    def raw(self) -> bytes:
        return self.name.encode()

    @property
    def is_ready(self) -> bool:
        return self.history.stat().st_size > 0

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            assert self.process is not None
            self.process.send_signal(number)

    def abandon(self) -> None:
        if self.is_running:
            assert self.process is not None
            self.process.kill()
            self.process.wait(20)


class Slot:
    """A transactional id, and the processes that had it; the last one has it now."""

    def __init__(self, name: str, mode: str, folder: Path) -> None:
        self.name = name
        self.mode = mode
        self._folder = folder
        self._numbers = count(1)
        self.processes: list[Process] = []

    def start(self, bootstrap: str, seed: int) -> Process:
        process = Process(self.name, self.mode, next(self._numbers), self._folder)
        self.processes.append(process)
        process.start(bootstrap, seed)
        return process

    @property
    def now(self) -> Process:
        return self.processes[-1]


class Stage:
    """What is played."""

    def __init__(
        self, broker: BrokerProcess, folder: Path, modes: Sequence[str], seed: int
    ) -> None:
        self.broker = broker
        self._folder = folder
        self._seed = seed
        self._random = random.Random(seed)
        self._tell = Telling(folder / "stage.jsonl", process="stage")
        self._killed: set[str] = set()
        for topic, size in TOPICS.items():
            create_topic(broker.bootstrap, topic, size)
        for group in GROUPS:
            self._begin_at_zero(group)
        self.slots = [Slot(f"{m}-{n}", m, folder) for n, m in enumerate(modes)]
        for slot in self.slots:
            slot.start(broker.bootstrap, seed)

    def _begin_at_zero(self, group: str) -> None:
        """Where nothing is committed librdkafka asks for the beginning, and when it is rebalanced
        meanwhile it asks again half a second later, and goes back there (seen with 2.16)."""
        consumer = self._consumer(group)
        zeros = [TopicPartition(*partition_of(name), 0) for name in PARTITIONS]
        consumer.commit(offsets=zeros, asynchronous=False)
        consumer.close()

    # Faults ---------------------------------------------------------------------------------------

    @property
    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "kill": self.kill,
            "pause": self.pause,
            "freeze": self.freeze,
            "double": self.double,
            "slow": self.slow,
            "crash-broker": self.crash_broker,
            "crash-broker-and-kill": self.crash_broker_and_kill,
            "restart-broker": self.broker.restart,
        }

    def _one(self, modes: Sequence[str] = ()) -> Slot:
        """A client at work."""
        slot = self._random.choice([one for one in self.slots if not modes or one.mode in modes])
        self.tend()
        self.wait_for(lambda: self._is_at_work(slot), f"work of {slot.name}")
        return slot

    def _is_at_work(self, slot: Slot) -> bool:
        self.tend()
        return slot.now.is_ready

    def kill(self) -> None:
        """kill -9, in mid-transaction as often as not."""
        slot = self._one()
        self._killed.add(slot.now.name)
        slot.now.abandon()

    def pause(self) -> None:
        """One stops for longer than its session and its transaction last, while another has its id;
        then it goes on with whatever it was at."""
        slot = self._one()
        zombie = slot.now
        zombie.signal(signal.SIGSTOP)
        try:
            slot.start(self.broker.bootstrap, self._seed)
            self.play_on(1.2 * max(SESSION_MS, TIMEOUT_MS) / 1000)
        finally:
            zombie.signal(signal.SIGCONT)

    def freeze(self) -> None:
        """A member stops when it is about to commit, for longer than its session lasts and not as
        long as its transaction: it goes on with offsets that are others' by then."""
        frozen = self._one(GROUPS).now
        frozen.signal(signal.SIGHUP)
        self.wait_for(lambda: frozen.is_stopped or not frozen.is_running, "a stop")
        try:
            self.play_on((SESSION_MS + (TIMEOUT_MS - SESSION_MS) / 4) / 1000)
        finally:
            frozen.signal(signal.SIGCONT)

    def double(self) -> None:
        """Two at a time with the same transactional id."""
        self._one().start(self.broker.bootstrap, self._seed)

    def slow(self) -> None:
        """A transaction lasts too long."""
        self._one().now.signal(signal.SIGUSR1)

    def crash_broker(self) -> None:
        self.broker.kill()
        time.sleep(self._random.uniform(0.0, 0.5))
        self.broker.start()

    def crash_broker_and_kill(self) -> None:
        """Both ends are gone; whoever has the id next finds what was left."""
        slot = self._one()
        self.broker.kill()
        self._killed.add(slot.now.name)
        slot.now.abandon()
        self.broker.start()

    # Time -----------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Whoever is gone comes back."""
        for slot in self.slots:
            for process in slot.processes:
                is_fine = process.is_running or process.name in self._killed
                assert is_fine or process.code in (0, FENCED), f"{process.name}\n{self.account()}"
            if not slot.now.is_running:
                slot.start(self.broker.bootstrap, self._seed)

    def committed(self) -> dict[str, int]:
        return {
            slot.name: sum(one.committed() for one in slot.processes if one.is_ready)
            for slot in self.slots
        }

    def play_on(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            self.tend()
            time.sleep(0.1)

    def play_until_all_went_on(self, transactions: int) -> None:
        """Until every client has committed so many more, which is how we know that it can."""
        before = self.committed()

        def have_gone_on() -> bool:
            self.tend()
            now = self.committed()
            return all(now[name] >= before[name] + transactions for name in now)

        self.wait_for(have_gone_on, f"{transactions} transactions of everybody")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.account()}"
            time.sleep(0.05)

    # The end --------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everybody ends; then everything is read once more, and what the groups have."""
        processes = [one for slot in self.slots for one in slot.processes if one.is_running]
        self.wait_for(
            lambda: all(one.is_ready or not one.is_running for one in processes), "readiness"
        )
        for one in processes:
            one.signal(signal.SIGTERM)
        self.wait_for(lambda: not any(one.is_running for one in processes), "the end of all")
        # Who is ending anyway does not listen to signals any more.
        fine = (0, FENCED, -signal.SIGTERM)
        for one in processes:
            assert one.code in fine, f"{one.name}: {one.code}\n{self.account()}"
        self._read_everything()
        for group in GROUPS:
            self._tell_end(group)

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )

    def _read_everything(self) -> None:
        """Up to the very end: open transactions end when their time is up."""
        consumer = self._consumer("nobody")
        places = dict.fromkeys(PARTITIONS, 0)
        ends = {
            name: consumer.get_watermark_offsets(TopicPartition(*partition_of(name)), timeout=30)[1]
            for name in PARTITIONS
        }
        self._tell("ok", f="assign", value=places)
        consumer.assign([TopicPartition(*partition_of(name), 0) for name in PARTITIONS])
        found: dict[str, list[list[Any]]] = {name: [] for name in PARTITIONS}
        self._tell("invoke", f="poll", value=[["poll"]])

        def is_at_the_end() -> bool:
            message = consumer.poll(0.2)
            while message is not None:
                if message.error() is None:
                    name = f"{message.topic()}-{message.partition()}"
                    found[name].append([message.offset(), message.value().decode()])
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                message = consumer.poll(0)
            here = consumer.position([TopicPartition(*partition_of(name)) for name in PARTITIONS])
            return all(one.offset >= ends[f"{one.topic}-{one.partition}"] for one in here)

        self.wait_for(is_at_the_end, "the end of all transactions")
        consumer.close()
        self._tell("ok", f="poll", value=[["poll", found]])

    def _tell_end(self, group: str) -> None:
        consumer = self._consumer(group)
        asked = [TopicPartition(*partition_of(name)) for name in PARTITIONS]
        found: list[TopicPartition] = []

        def are_stable() -> bool:
            with contextlib.suppress(KafkaException):
                found[:] = consumer.committed(asked, timeout=10)
            return bool(found) and all(one.error is None for one in found)

        self.wait_for(are_stable, f"stable offsets of {group}")
        consumer.close()
        ends = {f"{one.topic}-{one.partition}": max(one.offset, 0) for one in found}
        self._tell("ok", f="end", group=group, value=ends)

    def account(self) -> str:
        """The last words of everybody, and where they are."""
        for slot in self.slots:
            slot.now.signal(signal.SIGUSR2)
        time.sleep(0.5)
        logs = sorted(self._folder.glob("*.log"))
        told = [f"{log.name}: " + "\n  ".join(log.read_text().splitlines()[-9:]) for log in logs]
        return "\n".join([*told, self.broker.log_text[-3000:]])

    def abandon(self) -> None:
        for slot in self.slots:
            for process in slot.processes:
                process.signal(signal.SIGCONT)
                process.abandon()
