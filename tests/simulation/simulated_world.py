"""Clients, a broker, and a network between them that loses, doubles, delays and reorders.

Everything that happens comes from one seed. What the network may do to one client is what TCP and
one request in flight leave possible: a request that was given up may still arrive, also after the
one that replaced it, but not any more when the client has taken an answer since, or has taken
units since. The protocol has no numbers by which a broker could tell such a heartbeat from a new
one, in Kafka either. Between clients there is no order at all.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from simulated_broker import Crash, SimulatedBroker
from simulated_client import SimulatedClient

from anabranch.coordinator.group.consumer_settings import ConsumerSettings
from anabranch.model.units import Unit

# So few heartbeats while nothing moves that a run is short.
SETTINGS = ConsumerSettings(heartbeat_rate_budget=3)


class World:
    """One run."""

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.has_faults = faults
        self.batches_with_faults = 0
        self.clients: list[SimulatedClient] = []
        self.history: list[str] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._names = 0
        self.broker = SimulatedBroker(self.at, self._broker_died, SETTINGS)
        self.broker.now_ms = self.now_ms

    # Time ---------------------------------------------------------------------------------------

    def at(self, time_ms: int, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (max(time_ms, self.now_ms), self._order, what))

    def after(
        self, delay_ms: int, what: Callable[[], None], client: SimulatedClient | None = None
    ) -> None:
        """Later; for a client that is stopped then, when it goes on."""

        def due() -> None:
            if client is not None and client.paused_until_ms > self.now_ms:
                self.at(client.paused_until_ms, due)
            else:
                what()

        self.at(self.now_ms + delay_ms, due)

    def run_until(self, time_ms: int) -> None:
        while self._events and self._events[0][0] <= time_ms:
            self.now_ms, _, what = heapq.heappop(self._events)
            self.broker.now_ms = self.now_ms
            what()
        self.now_ms = self.broker.now_ms = time_ms

    # Network ------------------------------------------------------------------------------------

    def delay_ms(self) -> int:
        if self.has_faults and self.random.random() < 0.1:
            return self.random.randrange(10, 4_000)
        return self.random.randrange(1, 5)

    def is_lost(self) -> bool:
        return self.has_faults and self.random.random() < 0.08

    def callback_ms(self, *, is_slow: bool = False) -> int:
        if not is_slow:
            return self.random.randrange(0, 20)
        if self.has_faults and self.random.random() < 0.05:
            return self.random.randrange(15_000, 40_000)  # around the rebalance timeout
        return self.random.randrange(0, 500)

    def request(
        self,
        client: SimulatedClient,
        number: int | None,
        command: Any,
        answered: Callable[[int, Any], None],
    ) -> None:
        """Carry a request to the broker, once, twice or not at all, and an answer back."""
        takes, owned = client.takes, client.owned

        def is_too_late() -> bool:
            """Whether the connection that it came by is long closed."""
            if number is None:  # a commit; what it is about is not given up before it is answered
                return client.owned != owned
            return client.answered >= number or client.takes != takes

        def arrive() -> None:
            if is_too_late():
                return
            try:
                answer = self.broker.run(command, self.now_ms)
            except Crash:
                return
            if number is not None and not self.is_lost():
                self.after(self.delay_ms(), lambda: answered(number, answer), client=client)

        for _ in range(2 if self.has_faults and self.random.random() < 0.05 else 1):
            if not self.is_lost():
                self.at(self.now_ms + self.delay_ms(), arrive)

    # Broker -------------------------------------------------------------------------------------

    def _broker_died(self) -> None:
        self.note(f"the broker is killed with {len(self.broker.journal)} batches")
        delay_ms = self.random.randrange(100, 3_000)
        self.at(self.now_ms + delay_ms, lambda: self.broker.restart(self.now_ms))

    # Clients ------------------------------------------------------------------------------------

    def start(
        self,
        names: tuple[str, ...] | None = ("t",),
        regex: str | None = None,
        instance_id: str | None = None,
    ) -> SimulatedClient:
        self._names += 1
        client = SimulatedClient(self, f"m{self._names}", names, regex, instance_id)
        self.clients.append(client)
        self.note(f"{client.member_id} starts, {names} {regex} {instance_id}")
        return client

    @property
    def living(self) -> list[SimulatedClient]:
        return [client for client in self.clients if client.is_alive]

    def took(self, client: SimulatedClient, gained: frozenset[Unit]) -> None:
        """Nobody else owns what a client takes, but for those whose time was up."""
        expired = self.broker.expired
        for other in self.living:
            if other is client or not gained & other.owned:
                continue
            assert {client.member_id, other.member_id} & expired, (
                f"{client.describe()} and {other.describe()} own {gained & other.owned}"
            )

    def note(self, text: str) -> None:
        self.history.append(f"{self.now_ms - 1_000_000:>8} {text}")

    # The end ------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults; in the time of a few sessions everything is as it should be."""
        self.note("no more faults")
        self.batches_with_faults = len(self.broker.journal)
        self.has_faults = False
        self.broker.dies_at = None
        for client in self.clients:
            client.paused_until_ms = min(client.paused_until_ms, self.now_ms)
        self.run_until(self.now_ms + 4 * SETTINGS.session_timeout_ms)
        self.check_settled()

    def check_settled(self) -> None:
        group = self.broker.group
        assert group is not None
        assert group.members.keys() == {client.member_id for client in self.living}
        if not self.living:
            return
        assert group.state.value == "Stable"
        owners: dict[Unit, str] = {}
        for client in self.living:
            assert client.epoch == group.target_epoch
            assert client.owned == group.members[client.member_id].assigned.keys()
            for unit in client.owned:
                assert owners.setdefault(unit, client.member_id) == client.member_id
        wanted = {
            Unit(image.topic_id, partition)
            for image in self.broker.image.topics.values()
            if image.name in group.subscribed_topics
            for partition in range(image.partitions)
        }
        assert owners.keys() == wanted
        if len({group.topics_of(member) for member in group.members.values()}) == 1:
            loads = [len(client.owned) for client in self.living]
            assert max(loads) - min(loads) <= 1
