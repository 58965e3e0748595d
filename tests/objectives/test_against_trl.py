"""The losses against numbers that TRL's own loss code gives for the same token log-probabilities.

The numbers are of TRL 0.24.0, the last one with all of these losses as functions of given log-probabilities:
`DPOTrainer.dpo_loss`, fed with sums over the answers (for `ipo length_normalised` with means, as its trainer does), and
`BCOTrainer.bco_loss` at its first step. They are one loss a pair, or an answer, at beta = 0.5. TRL is not needed here.
"""

from __future__ import annotations

import pytest
import torch

from humanline import objectives

# Of each pair the chosen and the rejected answer, each with the policy's and the reference's token log-probabilities.
PAIRS = [
    (([-1.94, -1.42, -0.92], [-1.84, -1.29, -1.58]), ([-0.36, -0.7], [-1.16, -0.58])),
    (([-0.91], [-0.35]), ([-0.71, -1.24, -0.96, -0.88], [-0.81, -0.41, -1.33, -1.57])),
    (([-0.42, -1.35], [-0.22, -1.05]), ([-0.45, -1.12], [-1.18, -1.36])),
    (([-1.49, -0.46, -1.62, -1.26], [-0.39, -0.31, -0.96, -1.84]), ([-1.14], [-0.96])),
]
# The loss, its settings besides beta, and what TRL says of each pair.
OF_PAIRS = {
    "dpo": ("dpo_loss", {}, [0.7575990353171691, 0.9401987229081252, 1.126707882594405, 1.021418210069915]),
    "dpo label_smoothing 0.1": (
        "dpo_loss",
        {"label_smoothing": 0.1},
        [0.7450990353171691, 0.8956987229081252, 1.0532078825944051, 0.9639182100699151],
    ),
    "dpo label_smoothing 0.3": (
        "dpo_loss",
        {"label_smoothing": 0.3},
        [0.7200990353171691, 0.8066987229081252, 0.906207882594405, 0.8489182100699149],
    ),
    "ipo": ("ipo_loss", {}, [1.5625, 3.5721, 6.1009, 4.6225]),
    "ipo length_normalised": (
        "ipo_loss",
        {"length_normalised": True},
        [1.432011111111111, 2.69780625, 3.010225, 1.32825625],
    ),
    "apo_zero": ("apo_zero_loss", {}, [1.0306466197842892, 1.1107028920894573, 1.1811043556859884, 1.137897848287416]),
    "apo_down": ("apo_down_loss", {}, [1.0847532765248744, 1.0399035596890962, 1.1137250268401426, 0.979533423658518]),
}


def padded(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-ratios of one answer of each pair, nan where it has no token, and their mask."""
    ratios, mask = torch.full((4, 4), torch.nan, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.bool)
    for row, pair in enumerate(PAIRS):
        policy, ref = (torch.tensor(one, dtype=torch.float64) for one in pair[side])
        ratios[row, : len(policy)], mask[row, : len(policy)] = policy - ref, True
    return ratios, mask


# Of all chosen answers and the first two rejected ones.
BCO = [0.556841823929753, 0.7985971508666407, 0.7822074238729926, 1.0283641427537122, 0.9245341736022271]
BCO += [0.8226642451048095]


def test_bco_is_that_of_trl():
    """Desirable and undesirable answers cost what TRL's trainer of BCO says, around the mean of them all."""
    (chosen, chosen_mask), (rejected, rejected_mask) = padded(0), padded(1)
    ratios, mask = torch.cat([chosen, rejected[:2]]), torch.cat([chosen_mask, rejected_mask[:2]])
    desirable = torch.tensor([True] * 4 + [False] * 2)
    loss, metrics = objectives.bco_loss(ratios, mask=mask, desirable=desirable, beta=0.5)
    assert float(loss) == pytest.approx(sum(BCO) / 6, rel=1e-7)  # TRL rounds the mean to float32
    assert 0.5 * float(metrics["reference_point"]) == pytest.approx(-0.07916666567325592, rel=1e-6)
    for row in range(6):
        one = {"mask": mask[[row]], "desirable": desirable[[row]], "reference_point": metrics["reference_point"]}
        assert float(objectives.bco_loss(ratios[[row]], **one, beta=0.5)[0]) == pytest.approx(BCO[row], rel=1e-7)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_losses_of_pairs_are_those_of_trl(name):
    """Each pair costs what TRL's trainer of DPO says, and the batch costs their mean."""
    loss, settings, expected = OF_PAIRS[name]
    (chosen, chosen_mask), (rejected, rejected_mask) = padded(0), padded(1)

    def cost(rows: slice) -> float:
        masks = {"chosen_mask": chosen_mask[rows], "rejected_mask": rejected_mask[rows]}
        return float(getattr(objectives, loss)(chosen[rows], rejected[rows], **masks, beta=0.5, **settings)[0])

    assert [cost(slice(row, row + 1)) for row in range(4)] == pytest.approx(expected, rel=1e-12)
    assert cost(slice(None)) == pytest.approx(sum(expected) / 4, rel=1e-12)
