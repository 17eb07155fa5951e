"""Surveys: lag in records and time, owners, rates, history, and who shares one survey."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from survey_kit import NOW_MS, Watched, watched

from anabranch.branch.slots import branch_of_slot, slot_of_key
from anabranch.broker import survey as survey_module
from anabranch.broker import survey_rates, survey_reading
from anabranch.broker.survey import GroupSummary, LagSample
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.consumer_commands import ConsumerHeartbeat
from anabranch.coordinator.group.consumer_protocol import encode_assignment
from anabranch.model.errors import ErrorCode, KafkaError

NUMBERS = [b"%d" % number for number in range(1000)]


def lags(group: GroupSummary) -> dict[tuple[str, int], tuple[int | None, int | None]]:
    """Records and milliseconds by partition."""
    return {(one.topic, one.partition): (one.lag_records, one.lag_ms) for one in group.partitions}


# Lag ----------------------------------------------------------------------------------------------


def test_lag_in_records_and_time(tmp_path: Path) -> None:
    """From the first record that is not committed; nothing without lag; from the start without a
    commit; what a partition lacks is unknown."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", 4)
        for partition in range(3):
            stage.produce("t", 9000, partition=partition)
            stage.produce("t", 5000, 4000, 3000, partition=partition)
        stage.commit("g", "t", 1, 0)
        stage.commit("g", "t", 4, 1)
        stage.commit("g", "t", 9, 2)  # beyond the end, as after an unclean stop
        stage.commit("g", "t", 0, 3)
        group = (await stage.surveyor.survey()).groups["g"]
        assert lags(group) == {
            ("t", 0): (3, 5000),
            ("t", 1): (0, 0),
            ("t", 2): (0, 0),
            ("t", 3): (0, 0),
        }
        assert (group.lag_records, group.lag_ms) == (3, 5000)
        one = group.partitions[0]
        assert (one.committed_offset, one.leader_epoch, one.metadata) == (1, 3, "note")
        assert (one.log_start_offset, one.log_end_offset, one.committed_ms) == (0, 4, NOW_MS)
        assert (group.type, group.state, group.members) == ("Classic", "Empty", 0)
        assert group.topics == ("t",) and not group.is_sharing and one.member_id is None

    watched(tmp_path, scene)


def test_an_offset_within_a_batch_is_estimated_and_exact_for_one_group(tmp_path: Path) -> None:
    """A survey reads headers only; whoever asks for one group gets the record's own time."""

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        stage.produce("t", 9000, 8000, 1000)
        stage.commit("g", "t", 1)
        assert lags((await stage.surveyor.survey()).groups["g"]) == {("t", 0): (2, 5000)}
        exact = await stage.surveyor.group("g")
        assert exact is not None and lags(exact) == {("t", 0): (2, 8000)}
        assert await stage.surveyor.group("nobody") is None

    watched(tmp_path, scene)


def test_records_that_are_gone_do_not_count(tmp_path: Path) -> None:
    """A commit below the log's start counts from there, in records and in time."""

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        for ago in (9000, 8000, 7000):
            stage.produce("t", ago)
        stage.commit("g", "t", 0)
        stage.broker.topics.partition("t", 0).log.delete_records_before(2)
        assert lags((await stage.surveyor.survey()).groups["g"]) == {("t", 0): (1, 7000)}

    watched(tmp_path, scene)


def test_records_without_a_time(tmp_path: Path) -> None:
    """Lag is known, its time is not."""

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        stage.produce("t", NOW_MS + 1)  # a timestamp of -1
        stage.commit("g", "t", 0)
        group = (await stage.surveyor.survey()).groups["g"]
        assert lags(group) == {("t", 0): (1, None)}
        assert (group.lag_records, group.lag_ms) == (1, None)

    watched(tmp_path, scene)


def test_times_are_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that stands still costs no second look at the log; one that moves does."""
    looked: list[int] = []
    real = survey_reading.timestamp_at

    def counted(log: Any, offset: int, **how: Any) -> int | None:
        looked.append(offset)
        return real(log, offset, **how)

    monkeypatch.setattr(survey_reading, "timestamp_at", counted)

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        stage.produce("t", 3000, 2000, 1000)
        stage.commit("g", "t", 0)
        for _ in range(3):
            await stage.surveyor.survey(max_age_ms=0)
            stage.now_ms += 10
        assert looked == [0]
        stage.commit("g", "t", 1)
        await stage.surveyor.survey(max_age_ms=0)
        assert looked == [0, 1]
        # Compaction may have taken the record away.
        stage.broker.topics.partition("t", 0).log.replacements += 1
        await stage.surveyor.survey(max_age_ms=0)
        assert looked == [0, 1, 1]

    watched(tmp_path, scene)


def test_where_nothing_happens_the_same_is_told_again(tmp_path: Path) -> None:
    """No new object for a partition that stands still; anything else is seen at once."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", 2)
        for partition in (0, 1):
            stage.produce("t", 3000, partition=partition)
            stage.commit("g", "t", 1, partition)

        async def read() -> Any:
            stage.now_ms += 10
            return (await stage.surveyor.survey(max_age_ms=0)).groups["g"].partitions

        first = await read()
        assert [one is other for one, other in zip(first, await read(), strict=True)] == [True] * 2
        stage.produce("t", 2000, partition=1)
        after = await read()
        assert after[0] is first[0] and after[1].lag_records == 1
        stage.commit("g", "t", 2, 1)
        stage.commit("g", "t", 1, 0)
        later = await read()
        assert [one.committed_offset for one in later] == [1, 2]
        assert [one.committed_ms for one in later] == [stage.now_ms - 10] * 2

    watched(tmp_path, scene)


def test_a_log_that_cannot_be_read_has_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails neither the group nor the survey, and is tried again."""

    def failing(*args: Any, **how: Any) -> int:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        stage.produce("t", 3000)
        stage.commit("g", "t", 0)
        with monkeypatch.context() as patched:
            patched.setattr(survey_reading, "timestamp_at", failing)
            assert lags((await stage.surveyor.survey(0)).groups["g"]) == {("t", 0): (1, None)}
        stage.now_ms += 1
        assert lags((await stage.surveyor.survey(0)).groups["g"]) == {("t", 0): (1, 3001)}

    watched(tmp_path, scene)


def test_a_partition_that_is_gone_is_still_told(tmp_path: Path) -> None:
    """Committed for a topic that was deleted and made anew with fewer partitions."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", 2)
        stage.commit("g", "t", 7, 1)
        topic = stage.broker.topics.must_get("t")
        stage.broker.topics.delete(topic)  # below the coordinator, which would forget the offset
        stage.topic("t", 1)
        (one,) = (await stage.surveyor.survey()).groups["g"].partitions
        assert (one.partition, one.committed_offset, one.lag_records) == (1, 7, None)
        assert one.log_end_offset is None

    watched(tmp_path, scene)


# Groups -------------------------------------------------------------------------------------------


def test_owners_of_a_consumer_group(tmp_path: Path) -> None:
    """Whoever has a partition, also one without a commit; its lag counts from the start."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", 2)
        stage.produce("t", 2000, 1000, partition=1)
        heartbeat = ConsumerHeartbeat(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=("t", "later"),
            owned=(),
        )
        assert stage.broker.groups.submit("g", heartbeat).error is ErrorCode.NONE
        group = (await stage.surveyor.survey()).groups["g"]
        assert (group.type, group.protocol_type, group.members) == ("Consumer", "consumer", 1)
        assert group.topics == ("later", "t") and group.epoch > 1
        assert {one.member_id for one in group.partitions} == {"m"}
        assert lags(group) == {("t", 0): (0, 0), ("t", 1): (2, 2000)}
        assert group.partitions[0].committed_offset is None

    watched(tmp_path, scene)


def test_a_partition_that_members_share_has_no_one_owner(tmp_path: Path) -> None:
    """By key range: who has what of it is another question."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", 1, range_fetch_enable="true")
        epochs = {"a": 0}
        owned: dict[str, tuple[Any, ...]] = {}
        owners = []
        for turn in range(16):
            if turn == 8:
                owners.append((await stage.surveyor.survey(0)).groups["g"])
                epochs["b"] = 0
            for member_id in epochs:
                heartbeat = ConsumerHeartbeat(
                    group_id="g",
                    member_id=member_id,
                    member_epoch=epochs[member_id],
                    rebalance_timeout_ms=60_000,
                    subscribed_topic_names=("t",),
                    owned=owned.get(member_id, ()),
                    shares=True,
                )
                answer = stage.broker.groups.submit("g", heartbeat)
                assert answer.error is ErrorCode.NONE
                epochs[member_id] = answer.member_epoch
                if answer.assignment is not None:
                    owned[member_id] = tuple(answer.assignment)
            stage.now_ms += 60
            for driver in stage.broker.groups._drivers:
                driver._clock.turn()
        owners.append((await stage.surveyor.survey(0)).groups["g"])
        assert all(owned.values()) and len(owned) == 2
        assert [[one.member_id for one in group.partitions] for group in owners] == [["a"], [None]]
        assert all(group.is_sharing for group in owners)

    watched(tmp_path, scene)


def test_owners_of_a_classic_group(tmp_path: Path) -> None:
    """By the assignment that the leader sent; bytes that are none of a consumer own nothing."""

    async def scene(stage: Watched) -> None:
        stage.topic("t", 2)
        for group_id, given, owned in (
            ("g", encode_assignment(0, [("t", [1])]), [1]),
            ("odd", b"?", []),
        ):
            member_id = stage.stable_classic_member(group_id, given)
            stage.now_ms += 2000
            group = (await stage.surveyor.survey()).groups[group_id]
            assert (group.type, group.state, group.epoch) == ("Classic", "Stable", 1)
            assert [(one.partition, one.member_id) for one in group.partitions] == [
                (partition, member_id) for partition in owned
            ]
            assert group.topics == ("t",)

    watched(tmp_path, scene)


def test_a_group_that_cannot_be_read_fails_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks while it is read: it is left out, the others are there."""

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        for group in ("a", "b", "c"):
            stage.commit(group, "t", 0)
        real = stage.broker.groups.offsets

        def offsets(group_id: str) -> Any:
            if group_id == "b":
                raise ValueError("broken")
            return real(group_id)

        monkeypatch.setattr(stage.broker.groups, "offsets", offsets)
        survey = await stage.surveyor.survey()
        assert list(survey.groups) == ["a", "c"]
        assert survey.topics["t"].groups == ("a", "c")

    watched(tmp_path, scene)


def test_topics(tmp_path: Path) -> None:
    """Records, bytes, readers, and what a branch topic shows; sorted by name."""

    async def scene(stage: Watched) -> None:
        stage.topic("z", 2)
        stage.produce("z", 10, 9, partition=0)
        stage.produce("z", 8, partition=1)
        stage.topic("a", 1)
        stage.broker.create_topic("by-key", -1, {"branch.source.topic": "z"})
        stage.commit("g", "z", 1)
        topics = (await stage.surveyor.survey()).topics
        assert list(topics) == ["__consumer_offsets", "a", "by-key", "z"]
        assert topics["__consumer_offsets"].is_internal
        assert (topics["z"].partitions, topics["z"].records, topics["z"].groups) == (2, 3, ("g",))
        assert topics["z"].size_bytes > 0 and topics["a"].size_bytes == 0
        branches = topics["by-key"]
        assert (branches.source, branches.records, branches.size_bytes) == ("z", 3, 0)

    watched(tmp_path, scene)


def test_lag_of_branches_is_what_is_theirs(tmp_path: Path) -> None:
    """Not the distance to the end, most of which is of other branches; for one group as of now."""

    async def scene(stage: Watched) -> None:
        stage.topic("z", 1)
        stage.broker.create_topic("by-key", 2, {"branch.source.topic": "z"})
        stage.broker.groups.start()
        keys = [next(k for k in NUMBERS if branch_of_slot(slot_of_key(k), 2) == r) for r in (0, 1)]
        for number in range(10):
            stage.produce("z", 1000 - number, key=keys[number > 0])
        for branch in (0, 1):
            stage.commit("g", "by-key", 0, branch)
        exact = await stage.surveyor.group("g")
        assert exact is not None
        assert lags(exact) == {("by-key", 0): (1, 1000), ("by-key", 1): (9, 999)}
        assert lags((await stage.surveyor.survey(0)).groups["g"]) == lags(exact)
        stage.produce("z", 500, key=keys[1])
        stage.produce("z", 500, key=keys[1])
        # Each is given its share of what came since somebody looked.
        assert (await stage.surveyor.survey(0)).groups["g"].lag_records == 12

    watched(tmp_path, scene)


# Rates --------------------------------------------------------------------------------------------


def test_rates_fit_together(tmp_path: Path) -> None:
    """What came, less what the lag grew by, was consumed; a falling lag has a time to drain."""

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        stage.produce("t", *range(100, 0, -1))
        stage.commit("g", "t", 0)
        first = (await stage.surveyor.survey(0)).groups["g"]
        assert (first.consume_per_s, first.produce_per_s, first.drain_s) == (None, None, None)
        stage.now_ms += 2_000
        stage.produce("t", *range(10))
        stage.commit("g", "t", 50)
        survey = await stage.surveyor.survey(0)
        group = survey.groups["g"]
        assert (group.produce_per_s, group.consume_per_s) == (5.0, 25.0)
        assert (group.trend_per_s, group.lag_records, group.drain_s) == (-20.0, 60, 3.0)
        assert survey.topics["t"].produce_per_s == 5.0
        stage.commit("g", "t", 110)
        stage.now_ms += 2_000
        assert (await stage.surveyor.survey(0)).groups["g"].drain_s == 0.0

    watched(tmp_path, scene)


def test_a_reset_begins_anew(tmp_path: Path) -> None:
    """Offsets that go back are not consumption below zero: rates are unknown until the next."""

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        stage.produce("t", *range(100, 0, -1))
        stage.commit("g", "t", 100)
        await stage.surveyor.survey(0)
        stage.now_ms += 2_000
        assert (await stage.surveyor.survey(0)).groups["g"].consume_per_s == 0.0
        stage.commit("g", "t", 0)
        stage.now_ms += 2_000
        assert (await stage.surveyor.survey(0)).groups["g"].consume_per_s is None
        stage.now_ms += 2_000
        stage.commit("g", "t", 20)
        assert (await stage.surveyor.survey(0)).groups["g"].consume_per_s == 10.0

    watched(tmp_path, scene)


def test_rates_forget_what_is_old() -> None:
    """A burst is not seen for longer than the window."""
    pace = survey_rates.Pace()
    produced = 0
    for second in range(40):
        produced += 100 if second == 1 else 0
        pace.note(second * 1000, produced, 0, "subject")
        rate = pace.rates(second * 1000, produced, 0).produce_per_s
        if second == 2:
            assert rate == 50.0
    assert rate == 0.0
    pace.note(60_000, produced + 5, 0, "another")
    assert pace.rates(60_000, produced + 5, 0) == survey_rates.NO_RATES


# Sharing and sampling -----------------------------------------------------------------------------


def test_everybody_shares_a_survey_while_it_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who ask together, and those who ask soon after; who wants it newer gets a newer one."""

    async def scene(stage: Watched) -> None:
        monkeypatch.setattr(stage.surveyor, "_note_question", lambda: None)  # no samples
        ask = stage.surveyor.survey
        one, other = await asyncio.gather(ask(), ask())
        assert one is other and await ask() is one
        stage.now_ms += 1_000
        assert await ask() is one
        stage.now_ms += 1
        newer = await ask()
        assert newer is not one and newer.taken_ms == NOW_MS + 1_001
        stage.now_ms += 1
        assert await ask(max_age_ms=0) is not newer
        begun = stage.surveyor._begun
        first = asyncio.create_task(ask(max_age_ms=0))
        await asyncio.sleep(0)
        late = await asyncio.gather(*[ask(max_age_ms=0) for _ in range(5)])
        # The one that runs may have passed what they want to see; the next serves them all.
        assert stage.surveyor._begun == begun + 2
        assert all(one is late[0] for one in late)
        await first
        asking = asyncio.create_task(ask(max_age_ms=0))
        await asyncio.sleep(0)
        asking.cancel()  # whoever gives up does not spoil it for others
        stage.now_ms += 1
        assert (await ask(max_age_ms=0)).taken_ms == stage.now_ms

    watched(tmp_path, scene)


def test_a_page_does_not_wait_for_a_slow_survey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one if it is quick, the last one if not, and never one that is too old."""
    monkeypatch.setattr(survey_module, "MOMENT_S", 0.001)

    async def scene(stage: Watched) -> None:
        surveyor = stage.surveyor
        monkeypatch.setattr(surveyor, "_note_question", lambda: None)  # no samples
        first = await surveyor.recent()
        assert await surveyor.recent() is first
        take, gate = surveyor._take, asyncio.Event()

        async def slow_take() -> Any:
            await gate.wait()
            return await take()

        monkeypatch.setattr(surveyor, "_take", slow_take)
        stage.now_ms += survey_module.FRESH_MS + 1
        assert await surveyor.recent() is first
        stage.now_ms += survey_module.RECENT_MAX_MS
        waiting = asyncio.create_task(surveyor.recent())
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        gate.set()
        assert (await waiting).taken_ms == stage.now_ms
        stage.now_ms += survey_module.FRESH_MS + 1
        monkeypatch.setattr(survey_module, "MOMENT_S", 60.0)
        assert (await surveyor.recent()).taken_ms == stage.now_ms

    watched(tmp_path, scene)


def test_samples_are_taken_while_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first question on, and not for long after the last."""
    monkeypatch.setattr(survey_module, "SAMPLE_EVERY_S", 0.001)

    async def scene(stage: Watched) -> None:
        stage.topic("t")
        stage.produce("t", 1000)
        stage.commit("g", "t", 0)
        assert stage.surveyor.history("g") == () and stage.surveyor._sampler is None
        await stage.surveyor.survey()
        while len(stage.surveyor.history("g")) < 3:
            await asyncio.sleep(0)
        first = stage.surveyor.history("g")[0]
        assert first == LagSample(NOW_MS, 1, None, None)
        stage.now_ms += survey_module.WATCHED_MS + 1
        while stage.surveyor._sampler is not None:
            await asyncio.sleep(0)
        stage.broker.groups.submit("g", c.DeleteGroup(group_id="g"))
        await stage.surveyor.survey(max_age_ms=0)
        assert stage.surveyor.history("g") == ()

    watched(tmp_path, scene)


def test_history_is_bounded() -> None:
    """The newest samples are kept, what is unknown stays so."""
    history = survey_rates.History()
    for number in range(3 * survey_rates.HISTORY_MAX + 7):
        history.add(LagSample(number, None, 0.5, None))
    samples = history.samples()
    assert len(samples) == survey_rates.HISTORY_MAX
    assert samples[-1] == LagSample(3 * survey_rates.HISTORY_MAX + 6, None, 0.5, None)
    assert [one.at_ms for one in samples] == sorted(one.at_ms for one in samples)


def test_a_large_group_lets_others_have_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions one group has, others run in between."""
    monkeypatch.setattr(survey_reading, "SLICE_S", 0.0)

    async def scene(stage: Watched) -> None:
        stage.topic("t", 200)
        for partition in range(200):
            stage.commit("g", "t", 0, partition)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        survey = await stage.surveyor.survey()
        counting.cancel()
        assert len(survey.groups["g"].partitions) == 200
        assert turns >= 200 // survey_reading._GLANCE

    watched(tmp_path, scene)
