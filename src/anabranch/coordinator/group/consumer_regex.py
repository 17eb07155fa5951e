"""Subscriptions by regular expression: when they are matched with the topics, and what follows.

Rules
- An expression that is new to the group is checked at once (INVALID_REGULAR_EXPRESSION), and is
  matched off the loop; until then its subscribers get nothing by it.
- All expressions of a group are matched again when topics appear or go, and every
  `group.consumer.regex.refresh.interval.ms`.
- What an expression matched is written down; a group epoch comes with it when that changed.
- An expression that its last subscriber dropped is forgotten.
"""

from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_commands import RegexesResolved, ResolveRegexes
from anabranch.coordinator.group.consumer_draft import ConsumerDraft, refresh_timer
from anabranch.coordinator.group.consumer_state import ConsumerMember, ResolvedRegex
from anabranch.coordinator.group.consumer_target import settle_target, wanted_hash
from anabranch.coordinator.group.topic_regex import why_invalid
from anabranch.model.errors import ErrorCode, KafkaError


def check_regex(draft: ConsumerDraft, member: ConsumerMember) -> None:
    """Refuse an expression that cannot be read; one that the group has already was checked."""
    regex = member.subscribed_topic_regex
    if not regex or draft.group.regex_subscribers[regex]:
        return
    why = why_invalid(regex)
    if why is not None:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {why}. "
            "The syntax is that of RE2.",
        )


def is_resolved(draft: ConsumerDraft, regex: str) -> bool:
    return draft.regex(regex) is not None


def drop_unused_regex(draft: ConsumerDraft, regex: str | None) -> None:
    """Forget what an expression matched if nobody asks for it any more."""
    if regex and draft.regex(regex) is not None and not draft.regex_subscribers(regex):
        draft.write_regex(regex, None)


def resolve_if_needed(draft: ConsumerDraft) -> None:
    """Have expressions matched that have not been."""
    if any(draft.regex(regex) is None for regex in draft.regexes()):
        ask_to_resolve(draft)


def ask_to_resolve(draft: ConsumerDraft) -> None:
    """Have all expressions of the group matched with the topics that there are now."""
    regexes = draft.regexes()
    if regexes:
        draft.ask(
            ResolveRegexes(group_id=draft.group_id, regexes=regexes, image=draft.environment.image)
        )


def regexes_resolved(draft: ConsumerDraft, command: RegexesResolved) -> None:
    """Take over what the expressions match."""
    image = draft.environment.image
    causes = []
    for regex, topics in sorted(command.topics.items()):
        if not draft.regex_subscribers(regex):
            continue  # everybody who asked for it is gone
        known = draft.regex(regex)
        if known is not None:
            # Versions count from the broker's start: one above the present is from before it.
            is_outdated = command.version < known.version <= image.version
            if is_outdated or known.topics == topics:
                continue
        causes.append(Cause.REGEX)
        draft.write_regex(
            regex,
            ResolvedRegex(topics=topics, version=command.version, timestamp_ms=draft.now_ms),
        )
    # Its timer may have waited to look at the topics themselves, and is set anew below.
    settle_target(draft, [*causes, *_topic_causes(draft)])
    if command.version < image.version:
        ask_to_resolve(draft)  # topics have come or gone while it was being done
    else:
        resolve_if_needed(draft)
    draft.set_timer(refresh_timer(draft.group_id), draft.settings.regex_refresh_interval_ms)


def topics_may_have_changed(draft: ConsumerDraft) -> None:
    """Look at the topics again: bump the epoch if any that the group wants is another now."""
    settle_target(draft, _topic_causes(draft))
    ask_to_resolve(draft)


def _topic_causes(draft: ConsumerDraft) -> list[Cause]:
    """Whether a topic of the group has changed since the last group epoch."""
    if not draft.member_count:
        return []
    is_changed = wanted_hash(draft) != draft.group.metadata_hash
    return [Cause.TOPICS] if is_changed else []
