"""Which leader epoch wrote which offsets, kept in `leader-epoch-checkpoint`.

Clients ask (OffsetForLeaderEpoch) where an epoch ended, to notice that a log they read from was
cut back. The list is tiny: an entry for each time leadership changed.

The file is written with the flush that makes the first records of an epoch durable, in that
flush's thread, so that neither a new partition nor a start of the broker costs the event loop a
sync for each log. What a crash finds unwritten is known again afterwards: recovery reads the
epochs of the batches that were not flushed, and what truncation removed is truncated once more.
"""

from pathlib import Path

from anabranch.log import checkpoints

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1

Entries = list[tuple[int, int]]


class LeaderEpochs:
    """The (epoch, start offset) pairs of one log, ascending in both."""

    __slots__ = ("_entries", "_written")

    def __init__(self, folder: Path) -> None:
        self._entries = checkpoints.read_leader_epochs(folder)
        self._written = self._entries  # what the file holds

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`; an epoch already known changes nothing."""
        if epoch <= self.latest:
            return
        # An epoch under which nothing was written gives way: starts must rise strictly.
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._entries = [*kept, (epoch, start_offset)]

    def truncate_end(self, end_offset: int) -> None:
        """Forget epochs that begin after `end_offset`: nothing of theirs is left."""
        self._entries = [entry for entry in self._entries if entry[1] <= end_offset]

    def truncate_start(self, start_offset: int) -> None:
        """Let the epoch that covers `start_offset` begin there, and forget those before."""
        covered = [entry for entry in self._entries if entry[1] <= start_offset]
        later = [entry for entry in self._entries if entry[1] > start_offset]
        self._entries = [(covered[-1][0], start_offset), *later] if covered else later

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

    def unwritten(self, end_offset: int) -> Entries | None:
        """What the file should say of a log that ends at `end_offset`; None when it does.

        An epoch that nothing was written under is not worth a sync, and neither is a first entry
        that only begins later: opening the log comes to the same list.
        """
        entries = [entry for entry in self._entries if entry[1] < end_offset]
        if [epoch for epoch, _ in entries] == [epoch for epoch, _ in self._written]:
            return None
        return entries

    def note_written(self, entries: Entries) -> None:
        self._written = entries
