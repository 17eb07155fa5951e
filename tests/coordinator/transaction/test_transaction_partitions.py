"""AddPartitionsToTxn and AddOffsetsToTxn: the begin of a transaction, and what belongs to it."""

import pytest
from transaction_story import (
    NOBODY,
    OFFSETS,
    TIMEOUT_MS,
    V2,
    X0,
    X1,
    X2,
    EndAnswer,
    P,
    Story,
)

from anabranch.coordinator.transaction.commands import PartitionsAnswer
from anabranch.model.errors import ErrorCode

OK = PartitionsAnswer()


def test_the_first_partition_begins_a_transaction():
    """And its time begins to run."""
    story = Story()
    story.init()

    story.add(P, 0, X0, X1).gives(
        answer=OK,
        records=[f"Ongoing {P}/0 60000 v0 +20 +20 x-0 x-1"],
        timers={"timeout": TIMEOUT_MS},
    )


def test_further_partitions_do_not_begin_it_anew():
    """Its time goes on; of what it is told, only what is new is written."""
    story = Story()
    story.init()
    story.add(P, 0, X0)

    story.add(P, 0, X0, X2).gives(answer=OK, records=[f"Ongoing {P}/0 60000 v0 +20 +30 x-0 x-2"])
    story.add(P, 0, X2, X0).gives(answer=OK)


def test_the_client_s_version_is_kept():
    """The broker adds for clients of transaction version 2."""
    story = Story()
    story.init()

    assert story.add(P, 0, X0, transaction_version=V2).records == [
        f"Ongoing {P}/0 60000 v2 +20 +20 x-0"
    ]


def test_a_transaction_may_begin_without_partitions():
    """As in Kafka; it ends without markers."""
    story = Story()
    story.init()

    story.add(P, 0).gives(
        answer=OK, records=[f"Ongoing {P}/0 60000 v0 +20 +20"], timers={"timeout": TIMEOUT_MS}
    )
    story.add(P, 0).gives(answer=OK)
    story.end(P, 0, commit=True).gives(
        answer=EndAnswer(),
        records=[
            f"PrepareCommit {P}/0 60000 v0 +20 +40",
            f"CompleteCommit {P}/0 60000 v0 +20 +40",
        ],
        timers={"timeout": None},
    )


def test_offsets_begin_a_transaction_too():
    """With the partition that the group's offsets are in."""
    story = Story()
    story.init()

    story.offsets(P, 0).gives(
        answer=OK,
        records=[f"Ongoing {P}/0 60000 v0 +20 +20 {OFFSETS[0]}-3"],
        timers={"timeout": TIMEOUT_MS},
    )
    story.offsets(P, 0).gives(answer=OK)


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_transaction_begins_after_the_last(commit):
    """It has its own time and its own partitions, and nobody asks for the last one any more."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=commit)
    story.markers()

    story.add(P, 1, X2, transaction_version=V2).gives(
        answer=OK,
        records=[f"Ongoing {P}/1 60000 v2 +50 +50 x-2"],
        timers={"timeout": TIMEOUT_MS},
    )


def test_nothing_is_added_while_markers_are_written():
    """Whoever asks: a producer that waits for its new epoch may show the old one."""
    story = Story()
    story.begun()
    story.end2(P, 0, commit=True)

    for producer_id, epoch in ((P, 0), (P, 1), (NOBODY, 0)):
        story.add(producer_id, epoch, X2).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
        story.offsets(producer_id, epoch).fails(ErrorCode.CONCURRENT_TRANSACTIONS)


def test_only_the_producer_adds():
    """Others have another producer id or an epoch of the past, or of the future."""
    story = Story()
    story.init()
    story.init()

    for act in (story.add, story.offsets):
        act(NOBODY, 1).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        act(P, 0).fails(ErrorCode.PRODUCER_FENCED)
        act(P, 2).fails(ErrorCode.PRODUCER_FENCED)
        act(P, 0, knows_producer_fenced=False).fails(ErrorCode.INVALID_PRODUCER_EPOCH)
        act(NOBODY, 1, knows_producer_fenced=False).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_an_id_that_is_not_known_has_no_producer():
    """And an empty one is none."""
    story = Story()

    for act in (story.add, story.offsets, story.verify):
        act(P, 0).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        act(P, 0, transactional_id="").fails(ErrorCode.INVALID_REQUEST)


def test_partitions_are_verified():
    """One that is missing can be aborted, no more; nothing is added."""
    story = Story()
    story.begun()

    story.verify(P, 0, X0, X2, X1).gives(
        answer=PartitionsAnswer(
            errors=(ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NONE)
        )
    )


def test_nothing_is_in_a_transaction_that_has_not_begun():
    """Or that has ended."""
    story = Story()
    story.init()
    missing = PartitionsAnswer(errors=(ErrorCode.TRANSACTION_ABORTABLE,))

    story.verify(P, 0, X0).gives(answer=missing)
    story.add(P, 0, X0)
    story.end(P, 0, commit=True)
    story.markers()
    story.verify(P, 0, X0).gives(answer=missing)


def test_only_the_producer_verifies():
    """While markers are written the partitions are on their way out."""
    story = Story()
    story.begun()

    story.verify(NOBODY, 0, X0).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    story.verify(P, 1, X0).fails(ErrorCode.PRODUCER_FENCED)
    story.end2(P, 0, commit=True)
    story.verify(P, 1, X0).fails(ErrorCode.CONCURRENT_TRANSACTIONS)
    story.verify(P, 0, X0).fails(ErrorCode.PRODUCER_FENCED)
    story.verify(NOBODY, 0, X0).fails(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
