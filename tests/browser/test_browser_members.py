"""What pages say of groups is what their members know, and follows them without a reload."""

from typing import Any

from browser_kit import Member, Watched, World, eventually, number_in, watched
from playwright.sync_api import Browser


def stay(at: Watched) -> None:
    """Mark the page; a reload would lose it."""
    at.page.evaluate("window.hasStayed = true")


def has_stayed(at: Watched) -> bool:
    return at.page.evaluate("window.hasStayed === true") is True


def shown_members(at: Watched) -> dict[str, str]:
    """Client ids and how many partitions they have."""
    return {row["Client id"]: row["#"] for row in at.table("members")}


def known_members(members: list[Member]) -> dict[str, str]:
    """The same, as the clients know it."""
    return {member.client_id: str(len(member.ask()["partitions"])) for member in members}


def known_partitions(members: list[Member]) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for member in members:
        for one in member.ask()["partitions"]:
            lag = one["high"] - (one["committed"] if one["committed"] is not None else one["low"])
            found[one["topic"], one["partition"]] = {
                "Committed": one["committed"],
                "End": one["high"],
                "Lag": lag,
            }
    return found


def shown_partitions(at: Watched) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (row["Topic"], int(row["Partition"])): {
            key: number_in(row[key]) for key in ("Committed", "End", "Lag")
        }
        for row in at.table("partitions")
    }


def follow(browser: Browser, world: World, kind: str) -> None:
    """Join, commit, fall behind, leave and be killed, with the pages open all the time."""
    topic, group = f"follow-{kind}", f"follow-{kind}"
    world.create_topic(topic, 4)
    world.produce(topic, 40)
    address = f"{world.url}/groups/{group}"
    with (
        watched(browser) as members_tab,
        watched(browser) as lag_tab,
        world.members(kind, group, topic, "first") as hired,
    ):
        members_tab.open(f"{address}?tab=members")
        lag_tab.open(address)
        stay(members_tab)
        stay(lag_tab)

        def agree() -> bool:
            return (
                shown_members(members_tab) == known_members(hired)
                and shown_partitions(lag_tab) == known_partitions(hired)
                and members_tab.fact("Members") == str(len(hired))
            )

        eventually(lambda: agree() and lag_tab.fact("Lag") == "0", "one member, and no lag")
        second = world.hire(kind, group, topic, "second")
        hired.append(second)
        eventually(
            lambda: agree() and shown_members(members_tab) == {"first": "2", "second": "2"},
            "the second member is shown with its half",
        )
        first_id = hired[0].ask("hold")["member_id"]
        second.ask("hold")
        shown = [row["Member"].split()[0] for row in members_tab.table("members")]
        assert first_id in shown and len(shown) == 2
        world.produce(topic, 7, partition=1)
        eventually(lambda: agree() and lag_tab.fact("Lag") == "7", "the lag of who holds still")
        second.kill()
        world.forget(second)
        hired.remove(second)
        eventually(
            lambda: agree() and shown_members(members_tab) == {"first": "4"},
            "whoever was killed is gone, and the other has all",
        )
        world.dismiss(hired)
        eventually(
            lambda: not members_tab.table("members") and members_tab.fact("State") == "Empty",
            "nobody is left",
        )
        assert has_stayed(members_tab) and has_stayed(lag_tab)
        members_tab.open(f"{address}?tab=timeline")
        text = members_tab.page.inner_text("main")
        assert "joined" in text and "left" in text


def test_classic_group(browser: Browser, world: World) -> None:
    """Members, assignment, offsets and lag of stock consumers with the classic protocol."""
    follow(browser, world, "classic")


def test_consumer_group(browser: Browser, world: World) -> None:
    """The same with the protocol of KIP-848."""
    follow(browser, world, "consumer")


def test_lists_follow(browser: Browser, world: World) -> None:
    """A new topic and a new group come to the lists by themselves, and pausing stops that."""
    with watched(browser) as groups, watched(browser) as topics:
        groups.open(f"{world.url}/groups?q=lists-")
        topics.open(f"{world.url}/topics?q=lists-")
        stay(groups)
        stay(topics)
        world.create_topic("lists-topic", 2)
        world.produce("lists-topic", 10)
        eventually(lambda: topics.table("topics"), "the topic is listed")
        with world.members("classic", "lists-group", "lists-topic", "one") as (member,):
            eventually(lambda: groups.table("groups"), "the group is listed")
            (row,) = groups.table("groups")
            assert row["Group"].startswith("lists-group")
            eventually(
                lambda: [row["Members"] for row in groups.table("groups")] == ["1"], "its member"
            )
            groups.page.click("#live-pause")
            world.dismiss([member])
        eventually(
            lambda: world.get_json("/groups?q=lists-&format=json")[0]["state"] == "Empty",
            "the export says that it is empty",
        )
        assert [row["Members"] for row in groups.table("groups")] == ["1"], "while it is paused"
        groups.page.click("#live-pause")
        eventually(lambda: [row["Members"] for row in groups.table("groups")] == ["0"], "live")
        assert has_stayed(groups) and has_stayed(topics)
