"""The group epoch and the target assignment of a consumer group.

Rules
- The group epoch grows when something changes that an assignment depends on: subscriptions, the
  topics behind them, the assignor that most members ask for, who is a member.
- A target is computed with the change that calls for it, and not at some later heartbeat as in
  Kafka; within `group.consumer.assignment.interval.ms` of the last one a timer waits for the rest
  of that time, so that a hundred members that join at once make a few targets and not a hundred
  (KIP-1263).
- Only targets that change are written.
- Where members share partitions that may be shared, targets are key ranges, by the assignor that
  most ask for of those that can share; whole partitions by the one most ask for otherwise.
- An assignor that fails refuses the heartbeat that asked for a target, as in Kafka. Whoever leaves
  or falls silent is gone all the same; the target is tried again a little later.
"""

import hashlib
from collections.abc import Iterable, Mapping

from anabranch.coordinator.group.assignors.api import (
    Assignor,
    AssignorError,
    Targets,
    compute_targets,
)
from anabranch.coordinator.group.assignors.sharing import SharingAssignor
from anabranch.coordinator.group.cause import Cause
from anabranch.coordinator.group.consumer_draft import ConsumerDraft, target_timer
from anabranch.coordinator.group.consumer_ranges import (
    cut_alike,
    range_members,
    range_topics,
    shares_partitions,
)
from anabranch.model.cluster_image import ClusterImage
from anabranch.model.errors import ErrorCode, KafkaError

# How long to wait after an assignor failed; it may do better when members or topics change.
RETRY_MS = 1_000


def settle_target(
    draft: ConsumerDraft, causes: Iterable[Cause], *, must_succeed: bool = False
) -> None:
    """Bump the group epoch if there is a cause, then bring the target up to it if it is time.

    Of several causes the first one is told.
    With `must_succeed` an assignor that fails is an error of the one who asked.
    """
    cause = next(iter(causes), None)
    if cause is not None:
        draft.write_epoch(draft.group_epoch + 1, wanted_hash(draft), cause)
    bring_up_target(draft, must_succeed=must_succeed)


def wanted_hash(draft: ConsumerDraft) -> int:
    """The hash of the topics that the members want, with the changes of this decision."""
    index = draft.group.index
    with index.trial(draft.spec_changes, draft.target_changes):
        return metadata_hash(index.subscribed_topics, draft.environment.image)


def bring_up_target(draft: ConsumerDraft, *, must_succeed: bool = False) -> None:
    """Compute the target if it is older than the group and the last one is old enough."""
    if draft.group_epoch <= draft.target_epoch:
        return
    if not draft.member_count:
        # Nobody is left to compute for; the next member gets its target at once.
        draft.write_target_epoch(draft.group_epoch, 0)
        draft.cancel(target_timer(draft.group_id))
        return
    interval_ms = draft.settings.assignment_interval_ms
    last_ms = draft.target_timestamp_ms
    # A clock that was set back must not hold up a group for as long.
    if last_ms and interval_ms and 0 <= draft.now_ms - last_ms < interval_ms:
        draft.set_timer(target_timer(draft.group_id), last_ms + interval_ms - draft.now_ms)
        return
    try:
        targets = _new_targets(draft)
    except AssignorError as error:
        if must_succeed:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        draft.set_timer(target_timer(draft.group_id), RETRY_MS)
        return
    put_target(draft, targets)


def assignor_of(draft: ConsumerDraft, votes: Mapping[str, int] | None = None) -> Assignor:
    """The assignor that the group has with these votes; its own if none are said."""
    votes = draft.votes() if votes is None else votes
    assignors = draft.environment.assignors
    if shares_partitions(draft):
        return assignors.preferred_to_share(votes)
    return assignors.preferred(votes)


def _new_targets(draft: ConsumerDraft) -> Targets:
    assignor = assignor_of(draft)
    if isinstance(assignor, SharingAssignor) and shares_partitions(draft):
        members = range_members(draft)
        held = {member.member_id: draft.target(member.member_id) for member in members}
        topics = range_topics(draft, members)
        return assignor.share(members, topics, held, draft.environment.slot_weights())
    return compute_targets(assignor, draft.group.index, draft.spec_changes, draft.target_changes)


def put_target(draft: ConsumerDraft, targets: Targets) -> None:
    """Write the targets that change, as those of the group epoch."""
    if draft.has_sharers or draft.group.held_ranges:
        targets = _in_pieces(draft, targets)
    for member_id, target in targets.items():
        draft.write_target(member_id, target)
    draft.write_target_epoch(draft.group_epoch, draft.now_ms)
    draft.cancel(target_timer(draft.group_id))


def _in_pieces(draft: ConsumerDraft, targets: Targets) -> Targets:
    """The targets that change, in units that agree with what members hold."""
    every = {
        member_id: targets.get(member_id, draft.target(member_id)) for member_id in draft.members()
    }
    pieces = cut_alike(draft, every)
    gone = {member_id: target for member_id, target in targets.items() if member_id not in every}
    return gone | {
        member_id: target
        for member_id, target in pieces.items()
        if target != draft.target(member_id)
    }


def metadata_hash(topics: Iterable[str], image: ClusterImage) -> int:
    """A number for the topics of a group as they are in an image: another one when any differs.

    Kafka has XXH3 here; the number is only ever compared with one that was made by this function,
    or found different after a journal changed hands, which costs one epoch.
    """
    known = [image.topics[name] for name in sorted(topics) if name in image.topics]
    if not known:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic in known:
        digest.update(topic.topic_id)
        digest.update(b"%d " % topic.partitions)
        for racks in topic.racks:
            digest.update(f"{sorted(racks)}".encode())
        if topic.is_shareable:
            digest.update(b"shareable")
    return int.from_bytes(digest.digest(), "big", signed=True)
