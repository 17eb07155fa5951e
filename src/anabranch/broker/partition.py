"""A partition as the broker sees it: its log, and the fetches that wait for more of it.

A branch of a branch topic is a partition too. It has no log of its own: its log is that of the
source's partition, so that offsets, epochs and times are the source's, and `branch` says which
part of it readers get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.branch.slots import DEFAULT_RULE
from anabranch.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from anabranch.broker.purgatory import ParkedFetch


class Partition:
    """One partition that this broker leads."""

    __slots__ = (
        "appended_bytes",
        "branch",
        "branch_tails",
        "index",
        "indexes_at_append",
        "log",
        "parked_fetches",
        "slot_rule",
        "syncs_acks_all",
    )

    def __init__(self, index: int, log: PartitionLog, syncs_acks_all: bool) -> None:
        self.index = index
        self.log = log
        # Whether acks=all waits for the disk (`flush.on.acks.all`).
        self.syncs_acks_all = syncs_acks_all
        # Fetches parked on this partition; a dict because it keeps their order and removes fast.
        self.parked_fetches: dict[ParkedFetch, None] = {}
        # Bytes appended since the parked fetches were last told.
        self.appended_bytes = 0
        # What part of the log this is, in a branch topic.
        self.branch: PartitionBranch | None = None
        # One for each branch topic over this partition, which agree on where a record belongs.
        self.branch_tails: list[BranchTail] = []
        self.slot_rule = DEFAULT_RULE
        # Whether slots are computed when records arrive (`branch.index.build`).
        self.indexes_at_append = False


class BranchTail:
    """All branches that one branch topic has of a source's partition."""

    __slots__ = ("branches", "is_looking", "parked_count", "ranges", "seen_offset", "source")

    def __init__(self, source: Partition, ranges: int) -> None:
        self.source = source
        self.ranges = ranges
        # By range, once all of them are made.
        self.branches: list[Partition] = []
        # What was appended below it was told to the fetches parked on the branches.
        self.seen_offset = 0
        # Whether somebody is about to find out what is new from there on.
        self.is_looking = False
        self.parked_count = 0

    def note_parked(self) -> None:
        """A fetch that read up to the log's end waits on one of the branches."""
        if not self.parked_count and not self.is_looking:
            self.seen_offset = self.source.log.log_end_offset
        self.parked_count += 1

    def note_left(self) -> None:
        self.parked_count -= 1


class PartitionBranch:
    """Which range of its source's partition a branch is."""

    __slots__ = ("range_index", "tail")

    def __init__(self, tail: BranchTail, range_index: int) -> None:
        self.tail = tail
        self.range_index = range_index
