"""How long a member may start records, and how long to wait before trying again. Pure.

The coordinator gives a member's ranges away one session timeout after it *received* the member's
last heartbeat. The member counts from when it *sent* the last one that was answered, which is
earlier, and only nine tenths of the time: so whatever happens on the way, it has stopped starting
records before anybody else may begin with them. It does not stop what is running; that is what the
fencing token is for.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

LEASE_SHARE = 0.9


# Seconds that never go back, and that go on while the machine sleeps, where it can tell.
lease_clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class Lease:
    """Until when records may be started; without a group, for ever.

    It is as long as the coordinator counts the member as alive, by its last heartbeat that was
    answered. A member that has to give ranges back is forgotten, with all it has, if it does not
    within the rebalance timeout, however many heartbeats it sends: while it does so, that limits
    the lease too, until a heartbeat was answered that was sent when they were given back.
    """

    __slots__ = ("_granted_until", "_hand_backs", "_limit_s", "ends_at")

    def __init__(self, limit_s: float = float("inf")) -> None:
        """`limit_s` is the longest lease that counts, whatever the coordinator says."""
        self._limit_s = limit_s
        self._granted_until = float("-inf")
        # Until when each has to be over, and when it was.
        self._hand_backs: dict[object, tuple[float, float]] = {}
        self.ends_at = float("-inf")

    def renew(self, sent_at: float, lease_s: float) -> None:
        """A heartbeat was answered that was sent at `sent_at`."""
        ends_at = sent_at + min(lease_s, self._limit_s) * LEASE_SHARE
        self._granted_until = max(self._granted_until, ends_at)
        self._hand_backs = {
            key: (until, over_at)
            for key, (until, over_at) in self._hand_backs.items()
            if over_at > sent_at
        }
        self._settle()

    def renew_for_ever(self) -> None:
        self._granted_until = float("inf")
        self._settle()

    def hand_back_begins(self, key: object, now: float, timeout_s: float) -> None:
        """Ranges are to be given back within some time; nobody waits for it without a group."""
        if self._granted_until != float("inf"):
            self._hand_backs[key] = now + timeout_s * LEASE_SHARE, float("inf")
            self._settle()

    def hand_back_is_over(self, key: object, now: float) -> None:
        """They are given back; the next heartbeat tells."""
        if key in self._hand_backs:
            self._hand_backs[key] = self._hand_backs[key][0], now

    def end(self) -> None:
        """The coordinator gave the ranges away."""
        self._granted_until = float("-inf")
        self._hand_backs.clear()
        self._settle()

    def _settle(self) -> None:
        limits = (until for until, _ in self._hand_backs.values())
        self.ends_at = min((self._granted_until, *limits))

    def may_start(self, now: float) -> bool:
        return now < self.ends_at


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times that double up to a limit; `spread` moves them by a random share."""

    first_s: float
    max_s: float
    factor: float = 2.0
    spread: float = 0.0

    def delay_s(self, failures: int, random_share: float = 0.5) -> float:
        """The wait after so many failures in a row; `random_share` is from [0, 1)."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded: a member may fail for weeks.
        plain_s = min(self.max_s, self.first_s * self.factor ** min(failures - 1, 64))
        return plain_s * (1 + self.spread * (2 * random_share - 1))


@dataclass(slots=True)
class Attempts:
    """Failures in a row, and what to wait after the last of them."""

    backoff: Backoff
    random_share: Callable[[], float]
    failures: int = field(default=0)

    def failed(self) -> float:
        """Count one more; returns how long to wait."""
        self.failures += 1
        return self.backoff.delay_s(self.failures, self.random_share())

    def succeeded(self) -> None:
        self.failures = 0
