"""Small file systems, for tests of full and read-only disks; skips where that needs root."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs of a few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, size_bytes: int) -> None:
        self._remount(f"size={size_bytes}")

    def set_read_only(self, is_read_only: bool) -> None:
        self._remount("ro" if is_read_only else "rw")

    def _remount(self, option: str) -> None:
        command = ["mount", "-o", f"remount,{option}", str(self.path)]
        subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs of `size_bytes` at `path`; skips the test where mounting is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"mounting a small disk is not permitted here: {why.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)
