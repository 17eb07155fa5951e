"""A crew of stock consumers that share the work on one topic as processes, and how it went."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.branch_history import History, Verdict, judge

WORKER = Path(__file__).with_name("branch_worker.py")
# Longer than anything takes on a machine that is busy with other tests.
PATIENCE_S = 200.0


class Worker:
    """One consumer process and what it has told so far."""

    def __init__(self, client: str, history: Path, arguments: Sequence[str]) -> None:
        self.client = client
        self.events: list[dict[str, Any]] = []
        self.done_count = 0
        self.uncommitted_count = 0
        self.killed_at: float | None = None
        self._history = history
        self._read_bytes = 0
        history.touch()
        with history.with_suffix(".err").open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(WORKER), client, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def go(self) -> None:
        """Let it join the group."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def read(self) -> None:
        """Take note of what it told since the last time; a line that is half written waits."""
        with self._history.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        for event in new:
            if event["event"] == "done":
                self.done_count += 1
                self.uncommitted_count += 1
            elif event["event"] == "committed":
                self.uncommitted_count = 0
        self.events += new

    def kill(self) -> None:
        """End it without a word (SIGKILL), as a crash would."""
        self._process.kill()
        self._process.wait(60)
        self.killed_at = time.monotonic()

    def ask_to_close(self) -> None:
        self._process.terminate()

    def join(self) -> None:
        self._process.wait(PATIENCE_S)
        self.read()

    def abandon(self) -> None:
        """End it because the test is over."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(60)
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def owned(self) -> set[int]:
        """The partitions it holds, by its own account."""
        held: set[int] = set()
        for event in self.events:
            if event["event"] == "assigned":
                held |= set(event["partitions"])
            elif event["event"] in ("revoked", "lost"):
                held -= set(event["partitions"])
            elif event["event"] == "closing":
                break
        return held if self.killed_at is None else set()

    @property
    def joined_at(self) -> float:
        return float(next(event["at"] for event in self.events if event["event"] == "joining"))


class Crew:
    """Workers of one group, and the records that they share."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, folder: Path) -> None:
        self.workers: list[Worker] = []
        # The key of each record, by its offset.
        self.produced: dict[int, str] = {}
        self.produced_at = 0.0
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = f"crew-of-{topic}"
        self._partitions = partitions
        self._folder = folder

    def hire(self, client: str, **options: str) -> Worker:
        """Start a worker's process; it joins the group when it is told to go."""
        history = self._folder / f"worker-{len(self.workers)}.jsonl"
        named = [f"{name}={value}" for name, value in options.items()]
        arguments = [self._bootstrap, self._group, self._topic, str(history), *named]
        self.workers.append(Worker(client, history, arguments))
        return self.workers[-1]

    def commit_beginning(self) -> None:
        """Have the group begin with committed offsets, at 0.

        A librdkafka member that has to ask where a partition begins (`auto.offset.reset`), and
        loses it before the answer comes, goes on to fetch it all the same (seen in its log, with
        2.16). When the partition comes back to it, it delivers what it has fetched meanwhile.
        """
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        places = [TopicPartition(self._topic, number, 0) for number in range(self._partitions)]
        request = ConsumerGroupTopicPartitions(self._group, places)
        answered = admin.alter_consumer_group_offsets([request])[self._group].result(PATIENCE_S)
        assert all(place.error is None for place in answered.topic_partitions)

    def produce(self, source: str, keys: Sequence[str], count: int) -> None:
        """`count` records to partition 0 of the source topic, the keys in turn."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0})
        producer.list_topics(source, 60)
        self.produced_at = time.monotonic()
        for number in range(count):
            key = keys[number % len(keys)]
            producer.produce(source, b"order %d " % number + b"." * 80, key, partition=0)
            self.produced[number] = key
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    # What is waited for ---------------------------------------------------------------------------

    @property
    def done_count(self) -> int:
        for worker in self.workers:
            worker.read()
        return sum(worker.done_count for worker in self.workers)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.account()}"
            time.sleep(0.02)

    def wait_for_shares(self, among: Sequence[Worker]) -> None:
        """Every partition has an owner, and the shares of these workers are even."""

        def is_shared() -> bool:
            for worker in self.workers:
                worker.read()
            owned = sorted(p for worker in self.workers for p in worker.owned)
            shares = sorted(len(worker.owned) for worker in among)
            return owned == list(range(self._partitions)) and shares[-1] - shares[0] <= 1

        self.wait_for(is_shared, "an even share for every worker")

    def wait_for_members(self) -> None:
        """Every worker has been told its share, if only that it has none."""

        def have_joined() -> bool:
            for worker in self.workers:
                worker.read()
            return all(any(e["event"] == "assigned" for e in w.events) for w in self.workers)

        self.wait_for(have_joined, "a group of all workers")

    def wait_for_done(self, count: int) -> None:
        self.wait_for(lambda: self.done_count >= count, f"{count} records done")

    def wait_for_all(self) -> None:
        def done() -> set[int]:
            return {e["offset"] for w in self.workers for e in w.events if e["event"] == "done"}

        # Counting is cheap; what was done twice is looked for only when there could be enough.
        self.wait_for(
            lambda: self.done_count >= len(self.produced) and done() >= self.produced.keys(),
            "every record done",
        )

    def close(self) -> None:
        """All leave, in order."""
        alive = [worker for worker in self.workers if worker.killed_at is None]
        for worker in alive:
            worker.ask_to_close()
        for worker in alive:
            worker.join()

    def abandon(self) -> None:
        for worker in self.workers:
            worker.abandon()

    # How it went ----------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        histories = [History(worker.events, worker.killed_at) for worker in self.workers]
        return judge(histories, self.produced)

    def account(self) -> str:
        """What workers say of themselves, for a reader who wants to know what went wrong."""
        return "\n".join(
            f"{number} ({worker.client}): {worker.done_count} done, owns {sorted(worker.owned)}, "
            f"trouble: {[e for e in worker.events if e['event'] in ('refused', 'crashed')][:3]}, "
            f"last: {worker.events[-1:]}"
            for number, worker in enumerate(self.workers)
        )


# Measuring ----------------------------------------------------------------------------------------


def busy_spans(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """From when to when a worker was at work on a record."""
    began = 0.0
    spans = []
    for event in events:
        if event["event"] == "start":
            began = event["at"]
        elif event["event"] == "done":
            spans.append((began, event["at"]))
    return spans


def mean_busy(workers: Sequence[Worker]) -> float:
    """How many workers were at work on average, from the first record begun to the last done.

    Both sides of the division grow when the machine is slow, unlike a time.
    """
    spans = [span for worker in workers for span in busy_spans(worker.events)]
    took_s = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return sum(end - begin for begin, end in spans) / took_s


def ideal_s(work_s: float, since: float, stays: Sequence[tuple[float, float]]) -> float:
    """How long the work takes if who is there is always busy and no second is lost.

    `stays` are from when to when each worker is there; all times are of one clock.
    """
    moments = sorted({since, *(at for stay in stays for at in stay if since < at < float("inf"))})
    for at, next_at in zip(moments, [*moments[1:], float("inf")], strict=True):
        present = sum(begin <= at < end for begin, end in stays)
        if present and work_s <= present * (next_at - at):
            return at + work_s / present - since
        work_s -= present * (next_at - at)
    return float("inf")
