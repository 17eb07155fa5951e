"""What keeps records in order and acknowledgements honest is needed: without it a suite fails.

`test_cooperative_guards` and `test_consumer_guards` make conditions false, one after the other. A
guard is not always an `if`: it may be the word `max`, half of a condition, or a line that comes
first. Each of those has a name here, the invariant that it keeps (docs/reference/invariants.md),
what is taken away from it, and the suite that must notice: fast stories, told without what is
checked at all times.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import test_consumer_moves
import test_consumer_ranges
import test_consumer_reconciling
import test_cooperative_acks
import test_cooperative_book
import test_cooperative_decisions
import test_cooperative_engine_stories
import test_cooperative_window
import test_reconcile
import test_story_txn_acks
import test_txn_acks_draining
from consumer_story import ConsumerStory
from cooperative_story import Desk
from test_group_guards import told

from anabranch.broker import deliveries
from anabranch.coordinator.cooperative import (
    acks,
    book,
    decisions,
    holdings,
    individual_commit,
    pending_acks,
    plain_commit,
    progress,
    retries,
    settling,
    txn_acks,
    unit_cuts,
    window,
)
from anabranch.coordinator.group import (
    consumer_draft,
    consumer_heartbeat,
    consumer_leave,
    consumer_ranges,
    reconcile,
    txn_end,
)
from anabranch.handlers import range_fetch

ACKS, BOOK = test_cooperative_acks, test_cooperative_book
DECISIONS, WINDOW = test_cooperative_decisions, test_cooperative_window
RANGES, MOVES = test_consumer_ranges, test_consumer_moves
RECONCILE, RECONCILING = test_reconcile, test_consumer_reconciling
ENGINE = test_cooperative_engine_stories
TXN, DRAINING = test_story_txn_acks, test_txn_acks_draining


@dataclass(frozen=True)
class Mutant:
    """A guard by its name, and what is left when it is gone."""

    name: str
    invariant: str
    module: ModuleType
    # A function, or a method with its class.
    where: str
    old: str
    new: str
    suite: ModuleType

    def __str__(self) -> str:
        return f"{self.name} ({self.invariant})"


MUTANTS = [
    # Who may acknowledge
    Mutant(
        "acks of the owner only",
        "S7",
        acks,
        "judge",
        "in _judge(ack, holdings)]",
        "in [(ack.slots, ErrorCode.NONE)]]",
        ACKS,
    ),
    Mutant(
        "acks of the epoch of the range",
        "S7",
        acks,
        "_judge",
        "is_since_then = epoch <= ack.epoch",
        "is_since_then = True",
        ACKS,
    ),
    Mutant(
        "acks of an epoch that was reached",
        "S7",
        acks,
        "_refusal",
        "ack.epoch > holdings.member_epoch",
        "False",
        ACKS,
    ),
    Mutant(
        "acks of what was shown",
        "S7",
        acks,
        "_refusal",
        "min(facts.delivered_offset, facts.log_end_offset)",
        "facts.log_end_offset",
        ACKS,
    ),
    Mutant(
        "acks of what there is",
        "S7",
        acks,
        "_refusal",
        "min(facts.delivered_offset, facts.log_end_offset)",
        "facts.delivered_offset",
        ACKS,
    ),
    Mutant(
        "acks of the same leader epoch",
        "S8",
        acks,
        "_refusal",
        "ack.end_offset > facts.epoch_end_offset",
        "False",
        ACKS,
    ),
    Mutant(
        "acks of members",
        "S7",
        individual_commit,
        "check_sender",
        "if member is None:",
        "if False:",
        BOOK,
    ),
    Mutant(
        "nobody in particular, in an empty group",
        "S7",
        individual_commit,
        "check_sender",
        "if is_anonymous and not group.members:",
        "if is_anonymous:",
        BOOK,
    ),
    Mutant(
        "what is being given back is still held",
        "S7",
        holdings,
        "holdings_of",
        "for units in (member.assigned, member.pending_revocation)",
        "for units in (member.assigned,)",
        BOOK,
    ),
    Mutant(
        "failures are fenced as acks are",
        "S7",
        individual_commit,
        "_take_failure",
        "judged.error_code is not ErrorCode.NONE",
        "False",
        BOOK,
    ),
    Mutant(
        "what was shown in this ownership",
        "S7",
        deliveries,
        "Deliveries.delivered",
        "if epoch >= since_epoch",
        "",
        ENGINE,
    ),
    Mutant(
        "what was shown before the start is not known",
        "S7",
        deliveries,
        "Deliveries.delivered",
        "since_epoch <= self._loaded_epochs.get(group_id, -1)",
        "False",
        ENGINE,
    ),
    # What is shown
    Mutant(
        "what is withheld is done in all ranges",
        "S9, S10",
        range_fetch,
        "done_of",
        "done.intersection(of_interval)",
        "done.union(of_interval)",
        ENGINE,
    ),
    # What is done stays done
    Mutant(
        "watermarks only rise",
        "S6",
        progress,
        "Interval.with_done",
        "watermark = max(self.watermark, watermark)",
        "watermark = watermark",
        ACKS,
    ),
    Mutant(
        "done ranges only grow",
        "S6",
        progress,
        "Interval.with_done",
        "done = self.done.union(done)",
        "done = done",
        ACKS,
    ),
    Mutant(
        "ranges that reach the watermark move it",
        "S5",
        progress,
        "Interval.with_done",
        "watermark = done.end_of_run(watermark)",
        "watermark = watermark",
        ACKS,
    ),
    Mutant(
        "the lowest watermark is the stable offset",
        "S5",
        progress,
        "PartitionProgress.stable_offset",
        "min(interval.watermark",
        "max(interval.watermark",
        ACKS,
    ),
    Mutant(
        "an ack speaks of its slots only",
        "S7",
        progress,
        "with_all_done",
        "part = intersect(interval.slots, slots)",
        "part = interval.slots",
        ACKS,
    ),
    Mutant(
        "what is left of a cut interval",
        "S6",
        progress,
        "with_all_done",
        "_without(interval.slots, part)",
        "()",
        ACKS,
    ),
    Mutant(
        "neighbours are joined only if they agree on what is done",
        "S6",
        progress,
        "_tidy",
        " and last.done == interval.done",
        "",
        ACKS,
    ),
    Mutant(
        "the committed offset follows",
        "S5",
        individual_commit,
        "is_behind",
        "committed.offset != progress.stable_offset",
        "False",
        BOOK,
    ),
    Mutant(
        "the first word begins at the committed offset",
        "S5",
        individual_commit,
        "begun_progress",
        "new_progress(min(offset, facts.log_end_offset))",
        "new_progress(NO_OFFSET)",
        BOOK,
    ),
    Mutant(
        "a committed offset beyond the end of the log is the end",
        "S5",
        individual_commit,
        "begun_progress",
        "min(offset, facts.log_end_offset)",
        "offset",
        BOOK,
    ),
    # Plain commits and resets
    Mutant(
        "plain commits of the owner of it all",
        "S14",
        plain_commit,
        "check_owner",
        "== SLOT_COUNT",
        "> 0",
        BOOK,
    ),
    Mutant(
        "a reset starts over",
        "S5",
        plain_commit,
        "take_plain_commit",
        "if is_reset or offset < progress.stable_offset:",
        "if offset < progress.stable_offset:",
        BOOK,
    ),
    # Journals and starts
    Mutant(
        "a delta follows what is known",
        "S13",
        book,
        "ProgressBook.replay",
        "record.sequence == known.sequence + 1",
        "True",
        BOOK,
    ),
    Mutant(
        "what was settled is written whole",
        "S13",
        book,
        "ProgressDraft.add",
        "known.needs_snapshot or not sequence % SNAPSHOT_EVERY",
        "not sequence % SNAPSHOT_EVERY",
        BOOK,
    ),
    Mutant(
        "the higher of both journals counts",
        "S5",
        settling,
        "_settled",
        "settled = with_done(settled, ALL_SLOTS, offset, EMPTY)",
        "pass",
        BOOK,
    ),
    Mutant(
        "a committed offset counts as far as its log goes",
        "S8",
        settling,
        "_settled",
        "min(committed.offset, _end_for(committed.leader_epoch, log))",
        "committed.offset",
        BOOK,
    ),
    Mutant(
        "what a log has lost was not done",
        "S8",
        settling,
        "_settled",
        "settled = without_lost(progress, _end_for(progress.leader_epoch, log))",
        "settled = progress",
        BOOK,
    ),
    Mutant(
        "what a log has dropped is nobody's work",
        "S5",
        settling,
        "_settled",
        "settled = with_acked(settled, expired(settled, log.log_start_offset))",
        "pass",
        BOOK,
    ),
    Mutant(
        "a leader epoch ends where the next one began",
        "S8",
        settling,
        "_end_for",
        "min(log.epoch_ends.get(epoch, log.log_end_offset), log.log_end_offset)",
        "log.log_end_offset",
        BOOK,
    ),
    Mutant(
        "attempts of lost records are lost",
        "S8",
        progress,
        "without_lost",
        "{o: attempt for o, attempt in progress.attempts.items() if o < end_offset}",
        "progress.attempts",
        BOOK,
    ),
    # Limits
    Mutant(
        "so many ranges",
        "S13",
        window,
        "is_over",
        "after.ranges_count + pending_ranges > settings.max_ranges",
        "False",
        BOOK,
    ),
    Mutant(
        "ranges of transactions count with the others",
        "S13",
        window,
        "is_over",
        "+ pending_ranges",
        "",
        TXN,
    ),
    Mutant(
        "ranges of all transactions",
        "S13",
        txn_acks,
        "_Room._is_over",
        "self._others_ranges + ",
        "",
        TXN,
    ),
    Mutant(
        "the window of what counts",
        "S13",
        window,
        "is_growth_over",
        "begun_offset(progress)",
        "begun_offset(growth.before)",
        TXN,
    ),
    # Transactions
    Mutant(
        "what is pending is not progress",
        "S12",
        txn_acks,
        "take_txn_acks",
        "draft.begin(place, progress)",
        "draft.begin(place, with_acked(progress, grown.get(key, ())))",
        TXN,
    ),
    Mutant(
        "pending under one producer only",
        "S12",
        txn_acks,
        "_take_partition",
        "if other.producer_id != key.producer_id]",
        "if False]",
        TXN,
    ),
    Mutant(
        "nobody acknowledges outside of the transaction what it has",
        "S12",
        individual_commit,
        "take_individual_commits",
        "tuple(pending.of_place(command.group_id, place).values()),",
        "(),",
        TXN,
    ),
    Mutant(
        "what a lost transaction has is forgotten",
        "S12",
        txn_acks,
        "take_txn_acks",
        "if one.producer_epoch < producer_epoch",
        "if False",
        TXN,
    ),
    Mutant(
        "what was said before stays said",
        "S12",
        txn_acks,
        "_take_partition",
        "grown or (known.acked if known is not None else ())",
        "()",
        TXN,
    ),
    Mutant(
        "twice in one request",
        "S12",
        txn_acks,
        "_take_partition",
        "grown or (known",
        "(known",
        TXN,
    ),
    Mutant(
        "an end forgets what was pending",
        "S12",
        txn_end,
        "end_transaction",
        "[forgotten(key) for key in acks]",
        "[]",
        TXN,
    ),
    Mutant(
        "progress before the marker",
        "S12",
        txn_end,
        "end_transaction",
        "records=(*progressed, marker, *projected)",
        "records=(marker, *projected)",
        TXN,
    ),
    Mutant(
        "a reset forgets what is pending",
        "S12",
        plain_commit,
        "take_plain_commit",
        "draft.records += map(forgotten, pending)",
        "pass",
        TXN,
    ),
    Mutant(
        "pending acks of a log that was cut",
        "S8",
        settling,
        "acks_found",
        "end_offset = _end_for(one.leader_epoch, log)",
        "end_offset = 2**60",
        TXN,
    ),
    Mutant(
        "a range waits for its transaction",
        "S12",
        consumer_draft,
        "ConsumerDraft.is_free_for",
        "if self.environment.is_acknowledged(unit):",
        "if False:",
        DRAINING,
    ),
    Mutant(
        "a range waits for offsets of its partition",
        "S12",
        consumer_draft,
        "ConsumerDraft.is_free_for",
        "member.shares and self.environment.is_committed(unit)",
        "False",
        DRAINING,
    ),
    Mutant(
        "stock members wait for no offsets",
        "S14",
        consumer_draft,
        "ConsumerDraft.is_free_for",
        "member.shares and self",
        "self",
        DRAINING,
    ),
    Mutant(
        "who goes has its transactions aborted",
        "L2",
        consumer_draft,
        "ConsumerDraft.remove",
        "self.abort_transactions(member_id)",
        "pass",
        DRAINING,
    ),
    Mutant(
        "who goes for a while has its transactions aborted",
        "L2",
        consumer_leave,
        "leave_for_a_while",
        "draft.abort_transactions(member.member_id)",
        "pass",
        DRAINING,
    ),
    Mutant(
        "transactions of that member only",
        "L2",
        pending_acks,
        "PendingAcks.producers_of",
        "if key.member_id == member_id",
        "if True",
        DRAINING,
    ),
    Mutant(
        "so far from the stable offset",
        "S13",
        window,
        "is_over",
        "> settings.max_window_offsets",
        "> 2**63",
        BOOK,
    ),
    Mutant(
        "so many bytes",
        "S13",
        window,
        "is_over",
        "> settings.max_state_bytes",
        "> 2**63",
        WINDOW,
    ),
    Mutant(
        "watermarks are taken beyond a limit",
        "L1",
        window,
        "is_over",
        "after.ranges_count <= before.ranges_count",
        "False",
        BOOK,
    ),
    # Attempts and decisions
    Mutant(
        "so many attempts",
        "S16",
        retries,
        "next_attempt",
        "and count < settings.delivery_limit",
        "",
        BOOK,
    ),
    Mutant(
        "a failure that is told twice counts once",
        "S16",
        retries,
        "next_attempt",
        "known is not None and now_ms < known.not_before_ms",
        "False",
        BOOK,
    ),
    Mutant(
        "only what waits is decided about",
        "S16",
        decisions,
        "waiting_attempt",
        "if not is_exhausted(attempt):",
        "if False:",
        DECISIONS,
    ),
    Mutant(
        "a diverted key stays diverted",
        "S16",
        progress,
        "PartitionProgress.is_diverted",
        "first_offset is not None and offset >= first_offset",
        "False",
        DECISIONS,
    ),
    # Hand-over
    Mutant(
        "nobody gets what another has",
        "S1",
        reconcile,
        "_Step.towards_target",
        "self.is_free(unit) and",
        "",
        RECONCILE,
    ),
    Mutant(
        "a range is drained before it goes",
        "S1",
        reconcile,
        "_Step.towards_target",
        "give_up and self.still_owns(give_up)",
        "False",
        RECONCILE,
    ),
    Mutant(
        "what drains is waited for",
        "S1",
        reconcile,
        "reconcile",
        "if step.still_owns(member.pending_revocation):",
        "if False:",
        RECONCILE,
    ),
    Mutant(
        "silence confirms nothing",
        "S1",
        reconcile,
        "_Step.still_owns",
        "return bool(units)",
        "return False",
        RECONCILE,
    ),
    Mutant(
        "what was given and not taken yet is not given up",
        "S1",
        reconcile,
        "_Step.towards_target",
        "give_up and self.is_about_to_take(give_up)",
        "False",
        RECONCILE,
    ),
    Mutant(
        "partitions whole or not at all",
        "S14",
        reconcile,
        "_Step.towards_target",
        " and (member.shares or self._is_whole_free(unit, wanted))",
        "",
        ENGINE,
    ),
    Mutant(
        "a unit comes with the epoch of its target",
        "S2",
        reconcile,
        "_Step.towards_target",
        "gain[unit] = self.target_epoch",
        "gain[unit] = 0",
        RECONCILE,
    ),
    Mutant(
        "a unit that was cut has its owner still",
        "S1",
        consumer_draft,
        "ConsumerDraft.rewrite_units",
        "self._owners.update(dict.fromkeys(member.held, member.member_id))",
        "pass",
        RANGES,
    ),
    Mutant(
        "what somebody holds is not free",
        "S1",
        consumer_draft,
        "ConsumerDraft.is_free_for",
        "if owner_id is None or owner_id == member_id:",
        "if True:",
        RANGES,
    ),
    Mutant(
        "a unit is held while any part of it is said to be",
        "S1",
        consumer_ranges,
        "owned_units",
        "known = covered(held, owned)",
        "known = []",
        RANGES,
    ),
    Mutant(
        "units are joined only if they are of one epoch",
        "S2",
        unit_cuts,
        "joined_units",
        "(topic_id, partition, epoch), []",
        "(topic_id, partition, 0), []",
        RANGES,
    ),
    Mutant(
        "a static member comes back at a new epoch",
        "S2",
        consumer_heartbeat,
        "_causes",
        "before.shares and before.member_epoch == JOINING_EPOCH",
        "False",
        ENGINE,
    ),
    Mutant(
        "it gets its ranges anew",
        "S2",
        consumer_heartbeat,
        "replace_static",
        "if holder.shares:",
        "if False:",
        ENGINE,
    ),
    Mutant(
        "it waits for the target of its epoch",
        "S2",
        consumer_heartbeat,
        "reconcile_member",
        "and draft.group_epoch > draft.target_epoch",
        "and False",
        ENGINE,
    ),
    Mutant(
        "whoever goes leaves its ranges to others",
        "L2",
        consumer_leave,
        "forget",
        "settle_target(draft, [cause])",
        "pass",
        RANGES,
    ),
]


def function_of(mutant: Mutant) -> FunctionType:
    found: Any = mutant.module
    for name in mutant.where.split("."):
        found = vars(found)[name]
    found = found.fget if isinstance(found, property) else found
    assert isinstance(found, FunctionType)
    return found


def code_of(mutant: Mutant) -> CodeType:
    function = function_of(mutant)
    source = textwrap.dedent(inspect.getsource(function))
    source = "\n".join(line for line in source.split("\n") if line.strip() != "@property")
    assert source.count(mutant.old) == 1, f"{mutant}: not found once in {mutant.where}"
    compiled = compile(source.replace(mutant.old, mutant.new), str(mutant), "exec")
    return next(one for one in compiled.co_consts if isinstance(one, CodeType))


@contextmanager
def living(mutant: Mutant) -> Iterator[None]:
    """The code is replaced inside the function, so that whoever imported it runs the other."""
    function = function_of(mutant)
    code = function.__code__
    function.__code__ = code_of(mutant)
    try:
        yield
    finally:
        function.__code__ = code


def first_failure(module: ModuleType) -> str | None:
    for story in told(module):
        try:
            story()
        except Exception as error:  # whatever it is, the story has noticed
            return f"{type(error).__name__}: {error}"
    return None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stories have to notice by themselves, without what is checked at all times."""
    monkeypatch.setattr(Desk, "checks_replay", False)
    monkeypatch.setattr(ConsumerStory, "checks_invariants", False)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("suite", sorted({one.suite for one in MUTANTS}, key=repr))
def test_without_mutants_the_suites_hold(suite: ModuleType) -> None:
    """So that a failure below is the mutant's."""
    assert first_failure(suite) is None


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_suite_notices_the_mutant(mutant: Mutant) -> None:
    """Each of them would break a promise, and the suite that is named with it says so."""
    with living(mutant):
        assert first_failure(mutant.suite) is not None
