"""What is fetched next, and for which ranges together."""

from workload_kit import HALVES, TOPIC_ID, Log, active, deliver, key_in, new_workload, unit_of

from anabranch.client.fetch_plan import BufferLimits, finish, plan
from anabranch.client.range_work import Place
from anabranch.client.records import TopicPartition
from anabranch.client.workload import Workload

ROOM = BufferLimits(max_records=100, max_bytes=10_000)
KEYS = [key_in(half, number) for number in range(50) for half in HALVES]


def leader(place: Place) -> int:
    return 7


def asked(workload: Workload, limits: BufferLimits = ROOM) -> list[tuple[int, int]]:
    """(ranges, offset) of each partition that is fetched for."""
    fetches = plan(workload, limits, leader).get(7, [])
    return [(len(fetch.asked), fetch.first) for fetch in fetches]


def test_ranges_side_by_side() -> None:
    """Ranges that are about equally far are fetched for together, from the one behind."""
    workload = new_workload()
    active(workload, HALVES[0], position=100)
    active(workload, HALVES[1], position=90)
    assert asked(workload) == [(2, 90)]
    assert asked(workload) == [], "they wait for one request at a time"


def test_ranges_far_apart() -> None:
    """A range far ahead has a request of its own, at once."""
    workload = new_workload()
    ahead = active(workload, HALVES[0], position=1_000_000)
    behind = active(workload, HALVES[1], position=0)
    assert asked(workload) == [(1, 0)]
    assert asked(workload) == [(1, 1_000_000)]
    assert ahead.fetch is not behind.fetch


def test_partitions_of_a_broker() -> None:
    """One request asks a broker for all of its partitions."""
    workload = new_workload()
    active(workload)
    other = workload.begin(TopicPartition("orders", 1), unit_of(partition=1), 1)
    other.load(5)
    fetches = plan(workload, ROOM, lambda place: place[1] + 10)
    assert {node: fetch.first for node, (fetch,) in fetches.items()} == {10: 0, 11: 5}


def test_full_buffer() -> None:
    """A range with its share of records, or of bytes, is not fetched for until it has less."""
    workload = new_workload()
    work = active(workload)
    deliver(workload, Log(KEYS))
    assert asked(workload) == []
    assert workload.take(0.0) is not None
    assert asked(workload) == [(1, 100)]
    finish(workload, work.fetch)  # type: ignore[arg-type]
    work.record_bytes = 200.0
    assert asked(workload) == []


def test_share_of_the_buffer() -> None:
    """Ranges have equal shares, so that one that is stuck leaves room for the others."""
    workload = new_workload()
    active(workload, HALVES[0])
    flowing = active(workload, HALVES[1])
    deliver(workload, Log(KEYS[:100:2]), asked=HALVES[0])
    assert [(one.asked, one.first) for one in plan(workload, ROOM, leader)[7]] == [([HALVES[1]], 0)]
    assert flowing.fetch is not None


def test_nothing_in_the_buffer() -> None:
    """A range without records is fetched for, however small its share."""
    workload = new_workload()
    active(workload)
    assert asked(workload, BufferLimits(1, 1)) == [(1, 0)]


def test_without_a_leader() -> None:
    """A partition that nobody leads is left for later."""
    workload = new_workload()
    work = active(workload)
    assert plan(workload, ROOM, lambda place: None) == {}
    assert work.fetch is None


def test_cut_while_being_fetched_for() -> None:
    """Both parts of a range that was cut wait for the request that was made for it."""
    workload = new_workload()
    work = active(workload)
    ((fetch,),) = plan(workload, ROOM, leader).values()
    part = workload.cut(work, HALVES[1])
    assert asked(workload) == []
    assert finish(workload, fetch) == [work, part]
    assert (work.fetch, part.fetch) == (None, None)
    assert fetch.place == (TOPIC_ID, 0)
