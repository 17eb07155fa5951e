"""Checks of topics, each over what a survey has seen. Pure."""

from typing import Final

from anabranch.cli.doctor.findings import Finding, found_or_ok, skipped, warning
from anabranch.cli.doctor.survey import Survey
from anabranch.cli.output import counted

_DLQ_SUFFIX: Final = ".dlq"
_DLQ_CONFIG: Final = "coop.dlq.topic"


def check_topics(seen: Survey) -> list[Finding]:
    """All checks of topics."""
    if not seen.topics():
        return [skipped("topics", "there are no topics", "see `anabranch topics create --help`")]
    return [
        *found_or_ok(_unread(seen), "unread-topics", "every topic with records has a group"),
        *found_or_ok(_dead_letters(seen), "dead-letters", "no dead-letter topic has records"),
    ]


def dead_letter_topics(seen: Survey) -> set[str]:
    """Topics that take what nobody could process, by their setting or by their name."""
    named = {configs.get(_DLQ_CONFIG) for configs in seen.configs.values()}
    return {name for name in seen.topics() if name in named or name.endswith(_DLQ_SUFFIX)}


def _unread(seen: Survey) -> list[Finding]:
    read = {row.topic for rows in seen.rows.values() for row in rows}
    # Who reads a branch topic reads its source.
    read |= {branch.source for branch in seen.branch_topics.values() if branch.name in read}
    left_out = read | set(seen.branch_topics) | dead_letter_topics(seen)
    return [
        warning(
            "unread-topics",
            topic,
            f"nobody reads its {counted(seen.records_of(topic), 'record')}",
            why="no group has members on it or has committed offsets",
            next_step="start a consumer, or if it is not needed run"
            f" `anabranch topics delete {topic}`",
        )
        for topic in seen.topics()
        if topic not in left_out and seen.records_of(topic)
    ]


def _dead_letters(seen: Survey) -> list[Finding]:
    return [
        warning(
            "dead-letters",
            topic,
            f"it has {counted(seen.records_of(topic), 'record')}",
            why="nobody could process them, so they were put aside",
            next_step=f"see them and why with `anabranch consume {topic} --exit-at-end --format"
            " json`",
        )
        for topic in sorted(dead_letter_topics(seen))
        if seen.records_of(topic)
    ]
