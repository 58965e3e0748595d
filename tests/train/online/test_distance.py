"""How far a policy has travelled: against every answer there is, and whatever happens to the run."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from humanline.system.stop import StopRequested
from humanline.train.config.describe import describe_config
from humanline.train.data.batch import make_block
from humanline.train.data.messages import Message
from humanline.train.data.pack import pack, unpack
from humanline.train.data.prompts import Context
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import read_data, renderer_of
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.source import DataError
from humanline.train.loop import take_steps, train
from humanline.train.online.distance import Distance
from humanline.train.online.own_law import TEMPERATURES, OwnLaw
from humanline.train.online.samplers import make_distance_stages
from humanline.train.online.samplers.generate import GenerateSampler
from humanline.train.online.types import SamplerError
from humanline.train.policy import divergence
from humanline.train.policy.build import build_policy
from humanline.train.policy.divergence import divergence_pass, read_start
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_tokenizer
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.fingerprint import same_settings, trained_hash
from humanline.train.run.metrics import read_metrics
from humanline.train.run.processes import alone
from humanline.train.setup import set_up
from humanline.train.step.reference import logprobs_pass
from tests.helpers.cases import StopAt, moved
from tests.helpers.kills import KILLED, result_of
from tests.helpers.rounds import DRAWN, online
from tests.helpers.support import config, same, weights

ROOM = 4  # tokens of an answer
END = 3
SURE = 1e-6  # chance that a mean lies outside of its bound
SERVER = {"kind": "server", "url": "http://127.0.0.1:1", "model": "m", "new_weights": {"kind": "vllm"}}


@pytest.fixture(scope="module")
def few_words() -> Renderer:
    """A tokenizer of three words and an end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, "<end>": END}, unk_token="c"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return Renderer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>"), "plain", 16)


def tiny_model(seed: int, temperature: float = 1.0) -> LogprobModel:
    """A whole transformer over these four tokens; logits that differ enough for laws to be far from each other."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4, max_position_embeddings=32, eos_token_id=END, **sizes))
    with torch.no_grad():
        model.lm_head.weight *= 20
    return LogprobModel(model.eval(), temperature=temperature)


PROMPTS = [
    Context(str(i), (Message("user", text),), ids) for i, (text, ids) in enumerate([("ab", (0, 1)), ("c", (2,))])
]


def every_answer() -> list[tuple[int, ...]]:
    """Every answer of at most `ROOM` tokens: ended by the end token, or by the limit."""
    words = [product for n in range(ROOM) for product in itertools.product(range(END), repeat=n)]
    return [(*one, END) for one in words] + list(itertools.product(range(END), repeat=ROOM))


@functools.cache
def laws(seed: int, prompt: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities of every answer, from the model's own logits, one answer after the other, in float64."""
    model, found = tiny_model(seed).model.double(), []
    for answer in every_answer():
        ids = torch.tensor([[*prompt, *answer]])
        with torch.no_grad():
            steps = torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1 : -1], -1)
        found.append(steps.gather(1, torch.tensor(answer)[:, None]).sum())
    return torch.stack(found)


def kl(p: torch.Tensor, q: torch.Tensor) -> float:
    return float((p.exp() * (p - q)).sum())


@pytest.fixture(scope="module")
def start_folder(few_words, tmp_path_factory) -> Path:
    """The start on the disk."""
    folder = tmp_path_factory.mktemp("start")
    tiny_model(0).model.save_pretrained(folder)
    few_words.tokenizer.save_pretrained(folder)
    return folder


def measuring(start_folder: Path, folder: Path, samples: int, batch_size: int = 64, **changes) -> Distance:
    """What measures how far its `policy` is, which is the start until other weights are loaded into it."""
    given = config(
        {"model": str(start_folder), "pairs": "none"},
        folder,
        evaluation={
            "batch_size": batch_size,
            "distance": {"prompts": "none", "samples": samples, "max_tokens": ROOM, "to_start": "looks", **changes},
        },
        data={"train": "none", "template": "plain", "max_length": 16},
        training={"steps": 1, "temperature": 0.5},  # which is no part of the policy that answers
    )
    policy, _ = build_policy(given)
    renderer, processes = renderer_of(given, load_tokenizer(given.model)), alone(torch.device("cpu"))
    return Distance(
        given,
        PROMPTS,
        make_distance_stages(given, policy, renderer, None, processes),
        folder,
        policy,
        logprobs_pass(policy),
        None,
        version=lambda: trained_hash(policy),
        pad_id=END,
        say=lambda text: None,
    )


class TestEnumeration:
    def test_both_sums_are_the_divergences_of_every_answer_there_is(self):
        """Over all answers a transformer can give, weighted by their probability: exactly the two divergences."""
        start, policy = tiny_model(0, temperature=0.5), tiny_model(1, temperature=0.5)  # temperature 1 is what counts
        back = divergence_pass(policy, logprobs_pass(policy), start, logprobs_pass(start))
        for prompt in PROMPTS:
            p, q = laws(0, prompt.ids), laws(1, prompt.ids)
            assert float(p.exp().sum()) == pytest.approx(1, abs=1e-12)
            answers = every_answer()
            rows = [TokenSequence((*prompt.ids, *answer), len(prompt.ids)) for answer in answers]
            block = make_block(rows, list(map(str, range(len(rows)))), END)
            with start.untempered(), policy.untempered():
                ratios = (logprobs_pass(start)(block) - logprobs_pass(policy)(block)).double().sum(1)
            assert float((p.exp() * ratios).sum()) == pytest.approx(kl(p, q), rel=1e-5)
            assert float((q.exp() * back(block).double().sum(1)).sum()) == pytest.approx(kl(q, p), rel=1e-5)
            assert min(kl(p, q), kl(q, p)) > 0.2
        assert start.temperature == policy.temperature == 0.5

    @pytest.mark.parametrize(("softcap", "scale"), [(1.5, 1.0), (None, 0.6)])
    def test_what_a_model_does_to_its_logits_is_part_of_its_law(self, softcap, scale):
        """Its soft cap and its factor on logits, against its own logits; a training temperature is no part of it."""
        both, rows = [tiny_model(0, temperature=0.5), tiny_model(1, temperature=0.5)], [(0, 1, 2, 0, END), (2, 2, 1)]
        logs = []
        for policy in both:
            policy.softcap, policy.logit_scale = softcap, scale
            with torch.no_grad():
                raw = [policy.model(input_ids=torch.tensor([ids])).logits[0, 1:-1].double() for ids in rows]
            capped = [softcap * torch.tanh(x / softcap) if softcap else x for x in raw]
            logs.append([torch.log_softmax(x * scale, -1) for x in capped])
        block = make_block([TokenSequence(ids, 2) for ids in rows], ["0", "1"], END)
        found = divergence_pass(both[1], logprobs_pass(both[1]), both[0], logprobs_pass(both[0]))(block)
        for row, (p, q) in enumerate(zip(logs[1], logs[0], strict=True)):
            expected = (p.exp() * (p - q)).sum(-1)
            assert found[row, 1 : 1 + len(expected)].tolist() == pytest.approx(expected.tolist(), rel=1e-4)
            assert found[row].count_nonzero() == len(expected) and expected.min() > 1e-3

    def test_what_is_drawn_gives_them_within_their_errors(self, start_folder, tmp_path):
        """Means of answers that are drawn lie within Bernstein's bound of them, shares cut within Hoeffding's."""
        samples, policy = 400, tiny_model(1)
        made = measuring(start_folder, tmp_path, samples)
        zero = made(0, False)
        assert [zero[f"kl_{name}"] for name in ("from_start", "from_start_se", "to_start", "to_start_se")] == [0.0] * 4
        made.policy.load_state_dict(policy.state_dict())
        found = made(5, True)
        forth, back, cut = [], [], []
        for prompt in PROMPTS:
            p, q = laws(0, prompt.ids), laws(1, prompt.ids)
            forth.append((kl(p, q), float((p.exp() * (p - q - kl(p, q)) ** 2).sum()), float((p - q).abs().max())))
            back.append((kl(q, p), float((q.exp() * (q - p - kl(q, p)) ** 2).sum()), float((p - q).abs().max())))
            cut.append([float(one[-(END**ROOM) :].exp().sum()) for one in (p, q)])
        count, log = samples * len(PROMPTS), math.log(2 / SURE)
        for name, exact, side in (("kl_from_start", forth, 0), ("kl_to_start", back, 1)):
            mean, variance, largest = (sum(one[i] for one in exact) / len(PROMPTS) for i in range(3))
            bound = math.sqrt(2 * variance * log / count) + 4 * largest * log / 3 / count
            assert abs(found[name] - mean) < bound < mean / 2
            assert found[f"{name}_answers"] == count
            lost = sum(one[side] for one in cut) / len(PROMPTS)
            assert abs(found[f"{name}_truncated"] - lost) < math.sqrt(log / 2 / count)
            apart = abs(exact[0][0] - exact[1][0]) / 2  # of the two prompts' means: the error over prompts
            assert abs(found[f"{name}_se"] - apart) < bound

    def test_the_exact_sum_leaves_less_variance_than_log_ratios(self, start_folder, tmp_path):
        """Answer by answer: KL(policy || start) by the vocabulary against log-ratios of the very same answers."""
        start, policy, prompt = tiny_model(0), tiny_model(1), PROMPTS[0]
        back = divergence_pass(policy, logprobs_pass(policy), start, logprobs_pass(start))
        q, p = laws(1, prompt.ids), laws(0, prompt.ids)
        rows = [TokenSequence((*prompt.ids, *answer), len(prompt.ids)) for answer in every_answer()]
        exact = back(make_block(rows, list(map(str, range(len(rows)))), END)).double().sum(1)
        spread = [float((q.exp() * (one - kl(q, p)) ** 2).sum()) for one in (exact, q - p)]
        assert spread[0] < 0.5 * spread[1]

    @pytest.mark.parametrize("prompt", [0, pytest.param(1, marks=pytest.mark.slow)])
    def test_the_odds_of_other_laws_have_mean_one(self, prompt):
        """Over every answer there is, each as often as the policy gives it: the theorem that a refusal hangs on."""
        policy, ids = tiny_model(1, temperature=0.5), PROMPTS[prompt].ids
        shares, means = laws(1, ids).exp(), torch.zeros(len(TEMPERATURES), dtype=torch.float64)
        for share, answer in zip(shares, every_answer(), strict=True):
            law, row = OwnLaw(), TokenSequence((*ids, *answer), len(ids))
            with policy.untempered(law):
                logprobs_pass(policy)(make_block([row], ["0"], END))
            means += share * law.log_odds.exp()
        assert means.tolist() == pytest.approx([1.0] * len(means), rel=1e-5)

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            pytest.param({"temperature": 0.7}, "likelier", id="cold", marks=pytest.mark.slow),
            pytest.param({"temperature": 1.5}, "less likely", id="hot", marks=pytest.mark.slow),
            pytest.param({"top_p": 0.8}, "likelier", id="nucleus", marks=pytest.mark.slow),
            pytest.param("weights", "less likely", id="weights"),
        ],
    )
    def test_answers_of_another_law_are_refused(self, start_folder, tmp_path, other, words):
        """The start's and those of a later look, of 300 answers each; they are gone then, to be drawn again."""
        made = measuring(start_folder, tmp_path, 150)
        sampler = made.stages.sampler
        right = sampler.config, sampler.model
        for updates in (0, 5):
            if other == "weights":
                sampler.model = tiny_model(2).model
            else:
                sampler.config = right[0].model_copy(update=other)
            with pytest.raises(
                SamplerError, match=f"not the policy's own at temperature 1: .* tokens are {words} than"
            ):
                made(updates, False)
            assert [path.name for path in made.folder.iterdir()] == ["start.jsonl"] * bool(updates)
            sampler.config, sampler.model = right
            assert "kl_to_start" in made(updates, False)
            made.policy.load_state_dict(tiny_model(1).state_dict())

    def test_random_numbers_are_the_same_at_every_look(self, start_folder, tmp_path):
        """The same policy at two looks gives the same numbers; at a third, as the start, those of the start."""
        made = measuring(start_folder, tmp_path, 4)
        keys, sample = [], made.stages.sample

        def noting(folder, contexts, key, policy):
            keys.append((folder.name, key))
            sample(folder, contexts, key, policy)

        made.stages.sample = noting
        other = tiny_model(1).state_dict()
        before = torch.random.get_rng_state()
        zero, start = made(0, False), copy.deepcopy(made.policy.state_dict())
        made.policy.load_state_dict(other)
        assert made(3, False) == made(7, True) != zero
        made.policy.load_state_dict(start)
        assert made(9, True) == zero
        assert keys == [("drawn", 2**41), *[("look", 2**41 + 1)] * 4]
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_passes_of_any_size_give_the_same(self, start_folder, tmp_path):
        """Rows of one pass or of many, prompts and answers of all lengths between them."""
        looks = []
        for size in (3, 64):
            made = measuring(start_folder, tmp_path / str(size), 8, size, to_start="never")
            made(0, False)
            self.check_kept(made.file)
            made.policy.load_state_dict(tiny_model(1).state_dict())
            looks.append(made(1, True))
        assert looks[0] == pytest.approx(looks[1], rel=1e-4)
        assert looks[0]["kl_from_start"] != 0

    def check_kept(self, file: Path) -> None:
        """Every answer of the start has the log-probabilities that it has by itself, an end token its own, too."""
        start, lengths = tiny_model(0).model, set()
        for prompt, line in zip(PROMPTS, file.read_text().splitlines()[1:], strict=True):
            for answer in json.loads(line)["completions"]:
                ids = torch.tensor([[*prompt.ids, *answer["ids"]]])
                with torch.no_grad():
                    steps = torch.log_softmax(start(input_ids=ids).logits[0, len(prompt.ids) - 1 : -1].double(), -1)
                alone = steps.gather(1, torch.tensor(answer["ids"])[:, None]).squeeze(1)
                assert answer["logprobs"] == pytest.approx(alone.tolist(), abs=1e-5)
                lengths.add(len(alone))
        assert len(lengths) > 1


ROWS = 24
SHORT = {"limit": 16, "samples": 2, "max_tokens": 6}


@pytest.fixture(scope="module")
def own_prompts(tmp_path_factory) -> str:
    """Prompts that no other file has."""
    file = tmp_path_factory.mktemp("own") / "own.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{i} hgf"}) + "\n" for i in range(100, 100 + ROWS)))
    return str(file)


def looks_of(result) -> list[dict[str, float]]:
    return [row["held_out"] for row in read_metrics(result.metrics_file) if "held_out" in row]


def travelling(toy, output: Path, own_prompts: str, to_start: str = "end", **changes):
    """Eight steps, looked at every three."""
    distance = {"prompts": own_prompts, "to_start": to_start, **SHORT}
    return config(
        toy,
        output,
        **{
            "evaluation": {"every": 3, "batch_size": 8, "distance": distance},
            "checkpoint": {"every": 2, "minutes": None},
            **changes,
        },
    )


def losing(toy, folder: Path, own_prompts: str):
    """A run of two steps, and what puts other weights in the place of those that it begins with, or puts them back."""
    model = folder / "model"
    shutil.copytree(toy["model"], model)
    before = load_file(model / "model.safetensors")

    def lose(again: bool = True) -> None:
        found = {name: one + 1e-3 * again for name, one in before.items()}
        save_file(found, model / "model.safetensors", {"format": "pt"})

    short = {"training": {"steps": 2, "batch_size": 8}}
    return travelling({**toy, "model": str(model)}, folder / "run", own_prompts, **short), lose


def to(given, to_start: str, **changes):
    """The same run with another evaluation.distance.to_start."""
    distance = given.evaluation.distance.model_copy(update={"to_start": to_start})
    evaluation = given.evaluation.model_copy(update={"distance": distance})
    return given.model_copy(update={"evaluation": evaluation, **changes})


class TestRuns:
    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({}, id="whole", marks=pytest.mark.slow),
            pytest.param({"adapter": {"rank": 4, "dropout": 0.3}}, id="adapter"),
            pytest.param(
                {"training": {"steps": 8, "batch_size": 8, "precision": "bf16", "padding": "free"}},
                id="bf16 packed",
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_looking_changes_no_bit_of_what_is_trained(self, toy, own_prompts, tmp_path, changes):
        """The same weights with and without; 0 at the start, exactly; further at every look; both ways at the end."""
        given = travelling(toy, tmp_path / "far", own_prompts, data__eval=toy["held_out"], **changes)
        far = train(given, show_progress=False)
        plain = given.model_copy(
            update={
                "output": str(tmp_path / "plain"),
                "evaluation": given.evaluation.model_copy(update={"distance": None}),
            }
        )
        result = train(plain, show_progress=False)
        name = "adapter_model.safetensors" if given.adapter else "model.safetensors"
        assert (far.model / name).read_bytes() == (result.model / name).read_bytes()
        looks, others = looks_of(far), looks_of(result)
        assert [{k: v for k, v in one.items() if not k.startswith("kl_")} for one in looks] == others
        assert (looks[0]["kl_from_start"], looks[0]["kl_from_start_se"]) == (0.0, 0.0)
        assert [one["kl_from_start"] != 0 for one in looks] == [False, True, True, True]
        assert [("kl_to_start" in one) for one in looks] == [False, False, False, True]
        assert looks[-1]["kl_to_start"] > 3 * looks[-1]["kl_to_start_se"] > 0
        assert {one["kl_from_start_answers"] for one in looks} == {32.0}
        assert not (Path(given.output) / "distance" / "look").exists()

    @pytest.mark.slow
    def test_looks_without_a_held_out_set_and_both_ways(self, toy, own_prompts, tmp_path):
        """The distance alone is enough to look at; with `looks` the way back is 0 at the start too."""
        given = travelling(toy, tmp_path / "a", own_prompts, "looks", training={"steps": 4, "batch_size": 8})
        looks = looks_of(train(given, show_progress=False))
        assert len(looks) == 3 and {len(one) for one in looks} == {8}
        assert looks[0]["kl_to_start"] == 0.0 and all(one["kl_to_start"] > 0 for one in looks[1:])

    def test_rounds_travel_too(self, toy, prompts, own_prompts, tmp_path):
        """In rounds, by the engine of the rounds, and still without any trace in the weights."""
        short = {"contexts_per_round": 8, "samples": 4, "count": 2, "steps": 2, "score_margin": 0.001}
        runs = [
            train(
                online(toy, prompts, tmp_path / name, rounds=short, training={"batch_size": 4}, **more),
                show_progress=False,
            )
            for name, more in (
                ("plain", {}),
                ("far", {"evaluation": {"every": 2, "distance": {"prompts": own_prompts, **SHORT}}}),
            )
        ]
        assert same(*map(weights, runs))
        looks = looks_of(runs[1])
        assert len(looks) == 3 and looks[0]["kl_from_start"] == 0 and looks[-1]["kl_to_start"] > 0

    @pytest.mark.parametrize(
        "stops", [(9, 33), pytest.param(range(0, 90, 3), marks=pytest.mark.slow)], ids=["twice", "all over"]
    )
    def test_a_run_that_is_stopped_goes_on_to_the_same_numbers(self, toy, own_prompts, tmp_path, monkeypatch, stops):
        """Stopped before, within and after looks; of the start's answers none is drawn again that was there."""
        whole = travelling(toy, tmp_path / "whole", own_prompts, "looks" if len(stops) > 2 else "end")
        expected, stopped = train(whole, show_progress=False), 0
        drawn: list = []
        sample = GenerateSampler.sample

        def counted(self, contexts, samples, *, key):
            for rollouts in sample(self, contexts, samples, key=key):
                drawn.extend(rollouts if key[1] == 2**41 else [])
                yield rollouts

        monkeypatch.setattr(GenerateSampler, "sample", counted)
        for number in stops:
            one = whole.model_copy(update={"output": str(tmp_path / str(number))})
            drawn.clear()
            try:
                result = train(one, stop=StopAt(number), show_progress=False)
            except StopRequested:
                result, stopped = train(one, resume=True, show_progress=False), stopped + 1
            assert same(weights(expected), weights(result))
            assert looks_of(result) == looks_of(expected)
            assert len(drawn) == len({one.id for one in drawn}) == SHORT["limit"]
            assert (Path(one.output) / "distance" / "start.jsonl").read_bytes() == (
                Path(whole.output) / "distance" / "start.jsonl"
            ).read_bytes()
        assert stopped >= min(len(stops), 20)

    @pytest.mark.slow
    def test_a_kill_where_the_start_is_written_down_changes_nothing(self, toy, own_prompts, tmp_path, server):
        """Killed at each write of the start's answers and of a look's, and resumed, a run ends with the same bits."""
        whole = travelling(toy, tmp_path / "whole", own_prompts)
        done = server.run(whole)
        assert done["code"] == 0, done["log"]
        expected, kept = result_of(whole), (tmp_path / "whole" / "distance" / "start.jsonl").read_bytes()
        places = [number for number, name in enumerate(done["barriers"]) if "start.jsonl" in name or "drawn" in name]
        assert places
        for number in places:
            killed = moved(whole, tmp_path / str(number))
            assert server.run(killed, kill_at=number)["code"] == KILLED
            resumed = server.run(killed, resume=True)
            assert resumed["code"] == 0, resumed["log"]
            assert result_of(killed) == expected
            assert (tmp_path / str(number) / "distance" / "start.jsonl").read_bytes() == kept
            assert [path.name for path in (tmp_path / str(number) / "distance").iterdir()] == ["start.jsonl"]

    def test_what_is_kept_of_the_start_is_the_runs_own(self, toy, own_prompts, tmp_path):
        """A changed or missing file keeps a run from going on, with words; one removed meanwhile is written again."""
        given = travelling(toy, tmp_path / "run", own_prompts, "never")
        with pytest.raises(StopRequested):
            train(given, stop=StopAt(30), show_progress=False)
        file = tmp_path / "run" / "distance" / "start.jsonl"
        kept = file.read_text()
        for text, words in ((kept.replace('"finish": "length"', '"finish": "stop"', 1), "damaged"), (None, "No such")):
            file.unlink()
            if text is not None:
                assert text != kept
                file.write_text(text)
            else:
                file.with_name("other").write_text("")
            with pytest.raises(CheckpointError, match=rf"the start's answers in .*start\.jsonl.*{words}"):
                train(given, resume=True, show_progress=False)
            for folder in (tmp_path / "run" / "checkpoints").glob("damaged-*"):
                folder.rename(folder.with_name(folder.name.removeprefix("damaged-")))
            file.write_text(kept)
        train(given, resume=True, show_progress=False)

    @pytest.mark.slow
    def test_answers_of_another_start_are_not_taken_for_the_runs(self, toy, own_prompts, tmp_path, write):
        """Whole files of other prompts, or weights: drawn anew at a first look, refused where the run had others."""
        others = str(write(*({"prompt": f"{i} fgh"} for i in range(100, 100 + ROWS)), name="others.jsonl"))
        short = {"training": {"steps": 4, "batch_size": 8}}
        runs = {name: travelling(toy, tmp_path / name, own_prompts, "never", **short) for name in ("right", "new")}
        runs["prompts"] = travelling(toy, tmp_path / "prompts", others, "never", **short)
        model = tmp_path / "model"
        shutil.copytree(toy["model"], model)
        tensors = load_file(model / "model.safetensors")
        save_file({name: one + 0.01 for name, one in tensors.items()}, model / "model.safetensors", {"format": "pt"})
        runs["weights"] = travelling({**toy, "model": str(model)}, tmp_path / "weights", own_prompts, "never", **short)
        for name in ("right", "prompts", "weights"):
            with pytest.raises(StopRequested):
                train(runs[name], stop=StopAt(30), show_progress=False)
        files = {name: tmp_path / name / "distance" / "start.jsonl" for name in runs}
        kept = {name: file.read_text() for name, file in files.items() if name != "new"}
        for name in ("prompts", "weights"):
            assert kept[name] != kept["right"]
            with set_up(runs["new"].model_copy(update={"output": str(tmp_path / f"new-{name}")})) as ready:
                ready.folder.distance.mkdir()
                file = ready.folder.distance / "start.jsonl"
                file.write_text(kept[name])
                ready.distance(0, False)
            assert file.read_text() == kept["right"]
        files["right"].write_text(kept["weights"])
        with pytest.raises(CheckpointError, match=r"start\.jsonl are not those that the run had"):
            train(runs["right"], resume=True, show_progress=False)

    def test_start_weights_that_are_gone_are_said_and_left_out(self, toy, own_prompts, tmp_path, capsys):
        """Where they go while the run trains, it finishes, and says in words and in its metrics what is missing."""
        given, lose = losing(toy, tmp_path, own_prompts)
        with set_up(given) as ready:
            inner = ready.objective.loss
            ready.objective.loss = lambda *given: (lose(), inner(*given))[1]
            result = take_steps(ready)
        looks = looks_of(result)
        assert not any("kl_to_start" in one for one in looks)
        assert [one.get("kl_to_start_left_out") for one in looks] == [None, 1.0]
        assert result.final["kl_to_start_left_out"] == 1.0 and result.final["kl_from_start"] != 0
        said = capsys.readouterr().err
        assert "kl_to_start is left out" in said and "holds other weights" in said

    def test_start_weights_that_will_be_missed_are_missed_at_once(self, toy, own_prompts, tmp_path):
        """Before the first update of a new run; where a stopped run goes on, with what to do; nothing is lost by it."""
        given, lose = losing(toy, tmp_path, own_prompts)
        for to_start in ("end", "looks"):
            with set_up(to(given, to_start, output=str(tmp_path / to_start))) as ready:
                lose()
                with pytest.raises(ModelError, match="holds other weights than those that this run began with"):
                    take_steps(ready)
                assert not list(read_metrics(ready.folder.metrics))
            lose(again=False)
        with pytest.raises(StopRequested):
            train(given, stop=StopAt(45), show_progress=False)
        assert any("step" in row for row in read_metrics(tmp_path / "run" / "metrics.jsonl"))
        lose()
        with pytest.raises(ModelError, match=r"put them back, or set evaluation\.distance\.to_start: never"):
            train(given, resume=True, show_progress=False)
        assert "kl_from_start" in train(to(given, "never"), resume=True, show_progress=False).final

    def test_too_few_answers_are_told_with_how_many_would_do(self, toy, own_prompts, tmp_path, capsys):
        """Three per cent is the aim; where it is missed, the number of answers that would reach it is said, once."""
        fast = {"lr": 3e-2, "warmup_fraction": 0.0}
        train(travelling(toy, tmp_path / "run", own_prompts, optimizer=fast, evaluation__every=None))
        lines = capsys.readouterr().err.splitlines()
        said = [line for line in lines if "would bring it to 3 %" in line]
        assert said and len(said) <= 2
        assert sum("nats an answer from the start" in line for line in lines) == 1  # of the one look after the start
        for line in said:
            value, error = (float(re.search(rf"{what} ([\d.e-]+)", line)[1]) for what in ("start:", "error of"))
            wanted = int(re.search(r"about ([\d,]+) answers", line)[1].replace(",", ""))
            assert wanted == pytest.approx(32 * (error / 0.03 / value) ** 2, rel=0.1)


def test_reading_the_start_again_touches_no_random_number(start_folder, tmp_path, monkeypatch):
    """Whatever building a model draws; and it gives the start, in which nothing is trained."""
    made, build = measuring(start_folder, tmp_path, 1), divergence.build_policy
    monkeypatch.setattr(divergence, "build_policy", lambda *given: (torch.rand(3), build(*given))[1])
    before = torch.random.get_rng_state()
    start = read_start(made.config, torch.device("cpu"), trained_hash(made.policy))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(start.state_dict(), made.policy.state_dict())
    assert not start.training and not any(one.requires_grad for one in start.parameters())


class TestPrompts:
    def prompts_of(self, given) -> tuple[list[str], str]:
        data = read_data(given, renderer_of(given, load_tokenizer(given.model)))
        return [one.prompt[-1].content for one in data.travelled], str(data.sets.reports["distance"])

    def test_rows_that_nothing_else_uses_come_first(self, toy, tmp_path, write):
        """Never a prompt of training; those beyond evaluation.limit, then, and said, those that give metrics."""
        rows = [json.loads(line) for line in Path(toy["pairs"]).read_text().splitlines()]
        file = write(*rows[:40], name="train.jsonl")
        held_out = write(*rows[36:], rows[47], name="eval.jsonl")  # four of training, eight others, one of them twice
        data = {"train": str(file), "eval": str(held_out), "max_length": 64, "shape": "preference"}

        def found(count, **evaluation):
            evaluation["distance"] = {"limit": count}
            return self.prompts_of(config(toy, tmp_path / "a", data=data, evaluation=evaluation))

        own, note = found(3, limit=7)  # of which four are training's and three the first others
        assert sorted(own) == sorted(row["prompt"] for row in rows[43:46])
        assert "answers to 3 of its prompts" in note and "held-out metrics too" not in note
        both, note = found(128, limit=7)
        assert sorted(both) == sorted(row["prompt"] for row in rows[40:])
        assert "answers to 8 of its prompts" in note and "of which 3 give held-out metrics too" in note
        shared, note = found(2)
        assert len(shared) == 2 and "of which 2 give held-out metrics too" in note

    def test_prompts_that_training_has_are_no_use(self, toy, prompts, tmp_path):
        """On fixed data and in rounds, whatever system prompt stands before them."""
        for given in (
            config(toy, tmp_path / "a", evaluation={"distance": {"prompts": prompts}}),
            online(
                toy,
                prompts,
                tmp_path / "a",
                sampling={**DRAWN, "system_prompt": "Sort."},
                evaluation={"distance": {"prompts": prompts}},
            ),
        ):
            with pytest.raises(DataError, match="training has all of them"):
                read_data(given, renderer_of(given, load_tokenizer(given.model)))

    def test_every_process_gets_them(self, toy, own_prompts, tmp_path):
        """They are packed with the other data, and hashed into what a resumed run must share."""
        given = travelling(toy, tmp_path / "a", own_prompts)
        renderer = renderer_of(given, load_tokenizer(given.model))
        data = read_data(given, renderer)
        packed = unpack(pack(data), given, renderer)
        assert packed == data and len(packed.travelled) == 16
        assert "prompts of evaluation.distance" in packed.hashes(given.objective)
        plain = config(toy, tmp_path / "a")
        assert read_data(plain, renderer).hashes(plain.objective).keys() < packed.hashes(given.objective).keys()


class TestSettings:
    def test_what_cannot_be_measured_is_refused_by_name(self, toy, prompts, tmp_path):
        distance = {"distance": {"prompts": "own.jsonl"}}
        never = {"distance": {"prompts": "own.jsonl", "to_start": "never"}}
        looks = {"distance": {"prompts": "own.jsonl", "to_start": "looks"}}
        served = {"sampling": {**DRAWN, "engine": SERVER}}
        full = {"training": {"batch_size": 8, "sharding": "full"}}

        def fixed(**changes):
            config(toy, tmp_path / "a", **changes)

        def rounds(**changes):
            online(toy, prompts, tmp_path / "a", **changes)

        with pytest.raises(ValidationError, match=r"give evaluation\.distance\.prompts, or a held-out set"):
            fixed(evaluation={"distance": {}})
        with pytest.raises(ValidationError, match="no process has a whole model to draw the start's answers with"):
            fixed(evaluation=never, training={"steps": 8, "batch_size": 8, "sharding": "full"})
        with pytest.raises(ValidationError, match=r"set evaluation\.distance\.to_start: never"):
            rounds(evaluation=distance, **served, **full)
        rounds(evaluation=never, **served, **full)
        with pytest.raises(ValidationError, match="would have a server given new weights for every look"):
            rounds(evaluation=looks, **served)
        rounds(evaluation=distance, **served)
        overlapping = {"contexts_per_round": 16, "samples": 4, "count": 2, "overlap": True}
        with pytest.raises(ValidationError, match="the weights that the next round is sampled from"):
            rounds(evaluation=distance, rounds=overlapping, **served)
        rounds(evaluation=distance, rounds=overlapping)

    def test_answers_are_those_of_the_whole_law(self, toy, prompts, tmp_path):
        """Whatever temperature and top-p rounds have; what else they have holds here too."""
        drawn = {**DRAWN, "temperature": 0.7, "top_p": 0.9, "stop": ["!"], "system_prompt": "Sort."}
        given = online(
            toy, prompts, tmp_path / "a", sampling=drawn, evaluation={"distance": {"prompts": "a", "max_tokens": 3}}
        )
        asked = given.travelling
        assert (asked.temperature, asked.top_p, asked.max_tokens, asked.stop) == (1.0, 1.0, 3, ("!",))
        assert asked.system_prompt == "Sort." and asked.engine == given.rounds.sampling.engine
        fixed = config(toy, tmp_path / "a", evaluation={"batch_size": 5, "distance": {"prompts": "a"}})
        assert (fixed.travelling.engine.batch_size, fixed.travelling.max_tokens) == (5, 512)
        assert "distance     KL from the start at every look, at the end both ways; 2 answers a prompt" in (
            describe_config(fixed)
        )

    def test_runs_from_before_go_on_and_the_way_back_may_be_given_up(self, toy, tmp_path):
        """Off it is no part of what a resumed run must share; on it is, but for when the start is read again."""

        def settings(**evaluation):
            return same_settings(config(toy, tmp_path / "a", evaluation=evaluation).model_dump(mode="json"))

        assert not any("distance" in name for name in settings())
        with_it = settings(distance={"prompts": "a"})
        assert with_it == settings(distance={"prompts": "a", "to_start": "never"}) != settings()
        assert with_it != settings(distance={"prompts": "a", "samples": 3})
