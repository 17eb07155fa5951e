"""What to fetch next, for which ranges, from where. Pure.

- A range is fetched for while it has less than its share of the buffer, or nothing at all: a range
  that is stuck never keeps the others from flowing.
- One request has a partition once, with one offset, for any number of its ranges. Ranges that have
  arrived at about the same place go together, from the one that is furthest behind; what the
  others have seen of it already is left out when it comes. Ranges far ahead are fetched for by
  another request.
- A range waits for at most one request at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.client.range_work import Place, RangeState, RangeWork
from anabranch.client.workload import Workload
from anabranch.model.units import SlotRange

_TOGETHER_OFFSETS = 2_000
# Parked records of a range, each a few hundred bytes, above which it is not read on.
PARKED_MAX = 100_000


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """What may wait in memory, over all ranges."""

    max_records: int
    max_bytes: int


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """A part of a request: ranges of one partition, from one offset."""

    place: Place
    asked: list[SlotRange]
    first: int
    member_epoch: int = -1
    # The leader epoch by which it was asked for.
    leader_epoch: int = -1
    # Whether it is to bring back the content of parked records, and nothing else.
    is_refill: bool = False


def plan(
    workload: Workload,
    limits: BufferLimits,
    node_of: Callable[[Place], int | None],
) -> dict[int, list[PartitionFetch]]:
    """The next request to each broker; marks its ranges as being fetched for."""
    active = [work for work in workload if work.state is RangeState.ACTIVE]
    if not active:
        return {}
    share = BufferLimits(
        max(limits.max_records // len(active), 1), max(limits.max_bytes // len(active), 1)
    )
    hungry: dict[Place, list[RangeWork]] = {}
    for work in active:
        if work.fetch is None and is_hungry(work, share):
            hungry.setdefault(work.unit[:2], []).append(work)
    requests: dict[int, list[PartitionFetch]] = {}
    for place, works in hungry.items():
        node = node_of(place)
        if node is not None:
            requests.setdefault(node, []).append(_together(place, works))
    return requests


def plan_refills(
    workload: Workload, node_of: Callable[[Place], int | None]
) -> dict[int, list[PartitionFetch]]:
    """Requests for the content of parked records whose turn has come."""
    first_of: dict[Place, int] = {}
    for record in workload.queue.empty:
        place: Place = record._work.unit[:2]
        if place not in workload.refilling:
            first_of[place] = min(record.offset, first_of.get(place, record.offset))
    requests: dict[int, list[PartitionFetch]] = {}
    for place, first in first_of.items():
        node = node_of(place)
        if node is not None:
            asked = [
                work.slots for work in workload.of_place(place) if work.state is RangeState.ACTIVE
            ]
            workload.refilling.add(place)
            fetch = PartitionFetch(place, asked, first, is_refill=True)
            requests.setdefault(node, []).append(fetch)
    return requests


def is_hungry(work: RangeWork, share: BufferLimits) -> bool:
    buffered = work.buffered
    if work.parked >= PARKED_MAX:
        return False
    if buffered == 0:
        return True
    return buffered < share.max_records and buffered * work.record_bytes < share.max_bytes


def _together(place: Place, works: list[RangeWork]) -> PartitionFetch:
    first = min(work.position for work in works)
    chosen = [work for work in works if work.position - first <= _TOGETHER_OFFSETS]
    asked = [work.slots for work in sorted(chosen, key=lambda one: one.slots)]
    fetch = PartitionFetch(place, asked, first)
    for work in chosen:
        work.fetch = fetch
    return fetch


def finish(workload: Workload, fetch: PartitionFetch) -> list[RangeWork]:
    """The request was answered, or failed; returns the ranges that waited for it."""
    if fetch.is_refill:
        workload.refilling.discard(fetch.place)
    works = [work for work in workload.of_place(fetch.place) if work.fetch is fetch]
    for work in works:
        work.fetch = None
    return works
