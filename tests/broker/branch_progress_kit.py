"""A broker with a branch topic: records by range, commits on branches, and what is made of them."""

from collections.abc import Callable
from typing import Any

from group_kit import GROUP, NOW_MS, Groups, Waiting

from anabranch.branch.slots import branch_of_slot, slot_of_key
from anabranch.broker.branch_survey import SourceProgress
from anabranch.broker.deferred import Deferred
from anabranch.broker.topics import Topic
from anabranch.observe.metrics import GROUP_STABLE_OFFSET, GROUP_UNPROCESSED_RECORDS
from anabranch.wire.record_batch import Record, build_batch

SOURCE, BRANCHED = "orders", "by-key"
RANGES = 4
PROJECTED = {"branch.commit.source": "true"}
SOON_MS = 100  # after a commit it is looked at
PAUSE_MS = 1_000


def key_of(range_index: int, ranges: int = RANGES) -> bytes:
    """A key whose records are in a range."""
    return next(
        key
        for key in (b"%d" % number for number in range(1000))
        if branch_of_slot(slot_of_key(key), ranges) == range_index
    )


KEYS = [key_of(r) for r in range(RANGES)]


class Stage:
    """A source `orders` and a branch topic over it with four ranges of each partition."""

    def __init__(self, groups: Groups, partitions: int = 1, **configs: str) -> None:
        self.groups = groups
        self.loop = groups.loop
        self.source: Topic = groups.broker.create_topic(SOURCE, partitions)
        self.topic = self.branch(BRANCHED, RANGES, **configs)

    @classmethod
    def reopened(cls, groups: Groups) -> "Stage":
        """The same topics in a broker that was started on the folder."""
        stage = cls.__new__(cls)
        stage.groups, stage.loop = groups, groups.loop
        source, topic = (groups.broker.topics.get(name) for name in (SOURCE, BRANCHED))
        assert source is not None and topic is not None
        stage.source, stage.topic = source, topic
        return stage

    def branch(self, name: str, ranges: int, **configs: str) -> Topic:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        return self.groups.broker.topics.create_branch_topic(name, self.source, ranges, given)

    @property
    def progress(self) -> Any:
        return self.groups.broker.groups.branch_progress

    def start(self) -> None:
        self.groups.broker.groups.start()

    # Records and offsets ------------------------------------------------------------------------

    def produce(self, *ranges: int | None, partition: int = 0) -> None:
        """A batch with a record in each of these ranges; None is one without a key."""
        records = [
            Record(i, NOW_MS, None if r is None else KEYS[r], b"v", ())
            for i, r in enumerate(ranges)
        ]
        batch = memoryview(bytearray(build_batch(records, base_offset=0)))
        self.source.partitions[partition].log.append(batch, now_ms=int(self.groups.now_ms))

    def commit(
        self, *offsets: int | None, partition: int = 0, topic: str = BRANCHED, **more: Any
    ) -> None:
        """Commit on the branches of a partition, by range; None leaves one out."""
        for range_index, offset in enumerate(offsets):
            if offset is not None:
                index = range_index * len(self.source.partitions) + partition
                assert not self.groups.commit(offset, index, topic=topic, **more).error

    def commit_plain(self, offset: int, partition: int = 0) -> None:
        assert not self.groups.commit(offset, partition, topic=SOURCE).error

    def committed(self, partition: int = 0, topic: str = SOURCE) -> int | None:
        """The group's offset on the source."""
        found = self.groups.broker.groups.offsets(GROUP).get((topic, partition))
        return found.offset if found is not None else None

    # What comes of it ---------------------------------------------------------------------------

    def ask(self, question: Callable[[], Deferred[list[SourceProgress]]]) -> list[SourceProgress]:
        waiting = Waiting(question())
        while not waiting.is_answered:
            assert self.loop.finish_jobs(), "it waits for nothing"
        found: list[SourceProgress] = waiting.answer
        return found

    def stable(self, *names: str) -> list[tuple[int, int]]:
        """Stable offset and unprocessed records of each partition, as asked for now."""
        found = self.ask(lambda: self.progress.of_group(GROUP, names))
        return [(f.progress.stable_offset, f.progress.unprocessed_records) for f in found]

    def plan(self, name: str, ranges: int) -> list[list[tuple[int, int]]]:
        found = self.ask(lambda: self.progress.plan(GROUP, name, ranges))
        return [[(r.start_offset, r.replayed_records) for r in one.plan] for one in found]

    def pass_ms(self, delay_ms: float) -> None:
        """Let time pass, and threads finish soon what they are given meanwhile."""
        while True:
            step_ms = min(delay_ms, SOON_MS)
            self.groups.pass_ms(step_ms)
            while self.loop.finish_jobs():
                self.groups.pass_ms(0)
            delay_ms -= step_ms
            if delay_ms <= 0:
                return

    def settle(self) -> None:
        self.pass_ms(PAUSE_MS + SOON_MS)

    def metrics(self) -> dict[tuple[str, ...], tuple[float, float]]:
        """Stable offset and unprocessed records by the labels of their series."""
        found: dict[Any, Any] = dict(self.groups.broker.groups.collect_metrics())
        stable, left = found[GROUP_STABLE_OFFSET], found[GROUP_UNPROCESSED_RECORDS]
        assert stable.keys() == left.keys()
        return {labels: (stable[labels], left[labels]) for labels in stable}
