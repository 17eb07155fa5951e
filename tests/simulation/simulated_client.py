"""A consumer as the stock ones behave: it does what it is told, late, and starts over when fenced.

It sends one heartbeat at a time, at the interval it was told or at once when it has something to
say; it gives units up before it takes new ones, and both take a while; after an error or a lost
answer its next heartbeat says everything; on FENCED_MEMBER_EPOCH and UNKNOWN_MEMBER_ID it drops
everything and joins with epoch 0.

It owns a unit from taking it until it has let go of it, which is before it says so.
"""

from typing import TYPE_CHECKING, Any

from simulated_broker import GROUP

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit

if TYPE_CHECKING:
    from simulated_world import World

REQUEST_TIMEOUT_MS = 2_000
REBALANCE_TIMEOUT_MS = 20_000
START_OVER = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class SimulatedClient:
    """One process with one member id."""

    def __init__(
        self,
        world: "World",
        member_id: str,
        names: tuple[str, ...] | None,
        regex: str | None = None,
        instance_id: str | None = None,
    ) -> None:
        self.world = world
        self.member_id = member_id
        self.names = names
        self.regex = regex
        self.instance_id = instance_id
        self.epoch = 0
        self.highest_epoch = 0
        self.owned: frozenset[Unit] = frozenset()
        self.target: frozenset[Unit] | None = None
        self.interval_ms = 1_000
        self.is_alive = True
        self.is_leaving = False
        self.paused_until_ms = 0
        self.sent = 0  # the number of the last request
        self.answered = 0  # of the last one whose answer was taken
        self.takes = 0
        self._says_everything = True
        self._has_news = True
        self._is_reconciling = False
        self._round = 0
        self.beat()
        self._commit_from_time_to_time()

    # Heartbeats ---------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        return self.sent > self.answered

    def beat(self) -> None:
        """Send a heartbeat, unless the answer to one is awaited."""
        if not self.is_alive or self.is_waiting:
            return
        self.sent += 1
        number = self.sent
        is_full = self._says_everything or self.epoch == 0
        says_units = is_full or self._has_news
        self._has_news = False
        request = cc.ConsumerHeartbeat(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_full else -1,
            subscribed_topic_names=self.names if is_full else None,
            subscribed_topic_regex=self.regex if is_full else None,
            owned=tuple(sorted(self.owned)) if says_units else None,
        )
        self._says_everything = False
        self.world.request(self, number, request, self._answered)
        self.world.after(REQUEST_TIMEOUT_MS, lambda: self._timed_out(number))

    def _timed_out(self, number: int) -> None:
        if self.is_alive and number == self.sent and self.answered < number:
            self.answered = number
            self._says_everything = True
            self.beat()

    def _answered(self, number: int, answer: cc.ConsumerHeartbeatAnswer) -> None:
        """Answers to requests that were given up are not looked at."""
        if not self.is_alive or number != self.sent or self.answered >= number:
            return
        self.answered = number
        if answer.error is not ErrorCode.NONE:
            self._refused(answer.error)
            return
        assert answer.member_epoch >= self.highest_epoch, "an epoch went back for a client"
        self.epoch = self.highest_epoch = answer.member_epoch
        self.interval_ms = answer.heartbeat_interval_ms
        if answer.assignment is not None:
            self.target = frozenset(answer.assignment)
            self._reconcile()
        self._next_beat()

    def _refused(self, error: ErrorCode) -> None:
        self._says_everything = True
        if error in START_OVER:
            self.owned, self.target, self.epoch = frozenset(), None, 0
            self._round += 1
            self._is_reconciling = False
            self.beat()
            return
        # Another one with its instance id has not been given up yet: try again, as whoever
        # supervises the process would.
        assert error is ErrorCode.UNRELEASED_INSTANCE_ID, error
        self.world.after(3_000, self.beat)

    def _next_beat(self) -> None:
        if self._has_news:
            self.beat()
            return
        number = self.sent
        self.world.after(
            self.interval_ms, lambda: self.beat() if self.sent == number else None, client=self
        )

    # Units --------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Let go, then take; callbacks of the application take their time."""
        if self._is_reconciling or self.target is None or self.target == self.owned:
            return
        self._is_reconciling = True
        this_round = self._round
        target = self.target
        is_slow = bool(self.owned - target)

        def done() -> None:
            if not self.is_alive or self._round != this_round:
                return
            self._is_reconciling = False
            gained = target - self.owned
            self.owned = target
            if gained:
                self.takes += 1
            self.world.took(self, gained)
            self._has_news = True
            if self.target != target:
                self._reconcile()
            self.beat()

        def let_go() -> None:
            if not self.is_alive or self._round != this_round:
                return
            self.owned &= target
            self.world.after(self.world.callback_ms(), done, client=self)

        self.world.after(self.world.callback_ms(is_slow=is_slow), let_go, client=self)

    # Commits ------------------------------------------------------------------------------------

    def _commit_from_time_to_time(self) -> None:
        """Also first thing after it was stopped, before it hears what has become of it."""
        if self.is_alive:
            self.commit()
            self.world.after(700, self._commit_from_time_to_time, client=self)

    def commit(self) -> None:
        """What it believes to own, at the epoch it believes to be at."""
        if not self.is_alive or not self.owned or self.epoch <= 0:
            return
        command = c.CommitOffsets(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            generation_id=self.epoch,
            retention_ms=-1,
            knows_group_id_not_found=True,
            offsets=tuple(
                c.OffsetToCommit(
                    topic=unit.topic_id.rstrip(b".").decode(),
                    topic_id=unit.topic_id,
                    partition=unit.partition,
                    offset=self.world.now_ms,
                    leader_epoch=-1,
                    metadata=None,
                )
                for unit in sorted(self.owned)
            ),
        )
        self.world.request(self, None, command, lambda number, answer: None)

    # The end ------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Let go of everything and say so, once; then the process is gone."""
        self.owned = frozenset()
        epoch = -1 if self.instance_id is None else -2
        self.sent += 1
        request = cc.ConsumerHeartbeat(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
        )
        self.world.request(self, self.sent, request, lambda number, answer: None)
        self.is_alive = False

    def kill(self) -> None:
        self.owned = frozenset()
        self.is_alive = False

    def describe(self) -> Any:
        return (self.member_id, self.epoch, sorted(self.owned), self.is_alive)
