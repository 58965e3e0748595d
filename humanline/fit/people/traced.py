"""Each person's log-likelihood as a function that JAX traces, from the families and tables that all fits use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from humanline.fit.model import EQUIVALENTS, Model
from humanline.fit.people.own import OwnLikelihoods


def traced_likelihood(own: OwnLikelihoods) -> Callable[[Any], Any]:
    """Return the function from straight coordinates (P, K), a JAX array, to log-likelihoods (P,).

    With a power as value function straight coordinates are those of outcomes counted in their typical size, so that
    the outcomes are, and a fixed sensitivity or loss aversion is turned into that. Beyond a bound a parameter has the
    value of the bound.

    Parameters
    ----------
    own : OwnLikelihoods

    Returns
    -------
    callable
        In the precision that JAX is set to.
    """
    import jax
    import jax.numpy as jnp

    choices, model, everyone = own.choices, own.model, own.everyone
    pairs, place = np.unique(choices.person * choices.problems + choices.problem, return_inverse=True)
    person, problem = pairs // choices.problems, pairs % choices.problems
    sides = 1 if choices.kind == EQUIVALENTS else 2
    rows = np.concatenate([problem + side * choices.problems for side in range(sides)])
    table = choices.prepared(model.weights, own.reference_point)
    size = own.typical_size
    who = np.tile(person, sides)
    utilities = [
        _utilities(side, rows, who, choices.people, own.reference_point, size) for side in (table.gains, table.losses)
    ]
    low, high = jnp.asarray(own.low), jnp.asarray(own.high)
    seconds, trials = (
        jnp.asarray(np.bincount(place, weights=each, minlength=len(pairs)).astype(float))
        for each in (choices.response, choices.trials)
    )
    ends = [(each[rows] - own.reference_point) / size for each in (table.lowest, table.highest)]
    half = len(rows) // 2

    def likelihood(at: Any) -> Any:
        inside = jnp.clip(at, low, high)
        free = {}
        for k, name in enumerate(own.names):
            free[name] = jnp.exp(inside[:, k]) if everyone.specs[name].scale == "log" else inside[:, k]
        values = _in_sizes(model, free, choices.kind, size)

        def of(index: Any) -> tuple[Any, Any, Any]:
            return model.families({name: each[index] if np.ndim(each) else each for name, each in values.items()})

        total = utilities[0](of, "gain") + utilities[1](of, "loss")
        mine = {name: each[person] if np.ndim(each) else each for name, each in values.items()}
        value = of(person)[0]
        if choices.kind == EQUIVALENTS:
            sure = value.inverse(total)[place] * size + own.reference_point
            noise = jnp.broadcast_to(mine["noise"], (len(pairs),))[place]
            each = -(((choices.response - sure) / noise) ** 2) / 2 - jnp.log(noise) - np.log(2 * np.pi) / 2
            return jax.ops.segment_sum(each, choices.person, choices.people)
        gap = total[half:] - total[:half]
        if model.contextual:
            worst = value(jnp.asarray(np.minimum(ends[0][:half], ends[0][half:])))
            best = value(jnp.asarray(np.maximum(ends[1][:half], ends[1][half:])))
            gap = gap / jnp.where(best > worst, best - worst, 1.0)
        eta = mine["sensitivity"] * gap
        log_of = jax.nn.log_sigmoid if model.rule == "logit" else jax.scipy.special.log_ndtr
        second, first = log_of(eta), log_of(-eta)
        if model.lapse or np.ndim(mine["lapse"]) or mine["lapse"] > 0:
            guess, heeded = jnp.log(mine["lapse"] / 2), jnp.log1p(-jnp.asarray(mine["lapse"]))
            second, first = jnp.logaddexp(heeded + second, guess), jnp.logaddexp(heeded + first, guess)
        return jax.ops.segment_sum(
            seconds * second + (trials - seconds) * first, person, choices.people, indices_are_sorted=True
        )

    return likelihood


def _in_sizes(model: Model, straight: dict[str, Any], kind: str, size: float) -> dict[str, Any]:
    """Return the values of all parameters where outcomes are counted in `size`, from straight ones of the free ones.

    Fixed values, and those of other names, are of outcomes as they are, as is what equals a free one.
    """
    curvatures = model.complete(straight, kind)  # the same in both
    powers = {"loss_aversion": curvatures["loss_curvature"] - curvatures["curvature"]}
    if kind != EQUIVALENTS and not model.contextual:
        powers["sensitivity"] = curvatures["curvature"]
    free = {name: each * size ** -powers[name] if name in powers else each for name, each in straight.items()}
    values = model.complete(free, kind)
    return {name: each * size ** powers[name] if name in powers else each for name, each in values.items()}


def _utilities(
    side: Any, rows: Any, who: Any, people: int, reference_point: float, size: float
) -> Callable[[Any, str], Any]:
    """Return the function from families to the utility of each row, on one side of the reference point."""
    import jax
    import jax.numpy as jnp

    start, nodes = side.nodes(rows)
    count = np.diff(start)
    row, person = np.repeat(np.arange(len(rows)), count), np.repeat(who, count)
    outcomes, log_probs = (side.outcomes - reference_point) / size, side.log_probs
    values_at, perceived_at = (
        _each_once(numbers, place[nodes], person, people)
        for numbers, place in ((outcomes, side.outcome), (log_probs, side.prob))
    )
    linked = np.zeros(len(nodes))
    if side.cumulative:
        linked[1:] = row[1:] == row[:-1]

    def utilities(of: Callable[[Any], tuple[Any, Any, Any]], which: str) -> Any:
        if not len(nodes):
            return jnp.zeros(len(rows))
        values = values_at(lambda index, z: of(index)[0](z))
        before = jnp.concatenate([jnp.zeros(1), values[:-1]]) * linked
        perceived = perceived_at(lambda index, lp: jnp.exp(of(index)[1 if which == "gain" else 2].log(lp)))
        return jax.ops.segment_sum((values - before) * perceived, row, len(rows), indices_are_sorted=True)

    return utilities


def _each_once(numbers: Any, place: Any, person: Any, people: int) -> Callable[[Callable[[Any, Any], Any]], Any]:
    """Return what applies a function of (persons, numbers) to ``numbers[place]`` of each `person`.

    People who answer the same problems have the same numbers: then each person's function is taken once of each.
    """
    import jax
    import jax.numpy as jnp

    if people * len(numbers) >= len(place):
        each = jnp.asarray(numbers[place])
        return lambda function: function(person, each)
    once, flat = jnp.asarray(numbers), person * len(numbers) + place

    def gathered(function: Callable[[Any, Any], Any]) -> Any:
        # A loop, or the compiler would take the function anew for each place that gathers from it.
        found = jax.lax.map(lambda who: jnp.broadcast_to(function(who[None], once), once.shape), jnp.arange(people))
        return found.reshape(-1)[flat]

    return gathered
