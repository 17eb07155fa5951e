"""Incremental fetch sessions (KIP-227).

A session remembers what a client fetches, so that it need not say it again and hears only of
partitions with news. States of a session, by what the client sends as (session id, epoch):
- (any, 0): a full fetch that opens a session; an old session of that id is closed;
- (any, -1): a full fetch without a session; the session of that id is closed;
- (id, n): the n-th incremental fetch of session id; n counts from 1 and wraps after 2^31 - 1.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass

from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.wire.messages.cooperation import RangeCut, RangeFetch

EPOCH_INITIAL = 0
EPOCH_FINAL = -1
_EPOCH_MAX = (1 << 31) - 1
# A session used within this time is not thrown out for a new one (Kafka's value).
EVICTION_MS = 120_000

# A partition in a session: (topic name or topic id, partition index).
SessionKey = tuple[str | bytes, int]


@dataclass(slots=True)
class FetchedPartition:
    """What a client fetches of one partition, and what it was last told of it."""

    topic: str | bytes  # the id from version 13 on
    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    # The key ranges that are wanted, where not all records are.
    range_fetch: RangeFetch | None = None
    # Who reads beside this one, if no group says so.
    range_cut: RangeCut | None = None


@dataclass(slots=True)
class FetchSession:
    """One client's session."""

    session_id: int
    uses_topic_ids: bool
    partitions: dict[SessionKey, FetchedPartition]
    next_epoch: int = 1
    last_used_ms: int = 0

    def advance(self) -> None:
        self.next_epoch = self.next_epoch + 1 if self.next_epoch < _EPOCH_MAX else 1


class FetchSessions:
    """The sessions of all clients, at most `slots` of them, least recently used first."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        partitions: dict[SessionKey, FetchedPartition],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchSession | None:
        """A new session, or None when there is no room and nobody is idle enough to go."""
        if self._slots <= 0:
            return None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms < EVICTION_MS:
                return None
            self.close(oldest.session_id)
        session_id = random.randint(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _EPOCH_MAX)
        session = FetchSession(session_id, uses_topic_ids, partitions, last_used_ms=now_ms)
        self._sessions[session_id] = session
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def use(self, session_id: int, epoch: int, uses_topic_ids: bool, now_ms: int) -> FetchSession:
        """The session an incremental fetch speaks of; refused when the two disagree."""
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "The session does not exist.")
        if session.next_epoch != epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"The session is at epoch {session.next_epoch}, not {epoch}.",
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "The session was opened with topic names and used with ids, or the reverse.",
            )
        session.last_used_ms = now_ms
        session.advance()
        self._sessions.move_to_end(session_id)
        return session
