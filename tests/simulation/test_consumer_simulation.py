"""Whole groups over a bad network, from one seed each: one owner, no epoch back, all settles.

`SEEDS=200 pytest tests/simulation` runs more of them; a failure says its seed, and
`SEED=17 pytest tests/simulation` runs that one again.
"""

import os

import pytest
from simulated_world import World

SEEDS = int(os.environ.get("SEEDS", "12"))
ONLY = os.environ.get("SEED")
CHAOS_MS = 180_000


def told(world: World, error: BaseException) -> str:
    return "\n".join([f"SEED={world.seed}: {error!r}", *world.history])


def churn(world: World) -> None:
    """One thing that happens to somebody."""
    pick = world.random.random
    living = world.living
    somebody = world.random.choice(living) if living else None
    what = pick()
    if (what < 0.3 and len(living) < 6) or somebody is None:
        instance = world.random.choice([None, None, "i", "j"])
        names, regex = world.random.choice([(("t",), None), (("t",), None), (None, "[tu]")])
        if instance is None or all(c.instance_id != instance for c in living):
            world.start(names, regex, instance)
    elif what < 0.4:
        world.note(f"{somebody.member_id} leaves")
        somebody.leave()
    elif what < 0.5:
        world.note(f"{somebody.member_id} is killed")
        somebody.kill()
    elif what < 0.6:
        pause_ms = world.random.choice([3_000, 20_000, 70_000])
        world.note(f"{somebody.member_id} is stopped for {pause_ms} ms")
        somebody.paused_until_ms = world.now_ms + pause_ms
    elif what < 0.7 and world.broker.is_up:
        world.broker.crash()
    elif what < 0.75:
        partitions = world.broker.image.topics["t"].partitions + 1
        world.note(f"t grows to {partitions}")
        world.broker.set_topics(world.now_ms, t=partitions)
    elif what < 0.78:
        world.broker.set_topics(world.now_ms, u=2)


def chaos(seed: int) -> World:
    world = World(seed)
    world.broker.set_topics(world.now_ms, t=6)
    try:
        for _ in range(world.random.randrange(1, 4)):
            world.start()
        end_ms = world.now_ms + CHAOS_MS
        while world.now_ms < end_ms:
            world.run_until(world.now_ms + world.random.randrange(200, 8_000))
            churn(world)
        world.settle()
    except BaseException as error:
        raise AssertionError(told(world, error)) from error
    return world


@pytest.mark.parametrize("seed", [int(ONLY)] if ONLY else range(SEEDS))
def test_a_group_over_a_bad_network(seed):
    """Lost, doubled, late heartbeats; clients and brokers that die, stop and come back."""
    chaos(seed)


def test_the_same_seed_tells_the_same_story():
    """Or a seed would be worth nothing."""
    first, second = chaos(3), chaos(3)
    assert first.history == second.history
    assert first.broker.journal == second.broker.journal


# The broker dies at every offset of the journal ---------------------------------------------------


def scenario(dies_at: int | None) -> World:
    """Three join, the topic grows, one leaves, one restarts as the same instance."""
    world = World(0, faults=False)
    world.broker.set_topics(world.now_ms, t=4)
    world.broker.dies_at = dies_at
    try:
        world.start()
        world.run_until(world.now_ms + 300)
        static = world.start(instance_id="i")
        world.run_until(world.now_ms + 1_000)
        leaver = world.start(None, "t")
        world.run_until(world.now_ms + 1_500)
        world.broker.set_topics(world.now_ms, t=7)
        world.run_until(world.now_ms + 1_000)
        leaver.leave()
        static.leave()
        world.run_until(world.now_ms + 500)
        world.start(instance_id="i")
        world.run_until(world.now_ms + 2_000)
        world.settle()
    except BaseException as error:
        raise AssertionError(f"dies_at={dies_at}\n{told(world, error)}") from error
    return world


def test_the_broker_dies_at_every_offset_of_the_journal():
    """After each batch that a run writes: the start after it goes on from there."""
    batches = scenario(None).batches_with_faults
    assert batches > 15
    for dies_at in range(1, batches + 1):
        world = scenario(dies_at)
        assert world.broker.starts == 2
