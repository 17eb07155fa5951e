"""What a group that commits record by record has yet to do, counted over the slot index."""

import random
from pathlib import Path

import pytest
from survey_kit import Watched, watched

from anabranch.branch.slots import slot_of_key
from anabranch.broker import survey_windows
from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.book import Tracked
from anabranch.coordinator.cooperative.commands import PartitionAcks, TakeAcks
from anabranch.coordinator.cooperative.progress import PartitionProgress, new_progress, with_done
from anabranch.model.errors import ErrorCode
from anabranch.model.offset_ranges import OffsetRanges
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange

KEYS = [b"%d" % number for number in range(50)]


def some_progress(chance: random.Random, end: int) -> PartitionProgress:
    """Key ranges that are done in patches."""
    progress = new_progress(chance.randrange(end // 3))
    for _ in range(chance.randrange(1, 6)):
        first = chance.randrange(SLOT_COUNT - 1)
        slots = SlotRange(first, chance.randrange(first + 1, SLOT_COUNT))
        patches = []
        for _ in range(chance.randrange(3)):
            start = chance.randrange(end)
            patches.append((start, min(start + chance.randrange(9), end - 1)))
        progress = with_done(progress, slots, chance.randrange(end // 2), OffsetRanges(patches))
    return progress


@pytest.mark.parametrize("seed", range(20))
def test_open_records_are_counted_one_by_one(tmp_path: Path, seed: int) -> None:
    """Whatever is done: as many as a look at each record finds."""
    chance = random.Random(seed)
    keys = chance.choices(KEYS, k=60)

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        for key in keys:
            stage.produce("t", 0, key=key)
        topic = stage.broker.topics.must_get("t")
        progress = some_progress(chance, len(keys))
        windows = stage.surveyor._reader.windows
        place = (topic.topic_id, 0)
        found = (await windows.look("g", {place: Tracked(progress)}))[place]
        expected = [
            offset
            for offset, key in enumerate(keys)
            if offset < found.end_offset and not progress.is_done(slot_of_key(key), offset)
        ]
        assert found.end_offset == min(progress.last_done_offset, len(keys))
        assert found.open_records == len(expected)

    watched(tmp_path, scene)


def acked(stage: Watched, *acks: Ack) -> None:
    """Individual commits of nobody in particular, in a group without members."""
    log = stage.broker.topics.partition("t", 0).log
    part = PartitionAcks(
        topic="t",
        topic_id=log.topic_id,
        partition=0,
        facts=LogFacts(0, log.log_end_offset, log.log_end_offset, log.log_end_offset),
        leader_epoch=0,
        acks=acks,
        failures=(),
    )
    command = TakeAcks(group_id="g", member_id="", member_epoch=-1, partitions=(part,))
    answer = stage.broker.groups.submit("g", command)
    assert answer.error is ErrorCode.NONE, answer


def test_lag_is_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than the distance to the end; new records add to it, and nothing is counted twice."""
    counts: list[int] = []
    real = survey_windows.count_open
    monkeypatch.setattr(
        survey_windows,
        "count_open",
        lambda blocks, progress, end: counts.append(end) or real(blocks, progress, end),
    )

    async def scene(stage: Watched) -> None:
        stage.topic("t", range_fetch_enable="true")
        for ago in range(10, 0, -1):
            stage.produce("t", ago * 1000)
        acked(stage, Ack(ALL_SLOTS, -1, 2, OffsetRanges([(4, 5), (8, 8)])))
        group = (await stage.surveyor.survey(0)).groups["g"]
        assert group.is_sharing
        (one,) = group.partitions
        assert (one.committed_offset, one.lag_records, one.lag_ms) == (2, 5, 8000)
        stage.produce("t", 0)
        assert (await stage.surveyor.survey(0)).groups["g"].lag_records == 6
        assert counts == [9]

    watched(tmp_path, scene)


def test_slots_that_nobody_has_spoken_of_have_everything_to_do(tmp_path: Path) -> None:
    """There is no stable offset then: lag counts from the start, as without a commit."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", range_fetch_enable="true")
        for ago in range(10, 0, -1):
            stage.produce("t", ago * 1000)
        slot = slot_of_key(b"k")
        acked(stage, Ack(SlotRange(slot, slot + 1), -1, 4))
        (one,) = (await stage.surveyor.survey(0)).groups["g"].partitions
        assert (one.committed_offset, one.lag_records) == (None, 10)

    watched(tmp_path, scene)


def test_a_window_that_is_large_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The distance to the end stands for it."""
    monkeypatch.setattr(survey_windows, "_WINDOW_MAX", 5)

    async def scene(stage: Watched) -> None:
        stage.topic("t", range_fetch_enable="true")
        for ago in range(10, 0, -1):
            stage.produce("t", ago * 1000)
        acked(stage, Ack(ALL_SLOTS, -1, 2, OffsetRanges([(8, 8)])))
        assert (await stage.surveyor.survey(0)).groups["g"].lag_records == 8

    watched(tmp_path, scene)
