"""Branch topics come, grow with their source, and go, through the requests of any admin client."""

from collections.abc import Callable
from pathlib import Path

import pytest
from branch_topic_calls import (
    BRANCHED,
    SOURCE,
    asking,
    create,
    create_outcome,
    delete,
    found,
    grow,
)
from handler_calls import Node

from anabranch.broker import partition_limits
from anabranch.broker.topics import Topic
from anabranch.engine.metadata_store import StoredTopic
from anabranch.model.errors import ErrorCode
from anabranch.model.topics import format_topic_id
from anabranch.wire.messages.create_topics import CreatableTopic

MakeNode = Callable[..., Node]


@pytest.fixture
def node(node: Node) -> Node:
    """A broker with a topic of three partitions."""
    node.create_topic(SOURCE, 3)
    return node


def branches(topic: Topic) -> list[tuple[str, int, int]]:
    """Of each partition of a branch topic: whose log it reads, and which range of it it is."""
    return [
        (part.log.topic, part.log.partition, part.branch.range_index)
        for part in topic.partitions
        if part.branch is not None
    ]


# Creation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(8))
def test_a_branch_topic_is_created_by_a_setting(node: Node, version: int) -> None:
    """In every version of CreateTopics; its partitions read the source's logs, range by range."""
    (result,) = create(node, asking(partitions=6, factor=1), version=version)
    assert result.error_code == ErrorCode.NONE
    topic = found(node, BRANCHED)
    assert topic.source is found(node, SOURCE)
    assert branches(topic) == [(SOURCE, p, r) for r in range(2) for p in range(3)]
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (6, 1)
    if version >= 7:
        assert result.topic_id == topic.topic_id != topic.source.topic_id


def test_no_files_are_made_for_it(node: Node, tmp_path: Path) -> None:
    """Its records are the source's; a folder would be a second copy of nothing."""
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    create(node, asking(partitions=3072))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before
    assert {topic for topic, _ in node.broker.engine.logs} == {SOURCE}


def test_the_number_of_open_files_does_not_limit_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches beyond what the process could open as logs are fine."""
    monkeypatch.setattr(partition_limits, "open_files_max", lambda: 260)
    assert create_outcome(node, asking(partitions=900)) == (0, None)


def test_the_number_of_ranges_has_a_default(make_node: MakeNode) -> None:
    """-1 partitions take branch.ranges.per.partition of each of the source's."""
    node = make_node("num.partitions=5")
    node.create_topic(SOURCE, 3)
    (result,) = create(node, asking())
    assert result.num_partitions == 24
    other = make_node("branch.ranges.per.partition=3", folder="other")
    other.create_topic(SOURCE, 2)
    (result,) = create(other, asking())
    assert result.num_partitions == 6


def test_replicas_may_be_chosen(node: Node) -> None:
    """A list of replicas that fits is as good as a number; one that does not fit is refused."""
    assert create_outcome(node, asking(broker_ids=[[1]] * 3)) == (0, None)
    assert create_outcome(node, asking("other", broker_ids=[[1]] * 4)) == (
        ErrorCode.INVALID_PARTITIONS,
        (
            "4 partitions do not fit: orders has 3 partitions, each to be cut into equally many "
            "ranges. Use 3 or 6."
        ),
    )
    code, _ = create_outcome(node, asking("other", broker_ids=[[7]] * 3))
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    code, _ = create_outcome(node, asking("other", 6, factor=2))
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("partitions", "number", "use"),
    [
        (1, "equally many", "3"),
        (2, "equally many", "3"),
        (22, "equally many", "21 or 24"),
        (23, "equally many", "21 or 24"),
        (3071, "equally many", "3069 or 3072"),
        (3073, "at most 1024", "3072"),
        (3075, "at most 1024", "3072"),
        (9999, "at most 1024", "3072"),
    ],
)
def test_a_count_that_does_not_fit(node: Node, partitions: int, number: str, use: str) -> None:
    """INVALID_PARTITIONS says which counts would fit."""
    for validate_only in (True, False):
        assert create_outcome(node, asking(partitions=partitions), validate_only=validate_only) == (
            ErrorCode.INVALID_PARTITIONS,
            (
                f"{partitions} partitions do not fit: orders has 3 partitions, each to be cut into "
                f"{number} ranges. Use {use}."
            ),
        )
    assert node.broker.topics.get(BRANCHED) is None


def test_the_source_of_one_partition(node: Node) -> None:
    """Any number up to 1,024 fits it."""
    node.create_topic("one")
    assert create_outcome(node, asking("one.1", 1, source="one")) == (0, None)
    assert create_outcome(node, asking("one.1024", 1024, source="one")) == (0, None)
    assert create_outcome(node, asking("one.1025", 1025, source="one")) == (
        ErrorCode.INVALID_PARTITIONS,
        (
            "1025 partitions do not fit: one has 1 partition, each to be cut into at most 1024 "
            "ranges. Use 1024."
        ),
    )


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (
            asking(source="absent"),
            ErrorCode.INVALID_CONFIG,
            (
                "branch.source.topic names nothing to branch: there is no topic 'absent'. "
                "Create it first."
            ),
        ),
        (
            asking(source=""),
            ErrorCode.INVALID_CONFIG,
            "branch.source.topic names nothing to branch: there is no topic ''. Create it first.",
        ),
        (
            asking(source="orders.first"),
            ErrorCode.INVALID_CONFIG,
            (
                "branch.source.topic names nothing to branch: orders.first is a branch topic "
                "itself. Branch its source orders, into as many ranges as wanted."
            ),
        ),
        (
            asking(source="__consumer_offsets"),
            ErrorCode.INVALID_CONFIG,
            (
                "branch.source.topic names nothing to branch: __consumer_offsets is a topic of "
                "this broker's own. Branch another one."
            ),
        ),
        (
            asking("__share_group_state"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            (
                "__share_group_state keeps records of this broker's own and cannot be a branch "
                "topic. Choose another name."
            ),
        ),
        (
            asking("orders.first"),
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "Topic 'orders.first' already exists.",
        ),
        (
            asking("orders_first"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic 'orders_first' collides with existing topic: orders.first.",
        ),
        (
            asking(partitions=0),
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            asking(configs={"branch.source.topic": None}, source=None),
            ErrorCode.INVALID_CONFIG,
            "Null value not supported for topic configs: branch.source.topic",
        ),
    ],
)
def test_what_cannot_be_branched(
    node: Node, topic: CreatableTopic, code: ErrorCode, message: str
) -> None:
    """Each mistake has a final code and a sentence with the next step, and nothing is made."""
    node.create_topic("__consumer_offsets", 1)
    create(node, asking("orders.first"))
    for validate_only in (True, False):
        assert create_outcome(node, topic, validate_only=validate_only) == (code, message)
    assert len(node.broker.topics) == 3
    assert found(node, SOURCE).branch_topics == [found(node, "orders.first")]


def test_validate_only_makes_nothing(node: Node) -> None:
    """A check answers what would be, and leaves the source without branches."""
    (result,) = create(node, asking(partitions=9), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 9)
    assert result.topic_id == bytes(16)
    assert {config.name: config.value for config in result.configs}["branch.ranges"] == "3"
    assert node.broker.topics.get(BRANCHED) is None
    assert found(node, SOURCE).branch_topics == []
    assert [kept.name for kept in node.broker.engine.store.topics()] == [SOURCE]


def test_the_answer_describes_it(node: Node) -> None:
    """The configs of the answer are those that DescribeConfigs will show."""
    node.create_topic("kept", 2, retention_ms="5000", branch_null_key="ordered")
    (result,) = create(node, asking(partitions=4, source="kept"))
    values = {config.name: config.value for config in result.configs}
    assert values["branch.source.topic"] == "kept"
    assert values["branch.source.topic.id"] == format_topic_id(found(node, "kept").topic_id)
    assert (values["branch.source.partitions"], values["branch.ranges"]) == ("2", "2")
    assert (values["retention.ms"], values["branch.null.key"]) == ("5000", "ordered")
    assert values["branch.commit.source"] == "false"
    assert [c.name for c in result.configs if not c.read_only] == ["branch.commit.source"]


def test_source_and_branches_in_one_request(node: Node) -> None:
    """Their order in the request does not matter, and the answers keep it."""
    results = create(node, asking("b", source="a"), asking("a", 2, source=None))
    assert [(r.name, r.error_code, r.num_partitions) for r in results] == [
        ("b", 0, 16),
        ("a", 0, 2),
    ]


def test_branches_count_for_the_size_of_a_request(node: Node) -> None:
    """Given and default numbers of branches are partitions of the request like others."""
    node.create_topic("many", 1200)
    too_many = (
        "The request would create 12600 partitions; at most 10000 are possible in one request. "
        "Split it."
    )
    results = create(node, asking("a", 3000), asking("b", source="many"))
    assert {(r.error_code, r.error_message) for r in results} == {
        (ErrorCode.POLICY_VIOLATION, too_many)
    }
    source = asking("source", 1251, source=None)
    results = create(node, asking("branches", source="source"), source)
    assert [(r.error_code, r.error_message) for r in results] == [
        (
            ErrorCode.POLICY_VIOLATION,
            (
                "The request would create 10008 partitions; at most 10000 are possible in one "
                "request. Split it."
            ),
        ),
        (0, None),
    ]


def test_several_branch_topics_of_one_source(node: Node) -> None:
    """Each cuts the same partitions for itself."""
    create(node, asking("a", 3), asking("b", 12))
    assert [len(found(node, name).partitions) for name in ("a", "b")] == [3, 12]
    assert [len(p.branch_tails) for p in found(node, SOURCE).partitions] == [2, 2, 2]


# Growth -------------------------------------------------------------------------------------------


def test_branches_grow_with_their_source(node: Node) -> None:
    """New partitions get their ranges at the end at once; the numbers there are stay."""
    create(node, asking(partitions=6), asking("single", 3))
    before = branches(found(node, BRANCHED))
    assert grow(node, (SOURCE, 5)) == [(SOURCE, 0, None)]
    assert branches(found(node, BRANCHED)) == [
        *before,
        (SOURCE, 3, 0),
        (SOURCE, 3, 1),
        (SOURCE, 4, 0),
        (SOURCE, 4, 1),
    ]
    assert len(found(node, "single").partitions) == 5
    image = node.broker.topics.image.topics
    assert [image[name].partitions for name in (SOURCE, BRANCHED, "single")] == [5, 10, 5]


def test_a_branch_topic_does_not_grow_by_itself(node: Node) -> None:
    """The refusal names what to grow instead; checks are refused as well."""
    create(node, asking(partitions=6))
    for count in (6, 9, 12):
        for validate_only in (True, False):
            assert grow(node, (BRANCHED, count), validate_only=validate_only) == [
                (
                    BRANCHED,
                    ErrorCode.INVALID_PARTITIONS,
                    (
                        "The partitions of orders.by-key follow orders, 2 for each. Add partitions "
                        "to orders, or create another branch topic with more."
                    ),
                )
            ]
    assert len(found(node, BRANCHED).partitions) == 6


def test_growth_counts_its_branches(node: Node) -> None:
    """A request is as large as all that comes to be by it."""
    create(node, asking(partitions=3 * 999))
    assert grow(node, (SOURCE, 3 + 11)) == [
        (
            SOURCE,
            ErrorCode.POLICY_VIOLATION,
            (
                "The request would create 11000 partitions; at most 10000 are possible in one "
                "request. Split it."
            ),
        )
    ]
    assert grow(node, (SOURCE, 3 + 10), validate_only=True) == [(SOURCE, 0, None)]
    assert grow(node, (SOURCE, 4)) == [(SOURCE, 0, None)]
    assert len(found(node, BRANCHED).partitions) == 4 * 999


# Deletion -----------------------------------------------------------------------------------------


def test_a_branch_topic_goes_and_its_source_stays(node: Node) -> None:
    """Deleting it leaves the source's records, files and other branch topics alone."""
    node.append(SOURCE, b"kept")
    create(node, asking(), asking("other"))
    gone = found(node, BRANCHED)
    assert delete(node, BRANCHED) == [(BRANCHED, 0, None)]
    assert node.broker.topics.get(BRANCHED) is None
    assert node.broker.topics.get_by_id(gone.topic_id) is None
    source = found(node, SOURCE)
    assert source.branch_topics == [found(node, "other")]
    assert [len(part.branch_tails) for part in source.partitions] == [1, 1, 1]
    assert source.partitions[0].log.log_end_offset == 1
    assert len(node.broker.engine.logs) == 3
    assert node.append(SOURCE, b"more") == 1
    assert create_outcome(node, asking()) == (0, None)
    assert found(node, BRANCHED).topic_id != gone.topic_id


def test_a_source_is_kept_while_it_has_branch_topics(node: Node) -> None:
    """The refusal names them; when they are gone it goes."""
    create(node, *(asking(f"b{number}", 3) for number in range(7)))
    refused = (
        "orders has branch topics that show its records: b0, b1, b2, b3, b4 and 2 more. "
        "Delete them first, or in the same request."
    )
    assert delete(node, SOURCE) == [(SOURCE, ErrorCode.POLICY_VIOLATION, refused)]
    topic_id = found(node, SOURCE).topic_id
    assert delete(node, topic_id) == [(None, ErrorCode.POLICY_VIOLATION, refused)]
    some = [f"b{number}" for number in range(6)]
    assert delete(node, SOURCE, *some) == [
        (
            SOURCE,
            ErrorCode.POLICY_VIOLATION,
            (
                "orders has branch topics that show its records: b6. "
                "Delete them first, or in the same request."
            ),
        ),
        *((name, 0, None) for name in some),
    ]
    assert delete(node, "b6") == [("b6", 0, None)]
    assert delete(node, SOURCE) == [(SOURCE, 0, None)]
    assert node.broker.engine.logs == {}


def test_a_source_goes_with_all_its_branch_topics(node: Node) -> None:
    """In any order, by name or id; the answers keep the order asked."""
    create(node, asking("a"), asking("z"))
    node.create_topic("between")
    topic_id = found(node, "z").topic_id
    assert delete(node, "a", SOURCE, "absent", "between", topic_id) == [
        ("a", 0, None),
        (SOURCE, 0, None),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no topic 'absent'."),
        ("between", 0, None),
        ("z", 0, None),
    ]
    assert len(node.broker.topics) == 0
    assert node.broker.engine.store.topics() == []


def test_a_branch_topic_that_is_not_deleted_keeps_its_source(node: Node) -> None:
    """One that is named twice is refused, so the source is as well."""
    create(node, asking("a"))
    (source, branched) = delete(node, SOURCE, "a", "a")
    assert source[:2] == (SOURCE, ErrorCode.POLICY_VIOLATION)
    assert branched == ("a", ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    assert len(node.broker.topics) == 2


# Restarts -----------------------------------------------------------------------------------------


def test_a_restart_keeps_branch_topics(make_node: MakeNode) -> None:
    """Ids, settings, layout and branches are there again, also those that came by growth."""
    node = make_node()
    node.create_topic(SOURCE, 3)
    create(
        node,
        asking(partitions=6, configs={"branch.commit.source": "true"}),
        asking("a.first", 3),
    )
    grow(node, (SOURCE, 5))
    node.append(SOURCE, b"one", b"two", partition=4)
    before = {
        topic.name: (topic.topic_id, dict(topic.configs), branches(topic), topic.layout)
        for topic in node.broker.topics
    }
    node.close()
    again = make_node()
    assert before == {
        topic.name: (topic.topic_id, dict(topic.configs), branches(topic), topic.layout)
        for topic in again.broker.topics
    }
    source = found(again, SOURCE)
    assert {topic.name for topic in source.branch_topics} == {BRANCHED, "a.first"}
    for part in found(again, BRANCHED).partitions:
        assert part.branch is not None
        assert part.log is part.branch.tail.source.log
    assert found(again, BRANCHED).partitions[9].log.log_end_offset == 2
    grow(again, (SOURCE, 6))
    assert branches(found(again, BRANCHED))[10:] == [(SOURCE, 5, 0), (SOURCE, 5, 1)]
    assert delete(again, SOURCE, BRANCHED, "a.first") == [
        (SOURCE, 0, None),
        (BRANCHED, 0, None),
        ("a.first", 0, None),
    ]
    again.close()
    assert len(make_node().broker.topics) == 0


def test_what_was_deleted_stays_deleted(make_node: MakeNode) -> None:
    """After a restart the source is without the branch topic, and its name is free."""
    node = make_node()
    node.create_topic(SOURCE, 2)
    create(node, asking(), asking("other", 2))
    delete(node, BRANCHED)
    node.close()
    again = make_node()
    assert [topic.name for topic in again.broker.topics] == [SOURCE, "other"]
    assert [len(part.branch_tails) for part in found(again, SOURCE).partitions] == [1, 1]
    assert create_outcome(again, asking()) == (0, None)


def test_a_source_that_took_the_name_of_another_is_not_branched(make_node: MakeNode) -> None:
    """A branch topic knows its source by id; one whose source is lost is left out at a start."""
    node = make_node()
    node.create_topic(SOURCE, 2)
    create(node, asking())
    topic = found(node, SOURCE)
    node.broker.engine.store.delete_topic(topic.topic_id)
    node.broker.engine.store.create_topics([StoredTopic(SOURCE, b"\x07" * 16, 2, {})])
    node.close()
    again = make_node()
    assert [topic.name for topic in again.broker.topics] == [SOURCE]
