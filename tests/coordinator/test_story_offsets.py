"""Stories of committed offsets: who may commit, what is forgotten, and when."""

import dataclasses

import pytest
from story import (
    DELAY_MS,
    GROUP,
    NEW_MEMBER_MS,
    RANGE_AND_STICKY,
    SESSION_MS,
    START_MS,
    STICKY,
    TOPIC,
    Story,
    committed,
    created,
    forgotten,
    forgotten_group,
    left,
    subscription,
    written,
)

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.offsets import committed_offset
from anabranch.model.errors import ErrorCode

OK = c.CommitAnswer(errors=(ErrorCode.NONE,))
RETENTION_MS = 7 * 24 * 3_600_000
STABLE_MS = START_MS + DELAY_MS


# Commit -----------------------------------------------------------------------------------------


def test_a_member_commits_and_is_heard_from():
    """One record, and the session runs anew."""
    story = Story()
    [a] = story.stable("a")

    story.commit(42, a, 1, metadata="note").gives(
        answer=OK,
        durable=[committed(42, at_ms=STABLE_MS, metadata="note")],
        timers={a: SESSION_MS},
        group="Stable 1 range *a-1=A",
    )
    assert story.shard.offsets(GROUP)[TOPIC, 0].offset == 42


def test_during_a_rebalance_a_member_may_still_commit_what_it_has_done():
    """With the generation it is in, rejoined or not."""
    story = Story()
    a, b = story.stable("a", "b")
    story.join("a", a)

    for member_id in (a, b):
        story.commit(1, member_id, 1).gives(
            answer=OK,
            durable=[committed(1, at_ms=story.now_ms)],
            timers={member_id: SESSION_MS},
            group="PreparingRebalance 1 range *a-1?=A b-2=B",
        )


def test_before_the_assignment_nothing_can_be_committed():
    """A member of a generation that owns nothing yet is told to go on with the rebalance."""
    story = Story()
    [a] = story.joined("a")

    story.commit(1, a, 1).fails(
        ErrorCode.REBALANCE_IN_PROGRESS, group="CompletingRebalance 1 range *a-1!"
    )


@pytest.mark.parametrize("generation_id", [-1, 0, 2])
def test_a_commit_of_another_generation_is_refused(generation_id):
    """Also without any, when a member id is given."""
    story = Story()
    [a] = story.stable("a")

    story.commit(1, a, generation_id).fails(ErrorCode.ILLEGAL_GENERATION)


def test_a_group_with_members_takes_commits_of_members_only():
    """Neither strangers nor those without a name can move its offsets."""
    story = Story()
    story.stable("a")
    unknown = ErrorCode.UNKNOWN_MEMBER_ID

    story.commit(1).fails(unknown)
    story.commit(1, "z-9", 1).fails(unknown)
    story.commit(1, "z-9").fails(unknown)
    story.commit(1, group_instance_id="i").fails(unknown)


def test_a_rebalance_that_has_lost_its_members_takes_no_commits_either():
    """Somebody may come any moment."""
    story = Story()
    story.join("a")
    story.leave("a-1")

    story.commit(1).fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_an_empty_group_takes_commits_of_anybody_without_a_generation():
    """An administrator resets offsets; a consumer that assigns itself its partitions commits."""
    story = Story()
    [a] = story.stable("a")
    story.leave(a)

    story.commit(9).gives(answer=OK, durable=[committed(9, at_ms=STABLE_MS)], group="Empty 2 -")
    story.commit(10, "somebody", group_instance_id="i").gives(
        answer=OK, durable=[committed(10, at_ms=STABLE_MS)], group="Empty 2 -"
    )


def test_an_empty_group_takes_no_commit_with_a_generation():
    """It comes from a member that is gone."""
    story = Story()
    [a] = story.stable("a")
    story.leave(a)

    story.commit(9, a, 1).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    story.commit(9, a, 2).fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_commit_makes_a_simple_group():
    """Without members, without a protocol, and without a record of the group."""
    story = Story()

    story.commit(1).gives(answer=OK, durable=[committed(1, at_ms=START_MS)], group="Empty 0 -")


@pytest.mark.parametrize(
    ("knows_group_id_not_found", "error"),
    [(True, ErrorCode.GROUP_ID_NOT_FOUND), (False, ErrorCode.ILLEGAL_GENERATION)],
)
def test_a_member_of_a_group_that_is_not_there_cannot_commit(knows_group_id_not_found, error):
    """The error is one that its version knows."""
    story = Story()

    story.commit(1, "a-1", 1, knows_group_id_not_found=knows_group_id_not_found).fails(
        error, group="none"
    )


def test_the_empty_group_id_can_commit():
    """For clients from before groups, as in Kafka."""
    story = Story(group_id="")

    assert story.commit(1).answer == OK
    assert story.shard.offsets("")[TOPIC, 0].offset == 1


def test_long_metadata_is_refused_for_its_partition_alone():
    """The others are committed; the limit counts characters and is inclusive."""
    story = Story(offset_metadata_max_bytes=4)
    asked = [
        c.OffsetToCommit(
            topic=TOPIC,
            topic_id=b"t" * 16,
            partition=partition,
            offset=7,
            leader_epoch=3,
            metadata=metadata,
        )
        for partition, metadata in enumerate(["12345", "1234", "äöü€", None])
    ]

    too_large, none = ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE
    kept = {"at_ms": START_MS, "leader_epoch": 3, "topic_id": b"t" * 16}
    story.commit(0, offsets=tuple(asked)).gives(
        answer=c.CommitAnswer(errors=(too_large, none, none, none)),
        durable=[
            committed(7, partition=1, metadata="1234", **kept),
            committed(7, partition=2, metadata="äöü€", **kept),
            committed(7, partition=3, **kept),
        ],
        group="Empty 0 -",
    )


def test_a_commit_may_bring_a_retention_of_its_own():
    """Versions 2 to 4; such a record has room for neither leader epoch nor topic id."""
    story = Story()
    asked = c.OffsetToCommit(
        topic=TOPIC, topic_id=b"t" * 16, partition=0, offset=7, leader_epoch=3, metadata=None
    )

    story.commit(0, offsets=(asked,), retention_ms=1_000).gives(
        answer=OK,
        durable=[committed(7, at_ms=START_MS, expire_timestamp_ms=START_MS + 1_000)],
        group="Empty 0 -",
    )


@pytest.mark.parametrize(
    ("retention_ms", "expires_ms"),
    [(0, START_MS), (2**63 - 1, 2**63 - 1), (-1, -1)],
)
def test_retentions_at_the_limits(retention_ms, expires_ms):
    """None, at once, and for ever; a timestamp always fits its record."""
    story = Story()

    story.commit(7, retention_ms=retention_ms)

    assert story.shard.offsets(GROUP)[TOPIC, 0].expire_timestamp_ms == expires_ms


# Fetch ------------------------------------------------------------------------------------------


def test_an_offset_is_found_by_name_and_id():
    """What was committed for a former topic of the name does not count for the present one."""
    old, new, nothing = b"o" * 16, b"n" * 16, bytes(16)
    offset = c.CommittedOffset(offset=1, topic_id=old)
    offsets = {("t", 0): offset, ("t", 1): dataclasses.replace(offset, topic_id=nothing)}

    assert committed_offset(offsets, "t", old, 0) is offset
    assert committed_offset(offsets, "t", nothing, 0) is offset
    assert committed_offset(offsets, "t", new, 0) is None
    assert committed_offset(offsets, "t", new, 1) is offsets["t", 1]
    assert committed_offset(offsets, "t", old, 2) is None


# Delete -----------------------------------------------------------------------------------------


def test_offsets_of_topics_that_are_subscribed_to_are_kept():
    """Each partition has its answer; one that was never committed is deleted all the same."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1)
    story.commit(2, a, 1, topic="old")

    story.delete_offsets((TOPIC, 0), ("old", 0), ("old", 1)).gives(
        answer=c.DeleteOffsetsAnswer(
            errors=(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE)
        ),
        durable=[forgotten("old", 0)],
        group="Stable 1 range *a-1=A",
    )
    assert list(story.shard.offsets(GROUP)) == [(TOPIC, 0)]


def test_an_empty_group_is_subscribed_to_nothing():
    """Whatever it consumed before; with its last offset a simple group is gone."""
    story = Story()
    story.commit(1)
    story.commit(2, partition=1)

    deleted = c.DeleteOffsetsAnswer(errors=(ErrorCode.NONE,))
    story.delete_offsets((TOPIC, 0)).gives(
        answer=deleted, durable=[forgotten(TOPIC, 0)], group="Empty 0 -"
    )
    story.delete_offsets((TOPIC, 1)).gives(
        answer=deleted, durable=[forgotten(TOPIC, 1)], group="none"
    )


@pytest.mark.parametrize("protocols", [STICKY, (("sticky", b""),), (("sticky", b"\xff\xff"),)])
def test_a_subscription_that_cannot_be_read_protects_everything(protocols):
    """Custom assignors may have metadata of their own."""
    story = Story()
    [a] = story.stable("a", protocols=protocols)
    story.commit(1, a, 1)

    story.delete_offsets((TOPIC, 0)).gives(
        answer=c.DeleteOffsetsAnswer(errors=(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)),
        group="Stable 1 sticky *a-1=A",
    )


def test_before_the_first_generation_everything_is_protected():
    """Nobody knows yet which protocol the subscriptions belong to."""
    story = Story()
    story.commit(1)
    story.join("a", protocols=RANGE_AND_STICKY)

    step = story.delete_offsets(("old", 0))

    assert step.answer.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_a_member_without_the_protocol_of_the_generation_protects_everything():
    """It has rejoined with another one, and the next generation has not been chosen yet."""
    story = Story()
    a, _ = story.stable("a", "b", protocols=RANGE_AND_STICKY)
    story.join("a", a, protocols=STICKY)

    step = story.delete_offsets(("old", 0))

    assert step.answer.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_groups_of_other_kinds_have_to_be_empty():
    """What Connect subscribes to is not known here."""
    story = Story()
    [w] = story.stable("w", protocol_type="connect")
    story.commit(1, w, 1)

    story.delete_offsets((TOPIC, 0)).fails(ErrorCode.NON_EMPTY_GROUP)
    story.leave(w)
    assert story.delete_offsets((TOPIC, 0)).durable == [forgotten(TOPIC, 0)]


def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted():
    """And the empty group id is refused."""
    Story().delete_offsets((TOPIC, 0)).fails(ErrorCode.GROUP_ID_NOT_FOUND, group="none")
    Story(group_id="").delete_offsets((TOPIC, 0)).fails(ErrorCode.INVALID_GROUP_ID)


def test_an_empty_group_is_deleted_with_everything_it_committed():
    """Tombstones for each offset and for the group."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1)
    story.commit(2, a, 1, partition=1)
    story.leave(a)

    story.delete_group().gives(
        answer=c.DeleteGroupAnswer(),
        durable=[forgotten(TOPIC, 0), forgotten(TOPIC, 1), forgotten_group()],
        group="none",
    )
    story.delete_group().fails(ErrorCode.GROUP_ID_NOT_FOUND)


def test_a_simple_group_is_deleted_too():
    """Also though it has no record of its own."""
    story = Story()
    story.commit(1)

    story.delete_group().gives(
        answer=c.DeleteGroupAnswer(),
        durable=[forgotten(TOPIC, 0), forgotten_group()],
        group="none",
    )


def test_a_group_with_members_is_not_deleted():
    """In every state; also when they left before the first generation and may come back."""
    story = Story()
    refused = ErrorCode.NON_EMPTY_GROUP
    story.join("a")
    story.delete_group().fails(refused)
    story.wait(DELAY_MS)
    story.delete_group().fails(refused)
    story.sync("a-1", 1)
    story.delete_group().fails(refused)
    story.join("a", "a-1")
    story.delete_group().fails(refused)


def test_a_group_is_deleted_under_those_who_are_about_to_join():
    """They are told that their id is unknown and join anew."""
    story = Story()
    story.join("p", requires_known_member_id=True)
    story.join("q", requires_known_member_id=True)

    story.delete_group().gives(
        answer=c.DeleteGroupAnswer(),
        durable=[forgotten_group()],
        timers={"p-1": None, "q-2": None},
        group="none",
    )
    story.join("p", "p-1").fails(ErrorCode.UNKNOWN_MEMBER_ID, member_id="p-1")
    story.join("p", requires_known_member_id=True).gives(
        answer=c.JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="p-4"),
        durable=[created()],
        timers={"p-4": SESSION_MS},
        group="Empty 0 - (p-4)",
    )


def test_what_was_committed_for_a_topic_goes_with_it():
    """In every group of the shard, members or not."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1)
    story.commit(2, a, 1, topic="other")
    story.commit(3, group_id="h", partition=5)

    story.submit(c.DeleteTopicOffsets(topic=TOPIC)).gives(
        durable=[forgotten(TOPIC, 0), forgotten(TOPIC, 5, group_id="h")],
        group="Stable 1 range *a-1=A",
    )
    assert story.shard.group_ids() == [GROUP]


# Expiry -----------------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_expire_from_when_it_became_empty():
    """Not from the commit; with the last offset the group is forgotten."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1)
    story.live(60_000, a)
    story.leave(a).gives(
        answer=left((a, None, ErrorCode.NONE)),
        durable=[written(2, at_ms=STABLE_MS + 60_000)],
        timers={a: None, "join": None},
        group="Empty 2 -",
    )

    story.wait(RETENTION_MS - 1)
    story.expire().gives(group="Empty 2 -")
    story.wait(1)
    story.expire().gives(durable=[forgotten(TOPIC, 0), forgotten_group()], group="none")


def test_offsets_of_a_group_from_before_it_noted_the_time_expire_from_their_commit():
    """Records of old versions do not say when the group became empty."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1)
    story.wait(SESSION_MS)
    last = story.records[-2]
    story.records.append(
        dataclasses.replace(last, group=dataclasses.replace(last.group, state_timestamp_ms=-1))
    )
    story.restart()

    story.wait(RETENTION_MS - SESSION_MS - 1)
    assert story.expire().durable == []
    story.wait(1)
    assert story.expire().durable == [forgotten(TOPIC, 0), forgotten_group()]


def test_offsets_of_a_simple_group_expire_one_by_one_from_their_commit():
    """The group lives as long as one of them does."""
    story = Story()
    story.commit(1)
    story.wait(1_000)
    story.commit(2, partition=1)

    story.wait(RETENTION_MS - 1_000)
    story.expire().gives(durable=[forgotten(TOPIC, 0)], group="Empty 0 -")
    story.wait(1_000)
    story.expire().gives(durable=[forgotten(TOPIC, 1), forgotten_group()], group="none")


def test_offsets_of_a_group_at_work_expire_only_for_topics_it_left():
    """From their commit; what it is subscribed to never does."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1)
    story.commit(2, a, 1, topic="old")

    story.live(RETENTION_MS // 10_000, a)
    story.now_ms = STABLE_MS + RETENTION_MS - 1
    assert story.expire().durable == []
    story.now_ms += 1
    story.expire().gives(durable=[forgotten("old", 0)], group="Stable 1 range *a-1=A")


@pytest.mark.parametrize("kind", [{"protocol_type": "connect"}, {"protocols": STICKY}])
def test_offsets_of_a_group_whose_topics_are_not_known_do_not_expire(kind):
    """As long as it has members."""
    story = Story()
    [a] = story.stable("a", **kind)
    story.commit(1, a, 1)
    story.commit(2, a, 1, topic="old")

    story.now_ms += 2 * RETENTION_MS

    assert story.expire().durable == []


def test_during_a_rebalance_nothing_expires():
    """What the members will subscribe to is not known."""
    story = Story()
    a, b = story.stable("a", "b")
    story.commit(2, a, 1, topic="old")
    story.join("a", a)

    story.now_ms += 2 * RETENTION_MS
    assert story.expire().durable == []
    story.join("b", b)
    assert story.expire().durable == []


def test_an_offset_with_a_retention_of_its_own_expires_by_it():
    """Later or earlier than the broker's; but never while its topic is protected."""
    story = Story()
    [a] = story.stable("a")
    story.commit(1, a, 1, retention_ms=1_000)
    story.commit(2, a, 1, topic="old", retention_ms=1_000)

    story.wait(999)
    assert story.expire().durable == []
    story.wait(1)
    assert story.expire().durable == [forgotten("old", 0)]


def test_a_group_without_offsets_is_forgotten_when_it_is_empty():
    """Somebody consumed and never committed."""
    story = Story()
    [a] = story.stable("a")
    story.expire().gives(group="Stable 1 range *a-1=A")
    story.leave(a)

    story.expire().gives(durable=[forgotten_group()], group="none")


def test_a_group_is_not_forgotten_under_those_who_are_about_to_join():
    """Its offsets may go, the group stays for them."""
    story = Story()
    story.commit(1)
    story.wait(RETENTION_MS)
    story.join("p", requires_known_member_id=True)

    story.expire().gives(durable=[forgotten(TOPIC, 0)], group="Empty 0 - (p-1)")
    story.join("p", "p-1").gives(
        timers={"p-1": NEW_MEMBER_MS, "join": DELAY_MS},
        group="PreparingRebalance 0 - *p-1+? initial,57000",
    )


def test_offsets_of_other_members_topics_are_kept_too():
    """The subscription of the group is that of all its members."""
    story = Story()
    a, b = "a-1", "b-2"
    story.join("a", protocols=(("range", subscription("x")),))
    story.join("b", protocols=(("range", subscription("y")),))
    story.wait(2 * DELAY_MS)
    story.sync(b, 1)
    story.sync(a, 1)

    step = story.delete_offsets(("x", 0), ("y", 0), ("z", 0))

    subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert step.answer.errors == (subscribed, subscribed, ErrorCode.NONE)
