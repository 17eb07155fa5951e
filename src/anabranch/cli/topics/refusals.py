"""A broker's refusal in its own words, where they end with the next step."""

from typing import TYPE_CHECKING

from anabranch.cli.errors import CliError, reason_of, refusal

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


def topic_refusal(what: str, error: "KafkaError") -> CliError:
    """The failure of `what`; this broker's last sentence is what to do, if it has several."""
    why, dot, next_step = reason_of(error).rpartition(". ")
    if not dot:
        return refusal(what, error)
    return CliError(what, why, next_step[:1].lower() + next_step[1:])
