"""A partition as the broker sees it: its log, and the fetches that wait for more of it."""

from typing import TYPE_CHECKING

from anabranch.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from anabranch.broker.purgatory import ParkedFetch


class Partition:
    """One partition that this broker leads."""

    __slots__ = ("appended_bytes", "index", "log", "parked_fetches", "syncs_acks_all")

    def __init__(self, index: int, log: PartitionLog, syncs_acks_all: bool) -> None:
        self.index = index
        self.log = log
        # Whether acks=all waits for the disk (`flush.on.acks.all`).
        self.syncs_acks_all = syncs_acks_all
        # Fetches parked on this partition; a dict because it keeps their order and removes fast.
        self.parked_fetches: dict[ParkedFetch, None] = {}
        # Bytes appended since the parked fetches were last told.
        self.appended_bytes = 0
