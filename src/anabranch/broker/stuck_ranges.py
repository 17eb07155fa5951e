"""Records that are shown to a member and not finished, and what that does to everybody else.

Every group and partition that is committed record by record is watched: how much it has under way,
and since when its stable offset has stood still although there is something to finish. What follows
is decided in `coordinator.cooperative.window`, in stages.

Rules
- Nothing polls while nothing waits. A commit, or a fetch that shows what nobody was shown, says
  what there is; while some stable offset stands still a timer of the loop looks now and then,
  several times within `coop.stuck.ms`.
- Holding back is decided when somebody reads; who waits because of it is woken when a commit has
  moved the stable offset far enough.
- How long a record is stuck counts from when it is seen to be with the member that has it: a new
  owner, or a rest after a failure, starts the clock again. The record is looked for off the loop.
- Where all read committed records only, those of aborted transactions hold nobody back, and those
  of transactions that are open were shown to nobody.
- A record that is stuck has its attempts counted. Its slot, and no other, goes to another member;
  with nobody else in the group it stays, and the attempts are counted all the same. A group that
  has others is also helped before the time is up, once for each record, when it waits for nothing
  else.
- What a process before this one has shown is not known, and counts when it is shown again.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from anabranch.broker.open_records import OpenRecord, find_open
from anabranch.broker.watched_window import WatchedWindow, WindowKey, Work
from anabranch.coordinator.cooperative.commands import CountStuck
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.records import ProgressForgotten, ProgressWritten
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.cooperative.stuck import Holder, holder_of, is_resting
from anabranch.coordinator.cooperative.window import (
    NO_AGE_MS,
    Stage,
    Window,
    begun_offset,
    done_percent,
    is_held,
    stage_of,
)
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_commands import MoveRanges, RangeMove
from anabranch.coordinator.group.consumer_state import ConsumerGroup
from anabranch.log.transactions import aborted_in_records
from anabranch.model.errors import KafkaError
from anabranch.model.units import SlotRange, Unit
from anabranch.observe import logs
from anabranch.observe import metrics as m

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.group_coordinator import GroupCoordinator

# A stable offset that stands still is looked at so often within `coop.stuck.ms`.
_LOOKS = 8
_LOOK_MIN_MS, _LOOK_MAX_MS = 50, 5_000
# How much of a log one look goes through.
_SEARCH_BYTES = 1024 * 1024
# A window that fills again and again is told of so often.
_TELL_AGAIN_MS = 60_000
_NOTHING_STALLED_MS = -1


class StuckRanges:
    """Watches all groups that commit record by record; lives on the event loop."""

    def __init__(
        self,
        broker: "Broker",
        groups: "GroupCoordinator",
        executor: Executor,
        steady_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._executor = executor
        self._steady_ms = steady_ms
        self._watched: dict[WindowKey, WatchedWindow] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False
        self.revocations = 0
        broker.deliveries.on_news = self._shown

    def start(self) -> None:
        """The loop runs: watch what was read from the journal."""
        self._is_started = True
        for group_id in self._groups.groups_with_progress():
            for topic_id, partition in self._groups.progress(group_id):
                self._see((group_id, topic_id, partition))

    def stop(self) -> None:
        self._is_started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What happens ---------------------------------------------------------------------------------

    def recorded(self, records: tuple[object, ...]) -> None:
        """A shard has replayed the records of a decision."""
        for record in records:
            if isinstance(record, ProgressWritten | ProgressForgotten):
                self._see((record.group_id, record.topic_id, record.partition))

    def _see(self, key: WindowKey) -> None:
        """See how far a group is; whoever was held back and need not be is woken."""
        progress = self._progress(key)
        if progress is None:
            gone = self._watched.pop(key, None)
            if gone is not None and gone.is_holding:
                self._wake_soon(key)
            return
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = WatchedWindow(key, self._steady_ms())
        delivered_offset = self._broker.deliveries.highest(*key)
        watched.take(progress, delivered_offset, self._steady_ms())
        if watched.is_holding:
            window = watched.window(delivered_offset)
            watched.is_holding = is_held(window, self._settings(key[0]))
            if not watched.is_holding:
                self._wake_soon(key)
        if watched.is_standing:
            self._arm()

    def _shown(self, group_id: str, topic_id: bytes, partition: int) -> None:
        """Somebody was shown what nobody was shown before."""
        watched = self._watched.get((group_id, topic_id, partition))
        if watched is not None and not watched.is_standing:
            # A shard that cannot be read now is looked at again when it can.
            with contextlib.suppress(KafkaError):
                self._see(watched.key)

    def _settings(self, group_id: str) -> CooperativeSettings:
        return self._groups.cooperative_settings(group_id)

    def _progress(self, key: WindowKey) -> PartitionProgress | None:
        group_id, topic_id, partition = key
        tracked = self._groups.progress(group_id).get((topic_id, partition))
        return tracked.progress if tracked is not None else None

    def _wake_soon(self, key: WindowKey) -> None:
        """Wake readers when the decision that is being carried out is through."""
        asyncio.get_running_loop().call_later(0, self._wake, key)

    def _wake(self, key: WindowKey) -> None:
        _, topic_id, partition = key
        topic = self._broker.topics.get_by_id(topic_id)
        if topic is not None and topic.has_partition(partition):
            self._broker.range_tails.wake(topic.partitions[partition])

    # Questions ------------------------------------------------------------------------------------

    def held_offset(self, group_id: str, topic_id: bytes, partition: int) -> int | None:
        """Up to where a group may read a partition while it is held; None when it is not."""
        watched = self._watched.get((group_id, topic_id, partition))
        if watched is None:
            return None
        delivered_offset = self._broker.deliveries.highest(group_id, topic_id, partition)
        watched.is_holding = is_held(watched.window(delivered_offset), self._settings(group_id))
        return delivered_offset if watched.is_holding else None

    def stalled_ms(self, group_id: str, topic_id: bytes, partition: int) -> int:
        """How long a stable offset has stood still with something to finish; -1 when it has not."""
        watched = self._watched.get((group_id, topic_id, partition))
        if watched is None or not watched.is_standing:
            return _NOTHING_STALLED_MS
        return self._steady_ms() - watched.since_ms

    # Looking --------------------------------------------------------------------------------------

    def _look_ms(self, group_id: str) -> int:
        return min(max(self._settings(group_id).stuck_ms // _LOOKS, _LOOK_MIN_MS), _LOOK_MAX_MS)

    def _arm(self) -> None:
        if self._timer is None and self._is_started:
            standing = {watched.key[0] for watched in self._watched.values() if watched.is_standing}
            if standing:
                pause_ms = min(map(self._look_ms, standing))
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(pause_ms / 1000, self._look_around)

    def _look_around(self) -> None:
        self._timer = None
        for watched in [one for one in self._watched.values() if one.is_standing]:
            try:
                self._look(watched)
            except KafkaError as error:
                # Its shard cannot be read now, or the records cannot; it is tried again.
                logs.warning("group.window.failed", group=watched.key[0], reason=error.message)
        self._arm()

    def _look(self, watched: WatchedWindow) -> None:
        self._see(watched.key)
        progress = self._progress(watched.key)
        if progress is None:
            return
        record = watched.record
        if record is not None and progress.is_done(record.slot, record.offset):
            watched.record = None
        stood_ms = self._steady_ms() - watched.since_ms
        is_worth_it = watched.is_standing and (
            stood_ms >= self._look_ms(watched.key[0]) or self._stage(watched, progress) > Stage.NONE
        )
        if is_worth_it and watched.record is None and not watched.is_searching:
            self._search(watched, progress)
        if not watched.is_searching:
            self._judge(watched, progress)

    def _search(self, watched: WatchedWindow, progress: PartitionProgress) -> None:
        """Look for the record that holds the stable offset back, off the loop."""
        _, topic_id, number = watched.key
        topic = self._broker.topics.get_by_id(topic_id)
        if topic is None or not topic.has_partition(number):
            return
        partition = topic.partitions[number]
        log = partition.log
        position = max(watched.searched_offset, log.log_start_offset)
        deliveries = self._broker.deliveries
        is_committed = not deliveries.reads_uncommitted(*watched.key)
        limit_offset = log.last_stable_offset if is_committed else log.high_watermark
        end_offset = min(deliveries.highest(*watched.key), limit_offset)
        if position >= end_offset:
            return  # there is none: somebody has yet to say that there was nothing to do
        batches = log.read(position, _SEARCH_BYTES, min_one_batch=True, upto=end_offset)
        if not batches:
            return
        watched.is_searching = True
        aborted: list[tuple[int, int]] = []
        if is_committed:
            found = aborted_in_records(log.transactions, position, batches)
            aborted = [(one.producer_id, one.first_offset) for one in found]
        rule = partition.slot_rule
        work = functools.partial(find_open, batches, rule, position, progress, aborted)
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        future.add_done_callback(functools.partial(self._searched, watched, watched.stable_offset))

    def _searched(
        self,
        watched: WatchedWindow,
        stable_offset: int,
        future: "asyncio.Future[tuple[OpenRecord | None, int]]",
    ) -> None:
        watched.is_searching = False
        if not self._is_started or self._watched.get(watched.key) is not watched:
            return
        failure = future.exception()
        if failure is not None:
            logs.error("group.window.failed", group=watched.key[0], reason=repr(failure))
            return
        if watched.stable_offset != stable_offset:
            return  # it moved meanwhile
        watched.record, searched_offset = future.result()
        if watched.record is None and searched_offset <= watched.searched_offset:
            return  # what is there cannot be read: not again at once
        watched.searched_offset = searched_offset
        try:
            self._look(watched)
        except KafkaError as error:
            logs.warning("group.window.failed", group=watched.key[0], reason=error.message)

    def _stage(
        self, watched: WatchedWindow, progress: PartitionProgress, *, with_others: bool = False
    ) -> Stage:
        """The stage of a window. `with_others` is whether somebody else could have the record."""
        delivered_offset = self._broker.deliveries.highest(*watched.key)
        record = watched.record
        is_first_time = record is not None and record.offset != watched.revoked_offset
        done = 0
        if with_others and is_first_time and watched.is_holding:
            done = done_percent(progress, delivered_offset)
        age_ms = NO_AGE_MS
        if watched.work is not None:
            age_ms = self._steady_ms() - watched.work_since_ms
        window = Window(
            stable_offset=watched.stable_offset,
            delivered_offset=delivered_offset,
            ranges_count=watched.ranges_count,
            done_percent=done,
            age_ms=age_ms,
        )
        return stage_of(window, self._settings(watched.key[0]))

    def _judge(self, watched: WatchedWindow, progress: PartitionProgress) -> None:
        """See who has the record that is open, and what stage that makes it."""
        group_id, topic_id, partition = watched.key
        group = self._groups.group(group_id)
        record = watched.record
        slot = record.slot if record is not None else _lowest_slots(progress).first
        holder = None
        if isinstance(group, ConsumerGroup):
            holder = holder_of(group, topic_id, partition, slot)
        self._note_work(watched, progress, holder)
        with_others = isinstance(group, ConsumerGroup) and group.sharing_members > 1
        stage = self._stage(watched, progress, with_others=with_others)
        watched.stage = max(stage, watched.stage)
        self._tell(watched, stage, holder, _lowest_slots(progress))
        if stage is Stage.REVOKE and record is not None and holder is not None:
            assert isinstance(group, ConsumerGroup), "who holds it is a member"
            if not self._groups.is_acknowledged(*watched.key, record.slot, record.offset):
                self._revoke(watched, record, holder, group)

    def _note_work(
        self, watched: WatchedWindow, progress: PartitionProgress, holder: Holder | None
    ) -> None:
        """Start the clock of whoever is seen to work on the record now and was not before."""
        record, now_ms = watched.record, self._steady_ms()
        work: Work | None = None
        if record is not None and holder is not None and not holder.is_leaving:
            is_shown = self._broker.deliveries.was_shown(
                *watched.key, holder.member_id, holder.epoch, record.offset
            )
            if is_shown and not is_resting(progress, record.offset, self._broker.now_ms()):
                work = (record.offset, holder.member_id, holder.epoch)
        if work == watched.work:
            return
        # Nobody has looked before: it is about as old as the standstill.
        is_new = now_ms - watched.since_ms <= 2 * self._look_ms(watched.key[0])
        watched.work = work
        watched.work_since_ms = watched.since_ms if is_new else now_ms

    # What follows ---------------------------------------------------------------------------------

    def _tell(
        self, watched: WatchedWindow, stage: Stage, holder: Holder | None, lowest: SlotRange
    ) -> None:
        """Say it once when a window enters a stage."""
        now_ms = self._steady_ms()
        if stage <= watched.told_stage:
            if stage is Stage.NONE and now_ms - watched.told_ms >= _TELL_AGAIN_MS:
                watched.told_stage = Stage.NONE
            return
        watched.told_stage, watched.told_ms = stage, now_ms
        logs.warning(
            "group.window.filling",
            stage=stage.name.lower(),
            window=watched.window(self._broker.deliveries.highest(*watched.key)).offsets,
            ranges=watched.ranges_count,
            **self._facts(watched, holder, lowest),
        )

    def _facts(
        self, watched: WatchedWindow, holder: Holder | None, lowest: SlotRange
    ) -> dict[str, object]:
        group_id, topic_id, partition = watched.key
        slots = holder.slots if holder is not None else lowest
        record = watched.record
        since_ms = watched.work_since_ms if watched.work is not None else watched.since_ms
        return {
            "group": group_id,
            "partition": f"{self._topic_name(topic_id)}-{partition}",
            "slots": f"{slots.first}-{slots.end - 1}",
            "owner": holder.member_id if holder is not None else "",
            "offset": record.offset if record is not None else watched.stable_offset,
            "age_s": (self._steady_ms() - since_ms) // 1000,
        }

    def _revoke(
        self, watched: WatchedWindow, record: OpenRecord, holder: Holder, group: ConsumerGroup
    ) -> None:
        """Count an attempt that failed, and have the slot of the record change hands."""
        group_id, topic_id, partition = watched.key
        facts = self._facts(watched, holder, holder.slots)
        self.revocations += 1
        logs.warning("group.record.stuck", **facts, slot=record.slot)
        watched.revoked_offset = record.offset
        watched.work = None
        self._groups.do(
            CountStuck(
                group_id=group_id,
                topic_id=topic_id,
                partition=partition,
                offset=record.offset,
                key_hash=record.key_hash,
                reason=f"stuck for {facts['age_s']} s at {holder.member_id}",
            )
        )
        slot = SlotRange(record.slot, record.slot + 1)
        self._groups.do(
            MoveRanges(
                group_id=group_id,
                group_epoch=group.group_epoch,
                moves=(RangeMove(Unit(topic_id, partition, slot), None),),
                cause=Cause.STUCK,
            )
        )

    # Showing --------------------------------------------------------------------------------------

    def _topic_name(self, topic_id: bytes) -> str:
        topic = self._broker.topics.get_by_id(topic_id)
        return topic.name if topic is not None else topic_id.hex()

    def collect_metrics(self) -> Iterator[tuple[m.Metric, m.Values]]:
        offsets: dict[m.Labels, float] = {}
        ranges: dict[m.Labels, float] = {}
        stalled: dict[m.Labels, float] = {}
        stages: dict[m.Labels, float] = {}
        for key, watched in sorted(self._watched.items()):
            group_id, topic_id, partition = key
            labels = (group_id, self._topic_name(topic_id), str(partition))
            window = watched.window(self._broker.deliveries.highest(*key))
            offsets[labels] = window.offsets
            ranges[labels] = watched.ranges_count
            stalled[labels] = max(0, self.stalled_ms(*key)) / 1000
            stages[labels] = max(stage_of(window, self._settings(group_id)), watched.stage)
        yield m.GROUP_WINDOW_OFFSETS, offsets
        yield m.GROUP_WINDOW_RANGES, ranges
        yield m.GROUP_STALLED_SECONDS, stalled
        yield m.GROUP_WINDOW_STAGE, stages
        yield m.GROUP_STUCK_RECORDS, {(): self.revocations}


def _lowest_slots(progress: PartitionProgress) -> SlotRange:
    """Slots that nobody is behind."""
    stable_offset = begun_offset(progress)
    intervals = progress.intervals
    return next(
        (one.slots for one in intervals if one.watermark == stable_offset), intervals[0].slots
    )
