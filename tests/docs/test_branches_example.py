"""The example of branch topics runs, and says what is wrong when it cannot."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.topics import create_topic

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "branches" / "share_one_partition.py"
SMALL = ("--workers=3", "--orders=300", "--customers=30", "--branches=6", "--work-ms=1")


@pytest.fixture(scope="module")
def example_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups wait long enough for three processes to start."""
    overrides = {"group.initial.rebalance.delay.ms": "1500"}
    broker = BrokerProcess(tmp_path_factory.mktemp("example") / "data", overrides)
    broker.start()
    yield broker
    broker.kill()


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_example_shares_a_partition(example_broker: BrokerProcess) -> None:
    """One worker is busy on the plain topic, all are on the branch topic, and order is kept."""
    ended = run_example("--bootstrap-server", example_broker.bootstrap, *SMALL)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert re.fullmatch(r"orders +1 +1 of 3 +[0-9.]+ +0 of 30", lines[1])
    assert re.fullmatch(r"orders.by-key +6 +3 of 3 +[0-9.]+ +0 of 30", lines[2])
    shares = [int(share) for share in lines[4].rsplit(":", 1)[1].split()]
    assert (len(shares), sum(shares)) == (3, 300)
    assert lines[5].endswith("0 of 30 customers saw their orders out of order.")


def test_the_example_cleans_up_unless_it_is_told_not_to(example_broker: BrokerProcess) -> None:
    """It can be run again; what it finds in its way it names, and leaves alone."""
    options = ("--bootstrap-server", example_broker.bootstrap, *SMALL)
    kept = run_example(*options, "--topic=kept", "--keep")
    assert (kept.returncode, kept.stderr) == (0, "")
    again = run_example(*options, "--topic=kept")
    assert again.returncode == 1
    assert "topic kept was not created" in again.stderr
    assert "--topic" in again.stderr
    create_topic(example_broker.bootstrap, "gone.by-key")
    half = run_example(*options, "--topic=gone")
    assert "topic gone.by-key was not created" in half.stderr
    create_topic(example_broker.bootstrap, "gone")  # because the example deleted its own


def test_the_example_starts_a_broker_of_its_own() -> None:
    """--own-broker needs nothing that runs already."""
    ended = run_example("--own-broker", *SMALL)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "0 of 30 customers" in ended.stdout


def test_the_example_says_that_no_broker_is_there() -> None:
    """What happened, why, and what to do next, in one line."""
    ended = run_example("--bootstrap-server=127.0.0.1:1", *SMALL)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: no broker at 127.0.0.1:1 - ")
    assert "make run" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_example_refuses_numbers_that_make_no_sense() -> None:
    """Wrong usage is exit code 2."""
    assert run_example("--workers=0").returncode == 2
