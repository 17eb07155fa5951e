"""Several shards with a journal each, sinks and their tasks across them, and crashes at any point.

The world does what the broker does with its shards (see `broker.sink_batches`), one small step at a
time, so that a crash can come between any two of them. A crash keeps what the journals have and
nothing else. A shard can also be away for a while: it is then asked nothing, and nobody knows what
it has decided.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transaction_story import START_MS, V2

from anabranch.coordinator.runtime.timers import Timers
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.records import SinkWritten, TransactionWritten
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.shard import TransactionShard
from anabranch.coordinator.transaction.sink_state import Listed
from anabranch.coordinator.transaction.state import Transaction

SHARDS = 3
TIMEOUT_MS = 60_000


class Away(Exception):
    """The shard serves nothing now."""


@dataclass
class Seat:
    """One shard with its journal, its timers and its work."""

    shard: TransactionShard
    journal: list[Any] = field(default_factory=list)
    timers: Timers = field(default_factory=Timers)
    tasks: list[Any] = field(default_factory=list)
    is_away: bool = False


class World:
    def __init__(self, **settings: int) -> None:
        self.settings = TransactionSettings(**settings)
        self.now_ms = START_MS
        self.seats = [Seat(self._shard()) for _ in range(SHARDS)]
        self.next_producer_id = 1000
        # What was decided, in the order of it: the book that everything is held against.
        self.batches: dict[tuple[str, int], tuple[Listed, ...]] = {}
        self.ends: dict[Listed, bool] = {}
        # Work on a batch that has begun: what is left of it, and what is done.
        self.begun: list[tuple[c.EndListed, list[Listed], list[Listed]]] = []

    def _shard(self) -> TransactionShard:
        return TransactionShard(self.settings, self.is_claimed)

    def is_claimed(self, transaction: Transaction) -> bool:
        return any(seat.is_away or seat.shard.claims(transaction) for seat in self.seats)

    def seat(self, name: str) -> Seat:
        return self.seats[sum(name.encode()) % SHARDS]

    def transaction(self, name: str) -> Transaction | None:
        return self.seat(name).shard.transaction(name)

    def new_producer_id(self, name: str) -> int | None:
        if not self.seat(name).shard.needs_producer_id(name):
            return None
        self.next_producer_id += 1
        return self.next_producer_id

    # Commands -----------------------------------------------------------------------------------

    def submit(self, name: str, command: c.Command) -> Any:
        seat = self.seat(name)
        if seat.is_away:
            raise Away
        self.now_ms += 1
        return self._decide(seat, command)

    def _decide(self, seat: Seat, command: c.Command) -> Any:
        result = seat.shard.decide(command, self.now_ms)
        for record in result.records:
            self._note(seat, record)
            seat.shard.replay(record)
            if record.is_durable:
                seat.journal.append(record)
        for change in result.timers:
            seat.timers.apply(change)
        seat.tasks += result.tasks
        return result.response

    def _note(self, seat: Seat, record: Any) -> None:
        """What a record decides is decided for good."""
        if isinstance(record, SinkWritten) and record.sink is not None:
            before = seat.shard.sink(record.sink_id)
            last_batch_id = -1 if before is None else before.last_batch_id
            assert record.sink.last_batch_id >= last_batch_id, "a batch was taken back"
            if record.sink.last_batch_id > last_batch_id:
                old = () if before is None else before.pending
                batch = tuple(one for one in record.sink.pending if one not in old)
                self.batches[record.sink_id, record.sink.last_batch_id] = batch
        if isinstance(record, TransactionWritten) and record.transaction is not None:
            transaction = record.transaction
            before = seat.shard.transaction(record.transactional_id)
            if transaction.state.is_decided and before is not None and before.is_prepared:
                is_commit = transaction.state.value == "PrepareCommit"
                one = Listed(
                    transactional_id=before.transactional_id,
                    producer_id=before.producer_id,
                    producer_epoch=before.producer_epoch,
                )
                self._note_end(one, is_commit)

    def _note_end(self, one: Listed, is_commit: bool) -> None:
        is_in_batch = any(one in batch for batch in self.batches.values())
        assert one not in self.ends, "ended twice"
        assert is_commit == is_in_batch, f"{one} is_commit={is_commit} in_batch={is_in_batch}"
        self.ends[one] = is_commit

    # Producers ----------------------------------------------------------------------------------

    def init(self, name: str) -> Any:
        command = c.InitProducerId(
            transactional_id=name,
            timeout_ms=TIMEOUT_MS,
            new_producer_id=self.new_producer_id(name),
        )
        return self.submit(name, command)

    def add(self, one: Listed) -> Any:
        command = c.AddPartitionsToTxn(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            partitions=(("x", 0), ("y", 1)),
            transaction_version=V2,
        )
        return self.submit(one.transactional_id, command)

    def prepare(self, one: Listed, sink_id: str, batch_id: int) -> Any:
        command = c.PrepareTxn(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            sink_id=sink_id,
            batch_id=batch_id,
        )
        return self.submit(one.transactional_id, command)

    def commit(self, sink_id: str, batch_id: int, batch: tuple[Listed, ...]) -> Any:
        if any(self.seat(one.transactional_id).is_away for one in batch):
            raise Away
        command = c.CommitBatch(
            sink_id=sink_id,
            batch_id=batch_id,
            listed=batch,
            found=tuple(self.transaction(one.transactional_id) for one in batch),
            others=tuple(
                transaction
                for seat in self.seats
                if not seat.is_away
                for transaction in seat.shard.prepared_for(sink_id)
            ),
        )
        return self.submit(sink_id, command)

    def end_prepared(self, sink_id: str, one: Listed, *, is_commit: bool) -> Any:
        name = one.transactional_id
        command = c.EndPrepared(
            sink_id=sink_id,
            listed=one,
            is_commit=is_commit,
            new_producer_id=self.new_producer_id(name),
        )
        return self.submit(name, command)

    # Work ---------------------------------------------------------------------------------------

    def work(self, pick: int) -> bool:
        """One small step of what there is to do; False when there is nothing."""
        steps = list(self._steps())
        if not steps:
            return False
        steps[pick % len(steps)]()
        return True

    def _steps(self) -> Iterator[Any]:
        for number in range(len(self.begun)):
            yield lambda number=number: self._go_on(number)
        for seat in self.seats:
            for task in [] if seat.is_away else seat.tasks:
                yield lambda seat=seat, task=task: self._begin(seat, task)

    def _begin(self, seat: Seat, task: Any) -> None:
        seat.tasks.remove(task)
        if isinstance(task, c.EndListed):
            self.begun.append((task, [*task.aborts, *task.commits], []))
        elif isinstance(task, c.WriteMarkers):
            self._decide(seat, c.MarkersWritten(task=task, written=task.partitions))
        else:
            self.next_producer_id += 1
            name = task.transactional_id
            self._decide(
                seat,
                c.ProducerIdAllocated(transactional_id=name, new_producer_id=self.next_producer_id),
            )

    def write_markers(self) -> None:
        """What is decided about single transactions is carried out, and nothing of batches."""
        for seat in self.seats:
            for task in [] if seat.is_away else list(seat.tasks):
                if isinstance(task, c.WriteMarkers):
                    self._begin(seat, task)

    def _go_on(self, number: int) -> None:
        task, left, done = self.begun[number]
        if left:
            one = left.pop(0)
            is_commit = one in task.commits
            try:
                answer = self.end_prepared(task.sink_id, one, is_commit=is_commit)
            except Away:
                return
            if is_commit and answer.error == 0:
                done.append(one)
            return
        del self.begun[number]
        if task.commits:
            try:
                self.submit(
                    task.sink_id, c.ListedEnded(sink_id=task.sink_id, ended=frozenset(done))
                )
            except Away:
                return  # it is loaded again before it serves

    # Time and crashes ---------------------------------------------------------------------------

    def wait(self, delay_ms: int) -> None:
        self.now_ms += delay_ms
        for seat in self.seats:
            while not seat.is_away and (key := seat.timers.pop_expired(self.now_ms)) is not None:
                self._decide(seat, c.TimerFired(key=key))

    def crash(self) -> None:
        self.begun = []
        for seat in self.seats:
            seat.is_away = False
            self.load(seat)

    def load(self, seat: Seat) -> None:
        """Read the journal; what was under way in this shard is forgotten."""
        shard = self._shard()
        for record in seat.journal:
            shard.replay(record)
        seat.shard, seat.timers, seat.tasks = shard, Timers(), []
        self._decide(seat, c.Loaded())

    def go_away(self, number: int) -> None:
        seat = self.seats[number]
        seat.is_away = True
        seat.shard, seat.timers, seat.tasks = self._shard(), Timers(), []

    def come_back(self, number: int) -> None:
        seat = self.seats[number]
        if seat.is_away:
            seat.is_away = False
            self.load(seat)
