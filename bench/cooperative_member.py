"""Our cooperative consumer in a process of its own; started by the benchmark of cooperation.

Its argument is the broker's address. It runs as told on stdin and tells on stdout how it does, as
the peers of bench/cooperative_java do:

    run KIND TOPIC GROUP WORKERS WORK_MICROSECONDS EXPECTED  ->  owns FIRST-END ..., done COUNT ...
    stop FILE                                                ->  ended FIRST_NS LAST_NS COUNT

KIND is `async` or `threads`, as the handler is a coroutine or an ordinary function. The file gets
the offsets of the records in the order in which they were done, eight bytes each. With KIND
`logged` it gets three numbers for each record: the offset, and when it was begun and done. KIND
`control` does the work of so many records without any: it shows what pauses alone come to.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import selectors
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.client import ConsumerRecord, CooperativeConsumer
from anabranch.client.settings import KeyRanges
from anabranch.model.units import SlotRange

_TELL_S = 0.02
_PR_SET_TIMERSLACK = 29


@dataclass(slots=True)
class Log:
    """What was done, and when."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    first_ns: int = 0
    last_ns: int = 0
    width: int = 1

    @property
    def count(self) -> int:
        return len(self.numbers) // self.width


def make_handler(kind: str, work_s: float, log: Log) -> Callable[[ConsumerRecord], Any]:
    """What is called with each record."""
    append, extend, now_ns = log.numbers.append, log.numbers.extend, time.monotonic_ns

    async def at_once(record: ConsumerRecord) -> None:
        if not log.first_ns:
            log.first_ns = now_ns()
        append(record.offset)
        log.last_ns = now_ns()

    async def after_a_pause(record: ConsumerRecord) -> None:
        if not log.first_ns:
            log.first_ns = now_ns()
        await asyncio.sleep(work_s)
        append(record.offset)
        log.last_ns = now_ns()

    async def logged(record: ConsumerRecord) -> None:
        began_ns = now_ns()
        if not log.first_ns:
            log.first_ns = began_ns
        await asyncio.sleep(work_s)
        log.last_ns = now_ns()
        extend((record.offset, began_ns, log.last_ns))

    def in_a_thread(record: ConsumerRecord) -> None:
        if not log.first_ns:
            log.first_ns = now_ns()
        if work_s:
            time.sleep(work_s)
        append(record.offset)
        log.last_ns = now_ns()

    if kind == "threads":
        return in_a_thread
    if kind == "logged":
        log.width = 3
        return logged
    return after_a_pause if work_s else at_once


class Member:
    """One run of the consumer."""

    def __init__(self, bootstrap_servers: str, words: list[str]) -> None:
        _, kind, topic, group, workers, work_us, _ = words
        self.log = Log()
        self._handler = make_handler(kind, int(work_us) / 1e6, self.log)
        self._workers = int(workers)
        self._owned: set[SlotRange] = set()
        self._consumer = CooperativeConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            on_ranges_assigned=self._assigned,
            on_ranges_revoked=self._revoked,
            on_ranges_lost=self._revoked,
        )
        self._consumer.subscribe([topic])

    def _assigned(self, ranges: KeyRanges) -> None:
        self._owned.update(one.slots for some in ranges.values() for one in some)
        self._tell_slots()

    def _revoked(self, ranges: KeyRanges) -> None:
        for gone in (one.slots for some in ranges.values() for one in some):
            # What is taken away may be a part of what was given.
            for had in [
                one for one in self._owned if one.first < gone.end and gone.first < one.end
            ]:
                self._owned.remove(had)
                if had.first < gone.first:
                    self._owned.add(SlotRange(had.first, gone.first))
                if gone.end < had.end:
                    self._owned.add(SlotRange(gone.end, had.end))
        self._tell_slots()

    def _tell_slots(self) -> None:
        say(" ".join(["owns", *(f"{one.first}-{one.end}" for one in sorted(self._owned))]))

    async def run(self) -> None:
        async with self._consumer, telling(self.log):
            await self._consumer.run(self._handler, concurrency=self._workers)

    def stop(self) -> None:
        self._consumer.stop()


class Control:
    """The work alone, by as many tasks as there would be workers."""

    def __init__(self, words: list[str]) -> None:
        _, _, _, _, workers, work_us, expected = words
        self.log = Log()
        self._workers = int(workers)
        self._work_s = int(work_us) / 1e6
        self._numbers = iter(range(int(expected)))
        self._must_end = asyncio.Event()

    async def run(self) -> None:
        say("ready")
        async with telling(self.log):
            self.log.first_ns = time.monotonic_ns()
            await asyncio.gather(*(self._work() for _ in range(self._workers)))
            await self._must_end.wait()

    def stop(self) -> None:
        self._must_end.set()

    async def _work(self) -> None:
        for number in self._numbers:
            if self._must_end.is_set():
                return
            await asyncio.sleep(self._work_s)
            self.log.numbers.append(number)
            self.log.last_ns = time.monotonic_ns()


@contextlib.asynccontextmanager
async def telling(log: Log) -> AsyncIterator[None]:
    """Tell for the time of the block how much is done."""
    teller = asyncio.ensure_future(_tell(log))
    try:
        yield
    finally:
        teller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await teller


async def _tell(log: Log) -> None:
    told = 0
    while True:
        await asyncio.sleep(_TELL_S)
        if log.count > told:
            told = log.count
            say(f"done {told}")


def say(line: str) -> None:
    print(line, flush=True)


async def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # pauses as exact as can be
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()
    threading.Thread(target=_read, args=[loop, lines], daemon=True).start()
    while (line := await lines.get()).startswith("run"):
        words = line.split()
        member = Control(words) if words[1] == "control" else Member(sys.argv[1], words)
        running = asyncio.ensure_future(member.run())
        line = await _next_line(lines, running)
        member.stop()
        await running
        log = member.log
        if not line.startswith("stop"):
            return
        Path(line.split(maxsplit=1)[1]).write_bytes(log.numbers.tobytes())
        say(f"ended {log.first_ns} {log.last_ns} {log.count}")
        del member, log
        gc.collect()


async def _next_line(lines: asyncio.Queue[str], running: asyncio.Future[None]) -> str:
    """The next line; the consumer's error, if it ends before."""
    asking = asyncio.ensure_future(lines.get())
    await asyncio.wait([asking, running], return_when=asyncio.FIRST_COMPLETED)
    if not asking.done():
        asking.cancel()
        running.result()
        raise RuntimeError("the consumer ended by itself")
    return asking.result()


def _read(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line.strip())
    loop.call_soon_threadsafe(lines.put_nowait, "end")


def _exact_loop() -> asyncio.AbstractEventLoop:
    """A loop whose pauses are exact: epoll, the default, rounds them up to whole milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_exact_loop) as runner:
        runner.run(main())
