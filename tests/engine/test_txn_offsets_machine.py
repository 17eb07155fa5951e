"""Commits in and outside transactions, ends of transactions, compaction and restarts at random.

The shard decides, its records go to a real log as the broker writes them, and a restart is what the
journal's reader makes of that log. Against it stands a list of everything that was ever committed,
looked through from the beginning: of what counts, the latest counts.
"""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.records import OffsetPending, TransactionEnded
from anabranch.coordinator.group.settings import GroupSettings
from anabranch.coordinator.group.shard import GroupShard
from anabranch.engine.journal.journal import append_pending, append_records, read_records
from anabranch.log.compaction import compact
from anabranch.log.log_config import LogConfig
from anabranch.log.markers import append_marker
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode
from anabranch.wire.control_records import ABORT, COMMIT

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=2**20)
GROUPS = ("g", "h")
PARTITIONS = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
PRODUCERS = st.integers(1, 3)

Key = tuple[str, int]


@dataclass
class Said:
    """One offset that was committed, or deleted (None), at its place in history."""

    key: Key
    offset: int | None
    # None outside transactions.
    producer: int | None = None
    # Whether it counts: always outside transactions; in one, when that is committed.
    counts: bool = True


@dataclass
class Oracle:
    """All that was ever said, in order."""

    history: list[Said] = field(default_factory=list)
    # What each open transaction has said.
    open: dict[int, list[Said]] = field(default_factory=dict)

    def say(self, key: Key, offset: int | None, producer: int | None = None) -> None:
        said = Said(key, offset, producer, counts=producer is None)
        self.history.append(said)
        if producer is not None:
            self.open.setdefault(producer, []).append(said)

    def end(self, producer: int, *, is_commit: bool) -> None:
        for said in self.open.pop(producer, []):
            said.counts = is_commit

    def committed(self) -> dict[Key, int]:
        last = {said.key: said.offset for said in self.history if said.counts}
        return {key: offset for key, offset in last.items() if offset is not None}

    def pending(self) -> dict[tuple[int, Key], int | None]:
        """What the ends of transactions may still change."""
        places = {id(said): number for number, said in enumerate(self.history)}
        decided = {said.key: number for number, said in enumerate(self.history) if said.counts}
        return {
            (producer, said.key): said.offset
            for producer, some in self.open.items()
            for said in some
            if places[id(said)] > decided.get(said.key, -1)
        }

    def groups(self) -> set[str]:
        return {key[0] for key in self.committed()} | {key[0] for _, key in self.pending()}


class TxnOffsetsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.log = self._open()
        self.shard = GroupShard(GroupSettings())
        self.oracle = Oracle()
        self.offsets = 0

    def teardown(self) -> None:
        self.log.close(NOW_MS)
        self.folder.cleanup()

    def _open(self) -> PartitionLog:
        return PartitionLog.open(
            Path(self.folder.name) / "log",
            topic="__consumer_offsets",
            partition=0,
            topic_id=bytes(range(16)),
            config=CONFIG,
            leader_epoch=0,
            clean=True,
            recovery_point=0,
            log_start_offset=0,
            now_ms=NOW_MS,
        )

    # What the broker does -----------------------------------------------------------------------

    def submit(self, command: Any) -> Any:
        result = self.shard.decide(command, NOW_MS)
        if result.records:
            self._write(list(result.records))
        for record in result.records:
            self.shard.replay(record)
        return result.response

    def _write(self, records: list[Any]) -> None:
        first = records[0]
        if isinstance(first, OffsetPending):
            append_pending(self.log, records, NOW_MS)
        elif isinstance(first, TransactionEnded):
            append_marker(
                self.log,
                COMMIT if first.is_commit else ABORT,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                coordinator_epoch=first.coordinator_epoch,
                now_ms=NOW_MS,
            )
        else:
            append_records(self.log, records, NOW_MS)

    def _asked(self, partitions: list[int]) -> tuple[c.OffsetToCommit, ...]:
        self.offsets += 1
        return tuple(
            c.OffsetToCommit(
                topic="t",
                topic_id=bytes(16),
                partition=partition,
                offset=self.offsets,
                leader_epoch=-1,
                metadata=None,
            )
            for partition in partitions
        )

    # What happens -------------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), partitions=PARTITIONS)
    def commit(self, group: str, partitions: list[int]) -> None:
        answer = self.submit(
            c.CommitOffsets(
                group_id=group,
                member_id="",
                group_instance_id=None,
                generation_id=-1,
                retention_ms=-1,
                knows_group_id_not_found=True,
                offsets=self._asked(partitions),
            )
        )
        assert not any(answer.errors)
        for partition in partitions:
            self.oracle.say((group, partition), self.offsets)

    @rule(group=st.sampled_from(GROUPS), partitions=PARTITIONS, producer=PRODUCERS)
    def commit_in_transaction(self, group: str, partitions: list[int], producer: int) -> None:
        answer = self.submit(
            c.CommitTxnOffsets(
                group_id=group,
                member_id="",
                group_instance_id=None,
                generation_id=-1,
                offsets=self._asked(partitions),
                producer_id=producer,
                producer_epoch=0,
            )
        )
        assert not any(answer.errors)
        for partition in partitions:
            self.oracle.say((group, partition), self.offsets, producer)

    @rule(producer=PRODUCERS, is_commit=st.booleans())
    def end(self, producer: int, is_commit: bool) -> None:
        before = self.oracle.committed()
        answer = self.submit(
            c.EndTransaction(
                producer_id=producer, producer_epoch=0, coordinator_epoch=1, is_commit=is_commit
            )
        )
        self.oracle.end(producer, is_commit=is_commit)
        changed = {
            (one.group_id, one.partition): one.value.offset
            for one in answer.applied
            if one.value is not None
        }
        assert before | changed == self.oracle.committed()

    @rule(group=st.sampled_from(GROUPS), partition=st.integers(0, 2))
    def delete_offset(self, group: str, partition: int) -> None:
        answer = self.submit(c.DeleteOffsets(group_id=group, partitions=(("t", partition),)))
        if group not in self.oracle.groups():
            assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
            return
        key = (group, partition)
        if key in self.oracle.committed() or key in {one for _, one in self.oracle.pending()}:
            self.oracle.say(key, None)

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        answer = self.submit(c.DeleteGroup(group_id=group))
        if group not in self.oracle.groups():
            assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
        elif any(key[0] == group for _, key in self.oracle.pending()):
            assert answer.error is ErrorCode.NON_EMPTY_GROUP
        else:
            for key in self.oracle.committed():
                if key[0] == group:
                    self.oracle.say(key, None)

    @rule()
    def compact(self) -> None:
        self.log.roll(NOW_MS)
        compact(self.log, None, NOW_MS)

    @rule()
    def restart(self) -> None:
        self.log.close(NOW_MS)
        self.log = self._open()
        skipped: Counter[int] = Counter()
        self.shard = GroupShard(GroupSettings())
        for record in read_records(self.log, skipped):
            self.shard.replay(record)
        assert not skipped

    # What holds ---------------------------------------------------------------------------------

    @invariant()
    def the_shard_says_what_history_says(self) -> None:
        found = {
            (group, partition): one.offset
            for group in GROUPS
            for (_, partition), one in self.shard.offsets(group).items()
        }
        assert found == self.oracle.committed()
        pending = {
            (producer, (one.group_id, one.partition)): one.value.offset
            for producer in range(1, 4)
            for one in self.shard.pending_offsets.of_producer(producer)
            if one.value is not None
        }
        assert pending == self.oracle.pending()
        unstable = {
            (group, partition)
            for group in GROUPS
            for _, partition in self.shard.pending_offsets.of_group(group)
        }
        assert unstable == {key for _, key in pending}
        assert set(self.shard.group_ids()) == self.oracle.groups()

    @invariant()
    def the_log_knows_what_is_open(self) -> None:
        assert self.log.transactions.open.keys() == self.oracle.open.keys()


TxnOffsetsMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None
)
TestTxnOffsets = TxnOffsetsMachine.TestCase
