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

#: Priors, in nats: the standard deviation of the law's mean about the usual values, and the scale of the half-normal of
#: people's spread. Of shapes (capacities, curvatures, loss aversion), and of what says how carefully people answer.
SHAPES, CARE = (0.75, 0.5), (2.0, 1.0)
_NAMES_OF_CARE = ("sensitivity", "noise", "lapse")
#: Points of each person, and how many of them are drawn anew between two steps of the law.
POINTS, FRESH = 128, 6
#: Points come from multivariate t; so many of them from one that is wider than all people.
_FREEDOM, _FROM_ALL, _WIDER = 4.0, 0.15, 1.5
#: With pilot draws, so many come from t about some of the person's own, that much narrower than these are spread; the
#: rest in equal parts from t as wide as those, and as wide as the fit had it.
_ABOUT_PILOT, _CENTRES, _NARROWER = 0.5, 12, 0.5
_LEAST = 1e-3  # in spreads of the law, of what pilot draws are spread: none of them may be without any
#: Steps of one coordinate alone that a person's chosen point tries between two steps of the law.
ALONE = 2


def people_kernel(
    fit: PeopleFit, *, target_accept: float, chains: int, seed: int, pilot: Array | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return numpyro's kernel for people and their law (`HMCGibbs`, with `NUTS` for the law), and where chains begin.

    Each person has points ``x_s`` from a fixed density q, weighted by ``w_s = likelihood(x_s) / q(x_s)``. Given them
    the law has density ``prior(law) prod_i sum_s w_is law(x_is)``, smooth and of few dimensions. Given the law, one
    point of each person is chosen with probability ``~ w_s law(x_s)``, tries steps by Metropolis's rule, and stays;
    some others are drawn anew. The chosen points follow the exact posterior, however few points there are. The fewer
    they are, the less the law may move between renewals; each renewal costs likelihoods. So there are many points, of
    which few are renewed: the law is nearly free, and what it owes to the points wears off.

    Where q is small, as where a gamma lies beyond its bound and responses say nothing of it, one point may outweigh all
    others for long. So the chosen one tries a step in all directions, near or far, and some of one coordinate alone,
    drawn from the law given the others: where responses say nothing of that coordinate such a step is always taken.

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
    pilot : (D, P, K) array, optional
        Straight coordinates of people in an earlier run, which say where q should lie; by default the fit says it.

    Notes
    -----
    Source: Andrieu, Doucet and Holenstein (2010), Journal of the Royal Statistical Society B 72, for particle Gibbs,
    here with the choice of points summed out where the law moves.
    """
    jax, numpyro = importlib.import_module("jax"), importlib.import_module("numpyro")
    jnp, dist, infer = jax.numpy, numpyro.distributions, importlib.import_module("numpyro.infer")
    law, anchor, people, number = fit.population.law, fit.population.anchor, len(fit.people), len(fit.names)
    whitener = np.linalg.inv(law.root)
    density, covariance = points_density(fit, pilot)
    walk = jnp.asarray(np.linalg.cholesky(covariance)) * (2.38 / np.sqrt(number))
    usual = Straight(fit.own.everyone).there(starting_points(fit.own.everyone, 1, 0)[0])
    prior = dist.WishartCholesky(
        anchor.people, rate_matrix=jnp.asarray(anchor.people * anchor.spread**2 * whitener @ whitener.T)
    )
    priors = np.array([CARE if name in _NAMES_OF_CARE else SHAPES for name in fit.names])
    likelihood = traced_likelihood(fit.own)

    def natural(z: Any) -> Any:
        return law.mean + z @ law.root.T

    rows, columns = np.tril_indices(number)

    def with_products(z: Any) -> Any:
        """Return coordinates and their products: of those logarithms of normal densities are linear."""
        return jnp.concatenate([z, z[..., rows] * z[..., columns] * np.where(rows == columns, 0.5, 1.0)], axis=-1)

    def draw(key: Any, many: int) -> tuple[Any, Any]:
        z = density.sample(key, (many,))
        log_weight = jax.lax.map(lambda each: likelihood(natural(each)), z) - density.log_prob(z)
        return with_products(jnp.swapaxes(z, 0, 1)), log_weight.T

    def log_law(sites: Any, points: Any) -> Any:
        precision = sites["root"] @ sites["root"].T
        slope = precision @ sites["shift"]
        constant = jnp.log(jnp.diag(sites["root"])).sum() - sites["shift"] @ slope / 2
        return points @ jnp.concatenate([slope, -precision[rows, columns]]) + constant

    def model() -> None:
        flat = dist.ImproperUniform(dist.constraints.real, (), (number,))
        sites = {"shift": numpyro.sample("shift", flat), "root": numpyro.sample("root", prior)}
        mean = numpyro.deterministic("mean", natural(sites["shift"]))
        numpyro.factor("mean_prior", dist.Normal(usual, priors[:, 0]).log_prob(mean).sum())
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), (people, POINTS, number + len(rows))))
        log_weight = numpyro.sample("log_weight", dist.ImproperUniform(dist.constraints.real, (), (people, POINTS)))
        numpyro.factor("people", jax.nn.logsumexp(log_weight + log_law(sites, z), axis=-1).sum())
        axes = law.root @ jax.scipy.linalg.solve_triangular(sites["root"], jnp.eye(number), lower=True).T
        between = numpyro.deterministic("covariance", axes @ axes.T)
        numpyro.factor("spread_prior", -(jnp.diag(between) / priors[:, 1] ** 2).sum() / 2)
        numpyro.deterministic("at", natural(z[:, 0, :number]))

    steps = _steps(
        lambda z: likelihood(natural(z)), lambda sites, z: log_law(sites, with_products(z)), walk, whitener.T
    )

    def new_points(rng_key: Any, gibbs_sites: Any, hmc_sites: Any) -> dict[str, Any]:
        keys = jax.random.split(rng_key, 3)
        z, log_weight, who = gibbs_sites["z"], gibbs_sites["log_weight"], jnp.arange(people)
        chosen = jax.random.categorical(keys[0], log_weight + log_law(hmc_sites, z))
        own, own_weight = z[who, chosen], log_weight[who, chosen]
        place, value = own[:, :number], own_weight + density.log_prob(own[:, :number])
        place, value = steps(keys[1], hmc_sites, place, value)
        own, own_weight = with_products(place), value - density.log_prob(place)
        new_z, new_weight = draw(keys[2], FRESH)

        def renewed(old: Any, mine: Any, new: Any) -> Any:
            # Who leaves depends on no value: the chosen one changes places with the first, then the last ones go.
            stay = old.at[who, chosen].set(old[:, 0])[:, 1 : POINTS - FRESH]
            return jnp.concatenate([mine[:, None], new, stay], axis=1)

        return {"z": renewed(z, own, new_z), "log_weight": renewed(log_weight, own_weight, new_weight)}

    # An initial strategy does not reach what is not NUTS's own: points are handed over with the run.
    first = jax.vmap(lambda key: draw(key, POINTS))(jax.random.split(jax.random.PRNGKey(seed), chains))
    nuts = infer.NUTS(
        model,
        target_accept_prob=target_accept,
        dense_mass=[("root", "shift")],
        inverse_mass_matrix={("root", "shift"): jnp.asarray(_law_covariance(fit))},
        adapt_mass_matrix=False,  # what a short warmup would find of so many numbers is worse
        init_strategy=infer.init_to_value(values={"root": jnp.eye(number)}),  # the mean begins anywhere
    )
    kernel = infer.HMCGibbs(nuts, gibbs_fn=new_points, gibbs_sites=["z", "log_weight"])
    return kernel, dict(zip(("z", "log_weight"), first, strict=True))


def _steps(likelihood: Any, log_law: Any, walk: Any, alone: Any) -> Any:
    """Return the function that lets each person's point try steps by Metropolis's rule.

    Parameters
    ----------
    likelihood : callable
        From places (P, K) to log-likelihoods (P,).
    log_law : callable
        From a law's sites and places to log-densities (P,), but for a constant.
    walk : (P, K, K) array
        Root of the covariance of a step in all directions; each is a random number of times as long.
    alone : (K, K) array
        In each row a step of one coordinate alone.

    Returns
    -------
    callable
        From a key, a law's sites, places and log-likelihoods to both anew.
    """
    jax = importlib.import_module("jax")
    jnp, alone = jax.numpy, jax.numpy.asarray(alone)
    people, number = walk.shape[:2]

    def taken(key: Any, at: tuple[Any, Any], step: Any, log_rest: Any) -> tuple[Any, Any]:
        place, value = at
        tried = place + step
        new_value = likelihood(tried)
        up = jnp.log(jax.random.uniform(key, value.shape)) < new_value - value + log_rest(tried) - log_rest(place)
        return jnp.where(up[:, None], tried, place), jnp.where(up, new_value, value)

    def steps(key: Any, sites: Any, place: Any, value: Any) -> tuple[Any, Any]:
        first, *others = jax.random.split(key, 1 + ALONE)
        of_size, of_step, of_rule = jax.random.split(first, 3)
        size = jnp.exp(jax.random.normal(of_size, (people, 1)))
        step = size * (walk @ jax.random.normal(of_step, place.shape)[:, :, None])[:, :, 0]
        at = taken(of_rule, (place, value), step, lambda z: log_law(sites, z))
        for each in others:
            of_axis, of_length, of_rule = jax.random.split(each, 3)
            axis = alone[jax.random.randint(of_axis, (people,), 0, number)]
            slope = axis @ sites["root"] @ sites["root"].T
            bend = (slope * axis).sum(-1)
            length = jax.random.normal(of_length, (people,)) / jnp.sqrt(bend)
            length = length - (slope * (at[0] - sites["shift"])).sum(-1) / bend
            at = taken(of_rule, at, length[:, None] * axis, lambda z: 0.0)  # drawn from the law, which cancels
        return at

    return steps


def points_density(fit: PeopleFit, pilot: Array | None = None) -> tuple[Any, Array]:
    """Return numpyro's density that points of people are drawn from, and people's own covariances, (P, K, K).

    A mixture of multivariate t, in spreads of the law: as wide as is known of each person, and wider than all people.
    What is known is the fit's; with pilot draws (D, P, K) also theirs, which follow a person's long and bent ways.
    """
    law, number = fit.population.law, len(fit.names)
    whitener = np.linalg.inv(law.root)
    middle, covariance = moments(fit.population.points, fit.integrated.share)
    middle, covariance = law.whitened(middle), whitener @ covariance @ whitener.T
    parts = [(_FROM_ALL, np.zeros_like(middle), np.broadcast_to(_WIDER**2 * np.eye(number), covariance.shape))]
    if pilot is None:
        parts.append((1 - _FROM_ALL, middle, covariance))
    else:
        found = law.whitened(pilot).swapaxes(0, 1)
        mean = found.mean(1)
        spread = np.stack([np.cov(each, rowvar=False) for each in found]) + _LEAST**2 * np.eye(number)
        rest = (1 - _FROM_ALL - _ABOUT_PILOT) / 2
        parts += [(rest, middle, covariance), (rest, mean, spread)]
        narrow = _NARROWER**2 * spread
        parts += [(_ABOUT_PILOT / _CENTRES, each, narrow) for each in _along(found, spread)]
        covariance = spread
    return _mixture(parts), covariance


def _along(draws: Array, covariances: Array) -> list[Array]:
    """Return some draws of each person, (P, K) each, at equal shares of them along the person's longest way."""
    longest = np.linalg.eigh(covariances)[1][:, :, -1]
    order = np.argsort(np.einsum("pdk,pk->pd", draws, longest), axis=1)
    places = ((np.arange(_CENTRES) + 0.5) / _CENTRES * draws.shape[1]).astype(int)
    return [draws[np.arange(len(draws)), order[:, place]] for place in places]


def _mixture(parts: list[tuple[float, Array, Array]]) -> Any:
    """Return numpyro's mixture, for each person, of multivariate t of some weights, middles and covariances."""
    jnp, dist = importlib.import_module("jax").numpy, importlib.import_module("numpyro").distributions
    weights, middles, covariances = zip(*parts, strict=True)
    roots = np.linalg.cholesky(np.stack(covariances, axis=1))
    each = dist.MultivariateStudentT(_FREEDOM, jnp.asarray(np.stack(middles, axis=1)), jnp.asarray(roots))
    return dist.MixtureSameFamily(dist.Categorical(jnp.array(weights)), each)


def _law_covariance(fit: PeopleFit) -> Array:
    """Return what is known before of the covariance of the law's numbers, as NUTS has them: its steps are in its units.

    The covariance of laws that might be, as they were drawn and as they are weighted: more of that the more of them
    carry weight.
    """
    law, found = fit.population.law, fit.integrated
    whitener = np.linalg.inv(law.root)
    vectors = []
    for each in found.laws:
        root = np.linalg.cholesky(np.linalg.inv(whitener @ each.covariance @ whitener.T))
        below = root[np.tril_indices(len(root), -1)]
        vectors.append(np.concatenate([below, np.log(np.diag(root)), law.whitened(each.mean)]))
    weighted, drawn = (np.cov(np.transpose(vectors), aweights=each) for each in (found.weight, None))
    trust = found.effective / (found.effective + len(drawn))
    return np.asarray(trust * weighted + (1 - trust) * drawn)
