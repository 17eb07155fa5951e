"""What EndTxn and DescribeTransactions say beyond Kafka's tables, byte by byte."""

from typing import Any

import pytest

from anabranch.wire.api import Api
from anabranch.wire.messages.describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from anabranch.wire.messages.end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from anabranch.wire.messages.sink_batches import (
    PreparedTxn,
    PrepareTxn,
    PrepareTxnAnswer,
    RefusedTransaction,
    SinkBatch,
    SinkBatchAnswer,
    SinksAnswer,
    SinksQuestion,
    SinkState,
    SinkTransaction,
)
from anabranch.wire.primitives import EncodeError

# Each is version 1, then its fields, then no tags of its own.
PREPARE = (PrepareTxn(sink_id="s", batch_id=7), "0001 0273 0000000000000007 00")
PREPARED = (PrepareTxnAnswer(last_batch_id=6), "0001 0000000000000006 00 00")
BATCH = (
    SinkBatch(
        batch_id=7,
        transactions=[SinkTransaction(transactional_id="t", producer_id=5, producer_epoch=3)],
    ),
    "0001 0000000000000007 02 0274 0000000000000005 0003 00 00",
)
ENDED = (
    SinkBatchAnswer(
        last_batch_id=7,
        is_replay=True,
        error_message="e",
        refused=[RefusedTransaction(transactional_id="t", error_code=90, error_message="w")],
    ),
    "0001 0000000000000007 01 0265 02 0274 005a 0277 00 00",
)
QUESTION = (SinksQuestion(sink_ids=["s"]), "0001 02 0273 00")
ANSWER = (
    SinksAnswer(
        sinks=[
            SinkState(sink_id="s", last_batch_id=7, last_batch_time_ms=9, pending_transactions=1)
        ]
    ),
    "0001 02 0000 0273 0000000000000007 0000000000000009 0000000000000001 00 00",
)
WAITING = (
    PreparedTxn(sink_id="s", batch_id=7, prepared_time_ms=9),
    "0001 0273 0000000000000007 0000000000000009 00",
)


def encode(api: Api, side: str, message: Any, version: int) -> bytes:
    make = api.encode_request if side == "request" else api.encode_response
    return b"".join(make(version)(message))


def decode(api: Api, side: str, data: bytes, version: int) -> Any:
    make = api.decode_request if side == "request" else api.decode_response
    message, end = make(version)(memoryview(data), 0)
    assert end == len(data)
    return message


def tagged(tag: int, content: str) -> bytes:
    """One tag with what is in it."""
    data = bytes.fromhex(content)
    number = bytes([tag & 0x7F | 0x80, tag >> 7])
    return b"\x01" + number + bytes([len(data)]) + data


REQUEST = {"transactional_id": "t", "producer_id": 5, "producer_epoch": 3}


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("side", "tag", "name", "case"),
    [
        ("request", 10_000, "prepare", PREPARE),
        ("request", 10_001, "batch", BATCH),
        ("response", 10_000, "prepare", PREPARED),
        ("response", 10_001, "batch", ENDED),
    ],
)
def test_tags_of_end_txn(
    version: int, side: str, tag: int, name: str, case: tuple[Any, str]
) -> None:
    """They follow Kafka's fields, which stay as they are."""
    value, content = case
    make = EndTxnRequest if side == "request" else EndTxnResponse
    fields = REQUEST if side == "request" else {}
    plain = encode(END_TXN, side, make(**fields), version)
    message = make(**fields, **{name: value})
    data = encode(END_TXN, side, message, version)
    assert plain[-1:] == b"\x00"
    assert data == plain[:-1] + tagged(tag, content)
    assert decode(END_TXN, side, data, version) == message


@pytest.mark.parametrize(
    ("side", "make", "name", "case"),
    [
        ("request", DescribeTransactionsRequest, "sinks", QUESTION),
        ("response", DescribeTransactionsResponse, "sinks", ANSWER),
    ],
)
def test_tags_of_describe_transactions(
    side: str, make: Any, name: str, case: tuple[Any, str]
) -> None:
    """Likewise."""
    value, content = case
    message = make(**{name: value})
    data = encode(DESCRIBE_TRANSACTIONS, side, message, 0)
    assert data == encode(DESCRIBE_TRANSACTIONS, side, make(), 0)[:-1] + tagged(10_000, content)
    assert decode(DESCRIBE_TRANSACTIONS, side, data, 0) == message


def test_the_tag_of_a_described_transaction() -> None:
    """It is beside each transaction."""
    value, content = WAITING
    message = DescribeTransactionsResponse(
        transaction_states=[DescribedTransactionState(transactional_id="t", prepared=value)]
    )
    data = encode(DESCRIBE_TRANSACTIONS, "response", message, 0)
    assert tagged(10_000, content) in data
    assert decode(DESCRIBE_TRANSACTIONS, "response", data, 0) == message


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_versions_have_no_tags(version: int) -> None:
    """What they cannot carry is not left out in silence."""
    with pytest.raises(EncodeError):
        encode(END_TXN, "request", EndTxnRequest(**REQUEST, prepare=PREPARE[0]), version)
