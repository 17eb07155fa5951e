"""`anabranch groups describe --ranges`, and resets, where members share partitions by key."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
from command_result import Result
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from groups_kit import TIMEOUT_S, GroupsKit

from anabranch.branch._kernels import xxh64
from anabranch.branch.slots import branch_of_slot, slot_of_key
from anabranch.cli.groups import range_output, range_questions
from anabranch.client import (
    ConsumerRecord,
    DivertedKey,
    GroupProgress,
    GroupRange,
    HotRange,
    KeyRange,
    PartitionProgress,
    RequestTimedOutError,
    SyncCooperativeConsumer,
)
from anabranch.model.units import SLOT_COUNT, SlotRange, hashes_of
from support.confluent_client import QUICK

HALF = SLOT_COUNT // 2
LOW, HIGH = SlotRange(0, HALF), SlotRange(HALF, SLOT_COUNT)
_names = count(1)


def key_of(half: int) -> bytes:
    """A key whose slot is in the lower (0) or the upper (1) half."""
    keys = (b"%d" % number for number in count())
    return next(key for key in keys if branch_of_slot(slot_of_key(key), 2) == half)


KEYS = [key_of(0), key_of(1)]


class Shared:
    """A topic that may be shared, with one partition, and a group."""

    def __init__(self, kit: GroupsKit, *, is_shareable: bool = True) -> None:
        self.kit = kit
        number = next(_names)
        self.group = f"sharing-{number}"
        self.topic = f"shared-{number}"
        config = {"range.fetch.enable": "true"} if is_shareable else {}
        topic = NewTopic(self.topic, 1, 1, config=config)
        kit.admin.create_topics([topic])[self.topic].result(TIMEOUT_S)

    def produce(self, *halves: int) -> None:
        """Records of which each has a key in one half of the slots."""
        producer = Producer({**QUICK, "bootstrap.servers": self.kit.bootstrap})
        for half in halves:
            producer.produce(self.topic, b"v", key=KEYS[half], partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    @contextmanager
    def member(self, name: str = "worker") -> Iterator[SyncCooperativeConsumer]:
        """A member that says what it did only when a test has it commit."""
        with SyncCooperativeConsumer(
            bootstrap_servers=self.kit.bootstrap,
            group_id=self.group,
            client_id=name,
            auto_commit_interval_ms=None,
        ) as consumer:
            consumer.subscribe([self.topic])
            yield consumer

    @contextmanager
    def pair(self) -> Iterator[dict[int, SyncCooperativeConsumer]]:
        """Two members, by the half that each of them owns; records are produced after it."""
        with ExitStack() as stack:
            both = [stack.enter_context(self.member(f"worker-{n}")) for n in range(2)]
            deadline_s = time.monotonic() + TIMEOUT_S
            while True:
                for consumer in both:
                    assert consumer.poll(0.05) == []
                owned = [[one.key_range.slots for one in c.progress().ranges] for c in both]
                if sorted(owned) == [[LOW], [HIGH]]:
                    break
                assert time.monotonic() < deadline_s, owned
            yield {number: both[owned.index([half])] for number, half in enumerate((LOW, HIGH))}

    def plain_member(self) -> Any:
        return self.kit.member(self.group, self.topic, owning=1)


def take(consumer: SyncCooperativeConsumer, number: int) -> dict[int, ConsumerRecord]:
    """So many records, by offset."""
    found: dict[int, ConsumerRecord] = {}
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(found) < number:
        assert time.monotonic() < deadline_s, f"{sorted(found)} are not {number} records"
        found |= {record.offset: record for record in consumer.poll(0.1)}
    return found


def do(consumer: SyncCooperativeConsumer, records: dict[int, ConsumerRecord], *done: int) -> None:
    """Acknowledge some records, and commit."""
    for offset in done:
        assert consumer.ack(records[offset])
    consumer.commit()


@pytest.fixture
def shared(kit: GroupsKit) -> Shared:
    return Shared(kit)


@pytest.fixture
def ranges(groups: Callable[..., Result], shared: Shared) -> Callable[[], Any]:
    """The one partition of the group, as JSON shows it."""

    def describe() -> Any:
        result = groups("describe", shared.group, "--ranges", "--format", "json")
        assert result.code == 0, result.err
        (document,) = result.document
        (partition,) = document["individual_progress"]
        return partition

    return describe


# What is shown ------------------------------------------------------------------------------------


def test_two_members_of_one_partition(groups: Callable[..., Result], shared: Shared) -> None:
    """Tables of partitions and ranges, and the sentence that names who holds the stable offset."""
    with shared.pair() as members:
        shared.produce(0, 1, 0, 1, 0, 1, 0)
        low, high = take(members[0], 4), take(members[1], 3)
        do(members[0], low, 4)
        do(members[1], high, 1, 3)
        ids = [members[half].progress().member_id for half in (0, 1)]
        epochs = [str(members[half].progress().ranges[0].epoch) for half in (0, 1)]
        result = groups("describe", shared.group, "--ranges")
    assert result.code == 0, result.err
    partitions, rows = result.out.split("\n\n")
    head, row = partitions.splitlines()
    assert head.split() == [
        *("GROUP", "TOPIC", "PARTITION", "STABLE-OFFSET", "HIGH-WATERMARK", "WINDOW"),
        *("IN-FLIGHT", "OLDEST-OPEN", "AGE", "STALLED", "#RANGES", "#RETRIED"),
    ]
    cells = row.split()
    assert cells[:8] == [shared.group, shared.topic, "0", "0", "7", "6", "5", "0"]
    assert re.fullmatch(r"\d+ms|[\d.]+s", cells[8])
    assert cells[10:] == ["2", "0"]
    head, first, second = rows.splitlines()
    assert head.split() == [
        *("GROUP", "TOPIC", "PARTITION", "SLOTS", "CONSUMER-ID", "CLIENT-ID", "EPOCH"),
        *("WATERMARK", "DELIVERED", "IN-FLIGHT", "GAPS", "DONE-ABOVE"),
    ]
    place = [shared.group, shared.topic, "0"]
    names = [line.split()[5] for line in (first, second)]
    assert sorted(names) == ["worker-0", "worker-1"]
    assert first.split()[:7] == [*place, "0-32767", ids[0], names[0], epochs[0]]
    # Offset 4, and on both sides of it one of the other member's.
    cells = first.split()
    assert cells[7:] == ["0", "7", "4", "1", "3"]
    assert second.split()[:7] == [*place, "32768-65535", ids[1], names[1], epochs[1]]
    cells = second.split()
    assert cells[7:] == ["5", "7", "2", "0", "0"]
    (sentence,) = (line for line in result.err.splitlines() if "stays at" in line)
    assert sentence.startswith(f"{shared.group}: the stable offset of {shared.topic}-0 stays at 0")
    assert f"{names[0]} ({ids[0]})" in sentence
    assert f"offset 0 (key {KEYS[0].decode()}, " in sentence
    assert sentence.endswith(
        "; up to 5 records of other ranges and 3 records of its own are done above it."
    )


def test_ranges_in_json(shared: Shared, ranges: Callable[[], Any]) -> None:
    """The same with the names of its fields, and every range of offsets that is done."""
    shared.produce(0, 0, 0, 0, 0)
    with shared.member() as member:
        records = take(member, 5)
        do(member, records, 0, 2, 4)
        found = ranges()
        (own,) = member.progress().ranges
        owner = {
            "consumer_id": member.progress().member_id,
            "client_id": "worker",
            "epoch": own.epoch,
        }
    slots = {"first_slot": 0, "last_slot": SLOT_COUNT - 1}
    assert found.pop("why").endswith("; up to 2 records of its own are done above it.")
    oldest = found.pop("oldest_open")
    assert 0 <= oldest.pop("age_ms") < 60_000
    assert abs(oldest.pop("timestamp_ms") / 1000 - time.time()) < 60
    assert oldest == {
        "offset": 1,
        "slot": slot_of_key(KEYS[0]),
        "key": KEYS[0].decode(),
        "key_encoding": "utf-8",
    }
    del found["stalled_ms"]  # whether it has stood still for long enough already
    assert found == {
        "topic": shared.topic,
        "partition": 0,
        "stable_offset": 1,
        "high_watermark": 5,
        "window": 4,
        "in_flight": 2,
        "is_shareable": True,
        "held_by": {
            **slots,
            **owner,
            "since_offset": 1,
            "offset": 1,
            "other_ranges": 0,
            "own_done_above": 2,
            "others_done_above": 0,
            "is_retried": False,
            "is_shown": True,
            "is_moving": False,
        },
        "ranges": [
            {
                **slots,
                **owner,
                "watermark": 1,
                "delivered_offset": 5,
                "in_flight": 2,
                "oldest_open_offset": 1,
                "done_ranges": 2,
                "done_offsets": 2,
                "done": [{"first": 2, "last": 2}, {"first": 4, "last": 4}],
                "gaps": [{"first": 1, "last": 1}, {"first": 3, "last": 3}],
            }
        ],
        "retried": [],
        "diverted": [],
        "hot": [],
    }


def test_a_record_that_failed(
    groups: Callable[..., Result], shared: Shared, ranges: Callable[[], Any]
) -> None:
    """Its attempts, its rest and its reason, in a table of its own and in the sentence."""
    shared.produce(0, 1, 0)
    with shared.member() as member:
        records = take(member, 3)
        assert member.nack(records[0], retry_after_s=60, reason="no\nstock")
        do(member, records, 1)
        result = groups("describe", shared.group, "--ranges")
        found = ranges()
    table = result.out.split("\n\n")[2]
    head, row = table.splitlines()
    assert head.split() == [
        *("GROUP", "TOPIC", "PARTITION", "OFFSET"),
        *("SLOTS", "KEY-HASH", "ATTEMPTS", "REST", "REASON"),
    ]
    *cells, attempts, rest, reason = row.split()
    key_hash = xxh64(KEYS[0]) >> 1
    assert cells == [shared.group, shared.topic, "0", "0", "0-65535", str(key_hash)]
    assert (attempts, reason) == ("1", r"no\nstock")
    assert 0 < float(rest.removesuffix("s")) <= 60
    assert r"failed 1 time (no\nstock) and rests for another" in result.err
    (retried,) = found["retried"]
    assert 0 < retried.pop("rest_ms") <= 60_000
    assert retried == {
        "offset": 0,
        "key_hash": key_hash,
        "attempts": 1,
        "is_exhausted": False,
        "reason": "no\nstock",
        "first_slot": 0,
        "last_slot": SLOT_COUNT - 1,
    }
    assert found["held_by"]["is_retried"]


def test_a_record_that_is_not_tried_again(shared: Shared, ranges: Callable[[], Any]) -> None:
    """It rests until somebody decides about it, and is told apart."""
    shared.produce(0)
    with shared.member() as member:
        assert member.nack(take(member, 1)[0], retry_after_s=None)
        member.commit()
        found = ranges()
    (retried,) = found["retried"]
    assert (retried["rest_ms"], retried["is_exhausted"]) == (None, True)
    told = "is not tried again until somebody decides about it (anabranch groups release, skip or"
    assert told in found["why"]


def test_nobody_owns_what_is_left(
    groups: Callable[..., Result], shared: Shared, ranges: Callable[[], Any]
) -> None:
    """When the members are gone their progress is there, and it is said that nobody goes on."""
    shared.produce(0, 1, 0)
    with shared.member() as member:
        do(member, take(member, 3), 1, 2)
    found = ranges()
    assert found["held_by"]["consumer_id"] is None
    assert "nobody owns slots 0-65535, which wait for offset 0 (key " in found["why"]
    assert found["ranges"][0]["done"] == [{"first": 1, "last": 2}]
    assert "has no active members" in groups("describe", shared.group, "--ranges").err


def test_all_is_done(shared: Shared, ranges: Callable[[], Any]) -> None:
    """Nothing is open, and nobody holds anything."""
    shared.produce(0, 1)
    with shared.member() as member:
        do(member, take(member, 2), 1, 0)
        found = ranges()
    assert (found["stable_offset"], found["window"], found["held_by"]) == (2, 0, None)
    assert found["ranges"][0]["oldest_open_offset"] is None
    assert found["why"].endswith("is 2: nothing is left to do.")


def test_partitions_that_nobody_shares(groups: Callable[..., Result], kit: GroupsKit) -> None:
    """One range, whose owner is that of the partition, also where groups know no ranges."""
    plain = Shared(kit, is_shareable=False)
    plain.produce(0, 1)
    with plain.plain_member():
        owned = groups("describe", plain.group, "--ranges")
    assert "0-65535  " in owned.out
    assert f"{plain.group}-client" in owned.out
    assert f"there is no stable offset of {plain.topic}-0: nothing was committed" in owned.err
    kit.commit(plain.group, plain.topic, {0: 1})
    result = groups("describe", plain.group, "--ranges")
    assert "wait for offset 1 (key " in result.err
    assert "; nothing above it is done.\n" in result.err


def test_other_views_are_as_before(groups: Callable[..., Result], shared: Shared) -> None:
    """Only who asks for ranges sees them."""
    shared.produce(0, 0)
    with shared.member() as member:
        do(member, take(member, 2), 1)
    for view in ("--offsets", "--members", "--state", "--summary", "--movements"):
        result = groups("describe", shared.group, view, "--format", "json")
        assert "individual_progress" not in result.document[0]
        assert "WATERMARK" not in groups("describe", shared.group, view).out
    both = groups("describe", shared.group, "--ranges", "--state")
    assert both.code == 2
    assert "--state and --ranges exclude each other" in both.err


def test_a_hand_over_that_waits(groups: Callable[..., Result], shared: Shared) -> None:
    """A member that is to give up keys and still works on them is what holds the stable offset."""
    shared.produce(0, 1)
    with shared.member("old") as old, shared.member("new") as new:
        records = take(old, 2)
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            assert time.monotonic() < deadline_s
            assert old.poll(0.05) == new.poll(0.05) == []
            document = groups("describe", shared.group, "--ranges", "--format", "json").document[0]
            if document["movements"]:
                break
        (moving,) = document["movements"]
        assert (moving["topic"], moving["partition"]) == (shared.topic, 0)
        ids = [member.progress().member_id for member in (old, new)]
        assert [moving["from_consumer_id"], moving["to_consumer_id"]] == ids
        first, last = moving["first_slot"], moving["last_slot"]
        assert (first, last) in ((0, HALF - 1), (HALF, SLOT_COUNT - 1))
        (row,) = groups("describe", shared.group, "--movements").out.splitlines()[1:]
        assert row.split()[3:7] == [f"{first}-{last}", "revoking", *ids]
        # What of the two records is not on its way is done, and the other one is what is left.
        going = 0 if first == 0 else 1
        do(old, records, 1 - going)
        result = groups("describe", shared.group, "--ranges")
    (sentence,) = (line for line in result.err.splitlines() if "stable offset" in line)
    assert f"old ({ids[0]}) is to hand slots {first}-{last} over to {ids[1]}" in sentence
    assert f"and still has offset {going} (key " in sentence


def test_all_groups_at_once(groups: Callable[..., Result], shared: Shared, kit: GroupsKit) -> None:
    """Each has its own partitions; those of a topic that is gone are left out."""
    shared.produce(0)
    other = Shared(kit)
    for group in (shared.group, other.group):
        kit.commit(group, shared.topic, {0: 0})
    kit.commit(other.group, other.topic, {0: 0})
    kit.delete_topic(other.topic)
    result = groups("describe", "--all", "--ranges", "--format", "json")
    assert result.code == 0, result.err
    found = {each["group"]: each["individual_progress"] for each in result.document}
    for group in (shared.group, other.group):
        assert [each["topic"] for each in found[group]] == [shared.topic]


def test_a_broker_that_cannot_be_asked(
    groups: Callable[..., Result], shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for ranges and gets none is told why, and the command has failed."""
    shared.kit.commit(shared.group, shared.topic, {0: 0})

    async def refuse(*args: object, **more: object) -> None:
        raise RequestTimedOutError("timed out")

    monkeypatch.setattr(range_questions, "group_progress", refuse)
    result = groups("describe", shared.group, "--ranges")
    assert result.code == 1
    assert "timed out" in result.err


def test_keys_that_are_special(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys that go to the dead-letter topic, and those that are most of the work, are named."""
    slot = 7
    first_hash, last_hash = hashes_of(SlotRange(slot, slot + 1))
    partition = PartitionProgress(
        topic="orders",
        partition=3,
        stable_offset=5,
        high_watermark=5,
        ranges=(GroupRange(key_range=KeyRange.whole(), watermark=5),),
        diverted=(DivertedKey(key_hash=last_hash, offset=4),),
        hot=(
            HotRange(key_range=KeyRange(first_hash, last_hash), share=0.25, key=b"whale"),
            HotRange(key_range=KeyRange(first_hash, last_hash), share=0.125),
        ),
    )
    progress = GroupProgress(group_id="g", state="Stable", is_enabled=True, partitions=(partition,))
    range_output.write_ranges({"g": progress})
    diverted, hot = capsys.readouterr().out.split("\n\n")[2:]
    assert [line.split() for line in diverted.splitlines()] == [
        ["GROUP", "TOPIC", "PARTITION", "DIVERTED-KEY-HASH", "SLOT", "FROM-OFFSET"],
        ["g", "orders", "3", str(last_hash), "7", "4"],
    ]
    assert [line.split() for line in hot.splitlines()] == [
        ["GROUP", "TOPIC", "PARTITION", "HOT-SLOTS", "SHARE", "KEY"],
        ["g", "orders", "3", "7-7", "25.0%", "whale"],
        ["g", "orders", "3", "7-7", "12.5%", "-"],
    ]
    (document,) = range_output.ranges_document(progress)
    assert document["diverted"] == [{"key_hash": last_hash, "slot": 7, "from_offset": 4}]
    assert document["hot"][0] == {
        "first_slot": 7,
        "last_slot": 7,
        "share": 0.25,
        "key": "whale",
        "key_encoding": "utf-8",
    }


# reset and delete-offsets -------------------------------------------------------------------------


def test_a_reset_forgets_what_is_done_above(
    groups: Callable[..., Result], shared: Shared, ranges: Callable[[], Any]
) -> None:
    """How much that is, is said before; then everything from the new offset on is open."""
    shared.produce(0, 0, 0, 0, 0, 0)
    with shared.member() as member:
        do(member, take(member, 6), 0, 2, 3, 5)
    asked = ("reset", shared.group, "--topic", shared.topic, "--to-offset", 3)
    dry = groups(*asked, "--dry-run")
    told = "members have done up to 2 records from offset 3 on, one by one"
    assert told in dry.err
    assert ranges()["stable_offset"] == 1
    result = groups(*asked, "--yes")
    assert result.code == 0, result.err
    assert told in result.err
    found = ranges()
    assert (found["stable_offset"], found["window"]) == (3, 0)
    with shared.member() as member:
        assert sorted(take(member, 3)) == [3, 4, 5]


def test_a_reset_of_plain_offsets_says_nothing(
    groups: Callable[..., Result], shared: Shared
) -> None:
    """What is below the committed offset was done by nobody in particular."""
    shared.produce(0, 0, 0)
    shared.kit.commit(shared.group, shared.topic, {0: 3})
    result = groups("reset", shared.group, "--topic", shared.topic, "--to-earliest", "--yes")
    assert result.code == 0, result.err
    assert "one by one" not in result.err


def test_deleted_offsets_take_everything_with_them(
    groups: Callable[..., Result], shared: Shared
) -> None:
    """The group starts over, and it is said what goes."""
    shared.produce(0, 0, 0)
    with shared.member() as member:
        do(member, take(member, 3), 0, 2)
    result = groups("delete-offsets", shared.group, "--topic", shared.topic, "--yes")
    assert result.code == 0, result.err
    assert "members have done up to 1 record from offset 1 on" in result.err
    with shared.member() as member:
        assert sorted(take(member, 3)) == [0, 1, 2]
