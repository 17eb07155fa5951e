"""Fuzzing the connection: any bytes end in readable answers, in order, or in one reason to close.

The default run tries the same examples every time; `make fuzz` tries new ones for ten minutes.
Inputs that once found a bug are kept as examples.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arena import Arena, attack, fuzzing, open_arena
from hypothesis import example, given
from hypothesis import strategies as st
from request_strategies import bodies, body_of, number, raw_bytes, valid_bodies

from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic

# Metadata 10 can ask by id, but cannot say that there is no topic with that id.
BY_UNKNOWN_ID = body_of(
    METADATA, 10, MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"\xff" * 16, name="")])
)
PIECES = st.sampled_from([1 << 30, 1 << 30, 64, 7, 1])


@pytest.fixture
def arena(tmp_path: Path, events: Any) -> Iterator[Arena]:
    with open_arena(tmp_path / "data", events) as arena:
        yield arena


def test_valid_requests(arena: Arena) -> None:
    """A valid request of any API and version is answered, whatever it asks for."""

    @fuzzing(500)
    @example(body=BY_UNKNOWN_ID, piece_bytes=1 << 30)
    @given(body=valid_bodies(), piece_bytes=PIECES)
    def ask(body: bytes, piece_bytes: int) -> None:
        arena.fight(number(body, 1), piece_bytes)
        assert all(reason.startswith("a produce with acks=0") for reason in arena.events.reasons)
        arena.check_memory()

    attack(ask)


def test_damaged_requests(arena: Arena) -> None:
    """Requests with damaged, missing and added bytes, pipelined and in pieces."""

    @fuzzing(500)
    @given(sent=st.lists(bodies, min_size=1, max_size=4), piece_bytes=PIECES)
    def ask(sent: list[bytes], piece_bytes: int) -> None:
        arena.fight(b"".join(number(body, i) for i, body in enumerate(sent)), piece_bytes)
        arena.check_memory()

    attack(ask)


def test_streams(arena: Arena) -> None:
    """Streams of frames and noise that break off anywhere."""

    @fuzzing(200)
    @given(
        sent=st.lists(st.builds(number, bodies, st.integers(0, 9)) | raw_bytes, max_size=4),
        kept=st.integers(0, 1 << 16),
        piece_bytes=PIECES,
    )
    def ask(sent: list[bytes], kept: int, piece_bytes: int) -> None:
        stream = b"".join(sent)
        arena.fight(stream[: kept % (len(stream) + 1)], piece_bytes)

    attack(ask)
