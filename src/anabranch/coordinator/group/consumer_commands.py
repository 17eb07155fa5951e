"""What can be asked of a consumer group (KIP-848), and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.coordinator.group.cause import Cause
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.errors import ErrorCode
from anabranch.model.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat; None means unchanged since the last one, except for the owned units."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: tuple[Unit, ...] | None = None
    # Whether the member takes key ranges; what it owns are then any ranges of slots, cut as it
    # likes.
    shares: bool = False
    client_id: str = ""
    client_host: str = ""
    # From version 1 on the client makes its member id itself (KIP-1082).
    has_own_member_id: bool = True
    # The id of a member that has none yet: the core has no randomness of its own.
    unique: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the client says everything, as it does when it has lost track."""
        has_subscription = (
            self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        )
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatAnswer:
    error: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    # The whole assignment when it is told at all: what is not in it has to be given up.
    assignment: tuple[Unit, ...] | None = None
    # Of a member that shares: since which epoch it has each of them.
    epochs: tuple[int, ...] | None = None
    shares: bool = False
    # How long after this heartbeat it counts as alive.
    lease_ms: int = 0


class RangeMove(NamedTuple):
    """Slots of a partition that shall go to a member.

    None stands for whoever else may have them and has least.
    """

    unit: Unit
    target: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRanges:
    """Have key ranges change hands; what cannot be moved any more as it says stays where it is.

    `group_epoch` is the epoch by which that was decided; a group that has gone on stays as it is.
    """

    group_id: str
    group_epoch: int
    moves: tuple[RangeMove, ...]
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChanged:
    """Topics were created, grew or went; `changed` are their names."""

    image: ClusterImage
    changed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexesResolved:
    """What the regular expressions of a group match, in the image with that version."""

    group_id: str
    topics: Mapping[str, frozenset[str]]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRegexes:
    """Work for somebody with time: match expressions with all topics of an image.

    It comes back as `RegexesResolved`.
    """

    group_id: str
    regexes: tuple[str, ...]
    image: ClusterImage
