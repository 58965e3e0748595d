"""Were answers drawn from a policy's own law, at temperature 1 and from the whole distribution? A number that says no.

A server that is asked for temperature 1 may go by settings of its own: a top-k of the model's generation settings, a
penalty on repetition, a temperature of the command line, other weights. What it then gives is no answer of the policy,
and a mean over such answers is no divergence, though every request was answered. With p the policy and p_T the same
policy at another temperature,

    odds_T = product over answers and tokens of p_T(y_t | ..) / p(y_t | ..)

has mean 1 if the answers are p's, whatever p is, however answers end and however few they are, and so has the mean of
these over fixed T: it exceeds 1 / `CHANCE` at most so often (Markov's inequality). Cut tails make answers likelier
than the policy's own, as a lower temperature does, and other weights less likely, as a higher one. Temperatures near 1
are left out: what rounding changes of a law is smaller than what they stand for.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from humanline.objectives import token_logprobs
from humanline.train.online.types import SamplerError

TEMPERATURES = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)
CHANCE = 1e-6  # that answers of the policy's own law are refused


class OwnLaw:
    """Log-probabilities of answers (`TokenLogprobs`), and on the way the log odds that they come from other laws.

    Attributes
    ----------
    log_odds : (T,) float64 tensor
        Of each of `TEMPERATURES` against 1, nats, added up over all tokens that count so far.
    """

    def __init__(self) -> None:
        self.log_odds = torch.zeros(len(TEMPERATURES), dtype=torch.float64)

    def __call__(
        self, hidden: Tensor, head_weight: Tensor, labels: Tensor, *, temperature: float = 1.0, **how: Any
    ) -> Tensor:
        """Return the log-probabilities (nats) at a temperature, and add the odds of others beside it."""
        own = token_logprobs(hidden, head_weight, labels, temperature=temperature, **how)
        for place, other in enumerate(TEMPERATURES):
            tempered = token_logprobs(hidden, head_weight, labels, temperature=temperature * other, **how)
            self.log_odds[place] += float((tempered - own).double().sum())
        return own


def refuse_other_law(log_odds: Tensor, tokens: int, advice: str) -> None:
    """Refuse answers that were not drawn from the policy's own law.

    Parameters
    ----------
    log_odds : (T,) float64 tensor
        Of all answers (`OwnLaw`).
    tokens : int
        Of all answers.
    advice : str
        What is to be done.

    Raises
    ------
    SamplerError
        If the mean of the odds is above 1 / `CHANCE`, or no number.
    """
    mean = float(torch.logsumexp(log_odds, 0)) - math.log(len(log_odds))
    if mean <= -math.log(CHANCE):
        return
    likeliest = TEMPERATURES[int(log_odds.argmax())]
    how = "likelier" if likeliest < 1 else "less likely"
    raise SamplerError(
        f"the answers that evaluation.distance has drawn are not the policy's own at temperature 1: their {tokens:,} "
        f"tokens are {how} than such are, exp({mean:.4g}) times as probable at other temperatures, most at "
        f"{likeliest:g}. {advice}"
    )
