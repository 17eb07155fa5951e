"""Reading from a split chunk: by offset, by size, and where chunks end; filler batches."""

import random
import struct
from dataclasses import dataclass

import pytest
from batch_kit import (
    control_batch,
    cut,
    random_log,
    split_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from anabranch.branch import split
from anabranch.branch.slots import DEFAULT_RULE, slot_of_key
from anabranch.branch.split import ChunkRead, filler_batch, index_batches, split_batches
from anabranch.wire.record_batch import Record, build_batch, crc_ok, read_header

ALL = 2**62


def view(*batches: bytes) -> memoryview:
    return memoryview(b"".join(batches))


def keyed_batch(base_offset: int, keys: list[bytes], codec: int = 0) -> bytes:
    records = [Record(base_offset + i, 1000, key, b"v" * 50) for i, key in enumerate(keys)]
    return build_batch(records, base_offset=base_offset, codec=codec)


@dataclass(frozen=True, slots=True)
class ModelChunk:
    """What each branch has of each batch; read by a loop over the batches."""

    batches: list[bytes]
    branches: int

    def read(
        self, branch: int, offset: int, upto: int, max_bytes: int, *, min_one_batch: bool
    ) -> ChunkRead:
        records = b""
        next_offset = covered_offset = offset
        for batch in self.batches:
            end = read_header(batch).next_offset
            if end <= offset:
                continue
            if end > upto:
                break
            part = split_model(batch, self.branches, DEFAULT_RULE)[branch]
            is_first = min_one_batch and not records
            if len(records) + len(part) > max_bytes and part and not is_first:
                break
            covered_offset = end
            if part:
                records += part
                next_offset = end
        return ChunkRead(memoryview(records), next_offset, covered_offset)


@settings(max_examples=150)
@given(st.data())
def test_read_is_a_loop_over_batches(data: st.DataObject) -> None:
    """Wherever a read begins, ends or is full, it gives what looking at each batch would give."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    batches = random_log(rng, 8)
    if not batches:
        return
    branches = data.draw(st.sampled_from((1, 2, 3, 8)))
    chunk = split_batches(view(*batches), branches, DEFAULT_RULE)
    model = ModelChunk(batches, branches)
    some_offset = st.integers(chunk.first_offset - 2, chunk.next_offset + 2)
    for _ in range(5):
        branch = data.draw(st.integers(0, branches - 1))
        offset = data.draw(some_offset)
        upto = data.draw(some_offset | st.just(ALL))
        max_bytes = data.draw(st.sampled_from((-1, 0, 1, 100, 500, 2000, ALL)))
        is_min = data.draw(st.booleans())
        expected = model.read(branch, offset, upto, max_bytes, min_one_batch=is_min)
        assert chunk.read(branch, offset, upto, max_bytes, min_one_batch=is_min) == expected
        rest = model.read(branch, offset, ALL, ALL, min_one_batch=False)
        assert chunk.touched_bytes(branch, offset) == len(rest.records)


def test_read_walks_to_the_end() -> None:
    """Reads that go on where the last one stopped see each batch once, even one at a time."""
    batches = random_log(random.Random(11), 60)
    chunk = split_batches(view(*batches), 3, DEFAULT_RULE)
    for branch in range(3):
        whole = bytes(chunk.read(branch, 0, ALL, ALL, min_one_batch=False).records)
        offset, parts = chunk.first_offset, []
        while offset < chunk.next_offset:
            got = chunk.read(branch, offset, ALL, 1, min_one_batch=True)
            assert got.covered_offset > offset
            assert len(cut(got.records)) <= 1
            parts.append(bytes(got.records))
            offset = got.covered_offset
        assert b"".join(parts) == whole


def test_sizes() -> None:
    """A chunk knows what it holds and what it was made of."""
    batches = random_log(random.Random(4), 20)
    log = view(*batches)
    chunk = split_batches(log, 8, DEFAULT_RULE)
    assert chunk.source_bytes == len(log)
    assert len(chunk.output) + len(chunk.index) < chunk.size_bytes
    assert chunk.size_bytes < len(chunk.output) + len(chunk.index) + 20 * 8 * 4 + 20 * 8 + 2000


def test_nothing_to_split() -> None:
    """A chunk has at least one batch; an index may be of none."""
    with pytest.raises(ValueError, match="no batches"):
        split_batches(memoryview(b""), 2, DEFAULT_RULE)
    assert index_batches(memoryview(b""), DEFAULT_RULE) == b""


# --- Where chunks end early ---------------------------------------------------------------------


def test_chunk_ends_before_too_many_plain_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would decompress to more than a chunk may hold is left for the next, but never all."""
    batches = [keyed_batch(i * 50, [b"%d" % j for j in range(50)], codec=4) for i in range(9)]
    log = view(*batches)
    whole = split_batches(log, 2, DEFAULT_RULE)
    monkeypatch.setattr(split, "PLAIN_BYTES_MAX", 3 * 3500)
    pieces = []
    while log:
        chunk = split_batches(log, 2, DEFAULT_RULE)
        assert chunk.first_offset == len(pieces) * 150
        assert chunk.next_offset == chunk.first_offset + 150
        pieces.append(chunk)
        log = log[chunk.source_bytes :]
    assert len(pieces) == 3
    assert b"".join(piece.index for piece in pieces) == whole.index
    assert index_batches(view(*batches), DEFAULT_RULE) == whole.index
    for branch in range(2):
        outputs = [p.read(branch, 0, ALL, ALL, min_one_batch=False).records for p in pieces]
        expected = whole.read(branch, 0, ALL, ALL, min_one_batch=False).records
        assert b"".join(outputs) == expected
    monkeypatch.setattr(split, "PLAIN_BYTES_MAX", 1)
    assert split_batches(view(*batches), 2, DEFAULT_RULE).source_bytes == len(batches[0])
    assert index_batches(view(*batches), DEFAULT_RULE) == whole.index


def test_chunk_ends_before_too_many_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control batches are in all branches, so a chunk of them must not grow without measure."""
    rng = random.Random(2)
    markers = [control_batch(rng, i) for i in range(50)]
    size = len(markers[0])
    log = view(*markers)
    assert split_batches(log, 8, DEFAULT_RULE).source_bytes == len(log)
    monkeypatch.setattr(split, "EXPANDED_BYTES_MAX", 10 * 8 * size)
    assert split_batches(log, 8, DEFAULT_RULE).source_bytes == 10 * size
    assert split_batches(log, 1, DEFAULT_RULE).source_bytes == len(log)
    monkeypatch.setattr(split, "EXPANDED_BYTES_MAX", 1)
    assert split_batches(log, 8, DEFAULT_RULE).source_bytes == size
    plain = view(*(keyed_batch(i, [b"k"]) for i in range(50)))
    monkeypatch.setattr(split, "EXPANDED_BYTES_MAX", 20 * 8 * 4)
    assert split_batches(plain, 8, DEFAULT_RULE).source_bytes == len(plain) // 50 * 20


@pytest.mark.parametrize("length", [0, -20, 48, 2**31 - 1])
def test_wrong_lengths_are_refused_when_there_are_many_branches(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Finding where a chunk ends neither hangs nor hides that the bytes are no batches."""
    monkeypatch.setattr(split, "EXPANDED_BYTES_MAX", 1000)
    bad = bytearray(keyed_batch(1, [b"k"] * 30))
    struct.pack_into(">i", bad, 8, length)
    with pytest.raises(ValueError, match="whole batches"):
        split_batches(view(keyed_batch(0, [b"k"]), bytes(bad)), 4, DEFAULT_RULE)


def test_a_bomb_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that decompresses beyond all limits goes to slot 0 as it is."""
    monkeypatch.setattr(split, "DECOMPRESSED_BYTES_MAX", 2000)
    small, bomb = keyed_batch(0, [b"a"] * 20, codec=4), keyed_batch(20, [b"a"] * 50, codec=4)
    chunk = split_batches(view(small, bomb), 2, DEFAULT_RULE)
    assert slot_of_key(b"a") >= 65536 // 2
    assert chunk.read(0, 0, ALL, ALL, min_one_batch=False).records == bomb
    assert chunk.read(1, 0, ALL, ALL, min_one_batch=False).records == small


# --- Fillers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("following", [1, 1000, 2**31 + 5, 2**62])
def test_filler_moves_readers_on(following: int) -> None:
    """No record for anybody, a valid CRC, and the next offset is where the reader shall go on."""
    filler = filler_batch(following, 3)
    header = read_header(filler)
    assert crc_ok(filler, 0, len(filler))
    assert header.size_bytes == len(filler)
    assert (header.next_offset, header.partition_leader_epoch) == (following, 3)
    assert header.is_control and not header.is_transactional
    assert header.producer_id == -1
    batch = MemoryRecords(filler).next_batch()
    assert batch is not None and batch.is_control_batch
    assert batch.next_offset == following


def test_slots_and_chunk_agree() -> None:
    """The branch that `slot_of_key` names is the one where the record is."""
    chunk = split_batches(memoryview(keyed_batch(0, [b"orders-17", b"x"])), 2, DEFAULT_RULE)
    branch = slot_of_key(b"orders-17") * 2 // 65536
    got = chunk.read(branch, 0, ALL, ALL, min_one_batch=False).records
    assert b"orders-17" in bytes(got)
