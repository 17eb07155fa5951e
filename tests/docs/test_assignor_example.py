"""The assignor in the guide works as it stands."""

from pathlib import Path

from anabranch.coordinator.group.assignors.api import MemberSpec, compute_targets
from anabranch.coordinator.group.assignors.index import TargetIndex
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.model.cluster_image import ClusterImage, TopicImage
from anabranch.model.units import Unit

GUIDE = Path(__file__).parents[2] / "docs" / "consumer-groups.md"
TOPIC_ID = bytes(range(16))


def test_the_assignor_of_the_guide_assigns() -> None:
    """It loads like an installed one, and gives everything to the first subscriber."""
    code = GUIDE.read_text().split("```python\n", 1)[1].split("```", 1)[0]
    names: dict[str, object] = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    registry = build_registry(["by-order", "uniform"], [("by-order", lambda: names["ByOrder"])])
    index = TargetIndex()
    index.set_image(ClusterImage().with_topics({"t": TopicImage("t", TOPIC_ID, 3)}))
    for member_id in ("b", "a"):
        index.set_member(MemberSpec(member_id=member_id, topics=frozenset({"t"})))
    assignor = registry.get("by-order")
    assert assignor is not None
    targets = dict(compute_targets(assignor, index).items())
    assert targets == {"a": frozenset(Unit(TOPIC_ID, partition) for partition in range(3))}
