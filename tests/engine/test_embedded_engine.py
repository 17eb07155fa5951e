"""The embedded engine after crashes, on failing disks, and over several log directories."""

import errno
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.config.load import load_settings
from anabranch.engine.embedded import EmbeddedEngine
from anabranch.engine.log_directory import DirectoryError
from anabranch.engine.metadata_store import MetadataStore, StoredTopic
from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.record_batch import Record, build_batch

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig()


@contextmanager
def _engine(*folders: Path, cluster_id: str | None = None) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(list(folders), cluster_id=cluster_id)
    engine.open_logs(lambda topic: CONFIG, NOW_MS)
    try:
        yield engine
    finally:
        engine.close(NOW_MS)


@contextmanager
def _broker(*folders: Path) -> Iterator[Broker]:
    dirs = ",".join(map(str, folders))
    broker = Broker(load_settings(environ={}, overrides=[f"log.dirs={dirs}"]))
    try:
        yield broker
    finally:
        broker.close()


def _store(folder: Path, *topics: StoredTopic) -> None:
    """Write topics to the store only, as a broker does that dies right after it."""
    folder.mkdir(exist_ok=True)
    store = MetadataStore(folder)
    store.create_topics(list(topics))
    store.close()


def _topic(name: str, partitions: int) -> StoredTopic:
    return StoredTopic(name, uuid.uuid4().bytes, partitions, {})


def _append(log: PartitionLog, value: bytes) -> int:
    batch = bytearray(build_batch([Record(0, NOW_MS, None, value)], base_offset=0))
    return log.append(memoryview(batch), now_ms=NOW_MS).first_offset


def _folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir())


# Crashes between the store and the folders


def test_missing_folders_are_made(tmp_path: Path) -> None:
    """A topic that was stored when the broker died gets its folders at the next start."""
    _store(tmp_path, _topic("orders", 3))
    with _engine(tmp_path) as engine:
        assert sorted(engine.logs) == [("orders", 0), ("orders", 1), ("orders", 2)]
        assert all(log.log_end_offset == 0 for log in engine.logs.values())
    assert _folders(tmp_path) == ["orders-0", "orders-1", "orders-2"]


def test_some_folders_are_missing(tmp_path: Path) -> None:
    """Partitions that have their folder keep what is in it; only the missing ones are made."""
    _store(tmp_path, _topic("orders", 2))
    with _engine(tmp_path) as engine:
        for partition in (0, 1):
            _append(engine.logs["orders", partition], b"kept")
    shutil.rmtree(tmp_path / "orders-1")
    with _engine(tmp_path) as engine:
        ends = [engine.logs["orders", partition].log_end_offset for partition in (0, 1)]
    assert ends == [1, 0]


def test_strays_are_set_aside(tmp_path: Path) -> None:
    """Folders that the store does not know are renamed and kept; an unfinished removal ends."""
    topic = _topic("orders", 1)
    _store(tmp_path, topic)
    with _engine(tmp_path) as engine:
        _append(engine.logs["orders", 0], b"precious")
    store = MetadataStore(tmp_path)
    store.delete_topic(topic.topic_id)
    store.close()
    (tmp_path / "gone-0.0123456789abcdef-delete").mkdir()
    with _engine(tmp_path) as engine:
        assert engine.logs == {}
    (stray,) = _folders(tmp_path)
    assert stray.startswith("orders-0.") and stray.endswith("-stray")
    assert b"precious" in (tmp_path / stray / f"{0:020d}.log").read_bytes()
    with _engine(tmp_path):
        pass
    assert _folders(tmp_path) == [stray]


def test_stray_with_a_long_name(tmp_path: Path) -> None:
    """The longest topic name leaves room for what is added when its folder is set aside."""
    topic = _topic("x" * 249, 1)
    _store(tmp_path, topic)
    with _engine(tmp_path):
        pass
    store = MetadataStore(tmp_path)
    store.delete_topic(topic.topic_id)
    store.close()
    with _engine(tmp_path):
        pass
    (stray,) = _folders(tmp_path)
    assert stray.endswith("-stray")


def test_topic_made_again_under_its_name(tmp_path: Path) -> None:
    """A topic that was deleted and made again does not see the records of its namesake."""
    old, new = _topic("orders", 1), _topic("orders", 1)
    _store(tmp_path, old)
    with _engine(tmp_path) as engine:
        _append(engine.logs["orders", 0], b"old")
    store = MetadataStore(tmp_path)
    store.delete_topic(old.topic_id)
    store.create_topics([new])
    store.close()
    with _engine(tmp_path) as engine:
        assert engine.logs["orders", 0].log_end_offset == 0
        assert engine.logs["orders", 0].topic_id == new.topic_id
    assert len(_folders(tmp_path)) == 2


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    """Folders that are no partitions are not touched."""
    for name in ("lost+found", "backup", "notes-old"):
        (tmp_path / name).mkdir()
    with _engine(tmp_path):
        pass
    assert _folders(tmp_path) == ["backup", "lost+found", "notes-old"]


# Disks that fail


Refusal = Callable[[str], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """Let the disk fill up under the folder of one partition, after it was made."""
    good_open = PartitionLog.open.__func__  # type: ignore[attr-defined]
    full: set[str] = set()

    def opened(cls: type[PartitionLog], folder: Path, **facts: Any) -> PartitionLog:
        if folder.name in full:
            full.remove(folder.name)
            folder.mkdir()
            (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAA")
            raise OSError(errno.ENOSPC, "No space left on device")
        log: PartitionLog = good_open(cls, folder, **facts)
        return log

    monkeypatch.setattr(PartitionLog, "open", classmethod(opened))
    return full.add


def test_full_disk_leaves_no_half_topic(tmp_path: Path, refuse: Refusal) -> None:
    """A topic that cannot be made whole is not made at all, and can be made later."""
    with _broker(tmp_path) as broker:
        refuse("orders-2")
        with pytest.raises(KafkaError) as refused:
            broker.create_topic("orders", 4)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.topics.get("orders") is None
        assert broker.engine.store.topics() == []
        assert broker.engine.logs == {}
        assert _folders(tmp_path) == []
        broker.create_topic("orders", 4)
        assert len(_folders(tmp_path)) == 4
    with _broker(tmp_path) as broker:
        assert len(broker.topics.get("orders").partitions) == 4


def test_full_disk_leaves_no_half_growth(tmp_path: Path, refuse: Refusal) -> None:
    """Partitions that cannot all be added are not added, and can be later."""
    with _broker(tmp_path) as broker:
        topic = broker.create_topic("orders", 1)
        refuse("orders-2")
        with pytest.raises(KafkaError):
            broker.topics.grow(topic, 3, NOW_MS)
        assert len(topic.partitions) == 1
        assert _folders(tmp_path) == ["orders-0"]
        broker.topics.grow(topic, 3, NOW_MS)
        assert len(topic.partitions) == 3
    with _broker(tmp_path) as broker:
        assert len(broker.topics.get("orders").partitions) == 3


def test_failing_store_leaves_no_half_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same when the folders are made and the store refuses."""
    with _broker(tmp_path) as broker:
        topic = broker.create_topic("orders", 1)
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> None:
                raise OSError(errno.EIO, "Input/output error")

            patch.setattr(MetadataStore, "set_partitions", fail)
            with pytest.raises(KafkaError):
                broker.topics.grow(topic, 3, NOW_MS)
        assert sorted(broker.engine.logs) == [("orders", 0)]
        assert _folders(tmp_path) == ["orders-0"]
        broker.topics.grow(topic, 2, NOW_MS)
    with _broker(tmp_path) as broker:
        assert len(broker.topics.get("orders").partitions) == 2


def test_leftover_folder_is_in_the_way(tmp_path: Path) -> None:
    """A folder that a failed deletion left does not stop a topic of that name."""
    with _broker(tmp_path) as broker:
        leftover = tmp_path / "orders-0"
        leftover.mkdir()
        (leftover / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        (leftover / f"{0:020d}.log").write_bytes(b"something")
        topic = broker.create_topic("orders", 1)
        assert topic.partitions[0].log.log_end_offset == 0
    assert len(_folders(tmp_path)) == 2


def test_damaged_log(tmp_path: Path) -> None:
    """A log that cannot be opened is named, and the folder is free for the next attempt."""
    _store(tmp_path, _topic("bad", 1), _topic("good", 1))
    with _engine(tmp_path) as engine:
        for _ in range(2):
            _append(engine.logs["bad", 0], b"value")
            engine.logs["bad", 0].roll(NOW_MS)
    segment = tmp_path / "bad-0" / f"{0:020d}.log"
    segment.write_bytes(bytes(segment.stat().st_size))
    for snapshot in (tmp_path / "bad-0").glob("*.snapshot"):
        snapshot.unlink()
    for _ in range(2):
        with (
            pytest.raises(DirectoryError, match=r"The log bad-0 in .* cannot be opened: .*damaged"),
            _engine(tmp_path),
        ):
            pass
        (tmp_path / ".kafka_cleanshutdown").touch()
    shutil.rmtree(tmp_path / "bad-0")
    with _engine(tmp_path) as engine:
        assert sorted(engine.logs) == [("bad", 0), ("good", 0)]


# Several log directories


def test_partitions_are_spread(tmp_path: Path) -> None:
    """Partitions go where the fewest are, and are found there again."""
    first, second = tmp_path / "first", tmp_path / "second"
    with _broker(first, second) as broker:
        topic = broker.create_topic("orders", 6)
        for partition in topic.partitions:
            _append(partition.log, b"%d" % partition.index)
    assert len(_folders(first)) == len(_folders(second)) == 3
    with _broker(first, second) as broker:
        logs = broker.engine.logs
        assert len(logs) == 6
        assert all(log.log_end_offset == 1 for log in logs.values())
    assert len(_folders(first)) == len(_folders(second)) == 3


def test_order_of_log_dirs(tmp_path: Path) -> None:
    """Directories in another order are refused, before anything becomes a stray."""
    first, second = tmp_path / "first", tmp_path / "second"
    with _broker(first, second) as broker:
        broker.create_topic("orders", 2)
    with pytest.raises(DirectoryError, match=r"Name .*first first in log\.dirs"):
        EmbeddedEngine([second, first])
    with _broker(first, second) as broker:
        assert len(broker.topics.get("orders").partitions) == 2
    assert _folders(second) == ["orders-1"]


def test_another_directory_may_be_added(tmp_path: Path) -> None:
    """A new directory at the end takes the partitions to come."""
    first, second = tmp_path / "first", tmp_path / "second"
    with _broker(first) as broker:
        broker.create_topic("old", 2)
    with _broker(first, second) as broker:
        broker.create_topic("new", 2)
    assert _folders(second) == ["new-0", "new-1"]


def test_partition_in_two_directories(tmp_path: Path) -> None:
    """A partition that is there twice is refused: nobody can say which one is right."""
    first, second = tmp_path / "first", tmp_path / "second"
    with _broker(first, second) as broker:
        broker.create_topic("orders", 1)
    shutil.copytree(first / "orders-0", second / "orders-0")
    engine = EmbeddedEngine([first, second])
    with pytest.raises(DirectoryError, match=r"orders-0 is in .*first and in .*second"):
        engine.open_logs(lambda topic: CONFIG, NOW_MS)


# Whose directory it is


def test_cluster_id(tmp_path: Path) -> None:
    """The cluster id is settled at the first start and kept."""
    with _engine(tmp_path, cluster_id="mine") as engine:
        assert engine.cluster_id == "mine"
    with _engine(tmp_path) as engine:
        assert engine.cluster_id == "mine"
    with _engine(tmp_path, cluster_id="mine") as engine:
        assert engine.cluster_id == "mine"


def test_other_cluster_id(tmp_path: Path) -> None:
    """A directory of another cluster is refused and left as it was: clean, free, uncounted."""
    with _engine(tmp_path, cluster_id="mine") as engine:
        epoch = engine.leader_epoch
    with pytest.raises(DirectoryError, match=r"belongs to cluster mine, but cluster\.id is yours"):
        EmbeddedEngine([tmp_path], cluster_id="yours")
    with _engine(tmp_path) as engine:
        assert engine.directories[0].was_clean
        assert engine.leader_epoch == epoch + 1


def test_leader_epoch_rises(tmp_path: Path) -> None:
    """Every start has a leader epoch of its own, so that consumers notice a cut log."""
    epochs = []
    for _ in range(3):
        with _engine(tmp_path) as engine:
            epochs.append(engine.leader_epoch)
    assert epochs == [0, 1, 2]
