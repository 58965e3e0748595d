"""Summaries of scored answers, problem by problem."""

from __future__ import annotations

import dataclasses
import itertools
import statistics

import pytest
import scipy.stats

from humanline.evaluate.records import EvaluationError
from humanline.evaluate.summary import describe_summary, items_of, key_of, summarise
from humanline.stats import clustered_share
from humanline.train.config.rounds import ScoringConfig
from humanline.train.data.messages import Message
from humanline.train.online.rewards.math_answer import math_verdict
from humanline.train.online.rewards.verifiers import number_verdict
from humanline.train.online.types import Completion, Rollout, Score


def rollout(name: str, *texts: str, finish: str = "end") -> Rollout:
    answers = tuple(Completion(text, tuple(range(len(text) + 1)), finish) for text in texts)
    return Rollout(name, (Message("user", f"question {name}"),), answers)


def scores(*values: float | None) -> list[Score]:
    return [Score(value) if value is not None else Score(None, "timeout") for value in values]


NUMBER = key_of(ScoringConfig.model_validate({"rewards": [{"kind": "number"}]}))


def test_pass_and_majority_are_means_over_problems_of_all_choices():
    rollouts = [rollout("a", "1", "1", "2", "3"), rollout("b", "5", "6", "5", "6")]
    given = [scores(1, 1, 0, 0), scores(0, 1, 0, 1)]
    found = summarise(rollouts, given, key=NUMBER)
    assert found["pass@1"]["value"] == found["score"]["value"] == 0.5
    for k in (1, 2, 4):
        right = []
        for own in given:
            chosen = [any(s.value for s in one) for one in itertools.combinations(own, k)]
            right.append(sum(chosen) / len(chosen))
        assert found[f"pass@{k}"]["value"] == pytest.approx(sum(right) / 2, abs=1e-12)
    assert found["majority@4"]["value"] == pytest.approx((1 + 0.5) / 2)  # two of four for 1; 5 and 6 are tied
    assert found["samples"] == [4, 4] and found["answers"] == 8


def test_one_sample_has_wilsons_interval():
    rollouts = [rollout(str(n), "x") for n in range(20)]
    found = summarise(rollouts, [scores(float(n < 17)) for n in range(20)])
    theirs = scipy.stats.binomtest(17, 20).proportion_ci(method="wilson")
    assert (found["pass@1"]["low"], found["pass@1"]["high"]) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert set(found) & {"pass@2", "majority@1"} == set()


def test_problems_that_ask_the_same_are_counted_and_said():
    """They are kept as problems of their own, which errors and intervals take for independent."""
    asked = [rollout(str(n % 3), "x") for n in range(5)]
    found = summarise([dataclasses.replace(one, id=f"q{n}") for n, one in enumerate(asked)], [scores(1.0)] * 5)
    assert (found["problems"], found["repeated_prompts"]) == (5, 2)
    assert any("2 of 5 problems have the prompt of an earlier one" in line for line in describe_summary(found))
    assert "repeated_prompts" not in summarise(asked[:3], [scores(1.0)] * 3)


def test_samples_of_one_problem_count_once():
    """Four equal samples of each problem tell no more than one of each: the interval does not shrink by half."""
    values = [1.0, 0.0] * 20
    rollouts = [rollout(str(n), "x", "x", "x", "x") for n in range(40)]
    found = summarise(rollouts, [scores(value, value, value, value) for value in values])
    width = found["pass@1"]["high"] - found["pass@1"]["low"]
    assert width == pytest.approx(2 * 2.02 * 0.5 / 39**0.5, rel=0.05)


def test_what_has_no_score_is_said_and_never_a_zero():
    rollouts = [rollout("a", "1", "2"), rollout("b", "1", finish="length"), rollout("c", "7")]
    given = [[Score(1.0), Score(None, "timeout")], [Score(None, "crashed")], [number_verdict_score("none", "3")]]
    found = summarise(rollouts, given, key=NUMBER)
    assert found["without_score"] == {"crashed": 1, "timeout": 1} and found["without_score_share"] == 0.5
    assert found["score"]["problems"] == 2 and found["score"]["value"] == 0.5
    assert found["unread"] == 0.25 and found["truncated"] == 0.25
    lines = "\n".join(describe_summary(found))
    assert "without a score 50.0% (1 crashed,1 timeout), not read 25.0%, truncated 25.0%" in lines
    assert "2 problems" in lines


def number_verdict_score(text: str, reference: str) -> Score:
    verdict = number_verdict(text, reference)
    return Score(verdict.value, verdict.status, reason=verdict.reason)


def test_what_was_not_read_is_known_by_its_reason():
    for verdict in (math_verdict("no idea", "3"), math_verdict(r"\boxed{}", "3"), number_verdict("no idea", "3")):
        assert verdict.value == 0.0 and verdict.reason.startswith("no answer read")
    for verdict in (math_verdict(r"\boxed{4}", "3"), number_verdict("4", "3")):
        assert not verdict.reason.startswith("no answer read")


def test_an_answer_that_says_nothing_agrees_with_nothing():
    rollouts = [rollout("a", "no idea", "who knows", "3")]
    found = summarise(rollouts, [scores(0, 0, 1)], key=NUMBER, ks=[3])
    assert found["majority@3"]["value"] == pytest.approx(1 / 3)


def test_boxes_are_compared_without_white_space():
    key = key_of(ScoringConfig.model_validate({"rewards": [{"kind": "math"}]}))
    assert key(r"so \boxed{ \frac{1}{2} }") == key(r"\boxed{\frac{1}{2}}") != key(r"\boxed{0.5}")
    assert key("no box") is None
    assert key_of(ScoringConfig.model_validate({"rewards": [{"kind": "tag_count"}]})) is None


def test_scores_that_are_no_verdicts_have_students_interval():
    rollouts = [rollout(str(n), "x", "y") for n in range(6)]
    values = [(0.1 * n, 0.1 * n + 0.3) for n in range(6)]
    found = summarise(rollouts, [scores(*own) for own in values])
    means = [sum(own) / 2 for own in values]
    theirs = scipy.stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert (found["score"]["low"], found["score"]["high"]) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    assert "pass@1" not in found


def test_standard_errors_and_counts_are_those_of_problems():
    """The error is s / sqrt(n) of the problems' means, each counted as often as it is there."""
    rollouts = [rollout(name, "1", "22") for name in "abcd"]
    for given in ([(1, 1), (0, 1), (0, 1), (0, 0)], [(0.5, 1), (0, 0.25), (0.25, 0), (2, 0)]):
        found = summarise(rollouts, [scores(*own) for own in given])
        means = [sum(own) / 2 for own in given]
        fact = found["score"]
        assert fact["problems"] == 4 and fact["value"] == pytest.approx(statistics.fmean(means), rel=1e-12)
        assert fact["se"] == pytest.approx(statistics.stdev(means) / 2, rel=1e-12)
        lines = describe_summary(found)
        assert f"score: {fact['value']:.4f} ({fact['low']:.4f} to {fact['high']:.4f}, standard" in lines[1]
        assert fact["low"] < fact["value"] < fact["high"]
        assert found["tokens"] == (2 + 3) / 2 and "4 problems, 2 samples each, 2 tokens an answer" in lines[0]


def test_votes_are_of_scored_answers_of_problems_that_have_enough():
    """An answer without a score has no vote; a problem with fewer than k scores is in no number at k."""
    rollouts = [rollout("a", "1", "2", "2"), rollout("b", "3", "4", "4"), rollout("c", "5", "5", "6")]
    given = [scores(1, None, None), scores(1, 0, None), scores(0, 0, 1)]
    found = summarise(rollouts, given, key=NUMBER, ks=[1, 2, 3])
    assert [found[f"majority@{k}"]["problems"] for k in (1, 2, 3)] == [3, 2, 1]
    assert found["majority@1"]["value"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    # Of b's 3 and 4 one is drawn; of c 5 wins in one choice of three, and is drawn in half of the others.
    assert found["majority@2"]["value"] == pytest.approx((1 / 2 + 2 / 3 / 2) / 2)
    assert found["majority@3"]["value"] == 0.0
    assert found["pass@2"]["value"] == pytest.approx((1 + 2 / 3) / 2) and found["pass@2"]["problems"] == 2


def test_problems_with_one_score_among_others_with_several_have_the_clustered_interval():
    rollouts = [rollout(str(n), "x", "y") for n in range(12)]
    given = [scores(1, None) if n % 3 == 0 else scores(n % 2, 1) for n in range(12)]
    means = [1.0 if n % 3 == 0 else (n % 2 + 1) / 2 for n in range(12)]
    found, expected = summarise(rollouts, given)["score"], clustered_share(means)
    assert (found["low"], found["high"]) == (expected.low, expected.high)


def test_answers_that_look_alike_and_are_scored_apart_are_two():
    """A checker may read more than what a vote goes by."""
    found = summarise([rollout("a", "x 3", "y 3", "z 3")], [scores(0, 0, 1)], key=NUMBER, ks=[3])
    assert found["majority@3"]["value"] == 0.0
    assert key_of(ScoringConfig.model_validate({"rewards": [{"kind": "number"}, {"kind": "math"}]})) is None


def test_one_problem_has_no_interval():
    found = summarise([rollout("a", "x", "y")], [scores(0.2, 0.4)])
    assert found["score"]["low"] is None and "interval not known" in describe_summary(found)[1]


def test_what_is_refused():
    with pytest.raises(EvaluationError, match="1 prompts have an id that another one has too, such as 'a'"):
        items_of([rollout("a", "x"), rollout("a", "y")], [scores(1), scores(1)])
    with pytest.raises(EvaluationError, match="1 prompts have no answer, such as 'b'"):
        items_of([rollout("a", "x"), rollout("b")], [scores(1), []])
    with pytest.raises(EvaluationError, match="none of 2 answers has a score: 2 timeout"):
        summarise([rollout("a", "x", "y")], [scores(None, None)])
    with pytest.raises(EvaluationError, match="pass@3 needs 3 scored answers of a problem; there are 2 at most"):
        summarise([rollout("a", "x", "y")], [scores(1, 0)], ks=[3])
    with pytest.raises(EvaluationError, match="of scores of 0 and 1 alone"):
        summarise([rollout("a", "x", "y")], [scores(0.5, 0)], ks=[2])
