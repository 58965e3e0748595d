"""Runs whose start parameters are disturbed, to see what hangs on rounding."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from humanline.sim.bandit import Bandit
from humanline.sim.run import Run, simulate
from humanline.sim.sequence import Sequences
from humanline.sim.study import run_study
from humanline.sim.world import normals

BASE = Run(Sequences(), steps=4, measurements=2)
SEEDS = range(20)


def starts(run, seeds=SEEDS):
    """The parameters before the first update, (S, ...)."""
    kept = {}
    simulate(run, seeds, each_step=lambda step, params: kept.setdefault(step, params))
    return kept[0]


@pytest.mark.parametrize("task", [Bandit(), Sequences()], ids=["bandit", "sequences"])
def test_each_start_parameter_is_multiplied_by_a_factor_of_its_own(task):
    """The factors are 1 plus normal numbers of the size asked for, other ones for every seed and parameter."""
    run = replace(BASE, task=task)
    plain, disturbed = starts(run), starts(replace(run, disturbance=0.01))
    factor = ((disturbed / plain - 1) / 0.01).numpy()
    assert len(np.unique(factor.round(9))) == factor.size
    # the mean square of n standard normals is chi-square; 6 standard deviations
    assert abs(np.mean(factor**2) - 1) < 6 * math.sqrt(2 / factor.size)
    assert abs(np.mean(factor)) < 6 / math.sqrt(factor.size)
    assert torch.equal(starts(run), plain)  # and a run without a disturbance is as it was


def test_it_depends_on_the_seed_alone():
    """A seed is disturbed alike alone and among others, and in every variant."""
    run = replace(BASE, disturbance=0.01)
    together, alone = starts(run, range(4)), starts(run, [2])
    torch.testing.assert_close(together[2:3], alone, rtol=0, atol=1e-12)
    assert torch.equal(starts(replace(run, learning_rate=1.0), range(4)), together)
    want = starts(BASE, [2])[0] * (1 + 0.01 * normals(2, "disturbance", *alone.shape[1:]))
    torch.testing.assert_close(alone[0], want, rtol=1e-12, atol=0)


def test_the_first_reference_is_the_disturbed_policy():
    """Log-ratios at the first step are exactly 0, so that DPO's sigmoid is 1/2, however large the disturbance."""
    assert (simulate(replace(BASE, steps=1, disturbance=0.5), SEEDS).saturation == 0.5).all()


def test_last_digits_move_last_digits():
    """Disturbed by 1e-13 a run of DPO ends elsewhere, and by less than 1e-9."""
    plain, disturbed = (simulate(replace(BASE, disturbance=size), SEEDS).scores[:, -1] for size in (0.0, 1e-13))
    moves = (plain - disturbed).abs()
    assert 0 < moves.max() < 1e-9


def test_a_disturbed_run_is_stored_as_another(tmp_path):
    """A result of a run is not taken for that of the same run disturbed, nor the other way."""
    told = []
    runs = {"plain": BASE, "disturbed": replace(BASE, disturbance=1e-13)}
    found = run_study(runs, [0, 1], tmp_path / "s", progress=lambda *now: told.append(now))
    assert told[-1] == (2, 2) and (found["plain"]["score"] != found["disturbed"]["score"]).any()


@pytest.mark.parametrize("size", [-1e-13, math.nan, math.inf])
def test_a_size_below_zero_or_not_finite_is_refused(size):
    """The error names the setting."""
    with pytest.raises(ValueError, match="disturbance"):
        Run(disturbance=size)
