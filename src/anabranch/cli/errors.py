"""Failures as the user sees them: what happened - why - what to do next."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


class CliError(Exception):
    """A failure with its sentence; ends the command with exit code 1."""

    def __init__(self, what: str, why: str, next_step: str) -> None:
        super().__init__(f"{what} - {why} - {next_step}")
        self.why = why


class CommandFailedError(Exception):
    """Ends the command with exit code 1 after it has told its failures itself."""


# What to do about a broker's refusal, by Kafka's error name as librdkafka spells it.
_NEXT_STEPS: Final = {
    "TOPIC_ALREADY_EXISTS": "pass --if-not-exists to accept that, or choose another name",
    "UNKNOWN_TOPIC_OR_PART": "see `anabranch topics list`",
    "UNKNOWN_TOPIC_ID": "see `anabranch topics list`",
    "TOPIC_EXCEPTION": "use up to 249 letters, digits, '.', '_' and '-'; a branch topic takes no "
    "records, produce to its source",
    "INVALID_PARTITIONS": "give --partitions a number from 1 up",
    "INVALID_REPLICATION_FACTOR": "leave --replication-factor out to take the broker's default",
    "INVALID_CONFIG": "see `anabranch topics configs TOPIC` for names and values",
    "MSG_SIZE_TOO_LARGE": "raise the topic's max.message.bytes, or send smaller records",
    "TOPIC_AUTHORIZATION_FAILED": "use credentials that may do this (--command-config)",
    "CLUSTER_AUTHORIZATION_FAILED": "use credentials that may do this (--command-config)",
    "KAFKA_STORAGE_ERROR": "look at the broker's log and its disk",
    "OFFSET_OUT_OF_RANGE": "use --from earliest",
    "GROUP_AUTHORIZATION_FAILED": "use credentials that may do this (--command-config)",
    "GROUP_ID_NOT_FOUND": "see `anabranch groups list`",
    "NON_EMPTY_GROUP": "stop the members, see `anabranch groups describe GROUP --members`",
    "GROUP_SUBSCRIBED_TO_TOPIC": "stop the members that are subscribed to it",
    "COORDINATOR_NOT_AVAILABLE": "try again, the broker may be starting",
    "NOT_COORDINATOR": "try again, the broker may be starting",
    "COORDINATOR_LOAD_IN_PROGRESS": "try again, the broker may be starting",
    "_TIMED_OUT": "raise --timeout, or look at the broker's log",
    "_MSG_TIMED_OUT": "raise --timeout, or look at the broker's log",
    "_UNKNOWN_TOPIC": "create it with `anabranch topics create`",
    "_UNKNOWN_PARTITION": "see `anabranch topics describe TOPIC`",
}
_NEXT_STEP_ELSE: Final = "look at the broker's log, or run again with --debug"


def reason_of(error: "KafkaError") -> str:
    """The broker's own sentence where it sent one, in lower case as the middle of ours."""
    text: str = error.str() or error.name()
    for marker in ("Broker: ", "Local: "):  # librdkafka's, with its own preamble before it
        text = text.rpartition(marker)[2]
    text = text.strip().rstrip(".")
    # Words such as INVALID_PARTITIONS or TopicX keep their case.
    if text[:1].isupper() and text[1:2].islower() and " " in text:
        text = text[0].lower() + text[1:]
    return text


def refusal(what: str, error: "KafkaError") -> CliError:
    """The failure of `what` because of an error that the broker or librdkafka reported."""
    return CliError(what, reason_of(error), _NEXT_STEPS.get(error.name(), _NEXT_STEP_ELSE))


def kafka_error_of(exception: Any) -> "KafkaError":
    """The KafkaError inside a KafkaException."""
    error: KafkaError = exception.args[0]
    return error
