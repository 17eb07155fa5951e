"""The Sharing tab follows hand-overs, and its strips are what members own."""

import os
from typing import Any

from browser_kit import Member, Watched, World, eventually, number_in, watched
from playwright.sync_api import Browser

# What is promised, and what a machine that has more to do than it can is given.
PROMISED_S, BUSY_S = 2.0, 30.0

# Notes when the page showed which owners, by the browser's own clock, which is the machine's.
_NOTE = """() => {
  window.stripLog = [];
  const look = () => {
    const now = [...document.querySelectorAll('.pieces g[data-owner]')].map(one =>
      [one.closest('section').id, one.dataset.owner, +one.dataset.first, +one.dataset.last]);
    const text = JSON.stringify(now);
    if (!window.stripLog.length || window.stripLog.at(-1).text !== text)
      window.stripLog.push({ at: Date.now() / 1000, text, pieces: now });
  };
  new MutationObserver(look).observe(document.getElementById('inner'),
    { childList: true, subtree: true, attributes: true, characterData: true });
  look();
}"""


def slots(pieces: list[Any], owner: str) -> set[tuple[int, int]]:
    return {(first, last) for _, one, first, last in pieces if one == owner}


def shown_slots(at: Watched) -> dict[str, set[tuple[int, int]]]:
    pieces = at.page.evaluate("window.stripLog.at(-1).pieces")
    return {owner: slots(pieces, owner) for _, owner, _, _ in pieces if owner}


def known_slots(members: list[Member]) -> dict[str, set[tuple[int, int]]]:
    """What members know of themselves; neighbouring ranges of one owner are one piece."""
    found = {}
    for member in members:
        told = member.ask()
        joined: list[list[int]] = []
        for _, _, first, last in sorted(told["ranges"]):
            if joined and joined[-1][1] + 1 == first:
                joined[-1][1] = last
            else:
                joined.append([first, last])
        if joined:
            found[told["member_id"]] = {(first, last) for first, last in joined}
    return found


def limit_s() -> float:
    """Two seconds, where there is a core for each who wants one."""
    return PROMISED_S if os.getloadavg()[0] < (os.cpu_count() or 1) else BUSY_S


def test_strip_follows_a_hand_over(browser: Browser, world: World) -> None:
    """When a member has got ranges, the strip says so within two seconds; also of a killed one."""
    world.create_topic("strip", 1, range_fetch_enable="true")
    world.produce("strip", 200)
    with (
        watched(browser) as at,
        world.members("cooperative", "strip", "strip", "first") as hired,
    ):
        at.open(f"{world.url}/groups/strip?tab=sharing")
        at.page.evaluate(_NOTE)
        eventually(lambda: shown_slots(at) == known_slots(hired), "one owner of everything")
        limit = limit_s()
        second = world.hire("cooperative", "strip", "strip", "second")
        hired.append(second)
        second.wait_for_assignment()
        got = next(one for one in second.events if one["event"] == "assigned" and one["ranges"])
        told = second.ask()
        assert told["ranges"], "it has what it was given"
        eventually(lambda: told["member_id"] in shown_slots(at), "the second member's piece")
        seen = next(
            one["at"]
            for one in at.page.evaluate("window.stripLog")
            if slots(one["pieces"], told["member_id"])
        )
        print(
            f"\nthe strip showed a hand-over {seen - got['at']:.2f} s after the member's callback"
        )
        assert seen - got["at"] < limit
        eventually(lambda: shown_slots(at) == known_slots(hired), "both with what they own")
        assert {row["Client"] for row in at.table("owners")} == {"first", "second"}
        moves = at.table("moves")
        assert any(row["From"] == "first" and row["To"] == "second" for row in moves)
        second.kill()
        world.forget(second)
        hired.remove(second)
        eventually(lambda: shown_slots(at) == known_slots(hired), "the first has all again")


def test_progress_is_what_members_know(browser: Browser, world: World) -> None:
    """Stable offset and records in hand are those of the member; failed members change nothing."""
    world.create_topic("hand", 1, range_fetch_enable="true")
    world.produce("hand", 100)
    with (
        watched(browser) as at,
        world.members("cooperative", "hand", "hand", "holder") as (holder,),
    ):
        at.open(f"{world.url}/groups/hand?tab=sharing")

        def stable() -> list[int | None]:
            return [number_in(row["Stable offset"]) for row in at.table("partitions")]

        eventually(lambda: stable() == [100], "all is done")
        holder.ask("hold")
        world.produce("hand", 20)
        eventually(lambda: len(holder.ask()["in_hand"]) == 20, "the member has them in hand")
        eventually(
            lambda: [number_in(row["In flight"]) for row in at.table("partitions")] == [20],
            "the page shows them in flight",
        )
        assert stable() == [100]
        (row,) = at.table("partitions")
        assert number_in(row["Oldest open"]) == 100
        assert number_in(row["End"]) == 120
