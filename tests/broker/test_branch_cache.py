"""The cache of sorted chunks: what is found, what goes first, and that the limit holds."""

import random
from typing import Any, cast

from anabranch.branch.slots import DEFAULT_RULE
from anabranch.branch.split import SplitChunk, split_batches
from anabranch.broker.branch_cache import BranchCache, ChunkKey
from anabranch.log.partition_log import PartitionLog
from anabranch.wire.record_batch import Record, build_batch


def log() -> PartitionLog:
    made = cast(PartitionLog, object.__new__(PartitionLog))
    made.replacements = 0
    return made


def chunk(base_offset: int, count: int = 10, value_bytes: int = 1000) -> SplitChunk:
    records = [Record(base_offset + i, 0, b"k%d" % i, bytes(value_bytes), ()) for i in range(count)]
    return split_batches(memoryview(build_batch(records, base_offset=base_offset)), 2, DEFAULT_RULE)


def test_found_by_any_offset_it_covers() -> None:
    """From the offset it was made for, which may lie in a gap before it, up to its end."""
    cache = BranchCache(10**9)
    key = ChunkKey(log(), 2)
    cached = cache.add(key, 5, chunk(10), 0)
    assert cache.find(key, 4) is None
    assert all(cache.find(key, offset) is cached for offset in range(5, 20))
    assert cache.find(key, 20) is None
    assert cache.find(ChunkKey(key.log, 3), 10) is None
    assert cache.find(ChunkKey(log(), 2), 10) is None
    assert (cache.next_start(key, 0), cache.next_start(key, 5)) == (5, None)


def test_the_least_recently_used_goes_first() -> None:
    """Being found counts as use."""
    chunks = [chunk(base) for base in (0, 10, 20)]
    cache = BranchCache(sum(c.size_bytes for c in chunks[:2]))
    key = ChunkKey(log(), 2)
    cache.add(key, 0, chunks[0], 0)
    cache.add(key, 10, chunks[1], 0)
    assert cache.find(key, 0) is not None
    cache.add(key, 20, chunks[2], 0)
    assert [cache.find(key, offset) is not None for offset in (0, 10, 20)] == [True, False, True]


def test_the_newest_stays_however_large() -> None:
    """Whoever asked for it is about to read it."""
    cache = BranchCache(0)
    key = ChunkKey(log(), 2)
    cache.add(key, 0, chunk(0), 0)
    cache.add(key, 10, chunk(10), 0)
    assert len(cache) == 1
    assert cache.find(key, 10) is not None


def test_a_log_can_be_dropped() -> None:
    """With all its cuts, and nothing of others."""
    cache = BranchCache(10**9)
    one, other = log(), log()
    for key in (ChunkKey(one, 2), ChunkKey(one, 4), ChunkKey(other, 2)):
        cache.add(key, 0, chunk(0), 0)
    cache.drop(one)
    assert len(cache) == 1
    assert cache.find(ChunkKey(other, 2), 0) is not None
    cache.drop(other)
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_what_compaction_took_away_is_gone() -> None:
    """With all that was read before; what was being sorted meanwhile is for its reader only."""
    cache = BranchCache(10**9)
    key = ChunkKey(log(), 2)
    cache.add(key, 0, chunk(0), 0)
    key.log.replacements = 1
    late = cache.add(key, 10, chunk(10), 0)
    assert late.covers(10)
    assert cache.find(key, 10) is None
    assert cache.find(key, 0) is None
    assert cache.next_start(key, 0) is None
    assert (len(cache), cache.size_bytes) == (0, 0)
    cache.add(key, 0, chunk(0), 1)
    assert cache.find(key, 0) is not None


def test_random_use_keeps_the_books() -> None:
    """Sizes add up, the limit holds, and what is found covers what was asked."""
    chance = random.Random(3)
    made = {base: chunk(base, count=chance.randint(1, 10)) for base in range(0, 400, 10)}
    cache = BranchCache(12 * 10_000)
    logs = [log(), log()]
    kept: dict[Any, Any] = {}
    for _ in range(3000):
        key = ChunkKey(chance.choice(logs), chance.choice([2, 3]))
        base = chance.choice(list(made))
        if chance.random() < 0.5:
            kept[key, base] = cache.add(key, base, made[base], 0)
        elif chance.random() < 0.01:
            cache.drop(key.log)
        else:
            found = cache.find(key, base)
            assert found is None or (found is kept[key, base] and found.covers(base))
        assert cache.size_bytes <= cache.max_bytes
        assert cache.size_bytes == sum(c.chunk.size_bytes for c in cache._by_use)
