"""Individual commits over OffsetCommit and OffsetFetch: given, refused, and kept."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_calls import GROUP
from individual_commit_calls import (
    HALF,
    HIGH,
    LOW,
    RECORDS,
    SharedNode,
    Sharer,
    ack,
    individual,
    plain,
    settle,
)

from anabranch.coordinator.cooperative.retries import NEVER_MS
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.sub_codes import SubCode
from anabranch.model.units import ALL_SLOTS, SLOT_COUNT, SlotRange, hashes_of
from anabranch.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from anabranch.wire.messages.cooperation import (
    FailedRecord,
    IndividualCommitAnswer,
    IndividualProgress,
    OffsetSet,
    RangeAck,
    RangeOutcome,
    RetriedRecord,
)
from anabranch.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.wire.messages.incremental_alter_configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from anabranch.wire.messages.offset_commit import OffsetCommitResponsePartition
from support.fake_loop import FakeLoop

OK = ErrorCode.NONE
MakeNode = Callable[..., SharedNode]


@pytest.fixture
def make(tmp_path: Path, loop: FakeLoop) -> Iterator[MakeNode]:
    nodes: list[SharedNode] = []

    def start(*overrides: str, folder: Path | None = None) -> SharedNode:
        nodes.append(SharedNode(folder or tmp_path / "data", loop, *overrides))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()


@pytest.fixture
def node(make: MakeNode) -> SharedNode:
    return make()


@pytest.fixture
def pair(node: SharedNode) -> tuple[Sharer, Sharer]:
    """Two members that have half of each partition, or a partition each."""
    one, other = Sharer(node, "a"), Sharer(node, "b")
    settle(one, other)
    return one, other


def outcome(slots: SlotRange, code: int = OK, sub_code: int = 0) -> RangeOutcome:
    first_hash, last_hash = hashes_of(slots)
    return RangeOutcome(
        first_hash=first_hash, last_hash=last_hash, error_code=code, sub_code=sub_code
    )


def only(answered: list[OffsetCommitResponsePartition]) -> OffsetCommitResponsePartition:
    (one,) = answered
    return one


# What members get -----------------------------------------------------------------------------


def test_a_member_commits_and_fetches(node: SharedNode) -> None:
    """Gaps above the stable offset are stored and given back with owner and epoch."""
    member = Sharer(node, "a")
    answered = member.ack(41, (43, 45), (48, 49))
    assert answered.error_code == OK
    assert answered.individual == IndividualCommitAnswer(
        stable_offset=41, outcomes=[outcome(ALL_SLOTS)]
    )
    (fetched,) = node.fetch_offsets(0)
    assert (fetched.committed_offset, fetched.committed_leader_epoch) == (41, 0)
    assert node.ranges() == [(ALL_SLOTS, 41, [(43, 45), (48, 49)], "a", member.epoch)]
    assert node.known().stable_offset == 41


def test_stock_clients_see_no_tag(node: SharedNode) -> None:
    """Neither in answers to plain commits nor to plain fetches, whatever the group has."""
    member = Sharer(node, "a")
    member.ack(41, (43, 45))
    (answered,) = node.commit_parts(plain(42), member_id="a", epoch=member.epoch)
    assert (answered.error_code, answered.individual) == (OK, None)
    (fetched,) = node.fetch_offsets(0, with_individual=False)
    assert (fetched.committed_offset, fetched.individual) == (42, None)
    assert node.ranges() == [(ALL_SLOTS, 42, [(43, 45)], "a", member.epoch)]


def test_members_share_a_partition(node: SharedNode) -> None:
    """Each commits its slots; the stable offset is the lowest."""
    members = [Sharer(node, name) for name in "abcd"]
    settle(*members)
    sharers = [member for member in members if any(p == 0 for p, _ in member.ranges)]
    assert len(sharers) > 1, "nobody shares"
    for number, member in enumerate(sharers):
        answered = member.ack(10 + number, (20, 20))
        assert answered.individual.outcomes == [outcome(member.slots())]
    assert answered.individual.stable_offset == 10
    assert node.ranges() == sorted(
        (m.slots(), 10 + number, [(20, 20)], m.member_id, m.ranges[0, m.slots()])
        for number, m in enumerate(sharers)
    )


def test_what_is_nobodys(node: SharedNode) -> None:
    """Without members ranges have no owner; slots nobody has spoken of have no watermark."""
    (answered,) = node.commit_parts(individual(ack(LOW, -1, 7)))
    assert answered.individual == IndividualCommitAnswer(stable_offset=-1, outcomes=[outcome(LOW)])
    assert node.ranges() == [(LOW, 7, [], None, -1), (HIGH, -1, [], None, -1)]
    (fetched,) = node.fetch_offsets(0)
    assert fetched.committed_offset == -1


def test_a_partition_nobody_has_committed(node: SharedNode) -> None:
    """Its owner is told all the same; the committed offset stands for all slots."""
    member = Sharer(node, "a")
    assert node.ranges() == [(ALL_SLOTS, -1, [], "a", member.epoch)]
    node.commit_parts(plain(5), member_id="a", epoch=member.epoch)
    assert node.ranges() == [(ALL_SLOTS, 5, [], "a", member.epoch)]
    assert node.known().stable_offset == 5


def test_plain_and_individual_in_one_request(node: SharedNode) -> None:
    """Each partition is answered for what it is."""
    member = Sharer(node, "a")
    first, second = node.commit_parts(
        plain(9, partition=1),
        individual(ack(ALL_SLOTS, member.epoch, 4)),
        member_id="a",
        epoch=member.epoch,
    )
    assert (first.partition_index, first.error_code, first.individual) == (1, OK, None)
    assert second.individual == IndividualCommitAnswer(
        stable_offset=4, outcomes=[outcome(ALL_SLOTS)]
    )
    assert [one.committed_offset for one in node.fetch_offsets(0, 1)] == [4, 9]


@pytest.mark.parametrize("version", [9, 10])
def test_by_name_or_by_id(node: SharedNode, version: int) -> None:
    """In every version that knows members' epochs."""
    (answered,) = node.commit_parts(individual(ack(ALL_SLOTS, -1, 4)), version=version)
    assert answered.individual.stable_offset == 4
    (fetched,) = node.fetch_offsets(0, version=version)
    assert fetched.individual.stable_offset == 4
    (everything,) = node.fetch_offsets(version=version, all_topics=True)
    assert (everything.partition_index, everything.individual) == (0, fetched.individual)


def test_fetched_in_version_8(node: SharedNode) -> None:
    """The tag is as old as many groups in one request."""
    node.commit_parts(individual(ack(ALL_SLOTS, -1, 4)))
    (fetched,) = node.fetch_offsets(0, version=8)
    assert fetched.individual.stable_offset == 4


def test_what_the_log_has_no_more(node: SharedNode) -> None:
    """Is shown as done before anybody commits again."""
    node.commit_parts(individual(ack(ALL_SLOTS, -1, 4, (20, 22))))
    node.orders.partitions[0].log.delete_records_before(10)
    assert node.ranges() == [(ALL_SLOTS, 10, [(20, 22)], None, -1)]
    assert node.known().stable_offset == 10


def test_nothing_is_known_of_what_is_not_there(node: SharedNode) -> None:
    """The tag is answered all the same: who does not find it was not understood."""
    (fetched,) = node.fetch_offsets(7)
    assert fetched.individual == IndividualProgress()
    (fetched,) = node.fetch_offsets(0, topic="gone")
    assert fetched.individual == IndividualProgress()
    (fetched,) = node.fetch_offsets(0, topic="gone", version=10)
    assert fetched.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fetched.individual == IndividualProgress()


# What is refused ------------------------------------------------------------------------------


def test_parts_are_refused_for_themselves(node: SharedNode, pair: tuple[Sharer, Sharer]) -> None:
    """What another member has is not taken; what the member has is."""
    one, other = pair
    mine = one.ranges
    assert len(mine) == 1 and len(other.ranges) == 1, "each has a partition"
    (partition, slots), epoch = next(iter(mine.items()))
    assert slots == ALL_SLOTS
    first, second = node.commit_parts(
        individual(ack(ALL_SLOTS, epoch, 4), partition=partition),
        individual(ack(ALL_SLOTS, epoch, 4), partition=1 - partition),
        member_id="a",
        epoch=one.epoch,
    )
    assert (first.error_code, first.individual.outcomes) == (OK, [outcome(ALL_SLOTS)])
    assert second.error_code == OK
    assert second.individual.outcomes == [outcome(ALL_SLOTS, ErrorCode.FENCED_MEMBER_EPOCH)]


def test_beyond_what_was_shown(node: SharedNode) -> None:
    """A member acknowledges what it was shown since it has the range, and nothing else."""
    member = Sharer(node, "a")
    node.append_keys(RECORDS)
    assert member.fetch(max_bytes=100) == RECORDS
    refused = member.ack(RECORDS + 1)
    assert refused.individual.outcomes == [outcome(ALL_SLOTS, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert member.ack(RECORDS).individual.outcomes == [outcome(ALL_SLOTS)]
    member.fetch(RECORDS)
    assert member.ack(2 * RECORDS).individual.outcomes == [outcome(ALL_SLOTS)]
    assert member.ack(2 * RECORDS + 1).individual.outcomes[0].error_code


def test_what_was_shown_is_forgotten_with_the_member(node: SharedNode) -> None:
    """Who leaves and comes back has yet to be shown what it will acknowledge."""
    member = Sharer(node, "a")
    member.fetch()
    assert node.broker.deliveries._shown
    member.leave()
    assert node.broker.deliveries._shown == {}


@pytest.mark.parametrize(
    ("part", "version", "code"),
    [
        (individual(ack()), 8, ErrorCode.UNSUPPORTED_VERSION),
        (individual(ack(), version=2), 9, ErrorCode.UNSUPPORTED_VERSION),
        (individual(ack(), committed_offset=3), 9, ErrorCode.INVALID_REQUEST),
        (individual(ack(), leader_epoch=1), 9, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (individual(RangeAck(last_hash=5)), 9, ErrorCode.INVALID_REQUEST),
        (
            individual(RangeAck(last_hash=2**63 - 1, done=OffsetSet(codec=3))),
            9,
            ErrorCode.INVALID_REQUEST,
        ),
        (individual(failures=[FailedRecord(key_hash=-1)]), 9, ErrorCode.INVALID_REQUEST),
        (individual(ack(), partition=2), 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_bad_requests(node: SharedNode, part: Any, version: int, code: ErrorCode) -> None:
    """Are refused for the partition, the tag is answered, and nothing is stored."""
    (answered,) = node.commit_parts(part, version=version)
    assert answered.error_code == code
    assert answered.individual == IndividualCommitAnswer()
    assert node.broker.groups.progress(GROUP) == {}


def test_a_bad_partition_takes_no_other_with_it(node: SharedNode) -> None:
    """The rest of the request is committed."""
    bad, good = node.commit_parts(
        individual(ack(), committed_offset=3), individual(ack(ALL_SLOTS, -1, 4), partition=1)
    )
    assert (bad.error_code, good.error_code) == (ErrorCode.INVALID_REQUEST, OK)
    assert good.individual.stable_offset == 4


@pytest.mark.parametrize("version", [9, 10])
def test_a_topic_that_is_not_there(node: SharedNode, version: int) -> None:
    """The tag is answered with the error."""
    (answered,) = node.commit_parts(individual(ack()), topic="gone", version=version)
    expected = ErrorCode.UNKNOWN_TOPIC_ID if version == 10 else 3
    assert answered.error_code == expected
    assert answered.individual == IndividualCommitAnswer()


def test_who_is_no_member(node: SharedNode) -> None:
    """One error for every partition, with the tag."""
    member = Sharer(node, "a")
    parts = [individual(ack()), individual(ack(), partition=1)]
    for name, epoch, code in (
        ("b", member.epoch, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", member.epoch + 1, ErrorCode.STALE_MEMBER_EPOCH),
    ):
        answered = node.commit_parts(*parts, member_id=name, epoch=epoch)
        assert [one.error_code for one in answered] == [code, code]
        assert [one.individual for one in answered] == [IndividualCommitAnswer()] * 2


def test_a_coordinator_that_serves_nothing(node: SharedNode) -> None:
    """Plain or individual, commits are sent elsewhere."""
    node.commit_parts(individual(ack(ALL_SLOTS, -1, 4)))
    node.broker.groups.stop()
    for part in (individual(ack()), plain(3)):
        (answered,) = node.commit_parts(part)
        assert answered.error_code == ErrorCode.NOT_COORDINATOR


def test_a_journal_that_cannot_be_written(
    node: SharedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is to be tried again, after a look for the coordinator."""
    node.commit_parts(individual(ack(ALL_SLOTS, -1, 4)))
    journal = node.broker.topics.partition("__individual_commit_offsets", 0)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    monkeypatch.setattr(journal.log, "append", refuse)
    (answered,) = node.commit_parts(individual(ack(ALL_SLOTS, -1, 5)))
    assert answered.error_code == ErrorCode.NOT_COORDINATOR
    assert answered.individual == IndividualCommitAnswer()


@pytest.mark.parametrize("name", ["group.individual.commit.enable", "accept.individual.commit"])
def test_the_brokers_switch(make: MakeNode, name: str) -> None:
    """Turned off, nobody commits record by record."""
    node = make(f"{name}=false")
    (answered,) = node.commit_parts(individual(ack(ALL_SLOTS, -1, 4)))
    assert answered.error_code == ErrorCode.INVALID_REQUEST
    assert answered.individual == IndividualCommitAnswer(
        sub_code=SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED
    )
    assert node.broker.topics.get("__individual_commit_offsets") is None


def test_the_brokers_switch_while_it_runs(node: SharedNode) -> None:
    """It counts from the next request on, also for what was begun."""
    node.commit_parts(individual(ack(ALL_SLOTS, -1, 4)))
    node.broker.set_broker_configs("", {"group.individual.commit.enable": "false"})
    (answered,) = node.commit_parts(individual(ack(ALL_SLOTS, -1, 5)))
    assert answered.individual.sub_code == SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED
    node.broker.set_broker_configs("", {})
    assert only(node.commit_parts(individual(ack(ALL_SLOTS, -1, 5)))).error_code == OK


def test_the_topics_switch(node: SharedNode) -> None:
    """A topic takes individual commits only where it may be shared."""
    (answered,) = node.commit_parts(individual(ack(ALL_SLOTS, -1, 0)), topic="t")
    assert answered.error_code == ErrorCode.INVALID_REQUEST
    assert answered.individual == IndividualCommitAnswer(
        sub_code=SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED
    )


def test_the_topics_switch_when_something_was_begun(node: SharedNode) -> None:
    """What members hold when it is turned can still be committed; nothing new can be begun."""
    node.commit_parts(individual(ack(ALL_SLOTS, -1, 4)))
    node.broker.topics.set_configs(node.orders, {"range.fetch.enable": "false"})
    begun, new = node.commit_parts(
        individual(ack(ALL_SLOTS, -1, 5)), individual(ack(ALL_SLOTS, -1, 5), partition=1)
    )
    assert (begun.error_code, begun.individual.stable_offset) == (OK, 5)
    assert new.individual.sub_code == SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED


def test_limits(make: MakeNode) -> None:
    """They are settings, which can be altered while the broker runs."""
    node = make("coop.max.ranges=1")
    parts = individual(ack(ALL_SLOTS, -1, 4, (6, 6), (8, 8)))
    limited = outcome(
        ALL_SLOTS, ErrorCode.THROTTLING_QUOTA_EXCEEDED, SubCode.MAX_INDIVIDUAL_COMMIT_REACHED
    )
    (answered,) = node.commit_parts(parts)
    assert answered.error_code == OK
    assert answered.individual == IndividualCommitAnswer(stable_offset=4, outcomes=[limited])
    node.broker.set_broker_configs("", {"coop.max.ranges": "2"})
    assert only(node.commit_parts(parts)).individual.outcomes == [outcome(ALL_SLOTS)]
    node.broker.set_broker_configs("", {"coop.max.window.offsets": "10"})
    far = only(node.commit_parts(individual(ack(ALL_SLOTS, -1, -1, (50, 50)))))
    assert far.individual.outcomes == [limited]


# What fails -----------------------------------------------------------------------------------


def test_failures_are_retried(make: MakeNode) -> None:
    """They rest at the broker, the next owner learns of it, and in the end they are exhausted."""
    node = make("coop.delivery.limit=2", "coop.retry.backoff.ms=500")
    member = Sharer(node, "a")
    slot = SlotRange(HALF, HALF + 1)
    failed = FailedRecord(offset=12, key_hash=hashes_of(slot)[0] + 99, reason="no")
    answered = member.fail(failed)
    assert answered.error_code == OK
    assert answered.individual.outcomes == [outcome(slot)]
    node.pass_ms(100)
    assert node.known().retried == [
        RetriedRecord(
            offset=12, key_hash=failed.key_hash, attempts=1, not_before_ms=400, reason="no"
        )
    ]
    node.pass_ms(900)
    assert node.known().retried[0].not_before_ms == 0
    answered = member.fail(failed)
    assert answered.individual.outcomes == [outcome(slot, OK, SubCode.DELIVERY_LIMIT_REACHED)]
    assert node.known().retried == [
        RetriedRecord(
            offset=12, key_hash=failed.key_hash, attempts=2, not_before_ms=NEVER_MS, reason="no"
        )
    ]
    assert node.known().stable_offset == -1
    member.ack(13)
    assert node.known().retried == []


def test_limits_of_failures(make: MakeNode) -> None:
    """A member may ask for a longer rest, but not for any."""
    node = make("coop.retry.backoff.max.ms=2000")
    member = Sharer(node, "a")
    member.fail(
        FailedRecord(offset=1, retry_after_ms=1500), FailedRecord(offset=2, retry_after_ms=9999)
    )
    assert [one.not_before_ms for one in node.known().retried] == [1500, 2000]


def test_outcomes_of_acks_come_before_those_of_failures(node: SharedNode) -> None:
    """In the order of the request; a failure is answered for the slot of its key."""
    member = Sharer(node, "a")
    part = individual(
        ack(LOW, member.epoch, 4),
        ack(HIGH, member.epoch, 5),
        failures=[FailedRecord(offset=9), FailedRecord(offset=99, key_hash=2**63 - 1)],
    )
    (answered,) = node.commit_parts(part, member_id="a", epoch=member.epoch)
    assert answered.individual.outcomes == [
        outcome(LOW),
        outcome(HIGH),
        outcome(SlotRange(0, 1)),
        outcome(SlotRange(SLOT_COUNT - 1, SLOT_COUNT), ErrorCode.OFFSET_OUT_OF_RANGE),
    ]


# What stays -----------------------------------------------------------------------------------


def crashed(node: SharedNode, folder: Path) -> Path:
    """What a kill -9 would leave of the broker's folder."""
    shutil.copytree(node.broker.engine.directories[0].path, folder)
    return folder


def test_kill_and_start(make: MakeNode, tmp_path: Path) -> None:
    """Gaps, failures, owners and the stable offset are there again; members go on."""
    node = make()
    member = Sharer(node, "a")
    member.ack(4, (6, 6), (8, 9))
    member.fail(FailedRecord(offset=5, retry_after_ms=60_000))
    before, ranges = node.known(), node.ranges()
    again = make(folder=crashed(node, tmp_path / "crashed"))
    again.now_ms = node.now_ms
    assert (again.known(), again.ranges()) == (before, ranges)
    (answered,) = again.commit_parts(
        individual(ack(ALL_SLOTS, member.epoch, 6)), member_id="a", epoch=member.epoch
    )
    assert answered.individual.stable_offset == 7
    twice = make(folder=crashed(again, tmp_path / "twice"))
    assert twice.ranges() == [(ALL_SLOTS, 7, [(8, 9)], "a", member.epoch)]


def test_what_was_shown_before_a_start_is_not_known(make: MakeNode, tmp_path: Path) -> None:
    """Who was shown records by the process before may acknowledge them."""
    node = make()
    member = Sharer(node, "a")
    member.fetch()
    again = make(folder=crashed(node, tmp_path / "crashed"))
    survivor = object.__new__(Sharer)
    survivor.__dict__ = {**member.__dict__, "node": again}
    again.append_keys(RECORDS)
    survivor.fetch(0, max_bytes=100)
    assert survivor.ack(RECORDS + 5).individual.outcomes == [outcome(ALL_SLOTS)]


def test_the_journal_is_lost(make: MakeNode, tmp_path: Path) -> None:
    """The group goes on from its committed offset, and its journal is made anew."""
    node = make()
    node.commit_parts(individual(ack(ALL_SLOTS, -1, 4, (6, 6))))
    folder = crashed(node, tmp_path / "crashed")
    shutil.rmtree(folder / "__individual_commit_offsets-0")
    again = make(folder=folder)
    assert again.ranges() == [(ALL_SLOTS, 4, [], None, -1)]
    (answered,) = again.commit_parts(individual(ack(ALL_SLOTS, -1, -1, (4, 5))))
    assert answered.individual.stable_offset == 6
    assert make(folder=crashed(again, tmp_path / "twice")).known().stable_offset == 6


def test_records_of_a_leader_epoch_that_ended(make: MakeNode, tmp_path: Path) -> None:
    """After a start the epoch is another one: what was read before is not what lies beyond."""
    node = make()
    again = make(folder=crashed(node, tmp_path / "crashed"))
    again.append_keys(RECORDS)
    epoch = again.orders.partitions[0].log.leader_epoch
    assert epoch > 0
    (answered,) = again.commit_parts(individual(ack(ALL_SLOTS, -1, 61), leader_epoch=0))
    assert answered.individual.outcomes == [outcome(ALL_SLOTS, ErrorCode.FENCED_LEADER_EPOCH)]
    (answered,) = again.commit_parts(individual(ack(ALL_SLOTS, -1, 60), leader_epoch=0))
    assert answered.individual.stable_offset == 60
    (answered,) = again.commit_parts(individual(ack(ALL_SLOTS, -1, 61), leader_epoch=epoch))
    assert answered.individual.stable_offset == 61


# The setting's other name -----------------------------------------------------------------------


def test_a_topic_is_created_with_kip_xs_name(node: SharedNode) -> None:
    """`accept.range.fetch` is kept under the name that is ours."""
    wanted = CreatableTopic(
        name="shared",
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="accept.range.fetch", value="true")],
    )
    (made,) = node.call(CreateTopicsRequest(topics=[wanted], timeout_ms=1000)).topics
    assert made.error_code == OK
    assert node.broker.topics.get("shared").configs == {"range.fetch.enable": "true"}


def test_a_topic_is_altered_with_kip_xs_name(node: SharedNode) -> None:
    """All at once, or one by one; the same setting under both names is named twice."""
    alterable = AlterConfigsResource(
        resource_type=2,
        resource_name="t",
        configs=[AlterableConfig(name="accept.range.fetch", value="true")],
    )
    (done,) = node.call(AlterConfigsRequest(resources=[alterable])).responses
    assert done.error_code == OK
    topic = node.broker.topics.get("t")
    assert topic.configs == {"range.fetch.enable": "true"}

    def alter(*names: str, operation: int = 0) -> int:
        resource = IncrementalAlterConfigsResource(
            resource_type=2,
            resource_name="t",
            configs=[
                IncrementalAlterableConfig(name=name, config_operation=operation, value="false")
                for name in names
            ],
        )
        (answer,) = node.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
        code: int = answer.error_code
        return code

    assert alter("accept.range.fetch", "range.fetch.enable") == ErrorCode.INVALID_REQUEST
    assert alter("accept.range.fetch") == OK
    assert topic.configs == {"range.fetch.enable": "false"}
    assert alter("accept.range.fetch", operation=1) == OK
    assert topic.configs == {}
