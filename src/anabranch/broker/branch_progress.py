"""How far groups are with the sources of branch topics.

What a group committed on a branch topic says how far it is with the source (`branch.progress`).
That is computed when somebody asks, and soon after commits: the last results are what metrics show
and what `branch.commit.source` makes the group's offsets on the source topic.

Rules
- Nothing polls. A commit on a branch topic has the touched partitions of its source looked at
  again, a moment later and for each group at most once a second; a look that took long is followed
  by a rest that is longer still, so that looking never takes more than a small part of a core.
- Records that arrive while nobody commits are known without a look: all of them are unprocessed.
- A projected offset follows the stable offset upwards and downwards: after a reset of the branches
  the source is reset too. It is written once every range with records has a commit, and never over
  a commit on the source that is newer than those on the branches (see `coordinator.group.offsets`):
  a group that went back to the plain topic is left alone. One that expired is written again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from anabranch.branch.slots import BRANCHES_MAX
from anabranch.broker.branch_survey import Offsets, Outcome, SourceProgress, Subject, Surveyor
from anabranch.broker.deferred import Deferred
from anabranch.broker.group_turns import GroupTurns, Wishes
from anabranch.broker.topics import Topic, Topics
from anabranch.coordinator.group.commands import ProjectedOffset, ProjectOffsets
from anabranch.coordinator.group.records import OffsetCommitted
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import logs
from anabranch.observe import metrics as m


class BranchProgress:
    """The progress of all groups; lives on the event loop."""

    def __init__(
        self,
        topics: Topics,
        executor: Executor,
        *,
        offsets: Callable[[str], Offsets],
        project: Callable[[ProjectOffsets], None],
        is_projected: Callable[[Topic], bool],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._surveyor = Surveyor(executor, offsets, now_ms, steady_ms)
        self._offsets = offsets
        self._project = project
        self._is_projected = is_projected
        # The last results, by (group, topic id) and partition of the source.
        self._results: dict[tuple[str, bytes], dict[int, SourceProgress]] = {}
        self._turns = GroupTurns(self._look, steady_ms)

    def start(self, group_ids: Iterable[str]) -> None:
        """The loop runs: look at whatever these groups have committed on branch topics."""
        self._turns.start()
        if any(topic.source is not None for topic in self._topics):
            for group_id in group_ids:
                for topic in self._topics_of(self._offsets(group_id)):
                    self._mark(group_id, topic)

    def stop(self) -> None:
        self._turns.stop()

    # Questions ------------------------------------------------------------------------------------

    def of_group(self, group_id: str, names: Sequence[str] = ()) -> Deferred[list[SourceProgress]]:
        """How far a group is with the sources of these branch topics, as of now.

        Without names, of all that it has committed on. KafkaError for a topic that is none.
        """
        topics = self._topics_of(self._offsets(group_id))
        if names:
            topics = [self._branch_topic(name) for name in dict.fromkeys(names)]
        subjects = [Subject(group_id, topic, p) for topic in topics for p in _partitions(topic)]
        return self._survey(subjects).then(self._taken)

    def plan(self, group_id: str, name: str, ranges: int) -> Deferred[list[SourceProgress]]:
        """Where `ranges` new ranges would begin, so that a group goes on from a topic.

        The topic is a branch topic, or a plain one that the group has read as it is.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise _no_topic(name)
        if not 1 <= ranges <= BRANCHES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A partition can be cut into 1 to {BRANCHES_MAX} ranges, not {ranges}.",
            )
        subjects = [Subject(group_id, topic, p, ranges) for p in _partitions(topic)]
        return self._survey(subjects).then(_or_raise)

    def _branch_topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise _no_topic(name)
        if topic.source is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{name} is no branch topic. Ask for the offsets that were committed on it.",
            )
        return topic

    def _topics_of(self, offsets: Offsets) -> list[Topic]:
        """The branch topics that something was committed on, by name."""
        found = []
        for name in sorted({name for name, _ in offsets}):
            topic = self._topics.get(name)
            if topic is not None and topic.source is not None:
                found.append(topic)
        return found

    # Results --------------------------------------------------------------------------------------

    def _survey(self, subjects: Iterable[Subject]) -> Deferred[list[Outcome]]:
        return self._surveyor.survey_all(subjects, self._last)

    def last_of(self, group_id: str, topic_id: bytes) -> Mapping[int, SourceProgress]:
        """What was found when a group was last looked at, by partition of the source."""
        return self._results.get((group_id, topic_id), {})

    def _last(self, subject: Subject) -> SourceProgress | None:
        results = self._results.get((subject.group_id, subject.topic.topic_id), {})
        return results.get(subject.partition)

    def _taken(self, found: Sequence[Outcome]) -> list[SourceProgress]:
        """The results, which are the last ones from now on."""
        results = _or_raise(found)
        for result in results:
            self._keep(result)
        return results

    def _keep(self, result: SourceProgress) -> None:
        subject, topic = result.subject, result.subject.topic
        key = (subject.group_id, topic.topic_id)
        is_read = result.progress.committed_ranges > 0 or topic in self._topics_of(
            self._offsets(subject.group_id)
        )
        if is_read and self._topics.get_by_id(topic.topic_id) is topic:
            self._results.setdefault(key, {})[subject.partition] = result
        else:
            self._results.pop(key, None)

    # Following commits ----------------------------------------------------------------------------

    def recorded(self, records: Iterable[object]) -> None:
        """Offsets of groups were written or forgotten, among other things."""
        for record in records:
            if type(record) is OffsetCommitted:
                topic = self._topics.get(record.topic)
                if topic is not None and (topic.source is not None or record.value is None):
                    self._offset_written(record, topic)

    def _offset_written(self, record: OffsetCommitted, topic: Topic) -> None:
        if topic.layout is not None:
            self._mark(record.group_id, topic, topic.layout.branch_at(record.partition).partition)
            return
        # What was projected has expired or was deleted, and follows from the branches all the same.
        for branch_topic in topic.branch_topics:
            if (record.group_id, branch_topic.topic_id) in self._results:
                self._mark(record.group_id, branch_topic, record.partition)

    def _mark(self, group_id: str, topic: Topic, partition: int | None = None) -> None:
        """Have a partition looked at soon, and all of them when the group is new to the topic."""
        if partition is not None and (group_id, topic.topic_id) in self._results:
            wanted = {(topic.topic_id, partition)}
        else:
            wanted = {(topic.topic_id, p) for p in _partitions(topic)}
        self._turns.ask_for(group_id, wanted)

    def topic_changed(self, name: str) -> None:
        """A topic was created, grew or went."""
        topic = self._topics.get(name)
        for group_id, topic_id in list(self._results):
            if self._topics.get_by_id(topic_id) is None:
                del self._results[group_id, topic_id]
            elif topic is not None and topic.topic_id == topic_id:
                self._mark(group_id, topic)

    def _look(self, group_id: str, wanted: Wishes) -> Deferred[None]:
        """Look at what a group has committed for; the answer is that it is done."""
        subjects = []
        for topic_id, partition in sorted(wanted):
            topic = self._topics.get_by_id(topic_id)
            if topic is not None and partition in _partitions(topic):
                subjects.append(Subject(group_id, topic, partition))
        return self._survey(subjects).then(lambda found: self._looked(group_id, found))

    def _looked(self, group_id: str, found: Sequence[Outcome]) -> None:
        projected = []
        for result in found:
            if isinstance(result, Exception):
                logs.warning("branch.progress.failed", group=group_id, reason=str(result))
                continue
            self._keep(result)
            if self._can_project(result):
                projected.append(_projected(result))
        if projected:
            self._project(ProjectOffsets(group_id=group_id, offsets=tuple(projected)))

    def _can_project(self, result: SourceProgress) -> bool:
        progress = result.progress
        has_begun = progress.committed_ranges > 0 and progress.is_begun
        return has_begun and self._is_projected(result.subject.topic)

    # Showing --------------------------------------------------------------------------------------

    def collect_metrics(self) -> Iterator[tuple[m.Metric, m.Values]]:
        """The last results, with what has happened to the logs since."""
        stable: dict[m.Labels, float] = {}
        unprocessed: dict[m.Labels, float] = {}
        for (group_id, _), results in sorted(self._results.items()):
            for number, result in sorted(results.items()):
                subject, progress = result.subject, result.progress
                log = subject.source.partitions[number].log
                labels = (group_id, subject.source.name, str(number), subject.topic.name)
                offset = max(progress.stable_offset, log.log_start_offset)
                arrived = log.high_watermark - progress.high_watermark
                stable[labels] = offset
                unprocessed[labels] = min(
                    progress.unprocessed_records + arrived, log.high_watermark - offset
                )
        yield m.GROUP_STABLE_OFFSET, stable
        yield m.GROUP_UNPROCESSED_RECORDS, unprocessed


def _partitions(topic: Topic) -> range:
    return range(len((topic.source or topic).partitions))


def _projected(result: SourceProgress) -> ProjectedOffset:
    source = result.subject.source
    return ProjectedOffset(
        topic=source.name,
        topic_id=source.topic_id,
        partition=result.subject.partition,
        offset=result.progress.stable_offset,
        newest_commit_ms=result.newest_commit_ms,
        read_ms=result.read_ms,
    )


def _or_raise(found: Sequence[Outcome]) -> list[SourceProgress]:
    results = []
    for result in found:
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results


def _no_topic(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name}.")
