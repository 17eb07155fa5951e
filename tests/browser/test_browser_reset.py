"""The wizard that moves offsets: it shows a plan, does it, and undoes it."""

from browser_kit import Watched, World, eventually, number_in, watched
from confluent_kafka import Consumer, TopicPartition
from playwright.sync_api import Browser


def committed(world: World, group: str, topic: str, partitions: int) -> list[int]:
    """What a stock client is told of the group's offsets."""
    asking = Consumer({"bootstrap.servers": world.bootstrap, "group.id": group, "log_level": 0})
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return [one.offset for one in asking.committed(places, 60)]
    finally:
        asking.close()


def offsets_in(at: Watched, table: str, column: str) -> list[int | None]:
    return [number_in(row[column]) for row in at.table(table)]


def test_reset_and_undo(browser: Browser, world: World) -> None:
    """A reset to the earliest offset counts for the next consumer, and undo puts it back."""
    world.create_topic("reset", 2)
    world.produce("reset", 10, partition=0)
    world.produce("reset", 20, partition=1)
    with world.members("classic", "reset", "reset", "reader") as (reader,):
        eventually(
            lambda: sum(one["committed"] or 0 for one in reader.ask()["partitions"]) == 30,
            "all is read and committed",
        )
        with watched(browser) as at:
            at.open(f"{world.url}/groups/reset?tab=offsets&strategy=earliest")
            assert at.page.is_disabled("button.danger"), "not while members read"
    eventually(
        lambda: world.get_json("/groups?q=reset&format=json")[0]["state"] == "Empty",
        "the member has left",
    )
    assert committed(world, "reset", "reset", 2) == [10, 20]
    with watched(browser) as at:
        at.open(f"{world.url}/groups/reset?tab=offsets")
        at.page.check("input[name=strategy][value=earliest]")
        at.page.click("form.wizard button[type=submit]")
        at.page.wait_for_selector("#table-plan")
        assert offsets_in(at, "plan", "Offset before") == [10, 20]
        assert offsets_in(at, "plan", "Offset after") == [0, 0]
        assert committed(world, "reset", "reset", 2) == [10, 20], "a plan changes nothing"
        at.page.click("button.danger")
        at.page.wait_for_selector("#table-result")
        assert offsets_in(at, "result", "Committed now") == [0, 0]
        assert committed(world, "reset", "reset", 2) == [0, 0]
        at.page.click("button[name=undo]")
        at.page.wait_for_selector("text=put back")
        assert committed(world, "reset", "reset", 2) == [10, 20]
        assert "console.offsets.reset" in world.broker.log_text
        assert "console.offsets.undone" in world.broker.log_text
