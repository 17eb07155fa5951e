"""How far members were shown records: since they hold what they hold, as far as anybody knows."""

from anabranch.broker.deliveries import Deliveries

TOPIC_ID = b"t".ljust(16, b".")


class Shown:
    """The deliveries of one partition of a group."""

    def __init__(self) -> None:
        self.deliveries = Deliveries()

    def note(self, epoch: int, offset: int, member_id: str = "a", partition: int = 0) -> None:
        self.deliveries.note("g", TOPIC_ID, partition, member_id, epoch, offset)

    def since(self, epoch: int, member_id: str = "a", partition: int = 0) -> int | None:
        return self.deliveries.delivered("g", TOPIC_ID, partition, member_id, epoch)


def test_as_far_as_it_went() -> None:
    """A record that is read again does not take it back."""
    shown = Shown()
    assert shown.since(5) is None
    for offset in (10, 50, 20):
        shown.note(5, offset)
    assert shown.since(5) == 50


def test_each_for_itself() -> None:
    """Members, partitions and groups have nothing to do with each other."""
    shown = Shown()
    shown.note(5, 10)
    assert shown.since(5, member_id="b") is None
    assert shown.since(5, partition=1) is None
    assert shown.deliveries.delivered("h", TOPIC_ID, 0, "a", 5) is None
    assert shown.deliveries.delivered("g", bytes(16), 0, "a", 5) is None


def test_what_was_lost_and_won_again() -> None:
    """What a member saw before does not count; what it still holds does, whatever came later."""
    shown = Shown()
    shown.note(5, 500)
    shown.note(6, 150)
    assert shown.since(5) == 500
    assert shown.since(6) == 150
    assert shown.since(7) is None


def test_what_was_before_the_start() -> None:
    """Nobody knows what the process before has shown, as long as a member holds it since then."""
    shown = Shown()
    shown.deliveries.group_loaded("g", 6)
    shown.note(6, 100)
    shown.note(7, 200)
    assert shown.since(6) is None
    assert shown.since(7) == 200


def test_a_member_that_is_gone() -> None:
    """Is forgotten, and nobody else is."""
    shown = Shown()
    shown.note(5, 10)
    shown.note(5, 20, member_id="b")
    shown.deliveries.forget_member("g", "a")
    assert (shown.since(5), shown.since(5, member_id="b")) == (None, 20)
    shown.deliveries.forget_member("g", "b")
    shown.deliveries.forget_member("g", "b")
    shown.deliveries.forget_member("h", "b")
    assert shown.deliveries._shown == {}


def test_epochs_do_not_pile_up() -> None:
    """Old ones are told of together: rather too much than too little."""
    shown = Shown()
    for epoch in range(1, 100):
        shown.note(epoch, 1000 - epoch)
    assert shown.since(1) == 999
    assert shown.since(99) == 901
    (epochs,) = shown.deliveries._shown["g"]["a"].values()
    assert len(epochs) == 8


def test_how_far_any_member_was_shown() -> None:
    """As far as the last batch that was opened for one; whoever leaves has been shown it."""
    shown = Shown()
    news: list[tuple[str, bytes, int]] = []
    shown.deliveries.on_news = lambda *key: news.append(key)
    assert shown.deliveries.highest("g", TOPIC_ID, 0) == 0
    shown.note(5, 50)
    shown.note(5, 40, member_id="b")
    shown.note(5, 50, member_id="b")
    assert shown.deliveries.highest("g", TOPIC_ID, 0) == 50
    assert news == [("g", TOPIC_ID, 0)]
    shown.deliveries.note("g", TOPIC_ID, 0, "a", 5, 55, 60)
    assert (shown.deliveries.highest("g", TOPIC_ID, 0), shown.since(5)) == (60, 55)
    assert len(news) == 2
    assert shown.deliveries.highest("g", TOPIC_ID, 1) == 0
    assert shown.deliveries.highest("h", TOPIC_ID, 0) == 0
    shown.deliveries.forget_member("g", "a")
    assert shown.deliveries.highest("g", TOPIC_ID, 0) == 60
    shown.deliveries.forget_member("g", "b")
    assert shown.deliveries.highest("g", TOPIC_ID, 0) == 0


def test_whether_a_member_has_seen_a_record() -> None:
    """In this ownership; of what nobody knows, it has."""
    shown = Shown()

    def was_shown(offset: int, since_epoch: int = 5) -> bool:
        return shown.deliveries.was_shown("g", TOPIC_ID, 0, "a", since_epoch, offset)

    assert not was_shown(0)
    shown.note(5, 50)
    assert was_shown(49)
    assert not was_shown(50)
    assert not was_shown(49, since_epoch=6)
    shown.deliveries.group_loaded("g", 5)
    assert was_shown(1000)
    assert not was_shown(49, since_epoch=6)


def test_who_reads_uncommitted_records() -> None:
    """One member is enough, for one partition, until the group has no members."""
    deliveries = Deliveries()
    deliveries.note("g", TOPIC_ID, 0, "a", 5, 10, is_committed=True)
    assert not deliveries.reads_uncommitted("g", TOPIC_ID, 0)
    deliveries.note("g", TOPIC_ID, 0, "b", 5, 10)
    deliveries.note("g", TOPIC_ID, 0, "a", 5, 20, is_committed=True)
    assert deliveries.reads_uncommitted("g", TOPIC_ID, 0)
    assert not deliveries.reads_uncommitted("g", TOPIC_ID, 1)
    assert not deliveries.reads_uncommitted("h", TOPIC_ID, 0)
    deliveries.forget_member("g", "b")
    assert deliveries.reads_uncommitted("g", TOPIC_ID, 0)
    deliveries.forget_member("g", "a")
    assert not deliveries.reads_uncommitted("g", TOPIC_ID, 0)
