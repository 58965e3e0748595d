"""The kernel that samples people and their law: steps of the law given points of everyone, new points given the law."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.people.normal import moments
from humanline.fit.people.result import PeopleFit
from humanline.fit.people.traced import traced_likelihood
from humanline.fit.starts import starting_points
from humanline.fit.straight import Straight

Array = NDArray[np.float64]

#: Priors, on straight coordinates (nats): of the law's mean about the usual values, of its spreads (half-normal).
MEAN_SPREAD, SPREAD = 2.0, 0.5
#: Points of each person, and how many of them are drawn anew between two steps of the law.
POINTS, FRESH = 32, 8
#: Points come from a multivariate t around a person, and so many of them from one around all people.
_FREEDOM, _FROM_ALL, _WIDER = 5.0, 0.25, 1.5


def people_kernel(fit: PeopleFit, *, target_accept: float, chains: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return numpyro's kernel for people and their law (`HMCGibbs`, with `NUTS` for the law), and where chains begin.

    Each person has points ``x_s`` from a fixed density q, weighted by ``w_s = likelihood(x_s) / q(x_s)``. Given them
    the law has density ``prior(law) prod_i sum_s w_is law(x_is)``, smooth and of few dimensions. Given the law, one
    point of each person is chosen with probability ``~ w_s law(x_s)``, is moved by Metropolis's rule (a random step,
    then a draw from the law), and stays; others are drawn anew. The chosen points follow the exact posterior, however
    few points there are; with few, chains are slower.

    Parameters
    ----------
    fit : PeopleFit
        Where q lies and in whose units steps are taken; it does not enter the posterior.
    target_accept : float in (0, 1)
    chains : int
    seed : int
        Of the first points.

    Notes
    -----
    Source: Andrieu, Doucet and Holenstein (2010), Journal of the Royal Statistical Society B 72, for particle Gibbs;
    that the law moves with the choice of points summed out is the collapsed step there.
    """
    jax, numpyro = importlib.import_module("jax"), importlib.import_module("numpyro")
    jnp, dist, infer = jax.numpy, numpyro.distributions, importlib.import_module("numpyro.infer")
    middle, covariance = moments(fit.population.points, fit.integrated.share)
    log_likelihood, density = traced_likelihood(fit.own), _density(fit, middle, covariance, jnp, dist)
    walk = jnp.linalg.cholesky(covariance) * (2.38 / np.sqrt(len(fit.names)))
    found, number = fit.population.law, len(fit.names)
    unit = np.sqrt(np.diag(found.covariance))
    usual = Straight(fit.own.everyone).there(starting_points(fit.own.everyone, 1, 0)[0])

    def draw(key: Any, many: int) -> tuple[Any, Any]:
        at = density.sample(key, (many,))
        log_weight = jax.lax.map(log_likelihood, at) - density.log_prob(at)
        return jnp.swapaxes(at, 0, 1), log_weight.T

    def law_of(sites: Any) -> tuple[Any, Any]:
        corr = sites["corr"] if number > 1 else jnp.ones((1, 1))
        return found.mean + sites["off"] * unit, sites["spread"][:, None] * corr

    def log_law(law: tuple[Any, Any], at: Any) -> Any:
        mean, root = law
        white = (at - mean) @ jax.scipy.linalg.solve_triangular(root, jnp.eye(number), lower=True).T
        return -(white**2).sum(-1) / 2 - jnp.log(jnp.diag(root)).sum()

    def model() -> None:
        sites = {
            "off": numpyro.sample("off", dist.Normal((usual - found.mean) / unit, MEAN_SPREAD / unit).to_event(1)),
            "spread": numpyro.sample("spread", dist.HalfNormal(SPREAD).expand([number]).to_event(1)),
        }
        if number > 1:
            sites["corr"] = numpyro.sample("corr", dist.LKJCholesky(number, 2.0))
        law = law_of(sites)
        shape = (len(fit.people), POINTS)
        at = numpyro.sample("points", dist.ImproperUniform(dist.constraints.real, (), (*shape, number)))
        log_weight = numpyro.sample("log_weight", dist.ImproperUniform(dist.constraints.real, (), shape))
        numpyro.factor("people", jax.nn.logsumexp(log_weight + log_law(law, at), axis=-1).sum())
        numpyro.deterministic("mean", law[0])
        numpyro.deterministic("at", at[:, 0])

    def moved(key: Any, law: tuple[Any, Any], at: Any, value: Any) -> tuple[Any, Any]:
        """Move one point of each person by two of Metropolis's steps: a random one, and a draw from the law."""
        for each, walks in zip(jax.random.split(key), (True, False), strict=True):
            step, accept = jax.random.split(each)
            noise = jax.random.normal(step, at.shape)
            new = at + (walk @ noise[:, :, None])[:, :, 0] if walks else law[0] + noise @ law[1].T
            new_value = log_likelihood(new)
            gain = new_value - value + (log_law(law, new) - log_law(law, at) if walks else 0.0)
            up = jnp.log(jax.random.uniform(accept, gain.shape)) < gain
            at, value = jnp.where(up[:, None], new, at), jnp.where(up, new_value, value)
        return at, value

    def new_points(rng_key: Any, gibbs_sites: Any, hmc_sites: Any) -> dict[str, Any]:
        keys = jax.random.split(rng_key, 3)
        at, log_weight = gibbs_sites["points"], gibbs_sites["log_weight"]
        law, who = law_of(hmc_sites), jnp.arange(len(at))
        chosen = jax.random.categorical(keys[0], log_weight + log_law(law, at))
        own, own_weight = at[who, chosen], log_weight[who, chosen]
        own, value = moved(keys[1], law, own, own_weight + density.log_prob(own))
        new_at, new_weight = draw(keys[2], FRESH)

        def renewed(old: Any, mine: Any, new: Any) -> Any:
            # Who leaves depends on no value: the chosen one changes places with the first, then the last ones go.
            stay = old.at[who, chosen].set(old[:, 0])[:, 1 : POINTS - FRESH]
            return jnp.concatenate([mine[:, None], new, stay], axis=1)

        return {
            "points": renewed(at, own, new_at),
            "log_weight": renewed(log_weight, value - density.log_prob(own), new_weight),
        }

    # An initial strategy does not reach what is not NUTS's own: points are handed over with the run.
    first = jax.vmap(lambda key: draw(key, POINTS))(jax.random.split(jax.random.PRNGKey(seed), chains))
    spread = {"spread": unit, "corr": found.root / unit[:, None]} if number > 1 else {"spread": unit}
    nuts = infer.NUTS(
        model,
        target_accept_prob=target_accept,
        dense_mass=True,
        init_strategy=infer.init_to_value(values=spread),  # the mean begins anywhere
    )
    kernel = infer.HMCGibbs(nuts, gibbs_fn=new_points, gibbs_sites=["points", "log_weight"])
    return kernel, dict(zip(("points", "log_weight"), first, strict=True))


def _density(fit: PeopleFit, middle: Array, covariance: Array, jnp: Any, dist: Any) -> Any:
    """Return what points of people are drawn from: as wide as is known of each, and so of all people."""
    law = fit.population.law
    middles = np.stack([middle, np.broadcast_to(law.mean, middle.shape)], axis=1)
    roots = np.linalg.cholesky(
        np.stack([covariance, np.broadcast_to(law.covariance * _WIDER**2, covariance.shape)], axis=1)
    )
    parts = dist.MultivariateStudentT(_FREEDOM, jnp.asarray(middles), jnp.asarray(roots))
    return dist.MixtureSameFamily(dist.Categorical(jnp.array([1 - _FROM_ALL, _FROM_ALL])), parts)
