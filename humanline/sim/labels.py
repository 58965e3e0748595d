"""Labels that are not the truth: a judge who adds noise, and who now and then ranks a group the wrong way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from humanline import _checks
from humanline.sim.world import between, settle


@dataclass(frozen=True)
class Judge:
    """Describe who scores the groups that training sees; what is measured stays the true score.

    A group is judged once, when it is written: further passes over it see the same labels. The proxy that a judge may
    look at in place of the true score is a part of the problem (``proxy`` of Bandit and Sequences).

    Parameters
    ----------
    noise : float >= 0
        Standard deviation of the normal noise added to each score, in the score's units (graded scores have a standard
        deviation of 1 over all responses; scores of right and wrong are 1 and 0, and no two tie any more).
    wrong : float in [0, 1]
        Probability that a group is ranked upside down, ``lowest + highest - score``: for two responses, that their
        comparison is wrong. 1/2 says nothing about the score, except where groups of more have skewed scores.
    """

    noise: float = 0.0
    wrong: float = 0.0

    def __post_init__(self) -> None:
        settle(self, noise=_checks.non_negative, wrong=between(0))

    def label(
        self, scores: Tensor, noises: Sequence[np.random.Generator], errors: Sequence[np.random.Generator]
    ) -> Tensor:
        """Return the labels of some groups.

        Parameters
        ----------
        scores : (S, B, G) tensor
        noises, errors : S generators each
            Asked for G normal numbers and one uniform number a group, in the order of the groups.

        Returns
        -------
        (S, B, G) tensor
            `scores` itself if the judge makes no mistake.
        """
        if self.noise:
            drawn = np.stack([rng.standard_normal(scores.shape[1:]) for rng in noises])
            scores = scores + self.noise * torch.from_numpy(drawn)
        if self.wrong:
            drawn = np.stack([rng.random(scores.shape[1]) for rng in errors])
            turned = torch.from_numpy(drawn < self.wrong)[..., None]
            scores = torch.where(turned, scores.amin(-1, keepdim=True) + scores.amax(-1, keepdim=True) - scores, scores)
        return scores
