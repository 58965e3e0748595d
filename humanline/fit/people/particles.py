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

#: Prior of the law's mean, in nats, about the usual values.
MEAN_SPREAD = 2.0
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

    All is counted from the mean of the estimated law, in its root: there a person is ``z``, the law's mean ``shift``
    and its precision ``A A'``.

    Parameters
    ----------
    fit : PeopleFit
        Its anchor is the prior of the covariance; otherwise it says where q lies and in whose units steps are taken.
    target_accept : float in (0, 1)
    chains : int
    seed : int
        Of the first points.

    Notes
    -----
    Source: Andrieu, Doucet and Holenstein (2010), Journal of the Royal Statistical Society B 72, for particle Gibbs,
    here with the choice of points summed out where the law moves.
    """
    jax, numpyro = importlib.import_module("jax"), importlib.import_module("numpyro")
    jnp, dist, infer = jax.numpy, numpyro.distributions, importlib.import_module("numpyro.infer")
    law, anchor, people, number = fit.population.law, fit.population.anchor, len(fit.people), len(fit.names)
    whitener = np.linalg.inv(law.root)
    middle, covariance = moments(fit.population.points, fit.integrated.share)
    middle, covariance = law.whitened(middle), whitener @ covariance @ whitener.T
    density = _density(middle, covariance, jnp, dist)
    walk = jnp.asarray(np.linalg.cholesky(covariance)) * (2.38 / np.sqrt(number))
    usual = Straight(fit.own.everyone).there(starting_points(fit.own.everyone, 1, 0)[0])
    prior = dist.WishartCholesky(
        anchor.people, rate_matrix=jnp.asarray(anchor.people * anchor.spread**2 * whitener @ whitener.T)
    )
    likelihood = traced_likelihood(fit.own)

    def natural(z: Any) -> Any:
        return law.mean + z @ law.root.T

    def draw(key: Any, many: int) -> tuple[Any, Any]:
        z = density.sample(key, (many,))
        log_weight = jax.lax.map(lambda each: likelihood(natural(each)), z) - density.log_prob(z)
        return jnp.swapaxes(z, 0, 1), log_weight.T

    def log_law(sites: Any, z: Any) -> Any:
        white = (z - sites["shift"]) @ sites["root"]
        return -(white**2).sum(-1) / 2 + jnp.log(jnp.diag(sites["root"])).sum()

    def model() -> None:
        flat = dist.ImproperUniform(dist.constraints.real, (), (number,))
        sites = {"shift": numpyro.sample("shift", flat), "root": numpyro.sample("root", prior)}
        mean = numpyro.deterministic("mean", natural(sites["shift"]))
        numpyro.factor("mean_prior", dist.Normal(usual, MEAN_SPREAD).log_prob(mean).sum())
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), (people, POINTS, number)))
        log_weight = numpyro.sample("log_weight", dist.ImproperUniform(dist.constraints.real, (), (people, POINTS)))
        numpyro.factor("people", jax.nn.logsumexp(log_weight + log_law(sites, z), axis=-1).sum())
        axes = law.root @ jax.scipy.linalg.solve_triangular(sites["root"], jnp.eye(number), lower=True).T
        numpyro.deterministic("covariance", axes @ axes.T)
        numpyro.deterministic("at", natural(z[:, 0]))

    def moved(key: Any, sites: Any, z: Any, value: Any) -> tuple[Any, Any]:
        """Move one point of each person by two of Metropolis's steps: a random one, and a draw from the law."""
        for each, walks in zip(jax.random.split(key), (True, False), strict=True):
            step, accept = jax.random.split(each)
            noise = jax.random.normal(step, z.shape)
            if walks:
                new = z + (walk @ noise[:, :, None])[:, :, 0]
            else:
                new = sites["shift"] + jax.scipy.linalg.solve_triangular(sites["root"], noise.T, lower=True, trans=1).T
            new_value = likelihood(natural(new))
            gain = new_value - value + (log_law(sites, new) - log_law(sites, z) if walks else 0.0)
            up = jnp.log(jax.random.uniform(accept, gain.shape)) < gain
            z, value = jnp.where(up[:, None], new, z), jnp.where(up, new_value, value)
        return z, value

    def new_points(rng_key: Any, gibbs_sites: Any, hmc_sites: Any) -> dict[str, Any]:
        keys = jax.random.split(rng_key, 3)
        z, log_weight, who = gibbs_sites["z"], gibbs_sites["log_weight"], jnp.arange(people)
        chosen = jax.random.categorical(keys[0], log_weight + log_law(hmc_sites, z))
        own, own_weight = z[who, chosen], log_weight[who, chosen]
        own, value = moved(keys[1], hmc_sites, own, own_weight + density.log_prob(own))
        new_z, new_weight = draw(keys[2], FRESH)

        def renewed(old: Any, mine: Any, new: Any) -> Any:
            # Who leaves depends on no value: the chosen one changes places with the first, then the last ones go.
            stay = old.at[who, chosen].set(old[:, 0])[:, 1 : POINTS - FRESH]
            return jnp.concatenate([mine[:, None], new, stay], axis=1)

        new_own_weight = value - density.log_prob(own)
        return {"z": renewed(z, own, new_z), "log_weight": renewed(log_weight, new_own_weight, new_weight)}

    # An initial strategy does not reach what is not NUTS's own: points are handed over with the run.
    first = jax.vmap(lambda key: draw(key, POINTS))(jax.random.split(jax.random.PRNGKey(seed), chains))
    nuts = infer.NUTS(
        model,
        target_accept_prob=target_accept,
        dense_mass=True,
        init_strategy=infer.init_to_value(values={"root": jnp.eye(number)}),  # the mean begins anywhere
    )
    kernel = infer.HMCGibbs(nuts, gibbs_fn=new_points, gibbs_sites=["z", "log_weight"])
    return kernel, dict(zip(("z", "log_weight"), first, strict=True))


def _density(middle: Array, covariance: Array, jnp: Any, dist: Any) -> Any:
    """Return what points of people are drawn from: as wide as is known of each, and wider than all people."""
    number = middle.shape[1]
    middles = np.stack([middle, np.zeros_like(middle)], axis=1)
    wide = np.broadcast_to(_WIDER**2 * np.eye(number), covariance.shape)
    roots = np.linalg.cholesky(np.stack([covariance, wide], axis=1))
    parts = dist.MultivariateStudentT(_FREEDOM, jnp.asarray(middles), jnp.asarray(roots))
    return dist.MixtureSameFamily(dist.Categorical(jnp.array([1 - _FROM_ALL, _FROM_ALL])), parts)
