"""What is watched of a group and partition that is committed record by record."""

from anabranch.broker.open_records import OpenRecord
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.window import Stage, Window, begun_offset

# A group, a topic's id and a partition.
WindowKey = tuple[str, bytes, int]
# A record, its owner, and the epoch since which that is so.
Work = tuple[int, str, int]


class WatchedWindow:
    """A group and partition."""

    __slots__ = (
        "is_holding",
        "is_searching",
        "is_standing",
        "key",
        "ranges_count",
        "record",
        "revoked_offset",
        "searched_offset",
        "since_ms",
        "stable_offset",
        "stage",
        "told_ms",
        "told_stage",
        "work",
        "work_since_ms",
    )

    def __init__(self, key: WindowKey, now_ms: int) -> None:
        self.key = key
        self.stable_offset = -1
        self.ranges_count = 0
        # Whether there is something to finish at the stable offset, and since when.
        self.is_standing = False
        self.since_ms = now_ms
        # Whether a reader was held back since.
        self.is_holding = False
        # What is open at the stable offset, and below which offset nothing else is.
        self.record: OpenRecord | None = None
        self.searched_offset = -1
        self.is_searching = False
        # Who works on it, as far as was seen, and since when.
        self.work: Work | None = None
        self.work_since_ms = now_ms
        self.revoked_offset = -1
        # How far it has come since the stable offset moved.
        self.stage = Stage.NONE
        self.told_stage = Stage.NONE
        self.told_ms = 0

    def take(self, progress: PartitionProgress, delivered_offset: int, now_ms: int) -> None:
        """See what is done by now, and what was shown."""
        stable_offset = begun_offset(progress)
        self.ranges_count = progress.ranges_count
        was_standing, self.is_standing = self.is_standing, delivered_offset > stable_offset
        if stable_offset != self.stable_offset:
            self.stable_offset = self.searched_offset = stable_offset
            self.record = None
            self.stage = Stage.NONE
        elif was_standing:
            return
        self.since_ms = now_ms

    def window(self, delivered_offset: int) -> Window:
        return Window(
            stable_offset=self.stable_offset,
            delivered_offset=delivered_offset,
            ranges_count=self.ranges_count,
        )
