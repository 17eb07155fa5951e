"""The scene of the group tests: a broker, a topic, a group and its members."""

from collections import Counter
from collections.abc import Callable

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from members import (
    Member,
    accounts,
    all_records,
    double_owners,
    records_after_their_commit,
    records_of_others,
    wait_for,
)

from support.broker_process import BrokerProcess

PARTITIONS = 10


class Scene:
    """A broker, a topic, a group and its members."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.topic = self.group = name
        self.members: list[Member] = []
        self.sent = 0
        self._meet_broker()
        self._admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)

    def _meet_broker(self) -> None:
        # A new client for each life of the broker: a librdkafka that was connected to the last one
        # can lose its own question for the coordinator while it starts over (seen in 2.16).
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    # What happens ---------------------------------------------------------------------------------

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
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for number in range(count):
            producer.produce(self.topic, str(number), partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        self.sent += count

    def restart_broker(self, *, by_crash: bool) -> None:
        if by_crash:
            self.broker.kill()
        else:
            self.broker.stop()
        self.broker.start()
        self._meet_broker()

    def close_all(self) -> None:
        """All members leave, in order, at the same time."""
        running = [member for member in self.members if member.is_running]
        for member in running:
            member.ask_to_close()
        for member in running:
            member.join()

    # What is waited for ---------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, what, account=lambda: accounts(self.members) + self.broker.log_text)

    def settled(self) -> None:
        """Every partition has exactly one owner."""
        self.shared(at_least=0, among=[])

    def shared(self, at_least: int, among: list[Member] | None = None) -> None:
        """Every partition has one owner, and every member has its share: all have joined."""
        sharing = self.members if among is None else among

        def is_shared() -> bool:
            owned = [member.owned for member in self.members]
            return sorted(p for some in owned for p in some) == list(range(PARTITIONS)) and all(
                len(member.owned) >= at_least for member in sharing
            )

        self.wait_for(is_shared, "an even share for every member")

    def all_processed(self) -> None:
        self.wait_for(
            lambda: len(set(all_records(self.members))) >= self.sent, "every record processed"
        )

    def all_committed(self) -> None:
        each = self.sent // PARTITIONS
        self.wait_for(
            lambda: self.committed() == dict.fromkeys(range(PARTITIONS), each), "every commit"
        )

    # What the coordinator says --------------------------------------------------------------------

    def committed(self) -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(self.group)
        (future,) = self._admin.list_consumer_group_offsets([asked]).values()
        return {p.partition: p.offset for p in future.result(30).topic_partitions}

    def assignment(self) -> list[tuple[str, list[int]]]:
        """Who has what, in the coordinator's words."""
        (future,) = self._admin.describe_consumer_groups([self.group]).values()
        return sorted(
            (
                member.group_instance_id or member.member_id,
                sorted(p.partition for p in member.assignment.topic_partitions),
            )
            for member in future.result(30).members
        )

    # What must be true in the end -----------------------------------------------------------------

    def check_histories(self, faulty: list[Member] | None = None) -> set[tuple[int, int]]:
        """Nothing was lost, nothing was held twice; what came again, a faulty member had before.

        Returns what was processed more than once.
        """
        suspects = faulty or []
        for member in self.members:
            assert member.of("crashed") == []
            assert records_of_others(member) == []
        assert double_owners(self.members) == []
        assert records_after_their_commit(self.members, but=suspects) == []
        counts = Counter(all_records(self.members))
        each = range(self.sent // PARTITIONS)
        assert set(counts) == {(p, offset) for p in range(PARTITIONS) for offset in each}
        again = {record for record, count in counts.items() if count > 1}
        assert again <= set(all_records(suspects))
        return again

    def check_restart(
        self, client: str, strategy: str, faulty: list[Member] | None = None
    ) -> set[tuple[int, int]]:
        """All stop, broker and members; who comes then goes on at the first record not seen yet.

        Returns what was processed more than once, as `check_histories` does.
        """
        self.all_processed()
        self.all_committed()
        self.close_all()
        committed = self.committed()
        self.restart_broker(by_crash=False)
        assert self.committed() == committed
        self.produce(100)
        self.join(client, strategy=strategy)
        self.all_processed()
        self.all_committed()
        return self.check_histories(faulty)
