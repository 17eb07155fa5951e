"""The topics of a subscription, and what cannot be read."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import subscription

from anabranch.coordinator.group.subscription import subscribed_topics


@given(st.lists(st.text(st.characters(codec="ascii"), max_size=20)), st.integers(0, 9))
def test_topics_are_read_from_every_version(topics, version):
    """The first fields of a subscription are the same in all versions, also in those to come."""
    read = subscribed_topics(subscription(*topics, version=version) + b"whatever follows")

    assert read == frozenset(topics)


def test_a_subscription_may_end_with_its_topics():
    """What follows them does not matter, not even that nothing does."""
    assert subscribed_topics(struct.pack(">hih", 0, 1, 3) + b"abc") == {"abc"}
    assert subscribed_topics(struct.pack(">hihh", 0, 2, 0, 0)) == {""}


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x00",
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hi", 0, 1),
        struct.pack(">hih", 0, 1, -1) + b"abc",
        struct.pack(">hih", 0, 1, 4) + b"abc",
        struct.pack(">hih", 0, 1, 2) + b"\xff\xfe",
    ],
)
def test_what_is_not_a_subscription_has_no_known_topics(metadata):
    """Unknown is not the same as none: it protects everything."""
    assert subscribed_topics(metadata) is None


@given(st.binary(max_size=60))
def test_no_metadata_can_break_the_reader(metadata):
    """Any bytes at all are topics or unknown."""
    topics = subscribed_topics(metadata)

    assert topics is None or all(isinstance(topic, str) for topic in topics)
