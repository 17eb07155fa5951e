"""What every stock client must see of the broker; one test class per client derives from this."""

import threading
import time
from collections.abc import Callable

import pytest

from anabranch.model.errors import ErrorCode
from support.broker_process import BrokerProcess
from support.stock_clients import (
    EARLIEST,
    LATEST,
    TIMEOUT_S,
    Delivery,
    Received,
    StockClient,
    ToSend,
)
from support.topics import create_topic

# An hour ago at most, whatever the clock says: records of the future or far past are refused.
HOUR_MS = 3_600_000
MESSAGE_MAX_BYTES = 1_048_588


def numbered(count: int, *, partition: int = 0, first: int = 0) -> list[ToSend]:
    """Records that carry their number."""
    return [ToSend(b"%d" % i, partition=partition) for i in range(first, first + count)]


def values(records: list[Received]) -> list[bytes | None]:
    return [record.value for record in records]


class ClientBehaviour:
    """The tests; `client` says which client they drive."""

    client: StockClient
    # What a client cannot say, its test class says here.
    sends_null_headers = True
    code_of_invalid_record: int = ErrorCode.INVALID_RECORD

    # Records ------------------------------------------------------------------------------------

    def test_records_arrive_as_they_were_sent(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """Keys, values and headers that are null, empty or binary come back unchanged."""
        sent = [
            ToSend(b"value", b"key"),
            ToSend(b"no key"),
            ToSend(None, b"no value"),
            ToSend(b"", b""),
            ToSend(bytes(range(256)), bytes(range(255, -1, -1))),
            ToSend(b"h", headers=(("a", b"1"), ("b", b""), ("a", b"2"), ("schlüssel", b"\xff"))),
            ToSend(b"null header", headers=(("n", None if self.sends_null_headers else b""),)),
            ToSend(b"x" * 300_000, b"k" * 70_000),
        ]
        with self.client.producer(shared_broker.bootstrap) as producer:
            deliveries = producer.send(topic, sent)
        assert [delivery.offset for delivery in deliveries] == list(range(len(sent)))
        with self.client.consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
            received = consumer.take(len(sent))
        assert [ToSend(r.value, r.key, r.headers) for r in received] == sent
        assert [r.offset for r in received] == list(range(len(sent)))

    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_consuming_starts_where_it_is_told(
        self, shared_broker: BrokerProcess, topic: str, codec: str
    ) -> None:
        """The beginning, an offset inside a batch and the end are where they should be."""
        with self.client.producer(shared_broker.bootstrap, codec=codec) as producer:
            producer.send(topic, numbered(100))
            for start, first in ((EARLIEST, 0), (0, 0), (37, 37), (99, 99)):
                with self.client.consumer(shared_broker.bootstrap, topic, {0: start}) as consumer:
                    received = consumer.take(100 - first)
                assert [r.offset for r in received] == list(range(first, 100))
                assert values(received) == [b"%d" % i for i in range(first, 100)]
            with self.client.consumer(shared_broker.bootstrap, topic, {0: LATEST}) as consumer:
                consumer.wait_for_start()
                producer.send(topic, [ToSend(b"after the end")])
                (received_last,) = consumer.take(1)
        assert (received_last.offset, received_last.value) == (100, b"after the end")

    def test_offsets_are_found_by_time(self, shared_broker: BrokerProcess, topic: str) -> None:
        """A time gives the first record at or after it, inside batches too, or none."""
        start_ms = _now_ms() - HOUR_MS
        records = [ToSend(b"%d" % i, timestamp_ms=start_ms + 10 * i) for i in range(100)]
        with self.client.producer(shared_broker.bootstrap) as producer:
            for i in range(0, 100, 20):
                producer.send(topic, records[i : i + 20])
        with self.client.consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
            found = [
                consumer.offset_for_time(0, start_ms + after_ms)
                for after_ms in (-HOUR_MS, 0, 1, 10, 255, 400, 990, 991)
            ]
            assert found == [0, 0, 1, 1, 26, 40, 99, None]
            assert consumer.offset_range(0) == (0, 100)
        with self.client.consumer(shared_broker.bootstrap, topic, {0: found[4] or 0}) as consumer:
            first = consumer.take(1)[0]
        assert (first.offset, first.timestamp_ms) == (26, start_ms + 260)
        assert not first.is_log_append_time

    @pytest.mark.parametrize("acks", [0, 1, -1])
    def test_every_kind_of_acknowledgement_works(
        self, shared_broker: BrokerProcess, topic: str, acks: int
    ) -> None:
        """Records sent with acks 0, 1 and all are all there."""
        with self.client.producer(shared_broker.bootstrap, acks=acks) as producer:
            producer.send(topic, numbered(50))
        with self.client.consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
            assert values(consumer.take(50)) == [b"%d" % i for i in range(50)]

    def test_an_idempotent_producer_writes_to_all_partitions(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """Each partition has its own sequence, over many batches."""
        with self.client.producer(
            shared_broker.bootstrap, idempotent=True, linger_ms=0
        ) as producer:
            for first in range(0, 200, 50):
                for partition in range(4):
                    producer.send(topic, numbered(50, partition=partition, first=first))
        starts = dict.fromkeys(range(4), EARLIEST)
        with self.client.consumer(shared_broker.bootstrap, topic, starts) as consumer:
            received = consumer.take(800)
        for partition in range(4):
            mine = [r for r in received if r.partition == partition]
            assert values(mine) == [b"%d" % i for i in range(200)]
            assert [r.offset for r in mine] == list(range(200))

    def test_many_partitions_are_read_at_once(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """A consumer of 100 partitions gets all records of each, in order."""
        create_topic(shared_broker.bootstrap, topic, partitions=100)
        with self.client.producer(shared_broker.bootstrap) as producer:
            assert producer.partition_count(topic) == 100
            producer.send(topic, [r for p in range(100) for r in numbered(10, partition=p)])
        starts = dict.fromkeys(range(100), EARLIEST)
        with self.client.consumer(shared_broker.bootstrap, topic, starts) as consumer:
            received = consumer.take(1000)
        for partition in range(100):
            mine = [r for r in received if r.partition == partition]
            assert values(mine) == [b"%d" % i for i in range(10)]

    # Limits -------------------------------------------------------------------------------------

    def test_a_message_may_be_as_large_as_the_limit(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """A record that just fits `message.max.bytes` passes and comes back."""
        value = b"v" * (MESSAGE_MAX_BYTES - 100)
        with self.client.producer(shared_broker.bootstrap) as producer:
            assert producer.send(topic, [ToSend(value)])[0].error_code == ErrorCode.NONE
        with self.client.consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
            assert values(consumer.take(1)) == [value]

    def test_a_message_larger_than_a_fetch_is_read(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """A consumer that asks for little still gets one batch whole, and moves on (KIP-74)."""
        sent = [ToSend(b"%d" % i * 50_000) for i in range(5)] + numbered(5)
        with self.client.producer(shared_broker.bootstrap, linger_ms=0) as producer:
            for record in sent:
                producer.send(topic, [record])
        with self.client.consumer(
            shared_broker.bootstrap, topic, {0: EARLIEST}, partition_fetch_bytes=1000
        ) as consumer:
            assert values(consumer.take(10)) == [record.value for record in sent]

    def test_a_message_beyond_the_limit_is_refused(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """MESSAGE_TOO_LARGE reaches the application, and the producer goes on."""
        with self.client.producer(shared_broker.bootstrap) as producer:
            too_large = producer.send(topic, [ToSend(b"v" * (MESSAGE_MAX_BYTES + 1))])
            small = producer.send(topic, [ToSend(b"small")])
        assert too_large[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert small[0] == Delivery(0, small[0].timestamp_ms)

    # Kinds of topics ----------------------------------------------------------------------------

    def test_log_append_time_is_the_brokers(self, shared_broker: BrokerProcess, topic: str) -> None:
        """With LogAppendTime producer and consumer see the time of the broker."""
        create_topic(
            shared_broker.bootstrap, topic, configs={"message.timestamp.type": "LogAppendTime"}
        )
        before_ms = _now_ms()
        with self.client.producer(shared_broker.bootstrap) as producer:
            (delivery,) = producer.send(topic, [ToSend(b"old", timestamp_ms=1_000_000)])
        after_ms = _now_ms()
        with self.client.consumer(shared_broker.bootstrap, topic, {0: EARLIEST}) as consumer:
            (received,) = consumer.take(1)
            assert consumer.offset_for_time(0, before_ms) == 0
            assert consumer.offset_for_time(0, after_ms + 1) is None
        assert received.is_log_append_time
        assert before_ms <= received.timestamp_ms <= after_ms
        assert delivery.timestamp_ms == received.timestamp_ms

    def test_a_compacted_topic_needs_keys(self, shared_broker: BrokerProcess, topic: str) -> None:
        """A record without a key is refused with INVALID_RECORD; one with a key is taken."""
        create_topic(shared_broker.bootstrap, topic, configs={"cleanup.policy": "compact"})
        with self.client.producer(shared_broker.bootstrap) as producer:
            (keyless,) = producer.send(topic, [ToSend(b"v")])
            (keyed,) = producer.send(topic, [ToSend(b"v", b"k")])
        assert keyless.error_code == self.code_of_invalid_record
        assert keyed.offset == 0

    def test_an_unknown_topic_is_created_when_that_is_on(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """Metadata of a topic that does not exist makes it, with `num.partitions` partitions."""
        with self.client.producer(shared_broker.bootstrap) as producer:
            assert producer.partition_count(topic) == 4

    # While things happen ------------------------------------------------------------------------

    def test_a_waiting_consumer_gets_a_record_at_once(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """A long-polled fetch ends with the record, not with its time: that is 25 s away."""
        with (
            self.client.producer(shared_broker.bootstrap) as producer,
            self.client.consumer(
                shared_broker.bootstrap,
                topic if producer.send(topic, numbered(1)) else "",
                {0: EARLIEST},
                fetch_wait_ms=25_000,
            ) as consumer,
        ):
            consumer.take(1)
            for i in range(5):
                box: list[Received] = []
                taker = threading.Thread(
                    target=lambda box=box: box.extend(consumer.take(1, timeout_s=15))
                )
                taker.start()
                producer.send(topic, [ToSend(b"%d" % i)])
                taker.join()
                assert values(box) == [b"%d" % i]

    def test_consumers_see_every_record_once_while_it_is_written(
        self, shared_broker: BrokerProcess, topic: str
    ) -> None:
        """Three consumers that poll during the writing get all records, in order."""
        starts = dict.fromkeys(range(4), EARLIEST)
        results: list[list[Received]] = []

        def consume() -> None:
            with self.client.consumer(shared_broker.bootstrap, topic, starts) as consumer:
                results.append(consumer.take(1200))

        with self.client.producer(shared_broker.bootstrap, linger_ms=0) as producer:
            assert producer.partition_count(topic) == 4
            threads = [threading.Thread(target=consume) for _ in range(3)]
            for thread in threads:
                thread.start()
            for first in range(0, 300, 30):
                batch = [r for p in range(4) for r in numbered(30, partition=p, first=first)]
                producer.send(topic, batch)
            for thread in threads:
                thread.join(TIMEOUT_S)
        assert len(results) == 3
        for received in results:
            for partition in range(4):
                mine = [r for r in received if r.partition == partition]
                assert values(mine) == [b"%d" % i for i in range(300)]

    @pytest.mark.parametrize("is_crash", [False, True], ids=["stop", "kill"])
    def test_clients_survive_a_restart(
        self,
        make_broker: Callable[..., BrokerProcess],
        topic: str,
        is_crash: bool,
    ) -> None:
        """A consumer and an idempotent producer go on by themselves: no loss, no duplicates."""
        broker = make_broker()
        with (
            self.client.producer(broker.bootstrap, idempotent=True) as producer,
            self.client.consumer(
                broker.bootstrap,
                topic if producer.partition_count(topic) else "",
                {0: EARLIEST},
            ) as consumer,
        ):
            received: list[Received] = []
            for i in range(3):
                if i:
                    broker.kill() if is_crash else broker.stop()
                    broker.start()
                deliveries = producer.send(topic, numbered(100, first=100 * i))
                assert [d.offset for d in deliveries] == list(range(100 * i, 100 * i + 100))
                received += consumer.take(100)
        assert values(received) == [b"%d" % i for i in range(300)]
        assert [r.offset for r in received] == list(range(300))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
