"""Offsets in transactions in a shard's driver: markers, failing journals, and who is told."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from branch_progress_kit import BRANCHED, PROJECTED, SOON_MS, SOURCE, Stage
from group_kit import GROUP, TOPIC, Groups, Waiting, failing_append

from anabranch.coordinator.group import commands as c
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import ABORT, COMMIT, read_marker
from anabranch.wire.record_batch import iter_headers

MakeGroups = Callable[..., Groups]


def commit_in_txn(
    groups: Groups,
    offset: int,
    *partitions: int,
    producer: tuple[int, int] = (7, 0),
    topic: str = TOPIC,
) -> Waiting:
    return groups.submit(
        c.CommitTxnOffsets(
            group_id=GROUP,
            member_id="",
            group_instance_id=None,
            generation_id=-1,
            offsets=tuple(
                c.OffsetToCommit(
                    topic=topic,
                    topic_id=bytes(16),
                    partition=partition,
                    offset=offset,
                    leader_epoch=-1,
                    metadata=None,
                )
                for partition in partitions or (0,)
            ),
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
    )


def end(
    groups: Groups,
    *,
    is_commit: bool = True,
    producer: tuple[int, int] = (7, 0),
    coordinator_epoch: int = 1,
) -> None:
    groups.broker.groups.end_transaction(
        0, *producer, is_commit=is_commit, coordinator_epoch=coordinator_epoch
    )


def unstable(groups: Groups) -> list[tuple[str, int]]:
    return sorted(groups.broker.groups.pending_offsets(GROUP))


def batches(groups: Groups) -> list[tuple[Any, ...]]:
    """Producer id and epoch of each batch of the journal, and what it is."""
    view = groups.log.read(0, 1 << 20)
    found = []
    for position, header in iter_headers(view):
        kind: Any = "transactional" if header.is_transactional else "plain"
        if header.is_control:
            kind = read_marker(view[position : position + header.size_bytes])
        found.append((header.producer_id, header.producer_epoch, kind))
    return found


def test_offsets_and_their_marker_are_what_kafka_writes(groups: Groups) -> None:
    """A transactional batch of all offsets of the request, and a marker with the coordinator."""
    groups.commit(1)
    assert commit_in_txn(groups, 5, 0, 1).error is ErrorCode.NONE
    assert (groups.offset(), unstable(groups)) == (1, [(TOPIC, 0), (TOPIC, 1)])
    end(groups, coordinator_epoch=4)
    assert batches(groups) == [(-1, -1, "plain"), (7, 0, "transactional"), (7, 0, (COMMIT, 4))]
    assert (groups.offset(), unstable(groups)) == (5, [])


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_start_reads_what_markers_say(
    make_groups: MakeGroups, tmp_path: Path, is_commit: bool
) -> None:
    """Before the marker as pending, after it as it ended."""
    groups = make_groups()
    groups.commit(1)
    commit_in_txn(groups, 5)
    crashed = make_groups(folder=groups.copied(tmp_path / "open"))
    assert (crashed.offset(), unstable(crashed)) == (1, [(TOPIC, 0)])
    end(groups, is_commit=is_commit)
    again = make_groups(folder=groups.copied(tmp_path / "ended"))
    assert (again.offset(), unstable(again)) == (5 if is_commit else 1, [])
    end(crashed, is_commit=is_commit)
    assert (crashed.offset(), unstable(crashed)) == (again.offset(), [])


def test_a_marker_that_cannot_be_written_is_asked_for_again(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is read again; what was pending is pending."""
    groups.commit(1)
    commit_in_txn(groups, 5)
    with monkeypatch.context() as broken:
        broken.setattr(groups.log, "append", failing_append)
        with pytest.raises(KafkaError) as failure:
            end(groups)
        assert failure.value.code is ErrorCode.NOT_COORDINATOR
    assert (groups.offset(), unstable(groups)) == (1, [(TOPIC, 0)])
    end(groups)
    assert (groups.offset(), unstable(groups)) == (5, [])


def test_a_marker_that_fails_before_the_loop_runs(
    make_groups: MakeGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start carries out what was decided; timers of groups are armed when the loop runs."""
    groups = make_groups()
    groups.stable("a")
    commit_in_txn(groups, 5)

    def no_loop() -> Any:
        raise RuntimeError("no running event loop")

    with monkeypatch.context() as broken:
        broken.setattr(asyncio, "get_running_loop", no_loop)
        broken.setattr(groups.log, "append", failing_append)
        with pytest.raises(KafkaError):
            end(groups)
    groups.broker.groups.start()
    assert groups.driver._clock.is_armed
    end(groups)
    assert groups.offset() == 5


def test_an_older_epoch_ends_nothing(groups: Groups) -> None:
    """Neither of the producer nor of the coordinator; nothing is written, and nothing fails."""
    commit_in_txn(groups, 5, producer=(7, 3))
    for code, how in (
        (ErrorCode.INVALID_PRODUCER_EPOCH, {"producer": (7, 2)}),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, {"producer": (7, 3), "coordinator_epoch": 1}),
    ):
        with pytest.raises(KafkaError) as refusal:
            end(groups, **how)  # type: ignore[arg-type]
            end(groups, **how)  # type: ignore[arg-type]
        assert refusal.value.code is code
        end(groups, is_commit=False, producer=(7, 3), coordinator_epoch=2)
        commit_in_txn(groups, 6, producer=(7, 3))
    assert unstable(groups) == [(TOPIC, 0)]
    assert groups.driver.refusal is None


def test_an_older_epoch_commits_nothing(groups: Groups) -> None:
    """The journal knows which epoch was the last."""
    commit_in_txn(groups, 5, producer=(7, 3))
    end(groups, producer=(7, 4))
    assert commit_in_txn(groups, 6, producer=(7, 3)).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit_in_txn(groups, 6, producer=(7, 4)).error is ErrorCode.NONE


def test_a_partition_that_the_journal_does_not_have(groups: Groups) -> None:
    """Also before there is any journal."""
    with pytest.raises(KafkaError, match="has no 0"):
        groups.broker.groups.end_transaction(0, 7, 0, is_commit=True, coordinator_epoch=1)


def test_a_shard_that_serves_nothing_ends_nothing(groups: Groups) -> None:
    """The coordinator asks again after the restart."""
    commit_in_txn(groups, 5)
    groups.driver.refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "the journal is damaged")
    with pytest.raises(KafkaError, match="damaged"):
        end(groups)
    assert commit_in_txn(groups, 5).error is ErrorCode.NOT_COORDINATOR
    groups.driver.refusal = None


def test_whether_a_transaction_is_in_the_journal(groups: Groups) -> None:
    """From its first offsets to its marker, in its epoch."""
    known = groups.broker.groups
    assert not known.is_in_transaction(GROUP, 7, 0)
    commit_in_txn(groups, 5)
    assert known.is_in_transaction(GROUP, 7, 0)
    assert not known.is_in_transaction(GROUP, 7, 1)
    assert not known.is_in_transaction(GROUP, 8, 0)
    end(groups, is_commit=False)
    assert not known.is_in_transaction(GROUP, 7, 0)
    assert batches(groups)[-1] == (7, 0, (ABORT, 1))


def test_offsets_of_a_transaction_are_followed_on_branch_topics(groups: Groups) -> None:
    """When they count: a branch topic's progress and the source's offset follow from them."""
    stage = Stage(groups, **PROJECTED)
    stage.start()
    stage.produce(0, 1, 2, 3)
    stage.commit(1, 2, 3, None)
    stage.settle()
    assert stage.committed() is None
    commit_in_txn(groups, 4, 3, topic=BRANCHED)
    stage.settle()
    assert stage.committed() is None
    end(groups)
    stage.pass_ms(SOON_MS)
    stage.settle()
    assert stage.committed() == 4
    assert groups.broker.groups.offsets(GROUP)[SOURCE, 0].offset == 4
