"""pass@k and majority@k against all choices of k answers."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from humanline.stats import majority_at_k, pass_at_k, usual_ks


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_mean_over_all_choices(samples):
    for correct in range(samples + 1):
        answers = [True] * correct + [False] * (samples - correct)
        for k in range(1, samples + 1):
            chosen = [any(one) for one in itertools.combinations(answers, k)]
            assert pass_at_k(correct, samples, k) == pytest.approx(sum(chosen) / len(chosen), abs=1e-14)


@pytest.mark.parametrize("counts", [(1,), (2, 1), (3, 3), (1, 1, 1, 1), (4, 2, 2, 1), (2, 2, 2)])
def test_majority_at_k_is_the_mean_over_all_choices(counts):
    answers = [name for name, count in enumerate(counts) for _ in range(count)]
    for correct in itertools.product([True, False], repeat=len(counts)):
        for k in range(1, len(answers) + 1):
            won = []
            for chosen in itertools.combinations(answers, k):
                often = Counter(chosen).most_common()
                tied = [name for name, count in often if count == often[0][1]]
                won.append(sum(correct[name] for name in tied) / len(tied))
            assert majority_at_k(counts, correct, k) == pytest.approx(sum(won) / len(won), abs=1e-14)


def test_majority_of_one_is_the_share_of_correct_answers():
    assert majority_at_k([30, 20, 14], [False, True, False], 1) == pytest.approx(20 / 64, abs=1e-15)


def test_the_usual_ks_are_powers_of_two_and_all():
    assert [usual_ks(n) for n in (1, 2, 3, 6, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_large_numbers_are_exact():
    assert pass_at_k(1, 10_000, 5000) == 0.5
    assert majority_at_k([33, 31], [True, False], 64) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pass_at_k(2, 1, 1), r"correct must be an integer in 0 \.\. 1; got 2"),
        (lambda: pass_at_k(0, 0, 1), "samples must be an integer >= 1; got 0"),
        (lambda: pass_at_k(0, 2, 3), r"k must be an integer in 1 \.\. 2; got 3"),
        (lambda: majority_at_k([], [], 1), "counts must hold at least one answer"),
        (lambda: majority_at_k([1, 2], [True], 1), "correct"),
        (lambda: majority_at_k([1, 0], [True, False], 1), "counts must be an integer >= 1; got 0"),
        (lambda: majority_at_k([1, 1], [True, False], 3), r"k must be an integer in 1 \.\. 2; got 3"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
