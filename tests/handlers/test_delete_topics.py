"""DeleteTopics: by name and id, and each mistake for itself."""

from collections.abc import Callable

import pytest
from handler_calls import Node

from anabranch.model.errors import ErrorCode
from anabranch.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)


def delete(node: Node, *topics: DeleteTopicState) -> list[DeletableTopicResult]:
    results: list[DeletableTopicResult] = node.call(
        DeleteTopicsRequest(topics=list(topics))
    ).responses
    return results


@pytest.mark.parametrize("version", range(1, 6))
def test_by_name_in_old_versions(node: Node, version: int) -> None:
    """A list of names deletes those that exist and says which do not; messages come with 5."""
    node.create_topic("a")
    request = DeleteTopicsRequest(topic_names=["a", "absent"])
    assert node.call(request, version).responses == [
        DeletableTopicResult(name="a"),
        DeletableTopicResult(
            name="absent",
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message="There is no topic 'absent'." if version >= 5 else None,
        ),
    ]
    assert len(node.broker.topics) == 0


def test_by_name_and_by_id(node: Node) -> None:
    """Version 6 takes a name or an id for each topic and answers with both."""
    a, b = node.create_topic("a"), node.create_topic("b")
    assert delete(node, DeleteTopicState(name="a"), DeleteTopicState(topic_id=b.topic_id)) == [
        DeletableTopicResult(name="a", topic_id=a.topic_id),
        DeletableTopicResult(name="b", topic_id=b.topic_id),
    ]
    assert node.broker.engine.logs == {}
    assert node.broker.engine.store.topics() == []


def test_mistakes_are_answered_each(node: Node) -> None:
    """Both, neither, unknown, duplicate and doubly named topics are refused; the rest go."""
    a, b = node.create_topic("a"), node.create_topic("b")
    node.create_topic("c")
    unknown = b"\x01" * 16
    answers = delete(
        node,
        DeleteTopicState(name="a", topic_id=a.topic_id),
        DeleteTopicState(),
        DeleteTopicState(topic_id=unknown),
        DeleteTopicState(topic_id=unknown[:8] + bytes(8)),
        DeleteTopicState(topic_id=unknown[:8] + bytes(8)),
        DeleteTopicState(name="a"),
        DeleteTopicState(name="a"),
        DeleteTopicState(name="b"),
        DeleteTopicState(topic_id=b.topic_id),
        DeleteTopicState(name="c"),
    )
    assert [(r.name, r.topic_id, r.error_code, r.error_message) for r in answers[:-1]] == [
        (
            "a",
            a.topic_id,
            ErrorCode.INVALID_REQUEST,
            "You may not specify both topic name and topic id.",
        ),
        (None, bytes(16), ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."),
        (
            None,
            unknown,
            ErrorCode.UNKNOWN_TOPIC_ID,
            "There is no topic with id AQEBAQEBAQEBAQEBAQEBAQ.",
        ),
        (None, unknown[:8] + bytes(8), ErrorCode.INVALID_REQUEST, "Duplicate topic id."),
        ("a", bytes(16), ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        (
            "b",
            b.topic_id,
            ErrorCode.INVALID_REQUEST,
            "The provided topic name maps to an ID that was already supplied.",
        ),
    ]
    assert (answers[-1].name, answers[-1].error_code) == ("c", 0)
    assert [topic.name for topic in node.broker.topics] == ["a", "b"]


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (1, ErrorCode.INVALID_REQUEST),
        (2, ErrorCode.INVALID_REQUEST),
        (3, ErrorCode.TOPIC_DELETION_DISABLED),
        (6, ErrorCode.TOPIC_DELETION_DISABLED),
    ],
)
def test_deletion_can_be_disabled(
    make_node: Callable[..., Node], version: int, code: ErrorCode
) -> None:
    """With delete.topic.enable=false every topic stays, and versions before 3 have another code."""
    node = make_node("delete.topic.enable=false")
    node.create_topic("a")
    if version < 6:
        request = DeleteTopicsRequest(topic_names=["a", "absent"])
    else:
        topics = [DeleteTopicState(name="a"), DeleteTopicState(name="absent")]
        request = DeleteTopicsRequest(topics=topics)
    answers = node.call(request, version).responses
    assert [(r.name, r.error_code) for r in answers] == [("a", code), ("absent", code)]
    assert node.broker.topics.get("a") is not None


def test_files_go_and_the_name_is_free_again(node: Node) -> None:
    """A topic made again under a deleted name has another id and starts empty."""
    first = node.create_topic("a")
    node.append("a", b"old")
    folder = first.partitions[0].log.folder
    assert delete(node, DeleteTopicState(name="a"))[0].error_code == 0
    assert not folder.exists()
    second = node.create_topic("a")
    assert second.topic_id != first.topic_id
    assert second.partitions[0].log.log_end_offset == 0


def test_store_that_refuses(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that cannot be written down is KAFKA_STORAGE_ERROR, and the topic stays."""
    node.create_topic("a")

    def full(topic_id: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.broker.engine.store, "delete_topic", full)
    (answer,) = delete(node, DeleteTopicState(name="a"))
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.broker.topics.get("a") is not None


def test_folder_that_cannot_be_renamed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose folder the disk does not let go is deleted all the same."""
    topic = node.create_topic("a", 2)
    monkeypatch.setattr(topic.partitions[0].log, "folder", topic.partitions[0].log.folder / "gone")
    assert delete(node, DeleteTopicState(name="a"))[0].error_code == 0
    assert topic.partitions[1].log.is_closed
