"""Members of a group, one Go process each, and the history that each of them tells."""

from __future__ import annotations

from dataclasses import dataclass

from member_history import HistoryProcess, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record that a member processed."""

    partition: Partition
    offset: int
    at: float


class GoMember(HistoryProcess):
    """One consumer of franz-go."""

    @property
    def member_id(self) -> str:
        return str(self.of("assigned", "committed")[-1]["member"])

    def processed(self) -> list[Record]:
        return [
            Record(partition=(topic, number), offset=offset, at=event["at"])
            for event in self.of("processed")
            for topic, number in event["partitions"]
            for offset in range(event["first"], event["last"] + 1)
        ]

    def left_behind(self) -> set[tuple[Partition, int]]:
        """What it had processed and not committed when it was killed or frozen."""
        fault = min(self.ended_at, self.frozen_at)
        confirmed = self.confirmed(before=fault)
        return {
            (record.partition, record.offset)
            for record in self.processed()
            if record.at < fault and record.offset >= confirmed.get(record.partition, 0)
        }
