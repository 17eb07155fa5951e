"""Stories of partitions on their way: between three members, and to targets that change again."""

from consumer_story import REBALANCE_MS, START_MS, ConsumerStory, units


def test_three_members_one_after_the_other():
    """Each gives up its part, and waits with what it has; nobody stops."""
    story = ConsumerStory(t=6).stable("a", "b")
    assert story.line == "Stable 3/3 a@3[t0 t1 t2] b@3[t3 t4 t5]"
    story.join("c")
    assert story.line == "Reconciling 4/4 a@3[t0 t1 t2] b@3[t3 t4 t5] c@4?[]"

    story.ack("a")
    story.ack("b")
    assert story.line == "Reconciling 4/4 a@3![t0 t1 -t2] b@3![t3 t4 -t5] c@4?[]"
    story.ack("a")
    story.ack("c").says("c@4 every 50 [t2]", "current c 4->4? t2@4")
    story.ack("b")
    story.ack("c").says("c@4 every 50 [t2 t5]", "current c 4->4 t2@4 t5@4")
    assert story.line == "Stable 4/4 a@4[t0 t1] b@4[t3 t4] c@4[t2 t5]"


def test_a_list_without_what_was_given_confirms_nothing():
    """The member is about to take it, and nobody else may; it is told again what it has."""
    story = ConsumerStory(t=2)
    story.join("a")
    story.wait(50)
    story.join("b")
    story.beat("a", 2, "").says("a@2 every 50 [t0 t1]")
    story.beat("b", 3, "").says("b@3 every 50")
    story.beat("a", 2, "t0 t1").says("a@2 every 50 [t0]", "current a 2->2! t0@2 -t1@2")
    story.beat("a", 2, "t0").says("a@3 every 50", "current a 2->3 t0@2")
    story.beat("b", 3).says("b@3 every 50 [t1]", "current b 3->3 t1@3")


def test_who_never_takes_what_it_was_given_holds_up_nobody_for_good():
    """It has the time that it would have to give something up."""
    story = ConsumerStory(t=2)
    story.join("a")
    story.wait(50)
    story.join("b")
    for _ in range(5):
        story.wait(REBALANCE_MS // 5 - 1)
        story.beat("a", 2, "")
        story.beat("b", 3, "")
    assert story.line == "Reconciling 3/3 a@2[t0 t1] b@3?[]"
    story.wait(5)
    story.beat("a", 2, "")
    story.beat("b", 3, "")
    assert story.line == "Stable 3/3 a@3[t0] b@3[t1]"


def test_a_list_without_what_was_given_of_a_topic_that_is_gone():
    """Nobody can take that any more: the member goes on without."""
    story = ConsumerStory(t=1, u=1)
    story.join("a", "t,u")
    story.topics(u=None)
    story.wait(50)
    story.beat("a", 2, "t0").says("a@3 every 50 [t0]", "current a 2->3 t0@2")


def test_a_heartbeat_without_the_list_confirms_nothing():
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2, "t0 t1")
    story.beat("a", 2).says("a@2 every 50")
    story.beat("a", 2, "t0 t1").says("a@2 every 50 [t0]")
    assert story.line == "Reconciling 3/3 a@2![t0 -t1] b@3?[]"


def test_a_new_target_finds_a_member_that_owes():
    """It confirms first, and goes on to the latest target, which may ask for more."""
    story = ConsumerStory(t=6).stable("a")
    story.join("b")
    story.beat("a", 2)
    story.wait(50)
    story.join("c")
    assert story.line == "Reconciling 4/4 a@2![t0 t1 t2 -t3 -t4 -t5] b@3?[] c@4?[]"

    story.beat("a", 2, "t0 t1 t2").says("a@2 every 50 [t0 t1]", "current a 2->2! t0@2 t1@2 -t2@2")
    story.beat("b", 3, "").says("b@4 every 50 [t3 t4]", "current b 3->4 t3@4 t4@4")
    story.settle()
    assert story.line == "Stable 4/4 a@4[t0 t1] b@4[t3 t4] c@4[t2 t5]"


def test_what_comes_back_by_a_new_target_is_given_up_first():
    """A unit that a member owes and should have again: it cannot know, and gets it anew."""
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2)
    story.wait(50)
    story.leave("b")
    assert story.line == "Reconciling 4/4 a@2![t0 -t1]"
    assert story.group.target("a") == set(units("t0 t1"))

    story.beat("a", 2, "t0 t1").says("a@2 every 50 [t0]")
    story.beat("a", 2, "t0").says("a@4 every 50 [t0 t1]", "current a 2->4 t0@2 t1@4")


def test_a_member_that_waits_goes_on_to_the_next_target():
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.wait(50)
    story.join("c")
    assert story.line == "Reconciling 4/4 a@2[t0 t1] b@3?[] c@4[]"
    story.beat("b", 3, "").says("b@4 every 50", "current b 3->4?")


def test_a_member_that_waits_may_have_to_give_up_too():
    story = ConsumerStory(t=4).stable("a", "b")
    story.leave("b")
    story.wait(50)
    story.ack("a")
    story.join("c")
    story.wait(50)
    story.settle()
    assert story.line.startswith("Stable")


def test_since_when_a_unit_is_on_its_way():
    """From the target that moved it until it is there."""
    story = ConsumerStory(t=2).stable("a")
    at_ms = story.now_ms
    story.join("b")
    [moving] = units("t1")
    assert story.group.moving_since_ms == {moving: at_ms}
    story.wait(1_000)
    story.beat("a", 2)
    story.beat("a", 2, "t0")
    assert story.group.moving_since_ms == {moving: at_ms}
    story.beat("b", 3, "")
    assert story.group.moving_since_ms == {}
    assert at_ms > START_MS


def test_units_of_a_topic_that_is_gone_are_on_their_way_to_nobody():
    """They are forgotten when the group is settled, and not shown for ever."""
    story = ConsumerStory(t=2, u=1).stable("a", topics="t,u")
    story.topics(u=None)
    story.wait(50)
    assert story.group.moving_since_ms.keys() == set(units("u0"))
    story.settle()
    assert story.group.moving_since_ms == {}


def test_a_unit_that_another_one_waits_for_goes_back_to_its_owner():
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.wait(50)
    story.leave("b")
    assert story.line == "Reconciling 4/4 a@2[t0 t1]"
    story.beat("a", 2).says("a@4 every 50", "current a 2->4 t0@2 t1@2")
    assert story.group.moving_since_ms == {}
