"""Random tasks, drivers, zombies, crashes and shards that go away; batches stay whole.

The world (see `sink_world`) checks every record that is written: a batch is never taken back, what
is prepared is committed if and only if it is in a batch that was decided, and ends once. Here come
the answers, and what is left when all work is done:

- who is told that a batch is committed finds its transactions in it, and no others ever;
- a batch that is run again is a replay, whatever transactions it has;
- in the end all of a decided batch is committed, and nothing is prepared for it any more.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from sink_world import SHARDS, TIMEOUT_MS, Away, World
from transaction_story import V2

from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.sink_state import Listed
from anabranch.model.errors import ErrorCode

SINKS = ["s", "t"]
NAMES = [f"task{number}" for number in range(5)]
PICKS = st.integers(0, 10**6)
RETENTION_MS = 10 * TIMEOUT_MS


class SinkMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(prepared_retention_ms=RETENTION_MS)
        self.next_batch = dict.fromkeys(SINKS, 0)
        # What tasks have told their drivers, by sink and batch.
        self.messages: dict[tuple[str, int], list[Listed]] = {}

    # Tasks ----------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(NAMES),
        sink=st.sampled_from(SINKS),
        is_old=st.booleans(),
        is_lost=st.booleans(),
    )
    def task(self, name: str, sink: str, is_old: bool, is_lost: bool) -> None:
        """A task writes and prepares; its driver may not hear of it, or have gone on without it."""
        batch_id = max(0, self.next_batch[sink] - is_old)
        one = self.prepare(name, sink, batch_id)
        if one is not None and not is_lost:
            self.messages.setdefault((sink, batch_id), []).append(one)

    def prepare(self, name: str, sink: str, batch_id: int) -> Listed | None:
        """What a task tells its driver; None when it could not do it now."""
        try:
            answer = self.world.init(name)
            if answer.error is ErrorCode.CONCURRENT_TRANSACTIONS:
                self.world.write_markers()
                answer = self.world.init(name)
            if answer.error is not ErrorCode.NONE:
                assert answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
                return None
            one = Listed(
                transactional_id=name,
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
            )
            assert self.world.add(one).error is ErrorCode.NONE
            assert self.world.prepare(one, sink, batch_id).error is ErrorCode.NONE
        except Away:
            return None
        return one

    @precondition(lambda self: self.messages)
    @rule(pick=PICKS, is_commit=st.booleans())
    def zombie(self, pick: int, is_commit: bool) -> None:
        """A producer wants to end what it has prepared."""
        known = sorted(self.messages)
        batch = self.messages[known[pick % len(known)]]
        one = batch[pick // 7 % len(batch)]
        command = c.EndTxn(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            is_commit=is_commit,
            transaction_version=V2,
            new_producer_id=self.world.new_producer_id(one.transactional_id),
        )
        try:
            self.world.submit(one.transactional_id, command)
        except Away:
            return

    @rule(name=st.sampled_from(NAMES))
    def admin(self, name: str) -> None:
        command = c.AbortTransaction(
            transactional_id=name, new_producer_id=self.world.new_producer_id(name)
        )
        try:
            self.world.submit(name, command)
        except Away:
            return

    # Drivers --------------------------------------------------------------------------------------

    @rule(
        sink=st.sampled_from(SINKS),
        names=st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3),
        is_again=st.booleans(),
        is_lost=st.booleans(),
        steps=st.integers(0, 4),
    )
    def batch(self, sink: str, names: list[str], is_again: bool, is_lost: bool, steps: int) -> None:
        """What is mostly done: a whole batch, which may have been committed before."""
        batch_id = max(0, self.next_batch[sink] - is_again)
        ready = [one for name in names if (one := self.prepare(name, sink, batch_id)) is not None]
        if ready:
            self.messages.setdefault((sink, batch_id), []).extend(ready)
        self.ask(sink, batch_id, tuple(ready), is_lost)
        for _ in range(steps):
            self.world.work(0)

    @precondition(lambda self: self.messages)
    @rule(pick=PICKS, drops=st.integers(0, 1), is_lost=st.booleans())
    def commit(self, pick: int, drops: int, is_lost: bool) -> None:
        """A driver commits what it has heard of, perhaps once more."""
        known = sorted(self.messages)
        sink, batch_id = known[pick % len(known)]
        latest = {one.transactional_id: one for one in self.messages[sink, batch_id]}
        self.ask(sink, batch_id, tuple(latest.values())[drops:], is_lost)

    def ask(self, sink: str, batch_id: int, batch: tuple[Listed, ...], is_lost: bool) -> None:
        """Commit, and go on to the next batch unless the answer was lost."""
        decided = dict(self.world.batches)
        last = max((number for name, number in decided if name == sink), default=-1)
        try:
            answer = self.world.commit(sink, batch_id, batch)
        except Away:
            assert self.world.batches == decided
            return
        if answer.error is not ErrorCode.NONE:
            assert answer.refused
            assert self.world.batches == decided, "refused and committed"
            return
        assert answer.is_replay == (batch_id <= last)
        if answer.is_replay:
            assert self.world.batches == decided
        else:
            assert self.world.batches[sink, batch_id] == batch
        assert answer.last_batch_id == max(last, batch_id)
        if not is_lost:
            self.next_batch[sink] = max(self.next_batch[sink], batch_id + 1)

    @precondition(lambda self: self.messages)
    @rule(pick=PICKS)
    def abort(self, pick: int) -> None:
        known = sorted(self.messages)
        sink, batch_id = known[pick % len(known)]
        for one in self.messages[sink, batch_id]:  # of a batch that failed, or so it seems
            try:
                self.world.end_prepared(sink, one, is_commit=False)
            except Away:
                continue

    # The broker -----------------------------------------------------------------------------------

    @rule(pick=PICKS)
    def work(self, pick: int) -> None:
        self.world.work(pick)

    def all_work(self) -> None:
        while self.world.work(0):
            pass

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @rule(number=st.integers(0, SHARDS - 1), is_long=st.booleans())
    def outage(self, number: int, is_long: bool) -> None:
        """A shard cannot be read, for a moment or until the next crash or outage."""
        for other in range(SHARDS):
            self.world.come_back(other)
        self.world.go_away(number)
        if not is_long:
            self.world.come_back(number)

    @rule(delay_ms=st.sampled_from([100, TIMEOUT_MS, RETENTION_MS]))
    def time_passes(self, delay_ms: int) -> None:
        self.world.wait(delay_ms)

    def teardown(self) -> None:
        """All shards are back and all work is done: batches are whole."""
        world = self.world
        for number in range(SHARDS):
            world.come_back(number)
        for _ in range(50):
            self.all_work()
            if not any(sink.pending for seat in world.seats for sink in seat.shard.sinks.values()):
                break
            world.wait(100)
        for batch in world.batches.values():
            assert all(world.ends.get(one) is True for one in batch), "a part of a batch is missing"
        assert sum(world.ends.values()) == sum(len(batch) for batch in world.batches.values())
        world.wait(RETENTION_MS + TIMEOUT_MS)
        self.all_work()
        for seat in world.seats:
            assert all(t.state.is_idle for t in seat.shard.transactions.values())


TestSinks = SinkMachine.TestCase
TestSinks.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
