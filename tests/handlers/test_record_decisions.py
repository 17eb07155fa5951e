"""Decisions about records that are not tried again, on the wire."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_group_calls import GROUP
from handler_calls import Call
from individual_commit_calls import (
    RECORDS,
    TOPIC,
    SharedNode,
    Sharer,
    ack,
    individual,
    plain,
)

from anabranch.broker.deferred import Deferred
from anabranch.coordinator.cooperative.commands import Action, Decision, TakeDecisions
from anabranch.coordinator.cooperative.commands import DecisionOutcome as Outcome
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import ALL_SLOTS
from anabranch.wire.messages.cooperation import (
    DecisionOutcome,
    Decisions,
    DecisionsAnswer,
    DivertedKey,
    FailedRecord,
    RecordDecision,
)
from anabranch.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
)
from support.fake_loop import FakeLoop

MakeNode = Callable[..., SharedNode]

OK = ErrorCode.NONE
INVALID = ErrorCode.INVALID_REQUEST
NOT_FOUND = ErrorCode.RESOURCE_NOT_FOUND
RELEASE, SKIP, DLQ = range(3)
KEY = 5


@pytest.fixture
def node(tmp_path: Path, loop: FakeLoop) -> Iterator[SharedNode]:
    found = SharedNode(tmp_path / "data", loop)
    yield found
    found.close()


@pytest.fixture
def member(node: SharedNode) -> Sharer:
    """A member that has everything below 10 done, and wants no more tries of 12 and 14."""
    found = Sharer(node, "a")
    found.ack(10)
    failed = [
        FailedRecord(offset=o, key_hash=KEY, retry_after_ms=-1, reason="no") for o in (12, 14)
    ]
    found.fail(*failed)
    return found


def part(*decisions: RecordDecision, partition: int = 0, **more: Any) -> Any:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=-1,
        decisions=Decisions(decisions=list(decisions), **more),
    )


def decide(node: SharedNode, *decisions: RecordDecision) -> DecisionsAnswer:
    (answered,) = node.commit_parts(part(*decisions))
    assert answered.error_code == OK
    assert answered.individual is None
    assert answered.decisions is not None
    return answered.decisions


def codes(answer: DecisionsAnswer) -> list[int]:
    return [one.error_code for one in answer.outcomes]


def waiting(node: SharedNode) -> list[int]:
    return [one.offset for one in node.known().retried if one.not_before_ms == 2**63 - 1]


@pytest.mark.usefixtures("member")
def test_release_and_skip(node: SharedNode) -> None:
    """Each is answered for itself, while the group has members."""
    answer = decide(
        node,
        RecordDecision(offset=12, action=RELEASE),
        RecordDecision(offset=14, key_hash=KEY, action=SKIP),
        RecordDecision(offset=16, action=SKIP),
    )
    assert codes(answer) == [OK, OK, NOT_FOUND]
    assert answer.outcomes[0] == DecisionOutcome()
    assert "Record 16 does not wait" in (answer.outcomes[2].error_message or "")
    assert answer.stable_offset == 10
    assert node.known().retried == []


def test_the_stable_offset_follows(node: SharedNode, member: Sharer) -> None:
    """Skipped records were all that held it; their owner may not even know that they failed."""
    member.ack(12, (13, 13), (15, RECORDS - 1))
    answer = decide(node, *(RecordDecision(offset=o, action=SKIP) for o in (12, 14)))
    assert answer.stable_offset == RECORDS
    assert node.fetch_offsets(0)[0].committed_offset == RECORDS


@pytest.mark.usefixtures("member")
def test_keys(node: SharedNode) -> None:
    """By their hash: all their records that wait."""
    assert codes(decide(node, RecordDecision(key_hash=KEY + 1, action=SKIP))) == [NOT_FOUND]
    assert codes(decide(node, RecordDecision(key_hash=KEY, action=RELEASE))) == [OK]
    assert node.known().retried == []


@pytest.mark.usefixtures("member")
def test_what_cannot_be_read(node: SharedNode) -> None:
    """An action that there is not, and neither record nor key."""
    answer = decide(
        node, RecordDecision(offset=12, action=9), RecordDecision(), RecordDecision(offset=12)
    )
    assert codes(answer) == [INVALID, INVALID, OK]


@pytest.mark.usefixtures("member")
def test_refusals_of_all(node: SharedNode) -> None:
    """Another version, a partition that is not there, and a commit beside it."""
    both = part(RecordDecision(offset=12))
    both.individual = individual(ack(ALL_SLOTS, -1, 20)).individual
    for asked, code in (
        (part(RecordDecision(offset=12), version=2), ErrorCode.UNSUPPORTED_VERSION),
        (part(RecordDecision(offset=12), partition=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (both, INVALID),
    ):
        (answered,) = node.commit_parts(asked)
        assert (answered.error_code, answered.decisions) == (code, DecisionsAnswer())
    assert waiting(node) == [12, 14]


def test_beside_commits(node: SharedNode, member: Sharer) -> None:
    """Of other partitions, in one request."""
    answered = node.commit_parts(
        part(RecordDecision(offset=12, action=SKIP)),
        plain(5, partition=1),
        member_id="a",
        epoch=member.epoch,
    )
    assert [one.error_code for one in answered] == [OK, OK]
    assert answered[1].decisions is None
    assert waiting(node) == [14]


@pytest.mark.usefixtures("member")
def test_a_coordinator_that_cannot(node: SharedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says so of every decision."""

    def refuse(*args: Any) -> Any:
        raise KafkaError(ErrorCode.NOT_COORDINATOR, "The journal takes no more records.")

    monkeypatch.setattr(node.broker.groups, "submit", refuse)
    answer = decide(node, RecordDecision(offset=12), RecordDecision(offset=14, action=SKIP))
    assert codes(answer) == [ErrorCode.NOT_COORDINATOR] * 2


def test_a_group_that_is_not_known(node: SharedNode) -> None:
    """Has nothing that waits."""
    assert codes(decide(node, RecordDecision(offset=12), RecordDecision(offset=3, action=DLQ))) == [
        NOT_FOUND,
        NOT_FOUND,
    ]


# The dead-letter topic --------------------------------------------------------------------------


class Gravedigger:
    """Stands for the part of the broker that copies records, and does it when a test says so."""

    def __init__(self, node: SharedNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[int, Deferred[Outcome]] = {}
        monkeypatch.setattr(node.broker.groups.dispositions, "bury", self.bury)

    def bury(self, group_id: str, place: Any, offset: int) -> Deferred[Outcome]:
        assert group_id == GROUP
        self.asked[offset] = Deferred()
        return self.asked[offset]


@pytest.fixture
def digger(node: SharedNode, monkeypatch: pytest.MonkeyPatch) -> Gravedigger:
    return Gravedigger(node, monkeypatch)


def ask(node: SharedNode, *decisions: RecordDecision) -> Call:
    """A request that is answered later."""
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[part(*decisions)])
    return node.begin(OffsetCommitRequest(group_id=GROUP, topics=[topic]), 9)


@pytest.mark.usefixtures("member")
def test_dlq_is_answered_when_it_is_done(node: SharedNode, digger: Gravedigger) -> None:
    """In the order of the request, with whatever came of each."""
    answers = ask(
        node,
        RecordDecision(offset=14, action=DLQ),
        RecordDecision(offset=12, action=SKIP),
        RecordDecision(offset=13, action=DLQ),
    )
    assert (answers.is_answered, sorted(digger.asked)) == (False, [14])
    assert waiting(node) == [14]
    digger.asked[14].complete(Outcome(ErrorCode.POLICY_VIOLATION, "full"))
    answer = answers.answer.topics[0].partitions[0].decisions
    assert codes(answer) == [ErrorCode.POLICY_VIOLATION, OK, NOT_FOUND]
    assert answer.outcomes[0].error_message == "full"


@pytest.mark.usefixtures("member")
def test_dlq_of_a_key(node: SharedNode, digger: Gravedigger) -> None:
    """Is done when all its records are, and fails if one does."""
    answers = ask(node, RecordDecision(key_hash=KEY, action=DLQ))
    assert sorted(digger.asked) == [12, 14]
    digger.asked[12].complete(Outcome())
    assert not answers.is_answered
    digger.asked[14].complete(Outcome(ErrorCode.POLICY_VIOLATION, "full"))
    assert codes(answers.answer.topics[0].partitions[0].decisions) == [ErrorCode.POLICY_VIOLATION]


@pytest.mark.usefixtures("member")
def test_diverted_keys_are_told(node: SharedNode) -> None:
    """To whoever asks how far the group is."""
    command = TakeDecisions(
        group_id=GROUP,
        topic=TOPIC,
        topic_id=node.orders.topic_id,
        partition=0,
        log_start_offset=0,
        decisions=(Decision(Action.DLQ, 12, diverts=True),),
    )
    node.broker.groups.submit(GROUP, command)
    assert node.known().diverted == [DivertedKey(key_hash=KEY, offset=12)]
    answer = decide(node, RecordDecision(offset=14, action=RELEASE))
    assert codes(answer) == [INVALID]
    decide(node, RecordDecision(offset=14, action=SKIP))
    answer = decide(node, RecordDecision(key_hash=KEY, action=DLQ))
    assert codes(answer) == [NOT_FOUND]
    answer = decide(node, RecordDecision(key_hash=KEY, action=RELEASE))
    assert codes(answer) == [OK]
    assert (node.known().diverted, node.known().retried) == ([], [])


def test_answers_without_the_tag_have_none(node: SharedNode) -> None:
    """Stock clients see no new bytes."""
    answered: OffsetCommitResponsePartition
    (answered,) = node.commit_parts(plain(3))
    assert answered.decisions is None
