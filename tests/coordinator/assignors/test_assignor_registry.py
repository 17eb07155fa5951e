"""Assignors by name: built in, installed, chosen by votes."""

from collections.abc import Mapping

import pytest
from assignor_kit import Group, member, topic, units

from anabranch.coordinator.group.assignors.api import AssignorError, Target, TargetIndex
from anabranch.coordinator.group.assignors.range import RangeAssignor
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.coordinator.group.assignors.uniform import UniformAssignor

# Always there, behind what is configured.
SHARING = ["line-cut", "key-range-round-robin", "key-range-range"]


class MoonAssignor:
    """An assignor as a package may bring it: gives what it was told to."""

    name = "moon"
    answer: Mapping[str, Target] = {}

    def assign(self, index: TargetIndex) -> Mapping[str, Target]:
        return self.answer


def moon(answer: Mapping[str, Target]) -> MoonAssignor:
    assignor = MoonAssignor()
    assignor.answer = answer
    return assignor


def test_built_in_names() -> None:
    """The names of the configuration are in order, and the first one is the default."""
    registry = build_registry(["uniform", " range "], plugins=[])
    assert list(registry) == ["uniform", "range", *SHARING]
    assert isinstance(registry.default, UniformAssignor)
    assert isinstance(registry.get("range"), RangeAssignor)
    assert "moon" not in registry
    assert registry.get("moon") is None


def test_class_names_of_kafka() -> None:
    """A configuration with Kafka's class names means the same assignors."""
    package = "org.apache.kafka.coordinator.group.assignor"
    registry = build_registry([f"{package}.RangeAssignor", f"{package}.UniformAssignor"], [])
    assert list(registry) == ["range", "uniform", *SHARING]


def test_installed_packages_are_asked() -> None:
    """Without stand-ins the entry points of installed packages are looked up."""
    assert list(build_registry(["range"])) == ["range", *SHARING]


def test_plugin() -> None:
    """Another name comes from an entry point: a class, or an assignor."""
    assert build_registry(["moon"], [("moon", lambda: MoonAssignor)]).default.name == "moon"
    assert build_registry(["moon"], [("moon", MoonAssignor)]).default.name == "moon"


def test_assignors_that_can_share() -> None:
    """They may be asked for in any case; configured ones come first, by their place."""
    registry = build_registry(["uniform", "key-range-range"], [])
    assert list(registry) == ["uniform", "key-range-range", "line-cut", "key-range-round-robin"]
    assert registry.preferred({}).name == "uniform"
    assert registry.preferred({"line-cut": 1}).name == "line-cut"
    assert registry.preferred_to_share({}).name == "key-range-range"
    assert registry.preferred_to_share({"uniform": 9}).name == "key-range-range"
    assert registry.preferred_to_share({"line-cut": 1}).name == "line-cut"
    assert build_registry(["uniform"], []).preferred_to_share({}).name == "line-cut"
    assert build_registry(["line-cut"], []).preferred({}).name == "line-cut"


@pytest.mark.parametrize(
    ("names", "plugins", "message"),
    [
        (["uniform", "uniform"], [], "configured twice"),
        (["range", "org.apache.kafka.coordinator.group.assignor.RangeAssignor"], [], "twice"),
        ([], [], "is empty"),
        (["moon"], [("sun", MoonAssignor)], "no assignor named 'moon'.*range, sun, uniform"),
        (["moon"], [("moon", MoonAssignor)] * 2, "2 installed packages offer"),
        (["uniform"], [("uniform", MoonAssignor)], "which is built in"),
        (["sun"], [("sun", MoonAssignor)], "whose name is 'moon'"),
        (["sun"], [("sun", lambda: "a string")], "needs `name` and `assign`"),
        (["sun"], [("sun", lambda: 1 // 0)], "cannot be loaded: ZeroDivisionError"),
        (["sun"], [("sun", lambda: lambda: 1 // 0)], "cannot be loaded: ZeroDivisionError"),
    ],
)
def test_refusals(names: list[str], plugins: list[tuple[str, object]], message: str) -> None:
    """What cannot be used is refused when the broker starts, with what to do about it."""
    with pytest.raises(AssignorError, match=message):
        build_registry(names, plugins)  # type: ignore[arg-type]


def test_votes() -> None:
    """Most votes win; between equals, and without votes, the order of the configuration does."""
    registry = build_registry(["uniform", "range"], [])
    assert registry.preferred({}).name == "uniform"
    assert registry.preferred({"range": 1}).name == "range"
    assert registry.preferred({"range": 2, "uniform": 2}).name == "uniform"
    assert registry.preferred({"nobody-has-this": 9, "range": 1}).name == "range"


def test_plugin_can_assign() -> None:
    """A correct answer of a plugin is taken as it is, also if it leaves partitions out."""
    answer = {"a": units("t", 1), "b": units("t", 0)}
    group = Group(build_registry(["moon"], [("moon", lambda: moon(answer))]).default)
    group.set_topics(topic("t", 2))
    assert group.join(member("a"), member("b")) == answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"z": units("t", 0)}, "'z', who is not in the group"),
        ({"a": units("t", 2)}, "which does not exist"),
        ({"a": units("nowhere", 0)}, "which does not exist"),
        ({"a": units("u", 0)}, "who does not subscribe to it"),
        ({"a": units("t", 0), "b": units("t", 0)}, "to 'a' and 'b'"),
        ({"a": units("t", 0)}, "leaves it with its owner"),
    ],
)
def test_wrong_answers(answer: dict[str, Target], message: str) -> None:
    """A plugin cannot give away what is not there, or one thing twice."""
    group = Group(UniformAssignor(), topic("t", 2), topic("u", 2))
    for spec in (member("a"), member("b"), member("c", "u")):
        group.index.set_member(spec)
    group.index.set_target("b", units("t", 0))
    assignor = build_registry(["moon"], [("moon", lambda: moon(answer))]).default
    with pytest.raises(AssignorError, match=message):
        assignor.assign(group.index)
