"""The platform under every order of events that Hypothesis thinks of, in both modes.

CI makes the same examples each time. A longer run, elsewhere and from a seed of its own:
`SIMULATION_EXAMPLES=2000 SIMULATION_STEPS=80 SIMULATION_SEED=7 pytest -s tests/simulation`.
With `SIMULATION_SHRINK=0` a failure is shown as it came: to shrink it takes many runs to quiet.
"""

import logging
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from infra.database import Database
from tests.simulation.loop import SimulatedLoop
from tests.simulation.machine import Ground, Simulation
from tests.simulation.world import simulated_settings

EXAMPLES = int(os.environ.get("SIMULATION_EXAMPLES", "10"))
SHRINK = os.environ.get("SIMULATION_SHRINK", "1") != "0"
STEPS = int(os.environ.get("SIMULATION_STEPS", "80"))
SEED = os.environ.get("SIMULATION_SEED")


@pytest.fixture(params=["outbox", "sqs"])
def ground(request: pytest.FixtureRequest, database_url: str) -> Iterator[Ground]:
    chosen = simulated_settings(database_url, request.param)
    loop = SimulatedLoop()
    database = Database.from_settings(chosen, name="simulation")
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield Ground(loop, chosen, database)
    structlog.configure(**before)
    loop.run_until_complete(database.close())
    loop.close()


def test_no_order_of_events_breaks_an_invariant(ground: Ground) -> None:
    class Grounded(Simulation):
        def __init__(self) -> None:
            super().__init__(ground)

    chosen = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        derandomize=SEED is None,
        database=None,
        deadline=None,
        print_blob=True,
        phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    try:
        run_state_machine_as_test(
            Grounded if SEED is None else seed(int(SEED))(Grounded), settings=chosen
        )
    finally:
        mode, steps = ground.settings.consumer_mode, ground.steps
        print(f"\n{mode}: {ground.examples} examples, {steps.total()} steps, {dict(steps)}")
        print(f"{ground.met.total()} calls, {len(ground.met)} pairs of probe and fate")
