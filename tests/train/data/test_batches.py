"""Micro-batches by size, by tokens and without padding: what they hold, and that they all give the same losses."""

from __future__ import annotations

import copy
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from transformers import AutoModelForCausalLM

from humanline.train.config.objective import (
    BetaTransform,
    ClipTransform,
    DpoObjective,
    GrpoObjective,
    KtoObjective,
    NllObjective,
)
from humanline.train.data.batch import Unit, idle_micro_batch, rows_of
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.stream import Stream
from humanline.train.policy.logprobs import TokenScorer
from humanline.train.policy.packing import pack
from humanline.train.step.held_out import Evaluator
from humanline.train.step.loss import ObjectiveStep, beta_draws
from humanline.train.step.reference import scoring_pass
from tests.helpers import strategies
from tests.helpers.paper_models import FAMILIES, write_paper_model
from tests.helpers.support import REJECT, SCHEDULES, run, same, steps, weights

OBJECTIVES = {
    "dpo": DpoObjective(kind="dpo", beta=0.5),
    "kto": KtoObjective(kind="kto", beta=0.5),
    "grpo": GrpoObjective(kind="grpo", clip_eps=0.2, kl_coef=0.1),
}
CPU = torch.device("cpu")
# Layout of a step's rows: how they are cut into micro-batches, and whether they are packed.
LAYOUTS = {
    "size": {"micro_batch_size": 3},
    "tokens": {"micro_batch_size": None, "micro_batch_tokens": 80},
    "packed": {"micro_batch_size": None, "micro_batch_tokens": 80, "padding": "free"},
}


def sequence(rng: random.Random, length: int) -> TokenSequence:
    return TokenSequence(tuple(rng.randrange(3, 64) for _ in range(length)), rng.randint(1, length - 1))


def unit(rng: random.Random, number: int, lengths) -> Unit:
    return Unit(
        f"unit {number}",
        tuple(sequence(rng, length) for length in lengths),
        desirable=number % 2 == 0,
        scores=tuple(rng.random() for _ in lengths),
    )


def units_of(kind: str, count: int = 6) -> list[Unit]:
    """Units of very different lengths, up to two and a half windows of the Gemma model."""
    rng = random.Random(kind)
    members = {"nll": 1, "kto": 1, "dpo": 2, "grpo": 3}[kind]
    return [unit(rng, i, [rng.randint(3, 20) for _ in range(members)]) for i in range(count)]


def stream_of(units, objective, **changes) -> Stream:
    options = {"batch_size": len(units), "micro_batch_size": None, "seed": 0, "pad_id": 0, "max_length": 40}
    return Stream(units, objective, **options | changes)


def rows_of_block(micro) -> list[list[int]]:
    """The token ids of a micro-batch's rows, read off its tensors."""
    return [ids[:n].tolist() for ids, n in zip(micro.block.input_ids, micro.block.lengths, strict=True)]


class TestBudget:
    @settings(max_examples=80, deadline=None)
    @given(strategies.token_budgets())
    def test_every_unit_once_and_none_above_the_budget(self, case):
        """Over 1 to 3 ranks a step holds its units once, in the fewest cuts of their order, none above the budget."""
        rng = random.Random(0)
        units = [unit(rng, i, lengths) for i, lengths in enumerate(case["lengths"])]
        options = {"batch_size": case["batch_size"], "micro_batch_tokens": case["budget"], "padding": case["padding"]}
        plain = stream_of(units, NllObjective(kind="nll"), batch_size=case["batch_size"])
        ranks, budget = case["ranks"], case["budget"]
        for step in range(2):
            (whole,) = plain.step(step).micro_batches
            batches = [
                stream_of(units, NllObjective(kind="nll"), **options, rank=rank, ranks=ranks).step(step)
                for rank in range(ranks)
            ]
            micros = [micro for batch in batches for micro in batch.micro_batches]
            assert sorted(u.id for m in micros for u in m.units) == sorted(u.id for u in whole.units)
            assert len({len(batch.micro_batches) for batch in batches}) == 1
            for batch in batches:
                assert batch.total_micro_batches == len(micros) and batch.total_units == case["batch_size"]
                assert (
                    batch.total_tokens
                    == sum(u.tokens for u in whole.units)
                    == sum(int(m.block.mask.sum()) for m in micros)
                )
            for micro in micros:
                members = len(micro.units[0].sequences)
                expected = [list(u.sequences[m].ids) for m in range(members) for u in micro.units]
                assert rows_of_block(micro) == expected
                cells = micro.block.input_ids.numel() if case["padding"] == "right" else sum(micro.block.lengths)
                assert cells <= budget
            if ranks == 1:
                for one, following in itertools.pairwise(micros):
                    assert min(u.length for u in one.units) >= max(u.length for u in following.units)
                    lengths = [len(s.ids) for u in (*one.units, following.units[0]) for s in u.sequences]
                    assert (len(lengths) * max(lengths) if case["padding"] == "right" else sum(lengths)) > budget

    def test_ranks_halve_the_largest_micro_batches(self):
        """Where the number of micro-batches is no multiple of the ranks, the ones with most tokens are halved."""
        rng = random.Random(0)
        units = [unit(rng, i, [n]) for i, n in enumerate([10, 10, 10, 10, 4, 4])]
        batches = [
            stream_of(units, NllObjective(kind="nll"), micro_batch_tokens=40, rank=rank, ranks=3).step(0)
            for rank in range(3)
        ]
        assert [[m.block.lengths for m in b.micro_batches] for b in batches] == [[(10, 10)], [(10, 10)], [(4, 4)]]

    @pytest.mark.parametrize("padding,largest", [("right", 36), ("free", 28)])
    def test_a_unit_above_the_budget_is_named(self, padding, largest):
        """A unit that fits no micro-batch is refused with its name, its tokens and the budget that would do."""
        rng = random.Random(0)
        units = [unit(rng, i, lengths) for i, lengths in enumerate([(9, 5), (18, 10), (11, 11)])]
        objective = OBJECTIVES["dpo"]
        with pytest.raises(
            ValueError, match=f"is 20, but unit 1 alone takes {largest} tokens, and 1 more .* {largest}"
        ):
            stream_of(units, objective, micro_batch_tokens=20, padding=padding)
        for budget in (largest - 1, largest):
            if budget == largest:
                stream_of(units, objective, micro_batch_tokens=budget, padding=padding)
            else:
                with pytest.raises(ValueError, match="unit 1 alone"):
                    stream_of(units, objective, micro_batch_tokens=budget, padding=padding)

    def test_settings_that_contradict_are_refused(self):
        """Units and tokens at once, and a batch that ranks cannot share, are errors."""
        units = units_of("dpo")
        with pytest.raises(ValueError, match="at most one of"):
            stream_of(units, OBJECTIVES["dpo"], micro_batch_size=2, micro_batch_tokens=80)
        with pytest.raises(ValueError, match=r"batch_size 5 is not a multiple of the 2 processes.*; 6 is"):
            stream_of(units, OBJECTIVES["dpo"], batch_size=5, micro_batch_tokens=80, ranks=2)

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    @pytest.mark.parametrize("padding", ["right", "free"])
    def test_mismatched_pairs_are_cut_by_their_own_lengths(self, padding, ranks):
        """Each of KTO's other pairs occurs once in a step, by their own lengths, in blocks of four budgets at most."""
        rng = random.Random(0)
        units = []
        for i in range(24):  # long prompts with short answers and the reverse, so that pairs mixed anew are longer
            prompt = 1 if i % 8 else 30
            ids = tuple(rng.randrange(3, 64) for _ in range(prompt + (20 if i % 8 else 1)))
            units.append(Unit(f"unit {i}", (TokenSequence(ids, prompt),)))
        options = {"micro_batch_tokens": 31, "padding": padding, "max_length": 64, "ranks": ranks}
        batches = [stream_of(units, OBJECTIVES["kto"], **options, rank=rank).step(0) for rank in range(ranks)]
        assert len({len(batch.micro_batches) for batch in batches}) == 1
        turns = [micro for turn in zip(*(batch.micro_batches for batch in batches), strict=True) for micro in turn]
        blocks = [micro.mismatched for micro in turns]
        assert sorted(name for b in blocks for name in b.names) == sorted(f"{unit.id}#mismatched" for unit in units)
        lengths = [length for b in blocks for length in b.lengths]
        assert lengths == sorted(lengths, reverse=True) and lengths[0] == 50 > 31
        for block in blocks:
            prompts = {unit.id: unit.sequences[0].ids[: unit.sequences[0].prompt_length] for unit in units}
            for name, ids, mask in zip(block.names, block.input_ids.tolist(), block.mask, strict=True):
                own = prompts[name.removesuffix("#mismatched")]
                assert tuple(ids[: len(own)]) == own and int(mask.nonzero()[0]) == len(own) - 1
            assert (block.input_ids.numel() if padding == "right" else sum(block.lengths)) <= 4 * 31

    def test_pairs_that_share_one_long_answer_cut_a_step_further(self):
        """Where mismatched pairs need more blocks than their units, there are as many micro-batches as they need."""
        long = [Unit("long", (TokenSequence(tuple(range(3, 43)), 1),))]
        short = [Unit(f"short {i}", (TokenSequence((50, 51, 3 + i), 2),)) for i in range(11)]
        plain = stream_of(long + short, NllObjective(kind="nll"), micro_batch_tokens=73, padding="free").step(0)
        assert [len(micro.units) for micro in plain.micro_batches] == [12]
        batch = stream_of(long + short, OBJECTIVES["kto"], micro_batch_tokens=73, padding="free", max_length=64).step(0)
        # Eleven times the long answer behind a short prompt, 41 tokens each, of which seven make four budgets.
        assert [len(micro.mismatched.names) for micro in batch.micro_batches] == [7, 5]

    def test_mismatched_pairs_are_sorted_in_micro_batches_by_size_too(self):
        """Cut by size, KTO's other pairs are sorted by their own lengths before they are padded."""
        units = units_of("kto", 12)
        batch = stream_of(units, OBJECTIVES["kto"], micro_batch_size=3).step(0)
        lengths = [length for micro in batch.micro_batches for length in micro.mismatched.lengths]
        assert lengths == sorted(lengths, reverse=True) and len(lengths) == 12


LOCAL = GrpoObjective(kind="grpo", clip_eps=0.2, kl_coef=0.1, normalise="local")


def plain_advantages(scores) -> list[float]:
    mean = sum(scores) / len(scores)
    spread = (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
    return [(score - mean) / spread if spread else 0.0 for score in scores]


class TestGroups:
    @settings(max_examples=80, deadline=None)
    @given(strategies.split_groups())
    def test_every_row_once_with_the_advantage_of_its_group(self, case):
        """Over 1 to 4 ranks a step holds each answer once, within the limit, as it stands to its whole group.

        All ranks make the same number of passes; where a rank has no row left for one, nothing counts in it.
        """
        rng = random.Random(0)
        units = [unit(rng, i, lengths) for i, lengths in enumerate(case["lengths"])]
        options = {**case["options"], **case["limit"], "ranks": case["ranks"]}
        batches = [stream_of(units, OBJECTIVES["grpo"], **options, rank=rank).step(0) for rank in range(case["ranks"])]
        drawn = {u.id: u for batch in batches for micro in batch.micro_batches for u in micro.units}
        assert len(drawn) == case["options"]["batch_size"] == batches[0].total_units
        want = {}
        for u in drawn.values():
            for member, advantage in enumerate(plain_advantages(u.scores)):
                name = u.id if len(u.sequences) == 1 else f"{u.id}#{member}"
                want[name] = (list(u.sequences[member].ids), u.sequences[member].completion_length, advantage)
        micros = [micro for batch in batches for micro in batch.micro_batches]
        assert (
            len({len(batch.micro_batches) for batch in batches}) == 1 and len(micros) == batches[0].total_micro_batches
        )
        found = {}
        for micro in micros:
            rows, cells = rows_of_block(micro), micro.block.input_ids.numel()
            if "micro_batch_size" in case["limit"]:
                assert len(rows) <= case["limit"]["micro_batch_size"]
            else:
                tokens = cells if case["options"]["padding"] == "right" else sum(micro.block.lengths)
                assert tokens <= case["limit"]["micro_batch_tokens"]
            if not micro.rows:
                assert len(rows) == 1 and not micro.block.mask.any() and not micro.advantages.any()
                continue
            for name, ids, mask, a in zip(micro.block.names, rows, micro.block.mask, micro.advantages, strict=True):
                assert name not in found
                found[name] = (ids, int(mask.sum()), a.item())
        assert found.keys() == want.keys()
        for name, (ids, counted, advantage) in want.items():
            assert found[name] == (ids, counted, pytest.approx(advantage, abs=1e-6)), name
        assert batches[0].total_tokens == sum(counted for _, counted, _ in found.values())
        idle = sum(not micro.rows for micro in micros)
        assert idle < case["ranks"] and (not idle or all(len(micro.rows) <= 1 for micro in micros))
        assert sum(batch.own_tokens for batch in batches) == sum(len(ids) for ids, _, _ in want.values())

    def test_a_step_in_one_pass_keeps_its_order(self):
        """Where one pass has a whole step, its rows are in the order of whole groups: split or not, the same bits."""
        units = units_of("grpo")
        (split,) = stream_of(units, OBJECTIVES["grpo"]).step(0).micro_batches
        (whole,) = stream_of(units, OBJECTIVES["grpo"], whole_units=True).step(0).micro_batches
        assert split.block.names == whole.block.names and torch.equal(split.advantages, whole.advantages)
        longest = sorted(split.units, key=lambda u: -u.length)
        assert list(whole.block.names) == [f"{u.id}#{member}" for member in range(3) for u in longest]

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_a_mean_of_each_micro_batch_keeps_groups_whole(self, ranks):
        """Under normalise: local a micro-batch holds whole groups, as many as have so many rows, over all ranks."""
        units = units_of("grpo", 8)
        for rows, groups in ((3, 1), (5, 1), (6, 2), (11, 3)):
            batches = [
                stream_of(units, LOCAL, micro_batch_size=rows, rank=r, ranks=ranks).step(0) for r in range(ranks)
            ]
            names = [micro.block.names for batch in batches for micro in batch.micro_batches]
            assert max(map(len, names)) == 3 * groups and sum(map(len, names)) == 24
            for of_one in names:
                ids = {name.split("#")[0] for name in of_one}
                assert sorted(of_one) == sorted(f"{one}#{member}" for one in ids for member in range(3))

    def test_what_cannot_hold_a_whole_group_is_refused(self):
        """Under normalise: local a micro-batch of fewer rows than a group has is an error; split, one row is enough."""
        units = [*units_of("grpo"), unit(random.Random(1), 9, [4] * 7)]
        with pytest.raises(ValueError, match=r"counts rows and is 6, but unit 9 is a group of 7, .* to at least 7, or"):
            stream_of(units, LOCAL, micro_batch_size=6)
        with pytest.raises(ValueError, match="unit 9 alone takes 28 tokens"):
            stream_of(units[-1:], LOCAL, micro_batch_tokens=27, padding="free")
        with pytest.raises(ValueError, match=r"batch_size 7 is not a multiple of the 2 processes.*; 8 is"):
            stream_of(units, LOCAL, micro_batch_size=7, ranks=2)
        for one in (LOCAL, OBJECTIVES["grpo"]):
            stream_of(units, one, micro_batch_size=7 if one is LOCAL else 1)
        longest = max(len(s.ids) for u in units for s in u.sequences)
        stream_of(units, OBJECTIVES["grpo"], micro_batch_tokens=longest)
        with pytest.raises(ValueError, match=rf"unit \d#\d alone takes {longest} tokens"):
            stream_of(units, OBJECTIVES["grpo"], micro_batch_tokens=longest - 1)

    def test_beta_draws_do_not_depend_on_where_a_group_is_cut(self):
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

    def test_held_out_pairs_are_never_parted(self):
        """Evaluation counts pairs, as ever: a chosen answer and its rejected one are compared in one micro-batch."""
        rng = random.Random(0)
        pairs = [unit(rng, i, [rng.randint(3, 20) for _ in range(2)]) for i in range(7)]
        sizes = {"batch_size": 3, "pad_id": 0, "max_length": 40, "device": CPU}
        for objective in (OBJECTIVES["grpo"], LOCAL, OBJECTIVES["dpo"]):
            evaluator = Evaluator(objective, pairs, [], score=None, reduce=lambda value, how: value, **sizes)
            assert [len(micro.units) for micro in evaluator.batch.micro_batches] == [3, 3, 1]
            for micro in evaluator.pairs.micro_batches:
                ids = [u.id for u in micro.units]
                assert list(micro.block.names) == [f"{one}#{member}" for member in range(2) for one in ids]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    return {family: write_paper_model(tmp_path_factory.mktemp("paper") / family, family) for family in FAMILIES}


def policy_and_reference(folder: str, dtype: torch.dtype):
    """A model, and one whose weights differ by a hundredth of theirs."""
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
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
    policy, reference = (TokenScorer(model, packed=packed) for model in models)
    policy.train()
    objective = ObjectiveStep(stream.objective, CLIP, seed=0, device=CPU)
    batch, score = stream.step(0), scoring_pass(reference)
    ref = [(score(m.block), None if m.mismatched is None else score(m.mismatched)) for m in batch.micro_batches]
    facts = objective.look(0, batch, ref, scoring_pass(policy), lambda value, how: value)
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


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("family", FAMILIES)
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
    scorer = TokenScorer(model, packed=layout == "packed").train()
    idle = idle_micro_batch(rows_of(units_of("grpo")[0], OBJECTIVES["grpo"].grouping)[1], 0)
    objective = ObjectiveStep(OBJECTIVES["grpo"], BetaTransform.model_validate(REJECT), seed=0, device=CPU)
    batch = stream_of(units_of("grpo"), OBJECTIVES["grpo"]).step(0)
    facts = objective.look(0, batch, [], scoring_pass(scorer), lambda value, how: value)
    with torch.autocast("cpu", torch.bfloat16, precision == "bf16", cache_enabled=False):
        logprobs = scorer(*idle.block.inputs)
        assert torch.equal(logprobs, scoring_pass(scorer)(idle.block))
        loss, metrics = objective.loss(facts, idle, logprobs, torch.zeros_like(logprobs), None)
    loss.backward()
    assert loss.item() == 0 and all(value.item() == 0 for value in metrics.values())
    assert all(p.grad is not None and not p.grad.any() for p in scorer.parameters())


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("layout", ["tokens", "packed"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_ratios_are_exactly_zero_while_weights_stand_still(folders, family, precision, layout, checkpointing):
    """Scored without gradient and trained on with it, a block has the same log-probabilities, bit by bit."""
    model = AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float32)
    if layout == "packed":
        pack(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    scorer = TokenScorer(model, packed=layout == "packed").train()
    score = scoring_pass(scorer)
    for micro in stream_of(units_of("kto", 8), OBJECTIVES["kto"], **LAYOUTS[layout]).step(0).micro_batches:
        for block in (micro.block, micro.mismatched):
            with torch.autocast("cpu", torch.bfloat16, precision == "bf16", cache_enabled=False):
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
