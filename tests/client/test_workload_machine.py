"""Whatever comes in whatever order, keys keep their order and no commit passes an open record."""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from workload_kit import PLACE, TOPIC_ID, Coordinator, Log, key_in

from anabranch.client import work_queues
from anabranch.client.acks import Progress, gather, take_back
from anabranch.client.holdings import Holdings
from anabranch.client.range_work import RangeState, RangeWork
from anabranch.client.records import PARKED, STARTED, ConsumerRecord
from anabranch.client.timing import Lease
from anabranch.client.work_queues import BatchQueue, KeyQueue, WorkQueue
from anabranch.client.workload import Row, Workload
from anabranch.model.units import SLOT_COUNT, SlotRange, Unit

EDGES = [0, 16_384, 32_768, 49_152, SLOT_COUNT]
QUARTERS = [SlotRange(first, end) for first, end in itertools.pairwise(EDGES)]
KEYS = [key_in(quarter, number) for quarter in QUARTERS for number in range(2)]


class WorkloadMachine(RuleBasedStateMachine):
    """One member, whose ranges come, are cut, given back, lost and come again."""

    queue: WorkQueue

    def __init__(self) -> None:
        super().__init__()
        self.log = Log([])
        self.lease = Lease()
        self.workload = Workload(self.new_queue(), self.lease)
        work_queues.WAITING_WITH_CONTENT = 1  # type: ignore[misc]
        self.holdings = Holdings(self.workload, lambda topic_id, partition: PLACE)
        self.coordinator = Coordinator()
        self.now = 0.0
        self.last_sent_at = 0.0
        self.epoch = 0
        self.target: dict[int, int] = {}  # quarter: epoch
        self.out: list[ConsumerRecord] = []
        self.processed: set[int] = set()
        self.fetches: list[tuple[list[SlotRange], int, int, list[Row]]] = []
        self.on_its_way: list[tuple[Progress, bool]] = []
        # By which epoch records were done that the member may say are done.
        self.counted: dict[int, int] = {}

    def new_queue(self) -> WorkQueue:
        return KeyQueue()

    @initialize(
        keys=st.lists(st.sampled_from(KEYS), min_size=12, max_size=24),
        quarters=st.sampled_from([{0, 1, 2, 3}, {0, 1}, {1, 2}]),
    )
    def begin(self, keys: list[bytes], quarters: set[int]) -> None:
        self.log.keys.extend(keys)
        self.lease.renew(self.now, 100)
        self.assign(quarters)
        self.fetch_all(8)

    # The world ------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def produce(self, keys: list[bytes]) -> None:
        self.log.keys.extend(keys)

    @rule(delay=st.sampled_from([6.0, 89.0, 90.0, 95.0]), sent_before=st.sampled_from([0.0, 60.0]))
    def time_passes(self, delay: float, sent_before: float) -> None:
        """A heartbeat is sent, and later answered; the next one is not."""
        sent_at = max(0.0, self.now - sent_before)
        self.last_sent_at = max(self.last_sent_at, sent_at)
        self.lease.renew(sent_at, 100)
        self.now += delay
        self.workload.wake(self.now)

    @rule()
    def heartbeat_is_answered(self) -> None:
        self.last_sent_at = self.now
        self.lease.renew(self.now, 100)

    @rule(quarters=st.sets(st.integers(0, 3)))
    def assign(self, quarters: set[int]) -> None:
        """Quarters that stay keep their epoch; others get a new one when they are free."""
        held = self.holdings.held.get((TOPIC_ID, 0), [])
        self.epoch += 1
        self.target = {
            quarter: self.target.get(quarter, self.epoch)
            for quarter in sorted(quarters)
            if quarter in self.target or not _meets(held, QUARTERS[quarter])
        }
        self._assigned()

    @precondition(lambda self: self.target)
    @rule(data=st.data())
    def epoch_changes(self, data: st.DataObject) -> None:
        """Somebody else had the quarter in between."""
        quarter = data.draw(st.sampled_from(sorted(self.target)))
        self.epoch += 1
        self.target[quarter] = self.epoch
        self._assigned()

    def _assigned(self) -> None:
        target: dict[Unit, int] = {}
        last: Unit | None = None
        for quarter, epoch in sorted(self.target.items()):
            unit = Unit(TOPIC_ID, 0, QUARTERS[quarter])
            # The coordinator joins what lies side by side, as it likes.
            if last is not None and target[last] == epoch and last.slots.end == unit.slots.first:
                del target[last]
                unit = Unit(TOPIC_ID, 0, SlotRange(last.slots.first, unit.slots.end))
            target[unit] = epoch
            last = unit
        self._load(self.holdings.assign(target).begun)

    def _load(self, begun: list[RangeWork]) -> None:
        for work in begun:
            self.coordinator.load(work)

    @rule()
    def is_fenced(self) -> None:
        self.holdings.lose_all()
        self.target = {}

    # The member -----------------------------------------------------------------------------------

    @rule(span=st.integers(1, 8), data=st.data())
    def fetch(self, span: int, data: st.DataObject) -> None:
        works = [work for work in self.workload if work.state is RangeState.ACTIVE]
        if not works:
            return
        chosen = data.draw(st.sets(st.sampled_from(range(len(works))), min_size=1))
        asked = [works[index].slots for index in sorted(chosen)]
        first = min(works[index].position for index in chosen)
        upto = min(first + span, self.log.end)
        self.fetches.append((asked, first, upto, self.log.fetch(asked, first, upto)))

    @rule(span=st.integers(1, 12))
    def fetch_all(self, span: int) -> None:
        """Each range by itself, answered at once."""
        for work in list(self.workload):
            if work.state is RangeState.ACTIVE:
                upto = min(work.position + span, self.log.end)
                records = self.log.fetch([work.slots], work.position, upto)
                self.workload.deliver((TOPIC_ID, 0), [work.slots], records, work.position, upto)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def fetch_is_answered(self, data: st.DataObject) -> None:
        """In any order, and maybe after everything has changed."""
        index = data.draw(st.integers(0, len(self.fetches) - 1))
        asked, first, upto, records = self.fetches.pop(index)
        self.workload.deliver((TOPIC_ID, 0), asked, records, first, upto)

    @rule(span=st.integers(1, 8))
    def refill(self, span: int) -> None:
        """Parked records come back, as many as there are in a stretch of the log."""
        empty = self.workload.queue.empty
        if empty:
            first = min(record.offset for record in empty)
            upto = min(first + span, self.log.end)
            asked = [work.slots for work in self.workload if work.state is RangeState.ACTIVE]
            records = self.log.fetch(asked, first, upto)
            self.workload.refill((TOPIC_ID, 0), asked, records, first, upto)

    @rule(count=st.integers(1, 8))
    def start(self, count: int) -> None:
        for _ in range(count):
            record = self.workload.take(self.now)
            if record is None:
                return
            self.check_start(record)
            self.out.append(record)

    def check_start(self, record: ConsumerRecord) -> None:
        assert self.now < self.last_sent_at + 90, "started after the lease"
        assert record._work.state is RangeState.ACTIVE, "started of a range that is not ours"
        assert record.key == self.log.keys[record.offset], "started without its content"
        slot = self.log.slot(record.offset)
        assert not self.coordinator.progress.is_done(slot, record.offset), "started what is done"
        assert [one for one in self.out if one.key == record.key] == [], "two of a key at once"
        before = {o for o in range(record.offset) if self.log.keys[o] == record.key}
        assert before <= self.processed, "overtook an earlier record of its key"

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        record = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self._done(record)
        assert self.workload.done(record) is False, "done twice"
        self._give_back()

    def _done(self, record: ConsumerRecord) -> None:
        self.processed.add(record.offset)
        epoch = record.token.epoch
        if self.workload.done(record):
            self.counted[record.offset] = epoch

    @precondition(lambda self: self.out)
    @rule(data=st.data(), rest_s=st.sampled_from([0.0, 5.0, 50.0]))
    def fail(self, data: st.DataObject, rest_s: float) -> None:
        record = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.workload.failed(record, retry_after_s=rest_s, reason="no", now=self.now)
        self._give_back()

    @rule()
    def give_back(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        for work in list(self.workload):
            if work.state is RangeState.DRAINING and work.in_flight == 0:
                self._arrive()
                self._commit(work, succeeds=True)
                self._check_stored(work)
                self.holdings.drained(work)
        self._load(self.holdings.begin_missing())

    def _check_stored(self, work: RangeWork) -> None:
        """What is done of a range that is given back nobody does again."""
        progress = self.coordinator.progress
        for offset, epoch in self.counted.items():
            slot = self.log.slot(offset)
            if epoch == work.token.epoch and work.slots.first <= slot < work.slots.end:
                assert progress.is_done(slot, offset), f"{offset} was not stored"

    @rule(data=st.data())
    def finish_most(self, data: st.DataObject) -> None:
        left = data.draw(st.sets(st.integers(0, 7), max_size=2))
        for index in reversed(range(len(self.out))):
            if index not in left:
                self._done(self.out.pop(index))
        self._give_back()

    @rule(succeeds=st.booleans())
    def commit(self, succeeds: bool) -> None:
        self._arrive()
        for work in list(self.workload):
            self._commit(work, succeeds)

    @rule(succeeds=st.booleans())
    def commit_is_sent(self, succeeds: bool) -> None:
        """It is answered later, when ranges may have been cut, given back or lost."""
        self._arrive()
        told = [one for work in self.workload if (one := gather(work)) is not None]
        self.on_its_way = [(one, succeeds) for one in told]

    @precondition(lambda self: self.target)
    @rule(data=st.data(), succeeds=st.booleans())
    def cut_while_it_is_told(self, data: st.DataObject, succeeds: bool) -> None:
        """A quarter goes while what was done of it is on its way."""
        self.commit_is_sent(succeeds)
        self.assign(set(self.target) - {data.draw(st.sampled_from(sorted(self.target)))})
        self._give_back()

    @rule()
    def commit_is_answered(self) -> None:
        self._arrive()

    def _arrive(self) -> None:
        """One commit at a time: what is on its way arrives before the next one is sent."""
        for told, succeeds in self.on_its_way:
            if succeeds:
                self.coordinator.take(told)
            else:
                take_back(told)
        self.on_its_way = []

    def _commit(self, work: RangeWork, succeeds: bool) -> None:
        told = gather(work)
        if told is None:
            return
        if succeeds:
            self.coordinator.take(told)
        else:
            take_back(told)

    # What is always true --------------------------------------------------------------------------

    @invariant()
    def nothing_is_skipped(self) -> None:
        """What counts as done was processed."""
        progress = self.coordinator.progress
        for offset in range(self.log.end):
            if progress.is_done(self.log.slot(offset), offset):
                assert offset in self.processed, f"{offset} is committed and not processed"

    @invariant()
    def what_runs_is_held(self) -> None:
        """A range of which something runs is not given back."""
        held = self.holdings.held.get((TOPIC_ID, 0), [])
        for record in self.out:
            work = record._work
            if work.state is not RangeState.GONE:
                assert _meets(held, work.slots)

    @invariant()
    def counts_are_right(self) -> None:
        for work in self.workload:
            running = [one for one in self.out if one._work is work]
            assert work.in_flight == len(running)
            assert work.parked == sum(one._state == PARKED for one in work.open.values())
            assert all(work.open.get(one.offset) is one for one in running)

    def teardown(self) -> None:
        """Left alone, everything is processed in the end."""
        self.holdings.assign({})
        self.fetches.clear()
        for record in self.out:
            self._done(record)
        self.out.clear()
        self._give_back()
        assert list(self.workload) == []
        self.target = dict.fromkeys(range(4), self.epoch + 1)
        self._assigned()
        self.now += 1000
        self.heartbeat_is_answered()
        for work in self.workload:
            records = self.log.fetch([work.slots], work.position, self.log.end)
            self.workload.deliver((TOPIC_ID, 0), [work.slots], records, work.position, self.log.end)
        while len(self.workload.queue) or self.workload.queue.empty:
            self.refill(5)
            while (record := self.workload.take(self.now)) is not None:
                self.check_start(record)
                self.processed.add(record.offset)
                self.workload.done(record)
        work_queues.WAITING_WITH_CONTENT = 64  # type: ignore[misc]
        self._arrive()
        for work in self.workload:
            self._commit(work, succeeds=True)
        assert self.coordinator.progress.stable_offset == self.log.end
        assert all(work.keys == {} for work in self.workload)


class PollMachine(WorkloadMachine):
    """The same with polling: several records of a key may be out, in order."""

    def new_queue(self) -> WorkQueue:
        return BatchQueue()

    def check_start(self, record: ConsumerRecord) -> None:
        assert self.now < self.last_sent_at + 90, "started after the lease"
        assert record._work.state is RangeState.ACTIVE, "started of a range that is not ours"
        assert record.key == self.log.keys[record.offset], "started without its content"
        slot = self.log.slot(record.offset)
        assert not self.coordinator.progress.is_done(slot, record.offset), "started what is done"
        of_key = {o for o in range(record.offset) if self.log.keys[o] == record.key}
        started = {one.offset for one in self.out if one.key == record.key}
        assert of_key <= self.processed | started, "overtook an earlier record of its key"

    @precondition(lambda self: self.out)
    @rule(data=st.data(), rest_s=st.sampled_from([0.0, 5.0, 50.0]))
    def fail(self, data: st.DataObject, rest_s: float) -> None:
        record = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.workload.failed(record, retry_after_s=rest_s, reason="no", now=self.now)
        # What was taken back with it will come again.
        self.out = [one for one in self.out if one._state == STARTED]
        self._give_back()


def _meets(ranges: list[SlotRange], slots: SlotRange) -> bool:
    return any(one.first < slots.end and slots.first < one.end for one in ranges)


WorkloadMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
PollMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestWorkloadMachine = WorkloadMachine.TestCase
TestPollMachine = PollMachine.TestCase
