"""The machine that Hypothesis drives: it takes steps, checks after each, and runs to quiet."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from infra.database import Database
from infra.settings import Settings
from tests.simulation.loop import SimulatedLoop
from tests.simulation.quiet import run_to_quiet
from tests.simulation.steps import STEPS, SUBMIT, Step
from tests.simulation.world import World


@dataclass
class Ground:
    """What the examples of one run share, and what they count together."""

    loop: SimulatedLoop
    settings: Settings
    database: Database
    examples: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)


class Simulation(RuleBasedStateMachine):
    """Interleaves clients, consumers, dispatchers, faults and the clock over one world."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        ground.examples += 1
        self.ground = ground
        self.world = World(ground.loop, ground.settings, ground.database, ground.met)
        ground.loop.perform(self.world.open())

    @initialize(step=SUBMIT)
    def begin(self, step: Step) -> None:
        self.take(step)

    @rule(step=STEPS)
    def take(self, step: Step) -> None:
        self.ground.steps[type(step).__name__] += 1
        self.ground.loop.perform(self._take(step))

    async def _take(self, step: Step) -> None:
        await step.take(self.world)
        await self.ground.loop.idle()
        await self.world.check()

    def teardown(self) -> None:
        try:
            self.ground.loop.perform(run_to_quiet(self.world))
        finally:
            self.ground.loop.perform(self.world.close())
