"""The full posterior of people and their law, by Hamiltonian Monte Carlo: the extra `bayes`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.faults import NotConverged
from humanline.fit.people.particles import people_kernel
from humanline.fit.people.result import PeopleFit
from humanline.fit.uncertainty import ParameterInterval, check_confidence

Array = NDArray[np.float64]

#: Chains agree where R-hat of every quantity is below this, and say enough where their effective size is above that.
MOST_RHAT, LEAST_EFFECTIVE = 1.02, 100.0
#: Draws of each chain that say where points of people should lie, before those that are kept.
PILOT = 150


@dataclass(frozen=True, eq=False)
class PeoplePosterior:
    """Hold draws from the posterior of people and their law; `sample_posterior` makes it.

    Parameters
    ----------
    fit : PeopleFit
        Of the same choices and model.
    coordinates : (chains, draws, P, K) array
        Of each person, on the scale of estimation; drawn given the law of the draw before.
    mean : (chains, draws, K) array
        Of the law of straight coordinates.
    spread : (chains, draws, K) array
        Its standard deviations.
    rhat : float
        The largest of all quantities.
    effective : float
        The least effective number of draws of all quantities.
    divergences : int
    seed : int
    """

    fit: PeopleFit
    coordinates: Array
    mean: Array
    spread: Array
    rhat: float
    effective: float
    divergences: int
    seed: int

    def interval(self, person: Any, name: str, *, confidence: float = 0.95) -> ParameterInterval:
        """Return the central interval of a person's parameter, on its natural scale."""
        check_confidence(confidence)
        if person not in self.fit.people:
            raise _checks.unknown("person", str(person), [str(each) for each in self.fit.people[:20]])
        if name not in self.fit.names:
            raise _checks.unknown("free parameter", name, self.fit.names)
        draws = self.coordinates[:, :, self.fit.people.index(person), self.fit.names.index(name)]
        low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
        spec = self.fit.own.everyone.specs[name]
        return ParameterInterval(name, float(spec.natural(low)), float(spec.natural(high)), confidence)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold: each person's posterior mean and error, the law's, and how the chains went."""
        flat = self.coordinates.reshape(-1, *self.coordinates.shape[2:])
        names = self.fit.names
        people = [
            {
                "person": person,
                "mean_coordinates": dict(zip(names, flat[:, place].mean(0).tolist(), strict=True)),
                "coordinate_errors": dict(zip(names, flat[:, place].std(0).tolist(), strict=True)),
            }
            for place, person in enumerate(self.fit.people)
        ]
        law = {
            key: {"mean": each.mean((0, 1)).tolist(), "error": each.std((0, 1)).tolist()}
            for key, each in (("mean_of_coordinates", self.mean), ("spread", self.spread))
        }
        return {
            "model": self.fit.model.to_dict(),
            "free": list(names),
            "seed": self.seed,
            "chains": int(self.coordinates.shape[0]),
            "draws": int(self.coordinates.shape[1]),
            "rhat": self.rhat,
            "least_effective_draws": self.effective,
            "divergences": self.divergences,
            "law": law,
            "people": people,
        }


def sample_posterior(
    fit: PeopleFit, *, chains: int = 4, warmup: int = 150, draws: int = 500, seed: int = 0, target_accept: float = 0.85
) -> PeoplePosterior:
    """Sample the posterior of people's parameters and of their law.

    Each person's straight coordinates are normal about a common mean m with a full covariance C. Priors, in nats::

        m_k ~ normal(usual value_k, a_k),   p(C) ~ inverse Wishart(C; n, n s^2 1) prod_k exp(-C_kk / (2 b_k^2))

    with the n people and spread s of the anchor of the fit (by default one more person than parameters, and .3): what
    keeps a covariance away from singular ones. The other factor, half-normal in each spread, keeps people near one
    another. Of shapes (capacities, curvatures, loss aversion) a = .75 and b = .5; of what says how carefully people
    answer (sensitivity, noise, lapse) a = 2 and b = 1. See Notes.

    Parameters
    ----------
    fit : PeopleFit
        Its anchor is the prior of the covariance, and it says where chains look first.
    chains : int >= 2
        One after the other.
    warmup, draws : int
        Of each chain. Warmup finds the size of steps alone: their directions are known from the fit. After half of it
        150 more are drawn, which say where points of people should lie; with points from there chains begin anew, with
        the other half of the warmup. Neither is kept.
    seed : int
    target_accept : float in (0, 1)
        Higher takes smaller steps.

    Returns
    -------
    PeoplePosterior

    Raises
    ------
    NotConverged
        If R-hat of some quantity is above 1.02, its effective number of draws below 100, or a step diverged.
    ValueError
        If there are fewer than two chains, no draws or a negative warmup, or the anchor is of so few people that the
        prior is none.
    ModuleNotFoundError
        Without the extra `bayes`.

    Notes
    -----
    Source: Hoffman and Gelman (2014), Journal of Machine Learning Research 15, for steps of the law; Andrieu, Doucet
    and Holenstein (2010), Journal of the Royal Statistical Society B 72, for those of people; Vehtari et al. (2021),
    Bayesian Analysis 16, for R-hat and the effective number of draws. In double precision.

    With the default anchor and five parameters the prior has 95 % of spreads of shapes between .24 and .85 nats, half
    below .42, 95 % of spreads of sensitivity between .24 and 1.04, and of people's gammas between .11 and 3.7. Without
    the half-normal one spread in four would be above 1 nat, and few choices do not say that it is not: in one made
    data set of 60 people with 60 choices chains went on long ways to laws with gamma above 2 for one person in three.
    Beyond a bound a parameter has the value of the bound, and responses say nothing.

    At the end JAX forgets whatever it compiled in this process (`jax.clear_caches`), of this or of others, which then
    compile again. What a call leaves would take thousands of memory maps, of which Linux gives a process 65 530.
    """
    if chains < 2:
        raise _checks.fail("chains", "be >= 2, so that they can be compared", chains)
    for name, value, least in (("warmup", warmup, 0), ("draws", draws, 1)):
        if value < least:
            raise _checks.fail(name, f"be >= {least}", value)
    if (anchored := fit.population.anchor.people) <= len(fit.names) - 1:
        raise _checks.fail("people of the anchor", f"be > {len(fit.names) - 1}, or the prior has no integral", anchored)
    jax, numpyro, arviz = _libraries()
    try:
        found, diverged = _sampled(jax, numpyro, fit, chains, warmup, draws, seed, target_accept)
    finally:
        # JAX keeps what it compiles for as long as a process lives, and here it is of no use again.
        jax.clear_caches()
    mean, at = found["mean"], found["at"]
    spread = np.sqrt(np.diagonal(found["covariance"], axis1=-2, axis2=-1))
    looked = arviz.from_dict(posterior={"mean": mean, "spread": spread, "at": at})
    rhat = _extreme(arviz.rhat(looked), np.max)
    effective = _extreme(arviz.ess(looked), np.min)
    if diverged or not rhat <= MOST_RHAT or not effective >= LEAST_EFFECTIVE:
        raise NotConverged(
            f"the chains do not agree on a posterior: R-hat is up to {rhat:.3f} (at most {MOST_RHAT}), the least "
            f"effective number of draws {effective:.0f} (at least {LEAST_EFFECTIVE:.0f}), {diverged} steps diverged "
            f"(none may); take more warmup and draws (now {warmup} and {draws}), or a higher target_accept"
        )
    people, number = at.shape[2:]
    natural = [fit.own.natural_coordinates(each) for each in at.reshape(-1, people, number)]
    return PeoplePosterior(fit, np.reshape(natural, at.shape), mean, spread, rhat, effective, diverged, seed)


def _sampled(
    jax: Any, numpyro: Any, fit: PeopleFit, chains: int, warmup: int, draws: int, seed: int, target_accept: float
) -> tuple[dict[str, Array], int]:
    """Return draws by name, (chains, draws, ...), and how many steps diverged.

    There are two runs, with half of the warmup each. Draws of the first say where points of people lie in the second.
    """

    def run(begin_seed: int, warmup: int, draws: int, pilot: Array | None) -> tuple[dict[str, Array], int]:
        kernel, begin = people_kernel(fit, target_accept=target_accept, chains=chains, seed=begin_seed, pilot=pilot)
        sampler = numpyro.infer.MCMC(
            kernel,
            num_warmup=warmup,
            num_samples=draws,
            num_chains=chains,
            chain_method="sequential",
            progress_bar=False,
        )
        key = jax.random.PRNGKey(begin_seed + 1)
        sampler.run(key, init_params=begin, extra_fields=("hmc_state.diverging", "~z.z", "~z.log_weight"))
        found = {name: np.asarray(each) for name, each in sampler.get_samples(group_by_chain=True).items()}
        return found, int(np.asarray(sampler.get_extra_fields()["hmc_state.diverging"]).sum())

    with jax.enable_x64(True):
        first, _ = run(seed, (warmup + 1) // 2, PILOT, None)
        pilot = first["at"].reshape(-1, *first["at"].shape[2:])
        return run(seed + 2, (warmup + 1) // 2, draws, pilot)


def _libraries() -> tuple[Any, Any, Any]:
    try:
        jax, numpyro, arviz = (importlib.import_module(name) for name in ("jax", "numpyro", "arviz"))
        importlib.import_module("numpyro.infer")
        importlib.import_module("jax.scipy.linalg")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the full posterior needs {error.name}: install the extra, humanline[bayes]", name=error.name
        ) from None
    return jax, numpyro, arviz


def _extreme(dataset: Any, of: Any) -> float:
    """Return the largest, or the least, of a statistic of all quantities; nan if there is one."""
    return float(of([of(np.asarray(each)) for each in dataset.data_vars.values()]))
