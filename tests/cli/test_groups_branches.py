"""`anabranch groups describe` and `topics branch --from-group`: how far groups are, and go on."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pytest
from command_result import Result
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from groups_kit import TIMEOUT_S, GroupsKit

from anabranch.branch.slots import branch_of_slot, slot_of_key
from support.broker_process import BrokerProcess
from support.confluent_client import QUICK

RANGES = 4
_names = count(1)


def key_of(range_index: int) -> bytes:
    keys = (b"%d" % number for number in count())
    return next(key for key in keys if branch_of_slot(slot_of_key(key), RANGES) == range_index)


KEYS = [key_of(r) for r in range(RANGES)]


class Branched:
    """A source with a branch topic of four ranges, and a group, all with names of their own."""

    def __init__(self, kit: GroupsKit, partitions: int = 1) -> None:
        self.kit = kit
        number = next(_names)
        self.group = f"billing-{number}"
        self.source = kit.topic(f"orders-{number}", partitions=partitions)
        self.topic = self.branch(f"orders-{number}.by-key", RANGES * partitions)

    def branch(self, name: str, partitions: int) -> str:
        topic = NewTopic(name, partitions, 1, config={"branch.source.topic": self.source})
        self.kit.admin.create_topics([topic])[name].result(TIMEOUT_S)
        return name

    def produce(self, *ranges: int, partition: int = 0) -> None:
        self.produce_keys((KEYS[r] for r in ranges), partition)

    def produce_keys(self, keys: Iterable[bytes], partition: int = 0) -> None:
        producer = Producer({**QUICK, "bootstrap.servers": self.kit.bootstrap})
        for key in keys:
            producer.produce(self.source, b"v", key=key, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0

    def consume(self, topic: str, records: int) -> list[int]:
        """Join, take so many records, commit, leave; their offsets."""
        found: list[int] = []
        with self.kit.member(self.group, topic) as consumer:
            deadline_s = time.monotonic() + TIMEOUT_S
            while len(found) < records and time.monotonic() < deadline_s:
                message = consumer.poll(0.1)
                if message is not None:
                    assert message.error() is None, message.error()
                    offset = message.offset()
                    assert offset is not None
                    found.append(offset)
            consumer.commit(asynchronous=False)
        return found

    def commit(self, *offsets: int, topic: str | None = None, group: str | None = None) -> None:
        """Commit on the branches of partition 0 of a source with one partition."""
        self.kit.commit(group or self.group, topic or self.topic, dict(enumerate(offsets)))

    def committed(self, topic: str) -> dict[int, int]:
        found = self.kit.committed(self.group)
        return {partition: at for (name, partition), at in found.items() if name == topic}


@pytest.fixture
def branched(kit: GroupsKit) -> Branched:
    return Branched(kit)


@pytest.fixture
def topics(run: Callable[..., Result], group_broker: BrokerProcess) -> Callable[..., Result]:
    """`anabranch topics branch SOURCE ...` on that broker."""

    def run_branch(*arguments: object) -> Result:
        return run("topics", "branch", *arguments, "--bootstrap-server", group_broker.bootstrap)

    return run_branch


# groups describe ----------------------------------------------------------------------------------


def test_describe_shows_the_progress_on_the_source(
    groups: Callable[..., Result], branched: Branched
) -> None:
    """A second table, a sentence for each partition, and what the lag of branches is."""
    branched.produce(0, 1, 2, 3, 0, 0)
    branched.commit(1, 2, 3)
    result = groups("describe", branched.group)
    assert result.code == 0
    offsets, progress = result.out.split("\n\n")
    assert len(offsets.splitlines()) == 4
    head, row = progress.splitlines()
    assert head.split() == [
        *("GROUP", "BRANCH-TOPIC", "SOURCE", "PARTITION"),
        *("STABLE-OFFSET", "HIGH-WATERMARK", "UNPROCESSED", "BRANCHES"),
    ]
    assert row.split() == [
        branched.group,
        branched.topic,
        branched.source,
        *["0", "3", "6", "3", "3/4"],
    ]
    assert (
        f"{branched.group} has finished everything of {branched.source}-0 below 3;"
        " 3 records are unprocessed.\n"
    ) in result.err
    assert "UNPROCESSED each record once" in result.err


def test_describe_in_json(groups: Callable[..., Result], branched: Branched) -> None:
    """The same under `branch_progress`, with the names of its fields."""
    branched.produce(0, 1)
    branched.commit(1, 0, 0, 0)
    result = groups("describe", branched.group, "--format", "json")
    (document,) = result.document
    assert document["branch_progress"] == [
        {
            "branch_topic": branched.topic,
            "source_topic": branched.source,
            "source_partition": 0,
            "stable_offset": 1,
            "log_start_offset": 0,
            "high_watermark": 2,
            "unprocessed_records": 1,
            "branches": 4,
            "committed_branches": 4,
        }
    ]


def test_other_groups_and_views_are_as_before(
    groups: Callable[..., Result], branched: Branched, kit: GroupsKit
) -> None:
    """Who reads no branch topic sees nothing of it."""
    branched.produce(0)
    kit.commit(branched.group, branched.source, {0: 1})
    plain = groups("describe", branched.group)
    assert "STABLE-OFFSET" not in plain.out
    assert "finished" not in plain.err
    assert "branch_progress" not in groups("describe", branched.group, "--format", "json").out
    branched.commit(1)
    for view in ("--members", "--state", "--summary", "--movements"):
        assert "STABLE-OFFSET" not in groups("describe", branched.group, view).out


def test_describe_goes_on_when_the_progress_cannot_be_had(
    groups: Callable[..., Result], branched: Branched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets are there; what is missing is said."""
    branched.produce(0)
    branched.commit(1)

    def refuse(*args: object, **more: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", refuse)
    result = groups("describe", branched.group)
    assert result.code == 0
    assert branched.topic in result.out
    assert "STABLE-OFFSET" not in result.out
    assert "is not known: timed out." in result.err


# topics branch --from-group -----------------------------------------------------------------------


def test_a_group_goes_on_from_another_branch_topic(
    topics: Callable[..., Result], branched: Branched
) -> None:
    """Offsets are committed so that nothing is skipped, and what comes again is said."""
    branched.produce(0, 1, 2, 3, 0, 1)
    branched.commit(1, 6, 6, 6)
    new = f"{branched.source}.halves"
    result = topics(branched.source, "--into", 2, "--as", new, "--from-group", branched.group)
    assert result.code == 0, result.err
    created, start = result.out.split("\n\n")
    assert created.splitlines()[1].split() == [new, branched.source, "2", "2", "created"]
    head, row = start.splitlines()
    assert head.split() == [
        *("GROUP", "SOURCE", "PARTITION", "STABLE-OFFSET", "START-OFFSET"),
        *("UNPROCESSED", "REPLAYED"),
    ]
    assert row.split() == [branched.group, branched.source, *["0", "4", "4", "1", "1"]]
    assert "nothing is skipped, and 1 finished record will be processed again" in result.err
    assert branched.committed(new) == {0: 4, 1: 6}


def test_what_is_read_before_and_after_is_everything(
    topics: Callable[..., Result], branched: Branched
) -> None:
    """A stock consumer stops midway and goes on with other ranges; it replays what was said."""
    total = 300
    branched.produce_keys(b"key-%d" % (n * n % 97) for n in range(total))
    before = branched.consume(branched.topic, 130)
    assert len(before) == 130
    new = f"{branched.source}.sixths"
    arguments = (branched.source, "--into", 6, "--as", new, "--from-group", branched.group)
    result = topics(*arguments, "--format", "json")
    assert result.code == 0, result.err
    replayed = result.document[0]["start"]["replayed_records"]
    after = branched.consume(new, total - 130 + replayed)
    assert set(before) | set(after) == set(range(total))
    assert len(set(after)) == len(after)
    assert len(set(before) & set(after)) == replayed


def test_a_dry_run_shows_the_plan_and_changes_nothing(
    topics: Callable[..., Result], branched: Branched
) -> None:
    """Also while the group works, since only looking is asked for."""
    branched.produce(0, 1, 2, 3)
    branched.commit(1, 2, 3, 4)
    new = f"{branched.source}.eighths"
    arguments = (branched.source, "--into", 8, "--as", new, "--from-group", branched.group)
    with branched.kit.member(branched.group, branched.topic, owning=RANGES):
        result = topics(*arguments, "--dry-run", "--format", "json")
    assert result.code == 0, result.err
    (document,) = result.document
    assert document["status"] == "valid"
    start = document["start"]
    assert (start["group"], start["from_topic"]) == (branched.group, branched.topic)
    assert start["replayed_records"] == 0
    (partition,) = start["partitions"]
    assert [branch["partition"] for branch in partition["branches"]] == list(range(8))
    assert [branch["start_offset"] for branch in partition["branches"]] == [4] * 8
    assert new not in branched.kit.admin.list_topics(timeout=TIMEOUT_S).topics
    assert branched.committed(new) == {}


def test_a_group_goes_on_from_the_plain_topic(
    topics: Callable[..., Result], kit: GroupsKit
) -> None:
    """One commit for each partition becomes one for each branch, and nothing comes again."""
    branched = Branched(kit, partitions=2)
    branched.produce(0, 1, 2, 3, partition=0)
    branched.produce(3, 3, 3, partition=1)
    kit.commit(branched.group, branched.source, {0: 2, 1: 3})
    new = f"{branched.source}.quarters"
    result = topics(branched.source, "--into", 8, "--as", new, "--from-group", branched.group)
    assert result.code == 0, result.err
    assert "0 finished records will be processed again" in result.err
    # Number r * 2 + p is range r of partition p.
    assert branched.committed(new) == {0: 4, 1: 3, 2: 4, 3: 3, 4: 2, 5: 3, 6: 3, 7: 3}


def test_a_group_with_members_is_refused(topics: Callable[..., Result], branched: Branched) -> None:
    """They would go on committing; no topic is made."""
    branched.produce(0)
    branched.commit(1)
    new = f"{branched.source}.new"
    with branched.kit.member(branched.group, branched.topic, owning=RANGES):
        result = topics(branched.source, "--into", 8, "--as", new, "--from-group", branched.group)
    assert result.code == 1
    assert "with 1 member" in result.err
    assert "stop the members" in result.err
    assert new not in branched.kit.admin.list_topics(timeout=TIMEOUT_S).topics


@contextlib.contextmanager
def no_topic_is_made(branched: Branched) -> Iterator[None]:
    before = set(branched.kit.admin.list_topics(timeout=TIMEOUT_S).topics)
    yield
    assert set(branched.kit.admin.list_topics(timeout=TIMEOUT_S).topics) == before


def test_progress_that_is_not_there_is_refused(
    topics: Callable[..., Result], branched: Branched
) -> None:
    """A group that is unknown, that has none, or none on the topic that was named."""
    branched.produce(0)
    asked = (branched.source, "--into", 8, "--as", f"{branched.source}.new", "--from-group")
    with no_topic_is_made(branched):
        unknown = topics(*asked, "nobody-at-all")
        branched.kit.commit(branched.group, branched.kit.topic(f"other-{branched.group}"), {0: 0})
        none = topics(*asked, branched.group)
        branched.kit.commit(branched.group, branched.source, {0: 1})
        elsewhere = topics(*asked, branched.group, "--from-topic", branched.topic)
        foreign = topics(*asked, branched.group, "--from-topic", f"other-{branched.group}")
        lonely = topics(*asked[:-1], "--from-topic", branched.topic)
        branched.kit.delete_topic(f"other-{branched.group}")
    assert "There is no group 'nobody-at-all'" in unknown.err
    assert "has no progress on" in none.err and "--from-group out" in none.err
    assert f"there is some on {branched.source}" in elsewhere.err
    assert "is no branch topic of" in foreign.err
    assert "give both" in lonely.err
    codes = [result.code for result in (unknown, none, elsewhere, foreign, lonely)]
    assert codes == [1, 1, 1, 1, 2]


def test_of_several_one_must_be_chosen(topics: Callable[..., Result], branched: Branched) -> None:
    """The candidates are named; the plain topic is none beside a branch topic."""
    branched.produce(0, 0, 0)
    second = branched.branch(f"{branched.source}.second", 2)
    branched.commit(2)
    branched.commit(1, topic=second)
    branched.kit.commit(branched.group, branched.source, {0: 0})
    new = f"{branched.source}.third"
    asked = (branched.source, "--into", 3, "--as", new, "--from-group", branched.group)
    refused = topics(*asked)
    assert refused.code == 1
    assert f"they are {branched.topic}, {second}" in refused.err
    assert topics(*asked, "--from-topic", second).code == 0
    assert branched.committed(new)[0] == 1


def test_settings_that_come_with_the_topic_count_for_the_start(
    topics: Callable[..., Result], kit: GroupsKit
) -> None:
    """Where records without a key go decides where ranges begin."""
    number = next(_names)
    source, group = kit.topic(f"nulls-{number}", partitions=1), f"nulls-{number}"
    producer = Producer({**QUICK, "bootstrap.servers": kit.bootstrap})
    for _ in range(200):
        producer.produce(source, b"v", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    kit.commit(group, source, {0: 100})
    new = f"{source}.by-key"
    arguments = (source, "--into", 4, "--null-key", "ordered", "--yes", "--from-group", group)
    result = topics(*arguments)
    assert result.code == 0, result.err
    found = {partition: at for (name, partition), at in kit.committed(group).items() if name == new}
    assert found == {0: 100, 1: 200, 2: 200, 3: 200}
