"""The rules of branch topics: what can be branched, into how many, what may be set, what may go.

A branch topic keeps no records. What holds for them is set on its source, whose partitions it
follows; only `branch.commit.source` is its own to set. All functions look at topics as they are
and raise the error that the client will see; none changes anything.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from anabranch.branch.layout import BranchLayout
from anabranch.branch.slots import BRANCHES_MAX
from anabranch.broker.partition_limits import check_request_size
from anabranch.broker.topics import INTERNAL_TOPICS, Topic, Topics, branch_topic_configs
from anabranch.config.branch_settings import (
    COMMIT_SOURCE_CONFIG,
    FIXED_CONFIGS,
    SLOT_CONFIGS,
    SOURCE_CONFIGS,
)
from anabranch.config.definitions import TOPIC_SETTINGS
from anabranch.config.layers import overlay_topic_values
from anabranch.config.setting import Value, parse, render
from anabranch.engine.metadata_store import BRANCH_SOURCE_CONFIG
from anabranch.model.errors import ErrorCode, KafkaError

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class BranchTopicPlan:
    """A branch topic that can be created."""

    source: Topic
    ranges: int
    own_configs: Mapping[str, str]

    @property
    def partitions(self) -> int:
        return len(self.source.partitions) * self.ranges

    @property
    def shown_configs(self) -> dict[str, str]:
        """What the topic's settings would be, those of its source included."""
        layout = BranchLayout(len(self.source.partitions), self.ranges)
        own = branch_topic_configs(self.source, layout, self.own_configs)
        return {**self.source.configs, **own}


# Creation -----------------------------------------------------------------------------------------


def plan_branch_topic(
    topics: Topics,
    name: str,
    partitions: int,
    configs: Mapping[str, str],
    *,
    defaults: Mapping[str, Value],
    ranges_default: int,
) -> BranchTopicPlan:
    """What a new topic with `branch.source.topic` among its settings would be.

    `partitions` of -1 means `ranges_default` for each of the source's; `defaults` are the values of
    a topic that sets nothing.
    """
    if name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name} keeps records of this broker's own and cannot be a branch topic. "
            "Choose another name.",
        )
    source = _find_source(topics, configs[BRANCH_SOURCE_CONFIG].strip())
    own = _own_configs(source, configs, defaults)
    ranges = ranges_default if partitions == -1 else _ranges(source, partitions)
    plan = BranchTopicPlan(source, ranges, own)
    check_request_size(plan.partitions)
    return plan


def _find_source(topics: Topics, name: str) -> Topic:
    source = topics.get(name)
    if source is None:
        reason = f"there is no topic '{name[:249]}'. Create it first."
    elif source.source is not None:
        reason = (
            f"{name} is a branch topic itself. Branch its source {source.source.name}, into as "
            "many ranges as wanted."
        )
    elif source.is_internal:
        reason = f"{name} is a topic of this broker's own. Branch another one."
    else:
        return source
    raise KafkaError(
        ErrorCode.INVALID_CONFIG, f"{BRANCH_SOURCE_CONFIG} names nothing to branch: {reason}"
    )


def _own_configs(
    source: Topic, configs: Mapping[str, str], defaults: Mapping[str, Value]
) -> dict[str, str]:
    """What of the given settings the branch topic keeps; the others are refused."""
    names = configs.keys() - {BRANCH_SOURCE_CONFIG}
    _refuse_fixed(names & FIXED_CONFIGS)
    foreign = names - FIXED_CONFIGS - {COMMIT_SOURCE_CONFIG, *SOURCE_CONFIGS}
    if foreign:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{_listed(foreign)} can be set only on the source {source.name}, which keeps the "
            "records. Set it there, and leave it out here.",
        )
    present = overlay_topic_values(defaults, source.configs)
    for name in sorted(names & set(SOURCE_CONFIGS)):
        if parse(TOPIC_SETTINGS[name], configs[name]) != present[name]:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is '{render(present[name])}' on {source.name}, and its branch topics "
                f"follow it. Alter {source.name} first, or leave it out.",
            )
    return {name: configs[name] for name in names & {COMMIT_SOURCE_CONFIG}}


def _ranges(source: Topic, partitions: int) -> int:
    """Into how many ranges each of the source's partitions goes for so many in all."""
    each = len(source.partitions)
    ranges, rest = divmod(partitions, each)
    if not rest and 1 <= ranges <= BRANCHES_MAX:
        return ranges
    below = min(ranges, BRANCHES_MAX) * each
    above = (ranges + 1) * each
    fitting = [str(count) for count in (below, above) if each <= count <= BRANCHES_MAX * each]
    number = f"at most {BRANCHES_MAX}" if ranges >= BRANCHES_MAX else "equally many"
    raise KafkaError(
        ErrorCode.INVALID_PARTITIONS,
        f"{partitions} partitions do not fit: {source.name} has {each} {_plural(each)}, each to be "
        f"cut into {number} ranges. Use {' or '.join(fitting)}.",
    )


def _plural(count: int) -> str:
    return "partition" if count == 1 else "partitions"


# Settings -----------------------------------------------------------------------------------------


def check_plain_configs(name: str, configs: Mapping[str, str]) -> None:
    """Refuse what only a branch topic has among the settings of a topic that is none."""
    if BRANCH_SOURCE_CONFIG in configs:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{BRANCH_SOURCE_CONFIG} makes a new topic a branch topic, and {name} exists already. "
            "Create another topic with it.",
        )
    _refuse_fixed(configs.keys() & FIXED_CONFIGS)
    if COMMIT_SOURCE_CONFIG in configs:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{COMMIT_SOURCE_CONFIG} is a setting of branch topics, and {name} is none. "
            "Leave it out.",
        )


def _refuse_fixed(names: Collection[str]) -> None:
    if names:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"The broker alone sets {_listed(names)}, when it creates a branch topic. "
            "Leave it out.",
        )


def shown_configs(topic: Topic) -> dict[str, str]:
    """The settings of a branch topic and, below them, those of its source."""
    assert topic.source is not None
    return {**topic.source.configs, **topic.configs}


def altered_branch_configs(
    topic: Topic,
    wanted: Mapping[str, str],
    defaults: Mapping[str, Value],
    *,
    is_replacement: bool,
) -> dict[str, str]:
    """What a branch topic keeps when a client wants its settings to be `wanted`.

    `wanted` is what `shown_configs` would become. A replacement need not repeat what cannot
    change, and a client that writes back all that it read changes nothing by it.
    """
    source = topic.source
    assert source is not None
    shown = shown_configs(topic)
    present = overlay_topic_values(defaults, shown)
    for name in sorted((shown.keys() | wanted.keys()) - {COMMIT_SOURCE_CONFIG}):
        if name not in wanted:
            if is_replacement:
                continue
        elif parse(TOPIC_SETTINGS[name], wanted[name]) == present[name]:
            continue
        if name in FIXED_CONFIGS:
            reason = f"{topic.name} is what it was created as. Create another branch topic instead."
        else:
            reason = f"it belongs to {source.name}, which keeps the records. Set it on that topic."
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{name} of branch topic {topic.name} cannot change: {reason}"
        )
    kept = {name: text for name, text in topic.configs.items() if name in FIXED_CONFIGS}
    if COMMIT_SOURCE_CONFIG in wanted:
        kept[COMMIT_SOURCE_CONFIG] = wanted[COMMIT_SOURCE_CONFIG]
    return kept


def check_source_configs(
    topic: Topic, wanted: Mapping[str, str], defaults: Mapping[str, Value]
) -> None:
    """Refuse new settings of a source that would move its records to other branches."""
    if not topic.branch_topics:
        return
    before = overlay_topic_values(defaults, topic.configs)
    after = overlay_topic_values(defaults, wanted)
    changed = [name for name in SLOT_CONFIGS if before[name] != after[name]]
    if changed:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{_listed(changed)} of {topic.name} cannot change while it has branch topics "
            f"({_branch_names(topic)}): keys would change branches under their consumers. "
            "Delete the branch topics first.",
        )


# Growth and the end -------------------------------------------------------------------------------


def check_can_grow(topic: Topic) -> None:
    """Refuse partitions for a branch topic, which has as many as its source gives it."""
    if topic.source is None or topic.layout is None:
        return
    raise KafkaError(
        ErrorCode.INVALID_PARTITIONS,
        f"The partitions of {topic.name} follow {topic.source.name}, {topic.layout.ranges} for "
        f"each. Add partitions to {topic.source.name}, or create another branch topic with more.",
    )


def growth_with_branches(topic: Topic, additional: int) -> int:
    """How many partitions come to be when a topic gets `additional` ones."""
    layouts = [branch_topic.layout for branch_topic in topic.branch_topics]
    return additional * (1 + sum(layout.ranges for layout in layouts if layout is not None))


def check_can_be_deleted(topic: Topic) -> None:
    """Refuse to delete the source of a branch topic that is still there."""
    if topic.branch_topics:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{topic.name} has branch topics that show its records: {_branch_names(topic)}. "
            "Delete them first, or in the same request.",
        )


def _branch_names(topic: Topic) -> str:
    return _listed([branch_topic.name for branch_topic in topic.branch_topics])


def _listed(names: Collection[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _NAMED_MAX
    return ", ".join(ordered[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


# Records ------------------------------------------------------------------------------------------


def produce_refusal(topics: Topics, name: str) -> KafkaError:
    """Why the branch topic of this name takes no records.

    The code that Kafka gives for its internal topics: clients give up at once, and tell it apart
    from a lack of permission.
    """
    topic = topics.get(name)
    assert topic is not None and topic.source is not None
    source = topic.source.name
    return KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"{name} shows branches of {source}; produce to {source}.",
    )


def check_can_delete_records(topic: Topic) -> None:
    """Refuse to delete records of a branch: those of other branches lie between them."""
    if topic.source is not None:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{topic.name} shows records of {topic.source.name}; delete them there.",
        )
