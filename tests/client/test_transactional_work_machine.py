"""Whatever comes in whatever order, what transactions have is done once, each key in order."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from test_workload_machine import WorkloadMachine

from anabranch.client.acks import gather_held
from anabranch.client.range_work import RangeState
from anabranch.client.records import (
    FINISHED,
    PARKED,
    PENDING,
    RECALLED,
    STARTED,
    ConsumerRecord,
)
from anabranch.client.work_queues import BatchQueue, WorkQueue

# Records started, left running, whether the transaction ends, more started, failed, and committed.
ROUNDS = st.tuples(
    st.integers(1, 6),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 4),
    st.integers(0, 2),
    st.booleans(),
)


class TransactionMachine(WorkloadMachine):
    """A member whose records count with transactions, one of which is being ended at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.workload.is_transactional = True
        self.workload.held_max = 1000
        self.ending: list[ConsumerRecord] = []

    def _done(self, record: ConsumerRecord) -> None:
        if record._state == RECALLED:
            assert self.workload.done(record) is False, "what was recalled counts"
        else:
            self.processed.add(record.offset)
            self.workload.done(record)

    # Transactions ---------------------------------------------------------------------------------

    @precondition(lambda self: not self.ending)
    @rule()
    def begin_to_end(self) -> None:
        held, self.workload.held = self.workload.held, []
        self.ending = [one for one in held if self.workload.is_held(one)]
        self.workload.forsake([one for one in held if one not in self.ending])

    @precondition(lambda self: self.ending)
    @rule()
    def commit_transaction(self) -> None:
        if not all(map(self.workload.is_held, self.ending)):
            self.abort_transaction()
            return
        self._arrive()
        self._check_order_of_what_counts()
        told = gather_held(self.ending)
        for one in told:
            self.coordinator.take(one)
        self.workload.settle(self.ending)
        self.ending = []
        self._give_back()

    def _check_order_of_what_counts(self) -> None:
        """Each record counts once, and after all of its key that came before it."""
        progress = self.coordinator.progress
        counting: set[int] = set()
        for record in self.ending:
            slot = self.log.slot(record.offset)
            assert not progress.is_done(slot, record.offset), "counts twice"
            before = [o for o in range(record.offset) if self.log.keys[o] == record.key]
            assert all(o in counting or progress.is_done(slot, o) for o in before), "overtakes"
            counting.add(record.offset)

    @precondition(lambda self: self.ending)
    @rule()
    def abort_transaction(self) -> None:
        held, self.workload.held = self.workload.held, []
        self._take_back([*self.ending, *held])

    def _take_back(self, records: list[ConsumerRecord]) -> None:
        progress = self.coordinator.progress
        self.processed -= {
            one.offset
            for one in records
            if not progress.is_done(self.log.slot(one.offset), one.offset)
        }
        self.workload.recall(records)
        self.ending = []
        self._give_back()

    def _round(
        self, starts: int, left: int, is_ended: bool, more: int, failed: int, is_commit: bool
    ) -> None:
        """A transaction from its first record to its end, while others run and fail."""
        self.heartbeat_is_answered()
        self.fetch_all(6)
        self.refill(8)
        self.start(starts)
        while len(self.out) > left:
            self._done(self.out.pop(0))
        if not self.ending:
            self.begin_to_end()
        if is_ended and not self.ending:
            return
        self.start(more)
        for record in self.out[:failed]:
            if record in self.out:
                self.out.remove(record)
                self._fail(record)
        if is_ended and is_commit:
            self.commit_transaction()
        elif is_ended:
            self.abort_transaction()

    def _fail(self, record: ConsumerRecord) -> None:
        self.workload.failed(record, retry_after_s=5.0, reason="no", now=self.now)

    @rule(rounds=st.lists(ROUNDS, min_size=1, max_size=3))
    def rounds(self, rounds: list[tuple[int, int, bool, int, int, bool]]) -> None:
        for one in rounds:
            self._round(*one)

    @rule(one=ROUNDS)
    def one_round(self, one: tuple[int, int, bool, int, int, bool]) -> None:
        self._round(*one)

    @rule(one=ROUNDS, quarters=st.sets(st.integers(0, 3)))
    def round_that_is_cut(
        self, one: tuple[int, int, bool, int, int, bool], quarters: set[int]
    ) -> None:
        starts, left, _, more, failed, is_commit = one
        self._round(starts, left, False, more, failed, False)
        self.assign(quarters)
        if self.ending and is_commit:
            self.commit_transaction()
        elif self.ending:
            self.abort_transaction()

    # What is always true --------------------------------------------------------------------------

    @invariant()
    def counts_are_right(self) -> None:
        for work in self.workload:
            running = [one for one in self.out if one._work is work]
            pending = [one for one in work.open.values() if one._state == PENDING]
            assert work.in_flight == len(running) + len(pending)
            assert work.parked == sum(one._state == PARKED for one in work.open.values())
            assert all(work.open.get(one.offset) is one for one in running)
            assert all(one._state != FINISHED for one in work.open.values())

    @invariant()
    def what_is_held_is_not_given_back(self) -> None:
        for record in (*self.ending, *self.workload.held):
            assert record._work.state is not RangeState.DRAINED

    def teardown(self) -> None:
        for record in list(self.out):
            self._done(record)
        self.out.clear()
        self.abort_transaction()
        self.workload.is_transactional = False
        super().teardown()


class PollTransactionMachine(TransactionMachine):
    """The same with polling: whatever was handed out and is not done comes again after an abort."""

    def __init__(self) -> None:
        super().__init__()
        self.workload.is_transactional = False

    def new_queue(self) -> WorkQueue:
        return BatchQueue()

    def check_start(self, record: ConsumerRecord) -> None:
        assert record._work.state is RangeState.ACTIVE, "started of a range that is not ours"
        assert record.key == self.log.keys[record.offset], "started without its content"
        slot = self.log.slot(record.offset)
        assert not self.coordinator.progress.is_done(slot, record.offset), "started what is done"
        of_key = {o for o in range(record.offset) if self.log.keys[o] == record.key}
        started = {one.offset for one in self.out if one.key == record.key}
        assert of_key <= self.processed | started, "overtook an earlier record of its key"

    def _done(self, record: ConsumerRecord) -> None:
        """Acknowledged in the transaction; a key's records in their order."""
        first = min(
            (one for one in (record, *self.out) if one.key == record.key),
            key=lambda one: one.offset,
        )
        if first is not record:
            self.out.remove(first)
            self.out.append(record)
        self.processed.add(first.offset)
        if self.workload.hold(first):
            self.workload.held.append(first)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), rest_s=st.sampled_from([0.0, 5.0, 50.0]))
    def fail(self, data: st.DataObject, rest_s: float) -> None:
        record = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.workload.failed(record, retry_after_s=rest_s, reason="no", now=self.now)
        self.out = [one for one in self.out if one._state == STARTED]
        self._give_back()

    def _fail(self, record: ConsumerRecord) -> None:
        super()._fail(record)
        self.out = [one for one in self.out if one._state == STARTED]

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self._done(self.out.pop(data.draw(st.integers(0, len(self.out) - 1))))
        self._give_back()

    @rule(data=st.data())
    def finish_most(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(0, 6))):
            if self.out:
                self._done(self.out.pop())
        self._give_back()

    def _take_back(self, records: list[ConsumerRecord]) -> None:
        handed_out = [
            one for work in self.workload for one in work.open.values() if one._state == STARTED
        ]
        super()._take_back([*records, *handed_out])
        self.out = [one for one in self.out if one._state == STARTED]

    def teardown(self) -> None:
        while self.out:
            self._done(self.out.pop())
        super().teardown()


# To make a failure smaller takes minutes here.
LIMITS = settings(max_examples=150, stateful_step_count=30, phases=(Phase.generate,))
TransactionMachine.TestCase.settings = LIMITS
PollTransactionMachine.TestCase.settings = LIMITS
TestTransactionMachine = TransactionMachine.TestCase
TestPollTransactionMachine = PollTransactionMachine.TestCase
