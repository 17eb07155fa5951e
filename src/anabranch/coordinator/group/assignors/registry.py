"""The assignors a broker offers, by name: `group.consumer.assignors`.

`uniform` and `range` are built in, also under the class names that Kafka's configuration has for
them. So are those that share partitions by key range (see `sharing`): members may always ask for
them, configured or not; what the configuration adds is an order.

Two assignors are preferred at any time, one for groups in which partitions are shared and one for
all others. By votes first: the one that most members ask for. Without votes, or between equals, the
order decides: the first of all, and the first of those that can share, which is `line-cut` unless
the configuration names another. Where partitions are shared only votes for assignors that can share
count: a stock member that asks for `range` does not stop the others from sharing.

Any other name is looked up among the entry points of installed packages:

    [project.entry-points."anabranch.assignors"]
    by-moon = "lunar.assignors:MoonAssignor"

The entry point is an assignor's class, or a function that makes one; its name has to be that of
the entry point. What such an assignor answers is checked before it is believed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points

from anabranch.coordinator.group.assignors.api import Assignor, AssignorError, Targets
from anabranch.coordinator.group.assignors.index import TargetIndex
from anabranch.coordinator.group.assignors.range import RangeAssignor
from anabranch.coordinator.group.assignors.sharing import SHARING_ASSIGNORS, SharingAssignor
from anabranch.coordinator.group.assignors.uniform import UniformAssignor
from anabranch.model.units import ALL_SLOTS, Unit

ENTRY_POINT_GROUP = "anabranch.assignors"

_KAFKA_PACKAGE = "org.apache.kafka.coordinator.group.assignor"
_BUILT_IN: Mapping[str, Callable[[], Assignor]] = {
    "uniform": UniformAssignor,
    "range": RangeAssignor,
    f"{_KAFKA_PACKAGE}.UniformAssignor": UniformAssignor,
    f"{_KAFKA_PACKAGE}.RangeAssignor": RangeAssignor,
    **SHARING_ASSIGNORS,
}

# The name of an entry point, and what loads it.
EntryPoint = tuple[str, Callable[[], object]]


class AssignorRegistry:
    """Assignors in the order of the configuration; those that can share come last if need be."""

    def __init__(self, assignors: Iterable[Assignor]) -> None:
        self._by_name: dict[str, Assignor] = {}
        self._sharing: dict[str, SharingAssignor] = {}
        for assignor in assignors:
            if assignor.name in self._by_name:
                raise AssignorError(
                    f"The assignor {assignor.name!r} is configured twice in "
                    "group.consumer.assignors: name each one once."
                )
            self._by_name[assignor.name] = assignor
        if not self._by_name:
            raise AssignorError(
                "group.consumer.assignors is empty: name at least one, such as uniform."
            )
        for name, make in SHARING_ASSIGNORS.items():
            if name not in self._by_name:
                self._by_name[name] = make()
        for name, assignor in self._by_name.items():
            if isinstance(assignor, SharingAssignor):
                self._sharing[name] = assignor

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    @property
    def default(self) -> Assignor:
        return next(iter(self._by_name.values()))

    def get(self, name: str) -> Assignor | None:
        return self._by_name.get(name)

    def preferred(self, votes: Mapping[str, int]) -> Assignor:
        """The assignor that most members ask for; between equals the order here decides."""
        return max(self._by_name.values(), key=lambda assignor: votes.get(assignor.name, 0))

    def preferred_to_share(self, votes: Mapping[str, int]) -> SharingAssignor:
        """The same of those that can share."""
        return max(self._sharing.values(), key=lambda assignor: votes.get(assignor.name, 0))


def build_registry(
    names: Iterable[str], plugins: Iterable[EntryPoint] | None = None
) -> AssignorRegistry:
    """The assignors with these names; `plugins` stands in for what is installed."""
    offered = list(_installed() if plugins is None else plugins)
    return AssignorRegistry([_find(name.strip(), offered) for name in names])


def _installed() -> Iterator[EntryPoint]:
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        yield entry_point.name, entry_point.load


def _find(name: str, plugins: list[EntryPoint]) -> Assignor:
    loaders = [load for plugin, load in plugins if plugin == name]
    if name in _BUILT_IN:
        if loaders:
            raise AssignorError(
                f"An installed package offers an assignor named {name!r}, which is built in: "
                "rename its entry point, or uninstall it."
            )
        return _BUILT_IN[name]()
    if not loaders:
        known = sorted({"uniform", "range", *SHARING_ASSIGNORS, *(plugin for plugin, _ in plugins)})
        raise AssignorError(
            f"There is no assignor named {name!r} (group.consumer.assignors). Known: "
            f"{', '.join(known)}. Others come with packages that have an entry point in the "
            f"group {ENTRY_POINT_GROUP!r}."
        )
    if len(loaders) > 1:
        raise AssignorError(
            f"{len(loaders)} installed packages offer an assignor named {name!r}: uninstall all "
            "but one, or rename their entry points."
        )
    return _load(name, loaders[0])


def _load(name: str, load: Callable[[], object]) -> Assignor:
    try:
        make = load()
        assignor = make() if callable(make) else make
    except Exception as error:
        raise AssignorError(
            f"The assignor {name!r} of an installed package cannot be loaded: {error!r}. Repair "
            "the package, or take the name out of group.consumer.assignors."
        ) from error
    if not isinstance(assignor, Assignor):
        raise AssignorError(
            f"The entry point {name!r} is not an assignor: it needs `name` and `assign`."
        )
    if assignor.name != name:
        raise AssignorError(
            f"The entry point {name!r} makes an assignor whose name is {assignor.name!r}: "
            "give both the same name."
        )
    return CheckedAssignor(assignor)


class CheckedAssignor:
    """An assignor of somebody else: its answers are checked."""

    def __init__(self, assignor: Assignor) -> None:
        self._assignor = assignor
        self.name = assignor.name

    def assign(self, index: TargetIndex) -> Targets:
        """The assignor's answer, if every unit in it is there to be had and has one owner."""
        try:
            answer = self._assignor.assign(index)
            changed = {member_id: frozenset(target) for member_id, target in answer.items()}
        except Exception as error:  # code of somebody else: anything may come out of it
            raise self._error(f"failed with {error!r}") from error
        owners: dict[Unit, str] = {}
        for member_id, target in changed.items():
            if member_id not in index.members:
                raise self._error(f"gives units to {member_id!r}, who is not in the group")
            for unit in target:
                self._check(index, unit, member_id, changed)
                if owners.setdefault(unit, member_id) != member_id:
                    raise self._error(f"gives {_show(unit)} to {owners[unit]!r} and {member_id!r}")
        return changed

    def _check(self, index: TargetIndex, unit: Unit, member_id: str, changed: Targets) -> None:
        topic = index.topics.get(unit.topic_id)
        if (
            topic is None
            or not 0 <= unit.partition < topic.image.partitions
            or unit.slots != ALL_SLOTS
        ):
            raise self._error(f"gives {_show(unit)} to {member_id!r}, which does not exist")
        if topic.image.name not in index.members[member_id].topics:
            raise self._error(
                f"gives a partition of {topic.image.name!r} to {member_id!r}, "
                "who does not subscribe to it"
            )
        owner = topic.owners[unit.partition]
        if owner is not None and owner.member_id not in changed:
            raise self._error(f"gives {_show(unit)} to {member_id!r} and leaves it with its owner")

    def _error(self, what: str) -> AssignorError:
        return AssignorError(f"The assignor {self.name!r} {what}; nothing was changed.")


def _show(unit: Unit) -> str:
    return f"partition {unit.partition} of topic id {unit.topic_id.hex()}"
