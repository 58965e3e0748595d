"""Scored completions to pairs and groups, against Algorithm 1 written as plain loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.train.config.objective import GrpoObjective
from humanline.train.config.rounds import RoundsSource, ScoringConfig
from humanline.train.data.batch import make_micro_batch, rows_of
from humanline.train.data.messages import Message
from humanline.train.data.rows import read_rows
from humanline.train.data.shapes import Preference
from humanline.train.online.select import make_units, preference_rows, refuse_unscored, row_names, select
from humanline.train.online.types import Completion, Rollout, Score
from humanline.train.run.processes import RoundError
from tests.helpers import strategies

GRPO = GrpoObjective(kind="grpo")


def build(groups):
    """Rollouts and scores; completion j of prompt i has ids of its own."""
    rollouts, scores = [], []
    for i, group in enumerate(groups):
        ids = [tuple(100 * (i + 1) + 10 * j + k for k in range(tokens)) for j, (_, _, tokens) in enumerate(group)]
        completions = tuple(Completion(f"text {i} {j}", ids[j], finish, None) for j, (_, finish, _) in enumerate(group))
        rollouts.append(Rollout(f"p{i}", (Message("user", f"question {i}"),), completions))
        scores.append(
            [Score(value) if value is not None else Score(None, "timeout", reason="slow") for value, _, _ in group]
        )
    return rollouts, scores


def scoring(*rewards, failed="drop", failed_share=1.0):
    return ScoringConfig(rewards=rewards or ({"kind": "tag_count"},), failed=failed, failed_share=failed_share)


def chosen(groups, how, *, margin=0.01, truncated="keep", **failed):
    rollouts, scores = build(groups)
    rounds = RoundsSource(score_margin=margin, truncated=truncated, scoring=scoring(**failed))
    return select(rollouts, scores, rounds, how, of="round 3", mend="Mend it.")


def algorithm_1(groups, how, margin, truncated, failed):
    """What is kept of each prompt, as (prompt, places, scores), and the counts of what is not."""
    kept = []
    counts = {"equal": 0, "below_margin": 0, "too_few": 0, "truncated": 0, "failed": 0, "completions": 0, "tokens": 0}
    for i, group in enumerate(groups):
        usable = []
        for j, (value, finish, tokens) in enumerate(group):
            counts["completions"] += 1
            counts["tokens"] += tokens
            counts["truncated"] += finish == "length"
            if value is None:
                counts["failed"] += 1
                if failed == "drop":
                    continue
                value = float(failed)
            if tokens == 0 or (finish == "length" and truncated == "drop"):
                continue
            usable.append((j, value))
        if len(usable) < 2:
            counts["too_few"] += 1
            continue
        best = worst = usable[0]
        for one in usable[1:]:
            if one[1] > best[1]:
                best = one
            if one[1] < worst[1]:
                worst = one
        counts["equal"] += best[1] == worst[1]
        if how == "best_worst":
            if best[1] == worst[1] or not best[1] - worst[1] >= margin:
                counts["below_margin"] += 1
                continue
            usable = [best, worst]
        kept.append((f"p{i}", tuple(j for j, _ in usable), tuple(value for _, value in usable)))
    return kept, counts


@given(
    strategies.scored_groups(),
    st.sampled_from(["best_worst", "all"]),
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 3.0]),
    st.sampled_from(["keep", "drop"]),
    st.sampled_from(["drop", -0.5, 0.0, 1.0]),
)
@settings(max_examples=300, deadline=None)
def test_what_is_kept_is_what_algorithm_1_keeps(groups, how, margin, truncated, failed):
    """The best against the worst, or all; ties take the first, the margin itself is kept, and the counts add up."""
    kept, counts = algorithm_1(groups, how, margin, truncated, failed)
    found = chosen(groups, how, margin=margin, truncated=truncated, failed=failed)
    assert [(one.rollout.id, one.numbers, one.scores) for one in found.kept] == kept
    assert (found.equal, found.below_margin, found.too_few) == tuple(
        counts[name] for name in ("equal", "below_margin", "too_few")
    )
    assert (found.truncated, found.completions, found.tokens) == tuple(
        counts[name] for name in ("truncated", "completions", "tokens")
    )
    assert sum(found.statuses.values()) == counts["failed"]
    assert found.contexts == len(groups) == len(found.kept) + found.below_margin + found.too_few
    assert len(found.gaps) == found.contexts - found.too_few
    assert isinstance(found.why_so_few(margin), str)
    summary = found.summary()
    assert summary["kept_contexts"] == len(kept) and summary["without_score"] == counts["failed"]
    if found.scores:
        assert math.isclose(summary["score"], np.mean(found.scores), abs_tol=1e-12)
        assert math.isclose(summary["score_std"], np.std(found.scores), abs_tol=1e-12)
    assert all(map(math.isfinite, summary.values()))
    for one in found.kept:
        assert one.completions == tuple(one.rollout.completions[j] for j in one.numbers)


def test_a_gap_of_exactly_the_margin_is_kept():
    """Max - min >= tau: a gap of tau is a pair, a smaller one is none, and no gap is none even at tau 0."""
    exact, less = (0.5, 0.25), (0.5, 0.25 + 1e-12)
    groups = [[(high, "end", 1), (low, "end", 1)] for high, low in (exact, less, (0.5, 0.5))]
    assert [one.rollout.id for one in chosen(groups, "best_worst", margin=0.25).kept] == ["p0"]
    found = chosen(groups, "best_worst", margin=0.0)
    assert [one.rollout.id for one in found.kept] == ["p0", "p1"]
    assert found.below_margin == found.equal == 1
    assert "1 prompts" in found.why_so_few(0.0)


def test_rounding_neither_makes_nor_takes_a_gap():
    """Scores of hundredths, one apart, are all a pair at .01; weighted sums that differ by rounding alone are equal."""
    hundredths = [[(n / 100, "end", 1), ((n - 1) / 100, "end", 1)] for n in range(-300, 300)]
    assert {high - low >= 0.01 for (high, _, _), (low, _, _) in hundredths} == {True, False}
    assert len(chosen(hundredths, "best_worst", margin=0.01).kept) == 600
    assert chosen(hundredths, "best_worst", margin=0.0100001).below_margin == 600
    sums = [[(0.1 + 0.2, "end", 1), (0.3, "end", 1)]]
    assert sums[0][0][0] > sums[0][1][0]
    found = chosen(sums, "best_worst", margin=0.0)
    assert (len(found.kept), found.equal, found.below_margin) == (0, 1, 1)
    assert "largest difference among them is 0," in found.why_so_few(0.0)
    groups = chosen(sums, "all")
    [unit] = make_units(groups.kept, {"p0": (1,)}, taken_apart=False)
    assert groups.equal == 1 and [row.advantage for row in rows_of(unit, GRPO.grouping)] == [0.0, 0.0]


def test_ties_take_the_first():
    """Of several best, and of several worst completions, the first of each makes the pair, in this order."""
    group = [(0.5, "end", 1), (0.0, "end", 1), (1.0, "end", 1), (0.0, "end", 1), (1.0, "end", 1)]
    [one] = chosen([group], "best_worst").kept
    assert (one.numbers, one.scores) == ((2, 1), (1.0, 0.0))


def test_a_completion_without_a_score_ends_the_round_if_so_set():
    """Under failed: error the message names the prompt, the completion (from 1), its status and reason."""
    groups = [[(1.0, "end", 1), (0.0, "end", 1)], [(1.0, "end", 1), (None, "end", 1)]]
    with pytest.raises(RoundError) as caught:
        chosen(groups, "all", failed="error")
    assert str(caught.value).splitlines() == [
        "round 3: 1 of 4 completions have no score (1 timeout):",
        "- 1 times timeout: slow (first: p1, completion 2)",
        "Mend it. It goes on without with source.scoring.failed=drop, which leaves them out, or "
        "source.scoring.failed=0 or another score that they shall have.",
    ]


@pytest.mark.parametrize("failed", ["drop", 0.0])
@pytest.mark.parametrize(("lost", "share", "refused"), [(8, 0.5, 0), (9, 0.5, 1), (3, 0.1875, 0), (4, 0.1875, 1)])
def test_more_than_a_share_without_a_score_ends_the_round(failed, lost, share, refused):
    """Of 16 completions a share of exactly failed_share may lack a score, and one more may not, whatever they get."""
    values = [None] * lost + [float(i) for i in range(16 - lost)]
    groups = [[(value, "end", 1) for value in values[i::4]] for i in range(4)]
    if refused:
        with pytest.raises(
            RoundError, match=rf"^round 3: {lost} of 16 .*larger share than source.scoring.failed_share {share}"
        ):
            chosen(groups, "all", failed=failed, failed_share=share)
    else:
        assert sum(chosen(groups, "all", failed=failed, failed_share=share).statuses.values()) == lost


def test_the_ends_of_the_share():
    """At failed_share 1 a round without any score passes, at 0 a single one lacking ends it."""
    nothing, one = [[(None, "end", 1)] * 4], [[(None, "end", 1), *[(1.0, "end", 1)] * 99]]
    assert len(chosen(nothing, "all", failed=0.0, failed_share=1.0).kept) == 1
    with pytest.raises(RoundError, match="1 of 100"):
        chosen(one, "all", failed=0.0, failed_share=0.0)
    assert chosen([[(1.0, "end", 1)] * 4], "all", failed_share=0.0).statuses == {}
    assert chosen([], "all", failed_share=0.0).completions == 0


def test_which_reward_failed_and_why_is_told():
    """Statuses and rewards are counted, and of the reasons the commonest are told, each with where it came first."""
    rollouts, _ = build([[(None, "end", 1)] * 8])
    parts = [{"tag_count": 1.0}] * 5 + [{"tag_count": 1.0, "function_2": 0.0}] + [{}] * 2
    reasons = ["down", "refused", "down", "\x1b[2Jdown", "down", "other", "fifth", "sixth"]
    found = [Score(None, "error", p, r) for p, r in zip(parts, reasons, strict=True)]
    two = {"kind": "function", "call": "a:b"}
    settings = scoring({"kind": "tag_count"}, two, two, failed=0.0, failed_share=0.5)
    with pytest.raises(RoundError) as caught:
        refuse_unscored(rollouts, [found], settings, of="round 0", mend="Mend it.")
    assert str(caught.value).splitlines() == [
        "round 0: 8 of 8 completions have no score (8 error; by reward: 8 function, 7 function_2, 2 tag_count), a "
        "larger share than source.scoring.failed_share 0.5:",
        "- 3 times error: down (first: p0, completion 1)",
        "- 1 times error: refused (first: p0, completion 2)",
        r"- 1 times error: \x1b[2Jdown (first: p0, completion 4)",
        "- 1 times error: other (first: p0, completion 6)",
        "- 2 times something else",
        "Mend it. With source.scoring.failed_share=1 it goes on however many they are.",
    ]


def test_the_reason_says_by_how_much_scores_missed():
    """Largest and median gap are of the prompts left out, not of those kept."""
    gaps = [0.02, 0.3, 0.04, 0.0, 5.0]
    found = chosen([[(gap, "end", 1), (0.0, "length", 1)] for gap in gaps], "best_worst", margin=0.5)
    text = found.why_so_few(0.5)
    assert "4 prompts have scores that differ by less than source.score_margin 0.5" in text
    assert "largest difference among them is 0.3" in text and "median 0.02" in text
    assert "5 completions were truncated" in text
    found = chosen([[(None, "end", 1), (0.0, "end", 1)]], "best_worst")
    assert "1 of 2 completions have no score (1 timeout)" in found.why_so_few(0.01)
    assert "1 prompts have fewer than two completions left" in found.why_so_few(0.01)
    assert chosen([[(1.0, "end", 1), (0.0, "end", 1)]], "all").why_so_few(0.01) == "no prompt was left out"


GROUPS = [
    [(1.0, "end", 2), (0.0, "length", 3), (0.5, "end", 1)],
    [(0.0, "end", 1), (2.0, "stop", 2)],
    [(None, "end", 1), (3.0, "end", 2), (1.0, "end", 3), (None, "end", 1), (2.0, "end", 1)],
]
PROMPTS = {"p0": (7, 8), "p1": (9,), "p2": (7, 8, 9)}


def names_and_ids(units, grouping=None):
    """The rows of one micro-batch of all units: name to (prompt, completion) ids, read off the tensors."""
    micro = make_micro_batch([row for unit in units for row in rows_of(unit, grouping)], 0)
    rows = {}
    for name, ids, mask, length in zip(
        micro.block.names, micro.block.input_ids.tolist(), micro.block.mask.tolist(), micro.block.lengths, strict=True
    ):
        start = mask.index(True) + 1
        assert mask == [start - 1 <= place < length - 1 for place in range(len(mask))]
        rows[name] = tuple(ids[:start]), tuple(ids[start:length])
    assert len(rows) == len(micro.block.names)
    return rows, micro


@pytest.mark.parametrize("objective", ["dpo", "kto", "grpo"])
def test_rows_have_the_names_under_which_their_completions_are_looked_up(objective):
    """The row called `row_names(...)[i]` holds the prompt and the very tokens of the i-th completion that was kept."""
    kept = chosen(GROUPS, "all" if objective == "grpo" else "best_worst").kept
    rows, micro = names_and_ids(
        make_units(kept, PROMPTS, taken_apart=objective == "kto"), GRPO.grouping if objective == "grpo" else None
    )
    want = {}
    for one in kept:
        names = row_names(one.rollout.id, len(one.numbers), taken_apart=objective == "kto")
        for name, completion in zip(names, one.completions, strict=True):
            want[name] = PROMPTS[one.rollout.id], completion.ids
    assert rows == want and len(want) == (8 if objective == "grpo" else 6)
    if objective == "kto":
        best = {"p0": 0, "p1": 1, "p2": 1}
        for name, desirable in zip(micro.block.names, micro.desirable.tolist(), strict=True):
            prompt = name.split("#")[0]
            place = int(prompt[1])
            first = tuple(100 * (place + 1) + 10 * best[prompt] + k for k in range(2))
            assert desirable == (rows[name][1] == first)
    if objective == "dpo":
        assert micro.block.names == ("p0#0", "p1#0", "p2#0", "p0#1", "p1#1", "p2#1")


@pytest.mark.parametrize("objective", ["dpo", "kto", "grpo"])
def test_units_say_what_was_truncated(objective):
    """A completion without its end is marked, and only this one."""
    kept = chosen(GROUPS, "all" if objective == "grpo" else "best_worst").kept
    sequences = [
        sequence for unit in make_units(kept, PROMPTS, taken_apart=objective == "kto") for sequence in unit.sequences
    ]
    assert [sequence.ids[sequence.prompt_length :] for sequence in sequences if sequence.truncated] == [(110, 111, 112)]


def plain_advantages(scores, std, eps):
    mean = sum(scores) / len(scores)
    squares = sum((score - mean) ** 2 for score in scores)
    scale = {"population": len(scores), "sample": len(scores) - 1}.get(std)
    if max(scores) == min(scores):
        return [0.0] * len(scores)
    return [(s - mean) / (1.0 if scale is None else math.sqrt(squares / scale) + eps) for s in scores]


@given(
    strategies.scored_groups(),
    st.sampled_from(["population", "sample", "none"]),
    st.sampled_from([0.0, 0.01]),
)
@settings(max_examples=100, deadline=None)
def test_advantages_of_ragged_groups_are_those_of_each_group_alone(groups, std, eps):
    """Groups of different sizes in one micro-batch have the advantages that each has by itself, on the right rows."""
    kept = chosen(groups, "all").kept
    if not kept:
        return
    prompts = {one.rollout.id: (5, 6) for one in kept}
    units = make_units(kept, prompts, taken_apart=False)
    grpo = GrpoObjective(kind="grpo", advantage_std=std, advantage_eps=eps)
    _, micro = names_and_ids(units, grpo.grouping)
    got = dict(zip(micro.block.names, micro.advantages.tolist(), strict=True))
    want = {}
    for one in kept:
        for member, advantage in enumerate(plain_advantages(one.scores, std, eps)):
            want[f"{one.rollout.id}#{member}"] = advantage
    assert got.keys() == want.keys()
    assert all(math.isclose(got[name], want[name], abs_tol=1e-6) for name in want)  # float32
    members = [int(name.split("#")[1]) for name in micro.block.names]
    assert members == sorted(members)  # member by member


def test_pairs_of_different_sizes_are_refused():
    """Only groups may be ragged: for pairs a unit of three sequences is an error."""
    units = make_units(chosen(GROUPS, "all").kept, PROMPTS, taken_apart=False)
    with pytest.raises(ValueError, match="same number of sequences"):
        make_micro_batch([row for unit in units for row in rows_of(unit, None)], 0)


def test_preference_rows_are_what_training_reads(tmp_path):
    """Written as JSON lines the pairs are read as preference data with the best as chosen, and with their scores."""
    kept = chosen(GROUPS, "best_worst").kept
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in preference_rows(kept)))
    rows = read_rows(path, "preference")
    assert all(isinstance(row, Preference) for row in rows)
    assert [(row.prompt, row.chosen, row.rejected) for row in rows] == [
        ((Message("user", f"question {i}"),), f"text {i} {best}", f"text {i} {worst}")
        for i, best, worst in ((0, 0, 1), (1, 1, 0), (2, 1, 2))
    ]
    scores = [(row["chosen_score"], row["rejected_score"]) for row in map(json.loads, path.read_text().splitlines())]
    assert scores == [(1.0, 0.0), (2.0, 0.0), (3.0, 1.0)]
