"""The daemon that imports before it forks."""

import subprocess
import sys


def test_it_tells_its_port_and_ends_with_its_input() -> None:
    """It starts as Spark's own does: a port on its output, and it ends when its input does."""
    ended = subprocess.run(
        [sys.executable, "-m", "anabranch.spark.daemon"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert not ended.stderr
    assert 0 < int.from_bytes(ended.stdout[:4], "big") < 65_536
