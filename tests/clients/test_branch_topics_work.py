"""Eight stock consumers share the work on one partition, in order, through a branch topic.

24,000 records of 400 keys in one partition, 2 ms of work each: 48 s for a group of the plain topic,
whatever its size. Here a branch topic cuts the partition into 56 key ranges: eight consumers have
seven each, seven have eight each, so that shares are even before the eighth joins late, while all
are there, and after one is killed. The keys are drawn so that every range has seven or eight of
them: left to chance, the busiest of eight workers would have about 60 of 400 keys instead of 50,
and all would wait for it.

Times and shares are printed (`pytest -s`), not judged: they are the machine's as much as the
broker's. Judged is that all was done, every key in order, and that the work was really shared.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.branch_crew import Crew, ideal_s, mean_busy
from support.branch_topics import create_branched, even_keys
from support.branch_worker import COMMIT_EVERY
from support.broker_process import BrokerProcess

pytestmark = pytest.mark.timeout(900)
RECORDS = 24_000
WORK_MS = 2
# Much longer than the workers' fetches wait, also on a machine that is busy with other tests.
FETCH_OVER_S = 4.0
# The same while there is work: long enough, and short enough that some is left.
FETCH_OVER_AT_WORK_S = 1.0
BRANCHES = 56
KEYS = even_keys(400, BRANCHES)
# As short as a machine that is busy with other tests lets healthy members live with.
SESSION_MS = "5000"
# Little at a time, so that all branches of a worker advance side by side and whoever takes some
# over finds about as much left in each; and waits that end soon, because librdkafka drops what it
# fetched when its assignment changes, and asks again when the fetch under way is answered.
EVERYBODY = {"work_ms": str(WORK_MS), "fetch_bytes": "16384", "fetch_wait_ms": "100"}
CLASSIC = {**EVERYBODY, "session_ms": SESSION_MS, "heartbeat_ms": "300"}
NEW = {**EVERYBODY, "protocol": "consumer"}
BROKER = {
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
}
# The last of them joins late.
MIXED = ["confluent", "kafka-python", "aiokafka"] * 2 + ["confluent", "kafka-python"]
LIBRDKAFKA = ["confluent"] * 8


@pytest.fixture
def make_crew(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> Iterator[Callable[[str, int], Crew]]:
    """Crews on a broker with short sessions: `make_crew(topic, partitions)`."""
    made: list[Crew] = []
    broker = make_broker(**BROKER)
    create_branched(broker.bootstrap, "orders", BRANCHES)

    def make(topic: str, partitions: int) -> Crew:
        made.append(Crew(broker.bootstrap, topic, partitions, tmp_path))
        return made[-1]

    yield make
    for crew in made:
        crew.abandon()


def run_with_faults(crew: Crew, clients: list[str], options: dict[str, str], victim: int) -> None:
    """Seven begin, the eighth joins, one is killed, and all is done in the end."""
    crew.commit_beginning()
    *first, last = [crew.hire(client, **options) for client in clients]
    for worker in first:
        worker.go()
    crew.wait_for_shares(first)
    # The first one had everything for a moment. What a fetch of then brings now, librdkafka keeps,
    # and delivers it if the partition comes back to it: the member would go on from there. (So it
    # does where it asked for the beginning of a partition, see `commit_beginning`.)
    time.sleep(FETCH_OVER_S)
    crew.produce("orders", KEYS, RECORDS)
    crew.wait_for_done(RECORDS // 10)
    last.go()
    crew.wait_for_shares([*first, last])
    # What comes back to a member when one is killed is not what a fetch of before brings.
    time.sleep(FETCH_OVER_AT_WORK_S)
    killed = crew.workers[victim]
    crew.wait_for(
        lambda: crew.done_count > 0 and last.done_count > 0 and killed.uncommitted_count > 9,
        "work for the late one, and something to do again for others",
    )
    killed.kill()
    crew.wait_for_all()
    crew.close()


def check_faults(crew: Crew) -> None:
    """All was done, every key in order, again only what was not committed, by all."""
    verdict = crew.judge()
    assert verdict.problems == []
    assert verdict.keys_that_moved > 0
    # Once from the killed one; a hand-over adds some only if its commit was refused. A member that
    # is not heard of for a session, because the machine is busy, loses what it has.
    assert verdict.replays.keys() <= {"killed", "revoked", "lost"}
    assert verdict.replays["killed"] <= COMMIT_EVERY
    for worker in crew.workers:
        assert worker.done_count > 0, crew.account()
    # One at a time is what a plain topic allows.
    assert mean_busy(crew.workers) > 1


def print_times(title: str, crew: Crew) -> None:
    """One row of the table: how long it took, and how long it would without any loss."""
    spans = [e["at"] for worker in crew.workers for e in worker.events if e["event"] == "done"]
    took_s = max(spans) - crew.produced_at
    work_s = len(crew.produced) * WORK_MS / 1000
    stays = [(w.joined_at, w.killed_at or float("inf")) for w in crew.workers]
    best_s = ideal_s(work_s, crew.produced_at, stays)
    replays = sum(crew.judge().replays.values())
    shares = [worker.done_count for worker in crew.workers]
    print(
        f"\n{title:<34}{work_s:6.1f} s of work in {took_s:5.2f} s, ideal {best_s:5.2f} s, "
        f"{took_s / best_s:4.2f}x; {mean_busy(crew.workers):4.2f} busy, "
        f"{replays} again, shares {shares}"
    )


def test_a_classic_group_of_three_libraries(make_crew: Callable[[str, int], Crew]) -> None:
    """librdkafka, kafka-python and aiokafka in one classic group, one late, one killed."""
    crew = make_crew("orders.by-key", BRANCHES)
    run_with_faults(crew, MIXED, CLASSIC, victim=1)
    check_faults(crew)
    print_times("branch topic, classic, 3 libraries", crew)


def test_a_group_of_the_consumer_protocol(make_crew: Callable[[str, int], Crew]) -> None:
    """librdkafka members of KIP-848, one late, one killed."""
    crew = make_crew("orders.by-key", BRANCHES)
    run_with_faults(crew, LIBRDKAFKA, NEW, victim=1)
    check_faults(crew)
    print_times("branch topic, KIP-848, librdkafka", crew)


def test_the_plain_topic_for_comparison(make_crew: Callable[[str, int], Crew]) -> None:
    """The same group on the plain topic: one works, in order, and seven look on."""
    crew = make_crew("orders", 1)
    for worker in [crew.hire(client, **CLASSIC) for client in MIXED]:
        worker.go()
    crew.wait_for_members()
    crew.produce("orders", KEYS, RECORDS // 20)
    crew.wait_for_all()
    crew.close()
    verdict = crew.judge()
    assert verdict.problems == []
    assert verdict.replays.keys() <= {"revoked"}
    assert mean_busy(crew.workers) <= 1
    print_times("plain topic, classic, 3 libraries", crew)
