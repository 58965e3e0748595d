"""References that are not the start policy."""

from __future__ import annotations

import pytest
import torch

from humanline.schedule import BeforeStep
from humanline.sim.bandit import Bandit
from humanline.sim.objectives import Dpo
from humanline.sim.run import Run, first_reference, simulate
from humanline.sim.sequence import Sequences
from humanline.sim.world import expected

TASKS = [Bandit(), Sequences(), Sequences(verifiable=0.2)]


@pytest.mark.parametrize("task", TASKS, ids=["bandit", "sequences", "verifiable"])
def test_a_tilt_makes_the_first_reference_worse_or_better(task):
    """The expected quality of the first reference grows with the tilt for every seed, and 0 is the start policy."""
    world = task.draw(range(6))
    tables = [first_reference(world, tilt) for tilt in (-1.0, -0.3, 0.0, 0.3, 1.0)]
    means = torch.stack([expected(world.law(table), world.quality) for table in tables])
    assert (means.diff(dim=0) > 0).all()
    assert torch.equal(tables[2], world.table(world.start))


def test_a_run_starts_from_the_first_reference_and_loses_it_at_the_first_sync():
    """Step 0 sees the tilted reference; a sync before the first update makes the later ones the policy's own."""
    run = Run(Bandit(), Dpo(), schedule=BeforeStep(every=1), steps=1, reference_tilt=0.5)
    first = simulate(run, [0, 1])
    assert torch.equal(first.reference, first_reference(first.world, 0.5))
    later = simulate(Run(Bandit(), Dpo(), schedule=BeforeStep(every=1), steps=2, reference_tilt=0.5), [0, 1])
    assert torch.equal(later.reference, later.world.table(later.world.start))
    plain = simulate(Run(Bandit(), Dpo(), steps=5), [0, 1])
    assert not torch.equal(plain.params, simulate(Run(Bandit(), Dpo(), steps=5, reference_tilt=0.5), [0, 1]).params)
