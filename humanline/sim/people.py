"""Personalised perception: people with perceptions of their own, and rules made from everyone's or from each one's.

Each seed of a problem is one person's. The trained policy is a lottery over scores; what it is worth to the person is
its subjective utility under the person's own value function and decision weights, exactly. The *rule* of training, a
test of Beta rejection or a clip range, is made from a gamma: that of 1992 for everyone, the population's, the person's
own, or that of somebody else.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.sim.claims import PERSONAL
from humanline.sim.findings import Judgement
from humanline.sim.judging import judge_all
from humanline.sim.lookup import Setting, Study
from humanline.sim.people_tables import came_to, finding_rows, people_markdown
from humanline.sim.run import Run, simulate
from humanline.sim.threads import one_thread
from humanline.sim.variants import make_run
from humanline.sim.world import World, generator
from humanline.system.files import make_folder, write_text
from humanline.theory import BetaRejection, BetaShape, ClipRange, PowerValue, TverskyKahneman, decision_weights
from humanline.theory.clip_distances import clip_distances

#: The gamma of gains of Tversky and Kahneman (1992), in whole steps.
SHARED_GAMMA = 0.6
#: Gammas are rounded to this, so that people of about the same gamma share a rule, and kept within these.
STEP, LEAST, MOST = 0.05, 0.3, 1.5
#: Bound of the ratio in the one-sided test; a test of the reference that fires for one token in 1e8 is beside it.
BOUND, NEVER = 6.0, 1e-9
#: What every rule is put into: fixed data, the reference synced every 16 steps. "no rule" has no transform.
BASE = "offline+humanline k=16"
RULES = ("test", "clip")
WHOSE = ("shared", "population", "own", "another's")
TASKS, OBJECTIVES = ("bandit", "sequence"), ("dpo", "kto", "grpo")
_ENDS = np.append(np.arange(41) / 10, math.inf)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """Describe people: medians of parameters, and standard deviations of their logs, which are independent.

    Parameters
    ----------
    curvature, loss_aversion, gain_gamma, loss_gamma : (float, float)
        Median, and standard deviation of the log.
    source : str
    """

    curvature: tuple[float, float] = (0.8591, 0.2)
    loss_aversion: tuple[float, float] = (1.2209, 0.4)
    gain_gamma: tuple[float, float] = (0.8661, 0.35)
    loss_gamma: tuple[float, float] = (0.7300, 0.35)
    source: str = (
        "Medians: estimates of `humanline fit --part without-feedback` from the 51 unambiguous games of CPC18's "
        "estimation set (https://cpc-18.com/data/). Standard deviations of the logs: made up, since those "
        "rates are of groups."
    )

    def draw(self, seed: int) -> dict[str, float]:
        """Return one person's parameters; gammas lie in [.3, 1.5]."""
        names = ("curvature", "loss_aversion", "gain_gamma", "loss_gamma")
        normal = generator(seed, "person").standard_normal(len(names))
        found = {}
        for name, z in zip(names, normal.tolist(), strict=True):
            median, spread = getattr(self, name)
            found[name] = median * math.exp(spread * z)
            if name.endswith("gamma"):
                found[name] = min(max(found[name], LEAST), MOST)
        return found


@dataclass(frozen=True)
class PeopleScale:
    """Say how large a study of people is: people (one a seed), optimizer steps, learning rates."""

    people: int = 100
    steps: int = 128
    rates: tuple[float, ...] = (0.1,)


FULL_PEOPLE, QUICK_PEOPLE = PeopleScale(), PeopleScale(people=16, steps=48, rates=(0.1,))


@dataclass(frozen=True)
class PeopleReport:
    """Hold a finished study of people."""

    scale: PeopleScale
    population: Population
    judgements: list[Judgement]
    results: Mapping[tuple[str, str, float, str], Mapping[str, Array]]


def rounded(gamma: float) -> float:
    """Return a gamma in whole steps."""
    return round(round(min(max(gamma, LEAST), MOST) / STEP) * STEP, 6)


@functools.lru_cache(maxsize=64)
def rule_of(kind: str, gamma: float) -> BetaRejection | ClipRange:
    """Return the rule that a gamma makes.

    Parameters
    ----------
    kind : "test" or "clip"
        The one-sided test of Prop. 4.1 with ``Beta(gamma, 1)``; or the clip range without an upper end whose kept law
        has the smallest largest difference from the human curve, for log-ratios of 1 nat that the reference proposes.
    gamma : float
    """
    if kind == "test":
        return BetaRejection(BetaShape(gamma, 1), BetaShape(NEVER, 1), policy_ratio_bound=BOUND, ref_ratio_bound=BOUND)
    sup = clip_distances(TverskyKahneman(gamma), -_ENDS, [math.inf]).distances.sup[:, 0]
    widest = int(np.flatnonzero(sup <= sup.min() + 1e-9)[-1])
    return ClipRange(-float(_ENDS[widest]), math.inf)


def gammas_of(population: Population, people: int) -> dict[str, Array]:
    """Return, for each of whose rule it is, the gamma that each person's training has, (people,).

    Somebody else's is that of the next person; the population's is the geometric mean.
    """
    own = np.array([population.draw(seed)["gain_gamma"] for seed in range(people)])
    middle = float(np.exp(np.log(own).mean()))
    found = {"shared": np.full(people, SHARED_GAMMA), "population": np.full(people, middle), "own": own}
    found["another's"] = np.roll(own, -1)
    return {whose: np.array([rounded(gamma) for gamma in gammas]) for whose, gammas in found.items()}


def worth(world: World, table: Any, people: Sequence[Mapping[str, float]]) -> Array:
    """Return the subjective utility of policies' lotteries over true scores to people, (S,), mean over contexts.

    The reference point is the start policy's expected score in the context; nan where the policy is not finite.

    Parameters
    ----------
    world : World
        Whose responses are enumerated.
    table : (S, P, C) tensor
        Log-probabilities of the policy.
    people : S mappings
        Parameters of each seed's person, as `Population.draw` gives them.
    """
    law, found = world.law(table).exp().numpy(), []
    for probs, outcomes, person in zip(law, _outcomes(world), people, strict=True):
        gain, loss = TverskyKahneman(person["gain_gamma"]), TverskyKahneman(person["loss_gamma"])
        finite = np.isfinite(probs).all()
        weights = decision_weights(outcomes, probs, gain=gain, loss=loss) if finite else np.full(probs.shape, np.nan)
        found.append(float((weights * _value(person)(outcomes)).sum(-1).mean()))
    return np.array(found)


def felt(world: World, table: Any, people: Sequence[Mapping[str, float]], *, at_start: Array | None = None) -> Array:
    """Return what policies are worth to people, (S,): 0 as the start policy, 1 as always the best response.

    ``(u - u_start) / (u_best - u_start)``, u as `worth` has it; -1 where the policy is not finite.

    Parameters
    ----------
    world, table, people
        As in `worth`.
    at_start : (S,) array, optional
        ``u_start``, where it is known.
    """
    before = worth(world, world.table(world.start), people) if at_start is None else at_start
    tops = _outcomes(world).max(-1)
    best = np.array([float(_value(person)(top).mean()) for person, top in zip(people, tops, strict=True)])
    found = (worth(world, table, people) - before) / (best - before)
    return np.where(np.isfinite(found), found, -1.0)


def _outcomes(world: World) -> Array:
    """Return the scores of all responses from the start policy's expected one, rounded so that ties are ties."""
    scores, start = world.scores.numpy(), world.law(world.table(world.start)).exp().numpy()
    return np.asarray(np.round(scores - (start * scores).sum(-1, keepdims=True), 12) + 0.0)


def _value(person: Mapping[str, float]) -> PowerValue:
    return PowerValue(person["curvature"], loss_aversion=person["loss_aversion"])


def study_people(
    out: str | Path,
    *,
    scale: PeopleScale = FULL_PEOPLE,
    population: Population | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PeopleReport:
    """Train for people by shared and by personal rules, judge the claims, and write the results.

    Parameters
    ----------
    out : path
        Folder, made if need be. ``people.csv``, ``people.json`` and ``people.md`` are written at the end, each whole or
        not at all; an earlier one is replaced.
    scale : PeopleScale
    population : Population, optional
    progress : callable, optional
        Called with (done, total) settings.

    Returns
    -------
    PeopleReport

    Raises
    ------
    WriteError
        If the disk fails.
    """
    population = Population() if population is None else population
    folder = Path(out)
    make_folder(folder)
    settings = [Setting(task, name, rate) for task in TASKS for name in OBJECTIVES for rate in scale.rates]
    gammas = gammas_of(population, scale.people)
    people = [population.draw(seed) for seed in range(scale.people)]
    results: dict[tuple[str, str, float, str], Mapping[str, Array]] = {}
    for done, setting in enumerate(settings):
        for variant, measures in _setting(setting, scale, gammas, people).items():
            results[setting.task, setting.objective, setting.rate or 0.0, variant] = measures
        if progress is not None:
            progress(done + 1, len(settings))
    study = Study(results)  # type: ignore[arg-type]
    judgements = judge_all([(claim, settings) for claim in PERSONAL.values()], study)
    report = PeopleReport(scale, population, judgements, results)
    told = {
        "scale": asdict(scale),
        "population": asdict(population),
        "gammas": {k: v.tolist() for k, v in gammas.items()},
        "came_to": came_to(results),
    }
    rows = finding_rows(judgements)
    write_text(folder / "people.csv", _csv(rows))
    write_text(folder / "people.json", json.dumps(told, indent=1) + "\n")
    write_text(folder / "people.md", people_markdown(rows, came_to(results), made=_made(scale, population.source)))
    return report


def _setting(
    setting: Setting, scale: PeopleScale, gammas: Mapping[str, Array], people: Sequence[Mapping[str, float]]
) -> dict[str, dict[str, Array]]:
    """Return the measures of every variant in a setting; each rule is run once, for all who need it."""
    base = make_run(setting.task, setting.objective, setting.rate or 0.0, BASE, steps=scale.steps)
    everyone = range(scale.people)
    world = base.task.draw(everyone)
    at_start = worth(world, world.table(world.start), people)
    found = {"no rule": _trained(replace(base, transform=None), everyone, people, at_start)}
    for kind in RULES:
        rules = {whose: [rule_of(kind, float(gamma)) for gamma in gammas[whose]] for whose in WHOSE}
        by_rule: dict[Any, dict[int, dict[str, float]]] = {}
        for rule in dict.fromkeys(rule for each in rules.values() for rule in each):
            seeds = [seed for seed in everyone if any(rules[whose][seed] == rule for whose in WHOSE)]
            measures = _trained(replace(base, transform=rule), seeds, people, at_start)
            by_rule[rule] = {
                seed: {name: float(values[place]) for name, values in measures.items()}
                for place, seed in enumerate(seeds)
            }
        for whose in WHOSE:
            rows = [by_rule[rules[whose][seed]][seed] for seed in everyone]
            found[f"{whose} {kind}"] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return found


def _trained(
    run: Run, seeds: Sequence[int], people: Sequence[Mapping[str, float]], at_start: Array
) -> dict[str, Array]:
    with one_thread():
        trace = simulate(run, seeds)
    world = trace.world
    start, best = (each.numpy() for each in (trace.scores[:, 0], world.best_score()))
    score = trace.scores[:, -1].numpy()
    gained = np.where(np.isfinite(score), (score - start) / (best - start), -1.0)  # as a study of claims counts it
    mine = [people[seed] for seed in seeds]
    perceived = felt(world, trace.policy, mine, at_start=at_start[list(seeds)])
    return {"felt": perceived, "gained": gained, "outside": trace.outside.numpy(), "start": start, "best": best}


def told_again(folder: str | Path) -> str:
    """Return ``people.md`` as ``people.csv`` and ``people.json`` of a folder make it, without training anything.

    Raises
    ------
    OSError
        If they are not there.
    """
    told = json.loads((Path(folder) / "people.json").read_text(encoding="utf-8"))
    scale = PeopleScale(**{**told["scale"], "rates": tuple(told["scale"]["rates"])})
    with open(Path(folder) / "people.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return people_markdown(rows, told["came_to"], made=_made(scale, told["population"]["source"]))


def _made(scale: PeopleScale, source: str) -> str:
    flags = {FULL_PEOPLE: "", QUICK_PEOPLE: " --quick"}.get(scale, " (a scale of its own)")
    rates = ", ".join(f"{rate:g}" for rate in scale.rates)
    return (
        f"Made by `humanline sim --people{flags}`: {scale.people} people, one a seed, {scale.steps} optimizer steps, "
        f"learning rates {rates} (Adam). {source}"
    )


def _csv(rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
