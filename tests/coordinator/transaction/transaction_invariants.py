"""What holds for a shard of transactions at all times, whatever was asked of it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anabranch.coordinator.transaction.ending import markers_timer, timeout_timer
from anabranch.coordinator.transaction.settings import TransactionSettings
from anabranch.coordinator.transaction.shard import TransactionShard
from anabranch.coordinator.transaction.sinks import sink_timer
from anabranch.coordinator.transaction.state import (
    MAX_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionState,
    ended_epoch,
)

if TYPE_CHECKING:
    from transaction_story import Story


def image(shard: TransactionShard) -> tuple[Mapping[str, Any], ...]:
    """The whole state of a shard as values that can be compared."""
    missing = {name: shard.missing(name) for name in shard.transactions}
    prepared = {sink_id: set(names) for sink_id, names in shard._prepared.items()}
    claimed = dict.fromkeys(shard._claimed)
    return dict(shard.transactions), missing, dict(shard.sinks), prepared, claimed


def replayed(records: Iterable[Any], settings: TransactionSettings) -> TransactionShard:
    """The shard that these records make."""
    shard = TransactionShard(settings)
    for record in records:
        shard.replay(record)
    return shard


def check_invariants(story: "Story") -> None:
    check_replay(story)
    _check_epochs(story)
    for transaction in story.shard.transactions.values():
        _check_state(transaction)
    _check_work(story)
    _check_timers(story)
    _check_sinks(story)


def check_replay(story: "Story") -> None:
    """All records give the living shard; the durable ones do, but for the markers."""
    assert image(replayed(story.records, story.settings)) == image(story.shard)
    durable = replayed([r for r in story.records if r.is_durable], story.settings)
    assert dict(durable.transactions) == dict(story.shard.transactions)
    assert dict(durable.sinks) == dict(story.shard.sinks)


def _check_sinks(story: "Story") -> None:
    """What is pending is tried; what is prepared and what is claimed can be found."""
    shard = story.shard
    pending = [one for sink in shard.sinks.values() for one in sink.pending]
    assert shard._claimed == set(pending)
    prepared: dict[str, set[str]] = {}
    for name, transaction in shard.transactions.items():
        if transaction.preparation is not None:
            prepared.setdefault(transaction.preparation.sink_id, set()).add(name)
    assert shard._prepared == prepared
    for sink in shard.sinks.values():
        has_work = any(t.commits and t.sink_id == sink.sink_id for t in story.batches_under_way)
        waits = story.timers.deadline_ms(sink_timer(sink.sink_id)) is not None
        assert waits or has_work if sink.pending else not waits, sink.sink_id


def _check_epochs(story: "Story") -> None:
    """The epoch of a producer id never goes back, and no producer id serves two ids."""
    owners: dict[int, str] = {}
    for name, transaction in story.shard.transactions.items():
        producer_id = transaction.producer_id
        assert owners.setdefault(producer_id, name) == name
        assert transaction.producer_epoch >= story.epochs.get(producer_id, 0)
        story.epochs[producer_id] = transaction.producer_epoch


def _check_state(transaction: Transaction) -> None:
    state = transaction.state
    assert state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
    assert transaction.timeout_ms > 0
    assert transaction.last_producer_epoch < transaction.producer_epoch or (
        transaction.producer_epoch == 0 and transaction.last_producer_epoch == MAX_EPOCH - 1
    )
    # The journal does not say it again where it follows from the rest.
    assert ended_epoch(transaction) in (NO_PRODUCER_EPOCH, transaction.last_producer_epoch)
    assert state is TransactionState.ONGOING or not transaction.is_prepared
    if state is TransactionState.ONGOING:
        assert transaction.last_producer_epoch == NO_PRODUCER_EPOCH
    if state.is_idle:
        assert transaction.partitions == frozenset()
        assert transaction.next_producer_id == NO_PRODUCER_ID
    assert (transaction.start_timestamp_ms < 0) == (state is TransactionState.EMPTY)
    # The last epoch is kept for fencing: only the markers of an end have it.
    is_used_up = transaction.producer_epoch == MAX_EPOCH
    assert is_used_up == (transaction.next_producer_id != NO_PRODUCER_ID)
    assert not is_used_up or state.is_decided


def _check_work(story: "Story") -> None:
    """Each decided transaction has its markers written once, or is about to try again."""
    begun = Counter(task.transactional_id for task in story.markers_under_way)
    for name, transaction in story.shard.transactions.items():
        waits = story.timers.deadline_ms(markers_timer(name)) is not None
        assert begun[name] + waits == transaction.state.is_decided, name
        if begun[name]:
            (task,) = [t for t in story.markers_under_way if t.transactional_id == name]
            assert task.partitions == story.shard.missing(name)
    assert begun.keys() <= story.shard.transactions.keys()


def _check_timers(story: "Story") -> None:
    """Each Ongoing transaction ends in time, and nothing else has a time to end."""
    transactions = story.shard.transactions
    for name, transaction in transactions.items():
        deadline_ms = story.timers.deadline_ms(timeout_timer(name))
        if transaction.state is not TransactionState.ONGOING:
            assert deadline_ms is None
        elif transaction.is_exhausted or story.shard.claims(transaction):
            assert deadline_ms is not None
        else:
            assert deadline_ms == transaction.deadline_ms
    ongoing = sum(
        t.state is TransactionState.ONGOING and t.deadline_ms is not None
        for t in transactions.values()
    )
    sinks = sum(
        story.timers.deadline_ms(sink_timer(name)) is not None for name in story.shard.sinks
    )
    decided = sum(t.state.is_decided for t in transactions.values())
    assert len(story.timers) == ongoing + decided + sinks - len(story.markers_under_way)
