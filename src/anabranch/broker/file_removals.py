"""Files that wait for their removal.

Retention and compaction rename the files they drop; `file.delete.delay.ms` later they are
unlinked by the background thread, because unlinking a large file can take long. What is still
waiting when the broker stops is removed at its next start.
"""

import heapq
from concurrent.futures import Executor

from anabranch.log.retention import FileRemoval
from anabranch.observe import logs


class FileRemovals:
    """Removals by the time they are due."""

    def __init__(self, background: Executor) -> None:
        self._background = background
        self._waiting: list[tuple[int, int, FileRemoval]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, removal: FileRemoval, due_ms: int) -> None:
        self._count += 1  # removals cannot be compared, so equal times need a second number
        heapq.heappush(self._waiting, (due_ms, self._count, removal))

    def run_due(self, now_ms: int) -> int:
        """Hand what is due to the background thread; returns how many removals that were."""
        due = 0
        while self._waiting and self._waiting[0][0] <= now_ms:
            _, _, removal = heapq.heappop(self._waiting)
            self._background.submit(_remove, removal)
            due += 1
        return due


def _remove(removal: FileRemoval) -> None:
    try:
        removal.run()
    except OSError as error:
        # The folder may have gone with its topic; otherwise the next start removes the files.
        logs.warning("log.file.removal.failed", files=len(removal.paths), reason=str(error))
