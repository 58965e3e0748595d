"""The names of a study: problems, objectives, learning rates and variants, and the run that each combination is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from humanline import _checks
from humanline.schedule import AfterStep, BeforeStep, EachRound, Never, Schedule
from humanline.sim.bandit import Bandit
from humanline.sim.lag import Lag
from humanline.sim.objectives import Dpo, Grpo, Kto, Objective
from humanline.sim.run import Fixed, Rollouts, Run, Source
from humanline.sim.sequence import Sequences
from humanline.sim.slope import Transform
from humanline.sim.world import Task
from humanline.theory import BetaRejection, BetaShape, ClipRange

TASKS: dict[str, Task] = {
    "bandit": Bandit(),
    "sequence": Sequences(),
    "verifiable": Sequences(verifiable=0.2),
}
#: Groups a step and responses a group; other problems have `DEFAULT_GROUPS`, as many responses in all.
GROUPS = {"verifiable": (8, 4)}
DEFAULT_GROUPS = Run.groups, Run.group_size
#: Table 3 of the paper; DPO again where its sigmoid saturates.
OBJECTIVES: dict[str, Objective] = {
    "dpo": Dpo(0.1),
    "kto": Kto(0.25, 1.1, 1.0),
    "grpo": Grpo(0.15, 0.01),
    "dpo beta 1": Dpo(1.0),
    "dpo beta 10": Dpo(10.0),
}
#: The paper's clip of GRPO where the reference never moves (Table 3: "needs to be much larger").
FIXED_REFERENCE_CLIP_EPS = 0.5
#: Adam's; a step moves a logit by about this much.
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
CLIP = ClipRange(-1.5, 1.5)
#: The clip ranges of the paper's Table 6 beside the default.
CLIP_RANGES = ((-1.0, 1.5), (-1.0, 2.0), (-1.0, 3.0), (-2.0, 1.5))
SYNC_EVERY = (1, 2, 4, 8, 16, 32, 64)
SAMPLE_EVERY = (1, 4, 16, 64)
#: One round of the paper is 32 of about 300 steps; ours, 16 of 256.
ROUND = 16
#: Humanline sampling of about the clip's range.
BETA = BetaRejection.near(CLIP, 16, policy_ratio_bound=6, ref_ratio_bound=6)
#: An odd number of steps between syncs, and the age that its references have on average; and a number without a common
#: divisor with the first, by which ages go about.
ODD_SYNC, MEAN_AGE, STRIDE = 15, 8, 7


def blind(rejection: BetaRejection, *, bound: float = 1000.0) -> BetaRejection:
    """Return a rejection that detaches tokens without regard to their ratio, as many as another does at ratio 1.

    With B_P and B_R of ``Beta(a, 1)`` and the same bound M a token of ratio r is kept with probability
    ``(r / M)^a (1 / (r M))^a = M^(-2 a)``, whatever r between ``1 / M`` and M is.

    Parameters
    ----------
    rejection : BetaRejection
    bound : float > 1
        M.
    """
    shape = BetaShape(-math.log(rejection.acceptance_probability(0.0)) / (2 * math.log(bound)), 1.0)
    return BetaRejection(shape, shape, policy_ratio_bound=bound, ref_ratio_bound=bound)


@dataclass(frozen=True)
class Variant:
    """Hold the three independent choices: data source, reference schedule, log-ratio transform."""

    source: Source
    schedule: Schedule | Lag
    transform: Transform = None


def _variants() -> dict[str, Variant]:
    fixed, online = Fixed(), Rollouts(ROUND)
    sync = BeforeStep(every=1)
    named = {
        "offline": Variant(fixed, Never()),
        "offline+humanline": Variant(fixed, sync, CLIP),
        "online": Variant(online, EachRound(round_steps=ROUND)),
        "online+humanline": Variant(online, sync, CLIP),
        "sync only": Variant(fixed, sync),
        "clip only": Variant(fixed, Never(), CLIP),
        "beta rejection": Variant(fixed, sync, BETA),
        "beta rejection k=16": Variant(fixed, BeforeStep(every=16), BETA),
        "random detachment": Variant(fixed, sync, blind(BETA)),
        "trust region": Variant(fixed, AfterStep(every=64)),
    }
    for k in SYNC_EVERY:
        named[f"offline+humanline k={k}"] = Variant(fixed, BeforeStep(every=k), CLIP)
    for k in (ODD_SYNC, 16):
        named[f"sync only k={k}"] = Variant(fixed, BeforeStep(every=k))
    named["never synced, of the mean age"] = Variant(fixed, Lag(MEAN_AGE))
    named["never synced, of the same ages"] = Variant(fixed, Lag(ODD_SYNC, STRIDE))
    for low, high in CLIP_RANGES:
        named[f"offline+humanline k=16 clip={low:g},{high:g}"] = Variant(
            fixed, BeforeStep(every=16), ClipRange(low, high)
        )
    for every in SAMPLE_EVERY:
        rollouts = Rollouts(every)
        named[f"online every={every}"] = Variant(rollouts, EachRound(round_steps=every))
    for k in SYNC_EVERY:
        named[f"online+humanline every=64 k={k}"] = Variant(Rollouts(64), BeforeStep(every=k), CLIP)
    for quartile in (1, 2, 3, 4):
        named[f"offline+humanline quartile={quartile}"] = Variant(Fixed(quartile=quartile), sync, CLIP)
    for name, tilt in (("worse", -1.0), ("better", 1.0)):
        named[f"offline {name} data"] = Variant(Fixed(tilt=tilt), Never())
        named[f"offline+humanline {name} data"] = Variant(Fixed(tilt=tilt), sync, CLIP)
    return named


VARIANTS = _variants()


def make_run(task: str, objective: str, rate: float, variant: str, *, steps: int = 256) -> Run:
    """Return the run that a problem, an objective, a learning rate and a variant make.

    Raises
    ------
    ValueError
        If a name is not one of `TASKS`, `OBJECTIVES` or `VARIANTS` (the nearest is suggested), or a number is out of
        its range.
    """
    for kind, name, known in (
        ("task", task, TASKS),
        ("objective", objective, OBJECTIVES),
        ("variant", variant, VARIANTS),
    ):
        if name not in known:
            raise _checks.unknown(kind, name, list(known))
    chosen, loss = VARIANTS[variant], OBJECTIVES[objective]
    if isinstance(loss, Grpo) and isinstance(chosen.schedule, Never):
        loss = replace(loss, clip_eps=FIXED_REFERENCE_CLIP_EPS)
    groups, group_size = GROUPS.get(task, DEFAULT_GROUPS)
    return Run(
        task=TASKS[task],
        objective=loss,
        source=chosen.source,
        schedule=chosen.schedule,
        transform=chosen.transform,
        learning_rate=rate,
        steps=steps,
        groups=groups,
        group_size=group_size,
    )
