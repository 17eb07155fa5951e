"""Consume, transform, produce: four members of one partition, and kill -9 of everybody in turn.

`make soak-transactions ROUNDS=50` plays more rounds; ANABRANCH_SOAK_SEED chooses other victims.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rounds_stage import ROUND_SETTINGS, RoundsStage, by_key

from support.broker_process import BrokerProcess

ROUNDS = int(os.environ.get("ANABRANCH_ROUNDS", "4"))
SEED = int(os.environ.get("ANABRANCH_SOAK_SEED", "1"))


@pytest.fixture
def stage(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[RoundsStage]:
    folder = tmp_path / "history"
    folder.mkdir()
    made = RoundsStage(make_broker(**ROUND_SETTINGS), folder, SEED)
    yield made
    made.abandon()


@pytest.mark.slow
@pytest.mark.timeout(600 + ROUNDS * 60)
def test_rounds_of_kills(stage: RoundsStage) -> None:
    """The output, read as committed, is the input: everything once, and each key in order."""
    stage.wait_for_work()
    took_s = [stage.play_round(number) for number in range(ROUNDS)]
    stage.finish()
    inputs, outputs = stage.inputs(), stage.outputs()
    print(f"{ROUNDS} rounds of {min(took_s):.1f} to {max(took_s):.1f} s, {len(inputs)} records")
    written = [value for values in outputs for value in values]
    assert len(written) == len(inputs)
    assert sorted(written) == sorted(value for _, value in inputs)
    key_of = {value: key for key, value in inputs}
    found = by_key([(key_of[value], value) for value in written])
    assert found == by_key(inputs)
