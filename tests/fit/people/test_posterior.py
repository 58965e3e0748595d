"""The full posterior: likelihoods that JAX traces are those of all fits; chains that did not arrive are an error."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from humanline.fit import Choices, Model, NotConverged
from humanline.fit.parameters import CAPACITIES, VALUES
from humanline.fit.people import Anchor, fit_people, posterior
from humanline.fit.people.own import OwnLikelihoods
from humanline.fit.starts import starting_points
from humanline.fit.straight import Straight
from tests.helpers.choices import problems
from tests.helpers.people import SMALL, crowd

needs_bayes = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jax", "numpyro", "arviz")),
    reason="needs the extra bayes (jax, numpyro, arviz)",
)


def test_without_the_extra_the_error_names_it(monkeypatch):
    """Whoever lacks jax is told what to install."""

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(posterior.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"needs jax: install the extra, humanline\[bayes\]"):
        posterior._libraries()


def test_one_chain_is_refused():
    """A chain that no other can be compared with is refused before anything is sampled."""
    with pytest.raises(ValueError, match="chains must be >= 2"):
        posterior.sample_posterior(None, chains=1)


@pytest.mark.parametrize(("named", "value", "least"), [("warmup", -1, 0), ("draws", 0, 1)])
def test_too_few_draws_are_refused(named, value, least):
    """So are less warmup than none, and no draws, before anything is sampled."""
    with pytest.raises(ValueError, match=f"{named} must be >= {least}"):
        posterior.sample_posterior(None, **{named: value})


#: Priors of gain.gamma and sensitivity, written anew: errors of the mean about usual values, and half-normal spreads.
MEAN_ERRORS, WIDEST = (0.75, 2.0), (0.5, 1.0)

OTHERS = {
    "probit": Model(rule="probit"),
    "lapse": Model(lapse=True),
    "separable, own curvatures": Model(weights="separable", equal={}),
    "contextual": Model(contextual=True, equal={}),
}
#: Values that are fixed, or those of other names, are of outcomes as they are, in whatever size those are counted.
HELD = {
    "fixed loss aversion, own curvatures": Model(equal={}, fixed={"loss_aversion": 2.0}),
    "fixed loss aversion and one curvature": Model(equal={}, fixed={"loss_aversion": 2.0, "loss_curvature": 0.8}),
    "one value for two": Model(equal={"loss.gamma": "loss_aversion"}),
}
FAMILIES = {f"{value} {gain}": Model(value=value, gain=gain) for value in VALUES for gain in CAPACITIES}
EACH = FAMILIES | OTHERS | HELD | {"fixed sensitivity": Model(fixed={"sensitivity": 0.2})}


@needs_bayes
@pytest.mark.slow  # JAX compiles each: some minutes
@pytest.mark.parametrize("kind", ["choices", "choices of their own", "equivalents"])
def test_traced_likelihoods_are_those_of_all_fits(kind, monkeypatch):
    """For every family and rule, value and gradient equal those of `Likelihood` to 1e-9, also beyond a bound.

    People share problems, whose numbers are then judged once a person, or have their own.
    """
    import jax

    from humanline.fit.people import traced as module
    from humanline.fit.people.traced import traced_likelihood

    seen, each_once = [], module._each_once

    def watched(numbers, place, person, people):
        seen.append(people * len(numbers) < len(place))
        return each_once(numbers, place, person, people)

    monkeypatch.setattr(module, "_each_once", watched)
    rng = np.random.default_rng(0)
    people, number = 4, 20
    shared = kind != "choices of their own"
    first, second = problems(rng, number if shared else people * number)
    if not shared:  # no number twice
        first, second = ((z + rng.random(z.shape), p * rng.uniform(0.9, 1, p.shape)) for z, p in (first, second))
        first, second = ((z, p / p.sum(1, keepdims=True)) for z, p in (first, second))
    problem = np.tile(np.arange(number), people) if shared else np.arange(people * number)
    settings = {"problem": problem, "person": np.repeat(np.arange(people), number)}
    if kind != "equivalents":
        data, models = Choices.between(first, second, rng.integers(0, 2, people * number), **settings), EACH
    else:
        data = Choices.equivalents(first, rng.normal(5, 20, people * number), **settings)
        models = {"usual": Model(), "own curvatures": Model(equal={}), **HELD}
    with jax.enable_x64(True):
        for title, model in models.items():
            own = OwnLikelihoods(data, model)
            straight = Straight(own.everyone)
            at = np.array([straight.there(start) for start in starting_points(own.everyone, people, 3)])
            at[0, 0] = own.high[0] + 1
            seen.clear()
            traced = traced_likelihood(own)
            assert seen == [shared] * 4, title
            value, gradient, _ = own.derivatives(at)
            assert np.asarray(traced(at)) == pytest.approx(value, rel=1e-9, abs=1e-9), title
            found = np.asarray(jax.jit(jax.grad(lambda x, f=traced: f(x).sum()))(at))
            assert found == pytest.approx(gradient, rel=1e-7, abs=1e-7 * np.abs(gradient).max()), title


@needs_bayes
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_chains_that_did_not_arrive_make_no_table():
    """After a few steps there is an error that says what is missing, and no posterior."""
    fit = fit_people(crowd(0, 8, 30, SMALL)[0], SMALL)
    with pytest.raises(NotConverged, match="the chains do not agree on a posterior: R-hat is up to"):
        posterior.sample_posterior(fit, chains=2, warmup=5, draws=20)


@needs_bayes
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_sampling_leaves_nothing_compiled():
    """A second call ends with the memory maps of the first, of which a process has few; each compiles thousands."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("memory maps are counted on Linux alone")
    fit, left = fit_people(crowd(0, 8, 30, SMALL)[0], SMALL), []
    for _ in range(2):
        with pytest.raises(NotConverged):
            posterior.sample_posterior(fit, chains=2, warmup=5, draws=20)
        left.append(len(maps.read_text().splitlines()))
    assert left[1] <= left[0] + 500


@needs_bayes
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_full_posterior_is_near_the_pooled_fit():
    """Of two parameters, posterior means lie within half an error of the pooled ones, for nine in ten; bytes repeat."""
    data, _ = crowd(1, 20, 60, SMALL)
    fit = fit_people(data, SMALL)
    full = posterior.sample_posterior(fit, chains=2, warmup=300, draws=400)
    draws = full.coordinates.reshape(-1, 20, 2)
    assert full.rhat <= posterior.MOST_RHAT and full.divergences == 0
    assert np.quantile(np.abs(draws.mean(0) - fit.pooled.coordinates) / draws.std(0), 0.9) < 0.5
    assert np.median(fit.pooled.errors / draws.std(0)) == pytest.approx(1, abs=0.25)
    again = posterior.sample_posterior(fit, chains=2, warmup=300, draws=400)
    assert again.to_dict() == full.to_dict()


@needs_bayes
@pytest.mark.slow  # JAX compiles
def test_the_density_of_a_law_is_the_one_that_is_documented():
    """Of laws given points, differences of log-densities are those of scipy's inverse Wishart, normal and sums."""
    import jax
    from numpyro import handlers
    from numpyro.infer.util import log_density
    from scipy import stats
    from scipy.special import logsumexp

    from humanline.fit.people.particles import people_kernel

    fit = fit_people(crowd(0, 12, 40, SMALL)[0], SMALL, anchor=Anchor(4.0, 0.4))
    law, number = fit.population.law, len(fit.names)
    usual = Straight(fit.own.everyone).there(starting_points(fit.own.everyone, 1, 0)[0])
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        kernel, begin = people_kernel(fit, target_accept=0.8, chains=2, seed=0)
        points = {name: np.asarray(each)[1] for name, each in begin.items()}
        at = law.mean + points["z"][:, :, :number] @ law.root.T
        model = handlers.condition(kernel.inner_kernel.model, points)
        mine, theirs = [], []
        for _ in range(6):
            mean = law.mean + rng.normal(size=number) / 2
            root = np.tril(rng.normal(size=(number, number)) / 2, -1) + np.diag(rng.uniform(1, 4, number))
            covariance = np.linalg.inv(root @ root.T)
            whitened = np.linalg.cholesky(law.root.T @ root @ root.T @ law.root)
            sites = {"shift": np.linalg.solve(law.root, mean - law.mean), "root": whitened}
            mine.append(float(log_density(model, (), {}, sites)[0]))
            logs = stats.multivariate_normal(mean, covariance).logpdf(at) + points["log_weight"]
            inverse_wishart = stats.invwishart(4, 4 * 0.4**2 * np.eye(number)).logpdf(covariance)
            # What a step in the precision's root is worth in the covariance: precision, then its inverse.
            volume = (np.arange(number, 0, -1) * np.log(np.diag(whitened))).sum()
            volume += (number + 1) * np.linalg.slogdet(covariance)[1]
            normal = stats.norm(usual, MEAN_ERRORS).logpdf(mean).sum()
            narrow = stats.halfnorm(scale=WIDEST).logpdf(np.sqrt(np.diag(covariance))).sum()
            theirs.append(logsumexp(logs, axis=1).sum() + inverse_wishart + volume + normal + narrow)
    assert np.ptp(theirs) > 1
    assert np.diff(mine) == pytest.approx(np.diff(theirs), rel=1e-9, abs=1e-9)


@needs_bayes
@pytest.mark.slow  # JAX compiles
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("piloted", [False, True])
def test_points_keep_the_weights_of_their_places(piloted):
    """After many renewals every point has the weight and the products of its place, and none is where one began."""
    import jax
    import numpyro

    from humanline.fit.people import particles

    fit = fit_people(crowd(0, 12, 40, SMALL)[0], SMALL)
    law, number = fit.population.law, len(fit.names)
    pilot = made_pilot(fit) if piloted else None
    with jax.enable_x64(True):
        kernel, begin = particles.people_kernel(fit, target_accept=0.8, chains=1, seed=0, pilot=pilot)
        sampler = numpyro.infer.MCMC(kernel, num_warmup=5, num_samples=40, progress_bar=False)
        first = {name: np.asarray(each)[0] for name, each in begin.items()}
        sampler.run(jax.random.PRNGKey(0), init_params=first)
        found = {name: np.asarray(each) for name, each in sampler.last_state.z.items()}
        z = found["z"][:, :, :number]
        density, _ = particles.points_density(fit, pilot)
        drawn = np.asarray(density.log_prob(np.swapaxes(z, 0, 1))).T
    value = np.stack([fit.own.value(law.mean + z[:, each] @ law.root.T) for each in range(particles.POINTS)], axis=1)
    assert found["log_weight"] == pytest.approx(value - drawn, rel=1e-9, abs=1e-9)
    products = np.stack([z[..., 0] ** 2 / 2, z[..., 1] * z[..., 0], z[..., 1] ** 2 / 2], axis=-1)
    assert found["z"][:, :, number:] == pytest.approx(products, rel=1e-12)
    assert not (z[:, :, None] == first["z"][:, None, :, :number]).all(-1).any()


def made_pilot(fit):
    """Return draws of people that are bent and long, (50, P, K); one person's do not move at all."""
    law, rng = fit.population.law, np.random.default_rng(5)
    z = rng.normal(size=(50, len(fit.people), 2))
    z[..., 1] += z[..., 0] ** 2
    z[:, 0] = 0.3
    return law.mean + z @ law.root.T


@needs_bayes
@pytest.mark.slow
def test_pilot_draws_say_where_points_lie():
    """The density is scipy's sum of multivariate t: 12 about draws along the longest way, three wide ones."""
    import jax
    from scipy import stats
    from scipy.special import logsumexp

    from humanline.fit.people import particles
    from humanline.fit.people.normal import moments

    fit = fit_people(crowd(0, 12, 40, SMALL)[0], SMALL)
    law, pilot = fit.population.law, made_pilot(fit)
    z = np.linalg.solve(law.root, (pilot - law.mean).reshape(-1, 2).T).T.reshape(pilot.shape)
    at = np.random.default_rng(1).normal(size=(7, 12, 2))
    with jax.enable_x64(True):
        density, spread = particles.points_density(fit, pilot)
        found = np.asarray(density.log_prob(at))
    middles, covariances = moments(fit.population.points, fit.integrated.share)
    unit = np.linalg.inv(law.root)
    for person in range(12):
        own = np.cov(z[:, person].T) + 1e-6 * np.eye(2)
        longest = z[:, person] @ np.linalg.eigh(own)[1][:, -1]
        along = z[np.argsort(longest)[[2, 6, 10, 14, 18, 22, 27, 31, 35, 39, 43, 47]], person]
        fits = unit @ (middles[person] - law.mean), unit @ covariances[person] @ unit.T
        parts = [(0.15, np.zeros(2), 1.5**2 * np.eye(2)), (0.175, *fits), (0.175, z[:, person].mean(0), own)]
        parts += [(0.5 / 12, each, own / 4) for each in along]
        logs = [np.log(share) + stats.multivariate_t(m, c, df=4).logpdf(at[:, person]) for share, m, c in parts]
        assert found[:, person] == pytest.approx(logsumexp(logs, axis=0), rel=1e-6)
        assert spread[person] == pytest.approx(own, rel=1e-6, abs=1e-12)


@needs_bayes
@pytest.mark.slow  # JAX compiles
@pytest.mark.parametrize("piloted", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_people_whose_responses_say_nothing_follow_the_law(monkeypatch, piloted):
    """Without likelihoods, chosen points of 200 people have the mean and covariance of a law unlike the estimated one.

    Over people, who are independent: errors within 5 standard errors of a normal sample (Chebyshev: 1 in 25 at most
    for each of five numbers, with this seed none).
    """
    import jax
    from jax import numpy as jnp

    from humanline.fit.people import particles

    fit = fit_people(crowd(0, 200, 12, SMALL)[0], SMALL)
    monkeypatch.setattr(particles, "traced_likelihood", lambda own: lambda at: jnp.zeros(at.shape[0]))
    estimated, shift, covariance = fit.population.law, np.array([0.5, -1.0]), np.array([[0.5, 0.1], [0.1, 0.3]])
    root = np.linalg.cholesky(estimated.root.T @ np.linalg.inv(covariance) @ estimated.root)
    with jax.enable_x64(True):
        pilot = made_pilot(fit) if piloted else None
        kernel, begin = particles.people_kernel(fit, target_accept=0.8, chains=1, seed=0, pilot=pilot)
        sites = {name: each[0] for name, each in begin.items()}
        law = {"shift": jnp.asarray(shift), "root": jnp.asarray(root)}
        new_points = jax.jit(lambda key, sites: kernel._gibbs_fn(rng_key=key, gibbs_sites=sites, hmc_sites=law))
        for key in jax.random.split(jax.random.PRNGKey(0), 60):
            before, sites = sites, new_points(key, sites)
        chosen, same = np.asarray(sites["z"][:, 0, :2]), np.asarray(sites["z"][:, 0] == before["z"][:, 0])
    assert not same.all(-1).any()
    off = chosen @ estimated.root.T - estimated.root @ shift
    assert (np.abs(off.mean(0)) < 5 * np.sqrt(np.diag(covariance) / 200)).all()
    errors = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / 200)
    assert (np.abs(np.cov(off.T) - covariance) < 5 * errors).all()


@needs_bayes
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_another_sampler_finds_the_same_posterior():
    """Plain NUTS on people and law together, its priors written anew, gives the same means, to 5 errors of both."""
    import arviz
    import jax
    import numpyro
    import numpyro.distributions as dist

    from humanline.fit.people.traced import traced_likelihood

    fit = fit_people(crowd(1, 20, 60, SMALL)[0], SMALL)
    full = posterior.sample_posterior(fit, chains=2, warmup=300, draws=1000)
    people, number = len(fit.people), len(fit.names)
    straight = Straight(fit.own.everyone)
    usual = straight.there(starting_points(fit.own.everyone, 1, 0)[0])
    with jax.enable_x64(True):
        likelihood = traced_likelihood(fit.own)

        def model():
            mean = numpyro.sample("mean", dist.Normal(usual, np.array(MEAN_ERRORS)).to_event(1))
            rate = 3 * 0.3**2 * np.eye(number)  # one more than parameters, each .3 away
            root = numpyro.sample("root", dist.WishartCholesky(3.0, rate_matrix=rate))
            law = dist.MultivariateNormal(mean, precision_matrix=root @ root.T)
            variances = jax.numpy.diag(jax.numpy.linalg.inv(root @ root.T))
            numpyro.factor("narrow", -(variances / np.array(WIDEST) ** 2).sum() / 2)
            at = numpyro.sample("at", law.expand([people]).to_event(1))
            numpyro.factor("responses", likelihood(at).sum())

        begin = {"mean": fit.population.law.mean, "root": np.linalg.cholesky(fit.population.law.precision)}
        kernel = numpyro.infer.NUTS(model, init_strategy=numpyro.infer.init_to_value(values=begin))
        sampler = numpyro.infer.MCMC(kernel, num_warmup=500, num_samples=1500, progress_bar=False)
        sampler.run(jax.random.PRNGKey(5))
        other = {name: np.asarray(each)[None] for name, each in sampler.get_samples().items()}
    spread = np.sqrt(np.diagonal(np.linalg.inv(other["root"] @ np.swapaxes(other["root"], -1, -2)), axis1=-2, axis2=-1))
    natural = [fit.own.natural_coordinates(each) for each in other["at"][0]]
    pairs = {
        "mean": (full.mean, other["mean"]),
        "log spread": (np.log(full.spread), np.log(spread)),
        "people": (full.coordinates, np.array(natural)[None]),
    }
    for name, (mine, theirs) in pairs.items():
        errors = [np.asarray(arviz.mcse(arviz.convert_to_dataset(each)).x) for each in (mine, theirs)]
        off = np.abs(mine.mean((0, 1)) - theirs.mean((0, 1))) / np.hypot(*errors)
        assert (off < 5).all(), (name, off.max())


def test_an_anchor_of_nobody_is_no_prior():
    """A covariance that no assumed people keep away from 0 has a prior without an integral, and is refused."""
    fit = fit_people(crowd(0, 12, 40, SMALL)[0], SMALL, anchor=Anchor(1.0))
    with pytest.raises(ValueError, match="people of the anchor must be > 1, or the prior has no integral"):
        posterior.sample_posterior(fit)
