"""The clip range: its values, its gradient at ties, and where it must run."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import ClipRange
from tests.helpers.optional import torch

SETTINGS = settings(derandomize=True, deadline=None, max_examples=100)
CLIP = ClipRange(-1.5, 2.0)


@SETTINGS
@given(
    x=st.lists(st.floats(allow_nan=False), min_size=1),
    low=st.floats(-5, 0) | st.just(-np.inf),
    high=st.floats(0, 5) | st.just(np.inf),
)
def test_clips_to_the_range(x, low, high):
    """The result is min(max(x, low), high), lies in the range, and is x where the range contains x."""
    clip = ClipRange(low, high)
    result = clip.clip(x)
    assert result.tolist() == [min(max(value, low), high) for value in x]
    assert clip.contains(result).all()
    np.testing.assert_array_equal(clip.contains(x), result == x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_one_on_the_closed_range(dtype):
    """A log-ratio on a bound keeps its gradient, one beyond has none, nan stays nan, infinity has gradient 0."""
    up, down = np.nextafter(np.float32(2), np.float32(np.inf)), np.nextafter(np.float32(-1.5), np.float32(-np.inf))
    x = torch.tensor(
        [-1.5, 2.0, 0.0, 1.0, float(up), float(down), 9.0, -9.0, torch.inf, -torch.inf, torch.nan],
        dtype=dtype,
        requires_grad=True,
    )
    result = CLIP.clip(x)
    result.sum().backward()
    assert result.dtype == dtype
    assert result.tolist()[:10] == [-1.5, 2.0, 0.0, 1.0, 2.0, -1.5, 2.0, -1.5, 2.0, -1.5]
    assert result[10].isnan()
    assert x.grad.tolist()[:10] == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_bounds_that_float32_cannot_hold_are_ties_at_their_rounded_value():
    """A float32 log-ratio that equals the rounded bound keeps its gradient and its value."""
    clip = ClipRange(float(np.log(0.2)), float(np.log(5.0)))
    x = torch.tensor([clip.low, clip.high], dtype=torch.float32, requires_grad=True)
    result = clip.clip(x)
    result.sum().backward()
    assert torch.equal(result, x)
    assert x.grad.tolist() == [1, 1]


def test_gradient_is_the_derivative():
    """Autograd agrees with finite differences away from the bounds."""
    x = torch.tensor([-3.0, -1.0, 0.0, 1.9, 2.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(CLIP.clip, (x,))


def test_integers_become_floats_first():
    """Integer arrays are clipped to 1.5, not to its integer part; scalars and lists are accepted."""
    assert ClipRange(-1.5, 1.5).clip(np.array([3, -3, 1])).tolist() == [1.5, -1.5, 1.0]
    assert ClipRange(-1.5, 1.5).clip(torch.tensor([3, -3, 1])).tolist() == [1.5, -1.5, 1.0]
    assert ClipRange(-1.5, 1.5).clip(3) == 1.5
    assert ClipRange(-1.5, 1.5).clip([3, 0]).tolist() == [1.5, 0.0]


def test_numpy_and_torch_agree():
    """Both kinds give the same values and verdicts, keep float32 and return their own kind."""
    x = np.linspace(-4, 4, 81)
    for dtype in (np.float32, np.float64):
        ours, tensor = CLIP.clip(x.astype(dtype)), CLIP.clip(torch.tensor(x.astype(dtype)))
        assert ours.dtype == tensor.numpy().dtype == dtype
        np.testing.assert_array_equal(tensor.numpy(), ours)
        np.testing.assert_array_equal(
            CLIP.contains(torch.tensor(x.astype(dtype))).numpy(), CLIP.contains(x.astype(dtype))
        )


def test_works_under_vmap_and_compiles_to_shapes():
    """No value is read: clip and contains map, have a gradient under vmap, and run on the meta device."""
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 3
    assert torch.equal(torch.func.vmap(CLIP.clip)(x), CLIP.clip(x))
    assert torch.equal(torch.func.vmap(CLIP.contains)(x), CLIP.contains(x))
    slopes = torch.func.vmap(torch.func.grad(lambda row: CLIP.clip(row).sum()))(x)
    assert torch.equal(slopes, CLIP.contains(x).float())
    meta = CLIP.clip(torch.empty(2, 3, device="meta", dtype=torch.float32))
    assert (meta.shape, meta.dtype, meta.device.type) == ((2, 3), torch.float32, "meta")


def test_nan_is_not_contained():
    """The verdict is closed at both bounds and False for nan."""
    assert CLIP.contains([-1.5, 2.0, np.nan, 2.1, -1.6]).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0.1, 1.0, "low must be <= 0 nats, so that a log-ratio of 0 is left alone; got 0.1"),
        (-1.0, -0.1, "high must be >= 0 nats, so that a log-ratio of 0 is left alone; got -0.1"),
        (float("nan"), 1.0, "low must be <= 0 nats, so that a log-ratio of 0 is left alone; got nan"),
    ],
)
def test_refuses_ranges_without_zero(low, high, message):
    """A range that leaves out 0 would move the log-ratio of padding."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ClipRange(low, high)
    with pytest.raises(TypeError, match=r"^low must be one real number"):
        ClipRange("-1", 1)
