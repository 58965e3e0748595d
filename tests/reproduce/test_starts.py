"""Start models as they are declared, trained for real: sound ones, from which runs can rise and fall."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from humanline.reproduce.start import ANSWERS, make_pairs, make_start
from humanline.reproduce.testbeds.registry import OTHERS, TESTBEDS
from humanline.reproduce.testbeds.registry import testbed as named


@dataclass(frozen=True)
class Sound:
    """What is wanted of a start model.

    Seed 0 gave what is in brackets. Another processor rounds otherwise, which is as another seed; the three seeds of
    letters differ by .02. The bounds leave several times that, and end before a start with nothing to gain or to lose.

    Parameters
    ----------
    score, greedy : (float, float)
        Between which the mean true score lies, at temperature 1 and 0.
    pairs : float
        Share of the prompts that give a pair, at least.
    gap : float
        Mean difference of the judge's scores of a pair, at least.
    """

    score: tuple[float, float]
    greedy: tuple[float, float]
    pairs: float
    gap: float


SOUND = {
    "letters": Sound((0.48, 0.66), (0.62, 0.86), 0.97, 0.3),  # (.574, .737, .994, .635)
    "letters-large": Sound((0.52, 0.74), (0.68, 0.92), 0.97, 0.45),  # (.627, .805, .996, .587)
    "letters-gemma2": Sound(
        (0.48, 0.7), (0.54, 0.82), 0.86, 0.3
    ),  # (.590, .649, .919, .528; then .615, .683, .905, .519)
    "arithmetic": Sound((0.33, 0.6), (0.5, 0.85), 0.88, 0.7),  # (.455, .656, .952, .815)
}
#: Of these the pairs were not looked at yet; test_instructions.py holds the scores of their start models.
NOT_YET = {"instructions", "instructions-large"}


def test_every_testbed_has_its_bounds():
    """A testbed whose start model nobody has looked at is named as such."""
    assert set(SOUND) | NOT_YET == set(TESTBEDS | OTHERS) and not set(SOUND) & NOT_YET


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_declared_start_model_is_sound(name, tmp_path):
    """It has room to rise and to fall, few of its answers are cut, and nearly every prompt gives a pair of them."""
    sound, start = SOUND[name], make_start(named(name), "near", 0, tmp_path)
    assert sound.score[0] < start.measured.score < sound.score[1]
    assert sound.greedy[0] < start.measured.greedy < sound.greedy[1]
    assert abs(start.measured.judged - start.measured.score) < 0.1  # the judge's liking of length is small
    assert start.measured.truncated < 0.02 and start.measured.length < 0.9 * named(name).max_tokens
    pairs = make_pairs(named(name), "near", 0, 0, tmp_path)
    assert pairs.scorer_calls == ANSWERS * len(named(name).task.prompts("pairs"))
    assert pairs.count > sound.pairs * len(named(name).task.prompts("pairs")) and pairs.gap > sound.gap
