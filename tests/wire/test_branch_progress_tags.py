"""What OffsetFetch says beyond Kafka's table: how far groups are with the sources of branches."""

import dataclasses
from typing import Any

import pytest
from codec_oracles import decode_by_kio, encode_by_kio, kio_class, to_kio
from codec_strategies import full_message

from anabranch.wire.messages.offset_fetch import (
    OFFSET_FETCH,
    BranchProgressAnswer,
    BranchProgressPartition,
    BranchProgressQuestion,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    PlannedRange,
)
from anabranch.wire.primitives import encode_uvarint

VERSIONS = pytest.mark.parametrize("version", [8, 9, 10])
QUESTION = BranchProgressQuestion(topics=["by-key"], planned_ranges=3)
QUESTION_BYTES = b"\x02\x07by-key\x00\x00\x00\x03\x00"
ANSWER = BranchProgressAnswer(
    partitions=[
        BranchProgressPartition(
            topic="by-key",
            source_topic="orders",
            source_partition=1,
            ranges=8,
            committed_ranges=7,
            stable_offset=100,
            log_start_offset=10,
            high_watermark=200,
            unprocessed_records=33,
            planned_ranges=[PlannedRange(start_offset=150, replayed_records=5)],
        )
    ]
)
# Error, no text, one partition: its names and numbers, one range and its tags, its own tags; ours.
ANSWER_BYTES = (
    b"\x00\x00\x00\x02\x07by-key\x07orders"
    + bytes.fromhex("00000001 00000008 00000007")
    + b"".join(number.to_bytes(8, "big") for number in (100, 10, 200, 33))
    + b"\x02"
    + b"".join(number.to_bytes(8, "big") for number in (150, 5))
    + b"\x00\x00\x00"
)


def encode(side: str, message: Any, version: int) -> bytes:
    make = OFFSET_FETCH.encode_request if side == "request" else OFFSET_FETCH.encode_response
    return b"".join(make(version)(message))


def decode(side: str, data: bytes, version: int) -> Any:
    make = OFFSET_FETCH.decode_request if side == "request" else OFFSET_FETCH.decode_response
    message, end = make(version)(memoryview(data), 0)
    assert end == len(data)
    return message


@VERSIONS
def test_without_them_the_bytes_are_kafkas(version: int) -> None:
    """Who neither asks nor is told speaks Apache Kafka's protocol."""
    for side, cls in (("request", OffsetFetchRequest), ("response", OffsetFetchResponse)):
        message = full_message(cls, version, flexible=True)
        assert encode(side, message, version) == encode_by_kio(9, version, side, message)


@VERSIONS
def test_the_question_is_one_tag_of_the_request(version: int) -> None:
    """Number 10000, at the end, and it is read back."""
    plain = full_message(OffsetFetchRequest, version, flexible=True)
    asking = dataclasses.replace(plain, branch_progress=QUESTION)
    tag = b"\x01\x90\x4e" + encode_uvarint(len(QUESTION_BYTES)) + QUESTION_BYTES
    data = encode("request", asking, version)
    assert data == encode("request", plain, version)[:-1] + tag
    assert decode("request", data, version) == asking


@VERSIONS
def test_the_answer_is_one_tag_of_the_group(version: int) -> None:
    """With it cut out, kio reads what it reads from any broker."""
    group = OffsetFetchResponseGroup(group_id="g", branch_progress=ANSWER)
    told = OffsetFetchResponse(groups=[group])
    plain = OffsetFetchResponse(groups=[dataclasses.replace(group, branch_progress=None)])
    tag = b"\x01\x90\x4e" + encode_uvarint(len(ANSWER_BYTES)) + ANSWER_BYTES
    data = encode("response", told, version)
    assert data == encode("response", plain, version)[:-2] + tag + b"\x00"
    assert decode("response", data, version) == told
    bare = data.replace(tag, b"\x00")
    entity, _ = decode_by_kio(9, version, "response", bare)
    assert entity == to_kio(plain, kio_class(9, version, "response"))


@pytest.mark.parametrize("version", [6, 7])
def test_versions_with_one_group_have_no_place_for_it(version: int) -> None:
    """There the question cannot be put: it would be dropped without a word."""
    with pytest.raises(ValueError, match="branch_progress"):
        encode("request", OffsetFetchRequest(branch_progress=QUESTION), version)
