"""Opening a log after crashes and damage: whole batches stay, everything else goes."""

import logging
import shutil
from pathlib import Path

import pytest
from log_kit import NOW_MS, SMALL, TOPIC_ID, append, batch_of, open_log, read_all

from anabranch.log.log_config import LogConfig
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError

LOG_NAME = f"{0:020d}.log"


def filled(folder: Path, count: int, config: LogConfig = SMALL) -> tuple[PartitionLog, list[bytes]]:
    log = open_log(folder, config)
    batches = []
    for n in range(count):
        batch = batch_of(2, b"%03d" % n * 12, producer=(1, 0, 2 * n))
        log.append(batch, now_ms=NOW_MS)
        batches.append(bytes(batch))
    return log, batches


def test_a_tail_torn_at_any_byte_loses_only_that_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut anywhere inside the last batch, the log ends before it and says so once."""
    log, batches = filled(tmp_path / "t-0", 3, LogConfig())
    whole = b"".join(batches)
    path = log.folder / LOG_NAME
    for cut in range(len(whole) - len(batches[2]), len(whole) + 1):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(log.folder, copy)
        (copy / path.name).write_bytes(whole[:cut])
        caplog.clear()
        recovered = open_log(copy, LogConfig(), clean=False)
        kept = 3 if cut == len(whole) else 2
        assert read_all(recovered) == b"".join(batches[:kept])
        is_cut_inside = kept == 2 and cut > len(whole) - len(batches[2])
        assert len(caplog.records) == is_cut_inside
        # The producer goes on exactly after what survived.
        assert append(recovered, 1, producer=(1, 0, 2 * kept)) == (2 * kept, 2 * kept)
        assert recovered.close(NOW_MS)
        again = open_log(copy, LogConfig())
        assert again.log_end_offset == 2 * kept + 1
        again.close(NOW_MS)
        shutil.rmtree(copy)
    log.close(NOW_MS)


def test_a_flipped_bit_ends_the_log_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A batch that does not match its CRC goes, with everything after it, later segments too."""
    log, batches = filled(tmp_path / "t-0", 30)
    assert len(log.segments) > 3
    third = log.segments[2]
    position, path = third.position_of(third.base_offset + 2), third.path()
    log.close(NOW_MS)
    content = bytearray(path.read_bytes())
    content[position + 70] ^= 4
    path.write_bytes(content)
    log = open_log(log.folder, clean=False)
    assert read_all(log) == b"".join(batches[: (third.base_offset + 2) // 2])
    assert len(log.segments) == 3
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert "CRC" in caplog.text
    assert len(list(log.folder.glob("*.log"))) == 3
    # What was cut off in front of later segments is damage, not a torn tail: it is set aside.
    kept = sorted(log.folder.glob("*.cut"))
    cut_off = bytes(content[position:]) + b"".join(p.read_bytes() for p in kept[1:])
    assert b"".join(p.read_bytes() for p in kept) == cut_off
    assert len(cut_off) == len(b"".join(batches)) - len(read_all(log))
    log.close(NOW_MS)
    open_log(log.folder).close(NOW_MS)
    assert sorted(log.folder.glob("*.cut")) == kept


def test_segments_below_the_recovery_point_are_not_read(tmp_path: Path) -> None:
    """Damage below the recovery point is not found by recovery; what was synced is trusted."""
    log, _ = filled(tmp_path / "t-0", 30)
    path = log.segments[0].path()
    log.flush(NOW_MS)
    point, end = log.recovery_point, log.log_end_offset
    log.close(NOW_MS)
    content = bytearray(path.read_bytes())
    content[70] ^= 4
    path.write_bytes(content)
    log = open_log(log.folder, clean=False, recovery_point=point)
    assert log.log_end_offset == end
    log.close(NOW_MS)


def test_zeros_after_the_last_batch_are_cut_off(tmp_path: Path) -> None:
    """A file that was extended before a power cut ends in zeros, which are no batch."""
    log, batches = filled(tmp_path / "t-0", 2)
    path = log.folder / LOG_NAME
    log.close(NOW_MS)
    path.write_bytes(path.read_bytes() + bytes(5000))
    for clean in (False, True):
        log = open_log(log.folder, clean=clean)
        assert read_all(log) == b"".join(batches)
        assert path.stat().st_size == sum(map(len, batches))
        log.close(NOW_MS)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["missing", "ragged", "zeros", "beyond"])
@pytest.mark.parametrize("segment_number", [0, -1])
def test_indexes_are_rebuilt(tmp_path: Path, suffix: str, damage: str, segment_number: int) -> None:
    """An index that is missing or cannot be right is made anew, equal to the one before."""
    log, batches = filled(tmp_path / "t-0", 28)
    segment = log.segments[segment_number]
    log.close(NOW_MS)
    path = segment.path(f".{suffix}")
    before = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "ragged":
        path.write_bytes(before + b"x")
    elif damage == "zeros":
        path.write_bytes(bytes(len(before) + 24))
    else:
        path.write_bytes(before + b"\x7f" * 24 if suffix == "index" else b"\xff" * 24)
    log = open_log(log.folder)
    assert read_all(log) == b"".join(batches)
    assert log.offset_for_timestamp(NOW_MS) is not None
    log.close(NOW_MS)
    assert path.read_bytes() == before


def test_interrupted_files_are_dealt_with(tmp_path: Path) -> None:
    """.deleted, .cleaned and .tmp go; a .swap replaces what it covers; strays go."""
    log, batches = filled(tmp_path / "t-0", 28)
    folder, bases = log.folder, [segment.base_offset for segment in log.segments]
    end = log.log_end_offset
    log.close(NOW_MS)
    first = folder / LOG_NAME
    merged = b"".join(batches[: bases[2] // 2])
    (folder / f"{0:020d}.log.swap").write_bytes(merged)
    (folder / f"{0:020d}.index.swap").write_bytes(b"anything")
    for name in (
        f"{bases[2]:020d}.log.deleted",
        f"{bases[2]:020d}.log.cleaned",
        f"{bases[2]:020d}.log.swap",
        "leader-epoch-checkpoint.tmp",
        f"{999:020d}.index",
        f"{3:020d}.snapshot",
    ):
        (folder / name).write_bytes(b"leftover")
    log = open_log(folder)
    assert first.read_bytes() == merged
    assert [segment.base_offset for segment in log.segments] == [0, *bases[2:]]
    assert read_all(log) == b"".join(batches)
    assert log.log_end_offset == end
    suffixes = {path.suffix for path in folder.iterdir()}
    assert suffixes == {".log", ".index", ".timeindex", ".snapshot", ".metadata", ""}
    log.close(NOW_MS)


def test_a_cleaned_file_below_a_swap_voids_it(tmp_path: Path) -> None:
    """When not all segments of a cleaning were ready, none of them is used."""
    log, batches = filled(tmp_path / "t-0", 28)
    folder = log.folder
    base = log.segments[1].base_offset
    log.close(NOW_MS)
    (folder / f"{base:020d}.log.swap").write_bytes(b"")
    (folder / f"{0:020d}.log.cleaned").write_bytes(b"")
    log = open_log(folder)
    assert read_all(log) == b"".join(batches)
    log.close(NOW_MS)


def test_a_log_never_ends_before_its_start(tmp_path: Path) -> None:
    """When a crash takes everything up to the deleted records, the log starts anew there."""
    log, _ = filled(tmp_path / "t-0", 3)
    log.close(NOW_MS)
    (log.folder / LOG_NAME).write_bytes(b"")
    log = open_log(log.folder, clean=False, log_start_offset=5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    assert append(log) == (5, 5)
    log.close(NOW_MS)


def test_a_folder_of_another_topic_is_refused(tmp_path: Path) -> None:
    """A folder that was made for another topic id is not opened."""
    open_log(tmp_path / "t-0").close(NOW_MS)
    text = (tmp_path / "t-0" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    with pytest.raises(KafkaError) as caught:
        open_log(tmp_path / "t-0", topic_id=TOPIC_ID[::-1])
    assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
