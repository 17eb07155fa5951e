"""The log loses records that members have done, and others come to their offsets."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from soak_stage import BROKER_SETTINGS, Stage

from anabranch.client.history import check, load
from support.broker_process import BrokerProcess

MEMBERS = 3
# Nobody is silent here, however busy the machine is.
SETTINGS = {**BROKER_SETTINGS, "group.consumer.session.timeout.ms": "45000"}


@pytest.fixture
def stage(make_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[Stage]:
    folder = tmp_path / "history"
    folder.mkdir()
    # A producer that numbers its batches would not accept that some are gone.
    made = Stage(make_broker(**SETTINGS), folder, MEMBERS, 1, is_idempotent=False)
    yield made
    made.abandon()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_log_that_was_cut(stage: Stage, tmp_path: Path) -> None:
    """What comes to offsets that were done before is done, and no acknowledgement of what was there
    counts for it, however soon it comes."""
    stage.wait_for_work()
    for batches in (5, 60):
        time.sleep(2)
        cut = stage.cut_log(batches)
        stage.wait_for(lambda cut=cut: stage.look() > cut + 100, "progress after the cut")
    stage.finish()
    verdict = check(load([tmp_path / "history"]))
    print(verdict.numbers)
    assert verdict.problems == [], verdict.numbers
    assert verdict.numbers["truncated"] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cut_behind_the_back_of_a_member(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """A member that hears nothing of it, because the log has grown beyond where it was when it asks
    again, still processes the records that came to offsets that it knows."""
    folder = tmp_path / "history"
    folder.mkdir()
    stage = Stage(make_broker(**SETTINGS), folder, 1, 1, is_idempotent=False)
    try:
        stage.wait_for_work()
        stage.load.stop()
        end = stage.load.written
        stage.wait_for(lambda: stage.look() >= end, "a first part that is done")
        (member,) = stage.members
        member.signal(signal.SIGSTOP)
        stage.cut_log(20)
        stage.resume_load()
        stage.wait_for(lambda: stage.load.written > end, "a log that has grown beyond the member")
        stage.load.flush()
        member.signal(signal.SIGCONT)
        stage.finish()
    finally:
        stage.abandon()
    verdict = check(load([folder]))
    assert verdict.problems == [], verdict.numbers
