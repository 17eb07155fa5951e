"""Records that failed: how often, and when they may be tried again.

Rules
- A record is delivered at most `coop.delivery.limit` times. It rests after each failure, longer
  each time: `coop.retry.backoff.ms` doubled with each failure, or as long as the member asks for if
  that is longer, and never longer than `coop.retry.backoff.max.ms`.
- A failure that is reported while the record rests is the same one reported again, since nobody
  tries a record that rests: it counts once.
- After the last failure, or when the member wants no more tries, the record is exhausted: it rests
  until somebody decides about it, and the records of its key with it. Others go on. Who decides is
  the group's disposition or an administrator (see `decisions`).
- Records of a diverted key are exhausted at once, without a try: they have to follow their key to
  the dead-letter topic. A member that says so of a key that was released meanwhile says nothing.
"""

from anabranch.coordinator.cooperative.commands import DIVERTED, Failure
from anabranch.coordinator.cooperative.progress import Attempt, PartitionProgress
from anabranch.coordinator.cooperative.settings import CooperativeSettings

# A time that does not come.
NEVER_MS = 2**63 - 1

_REASON_MAX_CHARACTERS = 256
# Twice as long each time is longer than any limit after so many times.
_DOUBLINGS_MAX = 40


def attempt_after(
    progress: PartitionProgress, failure: Failure, settings: CooperativeSettings, now_ms: int
) -> Attempt | None:
    """The attempts at a record after it was said to have failed; None when that says nothing."""
    known = progress.attempts.get(failure.offset)
    if progress.is_diverted(failure.key_hash, failure.offset):
        first_offset = progress.diverted[failure.key_hash]
        reason = f"its key is diverted since offset {first_offset}"
        return Attempt(failure.key_hash, known.count if known else 0, NEVER_MS, reason)
    if failure.retry_after_ms == DIVERTED:
        return None
    return next_attempt(known, failure, settings, now_ms)


def next_attempt(
    known: Attempt | None, failure: Failure, settings: CooperativeSettings, now_ms: int
) -> Attempt:
    """The attempts at a record after one more failure."""
    is_repetition = known is not None and now_ms < known.not_before_ms
    count = known.count if known is not None else 0
    if not is_repetition:
        count += 1
    not_before_ms = NEVER_MS
    if failure.retry_after_ms >= 0 and count < settings.delivery_limit:
        if known is not None and is_repetition:
            return known
        not_before_ms = now_ms + rest_ms(count, failure.retry_after_ms, settings)
    reason = failure.reason[:_REASON_MAX_CHARACTERS]
    return Attempt(failure.key_hash, count, not_before_ms, reason)


def rest_ms(count: int, retry_after_ms: int, settings: CooperativeSettings) -> int:
    """How long a record rests after it failed for the `count`th time."""
    backoff_ms = settings.retry_backoff_ms << min(count - 1, _DOUBLINGS_MAX)
    return min(max(retry_after_ms, backoff_ms), settings.retry_backoff_max_ms)


def is_exhausted(attempt: Attempt) -> bool:
    return attempt.not_before_ms == NEVER_MS


def exhausted_offsets(progress: PartitionProgress) -> list[int]:
    """The records that wait for somebody to decide about them, in order."""
    return sorted(offset for offset, one in progress.attempts.items() if is_exhausted(one))
