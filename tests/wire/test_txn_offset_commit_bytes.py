"""TxnOffsetCommit 6, byte by byte: no client that could be recorded speaks it yet."""

from anabranch.wire.messages.txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

TOPIC_ID = bytes(range(16))
ID_HEX = "000102030405060708090a0b0c0d0e0f"

REQUEST = TxnOffsetCommitRequest(
    transactional_id="tx",
    group_id="g",
    producer_id=7,
    producer_epoch=3,
    generation_id=5,
    member_id="m",
    group_instance_id=None,
    topics=[
        TxnOffsetCommitRequestTopic(
            topic_id=TOPIC_ID,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=1,
                    committed_offset=42,
                    committed_leader_epoch=2,
                    committed_metadata="",
                )
            ],
        )
    ],
)
REQUEST_HEX = (
    "03 7478"  # "tx"
    "02 67"  # "g"
    "0000000000000007 0003 00000005"  # the producer, and the generation
    "02 6d"  # "m"
    "00"  # no instance
    "02" + ID_HEX + "02"  # one topic, one partition of it
    "00000001 000000000000002a 00000002 01 00"  # no metadata, no tags
    "00 00"
)

RESPONSE = TxnOffsetCommitResponse(
    throttle_time_ms=0,
    topics=[
        TxnOffsetCommitResponseTopic(
            topic_id=TOPIC_ID,
            partitions=[TxnOffsetCommitResponsePartition(partition_index=1, error_code=100)],
        )
    ],
)
RESPONSE_HEX = "00000000 02" + ID_HEX + "02 00000001 0064 00 00 00"


def test_the_request() -> None:
    """The id of the topic is where its name was."""
    data = bytes.fromhex(REQUEST_HEX)
    assert b"".join(TXN_OFFSET_COMMIT.encode_request(6)(REQUEST)) == data
    assert TXN_OFFSET_COMMIT.decode_request(6)(memoryview(data), 0) == (REQUEST, len(data))


def test_the_response() -> None:
    """The same there."""
    data = bytes.fromhex(RESPONSE_HEX)
    assert b"".join(TXN_OFFSET_COMMIT.encode_response(6)(RESPONSE)) == data
    assert TXN_OFFSET_COMMIT.decode_response(6)(memoryview(data), 0) == (RESPONSE, len(data))
