"""Real clients and a broker die, stop and come back; what they tell has no anomaly.

`make soak-transactions MINUTES=10` plays it longer; ANABRANCH_SOAK_SEED chooses another schedule.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from anomalies import check
from anomaly_stage import BROKER_SETTINGS, Stage

from anabranch.client.history import load
from support.broker_process import BrokerProcess

MINUTES = float(os.environ.get("ANABRANCH_SOAK_MINUTES", "0"))
SEED = int(os.environ.get("ANABRANCH_SOAK_SEED", "1"))
MODES = ["assign", "assign", "classic", "classic", "consumer", "consumer"]
if MINUTES:
    MODES += ["kafka-python", "kafka-python"]
# Each of them once, however short the run is.
BRIEF = ["slow", "kill", "crash-broker", "freeze", "double", "crash-broker-and-kill", "pause"]


@pytest.fixture
def stage(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[Stage]:
    folder = tmp_path / "history"
    folder.mkdir()
    made = Stage(make_broker(**BROKER_SETTINGS), folder, MODES, SEED)
    yield made
    made.abandon()


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_anomalies_of_a_crew(stage: Stage, tmp_path: Path) -> None:
    """Whatever dies, transactions are all or nothing, in order, and taken in once."""
    chance = random.Random(SEED)
    stage.play_until_all_went_on(2)
    ends_at = time.monotonic() + MINUTES * 60
    due = list(BRIEF)
    while due or time.monotonic() < ends_at:
        if not due:
            due = chance.sample(list(stage.faults), len(stage.faults))
        stage.faults[due.pop(0)]()
        stage.play_on(chance.uniform(0.0, 0.5 if MINUTES == 0 else 4.0))
    stage.play_until_all_went_on(2)
    stage.finish()
    verdict = check(load([tmp_path / "history"]))
    print(verdict.numbers)
    assert verdict.problems == [], f"seed {SEED}, {tmp_path}: {verdict.numbers}"
    assert verdict.numbers["txn fail"] > 0
    assert verdict.numbers["partitions moved"] > 0
