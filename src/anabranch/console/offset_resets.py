"""Resets as they are done: committed, read again, and kept for a while so that they can be undone.

What is undone is put back as it was, with its metadata; what had no offset has none again. It is
in memory only: a restart of the broker forgets what could be undone, and never what was done.
"""

import asyncio
import dataclasses
import itertools
import json
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred, awaited
from anabranch.coordinator.group.commands import (
    CommitOffsets,
    CommittedOffset,
    DeleteOffsets,
    OffsetToCommit,
)
from anabranch.model.errors import ErrorCode, KafkaError

# Offsets of one decision of the coordinator.
_BATCH = 1_000
_RESETS_PER_GROUP = 10
_GROUPS_MAX = 100


class ResetRefusedError(Exception):
    """A reset that is not done; the text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One partition's way from one offset to another; None: it has none."""

    topic: str
    partition: int
    before: CommittedOffset | None
    after: CommittedOffset | None
    # Why it was not done; empty when it was.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneReset:
    """A reset that was done, or an undo of one."""

    number: int
    group_id: str
    at_ms: int
    client: str
    steps: tuple[Step, ...]
    # The reset that this one undid.
    undoes: int | None = None


class Resets:
    """The last resets of the groups that had any lately."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._groups: OrderedDict[str, deque[DoneReset]] = OrderedDict()

    def of(self, group_id: str) -> list[DoneReset]:
        """Newest first."""
        return [*reversed(self._groups.get(group_id, ()))]

    def find(self, group_id: str, number: str) -> DoneReset | None:
        return next((one for one in self.of(group_id) if str(one.number) == number), None)

    def keep(
        self, group_id: str, at_ms: int, client: str, steps: Sequence[Step], undoes: int | None
    ) -> DoneReset:
        done = DoneReset(
            number=next(self._numbers),
            group_id=group_id,
            at_ms=at_ms,
            client=client,
            steps=tuple(steps),
            undoes=undoes,
        )
        kept = self._groups.setdefault(group_id, deque(maxlen=_RESETS_PER_GROUP))
        kept.append(done)
        self._groups.move_to_end(group_id)
        if len(self._groups) > _GROUPS_MAX:
            self._groups.popitem(last=False)
        return done


def refusal_of(broker: Broker, group_id: str) -> str:
    """Why offsets of a group cannot be reset now; empty when they can."""
    group = broker.groups.group(group_id)
    if group is None or not group.members:
        return ""
    members = "1 member" if len(group.members) == 1 else f"{len(group.members):,} members"
    return (
        f"Group {group_id} is {group.state.value} with {members}; offsets can only be reset when "
        "it is Empty, or the members would commit theirs over them. Stop the members first; one "
        "that was killed is gone when its session ends. Then come back to this plan."
    )


def plan_text(steps: Sequence[tuple[str, int, int | None, int]]) -> str:
    """Topic, partition, offset before and after of each, as a form carries them."""
    return json.dumps(steps, separators=(",", ":"))


def read_plan(broker: Broker, group_id: str, text: str) -> list[Step]:
    """The steps of a plan that a form brought back.

    ResetRefusedError when it is no plan, or when what it says of the offsets before is not true
    any more: who agreed to it saw other ones.
    """
    offsets = broker.groups.offsets(group_id)
    steps = []
    for topic, partition, before, after in _parse(text):
        found = broker.topics.get(topic)
        if found is None or not found.has_partition(partition):
            raise ResetRefusedError(
                f"There is no {topic}-{partition} any more. Make the plan again."
            )
        committed = offsets.get((topic, partition))
        if committed is not None and committed.offset < 0:
            committed = None
        if before != (committed.offset if committed is not None else None):
            raise ResetRefusedError(
                f"The offset of {topic}-{partition} has changed since the plan was made. Nothing "
                "was reset; look at the plan again."
            )
        steps.append(
            Step(
                topic=topic,
                partition=partition,
                before=committed,
                after=CommittedOffset(offset=after),
            )
        )
    if not steps:
        raise ResetRefusedError("The plan changes nothing, so nothing was reset.")
    return steps


def _parse(text: str) -> list[tuple[str, int, int | None, int]]:
    try:
        rows = json.loads(text)
        plan = [(topic, partition, before, after) for topic, partition, before, after in rows]
    except (ValueError, TypeError):
        raise ResetRefusedError("That is no plan. Load the page again, and make one.") from None
    for topic, partition, before, after in plan:
        is_sound = (
            isinstance(topic, str)
            and type(partition) is int
            and (before is None or type(before) is int)
            and type(after) is int
            and after >= 0
        )
        if not is_sound:
            raise ResetRefusedError("That is no plan. Load the page again, and make one.")
    return plan


def undo_steps(broker: Broker, done: DoneReset) -> list[Step]:
    """The way back: from what is committed now to what was before."""
    offsets = broker.groups.offsets(done.group_id)
    return [
        Step(
            topic=step.topic,
            partition=step.partition,
            before=offsets.get((step.topic, step.partition)),
            after=step.before,
        )
        for step in done.steps
        if not step.error
    ]


async def execute(broker: Broker, group_id: str, steps: Sequence[Step]) -> list[Step]:
    """Do the steps; each comes back with why it was not done, if so."""
    refusal = refusal_of(broker, group_id)
    if refusal:
        raise ResetRefusedError(refusal)
    done: list[Step] = []
    sets = [step for step in steps if step.after is not None]
    for first in range(0, len(sets), _BATCH):
        done += await _commit(broker, group_id, sets[first : first + _BATCH])
        await asyncio.sleep(0)
    deletions = [step for step in steps if step.after is None]
    for first in range(0, len(deletions), _BATCH):
        done += await _delete(broker, group_id, deletions[first : first + _BATCH])
        await asyncio.sleep(0)
    broker.wake_fetches()  # somebody may read the journal
    return done


async def _commit(broker: Broker, group_id: str, steps: list[Step]) -> list[Step]:
    offsets = []
    for step in steps:
        topic = broker.topics.get(step.topic)
        assert step.after is not None
        offsets.append(
            OffsetToCommit(
                topic=step.topic,
                topic_id=topic.topic_id if topic is not None else bytes(16),
                partition=step.partition,
                offset=step.after.offset,
                leader_epoch=step.after.leader_epoch,
                metadata=step.after.metadata,
            )
        )
    command = CommitOffsets(
        group_id=group_id,
        member_id="",
        group_instance_id=None,
        generation_id=-1,
        retention_ms=-1,
        knows_group_id_not_found=True,
        offsets=tuple(offsets),
    )
    return _with_errors(steps, await _submit(broker, group_id, command))


async def _delete(broker: Broker, group_id: str, steps: list[Step]) -> list[Step]:
    command = DeleteOffsets(
        group_id=group_id, partitions=tuple((step.topic, step.partition) for step in steps)
    )
    return _with_errors(steps, await _submit(broker, group_id, command))


async def _submit(broker: Broker, group_id: str, command: Any) -> Any:
    try:
        outcome = broker.groups.submit(group_id, command)
    except KafkaError as error:
        return error
    if not isinstance(outcome, Deferred):
        return outcome
    return await awaited(outcome)


def _with_errors(steps: list[Step], answer: Any) -> list[Step]:
    """The steps with what an answer says of them: one error for all, or one for each."""
    if isinstance(answer, KafkaError):
        return [dataclasses.replace(step, error=answer.message) for step in steps]
    codes = [answer.error] * len(steps) if answer.error else list(answer.errors)
    return [
        step if code == ErrorCode.NONE else dataclasses.replace(step, error=ErrorCode(code).name)
        for step, code in zip(steps, codes, strict=True)
    ]
