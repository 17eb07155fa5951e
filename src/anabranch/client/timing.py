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
    """Until when records may be started; without a group, for ever."""

    __slots__ = ("_limit_s", "ends_at")

    def __init__(self, limit_s: float = float("inf")) -> None:
        """`limit_s` is the longest lease that counts, whatever the coordinator says."""
        self._limit_s = limit_s
        self.ends_at = float("-inf")

    def renew(self, sent_at: float, lease_s: float) -> None:
        """A heartbeat was answered that was sent at `sent_at`."""
        ends_at = sent_at + min(lease_s, self._limit_s) * LEASE_SHARE
        self.ends_at = max(self.ends_at, ends_at)

    def renew_for_ever(self) -> None:
        self.ends_at = float("inf")

    def end(self) -> None:
        """The coordinator gave the ranges away."""
        self.ends_at = float("-inf")

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
