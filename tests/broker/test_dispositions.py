"""Records after their last attempt: the dead-letter topic, in order, and only then done."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.branch._kernels import xxh64
from anabranch.branch.slots import SlotRule
from anabranch.broker import dispositions
from anabranch.broker.broker import Broker
from anabranch.broker.dead_letters import ReadBatch, find_records, is_ordered
from anabranch.broker.deferred import Deferred
from anabranch.config.load import load_settings
from anabranch.coordinator.cooperative.acks import Ack, LogFacts
from anabranch.coordinator.cooperative.commands import (
    Action,
    Decision,
    Failure,
    PartitionAcks,
    TakeAcks,
    TakeDecisions,
)
from anabranch.coordinator.cooperative.progress import PartitionProgress
from anabranch.coordinator.cooperative.retries import exhausted_offsets
from anabranch.log.partition_log import PartitionLog
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.model.units import ALL_SLOTS
from anabranch.observe import logs, metrics
from anabranch.wire.record_batch import Record, build_batch, iter_headers, iter_records

GROUP = "g"
TOPIC = "t"
NOW_MS = 1_700_000_000_000
KEYS = (b"a", b"b", b"a", b"c", b"a", b"b", None)


def hash_of(key: bytes | None, offset: int) -> int:
    return xxh64((offset >> 6).to_bytes(8, "big") if key is None else key) >> 1


def records_of(log: PartitionLog) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start_offset
    while batches := log.read(offset, 1 << 20):
        for pos, header in iter_headers(batches):
            found += iter_records(batches[pos : pos + header.size_bytes])
            offset = header.next_offset
    return found


class Desk:
    """A broker without sockets, with a topic of two partitions, and a group without members."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        settings = load_settings(
            environ={},
            overrides=[f"log.dirs={folder}", "offsets.topic.num.partitions=1", *overrides],
        )
        self.broker = Broker(settings, now_ms=lambda: NOW_MS, steady_ms=lambda: NOW_MS)
        if self.broker.topics.get(TOPIC) is None:
            self.broker.create_topic(TOPIC, 2)
            for offset, key in enumerate(KEYS):
                headers = (("h", str(offset).encode()),)
                record = Record(0, NOW_MS - 5_000, key, f"v{offset}".encode(), headers)
                batch = bytearray(build_batch([record], base_offset=0))
                self.log.append(memoryview(batch), now_ms=NOW_MS)

    @property
    def log(self) -> PartitionLog:
        return self.broker.topics.partition(TOPIC, 1).log

    @property
    def place(self) -> tuple[bytes, int]:
        topic = self.broker.topics.get(TOPIC)
        assert topic is not None
        return topic.topic_id, 1

    @property
    def progress(self) -> PartitionProgress:
        return self.broker.groups.progress(GROUP)[self.place].progress

    @property
    def letters(self) -> list[Record]:
        """What the dead-letter topic has of the partition."""
        if self.broker.topics.get(f"{TOPIC}.dlq") is None:
            return []
        return records_of(self.broker.topics.partition(f"{TOPIC}.dlq", 1).log)

    def take(self, *acks: Ack, failures: tuple[Failure, ...] = ()) -> Any:
        end = self.log.log_end_offset
        part = PartitionAcks(
            topic=TOPIC,
            topic_id=self.place[0],
            partition=1,
            facts=LogFacts(self.log.log_start_offset, end, end, end),
            leader_epoch=0,
            acks=acks,
            failures=failures,
        )
        command = TakeAcks(group_id=GROUP, member_id="", member_epoch=-1, partitions=(part,))
        return self.broker.groups.submit(GROUP, command)

    def reject(self, *offsets: int) -> None:
        self.take(
            Ack(ALL_SLOTS, -1, 0),
            failures=tuple(
                Failure(one, hash_of(KEYS[one], one), -1, f"no {one}") for one in offsets
            ),
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)

    async def settled(self) -> None:
        """Until nothing waits and nobody works any more."""
        await self.until(lambda: not self.broker.groups.dispositions._tasks)


def run(
    folder: Path, story: Callable[[Desk], Awaitable[None]], *overrides: str, kill: bool = False
) -> None:
    async def told() -> None:
        desk = Desk(folder, *overrides)
        desk.broker.groups.start()
        try:
            await story(desk)
            if kill:
                # What a kill -9 leaves: the files as they are now.
                shutil.copytree(folder, folder.with_name("killed"))
        finally:
            desk.broker.groups.stop()
            await asyncio.sleep(0)
            desk.broker.close()

    asyncio.run(told())


def test_a_dead_letter(tmp_path: Path) -> None:
    """Key, value and headers as they were, where it comes from and why; then it is done."""

    async def story(desk: Desk) -> None:
        desk.reject(2)
        await desk.settled()
        (letter,) = desk.letters
        assert letter == Record(
            0,
            NOW_MS,
            b"a",
            b"v2",
            (
                ("h", b"2"),
                ("__dlq.errors.topic", b"t"),
                ("__dlq.errors.partition", b"1"),
                ("__dlq.errors.offset", b"2"),
                ("__dlq.errors.timestamp", str(NOW_MS - 5_000).encode()),
                ("__dlq.errors.group", b"g"),
                ("__dlq.errors.delivery.count", b"1"),
                ("__dlq.errors.message", b"no 2"),
            ),
        )
        assert desk.progress.attempts == {}
        assert desk.progress.diverted == {}
        assert desk.progress.is_done(hash_of(b"a", 2) >> 47, 2)
        topic = desk.broker.topics.get("t.dlq")
        assert topic is not None
        assert len(topic.partitions) == 2

    run(tmp_path / "d", story, "coop.disposition=dlq")


def test_block_key_leaves_it_to_people(tmp_path: Path) -> None:
    """Nothing is copied, and the record waits."""

    async def story(desk: Desk) -> None:
        desk.reject(2)
        await desk.settled()
        assert desk.broker.topics.get("t.dlq") is None
        assert exhausted_offsets(desk.progress) == [2]

    run(tmp_path / "d", story)


def test_dlq_key_diverts_the_key(tmp_path: Path) -> None:
    """Later records of the key follow in order, without a try; other keys do not."""

    async def story(desk: Desk) -> None:
        key_hash = hash_of(b"a", 0)
        desk.reject(0)
        await desk.settled()
        assert desk.progress.diverted == {key_hash: 0}
        desk.take(
            failures=tuple(Failure(one, key_hash, -2, "diverted") for one in (4, 2)),
        )
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"v0", b"v2", b"v4"]
        assert dict(desk.letters[2].headers)["__dlq.errors.message"] == (
            b"its key is diverted since offset 0"
        )
        desk.take(failures=(Failure(1, hash_of(b"b", 1), 0, "no"),))
        assert not exhausted_offsets(desk.progress)

    run(tmp_path / "d", story, "coop.disposition=dlq-key")


def test_records_without_a_key_divert_nothing(tmp_path: Path) -> None:
    """They keep no order with any other record."""

    async def story(desk: Desk) -> None:
        desk.reject(6)
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"v6"]
        assert desk.progress.diverted == {}

    run(tmp_path / "d", story, "coop.disposition=dlq-key")


def test_what_the_log_has_no_more(tmp_path: Path) -> None:
    """Is done: there is nothing to copy."""

    async def story(desk: Desk) -> None:
        desk.reject(0, 1)
        desk.log.delete_records_before(1)
        desk.broker.set_broker_configs("", {"coop.disposition": "dlq-key"})
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"v1"]
        assert desk.progress.attempts == {}
        assert list(desk.progress.diverted) == [hash_of(b"b", 1)]

    run(tmp_path / "d", story)


def test_all_that_waited_is_gone(tmp_path: Path) -> None:
    """Then nothing waits any more, and no topic is made for it."""

    async def story(desk: Desk) -> None:
        desk.reject(0)
        desk.log.delete_records_before(1)
        desk.broker.set_broker_configs("", {"coop.disposition": "dlq"})
        await desk.settled()
        assert desk.progress.attempts == {}
        assert desk.broker.topics.get("t.dlq") is None

    run(tmp_path / "d", story)


def test_found_again_after_a_start(tmp_path: Path) -> None:
    """What waited when the broker was killed is copied by the next one."""

    async def before(desk: Desk) -> None:
        desk.reject(2, 5)

    async def after(desk: Desk) -> None:
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"v2", b"v5"]
        assert desk.progress.attempts == {}

    run(tmp_path / "d", before)
    run(tmp_path / "d", after, "coop.disposition=dlq")


def test_killed_between_the_copy_and_its_ack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is not done before its copy is there; after a start it is copied again."""

    async def before(desk: Desk) -> None:
        copied = asyncio.Event()

        async def decide(*args: Any) -> None:
            copied.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(dispositions.Dispositions, "_decide", decide)
        desk.reject(2)
        await copied.wait()
        assert [one.value for one in desk.letters] == [b"v2"]
        assert exhausted_offsets(desk.progress) == [2]
        monkeypatch.undo()

    async def after(desk: Desk) -> None:
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"v2", b"v2"]
        assert desk.progress.attempts == {}

    run(tmp_path / "d", before, "coop.disposition=dlq", kill=True)
    run(tmp_path / "killed", after, "coop.disposition=dlq")


def test_the_copy_is_on_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where acks=all waits for the disk, so does the record; a disk that fails keeps it waiting."""
    monkeypatch.setattr(dispositions, "_PAUSE_FIRST_S", 0.001)

    async def story(desk: Desk) -> None:
        waiters: list[Callable[[bool], None]] = []

        def sync(log: PartitionLog, waiter: Callable[[bool], None]) -> None:
            if log.topic == "t.dlq":
                waiters.append(waiter)
            else:
                waiter(True)

        monkeypatch.setattr(desk.broker.flusher, "sync", sync)
        desk.reject(2)
        await desk.until(lambda: len(waiters) == 1)
        assert exhausted_offsets(desk.progress) == [2]
        waiters[0](False)
        await desk.until(lambda: len(waiters) == 2)
        assert exhausted_offsets(desk.progress) == [2]
        waiters[1](True)
        await desk.settled()
        assert exhausted_offsets(desk.progress) == []

    run(tmp_path / "d", story, "coop.disposition=dlq", "flush.on.acks.all=true")


def test_a_dead_letter_topic_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, records wait, and go as soon as there is one."""
    monkeypatch.setattr(dispositions, "_PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(dispositions, "_PAUSE_MAX_S", 0.002)
    said: list[str] = []
    told: list[str] = []

    async def story(desk: Desk) -> None:
        create, tries = desk.broker.create_topic, []

        def refuse(*args: Any) -> Any:
            if args[0] != "t.dlq":
                return create(*args)
            tries.append(args)
            if len(tries) < 5:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, "no more topics")
            return create(*args)

        monkeypatch.setattr(desk.broker, "create_topic", refuse)
        monkeypatch.setattr(logs, "error", lambda event, **fields: said.append(fields["reason"]))
        monkeypatch.setattr(logs, "info", lambda event, **fields: told.append(event))
        desk.reject(2)
        await desk.until(lambda: len(tries) > 3)
        assert exhausted_offsets(desk.progress) == [2]
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"v2"]
        assert said == ["no more topics"]
        assert "coop.disposition.works.again" in told

    run(tmp_path / "d", story, "coop.disposition=dlq")


@pytest.mark.parametrize("name", ["t", "__consumer_offsets"])
def test_topics_that_cannot_take_them(tmp_path: Path, name: str) -> None:
    """Its own topic would never end, and the broker's are the broker's."""

    async def story(desk: Desk) -> None:
        desk.reject(2)
        outcome = await answer_of(desk, 2)
        assert outcome.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert exhausted_offsets(desk.progress) == [2]

    run(tmp_path / "d", story, f"coop.dlq.topic={name}")


def test_a_branch_topic_takes_none(tmp_path: Path) -> None:
    """It has no records of its own."""

    async def story(desk: Desk) -> None:
        desk.broker.create_topic("other", 1)
        desk.broker.create_topic("t.dlq", 2, {"branch.source.topic": "other"})
        desk.reject(2)
        outcome = await answer_of(desk, 2)
        assert outcome.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "takes none of its own" in outcome.message

    run(tmp_path / "d", story)


def test_one_that_cannot_be_copied_holds_back_its_key_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of its key overtakes it, and copies that were made are not made again."""

    async def story(desk: Desk) -> None:
        desk.broker.create_topic("t.dlq", 2, {"max.message.bytes": "400"})
        records = [Record(0, NOW_MS, b"b", bytes(500), ()), Record(1, NOW_MS, b"b", b"late", ())]
        batch = bytearray(build_batch(records, base_offset=0))
        desk.log.append(memoryview(batch), now_ms=NOW_MS)
        monkeypatch.setattr(dispositions, "_PAUSE_FIRST_S", 0.001)
        large = len(KEYS)
        b = hash_of(b"b", 0)
        failures = [Failure(one, b, -1, "") for one in (large, large + 1, large - 2)]
        failures += [Failure(0, hash_of(b"a", 0), -1, "")]
        desk.take(Ack(ALL_SLOTS, -1, 0), failures=tuple(failures))
        await desk.until(lambda: exhausted_offsets(desk.progress) == [large, large + 1])
        await asyncio.sleep(0.02)
        assert [one.value for one in desk.letters] == [b"v0", b"v5"]

    run(tmp_path / "d", story, "coop.disposition=dlq")


def test_settings_may_change(tmp_path: Path) -> None:
    """What waits then follows them."""

    async def story(desk: Desk) -> None:
        desk.reject(2)
        await desk.settled()
        assert desk.letters == []
        desk.broker.set_broker_configs("", {"coop.disposition": "dlq", "coop.dlq.topic": "dead"})
        await desk.settled()
        assert len(records_of(desk.broker.topics.partition("dead", 1).log)) == 1

    run(tmp_path / "d", story)


def test_too_many_diverted_keys(tmp_path: Path) -> None:
    """Then records wait for somebody to release some; those of keys that are diverted still go."""

    async def story(desk: Desk) -> None:
        desk.reject(0, 1)
        await desk.settled()
        desk.reject(3)
        outcome = await answer_of(desk, 3)
        assert outcome.error_code is ErrorCode.POLICY_VIOLATION
        desk.reject(2)
        await desk.until(lambda: len(desk.letters) == 3)
        await desk.until(lambda: exhausted_offsets(desk.progress) == [3])

    run(tmp_path / "d", story, "coop.disposition=dlq-key", "coop.max.ranges=2")


def test_records_of_one_batch(tmp_path: Path) -> None:
    """Are found together, also when they are more than one round takes; the codec is kept."""

    async def story(desk: Desk) -> None:
        first = desk.log.log_end_offset
        count = 2 * dispositions._ROUND_RECORDS + 3
        records = [Record(i, NOW_MS, b"k%d" % i, b"w%d" % i, ()) for i in range(count)]
        batch = bytearray(build_batch(records, base_offset=0, codec=1))
        desk.log.append(memoryview(batch), now_ms=NOW_MS)
        failures = [Failure(first + i, hash_of(b"k%d" % i, 0), -1, "") for i in range(count)]
        desk.take(Ack(ALL_SLOTS, -1, 0), failures=tuple(failures))
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"w%d" % i for i in range(count)]
        log = desk.broker.topics.partition("t.dlq", 1).log
        assert {header.codec for _, header in iter_headers(log.read(0, 1 << 20))} == {1}

    run(tmp_path / "d", story, "coop.disposition=dlq")


def test_what_compaction_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is done as well: the batch is there, and the record is not."""
    records = [Record(i, NOW_MS, b"k", b"w%d" % i, ()) for i in (0, 2)]
    compacted = build_batch(records, base_offset=0, last_offset=2)
    assert sorted(find_records(compacted, {0, 1, 2})) == [0, 2]
    monkeypatch.setattr(dispositions, "read_batch", lambda log, offset: ReadBatch(compacted, 3))

    async def story(desk: Desk) -> None:
        desk.reject(0, 1, 2)
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"w0", b"w2"]
        assert desk.progress.attempts == {}

    run(tmp_path / "d", story, "coop.disposition=dlq")


@pytest.mark.parametrize(
    ("key", "headers", "rule", "expected"),
    [
        (b"k", (), SlotRule(), True),
        (None, (), SlotRule(), False),
        (None, (), SlotRule(is_null_key_ordered=True), True),
        (None, (("h", b"v"),), SlotRule(), False),
        (None, (("h", b"v"),), SlotRule(ordering_header=b"h"), True),
        (None, (("h", None),), SlotRule(ordering_header=b"h"), False),
        (None, (("other", b"v"),), SlotRule(ordering_header=b"h"), False),
    ],
)
def test_what_keeps_an_order(
    key: bytes | None, headers: tuple[tuple[str, bytes | None], ...], rule: SlotRule, expected: bool
) -> None:
    """Records with a key, or with what the topic takes for one."""
    assert is_ordered(Record(0, 0, key, b"", headers), rule) is expected


def test_metrics(tmp_path: Path) -> None:
    """What waits, what is diverted, and what was copied."""

    async def story(desk: Desk) -> None:
        desk.reject(0)
        await desk.settled()
        desk.broker.set_broker_configs("", {"coop.disposition": "block-key"})
        desk.reject(1, 3)
        found = dict(desk.broker.groups.dispositions.collect_metrics())
        place = (GROUP, TOPIC, "1")
        assert found == {
            metrics.GROUP_BLOCKED_RECORDS: {place: 2},
            metrics.GROUP_DIVERTED_KEYS: {place: 1},
            metrics.GROUP_DEAD_LETTERS: {(GROUP, TOPIC): 1},
        }

    run(tmp_path / "d", story, "coop.disposition=dlq-key")


# Administrators ---------------------------------------------------------------------------------


async def answer_of(desk: Desk, offset: int) -> Any:
    return await asked_of(desk, desk.place, offset)


async def asked_of(desk: Desk, place: tuple[bytes, int], offset: int) -> Any:
    outcomes: list[Any] = []
    desk.broker.groups.dispositions.bury(GROUP, place, offset).deliver_to(outcomes.append)
    await desk.until(lambda: bool(outcomes))
    return outcomes[0]


def test_an_administrator_sends_one(tmp_path: Path) -> None:
    """Whatever the disposition; only records that wait, and only once."""

    async def story(desk: Desk) -> None:
        desk.reject(2, 3)
        assert (await answer_of(desk, 2)).error_code is ErrorCode.NONE
        assert [one.value for one in desk.letters] == [b"v2"]
        assert exhausted_offsets(desk.progress) == [3]
        assert (await answer_of(desk, 2)).error_code is ErrorCode.RESOURCE_NOT_FOUND
        await desk.settled()
        assert desk.broker.groups.dispositions._asked.get((GROUP, desk.place)) in (None, {})

    run(tmp_path / "d", story)


def test_asked_for_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group without progress, and a topic that went."""
    said: list[str] = []

    async def story(desk: Desk) -> None:
        monkeypatch.setattr(logs, "error", lambda event, **fields: said.append(event))
        assert (await answer_of(desk, 2)).error_code is ErrorCode.RESOURCE_NOT_FOUND
        await desk.settled()
        desk.reject(2)
        monkeypatch.setattr(desk.broker.topics, "get_by_id", lambda topic_id: None)
        outcome = await asked_of(desk, (desk.place[0], 1), 2)
        assert outcome.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await desk.settled()
        assert said == []

    run(tmp_path / "d", story)


def test_two_that_come_at_once(tmp_path: Path) -> None:
    """Are worked off by one, each once."""

    async def story(desk: Desk) -> None:
        desk.reject(2)
        desk.reject(5)
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"v2", b"v5"]

    run(tmp_path / "d", story, "coop.disposition=dlq")


def test_a_journal_that_is_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is not done, whatever the memory says: it is tried again."""
    monkeypatch.setattr(dispositions, "_PAUSE_FIRST_S", 0.001)

    async def story(desk: Desk) -> None:
        submit, tries = desk.broker.groups.submit, []

        def fail(group_id: str, command: Any) -> Any:
            if not isinstance(command, TakeDecisions):
                return submit(group_id, command)
            tries.append(command)
            if len(tries) > 1:
                return submit(group_id, command)
            later: Deferred[Any] = Deferred()
            later.complete(KafkaError(ErrorCode.NOT_COORDINATOR, "The journal is not on disk."))
            return later

        monkeypatch.setattr(desk.broker.groups, "submit", fail)
        desk.reject(2)
        await desk.settled()
        assert len(tries) == 2
        assert desk.progress.attempts == {}

    run(tmp_path / "d", story, "coop.disposition=dlq")


def test_a_mistake_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Administrators get an answer, and the next one is tried."""

    async def story(desk: Desk) -> None:
        desk.reject(2)
        with monkeypatch.context() as patch:
            patch.setattr(dispositions, "dead_letter", lambda *args: 1 / 0)
            outcome = await answer_of(desk, 2)
        assert outcome.error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "ZeroDivisionError" in outcome.message
        assert (await answer_of(desk, 2)).error_code is ErrorCode.NONE

    run(tmp_path / "d", story)


def test_nothing_is_begun_after_the_end(tmp_path: Path) -> None:
    """What fails while the broker stops is found again by the next one."""

    async def story(desk: Desk) -> None:
        desk.broker.groups.dispositions.stop()
        desk.reject(2)
        assert not desk.broker.groups.dispositions._tasks

    run(tmp_path / "d", story, "coop.disposition=dlq")


def test_released_while_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is in the dead-letter topic and tried again: a copy too many, and never one short."""

    async def story(desk: Desk) -> None:
        decide = dispositions.Dispositions._decide

        async def slowly(self: Any, *args: Any) -> Any:
            release = TakeDecisions(
                group_id=GROUP,
                topic=TOPIC,
                topic_id=desk.place[0],
                partition=1,
                log_start_offset=0,
                decisions=(Decision(Action.RELEASE, 2),),
            )
            desk.broker.groups.submit(GROUP, release)
            return await decide(self, *args)

        monkeypatch.setattr(dispositions.Dispositions, "_decide", slowly)
        desk.reject(2)
        await desk.settled()
        assert len(desk.letters) == 1
        assert not desk.progress.is_done(hash_of(b"a", 2) >> 47, 2)

    run(tmp_path / "d", story, "coop.disposition=dlq")


def test_stopping_answers_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look elsewhere."""
    outcomes: list[Any] = []

    async def story(desk: Desk) -> None:
        desk.reject(2)
        monkeypatch.setattr(desk.broker.flusher, "sync", lambda log, waiter: None)
        outcome = desk.broker.groups.dispositions.bury(GROUP, desk.place, 2)
        outcome.deliver_to(outcomes.append)
        await asyncio.sleep(0.01)

    run(tmp_path / "d", story, "flush.on.acks.all=true")
    assert [one.error_code for one in outcomes] == [ErrorCode.NOT_COORDINATOR]
