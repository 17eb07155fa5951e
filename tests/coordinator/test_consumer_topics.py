"""Stories of topics that are created, grow and go under a consumer group."""

from consumer_story import ConsumerStory, topic

REFRESH = {"refresh": 0}


def test_a_topic_that_grows_gives_its_subscribers_more():
    """The image first, then, by a timer, each group that wants it; no heartbeat is needed."""
    story = ConsumerStory(t=1).stable("a")
    story.wait(50)

    story.topics(t=2).gives(timers=REFRESH, group="Stable 2/2 a@2[t0]")
    [step] = story.wait(0)
    step.gives(
        records=["epoch 3", "target a t0 t1", f"targets 3 +{story.now_ms - 1_700_000_000_000}"],
        timers={"target": None},
        group="Reconciling 3/3 a@2[t0]",
    )
    assert step.causes == ["topics"]
    story.beat("a", 2).says("a@3 every 50 [t0 t1]", "current a 2->3 t0@2 t1@3")


def test_a_topic_that_was_waited_for_appears():
    story = ConsumerStory(t=1).stable("a", topics="u")
    assert story.line == "Stable 2/2 a@2[]"
    story.topics(u=1)
    story.settle()
    assert story.line == "Stable 3/3 a@3[u0]"


def test_a_topic_that_goes_is_given_up():
    story = ConsumerStory(t=1, u=1).stable("a", topics="t,u")
    story.topics(u=None)
    story.wait(50)
    story.beat("a", 2, "t0 u0").says("a@2 every 50 [t0]", "current a 2->2! t0@2 -u0@2")
    story.beat("a", 2, "t0").says("a@3 every 50", "current a 2->3 t0@2")


def test_a_topic_that_is_created_again_is_another():
    story = ConsumerStory(t=1).stable("a")
    story.topics(t=topic("t", 1, generation=1))
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0']"


def test_topics_that_nobody_wants_wake_nobody():
    story = ConsumerStory(t=1).stable("a")
    story.topics(u=1).gives(group="Stable 2/2 a@2[t0]")
    assert story.wait(1_000) == []


def test_a_group_without_members_is_left_alone():
    story = ConsumerStory(t=1).stable("a")
    story.leave("a")
    story.topics(t=2).gives(group="Empty 3/3")


def test_a_change_that_makes_no_difference_bumps_nothing():
    """The hash of the topics decides, not that somebody looked."""
    story = ConsumerStory(t=1).stable("a")
    story.topics(t=1).gives(timers=REFRESH, group="Stable 2/2 a@2[t0]")
    [step] = story.wait(0)
    step.gives(group="Stable 2/2 a@2[t0]")


def test_racks_are_part_of_what_an_assignment_depends_on():
    story = ConsumerStory(t=2).stable("a")
    story.topics(t=topic("t", 2, racks="r s"))
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0 t1]"


def test_members_get_what_is_in_their_rack():
    story = ConsumerStory()
    story.topics(t=topic("t", 4, racks="r s r s"))
    story.join("a", rack_id="r")
    story.join("b", rack_id="s")
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0 t2] b@3[t1 t3]"


def test_changes_within_an_interval_make_one_target():
    story = ConsumerStory(t=1).stable("a")
    story.wait(50)
    for partitions in (2, 3, 4):
        story.topics(t=partitions)
        story.wait(1)
    assert (story.group.group_epoch, story.group.target_epoch) == (5, 3)
    story.settle()
    assert story.line == "Stable 5/5 a@5[t0 t1 t2 t3]"
