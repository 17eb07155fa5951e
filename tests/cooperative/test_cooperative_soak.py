"""Real processes share one partition while members and the broker die, stop and come back.

`make soak MINUTES=10` plays it longer; ANABRANCH_SOAK_SEED chooses another schedule of faults.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from soak_stage import BROKER_SETTINGS, Stage

from anabranch.client.history import check, load
from support.broker_process import BrokerProcess

MINUTES = float(os.environ.get("ANABRANCH_SOAK_MINUTES", "0"))
SEED = int(os.environ.get("ANABRANCH_SOAK_SEED", "1"))
MEMBERS = 6
# Each of them once, however short the run is.
BRIEF = [
    "kill",
    "pause",
    "crash-broker",
    "slow",
    "shift",
    "leave",
    "turn-topic-off",
    "storm",
    "restart-broker",
    "kill",
    "turn-broker-off",
    "forget",
]


@pytest.fixture
def stage(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[Stage]:
    folder = tmp_path / "history"
    folder.mkdir()
    made = Stage(make_broker(**BROKER_SETTINGS), folder, MEMBERS, SEED)
    yield made
    made.abandon()


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_soak(stage: Stage, tmp_path: Path) -> None:
    """Whatever dies, no record is lost, no key out of order, and little is done twice."""
    chance = random.Random(SEED)
    stage.wait_for_work()
    ends_at = time.monotonic() + MINUTES * 60
    due = list(BRIEF)
    while due or time.monotonic() < ends_at:
        if not due:
            due = chance.sample(list(stage.faults), len(stage.faults))
        stage.strike(due.pop(0))
        time.sleep(chance.uniform(0.2, 1.2 if MINUTES == 0 else 5))
    stage.finish()
    verdict = check(load([tmp_path / "history"]))
    print({**verdict.numbers, "moves by load": stage.moves})
    assert verdict.problems == [], f"seed {SEED}, {tmp_path}: {verdict.numbers}"
    assert verdict.numbers["slots that moved"] > 0
    assert verdict.numbers["acks refused"] > 0, "nobody woke up too late"
    assert verdict.numbers["retries"] > 0
    assert verdict.numbers["decided"] > 0
    if MINUTES:
        assert stage.moves > 0, "no range was moved by load"
