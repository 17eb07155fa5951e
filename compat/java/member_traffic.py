"""Whether records kept flowing to members whose partitions did not move."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from member_process import MemberProcess

from member_history import Partition, partitions_of
from traffic import Traffic

# The least part of its records that a partition without a change of owner goes on delivering.
UNMOVED_SHARE = 0.95


class Flow:
    """Partitions that keep their owner from now until `check` must keep their pace."""

    def __init__(self, members: Sequence[MemberProcess], traffic: Traffic) -> None:
        self._owners = {partition: member for member in members for partition in member.owned}
        self._traffic = traffic
        self._began = time.monotonic()

    def check(self) -> str:
        """Hold what was processed against what had arrived by then, and say it in a line."""
        time.sleep(1)
        began, ended = self._began, time.monotonic()
        unmoved = {p: m for p, m in self._owners.items() if _held(m, p, began, ended)}
        assert unmoved, "every partition has changed its owner"
        arrivals = self._traffic.acknowledged
        arrived = sum(began <= at < ended for partition in unmoved for at in arrivals[partition])
        times: dict[Partition, list[float]] = {partition: [] for partition in unmoved}
        for member in {member.name: member for member in unmoved.values()}.values():
            for event in member.of("processed", after=began):
                for partition in partitions_of(event):
                    if partition in unmoved and event["at"] < ended:
                        times[partition].append(event["at"])
        processed = sum(map(len, times.values()))
        pauses = (b - a for each in times.values() for a, b in itertools.pairwise(each))
        found = (
            f"{len(unmoved)} unmoved partitions delivered {processed} of {arrived} records in "
            f"{ended - began:.1f} s, longest pause {max(pauses, default=0.0) * 1000:.0f} ms"
        )
        assert processed >= UNMOVED_SHARE * arrived, found
        return found


def _held(member: MemberProcess, partition: Partition, began: float, ended: float) -> bool:
    """Whether it was the owner all the time."""
    spans = [span for span in member.spans() if span.partition == partition]
    return any(span.began <= began and span.ended >= ended for span in spans)
