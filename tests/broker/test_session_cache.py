"""The cache of fetch sessions: epochs, limits, and who has to go."""

import pytest

from anabranch.broker.fetch_sessions import EVICTION_MS, FetchedPartition, FetchSessions
from anabranch.model.errors import ErrorCode, KafkaError

NOW_MS = 1_000_000


def _refusal(
    sessions: FetchSessions, session_id: int, epoch: int, *, ids: bool = False
) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        sessions.use(session_id, epoch, ids, NOW_MS)
    return refused.value.code


def test_epochs_count_up() -> None:
    """A session is used with epoch 1, 2, 3; any other epoch is refused and changes nothing."""
    sessions = FetchSessions(10)
    session = sessions.open({}, False, NOW_MS)
    assert session is not None
    for epoch in (1, 2, 3):
        assert sessions.use(session.session_id, epoch, False, NOW_MS) is session
    for epoch in (1, 3, 5, -2):
        code = _refusal(sessions, session.session_id, epoch)
        assert code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.use(session.session_id, 4, False, NOW_MS) is session


def test_epoch_wraps() -> None:
    """After 2^31 - 1 comes 1; 0 and -1 mean something else."""
    sessions = FetchSessions(10)
    session = sessions.open({}, False, NOW_MS)
    assert session is not None
    session.next_epoch = 2**31 - 1
    sessions.use(session.session_id, 2**31 - 1, False, NOW_MS)
    assert session.next_epoch == 1


def test_unknown_session() -> None:
    """A session that is not there, or not any more, is FETCH_SESSION_ID_NOT_FOUND."""
    sessions = FetchSessions(10)
    session = sessions.open({}, False, NOW_MS)
    assert session is not None
    assert _refusal(sessions, 12345, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.close(session.session_id)
    sessions.close(session.session_id)
    assert _refusal(sessions, session.session_id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_names_and_ids_do_not_mix() -> None:
    """A session opened with topic ids is not used with names, nor the reverse."""
    sessions = FetchSessions(10)
    for ids in (True, False):
        session = sessions.open({}, ids, NOW_MS)
        assert session is not None
        code = _refusal(sessions, session.session_id, 1, ids=not ids)
        assert code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_ids_are_distinct_and_positive() -> None:
    """Every session has an id of its own, and never 0, which means none."""
    sessions = FetchSessions(1000)
    opened = [sessions.open({}, False, NOW_MS) for _ in range(1000)]
    ids = {session.session_id for session in opened if session is not None}
    assert len(ids) == 1000
    assert min(ids) > 0


def test_full_cache() -> None:
    """When all slots are in use, no session is opened; the client fetches without one."""
    sessions = FetchSessions(2)
    for _ in range(2):
        assert sessions.open({}, False, NOW_MS) is not None
    assert sessions.open({}, False, NOW_MS + EVICTION_MS - 1) is None
    assert len(sessions) == 2
    assert FetchSessions(0).open({}, False, NOW_MS) is None


def test_eviction() -> None:
    """The session unused for longest makes room, if it was unused for long enough."""
    sessions = FetchSessions(2)
    old, busy = (sessions.open({}, False, NOW_MS) for _ in range(2))
    assert old is not None and busy is not None
    later_ms = NOW_MS + EVICTION_MS
    sessions.use(old.session_id, 1, False, later_ms)  # now the other one is the oldest
    new = sessions.open({}, False, later_ms)
    assert new is not None
    assert _refusal(sessions, busy.session_id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.use(old.session_id, 2, False, later_ms) is old


def test_session_keeps_its_partitions() -> None:
    """What the client asked for first is there at every later fetch."""
    partition = FetchedPartition("topic", 0, 5, 100, -1)
    sessions = FetchSessions(10)
    session = sessions.open({("topic", 0): partition}, False, NOW_MS)
    assert session is not None
    assert sessions.use(session.session_id, 1, False, NOW_MS).partitions == {
        ("topic", 0): partition
    }
