"""Keys with many records: they do not end last, and nobody waits for ever because of them."""

from collections import Counter

from workload_kit import Log, active, deliver, key_in, new_workload

from anabranch.client.range_work import RangeWork
from anabranch.client.records import PARKED, ConsumerRecord
from anabranch.client.work_queues import KeyQueue
from anabranch.client.workload import Workload
from anabranch.model.units import ALL_SLOTS

HOT, *COLD = (key_in(ALL_SLOTS, number) for number in range(41))


def work_off(workload: Workload, workers: int, steps: int | None = None) -> list[list[bytes]]:
    """The keys that are worked on at a time, step by step; every record takes one step."""
    seen: list[list[bytes]] = []
    while steps is None or len(seen) < steps:
        running: list[ConsumerRecord] = []
        while len(running) < workers and (record := workload.take(0.0)) is not None:
            running.append(record)
        if not running:
            break
        seen.append([record.key or b"" for record in running])
        for record in running:
            assert workload.done(record)
    return seen


def workload_for(workers: int) -> Workload:
    queue = KeyQueue()
    queue.workers = workers
    return new_workload(queue)


def test_a_long_key_does_not_end_last() -> None:
    """A key with half of all records is always worked on, and the others beside it: four workers
    take as many steps as the key has records."""
    workload = workload_for(4)
    active(workload)
    deliver(workload, Log([HOT, *COLD, *[HOT] * 39]))
    steps = work_off(workload, 4)
    assert len(steps) == 40
    assert all(HOT in step for step in steps)


def test_short_keys_take_turns() -> None:
    """Keys with about the same number of records take turns, as they always did."""
    workload = workload_for(2)
    active(workload)
    deliver(workload, Log([*COLD[:4]] * 3))
    assert work_off(workload, 2, 4) == [COLD[:2], COLD[2:4]] * 2


def test_long_keys_leave_a_worker_for_others() -> None:
    """As many long keys as there are workers, with more of their records coming all the time:
    a record of another key is nevertheless begun soon."""
    workload = workload_for(4)
    active(workload)
    long = COLD[:4]
    log = Log([*long * 20, HOT])
    deliver(workload, log)
    seen: Counter[bytes] = Counter()
    for _ in range(60):
        for key in work_off(workload, 4, 1)[0]:
            seen[key] += 1
        first = log.end
        log.keys.extend(long)
        deliver(workload, log, first=first)
    assert seen[HOT] == 1
    assert sum(seen.values()) == 240


def test_what_waits_is_counted() -> None:
    """Records that wait for a key are counted, however they come to wait and to go."""
    workload = workload_for(2)
    work = active(workload)
    queue = workload.queue
    assert isinstance(queue, KeyQueue)
    queue.park_above = 10
    deliver(workload, Log([*[HOT] * 100, *COLD[:5], *COLD[:3]]))

    assert queue._behind == waiting(work) == 99 + 3
    work_off(workload, 2, 10)
    assert queue._behind == waiting(work) > 0
    taken = workload.take(0.0)
    assert taken is not None
    workload.drain(work)
    assert queue._behind == waiting(work) == 0


def test_what_is_brought_back_is_counted() -> None:
    """A record that comes back lets the next one of its key wait again."""
    workload = workload_for(2)
    work = active(workload)
    queue = workload.queue
    assert isinstance(queue, KeyQueue)
    deliver(workload, Log([HOT] * 4))
    record = workload.take(0.0)
    assert record is not None
    queue.finish(record)
    assert queue._behind == waiting(work) == 2
    record._state = PARKED
    queue.bring_back([record])
    assert queue._behind == waiting(work) == 3


def waiting(work: RangeWork) -> int:
    return sum(len(some or ()) for some in work.keys.values())
