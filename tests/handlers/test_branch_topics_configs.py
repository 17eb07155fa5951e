"""The settings of branch topics and of their sources: what is shown, what may change."""

from collections.abc import Callable

import pytest
from branch_topic_calls import (
    BRANCHED,
    SOURCE,
    Outcome,
    alter,
    asking,
    create,
    create_outcome,
    delete,
    described,
    found,
    replace,
)
from handler_calls import Node

from anabranch.config.definitions import TOPIC_SETTINGS
from anabranch.model.errors import ErrorCode
from anabranch.model.topics import format_topic_id
from anabranch.wire.messages.incremental_alter_configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_SET,
)

INVALID = ErrorCode.INVALID_CONFIG
SET, DELETE, APPEND = OPERATION_SET, OPERATION_DELETE, OPERATION_APPEND
FIXED = (
    "branch.source.topic",
    "branch.source.topic.id",
    "branch.source.partitions",
    "branch.ranges",
)
TOPIC_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 1, 4, 5


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A broker with a topic that sets something, and a branch topic of it."""
    node = make_node("log.segment.bytes=2000000")
    node.create_topic(SOURCE, 3, retention_ms="5000")
    create(node, asking(partitions=6))
    return node


def kept(node: Node, name: str) -> dict[str, str]:
    """A topic's settings as they are now, which must be those on the disk."""
    topic = found(node, name)
    (stored,) = [t for t in node.broker.engine.store.topics() if t.name == name]
    assert stored.configs == topic.configs
    return dict(topic.configs)


# Creation -----------------------------------------------------------------------------------------


def test_its_own_setting_is_given_at_creation(node: Node) -> None:
    """branch.commit.source is kept; what the source decides may be repeated, and is not kept."""
    given = {
        "branch.commit.source": "true",
        "branch.null.key": " unordered ",
        "branch.ordering.key.header": "",
        "branch.index.build": "read",
    }
    assert create_outcome(node, asking("b", configs=given)) == (0, None)
    assert kept(node, "b") == {
        "branch.commit.source": "true",
        "branch.source.topic": SOURCE,
        "branch.source.topic.id": format_topic_id(found(node, SOURCE).topic_id),
        "branch.source.partitions": "3",
        "branch.ranges": "8",
    }


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (
            {"retention.ms": "5000"},
            (
                "retention.ms can be set only on the source orders, which keeps the records. "
                "Set it there, and leave it out here."
            ),
        ),
        (
            {"segment.bytes": "2000000", "cleanup.policy": "compact"},
            (
                "cleanup.policy, segment.bytes can be set only on the source orders, which keeps "
                "the records. Set it there, and leave it out here."
            ),
        ),
        (
            {"branch.null.key": "ordered"},
            (
                "branch.null.key is 'unordered' on orders, and its branch topics follow it. "
                "Alter orders first, or leave it out."
            ),
        ),
        (
            {"branch.ordering.key.header": "customer"},
            (
                "branch.ordering.key.header is '' on orders, and its branch topics follow it. "
                "Alter orders first, or leave it out."
            ),
        ),
        (
            {"branch.index.build": "append"},
            (
                "branch.index.build is 'read' on orders, and its branch topics follow it. "
                "Alter orders first, or leave it out."
            ),
        ),
        (
            {"branch.ranges": "8", "branch.source.partitions": "3"},
            (
                "The broker alone sets branch.ranges, branch.source.partitions, when it creates a "
                "branch topic. Leave it out."
            ),
        ),
        (
            {"branch.source.topic.id": "AQEBAQEBAQEBAQEBAQEBAQ"},
            (
                "The broker alone sets branch.source.topic.id, when it creates a branch topic. "
                "Leave it out."
            ),
        ),
        (
            {"branch.commit.source": "perhaps"},
            (
                "Invalid value perhaps for configuration branch.commit.source: Expected value to "
                "be either true or false"
            ),
        ),
        (
            {"branch.commit.sources": "true"},
            (
                "Unknown topic config name: branch.commit.sources. "
                "Did you mean branch.commit.source?"
            ),
        ),
    ],
)
def test_other_settings_are_refused_at_creation(
    node: Node, configs: dict[str, str | None], message: str
) -> None:
    """INVALID_CONFIG says where they belong, and nothing is created."""
    for validate_only in (True, False):
        asked = asking("b", configs=configs)
        assert create_outcome(node, asked, validate_only=validate_only) == (INVALID, message)
    assert node.broker.topics.get("b") is None


@pytest.mark.parametrize("name", ["branch.source.topic.id", "branch.source.partitions"])
def test_what_the_broker_sets_is_refused_for_any_topic(node: Node, name: str) -> None:
    """Also for a topic that is no branch topic."""
    refused = f"The broker alone sets {name}, when it creates a branch topic. Leave it out."
    assert create_outcome(node, asking("t", configs={name: "1"}, source=None)) == (INVALID, refused)
    assert create_outcome(
        node, asking("t", configs={"branch.commit.source": "true"}, source=None)
    ) == (
        INVALID,
        "branch.commit.source is a setting of branch topics, and t is none. Leave it out.",
    )
    assert node.broker.topics.get("t") is None


# Description --------------------------------------------------------------------------------------


def test_a_branch_topic_shows_what_holds_for_its_records(node: Node) -> None:
    """The source's values with their sources, read-only, beside its own."""
    rows = described(node, BRANCHED)
    assert rows.keys() == {name for name, line in TOPIC_SETTINGS.items() if not line.internal}
    assert {
        name: (rows[name].value, rows[name].config_source)
        for name in (*FIXED, "retention.ms", "segment.bytes", "max.message.bytes")
    } == {
        "branch.source.topic": (SOURCE, TOPIC_SOURCE),
        "branch.source.topic.id": (format_topic_id(found(node, SOURCE).topic_id), TOPIC_SOURCE),
        "branch.source.partitions": ("3", TOPIC_SOURCE),
        "branch.ranges": ("2", TOPIC_SOURCE),
        "retention.ms": ("5000", TOPIC_SOURCE),
        "segment.bytes": ("2000000", STATIC_SOURCE),
        "max.message.bytes": ("1048588", DEFAULT_SOURCE),
    }
    assert [name for name, row in rows.items() if not row.read_only] == ["branch.commit.source"]
    assert list(described(node, BRANCHED, "retention.ms", "absent")) == ["retention.ms"]


def test_it_follows_its_source(node: Node) -> None:
    """What is altered on the source is shown on the branch topic at once."""
    changes = ((SET, "retention.ms", "6000"), (SET, "branch.index.build", "append"))
    assert alter(node, SOURCE, *changes) == (0, None)
    assert described(node, BRANCHED)["retention.ms"].value == "6000"
    assert described(node, BRANCHED)["branch.index.build"].value == "append"
    assert alter(node, SOURCE, (DELETE, "retention.ms", None)) == (0, None)
    assert described(node, BRANCHED)["retention.ms"].value == "604800000"


def test_other_topics_show_nothing_of_branch_topics(node: Node) -> None:
    """A source shows what it decides for its branch topics, not what only they have."""
    names = {name for name in described(node, SOURCE) if name.startswith("branch.")}
    assert names == {"branch.null.key", "branch.ordering.key.header", "branch.index.build"}
    assert described(node, SOURCE, "branch.ranges") == {}


# Alteration of a branch topic ---------------------------------------------------------------------


def belongs_to_source(name: str) -> Outcome:
    return (
        INVALID,
        (
            f"{name} of branch topic orders.by-key cannot change: it belongs to orders, which "
            "keeps the records. Set it on that topic."
        ),
    )


def fixed(name: str) -> Outcome:
    return (
        INVALID,
        (
            f"{name} of branch topic orders.by-key cannot change: orders.by-key is what it was "
            "created as. Create another branch topic instead."
        ),
    )


def test_its_own_setting_can_change(node: Node) -> None:
    """branch.commit.source is set and deleted; a check leaves it as it is."""
    before = kept(node, BRANCHED)
    change = (SET, "branch.commit.source", "true")
    assert alter(node, BRANCHED, change, validate_only=True) == (0, None)
    assert kept(node, BRANCHED) == before
    assert alter(node, BRANCHED, change) == (0, None)
    assert kept(node, BRANCHED) == {**before, "branch.commit.source": "true"}
    assert described(node, BRANCHED)["branch.commit.source"].value == "true"
    assert alter(node, BRANCHED, (DELETE, "branch.commit.source", None)) == (0, None)
    assert kept(node, BRANCHED) == before
    code, _ = alter(node, BRANCHED, (SET, "branch.commit.source", "perhaps"))
    assert code == INVALID


@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        ((SET, "retention.ms", "6000"), belongs_to_source("retention.ms")),
        ((DELETE, "retention.ms", None), belongs_to_source("retention.ms")),
        ((SET, "max.message.bytes", "1000"), belongs_to_source("max.message.bytes")),
        ((APPEND, "cleanup.policy", "compact"), belongs_to_source("cleanup.policy")),
        ((SET, "branch.null.key", "ordered"), belongs_to_source("branch.null.key")),
        ((SET, "branch.index.build", "append"), belongs_to_source("branch.index.build")),
        *(((SET, name, "7"), fixed(name)) for name in FIXED),
        *(((DELETE, name, None), fixed(name)) for name in FIXED),
    ],
)
def test_nothing_else_can_change(
    node: Node, operation: tuple[int, str, str | None], outcome: Outcome
) -> None:
    """Neither what is the source's nor what the branch topic is; beside a good change as well."""
    before = kept(node, BRANCHED)
    for validate_only in (True, False):
        good = (SET, "branch.commit.source", "true")
        assert alter(node, BRANCHED, good, operation, validate_only=validate_only) == outcome
    assert kept(node, BRANCHED) == before
    assert kept(node, SOURCE) == {"retention.ms": "5000"}


def test_what_changes_nothing_is_accepted(node: Node) -> None:
    """A value that is in force already, or the removal of one that nobody set."""
    before = kept(node, BRANCHED)
    assert alter(
        node,
        BRANCHED,
        (SET, "retention.ms", " 5000"),
        (SET, "max.message.bytes", "1048588"),
        (SET, "branch.ranges", "2"),
        (DELETE, "flush.ms", None),
    ) == (0, None)
    assert kept(node, BRANCHED) == before


def test_a_replacement_keeps_what_the_branch_topic_is(node: Node) -> None:
    """AlterConfigs need not repeat what is fixed; its own setting is gone when it is left out."""
    before = kept(node, BRANCHED)
    assert replace(node, BRANCHED, {"branch.commit.source": "true"}) == (0, None)
    assert kept(node, BRANCHED) == {**before, "branch.commit.source": "true"}
    assert replace(node, BRANCHED, {}) == (0, None)
    assert kept(node, BRANCHED) == before


def test_a_replacement_may_write_back_what_was_read(node: Node) -> None:
    """The usual way with AlterConfigs: all that is shown, with one change."""
    shown = {name: row.value or "" for name, row in described(node, BRANCHED).items()}
    assert replace(node, BRANCHED, {**shown, "branch.commit.source": "true"}) == (0, None)
    assert kept(node, BRANCHED)["branch.commit.source"] == "true"
    assert "retention.ms" not in kept(node, BRANCHED)
    assert replace(node, BRANCHED, {**shown, "retention.ms": "1"}) == belongs_to_source(
        "retention.ms"
    )
    assert replace(node, BRANCHED, {"branch.source.topic": "other"}) == fixed("branch.source.topic")
    assert kept(node, BRANCHED)["branch.source.topic"] == SOURCE


# Alteration of a source ---------------------------------------------------------------------------


def cannot_move(*names: str) -> Outcome:
    return (
        INVALID,
        (
            f"{', '.join(names)} of orders cannot change while it has branch topics "
            "(orders.by-key): keys would change branches under their consumers. "
            "Delete the branch topics first."
        ),
    )


@pytest.mark.parametrize(
    ("operations", "outcome"),
    [
        ([(SET, "branch.null.key", "ordered")], cannot_move("branch.null.key")),
        (
            [(SET, "branch.ordering.key.header", "customer")],
            cannot_move("branch.ordering.key.header"),
        ),
        (
            [
                (SET, "branch.null.key", "ordered"),
                (SET, "branch.ordering.key.header", "customer"),
                (SET, "retention.ms", "1"),
            ],
            cannot_move("branch.null.key", "branch.ordering.key.header"),
        ),
        ([(SET, "branch.null.key", " unordered")], (0, None)),
        ([(DELETE, "branch.null.key", None)], (0, None)),
        ([(SET, "branch.index.build", "append")], (0, None)),
        ([(SET, "retention.ms", "1")], (0, None)),
    ],
)
def test_records_of_a_source_stay_in_their_branches(
    node: Node, operations: list[tuple[int, str, str | None]], outcome: Outcome
) -> None:
    """What decides the branch of a record cannot change while there are branches."""
    before = kept(node, SOURCE)
    assert alter(node, SOURCE, *operations) == outcome
    if outcome != (0, None):
        assert kept(node, SOURCE) == before
        delete(node, BRANCHED)
        assert alter(node, SOURCE, *operations) == (0, None)


def test_a_replacement_must_repeat_what_decides_branches(make_node: Callable[..., Node]) -> None:
    """To leave it out would bring the default back."""
    node = make_node()
    node.create_topic(SOURCE, 1, branch_null_key="ordered")
    create(node, asking())
    assert replace(node, SOURCE, {"retention.ms": "1"}) == cannot_move("branch.null.key")
    repeated = {"retention.ms": "1", "branch.null.key": "ordered"}
    assert replace(node, SOURCE, repeated) == (0, None)
    assert kept(node, SOURCE) == repeated


def test_a_topic_does_not_become_a_branch_topic(node: Node) -> None:
    """branch.source.topic is for creation only, and the rest is the broker's."""
    node.create_topic("t")
    assert alter(node, "t", (SET, "branch.source.topic", SOURCE)) == (
        INVALID,
        (
            "branch.source.topic makes a new topic a branch topic, and t exists already. "
            "Create another topic with it."
        ),
    )
    assert replace(node, "t", {"branch.ranges": "2"}) == (
        INVALID,
        "The broker alone sets branch.ranges, when it creates a branch topic. Leave it out.",
    )
    assert replace(node, "t", {"branch.commit.source": "true"}) == (
        INVALID,
        "branch.commit.source is a setting of branch topics, and t is none. Leave it out.",
    )
    assert kept(node, "t") == {}
