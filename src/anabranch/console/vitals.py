"""What of a broker's health costs a look at the disk: asked for at most every few seconds."""

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from anabranch.broker.broker import Broker
from anabranch.broker.health import Health, readiness

_KEPT_MS = 5_000
# Less than that is worth a warning.
_FREE_SHARE_MIN = 0.1


@dataclass(frozen=True, slots=True)
class Disk:
    """Where logs are; without sizes when the disk does not tell."""

    folder: str
    total_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def used_share(self) -> float | None:
        if not self.total_bytes or self.free_bytes is None:
            return None
        return 1 - self.free_bytes / self.total_bytes

    @property
    def is_low(self) -> bool:
        return self.used_share is not None and self.used_share > 1 - _FREE_SHARE_MIN


@dataclass(frozen=True, slots=True)
class Vitals:
    health: Health
    disks: Sequence[Disk]


class VitalsReader:
    """The vitals of one broker, shared by all who look."""

    def __init__(self, broker: Broker, executor: Executor) -> None:
        self._broker = broker
        self._executor = executor
        self._last: tuple[int, Vitals] | None = None

    async def read(self) -> Vitals:
        now_ms = self._broker.now_ms()
        if self._last is not None and 0 <= now_ms - self._last[0] < _KEPT_MS:
            return self._last[1]
        folders = [directory.path for directory in self._broker.engine.directories]
        found = await readiness(self._broker)
        disks = await asyncio.get_running_loop().run_in_executor(self._executor, _disks, folders)
        vitals = Vitals(found, disks)
        self._last = (now_ms, vitals)
        return vitals


def _disks(folders: Iterable[Path]) -> list[Disk]:
    """Runs in a thread: a disk that hangs holds up nobody else."""
    disks = []
    for folder in folders:
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            disks.append(Disk(str(folder)))
        else:
            disks.append(Disk(str(folder), usage.total, usage.free))
    return disks
