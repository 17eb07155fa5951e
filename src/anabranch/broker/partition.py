"""A partition as the broker sees it: its log, and the fetches that wait for more of it.

A branch of a branch topic is a partition too. It has no log of its own: its log is that of the
source's partition, so that offsets, epochs and times are the source's, and `branch` says which
part of it readers get.
"""

from __future__ import annotations

from asyncio import TimerHandle
from typing import TYPE_CHECKING

from anabranch.branch.cuts import CutTable
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
        "bytes_in",
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
        # Bytes of records that producers brought since the start, for metrics.
        self.bytes_in = 0
        # What part of the log this is, in a branch topic.
        self.branch: PartitionBranch | None = None
        # One for each branch topic over this partition, which agree on where a record belongs.
        self.branch_tails: list[BranchTail] = []
        self.slot_rule = DEFAULT_RULE
        # Whether slots are computed when records arrive (`branch.index.build`).
        self.indexes_at_append = False


class BranchTail:
    """All branches that one branch topic has of a source's partition, where new records arrive.

    `cuts` is into how many equal key ranges the partition is cut, or a table of uneven ones.
    """

    __slots__ = (
        "branches",
        "cuts",
        "is_looking",
        "looked_offset",
        "opens_s",
        "parked_count",
        "source",
        "timer",
    )

    def __init__(self, source: Partition, cuts: int | CutTable) -> None:
        self.source = source
        self.cuts = cuts
        # By range, once all of them are made.
        self.branches: list[Partition] = []
        self.parked_count = 0
        # Whether somebody is about to find out what is new.
        self.is_looking = False
        # What arrived from this offset on is served from this time of the loop on
        # (`branch.fetch.linger.ms`), by this timer if somebody waits for it.
        self.looked_offset = 0
        self.opens_s = 0.0
        self.timer: TimerHandle | None = None


class PartitionBranch:
    """Which range of its source's partition a branch is, and what its parked fetches know."""

    __slots__ = ("range_index", "seen_offset", "tail")

    def __init__(self, tail: BranchTail, range_index: int) -> None:
        self.tail = tail
        self.range_index = range_index
        # What lies below it is known to the fetches that are parked here.
        self.seen_offset = 0

    def note_parked(self, seen_offset: int, *, is_first: bool) -> None:
        """A fetch waits here that has looked at everything below `seen_offset`."""
        self.seen_offset = seen_offset if is_first else min(self.seen_offset, seen_offset)
        self.tail.parked_count += 1
