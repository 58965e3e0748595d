"""Exact expectations against plain loops, and against the samples that `simulate` takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from humanline.objectives import detach_rejected, kto_loss
from humanline.sim.bandit import Bandit
from humanline.sim.exact import DetachOutside, expected_gradient, expected_loss, expected_reference_point
from humanline.sim.objectives import Batch, Dpo, Grpo, Kto
from humanline.sim.run import Fixed, Run, behaviour_law, simulate
from humanline.sim.sequence import Sequences
from humanline.sim.world import World, generator, normals, sample_law, token_logprobs
from humanline.theory import BetaRejection, ClipRange, kl_divergence

CLIP = ClipRange(-0.6, 0.5)
REJECTION = BetaRejection.near(CLIP, 8, policy_ratio_bound=4, ref_ratio_bound=4)
TASKS = {
    "bandit": Bandit(contexts=3, arms=4, features=3),
    "sequence": Sequences(vocab=2, length=3, contexts=2),
    "verifiable": Sequences(vocab=2, length=2, contexts=2, verifiable=0.4),
}
OBJECTIVES = {"dpo": Dpo(0.7), "kto": Kto(0.5, 1.1, 0.9), "grpo": Grpo(0.15, 0.05)}


def problem(name: str, seed: int = 3, shift: float = 0.7) -> tuple[World, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A world, a policy some way from its start, the start's table as reference, and the law of fixed data."""
    world = TASKS[name].draw([seed])
    noise = normals(seed, "test", *world.start.shape)
    reference = world.table(world.start + 0.3 * noise.flip(-1))
    return world, world.start + shift * noise, reference, behaviour_law(world, Fixed(), [seed])


def oracle(world, params, reference, law, name, clip=None, z_0=None):
    """The expected loss of one seed by plain loops over contexts, pairs and tokens, and the z_0 that it used."""
    cells, scores, law, reference = (x.numpy() for x in (world.cells, world.scores[0], law[0], reference[0]))
    contexts, count = scores.shape
    tables = []
    for at in (params, world.start[0].numpy()):
        table = []
        for x in range(contexts):
            if world.features is None:
                logits = [float(at[x][c]) for c in range(at.shape[1])]
            else:
                features = world.features[0, x].numpy()
                logits = [sum(f * w for f, w in zip(row, at, strict=True)) for row in features]
            for node in range(len(logits) // world.vocab):
                own = logits[node * world.vocab : (node + 1) * world.vocab]
                total = math.log(sum(math.exp(v) for v in own))
                logits[node * world.vocab : (node + 1) * world.vocab] = [v - total for v in own]
            table.append(logits)
        tables.append(table)
    policy, start = tables

    def ratios(x, y):
        raw = [policy[x][c] - reference[x][c] for c in cells[y]]
        return raw if clip is None else [min(max(v, clip.low), clip.high) for v in raw]

    if z_0 is None:
        mean = 0.0
        for x in range(contexts):
            for y in range(count):
                mean += math.exp(law[(x + 1) % contexts][y]) * sum(ratios(x, y)) / contexts
        z_0 = max(0.0, mean)
    expectation = 0.0
    for x, a, b in itertools.product(range(contexts), range(count), range(count)):
        tie = scores[x][a] == scores[x][b]
        best, worst = (a, b) if scores[x][a] >= scores[x][b] else (b, a)
        if name == "dpo":
            margin = 0.0 if tie else 0.7 * (sum(ratios(x, best)) - sum(ratios(x, worst)))
            loss = math.log1p(math.exp(-margin))
        elif name == "kto":
            z = (0.0, 0.0) if tie else (sum(ratios(x, best)), sum(ratios(x, worst)))
            gain, lost = 1 / (1 + math.exp(-0.5 * (z[0] - z_0))), 1 / (1 + math.exp(0.5 * (z[1] - z_0)))
            loss = (1.1 * (1 - gain) + 0.9 * (1 - lost)) / 2
        else:
            loss = 0.0
            for y, advantage in ((best, 0.0 if tie else 1.0), (worst, 0.0 if tie else -1.0)):
                for c, log_ratio in zip(cells[y], ratios(x, y), strict=True):
                    r, d = math.exp(log_ratio), start[x][c] - policy[x][c]
                    surrogate = min(r * advantage, min(max(r, 0.85), 1.15) * advantage)
                    loss += (-surrogate + 0.05 * (math.exp(d) - d - 1)) / (2 * len(cells[y]))
        expectation += math.exp(law[x][a] + law[x][b]) * loss / contexts
    return expectation, z_0


@pytest.mark.parametrize("clip", [None, CLIP], ids=["raw", "clipped"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("task", TASKS)
def test_expected_losses_and_gradients_are_those_of_plain_loops(task, name, clip):
    """Value, z_0 and gradient agree with loops in plain Python and their central differences."""
    world, params, reference, law = problem(task)
    found = expected_loss(world, OBJECTIVES[name], world.table(params), reference, law, transform=clip)
    value, z_0 = oracle(world, params[0].numpy(), reference, law, name, clip)
    assert found.item() == pytest.approx(value, rel=1e-12)
    point = expected_reference_point(world, world.table(params), reference, law, transform=clip)
    assert point.item() == pytest.approx(z_0, rel=1e-12)
    gradient = expected_gradient(world, OBJECTIVES[name], params, reference, law, transform=clip)[0].numpy()
    for place in list(np.ndindex(gradient.shape))[:6]:
        step = np.zeros(gradient.shape)
        step[place] = 1e-5
        sides = [oracle(world, params[0].numpy() + s, reference, law, name, clip, z_0)[0] for s in (step, -step)]
        assert gradient[place] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-6, abs=1e-9)


def replicated(world: World, count: int) -> World:
    """The same problem as many seeds: their batches are then independent batches of one problem."""
    start = world.start.expand(count, *world.start.shape[1:])
    scores, quality = (x.expand(count, -1, -1) for x in (world.scores, world.quality))
    features = None if world.features is None else world.features.expand(count, -1, -1, -1)
    return World(world.child, world.cells, scores, quality, start, features)


def sampled(task, objective, transform, count, groups, *, given=None):
    """Losses and gradients of independent batches, by the steps of `simulate`; z_0 is `given`, or the batch's own."""
    one, params, reference, law = problem(task)
    world = replicated(one, count)
    rng = generator(11, f"{task} {type(objective).__name__}")
    contexts = torch.arange(groups) % one.scores.shape[1]
    uniforms = torch.from_numpy(rng.random((count, groups, 2)))
    responses = sample_law(law.expand(count, -1, -1), contexts, uniforms)
    seed = torch.arange(count)[:, None, None]
    batch = Batch(contexts, responses, world.scores[seed, contexts[:, None], responses])
    leaf = params.expand(count, *params.shape[1:]).clone().requires_grad_()
    table, ref, start = world.table(leaf), reference.expand(count, -1, -1), world.table(world.start)
    places = world.places(contexts, objective.rows(batch))
    logprobs = token_logprobs(table, places)
    log_ratio = logprobs - token_logprobs(ref.contiguous(), places)
    if isinstance(transform, BetaRejection):
        tests = transform.policy_test, transform.ref_test
        draws = [torch.from_numpy(test.shape.sample(rng, tuple(log_ratio.shape))) for test in tests]
        log_ratio = detach_rejected(log_ratio, transform, *draws)
    elif transform is not None:
        log_ratio = transform.clip(log_ratio) if isinstance(transform, ClipRange) else transform(log_ratio)

    def mismatched(others):
        if given is not None:
            ratio = torch.zeros((*others.shape, world.cells.shape[1]), dtype=torch.float64)
            ratio[..., 0] = given
            return ratio
        where = world.places(contexts, others)
        ratio = token_logprobs(table, where) - token_logprobs(ref.contiguous(), where)
        return transform.clip(ratio) if isinstance(transform, ClipRange) else ratio

    to_start = logprobs - token_logprobs(start, places)
    losses, metrics = objective.losses(batch, log_ratio, to_start, mismatched)
    gradient = torch.autograd.grad(losses.sum(), leaf)[0].flatten(1)
    return losses.detach().numpy(), gradient.numpy(), {name: value.numpy() for name, value in metrics.items()}


def agrees(samples: np.ndarray, exact: np.ndarray, at_once: int = 1) -> bool:
    """Whether an expectation lies in the Student intervals of its samples; all of them do but with probability 1e-6."""
    count = len(samples)
    z = student.isf(1e-6 / 2 / at_once / max(1, exact.size), count - 1)
    error = samples.std(0, ddof=1) / math.sqrt(count)
    return bool((np.abs(samples.mean(0) - exact) <= z * error + 1e-15).all())


TRANSFORMS = {"raw": None, "clip": CLIP, "rejection": REJECTION, "detach": DetachOutside(CLIP)}


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("task", TASKS)
def test_batches_of_the_simulator_have_the_exact_expectation(task, name, how):
    """Losses and gradients of independent batches, under Beta draws too, average to the enumerated ones."""
    world, params, reference, law = problem(task)
    objective, transform = OBJECTIVES[name], TRANSFORMS[how]
    table = world.table(params)
    z_0 = expected_reference_point(world, table, reference, law, transform=transform).item()
    groups = 2 * world.scores.shape[1]
    losses, gradients, _ = sampled(task, objective, transform, 4000, groups, given=z_0)
    exact = expected_loss(world, objective, table, reference, law, transform=transform)
    gradient = expected_gradient(world, objective, params, reference, law, transform=transform).flatten().numpy()
    assert agrees(losses, exact.numpy()[0], at_once=72)
    assert agrees(gradients, gradient, at_once=72)
    # and the interval is narrow enough to tell: the other end of it would be refused
    size = np.abs(gradient).max()
    assert not agrees(gradients, gradient + 0.3 * size, at_once=72)


@dataclass(frozen=True)
class Same:
    """A task that is the same problem for every seed."""

    world: World

    def draw(self, seeds: Sequence[int]) -> World:
        return replicated(self.world, len(seeds))


@pytest.mark.parametrize("how", ["clip", "rejection"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("task", ["bandit", pytest.param("verifiable", marks=pytest.mark.slow)])
def test_the_first_update_of_the_simulator_is_the_exact_gradient(task, name, how):
    """The first step of gradient descent by `simulate`, for many seeds of one problem, averages to the exact one."""
    world = TASKS[task].draw([3])
    source = Fixed(tilt=0.8, drift=0.0)
    run = Run(Same(world), OBJECTIVES[name], source, transform=TRANSFORMS[how], learning_rate=1.0, steps=1)
    run = replace(run, groups=2 * world.scores.shape[1], optimizer="sgd", measurements=1)
    trace = simulate(run, range(1000))
    steps = (trace.world.start - trace.params).flatten(1).numpy()
    start, law = world.table(world.start), behaviour_law(world, source, [3])
    exact = expected_gradient(world, run.objective, world.start, start, law, transform=run.transform)
    assert agrees(steps, exact.flatten().numpy(), at_once=12)
    assert not agrees(steps, 0.5 * exact.flatten().numpy(), at_once=12)


@pytest.mark.parametrize("task", ["bandit", "sequence"])
def test_the_reference_point_of_a_batch_lies_above_the_exact_one_and_tends_to_it(task):
    """A finite batch's z_0 is on average at least the population's, and the surplus falls as batches grow."""
    world, params, reference, law = problem(task)
    exact = expected_reference_point(world, world.table(params), reference, law).item()
    contexts = world.scores.shape[1]
    surplus = []
    for groups in (contexts, 16 * contexts):
        # the metric is z_0 itself: every example counts it once, over the number of examples
        points = sampled(task, OBJECTIVES["kto"], None, 3000, groups)[2]["reference_point"]
        assert points.mean() > exact - 5 * points.std() / math.sqrt(len(points))
        surplus.append(abs(points.mean() - exact))
    assert surplus[1] < surplus[0]


def test_the_reference_point_of_one_context_is_a_divergence():
    """With one context z_0 is KL(policy || reference) for data of the policy, and 0 for data of the reference."""
    world = Sequences(vocab=3, length=2, contexts=1).draw([5])
    policy, reference = world.table(world.start + 1), world.table(world.start.flip(-1))
    own, other = world.law(policy), world.law(reference)
    divergence = kl_divergence(own[0, 0].exp().numpy(), other[0, 0].exp().numpy())
    assert expected_reference_point(world, policy, reference, own).item() == pytest.approx(divergence, rel=1e-12)
    assert expected_reference_point(world, policy, reference, other).item() == 0
    assert expected_reference_point(world, policy, policy, own).item() == 0


def test_kto_is_its_imported_loss_at_the_exact_reference_point():
    """KTO's expectation is `kto_loss` of every pair with the reference point given."""
    world, params, reference, law = problem("sequence")
    objective, table = OBJECTIVES["kto"], world.table(params)
    z_0 = expected_reference_point(world, table, reference, law)
    log_ratio = (table - reference)[0][:, world.cells]
    total = 0.0
    count = world.scores.shape[-1]
    for x, a, b in itertools.product(range(world.scores.shape[1]), range(count), range(count)):
        best, worst = (a, b) if world.scores[0, x, a] >= world.scores[0, x, b] else (b, a)
        loss, _ = kto_loss(
            log_ratio[x, [best, worst]],
            mask=torch.full((2, world.cells.shape[1]), bool(world.scores[0, x, a] != world.scores[0, x, b])),
            desirable=torch.tensor([True, False]),
            reference_point=z_0[0],
            beta=objective.beta,
            desirable_weight=objective.desirable_weight,
            undesirable_weight=objective.undesirable_weight,
        )
        total += math.exp(law[0, x, a] + law[0, x, b]) * loss.item() / world.scores.shape[1]
    assert expected_loss(world, objective, table, reference, law).item() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_detaching_leaves_the_loss_and_weighs_the_gradient(name):
    """Under detaching, sampled or hard, the loss is the raw one; a rule that keeps all has the raw gradient too."""
    world, params, reference, law = problem("sequence")
    objective, table = OBJECTIVES[name], world.table(params)
    raw = expected_loss(world, objective, table, reference, law)
    for transform in (REJECTION, DetachOutside(CLIP)):
        assert torch.equal(expected_loss(world, objective, table, reference, law, transform=transform), raw)
    gradient = expected_gradient(world, objective, params, reference, law)
    wide = DetachOutside(ClipRange(-50, 50))
    assert torch.equal(expected_gradient(world, objective, params, reference, law, transform=wide), gradient)
    assert not torch.equal(expected_gradient(world, objective, params, reference, law, transform=REJECTION), gradient)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_seeds_do_not_meet(name):
    """The expectation for several seeds is that of each alone."""
    task = TASKS["bandit"]
    together = task.draw([3, 8])
    reference = together.table(together.start)
    params = together.start + 0.5
    params[1] = -params[1]
    law = together.law(reference)
    both = expected_loss(together, OBJECTIVES[name], together.table(params), reference, law, transform=CLIP)
    for place, seed in enumerate((3, 8)):
        world = task.draw([seed])
        part = slice(place, place + 1)
        table = world.table(params[part])
        alone = expected_loss(world, OBJECTIVES[name], table, reference[part], law[part], transform=CLIP)
        assert alone.item() == pytest.approx(both[place].item(), rel=1e-13)


def test_responses_that_never_come_change_nothing():
    """A response of probability 0 adds neither value nor gradient, whatever its score."""
    world, params, reference, law = problem("bandit")
    never = law.clone()
    never[..., 0] = -torch.inf
    never = never.log_softmax(-1)
    scores = world.scores.clone()
    scores[..., 0] = 100.0
    other = World(world.child, world.cells, scores, scores, world.start, world.features)
    for objective in OBJECTIVES.values():
        found = [expected_gradient(w, objective, params, reference, never) for w in (world, other)]
        assert torch.equal(*found)
        assert found[0].isfinite().all()


def test_what_is_too_large_or_does_not_fit_is_refused():
    """Too many pairs, laws that are none and tables of another world raise an error that says so."""
    world = Sequences(vocab=4, length=5, contexts=4).draw([0])
    table = world.table(world.start)
    with pytest.raises(ValueError, match=r"41,943,040 to enumerate, of which 16,777,216 is the limit"):
        expected_loss(world, Dpo(), table, table, world.law(table))
    world, params, reference, law = problem("bandit")
    table = world.table(params)
    with pytest.raises(ValueError, match="sum to 1 within 1e-06"):
        expected_loss(world, Dpo(), table, reference, law + 0.1)
    with pytest.raises(ValueError, match="law must have the shape"):
        expected_loss(world, Dpo(), table, reference, law[:, :1])
    with pytest.raises(ValueError, match="reference must have the shape"):
        expected_loss(world, Dpo(), table, reference[..., :2], law)
    with pytest.raises(TypeError, match="transform must be a BetaRejection"):
        expected_loss(world, Dpo(), table, reference, law, transform=0.5)
    with pytest.raises(TypeError, match="clip must be a ClipRange"):
        DetachOutside((-1, 1))


def test_the_anchor_of_the_penalty_is_the_start_unless_given():
    """GRPO's KL penalty is measured from the start policy by default and vanishes when anchored at the policy."""
    world, params, reference, law = problem("bandit")
    table, objective = world.table(params), Grpo(0.15, 0.5)
    plain = expected_loss(world, replace(objective, kl_coef=0.0), table, reference, law)
    default = expected_loss(world, objective, table, reference, law)
    assert torch.equal(default, expected_loss(world, objective, table, reference, law, start=world.table(world.start)))
    assert default > plain
    assert expected_loss(world, objective, table, reference, law, start=table).item() == pytest.approx(plain.item())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    "task", [Bandit(contexts=3, arms=4, features=3, proxy=0.3), Sequences(vocab=2, length=3, contexts=2, proxy=0.3)]
)
def test_groups_are_ordered_by_what_training_sees(task, name):
    """Where a proxy labels, the loss is that of a world whose scores are the labels, which is another."""
    world = task.draw([3])
    assert world.labels is not None
    noise = normals(3, "test", *world.start.shape)
    at, law = world.table(world.start + 0.7 * noise), behaviour_law(world, Fixed(), [3])
    reference = world.table(world.start - 0.3 * noise)
    seen, true = replace(world, scores=world.labels, labels=None), replace(world, labels=None)
    losses = [expected_loss(one, OBJECTIVES[name], at, reference, law) for one in (world, seen, true)]
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])
