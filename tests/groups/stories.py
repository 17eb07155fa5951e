"""What groups go through, told once for all stock clients.

Each story ends with what must be true of every group: one owner per partition at every instant,
every record processed, again only what a faulty member had, and the offsets of a restart right.
"""

import signal
import time

from members import Member
from scene import PARTITIONS, Scene

# As short as a machine that is busy with other tests lets healthy members live with; the broker of
# the scene allows it.
SHORT_SESSION_MS = "5000"


def some_at_once(scene: Scene, client: str, strategy: str, count: int) -> None:
    """Consumers that start together share the topic."""
    scene.produce(100)
    members = [scene.join(client, strategy=strategy) for _ in range(count)]
    scene.shared(at_least=PARTITIONS // count)
    scene.produce(200)
    shares = sorted(len(member.owned) for member in members)
    assert shares[-1] - shares[0] <= 1
    scene.check_restart(client, strategy)


def two_seconds_apart(scene: Scene, client: str, strategy: str) -> None:
    """Consumers come two seconds apart while records flow, and one leaves again."""
    for number in range(3):
        if number:
            time.sleep(2)
        scene.produce(100)
        scene.join(client, strategy=strategy)
    scene.shared(at_least=3)
    scene.produce(100)
    scene.members[0].close()
    scene.produce(100)
    scene.shared(at_least=5, among=scene.members[1:])
    scene.check_restart(client, strategy)


def one_dies(scene: Scene, client: str, strategy: str) -> None:
    """A consumer dies between processing a record and its commit; the others take over."""
    options = {"strategy": strategy, "session_ms": SHORT_SESSION_MS}
    dead = scene.join(client, die_at="5", **options)
    others = [scene.join(client, **options) for _ in range(2)]
    scene.shared(at_least=3)
    scene.produce(200)
    scene.wait_for(lambda: not dead.is_running, "the accident")
    scene.shared(at_least=5, among=others)
    again = scene.check_restart(client, strategy, faulty=[dead])
    assert again == {dead.records[-1]}


def one_is_paused(scene: Scene, client: str, strategy: str) -> None:
    """A consumer sleeps through its session, wakes before a commit, and the broker refuses it."""
    # Longer between heartbeats: the sleeper shall try to commit before a heartbeat tells it the
    # news, for then its client would refuse in the broker's place.
    options = {"strategy": strategy, "session_ms": SHORT_SESSION_MS, "heartbeat_ms": "900"}
    zombie = scene.join(client, pause_at="5", **options)
    other = scene.join(client, **options)
    scene.shared(at_least=5)
    scene.produce(100)
    scene.wait_for(lambda: bool(zombie.of("pausing")), "the accident")
    scene.shared(at_least=PARTITIONS, among=[other])
    scene.all_processed()
    scene.all_committed()
    zombie.send(signal.SIGCONT)
    scene.wait_for(lambda: bool(zombie.of("refused")), "the refusal of the late commit")
    assert zombie.of("refused")[0]["error"] in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
    scene.all_committed()
    scene.shared(at_least=5)
    scene.produce(100)
    again = scene.check_restart(client, strategy, faulty=[zombie])
    assert zombie.records[4] in again


def rolling_restart(scene: Scene, client: str, strategy: str) -> None:
    """Static members restart one by one, one of them by a crash: nobody else hears of it."""
    members = [scene.join(client, strategy=strategy, instance=f"i{n}") for n in range(3)]
    scene.shared(at_least=3)
    scene.produce(100)
    scene.all_processed()
    scene.all_committed()
    before = scene.assignment()
    told = [member.rebalances for member in members]
    for number, end in enumerate((Member.close, Member.kill, Member.close)):
        assert [member.rebalances for member in members] == told
        end(members[number])
        back = members[number] = scene.join(client, strategy=strategy, instance=f"i{number}")
        scene.wait_for(lambda back=back: len(back.owned) > 0, "the return of a member")
        told[number] = back.rebalances
    scene.produce(100)
    scene.all_processed()
    scene.all_committed()
    assert [member.rebalances for member in members] == told
    assert scene.assignment() == before
    scene.close_all()
    scene.check_histories()


def broker_dies(scene: Scene, clients: list[tuple[str, str]]) -> None:
    """The broker dies while consumers work, and they go on in the generation they were in."""
    for client, strategy in clients:
        scene.join(client, strategy=strategy, session_ms="60000")
    scene.shared(at_least=1)
    before = scene.assignment()
    told = [member.rebalances for member in scene.members]
    scene.produce(2000)
    scene.wait_for(lambda: len(_told_commits(scene)) == PARTITIONS, "a commit in every partition")
    confirmed = _told_commits(scene)
    scene.restart_broker(by_crash=True)
    committed = scene.committed()
    assert all(committed[partition] >= offset for partition, offset in confirmed.items())
    scene.produce(200)
    scene.all_processed()
    scene.all_committed()
    assert scene.assignment() == before
    assert [member.rebalances for member in scene.members] == told
    scene.check_restart(*clients[0])


def _told_commits(scene: Scene) -> dict[int, int]:
    """The last offset of each partition whose commit a member was told of."""
    last: dict[int, int] = {}
    for event in (e for member in scene.members for e in member.of("committed")):
        last[event["partition"]] = max(event["offset"], last.get(event["partition"], 0))
    return last
