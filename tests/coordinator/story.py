"""Stories of groups: submit a command, let time pass, and say exactly what followed.

A `Story` does what the broker does with a shard: it decides, replays the records, sets the timers
and hands out the answers, with a clock that only the story moves. Each step also checks what must
hold at all times (see `invariants`), so a story fails at the step that breaks it.

    story = Story()
    story.join("a").gives(answer=..., durable=[...], timers={...}, wakes={...}, group="...")

`gives` is exact: what is not named must not have happened. Timers are named "join", "sync" or by
the member's id and count from now, None for cancelled; those who wait are named by what they asked,
"join a" or "sync a-1"; the group is one line, see `line`.
"""

import dataclasses
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from invariants import check_invariants, image, replayed

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.classic_state import ClassicGroup, ClassicMember, ClassicState
from anabranch.coordinator.group.records import GroupWritten, OffsetCommitted
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard
from anabranch.coordinator.runtime.result import Result
from anabranch.coordinator.runtime.timers import Timers
from anabranch.model.errors import ErrorCode

GROUP = "g"
TOPIC = "orders"
HOST = "/127.0.0.1"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
NEW_MEMBER_MS = 300_000
START_MS = 1_700_000_000_000


def subscription(*topics: str, version: int = 0) -> bytes:
    """The metadata with which a consumer joins: a ConsumerProtocolSubscription."""
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">i", -1)


RANGE = (("range", subscription(TOPIC)),)
RANGE_AND_STICKY = (("range", subscription(TOPIC)), ("sticky", b"sticky-data"))
STICKY_AND_RANGE = (("sticky", b"sticky-data"), ("range", subscription(TOPIC)))
STICKY = (("sticky", b"sticky-data"),)


class Step:
    """What one command, or one timer, has led to."""

    def __init__(self, story: "Story", result: Result, wakes: dict[str, Any]) -> None:
        self.answer = result.response
        self.durable = [record for record in result.records if record.is_durable]
        self.wakes = wakes
        self.timers = {
            _timer_name(change.key): (
                None if change.deadline_ms is None else change.deadline_ms - story.now_ms
            )
            for change in result.timers
        }
        self.group = line(story.shard.group(GROUP))

    def gives(
        self,
        *,
        answer: Any = None,
        durable: Iterable[Any] = (),
        timers: Mapping[str, int | None] | None = None,
        wakes: Mapping[str, Any] | None = None,
        group: str,
    ) -> "Step":
        """Check that this and nothing else has happened."""
        assert self.answer == answer
        assert self.wakes == (wakes or {})
        assert self.durable == list(durable)
        assert self.timers == (timers or {})
        assert self.group == group
        return self

    def fails(self, error: ErrorCode, *, group: str | None = None, member_id: str = "") -> None:
        """Check that it was refused with an error and that nothing has changed."""
        assert self.answer is not None, "it was parked"
        assert self.answer.error is error
        assert getattr(self.answer, "member_id", member_id) == member_id
        assert (self.wakes, self.durable, self.timers) == ({}, [], {})
        if group is not None:
            assert self.group == group

    def fails_each(self, error: ErrorCode) -> None:
        """Check that every member of a LeaveGroup was refused and that nothing has changed."""
        assert self.answer.error is ErrorCode.NONE
        assert [m.error for m in self.answer.members] == [error] * len(self.answer.members)
        assert (self.wakes, self.durable, self.timers) == ({}, [], {})


def _timer_name(key: Any) -> str:
    kind, group_id, *rest = key
    name = rest[0] if rest else kind
    return name if group_id == GROUP else f"{group_id}/{name}"


def line(group: ClassicGroup | None) -> str:
    """A group in one line: state, generation, protocol, members.

    Marks of a member: * leads, + new, ? waits for the generation, ~ waits for its assignment,
    ! has to ask for it, =xyz has it. In parentheses: told its id, has not joined.
    """
    if group is None:
        return "none"
    words = [group.state.value, str(group.generation_id), group.protocol_name or "-"]
    for member in group.members.values():
        marks = "+" * member.is_new
        marks += "?" * (member.join_waiter is not None) + "~" * (member.sync_waiter is not None)
        marks += "!" * (member.member_id in group.pending_syncs)
        given = f"={member.assignment.decode(errors='replace')}" if member.assignment else ""
        leads = "*" * (group.leader_id == member.member_id)
        words.append(f"{leads}{member.member_id}{marks}{given}")
    words += [f"({member_id})" for member_id in sorted(group.pending_members)]
    if group.is_initial:
        words.append(f"initial,{group.join_delay_left_ms}")
        words += ["more"] * group.has_new_member
    return " ".join(words)


class Story:
    """One shard, its clock, and everybody who waits on it."""

    # Off where stories are told many times over for what they say, and not for what always holds.
    checks_invariants = True
    # Replaying everything at every step takes most of the time of a long story.
    checks_replay = True

    def __init__(self, group_id: str = GROUP, **settings: int) -> None:
        self.group_id = group_id
        self.settings = GroupSettings(**settings)
        self.now_ms = START_MS
        self.shard = GroupShard(self.settings)
        self.timers = Timers()
        self.records: list[Any] = []  # since the last start, after what the journal had then
        self.parked: dict[int, str] = {}
        self.answers: dict[str, Any] = {}
        # What leaders gave, by group and generation, to members by instance or member id.
        self.given: dict[tuple[str, int], dict[str, bytes]] = {}
        self.generations: dict[str, int] = {}
        self._waiters = 0
        self._uniques = 0

    # Time ---------------------------------------------------------------------------------------

    def wait(self, delay_ms: int) -> list[Step]:
        """Let time pass; a step for each timer that fired."""
        end_ms = self.now_ms + delay_ms
        steps = []
        while (deadline_ms := self.timers.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            steps.append(self.fire())
            assert len(steps) < 10_000, "a timer fires without end"
        self.now_ms = end_ms
        return steps

    def fire(self) -> Step:
        """Carry out the timer whose time has come."""
        key = self.timers.pop_expired(self.now_ms)
        assert key is not None
        return self.submit(c.TimerFired(key=key))

    def live(self, delay_ms: int, *member_ids: str) -> list[Step]:
        """Let time pass while these members send heartbeats; a step for each timer that fired."""
        steps = []
        while delay_ms > 0:
            steps += self.wait(min(SESSION_MS // 2, delay_ms))
            delay_ms -= SESSION_MS // 2
            for member_id in member_ids:
                self.heartbeat(member_id, self.generation)
        return steps

    def restart(self, **settings: int) -> Step:
        """kill -9 and start: only what is durable is left, and nobody waits any more."""
        self.settings = dataclasses.replace(self.settings, **settings)
        self.records = [record for record in self.records if record.is_durable]
        self.shard = replayed(self.records, self.settings)
        self.timers = Timers()
        self.parked = {}
        self.generations = {}
        return self.submit(c.Loaded())

    # Commands -----------------------------------------------------------------------------------

    def submit(self, command: c.Command, label: str = "") -> Step:
        """Decide and carry out, as the broker does, and check what always holds."""
        before = image(self.shard) if self.checks_invariants else None
        group = self.group if isinstance(command, c.SyncGroup) else None
        result = self.shard.decide(command, self.now_ms)
        if before is not None:
            assert self.shard.decide(command, self.now_ms) == result, "decide is not repeatable"
            assert image(self.shard) == before, "decide changed the state"
        if result.response is None and isinstance(command, c.JoinGroup | c.SyncGroup):
            self.parked[command.waiter] = self._label(label)
        if isinstance(command, c.SyncGroup):
            self._note_assignment(group, command, result)
        wakes = self._apply(result)
        if self.checks_invariants:
            check_invariants(self)
        return Step(self, result, wakes)

    def _apply(self, result: Result) -> dict[str, Any]:
        for record in result.records:
            self.records.append(record)
            self.shard.replay(record)
        for change in result.timers:
            self.timers.apply(change)
        wakes = {}
        for wake in result.wakes:
            label = self.parked.pop(wake.waiter)  # a KeyError: answered twice, or never asked
            wakes[label] = self.answers[label] = wake.response
        return wakes

    def _label(self, label: str) -> str:
        while label in self.parked.values() or label in self.answers:
            label += "'"
        return label

    def _note_assignment(
        self, group: ClassicGroup | None, command: c.SyncGroup, result: Result
    ) -> None:
        if group is None or group.state is not ClassicState.COMPLETING_REBALANCE:
            return
        if result.response is not None and result.response.error is ErrorCode.NONE:
            given = dict(command.assignments)
            self.given[group.group_id, group.generation_id] = {
                member.group_instance_id or member.member_id: given.get(member.member_id, b"")
                for member in group.members.values()
            }

    @property
    def group(self) -> ClassicGroup | None:
        return self.shard.group(self.group_id)

    def _waiter(self) -> int:
        self._waiters += 1
        return self._waiters

    def join(self, client: str, member_id: str = "", **changes: Any) -> Step:
        """JoinGroup as version 3 sends it; a new member gets the id `client-1` and so on."""
        self._uniques += 1
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": client,
            "client_host": HOST,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "requires_known_member_id": False,
            "can_skip_assignment": False,
            "waiter": self._waiter(),
            "unique": str(self._uniques),
        }
        return self.submit(c.JoinGroup(**values | changes), label=f"join {client}")

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        **changes: Any,
    ) -> Step:
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": generation_id,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": tuple((assignments or {}).items()),
            "waiter": self._waiter(),
        }
        return self.submit(c.SyncGroup(**values | changes), label=f"sync {member_id}")

    def heartbeat(self, member_id: str, generation_id: int, instance: str | None = None) -> Step:
        return self.submit(
            c.Heartbeat(
                group_id=self.group_id,
                member_id=member_id,
                group_instance_id=instance,
                generation_id=generation_id,
            )
        )

    def leave(self, *members: str | tuple[str, str | None]) -> Step:
        """Members by id, or by (id, instance id)."""
        pairs = [(member, None) if isinstance(member, str) else member for member in members]
        return self.submit(
            c.LeaveGroup(
                group_id=self.group_id,
                members=tuple(
                    c.LeavingMember(member_id=member_id, group_instance_id=instance)
                    for member_id, instance in pairs
                ),
            )
        )

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation_id: int = -1,
        *,
        topic: str = TOPIC,
        partition: int = 0,
        metadata: str | None = None,
        **changes: Any,
    ) -> Step:
        asked = c.OffsetToCommit(
            topic=topic,
            topic_id=bytes(16),
            partition=partition,
            offset=offset,
            leader_epoch=-1,
            metadata=metadata,
        )
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": generation_id,
            "retention_ms": -1,
            "knows_group_id_not_found": True,
            "offsets": (asked,),
        }
        return self.submit(c.CommitOffsets(**values | changes))

    def commit_in_txn(
        self,
        offset: int,
        producer_id: int = 7,
        *,
        topic: str = TOPIC,
        partition: int = 0,
        metadata: str | None = None,
        **changes: Any,
    ) -> Step:
        """TxnOffsetCommit as version 2 sends it: nobody in particular, epoch 0."""
        asked = c.OffsetToCommit(
            topic=topic,
            topic_id=bytes(16),
            partition=partition,
            offset=offset,
            leader_epoch=-1,
            metadata=metadata,
        )
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": "",
            "group_instance_id": None,
            "generation_id": -1,
            "offsets": (asked,),
            "producer_id": producer_id,
            "producer_epoch": 0,
        }
        return self.submit(c.CommitTxnOffsets(**values | changes))

    def end_txn(self, producer_id: int = 7, *, is_commit: bool = True) -> Step:
        return self.submit(
            c.EndTransaction(
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=5,
                is_commit=is_commit,
            )
        )

    def delete_offsets(self, *partitions: tuple[str, int]) -> Step:
        return self.submit(c.DeleteOffsets(group_id=self.group_id, partitions=partitions))

    def delete_group(self) -> Step:
        return self.submit(c.DeleteGroup(group_id=self.group_id))

    def expire(self) -> Step:
        return self.submit(c.ExpireOffsets())

    # Beginnings ---------------------------------------------------------------------------------

    def joined(self, *clients: str, **changes: Any) -> list[str]:
        """A group in CompletingRebalance with these members, who lead in this order; their ids."""
        first = len(self.answers)
        for client in clients:
            self.join(client, **changes)
        while self.parked:
            self.wait(DELAY_MS)
        answered = {answer.member_id for answer in list(self.answers.values())[first:]}
        assert self.group is not None
        return [member_id for member_id in self.group.members if member_id in answered]

    def stable(self, *clients: str, **changes: Any) -> list[str]:
        """A Stable group with these members, each with its client's name in capitals; their ids."""
        ids = self.joined(*clients, **changes)
        for member_id in ids[1:]:
            self.sync(member_id, self.generation)
        given = {m: client.upper().encode() for m, client in zip(ids, clients, strict=True)}
        self.sync(ids[0], self.generation, given)
        return ids

    @property
    def generation(self) -> int:
        assert self.group is not None
        return self.group.generation_id


# What to expect ---------------------------------------------------------------------------------


def joined(
    member_id: str,
    generation_id: int,
    leader_id: str,
    members: Iterable[str | c.JoinedMember] = (),
    protocol: tuple[str, bytes] = RANGE[0],
    **changes: Any,
) -> c.JoinAnswer:
    """The answer to a JoinGroup once the generation has begun."""
    return dataclasses.replace(
        c.JoinAnswer(
            member_id=member_id,
            generation_id=generation_id,
            protocol_type="consumer",
            protocol_name=protocol[0],
            leader_id=leader_id,
            members=tuple(
                c.JoinedMember(member_id=member, group_instance_id=None, metadata=protocol[1])
                if isinstance(member, str)
                else member
                for member in members
            ),
        ),
        **changes,
    )


def join_refused(error: ErrorCode, member_id: str = "") -> c.JoinAnswer:
    return c.JoinAnswer(error=error, member_id=member_id)


def synced(assignment: bytes, protocol: str = "range") -> c.SyncAnswer:
    return c.SyncAnswer(protocol_type="consumer", protocol_name=protocol, assignment=assignment)


def sync_refused(error: ErrorCode) -> c.SyncAnswer:
    return c.SyncAnswer(error=error)


def left(*members: tuple[str, str | None, ErrorCode]) -> c.LeaveAnswer:
    return c.LeaveAnswer(
        members=tuple(
            c.LeftMember(member_id=member_id, group_instance_id=instance, error=error)
            for member_id, instance, error in members
        )
    )


def member(member_id: str, assignment: bytes = b"", **changes: Any) -> ClassicMember:
    """A member as the journal has it, with what `Story.join` sends."""
    return dataclasses.replace(
        ClassicMember(
            member_id=member_id,
            group_instance_id=None,
            client_id=member_id.rsplit("-", 1)[0],
            client_host=HOST,
            rebalance_timeout_ms=REBALANCE_MS,
            session_timeout_ms=SESSION_MS,
            protocols=RANGE,
            assignment=assignment,
        ),
        **changes,
    )


def written(
    generation_id: int,
    *members: ClassicMember,
    at_ms: int,
    leader_id: str | None = None,
    **changes: Any,
) -> GroupWritten:
    """The record of a group: Stable with members, Empty without; the first member leads."""
    group = ClassicGroup(
        group_id=GROUP,
        state=ClassicState.STABLE if members else ClassicState.EMPTY,
        generation_id=generation_id,
        protocol_type="consumer",
        protocol_name="range" if members else None,
        leader_id=leader_id or (members[0].member_id if members else None),
        state_timestamp_ms=at_ms,
        members={m.member_id: m for m in members},
    )
    return GroupWritten(group_id=GROUP, group=dataclasses.replace(group, **changes))


def created(at_ms: int = START_MS) -> GroupWritten:
    """The record of a group that is new and has nobody yet."""
    return written(0, at_ms=at_ms, protocol_type=None)


def forgotten_group(group_id: str = GROUP) -> GroupWritten:
    return GroupWritten(group_id=group_id, group=None)


def committed(
    offset: int, *, at_ms: int, topic: str = TOPIC, partition: int = 0, **changes: Any
) -> OffsetCommitted:
    value = c.CommittedOffset(offset=offset, commit_timestamp_ms=at_ms)
    return OffsetCommitted(
        group_id=GROUP,
        topic=topic,
        partition=partition,
        value=dataclasses.replace(value, **changes),
    )


def forgotten(topic: str, partition: int, group_id: str = GROUP) -> OffsetCommitted:
    return OffsetCommitted(group_id=group_id, topic=topic, partition=partition, value=None)
