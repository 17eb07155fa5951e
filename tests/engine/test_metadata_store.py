"""The metadata store: every change is whole or absent, and outlives a crash."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.broker.producer_ids import BLOCK_SIZE, ProducerIds
from anabranch.engine.metadata_store import MetadataStore, StoredTopic

ID, OTHER_ID = bytes(15) + b"\x07", bytes(15) + b"\x08"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    store = MetadataStore(tmp_path)
    yield store
    store.close()


def _reopened(store: MetadataStore, tmp_path: Path) -> MetadataStore:
    """The store as a broker finds it that starts after a crash of this one."""
    copy = tmp_path / "after-crash"
    copy.mkdir()
    for path in tmp_path.glob("metadata.db*"):
        shutil.copy(path, copy)
    return MetadataStore(copy)


def test_topics(store: MetadataStore, tmp_path: Path) -> None:
    """Topics keep name, id, partitions and settings; the answer is in the order of names."""
    second = StoredTopic("b", ID, 3, {"retention.ms": "5"})
    first = StoredTopic("a", OTHER_ID, 1, {})
    store.create_topics([second, first])
    assert store.topics() == [first, second]
    store.set_partitions(ID, 7)
    store.set_topic_configs(ID, {"segment.ms": "9"})
    after = _reopened(store, tmp_path)
    assert after.topics() == [first, StoredTopic("b", ID, 7, {"segment.ms": "9"})]
    after.delete_topic(ID)
    assert after.topics() == [first]
    after.close()


def test_all_topics_or_none(store: MetadataStore) -> None:
    """One topic that cannot be stored takes the others of its call with it."""
    store.create_topics([StoredTopic("taken", ID, 1, {})])
    with pytest.raises(sqlite3.IntegrityError):
        store.create_topics(
            [StoredTopic("new", OTHER_ID, 1, {"a": "b"}), StoredTopic("taken", bytes(16), 1, {})]
        )
    assert [topic.name for topic in store.topics()] == ["taken"]
    store.create_topics([StoredTopic("new", OTHER_ID, 1, {})])
    assert store.topics()[0] == StoredTopic("new", OTHER_ID, 1, {})


def test_deleted_topic_leaves_no_settings(store: MetadataStore) -> None:
    """A topic made again under the same id starts with its own settings only."""
    store.create_topics([StoredTopic("a", ID, 1, {"retention.ms": "5"})])
    store.delete_topic(ID)
    store.create_topics([StoredTopic("a", ID, 1, {})])
    assert store.topics() == [StoredTopic("a", ID, 1, {})]


def test_broker_configs(store: MetadataStore, tmp_path: Path) -> None:
    """Dynamic settings are kept per broker and for the cluster, and replaced as a whole."""
    store.set_broker_configs("", {"log.retention.ms": "1", "num.partitions": "2"})
    store.set_broker_configs("1", {"log.retention.ms": "3"})
    store.set_broker_configs("", {"num.partitions": "4"})
    after = _reopened(store, tmp_path)
    assert after.broker_configs() == {"": {"num.partitions": "4"}, "1": {"log.retention.ms": "3"}}
    after.close()


def test_group_configs(store: MetadataStore, tmp_path: Path) -> None:
    """What groups set is kept per group, replaced as a whole, and gone when nothing is left."""
    store.set_group_configs("g", {"consumer.session.timeout.ms": "1", "x": "2"})
    store.set_group_configs("other", {"x": "3"})
    store.set_group_configs("g", {"x": "4"})
    store.set_group_configs("other", {})
    after = _reopened(store, tmp_path)
    assert after.group_configs() == {"g": {"x": "4"}}
    after.close()


def test_a_store_of_an_older_broker(tmp_path: Path) -> None:
    """A table that came later is added to a store that does not have it, and nothing is lost."""
    old = MetadataStore(tmp_path)
    old.create_topics([StoredTopic("a", ID, 1, {})])
    old._db.execute("DROP TABLE group_configs")
    old.close()
    store = MetadataStore(tmp_path)
    assert store.group_configs() == {}
    assert store.topics() == [StoredTopic("a", ID, 1, {})]
    store.close()


def test_starts_are_counted(store: MetadataStore) -> None:
    """Starts are numbered from 0."""
    assert [store.count_start() for _ in range(3)] == [0, 1, 2]


def test_producer_ids_are_never_given_twice(store: MetadataStore, tmp_path: Path) -> None:
    """Ids rise without a gap in one run; after a crash they go on behind the block."""
    ids = ProducerIds(store)
    given = [ids.next() for _ in range(BLOCK_SIZE + 5)]
    assert given == list(range(BLOCK_SIZE + 5))
    after = _reopened(store, tmp_path)
    assert ProducerIds(after).next() == 2 * BLOCK_SIZE
    after.close()


_WRITE_AND_WAIT = """
import sys
from pathlib import Path
from anabranch.engine.metadata_store import MetadataStore, StoredTopic
store = MetadataStore(Path(sys.argv[1]))
store.create_topics([StoredTopic("a", bytes(15) + b"\\x07", 2, {"x": "y"})])
store.put("name", "value")
print("done", flush=True)
sys.stdin.read()
"""


def test_changes_outlive_a_kill(tmp_path: Path) -> None:
    """What a method wrote before it returned is there after SIGKILL."""
    command = [sys.executable, "-c", _WRITE_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        process.kill()
    store = MetadataStore(tmp_path)
    assert store.topics() == [StoredTopic("a", ID, 2, {"x": "y"})]
    assert store.get("name") == "value"
    store.close()
