"""A consumer that knows nothing of cooperation, in a group whose other members share partitions."""

import json
import signal
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from soak_stage import BROKER_SETTINGS, GROUP, PATIENCE_S, TOPIC, Member

from support.broker_process import BrokerProcess, wait_until

PARTITIONS = 2
KEYS = 40
MEMBERS = 3


class StockMember:
    """librdkafka in a thread; it processes one record at a time and commits what it has done."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        self.steps: list[dict[str, Any]] = []
        # Each partition that it had, with the times.
        self.held: list[tuple[int, float, float]] = []
        self._since: dict[int, float] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._stopping = threading.Event()
        self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def partitions(self) -> list[int]:
        return sorted(self._since)

    def leave(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._since[one.partition] = time.monotonic()

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            since = self._since.pop(one.partition)
            self.held.append((one.partition, since, time.monotonic()))

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            assert message.error() is None, message.error()
            step = {"partition": message.partition(), "offset": message.offset()}
            self.steps.append({**step, "at": time.monotonic(), "type": "start"})
            self.steps.append({**step, "at": time.monotonic(), "type": "done"})
            self._consumer.commit(message, asynchronous=False)
        self._consumer.close()


class Play:
    """A broker, a topic, members that share it, and all that is written to it."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topic = NewTopic(TOPIC, PARTITIONS, config={"range.fetch.enable": "true"})
        self.admin.create_topics([topic])[TOPIC].result(30)
        self.keys: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        self.members = [Member(f"member-{number}", folder) for number in range(MEMBERS)]
        self.stock: list[StockMember] = []
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def stock_member(self, protocol: str) -> StockMember:
        self.stock.append(StockMember(self.broker.bootstrap, protocol))
        return self.stock[-1]

    def write(self, count: int) -> None:
        for number in range(count):
            key = number % KEYS
            self.keys[key % PARTITIONS].append(f"key-{key}")
            self._producer.produce(TOPIC, b".", f"key-{key}", key % PARTITIONS)
        assert self._producer.flush(PATIENCE_S) == 0

    def write_until(self, condition: Callable[[], bool]) -> None:
        """There is something to do until a condition holds."""

        def holds() -> bool:
            self.write(KEYS)
            return condition()

        assert wait_until(holds, PATIENCE_S, 0.05)

    def start(self) -> None:
        """Everybody joins, and begins a record."""
        for member in self.members:
            member.start(self.broker.bootstrap)
        self.write_until(lambda: all(one.has_started for one in self.members))

    def told(self) -> list[dict[str, Any]]:
        """What the members did, as they told it."""
        lines = [line for file in self.folder.glob("*.jsonl") for line in file.open()]
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["type"] in ("start", "done")]

    def committed(self) -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(GROUP)
        (future,) = self.admin.list_consumer_group_offsets([asked]).values()
        return {one.partition: one.offset for one in future.result(30).topic_partitions or ()}

    def wait_until_done(self) -> None:
        """Everything that was written is done, and stored."""
        ends = {partition: len(keys) for partition, keys in self.keys.items()}
        assert wait_until(lambda: self.committed() == ends, PATIENCE_S, 0.1), (
            self.committed(),
            ends,
        )

    def leave(self) -> None:
        for member in self.members:
            member.signal(signal.SIGTERM)
        for member in self.members:
            assert member.wait() == 0


@pytest.fixture
def play(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[Play]:
    folder = tmp_path / "history"
    folder.mkdir()
    made = Play(make_broker(**BROKER_SETTINGS), folder)
    yield made
    for stock in made.stock:
        stock.leave()
    for member in made.members:
        member.abandon()


def check(play: Play, steps: list[dict[str, Any]]) -> int:
    """Nothing is lost, and when a record begins all earlier ones of its key are done. Returns how
    many records were done more than once."""
    offsets: dict[tuple[int, str], list[int]] = defaultdict(list)
    for partition, keys in play.keys.items():
        for offset, key in enumerate(keys):
            offsets[partition, key].append(offset)
    done: set[tuple[int, int]] = set()
    again = 0
    for step in sorted(steps, key=lambda one: float(one["at"])):
        place = (step["partition"], step["offset"])
        if step["type"] == "done":
            again += place in done
            done.add(place)
            continue
        of_key = offsets[place[0], play.keys[place[0]][place[1]]]
        at = bisect_left(of_key, place[1])
        assert at == 0 or (place[0], of_key[at - 1]) in done, (
            f"{place} came before {of_key[at - 1]}"
        )
    assert len(done) == sum(len(keys) for keys in play.keys.values())
    return again


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stock_member_joins(play: Play) -> None:
    """It owns whole partitions only, and while it does nobody else begins a record of them; with
    its coming and going nothing is lost and no key out of order."""
    play.start()
    stock = play.stock_member("consumer")
    play.write_until(lambda: stock.partitions != [])
    play.write(1000)
    play.wait_until_done()
    assert len(stock.partitions) == 1, "the others share what it does not have"
    stock.leave()
    play.write(1000)
    play.wait_until_done()
    play.leave()
    told = play.told()
    for partition, since, until in stock.held:
        others = [
            step for step in told if step["partition"] == partition and since < step["at"] < until
        ]
        assert others == []
    assert stock.steps
    check(play, told + stock.steps)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_back_to_a_plain_consumer(play: Play, protocol: str) -> None:
    """When the members have left in the middle, an ordinary consumer goes on at the stable
    offset."""
    play.start()
    for member in play.members:
        member.signal(signal.SIGUSR1)  # slow, so that they are in the middle
    play.write(1000)
    play.leave()
    stable = play.committed()
    assert any(offset < len(play.keys[partition]) for partition, offset in stable.items())
    stock = play.stock_member(protocol)
    play.wait_until_done()
    stock.leave()
    for partition, offset in stable.items():
        begun = [step["offset"] for step in stock.steps if step["partition"] == partition]
        assert begun[::2] == list(range(offset, len(play.keys[partition])))
    check(play, play.told() + stock.steps)
