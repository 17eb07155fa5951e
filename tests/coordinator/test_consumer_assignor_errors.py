"""Stories of an assignor that fails: who asked for a target is told, who leaves is gone anyway."""

from consumer_story import SESSION_MS, ConsumerStory

from anabranch.coordinator.group.assignors.api import TargetIndex, Targets
from anabranch.coordinator.group.assignors.registry import build_registry
from anabranch.coordinator.group.assignors.uniform import UniformAssignor
from anabranch.model.errors import ErrorCode


class MoodyAssignor:
    """`uniform`, except on bad days."""

    name = "moody"

    def __init__(self) -> None:
        self.is_bad_day = False

    def assign(self, index: TargetIndex) -> Targets:
        if self.is_bad_day:
            raise ZeroDivisionError("a bad day")
        return UniformAssignor().assign(index)


def on_a_bad_day() -> tuple[ConsumerStory, MoodyAssignor]:
    """A Stable group of a and b, whose assignor fails from now on."""
    moody = MoodyAssignor()
    story = ConsumerStory(t=2)
    story.surroundings.assignors = build_registry(["moody"], [("moody", lambda: lambda: moody)])
    story.stable("a", "b")
    story.wait(50)
    moody.is_bad_day = True
    return story, moody


def test_who_asks_for_a_target_is_told():
    """A join that calls for one is refused, and nothing of it is kept."""
    story, _ = on_a_bad_day()
    story.join("c").fails(ErrorCode.UNKNOWN_SERVER_ERROR, "moody", "a bad day")
    assert story.line == "Stable 3/3 a@3[t0] b@3[t1]"


def test_others_are_not_disturbed():
    story, _ = on_a_bad_day()
    story.beat("a", 3).says("a@3 every 100")


def test_who_leaves_is_gone_anyway():
    """Its partitions wait for the next try, or for somebody's heartbeat on a better day."""
    story, moody = on_a_bad_day()
    story.leave("a").gives(
        "a@-1",
        records=["current a gone", "target a gone", "member a gone", "epoch 4"],
        timers={"a": None, "rebalance a": None, "target": 1_000},
        group="Assigning 4/3 b@3[t1]",
    )
    [step] = story.wait(1_000)
    step.gives(timers={"target": 1_000}, group="Assigning 4/3 b@3[t1]")
    story.beat("b", 3).fails(ErrorCode.UNKNOWN_SERVER_ERROR)

    moody.is_bad_day = False
    story.wait(1_000)
    assert story.line == "Reconciling 4/4 b@3[t1]"


def test_who_is_silent_is_gone_anyway():
    story, _ = on_a_bad_day()
    story.wait(SESSION_MS - 100)
    story.beat("b", 3)
    story.wait(100)
    assert story.line == "Assigning 4/3 b@3[t1]"


def test_topics_change_anyway():
    story, _ = on_a_bad_day()
    story.topics(t=3)
    story.wait(0)
    assert story.line == "Assigning 4/3 a@3[t0] b@3[t1]"
