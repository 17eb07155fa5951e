"""Keyed timers against a dict that is searched from end to end."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.coordinator.runtime.result import TimerChange
from anabranch.coordinator.runtime.timers import Timers

KEYS = st.sampled_from(["a", "b", "c", ("session", "g", "m")])
TIMES_MS = st.integers(0, 30)
ACTIONS = st.one_of(
    st.tuples(st.just("set"), KEYS, TIMES_MS),
    st.tuples(st.just("cancel"), KEYS, st.just(0)),
    st.tuples(st.just("pop"), st.just(""), TIMES_MS),
    st.tuples(st.just("clear"), st.just(""), st.just(0)),
)


@given(st.lists(ACTIONS, max_size=60))
def test_timers_do_what_a_dict_does(actions):
    """Whatever is set, moved and cancelled: the nearest deadline, and nothing before its time."""
    timers, oracle = Timers(), {}
    for action, key, time_ms in actions:
        match action:
            case "set":
                timers.apply(TimerChange(key, time_ms))
                oracle[key] = time_ms
            case "cancel":
                timers.apply(TimerChange(key, None))
                oracle.pop(key, None)
            case "pop":
                popped = timers.pop_expired(time_ms)
                due = [deadline_ms for deadline_ms in oracle.values() if deadline_ms <= time_ms]
                assert (popped is not None) == bool(due)
                if popped is not None:
                    assert oracle.pop(popped) == min(due)
            case "clear":
                timers.clear()
                oracle.clear()
        assert len(timers) == len(oracle)
        assert timers.next_deadline_ms() == min(oracle.values(), default=None)
        assert {k: timers.deadline_ms(k) for k in oracle} == oracle
        assert timers.deadline_ms("never set") is None


def test_moving_a_deadline_later_costs_no_memory():
    """A session that is re-armed by every heartbeat keeps one entry."""
    timers = Timers()
    for now_ms in range(10_000):
        timers.apply(TimerChange("session", now_ms + 10_000))

    assert timers.pop_expired(19_998) is None
    assert timers.pop_expired(19_999) == "session"
    assert timers.next_deadline_ms() is None


def test_timers_that_are_due_together_come_in_the_order_they_were_set():
    """So that what happens is the same every time."""
    timers = Timers()
    for key in "cab":
        timers.apply(TimerChange(key, 5))

    assert [timers.pop_expired(9) for _ in range(4)] == ["c", "a", "b", None]
