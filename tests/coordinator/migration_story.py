"""Stories of groups that change their protocol: members of both, in one shard.

A `MigrationStory` is a `ConsumerStory` whose members may speak the classic protocol too. In words:
a classic group is `classic`, its state, generation and protocol, and its members with what they
were assigned, `*` before the leader, `?` after who waits to join and `~` after who waits for its
assignment; a member record of a classic member ends with its protocols.

`ClassicClient` and `ConsumerClient` do what clients do, each step one request at most; what they
have in hand is theirs until they have really let go of it, and no two may ever have the same.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from consumer_invariants import compacted, replayed, shard_image
from consumer_story import (
    HOST,
    REBALANCE_MS,
    ConsumerStory,
    answered,
    in_words,
    line,
    name_of,
    names_of,
    timer_name,
    topic_id,
    units,
)

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.classic_state import (
    ClassicGroup,
    ClassicState,
    without_soft_state,
)
from anabranch.coordinator.group.consumer_protocol import (
    ConsumerProtocolError,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from anabranch.coordinator.group.records import GroupWritten
from anabranch.coordinator.runtime.result import Result
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit

SESSION_MS = 10_000
DELAY_MS = 3_000


# Bytes --------------------------------------------------------------------------------------------


def by_topic(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """`t0 t1 u0` as clients name them."""
    found: dict[str, list[int]] = {}
    for word in text.split():
        name = word.rstrip("0123456789")
        found.setdefault(name, []).append(int(word[len(name) :]))
    return tuple((name, tuple(partitions)) for name, partitions in found.items())


def subscription(topics: str = "t", owned: str = "", version: int = 1, **fields: Any) -> bytes:
    """Topics with commas between, and what the member owns."""
    names = tuple(filter(None, topics.split(",")))
    return encode_subscription(
        Subscription(version=version, topics=names, owned_partitions=by_topic(owned), **fields)
    )


def assigned(text: str = "", version: int = 1, user_data: bytes | None = None) -> bytes:
    return encode_assignment(version, by_topic(text), user_data)


def in_assignment(data: bytes) -> str:
    """`t0 t1` from bytes, with the version after it where it is not 1."""
    if not data:
        return ""
    try:
        assignment = decode_assignment(data)
    except ConsumerProtocolError:
        return "unreadable"
    words = [f"{name}{number}" for name, numbers in assignment.partitions for number in numbers]
    return " ".join(words) + (f" v{assignment.version}" if assignment.version != 1 else "")


# In words -----------------------------------------------------------------------------------------


def classic_line(group: ClassicGroup) -> str:
    words = ["classic", group.state.value, str(group.generation_id), group.protocol_name or "-"]
    for member in group.members.values():
        waits = "?" * (member.join_waiter is not None) + "~" * (member.sync_waiter is not None)
        leads = "*" * (group.leader_id == member.member_id)
        words.append(f"{leads}{member.member_id}{waits}[{in_assignment(member.assignment)}]")
    return " ".join(words)


def record_in_words(record: Any) -> str:
    match record:
        case GroupWritten() if record.group is not None:
            return classic_line(record.group)
        case cr.MemberWritten() if record.member is not None and record.member.classic is not None:
            member = record.member
            spoken = ",".join(name for name, _ in member.classic.protocols)
            plain = member.with_(classic=None, client_id="client")
            words = in_words(dataclasses.replace(record, member=plain))
            return f"{words} ({spoken} {member.classic.session_timeout_ms})"
        case _:
            return in_words(record)


def answer_in_words(answer: Any) -> str | None:
    match answer:
        case c.JoinAnswer() | c.SyncAnswer() if answer.error is not ErrorCode.NONE:
            named = f" {answer.member_id}" if getattr(answer, "member_id", "") else ""
            return answer.error.name + named
        case c.JoinAnswer():
            words = [f"{answer.member_id}@{answer.generation_id}", str(answer.protocol_name)]
            words += [str(answer.protocol_type)] * (answer.protocol_type != "consumer")
            words += [f"led by {answer.leader_id}"] if answer.leader_id else []
            words += [f"of {' '.join(m.member_id for m in answer.members)}"] * bool(answer.members)
            return " ".join(words)
        case c.SyncAnswer():
            assert answer.protocol_type == "consumer"
            return f"{answer.protocol_name} [{in_assignment(answer.assignment)}]"
        case c.HeartbeatAnswer() | c.CommitAnswer():
            return str(answer.error.name)
        case c.LeaveAnswer():
            return " ".join(
                f"{m.member_id or m.group_instance_id}:{m.error.name}" for m in answer.members
            )
        case _:
            return answered(answer)


class Step:
    """What one command, or one timer, has led to."""

    def __init__(self, story: "MigrationStory", result: Result, wakes: dict[str, Any]) -> None:
        self.result = result
        self.answer = result.response
        self.records = [record_in_words(r) for r in result.records if r.is_durable]
        self.causes = [
            r.cause.value if r.cause else ""
            for r in result.records
            if isinstance(r, cr.GroupEpochWritten)
        ]
        self.timers = {
            timer_name(change.key): (
                None if change.deadline_ms is None else change.deadline_ms - story.now_ms
            )
            for change in result.timers
        }
        self.wakes = {who: answer_in_words(answer) for who, answer in wakes.items()}
        self.group = story.line

    def gives(
        self,
        answer: str | None = None,
        *,
        records: Iterable[str] = (),
        timers: Mapping[str, int | None] | None = None,
        wakes: Mapping[str, str] | None = None,
        group: str,
    ) -> "Step":
        """Check that this and nothing else has happened; timers only where they are named."""
        assert answer_in_words(self.answer) == answer
        assert self.records == list(records)
        if timers is not None:
            assert self.timers == dict(timers)
        assert self.wakes == (wakes or {})
        assert self.group == group
        return self

    def says(self, answer: str | None) -> "Step":
        assert answer_in_words(self.answer) == answer
        return self

    def fails(self, error: ErrorCode, *parts: str) -> None:
        """Check that it was refused, with these words in the message, and that nothing changed."""
        assert self.answer is not None, "it was parked"
        assert self.answer.error is error
        assert (self.records, self.timers, self.wakes) == ([], {}, {})
        for part in parts:
            assert part in self.answer.error_message


# The story ----------------------------------------------------------------------------------------


class MigrationStory(ConsumerStory):
    """One shard with members of both protocols; topics are named in the call."""

    def __init__(self, **topics: Any) -> None:
        super().__init__(**topics)
        self.parked: dict[int, str] = {}
        self.answers: dict[str, Any] = {}
        self._numbers = 0

    @property
    def line(self) -> str:
        group = self.shard.group(self.group_id)
        return classic_line(group) if isinstance(group, ClassicGroup) else line(group)

    @property
    def classic(self) -> ClassicGroup:
        group = self.shard.group(self.group_id)
        assert isinstance(group, ClassicGroup)
        return group

    def broker(self, **changes: int) -> None:
        """Settings of the broker."""
        self.settings = dataclasses.replace(self.settings, **changes)
        self.shard.settings = self.settings

    def restart(self, image: Any = None) -> Any:
        self.parked = {}
        return super().restart(image)

    def submit(self, command: Any, label: str = "") -> Any:
        before = shard_image(self.shard)
        result = self.shard.decide(command, self.now_ms)
        assert shard_image(self.shard) == before, "decide changed the state"
        assert self.shard.decide(command, self.now_ms) == result, "decide is not repeatable"
        if result.response is None and isinstance(command, c.JoinGroup | c.SyncGroup):
            self.parked[command.waiter] = label
        for record in result.records:
            self.records.append(record)
            self.shard.replay(record)
        for change in result.timers:
            self.timers.apply(change)
        self.tasks += result.tasks
        wakes = {}
        for wake in result.wakes:
            who = self.parked.pop(wake.waiter)  # a KeyError: answered twice, or never asked
            wakes[who] = self.answers[who] = wake.response
        self._check(result)
        return Step(self, result, wakes)

    # What always holds --------------------------------------------------------------------------

    def _check(self, result: Result) -> None:
        super()._check(result)
        group = self.shard.groups.get(self.group_id)
        waiting = []
        if isinstance(group, ClassicGroup):
            waiting = [
                waiter
                for member in group.members.values()
                for waiter in (member.join_waiter, member.sync_waiter)
                if waiter is not None
            ]
        assert sorted(waiting) == sorted(self.parked), "somebody is never answered"
        self._check_kinds_of_timers()

    def _check_kinds_of_timers(self) -> None:
        """No timer of the protocol that the group does not speak, or of somebody who is gone."""
        group = self.shard.groups.get(self.group_id)
        members = group.members if group is not None else {}
        kinds = {"session", "rebalance", "member-join", "member-sync", "target", "refresh"}
        allowed = set(members)
        if isinstance(group, ClassicGroup):
            kinds = {"session", "join", "sync"}
            allowed |= group.pending_members
        for kind, _, *rest in self.timers._deadlines:
            assert kind in kinds, f"a timer was left: {kind} {rest}"
            assert set(rest) <= allowed, f"a timer was left: {kind} {rest}"

    def _check_hash(self, result: Result) -> None:
        """The records of an upgrade are for the members there were; those after it have causes."""
        upgrades = any(isinstance(r, GroupWritten) and r.group is None for r in result.records)
        written = [
            record
            for record in result.records
            if isinstance(record, cr.GroupEpochWritten) and record.epoch is not None
        ]
        if upgrades and written and not written[0].cause:
            written = written[1:]
        super()._check_hash(Result(records=tuple(written)))

    def _check_replay(self) -> None:
        """The durable records give the living shard, but for what only it can know."""
        group = self.shard.groups.get(self.group_id)
        if not isinstance(group, ClassicGroup):
            super()._check_replay()
            return
        durable = [record for record in self.records if record.is_durable]
        for records in (durable, compacted(durable)):
            shard = replayed(records, self.shard.image, self.settings, self.surroundings)
            kept = shard.groups[self.group_id]
            assert isinstance(kept, ClassicGroup)
            assert kept == without_soft_state(kept)
            if group.state in (ClassicState.STABLE, ClassicState.EMPTY):
                assert kept == without_soft_state(group)
            assert kept.generation_id <= group.generation_id
            assert shard.offsets(self.group_id) == self.shard.offsets(self.group_id)

    # Classic requests ---------------------------------------------------------------------------

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def join_classic(
        self, client: str, member_id: str = "", topics: str = "t", owned: str = "", **changes: Any
    ) -> Step:
        """JoinGroup as version 3 sends it; a new member gets the id `client-1` and so on."""
        number = self._number()
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": client,
            "client_host": HOST,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", subscription(topics, owned)),),
            "requires_known_member_id": False,
            "can_skip_assignment": False,
            "waiter": number,
            "unique": str(number),
        }
        step: Step = self.submit(c.JoinGroup(**values | changes), label=f"join {client}")
        return step

    def sync(
        self,
        member_id: str,
        generation_id: int,
        given: Mapping[str, bytes] | None = None,
        **changes: Any,
    ) -> Step:
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": generation_id,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": tuple((given or {}).items()),
            "waiter": self._number(),
        }
        step: Step = self.submit(c.SyncGroup(**values | changes), label=f"sync {member_id}")
        return step

    def heartbeat(self, member_id: str, generation_id: int, instance: str | None = None) -> Step:
        step: Step = self.submit(
            c.Heartbeat(
                group_id=self.group_id,
                member_id=member_id,
                group_instance_id=instance,
                generation_id=generation_id,
            )
        )
        return step

    def leave_classic(self, *members: str | tuple[str, str | None]) -> Step:
        """Members by id, or by (id, instance id)."""
        pairs = [(member, None) if isinstance(member, str) else member for member in members]
        step: Step = self.submit(
            c.LeaveGroup(
                group_id=self.group_id,
                members=tuple(
                    c.LeavingMember(member_id=member_id, group_instance_id=instance)
                    for member_id, instance in pairs
                ),
            )
        )
        return step

    # Beginnings ---------------------------------------------------------------------------------

    def classic_joined(self, *clients: str, **changes: Any) -> list[str]:
        """A classic group in CompletingRebalance with these members, the first leads; their ids."""
        for client in clients:
            self.join_classic(client, **changes)
        while self.parked:
            self.wait(DELAY_MS)
        return list(self.classic.members)

    def classic_stable(self, given: Mapping[str, str | bytes], **changes: Any) -> list[str]:
        """A Stable classic group: clients with what they are assigned, in words or bytes."""
        ids = self.classic_joined(*given, **changes)
        everybody = {
            member_id: value if isinstance(value, bytes) else assigned(value)
            for member_id, value in zip(ids, given.values(), strict=True)
        }
        generation_id = self.classic.generation_id
        self.sync(ids[0], generation_id, everybody)
        for member_id in ids[1:]:
            self.sync(member_id, generation_id)
        return ids


# Clients ------------------------------------------------------------------------------------------


class TwoOwners(AssertionError):
    pass


@dataclasses.dataclass
class Scene:
    """Clients of one group, and who has what in hand."""

    story: MigrationStory
    clients: dict[str, "ClassicClient | ConsumerClient"] = dataclasses.field(default_factory=dict)

    def add(self, client: "ClassicClient | ConsumerClient") -> None:
        self.clients[client.name] = client

    def check_owners(self) -> None:
        seen: dict[Unit, str] = {}
        for client in self.clients.values():
            for unit in client.held:
                if unit in seen:
                    who = f"{seen[unit]} and {client.name}"
                    raise TwoOwners(f"{name_of(unit)} is with {who}: {self.story.line}")
                seen[unit] = client.name

    def step(self, name: str) -> None:
        self.clients[name].step()
        self.check_owners()

    @property
    def held(self) -> dict[str, str]:
        return {name: names_of(client.held) for name, client in sorted(self.clients.items())}

    def settle(self, rounds: int = 60) -> None:
        """Everybody goes on until all is quiet."""
        quiet = 0
        for _ in range(rounds):
            before = (self.story.line, self.held)
            for name in sorted(self.clients):
                self.step(name)
            for _ in self.story.wait(SESSION_MS // 10):
                self.check_owners()
            quiet = quiet + 1 if before == (self.story.line, self.held) else 0
            if quiet == 5:
                return
        raise AssertionError(f"not settled: {self.story.line} {self.held}")


class ConsumerClient:
    """A client that speaks the consumer protocol."""

    is_classic = False

    def __init__(self, scene: Scene, name: str, instance_id: str | None = None) -> None:
        self.scene, self.name, self.instance_id = scene, name, instance_id
        self.member_id = f"{name}/{scene.story._number()}"
        self.held: set[Unit] = set()
        self.revoking: set[Unit] = set()
        self.epoch = 0
        self.is_new = True

    def step(self) -> None:
        """Let go of what it was told to, and send a heartbeat."""
        self.held -= self.revoking
        self.revoking = set()
        story = self.scene.story
        if self.is_new:
            step = story.join(self.member_id, instance_id=self.instance_id)
        else:
            owned = tuple(sorted(self.held))
            fields = {"instance_id": self.instance_id, "owned": owned}
            step = story.send(self.member_id, self.epoch, **fields)
        answer = step.answer
        if answer.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.held, self.is_new = set(), True
            return
        if answer.error is ErrorCode.UNRELEASED_INSTANCE_ID:
            return  # its former self was killed, and is awaited until its session ends
        assert answer.error is ErrorCode.NONE, answer.error_message
        self.is_new, self.epoch = False, answer.member_epoch
        if answer.assignment is not None:
            self.revoking = self.held - set(answer.assignment)
            self.held |= set(answer.assignment)

    @property
    def can_leave(self) -> bool:
        return not self.is_new

    def leave(self) -> None:
        self.held = set()
        if self.instance_id is None:
            self.scene.story.leave(self.member_id)
        else:
            self.scene.story.leave_for_a_while(self.member_id, self.instance_id)
        del self.scene.clients[self.name]
        self.scene.check_owners()

    def commit(self) -> str:
        story = self.scene.story
        step = story.commit(names_of(self.held), 1, self.member_id, self.epoch)
        return str(step.answer.error.name)


class ClassicClient:
    """A client that speaks the classic protocol, eager or cooperative."""

    is_classic = True

    def __init__(
        self,
        scene: Scene,
        name: str,
        instance_id: str | None = None,
        *,
        is_cooperative: bool = False,
    ) -> None:
        self.scene, self.name, self.instance_id = scene, name, instance_id
        self.is_cooperative = is_cooperative
        # Of its own, so that it is not taken for a former self that was killed while it waited.
        self.client_id = f"{name}{scene.story._number()}"
        self.member_id = ""
        self.generation_id = -1
        self.held: set[Unit] = set()
        self.revoking: set[Unit] = set()
        self.has_to_join = True
        # What it waits for, by the name that the story calls it; None when it waits for nothing.
        self.waits_for: str | None = None

    def step(self) -> None:
        """One request, or a look for the answer to the last one."""
        if self.waits_for is not None:
            if self.waits_for not in self.scene.story.answers:
                if self.waits_for not in self.scene.story.parked.values():
                    self.waits_for, self.has_to_join = None, True  # the broker has restarted
                return
            kind = self.waits_for.split()[0]
            answer = self.scene.story.answers.pop(self.waits_for)
            self.waits_for = None
            self._joined(answer) if kind == "join" else self._synced(answer)
            return
        self.held -= self.revoking
        self.revoking = set()
        if self.has_to_join:
            self._join()
        else:
            self._heartbeat()

    def _join(self) -> None:
        if not self.is_cooperative:
            self.held = set()
        version = 3 if self.is_cooperative else 0
        metadata = subscription(
            owned=names_of(self.held), version=version, generation_id=self.generation_id
        )
        protocol = "cooperative-sticky" if self.is_cooperative else "range"
        label = f"join {self.client_id}"
        step = self.scene.story.join_classic(
            self.client_id,
            self.member_id,
            group_instance_id=self.instance_id,
            protocols=((protocol, metadata),),
            requires_known_member_id=True,
            can_skip_assignment=True,
        )
        if step.answer is not None:
            self._joined(step.answer)
        elif label in step.wakes:
            self._joined(self.scene.story.answers.pop(label))
        else:
            self.waits_for = label

    def _joined(self, answer: c.JoinAnswer) -> None:
        match answer.error:
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            case ErrorCode.REBALANCE_IN_PROGRESS:
                pass
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self._lose("")
            case ErrorCode.NONE:
                self.member_id, self.generation_id = answer.member_id, answer.generation_id
                self._sync(answer)
            case _:
                raise AssertionError(f"{self.name}: {answer.error}")

    def _lose(self, member_id: str) -> None:
        self.held, self.revoking, self.has_to_join = set(), set(), True
        self.member_id, self.generation_id = member_id, -1

    def _sync(self, joined: c.JoinAnswer) -> None:
        leads = joined.leader_id == joined.member_id and not joined.skip_assignment
        given = self._assign(joined) if leads else {}
        step = self.scene.story.sync(
            self.member_id,
            self.generation_id,
            given,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
        )
        if step.answer is None:
            self.waits_for = f"sync {self.member_id}"
        else:
            self._synced(step.answer)

    def _assign(self, joined: c.JoinAnswer) -> dict[str, bytes]:
        """As even as can be, each keeping what it has; what another has is left for the next."""
        topic = self.scene.story.image.topics["t"]
        left = {Unit(topic.topic_id, number) for number in range(topic.partitions)}
        ids = sorted(member.member_id for member in joined.members)
        claims: dict[str, set[Unit]] = {}
        for member in joined.members:
            read = decode_subscription(member.metadata)
            owned = " ".join(f"{name}{n}" for name, ns in read.owned_partitions for n in ns)
            claims[member.member_id] = set(units(owned))
        share: dict[str, set[Unit]] = {}
        for place, member_id in enumerate(ids):
            size = topic.partitions // len(ids) + (place < topic.partitions % len(ids))
            share[member_id] = set(sorted(claims[member_id] & left)[:size])
            left -= share[member_id]
        for place, member_id in enumerate(ids):
            size = topic.partitions // len(ids) + (place < topic.partitions % len(ids))
            more = sorted(left)[: size - len(share[member_id])]
            left -= set(more)
            claimed = {u for other in ids if other != member_id for u in claims[other]}
            share[member_id] |= set(more) - claimed
        return {
            member_id: assigned(names_of(some), version=decode_subscription(m.metadata).version)
            for member_id, some in share.items()
            for m in joined.members
            if m.member_id == member_id
        }

    def _synced(self, answer: c.SyncAnswer) -> None:
        match answer.error:
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.has_to_join = True
            case ErrorCode.ILLEGAL_GENERATION:
                self._lose(self.member_id)
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self._lose("")
            case ErrorCode.NONE:
                got = set()
                if answer.assignment:
                    for name, numbers in decode_assignment(answer.assignment).partitions:
                        got |= {Unit(topic_id(name), number) for number in numbers}
                self.revoking = self.held - got
                self.held |= got
                # A cooperative client comes back at once for what it gave up.
                self.has_to_join = bool(self.revoking)
            case _:
                raise AssertionError(f"{self.name}: {answer.error}")

    def _heartbeat(self) -> None:
        step = self.scene.story.heartbeat(self.member_id, self.generation_id, self.instance_id)
        match step.answer.error:
            case ErrorCode.NONE:
                pass
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.has_to_join = True
            case ErrorCode.ILLEGAL_GENERATION:
                self._lose(self.member_id)
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self._lose("")
            case _:
                raise AssertionError(f"{self.name}: {step.answer.error}")

    @property
    def can_leave(self) -> bool:
        return self.waits_for is None

    def leave(self) -> None:
        """A dynamic member says so; a static one just stops."""
        assert self.waits_for is None
        self.held = set()
        if self.instance_id is None and self.member_id:
            self.scene.story.leave_classic(self.member_id)
        del self.scene.clients[self.name]
        self.scene.check_owners()

    def commit(self) -> str:
        story = self.scene.story
        step = story.commit(names_of(self.held), 1, self.member_id, self.generation_id)
        return str(step.answer.error.name)
