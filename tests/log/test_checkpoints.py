"""The small files beside the segments: Kafka's formats, whole or not at all."""

import os
from pathlib import Path

import pytest

from anabranch.log import checkpoints


def test_offsets_round_trip_in_kafkas_format(tmp_path: Path) -> None:
    """Version, count, then `topic partition offset` lines."""
    offsets = {("orders", 0): 17, ("orders", 1): 0, ("a.b_c-d", 12): 2**40}
    checkpoints.write_offsets(tmp_path, checkpoints.RECOVERY_POINTS, offsets)
    path = tmp_path / "recovery-point-offset-checkpoint"
    assert path.read_text() == f"0\n3\norders 0 17\norders 1 0\na.b_c-d 12 {2**40}\n"
    assert checkpoints.read_offsets(tmp_path, checkpoints.RECOVERY_POINTS) == offsets


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\nt 0 1\n",
        b"0\n1\nt 0 x\n",
        b"0\n1\nt 0\n",
        b"\xff\xfe",
        b"0\nx\n",
    ],
)
def test_a_damaged_checkpoint_counts_as_none(tmp_path: Path, content: bytes) -> None:
    """Anything that is not a whole checkpoint is read as an empty one."""
    (tmp_path / checkpoints.CLEANER_OFFSETS).write_bytes(content)
    (tmp_path / checkpoints.LEADER_EPOCHS).write_bytes(content)
    assert checkpoints.read_offsets(tmp_path, checkpoints.CLEANER_OFFSETS) == {}
    assert checkpoints.read_leader_epochs(tmp_path) == []
    assert checkpoints.read_offsets(tmp_path, "absent") == {}


def test_leader_epochs_that_do_not_rise_count_as_none(tmp_path: Path) -> None:
    """Epochs out of order cannot be right."""
    (tmp_path / checkpoints.LEADER_EPOCHS).write_text("0\n2\n5 3\n2 0\n")
    assert checkpoints.read_leader_epochs(tmp_path) == []


def test_a_crash_while_writing_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new content replaces the old one only when it is all on disk."""
    checkpoints.write_offsets(tmp_path, "x", {("t", 0): 1})

    def broken(_: int) -> None:
        raise OSError("Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        checkpoints.write_offsets(tmp_path, "x", {("t", 0): 2})
    assert checkpoints.read_offsets(tmp_path, "x") == {("t", 0): 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_the_clean_shutdown_mark_is_taken_once(tmp_path: Path) -> None:
    """The mark says that the last stop was orderly, and counts for one start."""
    assert not checkpoints.take_clean_shutdown(tmp_path)
    checkpoints.mark_clean_shutdown(tmp_path)
    assert checkpoints.take_clean_shutdown(tmp_path)
    assert not checkpoints.take_clean_shutdown(tmp_path)


def test_topic_ids_round_trip(tmp_path: Path) -> None:
    """The id is kept as unpadded base64url; a file that holds none gives none."""
    assert checkpoints.read_topic_id(tmp_path) is None
    checkpoints.write_topic_id(tmp_path, bytes(range(240, 256)))
    assert checkpoints.read_topic_id(tmp_path) == bytes(range(240, 256))
    for content in (b"version: 0\n", b"version: 0\ntopic_id: short", b"\xff"):
        (tmp_path / checkpoints.PARTITION_METADATA).write_bytes(content)
        assert checkpoints.read_topic_id(tmp_path) is None
