"""Group-relative advantages."""

from __future__ import annotations

import pytest
import torch

from humanline.objectives import group_advantages
from tests import oracles_loss as oracle


@pytest.mark.parametrize("std", ["population", "sample", "none"])
@pytest.mark.parametrize("eps", [0.0, 0.01])
def test_equals_a_loop_over_groups(std, eps):
    """Advantages equal a plain loop over unsorted groups of different sizes."""
    scores = torch.tensor([0.3, -1.0, 2.0, 0.3, 5.0, 0.1, 0.2], dtype=torch.float64)
    group = torch.tensor([7, 3, 7, 7, 3, 9, 9])
    expected = oracle.advantages(scores.tolist(), group.tolist(), std, eps)
    assert group_advantages(scores, group, std=std, eps=eps).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gap", [1e-2, 1.0, 1e3])
def test_pairs_are_plus_and_minus_one(gap):
    """A group of two unequal scores has advantages +1 and -1 whatever the gap."""
    result = group_advantages(torch.tensor([0.5 + gap, 0.5]), torch.tensor([0, 0]))
    assert result.tolist() == pytest.approx([1.0, -1.0], rel=1e-6)


@pytest.mark.parametrize("value", [0.1, -7.3, 1e6, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_up_to_rounding_give_zero(value, dtype):
    """Eight scores that differ by rounding only have advantage exactly 0."""
    scores = torch.full((8,), value, dtype=dtype)
    scores[3] = torch.nextafter(scores[3], torch.tensor(torch.inf, dtype=dtype))
    assert group_advantages(scores, torch.zeros(8, dtype=torch.long)).tolist() == [0.0] * 8


def test_a_group_of_one_gives_zero():
    """A completion without companions has advantage 0 under every convention."""
    for std in ("population", "sample", "none"):
        assert group_advantages(torch.tensor([3.0]), torch.tensor([1]), std=std).item() == 0.0


def test_settings_of_other_code():
    """A gap of .01 gives .33 with HALOs' settings and .707 with the unbiased deviation."""
    scores, group = torch.tensor([0.01, 0.0], dtype=torch.float64), torch.tensor([0, 0])
    assert group_advantages(scores, group, eps=1e-2)[0].item() == pytest.approx(1 / 3, rel=1e-9)
    assert group_advantages(scores, group, std="sample")[0].item() == pytest.approx(0.5**0.5, rel=1e-9)


def test_vmap():
    """Advantages can be mapped over a leading axis of seeds."""
    scores, group = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 1, 2])
    mapped = torch.func.vmap(lambda s: group_advantages(s, group))(scores)
    assert torch.equal(mapped, torch.stack([group_advantages(s, group) for s in scores]))


@pytest.mark.wrong_shapes
@pytest.mark.parametrize(
    "scores,group,options,message",
    [
        (torch.ones(3), torch.zeros(2), {}, "group must have the shape of scores"),
        (torch.ones(3, dtype=torch.long), torch.zeros(3), {}, "scores must be a 1-d floating tensor"),
        (torch.ones(3), torch.zeros(3), {"std": "biased"}, "std must be one of"),
        (torch.ones(3), torch.zeros(3), {"eps": -1.0}, "eps must be >= 0"),
    ],
)
def test_bad_arguments_are_named(scores, group, options, message):
    """Every refused argument is named with its rule and its value."""
    with pytest.raises(ValueError, match=message):
        group_advantages(scores, group, **options)


@pytest.mark.parametrize("std", ["population", "sample", "none"])
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_score_that_is_not_finite_spoils_its_group_for_all_to_see(std, bad):
    """It is nan, where a width of inf had passed for equal scores; other groups are what they were."""
    scores, group = torch.tensor([1.0, bad, 2.0, 1.0]), torch.tensor([0, 0, 1, 1])
    found = group_advantages(scores, group, std=std)
    assert found[:2].isnan().all()
    assert torch.equal(found[2:], group_advantages(scores[2:], group[2:], std=std))


def test_no_scores_have_no_advantages():
    """An empty batch is empty, not an error of torch's."""
    assert group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)
