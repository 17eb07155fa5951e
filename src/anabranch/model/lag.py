"""Lag: how many records a group still has to read of a partition.

Command line, metrics and console all ask here, so that no two of them tell different numbers.

Rules
- Lag is the distance from the group's position to the end of the log, and never negative: a group
  may have committed an offset beyond an end that an unclean stop moved back.
- Records that are gone cannot be read, so a position before the log's start counts from the start.
- A group that has committed nothing counts from the log's start, as if it were to read everything.
- Without an end (the partition is gone, or nobody answered for it) there is no lag to tell.
"""

from typing import overload


@overload
def lag(end_offset: int, committed_offset: int | None, log_start_offset: int) -> int: ...
@overload
def lag(end_offset: None, committed_offset: int | None, log_start_offset: int) -> None: ...
@overload
def lag(
    end_offset: int | None, committed_offset: int | None, log_start_offset: int
) -> int | None: ...
def lag(end_offset: int | None, committed_offset: int | None, log_start_offset: int) -> int | None:
    """Records from the committed offset (None: nothing committed) to the end (None: unknown)."""
    if end_offset is None:
        return None
    position = log_start_offset if committed_offset is None else committed_offset
    return max(end_offset - max(position, log_start_offset), 0)
