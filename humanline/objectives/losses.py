"""DPO, IPO, APO, KTO, BCO, GRPO and plain next-token losses as pure functions of log-ratios and a mask.

A loss never sees a model, a reference, a config or a clip range: log-ratios arrive transformed. Every loss and every
metric is a sum over this batch divided by `denominator`, so that adding them up over micro-batches and ranks with one
global denominator gives the loss of the whole step, exactly. Sums are taken in the type that is given: that of float16
ends at 65504, so give float32 in its place (training does).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from humanline import _checks
from humanline._shapes import Bool, Float, Real
from humanline.objectives.log_ratio import fill_masked
from humanline.objectives.loss_metrics import Metrics, averages, gain, labelled_metrics, pair_metrics
from humanline.objectives.reference_point import given_or_mismatched, given_or_own
from humanline.theory import ClipRange

Denominator = Real[Tensor, ""] | float | None


def nll_loss(
    logprobs: Float[Tensor, "B T"], *, mask: Bool[Tensor, "B T"], denominator: Denominator = None
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the negative log-likelihood of next-token training.

    ``-sum_t log pi(y_t) / denominator`` over unmasked tokens.

    Parameters
    ----------
    logprobs : (B, T) floating tensor
        Token log-probabilities, nats.
    mask : (B, T) bool tensor
    denominator : number, optional
        The global token count; None = this batch's own.

    Returns
    -------
    loss : 0-d tensor
        Nats a token.
    metrics : dict
        Empty: the loss says it all.

    Raises
    ------
    ValueError
        If shapes differ, the mask is not bool, or the denominator is a plain number that is not > 0 or a tensor that is
        not one number; the sign of a tensor is not checked (as in all losses).

    Notes
    -----
    Source: not from arXiv 2509.24207; it makes the start model. A batch without a single unmasked token gives nan.
    """
    total = fill_masked(logprobs, mask, "logprobs").sum()
    return -total / _denominator(denominator, mask.sum()), {}


def dpo_loss(
    chosen_log_ratio: Float[Tensor, "B T"],
    rejected_log_ratio: Float[Tensor, "B T2"],
    *,
    chosen_mask: Bool[Tensor, "B T"],
    rejected_mask: Bool[Tensor, "B T2"],
    beta: float,
    label_smoothing: float = 0.0,
    denominator: Denominator = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the DPO loss of preference pairs, or that of conservative DPO.

    ``-(1 - e) log sigmoid(m) - e log sigmoid(-m)`` with m = beta (z_chosen - z_rejected), z the sum of a response's
    token log-ratios and e the label smoothing.

    Parameters
    ----------
    chosen_log_ratio, rejected_log_ratio : (B, T) and (B, T') floating tensors
        Transformed token log-ratios, nats.
    chosen_mask, rejected_mask : bool tensors of the same shapes
        True = the token counts.
    beta : float, > 0
    label_smoothing : float in [0, 0.5)
        The share of pairs that are taken to be labelled the wrong way round; 0 is DPO.
    denominator : number, optional
        The global count of pairs; None = B.

    Returns
    -------
    loss : 0-d tensor
        Nats.
    metrics : dict of 0-d tensors
        ``margin`` (beta times the difference), ``chosen_reward`` and ``rejected_reward`` (implicit, beta z),
        ``accuracy`` (margin > 0; a tie counts one half), ``saturation`` (sigmoid of the margin: 1 minus it, minus
        the label smoothing, is the weight of the pair's gradient).

    Raises
    ------
    ValueError
        If shapes differ, a mask is not bool, beta <= 0, label_smoothing is outside [0, 0.5), or B = 0 without a
        denominator.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 6; the label smoothing is that of Mitchell's note on DPO with noisy preferences, as in
    TRL. An infinite margin of the right sign costs nothing without label smoothing.
    """
    beta, label_smoothing = _checks.positive("beta", beta), _checks.non_negative("label_smoothing", label_smoothing)
    if label_smoothing >= 0.5:
        raise _checks.fail("label_smoothing", "be in [0, 0.5)", label_smoothing)
    z_chosen, z_rejected = _pair_sums(chosen_log_ratio, rejected_log_ratio, chosen_mask, rejected_mask)
    chosen, rejected = beta * z_chosen, beta * z_rejected
    margin, count = chosen - rejected, _denominator(denominator, chosen.shape[0])
    per_pair = pair_metrics(chosen, rejected) | {"saturation": margin.sigmoid()}
    losses = -logsigmoid(margin)
    if label_smoothing > 0:  # 0 times an infinite margin would be nan
        losses = (1 - label_smoothing) * losses - label_smoothing * logsigmoid(-margin)
    return losses.sum() / count, averages(per_pair, count)


def ipo_loss(
    chosen_log_ratio: Float[Tensor, "B T"],
    rejected_log_ratio: Float[Tensor, "B T2"],
    *,
    chosen_mask: Bool[Tensor, "B T"],
    rejected_mask: Bool[Tensor, "B T2"],
    beta: float,
    length_normalised: bool = False,
    denominator: Denominator = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the IPO loss of preference pairs.

    ``(z_chosen - z_rejected - 1 / (2 beta))^2`` with z the sum of a response's token log-ratios, or their mean.

    Parameters
    ----------
    chosen_log_ratio, rejected_log_ratio, chosen_mask, rejected_mask, denominator
        As in `dpo_loss`.
    beta : float, > 0
        The paper's tau: the difference of a pair is drawn to 1 / (2 beta), nats.
    length_normalised : bool
        Take the mean over a response's tokens in place of their sum; beta is then on another scale. A response without
        an unmasked token has mean 0.

    Returns
    -------
    loss : 0-d tensor
        Nats squared.
    metrics : dict of 0-d tensors
        ``margin`` (beta times the difference, which the loss draws to 1/2), ``chosen_reward`` and ``rejected_reward``
        (implicit, beta z), ``accuracy`` (margin > 0; a tie counts one half).

    Raises
    ------
    ValueError
        If shapes differ, a mask is not bool, beta <= 0, or B = 0 without a denominator.

    Notes
    -----
    Source: arXiv 2310.12036, Eq. 17, which has sums. TRL takes means, and says that so did the paper's experiments.
    """
    beta = _checks.positive("beta", beta)
    z_chosen, z_rejected = _pair_sums(chosen_log_ratio, rejected_log_ratio, chosen_mask, rejected_mask)
    if length_normalised:
        z_chosen = z_chosen / chosen_mask.sum(-1).clamp(min=1)
        z_rejected = z_rejected / rejected_mask.sum(-1).clamp(min=1)
    count = _denominator(denominator, z_chosen.shape[0])
    loss = (z_chosen - z_rejected - 1 / (2 * beta)).square().sum() / count
    return loss, averages(pair_metrics(beta * z_chosen, beta * z_rejected), count)


def apo_zero_loss(
    chosen_log_ratio: Float[Tensor, "B T"],
    rejected_log_ratio: Float[Tensor, "B T2"],
    *,
    chosen_mask: Bool[Tensor, "B T"],
    rejected_mask: Bool[Tensor, "B T2"],
    beta: float,
    denominator: Denominator = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the APO-zero loss of preference pairs.

    ``1 - sigmoid(beta z_chosen) + sigmoid(beta z_rejected)`` with z the sum of a response's token log-ratios: it raises
    the chosen response and lowers the rejected one.

    Parameters
    ----------
    chosen_log_ratio, rejected_log_ratio, chosen_mask, rejected_mask, beta, denominator
        As in `dpo_loss`.

    Returns
    -------
    loss : 0-d tensor
        In (0, 2).
    metrics : dict of 0-d tensors
        As `ipo_loss`.

    Raises
    ------
    ValueError
        If shapes differ, a mask is not bool, beta <= 0, or B = 0 without a denominator.

    Notes
    -----
    Source: arXiv 2408.06266, Eq. 7, plus 1 as in TRL.
    """
    beta = _checks.positive("beta", beta)
    z_chosen, z_rejected = _pair_sums(chosen_log_ratio, rejected_log_ratio, chosen_mask, rejected_mask)
    chosen, rejected = beta * z_chosen, beta * z_rejected
    count = _denominator(denominator, chosen.shape[0])
    losses = torch.sigmoid(-chosen) + torch.sigmoid(rejected)
    return losses.sum() / count, averages(pair_metrics(chosen, rejected), count)


def apo_down_loss(
    chosen_log_ratio: Float[Tensor, "B T"],
    rejected_log_ratio: Float[Tensor, "B T2"],
    *,
    chosen_mask: Bool[Tensor, "B T"],
    rejected_mask: Bool[Tensor, "B T2"],
    beta: float,
    denominator: Denominator = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the APO-down loss of preference pairs.

    ``sigmoid(beta z_chosen) + 1 - sigmoid(beta (z_chosen - z_rejected))`` with z the sum of a response's token
    log-ratios: it lowers the chosen response, and the rejected one below it.

    Parameters
    ----------
    chosen_log_ratio, rejected_log_ratio, chosen_mask, rejected_mask, beta, denominator
        As in `dpo_loss`.

    Returns
    -------
    loss : 0-d tensor
        In (0, 2).
    metrics : dict of 0-d tensors
        As `ipo_loss`.

    Raises
    ------
    ValueError
        If shapes differ, a mask is not bool, beta <= 0, or B = 0 without a denominator.

    Notes
    -----
    Source: arXiv 2408.06266, Eq. 8, plus 1 as in TRL. Where policy and reference are equal the chosen response has no
    gradient: it is lowered once the rejected one has fallen.
    """
    beta = _checks.positive("beta", beta)
    z_chosen, z_rejected = _pair_sums(chosen_log_ratio, rejected_log_ratio, chosen_mask, rejected_mask)
    chosen, rejected = beta * z_chosen, beta * z_rejected
    count = _denominator(denominator, chosen.shape[0])
    losses = torch.sigmoid(chosen) + torch.sigmoid(rejected - chosen)
    return losses.sum() / count, averages(pair_metrics(chosen, rejected), count)


def kto_loss(
    log_ratio: Float[Tensor, "B T"],
    *,
    mask: Bool[Tensor, "B T"],
    desirable: Bool[Tensor, " B"],
    kl_log_ratio: Float[Tensor, "K T2"] | None = None,
    kl_mask: Bool[Tensor, "K T2"] | None = None,
    reference_point: Float[Tensor, ""] | float | None = None,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    denominator: Denominator = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the KTO loss of desirable and undesirable examples.

    ``w_y (1 - sigmoid(s beta (z - z_0)))`` with s = +1 for desirable and -1 for undesirable examples, z the sum of
    the token log-ratios and z_0 = max(0, mean over mismatched pairs of their z), which carries no gradient.

    Parameters
    ----------
    log_ratio : (B, T) floating tensor
        Transformed token log-ratios, nats.
    mask : (B, T) bool tensor
    desirable : (B,) bool tensor
    kl_log_ratio, kl_mask : (K, T') tensors, optional
        Transformed log-ratios of mismatched prompts and answers, from which z_0 is taken.
    reference_point : number >= 0, optional
        z_0 itself, nats, where the caller has it (for instance over a whole step). Give this or the KL batch. The
        sign is checked for plain numbers, not for tensors.
    beta : float, > 0
    desirable_weight, undesirable_weight : float, >= 0
    denominator : number, optional
        The global count of examples; None = B.

    Returns
    -------
    loss : 0-d tensor
    metrics : dict of 0-d tensors
        ``desirable_reward`` and ``undesirable_reward`` (beta z summed over that label only, over the common
        denominator), ``accuracy`` (z on its label's side of z_0; a tie counts one half), ``reference_point``
        (z_0 in nats, weighted so that it adds up over micro-batches).

    Raises
    ------
    ValueError
        If shapes differ, a mask is not bool, beta <= 0, a weight or a plain reference_point is negative, both or
        neither of the KL batch and reference_point are given, the KL batch is empty, or B = 0 without a denominator.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 7. The paper's listing clamps the count in place of the KL and counts non-zero
    ratios; here the mean is over the mismatched pairs and clamped at 0. A batch may lack one label.
    """
    beta = _checks.positive("beta", beta)
    weights = [
        _checks.non_negative("desirable_weight", desirable_weight),
        _checks.non_negative("undesirable_weight", undesirable_weight),
    ]
    z, z_0 = _labelled_sums(log_ratio, mask, desirable), given_or_mismatched(reference_point, kl_log_ratio, kl_mask)
    count = _denominator(denominator, z.shape[0])
    saturated = torch.sigmoid(-gain(z, z_0, desirable, beta))
    losses = torch.where(desirable, weights[0] * saturated, weights[1] * saturated)
    return losses.sum() / count, averages(labelled_metrics(z, z_0, desirable, beta), count)


def bco_loss(
    log_ratio: Float[Tensor, "B T"],
    *,
    mask: Bool[Tensor, "B T"],
    desirable: Bool[Tensor, " B"],
    reference_point: Float[Tensor, ""] | float | None = None,
    beta: float,
    denominator: Denominator = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the BCO loss of desirable and undesirable examples.

    ``-log sigmoid(s beta (z - z_0))`` with s = +1 for desirable and -1 for undesirable examples, z the sum of the token
    log-ratios and z_0 a mean of these, which carries no gradient. beta z_0 is the reward shift of the paper, delta.

    Parameters
    ----------
    log_ratio, mask, desirable, denominator
        As in `kto_loss`.
    reference_point : number, optional
        z_0, nats, where the caller has it (for instance over a whole step); None = the mean over this batch.
    beta : float, > 0

    Returns
    -------
    loss : 0-d tensor
        Nats.
    metrics : dict of 0-d tensors
        As `kto_loss`.

    Raises
    ------
    ValueError
        If shapes differ, a mask is not bool, beta <= 0, a plain reference_point is not finite, or B = 0 without a
        denominator.

    Notes
    -----
    Source: arXiv 2404.04656, without its matching of prompts by their density. There delta is the middle of the two
    labels' mean rewards, in TRL a running mean over all steps; here it belongs to a batch, which may lack one label,
    because a reference that moves takes the scale of z with it.
    """
    beta = _checks.positive("beta", beta)
    z = _labelled_sums(log_ratio, mask, desirable)
    count = _denominator(denominator, z.shape[0])
    z_0 = given_or_own(reference_point, z)
    losses = -logsigmoid(gain(z, z_0, desirable, beta))
    return losses.sum() / count, averages(labelled_metrics(z, z_0, desirable, beta), count)


def grpo_loss(
    log_ratio: Float[Tensor, "B T"],
    *,
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    kl_log_ratio: Float[Tensor, "B T"] | None,
    clip_eps: float,
    kl_coef: float,
    denominator: Denominator = None,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Compute the GRPO loss of scored completions.

    ``-min(r A, clip(r, 1 - eps, 1 + eps) A) + kl_coef (exp(d) - d - 1)`` per token, with r = exp(log_ratio) and
    d = log pi_0 - log pi_theta.

    Parameters
    ----------
    log_ratio : (B, T) floating tensor
        Transformed token log-ratios against the reference, nats. Under humanline it has been clipped once already.
    mask : (B, T) bool tensor
    advantages : (B,) floating tensor
        Group-relative advantage of each completion.
    kl_log_ratio : (B, T) floating tensor, or None where kl_coef is 0
        *Untransformed* log-ratio against the baseline, log pi_theta - log pi_0, nats.
    clip_eps : float, > 0
        From 1 on nothing is clipped from below: no ratio is under 0.
    kl_coef : float, >= 0
    denominator : number, optional
        The global count of unmasked tokens; None = this batch's own.

    Returns
    -------
    loss : 0-d tensor
    metrics : dict of 0-d tensors
        ``ratio`` (mean of r), ``inner_clipped`` (share of tokens where the clipped branch is the minimum and has no
        gradient; a token with advantage 0 counts if its ratio is above 1 + eps), ``kl`` (the k3 estimate, nats a
        token; absent where kl_coef is 0).

    Raises
    ------
    ValueError
        If shapes differ, the mask is not bool, clip_eps <= 0, kl_coef < 0, or kl_log_ratio is None while
        kl_coef > 0.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1 (maximised there), normalised over all tokens of the batch as in its section
    C.1.4 and not within each sequence. The clip is a ClipRange applied to the log-ratio. The mean over no token is
    nan: so are the loss and all metrics of a batch that is masked throughout and has no denominator, while its gradient
    is 0. With a denominator all of them are 0.
    """
    clip_eps, kl_coef = _checks.positive("clip_eps", clip_eps), _checks.non_negative("kl_coef", kl_coef)
    _checks.same_shape("advantages", advantages.shape, "log_ratio's batch", log_ratio.shape[:-1])
    log_ratio = fill_masked(log_ratio, mask, "log_ratio")
    count, advantage = _denominator(denominator, mask.sum()), advantages.unsqueeze(-1)
    # min(r A, clip(r) A) clips from above where A >= 0 and from below where A < 0. Written so, the branch that is not
    # taken is never computed, and a ratio too large for its type cannot turn the gradient into nan.
    lowest = math.log1p(-clip_eps) if clip_eps < 1 else -math.inf
    above, below = ClipRange(-math.inf, math.log1p(clip_eps)), ClipRange(lowest, math.inf)
    inner = torch.where(advantage >= 0, above.clip(log_ratio), below.clip(log_ratio))
    objective = inner.exp() * advantage
    per_token = {"ratio": log_ratio.detach().exp(), "inner_clipped": (inner != log_ratio).to(inner.dtype)}
    if kl_coef > 0:
        if kl_log_ratio is None:
            raise ValueError("kl_log_ratio must be given where kl_coef > 0; got None")
        d = -fill_masked(kl_log_ratio, mask, "kl_log_ratio")
        per_token["kl"] = torch.expm1(d) - d
        objective = objective - kl_coef * per_token["kl"]
    metrics = averages({name: fill_masked(value, mask) for name, value in per_token.items()}, count)
    return -fill_masked(objective, mask).sum() / count, metrics


def _pair_sums(
    chosen_log_ratio: Float[Tensor, "B T"],
    rejected_log_ratio: Float[Tensor, "B T2"],
    chosen_mask: Bool[Tensor, "B T"],
    rejected_mask: Bool[Tensor, "B T2"],
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return the sequence log-ratios (B,) of both answers of each pair."""
    _checks.same_shape(
        "rejected_log_ratio's batch", rejected_log_ratio.shape[:-1], "chosen_log_ratio's", chosen_log_ratio.shape[:-1]
    )
    _two_axes("chosen_log_ratio", chosen_log_ratio)
    chosen = fill_masked(chosen_log_ratio, chosen_mask, "chosen_log_ratio").sum(-1)
    return chosen, fill_masked(rejected_log_ratio, rejected_mask, "rejected_log_ratio").sum(-1)


def _labelled_sums(
    log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], desirable: Bool[Tensor, "*shape"]
) -> Float[Tensor, " B"]:
    """Return the sequence log-ratios (B,) of labelled examples."""
    _two_axes("log_ratio", log_ratio)
    _checks.same_shape("desirable", desirable.shape, "log_ratio's batch", log_ratio.shape[:-1])
    if desirable.dtype != torch.bool:
        raise _checks.fail("desirable", "be bool", desirable.dtype)
    return fill_masked(log_ratio, mask, "log_ratio").sum(-1)


def _two_axes(name: str, log_ratio: Float[Tensor, "B T"]) -> None:
    """Raise unless there is one axis of sequences and one of tokens: the batch is what its first axis counts."""
    if log_ratio.ndim != 2:
        raise _checks.fail(name, "have two axes, (B, T)", tuple(log_ratio.shape))


def _denominator(given: Denominator, own: Real[Tensor, ""] | int) -> Real[Tensor, ""] | float:
    if isinstance(given, Tensor):
        _checks.same_shape("denominator", given.shape, "one number", ())
        return given
    if given is not None:
        return _checks.positive("denominator", given)
    if isinstance(own, int) and own == 0:
        raise ValueError("an empty batch needs a denominator")
    return own
