"""How the stock clients say that a transaction cannot go on, brought to two errors.

confluent-kafka tells which it is, and whether to try again. kafka-python tries again by itself, and
has in its state what may be done next.
"""

import contextlib
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaException

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    import kafka
    import kafka.errors

PATIENCE_S = 120.0
_CALL_S = 10.0
_END_MAX_S = 15


class Fenced(Exception):
    """The producer cannot be used any more."""


class Aborted(Exception):
    """The transaction has to be given up."""


def call(act: Callable[..., Any], *args: Any) -> Any:
    """Try again for as long as the client says that it makes sense."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act(*args, _CALL_S)
        except KafkaException as error:
            found = error.args[0]
            if found.retriable() and time.monotonic() < deadline:
                continue
            if found.txn_requires_abort():
                raise Aborted(str(found)) from error
            raise Fenced(str(found)) from error


class KafkaPythonProducer:
    """kafka-python's producer, to be called as confluent-kafka's."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            reconnect_backoff_max_ms=200,
        )

    def _call(self, act: Callable[..., Any], *args: Any, **how: Any) -> Any:
        try:
            return act(*args, **how)
        except kafka.errors.KafkaError as error:
            manager = self._producer._transaction_manager
            if manager.has_abortable_error():
                raise Aborted(repr(error)) from error
            raise Fenced(repr(error)) from error

    def init_transactions(self, _: float) -> None:
        self._call(self._producer.init_transactions)

    def begin_transaction(self) -> None:
        self._call(self._producer.begin_transaction)

    def produce(
        self, topic: str, value: str, partition: int, on_delivery: Callable[[Any, Any], None]
    ) -> None:
        sent = self._call(self._producer.send, topic, value.encode(), partition=partition)
        sent.add_callback(
            lambda found: on_delivery(None, SimpleNamespace(offset=lambda: found.offset))
        )

    def flush(self, timeout_s: float) -> None:
        with contextlib.suppress(kafka.errors.KafkaTimeoutError):
            self._call(self._producer.flush, timeout_s)

    def poll(self, _: float) -> None:
        """Deliveries are told by a thread."""

    def commit_transaction(self, _: float) -> None:
        with _limited():
            self._call(self._producer.commit_transaction)

    def abort_transaction(self, _: float) -> None:
        with _limited():
            self._call(self._producer.abort_transaction)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """kafka-python 3.0 may wait for good for the end of a transaction when the broker was away."""

    def give_up(*_: Any) -> None:
        raise Fenced("no end of it")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_END_MAX_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
