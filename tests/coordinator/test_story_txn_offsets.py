"""Stories of offsets that are committed with a transaction: pending, committed, or forgotten."""

from typing import Any

import pytest
from cooperative_story import GROUP as DESK_GROUP
from cooperative_story import HIGH, LOW, PLACE, TOPIC_ID, Desk, Step, ack
from cooperative_story import TOPIC as DESK_TOPIC
from story import (
    GROUP,
    START_MS,
    TOPIC,
    Story,
    committed,
    forgotten,
    forgotten_group,
)

from anabranch.coordinator.cooperative.records import ProgressForgotten, ProgressWritten
from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.records import OffsetCommitted, OffsetPending, TransactionEnded
from anabranch.coordinator.group.shard import GroupShard
from anabranch.coordinator.group.txn_end import EndTransactionAnswer
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, Unit

OK = c.CommitAnswer(errors=(ErrorCode.NONE,))
RETENTION_MS = 7 * 24 * 3_600_000
STABLE = "Stable 1 range *a-1=A"


def pending(offset: OffsetCommitted, producer_id: int = 7, epoch: int = 0) -> OffsetPending:
    return OffsetPending(producer_id=producer_id, producer_epoch=epoch, offset=offset)


def ended(producer_id: int = 7, *, is_commit: bool = True) -> TransactionEnded:
    return TransactionEnded(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=5, is_commit=is_commit
    )


def applied(*offsets: OffsetCommitted) -> EndTransactionAnswer:
    return EndTransactionAnswer(applied=offsets)


def offset_of(story: Story, partition: int = 0, topic: str = TOPIC) -> int | None:
    found = story.shard.offsets(GROUP).get((topic, partition))
    return None if found is None else found.offset


def unstable(story: Story) -> set[tuple[str, int]]:
    return set(story.shard.pending_offsets.of_group(GROUP))


# Commit and abort -------------------------------------------------------------------------------


def test_an_offset_counts_when_its_transaction_is_committed():
    """Until then it is pending, and what was committed before is what is committed."""
    story = Story()
    story.commit(1)
    first = committed(5, at_ms=START_MS, metadata="note")

    story.commit_in_txn(5, metadata="note").gives(
        answer=OK, durable=[pending(first)], group="Empty 0 -"
    )
    assert (offset_of(story), unstable(story)) == (1, {(TOPIC, 0)})
    story.wait(10)
    story.end_txn().gives(answer=applied(first), durable=[ended()], group="Empty 0 -")
    assert story.shard.offsets(GROUP)[TOPIC, 0] == first.value
    assert unstable(story) == set()


def test_an_abort_leaves_what_was_committed_before():
    """And of a group that has nothing else nothing is left."""
    story = Story()

    story.commit_in_txn(5).gives(
        answer=OK, durable=[pending(committed(5, at_ms=START_MS))], group="Empty 0 -"
    )
    story.end_txn(is_commit=False).gives(
        answer=applied(), durable=[ended(is_commit=False)], group="none"
    )
    assert offset_of(story) is None
    story.commit(1)
    story.commit_in_txn(6)
    story.end_txn(is_commit=False)
    assert (offset_of(story), unstable(story)) == (1, set())


def test_the_last_offset_of_a_transaction_counts():
    """For each partition, whatever the order of the offsets; the next transaction begins anew."""
    story = Story()
    for offset, partition in ((5, 0), (3, 1), (4, 0)):
        story.commit_in_txn(offset, partition=partition)

    assert story.end_txn().answer == applied(
        committed(3, partition=1, at_ms=START_MS), committed(4, at_ms=START_MS)
    )
    assert (offset_of(story), offset_of(story, 1)) == (4, 3)
    story.end_txn().gives(answer=applied(), durable=[ended()], group="Empty 0 -")
    assert offset_of(story) == 4


def test_a_transaction_ends_for_all_groups_of_the_shard_and_for_no_other_producer():
    """A producer may commit for several groups, and a group may be committed for by several."""
    story = Story()
    story.commit_in_txn(5)
    story.commit_in_txn(6, group_id="other")
    story.commit_in_txn(7, producer_id=8, partition=1)

    story.end_txn()

    assert (offset_of(story), offset_of(story, 1)) == (5, None)
    assert story.shard.offsets("other")[TOPIC, 0].offset == 6
    assert unstable(story) == {(TOPIC, 1)}


def test_a_marker_is_written_also_where_nothing_is_pending():
    """After a restart the coordinator asks again for what may have been done."""
    story = Story()

    story.end_txn().gives(answer=applied(), durable=[ended()], group="none")


def test_what_is_pending_survives_a_restart():
    """And so does how a transaction ended."""
    story = Story()
    story.commit_in_txn(5)
    story.commit_in_txn(6, producer_id=8, partition=1)
    story.commit_in_txn(9, producer_id=9, partition=2)
    story.end_txn(8)
    story.end_txn(9, is_commit=False)

    story.restart()

    assert (offset_of(story, 1), offset_of(story, 2), unstable(story)) == (6, None, {(TOPIC, 0)})
    story.end_txn()
    assert offset_of(story) == 5


# Which one is later -----------------------------------------------------------------------------


def test_a_plain_commit_wins_over_what_was_pending_before_it():
    """Whichever way the transaction ends; so it is certain already, and nobody has to wait."""
    for is_commit in (True, False):
        story = Story()
        story.commit_in_txn(5)
        story.commit(3)
        assert unstable(story) == set()
        story.end_txn(is_commit=is_commit).gives(
            answer=applied(), durable=[ended(is_commit=is_commit)], group="Empty 0 -"
        )
        assert offset_of(story) == 3


def test_what_is_pending_after_a_plain_commit_wins():
    """Also where the same producer had something pending before."""
    story = Story()
    story.commit_in_txn(5)
    story.commit(3)
    story.commit_in_txn(6)
    assert unstable(story) == {(TOPIC, 0)}

    story.end_txn()
    assert offset_of(story) == 6


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
def test_of_two_transactions_the_later_commit_wins(order):
    """Whichever ends first."""
    story = Story()
    story.commit_in_txn(5)
    story.commit_in_txn(9, producer_id=8)
    assert unstable(story) == {(TOPIC, 0)}

    for producer_id in order:
        story.end_txn(producer_id)
    assert (offset_of(story), unstable(story)) == (9, set())


def test_an_aborted_transaction_wins_over_nothing():
    """What another one has pending for longer still counts."""
    story = Story()
    story.commit_in_txn(5)
    story.commit_in_txn(9, producer_id=8)

    story.end_txn(8, is_commit=False)
    assert unstable(story) == {(TOPIC, 0)}
    story.end_txn(7)
    assert offset_of(story) == 5


# Deletion and expiry ----------------------------------------------------------------------------


def test_a_group_with_pending_offsets_is_not_deleted():
    """Its transaction would make it again; when that has ended it is."""
    story = Story()
    story.commit(1)
    story.commit_in_txn(5, partition=1)

    story.delete_group().fails(ErrorCode.NON_EMPTY_GROUP, group="Empty 0 -")
    story.end_txn(is_commit=False)
    story.delete_group().gives(
        answer=c.DeleteGroupAnswer(),
        durable=[forgotten(TOPIC, 0), forgotten_group()],
        group="none",
    )


def test_what_is_pending_keeps_its_group_and_the_offset_below_it():
    """However long a transaction takes; other offsets of the group expire."""
    story = Story()
    story.commit(1)
    story.commit(1, partition=1)
    story.commit_in_txn(5)
    story.wait(RETENTION_MS)

    story.expire().gives(durable=[forgotten(TOPIC, 1)], group="Empty 0 -")
    story.end_txn(is_commit=False)
    story.expire().gives(durable=[forgotten(TOPIC, 0), forgotten_group()], group="none")


def test_a_group_that_has_only_pending_offsets_does_not_expire():
    """Nothing of it is written, and nothing forgotten."""
    story = Story()
    story.commit_in_txn(5)
    story.wait(RETENTION_MS)

    story.expire().gives(group="Empty 0 -")


def test_deleting_an_offset_takes_what_is_pending_with_it():
    """The transaction cannot bring it back; other partitions are left alone."""
    story = Story()
    story.commit(1)
    for partition in (0, 1, 2):
        story.commit_in_txn(5, partition=partition)

    none = ErrorCode.NONE
    story.delete_offsets((TOPIC, 0), (TOPIC, 1), (TOPIC, 9)).gives(
        answer=c.DeleteOffsetsAnswer(errors=(none, none, none)),
        durable=[forgotten(TOPIC, 0), forgotten(TOPIC, 1)],
        group="Empty 0 -",
    )
    story.end_txn()
    assert [offset_of(story, partition) for partition in range(3)] == [None, None, 5]


def test_a_topic_that_is_gone_takes_what_is_pending_with_it():
    """In all groups of the shard, each partition once."""
    story = Story()
    story.commit(1)
    story.commit_in_txn(5)
    story.commit_in_txn(5, group_id="other", partition=2)
    story.commit_in_txn(6, topic="payments")

    story.submit(c.DeleteTopicOffsets(topic=TOPIC)).gives(
        durable=[forgotten(TOPIC, 0), forgotten(TOPIC, 2, "other")], group="Empty 0 -"
    )
    story.end_txn()
    assert (offset_of(story), offset_of(story, topic="payments")) == (None, 6)
    assert story.shard.group("other") is None


def test_nothing_is_projected_over_what_is_pending():
    """The group commits for the source itself."""
    story = Story()
    story.commit_in_txn(5)
    projected = [
        c.ProjectedOffset(
            topic=TOPIC,
            topic_id=bytes(16),
            partition=partition,
            offset=3,
            newest_commit_ms=START_MS,
            read_ms=START_MS,
        )
        for partition in (0, 1)
    ]

    story.submit(c.ProjectOffsets(group_id=GROUP, offsets=tuple(projected))).gives(
        durable=[committed(3, partition=1, at_ms=START_MS)], group="Empty 0 -"
    )


# Who may ----------------------------------------------------------------------------------------


def test_a_member_commits_with_its_generation():
    """It is fenced like any commit of its own; being heard from is what heartbeats are for."""
    story = Story()
    [a] = story.stable("a")
    now_ms = story.now_ms

    story.commit_in_txn(5, member_id=a, generation_id=1).gives(
        answer=OK, durable=[pending(committed(5, at_ms=now_ms))], group=STABLE
    )
    story.commit_in_txn(5, member_id=a, generation_id=0).fails(ErrorCode.ILLEGAL_GENERATION)
    story.commit_in_txn(5, member_id=a).fails(ErrorCode.ILLEGAL_GENERATION)
    story.commit_in_txn(5, member_id="b", generation_id=1).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    story.commit_in_txn(5, generation_id=1).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    story.commit_in_txn(5, group_instance_id="i").fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_who_names_nobody_is_believed():
    """Clients from before KIP-447, in whatever state the group is."""
    story = Story()
    story.stable("a")

    assert story.commit_in_txn(5).answer == OK


def test_before_the_assignment_a_transaction_may_commit():
    """What it commits was consumed before."""
    story = Story()
    [a] = story.joined("a")

    assert story.commit_in_txn(5, member_id=a, generation_id=1).answer == OK


def test_a_static_member_that_was_replaced_is_fenced():
    """By its instance id."""
    story = Story()
    [a] = story.stable("a", group_instance_id="i")

    story.commit_in_txn(5, member_id="x", generation_id=1, group_instance_id="i").fails(
        ErrorCode.FENCED_INSTANCE_ID
    )
    who = {"member_id": a, "generation_id": 1, "group_instance_id": "i"}
    assert story.commit_in_txn(5, **who).answer == OK


def test_a_member_of_a_group_that_is_not_there_is_of_another_generation():
    """Without a generation it is somebody who assigns itself its partitions."""
    story = Story()

    story.commit_in_txn(5, member_id="a-1", generation_id=1).fails(
        ErrorCode.ILLEGAL_GENERATION, group="none"
    )
    story.commit_in_txn(5, member_id="a-1", generation_id=1, knows_member_epochs=True).fails(
        ErrorCode.GROUP_ID_NOT_FOUND, group="none"
    )
    assert story.commit_in_txn(5, member_id="a-1").answer == OK
    assert story.commit_in_txn(6, member_id="a-1").answer == OK
    story.commit_in_txn(5, member_id="a-1", generation_id=1).fails(ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_group_needs_a_name():
    """Clients from before groups know no transactions."""
    Story().commit_in_txn(5, group_id="").fails(ErrorCode.INVALID_GROUP_ID, group="none")


def test_long_metadata_is_refused_for_its_offset_alone():
    """The limit is that of any commit, and inclusive."""
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
        for partition, metadata in enumerate(["12345", "1234"])
    ]

    kept = {"metadata": "1234", "leader_epoch": 3, "topic_id": b"t" * 16}
    story.commit_in_txn(0, offsets=tuple(asked)).gives(
        answer=c.CommitAnswer(errors=(ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE)),
        durable=[pending(committed(7, partition=1, at_ms=START_MS, **kept))],
        group="Empty 0 -",
    )


# Consumer groups, and parts of partitions -------------------------------------------------------


class TxnDesk(Desk):
    """Its journal of groups keeps everything: a marker speaks of what was written before it."""

    def __init__(self, **settings: int) -> None:
        self.written: list[Any] = []
        super().__init__(**settings)

    def _write(self, record: Any) -> None:
        if isinstance(record, ProgressWritten | ProgressForgotten):
            super()._write(record)
        else:
            self.written.append(record)

    def read(self) -> GroupShard:
        shard = super().read()
        again = self._new_shard()
        for record in self.written:
            again.replay(record)
        for group_id in shard.groups_with_progress():
            for place, tracked in shard.progress(group_id).items():
                again.replay(
                    ProgressWritten(
                        group_id=group_id,
                        topic_id=place[0],
                        partition=place[1],
                        sequence=tracked.sequence,
                        value=tracked.progress,
                    )
                )
        return again

    def commit_in_txn(
        self, offset: int, member_id: str = "", epoch: int = -1, **changes: Any
    ) -> Step:
        asked = c.OffsetToCommit(
            topic=DESK_TOPIC,
            topic_id=TOPIC_ID,
            partition=0,
            offset=offset,
            leader_epoch=-1,
            metadata=None,
        )
        values: dict[str, Any] = {
            "group_id": DESK_GROUP,
            "member_id": member_id,
            "group_instance_id": None,
            "generation_id": epoch,
            "offsets": (asked,),
            "producer_id": 7,
            "producer_epoch": 0,
        }
        return self.submit(c.CommitTxnOffsets(**values | changes))

    def end_txn(self, *, is_commit: bool = True) -> Step:
        return self.submit(
            c.EndTransaction(
                producer_id=7, producer_epoch=0, coordinator_epoch=5, is_commit=is_commit
            )
        )


def test_a_member_of_a_consumer_group_is_told_of_generations():
    """It commits with its epoch, and the present one counts; an old one is another generation."""
    desk = TxnDesk()
    desk.holds("a", 6, {ALL_SLOTS: 4})

    assert desk.commit_in_txn(5, "a", 6).answer == OK
    assert desk.commit_in_txn(6, "a", 5).answer == OK  # it has held the partition since then
    desk.commit_in_txn(5, "a", 3).fails(ErrorCode.ILLEGAL_GENERATION)
    desk.commit_in_txn(5, "a", 7).fails(ErrorCode.ILLEGAL_GENERATION)
    for epoch in (3, 7):  # whoever knows of epochs is told of them
        step = desk.commit_in_txn(5, "a", epoch, knows_member_epochs=True)
        step.fails(ErrorCode.STALE_MEMBER_EPOCH)
    desk.commit_in_txn(5, "b", 6).fails(ErrorCode.UNKNOWN_MEMBER_ID)
    assert desk.commit_in_txn(7).answer == OK  # nobody in particular
    desk.end_txn()
    assert desk.committed() == 7


def test_the_owner_of_a_part_does_not_commit_for_the_whole():
    """Neither with a transaction; nor does somebody without any part, or nobody in particular."""
    desk = TxnDesk()
    desk.holds("a", 6, {LOW: 6})
    desk.holds("b", 6, {HIGH: 6})
    desk.holds("c", 6, {})

    for who, error in (
        (("a", 6), ErrorCode.INVALID_REQUEST),
        (("c", 6), ErrorCode.ILLEGAL_GENERATION),
        ((), ErrorCode.ILLEGAL_GENERATION),
    ):
        step = desk.commit_in_txn(5, *who)
        assert (step.answer.errors, step.records) == ((error,), [])


def test_what_a_transaction_commits_is_done_by_all_slots():
    """When it is committed, and not before; what is done above stays done."""
    desk = TxnDesk()
    desk.holds("a", 6, {ALL_SLOTS: 6})
    desk.ack("a", 6, ack(ALL_SLOTS, 6, 3, (20, 30)))
    assert desk.committed() == 3
    desk.commit_in_txn(10, "a", 6)
    assert (desk.committed(), desk.progress().stable_offset) == (3, 3)

    step = desk.end_txn()

    assert [type(record) for record in step.records] == [ProgressWritten, TransactionEnded]
    assert (desk.committed(), desk.progress().stable_offset) == (10, 10)
    desk.commit_in_txn(12, "a", 6)
    assert desk.end_txn(is_commit=False).records == [ended(is_commit=False)]
    assert (desk.committed(), desk.progress().stable_offset) == (10, 10)


def test_a_crash_between_the_two_journals():
    """Progress is written and the marker is not: asked for again, it comes out the same."""
    desk = TxnDesk()
    desk.holds("a", 6, {ALL_SLOTS: 6})
    desk.ack("a", 6, ack(ALL_SLOTS, 6, 3))
    desk.commit_in_txn(10, "a", 6)
    command = c.EndTransaction(producer_id=7, producer_epoch=0, coordinator_epoch=5, is_commit=True)
    [progressed, _] = desk.shard.decide(command, desk.now_ms).records
    desk._write(progressed)

    desk.restart()
    desk.ring()
    desk.submit(command)

    assert (desk.committed(), desk.progress().stable_offset) == (10, 10)
    assert not desk.shard.pending_offsets.of_group(DESK_GROUP)


def test_what_was_left_behind_is_forgotten_with_a_committed_offset():
    """Progress that hangs on nothing goes before there is an offset again."""
    desk = TxnDesk()
    desk.holds("a", 6, {ALL_SLOTS: 6})
    desk.ack("a", 6, ack(ALL_SLOTS, 6, 3))
    record = OffsetCommitted(group_id=DESK_GROUP, topic=DESK_TOPIC, partition=0, value=None)
    desk._write(record)
    desk.shard.replay(record)
    desk.restart()
    assert desk.progress() is None
    desk.commit_in_txn(10, "a", 6)

    step = desk.end_txn()

    assert [type(record) for record in step.records] == [ProgressForgotten, TransactionEnded]
    assert (desk.committed(), desk.progress()) == (10, None)


def test_deleting_what_is_only_pending_leaves_progress_elsewhere_alone():
    """There is no committed offset whose topic could be asked for."""
    desk = TxnDesk()
    desk.holds("a", 6, {ALL_SLOTS: 6}, place=(TOPIC_ID, 1))
    desk.ack("a", 6, ack(ALL_SLOTS, 6, 3), partition=1)
    desk.commit_in_txn(10)
    desk.leaves("a")

    step = desk.submit(c.DeleteOffsets(group_id=DESK_GROUP, partitions=((DESK_TOPIC, 0),)))

    assert step.records == [
        OffsetCommitted(group_id=DESK_GROUP, topic=DESK_TOPIC, partition=0, value=None)
    ]
    assert desk.progress((TOPIC_ID, 1)) is not None
    assert Unit(*PLACE, ALL_SLOTS) not in desk.shard.group(DESK_GROUP).owners
