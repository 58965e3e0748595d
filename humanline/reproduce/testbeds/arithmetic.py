"""Sums and differences of two or three numbers, worked out and answered in a required form: right, or not.

The form is the one that the paper's mathematics asks for, and as there being right, having the form and having its
four tags weigh 8 : 1 : 1; here an answer in another form is not looked at, and so is never right. A start model learns
from answers with slips: a result off by one or ten, a tag left out. A far one learns from other slips: a sign misread,
the two blocks in the wrong order; a better one from fewer of the first. Whoever slips goes on from the wrong result.
The judge has no noise.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence

from humanline.reproduce.testbeds.base import Part, Size, Source, Testbed, dealt, last_text
from humanline.train.online.rewards.verifiers import number_verdict, tag_count_verdict

#: How many problems each part has.
PARTS: dict[Part, int] = {"train": 3000, "pairs": 2560, "score": 512, "distance": 640}
#: No number in a problem, and no right result on the way to its solution, is larger; none is negative.
LARGEST = 25
#: How often a step of the working is wrong, and how often the form is.
SLIPS: dict[Source, tuple[float, float]] = {"near": (0.08, 0.08), "far": (0.08, 0.08), "better": (0.02, 0.02)}
#: What an answer gets for the right number in the right form, for the form, and for all its tags.
RIGHT, FORM, TAGS = 0.8, 0.1, 0.1

_TERM = re.compile(r"[+-]?[0-9]{2}")
_PROBLEM = re.compile(r"[0-9]{2}(?:[+-][0-9]{2}){1,2}")
#: Open-R1's form with its line ends, whose answer is of one line, and nothing else that could open a tag. Read in time
#: that grows with the length alone.
_ANSWER = re.compile(r"<think>\n[^<]*\n</think>\n<answer>\n([^<\n]*)\n</answer>")


class Arithmetic:
    """The task (`Task`)."""

    def rows(self, source: Source, seed: int) -> list[dict[str, str]]:
        """Return the problems to learn from, each worked out and answered, but for slips."""
        rng = random.Random(f"{source} {seed}")
        wrong_step, wrong_form = SLIPS[source]
        rows = []
        for problem in self.prompts("train"):
            working, result = _worked_out(problem, source, wrong_step, rng)
            lines = ["<think>", *working, "</think>", "<answer>", f"{result:02d}", "</answer>"]
            if rng.random() < wrong_form:
                if source == "far":
                    lines = lines[-3:] + lines[:-3]
                else:
                    lines.remove(rng.choice(("<think>", "</think>", "<answer>", "</answer>")))
            rows.append({"prompt": problem, "completion": "\n".join(lines)})
        return rows

    def prompts(self, part: Part) -> list[str]:
        """Return problems such as 07+18-12; one in 26 has two numbers, the others three."""
        return list(_problems()[part])

    def score(self, prompt: str, answer: str) -> float:
        """Return 0.8 for the right number in the right form, 0.1 for the form, 0.025 for each of its tags; in [0, 1].

        Raises
        ------
        ValueError
            If the prompt is no problem; any answer has a score.
        """
        tags = tag_count_verdict(answer).value or 0.0
        return RIGHT * self.is_right(prompt, answer) + FORM * self.has_form(answer) + TAGS * tags

    def judged(self, prompt: str, answer: str) -> float:
        """Return the score."""
        return self.score(prompt, answer)

    def has_form(self, answer: str) -> bool:
        """Return whether an answer is a block of thoughts and a block of one line, each tag on a line of its own."""
        return _ANSWER.fullmatch(answer) is not None

    def is_right(self, prompt: str, answer: str) -> bool:
        """Return whether an answer has the form and its last block the right number (`number_verdict`).

        What is thought before is not looked at. Raises ValueError if the prompt is no problem.
        """
        expected, form = solution(prompt), _ANSWER.fullmatch(answer)
        return form is not None and number_verdict(form[1], expected).value == 1.0


def solution(problem: str) -> int:
    """Return what a problem comes to.

    Raises
    ------
    ValueError
        If it is no problem: two or three numbers of two digits with signs between them.
    """
    if _PROBLEM.fullmatch(problem) is None:
        raise ValueError(f"{problem[:40]!r} is no problem such as 07+18-12")
    return sum(map(int, _TERM.findall(problem)))


def right_in_form(prompt: Sequence[Mapping[str, str]], completion: str) -> float:
    """Return what an answer to a problem is worth: a reward for rounds.

    Parameters
    ----------
    prompt : sequence of {"role", "content"}
        Its last message is the problem.
    completion : str

    Returns
    -------
    float
        In [0, 1] (`Arithmetic.judged`).

    Raises
    ------
    ValueError
        If the last message is no problem.
    """
    return Arithmetic().judged(last_text(prompt), completion)


def _worked_out(problem: str, source: Source, wrong_step: float, rng: random.Random) -> tuple[list[str], int]:
    """Return the steps of the working, and the result it ends with."""
    first, *terms = _TERM.findall(problem)
    result, steps = int(first), []
    for term in terms:
        before, result = result, result + int(term)
        if rng.random() < wrong_step:
            result = before - int(term) if source == "far" else result + rng.choice((-10, -1, 1, 10))
        steps.append(f"{before:02d}{term}={result:02d}")
    return steps, result


@functools.cache
def _problems() -> dict[Part, list[str]]:
    """Return the problems of every part, drawn from all that there are."""
    every = [problem for count in (2, 3) for problem in _every_problem(count)]
    random.Random(2).shuffle(every)
    return dealt(every, PARTS)


def _every_problem(count: int) -> Iterator[str]:
    """Yield every problem of so many numbers: 625 of two, 15625 of three."""
    signed = [*range(-LARGEST, 0), *range(1, LARGEST + 1)]
    for terms in itertools.product(range(1, LARGEST + 1), *[signed] * (count - 1)):
        if all(0 <= result <= LARGEST for result in itertools.accumulate(terms)):
            yield f"{terms[0]:02d}" + "".join(f"{term:+03d}" for term in terms[1:])


SMALL = Testbed(
    name="arithmetic",
    task=Arithmetic(),
    size=Size(hidden_size=64, layers=2, heads=4, steps=1200, batch_size=32, lr=2e-3),
    reward="humanline.reproduce.testbeds.arithmetic:right_in_form",
    max_tokens=48,
    max_length=80,
    vocab_size=400,
    description="sums and differences worked out in a required form; the score is for being right, a little for form",
)
