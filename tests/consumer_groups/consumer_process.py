"""One librdkafka consumer in a process of its own, telling what happens to it as JSON lines.

    python consumer_process.py BOOTSTRAP GROUP TOPIC[,TOPIC...] [OPTION=VALUE ...]

A topic that begins with ^ is a regular expression, which this client leaves to the broker. Options:

    protocol         consumer (KIP-848), or classic
    strategy         classic: an assignor's name
    assignor         consumer: the broker's assignor to ask for
    instance         static membership under this name
    commit           each: every record by itself, and wait for the answer; flow: every record
                     without waiting, and once with waiting before partitions are given back
    hold_revoke      the first callback that takes partitions away waits for SIGUSR1

A record is told before it is committed, so that committed offsets never run ahead of what was told.
Partitions are told as "topic-number". SIGTERM closes the consumer in order; what it holds ends with
the callback of its close. SIGUSR2 lets it stop itself (SIGSTOP) between processing the next record
and its commit. The times told are those of one clock for all processes of the machine.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition


def tell(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), **facts})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def name_of(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def tell_partitions(event: str, partitions: Iterable[TopicPartition]) -> None:
    tell(event, partitions=sorted(map(name_of, partitions)))


class ConsumerProcess:
    """The consumer, with what it was asked to do."""

    def __init__(self, bootstrap: str, group: str, options: dict[str, str]) -> None:
        self._options = options
        self._is_stopping = False
        self._may_revoke = "hold_revoke" not in options
        self._is_pausing = False
        self._is_waiting_for_commits = options.get("commit", "each") == "each"
        # A commit that meets a rebalance of the classic protocol is to be tried again.
        self._passing_errors: tuple[int, ...] = ()
        if options.get("protocol") == "classic":
            self._passing_errors = (
                KafkaError.REBALANCE_IN_PROGRESS,
                KafkaError.ILLEGAL_GENERATION,
            )
        # The next offset of each partition, while no answer to its commit was waited for.
        self._uncommitted: dict[tuple[str, int], int] = {}
        self._consumer = Consumer(self._config(bootstrap, group))
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGUSR1, self._on_sigusr1)
        signal.signal(signal.SIGUSR2, self._on_sigusr2)

    def _config(self, bootstrap: str, group: str) -> dict[str, Any]:
        options = self._options
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            "on_commit": self._on_commit,
        }
        if "instance" in options:
            config["group.instance.id"] = options["instance"]
        if options.get("protocol", "consumer") == "classic":
            config["heartbeat.interval.ms"] = 200
            config["session.timeout.ms"] = 20_000
            config["partition.assignment.strategy"] = options.get("strategy", "range")
        else:
            config["group.protocol"] = "consumer"
            if "assignor" in options:
                config["group.remote.assignor"] = options["assignor"]
        return config

    # What happens to it ---------------------------------------------------------------------------

    def _on_sigterm(self, *_: object) -> None:
        self._is_stopping = True

    def _on_sigusr1(self, *_: object) -> None:
        self._may_revoke = True

    def _on_sigusr2(self, *_: object) -> None:
        self._is_pausing = True

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        tell_partitions("assigned", partitions)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        tell_partitions("revoking", partitions)
        while not self._may_revoke:
            time.sleep(0.01)
        ends = self._ends((p.topic, p.partition) for p in partitions)
        if ends:
            self._commit_and_wait(ends)
        for partition in partitions:
            self._uncommitted.pop((partition.topic, partition.partition), None)
        tell_partitions("revoked", partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._uncommitted.clear()
        tell_partitions("lost", partitions)

    # What it does ---------------------------------------------------------------------------------

    def run(self, topics: list[str]) -> None:
        tell("joining")
        self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        while not self._is_stopping:
            message = self._consumer.poll(0.05)
            if self._is_waiting_for_commits and self._uncommitted:
                self._commit_and_wait(self._ends(self._uncommitted))
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._process(message)
            elif error.code() == KafkaError._FATAL:
                # The broker's error is in the text only; `fatal()` says no (seen in 2.16).
                tell("fatal", text=error.str())
                self._is_stopping = True
        tell("leaving")
        self._consumer.close()

    def _process(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None and partition is not None and offset is not None
        tell("record", partition=f"{topic}-{partition}", offset=offset)
        if self._is_pausing:
            self._is_pausing = False
            tell("pausing")
            os.kill(os.getpid(), signal.SIGSTOP)
            tell("awake")
        self._uncommitted[topic, partition] = offset + 1
        ends = self._ends([(topic, partition)])
        if self._is_waiting_for_commits:
            self._commit_and_wait(ends)
        else:
            self._consumer.commit(offsets=ends, asynchronous=True)

    def _ends(self, partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """What is to be committed of some partitions."""
        return [
            TopicPartition(topic, partition, self._uncommitted[topic, partition])
            for topic, partition in partitions
            if (topic, partition) in self._uncommitted
        ]

    def _commit_and_wait(self, ends: list[TopicPartition]) -> None:
        try:
            answers = self._consumer.commit(offsets=ends, asynchronous=False)
            errors = [(answer, answer.error) for answer in answers]
        except KafkaException as error:
            errors = [(end, error.args[0]) for end in ends]
        for end, error in errors:
            if error is not None and error.code() in self._passing_errors:
                tell("postponed", partition=name_of(end))
                continue
            del self._uncommitted[end.topic, end.partition]
            if error is None:
                tell("committed", partition=name_of(end), offset=end.offset)
            else:
                tell("refused", partition=name_of(end), error=error.name())

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The answer to a commit that nobody waited for."""
        for partition in partitions:
            why = partition.error or error
            if why is None:
                tell("confirmed", partition=name_of(partition), offset=partition.offset)
            else:
                tell("refused", partition=name_of(partition), error=why.name())


def main() -> None:
    bootstrap, group, topics, *rest = sys.argv[1:]
    process = ConsumerProcess(bootstrap, group, dict(option.split("=", 1) for option in rest))
    try:
        process.run(topics.split(","))
    except Exception as error:
        tell("crashed", error=repr(error))
        raise
    tell("closed")


if __name__ == "__main__":
    main()
