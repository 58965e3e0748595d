"""Clipping as a limit on simulated problems: verdicts, gradients and trajectories against Theorem 4.3's numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from humanline.objectives import dpo_loss
from humanline.schedule import BeforeStep
from humanline.sim.bandit import Bandit
from humanline.sim.exact import DetachOutside, expected_gradient
from humanline.sim.limit import (
    detach_or_clamp,
    fit_decay,
    fit_slope,
    gradient_gap,
    trajectories,
    verdict_disagreement,
)
from humanline.sim.objectives import Dpo, Grpo, Kto
from humanline.sim.run import Run, simulate
from humanline.sim.sequence import Sequences
from humanline.sim.world import normals
from humanline.theory import ClipLimit, ClipRange

CLIP = ClipRange(-1.5, 1.5)
LIMIT = ClipLimit(CLIP, policy_ratio_bound=6, ref_ratio_bound=6)
OBJECTIVES = {"dpo": Dpo(0.1), "dpo beta 1": Dpo(1.0), "kto": Kto(), "grpo": Grpo(0.15, 0.01)}
SMALL = Bandit(contexts=4, arms=5, features=6)
SHORT = Sequences(vocab=3, length=2, contexts=2)


def problem(task=SMALL, seeds=range(6), shift=0.5):
    """Worlds, policies some way from their starts, the starts as references and as the law of the data."""
    world = task.draw(seeds)
    noise = torch.stack([normals(seed, "test", *world.start.shape[1:]) for seed in seeds])
    reference = world.table(world.start)
    return world, world.start + shift * noise, reference, world.law(reference)


Z = 5.0  # standard deviations; beyond them lies one in a million of a normal law


def fit_errors(found):
    """How far sampling may move the slope of a fit, and the logarithm of its constant at a given slope."""
    x, errors = np.log(found.concentrations), found.standard_error / found.exact
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    return Z * np.linalg.norm(weights * errors), Z * np.linalg.norm(errors) / errors.size


def test_sampled_verdicts_on_a_continuous_spread_differ_as_the_root_of_the_concentration():
    """On a normal spread of log-ratios the share of verdicts that differ has slope -1/2 and the predicted constant."""
    count, mean, spread = 20_000, 0.1, 1.2
    x = mean + spread * norm.ppf((np.arange(count) + 0.5) / count)
    concentrations = [1e3, 1e4, 1e5, 1e6]
    found = verdict_disagreement(x, LIMIT, concentrations, seed=1, repeats=100)
    assert (np.abs(found.sampled - found.exact) <= Z * found.standard_error).all()
    # what the exact shares leave of the tolerances is more than sampling can use up
    constant = LIMIT.disagreement_constant(*norm.pdf([-1.5, 1.5], mean, spread))
    of_slope, of_constant = fit_errors(found)
    assert abs(fit_slope(concentrations, found.exact).slope + 0.5) + of_slope < 0.05
    left = abs(math.log(fit_slope(concentrations, found.exact, slope=-0.5).constant / constant))
    assert left + of_constant < math.log(1.05)
    assert fit_slope(concentrations, found.sampled).slope == pytest.approx(-0.5, rel=0.1)
    assert fit_slope(concentrations, found.sampled, slope=-0.5).constant == pytest.approx(constant, rel=0.05)


def test_sampled_verdicts_on_the_tokens_of_trained_policies():
    """Over the log-ratios of many trained policies the slope is -1/2, and the constant that of their density there."""
    run = Run(task=Bandit(), objective=Dpo(1.0), learning_rate=0.1, steps=24)
    trace = simulate(run, range(200))
    x = (trace.policy - trace.reference).flatten().numpy()
    concentrations = [1e3, 1e4, 1e5]
    found = verdict_disagreement(x, LIMIT, concentrations, seed=2, repeats=40)
    assert (np.abs(found.sampled - found.exact) <= Z * found.standard_error).all()
    assert fit_slope(concentrations, found.sampled).slope == pytest.approx(-0.5, rel=0.1)
    # the density at an end by the share of a policy's tokens within 0.25 nats of it; policies are independent
    density = [(np.abs(x.reshape(200, -1) - end) < 0.25).mean(1) / 0.5 for end in (-1.5, 1.5)]
    each = np.array([LIMIT.disagreement_constant(*pair) for pair in np.transpose(density)])
    of_density, of_constant = Z * each.std() / math.sqrt(200) / each.mean(), fit_errors(found)[1]
    assert of_density + of_constant < 0.2
    constant = fit_slope(concentrations, found.sampled, slope=-0.5).constant
    assert constant == pytest.approx(each.mean(), rel=of_density + of_constant)


def test_atoms_on_an_end_keep_half_of_their_probability():
    """Tokens exactly on an end of the range are judged by a fair coin in the limit, all others as the clip judges."""
    x = np.repeat([-1.5, 1.5, -3.0, -1.0, 0.0, 2.0], [20, 10, 20, 20, 20, 10])
    found = verdict_disagreement(x, LIMIT, [1e3, 1e8], seed=3, repeats=4000)
    assert (np.abs(found.sampled - found.exact) <= Z * found.standard_error + 1e-12).all()
    assert found.exact[1] == pytest.approx(0.15, abs=1e-4)
    assert found.sampled[1] == pytest.approx(0.15, abs=5 * math.sqrt(0.25 * 0.3 / found.verdicts) + 1e-4)
    assert found.standard_error[1] < 1e-3


def test_verdicts_depend_on_the_seed_alone():
    """The same seed draws the same verdicts whatever other concentrations are asked for, and another seed others."""
    x = np.linspace(-3, 3, 301)
    first = verdict_disagreement(x, LIMIT, [50.0, 500.0], seed=4, repeats=20)
    again = verdict_disagreement(x, LIMIT, [500.0], seed=4, repeats=20)
    other = verdict_disagreement(x, LIMIT, [500.0], seed=5, repeats=20)
    assert first.sampled[1] == again.sampled[0] != other.sampled[0]
    assert first.verdicts == 301 * 20


def test_power_laws_and_decays_are_recovered():
    """Both fits return the law that made the numbers, and refuse what has no logarithm or no slope."""
    k = np.geomspace(10, 1e5, 7)
    power = fit_slope(k, 3 * k**-0.7)
    assert (power.slope, power.constant) == (pytest.approx(-0.7), pytest.approx(3))
    assert fit_slope([100.0], [0.2], slope=-0.5).constant == pytest.approx(2)
    decay = fit_decay(k[:4], 2 * np.exp(-0.01 * k[:4]) / np.sqrt(k[:4]))
    assert (decay.rate, decay.constant) == (pytest.approx(0.01), pytest.approx(2))
    with pytest.raises(ValueError, match="the values must be finite and > 0; got 0"):
        fit_decay([1, 2], [0.1, 0])
    with pytest.raises(ValueError, match="hold at least 2 different numbers"):
        fit_slope([3, 3], [0.1, 0.2])
    with pytest.raises(ValueError, match="repeats must be >= 1"):
        verdict_disagreement([0.0], LIMIT, [1.0], seed=0, repeats=0)


@pytest.mark.parametrize("task", [SMALL, SHORT], ids=["bandit", "sequence"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gap_is_the_difference_of_the_exact_gradients(name, task):
    """Where digits do not cancel, the gap is the gradient under rejection minus the one under hard verdicts or clip."""
    world, params, reference, law = problem(task)
    objective = OBJECTIVES[name]
    gap = gradient_gap(world, objective, params, reference, law, LIMIT, [16.0, 64.0])

    def gradient(transform):
        return expected_gradient(world, objective, params, reference, law, transform=transform).flatten(1)

    size = gradient(CLIP).norm(dim=1)
    for place, k in enumerate((16.0, 64.0)):
        soft = gradient(LIMIT.rejection(k))
        for found, limit in ((gap.to_detached, DetachOutside(CLIP)), (gap.to_clip, CLIP)):
            expected = ((soft - gradient(limit)).norm(dim=1) / size).numpy()
            np.testing.assert_allclose(found[:, place], expected, rtol=1e-9, atol=1e-13)


def test_the_gradient_under_rejection_becomes_the_clipped_one_exponentially():
    """On bandits with no arm on a bound GRPO's gap is below 1e-5 at concentration 1e6 and decays at the stated rate."""
    world, params, reference, law = problem()
    objective = OBJECTIVES["grpo"]
    log_ratio = (world.table(params) - reference).flatten(1)
    distance = torch.minimum((log_ratio + 1.5).abs(), (log_ratio - 1.5).abs()).amin(1)
    clear = torch.nonzero(distance > 0.025).squeeze(1).tolist()
    assert len(clear) >= 3
    gap = gradient_gap(world, objective, params, reference, law, LIMIT, [1e2, 1e6])
    assert (gap.to_clip[clear, 1] < 1e-5).all()
    assert (gap.to_clip[:, 0] > 1e-5).all()
    np.testing.assert_array_equal(gap.to_clip, gap.to_detached)
    for seed in range(6):
        # rate * concentration from 60 to 300: only the slowest token shows, and nothing underflows
        k = np.linspace(60, 300, 7) / gap.exponent[seed]
        decay = gradient_gap(world, objective, params, reference, law, LIMIT, k).to_clip[seed]
        assert fit_decay(k, decay).rate == pytest.approx(gap.exponent[seed], rel=0.001)
        # the slope itself, without the factor 1/sqrt(concentration), is within the 10 % too
        slope = np.polyfit(k, np.log(decay), 1)[0]
        assert -slope == pytest.approx(gap.exponent[seed], rel=0.1)


def test_a_token_that_the_objective_ignores_has_no_say_in_the_rate():
    """GRPO's own clip silences tokens far above in every group they win; their distance to a bound does not matter."""
    world, params, reference, law = problem(Sequences(vocab=3, length=1, contexts=1), seeds=[0], shift=0.0)
    best, worst = world.scores[0, 0].argmax().item(), world.scores[0, 0].argmin().item()
    middle = 3 - best - worst
    wanted = torch.zeros(3, dtype=torch.float64)
    wanted[best], wanted[middle], wanted[worst] = 1.51, -1.2, -2.5
    reference = world.table(params) - wanted  # need not be normalised: only differences count
    gap = gradient_gap(world, OBJECTIVES["grpo"], params, reference, law, LIMIT, [100.0])
    assert gap.exponent[0] == pytest.approx(LIMIT.decay_exponent([-1.2]))
    everyone = gradient_gap(world, OBJECTIVES["dpo"], params, reference, law, LIMIT, [100.0])
    assert everyone.exponent[0] == pytest.approx(LIMIT.decay_exponent([1.51]))


def test_an_arm_on_a_bound_keeps_half_of_its_gradient():
    """With an arm exactly on an end the gap tends to half of what the arm contributes, at no rate."""
    world, params, reference, law = problem(seeds=[1])
    log_ratio = (world.table(params) - reference)[0]
    low = log_ratio[(log_ratio < -0.2) & (log_ratio > -1)].min().item()
    limit = ClipLimit(ClipRange(low, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
    on = gradient_gap(world, OBJECTIVES["grpo"], params, reference, law, limit, [1e6, 1e10])
    assert on.exponent[0] == 0
    assert on.to_clip[0, 1] == pytest.approx(on.to_clip[0, 0], rel=1e-2)

    def gradient(low):
        clip = ClipRange(low, 1.5)
        return expected_gradient(world, Grpo(0.15, 0.01), params, reference, law, transform=clip)

    arm = gradient(low) - gradient(low + 1e-9)
    assert on.to_clip[0, 1] == pytest.approx((arm.norm() / gradient(low).norm() / 2).item(), rel=1e-3)


def test_dpo_tends_to_hard_verdicts_and_not_to_the_clip():
    """DPO's expected gradient under rejection tends to that of detaching and stays away from that of clipping."""
    world, params, reference, law = problem()
    for name in ("dpo", "dpo beta 1"):
        gap = gradient_gap(world, OBJECTIVES[name], params, reference, law, LIMIT, [1e9])
        assert (gap.to_detached < 1e-9).all()
        apart = detach_or_clamp(world, OBJECTIVES[name], params, reference, law, [CLIP])
        np.testing.assert_allclose(gap.to_clip[:, 0], apart.difference[0], rtol=1e-6, atol=1e-9)
        assert (gap.to_clip[:, 0] > 1e-4).sum() >= 4


def test_detached_and_clamped_tokens_of_one_pair():
    """The two margins and live-token weights of a pair with one token far above and one far below the range."""
    found = {}
    for name, transform in (("detached", DetachOutside(CLIP)), ("clamped", CLIP.clip)):
        chosen = torch.tensor([[6.0, 0.2, -0.4]], dtype=torch.float64, requires_grad=True)
        rejected = torch.tensor([[-5.0, 0.1]], dtype=torch.float64, requires_grad=True)
        masks = {"chosen_mask": torch.ones(1, 3, dtype=torch.bool), "rejected_mask": torch.ones(1, 2, dtype=torch.bool)}
        loss, metrics = dpo_loss(transform(chosen), transform(rejected), beta=0.1, **masks)
        loss.backward()
        found[name] = (round(metrics["margin"].item(), 4), round(-chosen.grad[0, 1].item(), 5))
        assert chosen.grad[0, 0] == rejected.grad[0, 0] == 0
    assert found == {"detached": (1.07, 0.02554), "clamped": (0.27, 0.04329)}


WIDTHS = (0.05, 0.2, 0.5, 1.0, 1.5, 3.0, 50.0)


@pytest.mark.parametrize("clip_eps", [0.01, 0.15, 0.5, 0.99])
@pytest.mark.parametrize("task", [SMALL, SHORT], ids=["bandit", "sequence"])
def test_detaching_is_clamping_for_grpo(task, clip_eps):
    """For GRPO the two gradients are equal to the last bit, whatever its own clip would have kept."""
    world, params, reference, law = problem(task, shift=1.0)
    clips = [ClipRange(-width, width) for width in WIDTHS]
    found = detach_or_clamp(world, Grpo(clip_eps, 0.01), params, reference, law, clips)
    assert (found.outside[0] > 0.7).all()
    assert (found.outside[-1] == 0).all()
    assert (np.diff(found.outside, axis=0) <= 1e-15).all()
    assert (found.difference == 0).all()


@pytest.mark.parametrize("name", ["dpo", "dpo beta 1", "kto"])
def test_detaching_is_not_clamping_for_losses_of_sequence_sums(name):
    """For DPO and KTO the two gradients differ where tokens lie outside, and nowhere else."""
    world, params, reference, law = problem(SHORT, shift=1.0)
    clips = [ClipRange(-width, width) for width in WIDTHS]
    found = detach_or_clamp(world, OBJECTIVES[name], params, reference, law, clips)
    some = (found.outside > 0) & (found.outside < 1)
    assert (found.difference[some] > 1e-6).mean() > 0.9
    assert (found.difference[found.outside == 0] == 0).all()
    assert np.isnan(found.difference[found.outside > 1 - 1e-12]).all()  # no gradient is left to compare
    # at one range, a lower beta saturates less and the two are closer
    if name == "dpo":
        steep = detach_or_clamp(world, OBJECTIVES["dpo beta 1"], params, reference, law, clips)
        assert np.nanmean(found.difference) < np.nanmean(steep.difference)


def test_kto_tells_detaching_from_clamping_only_by_its_reference_point_where_responses_have_one_token():
    """On a bandit a token that is outside is all of its response, so that only z_0 can differ."""
    world, params, reference, law = problem(Bandit(), seeds=range(4))
    found = detach_or_clamp(world, Kto(), params, reference, law, [CLIP])
    assert (found.outside > 0.05).all()
    point = detach_or_clamp(world, Dpo(), params, reference, law, [CLIP])
    assert (found.difference < 0.1 * point.difference).all()


RUN = Run(task=Sequences(vocab=3, length=2, contexts=2), learning_rate=0.1, steps=32, groups=8)
CONCENTRATIONS = [16.0, 1e4, 1e14]


@pytest.mark.parametrize("name", ["grpo", "dpo beta 1", "kto"])
def test_runs_under_rejection_become_runs_under_hard_verdicts(name):
    """Trained from the same start, GRPO under rejection ends on the clipped run; DPO and KTO do not, but detach."""
    run = replace(RUN, objective=OBJECTIVES[name] if name != "grpo" else Grpo(0.5, 0.01))
    found = trajectories(run, LIMIT, CONCENTRATIONS, range(8))
    assert (found.to_detached[0] > 0).all()
    assert found.to_detached[1].mean() < found.to_detached[0].mean()
    assert (found.to_detached[2] == 0).all()
    assert (found.score_to_detached[2] == 0).all()
    np.testing.assert_array_equal(found.to_clip[2], found.detached_to_clip)
    np.testing.assert_array_equal(found.score_to_clip[2], found.score_detached_to_clip)
    assert (found.moved > 0.1).all()
    if name == "grpo":
        assert (found.detached_to_clip == 0).all()
    else:
        assert (found.detached_to_clip > 1e-3).all()


def test_a_reference_that_follows_leaves_nothing_outside_and_no_difference():
    """Synced at every small step no token leaves the range, and all three runs are one."""
    run = replace(RUN, objective=Dpo(1.0), schedule=BeforeStep(every=1), learning_rate=0.01)
    found = trajectories(run, LIMIT, [1e8], range(3))
    for distance in (found.to_detached, found.to_clip, found.score_to_clip, found.detached_to_clip):
        assert (distance == 0).all()
