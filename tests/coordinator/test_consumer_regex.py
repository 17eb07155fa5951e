"""Stories of subscriptions by regular expression: matched off the loop, refreshed, forgotten."""

import pytest
from consumer_story import SESSION_MS, ConsumerStory

from anabranch.coordinator.group.consumer_commands import RegexesResolved
from anabranch.coordinator.group.topic_regex import match_topics, why_invalid
from anabranch.model.errors import ErrorCode

REFRESH_MS = 600_000


def test_an_expression_is_matched_off_the_loop():
    """The member is in the group at once, and gets its partitions when the match is there."""
    story = ConsumerStory(t=1, tt=1, u=1)

    story.join("a", None, "t.*").gives(
        "a@1 every 100 []",
        records=["member a - /t.*/", "current a 0->1"],
        timers={"a": SESSION_MS},
        tasks=["t.*"],
        group="Stable 1/1 a@1[]",
    )
    story.resolve().gives(
        records=["regex t.* t,tt v1 +0", "epoch 2", "target a t0 tt0", "targets 2 +0"],
        timers={"target": None, "refresh": REFRESH_MS},
        group="Reconciling 2/2 a@1[]",
    )
    story.beat("a", 1).says("a@2 every 50 [t0 tt0]", "current a 1->2 t0@2 tt0@2")


def test_names_and_an_expression_add_up():
    story = ConsumerStory(t=1, u=1).stable("a", topics="u", regex="t")
    assert story.line.endswith("[t0 u0]")


def test_an_expression_that_cannot_be_read_is_refused():
    """Look-around is not RE2; the message says what is wrong and changes nothing."""
    story = ConsumerStory(t=1)
    story.join("a", None, "(?=t)").fails(ErrorCode.INVALID_REGULAR_EXPRESSION, "(?=t)", "RE2")
    assert story.line == "none"


def test_an_expression_that_the_group_has_is_known():
    """No second match, an epoch at once."""
    story = ConsumerStory(t=2).stable("a", topics="", regex="t")
    step = story.join("b", None, "t")
    assert step.tasks == []
    assert step.causes == ["join"]
    story.settle()
    assert [len(m.assigned) for m in story.group.members.values()] == [1, 1]


def test_a_new_expression_takes_away_what_the_old_one_had():
    """The old one is forgotten with its last subscriber; the new one is matched."""
    story = ConsumerStory(t=1, u=1).stable("a", topics="", regex="t")
    step = story.beat("a", 2, "t0", subscribed_topic_regex="u")
    assert step.records == ["member a - /u/", "regex t gone", "current a 2->2! -t0@2"]
    assert step.tasks == ["u"]
    story.settle()
    assert story.line == "Stable 3/3 a@3[u0]"


def test_an_expression_changed_before_the_match_was_there():
    """What comes back for the first one is of no interest any more."""
    story = ConsumerStory(t=1, u=1)
    story.join("a", None, "t")
    story.beat("a", 1, "", subscribed_topic_regex="u")
    assert [task.regexes for task in story.tasks] == [("t",), ("u",)]
    assert story.resolve().records == []
    story.settle()
    assert story.line == "Stable 2/2 a@2[u0]"


def test_an_expression_that_matched_nothing_is_changed():
    """The topics are the same before the match and after it, and the match is made all the same."""
    story = ConsumerStory(t=1, u=1).stable("a", topics="t", regex="none")
    assert story.beat("a", 2, "t0", subscribed_topic_regex="u").tasks == ["u"]
    story.settle()
    assert story.line.endswith("[t0 u0]")


def test_an_empty_expression_ends_the_subscription():
    story = ConsumerStory(t=1).stable("a", topics="", regex="t")
    step = story.beat("a", 2, "t0", subscribed_topic_regex="")
    assert step.records[:3] == ["member a - //", "regex t gone", "epoch 3"]
    story.settle()
    assert story.line == "Stable 3/3 a@3[]"


def test_an_expression_that_others_have_stays():
    story = ConsumerStory(t=2).stable("a", "b", topics="", regex="t")
    assert "regex t gone" not in story.beat("a", 3, subscribed_topic_regex="").records
    assert "t" in story.group.regexes


def test_an_expression_goes_with_its_last_subscriber():
    """Whoever leaves, is silent or lets its time run out."""
    story = ConsumerStory(t=1).stable("a", topics="", regex="t")
    assert story.leave("a").records[3] == "regex t gone"
    story = ConsumerStory(t=1).stable("a", topics="", regex="t")
    story.wait(SESSION_MS)
    assert story.group.regexes == {}


def test_a_topic_that_is_created_is_matched():
    story = ConsumerStory(t=1).stable("a", topics="", regex="t.*")
    story.topics(tt=1).gives(timers={"refresh": 0}, group="Stable 2/2 a@2[t0]")
    [step] = story.wait(0)
    step.gives(tasks=["t.*"], group="Stable 2/2 a@2[t0]")
    assert story.resolve().causes == ["regex"]
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0 tt0]"


def test_a_topic_that_does_not_match_changes_nothing():
    story = ConsumerStory(t=1).stable("a", topics="", regex="t.*")
    story.topics(u=1)
    story.wait(0)
    assert story.resolve().records == []


def test_a_topic_that_grows_while_a_match_is_on_its_way_is_not_overlooked():
    """The answer sets the timer anew that was to look at the topics: so it looks itself."""
    story = ConsumerStory(t=1).stable("a", topics="", regex="t")
    story.topics(u=1)
    story.wait(0)
    story.topics(t=2)
    assert len(story.tasks) == 1
    step = story.resolve()
    assert step.causes == ["topics"]
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0 t1]"


def test_a_match_of_an_older_image_is_made_again():
    story = ConsumerStory(t=1)
    story.join("a", None, "t.*")
    story.topics(tt=1)
    step = story.resolve()
    assert step.records[0] == "regex t.* t v1 +0"
    assert step.tasks == ["t.*"]
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0 tt0]"


def test_matches_that_come_in_the_wrong_order():
    """What is known from a later image is not taken back by an earlier one."""
    story = ConsumerStory(t=1)
    story.join("a", None, "t.*")
    story.topics(tt=1)
    story.wait(0)
    story.tasks.reverse()
    assert story.resolve().records[0] == "regex t.* t,tt v2 +0"
    assert story.resolve().records == []
    story.settle()
    assert story.line == "Stable 2/2 a@2[t0 tt0]"


def test_versions_from_before_a_restart_do_not_count():
    """A broker counts images from its start; the journal has the numbers of an earlier one."""
    story = ConsumerStory(t=1)
    for _ in range(5):
        story.topics(u=1)
    story.stable("a", topics="", regex="t.*")
    assert story.group.regexes["t.*"].version == 6

    fresh = ConsumerStory(t=1, tt=1).image
    story.restart(fresh)
    story.settle()

    assert story.group.regexes["t.*"].version == fresh.version
    assert story.line == "Stable 3/3 a@3[t0 tt0]"


def test_expressions_are_matched_again_from_time_to_time():
    """Though nothing was heard of any change."""
    story = ConsumerStory(t=1).stable("a", topics="", regex="t")
    steps = []
    for _ in range(20):
        steps += story.wait(REFRESH_MS // 20)
        story.beat("a", 2)
    assert [step.tasks for step in steps] == [["t"]]
    story.resolve().gives(timers={"refresh": REFRESH_MS}, group="Stable 2/2 a@2[t0]")


def test_all_expressions_of_a_group_are_matched_together():
    story = ConsumerStory(t=1, u=1)
    story.join("a", None, "u")
    assert story.join("b", None, "t").tasks == ["t u"]


def test_a_match_for_a_group_that_is_gone_is_dropped():
    story = ConsumerStory(t=1)
    step = story.submit(RegexesResolved(group_id="g", topics={"t": frozenset({"t"})}, version=1))
    assert step.records == []
    story.join("a", None, "t")
    story.leave("a")
    assert story.resolve().records == []


@pytest.mark.parametrize(
    ("regex", "matched"),
    [("t", ["t"]), ("t.*", ["t", "tt"]), ("^t", ["t"]), (".*", ["t", "tt", "u"]), ("(", [])],
)
def test_the_whole_name_has_to_match(regex, matched):
    """As in Kafka; one that cannot be read matches nothing."""
    assert match_topics([regex], ["t", "tt", "u"]) == {regex: frozenset(matched)}


def test_what_is_wrong_with_an_expression():
    assert why_invalid("t.*") is None
    assert why_invalid("(") == "missing ): ("
