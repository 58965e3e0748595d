"""One training run on a simulated problem, for many seeds at once.

A run is three independent choices, as in training: where the data come from, which earlier policy is the reference,
and what happens to token log-ratios before the loss. Every seed has a problem, data and draws of its own, and the same
ones in every run of that seed, so that runs are compared in pairs. The reference is a table of log-probabilities: the
policy's own at the moment the schedule names, kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from humanline import _checks
from humanline.schedule import AfterStep, BeforeStep, EachRound, Never, Schedule
from humanline.sim.bandit import Bandit
from humanline.sim.labels import Judge
from humanline.sim.lag import Lag
from humanline.sim.long import LongWorld
from humanline.sim.objectives import Batch, Dpo, Kto, Objective
from humanline.sim.slope import AnyTransform, Slopes
from humanline.sim.world import (
    Task,
    World,
    at_least,
    between,
    generator,
    normalised,
    normals,
    sample_law,
    settle,
    token_logprobs,
    verified,
)
from humanline.theory import BetaRejection, ClipRange

#: Steps whose Beta draws are made together, which says what they are, and how many uniform numbers are, at most.
_BLOCK, _AT_ONCE = 16, 2**20
#: Probability under the start policy of the answers that `Fixed.coverage` calls good.
_GOOD = 0.2


@dataclass(frozen=True)
class Fixed:
    """Train on groups that another policy wrote before the run.

    Its logits are those of the start policy plus ``drift`` times standard normal noise; the law over whole responses is
    then multiplied by ``exp(tilt quality)`` and normalised.

    Parameters
    ----------
    tilt : float
        Below 0 the behaviour policy is worse than the start, above 0 better.
    drift : float >= 0
        How far it is another model: standard deviation of what is added to each token's logit.
    quartile : 1, 2, 3 or 4, optional
        Keep a quarter of four times as many groups, by the mean token log-probability of their responses under the
        start policy: 1 the least likely, 4 the most.
    passes : int >= 1
        Passes over the groups: there are so few that the run's steps go over them this often, the last time perhaps in
        part. Contexts still take turns; which group of a context comes when is shuffled anew for every further pass.
    coverage : float in [0, 1]
        Factor of the probability of good answers, before the law is normalised: the best responses of a context, as few
        as have a probability of 0.2 under the start policy, and never the worst one. 0: the data show none of them.
    """

    tilt: float = 0.0
    drift: float = 0.5
    quartile: int | None = None
    passes: int = 1
    coverage: float = 1.0

    def __post_init__(self) -> None:
        settle(self, tilt=_checks.finite, drift=_checks.non_negative, passes=at_least(1), coverage=between(0))
        if self.quartile is not None:
            settle(self, quartile=at_least(1))
            if self.quartile > 4:
                raise _checks.fail("quartile", "be 1, 2, 3 or 4", self.quartile)


@dataclass(frozen=True)
class Rollouts:
    """Train on groups that the policy itself writes, for `every` steps at a time.

    Parameters
    ----------
    every : int >= 1
        Optimizer steps between samplings.
    round_start : "keep" or "sync"
        Whether the reference becomes the policy at the start of a round, whatever its schedule says.
    """

    every: int = 16
    round_start: str = "keep"

    def __post_init__(self) -> None:
        settle(self, every=at_least(1))
        _checks.one_of("round_start", self.round_start, ("keep", "sync"))


Source = Fixed | Rollouts


@dataclass(frozen=True)
class Run:
    """Describe a run.

    Parameters
    ----------
    task : Bandit or Sequences
    objective : Dpo, Kto, Grpo, or Own (`humanline.sim.own`) with a loss of one's own
    source : Fixed or Rollouts
    schedule : Never, BeforeStep, AfterStep, EachRound or Lag
        EachRound without its length takes that of the Rollouts, and has it from then on; with Fixed it needs one.
    transform : ClipRange, BetaRejection, function or None
        A function is called with token log-ratios (R, T) in nats and ``mask=``, bool, and returns as many; not with
        Kto, whose reference point is a mean of transformed log-ratios of other answers.
    learning_rate : float > 0
    steps : int >= 1
        Optimizer steps.
    groups : int >= 1
        Groups a step; contexts take turns. KTO takes z_0 from each context with the responses of the next group, the
        last from the first: of another context only if there are two or more, and groups leave no remainder of 1.
    group_size : int >= 2
        Responses a group.
    optimizer : "adam" or "sgd"
        torch's, with its defaults; neither mixes seeds.
    measurements : int >= 1
        How often, evenly spread, the exact score is taken after the start.
    judge : Judge
        Who scores the groups; by default one that makes no mistake.
    reference_tilt : float
        Where the first reference lies: 0 the start policy, as in the paper; below 0 a worse policy, above 0 a better.
    disturbance : float >= 0
        Each start parameter is multiplied by ``1 + disturbance g``, g standard normal. At 1e-13 only rounding changes,
        so that whatever changes with it hangs on rounding.

    Raises
    ------
    ValueError
        If a number is out of its range, there is no next group for KTO, KTO is to have a transform of one's own,
        EachRound has no length and Fixed data have no rounds, or the schedule would have no effect (rounds of one step
        that begin with a sync, unless it is EachRound).
    TypeError
        If a part is of another type.
    """

    task: Task = field(default_factory=Bandit)
    objective: Objective = field(default_factory=Dpo)
    source: Source = field(default_factory=Fixed)
    schedule: Schedule | Lag = field(default_factory=Never)
    transform: AnyTransform = None
    learning_rate: float = 0.03
    steps: int = 256
    groups: int = 16
    group_size: int = 2
    optimizer: str = "adam"
    measurements: int = 8
    reference_tilt: float = 0.0
    judge: Judge = field(default_factory=Judge)
    disturbance: float = 0.0

    def __post_init__(self) -> None:
        self._check_kinds()
        settle(self, learning_rate=_checks.positive, steps=at_least(1), groups=at_least(1), group_size=at_least(2))
        settle(self, measurements=at_least(1), reference_tilt=_checks.finite)
        settle(self, disturbance=_checks.non_negative)
        _checks.one_of("optimizer", self.optimizer, ("adam", "sgd"))
        if isinstance(self.objective, Kto) and self.groups < 2:
            raise _checks.fail("groups", "be >= 2 for KTO (z_0 comes from the next group)", self.groups)
        if isinstance(self.objective, Kto) and callable(self.transform):
            raise ValueError("Kto's reference point needs a transform of the house (ClipRange, BetaRejection) or None")
        if self.schedule == EachRound():
            if isinstance(self.source, Fixed):
                raise ValueError(
                    "EachRound() does not say how long a round is: give round_steps, or Rollouts as source"
                )
            object.__setattr__(self, "schedule", EachRound(round_steps=self.source.every))
        if self.source == Rollouts(1, "sync") and not isinstance(self.schedule, EachRound):
            raise ValueError(
                "rounds of one step that begin with a sync make every log-ratio 0, so the schedule has no effect; "
                'use round_start="keep", or longer rounds'
            )

    def _check_kinds(self) -> None:
        if not callable(getattr(self.task, "draw", None)):
            raise TypeError(f"task must be a Bandit or Sequences, or draw worlds as they do; got {self.task!r}")
        if not callable(getattr(self.objective, "losses", None)):
            raise TypeError(f"objective must be a Dpo, Kto or Grpo, or have their methods; got {self.objective!r}")
        for name, kinds in (
            ("source", (Fixed, Rollouts)),
            ("schedule", (Never, BeforeStep, AfterStep, EachRound, Lag)),
            ("judge", (Judge,)),
        ):
            if not isinstance(value := getattr(self, name), kinds):
                raise TypeError(f"{name} must be a {' or '.join(kind.__name__ for kind in kinds)}; got {value!r}")
        given = self.transform
        if not (given is None or isinstance(given, ClipRange | BetaRejection) or callable(given)):
            raise TypeError(f"transform must be a ClipRange, a BetaRejection, a function or None; got {given!r}")


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """Hold what a run left behind, for S seeds.

    Parameters
    ----------
    world : World
    measured_at : list of int
        Updates done when each score was taken: 0 first, the run's last step last.
    scores : (S, M + 1) tensor
        Exact expected true score of the policy; M is `measurements`, or the steps where these are fewer.
    outside : (S,) tensor
        Share of the run's tokens whose raw log-ratio lay outside the clip range, or that were detached.
    saturation : (S,) tensor
        Mean of DPO's saturation metric over the run; nan for other objectives.
    policy, reference : (S, P, nodes * V) tensors
        Tables of log-probabilities: of the policy after the last update, of the reference of the last batch.
    behaviour : (S, P, N) tensor or None
        Log-probabilities of the law that the last data came from; None for a quartile, which is chosen from a sample,
        and where responses are not enumerated.
    params : (S, ...) tensor
        The policy's parameters after the last update.
    """

    world: World
    measured_at: list[int]
    scores: Tensor
    outside: Tensor
    saturation: Tensor
    policy: Tensor
    reference: Tensor
    behaviour: Tensor | None
    params: Tensor


def simulate(run: Run, seeds: Sequence[int], *, each_step: Callable[[int, Tensor], None] | None = None) -> Trace:
    """Train the problems of some seeds.

    Parameters
    ----------
    run : Run
    seeds : sequence of distinct int >= 0
        The same seed gives the same problem, data and draws in every run.
    each_step : callable, optional
        Called with the number of updates done and the parameters, before every update and after the last.

    Returns
    -------
    Trace

    Raises
    ------
    ValueError
        If seeds repeat, or an enumeration is too large.

    Notes
    -----
    Source: arXiv 2509.24207, sections 5 and 5.1. All losses of a step see the old reference; a sync before the update
    takes the policy that made them. A seed whose parameters stop being finite goes on as nan and reaches no other. Adam
    divides by the size of a gradient: where gradients cancel but for rounding (every member of every group alike at a
    token), what is left may depend on the machine.
    """
    world = _disturbed(run.task.draw(seeds), run.disturbance, seeds)
    data = _Data(run, world, [int(seed) for seed in seeds])
    params = world.start.clone().requires_grad_()
    kind = torch.optim.Adam if run.optimizer == "adam" else torch.optim.SGD
    optimizer = kind([params], lr=run.learning_rate)
    start = world.table(world.start)
    slopes = Slopes(world, run.objective, run.transform, start)
    reference = first_reference(world, run.reference_tilt)
    takes_over = False
    trailing: deque[Tensor] = deque(maxlen=run.schedule.updates if isinstance(run.schedule, Lag) else 0)
    scores, measured_at = [], []
    due = {round(run.steps * i / run.measurements) for i in range(run.measurements + 1)}
    outside = torch.zeros(len(world.start), dtype=params.dtype)
    saturation = outside.clone()
    for step in range(run.steps + 1):
        table = world.table(params)
        policy = table.detach()
        if step in due:
            measured_at.append(step)
            scores.append(world.expected_score(policy))
        if each_step is not None:
            each_step(step, params.detach().clone())
        if step == run.steps:
            break
        if takes_over:
            reference = policy
        if data.begins_round(step) and run.source.round_start == "sync":  # type: ignore[union-attr]
            reference = policy
            trailing.clear()
        batch, used = data.batch(step, policy), reference
        rows = run.objective.rows(batch)
        slope, beyond, saturated = slopes(policy, reference, batch, rows, data.beta_draws(step, rows.shape))
        (params.grad,) = torch.autograd.grad(table, params, slope)
        outside += beyond / run.steps
        saturation += saturated / run.steps
        if run.schedule.copies_before_update(step):
            reference = policy
        trailing.append(policy if step else reference)
        if trailing:
            age = step + 1 - run.schedule.snapshot(step + 1)
            reference = trailing[-min(age, len(trailing))]
        optimizer.step()
        takes_over = run.schedule.copies_after_update(step)
    return Trace(
        world=world,
        measured_at=measured_at,
        scores=torch.stack(scores, 1),
        outside=outside,
        saturation=saturation,
        policy=policy,
        reference=used,
        behaviour=data.law(),
        params=params.detach(),
    )


def _disturbed(world: World, size: float, seeds: Sequence[int]) -> World:
    if size == 0:
        return world
    noise = torch.stack([normals(int(seed), "disturbance", *world.start.shape[1:]) for seed in seeds])
    return replace(world, start=world.start * (1 + size * noise))


class _Data:
    """The groups of every step, and the law they come from."""

    def __init__(self, run: Run, world: World, seeds: list[int]) -> None:
        self.run, self.world, self.seeds = run, world, seeds
        self.contexts = torch.arange(run.groups * run.steps) % world.scores.shape[1]
        self._generators = [generator(seed, "responses") for seed in seeds]
        self._uniforms = torch.empty((len(seeds), 0, run.group_size, world.cells.shape[1]), dtype=torch.float64)
        self._first, self._undrawn = 0, len(self.contexts)
        self._noises = [generator(seed, "judge's noise") for seed in seeds]
        self._errors = [generator(seed, "judge's errors") for seed in seeds]
        if isinstance(run.source, Fixed):
            self._responses, self._labels = self._fixed(run.source)

    def law(self) -> Tensor | None:
        """Return the law (S, P, N) that the last groups come from, if it is known."""
        if isinstance(self.world, LongWorld):
            return None
        if isinstance(self.run.source, Rollouts):
            return self.world.law(self._writer)
        return self._writer if self.run.source.quartile is None else None

    def begins_round(self, step: int) -> bool:
        """Return whether the policy writes new groups at this step."""
        return isinstance(self.run.source, Rollouts) and step % self.run.source.every == 0

    def batch(self, step: int, policy: Tensor) -> Batch:
        """Return the groups of a step; `policy` is the table that writes them where a round begins."""
        run = self.run
        if self.begins_round(step):
            steps = min(run.source.every, run.steps - step)  # type: ignore[union-attr]
            contexts = self.contexts[run.groups * step : run.groups * (step + steps)]
            self._responses = self.world.sample(policy, contexts, self._next_uniforms(len(contexts)))
            self._labels = self._judged(contexts, self._responses)
            self._writer, self._first = policy, step
        contexts = self.contexts[run.groups * step : run.groups * (step + 1)]
        begin = run.groups * (step - self._first)
        here = slice(begin, begin + run.groups)
        return Batch(contexts, self._responses[:, here], self._labels[:, here])

    def beta_draws(self, step: int, rows: torch.Size) -> tuple[Tensor, ...]:
        """Return the Beta draws of both tests, keyed by seed, side and step; drawn for `_BLOCK` steps at a time."""
        rejection, shape = self.run.transform, (*rows[1:], self.world.cells.shape[1])
        if not isinstance(rejection, BetaRejection):
            return ()
        block, place = divmod(step, _BLOCK)
        if place == 0:
            steps = min(_BLOCK, self.run.steps - step)
            self._betas = []
            for side, test in (("policy", rejection.policy_test), ("reference", rejection.ref_test)):
                draws = [
                    test.shape.sample(generator(seed, f"{side} draws {block}"), (steps, *shape)) for seed in self.seeds
                ]
                self._betas.append(torch.from_numpy(np.stack(draws)))
        return self._betas[0][:, place], self._betas[1][:, place]

    def _next_uniforms(self, groups: int) -> Tensor:
        """Return each seed's next uniform numbers for sampling token by token; drawn for many steps at a time."""
        short = groups - self._uniforms.shape[1]
        if short > 0:
            shape = self.run.group_size, self.world.cells.shape[1]
            count = max(short, min(self._undrawn, _AT_ONCE // (len(self.seeds) * math.prod(shape))))
            self._uniforms = torch.cat([self._uniforms, self._draw(count, *shape)], 1)
            self._undrawn -= count
        taken, self._uniforms = self._uniforms[:, :groups], self._uniforms[:, groups:]
        return taken

    def _draw(self, *shape: int) -> Tensor:
        return torch.from_numpy(np.stack([rng.random(shape) for rng in self._generators]))

    def _judged(self, contexts: Tensor, responses: Tensor) -> Tensor:
        return self.run.judge.label(self.world.labels_of(contexts, responses), self._noises, self._errors)

    def _fixed(self, source: Fixed) -> tuple[Tensor, Tensor]:
        """Return responses and labels of every group of the run."""
        groups, turn = len(self.contexts), self.world.scores.shape[1]
        count = groups if source.passes == 1 else min(groups, turn * math.ceil(groups / source.passes / turn))
        contexts = self.contexts[:count]
        responses = self._written(source, contexts)
        labels = self._judged(contexts, responses)
        if count == groups:
            return responses, labels
        order = self._passes(count // turn, turn, groups)[..., None].expand(-1, -1, responses.shape[-1])
        return responses.gather(1, order), labels.gather(1, order)

    def _passes(self, each: int, turn: int, groups: int) -> Tensor:
        """Return which of `each` groups a context comes at each place, (S, groups); the first pass is in order."""
        found = []
        for seed in self.seeds:
            rng, ranks = generator(seed, "passes"), np.repeat(np.arange(each)[:, None], turn, 1)
            passes = [ranks]
            while sum(map(np.size, passes)) < groups:
                passes.append(rng.permuted(ranks, axis=0))
            found.append((np.concatenate(passes) * turn + np.arange(turn)).ravel()[:groups])
        return torch.from_numpy(np.stack(found))

    def _drawn(self, contexts: Tensor) -> Tensor:
        """Return groups that the writer of fixed data writes in some contexts, (S, B, G)."""
        shape = len(contexts), self.run.group_size
        if isinstance(self.world, LongWorld):
            return self.world.sample(self._writer, contexts, self._draw(*shape, self.world.length))
        return sample_law(self._writer, contexts, self._draw(*shape))

    def _written(self, source: Fixed, contexts: Tensor) -> Tensor:
        run = self.run
        writer = behaviour_table if isinstance(self.world, LongWorld) else behaviour_law
        self._writer = writer(self.world, source, self.seeds)
        if source.quartile is None:
            return self._drawn(contexts)
        four = contexts.repeat(4)
        responses = self._drawn(four)
        start = self.world.table(self.world.start)
        likely = token_logprobs(start, self.world.places(four, responses)).mean((-2, -1))
        likely = likely.round(decimals=12)  # the order of the same responses does not count
        # quartiles within a context, so that each keeps as many groups of it as a run without quartiles has
        kept = torch.empty((len(self.seeds), len(contexts), run.group_size), dtype=torch.long)
        for context in sorted(set(contexts.tolist())):
            mine, places = (four == context).nonzero().squeeze(1), (contexts == context).nonzero().squeeze(1)
            order = torch.argsort(likely[:, mine], dim=-1, stable=True)
            quarter = order[:, (source.quartile - 1) * len(places) : source.quartile * len(places)].sort(-1).values
            kept[:, places] = responses[:, mine].gather(1, quarter[..., None].expand(-1, -1, run.group_size))
        return kept


def first_reference(world: World, tilt: float) -> Tensor:
    """Return the table (S, P, nodes * V) of the start policy with its logits tilted towards the true score."""
    if tilt == 0:
        return world.table(world.start)
    if world.better is None:
        raise ValueError("reference_tilt needs a world that says which parameters are better; this one does not")
    return world.table(world.start + tilt * world.better)


def behaviour_law(world: World, source: Fixed, seeds: Sequence[int]) -> Tensor:
    """Return the log-probabilities (S, P, N) of the policy that wrote fixed data, normalised."""
    law = world.law(_drifted(world, source, seeds)) + source.tilt * world.quality
    if source.coverage < 1:
        start = world.law(world.table(world.start))
        good = verified(world.quality, start, _GOOD) * (world.quality > world.quality.amin(-1, keepdim=True))
        law = torch.where(good > 0, law + (math.log(source.coverage) if source.coverage else -math.inf), law)
    return law.log_softmax(-1)


def behaviour_table(world: World, source: Fixed, seeds: Sequence[int]) -> Tensor:
    """Return the table (S, P, nodes * V) of the policy that wrote fixed data, where responses are not enumerated.

    Raises
    ------
    ValueError
        If the source tilts the law, or takes good answers away, for which it would have to be enumerated.
    """
    if source.tilt or source.coverage < 1:
        raise ValueError(f"tilt and coverage change the law over all responses, which are not enumerated: {source}")
    return _drifted(world, source, seeds)


def _drifted(world: World, source: Fixed, seeds: Sequence[int]) -> Tensor:
    start = world.table(world.start)
    noise = torch.stack([normals(seed, "behaviour", *start.shape[1:]) for seed in seeds])
    return normalised(start + source.drift * noise, world.vocab)
