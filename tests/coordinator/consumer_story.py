"""Stories of consumer groups: say what members send, let time pass, and exactly what followed.

A `ConsumerStory` does what the broker does with a shard, with a clock that only the story moves,
an image of topics that only the story changes, and regular expressions that are matched when the
story says so. Each step checks what must hold at all times (see `consumer_invariants`).

    story = ConsumerStory(t=4)
    story.join("a", "t").gives(
        "a@2 every 50 [t0 t1 t2 t3]",
        records=["member a t", "epoch 2", "target a t0 t1 t2 t3", "targets 2 +0", ...],
        timers={"a": 45_000, "target": None},
        group="Stable 2/2 a@2[t0 t1 t2 t3]",
    )

`gives` is exact: what is not named must not have happened. Everything is written in small words:
a unit is its topic and partition, `t0`; a member is `id@epoch[units]`, with `!` after the epoch
when it owes a revocation (`-t1`) and `?` when it waits for units of others; timers are named by
the member (its session), "rebalance a", "target" and "refresh", and count from now, None for
cancelled; times in records count from the story's beginning.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from consumer_invariants import (
    check_group,
    check_no_epoch_went_back,
    compacted,
    epochs,
    replayed,
    shard_image,
)

from anabranch.coordinator.cooperative.commands import AbortTransactions
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.coordinator.group import consumer_records as cr
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.coordinator.group.consumer_settings import ConsumerSettings
from anabranch.coordinator.group.consumer_state import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from anabranch.coordinator.group.consumer_target import metadata_hash
from anabranch.coordinator.group.records import GroupWritten, OffsetCommitted
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard, Surroundings
from anabranch.coordinator.group.topic_regex import match_topics
from anabranch.coordinator.runtime.result import Result
from anabranch.coordinator.runtime.timers import Timers
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, Unit

GROUP = "g"
HOST = "/127.0.0.1"
SESSION_MS = 45_000
REBALANCE_MS = 60_000
INTERVAL_MS = 50
START_MS = 1_700_000_000_000


def topic_id(name: str, generation: int = 0) -> bytes:
    return f"{name}/{generation}".encode().ljust(16, b".")


def topic(name: str, partitions: int, generation: int = 0, racks: str = "") -> TopicImage:
    """A topic; `racks` has one word for each partition, with commas between the racks of one."""
    sets = tuple(frozenset(word.split(",")) for word in racks.split())
    return TopicImage(name, topic_id(name, generation), partitions, sets)


def units(text: str, generation: int = 0) -> tuple[Unit, ...]:
    """`t0 t1` in values."""
    return tuple(
        Unit(topic_id(word.rstrip("0123456789"), generation), _number(word))
        for word in text.split()
    )


def _number(word: str) -> int:
    return int(word[len(word.rstrip("0123456789")) :])


def name_of(unit: Unit) -> str:
    """A unit in a word; the marks of a topic that was created again, or of a range, come after."""
    name, _, generation = unit.topic_id.rstrip(b".").decode().partition("/")
    word = f"{name}{unit.partition}" + "'" * int(generation)
    if unit.slots != ALL_SLOTS:
        word += f"[{unit.slots.first}-{unit.slots.end}]"
    return word


def names_of(some: Iterable[Unit]) -> str:
    return " ".join(name_of(unit) for unit in sorted(some))


# In words -----------------------------------------------------------------------------------------

MARKS = {
    MemberState.STABLE: "",
    MemberState.UNREVOKED_PARTITIONS: "!",
    MemberState.UNRELEASED_PARTITIONS: "?",
    MemberState.UNKNOWN: "#",
}


def member_line(member: ConsumerMember) -> str:
    held = " ".join(
        filter(
            None,
            [
                names_of(member.assigned),
                " ".join(f"-{name_of(unit)}" for unit in sorted(member.pending_revocation)),
            ],
        )
    )
    return f"{member.member_id}@{member.member_epoch}{MARKS[member.state]}[{held}]"


def line(group: Any) -> str:
    """A group in one line: state, group epoch / target epoch, members."""
    if group is None:
        return "none"
    if not isinstance(group, ConsumerGroup):
        return f"classic {group.state.value}"
    words = [group.state.value, f"{group.group_epoch}/{group.target_epoch}"]
    words += [member_line(group.members[key]) for key in sorted(group.members)]
    return " ".join(words)


def described(member: ConsumerMember) -> str:
    """What a member says of itself; what `join` always sends goes without saying."""
    words = [",".join(member.subscribed_topic_names) or "-"]
    if member.subscribed_topic_regex is not None:
        words.append(f"/{member.subscribed_topic_regex}/")
    ordinary = {
        "instance_id": None,
        "rack_id": None,
        "client_id": "client",
        "client_host": HOST,
        "rebalance_timeout_ms": REBALANCE_MS,
        "server_assignor": None,
        "classic": None,
    }
    words += [
        f"{name}={getattr(member, name)}"
        for name, value in ordinary.items()
        if getattr(member, name) != value
    ]
    return " ".join(words)


def current(member: ConsumerMember) -> str:
    """Epochs, state and units, each unit with the epoch it was assigned at."""
    words = [f"{member.previous_member_epoch}->{member.member_epoch}{MARKS[member.state]}"]
    words += [f"{name_of(unit)}@{member.assigned[unit]}" for unit in sorted(member.assigned)]
    words += [
        f"-{name_of(unit)}@{member.pending_revocation[unit]}"
        for unit in sorted(member.pending_revocation)
    ]
    return " ".join(words)


def in_words(record: Any) -> str:
    text = _record_in_words(record)
    return text if record.group_id == GROUP else f"{record.group_id}: {text}"


def _record_in_words(record: Any) -> str:
    match record:
        case cr.GroupEpochWritten():
            return f"epoch {record.epoch}"
        case cr.MemberWritten():
            text = "gone" if record.member is None else described(record.member)
            return f"member {record.member_id} {text}"
        case cr.TargetEpochWritten():
            since = record.timestamp_ms - START_MS
            when = f"+{since}" if record.timestamp_ms else "never"
            return f"targets {record.epoch} {when}"
        case cr.TargetWritten():
            text = "gone" if record.target is None else names_of(record.target)
            return f"target {record.member_id} {text}".rstrip()
        case cr.CurrentWritten():
            text = "gone" if record.member is None else current(record.member)
            return f"current {record.member_id} {text}"
        case cr.RegexWritten():
            if record.resolved is None:
                return f"regex {record.regex} gone"
            found = ",".join(sorted(record.resolved.topics)) or "-"
            since = record.resolved.timestamp_ms - START_MS
            return f"regex {record.regex} {found} v{record.resolved.version} +{since}"
        case OffsetCommitted():
            text = "gone" if record.value is None else str(record.value.offset)
            return f"offset {record.topic}{record.partition} {text}"
        case GroupWritten():
            return "classic gone" if record.group is None else "classic"
    raise AssertionError(record)


def answered(answer: Any) -> str | None:
    if not isinstance(answer, cc.ConsumerHeartbeatAnswer):
        return None if answer is None else repr(answer)
    if answer.error is not ErrorCode.NONE:
        return answer.error.name
    words = [f"{answer.member_id}@{answer.member_epoch}"]
    if answer.heartbeat_interval_ms:
        words.append(f"every {answer.heartbeat_interval_ms}")
    if answer.assignment is not None:
        assert list(answer.assignment) == sorted(answer.assignment)
        words.append(f"[{names_of(answer.assignment)}]")
    return " ".join(words)


def timer_name(key: Any) -> str:
    kind, group_id, *rest = key
    name = rest[0] if kind == "session" else " ".join((kind, *rest))
    return name if group_id == GROUP else f"{group_id}/{name}"


def _task_in_words(task: Any) -> str:
    if isinstance(task, AbortTransactions):
        return " ".join(["abort", task.member_id, *(str(one) for one, _ in task.producers)])
    return " ".join(task.regexes)


class Step:
    """What one command, or one timer, has led to."""

    def __init__(self, story: "ConsumerStory", result: Result) -> None:
        self.result = result
        self.answer = result.response
        self.records = [in_words(record) for record in result.records if record.is_durable]
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
        self.tasks = [_task_in_words(task) for task in result.tasks]
        self.group = line(story.shard.group(story.group_id))

    def gives(
        self,
        answer: str | None = None,
        *,
        records: Iterable[str] = (),
        timers: Mapping[str, int | None] | None = None,
        tasks: Iterable[str] = (),
        group: str,
    ) -> "Step":
        """Check that this and nothing else has happened."""
        assert answered(self.answer) == answer
        assert self.records == list(records)
        assert self.timers == (timers or {})
        assert self.tasks == list(tasks)
        assert self.group == group
        return self

    def says(self, answer: str, *records: str) -> "Step":
        """Check the answer and the records; `gives` where timers matter too."""
        assert answered(self.answer) == answer
        assert self.records == list(records)
        return self

    def fails(self, error: ErrorCode, *parts: str) -> None:
        """Check that it was refused, with these words in the message, and that nothing changed."""
        assert self.answer is not None
        assert self.answer.error is error
        assert (self.records, self.timers, self.tasks) == ([], {}, [])
        if isinstance(self.answer, cc.ConsumerHeartbeatAnswer):
            assert self.answer.assignment is None
            for part in parts:
                assert part in self.answer.error_message


# The story ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Client:
    """What a member knows: the last epoch and units it was told."""

    epoch: int = 0
    told: frozenset[Unit] = frozenset()
    owned: frozenset[Unit] = frozenset()
    instance_id: str | None = None


class ConsumerStory:
    """One shard, its clock, and its topics, which are named in the call: `t=4` has 4 partitions."""

    # Off where stories are told many times over for what they say, and not for what always holds.
    checks_invariants = True

    def __init__(
        self,
        *,
        assignors: tuple[str, ...] = ("uniform", "range"),
        checks_replay: bool = True,
        **topics: int,
    ) -> None:
        self.group_id = GROUP
        self.now_ms = START_MS
        self.settings = GroupSettings()
        self.group_settings: dict[str, ConsumerSettings] = {}
        self.surroundings = Surroundings(
            build_registry(assignors),
            lambda group_id: self.group_settings.get(group_id, DEFAULTS),
            lambda: self.shard.consumer_members,
        )
        self.timers = Timers()
        self.tasks: list[cc.ResolveRegexes] = []
        self.records: list[Any] = []
        self.clients: dict[str, Client] = {}
        self.checks_replay = checks_replay
        self._epochs: dict[Any, int] = {}
        self.image = ClusterImage().with_topics(
            {name: topic(name, partitions) for name, partitions in topics.items()}
        )
        self.shard = GroupShard(self.settings, self.surroundings)
        self.shard.replay(cr.ImageChanged(image=self.image))

    def configure(self, **changes: Any) -> None:
        """Settings of the group."""
        known = self.group_settings.get(self.group_id, DEFAULTS)
        self.group_settings[self.group_id] = dataclasses.replace(known, **changes)

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.group(self.group_id)
        assert isinstance(group, ConsumerGroup)
        return group

    @property
    def line(self) -> str:
        return line(self.shard.group(self.group_id))

    def member(self, member_id: str) -> ConsumerMember:
        return self.group.members[member_id]

    # Time and cluster ---------------------------------------------------------------------------

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
        key = self.timers.pop_expired(self.now_ms)
        assert key is not None
        return self.submit(c.TimerFired(key=key))

    def topics(self, **partitions: int | TopicImage | None) -> Step:
        """Topics are created, grow or, with None, go; an image says more than a number."""
        after = dict(self.image.topics)
        for name, value in partitions.items():
            if value is None:
                del after[name]
            else:
                after[name] = topic(name, value) if isinstance(value, int) else value
        self.image = self.image.with_topics(after)
        changed = frozenset(partitions)
        return self.submit(cc.ClusterChanged(image=self.image, changed=changed))

    def resolve(self) -> Step:
        """Match the expressions that were asked for first."""
        task = self.tasks.pop(0)
        return self.submit(
            cc.RegexesResolved(
                group_id=task.group_id,
                topics=match_topics(task.regexes, task.image.topics),
                version=task.image.version,
            )
        )

    def restart(self, image: ClusterImage | None = None) -> Step:
        """kill -9 and start: what is durable is left, and the topics are seen anew."""
        self.records = compacted(r for r in self.records if r.is_durable)
        self.image = image or self.image
        self.shard = replayed(self.records, self.image, self.settings, self.surroundings)
        self.timers = Timers()
        self.tasks = []
        return self.submit(c.Loaded())

    # Commands -----------------------------------------------------------------------------------

    def submit(self, command: Any) -> Step:
        """Decide and carry out, as the broker does, and check what always holds."""
        before = shard_image(self.shard) if self.checks_invariants else None
        result = self.shard.decide(command, self.now_ms)
        if before is not None:
            assert shard_image(self.shard) == before, "decide changed the state"
            assert self.shard.decide(command, self.now_ms) == result, "decide is not repeatable"
        for record in result.records:
            self.records.append(record)
            self.shard.replay(record)
        for change in result.timers:
            self.timers.apply(change)
        self.tasks += result.tasks
        if self.checks_invariants:
            self._check(result)
        return Step(self, result)

    def _check(self, result: Result) -> None:
        for group in self.shard.groups.values():
            if isinstance(group, ConsumerGroup):
                check_group(group)
                self._check_timers(group)
        counted = sum(
            len(group.members)
            for group in self.shard.groups.values()
            if isinstance(group, ConsumerGroup)
        )
        assert self.shard.consumer_members == counted
        now = dict(epochs(self.shard))
        check_no_epoch_went_back(self._epochs, now)
        self._epochs = now
        self._check_hash(result)
        if self.checks_replay:
            self._check_replay()

    def _check_timers(self, group: ConsumerGroup) -> None:
        name = group.group_id
        for member in group.members.values():
            session = self.timers.deadline_ms(("session", name, member.member_id))
            assert session is not None, f"nobody notices when {member.member_id} is silent"
            rebalance = self.timers.deadline_ms(("rebalance", name, member.member_id))
            owes = member.state is MemberState.UNREVOKED_PARTITIONS
            assert (rebalance is not None) == owes
        target = self.timers.deadline_ms(("target", name))
        assert (target is not None) == (group.group_epoch > group.target_epoch)

    def _check_hash(self, result: Result) -> None:
        """An epoch is written with the hash of the topics that the members want by then."""
        for record in result.records:
            if isinstance(record, cr.GroupEpochWritten) and record.epoch is not None:
                group = self.shard.group(record.group_id)
                assert isinstance(group, ConsumerGroup)
                wanted = {t for m in group.members.values() for t in group.topics_of(m)}
                assert record.metadata_hash == metadata_hash(wanted, self.shard.image)
                assert record.cause

    def _check_replay(self) -> None:
        """The durable records give the living shard, all of them or the last of each key."""
        durable = [record for record in self.records if record.is_durable]
        make = (self.shard.image, self.settings, self.surroundings)
        assert shard_image(replayed(durable, *make)) == shard_image(self.shard)
        hard = shard_image(self.shard, soft=False)
        assert shard_image(replayed(compacted(durable), *make), soft=False) == hard

    def send(self, member_id: str, epoch: int, **fields: Any) -> Step:
        """A heartbeat with exactly these fields."""
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": member_id,
            "member_epoch": epoch,
            "client_id": "client",
            "client_host": HOST,
        }
        step = self.submit(cc.ConsumerHeartbeat(**values | fields))
        self._note(step, values | fields)
        return step

    def _note(self, step: Step, fields: Mapping[str, Any]) -> None:
        answer = step.answer
        if answer.error is not ErrorCode.NONE:
            return
        if answer.member_epoch < 0:
            self.clients.pop(answer.member_id, None)
            return
        client = self.clients.setdefault(answer.member_id, Client())
        client.epoch = answer.member_epoch
        client.instance_id = fields.get("instance_id", client.instance_id)
        if answer.assignment is not None:
            client.told = frozenset(answer.assignment)

    def join(
        self, member_id: str, topics: str | None = "t", regex: str | None = None, **fields: Any
    ) -> Step:
        """A first heartbeat, or one that starts over; topics with commas between, "" for none."""
        return self.send(member_id, 0, **self.full(topics, regex, "") | fields)

    @staticmethod
    def full(topics: str | None, regex: str | None = None, owned: str = "") -> dict[str, Any]:
        """The fields of a heartbeat that says everything."""
        names = None if topics is None else tuple(filter(None, topics.split(",")))
        return {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": names,
            "subscribed_topic_regex": regex,
            "owned": units(owned),
        }

    def beat(self, member_id: str, epoch: int, owned: str | None = None, **fields: Any) -> Step:
        """A heartbeat with nothing new, or with the units that the member owns."""
        some = {} if owned is None else {"owned": units(owned)}
        return self.send(member_id, epoch, **some | fields)

    def ack(self, member_id: str) -> Step:
        """A heartbeat of a member that has done what it was told."""
        client = self.clients[member_id]
        client.owned = client.told
        owned = tuple(sorted(client.owned))
        return self.send(member_id, client.epoch, owned=owned, instance_id=client.instance_id)

    def leave(self, member_id: str, instance_id: str | None = None) -> Step:
        return self.send(member_id, -1, instance_id=instance_id)

    def leave_for_a_while(self, member_id: str, instance_id: str | None) -> Step:
        return self.send(member_id, -2, instance_id=instance_id)

    def settle(self, rounds: int = 12) -> int:
        """Everybody does what it is told until nothing is left to do; the rounds it took."""
        for done in range(rounds):
            before = (self.line, {name: client.told for name, client in self.clients.items()})
            self.wait(INTERVAL_MS)
            while self.tasks:
                self.resolve()
                self.wait(0)
            for member_id in sorted(self.clients):
                if member_id in self.group.members:
                    self.ack(member_id)
            if before == (self.line, {name: cl.told for name, cl in self.clients.items()}):
                return done
        raise AssertionError(f"not settled after {rounds} rounds: {self.line}")

    def stable(self, *member_ids: str, topics: str = "t", **fields: Any) -> "ConsumerStory":
        """A settled group of these members."""
        for member_id in member_ids:
            self.join(member_id, topics, **fields)
            self.settle()
            assert self.group.state.value == "Stable"
        return self

    def commit(
        self, unit: str, offset: int, member_id: str = "", epoch: int = -1, **changes: Any
    ) -> Step:
        asked = tuple(
            c.OffsetToCommit(
                topic=word.rstrip("0123456789"),
                topic_id=topic_id(word.rstrip("0123456789")),
                partition=_number(word),
                offset=offset,
                leader_epoch=-1,
                metadata=None,
            )
            for word in unit.split()
        )
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": epoch,
            "retention_ms": -1,
            "knows_group_id_not_found": True,
            "offsets": asked,
        }
        return self.submit(c.CommitOffsets(**values | changes))


DEFAULTS = ConsumerSettings()
