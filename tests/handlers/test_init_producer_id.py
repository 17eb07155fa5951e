"""InitProducerId: an id that nobody else has or had."""

import sqlite3
from collections.abc import Callable

import pytest
from handler_calls import Node
from transaction_calls import TransactionNode

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@pytest.mark.parametrize("version", range(6))
def test_every_call_gets_a_new_id(node: Node, version: int) -> None:
    """Ids count up with epoch 0."""
    for producer_id in range(3):
        assert node.call(InitProducerIdRequest(), version) == InitProducerIdResponse(
            producer_id=producer_id, producer_epoch=0
        )


def test_ids_are_never_given_twice(make_node: Callable[..., Node]) -> None:
    """A restart, in order or not, skips the rest of a block instead of repeating an id."""
    first = make_node()
    used = {first.call(InitProducerIdRequest()).producer_id for _ in range(1500)}
    first.close()
    again = make_node()
    assert len(used) == 1500
    assert again.call(InitProducerIdRequest()).producer_id > max(used)


def test_an_old_id_is_not_continued(node: Node) -> None:
    """A producer that names its id and epoch gets a new id, as Kafka's idempotent ones do."""
    request = InitProducerIdRequest(producer_id=0, producer_epoch=4)
    assert node.call(InitProducerIdRequest()).producer_id == 0
    answer = node.call(request)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 1, 0)


def test_an_empty_transactional_id(node: Node) -> None:
    """It is a mistake, not an id; no producer id is used up."""
    request = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1)
    assert node.call(request) == InitProducerIdResponse(
        error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1
    )
    assert node.call(InitProducerIdRequest()).producer_id == 0


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
def test_an_id_without_an_epoch(node: Node, producer_id: int, epoch: int) -> None:
    """Kafka wants both or neither; no id is used up."""
    request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
    assert node.call(request).error_code == ErrorCode.INVALID_REQUEST
    assert node.call(InitProducerIdRequest()).producer_id == 0


def test_no_room_for_ids(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that cannot be written down is an error that clients retry, and no id is lost."""

    def refuse(count: int) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(node.broker.engine.store, "reserve_producer_ids", refuse)
        answer = node.call(InitProducerIdRequest())
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            -1,
            -1,
        )
    assert node.call(InitProducerIdRequest()).producer_id == 0


# Transactional ids ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_id(transaction_node: TransactionNode, version: int) -> None:
    """It keeps its producer id, and every start has another epoch."""
    node = transaction_node
    assert [node.start_producer(version=version) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]
    other = node.start_producer(transactional_id="other", version=version)
    assert other == (1, 0)


def test_a_transactional_id_after_a_restart(
    make_transaction_node: Callable[..., TransactionNode],
) -> None:
    """The id has the same producer id and the next epoch, whatever happened to the broker."""
    node = make_transaction_node()
    producer_id, epoch = node.start_producer()
    node.close()
    assert make_transaction_node().start_producer() == (producer_id, epoch + 1)


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
def test_a_zombie_that_goes_on(
    transaction_node: TransactionNode, version: int, code: ErrorCode
) -> None:
    """A producer that was fenced cannot go on, and is told so in the words that it knows."""
    node = transaction_node
    zombie = node.start_producer()
    node.start_producer()
    node.start_producer()
    assert node.init(version=version, producer=zombie).error_code == code


@pytest.mark.parametrize("timeout_ms", [0, 900_001])
def test_a_timeout_that_is_not_possible(transaction_node: TransactionNode, timeout_ms: int) -> None:
    """transaction.max.timeout.ms bounds what producers may ask for."""
    answer = transaction_node.init(timeout_ms=timeout_ms)
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_no_room_for_the_ids_of_transactional_producers(
    transaction_node: TransactionNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new transactional id waits for room on the disk; one that has a producer id does not."""
    node = transaction_node
    assert node.start_producer() == (0, 0)
    node.broker.producer_ids._next = node.broker.producer_ids._end

    def refuse(count: int) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(node.broker.engine.store, "reserve_producer_ids", refuse)
    assert node.init("other").error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert node.start_producer() == (0, 1)
