"""Members of a group share one partition, and copy it record by record in transactions."""

import time
from collections import defaultdict
from pathlib import Path

from rounds_worker import OUT_SUFFIX
from soak_stage import BROKER_SETTINGS, RATE_PER_S, TOPIC, Stage

from support.broker_process import BrokerProcess
from support.topics import create_topic
from support.transactional_clients import Confluent

WORKER = Path(__file__).with_name("rounds_worker.py")
OUT = f"{TOPIC}{OUT_SUFFIX}"
OUT_PARTITIONS = 3
MEMBERS = 4
# Written after a death; some of them are of the keys that the dead had.
ROUND_RECORDS = RATE_PER_S
# Not a number, so that no record is hopeless.
PREFIX = "in-"
ROUND_SETTINGS = {**BROKER_SETTINGS, "offsets.topic.num.partitions": "3"}


class RoundsStage(Stage):
    """The stage of the soak, with members that write what they have read."""

    def __init__(self, broker: BrokerProcess, folder: Path, seed: int) -> None:
        create_topic(broker.bootstrap, OUT, OUT_PARTITIONS)
        super().__init__(broker, folder, MEMBERS, seed, worker=WORKER, prefix=PREFIX)

    def play_round(self, number: int) -> float:
        """A member or the broker dies in the middle of its work; returns how long it took until
        what was written after that is done, too, in seconds."""
        began_s = time.monotonic()
        self.kill() if number % 2 == 0 else self.crash_broker()
        due = self.load.written + ROUND_RECORDS
        self.wait_for(lambda: self.load.written >= due, f"{due} records to work on")
        self.wait_for(lambda: self.look() >= due, f"all of the first {due} records")
        return time.monotonic() - began_s

    def inputs(self) -> list[tuple[str, bytes]]:
        """Keys and values, in the order of the log."""
        return [(one.key().decode(), one.value()) for one in self._read(TOPIC)]

    def outputs(self) -> list[list[bytes]]:
        """The committed values of each partition."""
        return [
            Confluent.read(self.broker.bootstrap, OUT, "read_committed", partition)
            for partition in range(OUT_PARTITIONS)
        ]


def by_key(inputs: list[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    """The values of each key, in order."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for key, value in inputs:
        found[key].append(value)
    return found
