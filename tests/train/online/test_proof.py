"""What proves a server's weights: the slope's arithmetic, and what it says of right, stale and rounded servers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from humanline.train.config.rounds import ProofConfig
from humanline.train.data.prompts import Context
from humanline.train.data.truncation import LengthLimits
from humanline.train.online.samplers.passes import Said
from humanline.train.online.samplers.proof import (
    Reading,
    Slope,
    Text,
    check_in_words,
    compare,
    judge,
    pick_texts,
    slope_between,
)
from humanline.train.online.samplers.prover import Prover, WrongWeights, rounded_to_bf16, text_logprobs
from humanline.train.online.types import Completion, Rollout
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.new_model import tiny_llama
from humanline.train.policy.precision import compute_in

TEXTS, LENGTH = 64, 65  # 4096 scored tokens


def bf16(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).bfloat16().double().numpy()


class Run:
    """Policies on a walk: log-probabilities of fixed texts, moved a little at each publish."""

    def __init__(self, seed: int, size: float) -> None:
        self.rng, self.size = np.random.default_rng(seed), size
        self.now = -self.rng.exponential(4.0, (TEXTS, LENGTH - 1))

    def step(self) -> None:
        # Tokens of one text move together, and some of them not at all.
        shared = self.rng.normal(size=(TEXTS, 1)) * (self.rng.random((TEXTS, LENGTH - 1)) < 0.7)
        self.now = np.minimum(self.now + self.size * (shared + 0.5 * self.rng.standard_t(4, self.now.shape)), 0.0)

    def reading(self, server: np.ndarray, version: str = "v") -> Reading:
        return reading(self.now, server, version)


def reading(policy: np.ndarray, server: np.ndarray, version: str = "v") -> Reading:
    names = [f"t{i}" for i in range(len(policy))]
    texts = {name: Text(tuple(range(policy.shape[1] + 1)), 1) for name in names}
    return Reading(version, texts, dict(zip(names, policy, strict=True)), dict(zip(names, server, strict=True)))


def test_the_slope_is_that_of_least_squares():
    """Without an intercept, of the server's change on the policy's: as numpy's solver finds it."""
    rng = np.random.default_rng(0)
    p0, s0, p1, s1 = rng.normal(size=(4, 5, 7))
    slope = slope_between(reading(p0, s0), reading(p1, s1), exact=True)
    (expected,) = np.linalg.lstsq((p1 - p0).reshape(-1, 1), (s1 - s0).ravel(), rcond=None)[0]
    assert slope.value == pytest.approx(expected, rel=1e-12)
    rough = slope_between(reading(p0, s0), reading(p1, s1), exact=False)
    (expected,) = np.linalg.lstsq((p1 - p0).reshape(-1, 1), (s1 - p0).ravel(), rcond=None)[0]
    assert rough.value == pytest.approx(expected, rel=1e-12)


def test_the_interval_is_the_jackknifes_over_texts():
    """Its half width is Student's quantile at one in a million times the larger of two jackknife errors."""
    from scipy.stats import t

    rng = np.random.default_rng(1)
    p0, s0, p1, s1 = rng.normal(size=(4, 6, 9))
    slope = slope_between(reading(p0, s0), reading(p1, s1), exact=True)
    errors = []
    for base in (s0, p0):
        left_out = []
        for text in range(6):
            rest = [i for i in range(6) if i != text]
            x, y = (p1 - p0)[rest].ravel(), (s1 - base)[rest].ravel()
            left_out.append(sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x))
        mean = sum(left_out) / 6
        errors.append(math.sqrt(5 / 6 * sum((one - mean) ** 2 for one in left_out)))
    width = max(errors) * t.ppf(1 - 5e-7, 5)
    assert slope.high - slope.value == pytest.approx(width, rel=1e-9)
    assert slope.value - slope.low == pytest.approx(width, rel=1e-9)


@pytest.mark.parametrize(
    "low,high,exact,verdict",
    [
        (0.9, 1.1, True, "new"),
        (0.1, 5.0, True, "new"),
        (-0.1, 0.1, True, "old"),
        (-3.0, -1.0, True, "old"),
        (0.2, 0.8, True, "between"),
        (-0.5, 1.5, True, "unclear"),
        (0.6, 0.7, False, "new"),
        (0.3, 0.4, False, "old"),
        (0.4, 0.6, False, "unclear"),
    ],
)
def test_what_an_interval_says(low, high, exact, verdict):
    """1 alone is new, 0 alone (or less) is old, both is unclear; where the policy rounds, what counts is a half."""
    assert judge(Slope((low + high) / 2, low, high), exact=exact) == verdict
    assert judge(None, exact=exact) == "same"


@pytest.mark.parametrize("size", [1e-4, 1e-3, 1e-2])
def test_a_right_server_that_rounds_is_never_refused(size):
    """Over 200 publishes of 4096 tokens told in bf16, no interval excludes new weights; where it can tell, it says new.

    An interval errs once in a million times, so that the 400 of a run err with probability 4e-4.
    """
    run = Run(1, size)
    first = last = run.reading(bf16(run.now))
    verdicts = []
    for _ in range(200):
        run.step()
        new = run.reading(bf16(run.now))
        verdicts += [judge(slope_between(old, new, exact=True), exact=True) for old in (last, first)]
        if verdicts[-2] == "new":
            last = new
    assert "old" not in verdicts and "between" not in verdicts
    assert verdicts[-1] == "new"
    assert verdicts.count("new") >= {1e-4: 1, 1e-3: 380, 1e-2: 400}[size]


@pytest.mark.parametrize("size,within", [(1e-4, 200), (1e-3, 3), (1e-2, 1)])
def test_a_stale_server_that_rounds_is_found(size, within):
    """A server that keeps its first weights is refused once the policy has moved by more than the rounding hides."""
    run = Run(2, size)
    told = bf16(run.now)
    first = run.reading(told)
    verdicts = []
    for _ in range(within):
        run.step()
        verdicts.append(judge(slope_between(first, run.reading(told), exact=True), exact=True))
    assert set(verdicts) <= {"old", "unclear"} and verdicts[-1] == "old"


def test_a_change_that_rounding_hides_altogether_is_unclear():
    """A right server whose rounded log-probabilities stay the same is not taken for one that kept its weights."""
    run = Run(3, 1e-7)
    before = run.reading(np.round(run.now))
    p0 = run.now
    run.now = p0 - 2e-5
    new = run.reading(np.round(p0))
    assert judge(slope_between(before, new, exact=True), exact=True) == "unclear"


def test_a_systematic_offset_of_the_server_does_not_matter():
    """A server whose error is the same for all weights, and greatest where the policy moves most, is judged rightly."""
    run = Run(4, 1e-3)
    p0 = run.now
    run.step()
    error = 20 * (run.now - p0)  # the worst that an error can be: along the change
    right = slope_between(reading(p0, p0 + error), reading(run.now, run.now + error), exact=True)
    assert right.value == pytest.approx(1.0)
    stale = slope_between(reading(p0, p0 + error), reading(run.now, p0 + error), exact=True)
    assert stale.value == pytest.approx(0.0)


def test_the_policys_own_rounding_is_allowed_for():
    """Where the policy rounds as much as it moves, slopes are shrunk towards a half, and still tell new from old."""
    rng = np.random.default_rng(5)
    p0 = -rng.exponential(4.0, (TEXTS, 256))
    p1 = p0 + 2e-3 * rng.normal(size=p0.shape)
    noise = [2e-3 * rng.normal(size=p0.shape) for _ in range(4)]
    old = reading(p0 + noise[0], p0 + noise[1])
    for server, verdict in ((p1, "new"), (p0, "old")):
        slope = slope_between(old, reading(p1 + noise[2], server + noise[3]), exact=False)
        assert 0.25 < slope.value < 0.75
        assert judge(slope, exact=False) == verdict


def test_texts_are_compared_as_far_as_they_are_alike():
    """Answers that part are compared before they do, and texts that one reading lacks are left out."""
    rng = np.random.default_rng(6)
    ids = tuple(range(10))
    other = (*ids[:6], 99, *ids[7:])
    p0, p1, s0, s1 = rng.normal(size=(4, 8))
    lone = {"only old": Text((1, 2), 1)}

    def of(ids, p, s, more=()):
        extra = {name: np.zeros(1) for name in more}
        texts = {"a": Text(ids, 2), "b": Text((5, 6, 7), 1)} | {name: lone[name] for name in more}
        return Reading("v", texts, {"a": p, "b": np.array([1.0, 2.0]) * p[0]} | extra, {"a": s, "b": s[:2]} | extra)

    whole = slope_between(of(ids, p0, s0, lone), of(other, p1, s1), exact=True)
    x = np.concatenate([(p1 - p0)[:4], np.array([1.0, 2.0]) * (p1[0] - p0[0])])
    y = np.concatenate([(s1 - s0)[:4], (s1 - s0)[:2]])
    assert whole.value == pytest.approx(float(x @ y / (x @ x)), rel=1e-12)


def test_nothing_is_said_of_a_policy_that_did_not_move():
    """Equal weights, a change within float32's rounding, and readings without a common text have no slope."""
    run = Run(7, 0.0)
    one = run.reading(run.now)
    assert slope_between(one, one, exact=True) is None
    run.now = run.now + 9e-6
    assert slope_between(one, run.reading(run.now), exact=True) is None
    empty = Reading("v", {}, {}, {})
    assert slope_between(empty, one, exact=True) is None


def test_one_text_gives_no_interval():
    """The jackknife needs two texts: the slope of a single one is unclear, whatever it is."""
    slope = slope_between(
        reading(np.zeros((1, 9)), np.zeros((1, 9))), reading(np.ones((1, 9)), np.zeros((1, 9))), exact=True
    )
    assert (slope.value, slope.low, slope.high) == (0.0, -math.inf, math.inf)
    assert judge(slope, exact=True) == "unclear"
    assert "cannot tell" in check_in_words({"verdict": "unclear", "rms": 0.1, "slope": 0.0, "low": None, "high": None})


def test_readings_come_back_from_json():
    """A reading that was written down is the same to the last bit; a row with a number too few is refused."""
    import json

    run = Run(8, 1.0)
    one = run.reading(bf16(run.now), "v7")
    row = json.loads(json.dumps(one.row()))
    again = Reading.from_row(row)
    assert again.version == "v7" and again.texts == one.texts
    for name in one.texts:
        assert np.array_equal(again.policy[name], one.policy[name])
        assert np.array_equal(again.server[name], one.server[name])
    assert one.rms() == pytest.approx(float(np.sqrt(np.mean((run.now - bf16(run.now)) ** 2))))
    row["server"]["t3"].pop()
    with pytest.raises(ValueError, match="one number for each token"):
        Reading.from_row(row)


def answer(prompt, *ids):
    return Text((*prompt, *ids), len(prompt))


def test_texts_are_of_as_many_prompts_as_there_are():
    """One answer of each prompt comes before the second of any; enough tokens are enough."""
    candidates = [[("a/0", answer((1,), 5, 6)), ("a/1", answer((1,), 7, 8))], [("b/0", answer((2,), 5, 6))]]
    assert list(pick_texts(candidates, 3, 99)) == ["a/0", "b/0"]
    assert list(pick_texts(candidates, 99, 99)) == ["a/0", "b/0", "a/1"]
    assert pick_texts([], 5, 99) == {}


def test_no_token_is_scored_twice_after_the_same_ones():
    """Answers of one prompt, and prompts that begin alike, are scored from where they part; equal ones once."""
    system = (9, 9, 9)
    candidates = [
        [("a/0", answer((*system, 1), 5, 6)), ("a/1", answer((*system, 1), 5, 7)), ("a/2", answer((*system, 1), 5, 6))],
        [("b/0", answer((*system, 2), 5, 6))],
    ]
    picked = pick_texts(candidates, 99, 99)
    assert {name: text.start for name, text in picked.items()} == {"a/0": 1, "b/0": 3, "a/1": 5}
    contexts = [text.ids[: i + 1] for text in picked.values() for i in range(text.start, len(text.ids))]
    assert len(contexts) == len(set(contexts))


def test_long_answers_give_their_share():
    """Of 64 answers and more each gives a sixty-fourth of the tokens; of fewer, more; none exceeds the limit."""
    rng = np.random.default_rng(0)

    def some(count, length):
        return [[(f"{i}/0", answer((i,), *rng.integers(100, 9999, length).tolist()))] for i in range(count)]

    picked = pick_texts(some(100, 2048), 8192, 4096)
    assert len(picked) == 64 and {len(text.ids) - text.start for text in picked.values()} == {128}
    picked = pick_texts(some(8, 2048), 8192, 4096)
    assert len(picked) == 8 and {len(text.ids) - text.start for text in picked.values()} == {1024}
    assert {len(text.ids) for text in pick_texts(some(8, 2048), 8192, 700).values()} == {700}


class Sampler:
    """A server that says what it is told to say."""

    shown, renderer = "http://server", SimpleNamespace(limits=LengthLimits(999))

    def __init__(self, told):
        self.told = told

    def given_logprobs(self, texts):
        return dict(zip(texts, self.told, strict=True))


def test_a_server_that_was_started_again_is_found_after_a_small_update(tmp_path):
    """Held against the last weights the slope is lost in all that came before; held against the first ones it is 0."""
    run = Run(9, 6e-3)
    first = bf16(run.now)
    sampler, said = Sampler(first), []

    def policy(texts):
        now = dict(zip(texts, run.now, strict=True))
        return Said(now, now)

    prover = Prover(sampler, policy, tmp_path, ProofConfig(tokens=TEXTS * LENGTH), said.append)
    answers = [Rollout(f"p{i}", (), (Completion("", tuple(range(LENGTH - 1)), "end"),)) for i in range(TEXTS)]
    prover.begin("v0", answers, {f"p{i}": Context(f"p{i}", (), (1000 + i,)) for i in range(TEXTS)})
    for publish in range(1, 13):
        run.step()
        sampler.told = bf16(run.now)
        prover.check(f"v{publish}")
        assert prover.facts(f"v{publish}")["verdict"] == "new"
    last = prover._load().last
    assert last.version == "v12"
    run.size = 2e-5
    run.step()
    sampler.told = first
    now = dict(zip(last.texts, run.now, strict=True))
    small = slope_between(last, Reading("v13", last.texts, now, sampler.given_logprobs(last.texts)), exact=True)
    assert judge(small, exact=True) == "unclear"
    with pytest.raises(WrongWeights, match="still has those of v0"):
        prover.check("v13")
    assert said == []


def test_a_policy_is_compared_in_the_type_of_its_weights(tokenizer):
    """Of a policy that trains in bf16 over float32 weights, texts' log-probabilities are those of a float32 pass."""
    policy = LogprobModel(tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=128))
    texts = {"a": Text(tuple(range(20, 40)), 5)}
    before = text_logprobs(policy, texts)
    compute_in(policy, torch.bfloat16)
    assert np.array_equal(text_logprobs(policy, texts)["a"], before["a"])


def test_rounded_weights_are_those_of_bf16_and_come_back(tokenizer):
    """Inside, log-probabilities are those of a model whose weights were rounded; afterwards every bit is as it was."""
    for tied in (True, False):
        model = tiny_llama(tokenizer, hidden_size=16, heads=2, max_length=64, seed=0)
        model.config.tie_word_embeddings = tied
        if not tied:
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        policy, texts = LogprobModel(model), {"a": Text(tuple(range(3, 30)), 4)}
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        plain = text_logprobs(policy, texts)["a"]
        with rounded_to_bf16(policy):
            found = text_logprobs(policy, texts)["a"]
        assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
        with pytest.raises(RuntimeError, match="stop"), rounded_to_bf16(policy):
            model.model.layers[0].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
            text_logprobs(policy, texts)
        assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
        model.model.layers[0]._forward_pre_hooks.clear()
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
        assert np.array_equal(found, text_logprobs(policy, texts)["a"]) and not np.array_equal(found, plain)


@pytest.mark.parametrize(
    "lr", [pytest.param(1e-6, marks=pytest.mark.slow), pytest.param(5e-6, marks=pytest.mark.slow), 1e-5]
)
def test_a_server_in_bf16_of_a_model_that_began_there_is_not_refused(tokenizer, lr):
    """Released models are bf16: float32 weights that begin on its grid move, and a right server's for a while do not.

    Held against the policy as it is alone such a server would be taken for a stale one. One that is stale is found as
    soon as weights have come through the rounding.
    """
    torch.manual_seed(0)
    model = tiny_llama(tokenizer, hidden_size=32, heads=2, max_length=64, seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
    policy, optimizer = LogprobModel(model.eval()), torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    ids = torch.randint(3, len(tokenizer), (64, 65))
    texts = {str(i): Text(tuple(row.tolist()), 1) for i, row in enumerate(ids)}

    def told() -> dict[str, np.ndarray]:
        server = copy.deepcopy(model).to(torch.bfloat16)
        with torch.no_grad():
            rows = torch.log_softmax(server(ids).logits[:, :-1].float(), -1).gather(2, ids[:, 1:, None]).squeeze(2)
        return dict(zip(texts, rows.double().numpy(), strict=True))

    def reading(version: int, server: dict[str, np.ndarray]) -> Reading:
        with rounded_to_bf16(policy):
            rounded = text_logprobs(policy, texts)
        return Reading(str(version), texts, text_logprobs(policy, texts), server, rounded)

    first = reading(0, told())
    alone, right, stale = [], [], []
    for step in range(1, 33):
        model(ids[:8], labels=ids[:8]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step & (step - 1) == 0:
            new = reading(step, told())
            alone.append(judge(slope_between(first, new, exact=True), exact=True))
            right.append(compare(first, new, exact=True)[0])
            stale.append(compare(first, replace(new, server=dict(first.server)), exact=True)[0])
    assert "old" in alone and not {"old", "between"} & set(right)
    if lr == 1e-5:
        assert right[-1] == "new" and stale[-1] == "old"
