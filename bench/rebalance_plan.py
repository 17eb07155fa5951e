"""How much the rebalance benchmark measures, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

STOCK_HEARTBEAT_MS = 3000
SHORT_HEARTBEAT_MS = 200
REAL_MEMBERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A group to form and what happens to it: `repetitions` joins and as many leaves a round."""

    members: int
    heartbeat_ms: int
    repetitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    scenarios: tuple[Scenario, ...]
    real_repetitions: int
    warm_up_seconds: float
    # No round is begun that would end later, if it takes as long as the one before it.
    budget_seconds: float


FULL = Plan(
    rounds=3,
    scenarios=(
        Scenario(members=10, heartbeat_ms=SHORT_HEARTBEAT_MS, repetitions=14),
        Scenario(members=100, heartbeat_ms=SHORT_HEARTBEAT_MS, repetitions=14),
        Scenario(members=10, heartbeat_ms=STOCK_HEARTBEAT_MS, repetitions=4),
        Scenario(members=100, heartbeat_ms=STOCK_HEARTBEAT_MS, repetitions=2),
    ),
    real_repetitions=4,
    warm_up_seconds=10.0,
    budget_seconds=1800.0,
)
QUICK = Plan(
    rounds=1,
    scenarios=(
        Scenario(members=10, heartbeat_ms=SHORT_HEARTBEAT_MS, repetitions=4),
        Scenario(members=100, heartbeat_ms=SHORT_HEARTBEAT_MS, repetitions=4),
    ),
    real_repetitions=1,
    warm_up_seconds=2.0,
    budget_seconds=60.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is measured at one broker before the other has its turn."""

    title: str
    scenario: Scenario | None  # None: real members, both protocols
    is_cooperative: bool
    repetitions: int


def steps(plan: Plan) -> Iterator[Step]:
    """The parts of a round."""
    for scenario in plan.scenarios:
        for is_cooperative in (False, True):
            protocol = "cooperative" if is_cooperative else "eager"
            yield Step(
                title=f"{scenario.members} {protocol} members, {scenario.heartbeat_ms} ms",
                scenario=scenario,
                is_cooperative=is_cooperative,
                repetitions=scenario.repetitions,
            )
    yield Step(
        title=f"{REAL_MEMBERS} librdkafka members",
        scenario=None,
        is_cooperative=False,
        repetitions=plan.real_repetitions,
    )
