"""What Apache Kafka's coordinator answered and wrote, request by request: ours does the same.

The talks are in `golden/kafka_talks.txt`; `compat/answers/record_transactions.py` made them, and
says how they read. Markers are written before the next request, as they were there.
"""

import re
from pathlib import Path

import pytest
from transaction_story import ID, V0, V2, Step, Story

from anabranch.coordinator.transaction.commands import AllocateProducerId
from anabranch.coordinator.transaction.records import TransactionWritten
from anabranch.coordinator.transaction.state import TopicPartition, Transaction

GOLDEN = Path(__file__).parent / "golden" / "kafka_talks.txt"
NOBODY = 999_999_999
NONE = (-1, -1)


def talks() -> dict[str, tuple[list[str], list[str]]]:
    """By name: requests with their answers, and records."""
    found = {}
    for part in GOLDEN.read_text().split("\n# ")[1:]:
        name, *lines = part.strip().splitlines()
        found[name] = (
            [line for line in lines if not line.startswith("=")],
            [line for line in lines if line.startswith("=")],
        )
    return found


TALKS = talks()


class Talk:
    """One talk told again to our coordinator."""

    def __init__(self) -> None:
        self.story = Story()
        self.ids: dict[str, int] = {"X": NOBODY}
        self.names: dict[int, str] = {NOBODY: "X"}

    def name(self, producer_id: int, epoch: int) -> str:
        if (producer_id, epoch) == NONE:
            return "-"
        name = self.names.setdefault(producer_id, f"P{len(self.names) - 1}")
        self.ids[name] = producer_id
        return f"{name}/{epoch}"

    def producer(self, text: str) -> tuple[int, int]:
        if text == "-":
            return NONE
        name, epoch = text.split("/")
        return self.ids[name], int(epoch)

    def answer(self, request: str) -> str:
        """Carry a request out, and what is to be done then; the answer as it is written down."""
        what, *words = request.split()
        match what:
            case "init":
                producer = self.producer(words[1])
                step = self.story.init(*producer, timeout_ms=int(words[0]))
                told = self.with_producer(step)
            case "add":
                step = self.story.add(
                    *self.producer(words[1]),
                    *partitions(words[2:]),
                    transaction_version=V2 if words[0] == "v5" else V0,
                )
                told = " ".join([str(step.answer.error.value)] * len(words[2:]))
            case "verify":
                step = self.story.verify(*self.producer(words[0]), *partitions(words[1:]))
                errors = step.answer.errors or [step.answer.error] * len(words[1:])
                told = " ".join(str(error.value) for error in errors)
            case "offsets":
                step = self.story.offsets(*self.producer(words[0]))
                told = str(step.answer.error.value)
            case "end":
                step = self.story.end(
                    *self.producer(words[1]),
                    commit=words[2] == "commit",
                    transaction_version=V2 if words[0] == "v5" else V0,
                )
                told = self.with_producer(step)
            case _:
                raise LookupError(request)
        if self.story.tasks:
            self.story.markers()
        self.look()
        return told

    def look(self) -> None:
        """See which producer there is: not every new one is told to the one that was before."""
        transaction = self.story.shard.transaction(ID)
        if transaction is not None:
            self.name(transaction.producer_id, transaction.producer_epoch)

    def with_producer(self, step: Step) -> str:
        answer = step.answer
        return f"{answer.error.value} {self.name(answer.producer_id, answer.producer_epoch)}"

    def wait_for_timeout(self) -> None:
        self.story.wait(self.story.transaction().timeout_ms + 1)
        if isinstance(self.story.tasks[0], AllocateProducerId):
            self.story.allocated(5000)
        self.story.markers()
        self.look()

    def record(self, transaction: Transaction) -> str:
        words = [
            f"= {transaction.state.value}",
            self.name(transaction.producer_id, transaction.producer_epoch),
            f"before {self.id_name(transaction.previous_producer_id)}",
            f"next {self.id_name(transaction.next_producer_id)}",
            f"version {transaction.client_transaction_version.value}",
            f"timeout {transaction.timeout_ms}",
            *(f"{topic}-{number}" for topic, number in sorted(transaction.partitions)),
        ]
        return " ".join(words)

    def id_name(self, producer_id: int) -> str:
        return "-" if producer_id < 0 else self.name(producer_id, 0).split("/")[0]


def partitions(words: list[str]) -> list[TopicPartition]:
    return [(topic, int(number)) for topic, number in (word.split("-") for word in words)]


@pytest.mark.parametrize("name", TALKS)
def test_a_talk_goes_as_with_kafka(name):
    """Every answer is Kafka's, and so is every record."""
    requests, records = TALKS[name]
    talk = Talk()
    told = []
    skipped = 0
    for line in requests:
        if line == "timeout":
            talk.wait_for_timeout()
            told.append(line)
        elif line.startswith("wind"):
            skipped = len(talk.story.records)
            talk.story.wind(int(line.split("/")[1]))
            told.append(line)
        else:
            request = line.split(" -> ")[0]
            told.append(f"{request} -> {talk.answer(request)}")
    assert told == requests
    written = [
        talk.record(record.transaction)
        for record in talk.story.records
        if isinstance(record, TransactionWritten)
    ]
    if skipped:
        wound = written[skipped]
        assert wound in records
        records = records[records.index(wound) :]
        written = written[skipped:]
    assert written == records


def test_the_talks_are_about_everything():
    """Each request and each error is among them."""
    text = GOLDEN.read_text()
    assert ID not in text
    for pattern in (
        r"^init \d+ P0/\d+ -> 0 P0/\d+$",
        r"^init \d+ - -> 51 -$",
        r"^init \d+ P\d/\d+ -> 90 -$",
        r"^init \d+ P0/32766 -> 0 P1/0$",
        r"^end v5 P0/32766 (commit|abort) -> 0 P1/0$",
        r"^end v5 P0/\d+ commit -> 48 -$",
        r"^end v4 P0/\d+ commit -> 0 -$",
        r"^add v3 .* -> 90$",
        r"^verify .* -> 120",
        r"^offsets .* -> 0$",
        r"^timeout$",
        r"^= PrepareAbort P0/32767 before P0 next P1",
    ):
        assert re.search(pattern, text, re.MULTILINE), pattern
