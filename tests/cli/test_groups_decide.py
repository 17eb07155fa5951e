"""`anabranch groups release|skip|dlq`: records that nobody could process, and what frees them."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from command_result import Result
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from groups_kit import TIMEOUT_S, GroupsKit

from anabranch.branch.key_hash import key_hash_of
from anabranch.client import ConsumerRecord, SyncCooperativeConsumer
from support.confluent_client import QUICK
from support.raw_client import RawClient

_names = count(1)


class Blocked:
    """A topic of four records with the keys a, b, a, b, and a member that rejects the first two."""

    def __init__(self, kit: GroupsKit) -> None:
        self.kit = kit
        number = next(_names)
        self.group, self.topic = f"stuck-{number}", f"rejected-{number}"
        topic = NewTopic(self.topic, 1, 1, config={"range.fetch.enable": "true"})
        kit.admin.create_topics([topic])[self.topic].result(TIMEOUT_S)
        producer = Producer({**QUICK, "bootstrap.servers": kit.bootstrap})
        for number, key in enumerate("abab"):
            producer.produce(self.topic, b"%d" % number, key=key.encode(), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        self.member = SyncCooperativeConsumer(
            bootstrap_servers=kit.bootstrap,
            group_id=self.group,
            auto_commit_interval_ms=100,
        )
        self.member.subscribe([self.topic])

    def reject(self, *offsets: int) -> None:
        """Take all records, and reject some: those of their keys that follow wait."""
        records = self.take(4)
        for offset in offsets:
            self.member.nack(records[offset], retry_after_s=None, reason=f"no {offset}")
        self.member.commit()

    def take(self, number: int) -> dict[int, ConsumerRecord]:
        found: dict[int, ConsumerRecord] = {}
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(found) < number:
            assert time.monotonic() < deadline_s, f"{sorted(found)} are not {number} records"
            found |= {record.offset: record for record in self.member.poll(0.1)}
        return found

    def place(self) -> tuple[str, ...]:
        return (self.group, "--topic", self.topic, "--partition", "0")

    def letters(self) -> list[bytes | None]:
        with RawClient(self.kit.bootstrap) as client:
            return [one.value for one in client.read_all(f"{self.topic}.dlq", 0)]

    def dispose(self, disposition: str) -> None:
        """Set the disposition of the group."""
        entry = ConfigEntry(
            "coop.disposition", disposition, incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource("GROUP", self.group, incremental_configs=[entry])
        self.kit.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


@pytest.fixture
def blocked(kit: GroupsKit) -> Iterator[Blocked]:
    found = Blocked(kit)
    yield found
    found.member.close()


Groups = Callable[..., Result]


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.out)
    return found


def test_a_record_is_released(groups: Groups, blocked: Blocked) -> None:
    """Shown with the reason before, it comes back to its owner as if for the first time."""
    blocked.reject(0)
    result = groups("release", *blocked.place(), "--offset", "0", "--yes")
    assert result.code == 0, result.err
    head, row = result.out.splitlines()
    assert head.split()[3:] == ["OFFSET", "KEY-HASH", "ATTEMPTS", "BEFORE", "AFTER", "REASON"]
    assert row.split()[3:6] == ["0", str(key_hash_of(b"a")), "1"]
    assert "blocked, and its key with it  tried again" in row
    assert row.endswith("no 0")
    assert result.err.startswith("Release: 1 record; the stable offset of")
    again = blocked.take(2)
    assert [(offset, one.attempt) for offset, one in sorted(again.items())] == [(0, 1), (2, 1)]


def test_tsv_and_the_doctor_see_them(
    groups: Groups, blocked: Blocked, run: Callable[..., Result]
) -> None:
    """What waits for a decision is a table for programs, and a problem that doctor finds."""
    blocked.reject(0)
    result = groups("skip", *blocked.place(), "--all", "--dry-run", "--format", "tsv")
    head, row = [line.split("\t") for line in result.out.splitlines()]
    assert head[3:] == ["OFFSET", "KEY-HASH", "ATTEMPTS", "BEFORE", "AFTER", "REASON"]
    assert row[:4] == [blocked.group, blocked.topic, "0", "0"] and row[-1] == "no 0"
    server = ("--bootstrap-server", blocked.kit.bootstrap)
    seen = run("doctor", "--only", "broker", "--watch", "0", "--format", "json", *server)
    assert seen.code == 1
    problems = {
        (one["check"], one["subject"]) for one in seen.document if one["status"] == "problem"
    }
    assert ("cooperation", f"{blocked.group} on {blocked.topic}-0") in problems


def test_records_of_a_key_are_skipped(groups: Groups, blocked: Blocked) -> None:
    """The key goes on behind them; the stable offset is told before and after."""
    blocked.reject(0, 1)
    result = groups("skip", *blocked.place(), "--key", "a", "--yes", "--format", "json")
    assert result.code == 0, result.err
    (row,) = rows(result)
    assert (row["offset"], row["status"], row["error"]) == (0, "done", None)
    assert row["after"] == "done, without being processed"
    assert sorted(blocked.take(1)) == [2]


def test_all_records_go_to_the_dead_letter_topic(groups: Groups, blocked: Blocked) -> None:
    """They are there when the command is done."""
    blocked.reject(0, 1)
    result = groups("dlq", *blocked.place(), "--all", "--yes")
    assert result.code == 0, result.err
    assert "Dlq: 2 records" in result.err
    assert blocked.letters() == [b"0", b"1"]
    assert sorted(blocked.take(2)) == [2, 3]


def test_a_look_before(groups: Groups, blocked: Blocked) -> None:
    """--dry-run shows what would happen, and nothing does; without --yes nobody can be asked."""
    blocked.reject(0)
    result = groups("skip", *blocked.place(), "--all", "--dry-run")
    assert (result.code, result.err) == (0, "Nothing was changed (--dry-run).\n")
    assert len(result.out.splitlines()) == 2
    result = groups("skip", *blocked.place(), "--all", "--dry-run", "--format", "json")
    assert [row["status"] for row in rows(result)] == ["valid"]
    result = groups("skip", *blocked.place(), "--all")
    assert result.code == 2
    assert "pass --yes" in result.err
    result = groups("skip", *blocked.place(), "--all", "--yes")
    assert result.code == 0, result.err


def test_nothing_waits(groups: Groups, blocked: Blocked) -> None:
    """Neither such a record, nor one of such a key, nor any."""
    blocked.reject(1)
    for verb, given in (
        ("release", ("--offset", "0")),
        ("skip", ("--key", "a")),
        ("dlq", ("--key-hash", "5")),
    ):
        result = groups(verb, *blocked.place(), *given, "--yes")
        assert result.code == 1
        assert "waits" in result.err or "does not wait" in result.err
        assert f"groups describe {blocked.group} --ranges" in result.err
    assert groups("skip", *blocked.place(), "--all", "--yes").code == 0
    result = groups("skip", *blocked.place(), "--all", "--yes")
    assert result.code == 1
    assert "Nothing waits" in result.err


def test_what_has_to_be_said(groups: Groups, blocked: Blocked) -> None:
    """One way to say which records are meant."""
    result = groups("release", *blocked.place())
    assert result.code == 2
    assert "say what: --offset, --key, --key-hash or --all" in result.err
    result = groups("release", *blocked.place(), "--all", "--offset", "3")
    assert result.code == 2
    assert "exclude each other" in result.err


def test_no_such_group_or_partition(groups: Groups, blocked: Blocked) -> None:
    """Is told as by the other commands."""
    result = groups("skip", "nobody", *blocked.place()[1:], "--all", "--yes")
    assert result.code == 1
    assert "nobody" in result.err
    blocked.reject(0)
    where = (blocked.group, "--topic", blocked.topic, "--partition", "7")
    result = groups("skip", *where, "--all", "--yes")
    assert result.code == 1


def test_a_diverted_key(groups: Groups, blocked: Blocked) -> None:
    """Is shown with the command that releases it, which says what it was and will be."""
    blocked.dispose("dlq-key")
    blocked.reject(0)
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        blocked.member.poll(0.1)
        result = groups("describe", blocked.group, "--ranges")
        if "DIVERTED-KEY-HASH" in result.out and len(blocked.letters()) == 2:
            break
        assert time.monotonic() < deadline_s, result.out
    assert blocked.letters() == [b"0", b"2"]
    hashed = str(key_hash_of(b"a"))
    assert f"groups release {' '.join(blocked.place())} --key-hash {hashed}" in result.err
    result = groups("release", *blocked.place(), "--key", "a", "--yes")
    assert result.code == 0, result.err
    assert "diverted since offset 0  processed again" in result.out
    assert "Release: 1 key;" in result.err
    result = groups("release", *blocked.place(), "--key", "a", "--yes")
    assert result.code == 1


def test_describe_names_the_way_out(groups: Groups, blocked: Blocked) -> None:
    """The record, why it waits, and the command that frees it."""
    blocked.reject(0)
    result = groups("describe", blocked.group, "--ranges")
    assert f"{blocked.topic}-0: record 0 waits after attempt 1 (no 0)" in result.err
    assert f"anabranch groups release {' '.join(blocked.place())} --offset 0`" in result.err
