"""Random producers, answers that get lost, markers that fail, restarts; what must hold, holds.

The story kit checks every step (see `transaction_invariants`): epochs only grow, each decided
transaction has its markers under way once, replay gives the living state. Here come the promises
to producers, kept by a book that knows nothing of states: who began which transaction, who has been
replaced by whom, what was decided, and which markers are in which partition.

- A transaction has one producer. One that was replaced gets nothing any more, whatever it asks.
- Who is told that it has committed has committed, and nothing that was told is taken back.
- When a transaction is complete, its marker is in each of its partitions, and no other one is.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from transaction_story import TIMEOUT_MS, V0, V2, Step, Story

from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.records import TransactionWritten
from anabranch.coordinator.transaction.state import (
    TopicPartition,
    TransactionState,
    TransactionVersion,
)
from anabranch.model.errors import ErrorCode

NAMES = ["a", "b"]
PARTITIONS = st.sets(st.sampled_from([("x", 0), ("x", 1), ("y", 0)]), min_size=1, max_size=2)
PICKS = st.integers(0, 10**6)
IS_LOST = st.sampled_from([False, False, False, True])
ID_EXPIRATION_MS = 10 * TIMEOUT_MS


@dataclass(eq=False)
class Opened:
    """One transaction, as the book knows it."""

    name: str
    producer: "Producer | None"
    partitions: set[TopicPartition] = field(default_factory=set)
    is_commit: bool | None = None
    marker: tuple[int, int, bool] | None = None
    # How long each partition was when the decision came.
    lengths: dict[TopicPartition, int] = field(default_factory=dict)
    is_complete: bool = False


@dataclass(eq=False)
class Producer:
    """A client that uses an id, as far as it knows what it has."""

    name: str
    version: TransactionVersion
    pair: tuple[int, int]
    transaction: Opened | None = None
    is_replaced: bool = False


class TransactionMachine(RuleBasedStateMachine):
    """Producers that do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story(id_expiration_ms=ID_EXPIRATION_MS)
        self.producers: list[Producer] = []
        self.open: dict[str, Opened] = {}
        self.log: dict[TopicPartition, list[tuple[int, int, bool]]] = {}
        self.told: dict[str, tuple[int, int]] = {}

    @initialize(epoch=st.sampled_from([0, 0, 32763, 32765]))
    def begin(self, epoch: int) -> None:
        """Sometimes the epochs of the first id are nearly used up."""
        self.story.init(transactional_id="a")
        transaction = self.story.transaction("a")
        if epoch:
            record = TransactionWritten(
                transactional_id="a",
                transaction=dataclasses.replace(transaction, producer_epoch=epoch),
            )
            self.story.records.append(record)
            self.story.shard.replay(record)
        self.told["a"] = (transaction.producer_id, epoch)
        self.producers.append(Producer("a", V2, self.told["a"]))

    # The book -------------------------------------------------------------------------------------

    def note(self, step: Step, before: int) -> Step:
        """Write down what has happened to transactions, from the journal's point of view."""
        for record in self.story.records[before:]:
            if isinstance(record, TransactionWritten) and record.transaction is not None:
                self._note_record(record.transactional_id, record.transaction)
        return step

    def _note_record(self, name: str, transaction: Any) -> None:
        opened = self.open.get(name)
        if transaction.state is TransactionState.ONGOING:
            if opened is None or opened.is_complete:
                opened = self.open[name] = Opened(name, None)
            assert opened.is_commit is None, "a decision was taken back"
            assert opened.partitions <= transaction.partitions
            opened.partitions |= transaction.partitions
        elif transaction.state.is_decided and transaction.partitions:
            assert opened is not None
            assert opened.is_commit is None, "decided twice"
            opened.is_commit = transaction.state is TransactionState.PREPARE_COMMIT
            epoch = transaction.producer_epoch
            opened.marker = (transaction.producer_id, epoch, opened.is_commit)
            assert opened.partitions == transaction.partitions
            opened.lengths = {p: len(self.log.get(p, ())) for p in opened.partitions}
        elif transaction.state.is_complete and opened is not None and opened.marker is not None:
            self._check_complete(opened, transaction.state is TransactionState.COMPLETE_COMMIT)

    def _check_complete(self, opened: Opened, is_commit: bool) -> None:
        if opened.is_complete:
            return  # an abort of what had not begun came after it
        assert opened.marker is not None
        assert opened.is_commit is is_commit
        producer_id, epoch, _ = opened.marker
        for partition in opened.partitions:
            since = self.log.get(partition, [])[opened.lengths[partition] :]
            assert opened.marker in since, "a marker is missing"
            assert (producer_id, epoch, not is_commit) not in since
        opened.is_complete = True

    def succeeded(self, producer: Producer) -> None:
        assert not producer.is_replaced, "a producer that was replaced got something"

    def handed_out(self, producer: Producer, pair: tuple[int, int]) -> None:
        """What a producer gets is never older than what anybody got."""
        assert pair >= self.told.get(producer.name, (-1, -1))
        others = [p for p in self.producers if p.name == producer.name and p is not producer]
        assert all(other.is_replaced or other.pair != pair for other in others)
        self.told[producer.name] = pair

    def somebody(self, pick: int) -> Producer:
        """Mostly one that has not been replaced."""
        present = [p for p in self.producers if not p.is_replaced]
        if present and pick % 3:
            return present[pick // 3 % len(present)]
        return self.producers[pick // 3 % len(self.producers)]

    # Producers ------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), is_new=st.booleans(), is_lost=IS_LOST)
    def start(self, name: str, is_new: bool, is_lost: bool) -> None:
        """A producer starts; its answer may get lost, and then it gives up."""
        before = len(self.story.records)
        answer = self.note(self.story.init(transactional_id=name), before).answer
        if answer.error is not ErrorCode.NONE:
            assert answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
            return
        for other in self.producers:
            if other.name == name:
                other.is_replaced = True
        pair = (answer.producer_id, answer.producer_epoch)
        producer = Producer(name, V2 if is_new else V0, pair)
        assert pair > self.told.get(name, (-1, -1))
        self.handed_out(producer, pair)
        if not is_lost:
            self.producers.append(producer)

    @precondition(lambda self: self.producers)
    @rule(pick=PICKS, is_lost=IS_LOST)
    def go_on(self, pick: int, is_lost: bool) -> None:
        """A producer has met an error; its transaction is lost to it."""
        producer = self.somebody(pick)
        before = len(self.story.records)
        step = self.story.init(*producer.pair, transactional_id=producer.name)
        answer = self.note(step, before).answer
        if answer.error is ErrorCode.NONE:
            if producer.name in self.told:
                self.succeeded(producer)
            pair = (answer.producer_id, answer.producer_epoch)
            self.handed_out(producer, pair)
            if not is_lost:
                producer.pair, producer.transaction = pair, None

    @precondition(lambda self: self.producers)
    @rule(pick=PICKS, partitions=PARTITIONS, offsets=st.booleans())
    def add(self, pick: int, partitions: set[TopicPartition], offsets: bool) -> None:
        producer = self.somebody(pick)
        before = len(self.story.records)
        if offsets and producer.version is V0:
            step = self.story.offsets(*producer.pair, transactional_id=producer.name)
        else:
            step = self.story.add(
                *producer.pair,
                *sorted(partitions),
                transactional_id=producer.name,
                transaction_version=producer.version,
            )
        if self.note(step, before).answer.error is not ErrorCode.NONE:
            return
        self.succeeded(producer)
        opened = self.open[producer.name]
        if opened.producer is None:
            opened.producer = producer
        assert opened.producer is producer, "two producers share a transaction"
        producer.transaction = opened

    @precondition(lambda self: self.producers)
    @rule(pick=PICKS, commit=st.booleans(), is_lost=IS_LOST)
    def end(self, pick: int, commit: bool, is_lost: bool) -> None:
        producer = self.somebody(pick)
        before = len(self.story.records)
        step = self.story.end(
            *producer.pair,
            commit=commit,
            transactional_id=producer.name,
            transaction_version=producer.version,
        )
        answer = self.note(step, before).answer
        if answer.error is not ErrorCode.NONE:
            return
        self.succeeded(producer)
        if producer.transaction is not None:
            assert producer.transaction.is_commit is commit
        else:
            assert not commit, "what was never begun was committed"
        if producer.version is V2:
            pair = (answer.producer_id, answer.producer_epoch)
            self.handed_out(producer, pair)
            if not is_lost:
                producer.pair, producer.transaction = pair, None

    @precondition(lambda self: self.producers)
    @rule(pick=PICKS, partitions=PARTITIONS, commit=st.booleans(), is_lost=IS_LOST)
    def transact(
        self, pick: int, partitions: set[TopicPartition], commit: bool, is_lost: bool
    ) -> None:
        """What producers mostly do: a whole transaction, and where the answer is lost, again."""
        self.all_work()
        self.add(pick, partitions, offsets=False)
        self.end(pick, commit, is_lost)
        if is_lost:
            self.all_work()
            self.end(pick, commit, is_lost=False)

    # The broker -----------------------------------------------------------------------------------

    @rule()
    def all_work(self) -> None:
        while self.story.tasks:
            self.work(0, "all")

    @precondition(lambda self: self.story.tasks)
    @rule(pick=PICKS, writes=st.sampled_from(["all", "all", "all", "some", "none"]))
    def work(self, pick: int, writes: str) -> None:
        task = self.story.tasks[pick % len(self.story.tasks)]
        before = len(self.story.records)
        if isinstance(task, c.AllocateProducerId):
            self.story.next_producer_id += 1
            step = self.story.allocated(self.story.next_producer_id - 1, task.transactional_id)
        else:
            partitions = sorted(task.partitions)
            count = {"all": len(partitions), "some": len(partitions) // 2, "none": 0}[writes]
            self.write(task, partitions[:count])
            step = self.story.outcome(task, frozenset(partitions[:count]))
        self.note(step, before)

    def write(self, task: c.WriteMarkers, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            marker = (task.producer_id, task.producer_epoch, task.is_commit)
            self.log.setdefault(partition, []).append(marker)

    @rule(delay_ms=st.sampled_from([50, 100, TIMEOUT_MS // 2, TIMEOUT_MS]))
    def time_passes(self, delay_ms: int) -> None:
        before = len(self.story.records)
        for step in self.story.wait(delay_ms):
            self.note(step, before)
            before = len(self.story.records)

    @rule(has_written=st.booleans())
    def restart(self, has_written: bool) -> None:
        """Some markers may be there that nobody could tell of any more."""
        for task in self.story.markers_under_way if has_written else []:
            self.write(task, sorted(task.partitions)[:1])
        self.story.restart()

    @rule(name=st.sampled_from(NAMES))
    def admin(self, name: str) -> None:
        before = len(self.story.records)
        self.note(self.story.abort(name), before)

    @rule()
    def expire(self) -> None:
        """Whoever had an id that is forgotten may start over with it."""
        self.story.now_ms += 2 * TIMEOUT_MS
        if self.story.timers.next_deadline_ms() is None:
            self.story.expire()
        for name in NAMES:
            if self.story.shard.transaction(name) is None:
                self.producers = [p for p in self.producers if p.name != name]
                self.told.pop(name, None)

    def teardown(self) -> None:
        """When all work is done, nothing is left in the middle."""
        for _ in range(100):
            self.all_work()
            if self.story.timers.next_deadline_ms() is None:
                break
            self.time_passes(TIMEOUT_MS)
        assert all(t.state.is_idle for t in self.story.shard.transactions.values())


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
