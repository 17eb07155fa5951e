"""One log directory: a lock, a clean mark, and checkpoints."""

from pathlib import Path

import pytest

from anabranch.engine.log_directory import DirectoryError, LogDirectory


def test_lock(tmp_path: Path) -> None:
    """A directory belongs to one broker at a time."""
    directory = LogDirectory(tmp_path)
    with pytest.raises(DirectoryError, match=r"is in use by another broker.*log\.dirs"):
        LogDirectory(tmp_path)
    directory.close(clean=True)
    LogDirectory(tmp_path).close(clean=True)


def test_clean_mark(tmp_path: Path) -> None:
    """The mark is there after an orderly end only, and is taken by the start that sees it."""
    first = LogDirectory(tmp_path / "new" / "nested")
    assert not first.was_clean
    first.close(clean=True)
    second = LogDirectory(first.path)
    assert second.was_clean
    second.close(clean=False)
    third = LogDirectory(first.path)
    assert not third.was_clean
    third.close(clean=False)


def test_refused_start_keeps_the_mark(tmp_path: Path) -> None:
    """A second broker that is refused does not take the mark of the first away."""
    LogDirectory(tmp_path).close(clean=True)
    running = LogDirectory(tmp_path)
    with pytest.raises(DirectoryError):
        LogDirectory(tmp_path)
    running.close(clean=True)
    last = LogDirectory(tmp_path)
    assert last.was_clean
    last.close(clean=True)


def test_checkpoints(tmp_path: Path) -> None:
    """What was written down is read at the next start."""
    directory = LogDirectory(tmp_path)
    directory.write_checkpoints({("a", 0): 5}, {("a", 0): 2})
    directory.write_cleaner_offsets({("a", 0): 3})
    directory.close(clean=False)
    again = LogDirectory(tmp_path)
    assert again.recovery_points == {("a", 0): 5}
    assert again.log_start_offsets == {("a", 0): 2}
    assert again.cleaner_offsets == {("a", 0): 3}
    again.close(clean=True)


def test_damaged_checkpoints(tmp_path: Path) -> None:
    """Damaged checkpoints are taken as none, which is always safe."""
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (tmp_path / name).write_bytes(b"0\n1\nhalf a li")
    directory = LogDirectory(tmp_path)
    assert directory.recovery_points == {}
    assert directory.log_start_offsets == {}
    directory.close(clean=True)


def test_path_that_is_a_file(tmp_path: Path) -> None:
    """A path that cannot be a directory is refused with the setting to change."""
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DirectoryError, match=r"cannot be used: .*Choose another one with log\.dirs"
    ):
        LogDirectory(tmp_path / "file")
