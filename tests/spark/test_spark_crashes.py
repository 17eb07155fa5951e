"""The crash matrix: driver, Python worker and broker are killed, and nothing is lost or doubled.

Each victim is killed in batch 0, when the batch is prepared, between the sink's commit and Spark's
commit log, and between batches; four queries go through all of it, from `earliest` and from
`latest`, with the exactly-once sink and without. They share their drivers, of which each takes
several seconds to start, and each test goes on with the driver that it finds.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from crash_kit import Application, Query, Trickle
from java_there import WITHOUT_JAVA, has_java

from support.broker_process import BrokerProcess, wait_until

pytestmark = [
    pytest.mark.skipif(not has_java(), reason=WITHOUT_JAVA),
    # A busy machine takes its time to start drivers; every wait has a limit of its own.
    pytest.mark.timeout(3000),
]


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    broker = BrokerProcess(tmp_path_factory.mktemp("crash-broker") / "data")
    broker.start()
    application = Application(tmp_path_factory.mktemp("crash-app") / "app", broker)
    try:
        yield application
    finally:
        application.stop()
        broker.kill()


def fleet(application: Application, victim: str) -> list[Query]:
    """A query of each kind, with records that only those from `earliest` read."""
    queries = [
        Query.make(
            application, f"{victim}-{starting}-{sink}", starting, exactly_once=sink == "once"
        )
        for starting in ("earliest", "latest")
        for sink in ("once", "least")
    ]
    for query in queries:
        query.send(100)
    return queries


def hold_in_batch_0(application: Application, queries: list[Query]) -> None:
    """Start them, and hold each in its first batch with records, when some of them are written."""
    for query in queries:
        query.arm("writing")
        query.run()
    if not application.is_running:
        application.start()
    # Those from `latest` begin where the log ends then: what comes later is theirs.
    with Trickle([query for query in queries if query.starting == "latest"]):
        for query in queries:
            # A batch 0 without records is possible where the sender was slower than Spark.
            assert query.held("writing").batch_id == 0 or query.starting == "latest"
    for query in queries:
        batch_id = query.held("writing").batch_id
        assert query.is_logged("offsets", batch_id)
        assert not query.is_logged("commits", batch_id)


def hold_next(queries: list[Query], point: str) -> None:
    """Hold all of them at a point of their next batch."""
    for query in queries:
        query.arm(point)
        query.send(60)
    for query in queries:
        batch_id = query.held(point).batch_id
        assert query.is_logged("offsets", batch_id)
        assert not query.is_logged("commits", batch_id)


def let_go(queries: list[Query], point: str) -> None:
    for query in queries:
        query.let_go(point)


def finish(queries: list[Query]) -> None:
    for query in queries:
        query.wait_for_all()
    for query in queries:
        query.end()
        query.check()


def test_a_driver_that_is_killed(application: Application) -> None:
    """It goes on from its checkpoint, whatever it was doing, also if there was no record yet."""
    queries = fleet(application, "driver")
    nothing_yet = Query.make(application, "driver-empty-once", "latest", exactly_once=True)
    nothing_yet.send(40)
    nothing_yet.arm("prepared")
    nothing_yet.run()
    hold_in_batch_0(application, queries)
    assert nothing_yet.held("prepared").batch_id == 0
    application.kill()
    for query in [*queries, nothing_yet]:
        query.send(40)
    application.start()
    for point in ("prepared", "committed"):
        for query in queries:
            query.wait_for_all()
        hold_next(queries, point)
        application.kill()
        application.start()
    # Workers of drivers that are gone find out only now.
    let_go([*queries, nothing_yet], "writing")
    let_go([*queries, nothing_yet], "prepared")
    let_go(queries, "committed")
    for query in queries:
        query.wait_for_all()
    application.kill()
    for query in queries:
        query.send(40)
    application.start()
    finish([*queries, nothing_yet])
    assert sum(nothing_yet.began_at().values()) == 40


def test_python_workers_that_are_killed(application: Application) -> None:
    """Spark does a task again; if it was a worker of the driver, the query is started again."""
    queries = fleet(application, "worker")
    hold_in_batch_0(application, queries)
    failed = len(application.failures())
    for query in queries:
        os.kill(query.held("writing").pid, signal.SIGKILL)
    for query in queries:
        query.wait_for_all()
    assert len(application.failures()) == failed, application.failures()
    for point in ("prepared", "committed"):
        failed = len(application.failures())
        hold_next(queries, point)
        for query in queries:
            os.kill(query.held(point).pid, signal.SIGKILL)
        for query in queries:
            query.wait_for_all()
        assert {name for name, _ in application.failures()[failed:]} == {q.name for q in queries}
    _, java = application.pids()
    workers = application.children(java, "pyspark.daemon")
    sources = application.children(java, "python_streaming_source_runner")
    assert workers and len(sources) >= len(queries)
    for pid in [*workers, *sources]:
        os.kill(pid, signal.SIGKILL)
    for query in queries:
        query.send(40)
    finish(queries)


def test_a_broker_that_is_killed(application: Application) -> None:
    """Queries wait for it, and none fails."""
    queries = fleet(application, "broker")
    failed = len(application.failures())
    hold_in_batch_0(application, queries)
    restart_broker(application, queries, "writing")
    for point in ("prepared", "committed"):
        for query in queries:
            query.wait_for_all()
        hold_next(queries, point)
        restart_broker(application, queries, point)
    for query in queries:
        query.wait_for_all()
    restart_broker(application, queries)
    for query in queries:
        query.send(40)
    finish(queries)
    assert application.failures()[failed:] == []


def restart_broker(
    application: Application, queries: list[Query], point: str | None = None
) -> None:
    """Kill it, let the queries run into that, and start it again."""
    application.broker.kill()
    if point is not None:
        let_go(queries, point)
    # Long enough to be noticed, and what comes out does not depend on it.
    wait_until(lambda: False, 1.0)
    application.broker.start()
