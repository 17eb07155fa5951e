"""Random talks with Apache Kafka's transaction coordinator, written down for our tests.

    .venv/bin/python compat/answers/record_transactions.py > FILE

Producers with one transactional id each ask for what is right and for what is wrong: with epochs
of yesterday and tomorrow, and as clients of both transaction versions. `transaction_talk` says how
it is written. What differs on purpose is not asked: see `RandomTalk.may_ask`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE.parent)]

from transaction_talk import (  # noqa: E402 - the path is set just above
    NOBODY,
    NONE,
    SETTINGS,
    Broker,
    Producer,
    Talk,
    prepare,
    records,
)

from apache_kafka import apache_kafka, missing_tools  # noqa: E402
from server_process import terminated_as_exit  # noqa: E402

KAFKA_SETTINGS = [*SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms=50"]
TALKS = 160
STEPS = 14
LAST_EPOCH = 32766


class RandomTalk(Talk):
    """What is asked is chosen at random, by the number of the talk."""

    def __init__(self, broker: Broker, number: int) -> None:
        # Some wait until their time is up.
        super().__init__(broker, f"talk-{number}", 700 if number % 4 == 0 else 600_000)
        self.random = random.Random(number)
        # Some talk one version, some both.
        self.versions = [[0], [2], [0, 2]][number % 3]

    def somebody(self) -> Producer:
        """Mostly the present producer."""
        pid, epoch = self.present
        choices = [self.present] * 8
        choices += [(pid, epoch - 1)] * 3 * (epoch > 0)
        choices += [(pid, epoch + 1), (NOBODY, 0), *self.seen[-3:]]
        return self.random.choice(choices)

    # Requests -----------------------------------------------------------------------------------

    def init(self, producer: Producer) -> None:
        if self.may_ask(producer):
            self.ask_init(producer)

    def may_ask(self, producer: Producer) -> bool:
        """Not what we answer better on purpose.

        Kafka aborts an Ongoing transaction for a producer that is fenced; it ends in an exception
        where an epoch is used up and a producer goes on with another one; and it keeps the epoch
        before the present one while transactions of version 0 come and go.
        """
        if producer in (NONE, self.present) or producer[0] != self.present[0]:
            return True
        if self.state == "Ongoing" or self.present[1] >= LAST_EPOCH:
            return False
        return not self.last_epoch_is_old

    def add(self, version: int, producer: Producer, *, verify: bool = False) -> None:
        partitions = self.random.sample(range(3), self.random.choice([1, 1, 2]))
        self.ask_add(version, producer, partitions, verify=verify)

    def end(self, version: int, producer: Producer) -> None:
        if version > 4 and self.last_end_version == 0 and producer != self.present:
            return  # it may have been fenced, and Kafka takes it for one that asks again
        self.ask_end(version, producer, is_commit=self.random.random() < 0.5)

    # The talk -----------------------------------------------------------------------------------

    def step(self) -> None:
        is_new = self.random.choice(self.versions) == 2
        match self.random.choices(
            ["init", "add", "verify", "offsets", "end", "timeout"], [3, 5, 1, 1, 6, 2]
        ):
            case ["init"]:
                self.init(self.random.choice([NONE, NONE, self.somebody()]))
            case ["add"]:
                self.add(5 if is_new else 3, self.somebody())
            case ["verify"]:
                self.add(5, self.somebody(), verify=True)
            case ["offsets"]:
                if not is_new:
                    self.ask_offsets(self.somebody())
            case ["end"]:
                self.end(5 if is_new else 4, self.somebody())
            case _:
                self.timeout()
        aborted = self.lines and self.lines[-1].startswith("init") and " 51 " in self.lines[-1]
        if aborted:
            self.last_end_version, self.last_epoch_is_old = 2, False
        self.look()

    def run(self, epoch: int | None) -> None:
        if self.random.random() < 0.2:
            for act in (self.add, self.end):
                act(5, (NOBODY, 0))
        self.init(NONE)
        self.look()
        if epoch is not None:
            self.wind(epoch)
        for _ in range(STEPS):
            self.step()
        self.timeout()  # so that nothing comes after the talk


def main() -> int:
    if missing := missing_tools():
        print(f"needs {' and '.join(missing)} on PATH", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="transactions-") as temporary, terminated_as_exit():
        data_dir = Path(temporary) / "data"
        with apache_kafka(data_dir=data_dir, overrides=KAFKA_SETTINGS) as server:
            write_down(server.port, data_dir)
    return 0


def write_down(port: int, data_dir: Path) -> None:
    broker = Broker(port)
    prepare(broker)
    talks = [RandomTalk(broker, number) for number in range(TALKS)]
    for number, talk in enumerate(talks):
        talk.run(LAST_EPOCH - 2 + number % 2 if number % 20 in (7, 8) else None)
    written = records(talks, data_dir)
    for talk in talks:
        print(f"\n# {talk.id}")
        print("\n".join([*talk.lines, *written[talk.id]]))


if __name__ == "__main__":
    sys.exit(main())
