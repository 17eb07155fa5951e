"""Stories of a broker that starts again: what the journal says is what the group is."""

from consumer_invariants import compacted, replayed, shard_image
from consumer_story import REBALANCE_MS, SESSION_MS, ConsumerStory

from anabranch.coordinator.group import consumer_records as cr
from anabranch.model.errors import ErrorCode


def test_every_member_gets_a_session_anew():
    """And the topics are looked at, since they may have changed while nobody looked."""
    story = ConsumerStory(t=2).stable("a", "b")
    story.wait(SESSION_MS - 1_000)
    story.restart().gives(
        timers={"a": SESSION_MS, "b": SESSION_MS, "refresh": 0},
        group="Stable 3/3 a@3[t0] b@3[t1]",
    )
    [step] = story.wait(0)
    step.gives(group="Stable 3/3 a@3[t0] b@3[t1]")


def test_a_reconciliation_goes_on():
    """Who owed has its time anew, who waited waits, and nobody has to rejoin."""
    story = ConsumerStory(t=2).stable("a")
    story.join("b")
    story.beat("a", 2, "t0 t1")

    story.restart().gives(
        timers={"a": SESSION_MS, "rebalance a": REBALANCE_MS, "b": SESSION_MS, "refresh": 0},
        group="Reconciling 3/3 a@2![t0 -t1] b@3?[]",
    )
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0] b@3[t1]"


def test_a_target_that_was_due_is_made():
    story = ConsumerStory(t=2)
    story.join("a")
    story.join("b")
    assert story.line == "Assigning 3/2 a@2[t0 t1] b@2[]"
    assert story.restart().timers == {"a": SESSION_MS, "b": SESSION_MS, "refresh": 0, "target": 0}
    story.wait(50)
    assert story.group.target_epoch == 3


def test_a_static_member_that_is_away_is_waited_for():
    story = ConsumerStory(t=1).stable("a", instance_id="i")
    story.leave_for_a_while("a", "i")
    assert story.restart().timers == {"a": SESSION_MS, "refresh": 0}
    assert story.join("a2", instance_id="i").group == "Stable 2/2 a2@2[t0]"


def test_an_empty_group_has_nothing_to_wait_for():
    story = ConsumerStory(t=1).stable("a")
    story.leave("a")
    story.restart().gives(group="Empty 3/3")


def test_topics_that_changed_meanwhile_are_found():
    story = ConsumerStory(t=1).stable("a")
    story.restart(ConsumerStory(t=2).image)
    story.settle()
    assert story.line == "Stable 3/3 a@3[t0 t1]"


def test_expressions_are_matched_again():
    story = ConsumerStory(t=1).stable("a", topics="", regex="t.*")
    story.restart()
    [step] = story.wait(0)
    assert step.tasks == ["t.*"]
    assert story.resolve().records == []


def test_a_member_whose_last_answer_was_lost_with_the_broker_goes_on():
    story = ConsumerStory(t=2).stable("a", "b")
    story.leave("b")
    story.wait(50)
    story.beat("a", 3)
    story.restart()
    story.beat("a", 3, "t0").says("a@4 every 100 [t0 t1]")


def test_offsets_come_back():
    story = ConsumerStory(t=1).stable("a")
    story.commit("t0", 5, "a", 2)
    story.restart()
    assert story.shard.offsets("g")["t", 0].offset == 5


def eventful() -> ConsumerStory:
    """A group that has seen everything that is written down."""
    story = ConsumerStory(t=3, u=2, checks_replay=False).stable("a", "b")
    story.stable("s", instance_id="i", topics="t", regex="u")
    story.leave_for_a_while("s", "i")
    story.join("s2", regex="u", instance_id="i")
    story.beat("a", 4, subscribed_topic_names=("t", "u"))
    story.leave("b")
    story.settle()
    story.commit("t0", 5, "a", story.member("a").member_epoch)
    story.beat("s2", story.member("s2").member_epoch, subscribed_topic_regex="", instance_id="i")
    story.join("c")
    story.wait(50)
    story.ack("a")
    return story


def test_records_may_be_compacted_to_any_point():
    """A cleaner that got part of the way leaves old records only where newer ones follow."""
    story = eventful()
    durable = [record for record in story.records if record.is_durable]
    make = (story.image, story.settings, story.surroundings)
    living = shard_image(story.shard, soft=False)
    for cut in range(len(durable) + 1):
        records = compacted(durable[:cut]) + durable[cut:]
        assert shard_image(replayed(records, *make), soft=False) == living


def test_the_records_of_a_member_may_come_in_any_order():
    """Compaction keeps the last of each key: what a member owns may come before who it is."""
    story = ConsumerStory(t=2).stable("a", "b")
    durable = compacted(record for record in story.records if record.is_durable)
    make = (story.image, story.settings, story.surroundings)
    for records in (durable[::-1], sorted(durable, key=lambda r: type(r).__name__)):
        assert shard_image(replayed(records, *make), soft=False) == shard_image(
            story.shard, soft=False
        )


def test_tombstones_of_what_is_not_there_make_no_group():
    """Their records may have been cleaned away before them."""
    story = ConsumerStory(t=1)
    shard = replayed(
        [
            cr.CurrentWritten(group_id="g", member_id="a", member=None),
            cr.TargetWritten(group_id="g", member_id="a", target=None),
            cr.MemberWritten(group_id="g", member_id="a", member=None),
            cr.RegexWritten(group_id="g", regex="t", resolved=None),
            cr.TargetEpochWritten(group_id="g", epoch=None),
            cr.GroupEpochWritten(group_id="g", epoch=None),
        ],
        story.image,
        story.settings,
        story.surroundings,
    )
    assert shard.groups == {}


def test_tombstones_of_a_stranger_change_nothing():
    story = ConsumerStory(t=1).stable("a")
    before = shard_image(story.shard)
    for record in (
        cr.CurrentWritten(group_id="g", member_id="z", member=None),
        cr.TargetWritten(group_id="g", member_id="z", target=None),
        cr.MemberWritten(group_id="g", member_id="z", member=None),
        cr.RegexWritten(group_id="g", regex="z", resolved=None),
        cr.TargetEpochWritten(group_id="g", epoch=None),
    ):
        story.shard.replay(record)
    assert shard_image(story.shard) == before


def test_a_group_that_was_deleted_starts_over():
    """Its epochs are those of another group then; a member of the old one is a stranger."""
    story = ConsumerStory(t=1).stable("a")
    story.leave("a")
    epoch = cr.GroupEpochWritten(group_id="g", epoch=None)
    story.records.append(epoch)
    story.shard.replay(epoch)
    story.beat("a", 2).fails(ErrorCode.GROUP_ID_NOT_FOUND)
    assert story.shard.consumer_members == 0
