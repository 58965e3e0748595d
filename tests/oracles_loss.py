"""Slow second opinions on the losses: plain Python loops over lists, written from the equations. Imports no humanline.

Every function takes nested lists of floats and a nested list of bools and returns a float.
"""

from __future__ import annotations

import math

Matrix = list[list[float]]
Mask = list[list[bool]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def sequence_sum(row: list[float], keep: list[bool]) -> float:
    return math.fsum(value for value, counts in zip(row, keep, strict=True) if counts)


def dpo(chosen: Matrix, rejected: Matrix, chosen_mask: Mask, rejected_mask: Mask, beta: float) -> float:
    """Eq. 6, averaged over pairs."""
    losses = []
    for c, r, cm, rm in zip(chosen, rejected, chosen_mask, rejected_mask, strict=True):
        losses.append(-math.log(sigmoid(beta * sequence_sum(c, cm) - beta * sequence_sum(r, rm))))
    return math.fsum(losses) / len(losses)


def conservative_dpo(
    chosen: Matrix, rejected: Matrix, chosen_mask: Mask, rejected_mask: Mask, beta: float, smoothing: float
) -> float:
    """DPO where each label is wrong with a probability, averaged over pairs."""
    losses = []
    for c, r, cm, rm in zip(chosen, rejected, chosen_mask, rejected_mask, strict=True):
        right = sigmoid(beta * sequence_sum(c, cm) - beta * sequence_sum(r, rm))
        losses.append(-(1 - smoothing) * math.log(right) - smoothing * math.log(1 - right))
    return math.fsum(losses) / len(losses)


def ipo(
    chosen: Matrix, rejected: Matrix, chosen_mask: Mask, rejected_mask: Mask, tau: float, length_normalised: bool
) -> float:
    """Eq. 17 of arXiv 2310.12036, averaged over pairs; of sequence log-ratios or of their means over tokens."""
    losses = []
    for c, r, cm, rm in zip(chosen, rejected, chosen_mask, rejected_mask, strict=True):
        won, lost = sequence_sum(c, cm), sequence_sum(r, rm)
        if length_normalised:
            won, lost = won / sum(cm), lost / sum(rm)
        losses.append((won - lost - 1 / (2 * tau)) ** 2)
    return math.fsum(losses) / len(losses)


def apo_zero(chosen: Matrix, rejected: Matrix, chosen_mask: Mask, rejected_mask: Mask, beta: float) -> float:
    """1 more than Eq. 7 of arXiv 2408.06266, averaged over pairs."""
    losses = []
    for c, r, cm, rm in zip(chosen, rejected, chosen_mask, rejected_mask, strict=True):
        won, lost = sequence_sum(c, cm), sequence_sum(r, rm)
        losses.append(1 - sigmoid(beta * won) + sigmoid(beta * lost))
    return math.fsum(losses) / len(losses)


def apo_down(chosen: Matrix, rejected: Matrix, chosen_mask: Mask, rejected_mask: Mask, beta: float) -> float:
    """1 more than Eq. 8 of arXiv 2408.06266, averaged over pairs."""
    losses = []
    for c, r, cm, rm in zip(chosen, rejected, chosen_mask, rejected_mask, strict=True):
        won, lost = sequence_sum(c, cm), sequence_sum(r, rm)
        losses.append(sigmoid(beta * won) + 1 - sigmoid(beta * (won - lost)))
    return math.fsum(losses) / len(losses)


def kto(
    ratios: Matrix, mask: Mask, desirable: list[bool], z_0: float, beta: float, weight_d: float, weight_u: float
) -> float:
    """Eq. 7, averaged over examples."""
    losses = []
    for row, keep, good in zip(ratios, mask, desirable, strict=True):
        z = sequence_sum(row, keep)
        value = weight_d * sigmoid(beta * (z - z_0)) if good else weight_u * sigmoid(beta * (z_0 - z))
        losses.append((weight_d if good else weight_u) - value)
    return math.fsum(losses) / len(losses)


def kto_z_0(ratios: Matrix, mask: Mask) -> float:
    zs = [sequence_sum(row, keep) for row, keep in zip(ratios, mask, strict=True)]
    return max(0.0, math.fsum(zs) / len(zs))


def bco(ratios: Matrix, mask: Mask, desirable: list[bool], beta: float) -> float:
    """The loss of arXiv 2404.04656, averaged over examples, its shift the mean reward of them all."""
    rewards = [beta * sequence_sum(row, keep) for row, keep in zip(ratios, mask, strict=True)]
    shift = math.fsum(rewards) / len(rewards)
    chances = [
        sigmoid(r - shift) if good else 1 - sigmoid(r - shift) for r, good in zip(rewards, desirable, strict=True)
    ]
    return -math.fsum(map(math.log, chances)) / len(chances)


def grpo(
    ratios: Matrix, mask: Mask, advantages: list[float], kl_ratios: Matrix, clip_eps: float, kl_coef: float
) -> float:
    """Eq. 1 with a minus sign, averaged over the tokens of the batch."""
    terms = []
    for row, keep, a, kl_row in zip(ratios, mask, advantages, kl_ratios, strict=True):
        for value, counts, kl_value in zip(row, keep, kl_row, strict=True):
            if counts:
                r = math.exp(value)
                clipped = min(max(r, 1 - clip_eps), 1 + clip_eps)
                kl = math.exp(-kl_value) + kl_value - 1
                terms.append(min(r * a, clipped * a) - kl_coef * kl)
    return -math.fsum(terms) / len(terms)


def advantages(scores: list[float], group: list[int], std: str, eps: float) -> list[float]:
    result = []
    for score, own in zip(scores, group, strict=True):
        members = [s for s, g in zip(scores, group, strict=True) if g == own]
        mean = math.fsum(members) / len(members)
        if max(members) - min(members) <= 1e-15:
            result.append(0.0)
            continue
        if std == "none":
            result.append(score - mean)
            continue
        squares = math.fsum((s - mean) ** 2 for s in members)
        count = len(members) if std == "population" else len(members) - 1
        result.append((score - mean) / (math.sqrt(squares / count) + eps))
    return result


def _next_token(hidden: list[float], head: Matrix, temperature: float, softcap: float | None) -> list[float]:
    logits = [math.fsum(h * w for h, w in zip(hidden, row, strict=True)) for row in head]
    if softcap is not None:
        logits = [softcap * math.tanh(x / softcap) for x in logits]
    logits = [x / temperature for x in logits]
    top = max(logits)
    return [x - top - math.log(math.fsum(math.exp(y - top) for y in logits)) for x in logits]


def token_logprob(hidden: list[float], head: Matrix, label: int, temperature: float, softcap: float | None) -> float:
    return _next_token(hidden, head, temperature, softcap)[label]


def token_kl(
    hidden: list[float],
    head: Matrix,
    other_hidden: list[float],
    other_head: Matrix,
    temperature: float,
    softcap: float | None,
) -> float:
    p, q = _next_token(hidden, head, temperature, softcap), _next_token(other_hidden, other_head, temperature, softcap)
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
