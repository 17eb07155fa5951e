"""KIP-X's own errors, which travel in our tags beside a code that every client knows."""

from enum import IntEnum


class SubCode(IntEnum):
    """Why cooperative consumption refused something, in more detail than Kafka's codes have."""

    NONE = 0
    INDIVIDUAL_COMMIT_NOT_ALLOWED = 1
    TOPIC_RANGE_FETCH_NOT_ALLOWED = 2
    CONSUMER_RANGE_FETCH_NOT_ACCEPTED = 3
    INDIVIDUAL_COMMIT_TOO_OLD = 4
    MAX_INDIVIDUAL_COMMIT_REACHED = 5
    DELIVERY_LIMIT_REACHED = 6
    PENDING_IN_OTHER_TRANSACTION = 7

    @property
    def meaning(self) -> str:
        """What it says, for the page of our wire extensions."""
        return _MEANINGS[self]


_MEANINGS = {
    SubCode.NONE: "nothing more to say",
    SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED: (
        "the broker takes no individual commits (`group.individual.commit.enable`)"
    ),
    SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED: (
        "the topic may not be read by key range (`range.fetch.enable`)"
    ),
    SubCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED: (
        "the member does not hold the key ranges that it asks for"
    ),
    SubCode.INDIVIDUAL_COMMIT_TOO_OLD: (
        "the records are below the stable offset; reserved: such commits change nothing and are"
        " taken"
    ),
    SubCode.MAX_INDIVIDUAL_COMMIT_REACHED: (
        "too many ranges of offsets are done above the stable offset, or it is too far behind:"
        " the oldest records come first"
    ),
    SubCode.DELIVERY_LIMIT_REACHED: (
        "not an error: the failure was taken, and the record is not tried again (KIP-X has no such"
        " code)"
    ),
    SubCode.PENDING_IN_OTHER_TRANSACTION: (
        "the records are acknowledged in a transaction that has not ended, or offsets of the"
        " partition are committed in one: to be tried again when it has (KIP-X has no such code)"
    ),
}
