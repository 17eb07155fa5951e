"""What the cluster is: topics, their settings, those of brokers and groups, producer ids.

SQLite keeps it, because each change must be whole or absent after a crash and a topic created must
not cost a rewrite of all the others. One file, `metadata.db`, in the first log directory; every
change is on disk when its method returns.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "metadata.db"

# What the methods below raise when the disk is full or broken.
STORE_ERRORS = (OSError, sqlite3.Error)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cluster (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topics (
    topic_id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topic_configs (
    topic_id BLOB NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (topic_id, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS broker_configs (
    broker TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (broker, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS group_configs (
    group_id TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (group_id, name)
) WITHOUT ROWID;
"""


# A topic with this setting shows branches of the topic that it names and has no log of its own.
BRANCH_SOURCE_CONFIG = "branch.source.topic"


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic as it is kept."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]

    @property
    def has_logs(self) -> bool:
        return BRANCH_SOURCE_CONFIG not in self.configs


class MetadataStore:
    """The open database."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    # Cluster facts --------------------------------------------------------------------------

    def get(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM cluster WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO cluster VALUES (?, ?)", (name, value))

    def count_start(self) -> int:
        """Number this start of the broker from 0; it becomes the leader epoch of all partitions.

        A leader epoch that grows with every start is how consumers find out that a crash of the
        machine cut the log (KIP-320).
        """
        start = int(self.get("starts") or 0)
        self.put("starts", str(start + 1))
        return start

    def reserve_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids that no one else will ever get."""
        first = int(self.get("next.producer.id") or 0)
        self.put("next.producer.id", str(first + count))
        return first

    # Topics ---------------------------------------------------------------------------------

    def topics(self) -> list[StoredTopic]:
        configs: dict[bytes, dict[str, str]] = {}
        for topic_id, name, value in self._db.execute("SELECT * FROM topic_configs"):
            configs.setdefault(topic_id, {})[name] = value
        rows = self._db.execute("SELECT topic_id, name, partitions FROM topics ORDER BY name")
        return [StoredTopic(name, id_, count, configs.get(id_, {})) for id_, name, count in rows]

    def create_topics(self, topics: list[StoredTopic]) -> None:
        with self._db:
            self._db.execute("BEGIN")
            for topic in topics:
                row = (topic.topic_id, topic.name, topic.partitions)
                self._db.execute("INSERT INTO topics VALUES (?, ?, ?)", row)
                self._write_configs(topic.topic_id, topic.configs)

    def delete_topic(self, topic_id: bytes) -> None:
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM topics WHERE topic_id = ?", (topic_id,))
            self._db.execute("DELETE FROM topic_configs WHERE topic_id = ?", (topic_id,))

    def set_partitions(self, topic_id: bytes, partitions: int) -> None:
        row = (partitions, topic_id)
        self._db.execute("UPDATE topics SET partitions = ? WHERE topic_id = ?", row)

    def set_topic_configs(self, topic_id: bytes, configs: Mapping[str, str]) -> None:
        """Replace all settings of a topic."""
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM topic_configs WHERE topic_id = ?", (topic_id,))
            self._write_configs(topic_id, configs)

    def _write_configs(self, topic_id: bytes, configs: Mapping[str, str]) -> None:
        rows = [(topic_id, name, value) for name, value in configs.items()]
        self._db.executemany("INSERT INTO topic_configs VALUES (?, ?, ?)", rows)

    # Dynamic broker settings: "" is the cluster-wide default, otherwise a node id --------------

    def broker_configs(self) -> dict[str, dict[str, str]]:
        return self._configs_by_owner("SELECT * FROM broker_configs")

    def set_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM broker_configs WHERE broker = ?", (broker,))
            rows = [(broker, name, value) for name, value in configs.items()]
            self._db.executemany("INSERT INTO broker_configs VALUES (?, ?, ?)", rows)

    # Groups: only what they set for themselves; a group itself lives in the journal -------------

    def group_configs(self) -> dict[str, dict[str, str]]:
        return self._configs_by_owner("SELECT * FROM group_configs")

    def set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace all settings of a group."""
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM group_configs WHERE group_id = ?", (group_id,))
            rows = [(group_id, name, value) for name, value in configs.items()]
            self._db.executemany("INSERT INTO group_configs VALUES (?, ?, ?)", rows)

    def _configs_by_owner(self, query: str) -> dict[str, dict[str, str]]:
        configs: dict[str, dict[str, str]] = {}
        for owner, name, value in self._db.execute(query):
            configs.setdefault(owner, {})[name] = value
        return configs
