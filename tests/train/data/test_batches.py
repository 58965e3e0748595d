"""Micro-batches by size, by tokens and without padding: what they hold."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings

from humanline.train.config.objective import NllObjective
from humanline.train.data.batch import Unit
from humanline.train.data.deal import Dealer
from humanline.train.data.sequences import TokenSequence
from tests.helpers import strategies
from tests.helpers.units import LOCAL, OBJECTIVES, plain_advantages, stream_of, unit, units_of


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
        in_order = blocks if ranks == 1 else sorted(blocks, key=lambda b: (b.lengths[0], b.lengths[-1]), reverse=True)
        lengths = [length for b in in_order for length in b.lengths]
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


class TestDealing:
    """Which process has which micro-batches."""

    @pytest.mark.parametrize("ranks", [2, 3])
    @pytest.mark.parametrize("limit", [{}, {"micro_batch_size": 2}, {"micro_batch_tokens": 80}], ids=str)
    @pytest.mark.parametrize("padding", ["right", "free"])
    @pytest.mark.parametrize("kind", ["dpo", "kto", "grpo"])
    def test_processes_have_like_tokens(self, kind, padding, limit, ranks):
        """Where lengths differ by a factor of twenty no process has more than a tenth above the mean of all.

        The micro-batches of a turn are of like size, since all wait for the largest; mismatched pairs likewise.
        """
        rng, members = random.Random(0), {"kto": 1, "dpo": 2, "grpo": 3}[kind]
        units = [unit(rng, i, [2 + int(38 * rng.random() ** 3)] * members) for i in range(60)]
        options = {**limit, "padding": padding, "ranks": ranks, "max_length": 80}
        batches = [stream_of(units, OBJECTIVES[kind], **options, rank=rank).step(0) for rank in range(ranks)]
        blocks = [[micro.block for micro in batch.micro_batches] for batch in batches]
        others = [[micro.mismatched for micro in batch.micro_batches if micro.mismatched] for batch in batches]
        for of_all in (blocks, others) if kind == "kto" else (blocks,):
            tokens = [[sum(b.lengths) if padding == "free" else b.input_ids.numel() for b in own] for own in of_all]
            mean = sum(map(sum, tokens)) / ranks
            assert max(map(sum, tokens)) < 1.1 * mean
            assert sum(max(turn) for turn in zip(*tokens, strict=True)) < 1.2 * mean
        whole = stream_of(units, OBJECTIVES[kind], **options).of_all(0)
        assert [[m.block.names for m in b.micro_batches] for b in whole] == [[b.names for b in own] for own in blocks]

    def test_the_largest_of_a_turn_goes_to_the_process_with_the_fewest_tokens(self):
        """Of lengths 10, 6, 5, 1 the second process gets 6 and then 5; of many, rows are dealt to and fro."""
        pieces = [(TokenSequence(tuple(range(n)), 1),) for n in (10, 6, 5, 1)]
        for size, budget in ((1, None), (None, 10)):
            dealer = Dealer(size, budget, "free", 2, groups_whole=False)
            assert dealer.deal(pieces, []) == ([[0], [1], [3], [2]], [[]] * 4)
        assert Dealer(None, None, "free", 2, groups_whole=False).deal(pieces, [])[0] == [[0, 3], [1, 2]]
        assert Dealer(1, None, "free", 1, groups_whole=False).deal(pieces, [])[0] == [[0], [1], [2], [3]]


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
        assert {batch.total_length for batch in batches} == {sum(batch.own_tokens for batch in batches)}

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


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_every_rank_knows_the_tokens_of_the_whole_step(kind):
    """They are those of a single process, though one of two ranks has more of them than the other."""
    units = units_of(kind, 8)
    (one,) = stream_of(units, OBJECTIVES[kind]).of_all(0)
    two = stream_of(units, OBJECTIVES[kind], ranks=2, micro_batch_size=1).of_all(0)
    assert one.total_length == one.own_tokens == two[0].total_length == two[1].total_length
    assert two[0].own_tokens + two[1].own_tokens == one.own_tokens
    assert kind == "grpo" or two[0].own_tokens != two[1].own_tokens  # GRPO's rows are dealt one by one, here evenly
