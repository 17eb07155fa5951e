"""How long keys pause when their range moves: members join and leave while records keep coming.

For each key that was worked on by one member and then by another: the time from when its last
record was done at the old owner, or from when its next one was in the log if that is later, until
the new owner begins with that one. Beside it the same for keys that did not move.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from anabranch.model.units import SLOT_COUNT
from cooperative_crew import Contender, Worker, await_slots, member_command, slots_said, width
from cooperative_load import UNIFORM, LoadError, create_topic
from cooperative_stream import Stream, percentile, stream_load
from server_process import ServerProcess

KEYS = 400
RATE_PER_S = 2_000
WORK_US = 5_000
WORKERS = 8
LEAST_MEMBERS, MOST_MEMBERS = 4, 8
GOAL_MS = 200.0

_MOVE_LIMIT_S = 30.0
_END_LIMIT_S = 60.0
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePlan:
    # Each time members join one by one and leave one by one.
    cycles: int
    # From one event to the next, at least.
    every_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """What came of it, in milliseconds."""

    events: int
    joins_ms: tuple[float, ...]
    leaves_ms: tuple[float, ...]
    moved_ms: tuple[float, ...]
    unmoved_ms: tuple[float, ...]
    repeated: int
    disordered: int
    left: int


@dataclass(frozen=True, slots=True)
class Done:
    """A record that was worked on."""

    offset: int
    began_ns: int
    ended_ns: int
    member: int


class _Group:
    """Members that come and go."""

    def __init__(self, server: ServerProcess, topic: str, folder: Path, stack: ExitStack) -> None:
        self._server = server
        self._topic = topic
        self._folder = folder
        self._stack = stack
        self._count = 0
        self.members: dict[int, Worker] = {}
        self._gone: dict[int, Worker] = {}
        self._idle: list[Worker] = []

    def prepare(self, count: int) -> None:
        """Start processes, so that a join does not begin with the start of a process."""
        for _ in range(count):
            path = self._folder / f"member-{len(self._idle)}.log"
            worker = Worker(member_command(), self._server, path)
            self._stack.callback(worker.close)
            self._idle.append(worker)

    def join(self) -> None:
        worker = self._idle.pop(0)
        worker.tell("run", "logged", self._topic, f"{self._topic}-group", WORKERS, WORK_US, 0)
        self.members[self._count] = worker
        self._count += 1

    def leave(self) -> None:
        """The oldest member leaves in order."""
        number = min(self.members)
        worker = self.members.pop(number)
        worker.tell("stop", self._path(number))
        self._gone[number] = worker
        while (line := worker.hear(_END_LIMIT_S)) and line[0] != "ended":
            pass
        if not line:
            raise LoadError("a member does not leave")
        self._idle.append(worker)

    def await_complete(self, owned: dict[int, int]) -> None:
        """Until the members have everything, each of them some."""
        deadline_s = time.monotonic() + _MOVE_LIMIT_S
        while True:
            for number, worker in self.members.items():
                while line := worker.hear(0.0):
                    if line[0] == "owns":
                        owned[number] = width(slots_said(line))
            widths = [owned.get(number, 0) for number in self.members]
            if sum(widths) == SLOT_COUNT and all(widths):
                return
            if time.monotonic() > deadline_s:
                raise LoadError(f"ranges do not arrive in {_MOVE_LIMIT_S:.0f} s: {widths}")
            time.sleep(0.005)

    def stop(self) -> list[Done]:
        """Everybody leaves; returns all that was done, by offset."""
        while self.members:
            self.leave()
        found = []
        for number in range(self._count):
            log = array("q", self._path(number).read_bytes())
            columns = zip(log[0::3], log[1::3], log[2::3], strict=True)
            found += [Done(*numbers, number) for numbers in columns]
        return sorted(found, key=lambda one: (one.offset, one.began_ns))

    def _path(self, number: int) -> Path:
        return self._folder / f"done-{number}"


def measure_pauses(
    server: ServerProcess, folder: Path, plan: PausePlan, progress: Callable[[str], None]
) -> Pauses:
    folder.mkdir(parents=True, exist_ok=True)
    topic = create_topic(server, Contender(name="", kind="logged", server=server).topic_configs)
    events = plan.cycles * 2 * (MOST_MEMBERS - LEAST_MEMBERS)
    seconds = events * (plan.every_s + 2.0) + 10.0
    load = stream_load(UNIFORM, KEYS, rate_per_s=RATE_PER_S, seconds=seconds)
    joins_ns: list[tuple[int, int]] = []
    leaves_ns: list[tuple[int, int]] = []
    with ExitStack() as stack:
        group = _Group(server, topic, folder, stack)
        group.prepare(MOST_MEMBERS)
        for _ in range(LEAST_MEMBERS):
            group.join()
        await_slots(list(group.members.values()))
        owned: dict[int, int] = {}
        with Stream(server, topic, load, RATE_PER_S) as stream:
            time.sleep(_SETTLE_S)
            owned = dict.fromkeys(group.members, SLOT_COUNT // LEAST_MEMBERS)
            for number in range(events):
                is_join = number // (MOST_MEMBERS - LEAST_MEMBERS) % 2 == 0
                progress(
                    f"pauses: event {number + 1} of {events}, a member "
                    f"{'joins' if is_join else 'leaves'}"
                )
                began_ns = time.monotonic_ns()
                if is_join:
                    group.join()
                else:
                    group.leave()
                group.await_complete(owned)
                (joins_ns if is_join else leaves_ns).append((began_ns, time.monotonic_ns()))
                time.sleep(plan.every_s)
        time.sleep(_SETTLE_S)
        done = group.stop()
    moved, unmoved = pauses_of(done, load.keys, stream.arrived_ns)
    return Pauses(
        events=events,
        joins_ms=_milliseconds(joins_ns),
        leaves_ms=_milliseconds(leaves_ns),
        moved_ms=tuple(moved),
        unmoved_ms=tuple(unmoved),
        left=stream.sent - len({one.offset for one in done}),
        **_faults(done, load.keys),
    )


def _milliseconds(spans: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    return tuple((until - since) / 1e6 for since, until in spans)


# Figures ------------------------------------------------------------------------------------------


def pauses_of(
    done: Sequence[Done], keys: Sequence[int], arrived_ns: Callable[[int], int]
) -> tuple[list[float], list[float]]:
    """The pauses of keys that moved to another member, and of those that did not; `done` is by
    offset."""
    moved: list[float] = []
    unmoved: list[float] = []
    latest: dict[int, Done] = {}
    for one in done:
        key = keys[one.offset]
        before = latest.get(key)
        latest[key] = one
        if before is not None and before.offset < one.offset:
            since_ns = max(before.ended_ns, arrived_ns(one.offset))
            pause_ms = max(0.0, (one.began_ns - since_ns) / 1e6)
            (unmoved if before.member == one.member else moved).append(pause_ms)
    return moved, unmoved


def _faults(done: Sequence[Done], keys: Sequence[int]) -> Mapping[str, int]:
    """Records that were done twice, and those that were begun before an earlier one of their key
    was done."""
    disordered = 0
    latest: dict[int, int] = {}
    for one in done:
        key = keys[one.offset]
        if one.began_ns < latest.get(key, 0):
            disordered += 1
        latest[key] = max(one.ended_ns, latest.get(key, 0))
    return {
        "repeated": len(done) - len({one.offset for one in done}),
        "disordered": disordered,
    }


def pause_rows(pauses: Pauses) -> list[list[str]]:
    rows = [["", "n", "p50", "p90", "p99", "most"], ["", "", "ms", "ms", "ms", "ms"]]
    for name, values in (
        ("pause of keys that moved", pauses.moved_ms),
        ("the same of keys that did not", pauses.unmoved_ms),
        ("join until all is assigned", pauses.joins_ms),
        ("leave until all is assigned", pauses.leaves_ms),
    ):
        if values:
            figures = [percentile(values, part) for part in (0.5, 0.9, 0.99, 1.0)]
            rows.append([name, f"{len(values):,}", *(f"{figure:,.1f}" for figure in figures)])
    return rows


def pause_goal(pauses: Pauses) -> str:
    if not pauses.moved_ms:
        return "goal: not measured, no key has moved"
    p99 = percentile(pauses.moved_ms, 0.99)
    verdict = "reached" if p99 < GOAL_MS else "missed"
    return (
        f"goal: p99 of keys that moved under {GOAL_MS:.0f} ms beside the record's own work: "
        f"{verdict} ({p99:.0f} ms); {pauses.left:,} records not done, {pauses.repeated:,} repeated,"
        f" {pauses.disordered:,} out of order"
    )
