"""Topic names and ids: what is legal, and how an id is written."""

import base64
import re

from anabranch.model.errors import ErrorCode, KafkaError

NAME_MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")

# Ids that Kafka keeps for its own topics; a new topic never gets one of them.
RESERVED_IDS = frozenset({bytes(16), bytes(15) + b"\x01"})


def check_topic_name(name: str) -> None:
    """Refuse a name that Kafka refuses, with INVALID_TOPIC_EXCEPTION."""
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "'.' and '..' would be folders"
    elif len(name) > NAME_MAX_LENGTH:
        reason = f"it has {len(name)} characters; at most {NAME_MAX_LENGTH} are possible"
    elif not _LEGAL.match(name):
        reason = "only ASCII letters, digits, '.', '_' and '-' are possible"
    else:
        return
    raise KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name {name[:80]!r} is illegal: {reason}."
    )


def colliding_name(name: str) -> str:
    """The form in which metric names see a topic: names that differ only in '.' and '_' collide."""
    return name.replace(".", "_")


def format_topic_id(topic_id: bytes) -> str:
    """A topic id as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def parse_topic_id(text: str) -> bytes:
    """The id that `format_topic_id` wrote; ValueError when it is none."""
    topic_id = base64.urlsafe_b64decode(text + "==")
    if len(topic_id) != 16:
        raise ValueError(f"{text!r} is no topic id")
    return topic_id
