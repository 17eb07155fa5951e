"""From assignments to what a member does about them."""

from workload_kit import (
    HALVES,
    PLACE,
    TOPIC_ID,
    Log,
    deliver,
    key_in,
    new_workload,
    take_all,
    unit_of,
)

from anabranch.client.holdings import Holdings
from anabranch.client.range_work import RangeState
from anabranch.client.workload import Workload
from anabranch.model.units import ALL_SLOTS, SlotRange

QUARTERS = [SlotRange(16_384 * i, 16_384 * (i + 1)) for i in range(4)]


def new_holdings() -> tuple[Holdings, Workload]:
    workload = new_workload()
    return Holdings(workload, lambda topic_id, partition: PLACE), workload


def held(holdings: Holdings) -> list[SlotRange]:
    return holdings.held.get((TOPIC_ID, 0), [])


def test_assigned_is_held_at_once() -> None:
    """A range is ours from when it was given, also before anything is known of it."""
    holdings, _ = new_holdings()
    changes = holdings.assign({unit_of(HALVES[0]): 1})
    assert [work.state for work in changes.begun] == [RangeState.LOADING]
    assert held(holdings) == [HALVES[0]]


def test_other_cuts_of_the_same() -> None:
    """The same slots at the same epoch stay as they are, however they are written."""
    holdings, workload = new_holdings()
    holdings.assign({unit_of(ALL_SLOTS): 1})
    changes = holdings.assign({unit_of(HALVES[0]): 1, unit_of(HALVES[1]): 1})
    assert (changes.begun, changes.draining, changes.lost) == ([], [], [])
    assert sum(work.slots.end - work.slots.first for work in workload) == 65_536
    again = holdings.assign({unit_of(ALL_SLOTS): 1})
    assert (again.begun, again.draining, again.lost) == ([], [], [])
    assert held(holdings) == [ALL_SLOTS]


def test_part_is_taken_away() -> None:
    """Only the slots that are missing are drained; the others go on."""
    holdings, workload = new_holdings()
    (work,) = holdings.assign({unit_of(ALL_SLOTS): 1}).begun
    work.load(0)
    low, high = key_in(HALVES[0]), key_in(HALVES[1])
    deliver(workload, Log([low, high, low, high]))
    running = take_all(workload)
    (leaving,) = holdings.assign({unit_of(HALVES[0]): 1}).draining
    assert leaving.slots == HALVES[1]
    assert held(holdings) == [ALL_SLOTS], "it is not given back before it has drained"
    assert holdings.drained(work) == [], "what stays cannot be given back"
    for record in running:
        workload.done(record)
    assert [record.offset for record in take_all(workload)] == [2]
    assert leaving.is_drained
    assert holdings.drained(leaving) == [leaving]
    assert held(holdings) == [HALVES[0]]


def test_neighbours_are_given_back_together() -> None:
    """Ranges side by side that drain are held until the last of them has drained."""
    holdings, _ = new_holdings()
    holdings.assign({unit_of(ALL_SLOTS): 1})
    (second,) = holdings.assign(
        {unit_of(QUARTERS[0]): 1, unit_of(SlotRange(32_768, 65_536)): 1}
    ).draining
    (third,) = holdings.assign({unit_of(QUARTERS[0]): 1, unit_of(QUARTERS[3]): 1}).draining
    assert (second.slots, third.slots) == (QUARTERS[1], QUARTERS[2])
    assert holdings.drained(second) == []
    assert held(holdings) == [ALL_SLOTS]
    assert holdings.drained(third) == [second, third]
    assert held(holdings) == [QUARTERS[0], QUARTERS[3]]


def test_ranges_apart_are_given_back_apart() -> None:
    """A range that still drains does not hold up one that is not its neighbour."""
    holdings, _ = new_holdings()
    holdings.assign({unit_of(ALL_SLOTS): 1})
    changes = holdings.assign({unit_of(QUARTERS[1]): 1})
    first, rest = changes.draining
    assert holdings.drained(first) == [first]
    assert held(holdings) == [SlotRange(16_384, 65_536)]
    assert holdings.drained(rest) == [rest]


def test_other_epoch() -> None:
    """Slots that come with another epoch were somebody else's: what was done for them is lost."""
    holdings, workload = new_holdings()
    (work,) = holdings.assign({unit_of(): 1}).begun
    work.load(0)
    changes = holdings.assign({unit_of(): 4})
    assert changes.lost == [work] and work.state is RangeState.GONE
    (begun,) = changes.begun
    assert begun.token.epoch == 4
    assert list(workload) == [begun]


def test_assigned_again_while_it_drains() -> None:
    """A range that is given again while it drains drains to the end, and is begun anew."""
    holdings, workload = new_holdings()
    (work,) = holdings.assign({unit_of(): 1}).begun
    work.load(0)
    deliver(workload, Log([key_in(ALL_SLOTS)]))
    (running,) = take_all(workload)
    holdings.assign({})
    assert holdings.assign({unit_of(): 1}).begun == []
    workload.done(running)
    assert holdings.drained(work) == [work]
    assert held(holdings) == [ALL_SLOTS], "in the eyes of the coordinator it never left"
    (begun,) = holdings.begin_missing()
    assert begun is not work


def test_lost() -> None:
    """A fenced member forgets everything at once."""
    holdings, workload = new_holdings()
    begun = holdings.assign({unit_of(HALVES[0]): 1, unit_of(HALVES[1]): 2}).begun
    assert holdings.lose_all() == begun
    assert (held(holdings), list(workload)) == ([], [])


def test_topic_without_a_name() -> None:
    """What is given of a topic that is not known yet is held, and begun when its name is."""
    names: dict[bytes, str] = {}
    workload = new_workload()
    holdings = Holdings(workload, lambda topic_id, _: PLACE if topic_id in names else None)
    assert holdings.assign({unit_of(): 1}).begun == []
    assert held(holdings) == [ALL_SLOTS]
    assert holdings.missing_topics == {TOPIC_ID}
    names[TOPIC_ID] = "orders"
    assert len(holdings.begin_missing()) == 1
    assert holdings.missing_topics == set()
