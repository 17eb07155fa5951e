"""The transactional producers of the stock Python clients behind one small interface.

Each is used as its users would. Only what a test compares is brought to one form: an error is a
`TransactionError` with Kafka's number, or -1 where a client has none for it.
"""

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    import kafka
    import kafka.errors

TIMEOUT_S = 60.0


class TransactionError(Exception):
    """What a client said when a transaction did not go on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class TransactionalProducer(Protocol):
    """One producer with a transactional id, already initialized."""

    def begin(self) -> None: ...
    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Send, and wait until every record is delivered."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Confluent:
    """librdkafka."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "log_level": 0,
                # Without it a fatal error is raised out of whatever is called next.
                "error_cb": lambda error: None,
            }
        )
        self._call(self._producer.init_transactions, TIMEOUT_S)

    @staticmethod
    def _call(act: Callable[..., Any], *args: Any) -> Any:
        try:
            return act(*args)
        except KafkaException as error:
            raise TransactionError(error.args[0].code(), str(error)) from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        failures: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            self._call(
                lambda value=value: self._producer.produce(
                    topic, value, partition=partition, on_delivery=delivered
                )
            )
        self._call(self._producer.flush, TIMEOUT_S)
        if failures:
            raise TransactionError(failures[0].code(), str(failures[0]))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, TIMEOUT_S)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()

    @staticmethod
    def read(bootstrap: str, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
        """Everything that a partition has for a reader, up to its end."""
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        found: list[bytes] = []
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, "the end of the partition was not reached in time"
                if message.error():
                    return found  # the end
                found.append(message.value() or b"")
        finally:
            consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        self._call(self._producer.init_transactions)

    @staticmethod
    def _call(act: Callable[..., Any], *args: Any) -> Any:
        try:
            return act(*args)
        except kafka.errors.KafkaError as error:
            raise TransactionError(getattr(error, "errno", -1), repr(error)) from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        sent = [
            self._call(lambda value=value: self._producer.send(topic, value, partition=partition))
            for value in values
        ]
        self._producer.flush(TIMEOUT_S)
        for one in sent:
            self._call(one.get, TIMEOUT_S)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=0)

    @staticmethod
    def read(bootstrap: str, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_id=None,
        )
        place = kafka.TopicPartition(topic, partition)
        try:
            consumer.assign([place])
            consumer.seek_to_beginning()
            end = consumer.end_offsets([place])[place]
            found: list[bytes] = []
            while consumer.position(place) < end:
                for records in consumer.poll(timeout_ms=1000).values():
                    found += [record.value for record in records]
            return found
        finally:
            consumer.close()


class AioKafka:
    """aiokafka, in a loop of its own thread."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer = self._call(self._make(bootstrap, transactional_id, timeout_ms))

    @staticmethod
    async def _make(bootstrap: str, transactional_id: str, timeout_ms: int) -> Any:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        await producer.start()
        return producer

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)
        except AioKafkaError as error:
            raise TransactionError(getattr(error, "errno", -1), repr(error)) from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        async def send() -> None:
            futures = [
                await self._producer.send(topic, value, partition=partition) for value in values
            ]
            await asyncio.gather(*futures)

        self._call(send())

    def commit(self) -> None:
        self._call(self._producer.commit_transaction())

    def abort(self) -> None:
        self._call(self._producer.abort_transaction())

    def close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asyncio.run_coroutine_threadsafe(self._producer.stop(), self._loop).result(TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    @staticmethod
    def read(bootstrap: str, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
        async def read() -> list[bytes]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                isolation_level=isolation,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            try:
                place = AioTopicPartition(topic, partition)
                consumer.assign([place])
                await consumer.seek_to_beginning(place)
                end = (await consumer.end_offsets([place]))[place]
                found: list[bytes] = []
                while await consumer.position(place) < end:
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        found += [record.value for record in records]
                return found
            finally:
                await consumer.stop()

        return asyncio.run(read())


CLIENTS: dict[str, Any] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}
