"""Transactions through their handlers: requests with what a test does not care about filled in."""

from pathlib import Path
from typing import Any

from handler_calls import Call, Node, make_batch

from anabranch.coordinator.transaction.describe import DescribedTransaction
from anabranch.log.partition_log import PartitionLog
from anabranch.wire.control_records import read_marker
from anabranch.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from anabranch.wire.messages.end_txn import EndTxnRequest
from anabranch.wire.messages.init_producer_id import InitProducerIdRequest
from anabranch.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, iter_headers
from support.fake_loop import FakeLoop

ID = "tx"
TIMEOUT_MS = 60_000
JOURNAL = "__transaction_state"
# What a producer of Kafka 4 sends, and one of before (Produce, EndTxn).
NEW = (13, 5)
OLD = (9, 3)


class TransactionNode(Node):
    """A broker whose journals have one partition, and a clock that moves its alarms."""

    def __init__(self, folder: Path, loop: FakeLoop, *overrides: str) -> None:
        ones = ("transaction.state.log.num.partitions=1", "offsets.topic.num.partitions=1")
        super().__init__(folder, (*ones, *overrides))
        self.loop = loop
        loop.on_time = self._on_time
        self.broker.transactions.start()

    def _on_time(self, step_ms: float) -> None:
        self.now_ms += round(step_ms)

    def pass_ms(self, delay_ms: int) -> None:
        self.loop.pass_ms(delay_ms)

    def close(self) -> None:
        self.broker.transactions.stop()
        self.broker.groups.stop()
        super().close()

    # What there is ------------------------------------------------------------------------------

    def described(self, transactional_id: str = ID) -> DescribedTransaction:
        return self.broker.transactions.describe(transactional_id)

    @property
    def state(self) -> str:
        return self.described().state

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        return self.broker.topics.partition(topic, partition).log

    def markers(self, topic: str = "t", partition: int = 0) -> list[tuple[int, int, int]]:
        """The type (0 abort, 1 commit), producer id and epoch of each marker in a partition."""
        log = self.log(topic, partition)
        view = log.read(0, 1 << 24)
        return [
            (
                read_marker(view[position : position + header.size_bytes])[0],
                header.producer_id,
                header.producer_epoch,
            )
            for position, header in iter_headers(view)
            if header.is_control
        ]

    # Requests -----------------------------------------------------------------------------------

    def begin_init(
        self,
        transactional_id: str | None = ID,
        version: int = 5,
        *,
        timeout_ms: int = TIMEOUT_MS,
        producer: tuple[int, int] = (-1, -1),
    ) -> Call:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        return self.begin(request, version)

    def init(self, *args: Any, **how: Any) -> Any:
        return self.begin_init(*args, **how).answer

    def add(
        self, producer: tuple[int, int], *places: tuple[str, int], version: int = 3
    ) -> dict[tuple[str, int], int]:
        """AddPartitionsToTxn of a client; the error of each partition."""
        answer = self.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=[index]) for name, index in places
                ],
            ),
            version,
        )
        return {
            (topic.name, one.partition_index): one.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }

    def add_offsets(self, producer: tuple[int, int], group_id: str = "g", version: int = 4) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group_id,
        )
        code: int = self.call(request, version).error_code
        return code

    def begin_produce(
        self,
        producer: tuple[int, int],
        *places: tuple[str, int],
        sequence: int = 0,
        version: int = 13,
        transactional_id: str | None = ID,
        is_transactional: bool = True,
        acks: int = -1,
    ) -> Call:
        """Produce one record to each partition; by default to the first one of topic t."""
        batch = make_batch(
            b"v",
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL_FLAG if is_transactional else 0,
        )
        topics = []
        for name, index in places or (("t", 0),):
            topic = self.broker.topics.get(name)
            topics.append(
                TopicProduceData(
                    name=name if version < 13 else "",
                    topic_id=topic.topic_id if topic is not None and version >= 13 else bytes(16),
                    partition_data=[PartitionProduceData(index=index, records=batch)],
                )
            )
        request = ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=topics
        )
        return self.begin(request, version)

    def produce(self, producer: tuple[int, int], *places: tuple[str, int], **how: Any) -> list[int]:
        """The error of each partition that was produced to."""
        answer = self.begin_produce(producer, *places, **how).answer
        return [one.error_code for topic in answer.responses for one in topic.partition_responses]

    def begin_end(
        self, producer: tuple[int, int], *, is_commit: bool = True, version: int = 5
    ) -> Call:
        request = EndTxnRequest(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=is_commit,
        )
        return self.begin(request, version)

    def end(
        self, producer: tuple[int, int], *, is_commit: bool = True, version: int = 5
    ) -> tuple[int, int, int]:
        """EndTxn; the error, and the producer id and epoch to go on with."""
        answer = self.begin_end(producer, is_commit=is_commit, version=version).answer
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def start_producer(self, **how: Any) -> tuple[int, int]:
        """The producer id and epoch of a producer that has just started."""
        answer = self.init(**how)
        assert answer.error_code == 0, answer
        return answer.producer_id, answer.producer_epoch
