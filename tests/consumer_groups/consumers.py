"""Consumers of the consumer protocol as processes, and more of what their histories say.

What a process tells and how it is read is the same as for the members of classic groups; only that
partitions have their topic's name with them here.
"""

import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

from members import Member


class ConsumerMember(Member):
    """One consumer process and its history."""

    program = Path(__file__).with_name("consumer_process.py")

    def pause(self) -> None:
        """Let it stop itself between its next record and the commit."""
        self.send(signal.SIGUSR2)

    def wake(self) -> None:
        """Let it go on after it stopped itself."""
        self.send(signal.SIGCONT)

    def let_revoke(self) -> None:
        """Let its callback return that was asked to hold partitions back."""
        self.send(signal.SIGUSR1)

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """The commits that were refused: partition and error."""
        return [(e["partition"], e["error"]) for e in self.of("refused")]

    @property
    def joined_at(self) -> float:
        return float(self.of("joining")[0]["at"])


def commits_that_went_back(members: list[ConsumerMember]) -> list[tuple[dict[str, Any], ...]]:
    """The pairs of confirmed commits of which the later one was for an earlier offset."""
    last: dict[str, dict[str, Any]] = {}
    wrong = []
    commits = [event for member in members for event in member.of("committed")]
    for event in sorted(commits, key=lambda event: event["at"]):
        before = last.get(event["partition"])
        if before is not None and event["offset"] < before["offset"]:
            wrong.append((before, event))
        last[event["partition"]] = event
    return wrong


def processed_by_partition(members: list[ConsumerMember]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for member in members:
        for partition, offset in member.records:
            found[partition].add(offset)
    return found
