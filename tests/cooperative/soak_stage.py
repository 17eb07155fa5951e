"""A broker, one partition, a crew of cooperative members, and a schedule of faults."""

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from worker import STOPPED, is_hopeless

from anabranch.branch.slots import slot_of_key
from support.broker_process import BrokerProcess

WORKER = Path(__file__).with_name("worker.py")
TOPIC = "orders"
GROUP = "billing"
KEYS = 200
RATE_PER_S = 250
WORK_MS = 4.0
# As short as a machine that is busy with other tests lets healthy members live with.
SESSION_S = 5.0
BROKER_SETTINGS = {
    "group.consumer.session.timeout.ms": str(round(SESSION_S * 1000)),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "coop.retry.backoff.ms": "20",
    "coop.delivery.limit": "50",
    "coop.disposition": "dlq",
    # Ranges move by load as often as they can.
    "coop.resplit.interval.ms": "100",
}
DLQ = f"{TOPIC}.dlq"
JOURNAL = "__individual_commit_offsets"
BROKER_SWITCH = (ResourceType.BROKER, "", "group.individual.commit.enable")
TOPIC_SWITCH = (ResourceType.TOPIC, TOPIC, "range.fetch.enable")
Switch = tuple[ResourceType, str, str]
_TICK_S = 0.02
# Longer than anything takes on a machine that is busy with other tests.
PATIENCE_S = 150.0
# How long other keys are watched for ranges that move after them.
SHIFT_S = 20.0


class Load:
    """A producer with keys of which some are much more frequent (Zipf), at an even rate."""

    def __init__(
        self,
        bootstrap: str,
        seed: int,
        *,
        is_idempotent: bool = True,
        first: int = 0,
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self.failures: list[str] = []
        self.written = 0
        self._random = random.Random(seed)
        self._numbers = count(first)
        self._keys = [f"key-{number}" for number in range(KEYS)]
        self._weights = list(accumulate(1 / (number + 1) for number in range(KEYS)))
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": is_idempotent,
                "linger.ms": 5,
                "message.timeout.ms": round(PATIENCE_S * 1000),
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def shift(self) -> None:
        """Other keys are the frequent ones from now on."""
        self._random.shuffle(self._keys)

    def stop(self) -> None:
        """Write nothing more, and wait until everything has its answer."""
        self._stopping.set()
        self._thread.join()
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0
        assert self.failures == []

    def abandon(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        due_s = time.monotonic()
        per_tick = round(RATE_PER_S * _TICK_S)
        while not self._stopping.is_set():
            for key in self._random.choices(self._keys, cum_weights=self._weights, k=per_tick):
                value = f"{self._prefix}{next(self._numbers):050}"
                self._producer.produce(TOPIC, value, key, 0, on_delivery=self._answered)
            self._producer.poll(0)
            due_s += _TICK_S
            self._stopping.wait(max(0.0, due_s - time.monotonic()))

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.written += 1


class Member:
    """A name in the group, and the process that has it now."""

    def __init__(self, name: str, folder: Path, worker: Path = WORKER) -> None:
        self.name = name
        self._worker = worker
        self.incarnation = 0
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def history(self) -> Path:
        return self._folder / f"{self.name}-{self.incarnation}.jsonl"

    def start(self, bootstrap: str) -> None:
        self.incarnation += 1
        self.history.touch()
        arguments = [bootstrap, GROUP, TOPIC, str(self.history), self.name, str(self.incarnation)]
        with self.history.with_suffix(".log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(self._worker), *arguments, str(WORK_MS)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_S
        while self.history.stat().st_size == 0:  # before that a signal would be its end
            assert time.monotonic() < deadline, f"{self.name} did not join"
            time.sleep(0.02)
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        return self.history.with_suffix(".log").read_text()

    @property
    def has_started(self) -> bool:
        """Whether it has begun a record."""
        return b'"start"' in self.history.read_bytes()

    def abandon(self) -> None:
        if self.process is not None and self.is_running:
            self.process.kill()
            self.process.wait(60)


class Stage:
    """What is played, and the history of it."""

    def __init__(
        self,
        broker: BrokerProcess,
        folder: Path,
        members: int,
        seed: int,
        *,
        is_idempotent: bool = True,
        worker: Path = WORKER,
        prefix: str = "",
    ) -> None:
        self.broker = broker
        self._folder = folder
        self._was_cut = False
        self._random = random.Random(seed)
        self._events = (folder / "stage.jsonl").open("a", buffering=1)
        self._meet_broker()
        new = NewTopic(TOPIC, 1, config={"range.fetch.enable": "true"})
        self._admin.create_topics([new])[TOPIC].result(30)
        self._new_load = partial(
            Load, broker.bootstrap, seed, is_idempotent=is_idempotent, prefix=prefix
        )
        self.load = self._new_load()
        self.members = [Member(f"member-{number}", folder, worker) for number in range(members)]
        for member in self.members:
            member.start(broker.bootstrap)

    def resume_load(self) -> None:
        """Write again, by another producer."""
        self.load = self._new_load(first=self.load.written)

    def _meet_broker(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    def tell(self, kind: str, **facts: Any) -> None:
        self._events.write(json.dumps({"at": time.monotonic(), "type": kind, **facts}) + "\n")

    def _tell_of(self, kind: str, member: Member) -> None:
        self.tell(kind, member=member.name, incarnation=member.incarnation)

    # Faults ---------------------------------------------------------------------------------------

    @property
    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "kill": self.kill,
            "pause": self.pause,
            "leave": self.leave,
            "slow": self.slow,
            "crash-broker": self.crash_broker,
            "restart-broker": self.restart_broker,
            "storm": self.storm,
            "shift": self.shift,
            "forget": self.forget,
            "turn-broker-off": lambda: self.turn_off_and_on(BROKER_SWITCH),
            "turn-topic-off": lambda: self.turn_off_and_on(TOPIC_SWITCH),
        }

    def strike(self, fault: str) -> None:
        """Let something go wrong, and look at the stable offset before and after."""
        self.tell("fault", fault=fault)
        self.look()
        self.faults[fault]()
        self.look()

    def kill(self) -> None:
        """A member dies without a word, and comes back as another process."""
        member = self._random.choice(self.members)
        member.signal(signal.SIGKILL)
        member.wait()
        self._tell_of("crash", member)
        member.start(self.broker.bootstrap)

    def pause(self) -> None:
        """A member is stopped until its lease is over and its ranges are others', and wakes up.

        It is slow before, so that it wakes up with records that it could begin at once, and with
        others that are done when it is too late.
        """
        member = self._random.choice(self.members)
        member.signal(signal.SIGUSR1)
        time.sleep(1)
        self._tell_of("pause", member)
        member.signal(signal.SIGSTOP)
        time.sleep(SESSION_S * 1.5)
        self._tell_of("resume", member)
        member.signal(signal.SIGCONT)
        member.signal(signal.SIGUSR2)

    def leave(self) -> None:
        """A member leaves in order, and joins again."""
        self._leave(self._random.choice(self.members))

    def _leave(self, member: Member) -> None:
        member.signal(signal.SIGTERM)
        # On a busy machine its session may end before it has told everything.
        assert member.wait() == 0 or "FencedError" in member.log, self.account()
        member.start(self.broker.bootstrap)

    def slow(self) -> None:
        """A member takes a hundred times as long for everything for a while."""
        member = self._random.choice(self.members)
        member.signal(signal.SIGUSR1)
        time.sleep(3)
        member.signal(signal.SIGUSR2)

    def storm(self) -> None:
        """Members come and go faster than ranges can be handed over."""
        for member in self._random.sample(self.members, 3):
            self._leave(member)
            time.sleep(self._random.uniform(0, 0.3))

    def shift(self) -> None:
        """Other keys are the busy ones for a while, and ranges may move after them.

        They need not each time: a group that was cut well for the keys before may be for these.
        """
        before = self.moves
        deadline = time.monotonic() + SHIFT_S
        self.load.shift()
        while self.moves == before and time.monotonic() < deadline:
            time.sleep(1)

    @property
    def moves(self) -> int:
        """How often ranges were moved by load."""
        return self.broker.log_text.count('"group.ranges.moving"')

    def crash_broker(self) -> None:
        self.broker.kill()
        time.sleep(self._random.uniform(0, 1))
        self._start_broker()

    def restart_broker(self) -> None:
        self.broker.stop()
        self._start_broker()

    def _start_broker(self) -> None:
        self.broker.start()
        self._meet_broker()

    def forget(self) -> None:
        """All that was stored record by record is deleted, which is possible only while the broker
        is down."""
        with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
            self._admin.delete_topics([JOURNAL])[JOURNAL].result(30)
        self.broker.stop()
        found = list(self.broker.data_dir.glob(f"{JOURNAL}-*"))
        assert found, "nothing was stored record by record"
        for folder in found:
            shutil.rmtree(folder)
        self.tell("forgotten")
        self._start_broker()

    def cut_log(self, batches: int) -> int:
        """The broker dies and the log loses its last batches, as when a disk lies about what it has
        written; returns the offset of the first record that is gone."""
        self.broker.kill()
        segment = max(self.broker.data_dir.glob(f"{TOPIC}-0/*.log"))
        content = segment.read_bytes()
        places = []
        at = 0
        while at + 12 <= len(content):
            base_offset, length = struct.unpack_from(">qi", content, at)
            if length <= 0:
                break
            places.append((at, base_offset))
            at += 12 + length
        # A slow machine has written fewer.
        cut_at, offset = places[max(len(places) - batches, len(places) // 2)]
        os.truncate(segment, cut_at)
        self._was_cut = True
        self.tell("truncated", topic=TOPIC, partition=0, offset=offset)
        self._start_broker()
        return int(offset)

    def turn_off_and_on(self, switch: Switch) -> None:
        """Cooperation is turned off while members work: they say so and end, and begin again when
        it is turned on."""
        self._turn(switch, "false")
        deadline = time.monotonic() + PATIENCE_S
        # Who has nothing to ask for or to store does not notice.
        while any(one.is_running for one in self.members) and time.monotonic() < deadline:
            time.sleep(0.05)
        ended = [one for one in self.members if not one.is_running]
        assert ended, f"nobody noticed that {switch[2]} is off:\n{self.account()}"
        for member in ended:
            assert member.wait() == STOPPED, self.account()
            self._tell_of("crash", member)
        self._turn(switch, "true")
        for member in ended:
            member.start(self.broker.bootstrap)

    def _turn(self, switch: Switch, value: str) -> None:
        kind, name, setting = switch
        if kind is ResourceType.BROKER:
            (name,) = map(str, self._admin.list_topics(timeout=60).brokers)
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        (future,) = self._admin.incremental_alter_configs([resource]).values()
        future.result(30)

    # What is looked at ----------------------------------------------------------------------------

    def look(self) -> int:
        """Tell of the stable offset, which is the group's committed offset; -1 if nobody says."""
        asked_at = time.monotonic()
        asked = ConsumerGroupTopicPartitions(GROUP)
        offset = -1
        with contextlib.suppress(KafkaException):
            (future,) = self._admin.list_consumer_group_offsets(
                [asked], request_timeout=10
            ).values()
            for found in future.result(PATIENCE_S).topic_partitions or ():
                offset = found.offset
        if offset >= 0:
            self.tell("stable", topic=TOPIC, partition=0, offset=offset, asked_at=asked_at)
        return offset

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.account()}"
            time.sleep(0.1)

    def wait_for_work(self) -> None:
        """Every member has begun a record."""
        self.wait_for(lambda: all(one.has_started for one in self.members), "work for everyone")

    def finish(self) -> None:
        """Nothing new is written; everything is done and stored; and all leave."""
        self.load.stop()
        end = self._tell_records()
        self.wait_for(lambda: self.look() >= end, f"a stable offset of {end}")
        for member in self.members:
            member.signal(signal.SIGTERM)
        for member in self.members:
            assert member.wait() == 0, self.account()
        self.look()
        self.check_dead_letters()
        self.tell("end", topic=TOPIC, partition=0, offset=end)

    def _tell_records(self) -> int:
        """Read the log as any consumer would; returns the offset of its end."""
        end = 0
        for message in self._read(TOPIC):
            end = message.offset() + 1
            self.tell(
                "record",
                topic=TOPIC,
                partition=0,
                offset=message.offset(),
                key=message.key().decode(),
                slot=slot_of_key(message.key()),
                id=message.value().decode(),
                leader_epoch=message.leader_epoch(),
            )
        return end

    def check_dead_letters(self) -> None:
        """What is hopeless, and nothing else, has been put aside, before it counted as done."""
        hopeless = {one.value() for one in self._read(TOPIC) if is_hopeless(one.value().decode())}
        put_aside = {one.value() for one in self._read(DLQ)}
        assert put_aside >= hopeless
        assert put_aside == hopeless or self._was_cut, put_aside - hopeless

    def _read(self, topic: str) -> Iterator[Message]:
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": "reader", "log_level": 0}
        )
        try:
            if topic not in consumer.list_topics(timeout=60).topics:
                return  # nothing was put aside yet
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
            consumer.assign([TopicPartition(topic, 0, 0)])
            offset = -1
            while offset < end - 1:
                message = consumer.poll(PATIENCE_S)
                assert message is not None and message.error() is None, message
                offset = message.offset()
                yield message
        finally:
            consumer.close()

    def account(self) -> str:
        """The last words of everybody."""
        logs = [*sorted(self._folder.glob("*.log"))]
        told = [f"{log.name}: " + "\n  ".join(log.read_text().splitlines()[-4:]) for log in logs]
        return "\n".join([*told, self.broker.log_text[-3000:]])

    def abandon(self) -> None:
        self.load.abandon()
        for member in self.members:
            member.abandon()
        self._events.close()
