"""What a crash can leave at the end of a log is cut off at the next start, and nothing else."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.wire.record_batch import read_header
from support.broker_process import BrokerProcess
from support.log_walker import check_partition, segment_paths, walk_segment
from support.raw_client import RawClient, batch_of

BATCHES = 30


def _next_batch(path: Path) -> bytearray:
    """The batch that would have come next, as the broker would have written it."""
    last = walk_segment(path).batches[-1]
    batch = bytearray(batch_of([b"never acknowledged" * 20]))
    batch[0:8] = (last.last_offset + 1).to_bytes(8, "big")
    return batch


def _append(path: Path, tail: bytes) -> None:
    with path.open("ab") as file:
        file.write(tail)


def _random_bytes(path: Path) -> int:
    _append(path, random.Random(1).randbytes(5000))
    return 0


def _half_a_batch(path: Path) -> int:
    batch = _next_batch(path)
    _append(path, batch[: len(batch) // 2])
    return 0


def _a_batch_header(path: Path) -> int:
    _append(path, _next_batch(path)[:61])
    return 0


def _a_few_bytes(path: Path) -> int:
    _append(path, _next_batch(path)[:7])
    return 0


def _zeros(path: Path) -> int:
    """The file grew but its content did not get there, as after a crash of the machine."""
    _append(path, bytes(100_000))
    return 0


def _a_batch_with_a_gap(path: Path) -> int:
    """A sound batch whose offset lies before the end: it cannot follow."""
    batch = _next_batch(path)
    batch[0:8] = (3).to_bytes(8, "big")
    _append(path, batch)
    return 0


def _flipped_bit(path: Path) -> int:
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x10
    path.write_bytes(content)
    return 1


def _last_batch_cut_short(path: Path) -> int:
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    return 1


def _damaged_length(path: Path) -> int:
    last = walk_segment(path).batches[-1]
    content = bytearray(path.read_bytes())
    content[last.position + 8 : last.position + 12] = (0x7FFFFFF0).to_bytes(4, "big")
    path.write_bytes(content)
    return 1


TAILS = (
    _random_bytes,
    _half_a_batch,
    _a_batch_header,
    _a_few_bytes,
    _zeros,
    _a_batch_with_a_gap,
    _flipped_bit,
    _last_batch_cut_short,
    _damaged_length,
)


def _fill(broker: BrokerProcess, topics: list[str]) -> None:
    with RawClient(broker.bootstrap) as client:
        client.metadata(*topics, auto_create=True)
        for topic in topics:
            for i in range(BATCHES):
                batch = batch_of([b"%d.%d" % (i, n) * 50 for n in range(10)])
                assert client.produce(topic, 0, batch).base_offset == 10 * i


def test_a_torn_tail_is_cut_and_the_rest_is_served(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """Each kind of damage costs one log line and no record before it; the log goes on there."""
    broker = make_broker()
    topics = [f"t{tear.__name__}" for tear in TAILS]
    _fill(broker, topics)
    broker.kill()
    ends = {}
    for topic, tear in zip(topics, TAILS, strict=True):
        (path,) = segment_paths(broker.data_dir / f"{topic}-0")
        ends[topic] = 10 * (BATCHES - tear(path))
    broker.start()
    lines = broker.log_text.splitlines()
    with RawClient(broker.bootstrap) as client:
        for topic, end in ends.items():
            assert sum(f"{topic}-0: cut segment 0" in line for line in lines) == 1, topic
            records = client.read_all(topic, 0)
            assert [record.offset for record in records] == list(range(end))
            assert [record.value for record in records] == [
                b"%d.%d" % (i // 10, i % 10) * 50 for i in range(end)
            ]
            assert client.produce(topic, 0, batch_of([b"next"])).base_offset == end
            assert client.read_all(topic, 0, end)[0].value == b"next"
    assert broker.stop() == 0
    for topic in topics:
        check_partition(broker.data_dir / f"{topic}-0")


@pytest.mark.parametrize(
    "tear", [_random_bytes, _half_a_batch, _zeros, _last_batch_cut_short], ids=lambda t: t.__name__
)
def test_a_tail_torn_after_an_orderly_stop_is_cut_too(
    make_broker: Callable[..., BrokerProcess], tear: Callable[[Path], int]
) -> None:
    """The mark of an orderly stop is not believed when the newest segment does not end well."""
    broker = make_broker()
    _fill(broker, ["t"])
    assert broker.stop() == 0
    (path,) = segment_paths(broker.data_dir / "t-0")
    end = 10 * (BATCHES - tear(path))
    broker.start()
    assert broker.log_text.count("t-0: cut segment 0") == 1
    with RawClient(broker.bootstrap) as client:
        assert len(client.read_all("t", 0)) == end
    assert broker.stop() == 0
    check_partition(broker.data_dir / "t-0")


def test_damage_in_an_earlier_segment_ends_the_log_there(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    """After a crash, segments behind a damaged one are dropped: they follow a hole."""
    broker = make_broker(**{"log.segment.bytes": "1048576"})
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        for _ in range(40):
            client.produce("t", 0, batch_of([b"." * 100_000]))
    broker.kill()
    paths = segment_paths(broker.data_dir / "t-0")
    assert len(paths) > 3
    content = bytearray(paths[1].read_bytes())
    first_size = read_header(content).size_bytes
    content[first_size + 200] ^= 1
    paths[1].write_bytes(content)
    broker.start()
    end = int(paths[1].stem) + 1
    with RawClient(broker.bootstrap) as client:
        assert [record.offset for record in client.read_all("t", 0)] == list(range(end))
        assert client.produce("t", 0, batch_of([b"next"])).base_offset == end
    assert broker.log_text.count("cut segment") == 1
    assert broker.stop() == 0
    assert len(check_partition(broker.data_dir / "t-0")) == 2


@pytest.mark.parametrize("is_crash", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "odd size"])
def test_index_files_are_made_again(
    make_broker: Callable[..., BrokerProcess], is_crash: bool, damage: str
) -> None:
    """Indexes that are gone or damaged are rebuilt; offsets and times are found as before."""
    broker = make_broker(**{"log.segment.bytes": "1048576"})
    with RawClient(broker.bootstrap) as client:
        client.metadata("t", auto_create=True)
        for i in range(60):
            batch = batch_of([b"." * 10_000] * 5, timestamp=1_700_000_000_000 + 1000 * i)
            assert client.produce("t", 0, batch).base_offset == 5 * i
        before = _look_ups(client)
    if is_crash:
        broker.kill()
    else:
        assert broker.stop() == 0
    folder = broker.data_dir / "t-0"
    for path in segment_paths(folder):
        for suffix in (".index", ".timeindex"):
            _damage(path.with_suffix(suffix), damage)
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert _look_ups(client) == before
        assert len(client.read_all("t", 0)) == 300
        assert client.read_all("t", 0, 177)[0].offset == 177
    assert broker.stop() == 0
    if damage != "empty":  # an empty index is legal, as in Kafka: it only makes reads walk further
        assert len(check_partition(folder)) > 2


def _damage(path: Path, damage: str) -> None:
    if damage == "missing":
        path.unlink(missing_ok=True)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "garbage":
        path.write_bytes(random.Random(3).randbytes(240))
    else:
        path.write_bytes(path.read_bytes()[:-5] if path.exists() else b"\0\0\0")


def _look_ups(client: RawClient) -> list[tuple[int, int]]:
    times = [0, *range(1_700_000_000_000, 1_700_000_060_000, 777), 1_800_000_000_000]
    return [client.offset_for_time("t", 0, time) for time in times]
