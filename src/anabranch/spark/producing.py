"""A blocking producer: batches in order, each once, however often it takes to send them.

Rules
- A batch gets its sequence when it is handed over, and keeps it, whatever happens to it: a broker
  that has it already knows that by the sequence (KIP-98). Without idempotence only one request is
  in flight, and a batch may be there twice after a failure.
- A request has one batch of a partition at most. Several requests may be in flight to a broker,
  which takes them in order.
- After a failure that may pass nothing is sent before all that is in flight is answered or lost;
  then everything that failed goes back to the front of its queue, in the old order. So a batch
  never overtakes one of its partition. OUT_OF_ORDER_SEQUENCE_NUMBER is such a failure if an earlier
  batch of the partition failed, and fatal otherwise.
- What is not acknowledged within `delivery.timeout.ms`, or after `retries`, is an error that names
  the partition, and the offset behind which its records would have been.
- After an error the producer is of no use any more: its sequences are in doubt.

Encoding included, a million rows with values of 100 bytes take 0.2 s of CPU time, 0.4 s with lz4.
"""

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from anabranch.model.errors import ErrorCode
from anabranch.spark.encode import Encoded, Identity, Place, sealed
from anabranch.spark.errors import (
    BrokerRefusal,
    LinkError,
    LinkTimeoutError,
    is_worth_retrying,
)
from anabranch.spark.link import Link, TopicView, link_of
from anabranch.spark.link_connection import Connection, Ticket
from anabranch.spark.link_settings import LinkSettings
from anabranch.spark.sink_options import ProducerSettings
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

_BY_NAME_VERSION = 12  # of Produce: the last that has names
_IN_TRANSACTION_VERSION = 12  # the first with which partitions join transactions by themselves
_SEQUENCE_MASK = 0x7FFFFFFF
_QUEUED_BYTES_MAX = 16 * 1024 * 1024
_MISSING_TOPIC_ATTEMPTS = 5  # while a broker creates it
_HINTS = {
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic's max.message.bytes; lower"
    " kafka.batch.size, or raise it for the topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "a batch is larger than a segment of the topic; lower"
    " kafka.batch.size",
    ErrorCode.INVALID_RECORD: "the topic takes no such records",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the broker has forgotten the producer; run the task again",
}


@dataclass(slots=True)
class Pending:
    """A batch that is not acknowledged yet."""

    place: Place
    number: int
    """In the order of handing over."""
    records: bytes | bytearray
    records_count: int
    deadline_s: float
    failures: int = 0
    last_failure: str = ""


@dataclass(slots=True)
class _Flight:
    """What is on its way to one broker, the oldest first."""

    connection: Connection
    requests: deque[tuple[Ticket, dict[Place, Pending]]] = field(default_factory=deque)


class Producer:
    """Writes batches through a link; `flush` returns when all of them are acknowledged."""

    def __init__(
        self,
        link: Link,
        settings: ProducerSettings,
        identity: Identity,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.link = link
        self._settings = settings
        self.identity = identity
        self._clock = clock
        self._sleep = sleep
        self._sequences: dict[Place, int] = {}
        self._queues: dict[Place, deque[Pending]] = {}
        self._queued_bytes = 0
        self._flights: dict[int, _Flight] = {}
        self._failed: list[Pending] = []
        self._failures = 0  # in a row
        self._next_number = 0
        self.end_offsets: dict[Place, int] = {}
        """Behind the last record of ours in each partition, as far as a broker said."""
        self.records_count = 0
        """Records that are acknowledged."""

    # Handing over ---------------------------------------------------------------------------------

    def send(self, encoded: Encoded) -> None:
        """Hand a batch over; it waits while too much is queued."""
        settings, place = self._settings, encoded.place
        sequence = -1
        if self.identity.producer_id >= 0:
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = (sequence + encoded.records_count) & _SEQUENCE_MASK
        records = sealed(
            encoded,
            self.identity,
            sequence,
            timestamp_ms=time.time_ns() // 1_000_000,
            codec=settings.codec,
            level=settings.level,
        )
        if len(records) > settings.request_bytes:
            raise LinkError(
                f"a record for {place[0]}-{place[1]} has {len(records)} bytes; option"
                f" 'kafka.max.request.size' allows {settings.request_bytes}"
            )
        deadline_s = self._clock() + settings.delivery_timeout_ms / 1000
        pending = Pending(place, self._next_number, records, encoded.records_count, deadline_s)
        self._next_number += 1
        self._enqueue([pending])
        self._work(_QUEUED_BYTES_MAX)

    def flush(self) -> None:
        """Wait until all batches are acknowledged."""
        self._work(0)
        while self._failed or self._queued_bytes or any(self._busy()):
            self._receive_one()
            self._work(0)

    def close(self) -> None:
        """Give up whatever is not acknowledged."""
        for flight in self._flights.values():
            flight.connection.close()
        self._flights.clear()

    def _enqueue(self, batches: Iterable[Pending]) -> None:
        for pending in batches:
            self._queues.setdefault(pending.place, deque()).append(pending)
            self._queued_bytes += len(pending.records)

    def _work(self, queued_bytes_max: int) -> None:
        """Send what can be sent, until no more than this is queued."""
        while self._has_answer():
            self._receive_one()
        while True:
            if self._failed:
                self._recover()
            try:
                self._send_some()
            except LinkError as error:
                self._give_up_flights(error)
                continue
            if self._failed or self._queued_bytes > queued_bytes_max:
                self._receive_one()
            else:
                return

    def _busy(self) -> Iterable[_Flight]:
        return (flight for flight in self._flights.values() if flight.requests)

    # Sending --------------------------------------------------------------------------------------

    def _send_some(self) -> None:
        """Send requests while there are queued batches and room for another request."""
        while self._queued_bytes:
            by_node: dict[int, list[Place]] = {}
            for place in [place for place, queue in self._queues.items() if queue]:
                by_node.setdefault(self._leader_of(place), []).append(place)
            was_sent = False
            for node_id, places in by_node.items():
                flight = self._flight_to(node_id)
                if len(flight.requests) < self._settings.in_flight_max:
                    self._send_request(flight, places)
                    was_sent = True
            if not was_sent:
                return

    def _flight_to(self, node_id: int) -> _Flight:
        flight = self._flights.get(node_id)
        if flight is None or (flight.connection.is_closed and not flight.requests):
            # A connection of our own: the link closes those on which answers are outstanding.
            host, port = self.link.address_of(node_id)
            connection = Connection(host, port, self.link.settings)
            flight = self._flights[node_id] = _Flight(connection)
        return flight

    def _send_request(self, flight: _Flight, places: list[Place]) -> None:
        """Send the first batch of each partition, as many as a request may have."""
        taken: dict[Place, Pending] = {}
        size_bytes = 0
        for place in places:
            pending = self._queues[place][0]
            if taken and size_bytes + len(pending.records) > self._settings.request_bytes:
                continue
            taken[place] = pending
            size_bytes += len(pending.records)
        for place, pending in taken.items():
            self._queues[place].popleft()
            self._queued_bytes -= len(pending.records)
            # Those that had to wait come first next time.
            self._queues[place] = self._queues.pop(place)
        try:
            ticket = flight.connection.send(
                PRODUCE,
                self._request(taken),
                least_version=_IN_TRANSACTION_VERSION if self.identity.transactional_id else 3,
                most_version=_BY_NAME_VERSION,
            )
        except LinkError as error:
            for pending in taken.values():
                self._fail(pending, error)
            raise
        flight.requests.append((ticket, taken))

    def _request(self, taken: dict[Place, Pending]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for (topic, partition), pending in taken.items():
            data = PartitionProduceData(index=partition, records=memoryview(pending.records))
            topics.setdefault(topic, []).append(data)
        return ProduceRequest(
            transactional_id=self.identity.transactional_id,
            acks=self._settings.acks,
            timeout_ms=self.link.settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=t, partition_data=d) for t, d in topics.items()],
        )

    def _leader_of(self, place: Place) -> int:
        topic = self.link.topic(place[0])
        node_id = topic.leaders.get(place[1], -1) if topic is not None else -1
        if node_id < 0:
            raise BrokerRefusal(
                ErrorCode.LEADER_NOT_AVAILABLE, f"writing to {_name(place)}", "nobody leads it"
            )
        return node_id

    # Answers --------------------------------------------------------------------------------------

    def _has_answer(self) -> bool:
        """Whether an answer is here already, so that another request could go out."""
        busy = [one.connection for one in self._busy() if not one.connection.is_closed]
        return bool(busy and select.select(busy, [], [], 0)[0])

    def _receive_one(self) -> None:
        """Wait for one answer."""
        busy = list(self._busy())
        if not busy:
            return
        flight = busy[0]
        if len(busy) > 1:
            by_connection = {one.connection: one for one in busy if not one.connection.is_closed}
            timeout_s = self.link.settings.request_timeout_ms / 1000
            ready = select.select(list(by_connection), [], [], timeout_s)[0]
            if ready:
                flight = by_connection[ready[0]]
        ticket, taken = flight.requests[0]
        try:
            answer = flight.connection.receive(ticket)
        except LinkError as error:
            self._give_up(flight, error)
            return
        flight.requests.popleft()
        self._take_answer(answer, taken)

    def _take_answer(self, answer: Any, taken: dict[Place, Pending]) -> None:
        missing = dict(taken)
        for topic in answer.responses:
            for one in topic.partition_responses:
                pending = missing.pop((topic.name, one.index), None)
                if pending is not None:
                    self._take_result(pending, one)
        if missing:
            raise LinkError(f"the broker's answer says nothing about {_names(missing)}")

    def _take_result(self, pending: Pending, result: Any) -> None:
        place = pending.place
        if result.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._failures = 0
            self.records_count += pending.records_count
            if result.base_offset >= 0:
                # A batch that was sent again may be answered after one that came behind it.
                end = result.base_offset + pending.records_count
                self.end_offsets[place] = max(end, self.end_offsets.get(place, 0))
            return
        messages = [one.batch_index_error_message for one in result.record_errors]
        message = "; ".join(filter(None, [result.error_message, *messages]))
        error = self._refusal(pending, result.error_code, message)
        is_later = any(one.place == place for one in self._failed)
        if error.code.retriable or (
            error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and is_later
        ):
            self._fail(pending, error)
            return
        raise error

    def _refusal(self, pending: Pending, code: int, message: str) -> BrokerRefusal:
        error = BrokerRefusal(code, self._what(pending), message)
        hint = _HINTS.get(error.code)
        if hint is None:
            return error
        return BrokerRefusal(code, self._what(pending), f"{message}; {hint}" if message else hint)

    def _what(self, pending: Pending) -> str:
        what = f"writing {pending.records_count} records to {_name(pending.place)}"
        end = self.end_offsets.get(pending.place)
        return what if end is None else f"{what}, behind offset {end - 1},"

    # Failures -------------------------------------------------------------------------------------

    def _fail(self, pending: Pending, error: LinkError) -> None:
        """Put a batch aside that is to be sent again."""
        pending.failures += 1
        pending.last_failure = str(error)
        self._failed.append(pending)

    def _give_up(self, flight: _Flight, error: LinkError) -> None:
        """Nothing that is on its way to a broker will be answered any more."""
        flight.connection.close()
        requests = list(flight.requests)
        flight.requests.clear()
        for _, taken in requests:
            for pending in taken.values():
                self._fail(pending, error)
        if not is_worth_retrying(error):
            raise error

    def _give_up_flights(self, error: LinkError) -> None:
        """Sending failed: take the answers that still come, and begin again after a while."""
        if not is_worth_retrying(error):
            raise error
        for flight in self._flights.values():
            if flight.connection.is_closed:
                self._give_up(flight, error)
        if not self._failed:
            # There was no broker to send to. The first in line tells when to give up.
            first = min(
                (queue[0] for queue in self._queues.values() if queue),
                key=lambda pending: pending.number,
            )
            self._queues[first.place].popleft()
            self._queued_bytes -= len(first.records)
            self._fail(first, error)

    def _recover(self) -> None:
        """Take all answers that come, then put everything that failed back in front."""
        while any(self._busy()):
            self._receive_one()
        self.close()
        self._failures += 1
        delay_s = self.link.backoff_s(self._failures)
        now_s = self._clock()
        failed, self._failed = self._failed, []
        for pending in failed:
            limit = None
            if now_s + delay_s > pending.deadline_s:
                limit = f"for {self._settings.delivery_timeout_ms} ms ('kafka.delivery.timeout.ms')"
            elif pending.failures > self._settings.retries:
                limit = f"{pending.failures} times ('kafka.retries')"
            if limit is not None:
                raise LinkTimeoutError(
                    f"{self._what(pending)} was tried {limit}: {pending.last_failure}"
                )
        self.link.forget()
        for place in {pending.place for pending in failed}:
            mine = [pending for pending in failed if pending.place == place]
            rest = self._queues.get(place, deque())
            self._queues[place] = deque(sorted([*mine, *rest], key=lambda one: one.number))
            self._queued_bytes += sum(len(pending.records) for pending in mine)
        self._sleep(delay_s)


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _names(places: Iterable[Place]) -> str:
    return ", ".join(map(_name, places))


# Where to write, and as whom ----------------------------------------------------------------------


def topic_to_write(link: Link, name: str, settings: ProducerSettings) -> TopicView:
    """A topic, created by the broker if it likes to; LinkError when there is none."""
    attempts = 0

    def look() -> TopicView:
        nonlocal attempts
        topic = link.topics([name]).get(name)
        if topic is None:
            attempts += 1
            if attempts > _MISSING_TOPIC_ATTEMPTS:
                raise LinkError(
                    f"topic {name} does not exist, and the broker does not create it; create it"
                    " first, or change option 'topic'"
                )
            # Whoever writes may have topics created; `link.topics` never has.
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
            )
            (found,) = link.ask_any(METADATA, request, least_version=4).topics
            code = found.error_code or ErrorCode.LEADER_NOT_AVAILABLE
            if code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
                raise BrokerRefusal(code, f"asking for topic {name}")
            topic = link.topics([name]).get(name)
            if topic is None:
                raise BrokerRefusal(ErrorCode.LEADER_NOT_AVAILABLE, f"asking for topic {name}")
        return topic

    return link.retrying(
        f"asking for topic {name}", look, limit_ms=settings.block_ms, option="kafka.max.block.ms"
    )


def new_identity(link: Link, settings: ProducerSettings) -> Identity:
    """A producer id of our own; none without idempotence."""
    if not settings.is_idempotent:
        return Identity()

    def ask() -> Identity:
        request = InitProducerIdRequest(transaction_timeout_ms=settings.transaction_timeout_ms)
        answer = link.ask_any(INIT_PRODUCER_ID, request)
        if answer.error_code:
            raise BrokerRefusal(answer.error_code, "asking for a producer id")
        return Identity(answer.producer_id, answer.producer_epoch)

    return link.retrying(
        "asking for a producer id", ask, limit_ms=settings.block_ms, option="kafka.max.block.ms"
    )


_idle: dict[tuple[int, LinkSettings, ProducerSettings], list[Producer]] = {}


def borrow_producer(link_settings: LinkSettings, settings: ProducerSettings) -> Producer:
    """A producer that another task left behind, or a new one.

    A broker remembers every producer id for a day, so each is used again; give it back with
    `return_producer` unless an error came out of it.
    """
    idle = _idle.get((os.getpid(), link_settings, settings))
    if idle:
        return idle.pop()
    link = link_of(link_settings, "sink")
    return Producer(link, settings, new_identity(link, settings))


def return_producer(
    producer: Producer, link_settings: LinkSettings, settings: ProducerSettings
) -> None:
    _idle.setdefault((os.getpid(), link_settings, settings), []).append(producer)
