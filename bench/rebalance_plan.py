"""How much the rebalance benchmark measures, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from rebalance_table import CONSUMER, COOPERATIVE, EAGER

STOCK_HEARTBEAT_MS = 3000
SHORT_HEARTBEAT_MS = 200
PARTITIONS_PER_MEMBER = 4
GROWTH_MEMBERS = 10
GROWTH_PARTITIONS = (100, 1000)
KEPT_MEMBERS = 10

CLASSIC = "classic"
WIRE = "wire"
STOCK = "stock"
GROWTH = "growth"
KEPT = "kept"
# What may be asked for, and which parts of a round that is.
PARTS = {
    "classic": frozenset({CLASSIC}),
    "consumer": frozenset({WIRE, STOCK, GROWTH, KEPT}),
    "wire": frozenset({WIRE}),
    "stock": frozenset({STOCK}),
    "growth": frozenset({GROWTH}),
    "kept": frozenset({KEPT}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A group to form and what happens to it: `repetitions` joins and as many leaves a round."""

    members: int
    repetitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A classic group of simulated members, which choose their heartbeat interval themselves."""

    members: int
    heartbeat_ms: int
    repetitions: int
    protocols: tuple[str, ...] = (EAGER, COOPERATIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rounds: int
    classic: tuple[Scenario, ...]
    classic_stock: Size
    wire: tuple[Size, ...]
    stock: tuple[Size, ...]
    growth_repetitions: int
    # Not only of simulated members and default settings.
    has_full_growth: bool
    kept_repetitions: int
    kept_protocols: tuple[str, ...]
    steady_seconds: float
    warm_up_seconds: float
    # No round is begun that would end later, if it takes as long as the one before it.
    budget_seconds: float
    parts: frozenset[str]


FULL = Plan(
    rounds=2,
    classic=(
        Scenario(members=10, heartbeat_ms=SHORT_HEARTBEAT_MS, repetitions=6),
        Scenario(members=100, heartbeat_ms=SHORT_HEARTBEAT_MS, repetitions=6),
    ),
    classic_stock=Size(members=10, repetitions=1),
    wire=(
        Size(members=10, repetitions=2),
        Size(members=50, repetitions=1),
        Size(members=100, repetitions=2),
        Size(members=1000, repetitions=1),
    ),
    stock=(
        Size(members=10, repetitions=2),
        Size(members=50, repetitions=1),
        Size(members=100, repetitions=1),
    ),
    growth_repetitions=1,
    has_full_growth=True,
    kept_repetitions=1,
    kept_protocols=(EAGER, COOPERATIVE, CONSUMER),
    steady_seconds=10.0,
    warm_up_seconds=8.0,
    budget_seconds=1450.0,
    parts=PARTS["classic"] | PARTS["consumer"],
)
# What is left out by default can still be asked for.
QUICK = Plan(
    rounds=1,
    classic=(
        Scenario(
            members=10,
            heartbeat_ms=SHORT_HEARTBEAT_MS,
            repetitions=2,
            protocols=(COOPERATIVE,),
        ),
    ),
    classic_stock=Size(members=10, repetitions=0),
    wire=(Size(members=100, repetitions=1),),
    stock=(Size(members=10, repetitions=1),),
    growth_repetitions=1,
    has_full_growth=False,
    kept_repetitions=1,
    kept_protocols=(CONSUMER,),
    steady_seconds=4.0,
    warm_up_seconds=1.0,
    budget_seconds=60.0,
    parts=PARTS["classic"] | PARTS["consumer"] - PARTS["kept"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is measured at one broker before the other has its turn."""

    title: str
    part: str
    size: Size
    has_tuned: bool = True  # measure Kafka with its fastest settings too
    heartbeat_ms: int = 0  # classic groups of simulated members only
    is_cooperative: bool = False
    is_stock: bool = False
    steady_seconds: float = 0.0
    protocols: tuple[str, ...] = ()


def steps(plan: Plan, members: Collection[int], *, is_first_round: bool) -> Iterator[Step]:
    """The parts of a round; only groups of these sizes, if any are named."""
    for step in _all_steps(plan, is_first_round):
        is_wanted = step.part in plan.parts and step.size.repetitions > 0
        if is_wanted and (not members or step.size.members in members):
            yield step


def _all_steps(plan: Plan, is_first_round: bool) -> Iterator[Step]:
    for scenario in plan.classic:
        for protocol in scenario.protocols:
            yield Step(
                title=f"{scenario.members} {protocol} members, {scenario.heartbeat_ms} ms",
                part=CLASSIC,
                size=Size(members=scenario.members, repetitions=scenario.repetitions),
                heartbeat_ms=scenario.heartbeat_ms,
                is_cooperative=protocol == COOPERATIVE,
            )
    yield Step(
        title=f"{plan.classic_stock.members} classic librdkafka members",
        part=CLASSIC,
        size=plan.classic_stock,
        is_stock=True,
    )
    for size in plan.wire:
        yield Step(
            title=f"{size.members} members, consumer protocol",
            part=WIRE,
            size=size,
            # Rest is the same in every round.
            steady_seconds=plan.steady_seconds if is_first_round else 0.0,
        )
    for size in plan.stock:
        yield Step(
            title=f"{size.members} librdkafka members, consumer protocol",
            part=STOCK,
            size=size,
            is_stock=True,
        )
    for is_stock in (False, True) if plan.has_full_growth else (False,):
        yield Step(
            title=f"growth with {GROWTH_MEMBERS}{' librdkafka' if is_stock else ''} members",
            part=GROWTH,
            size=Size(members=GROWTH_MEMBERS, repetitions=plan.growth_repetitions),
            has_tuned=plan.has_full_growth,
            is_stock=is_stock,
        )
    if not is_first_round and plan.parts != PARTS["kept"]:
        return
    yield Step(
        title="records/s of partitions that do not move",
        part=KEPT,
        size=Size(members=KEPT_MEMBERS, repetitions=plan.kept_repetitions),
        is_stock=True,
        protocols=plan.kept_protocols,
    )
