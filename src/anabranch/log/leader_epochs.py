"""Which leader epoch wrote which offsets, kept in `leader-epoch-checkpoint`.

Clients ask (OffsetForLeaderEpoch) where an epoch ended, to notice that a log they read from was
cut back. The list is tiny: an entry for each time leadership changed.
"""

from pathlib import Path

from anabranch.log import checkpoints

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """The (epoch, start offset) pairs of one log, ascending in both, with their file."""

    __slots__ = ("_entries", "_folder")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries = checkpoints.read_leader_epochs(folder)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else UNDEFINED_EPOCH

    def moved_to(self, folder: Path) -> None:
        self._folder = folder

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`; an epoch already known changes nothing."""
        if epoch <= self.latest:
            return
        # An epoch under which nothing was written gives way: starts must rise strictly.
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._replace([*kept, (epoch, start_offset)])

    def truncate_end(self, end_offset: int) -> None:
        """Forget epochs that begin after `end_offset`: nothing of theirs is left."""
        self._replace([entry for entry in self._entries if entry[1] <= end_offset])

    def truncate_start(self, start_offset: int) -> None:
        """Let the epoch that covers `start_offset` begin there, and forget those before."""
        covered = [entry for entry in self._entries if entry[1] <= start_offset]
        later = [entry for entry in self._entries if entry[1] > start_offset]
        self._replace([(covered[-1][0], start_offset), *later] if covered else later)

    def epoch_at(self, offset: int) -> int:
        """The epoch under which `offset` was (or would be) written."""
        epoch = UNDEFINED_EPOCH
        for candidate, start in self._entries:
            if start > offset:
                break
            epoch = candidate
        return epoch

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` and where it ended; (-1, -1) for one we never saw."""
        if epoch == UNDEFINED_EPOCH or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        floor = epoch
        for candidate, start in self._entries:
            if candidate > epoch:
                return floor, start
            floor = candidate
        raise AssertionError("an epoch below the latest has a higher one")

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        # A first entry that only begins later is not worth two syncs: opening the log with its
        # start offset comes to the same list.
        if [epoch for epoch, _ in entries] != [epoch for epoch, _ in self._entries]:
            checkpoints.write_leader_epochs(self._folder, entries)
        self._entries = entries
