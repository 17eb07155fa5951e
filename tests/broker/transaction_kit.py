"""A broker with transactions and without sockets: commands go to the coordinator, time by hand."""

import shutil
from pathlib import Path
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.broker.transaction_driver import TransactionDriver
from anabranch.config.load import load_settings
from anabranch.coordinator.group.commands import CommitTxnOffsets, OffsetToCommit
from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.state import TopicPartition, Transaction, TransactionVersion
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.control_records import read_marker
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch, iter_headers
from support.fake_loop import FakeLoop

NOW_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
ID = "tx"
GROUP = "g"
TOPIC = "t"
JOURNAL = "__transaction_state"
TV_0, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_2

Producer = tuple[int, int]


class Transactions:
    """A broker whose journals have one partition, with a topic of two."""

    def __init__(self, folder: Path, loop: FakeLoop, *overrides: str, now_ms: int = NOW_MS) -> None:
        self.folder = folder
        self.loop = loop
        self.now_ms = now_ms
        self.steady_ms = now_ms
        ones = ("transaction.state.log.num.partitions=1", "offsets.topic.num.partitions=1")
        settings = load_settings(environ={}, overrides=[f"log.dirs={folder}", *ones, *overrides])
        self.broker = Broker(
            settings, now_ms=lambda: int(self.now_ms), steady_ms=lambda: int(self.steady_ms)
        )
        self.is_open = True
        loop.on_time = self._on_time
        self.broker.transactions.start()
        if self.broker.topics.get(TOPIC) is None:
            self.broker.create_topic(TOPIC, 2)

    def _on_time(self, step_ms: float) -> None:
        self.now_ms += round(step_ms)
        self.steady_ms += round(step_ms)

    def pass_ms(self, delay_ms: float) -> None:
        self.loop.pass_ms(delay_ms)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.broker.transactions.stop()
            self.broker.groups.stop()
            self.broker.close()

    def copied(self, folder: Path) -> Path:
        """The folder as a crash of the process would leave it now."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*-delete"))
        return folder

    # What there is ------------------------------------------------------------------------------

    @property
    def driver(self) -> TransactionDriver:
        return self.broker.transactions.driver(ID)

    @property
    def transaction(self) -> Transaction:
        found = self.driver.shard.transaction(ID)
        assert found is not None
        return found

    @property
    def state(self) -> str:
        return self.transaction.state.value

    def log(self, partition: int = 0, topic: str = TOPIC) -> PartitionLog:
        return self.broker.topics.partition(topic, partition).log

    def markers(self, partition: int = 0, topic: str = TOPIC) -> list[tuple[int, int, int]]:
        """The type (0 abort, 1 commit), producer id and epoch of each marker in a partition."""
        view = self.log(partition, topic).read(0, 1 << 24)
        return [
            (
                read_marker(view[position : position + header.size_bytes])[0],
                header.producer_id,
                header.producer_epoch,
            )
            for position, header in iter_headers(view)
            if header.is_control
        ]

    # What is done -------------------------------------------------------------------------------

    def submit(self, command: Any) -> Any:
        return self.broker.transactions.submit(ID, command)

    def init(self, producer: Producer = (-1, -1)) -> Producer:
        """Start a producer, or go on with one; its producer id and epoch."""
        answer = self.submit(
            c.InitProducerId(
                transactional_id=ID,
                timeout_ms=TIMEOUT_MS,
                producer_id=producer[0],
                producer_epoch=producer[1],
            )
        )
        assert answer.error is ErrorCode.NONE, answer
        return answer.producer_id, answer.producer_epoch

    def begin(
        self, producer: Producer, *partitions: int, version: TransactionVersion = TV_2
    ) -> None:
        """Add partitions of the topic to the transaction, and write a record to each."""
        places: tuple[TopicPartition, ...] = tuple((TOPIC, number) for number in partitions)
        answer = self.submit(
            c.AddPartitionsToTxn(
                transactional_id=ID,
                producer_id=producer[0],
                producer_epoch=producer[1],
                partitions=places,
                transaction_version=version,
            )
        )
        assert answer.error is ErrorCode.NONE, answer
        for number in partitions:
            self.write(producer, number)

    def write(self, producer: Producer, partition: int) -> None:
        log = self.log(partition)
        entry = log.producer_states.entries.get(producer[0])
        is_known = entry is not None and entry.producer_epoch == producer[1]
        batch = build_batch(
            [Record(offset=0, timestamp=self.now_ms, key=None, value=b"v")],
            base_offset=0,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=entry.next_sequence if entry is not None and is_known else 0,
            attributes=TRANSACTIONAL_FLAG,
        )
        log.append(memoryview(bytearray(batch)), now_ms=self.now_ms, has_transactional_id=True)

    def commit_offset(
        self, producer: Producer, offset: int, version: TransactionVersion = TV_2
    ) -> None:
        """Add the journal of groups to the transaction, and commit an offset of a group with it."""
        topic = self.broker.topics.get(TOPIC)
        assert topic is not None
        fields: dict[str, Any] = {"producer_id": producer[0], "producer_epoch": producer[1]}
        added = self.submit(
            c.AddPartitionsToTxn(
                transactional_id=ID,
                partitions=(self.broker.groups.offsets_partition(GROUP),),
                transaction_version=version,
                **fields,
            )
        )
        assert added.error is ErrorCode.NONE, added
        wanted = OffsetToCommit(
            topic=TOPIC,
            topic_id=topic.topic_id,
            partition=0,
            offset=offset,
            leader_epoch=-1,
            metadata="",
        )
        answer = self.broker.groups.submit(
            GROUP,
            CommitTxnOffsets(
                group_id=GROUP,
                member_id="",
                group_instance_id=None,
                generation_id=-1,
                offsets=(wanted,),
                **fields,
            ),
        )
        assert answer.errors == (ErrorCode.NONE,), answer

    @property
    def committed_offset(self) -> int | None:
        """The offset that the group has, if it has one."""
        found = self.broker.groups.offsets(GROUP).get((TOPIC, 0))
        return None if found is None else found.offset

    def end(
        self, producer: Producer, *, is_commit: bool = True, version: TransactionVersion = TV_2
    ) -> Any:
        """EndTxn; the answer, or whatever stands for it."""
        return self.submit(
            c.EndTxn(
                transactional_id=ID,
                producer_id=producer[0],
                producer_epoch=producer[1],
                is_commit=is_commit,
                transaction_version=version,
            )
        )


def failing_append(*args: Any, **kwargs: Any) -> Any:
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the write failed")
