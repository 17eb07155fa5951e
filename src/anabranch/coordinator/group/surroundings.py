"""What the shards of a broker share."""

from collections.abc import Callable, Mapping

from anabranch.coordinator.cooperative.load import SlotWeights
from anabranch.coordinator.cooperative.records import Place
from anabranch.coordinator.cooperative.settings import CooperativeSettings
from anabranch.coordinator.group.assignors.registry import AssignorRegistry, build_registry
from anabranch.coordinator.group.consumer_settings import ConsumerSettings


class Surroundings:
    """What the shards of a broker share: looked at by decisions, never changed by them."""

    def __init__(
        self,
        assignors: AssignorRegistry | None = None,
        consumer_settings: Callable[[str], ConsumerSettings] | None = None,
        broker_members: Callable[[], int] = lambda: 0,
        cooperative_settings: Callable[[str], CooperativeSettings] | None = None,
        slot_weights: Callable[[str], Mapping[Place, SlotWeights]] = lambda group_id: {},
        progress_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.assignors = assignors or build_registry(["uniform", "range"])
        defaults = ConsumerSettings()
        self.consumer_settings = consumer_settings or (lambda group_id: defaults)
        # How many members the consumer groups of all shards have.
        self.broker_members = broker_members
        cooperative = CooperativeSettings()
        self.cooperative_settings = cooperative_settings or (lambda group_id: cooperative)
        # What was measured of the partitions that a group shares; nothing after a restart.
        self.slot_weights = slot_weights
        # About how much memory the progress of the groups of all shards takes.
        self.progress_bytes = progress_bytes
