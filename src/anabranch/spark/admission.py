"""How much a batch takes: the rules of Spark's `kafka` source. Pure.

- With `maxOffsetsPerTrigger`, each partition gets its share of the limit by how much waits in it;
  a share below one record is one, so that no partition is starved, and parts are cut off.
- With `minOffsetsPerTrigger`, a batch waits until so much is there, or until `maxTriggerDelay` is
  over since the last batch.
- A partition that is new is read from its beginning.
"""

import math
from collections.abc import Mapping

Place = tuple[str, int]
Offsets = Mapping[Place, int]


def waiting(start: Offsets, end: Offsets) -> dict[Place, int]:
    """How many offsets of each partition there are to read."""
    counts = {place: offset - start.get(place, 0) for place, offset in end.items()}
    return {place: count for place, count in counts.items() if count > 0}


def limited(limit: int, start: Offsets, end: Offsets) -> dict[Place, int]:
    """The end of a batch of about `limit` offsets, out of all there are up to `end`."""
    sizes = waiting(start, end)
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    limits: dict[Place, int] = {}
    for place, offset in end.items():
        size = sizes.get(place, 0)
        if size == 0:
            limits[place] = offset
            continue
        share = limit * (size / total)
        rounded = math.ceil(share) if share < 1 else math.floor(share)
        limits[place] = min(offset, start.get(place, 0) + rounded)
    return limits


def is_due(count: int, least: int | None, waited_ms: float, max_delay_ms: int) -> bool:
    """Whether a batch of `count` offsets may begin, so long after the last one."""
    if count == 0:
        return False
    return least is None or count >= least or waited_ms >= max_delay_ms
