"""How soon a member of a consumer group is asked to speak again.

A rebalance lasts as long as members take to hear of it, and they hear of it when they speak: the
interval of heartbeats, not the assignor, is what people wait for. Clients take the interval from
every answer, so that it is told to each of them as the moment asks for.

Rules
- While nothing moves, all members of the broker together send at most `heartbeat_rate_budget`
  heartbeats per second: few members hear of things at once, and ten thousand cost no more than
  they do in Kafka, since nobody is ever asked less often than `heartbeat_interval_ms`.
- A member that owes or awaits something, and everybody in a group that is not settled, is asked
  again soon: after a quarter of the time that the group has been on its way. A wait is so at most a
  quarter longer than it had to be, and one that takes minutes does not cost a thousand heartbeats.
- Those who wait are as many as they are: together they stay within `_FAST_RATE`.
- With a budget of 0 it is `heartbeat_interval_ms` always, as in Kafka.
- The session is a matter of its own (`session_timeout_ms`): a short interval never shortens it,
  and it is never less than three intervals.
"""

from anabranch.coordinator.group.consumer_settings import ConsumerSettings

# The Java client keeps about 100 ms between heartbeats, whatever it is told (measured: 82 to 147 ms
# for 5, 20, 50 and 100 ms). librdkafka keeps intervals of 5 ms to the millisecond, but takes the
# interval for the timeout of the request too, which it looks at about once a second.
STEADY_MIN_MS = 100
# Heartbeats per second that the members of one group on its way may add up to.
_FAST_RATE = 2_000
_SESSION_INTERVALS = 3


def heartbeat_interval_ms(
    settings: ConsumerSettings,
    *,
    broker_members: int,
    group_members: int,
    waiting_members: int,
    is_waiting: bool,
    is_group_settled: bool,
    on_its_way_ms: int,
) -> int:
    """The interval to tell a member.

    `waiting_members` are those of the group that owe or await something, `is_waiting` is whether
    this one is among them, `on_its_way_ms` is how old the group's target is.
    """
    longest_ms = settings.heartbeat_interval_ms
    if not settings.heartbeat_rate_budget:
        return longest_ms
    steady_ms = broker_members * 1000 // settings.heartbeat_rate_budget
    steady_ms = min(max(steady_ms, STEADY_MIN_MS), longest_ms)
    if is_group_settled and not is_waiting:
        return steady_ms
    asking = waiting_members if is_waiting else group_members
    soon_ms = max(
        settings.heartbeat_fast_interval_ms, on_its_way_ms // 4, asking * 1000 // _FAST_RATE
    )
    return min(soon_ms, steady_ms)


def session_timeout_ms(settings: ConsumerSettings, interval_ms: int) -> int:
    """How long a member may be silent that was told this interval."""
    return max(settings.session_timeout_ms, _SESSION_INTERVALS * interval_ms)
