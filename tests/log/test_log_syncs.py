"""What a log makes the disk wait for, and when: nothing before its first flush."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from log_kit import NOW_MS, SMALL, append, open_log

from anabranch.engine.embedded import EmbeddedEngine
from anabranch.engine.metadata_store import StoredTopic
from anabranch.log.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    TMP_SUFFIX,
    read_leader_epochs,
    read_topic_id,
)
from anabranch.model.errors import KafkaError

Syncs = list[str]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """The names of the files and folders that were synced, in order."""
    names: Syncs = []

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            real(fd)

        return sync

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    return names


def test_a_new_log_waits_for_no_disk(tmp_path: Path, syncs: Syncs) -> None:
    """Making a log and appending to it syncs nothing: the event loop does both."""
    log = open_log(tmp_path / "t-0")
    append(log)
    assert syncs == []
    log.close(NOW_MS)


def test_the_first_flush_syncs_all_there_is(tmp_path: Path, syncs: Syncs) -> None:
    """With the first records their folder's names, its topic id and its epoch become durable."""
    log = open_log(tmp_path / "t-0", leader_epoch=4)
    append(log)
    log.flush(NOW_MS)
    assert syncs == [
        PARTITION_METADATA,
        "00000000000000000000.log",
        LEADER_EPOCHS + TMP_SUFFIX,
        "t-0",
        "t-0",
    ]
    assert read_leader_epochs(log.folder) == [(4, 0)]
    syncs.clear()
    append(log)
    log.flush(NOW_MS)
    assert syncs == ["00000000000000000000.log"]
    log.close(NOW_MS)


def test_a_log_that_nobody_wrote_to_costs_no_sync(tmp_path: Path, syncs: Syncs) -> None:
    """A start has a new leader epoch for every log; only those that use it write it down."""
    log = open_log(tmp_path / "t-0", leader_epoch=0)
    append(log)
    assert log.close(NOW_MS)
    syncs.clear()
    for epoch in (1, 2):
        log = open_log(tmp_path / "t-0", leader_epoch=epoch)
        assert log.offset_for_leader_epoch(epoch) == (epoch, 1)
        assert log.close(NOW_MS)
    empty = open_log(tmp_path / "t-1", leader_epoch=0)
    assert empty.close(NOW_MS)
    assert syncs == []
    assert read_leader_epochs(tmp_path / "t-0") == [(0, 0)]


def test_an_expired_producer_is_not_in_the_next_snapshot(tmp_path: Path) -> None:
    """A snapshot that is there already is written again when a producer was forgotten since."""
    log = open_log(tmp_path / "t-0")
    append(log, producer=(7, 0, 0))
    log.close(NOW_MS)
    log = open_log(tmp_path / "t-0")
    assert log.expire_producers(NOW_MS + SMALL.producer_id_expiration_ms) == 1
    log.close(NOW_MS)
    log = open_log(tmp_path / "t-0")
    assert log.producers() == []
    log.close(NOW_MS)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_epochs_after_a_crash(tmp_path: Path, is_flushed: bool) -> None:
    """The epochs of batches that were never flushed are read from the batches again."""
    folder, crashed = tmp_path / "t-0", tmp_path / "crashed"
    log = open_log(folder, leader_epoch=3)
    append(log)
    log.close(NOW_MS)
    log = open_log(folder, leader_epoch=5)
    append(log)
    append(log)
    if is_flushed:
        log.flush(NOW_MS)
    shutil.copytree(folder, crashed)
    log.close(NOW_MS)
    recovery_point = 3 if is_flushed else 1
    log = open_log(crashed, leader_epoch=6, clean=False, recovery_point=recovery_point)
    answers = [log.offset_for_leader_epoch(epoch) for epoch in (3, 4, 5, 6)]
    assert answers == [(3, 1), (3, 1), (5, 3), (6, 3)]
    log.close(NOW_MS)


def test_no_room_for_the_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk keeps the recovery point where it is; when there is room, the flush succeeds."""
    log = open_log(tmp_path / "t-0", leader_epoch=3)
    append(log)

    def refuse(folder: Path, entries: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("anabranch.log.flush.write_leader_epochs", refuse)
        with pytest.raises(KafkaError, match="No space left"):
            log.flush(NOW_MS)
    assert (log.failed, log.recovery_point) == (None, 0)
    append(log)
    log.flush(NOW_MS)
    assert log.recovery_point == 2
    assert read_leader_epochs(tmp_path / "t-0") == [(3, 0)]
    log.close(NOW_MS)


def test_an_epoch_whose_records_were_cut_off(tmp_path: Path) -> None:
    """Recovery that cuts all records of an epoch forgets the epoch with them."""
    folder = tmp_path / "t-0"
    log = open_log(folder, leader_epoch=3)
    append(log)
    size_bytes = log.size_bytes
    log.close(NOW_MS)
    log = open_log(folder, leader_epoch=5)
    append(log)
    log.close(NOW_MS)
    with (folder / "00000000000000000000.log").open("r+b") as file:
        file.truncate(size_bytes + 30)
    log = open_log(folder, leader_epoch=6, clean=False)
    assert log.offset_for_leader_epoch(5) == (3, 1)
    log.close(NOW_MS)


def test_many_partitions_need_one_sync(tmp_path: Path, syncs: Syncs) -> None:
    """The folders of a new topic become durable together, in the metadata store's wake."""
    engine = EmbeddedEngine([tmp_path / "data"])
    engine.open_logs(lambda topic: SMALL, NOW_MS)
    topic = StoredTopic("t", bytes(range(16)), 50, {})
    engine.store.create_topics([topic])
    syncs.clear()
    engine.create_logs(topic, range(50), SMALL, NOW_MS)
    assert syncs == ["data"]
    engine.close(NOW_MS)
    engine = EmbeddedEngine([tmp_path / "data"])
    syncs.clear()
    engine.open_logs(lambda topic: SMALL, NOW_MS)
    assert syncs == []
    engine.close(NOW_MS)


def test_folders_made_at_start_are_synced(tmp_path: Path, syncs: Syncs) -> None:
    """A topic whose folders were lost gets new ones, with names that stay."""
    engine = EmbeddedEngine([tmp_path / "data"])
    engine.store.create_topics([StoredTopic("t", bytes(range(16)), 3, {})])
    syncs.clear()
    engine.open_logs(lambda topic: SMALL, NOW_MS)
    assert syncs == ["data"]
    assert read_topic_id(tmp_path / "data" / "t-2") == bytes(range(16))
    engine.close(NOW_MS)


def test_names_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk refuses that sync, none of the folders is left behind."""
    engine = EmbeddedEngine([tmp_path / "data"])
    engine.open_logs(lambda topic: SMALL, NOW_MS)

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output"):
            engine.create_logs(StoredTopic("t", bytes(range(16)), 3, {}), range(3), SMALL, NOW_MS)
    assert engine.logs == {}
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()] == []
    engine.close(NOW_MS)


@pytest.mark.parametrize(("clean", "recovery_point"), [(True, 0), (False, 3), (False, 2)])
def test_damage_of_what_the_disk_had(tmp_path: Path, clean: bool, recovery_point: int) -> None:
    """What was synced and does not check out any more is kept beside the log it is cut from."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    for _ in range(3):
        append(log)
    size_bytes = log.size_bytes // 3
    log.close(NOW_MS)
    path = folder / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[size_bytes + 8 : size_bytes + 12] = bytes(4)
    path.write_bytes(content)
    log = open_log(folder, clean=clean, recovery_point=recovery_point)
    assert log.log_end_offset == 1
    assert path.with_name(path.name + ".cut").read_bytes() == content[size_bytes:]
    log.close(NOW_MS)


@pytest.mark.parametrize("recovery_point", [0, 1])
def test_a_torn_tail_is_not_kept(tmp_path: Path, recovery_point: int) -> None:
    """What nobody was told is safe is no loss."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    append(log)
    append(log)
    log.close(NOW_MS)
    path = folder / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1])
    log = open_log(folder, clean=False, recovery_point=recovery_point)
    assert log.log_end_offset == 1
    assert list(folder.glob("*.cut")) == []
    log.close(NOW_MS)
