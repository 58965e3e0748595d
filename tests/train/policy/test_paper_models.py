"""Llama 3, Gemma 2 and Qwen 2.5 go through loading, scoring, training and saving like any other model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from humanline.train.data.batch import make_block
from humanline.train.data.render import Renderer
from humanline.train.data.sets import read_units
from humanline.train.data.source import DataError
from humanline.train.loop import take_steps, train
from humanline.train.policy.load import load_policy
from humanline.train.policy.logprobs import LogprobModel, check_logprobs
from humanline.train.setup import set_up
from tests.helpers.paper_models import FAMILIES, WINDOW, write_paper_model
from tests.helpers.support import CLIP, OBJECTIVES, config, run, same, steps, weights, without_timing

HUMANLINE = {"schedule": {"kind": "before_step", "every": 1}}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """One folder a family."""
    return {family: write_paper_model(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


def settings(models: dict[str, str], family: str, **changes: Any) -> dict[str, Any]:
    """Three steps of six pairs, in two micro-batches, under the family's own chat template."""
    return {
        "model": models[family],
        "data__max_length": 128,
        "training": {"steps": 3, "batch_size": 6, "micro_batch_size": 4},
        "transform": CLIP,
        "reference": HUMANLINE,
    } | changes


def loaded(models: dict[str, str], family: str) -> tuple[Any, Any]:
    return load_policy(models[family], dropout=False, max_length=128)


class TestScoring:
    def test_scores_are_those_of_the_models_own_logits(self, models, family):
        """Soft cap, head and scaling are known to the policy: it gives log-softmax of the model's own logits.

        Both are float32; sums of 32 products and of 300 exponentials differ by some units of 1e-7.
        """
        model, _ = loaded(models, family)
        policy = LogprobModel(model)
        ids = torch.randint(0, 300, (3, 40), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            own = torch.log_softmax(model(ids).logits[:, :-1], -1).gather(2, ids[:, 1:, None]).squeeze(2)
            mine = policy(ids, torch.ones_like(own, dtype=torch.bool))
        torch.testing.assert_close(mine, own, rtol=0, atol=5e-6)
        assert own.std() > 0.5  # far from uniform
        check_logprobs(policy, ids[0].tolist())

    def test_what_sets_gemma_apart_is_computed(self, models):
        """Without either soft cap, or without the window, Gemma's scores would be others: none of them is lost."""
        ids = torch.randint(0, 300, (1, 4 * WINDOW), generator=torch.Generator().manual_seed(0))
        mask = torch.ones(1, 4 * WINDOW - 1, dtype=torch.bool)

        def scores(**changes: Any) -> torch.Tensor:
            model = AutoModelForCausalLM.from_pretrained(models["gemma2"], attn_implementation="eager", **changes)
            with torch.no_grad():
                return LogprobModel(model)(ids, mask)

        with torch.no_grad():
            whole = LogprobModel(loaded(models, "gemma2")[0])(ids, mask)
        assert torch.equal(whole, scores())
        for changes in (
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"sliding_window": 4 * WINDOW},
        ):
            gap = (scores(**changes) - whole).abs()
            assert gap.max() > 1e-2, changes
            if "sliding_window" in changes:
                assert gap[0, : WINDOW - 1].max() < 1e-5  # the first tokens see all there is before them

    def test_padding_and_company_change_no_score(self, models, family, toy):
        """Rows of one padded block get the scores they get alone, windows and all, up to float32 rounding."""
        model, tokenizer = loaded(models, family)
        policy, renderer = LogprobModel(model), Renderer(tokenizer, "chat", 128)
        pairs = config(toy, Path("unused"), **settings(models, family))
        units = read_units(pairs, toy["pairs"], renderer)[0][:4]
        sequences = [sequence for unit in units for sequence in unit.sequences]
        assert min(len(s.ids) for s in sequences) > WINDOW
        assert len({len(s.ids) for s in sequences}) > 1
        together = make_block(sequences, [str(i) for i in range(len(sequences))], tokenizer.pad_token_id)
        with torch.no_grad():
            rows = policy(*together.inputs)
            for row, sequence in zip(rows, sequences, strict=True):
                alone = make_block([sequence], ["alone"], tokenizer.pad_token_id)
                length = len(sequence.ids) - 1
                torch.testing.assert_close(row[:length], policy(*alone.inputs)[0], rtol=0, atol=5e-6)
                assert not row[length:].any()


class TestTraining:
    @pytest.mark.parametrize(
        "family, objective",
        [
            pytest.param(family, objective, marks=[] if quick else pytest.mark.slow)
            for row, family in enumerate(FAMILIES)
            for column, objective in enumerate(OBJECTIVES)
            for quick in [row == column]  # by default each family and each objective once
        ],
    )
    def test_humanline_needs_no_second_model(self, models, family, objective, toy, tmp_path):
        """Under BeforeStep(1) and a clip, scoring ahead equals the second model bit for bit, and the policy moves."""
        results = [
            run(
                toy,
                tmp_path / storage,
                objective,
                **settings(models, family, reference=HUMANLINE | {"storage": storage}),
            )
            for storage in ("score_ahead", "model")
        ]
        ahead, second = map(steps, results)
        assert same(weights(results[0]), weights(results[1]))
        assert without_timing(ahead) == without_timing(second)
        assert [row["log_ratio_rms"] == 0 for row in ahead] == [True, False, False]

    def test_the_saved_model_is_the_trained_one(self, models, family, toy, tmp_path):
        """Plain transformers loads what a run saved: the trained policy's logits, its settings and its template."""
        ids = torch.randint(0, 300, (2, 30), generator=torch.Generator().manual_seed(0))
        with set_up(config(toy, tmp_path / "run", **settings(models, family)), show_progress=False) as ready:
            result = take_steps(ready)
            with torch.no_grad():
                trained = ready.trained.policy.model.eval()(ids).logits
        capped = {"attn_implementation": "eager"} if family == "gemma2" else {}  # not every version knows by itself
        paths = result.model, models[family]
        model, before = (AutoModelForCausalLM.from_pretrained(path, **capped) for path in paths)
        tokenizer, start = (AutoTokenizer.from_pretrained(path) for path in paths)
        with torch.no_grad():
            logits = model.eval()(ids).logits
            assert torch.equal(logits, trained) and not torch.equal(logits, before(ids).logits)
        for name in ("tie_word_embeddings", "final_logit_softcapping", "attn_logit_softcapping", "sliding_window"):
            assert getattr(model.config, name, None) == getattr(before.config, name, None)
        assert tokenizer.chat_template == start.chat_template and tokenizer.get_vocab() == start.get_vocab()

    def test_bf16_runs_and_stands_still_at_learning_rate_0(self, models, family, toy, tmp_path):
        """In bf16 the log-ratios of an unchanged policy are exactly 0 at every step: scored and trained alike."""
        result = run(
            toy,
            tmp_path / "run",
            **settings(models, family, training__precision="bf16", optimizer={"lr": 0.0}),
        )
        assert [row["log_ratio_rms"] for row in steps(result)] == [0.0] * 3
        assert all(row["grad_norm"] > 0 for row in steps(result))


class TestTemplates:
    def test_a_system_message_is_refused_where_there_is_no_such_role(self, models, family, toy, tmp_path):
        """Gemma's template has no system role: the rows are named with the reason; the other families take them."""
        question = {"role": "user", "content": "Sort: cab"}
        system = {"role": "system", "content": "Be brief."}
        file = tmp_path / "rows.jsonl"
        prompts = ([question], [system, question])
        rows = [{"prompt": prompt, "chosen": "abc", "rejected": "bca"} for prompt in prompts]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        _, tokenizer = loaded(models, family)
        one = config(toy, tmp_path / "run", **settings(models, family, data__train=str(file)))
        if family != "gemma2":
            units, _ = read_units(one, str(file), Renderer(tokenizer, "chat", 128))
            prompt, plain = units[1].sequences[0], units[0].sequences[0]
            assert "Be brief." in tokenizer.decode(prompt.ids) and "Be brief." not in tokenizer.decode(plain.ids)
            return
        with pytest.raises(DataError) as caught:
            train(one, show_progress=False)
        (problem,) = caught.value.problems
        assert problem.startswith("rows.jsonl:2") and "no role system" in problem
        assert "refuses the roles system, user" in problem and not (tmp_path / "run").exists()

    def test_answers_end_as_their_family_ends_them(self, models, family, toy):
        """What is trained on is the answer and the family's end of a turn, and nothing after it."""
        _, tokenizer = loaded(models, family)
        renderer = Renderer(tokenizer, "chat", 128)
        pairs = config(toy, Path("unused"), **settings(models, family))
        chosen = read_units(pairs, toy["pairs"], renderer)[0][0].sequences[0]
        answer = json.loads(Path(toy["pairs"]).read_text().splitlines()[0])["chosen"]
        end = {"llama3": "<|eot_id|>", "gemma2": "<end_of_turn>", "qwen2.5": "<|im_end|>"}[family]
        assert tokenizer.decode(chosen.ids[chosen.prompt_length :]) == answer + end
        assert chosen.ids.count(tokenizer.bos_token_id) == (0 if family == "qwen2.5" else 1)
