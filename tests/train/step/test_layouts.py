"""However a step is cut into micro-batches, by size, by tokens or without padding, its losses are the same."""

from __future__ import annotations

import copy
import random
from itertools import product

import pytest
import torch
from transformers import AutoModelForCausalLM

from humanline.train.config.objective import BetaTransform, ClipTransform
from humanline.train.data.batch import Unit, idle_micro_batch, idle_sequence
from humanline.train.data.stream import Stream
from humanline.train.policy.load import load_model
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.packing import pack
from humanline.train.policy.precision import compute_in
from humanline.train.step.held_out import Evaluator
from humanline.train.step.loss import ObjectiveStep, beta_draws
from humanline.train.step.reference import logprobs_pass
from tests.helpers.paper_models import FAMILIES, write_paper_model
from tests.helpers.support import REJECT, SCHEDULES, run, same, steps, weights
from tests.helpers.units import LOCAL, OBJECTIVES, plain_advantages, stream_of, unit, units_of

CPU = torch.device("cpu")


# Layout of a step's rows: how they are cut into micro-batches, and whether they are packed.
LAYOUTS = {
    "size": {"micro_batch_size": 3},
    "tokens": {"micro_batch_size": None, "micro_batch_tokens": 80},
    "packed": {"micro_batch_size": None, "micro_batch_tokens": 80, "padding": "free"},
}


def test_beta_draws_do_not_depend_on_where_a_group_is_cut():
    """Each answer has the same Beta draws whichever rows share its pass."""
    rejection = BetaTransform.model_validate(REJECT).build()

    def draws_of(**limit):
        found = {}
        for micro in stream_of(units_of("grpo"), OBJECTIVES["grpo"], **limit).step(0).micro_batches:
            both = torch.stack(beta_draws(rejection, 3, 5, micro.block))
            for row, name in enumerate(micro.block.names):
                found[name] = both[:, row, micro.block.mask[row]]
        return found

    whole, split = draws_of(), draws_of(micro_batch_size=1)
    assert whole.keys() == split.keys() and all(torch.equal(whole[name], split[name]) for name in whole)


def test_held_out_pairs_are_never_parted():
    """Evaluation counts pairs, as ever: a chosen answer and its rejected one are compared in one micro-batch."""
    rng = random.Random(0)
    pairs = [unit(rng, i, [rng.randint(3, 20) for _ in range(2)]) for i in range(7)]
    sizes = {"batch_size": 3, "pad_id": 0, "max_length": 40, "device": CPU}
    for objective in (OBJECTIVES["grpo"], LOCAL, OBJECTIVES["dpo"]):
        evaluator = Evaluator(objective, pairs, [], logprobs_of=None, reduce=lambda value, how: value, **sizes)
        assert [len(micro.units) for micro in evaluator.batch.micro_batches] == [3, 3, 1]
        for micro in evaluator.pairs.micro_batches:
            ids = [u.id for u in micro.units]
            assert list(micro.block.names) == [f"{one}#{member}" for member in range(2) for one in ids]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    return {family: write_paper_model(tmp_path_factory.mktemp("paper") / family, family) for family in FAMILIES}


def policy_and_reference(folder: str, dtype: torch.dtype):
    """A model, and one whose weights differ by a hundredth of theirs."""
    policy = load_model(folder, dtype).eval()
    reference = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in reference.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(dtype)
            weight.add_(0.01 * weight.std() * noise)
    return policy, reference


CLIP = ClipTransform(kind="clip", log_eps_low=-0.05, log_eps_high=0.06)


def one_step(folder: str, kind: str, layout: str, dtype: torch.dtype) -> tuple[float, list[torch.Tensor]]:
    """The loss of one step, and its gradients, by the parts the loop is made of."""
    stream = stream_of(units_of(kind), OBJECTIVES[kind], **LAYOUTS[layout])
    assert stream.step(0).total_micro_batches > 1
    return step_of(folder, stream, dtype)


def step_of(folder: str, stream: Stream, dtype: torch.dtype) -> tuple[float, list[torch.Tensor]]:
    """The loss of a stream's first step, and its gradients."""
    models = policy_and_reference(folder, dtype)
    packed = stream.padding == "free"
    if packed:
        for model in models:
            pack(model)
    policy, reference = (LogprobModel(model, packed=packed) for model in models)
    policy.train()
    objective = ObjectiveStep(stream.objective, CLIP, seed=0, device=CPU)
    batch, score = stream.step(0), logprobs_pass(reference)
    ref = [(score(m.block), None if m.mismatched is None else score(m.mismatched)) for m in batch.micro_batches]
    facts = objective.look(0, batch, ref, logprobs_pass(policy), lambda value, how: value)
    total, clipped = 0.0, 0.0
    for micro, (rows, _) in zip(batch.micro_batches, ref, strict=True):
        loss, metrics = objective.loss(facts, micro, policy(*micro.block.inputs), rows, None)
        loss.backward()
        total += loss.item()
        clipped += (metrics["clipped_low"] + metrics["clipped_high"]).item()
    assert 0.05 < clipped < 0.95
    return total, [p.grad for p in policy.parameters()]


def distance(mine, theirs) -> tuple[float, float]:
    """How far a loss and gradients are from others, relative to the latter."""
    size = torch.cat([g.flatten().double() for g in theirs[1]]).norm()
    apart = torch.cat([(a.double() - b.double()).flatten() for a, b in zip(mine[1], theirs[1], strict=True)]).norm()
    return abs(mine[0] - theirs[0]) / abs(theirs[0]), (apart / size).item()


@pytest.mark.parametrize(
    "family,kind",
    [
        pytest.param(family, kind, marks=() if row == column else pytest.mark.slow)
        for row, family in enumerate(FAMILIES)
        for column, kind in enumerate(OBJECTIVES)  # by default each family and each objective once
    ],
)
def test_all_layouts_give_the_same_losses(folders, family, kind):
    """By size, by tokens and packed, loss and gradients of a step are the same up to rounding, in both precisions.

    In float64 what is left is 1e-16 summed over some hundred terms, and 1e-7 for Gemma, whose own attention takes its
    softmax in float32. In float32 the layouts may be ten times as far from the float64 run as the usual one is, for
    which 1e-7, a unit of its rounding, stands in where that one happens to be nearer.
    """
    exact = one_step(folders[family], kind, "size", torch.float64)
    usual = distance(one_step(folders[family], kind, "size", torch.float32), exact)
    for layout in ("tokens", "packed"):
        tolerance = 2e-6 if family == "gemma2" else 1e-13
        assert max(distance(one_step(folders[family], kind, layout, torch.float64), exact)) < tolerance
        narrow = distance(one_step(folders[family], kind, layout, torch.float32), exact)
        assert all(mine < 10 * max(other, 1e-7) for mine, other in zip(narrow, usual, strict=True)), (narrow, usual)


def paper_grpo(folder: str, group: Unit) -> tuple[float, list[torch.Tensor]]:
    """The loss of one group and its gradients, answer by answer from the model's own logits, in float64."""
    policy, reference = policy_and_reference(folder, torch.float64)
    terms = []
    for one, advantage in zip(group.sequences, plain_advantages(group.scores), strict=True):
        ids = torch.tensor(one.ids)

        def answer(model, ids=ids, start=one.prompt_length):
            logits = model(input_ids=ids[None]).logits[0, :-1]
            return torch.log_softmax(logits, -1).gather(1, ids[1:, None]).squeeze(1)[start - 1 :]

        raw = answer(policy) - answer(reference).detach()
        ratio = raw.clamp(-0.05, 0.06).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        terms.append(surrogate - 0.1 * ((-raw).exp() + raw - 1))
    loss = -torch.cat(terms).mean()
    loss.backward()
    return loss.item(), [p.grad for p in policy.parameters()]


@pytest.fixture(scope="module")
def group_of_64(folders) -> tuple[Unit, tuple, tuple]:
    """A group, and loss and gradients of it: in a single pass, and from the paper."""
    rng = random.Random(7)
    group = unit(rng, 0, [rng.randint(3, 20) for _ in range(64)])
    stream = stream_of([group], OBJECTIVES["grpo"], micro_batch_size=64)
    assert stream.step(0).total_micro_batches == 1
    return group, step_of(folders["llama3"], stream, torch.float64), paper_grpo(folders["llama3"], group)


@pytest.mark.parametrize(
    "limit,passes",
    [
        ({"micro_batch_size": 1}, 64),
        ({"micro_batch_size": 7}, 10),
        ({"micro_batch_tokens": 60}, 14),
        ({"micro_batch_tokens": 60, "padding": "free"}, 14),
    ],
    ids=["64 x 1", "by sevens", "tokens", "packed"],
)
def test_a_group_of_64_in_passes_of_any_size(folders, group_of_64, limit, passes):
    """Loss and gradients of a group of 64 are the paper's and those of a single pass, however it is cut, in float64.

    Advantages are kept in float32, good to 6e-8; between two cuts there is 1e-16 alone, summed over some hundred terms.
    """
    group, whole, paper = group_of_64
    stream = stream_of([group], OBJECTIVES["grpo"], **limit)
    assert stream.step(0).total_micro_batches == passes
    mine = step_of(folders["llama3"], stream, torch.float64)
    assert max(distance(mine, whole)) < 1e-13
    assert max(distance(mine, paper)) < 1e-6


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("layout", ["tokens", "packed"])
def test_a_pass_in_which_nothing_counts_adds_exactly_nothing(folders, layout, precision):
    """What keeps a process company that has no row left gives every weight a gradient, all of them 0, and no metric."""
    model = AutoModelForCausalLM.from_pretrained(folders["llama3"], dtype=torch.float32)
    if layout == "packed":
        pack(model)
    scorer = LogprobModel(model, packed=layout == "packed").train()
    if precision == "bf16":
        compute_in(scorer, torch.bfloat16)
    idle = idle_micro_batch(idle_sequence(units_of("grpo")[0].sequences), 0)
    objective = ObjectiveStep(OBJECTIVES["grpo"], BetaTransform.model_validate(REJECT), seed=0, device=CPU)
    batch = stream_of(units_of("grpo"), OBJECTIVES["grpo"]).step(0)
    facts = objective.look(0, batch, [], logprobs_pass(scorer), lambda value, how: value)
    logprobs = scorer(*idle.block.inputs)
    assert torch.equal(logprobs, logprobs_pass(scorer)(idle.block))
    loss, metrics = objective.loss(facts, idle, logprobs, torch.zeros_like(logprobs), None)
    loss.backward()
    assert loss.item() == 0 and all(value.item() == 0 for value in metrics.values())
    assert all(p.grad is not None and not p.grad.any() for p in scorer.parameters())


@pytest.mark.parametrize(
    "family,precision,layout,checkpointing",
    [
        pytest.param(family, *how, marks=pytest.mark.slow if sum(numbers) % 2 else ())
        for family in FAMILIES
        for numbers in product((0, 1), repeat=3)  # by default any two of these choices meet
        for how in [(("float32", "bf16")[numbers[0]], ("tokens", "packed")[numbers[1]], bool(numbers[2]))]
    ],
)
def test_log_ratios_are_exactly_zero_while_weights_stand_still(folders, family, precision, layout, checkpointing):
    """Scored without gradient and trained on with it, a block has the same log-probabilities, bit by bit."""
    model = load_model(folders[family], torch.float32)
    if layout == "packed":
        pack(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    scorer = LogprobModel(model, packed=layout == "packed").train()
    if precision == "bf16":
        compute_in(scorer, torch.bfloat16)
    score = logprobs_pass(scorer)
    for micro in stream_of(units_of("kto", 8), OBJECTIVES["kto"], **LAYOUTS[layout]).step(0).micro_batches:
        for block in (micro.block, micro.mismatched):
            scored, trained = score(block), scorer(*block.inputs)
            assert trained.requires_grad and scored.dtype == torch.float32 and torch.equal(scored, trained)
            assert torch.equal(scored != 0, block.mask)


def test_whole_runs_without_padding(toy, tmp_path):
    """A run without padding, scored ahead or by a second model, is bitwise one run, and the padded one but rounding."""
    results = {
        name: run(
            toy,
            tmp_path / name,
            "kto",
            training={"steps": 3, "batch_size": 8, **LAYOUTS[layout], "micro_batch_tokens": 200},
            reference={"schedule": SCHEDULES["before_1"], "storage": storage},
        )
        for name, layout, storage in (
            ("padded", "tokens", "score_ahead"),
            ("ahead", "packed", "score_ahead"),
            ("second", "packed", "model"),
        )
    }
    assert same(weights(results["ahead"]), weights(results["second"]))
    losses = {name: [row["loss"] for row in steps(result)] for name, result in results.items()}
    assert losses["ahead"] == losses["second"] == pytest.approx(losses["padded"], rel=1e-4)  # Adam magnifies rounding
    assert steps(results["ahead"])[1]["log_ratio_rms"] > 0


def test_a_budget_that_is_too_small_is_refused_before_anything_is_written(toy, tmp_path):
    """An example larger than training.micro_batch_tokens ends a run before it begins, by name."""
    with pytest.raises(ValueError, match=r"micro_batch_tokens is 3, but pairs.jsonl:\d+ alone takes \d+ tokens"):
        run(toy, tmp_path / "run", training={"steps": 1, "micro_batch_tokens": 3})
    assert not (tmp_path / "run").exists()
