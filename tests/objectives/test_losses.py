"""The losses against oracles written from the equations, and what must leave them unchanged."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from humanline.objectives import (
    apo_down_loss,
    apo_zero_loss,
    bco_loss,
    bco_reference_point,
    dpo_loss,
    grpo_loss,
    ipo_loss,
    kto_loss,
    kto_reference_point,
    nll_loss,
)
from humanline.theory import ClipRange
from tests import oracles_loss as oracle

B, T = 5, 7


def batch(seed: int, rows: int = B, width: int = T, scale: float = 1.0):
    """Random float64 log-ratios and a ragged mask with at least one True a row."""
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    return values, torch.arange(width)[None, :] < lengths[:, None]


def dpo(values, mask, other, other_mask, **options):
    return dpo_loss(values, other, chosen_mask=mask, rejected_mask=other_mask, **{"beta": 0.3, **options})


def ipo(values, mask, other, other_mask, **options):
    return ipo_loss(values, other, chosen_mask=mask, rejected_mask=other_mask, **{"beta": 0.3, **options})


def apo_zero(values, mask, other, other_mask, **options):
    return apo_zero_loss(values, other, chosen_mask=mask, rejected_mask=other_mask, **{"beta": 0.3, **options})


def apo_down(values, mask, other, other_mask, **options):
    return apo_down_loss(values, other, chosen_mask=mask, rejected_mask=other_mask, **{"beta": 0.3, **options})


def kto(values, mask, **options):
    settings = {"desirable": torch.arange(len(values)) % 2 == 0, "beta": 0.3, "reference_point": 0.4} | options
    return kto_loss(values, mask=mask, **settings)


def bco(values, mask, **options):
    settings = {"desirable": torch.arange(len(values)) % 2 == 0, "beta": 0.3} | options
    return bco_loss(values, mask=mask, **settings)


def grpo(values, mask, **options):
    advantages = torch.linspace(-1.5, 1.2, len(values), dtype=values.dtype)
    settings = {"advantages": advantages, "kl_log_ratio": 1.3 * values, "clip_eps": 0.2, "kl_coef": 0.05} | options
    return grpo_loss(values, mask=mask, **settings)


GOOD = torch.tensor([True, True, False, False, True])
SCORES = torch.linspace(-1.5, 1.2, B, dtype=torch.float64)


def rejected(call):
    """A loss of pairs whose rejected answers are made of the chosen ones."""
    return lambda values, mask, _, **more: call(values, mask, -0.4 * values.flip(1) + 0.1, mask.flip(1), **more)


# Each as a function of values, mask and the numbers of the rows among all of a batch; and what it is a mean over.
LOSSES = {
    "nll": (lambda values, mask, _, **more: nll_loss(values, mask=mask, **more), "tokens"),
    "dpo": (rejected(dpo), "rows"),
    "conservative dpo": (rejected(partial(dpo, label_smoothing=0.2)), "rows"),
    "ipo": (rejected(ipo), "rows"),
    "ipo length_normalised": (rejected(partial(ipo, length_normalised=True)), "rows"),
    "apo_zero": (rejected(apo_zero), "rows"),
    "apo_down": (rejected(apo_down), "rows"),
    "kto": (lambda values, mask, rows, **more: kto(values, mask, desirable=GOOD[rows], **more), "rows"),
    "bco": (
        lambda values, mask, rows, **more: bco(values, mask, desirable=GOOD[rows], reference_point=0.4, **more),
        "rows",
    ),
    "grpo": (lambda values, mask, rows, **more: grpo(values, mask, advantages=SCORES[rows], **more), "tokens"),
}
each_loss = pytest.mark.parametrize("name", LOSSES)


def loss_of(name, values, mask, rows=None, **more):
    """A loss and its metrics, of all rows of a batch or of some."""
    return LOSSES[name][0](values, mask, torch.arange(len(values)) if rows is None else rows, **more)


class TestOracles:
    @pytest.mark.parametrize("seed", range(5))
    def test_dpo_is_equation_6(self, seed):
        """The DPO loss equals Eq. 6 computed in plain Python."""
        (c, cm), (r, rm) = batch(seed), batch(seed + 100, width=9)
        expected = oracle.dpo(c.tolist(), r.tolist(), cm.tolist(), rm.tolist(), 0.3)
        assert dpo(c, cm, r, rm)[0].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)

    @pytest.mark.parametrize("label_smoothing", [0.1, 0.49])
    @pytest.mark.parametrize("seed", range(5))
    def test_label_smoothing_is_a_share_of_swapped_pairs(self, seed, label_smoothing):
        """Conservative DPO costs what DPO does, on average over pairs of which such a share is swapped."""
        (c, cm), (r, rm) = batch(seed), batch(seed + 100, width=9)
        given = c.tolist(), r.tolist(), cm.tolist(), rm.tolist(), 0.3
        expected = oracle.conservative_dpo(*given, label_smoothing)
        value = dpo(c, cm, r, rm, label_smoothing=label_smoothing)[0].item()
        assert value == pytest.approx(expected, rel=1e-10, abs=1e-10)
        swapped = dpo(r, rm, c, cm)[0].item()
        parts = (1 - label_smoothing) * dpo(c, cm, r, rm)[0].item() + label_smoothing * swapped
        assert value == pytest.approx(parts, rel=1e-10)

    def test_label_smoothing_bounds_the_margin(self):
        """Conservative DPO draws the margin to where its sigmoid is 1 less the smoothing, from both sides."""
        mask = torch.ones(1, 1, dtype=torch.bool)
        for margin, sign in ((math.log(4) - 0.1, -1), (math.log(4), 0), (math.log(4) + 0.1, 1)):
            z = torch.tensor([[margin / 0.3]], dtype=torch.float64, requires_grad=True)
            dpo(z, mask, torch.zeros_like(z), mask, label_smoothing=0.2)[0].backward()
            assert z.grad.item() == pytest.approx(0, abs=1e-12) if sign == 0 else z.grad.item() * sign > 0

    @pytest.mark.parametrize(
        "label_smoothing,margin,expected,slope",
        [
            (0, math.inf, 0, 0),
            (0, -math.inf, math.inf, -0.3),
            (0.2, math.inf, math.inf, 0.06),
            (0.2, -math.inf, math.inf, -0.24),
        ],
    )
    def test_an_infinite_margin_costs_nothing_or_all(self, label_smoothing, margin, expected, slope):
        """A token that the reference held impossible makes no loss nan: it is 0 or infinite, its gradient finite."""
        z, mask = torch.tensor([[margin]], dtype=torch.float64, requires_grad=True), torch.ones(1, 1, dtype=torch.bool)
        loss = dpo(z, mask, torch.zeros_like(z), mask, label_smoothing=label_smoothing)[0]
        loss.backward()
        assert (loss.item(), z.grad.item()) == (expected, pytest.approx(slope, abs=1e-12))

    @pytest.mark.parametrize("length_normalised", [False, True])
    @pytest.mark.parametrize("seed", range(5))
    def test_ipo_is_equation_17_of_its_paper(self, seed, length_normalised):
        """The IPO loss equals Eq. 17 of arXiv 2310.12036 computed in plain Python, of sums and of means."""
        (c, cm), (r, rm) = batch(seed), batch(seed + 100, width=9)
        expected = oracle.ipo(c.tolist(), r.tolist(), cm.tolist(), rm.tolist(), 0.3, length_normalised)
        value = ipo(c, cm, r, rm, length_normalised=length_normalised)[0]
        assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)

    def test_ipo_rests_where_the_difference_is_half_of_one_by_beta(self):
        """At a difference of 1 / (2 beta) the loss is 0 and the margin 1/2; a larger one costs as much as a smaller."""
        at, mask = torch.tensor([[1 / 0.6]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
        loss, metrics = ipo(at, mask, 0 * at, mask)
        assert (loss.item(), metrics["margin"].item()) == pytest.approx((0.0, 0.5), abs=1e-12)
        above, below = (ipo(at + d, mask, 0 * at, mask)[0].item() for d in (0.7, -0.7))
        assert above == pytest.approx(below, rel=1e-12) and above > 0

    def test_an_answer_without_tokens_has_mean_nothing(self):
        """Length-normalised IPO of pairs that are masked throughout is finite, with a gradient of 0."""
        values, nothing = batch(0)[0].requires_grad_(), torch.zeros(B, T, dtype=torch.bool)
        loss = ipo(values, nothing, values, nothing, length_normalised=True)[0]
        assert loss.item() == pytest.approx((1 / 0.6) ** 2) and not torch.autograd.grad(loss, values)[0].any()

    @pytest.mark.parametrize("seed", range(5))
    def test_apo_zero_is_equation_7_of_its_paper(self, seed):
        """The APO-zero loss is 1 above Eq. 7 of arXiv 2408.06266 computed in plain Python."""
        (c, cm), (r, rm) = batch(seed), batch(seed + 100, width=9)
        expected = oracle.apo_zero(c.tolist(), r.tolist(), cm.tolist(), rm.tolist(), 0.3)
        assert apo_zero(c, cm, r, rm)[0].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)

    @pytest.mark.parametrize("seed", range(5))
    def test_apo_down_is_equation_8_of_its_paper(self, seed):
        """The APO-down loss is 1 above Eq. 8 of arXiv 2408.06266 computed in plain Python."""
        (c, cm), (r, rm) = batch(seed), batch(seed + 100, width=9)
        expected = oracle.apo_down(c.tolist(), r.tolist(), cm.tolist(), rm.tolist(), 0.3)
        assert apo_down(c, cm, r, rm)[0].item() == pytest.approx(expected, rel=1e-10, abs=1e-10)

    def test_apo_down_begins_with_the_rejected_answer(self):
        """Where policy and reference are equal APO-down has no gradient on the chosen answer; then it lowers both."""
        mask = torch.ones(1, 1, dtype=torch.bool)
        for rejected, begun in ((0.0, False), (-2.0, True)):
            c, r = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), rejected, dtype=torch.float64)
            loss = apo_down(c.requires_grad_(), mask, r.requires_grad_(), mask)[0]
            of_chosen, of_rejected = (gradient.item() for gradient in torch.autograd.grad(loss, (c, r)))
            assert of_rejected > 0 and (of_chosen > 0 if begun else of_chosen == 0)

    def test_means_of_clipped_log_ratios_may_not_reach_the_target_of_ipo(self):
        """Clipped to 1.5 nats each way, means differ by 3 at most: IPO rests 2 short of the 5 of beta 0.1."""
        clip, mask = ClipRange(-1.5, 1.5), torch.ones(1, 4, dtype=torch.bool)
        z = torch.full((1, 4), 40.0, dtype=torch.float64, requires_grad=True)
        loss = ipo(clip.clip(z), mask, clip.clip(-z), mask, beta=0.1, length_normalised=True)[0]
        assert loss.item() == pytest.approx(4) and not torch.autograd.grad(loss, z)[0].any()

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("desirable", ["mixed", "all", "none"])
    def test_bco_is_cross_entropy_around_the_mean(self, seed, desirable):
        """BCO is the cross-entropy of labels around the batch's mean, also where a batch lacks one label."""
        z, m = batch(seed)
        good = {"mixed": [True, False, True, True, False], "all": [True] * B, "none": [False] * B}[desirable]
        expected = oracle.bco(z.tolist(), m.tolist(), good, 0.3)
        loss, metrics = bco(z, m, desirable=torch.tensor(good))
        assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
        point = bco_reference_point(torch.where(m, z, 0).sum(), B)
        assert metrics["reference_point"].item() == pytest.approx(point.item(), rel=1e-12)
        given = bco(z, m, desirable=torch.tensor(good), reference_point=point)[0]
        assert given.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)

    def test_no_gradient_through_the_mean_of_bco(self):
        """The mean that BCO is computed around moves the loss and carries no gradient."""
        values, mask = batch(1)
        own, given = (values.clone().requires_grad_() for _ in range(2))
        bco(own, mask)[0].backward()
        bco(given, mask, reference_point=float(torch.where(mask, values, 0).sum() / B))[0].backward()
        torch.testing.assert_close(own.grad, given.grad, rtol=1e-12, atol=1e-15)

    def test_the_mean_over_no_token_is_nan_and_its_share_is_nothing(self):
        """GRPO of a batch that is masked throughout is nan without a denominator, and 0 with one; its gradient is 0."""
        values = batch(0)[0].requires_grad_()
        nothing = torch.zeros_like(values, dtype=torch.bool)
        for denominator, holds in ((None, torch.isnan), (7, torch.logical_not)):
            loss, metrics = grpo(values, nothing, denominator=denominator)
            assert all(holds(value) for value in (loss, *metrics.values()))
            assert torch.equal(torch.autograd.grad(loss, values)[0], torch.zeros_like(values))
        assert "nan" in grpo_loss.__doc__

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("desirable", ["mixed", "all", "none"])
    def test_kto_is_equation_7(self, seed, desirable):
        """The KTO loss with z_0 from a mismatched batch equals Eq. 7, also where a batch lacks one label."""
        (z, m), (kl, km) = batch(seed), batch(seed + 100, rows=4, width=3)
        good = {"mixed": [True, False, True, True, False], "all": [True] * B, "none": [False] * B}[desirable]
        value = kto(
            z,
            m,
            desirable=torch.tensor(good),
            reference_point=None,
            kl_log_ratio=kl,
            kl_mask=km,
            desirable_weight=1.1,
            undesirable_weight=0.7,
        )[0]
        z_0 = oracle.kto_z_0(kl.tolist(), km.tolist())
        expected = oracle.kto(z.tolist(), m.tolist(), good, z_0, 0.3, 1.1, 0.7)
        assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)

    @pytest.mark.parametrize("clip_eps", [0.2, 0.5, 1.0, 4.0])
    @pytest.mark.parametrize("seed", range(5))
    def test_grpo_is_equation_1(self, seed, clip_eps):
        """The GRPO loss equals minus Eq. 1 over the tokens of the batch, with the k3 estimate of the KL term."""
        (z, m), (kl, _) = batch(seed), batch(seed + 100)
        a = torch.linspace(-2, 1, B, dtype=torch.float64)
        expected = oracle.grpo(z.tolist(), m.tolist(), a.tolist(), kl.tolist(), clip_eps, 0.05)
        value = grpo(z, m, advantages=a, kl_log_ratio=kl, clip_eps=clip_eps)[0]
        assert value.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)

    def test_nll_is_the_mean_over_tokens(self):
        """The next-token loss is minus the mean log-probability of the tokens that count."""
        values, mask = batch(0)
        assert nll_loss(values, mask=mask)[0].item() == pytest.approx(-values[mask].mean().item(), rel=1e-12)

    def test_first_dpo_step_is_ln_2(self):
        """Where policy and reference are equal every pair costs ln 2 and the accuracy is one half."""
        zero, mask = torch.zeros(3, 4, dtype=torch.float64), torch.ones(3, 4, dtype=torch.bool)
        loss, metrics = dpo(zero, mask, zero, mask)
        assert loss.item() == pytest.approx(math.log(2), rel=1e-15)
        assert metrics["accuracy"].item() == 0.5

    def test_kl_term_is_k3_of_baseline_minus_policy(self):
        """With no advantage only kl_coef (exp(d) - d - 1), d = log pi_0 - log pi_theta, is left, unclipped."""
        values, mask = torch.tensor([[3.0, -2.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
        loss = grpo(values, mask, advantages=torch.zeros(1, dtype=torch.float64), kl_log_ratio=values, kl_coef=2.0)[0]
        expected = 2.0 * ((math.exp(-3.0) + 3.0 - 1) + (math.exp(2.0) - 2.0 - 1)) / 2
        assert loss.item() == pytest.approx(expected, rel=1e-12)


class TestGradients:
    @each_loss
    def test_gradcheck(self, name):
        """Analytic gradients agree with finite differences in float64."""
        values, mask = batch(3)
        assert torch.autograd.gradcheck(lambda v: loss_of(name, v, mask)[0], values.requires_grad_())

    @pytest.mark.parametrize(
        "ratio,advantage,live", [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False)]
    )
    def test_grpo_keeps_the_unclipped_branch(self, ratio, advantage, live):
        """min(rA, clip(r)A) has a gradient at r > 1 + eps only for A < 0 and at r < 1 - eps only for A > 0."""
        value = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
        mask = torch.ones(1, 1, dtype=torch.bool)
        loss = grpo(value, mask, advantages=torch.tensor([advantage], dtype=torch.float64), kl_coef=0.0)[0]
        loss.backward()
        assert (value.grad.item() != 0) is live

    def test_no_gradient_through_the_reference_point(self):
        """z_0 moves the loss but carries no gradient to the log-ratios it was taken from."""
        values, mask = batch(1)
        kl, kl_mask = batch(2)
        kl = (kl.abs() + 0.1).requires_grad_()
        loss = kto(values.requires_grad_(), mask, reference_point=None, kl_log_ratio=kl, kl_mask=kl_mask)[0]
        loss.backward()
        assert kl.grad is None and values.grad.abs().sum() > 0

    def test_reference_point_is_never_negative(self):
        """z_0 is clamped at 0."""
        assert kto_reference_point(torch.tensor(-3.0), 2).item() == 0.0
        assert kto_reference_point(torch.tensor(3.0), 2).item() == 1.5


class TestInvariance:
    @each_loss
    @pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
    def test_masked_garbage_changes_nothing(self, name, garbage):
        """Nan or inf under a False mask changes neither the loss, nor a metric, nor any gradient."""
        values, mask = batch(4)
        clean = values.clone().requires_grad_()
        dirty = torch.where(mask, values, garbage).requires_grad_()
        results = [loss_of(name, clean, mask), loss_of(name, dirty, mask)]
        for loss, _ in results:
            loss.backward()
        assert results[0][0].item() == results[1][0].item()
        assert {k: v.item() for k, v in results[0][1].items()} == {k: v.item() for k, v in results[1][1].items()}
        assert torch.equal(clean.grad, dirty.grad)

    @each_loss
    def test_padding(self, name):
        """More padding on the right changes nothing."""
        values, mask = batch(5)
        wide = torch.nn.functional.pad(values, (0, 6), value=9.0), torch.nn.functional.pad(mask, (0, 6))
        results = [loss_of(name, v, m)[0].item() for v, m in [(values, mask), wide]]
        assert results[0] == pytest.approx(results[1], rel=1e-12)

    @each_loss
    def test_permutation(self, name):
        """The order of the examples does not matter."""
        values, mask = batch(6)
        order = torch.tensor([3, 1, 4, 0, 2])
        loss = loss_of(name, values[order], mask[order], order)[0].item()
        assert loss == pytest.approx(loss_of(name, values, mask)[0].item(), rel=1e-12)

    @each_loss
    @pytest.mark.parametrize("cuts", [(1, 4), (2, 2, 1), (1, 1, 1, 1, 1)])
    def test_micro_batches_add_up(self, name, cuts):
        """With one global denominator the losses, metrics and gradients of any split sum to those of the whole."""
        values, mask = batch(7)
        denominator = {"tokens": int(mask.sum()), "rows": B}[LOSSES[name][1]]

        def run(v, m, rows):
            return loss_of(name, v, m, rows, denominator=denominator)

        whole = values.clone().requires_grad_()
        loss, metrics = run(whole, mask, torch.arange(B))
        loss.backward()
        parts = values.clone().requires_grad_()
        total, sums = 0.0, dict.fromkeys(metrics, 0.0)
        for rows in torch.arange(B).split(list(cuts)):
            part, part_metrics = run(parts[rows], mask[rows], rows)
            part.backward()
            total += part.item()
            sums = {k: sums[k] + v.item() for k, v in part_metrics.items()}
        assert total == pytest.approx(loss.item(), rel=1e-12)
        assert sums == pytest.approx({k: v.item() for k, v in metrics.items()}, rel=1e-12, abs=1e-15)
        torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-12, atol=1e-15)

    @each_loss
    def test_vmap_over_seeds(self, name):
        """A loss mapped over a leading axis equals a loop over it, value and gradient."""
        many = torch.stack([batch(seed)[0] for seed in range(4)])
        mask = batch(0)[1]
        mapped = torch.func.vmap(torch.func.grad_and_value(lambda v: loss_of(name, v, mask)[0]))(many)
        looped = [torch.func.grad_and_value(lambda v: loss_of(name, v, mask)[0])(v) for v in many]
        torch.testing.assert_close(mapped[0], torch.stack([g for g, _ in looped]), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(mapped[1], torch.stack([v for _, v in looped]), rtol=1e-12, atol=1e-15)


class TestRefusals:
    @pytest.mark.wrong_shapes
    @pytest.mark.parametrize(
        "call,message",
        [
            (lambda v, m: dpo(v, m, v, m, beta=0.0), "beta must be > 0; got 0.0"),
            (lambda v, m: dpo(v, m, v, m, label_smoothing=0.5), r"label_smoothing must be in \[0, 0.5\); got 0.5"),
            (lambda v, m: dpo(v, m, v, m, label_smoothing=-0.1), "label_smoothing must be >= 0; got -0.1"),
            (lambda v, m: dpo(v, m.float(), v, m), "mask must be bool"),
            (lambda v, m: dpo(v, m, v[:2], m[:2]), "rejected_log_ratio's batch must have the shape of"),
            (lambda v, m: dpo(v[:0], m[:0], v[:0], m[:0]), "an empty batch needs a denominator"),
            (lambda v, m: ipo(v, m, v, m, beta=0.0), "beta must be > 0; got 0.0"),
            (lambda v, m: ipo(v, m, v[:2], m[:2]), "rejected_log_ratio's batch must have the shape of"),
            (lambda v, m: ipo(v[:0], m[:0], v[:0], m[:0]), "an empty batch needs a denominator"),
            (lambda v, m: apo_zero(v, m, v, m, beta=-1.0), "beta must be > 0; got -1.0"),
            (lambda v, m: apo_zero(v, m, v, m[:, :2]), "rejected_mask|mask must have the shape of"),
            (lambda v, m: apo_down(v, m, v, m, beta=-1.0), "beta must be > 0; got -1.0"),
            (lambda v, m: apo_down(v, m, v, m[:, :2]), "rejected_mask|mask must have the shape of"),
            (lambda v, m: kto(v, m, desirable=torch.ones(B)), "desirable must be bool"),
            (lambda v, m: kto(v, m, reference_point=None), "exactly one of kl_log_ratio"),
            (lambda v, m: kto(v, m, kl_log_ratio=v, kl_mask=m), "exactly one of kl_log_ratio"),
            (lambda v, m: kto(v, m, reference_point=None, kl_log_ratio=v), "kl_mask must be given"),
            (
                lambda v, m: kto(v, m, reference_point=None, kl_log_ratio=v[:0], kl_mask=m[:0]),
                "the number of mismatched pairs must be >= 1; got 0",
            ),
            (lambda v, m: kto(v, m, desirable_weight=-1), "desirable_weight must be >= 0; got -1"),
            (lambda v, m: bco(v, m, desirable=torch.ones(B)), "desirable must be bool"),
            (lambda v, m: bco(v, m, beta=0.0), "beta must be > 0; got 0.0"),
            (lambda v, m: bco(v, m, reference_point=math.nan), "reference_point must be finite; got nan"),
            (lambda v, m: bco(v[:0], m[:0]), "an empty batch needs a denominator"),
            (lambda v, m: bco_reference_point(v.sum(), 0), "the number of examples must be >= 1; got 0"),
            (lambda v, m: grpo(v, m, clip_eps=0.0), "clip_eps must be > 0; got 0.0"),
            (lambda v, m: grpo(v, m, kl_log_ratio=None), "kl_log_ratio must be given where kl_coef > 0"),
            (lambda v, m: grpo(v, m, advantages=torch.ones(B, 1)), "advantages must have the shape of"),
            (lambda v, m: nll_loss(v, mask=m[:, :2]), "mask must have the shape of logprobs"),
        ],
    )
    def test_bad_arguments_are_named(self, call, message):
        """Every refused argument is named with its rule and its value."""
        with pytest.raises(ValueError, match=message):
            call(*batch(0))


@pytest.mark.wrong_shapes
@pytest.mark.parametrize("shape", [(3,), (3, 1), (1,)])
def test_a_reference_point_or_denominator_of_several_numbers_is_refused(shape):
    """They would be broadcast over the batch: a sum of B x B terms, or a loss of another shape."""
    values, mask = batch(1, 3)
    desirable, several = torch.tensor([True, False, True]), torch.full(shape, 0.3, dtype=torch.float64)
    for loss in (kto_loss, bco_loss):
        given = partial(loss, values, mask=mask, desirable=desirable, beta=0.3)
        given = partial(given, desirable_weight=1.0, undesirable_weight=1.0) if loss is kto_loss else given
        with pytest.raises(ValueError, match=r"^reference_point must have the shape of one number \(\); got"):
            given(reference_point=several)
        with pytest.raises(ValueError, match=r"^denominator must have the shape of one number \(\); got"):
            given(reference_point=several.sum(), denominator=several)
    for denominator in (0, -1, math.nan):
        with pytest.raises(ValueError, match=r"^denominator must be"):
            nll_loss(values, mask=mask, denominator=denominator)


@pytest.mark.wrong_shapes
@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_sequences_have_one_axis_and_tokens_another(shape):
    """With more, the mean would be over the first alone; with one, there is no batch."""
    values, mask = torch.zeros(shape), torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"^chosen_log_ratio must have two axes, \(B, T\); got"):
        dpo_loss(values, values, chosen_mask=mask, rejected_mask=mask, beta=0.1)
    with pytest.raises(ValueError, match=r"^log_ratio must have two axes, \(B, T\); got"):
        bco_loss(values, mask=mask, desirable=torch.ones(shape[:-1], dtype=torch.bool), beta=0.1)
