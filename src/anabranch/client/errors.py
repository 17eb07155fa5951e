"""What can go wrong for a consumer, as exceptions that say what happened and what to do next.

Everything derives from `ConsumerError`. What a program may simply try again derives from
`RetriableError`; the consumer does so by itself in the background and raises it only where a
caller waits for an answer.
"""

from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode


class ConsumerError(Exception):
    """Something that a cooperative consumer cannot do."""


class ConfigurationError(ConsumerError, ValueError):
    """A setting, or a combination of settings, that makes no sense."""


class ConsumerStateError(ConsumerError, RuntimeError):
    """A method that does not fit what the consumer was asked for before."""


class ConsumerClosedError(ConsumerStateError):
    """The consumer was closed."""


class RetriableError(ConsumerError):
    """What may well work when it is tried again."""


class BrokerConnectionError(RetriableError):
    """A broker cannot be reached, or a connection ended in the middle of a request."""


class RequestTimedOutError(BrokerConnectionError):
    """A broker did not answer in time."""


class ProtocolError(ConsumerError):
    """A broker answered with something that is no answer."""


class CooperationNotSupportedError(ConsumerError):
    """The broker does not serve cooperative consumption.

    It said so when it was connected to (its features do not have it), or did not answer our tag. A
    broker that does not know the tag ignores it and gives every record of a partition to everybody
    who asks. The consumer stops instead.
    """

    def __init__(
        self, api_name: str, place: str, lacking: str = "without the cooperative tag"
    ) -> None:
        super().__init__(
            f"the broker at {place} answered {api_name} {lacking}: it does not serve cooperative"
            " consumption (an older version, or another broker), and would send every record to"
            " every member; use an Anabranch broker that does, or an ordinary consumer"
        )


class BrokerError(ConsumerError):
    """A refusal by the broker, with Kafka's error code."""

    def __init__(
        self, code: ErrorCode, what: str, message: str | None = None, sub_code: int = 0
    ) -> None:
        reason = message or _REASONS.get(sub_code) or "see the broker's log"
        super().__init__(f"{what} failed with {code.name}: {reason}")
        self.code = code
        self.sub_code = sub_code


class RetriableBrokerError(BrokerError, RetriableError):
    """A refusal that may pass by itself."""


class GroupAuthorizationError(BrokerError):
    """The client may not use the group."""


class TopicAuthorizationError(BrokerError):
    """The client may not read the topic."""


class IndividualCommitNotAllowedError(BrokerError):
    """The broker does not accept individual commits (`group.individual.commit.enable`)."""


class RangeFetchNotAllowedError(BrokerError):
    """The topic may not be read by key range (`range.fetch.enable`)."""


class IndividualCommitLimitError(RetriableBrokerError):
    """The group has too many records done above its stable offset; the oldest must come first."""


class FencedError(BrokerError):
    """The group went on without this member: it was silent for too long, or was replaced."""


class CommitFailedError(ConsumerError):
    """Progress could not be stored; what was not stored is processed again, by somebody."""


class TransactionAbortedError(ConsumerError):
    """The transaction is aborted, or can only be: nothing of it counts.

    Do it again in another one. Records that were acknowledged in it come again.
    """


class TransactionUncertainError(RetriableError):
    """The broker did not say in time whether the transaction has ended as was asked for.

    Call `commit` or `abort` of the transaction again, the same one as before.
    """


class ProducerFencedError(BrokerError):
    """Another producer has the transactional id now; this one must stop."""


class BufferFullError(ConsumerError):
    """Too many records wait to be sent: `await transaction.flush()`, then send again."""


class CorruptRecordsError(ConsumerError):
    """A record batch that cannot be read."""


class MissingCodecError(ConsumerError):
    """Records are compressed by a codec whose package is not installed."""


class NoOffsetError(ConsumerError):
    """There is no progress to start from, and `auto_offset_reset` is "none"."""


class CallbackError(ConsumerError):
    """A callback of the application raised an exception."""


_REASONS: dict[int, str] = {
    SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED: (
        "the broker does not accept individual commits; set group.individual.commit.enable=true"
    ),
    SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED: (
        "the topic may not be read by key range; set range.fetch.enable=true on the topic"
    ),
    SubCode.CONSUMER_RANGE_FETCH_NOT_ACCEPTED: (
        "the group did not give this member the key range that it asked for"
    ),
    SubCode.INDIVIDUAL_COMMIT_TOO_OLD: "the records are below the group's stable offset",
    SubCode.MAX_INDIVIDUAL_COMMIT_REACHED: (
        "the group has too many records done above its stable offset; finish the oldest first"
    ),
    SubCode.DELIVERY_LIMIT_REACHED: "the record is not tried again",
}

_BY_SUB_CODE: dict[int, type[BrokerError]] = {
    SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED: IndividualCommitNotAllowedError,
    SubCode.TOPIC_RANGE_FETCH_NOT_ALLOWED: RangeFetchNotAllowedError,
    SubCode.MAX_INDIVIDUAL_COMMIT_REACHED: IndividualCommitLimitError,
}

_BY_CODE: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: GroupAuthorizationError,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: TopicAuthorizationError,
    ErrorCode.PRODUCER_FENCED: ProducerFencedError,
    ErrorCode.UNKNOWN_MEMBER_ID: FencedError,
    ErrorCode.FENCED_MEMBER_EPOCH: FencedError,
    ErrorCode.FENCED_INSTANCE_ID: FencedError,
    ErrorCode.GROUP_ID_NOT_FOUND: FencedError,
}


def broker_error(
    code: int, what: str, message: str | None = None, sub_code: int = SubCode.NONE
) -> BrokerError:
    """The exception for an error code of an answer; `what` names the request."""
    try:
        known = ErrorCode(code)
    except ValueError:
        known = ErrorCode.UNKNOWN_SERVER_ERROR
        message = message or f"the broker answered with the unknown code {code}"
    kind = _BY_SUB_CODE.get(sub_code) or _BY_CODE.get(known)
    if kind is None:
        kind = RetriableBrokerError if known.retriable else BrokerError
    return kind(known, what, message, sub_code)
