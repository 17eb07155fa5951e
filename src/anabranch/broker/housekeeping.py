"""What the broker does by the clock: flush, checkpoint, retention, compaction, giving memory back.

Each chore runs on the loop in small steps and hands what is slow to a thread. A chore that fails
is logged and tried again at its next time.
"""

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.broker.broker import Broker
from anabranch.observe import logs

_IDLE_PERIOD_MS = 30_000


class Housekeeping:
    """The chores of one broker, each with its period."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        chores: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("log.flush.offset.checkpoint.interval.ms", self._checkpoint),
        ]
        for setting, chore in chores:
            self._tasks.append(asyncio.create_task(self._repeat(setting, chore)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, setting: str, chore: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._broker.get_int(setting) / 1000)
            try:
                await chore()
            except Exception as error:
                logs.error("housekeeping.failed", chore=chore.__name__, reason=repr(error))

    async def _checkpoint(self) -> None:
        self._broker.engine.write_checkpoints()
