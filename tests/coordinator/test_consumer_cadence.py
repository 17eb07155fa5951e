"""Stories of the interval that members are told, and of the session that does not depend on it."""

import pytest
from consumer_story import SESSION_MS, ConsumerStory

from anabranch.coordinator.group.cadence import heartbeat_interval_ms, session_timeout_ms
from anabranch.coordinator.group.consumer_settings import ConsumerSettings

STEADY = {
    "group_members": 1,
    "waiting_members": 0,
    "is_waiting": False,
    "is_group_settled": True,
    "on_its_way_ms": 0,
}


@pytest.mark.parametrize(
    ("members", "interval_ms"),
    [(0, 100), (1, 100), (50, 100), (100, 200), (1_000, 2_000), (2_500, 5_000), (10_000, 5_000)],
)
def test_while_nothing_moves_all_members_share_a_rate(members, interval_ms):
    """500 heartbeats per second in all; nobody is asked less often than in Kafka."""
    told = heartbeat_interval_ms(ConsumerSettings(), broker_members=members, **STEADY)
    assert told == interval_ms


@pytest.mark.parametrize(
    ("on_its_way_ms", "waiting", "interval_ms"),
    [(0, 1, 50), (200, 1, 50), (400, 1, 100), (4_000, 1, 1_000), (60_000, 1, 5_000), (0, 400, 200)],
)
def test_who_waits_is_asked_again_soon(on_its_way_ms, waiting, interval_ms):
    """After a quarter of the time it has taken so far; many together no more than they may."""
    told = heartbeat_interval_ms(
        ConsumerSettings(),
        broker_members=100_000,
        group_members=1_000,
        waiting_members=waiting,
        is_waiting=True,
        is_group_settled=False,
        on_its_way_ms=on_its_way_ms,
    )
    assert told == interval_ms


def test_without_a_budget_it_is_kafkas_interval_always():
    settings = ConsumerSettings(heartbeat_rate_budget=0, heartbeat_interval_ms=7_000)
    waiting = {**STEADY, "is_waiting": True, "is_group_settled": False}
    assert heartbeat_interval_ms(settings, broker_members=1, **STEADY) == 7_000
    assert heartbeat_interval_ms(settings, broker_members=1, **waiting) == 7_000


def test_everybody_in_a_group_on_its_way_is_asked_soon():
    """Also those who have nothing to do, until the group is settled."""
    story = ConsumerStory(t=2).stable("a")
    story.join("b").says(
        "b@3 every 50 []",
        "member b t",
        "epoch 3",
        "target a t0",
        "target b t1",
        "targets 3 +50",
        "current b 0->3?",
    )
    story.beat("a", 2).says("a@2 every 50 [t0]", "current a 2->2! t0@2 -t1@2")
    story.beat("a", 2, "t0").says("a@3 every 50", "current a 2->3 t0@2")
    assert story.beat("a", 3, "t0").answer.heartbeat_interval_ms == 50
    story.beat("b", 3, "")
    assert story.beat("a", 3).answer.heartbeat_interval_ms == 100


def test_a_wait_that_lasts_is_asked_for_less_often():
    story = ConsumerStory(t=2).stable("a")
    story.configure(heartbeat_rate_budget=1)
    story.join("b")
    story.wait(4_000)
    assert story.beat("b", 3, "").answer.heartbeat_interval_ms == 1_000


def test_a_static_member_that_is_away_does_not_keep_the_others_busy():
    """The group is not settled until it is back, but nothing is on its way."""
    story = ConsumerStory(t=2).stable("a").stable("s", instance_id="i")
    story.configure(heartbeat_rate_budget=1)
    story.wait(30_000)
    story.leave_for_a_while("s", "i")
    assert story.beat("a", 3).answer.heartbeat_interval_ms == 2_000


def test_a_short_interval_does_not_shorten_the_session():
    """A member that was told to come in 50 ms has its whole session to do so."""
    story = ConsumerStory(t=2).stable("a")
    step = story.join("b")
    assert step.answer.heartbeat_interval_ms == 50
    assert step.timers["b"] == SESSION_MS
    story.wait(SESSION_MS - 1)
    assert "b" in story.group.members


def test_a_session_lasts_three_intervals_at_least():
    assert session_timeout_ms(ConsumerSettings(), 5_000) == SESSION_MS
    assert session_timeout_ms(ConsumerSettings(session_timeout_ms=6_000), 5_000) == 15_000


def test_settings_of_a_group_are_its_own():
    story = ConsumerStory(t=1)
    story.configure(session_timeout_ms=60_000, heartbeat_rate_budget=0, heartbeat_interval_ms=9_000)
    step = story.join("a")
    assert step.answer.heartbeat_interval_ms == 9_000
    assert step.timers["a"] == 60_000
    story.group_id = "h"
    assert story.join("a").answer.heartbeat_interval_ms == 50


def test_settings_that_change_count_from_the_next_heartbeat():
    story = ConsumerStory(t=1).stable("a")
    story.configure(session_timeout_ms=50_000)
    assert story.beat("a", 2).timers == {"a": 50_000}
