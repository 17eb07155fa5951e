"""Readers that name their key ranges: branches without a branch topic.

A fetch that names ranges reads a partition as a branch reader does, with the same chunks, the same
waiting and the same waking; only that its ranges are cut where its group has cut them. All members
of a group read by one table, so one pass over the log serves them all; a reader whose ranges are
not among the group's (it is about to lose some) has a table of its own.

Readers without a group may say who reads beside them, to the same end.

Tables follow assignments, which change. Those that were not used for longest are forgotten, of all
and of each partition.
"""

from collections import OrderedDict
from collections.abc import Iterable

from anabranch.branch.cuts import joined_table
from anabranch.broker.partition import BranchTail, Partition, PartitionBranch
from anabranch.broker.purgatory import Purgatory
from anabranch.log.partition_log import PartitionLog
from anabranch.model.units import SlotRange

_TAILS_MAX = 512
_PARTITION_TAILS_MAX = 32  # an append looks at each

Ranges = tuple[SlotRange, ...]
_Key = tuple[Partition, tuple[Ranges, ...]]


class RangeTails:
    """The tables of all partitions that are read by range; lives on the event loop."""

    def __init__(self) -> None:
        self._tails: OrderedDict[_Key, BranchTail] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tails)

    def partition(
        self, source: Partition, ranges: Ranges, siblings: Iterable[Ranges] = ()
    ) -> Partition:
        """The branch of a partition that has these ranges, in order and without overlaps.

        `siblings` are the ranges of all members of the reader's group.
        """
        outputs = tuple(sorted(siblings))
        if ranges not in outputs:
            outputs = (ranges,)
        key = (source, outputs)
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = _new_tail(source, outputs)
            self._shrink(source)
        else:
            self._tails.move_to_end(key)
        return tail.branches[outputs.index(ranges)]

    @staticmethod
    def wake(source: Partition) -> None:
        """Have everybody who waits for ranges of a partition look again: more may be read now."""
        for tail in list(source.branch_tails):
            for branch in tail.branches:
                for fetch in list(branch.parked_fetches):
                    if fetch in branch.parked_fetches:
                        fetch.finish(is_satisfied=True)

    def forget(self, log: PartitionLog) -> None:
        """Drop the tables of a log that goes away, and answer everybody who waits there."""
        for key in [key for key in self._tails if key[0].log is log]:
            branches = self._tails[key].branches
            self._drop(key)
            Purgatory.finish_all(branches)

    def _shrink(self, source: Partition) -> None:
        is_full = len(self._tails) > _TAILS_MAX
        if is_full or len(source.branch_tails) > _PARTITION_TAILS_MAX:
            # Somebody may be waiting there; the next one has had its time.
            idle = (
                key
                for key, tail in self._tails.items()
                if not tail.parked_count and (is_full or key[0] is source)
            )
            oldest = next(idle, None)
            if oldest is not None:
                self._drop(oldest)

    def _drop(self, key: _Key) -> None:
        tail = self._tails.pop(key)
        tails = tail.source.branch_tails
        if tail in tails:
            tails.remove(tail)


def _new_tail(source: Partition, outputs: tuple[Ranges, ...]) -> BranchTail:
    tail = BranchTail(source, joined_table(outputs))
    for number in range(len(outputs)):
        branch = Partition(source.index, source.log, source.syncs_acks_all)
        branch.branch = PartitionBranch(tail, number)
        tail.branches.append(branch)
    source.branch_tails.append(tail)
    return tail
