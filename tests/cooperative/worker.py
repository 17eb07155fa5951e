"""One member of a cooperative group in a process of its own, telling what happens to it.

    python worker.py BOOTSTRAP GROUP TOPIC HISTORY MEMBER INCARNATION WORK_MS

The events are those of docs/reference/history.md. What is told about acknowledgements is read from
the requests themselves and their answers, so that the client's own idea of them is not needed.
SIGTERM leaves the group in order; SIGUSR1 makes the member slow, SIGUSR2 as fast as before. One
record in a hundred fails, some of them twice, and some are hopeless (`is_hopeless`). A member that
is woken up (SIGCONT) commits at once what it has done, as one that does not know what it missed.

Exit code: 0 when it left in order, STOPPED when it ended because something was turned off.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from anabranch.branch.slots import slot_of_key
from anabranch.client import (
    ConsumerError,
    ConsumerRecord,
    CooperativeConsumer,
    IndividualCommitNotAllowedError,
    KeyRange,
    RangeFetchNotAllowedError,
    RejectRecord,
    RetryRecord,
)
from anabranch.client.settings import KeyRanges
from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.cooperation import IndividualCommitAnswer, RangeAck
from anabranch.wire.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from anabranch.wire.offset_set import decode

SLOW_FACTOR = 100
CONCURRENCY = 8
STOPPED = 3
# How likely the first, the second and every further attempt fails.
FAILING = (0.01, 0.3, 0.0)
RETRY_AFTER_S = 0.02
HOPELESS_EVERY = 300

Ask = Callable[..., Awaitable[Any]]


class Telling:
    """Writes events; each is in the hands of the system before anything else happens."""

    def __init__(self, path: Path, **common: Any) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._common = common

    def __call__(self, kind: str, **facts: Any) -> None:
        event = {"at": time.monotonic(), "type": kind, **self._common, **facts}
        os.write(self._file, json.dumps(event, separators=(",", ":")).encode() + b"\n")


def is_hopeless(value: str) -> bool:
    """Whether nobody can process a record, by the number in its value."""
    return value.isdigit() and int(value) % HOPELESS_EVERY == HOPELESS_EVERY - 1


def slots_of(first_hash: int, last_hash: int) -> list[int]:
    return list(KeyRange(first_hash, last_hash).slots)


class Taps:
    """Tells of acknowledgements as they pass on their way to the coordinator."""

    def __init__(self, tell: Telling, topic: str, ask: Ask) -> None:
        self._tell = tell
        self._topic = topic
        self._ask = ask
        self._numbers = count()

    async def ask(self, api: Any, message: Any, **options: Any) -> Any:
        if api is not OFFSET_COMMIT:
            return await self._ask(api, message, **options)
        sent = [*self._sent(message)]
        answer = await self._ask(api, message, **options)
        self._answered(sent, answer)
        return answer

    def _sent(self, request: OffsetCommitRequest) -> Iterator[tuple[int, int, RangeAck]]:
        for topic in request.topics:
            for partition in topic.partitions:
                if partition.individual is None:
                    continue
                for ack in partition.individual.acks:
                    number = next(self._numbers)
                    self._tell(
                        "ack_sent",
                        topic=self._topic,
                        partition=partition.partition_index,
                        ack=number,
                        slots=slots_of(ack.first_hash, ack.last_hash),
                        epoch=ack.epoch,
                        leader_epoch=partition.individual.leader_epoch,
                        watermark=ack.watermark,
                        done=[list(one) for one in decode(ack.done)],
                    )
                    yield number, partition.partition_index, ack

    def _answered(
        self, sent: list[tuple[int, int, RangeAck]], answer: OffsetCommitResponse
    ) -> None:
        found = {one.partition_index: one for topic in answer.topics for one in topic.partitions}
        for number, index, ack in sent:
            place = {"topic": self._topic, "partition": index, "ack": number, "epoch": ack.epoch}
            partition = found.get(index)
            slots = slots_of(ack.first_hash, ack.last_hash)
            if partition is None or partition.error_code or partition.individual is None:
                code = partition.error_code if partition is not None else -1
                self._tell("ack_refused", **place, slots=slots, error=_name(code))
                continue
            for part, code in _outcomes(slots, partition.individual):
                if code:
                    self._tell("ack_refused", **place, slots=part, error=_name(code))
                else:
                    stable = partition.individual.stable_offset
                    self._tell("ack_ok", **place, slots=part, stable=stable)


def _name(code: int) -> str:
    return ErrorCode(code).name if code in list(ErrorCode) else str(code)


def _outcomes(slots: list[int], answer: IndividualCommitAnswer) -> Iterator[tuple[list[int], int]]:
    """What became of each part of an acknowledgement: what no outcome speaks of is taken."""
    at, end = slots
    for one in sorted(answer.outcomes, key=lambda outcome: outcome.first_hash):
        first, last = slots_of(one.first_hash, one.last_hash)
        first, last = max(first, at), min(last, end)
        if not one.error_code or first >= last:
            continue
        if at < first:
            yield [at, first], 0
        yield [first, last], one.error_code
        at = last
    if at < end:
        yield [at, end], 0


class Worker:
    """The member."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, tell: Telling, work_ms: float
    ) -> None:
        self._tell = tell
        self._topic = topic
        self._work_s = work_ms / 1000
        self._factor = 1
        self._late: asyncio.Future[None] | None = None
        self._consumer = CooperativeConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            fetch_max_wait_ms=200,
            max_partition_fetch_bytes=16 * 1024,
            buffer_max_records=500,
            on_ranges_assigned=self._assigned,
            on_ranges_revoked=lambda ranges: self._ended("revoke", ranges),
            on_ranges_lost=lambda ranges: self._ended("lost", ranges),
        )
        # The only place that sees what is really sent.
        cluster = self._consumer._core.cluster
        cluster.ask_coordinator = Taps(tell, topic, cluster.ask_coordinator).ask  # type: ignore[method-assign]

    def _assigned(self, ranges: KeyRanges) -> None:
        epochs = {
            (one.topic, one.partition, one.key_range): one.epoch
            for one in self._consumer.progress().ranges
        }
        for place, some in ranges.items():
            for one in some:
                # What was lost before anybody was told of it is not there any more.
                epoch = epochs.get((*place, one))
                if epoch is not None:
                    self._tell("grant", **place._asdict(), slots=list(one.slots), epoch=epoch)

    def _ended(self, kind: str, ranges: KeyRanges) -> None:
        for place, some in ranges.items():
            for one in some:
                self._tell(kind, **place._asdict(), slots=list(one.slots))

    async def _handle(self, record: ConsumerRecord) -> None:
        key = record.key or b""
        facts: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": key.decode(),
            "slot": slot_of_key(key),
            "epoch": record.token.epoch,
            "attempt": record.attempt,
            "id": (record.value or b"").decode(),
        }
        self._tell("start", **facts)
        await asyncio.sleep(self._work_s * self._factor * random.uniform(0.5, 1.5))
        if is_hopeless(facts["id"]):
            self._tell("fail", **facts)
            self._tell("decided", **facts)  # or will be, as soon as the broker knows
            raise RejectRecord("hopeless")
        if random.random() < FAILING[min(record.attempt, len(FAILING)) - 1]:
            self._tell("fail", **facts)
            raise RetryRecord(RETRY_AFTER_S, "bad luck")
        self._tell("done", **facts)

    async def _work(self) -> None:
        await self._consumer.run(self._handle, concurrency=CONCURRENCY)

    def _set_factor(self, factor: int) -> None:
        self._factor = factor

    def _woken(self) -> None:
        self._late = asyncio.ensure_future(self._commit_late())

    async def _commit_late(self) -> None:
        with contextlib.suppress(ConsumerError):
            await self._consumer.commit()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCONT, self._woken)
        loop.add_signal_handler(signal.SIGUSR1, self._set_factor, SLOW_FACTOR)
        loop.add_signal_handler(signal.SIGUSR2, self._set_factor, 1)
        # Told when `run` waits for the first time: it listens to signals by then.
        loop.call_soon(self._tell, "join")
        self._consumer.subscribe([self._topic])
        try:
            await self._work()
        except (IndividualCommitNotAllowedError, RangeFetchNotAllowedError) as error:
            self._tell("stopped", error=type(error).__name__)
            return STOPPED
        except Exception as error:
            self._tell("failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            await self._consumer.close()
        self._tell("leave")
        return 0


def main(kind: type[Worker] = Worker) -> None:
    bootstrap, group, topic, history, member, incarnation, work_ms = sys.argv[1:]
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S"
    )
    tell = Telling(Path(history), member=member, incarnation=int(incarnation))
    sys.exit(asyncio.run(kind(bootstrap, group, topic, tell, float(work_ms)).run()))


if __name__ == "__main__":
    main()
