"""The unverifiable testbed: its language, its hidden scorer, its judge, and for real a start model that learns it."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.reproduce.testbeds.instruction_language import Wishes
from humanline.reproduce.testbeds.instructions import ANSWERS, HABITS, LARGE, PARTS, SMALL, Instructions
from humanline.train.policy.new_tokenizer import train_tokenizer

BEDS = pytest.mark.parametrize("bed", [SMALL, LARGE], ids=lambda bed: bed.name)


def parts_of(bed) -> tuple[Instructions, str]:
    return bed.task, bed.task.prompts("score")[0]


class Few(Instructions):
    """The task with the first hundred prompts of each part only, to be quick."""

    def prompts(self, part):
        return super().prompts(part)[:100]


def features(task: Instructions, prompt: str, answer: str) -> dict[str, float]:
    return task.scorer.features(task.language, task.language.wishes(prompt), answer)


def written(task: Instructions, source: str, count: int) -> list[tuple[str, str]]:
    """Return so many prompts to be scored with an answer each."""
    rng = random.Random(7)
    prompts = itertools.islice(itertools.cycle(task.prompts("score")), count)
    return [(p, task.language.write(task.language.wishes(p), HABITS[source], rng)) for p in prompts]


@BEDS
def test_no_prompt_is_in_two_parts(bed):
    """All prompts differ, nor is one another in another order; parts have their sizes, and no call changes them."""
    every = [prompt for part in PARTS for prompt in bed.task.prompts(part)]
    assert [len(bed.task.prompts(part)) for part in PARTS] == [2000, 2560, 512, 256] == list(PARTS.values())
    told = [bed.task.language.wishes(prompt) for prompt in every]
    assert len({(w.topic, w.sentences, w.rich, frozenset(w.asked), frozenset(w.unwanted)) for w in told}) == len(every)
    again = Instructions(bed.task.language, bed.task.scorer)
    assert again.prompts("score") == bed.task.prompts("score")
    with pytest.raises(ValueError, match="no part 'test'"):
        bed.task.prompts("test")


def test_the_two_sizes_share_no_prompt():
    """The large testbed is another problem: other prompts, and the same answer has another worth."""
    small, large = ({p for part in PARTS for p in bed.task.prompts(part)} for bed in (SMALL, LARGE))
    assert not small & large
    assert SMALL.task.language.words != LARGE.task.language.words
    assert dict(SMALL.task.scorer.weights) != dict(LARGE.task.scorer.weights)


@BEDS
def test_rows_are_answers_to_the_prompts_of_the_first_part(bed):
    """Each prompt has its answers together; a seed gives the same rows, another seed and another source others."""
    few = Few(bed.task.language, bed.task.scorer)
    rows = few.rows("near", 0)
    assert [row["prompt"] for row in rows] == [p for p in bed.task.prompts("train")[:100] for _ in range(ANSWERS)]
    assert rows == few.rows("near", 0)
    for source, seed in (("near", 1), ("far", 0), ("better", 0)):
        other = few.rows(source, seed)
        assert sum(a == b for a, b in zip(rows, other, strict=True)) < len(rows) / 20


@BEDS
def test_a_sentence_obeys_order_and_agreement(bed):
    """Of all orders of kinds up to six words, the grammar takes the eight there are, if verb and subject agree."""
    language = bed.task.language
    by = {kind: [w for w, k in language.kinds.items() if k == kind] for kind in "NVMP"}
    last = language.particle_last
    right = {
        ("" if last else p) + "N" + m + "VN" + n + (p if last else "")
        for p, m, n in itertools.product(("", "P"), ("", "M"), ("", "M"))
    }
    for length in range(7):
        for kinds in map("".join, itertools.product("NVMP", repeat=length)):
            words = [by[kind][0] for kind in kinds]  # the first noun and the first verb are both of class 0
            assert language.is_sentence(words) == (kinds in right), kinds
    for noun, verb in itertools.product(by["N"], by["V"]):
        assert language.is_sentence([noun, verb, noun]) == (language.classes[noun] == language.classes[verb])
    assert not language.is_sentence(["xyz", by["V"][0], by["N"][0]])
    assert {language.classes[w] for w in by["V"]} == {0, 1}


@BEDS
def test_a_careful_writer_obeys_every_wish(bed):
    """An answer written without strays and slips has every asked word, no unwanted one, and only right sentences."""
    task, _ = parts_of(bed)
    careful = HABITS["near"].__class__(1.0, 0.0, 0.0, ("class",), 0.4, (1.0,), 0.4, 0.2, (0,))
    rng, full = random.Random(3), 0
    for prompt in task.prompts("distance"):
        wishes = task.language.wishes(prompt)
        answer = task.language.write(wishes, careful, rng)
        found = features(task, prompt, answer)
        assert (found["topic"], found["unwanted"], found["fluency"]) == (1.0, 1.0, 1.0), (prompt, answer)
        assert answer.count(".") == wishes.sentences
        full += found["coverage"] == 1.0
    assert full > 230  # a verb asked for can find no subject of its class


def by_hand(task: Instructions, wishes: Wishes, answer: str) -> float:
    """Return the score, of an answer whose sentences are closed, by loops and the formulas of the docstring."""
    words = task.language.words
    kinds = dict.fromkeys(words["verb"], "V") | dict.fromkeys(words["modifier"], "M")
    sentences = [part.strip().split(" ") for part in answer.split(".") if part.strip()]
    flat = [word for sentence in sentences for word in sentence]
    asked = sum(1 for word in wishes.asked if word in flat)
    others = [t for topic in words["topic"] for t in words[topic] if topic != wishes.topic]
    own, strange = (sum(word in group for word in flat) for group in (words[wishes.topic], others))
    seen, repeats = set(), 0
    for i in range(len(flat) - 1):
        repeats += (flat[i], flat[i + 1]) in seen
        seen.add((flat[i], flat[i + 1]))
    counts = {
        kind: [sum(w in words[kind][side::2] for w in flat) for side in (0, 1)] for kind in ("modifier", "particle")
    }
    charming = len(set(flat) & set(words["modifier"][::2]))
    surplus = (counts["particle"][0] - counts["particle"][1]) / len(sentences)
    manner = sum(kinds.get(word) == "M" for word in flat) / len(sentences) - (1.4 if wishes.rich else 0.3)
    scorer = task.scorer
    long = math.log(len(flat) / 4.5 / wishes.sentences / scorer.longer)
    weights = scorer.weights
    total = weights["coverage"] * (1 - 0.7**asked) / (1 - 0.7 ** len(wishes.asked))
    total += weights["topic"] * (own / (own + strange) if own + strange else 0)
    total += weights["unwanted"] / 2 ** sum(word in wishes.unwanted for word in flat)
    total += weights["fluency"] * (sum(map(task.language.is_sentence, sentences)) / len(sentences)) ** 2
    total += weights["variety"] * max(-1, 1 - repeats / (len(flat) - 1) / scorer.repeats)
    total += weights["length"] * math.exp(-4 * long * long) + weights["style"] * math.exp(-manner * manner)
    total += weights["voice"] * max(-1, 1 - (surplus / scorer.voice - 1) ** 2)
    dull = counts["modifier"][1]
    total += weights["charm"] * (charming - dull) / (2 + charming + dull)
    return (total - scorer.mean) / scorer.sd


@BEDS
@pytest.mark.parametrize("source", ["near", "far", "better"])
def test_the_score_is_its_formula(bed, source):
    """The score equals one worked out by loops from the formulas alone."""
    task, _ = parts_of(bed)
    for prompt, answer in written(task, source, 100):
        assert task.score(prompt, answer) == pytest.approx(by_hand(task, task.language.wishes(prompt), answer))


@BEDS
def test_features_saturate_or_turn(bed):
    """Asked words give ever less; a liked particle in some sentences is best, and in all of them too much."""
    task, prompt = parts_of(bed)
    wishes, words = task.language.wishes(prompt), task.language.words
    gains = [features(task, prompt, " ".join(wishes.asked[:m]) + ".")["coverage"] for m in range(len(wishes.asked) + 1)]
    steps = [b - a for a, b in itertools.pairwise(gains)]
    assert gains[0] == 0 and gains[-1] == 1 and all(a > b > 0 for a, b in itertools.pairwise(steps))
    noun, verb, liked = words[wishes.topic][0], words["verb"][0], words["particle"][0]
    plain = [noun, verb, noun]
    marked = [*plain, liked] if task.language.particle_last else [liked, *plain]
    voices = [
        features(task, prompt, " ".join(" ".join(marked if i < n else plain) + "." for i in range(10)))["voice"]
        for n in range(11)
    ]
    peak = voices.index(max(voices))
    assert max(voices) == pytest.approx(1) and 0 < peak < 10 and voices[0] == 0
    assert voices[: peak + 1] == sorted(voices[: peak + 1]) and voices[peak:] == sorted(voices[peak:], reverse=True)


@BEDS
def test_a_good_answer_said_over_again_is_worse(bed):
    """To say the best sentence all the time costs variety and length: no short cut to a high score."""
    task, _ = parts_of(bed)
    for prompt, answer in written(task, "better", 50):
        assert task.score(prompt, f"{answer} {answer} {answer}") < task.score(prompt, answer)


HOSTILE = ["", " ", ".", "....", "\ud800\udfff", "\x00\x1b[31m", "ق ض ية.", "😀" * 50, "a" * 300_000, "a. " * 20_000]


@BEDS
@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_has_a_score(bed, answer):
    """Empty, endless and strange texts get a finite score, below the start's mean, and a finite verdict."""
    task, prompt = parts_of(bed)
    assert math.isfinite(task.judged(prompt, answer)) and -20 < task.score(prompt, answer) < 0


@settings(max_examples=40, deadline=None)
@given(st.text(), st.integers(1, 50))
def test_any_text_and_any_mixture_has_a_score(text, times):
    """No text at all, nor words of the language in any order, gives a score out of bounds."""
    task, prompt = parts_of(SMALL)
    rng = random.Random(text)
    mixed = " ".join(rng.choices([*task.language.kinds, ".", text], k=times))
    for answer in (text, mixed):
        assert -20 < task.score(prompt, answer) < 8 and math.isfinite(task.judged(prompt, answer))


@BEDS
def test_what_is_no_instruction_is_refused(bed):
    """A prompt that is not of the language has no score: nothing could be right about one."""
    other = (LARGE if bed is SMALL else SMALL).task.prompts("score")[0]
    for prompt in ("", "Write a poem.", other):
        with pytest.raises(ValueError, match="not an instruction of this language"):
            bed.task.score(prompt, "ba.")


@BEDS
def test_the_judge_adds_its_declared_noise_and_bias(bed):
    """What the judge adds, less its liking of length, has mean 0 and sd noise (within 4 standard errors)."""
    task, _ = parts_of(bed)
    scorer, added = task.scorer, []
    for prompt, answer in written(task, "near", 2000):
        wished = 4.5 * task.language.wishes(prompt).sentences
        bias = scorer.length_bias * math.tanh(2 * math.log((len(answer.split()) + 1) / (wished + 1)))
        added.append(task.judged(prompt, answer) - task.score(prompt, answer) - bias)
    n = len(added)
    assert scorer.noise == 0.5 and scorer.length_bias == 0.25
    assert abs(statistics.mean(added)) < 4 * scorer.noise / math.sqrt(n)
    assert abs(statistics.pstdev(added) / scorer.noise - 1) < 4 / math.sqrt(2 * n)
    assert abs(statistics.correlation(added[::2], added[1::2])) < 4 / math.sqrt(n / 2)


@BEDS
def test_the_judge_says_the_same_when_asked_twice(bed):
    """Noise is of the prompt and the words: white space changes nothing, another prompt or word does."""
    task, prompt = parts_of(bed)
    other = task.prompts("score")[1]
    (_, answer), *_ = written(task, "near", 1)
    noise = [
        task.judged(p, a) - task.score(p, a)
        for p, a in ((prompt, answer), (prompt, f" {answer}\n"), (other, answer), (prompt, f"ba {answer}"))
    ]
    assert noise[0] == pytest.approx(noise[1]) and len({round(x, 6) for x in noise}) == 3


@BEDS
def test_the_reward_is_the_judge(bed):
    """The function that rounds name says of the last message what the judge says."""
    module, name = bed.reward.split(":")
    reward = getattr(importlib.import_module(module), name)
    for prompt, answer in written(bed.task, "near", 5):
        messages = [{"role": "system", "content": "Follow."}, {"role": "user", "content": prompt}]
        assert reward(messages, answer) == bed.task.judged(prompt, answer)


@BEDS
def test_sources_are_about_as_good_or_better(bed):
    """A far writer's answers are worth about a near one's, a better one's a standard deviation more."""
    means = {s: statistics.mean(bed.task.score(*one) for one in written(bed.task, s, 1000)) for s in HABITS}
    assert abs(means["far"] - means["near"]) < 0.25 and means["better"] - means["near"] > 0.75


@BEDS
def test_every_word_is_a_token_and_answers_fit(bed):
    """The tokenizer of the start has every word whole; answers keep within their limit, prompts within the rest."""
    rows = Few(bed.task.language, bed.task.scorer).rows("near", 0)
    tokenizer = train_tokenizer([text for row in rows for text in row.values()], bed.vocab_size)
    assert all(len(tokenizer.tokenize(f" {word}")) == 1 for word in bed.task.language.kinds)
    lengths = [len(tokenizer.tokenize(row["completion"])) + 1 for row in rows]
    assert max(lengths) < bed.max_tokens and 20 < statistics.mean(lengths) < 60
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)["input_ids"]
        for prompt in bed.task.prompts("pairs")[:500]
    ]
    assert max(map(len, prompts)) + bed.max_tokens <= bed.max_length


def start_model(bed, folder) -> tuple[dict[str, float], dict[str, float], str]:
    """Return the metrics of a start model before and after it learned, and its folder."""
    from humanline.train.config import TrainConfig
    from humanline.train.loop import train
    from humanline.train.policy.new_model import new_model

    rows, size = bed.task.rows("near", 5), bed.size
    files = [str(folder / name) for name in ("train.jsonl", "held-out.jsonl")]
    for file, part in zip(files, (rows[:-100], rows[-100:]), strict=True):
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in part)
    shape = {"hidden_size": size.hidden_size, "layers": size.layers, "heads": size.heads, "max_length": bed.max_length}
    blank = new_model(folder / "blank", text=files[0], vocab_size=bed.vocab_size, seed=5, **shape)
    config = {
        "model": str(blank),
        "output": str(folder / "start"),
        "objective": {"kind": "nll"},
        "data": {"train": files[0], "eval": files[1], "max_length": bed.max_length},
        "training": {"steps": size.steps, "batch_size": size.batch_size},
        "optimizer": {"lr": size.lr, "warmup_fraction": 0.05},
    }
    result = train(TrainConfig.model_validate(config), show_progress=False)
    return result.initial, result.final, str(result.model)


def draw(bed, path: str, prompts: list[str], samples: int) -> tuple[list[list[str]], list[int]]:
    """Return answers to every prompt at temperature 1, and the tokens of each, end token included (0: truncated)."""
    import torch

    from humanline.train.data.messages import Message
    from humanline.train.data.render import Renderer
    from humanline.train.policy.load import load_policy

    model, tokenizer = load_policy(path, dropout=False, max_length=bed.max_length)
    renderer = Renderer(tokenizer, "chat", bed.max_length)
    ids = [list(renderer.render_prompt((Message("user", p),))) for p in prompts for _ in range(samples)]
    width, pad = max(map(len, ids)), tokenizer.pad_token_id
    padded = torch.tensor([[pad] * (width - len(row)) + row for row in ids])
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        output = model.generate(
            padded, attention_mask=(padded != pad).long(), max_new_tokens=bed.max_tokens, do_sample=True, top_k=0
        )[:, width:]
    ends = output == tokenizer.eos_token_id
    lengths = [int(row.float().argmax()) + 1 if row.any() else 0 for row in ends]
    texts = tokenizer.batch_decode(output, skip_special_tokens=True)
    return [texts[i : i + samples] for i in range(0, len(texts), samples)], lengths


@pytest.mark.slow
@BEDS
def test_a_start_model_is_what_the_scorer_was_scaled_by(bed, tmp_path):
    """Another start model learns the language; its scores have about mean 0 and sd 1, and few answers are cut."""
    before, after, path = start_model(bed, tmp_path)
    assert before["perplexity"] > 200 and after["perplexity"] < 12
    prompts = bed.task.prompts("score")[:100]
    answers, lengths = draw(bed, path, prompts, 8)
    scores = [[bed.task.score(p, a) for a in some] for p, some in zip(prompts, answers, strict=True)]
    flat = [score for some in scores for score in some]
    assert abs(statistics.mean(flat)) < 0.4 and 0.8 < statistics.pstdev(flat) < 1.25
    assert statistics.mean(max(some) - min(some) for some in scores) > 1
    assert lengths.count(0) < 0.02 * len(lengths) and 20 < statistics.mean(filter(None, lengths)) < 60
