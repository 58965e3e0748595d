"""What labelled answers are held against: reference points, from sums of sequence log-ratios over a whole step."""

from __future__ import annotations

from torch import Tensor

from humanline import _checks
from humanline._shapes import Float


def kto_reference_point(z_sum: Float[Tensor, "*shape"], count: int) -> Float[Tensor, "*shape"]:
    """Return KTO's z_0: the mean of mismatched sequence log-ratios, not below 0 and without gradient.

    Parameters
    ----------
    z_sum : 0-d tensor
        Sum of the mismatched pairs' sequence log-ratios over the whole step and all ranks, nats.
    count : int
        Their number.

    Raises
    ------
    ValueError
        If there is no mismatched pair.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 7 (z_0) and the text after it.
    """
    if count < 1:
        raise _checks.fail("the number of mismatched pairs", "be >= 1", count)
    return (z_sum.detach() / count).clamp(min=0)
