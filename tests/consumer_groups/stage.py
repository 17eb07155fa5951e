"""The stage of the tests with the consumer protocol: a broker, topics, a group, a steady load."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from consumers import ConsumerMember, commits_that_went_back, processed_by_partition
from members import (
    accounts,
    all_records,
    double_owners,
    records_after_their_commit,
    records_of_others,
    wait_for,
)
from steady_load import SteadyLoad

from anabranch.wire.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    DescribedGroup,
)
from anabranch.wire.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from support.broker_process import BrokerProcess
from support.raw_client import RawClient


class Stage:
    """A broker, topics that are written to all the time, a group and its members."""

    def __init__(self, broker: BrokerProcess, rate_per_s: int = 200) -> None:
        self.broker = broker
        self.group = "workers"
        self.members: list[ConsumerMember] = []
        self.load = SteadyLoad(broker.bootstrap, rate_per_s)
        # Every state of the group that was looked at.
        self.described: list[DescribedGroup] = []
        self._meet_broker()

    def _meet_broker(self) -> None:
        # A new client for each life of the broker: a librdkafka that was connected to the last one
        # can lose its own question for the coordinator while it starts over (seen in 2.16).
        self._admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    # What happens ---------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic, and write to it from now on."""
        self._admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
        if not self.members:
            self._commit_beginnings(topic, partitions)
        self.load.add(topic, range(partitions))

    def _commit_beginnings(self, topic: str, partitions: int) -> None:
        # Without it the members would ask for the earliest offset of each partition. If a rebalance
        # comes before the answer, librdkafka 2.16 asks again half a second later and forgets to
        # stop that timer when it has the answer by then: it goes back to the earliest offset.
        beginnings = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        asked = ConsumerGroupTopicPartitions(self.group, beginnings)
        (future,) = self._admin.alter_consumer_group_offsets([asked]).values()
        assert all(done.error is None for done in future.result(30).topic_partitions)

    def grow(self, topic: str, before: int, after: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, after)])[topic].result(30)
        self.load.add(topic, range(before, after))

    def delete(self, topic: str) -> None:
        self.load.drop(topic)
        self._admin.delete_topics([topic])[topic].result(30)

    def join(self, topics: str = "orders", **options: str) -> ConsumerMember:
        member = ConsumerMember(
            self.broker.bootstrap,
            self.group,
            topics,
            *(f"{name}={value}" for name, value in options.items()),
        )
        self.members.append(member)
        return member

    def close(self, members: list[ConsumerMember]) -> None:
        """Members leave, in order, at the same time."""
        for member in members:
            member.ask_to_close()
        for member in members:
            member.join()

    def crash_broker(self) -> None:
        self.broker.kill()
        self.broker.start()
        self._meet_broker()

    # What is waited for ---------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        wait_for(condition, what, timeout_s, lambda: accounts(self.members) + self.broker.log_text)

    def shared(self, among: list[ConsumerMember], timeout_s: float = 120) -> None:
        """Every partition has one owner, and these members have even shares."""

        def is_shared() -> bool:
            owned = [member.owned for member in self.members]
            shares = sorted(len(member.owned) for member in among)
            return (
                sorted(p for some in owned for p in some) == sorted(self.load.partitions)
                and shares[-1] - shares[0] <= 1
                and shares[0] > 0
            )

        self.wait_for(is_shared, f"even shares for {len(among)} members", timeout_s)

    def flowing(self) -> None:
        """A record that is written from now on was processed in every partition."""
        goals = {p: self.load.delivered[p] + 1 for p in self.load.partitions}

        def has_flown() -> bool:
            done = processed_by_partition(self.members)
            return all(max(done[p], default=-1) >= goal for p, goal in goals.items())

        self.wait_for(has_flown, "new records in every partition")

    # What the coordinator says --------------------------------------------------------------------

    def describe(self) -> DescribedGroup:
        request = ConsumerGroupDescribeRequest(group_ids=[self.group], include_movements=True)
        with RawClient(self.broker.bootstrap) as client:
            (found,) = client.send(CONSUMER_GROUP_DESCRIBE, 1, request).groups
        self.described.append(found)
        return found

    def stable(self) -> DescribedGroup:
        """Wait until nothing is on its way."""
        self.wait_for(lambda: self.describe().group_state == "Stable", "a stable group")
        return self.described[-1]

    def group_type(self) -> str:
        """The protocol that the group is on."""
        with RawClient(self.broker.bootstrap) as client:
            listed = client.send(LIST_GROUPS, 5, ListGroupsRequest()).groups
        return next(group.group_type for group in listed if group.group_id == self.group)

    def committed(self) -> dict[str, int]:
        asked = ConsumerGroupTopicPartitions(self.group)
        (future,) = self._admin.list_consumer_group_offsets([asked]).values()
        return {f"{p.topic}-{p.partition}": p.offset for p in future.result(30).topic_partitions}

    # What must be true in the end -----------------------------------------------------------------

    def finish(self, faulty: list[ConsumerMember] | None = None) -> None:
        """Everything is processed and committed; all leave; and every history is in order."""
        self.load.stop()
        ends = dict(self.load.delivered)
        wanted = {(p, offset) for p, end in ends.items() for offset in range(end)}
        self.wait_for(lambda: wanted <= set(all_records(self.members)), "every record processed")
        self.wait_for(lambda: ends.items() <= self.committed().items(), "every commit")
        self.close([member for member in self.members if member.is_running])
        self.check_histories(faulty or [])
        self.check_epochs()

    def check_histories(self, faulty: list[ConsumerMember]) -> None:
        """Nothing was lost or held twice; what came again, a faulty member had before."""
        for member in self.members:
            assert member.of("crashed") == []
            assert records_of_others(member) == []
            assert member.refusals == [] or member in faulty
            assert member.of("lost") == [] or member in faulty
        assert double_owners(self.members) == []
        assert records_after_their_commit(self.members, but=faulty) == []
        assert commits_that_went_back(self.members) == []
        counts = Counter(all_records(self.members))
        again = {record for record, count in counts.items() if count > 1}
        assert again <= set(all_records(faulty))

    def check_epochs(self) -> None:
        """No epoch that anybody saw was followed by a lower one."""
        for one, next_one in pairwise(self.described):
            assert next_one.group_epoch >= one.group_epoch
            assert next_one.assignment_epoch >= one.assignment_epoch
            epochs = {member.member_id: member.member_epoch for member in next_one.members}
            for member in one.members:
                assert epochs.get(member.member_id, member.member_epoch) >= member.member_epoch

    def write_histories(self, folder: Path) -> None:
        """One file of JSON lines for each member, in the order they came."""
        for number, member in enumerate(self.members):
            lines = [json.dumps(event) + "\n" for event in member.events]
            (folder / f"member-{number}.jsonl").write_text("".join(lines))
