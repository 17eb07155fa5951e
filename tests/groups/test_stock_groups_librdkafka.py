"""Consumer groups of stock clients, as processes: they share the partitions and lose nothing."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from members import Member, all_records, is_settled, wait_for

from support.broker_process import BrokerProcess

PARTITIONS = 10
CLIENTS = [
    ("confluent", "range"),
    ("confluent", "roundrobin"),
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("aiokafka", "roundrobin"),
]


class Scene:
    """A broker, a topic, a group and its members."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.topic = self.group = name
        self.members: list[Member] = []
        self.sent = 0
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(10)

    def join(self, client: str = "confluent", **options: str) -> Member:
        member = Member(
            client,
            self.broker.bootstrap,
            self.group,
            self.topic,
            *(f"{k}={v}" for k, v in options.items()),
        )
        self.members.append(member)
        return member

    def produce(self, count: int) -> None:
        """The same number of records to each partition."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for number in range(count):
            producer.produce(self.topic, str(number), partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        self.sent += count

    def settled(self, members: list[Member] | None = None) -> None:
        wanted = self.members if members is None else members
        wait_for(lambda: is_settled(wanted, PARTITIONS), "one owner for each partition")

    def shared(self, at_least: int) -> None:
        """Every partition has one owner, and every member has its share: all have joined."""
        wait_for(
            lambda: (
                is_settled(self.members, PARTITIONS)
                and all(len(member.owned) >= at_least for member in self.members)
            ),
            "an even share for every member",
        )

    def all_processed(self) -> Counter[tuple[int, int]]:
        wait_for(lambda: len(set(all_records(self.members))) >= self.sent, "every record processed")
        return Counter(all_records(self.members))

    def committed(self) -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(self.group)
        (future,) = self.admin.list_consumer_group_offsets([asked]).values()
        return {p.partition: p.offset for p in future.result(10).topic_partitions}

    def all_committed(self) -> None:
        each = self.sent // PARTITIONS
        wait_for(lambda: self.committed() == dict.fromkeys(range(PARTITIONS), each), "every commit")

    def generation(self) -> str:
        """What changes with every rebalance: who has what, in the coordinator's words."""
        (future,) = self.admin.describe_consumer_groups([self.group]).values()
        described = future.result(10)
        return repr(
            sorted(
                (m.group_instance_id, sorted(p.partition for p in m.assignment.topic_partitions))
                for m in described.members
            )
        )


@pytest.fixture
def scene(
    make_broker: Callable[..., BrokerProcess], request: pytest.FixtureRequest
) -> Iterator[Scene]:
    broker = make_broker(**{"group.initial.rebalance.delay.ms": "300"})
    made = Scene(broker, "orders")
    yield made
    for member in made.members:
        member.kill()


@pytest.mark.parametrize(("client", "strategy"), CLIENTS)
def test_three_at_once(scene: Scene, client: str, strategy: str) -> None:
    """Three consumers that start together share the topic; each record is processed once."""
    for _ in range(3):
        scene.join(client, strategy=strategy)
    scene.shared(at_least=3)
    scene.produce(300)
    assert max(scene.all_processed().values()) == 1
    scene.all_committed()


def test_one_alone(scene: Scene) -> None:
    """One consumer gets everything, and goes on where it was after a restart."""
    scene.produce(200)
    member = scene.join()
    scene.settled()
    scene.all_processed()
    scene.all_committed()
    member.close()
    scene.produce(100)
    scene.join()
    assert max(scene.all_processed().values()) == 1


@pytest.mark.parametrize(
    ("client", "strategy"), [("confluent", "range"), ("confluent", "cooperative-sticky")]
)
def test_ten_at_once(scene: Scene, client: str, strategy: str) -> None:
    """Ten consumers that start together get one partition each."""
    for _ in range(10):
        scene.join(client, strategy=strategy)
    scene.shared(at_least=1)
    scene.produce(300)
    assert max(scene.all_processed().values()) == 1
    assert [len(member.owned) for member in scene.members] == [1] * 10


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_one_after_the_other_and_away_again(scene: Scene, strategy: str) -> None:
    """Consumers that come and go while records flow: nothing is lost, the shares stay even."""
    scene.join(strategy=strategy)
    scene.settled()
    scene.produce(100)
    for others in (1, 2):
        scene.join(strategy=strategy)
        scene.shared(at_least=PARTITIONS // (others + 1))
        scene.produce(100)
    scene.members[0].close()
    scene.settled(scene.members[1:])
    scene.produce(100)
    scene.all_processed()
    scene.all_committed()


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_one_is_killed(scene: Scene, client: str) -> None:
    """The partitions of a consumer that died go to the others when its session is over."""
    members = [scene.join(client) for _ in range(3)]
    scene.shared(at_least=3)
    scene.produce(100)
    scene.all_processed()
    members[0].kill()
    scene.produce(100)
    scene.settled(members[1:])
    scene.all_processed()
    scene.all_committed()


def test_a_zombie_cannot_commit(scene: Scene) -> None:
    """A consumer stopped past its session, just before a commit, is refused when it wakes."""
    zombie, other = scene.join(pause_at="5"), scene.join()
    scene.shared(at_least=5)
    scene.produce(100)
    wait_for(lambda: len(other.owned) == PARTITIONS, "the other takes over")
    scene.all_processed()
    scene.all_committed()
    committed = scene.committed()
    zombie.send(signal.SIGCONT)
    wait_for(lambda: bool(zombie.of("refused")), "the zombie's late commit is refused")
    assert zombie.of("refused")[0]["error"] in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
    assert scene.committed() == committed
    scene.settled([zombie, other])
    scene.produce(100)
    scene.all_processed()
    scene.all_committed()


def test_a_stranger_cannot_commit(scene: Scene) -> None:
    """Who is no member cannot commit for a group that has members."""
    scene.join()
    scene.settled()
    assert _commit_as_stranger(scene) == "UNKNOWN_MEMBER_ID"


def _rebalances(member: Member) -> int:
    """How often a member was told that its partitions change."""
    return len(member.of("assigned")) + len(member.of("revoked")) + len(member.of("lost"))


def _commit_as_stranger(scene: Scene) -> str:
    """Commit without being a member of a group that has members."""
    stranger = Consumer({"bootstrap.servers": scene.broker.bootstrap, "group.id": scene.group})
    try:
        stranger.commit(offsets=[TopicPartition(scene.topic, 0, 1)], asynchronous=False)
    except Exception as error:
        return str(error.args[0].name())
    finally:
        stranger.close()
    return "NO_ERROR"


def test_static_members_restart_without_a_rebalance(scene: Scene) -> None:
    """A rolling restart of static members moves no partition and disturbs nobody."""
    members = [scene.join(instance=f"i{n}", session_ms="20000") for n in range(3)]
    scene.shared(at_least=3)
    scene.produce(100)
    scene.all_processed()
    before = scene.generation()
    for number in range(3):
        others = [member for member in members if member is not members[number]]
        told = [_rebalances(member) for member in others]
        members[number].kill()
        members[number] = scene.join(instance=f"i{number}", session_ms="20000")
        wait_for(lambda m=members[number]: bool(m.of("assigned")), "the restarted one is back")
        assert [_rebalances(member) for member in others] == told
    assert scene.generation() == before
    scene.produce(100)
    scene.all_processed()
    scene.all_committed()


def test_broker_dies_under_ten_consumers(scene: Scene) -> None:
    """After kill -9 of the broker its members go on in the generation they were in."""
    for _ in range(10):
        scene.join(session_ms="20000")
    scene.shared(at_least=1)
    scene.produce(200)
    scene.all_processed()
    scene.all_committed()
    before, committed = scene.generation(), scene.committed()
    told = [_rebalances(member) for member in scene.members]
    scene.broker.kill()
    scene.broker.start()
    assert scene.committed() == committed
    scene.produce(200)
    counts = scene.all_processed()
    scene.all_committed()
    assert scene.generation() == before
    assert [_rebalances(member) for member in scene.members] == told
    assert max(counts.values()) == 1
