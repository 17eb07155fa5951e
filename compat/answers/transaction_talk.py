"""A talk with a transaction coordinator of any broker, request by request, as it is written down.

A line is a request and its answer, or a record of `__transaction_state`:

    init 600000 P0/3 -> 0 P0/4       timeout, the producer if it goes on; error, the producer
    add v5 P0/4 x-0 x-1 -> 0        version, producer, partitions; errors
    verify P0/4 x-0 x-2 -> 0 120
    offsets P0/4 2 -> 0             the partition of __consumer_offsets
    end v4 P0/4 commit -> 0 -       the producer from version 5 on
    timeout                         the transaction's time is up
    wind P0/32765                   the producer was initialized until its epoch was this
    = Ongoing P0/4 before P0 next - version 2 timeout 600000 x-0 x-1

Producer ids are P0, P1 and so on in the order in which a talk comes to them, and X is nobody's.
The requests go through kio's codecs.
"""

from __future__ import annotations

import datetime
import io
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import kio.serial
from kafka.protocol.admin.transactions import DescribeTransactionsResponse

from anabranch.engine.journal.batch import iter_entries
from anabranch.engine.journal.transaction_codec import decode_transaction
from anabranch.wire.record_batch import iter_headers

SETTINGS = ["transaction.state.log.num.partitions=1", "offsets.topic.num.partitions=4"]
TOPIC = "x"
NOBODY = 999_999_999
NONE = (-1, -1)
PREPARED = ("PrepareCommit", "PrepareAbort")
_LINES_MAX = 1000

Producer = tuple[int, int]


class Broker:
    """A connection, on which one request waits for the answer to the one before."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._file = self._socket.makefile("rb")

    def send(self, api: str, version: int, **fields: Any) -> type[Any]:
        package = f"kio.schema.{api}.v{version}"
        name = "".join(word.capitalize() for word in api.split("_"))
        request = getattr(import_module(f"{package}.request"), f"{name}Request")(**fields)
        header = type(request).__header_schema__
        buffer = io.BytesIO()
        kio.serial.entity_writer(header)(
            buffer,
            header(
                request_api_key=request.__api_key__,
                request_api_version=request.__version__,
                correlation_id=1,
                client_id="talk",
            ),
        )
        kio.serial.entity_writer(type(request))(buffer, request)
        self._socket.sendall(struct.pack(">i", len(buffer.getvalue())) + buffer.getvalue())
        response: type[Any] = getattr(import_module(f"{package}.response"), f"{name}Response")
        return response

    def receive(self, response: type[Any]) -> Any:
        payload = self.payload()
        _, used = kio.serial.entity_reader(response.__header_schema__)(payload, 0)
        answer, _ = kio.serial.entity_reader(response)(payload, used)
        return answer

    def payload(self) -> bytes:
        (size,) = struct.unpack(">i", self._file.read(4))
        return self._file.read(size)

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        return self.receive(self.send(api, version, **fields))


class Talk:
    """One transactional id: what was asked, and what was answered."""

    def __init__(self, broker: Broker, transactional_id: str, timeout_ms: int) -> None:
        self.broker = broker
        self.id = transactional_id
        self.timeout_ms = timeout_ms
        self.lines: list[str] = []
        self.names: dict[int, str] = {NOBODY: "X"}
        self.seen: list[Producer] = []
        self.state = "none"
        self.present: Producer = NONE
        self.last_end_version = 0
        self.last_epoch_is_old = False

    # Names --------------------------------------------------------------------------------------

    def name(self, producer: Producer) -> str:
        if producer == NONE:
            return "-"
        known = self.names.setdefault(producer[0], f"P{len(self.names) - 1}")
        return f"{known}/{producer[1]}"

    def producer(self, name: str) -> Producer:
        """Who has a name."""
        if name == "-":
            return NONE
        known, epoch = name.split("/")
        (producer_id,) = (number for number, one in self.names.items() if one == known)
        return producer_id, int(epoch)

    def look(self) -> None:
        """Wait until no markers are being written, and see where we are."""
        while True:
            self.broker.send("describe_transactions", 0, transactional_ids=(self.id,))
            # kio does not read the time at which nothing began.
            answer = DescribeTransactionsResponse.decode(
                self.broker.payload(), version=0, header=True
            )
            (found,) = answer.transaction_states
            if found.transaction_state not in PREPARED:
                break
            time.sleep(0.002)
        if found.error_code == 0:
            self.state = found.transaction_state
            self.present = (found.producer_id, found.producer_epoch)
            if self.present not in self.seen:
                self.seen.append(self.present)

    # Requests -----------------------------------------------------------------------------------

    def ask_init(self, producer: Producer) -> None:
        answer = self.broker.ask(
            "init_producer_id",
            5,
            transactional_id=self.id,
            transaction_timeout=datetime.timedelta(milliseconds=self.timeout_ms),
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        asked = self.name(producer)
        told = self.name((answer.producer_id, answer.producer_epoch))
        self.lines.append(f"init {self.timeout_ms} {asked} -> {int(answer.error_code)} {told}")

    def ask_add(
        self, version: int, producer: Producer, partitions: Sequence[int], *, verify: bool = False
    ) -> None:
        topics = import_module(f"kio.schema.add_partitions_to_txn.v{version}.request")
        topic = topics.AddPartitionsToTxnTopic(name=TOPIC, partitions=tuple(partitions))
        if version < 4:
            answer = self.broker.ask(
                "add_partitions_to_txn",
                version,
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=(topic,),
            )
            (found,) = answer.results_by_topic_v3_and_below
        else:
            transaction = topics.AddPartitionsToTxnTransaction(
                transactional_id=self.id,
                producer_id=producer[0],
                producer_epoch=producer[1],
                verify_only=verify,
                topics=(topic,),
            )
            answer = self.broker.ask("add_partitions_to_txn", version, transactions=(transaction,))
            (result,) = answer.results_by_transaction
            (found,) = result.topic_results
        errors = {
            each.partition_index: int(each.partition_error_code)
            for each in found.results_by_partition
        }
        asked = " ".join(f"{TOPIC}-{partition}" for partition in partitions)
        told = " ".join(str(errors[partition]) for partition in partitions)
        what = "verify" if verify else f"add v{version}"
        self.lines.append(f"{what} {self.name(producer)} {asked} -> {told}")
        if not verify and not any(errors.values()):
            self.last_epoch_is_old = version < 4

    def ask_offsets(self, producer: Producer) -> None:
        answer = self.broker.ask(
            "add_offsets_to_txn",
            4,
            transactional_id=self.id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id="g",
        )
        # "g" is 103, of 4 partitions.
        self.lines.append(f"offsets {self.name(producer)} 3 -> {int(answer.error_code)}")
        self.last_epoch_is_old = self.last_epoch_is_old or answer.error_code == 0

    def ask_end(self, version: int, producer: Producer, *, is_commit: bool) -> None:
        answer = self.broker.ask(
            "end_txn",
            version,
            transactional_id=self.id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=is_commit,
        )
        told = NONE if version < 5 else (answer.producer_id, answer.producer_epoch)
        asked = f"{self.name(producer)} {'commit' if is_commit else 'abort'}"
        error = int(answer.error_code)
        self.lines.append(f"end v{version} {asked} -> {error} {self.name(told)}")
        if error == 0:
            self.last_end_version = 2 if version > 4 else 0
            self.last_epoch_is_old = version <= 4

    def timeout(self) -> None:
        if self.state != "Ongoing" or self.timeout_ms > 1000:
            return
        while self.state == "Ongoing":
            time.sleep(0.02)
            self.look()
        self.lines.append("timeout")
        self.last_end_version, self.last_epoch_is_old = 2, False

    def wind(self, epoch: int) -> None:
        """Initialize until the epoch is nearly used up; many requests are under way at a time."""
        fields: dict[str, Any] = {
            "transactional_id": self.id,
            "transaction_timeout": datetime.timedelta(milliseconds=self.timeout_ms),
        }
        left = epoch - self.present[1]
        while left:
            count = min(left, 200)
            kinds = [self.broker.send("init_producer_id", 5, **fields) for _ in range(count)]
            for kind in kinds:
                assert self.broker.receive(kind).error_code == 0
            left -= count
        self.look()
        assert self.present[1] == epoch
        self.lines.append(f"wind {self.name(self.present)}")

    # The journal --------------------------------------------------------------------------------

    def record(self, transaction: Any) -> str:
        partitions = " ".join(
            f"{topic}-{number}" for topic, number in sorted(transaction.partitions)
        )
        ids = (transaction.previous_producer_id, transaction.next_producer_id)
        before, following = ("-" if i < 0 else self.name((i, 0)).split("/")[0] for i in ids)
        return (
            f"= {transaction.state.value} "
            f"{self.name((transaction.producer_id, transaction.producer_epoch))} "
            f"before {before} next {following} "
            f"version {transaction.client_transaction_version.value} "
            f"timeout {transaction.timeout_ms} {partitions}"
        ).rstrip()


def records(talks: Sequence[Talk], data_dir: Path) -> dict[str, list[str]]:
    """What a broker has written about each talk."""
    by_id = {talk.id: talk for talk in talks}
    found: dict[str, list[str]] = {talk.id: [] for talk in talks}
    for key, value in _entries(data_dir / "__transaction_state-0"):
        written = decode_transaction(key, value)
        if written is not None and written.transactional_id in by_id:
            assert written.transaction is not None
            talk = by_id[written.transactional_id]
            found[talk.id].append(talk.record(written.transaction))
    # Of a wound talk the first line, and what came in the end.
    return {
        name: lines if len(lines) < _LINES_MAX else [lines[0], *lines[32700:]]
        for name, lines in found.items()
    }


def _entries(folder: Path) -> Iterator[tuple[bytes, bytes | None]]:
    for path in sorted(folder.glob("*.log")):
        data = memoryview(path.read_bytes())
        for position, header in iter_headers(data):
            yield from iter_entries(data[position : position + header.size_bytes])


def prepare(broker: Broker) -> None:
    """A topic, and the internal ones, which come into being when somebody asks for them."""
    topics = import_module("kio.schema.create_topics.v7.request")
    topic = topics.CreatableTopic(
        name=TOPIC, num_partitions=3, replication_factor=1, assignments=(), configs=()
    )
    timeout = datetime.timedelta(seconds=10)
    broker.ask("create_topics", 7, topics=(topic,), timeout=timeout, validate_only=False)
    for kind, key in ((0, "g"), (1, "talk")):
        while True:
            answer = broker.ask("find_coordinator", 4, key_type=kind, coordinator_keys=(key,))
            if answer.coordinators[0].error_code == 0:
                break
            time.sleep(0.2)
    minute = datetime.timedelta(minutes=1)
    first: dict[str, Any] = {"transactional_id": "first", "transaction_timeout": minute}
    while broker.ask("init_producer_id", 5, **first).error_code != 0:
        time.sleep(0.2)
