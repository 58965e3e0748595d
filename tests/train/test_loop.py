"""The training loop: normalisation, transforms, evaluation, outputs and refusals."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from humanline.system.files import OutputError
from humanline.train.config.objective import DpoObjective
from humanline.train.data.batch import Unit
from humanline.train.data.render import Renderer
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.sets import read_units
from humanline.train.data.stream import StepBatch, Stream
from humanline.train.loop import train
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_policy, turn_off_dropout
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.preflight.dry_run import Meter
from humanline.train.run.metrics import read_metrics
from humanline.train.run.processes import NonFiniteError
from humanline.train.setup import Run, set_up
from humanline.train.step.finite import refuse_non_finite_model
from tests import oracles_loss as oracle
from tests.helpers.rows import render
from tests.helpers.support import CLIP, OBJECTIVES, REJECT, config, run, run_with, same, steps, weights

HUMANLINE = {"reference": {"schedule": {"kind": "before_step", "every": 2}}}


class TestNormalisation:
    @pytest.mark.parametrize(
        "objective,transform",
        [  # one transform of KTO and of GRPO is quick: DPO's mean is that of pairs, as plain as one over rows
            pytest.param(
                name, how, id=f"{name}-{kind}", marks=pytest.mark.slow if (i + j) % 2 or name in ("dpo", "nll") else ()
            )
            for i, name in enumerate([*OBJECTIVES, "nll"])
            for j, (kind, how) in enumerate({"clip": CLIP, "reject": REJECT}.items())
        ],
    )
    def test_accumulation_changes_nothing(self, toy, tmp_path, objective, transform):
        """A step cut into 1, 3 or 10 micro-batches gives the same metrics and weights up to rounding."""
        if objective == "nll":
            changes = {"objective": {"kind": "nll"}}
        else:
            changes = {"objective": OBJECTIVES[objective], "transform": transform, **HUMANLINE}
        results = [
            run(
                toy,
                tmp_path / str(micro),
                **changes,
                training={"steps": 5, "batch_size": 10, "micro_batch_size": micro},
            )
            for micro in (10, 4, 1)
        ]
        whole, *cut = [steps(result) for result in results]
        for other in cut:
            for mine, theirs in zip(whole, other, strict=True):
                timing = {"kind", "seconds", "tokens_per_second"}
                assert {k: v for k, v in mine.items() if k not in timing} == pytest.approx(
                    {k: v for k, v in theirs.items() if k not in timing}, rel=2e-3, abs=2e-5
                )
        if transform is CLIP and objective != "nll":
            assert max(row["clipped_low"] + row["clipped_high"] for row in whole) > 0.01
        if transform is REJECT and objective != "nll":
            assert all(0.05 < row["detached"] < 1 for row in whole)

    def test_first_dpo_step_is_ln_2(self, toy, tmp_path):
        """The first DPO step has loss ln 2 and log-ratios of exactly 0."""
        row = steps(run(toy, tmp_path / "run", training__steps=1))[0]
        assert row["loss"] == pytest.approx(math.log(2), abs=1e-7) and row["log_ratio_rms"] == 0.0

    def test_learning_rate_warms_up_then_stays(self, toy, tmp_path):
        """With warmup_fraction .5 of 8 steps the rate climbs in 5 equal steps and stays."""
        rows = steps(run(toy, tmp_path / "run", optimizer={"lr": 1e-3, "warmup_fraction": 0.5}))
        assert [r["lr"] for r in rows] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3, 1e-3, 1e-3])

    def test_optimizer_settings_reach_the_optimizer(self, toy, tmp_path):
        """Every AdamW number of the configuration arrives in AdamW."""
        settings = {"lr": 1e-3, "adam_beta1": 0.8, "adam_beta2": 0.97, "adam_eps": 1e-5, "weight_decay": 0.03}
        with set_up(config(toy, tmp_path / "run", optimizer=settings), show_progress=False) as ready:
            made = ready.trained.optimizer.optimizer
        expected = {"lr": 1e-3, "betas": (0.8, 0.97), "eps": 1e-5, "weight_decay": 0.03, "fused": True}
        assert type(made) is torch.optim.AdamW and made.defaults | expected == made.defaults

    def test_gradients_are_clipped_to_the_norm(self, toy, tmp_path, monkeypatch):
        """With plain SGD one step moves the weights by lr times max_grad_norm where the gradient is longer."""
        monkeypatch.setattr(torch.optim, "AdamW", lambda params, lr, **_: torch.optim.SGD(params, lr=lr))
        result = run(
            toy,
            tmp_path / "run",
            training__steps=1,
            optimizer={"lr": 1.0, "warmup_fraction": 0.0, "max_grad_norm": 1e-3},
        )
        before = load_policy(toy["model"], dropout=False, max_length=64)[0].state_dict()
        after = load_policy(str(result.model), dropout=False, max_length=64)[0].state_dict()
        tied = [name for name in before if name != "lm_head.weight"]
        moved = math.sqrt(sum((before[n] - after[n]).double().square().sum().item() for n in tied))
        assert steps(result)[0]["grad_norm"] > 1e-3
        assert moved == pytest.approx(1e-3, rel=1e-2)


class TestTransforms:
    def test_beta_draws_do_not_depend_on_company(self, toy):
        """A row's draws depend on seed, step, its name and the place in its answer, not on padding or neighbours."""
        from humanline.theory import BetaRejection, BetaShape
        from humanline.train.data.batch import make_block
        from humanline.train.data.sequences import TokenSequence
        from humanline.train.step.loss import beta_draws

        rejection = BetaRejection(BetaShape(0.6, 1.0), BetaShape(0.7, 1.3), policy_ratio_bound=2.0, ref_ratio_bound=2.0)
        short, long = TokenSequence((1, 2, 3, 4), 2), TokenSequence(tuple(range(12)), 5)
        alone = beta_draws(rejection, 0, 3, make_block([short], ["a"], 0))
        paired = beta_draws(rejection, 0, 3, make_block([long, short], ["b", "a"], 0))
        for one, two in zip(alone, paired, strict=True):
            assert torch.equal(one[0, 1:3], two[1, 1:3]) and one[0, 1:3].min() > 0
        alike = BetaRejection(BetaShape(0.6, 1.0), BetaShape(0.6, 1.0), policy_ratio_bound=2.0, ref_ratio_bound=2.0)
        policy_draws, ref_draws = beta_draws(alike, 0, 3, make_block([short], ["a"], 0))
        assert not torch.equal(policy_draws, ref_draws)  # two independent draws, not one used twice
        later = beta_draws(rejection, 0, 4, make_block([short], ["a"], 0))
        assert not torch.equal(alone[0], later[0]) and not torch.equal(alone[0], alone[1])

    def test_batch_max_bounds_come_from_the_whole_step(self, toy, tmp_path):
        """With batch_max no ratio lies above its bound, whatever the accumulation, and runs agree."""
        transform = REJECT | {"policy_ratio_bound": "batch_max", "ref_ratio_bound": "batch_max"}
        rows = [
            steps(
                run(
                    toy,
                    tmp_path / str(micro),
                    transform=transform,
                    training={"steps": 4, "batch_size": 8, "micro_batch_size": micro},
                )
            )
            for micro in (8, 3)
        ]
        assert all(row["above_bound"] == 0 for row in rows[0] + rows[1])
        assert [r["loss"] for r in rows[0]] == pytest.approx([r["loss"] for r in rows[1]], rel=1e-4)

    def test_ratios_above_a_fixed_bound_are_counted(self, toy, tmp_path):
        """A bound that the ratios outgrow shows in the metrics."""
        transform = REJECT | {"policy_ratio_bound": 1.001, "ref_ratio_bound": 1.001}
        rows = steps(run(toy, tmp_path / "run", transform=transform))
        assert rows[0]["above_bound"] == 0 and rows[-1]["above_bound"] > 0


class TestEvaluation:
    def test_held_out_metrics_equal_a_computation_by_hand(self, toy, tmp_path):
        """Held-out loss, accuracy and margin are those of the final against the initial model, pair by pair."""
        result = run(toy, tmp_path / "run", data__eval=toy["held_out"], evaluation={"batch_size": 4})
        margins, chosen_sum, chosen_tokens = [], 0.0, 0
        models = [load_policy(path, dropout=False, max_length=64) for path in (toy["model"], str(result.model))]
        from humanline.train.data.rows import read_rows

        renderer = Renderer(models[0][1], "chat", 64, "error")
        for pair in read_rows(toy["held_out"], "preference"):
            z = []
            for answer in (pair.chosen, pair.rejected):
                sequence = render(renderer, pair.prompt, answer)
                ids = torch.tensor([sequence.ids])
                totals = []
                for model, _ in models:
                    with torch.no_grad():
                        lp = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
                    totals.append(lp.gather(1, ids[0, 1:, None])[sequence.prompt_length - 1 :].sum().item())
                z.append(totals[1] - totals[0])
                if answer is pair.chosen:
                    chosen_sum += totals[1]
                    chosen_tokens += sequence.completion_length
            margins.append(z[0] - z[1])
        expected = sum(-math.log(oracle.sigmoid(0.5 * m)) for m in margins) / len(margins)
        assert result.final["loss"] == pytest.approx(expected, abs=1e-5)
        assert result.final["margin"] == pytest.approx(sum(margins) / len(margins), abs=1e-4)
        assert result.final["accuracy"] == pytest.approx(sum(m > 0 for m in margins) / len(margins))
        assert result.final["chosen_logprob"] == pytest.approx(chosen_sum / chosen_tokens, abs=1e-5)
        assert result.initial["accuracy"] == 0.5 and result.initial["margin"] == 0.0

    @pytest.mark.parametrize(  # whole runs of the others are evaluated in step/test_objectives.py
        "objective", ["kto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dpo", "grpo"))]
    )
    def test_every_objective_reports_preferences_against_the_start(self, toy, tmp_path, objective):
        """DPO, KTO and GRPO report the same held-out metrics, at ties to begin with."""
        result = run(toy, tmp_path / "run", objective, data__eval=toy["held_out"], evaluation={"every": 4})
        assert result.initial["accuracy"] == 0.5
        assert set(result.final) == {"loss", "accuracy", "accuracy_se", "margin", "chosen_logprob", "rejected_logprob"}
        updates = [row["updates"] for row in read_metrics(result.metrics_file) if "held_out" in row]
        assert updates == [0, 4, 8]

    def test_next_token_training_lowers_perplexity(self, toy, tmp_path):
        """Nll training lowers the held-out perplexity and reports it as exp(loss)."""
        result = run(
            toy,
            tmp_path / "run",
            {"kind": "nll"},
            data={"train": toy["completions"], "eval": toy["completions"], "max_length": 64},
            training__steps=20,
        )
        assert result.final["perplexity"] < 0.8 * result.initial["perplexity"]
        assert result.final["perplexity"] == pytest.approx(math.exp(result.final["loss"]), rel=1e-9)

    def test_unpaired_data(self, toy, tmp_path):
        """KTO trains and evaluates on unpaired rows."""
        data = {"train": toy["unpaired"], "eval": toy["unpaired"], "max_length": 64, "shape": "unpaired"}
        result = run(toy, tmp_path / "run", "kto", data=data)
        assert set(result.final) == {"loss"} and result.final["loss"] < result.initial["loss"]


class TestOutput:
    def test_the_final_model_loads_and_scores_the_same(self, toy, tmp_path):
        """AutoModelForCausalLM loads the result; template and end token are there; the weights have moved."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        result = run(toy, tmp_path / "run")
        model, tokenizer = (
            AutoModelForCausalLM.from_pretrained(result.model),
            AutoTokenizer.from_pretrained(result.model),
        )
        assert tokenizer.chat_template == AutoTokenizer.from_pretrained(toy["model"]).chat_template
        assert not torch.equal(
            model.get_input_embeddings().weight,
            AutoModelForCausalLM.from_pretrained(toy["model"]).get_input_embeddings().weight,
        )
        assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
            "config.json",
            "data.json",
            "final",
            "levels.json",
            "metrics.jsonl",
            "run.lock.1",
            "run.log",
            "start.json",
        ]

    def test_same_seed_same_bits_other_seed_other_order(self, toy, tmp_path):
        """A run repeats bit for bit, and the seed changes the order of the data."""
        runs = [run(toy, tmp_path / str(i), seed=seed) for i, seed in enumerate((1, 1, 2))]
        assert same(weights(runs[0]), weights(runs[1])) and not same(weights(runs[0]), weights(runs[2]))

    def test_an_output_in_use_is_refused(self, toy, tmp_path):
        """Nothing of an earlier run is overwritten."""
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "precious").write_text("x")
        with pytest.raises(OutputError, match="already exists and is not an empty folder"):
            run(toy, tmp_path / "run")
        assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]

    def test_bad_data_leaves_no_output(self, toy, tmp_path):
        """Data is refused before the output folder is made."""
        bad = tmp_path / "bad.jsonl"
        bad.write_text('{"prompt": "a", "chosen": "b"}\n')
        with pytest.raises(ValueError, match=r"bad.jsonl:1.*rejected"):
            run(toy, tmp_path / "run", data__train=str(bad))
        assert not (tmp_path / "run").exists()


class TestNonFinite:
    def test_a_run_that_blows_up_stops_with_names_and_saves_nothing(self, toy, tmp_path):
        """A learning rate that destroys the weights stops the run, names examples and leaves no model."""
        with pytest.raises(FloatingPointError, match=r"pairs.jsonl:\d+"):
            run(toy, tmp_path / "run", optimizer={"lr": 1e30, "warmup_fraction": 0.0})
        assert not (tmp_path / "run" / "final").exists()
        assert not list((tmp_path / "run").glob(".*"))
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert all(math.isfinite(row["loss"]) for row in rows if "step" in row)

    def test_the_guilty_example_is_named(self, toy, tmp_path):
        """A log-probability that is not finite in one row stops the step before its update and names that row."""
        before = []

        def poisoned(policy, inputs, result):
            mask = inputs[1]
            if torch.is_grad_enabled():
                result = result.clone()
                result[1, mask[1].nonzero()[0]] = math.nan
            return result

        def poison(ready: Run) -> Run:
            before.extend((parameter, parameter.detach().clone()) for parameter in ready.trained.policy.parameters())
            ready.trained.policy.register_forward_hook(poisoned)
            return ready

        with pytest.raises(NonFiniteError, match=r"step 0: .*log-probabilities of pairs.jsonl:\d+#[01]\. Nothing was"):
            run_with(poison, toy, tmp_path / "run", training__micro_batch_size=8)
        assert before and all(torch.equal(now, then) for now, then in before)

    def test_an_infinite_gradient_behind_a_finite_loss_is_caught(self, toy, tmp_path):
        """A gradient that is not finite stops the run even where every loss is finite."""

        class Trap(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return grad * math.inf

        def trap(ready: Run) -> Run:
            ready.trained.policy.register_forward_hook(lambda policy, inputs, result: Trap.apply(result))
            return ready

        with pytest.raises(NonFiniteError, match="the gradient, though not a loss"):
            run_with(trap, toy, tmp_path / "run")


class TestModels:
    def test_weights_are_float32_masters_under_bf16(self, toy, tmp_path):
        """Under bf16 compute one step at lr 5e-6 moves over 90 % of the weights, which stay float32."""
        optimizer = {"lr": 5e-6, "warmup_fraction": 0.0}
        training = {"steps": 1, "batch_size": 16, "precision": "bf16"}
        result = run(toy, tmp_path / "run", training=training, optimizer=optimizer)
        before = load_policy(toy["model"], dropout=False, max_length=64)[0].state_dict()
        after = weights(result)
        assert {tensor.dtype for tensor in after.values()} == {torch.float32}
        layers = [name for name in after if "layers" in name and "norm" not in name]
        moved = sum((after[n] != before[n]).sum().item() for n in layers)
        assert moved > 0.9 * sum(after[n].numel() for n in layers)

    def test_dropout_is_off_by_default(self, toy, tmp_path):
        """A model built with dropout gives log-ratios of exactly 0 at lr 0, unless dropout is asked for."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(toy["model"], attention_dropout=0.5)
        model.save_pretrained(tmp_path / "dropping")
        AutoTokenizer.from_pretrained(toy["model"]).save_pretrained(tmp_path / "dropping")
        changes = {"model": str(tmp_path / "dropping"), "optimizer": {"lr": 0.0}}
        off = steps(run(toy, tmp_path / "off", **changes))
        on = steps(run(toy, tmp_path / "on", **changes, training__dropout=True))
        assert [row["log_ratio_rms"] for row in off] == [0.0] * 8
        assert all(row["log_ratio_rms"] > 0 for row in on)

    def test_every_kind_of_dropout_is_turned_off(self):
        """Dropout modules, attention rates and layer drop are all set to 0."""
        from transformers import OPTConfig, OPTForCausalLM

        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "vocab_size": 20}
        model = OPTForCausalLM(OPTConfig(**shape, word_embed_proj_dim=16, layerdrop=0.5, attention_dropout=0.3))
        extra = torch.nn.Dropout(0.4)
        model.add_module("extra", extra)
        turn_off_dropout(model)
        rates = {v for m in model.modules() for n, v in vars(m).items() if "drop" in n and isinstance(v, float)}
        assert rates == {0.0} and extra.p == 0.0

    def test_code_in_a_model_folder_is_never_run(self, toy, tmp_path, monkeypatch):
        """A model that brings its own code is refused without running it, even where a person would say yes."""
        folder = tmp_path / "model"
        shutil.copytree(toy["model"], folder)
        settings = json.loads((folder / "config.json").read_text())
        settings |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
        (folder / "config.json").write_text(json.dumps(settings))
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit\n")
        monkeypatch.setattr("builtins.input", lambda *_: "y")
        with pytest.raises(ModelError, match="cannot be loaded"):
            run(toy, tmp_path / "run", model=str(folder))
        assert not (tmp_path / "ran").exists() and not (tmp_path / "run").exists()

    @pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
    def test_damaged_model_files_are_refused(self, toy, tmp_path, file):
        """A truncated file of the model gives an error of one line that names the folder."""
        folder = tmp_path / "model"
        shutil.copytree(toy["model"], folder)
        (folder / file).write_bytes((folder / file).read_bytes()[:100])
        with pytest.raises(ModelError, match="cannot be loaded") as error:
            run(toy, tmp_path / "run", model=str(folder))
        assert len(str(error.value).splitlines()) == 1 and str(folder) in str(error.value)

    def test_models_of_other_families_train(self, toy, tmp_path):
        """GPT-2 and Qwen 2 train through the same code; a head with a bias (Phi) is refused."""
        from transformers import (
            AutoTokenizer,
            GPT2Config,
            GPT2LMHeadModel,
            PhiConfig,
            PhiForCausalLM,
            Qwen2Config,
            Qwen2ForCausalLM,
        )

        tokenizer = AutoTokenizer.from_pretrained(toy["model"])
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 330}
        torch.manual_seed(0)
        models = {
            "gpt2": GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=330, n_positions=64)),
            "qwen2": Qwen2ForCausalLM(Qwen2Config(**shape, num_key_value_heads=1, intermediate_size=32)),
            "phi": PhiForCausalLM(PhiConfig(**shape, intermediate_size=32)),
        }
        for name, model in models.items():
            model.save_pretrained(tmp_path / name)
            tokenizer.save_pretrained(tmp_path / name)
        for name in ("gpt2", "qwen2"):
            result = run(toy, tmp_path / f"run-{name}", model=str(tmp_path / name), training__steps=2)
            assert steps(result)[1]["log_ratio_rms"] > 0
        with pytest.raises(ModelError, match="output head with a bias"):
            run(toy, tmp_path / "run-phi", model=str(tmp_path / "phi"))
        assert not (tmp_path / "run-phi").exists()

    def test_soft_capped_logits(self, toy, tmp_path):
        """Gemma 2's soft cap on the logits is found in its configuration and agrees with the model's own logits."""
        from transformers import Gemma2Config, Gemma2ForCausalLM

        from humanline.train.policy.logprobs import check_logprobs

        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        sizes = {"vocab_size": 50, "intermediate_size": 32, "head_dim": 8}
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(Gemma2Config(**shape, **sizes, final_logit_softcapping=0.05, initializer_range=0.5))
        policy = LogprobModel(model.eval())
        assert policy.softcap == 0.05
        check_logprobs(policy, range(16))
        policy.softcap = None
        with pytest.raises(ModelError, match="its output head is not supported"):
            check_logprobs(policy, range(16))

    @pytest.mark.parametrize(
        "change,message",
        [
            ({"model": "./nowhere"}, "no config.json in"),
            ({"data__max_length": 4096}, "exceeds the 128 positions"),
        ],
    )
    def test_models_that_do_not_fit_are_refused(self, toy, tmp_path, change, message):
        """A missing model and a length beyond its positions are refused before anything is written."""
        with pytest.raises(ModelError, match=message):
            run(toy, tmp_path / "run", **change)
        assert not (tmp_path / "run").exists()

    def test_a_tokenizer_larger_than_the_model_is_refused(self, toy, tmp_path):
        """A tokenizer with more tokens than the embedding has rows is refused."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(toy["model"])
        tokenizer.add_tokens(["extra"])
        tokenizer.save_pretrained(tmp_path / "model")
        AutoModelForCausalLM.from_pretrained(toy["model"]).save_pretrained(tmp_path / "model")
        with pytest.raises(ModelError, match=r"token ids up to \d+ but the model embeds only"):
            run(toy, tmp_path / "run", model=str(tmp_path / "model"))


class TestStream:
    @pytest.mark.parametrize(
        "change,message",
        [
            ({"training__batch_size": 49}, "batch_size 49 is larger than the data: 48 to use"),
            (
                {"objective": OBJECTIVES["kto"], "training": {"steps": 1, "batch_size": 1}},
                "training.batch_size must be at least 2",
            ),
            (
                {"objective": {"kind": "bco"}, "training": {"steps": 1, "batch_size": 1}},
                "BCO estimates z_0 from the answers of a step: training.batch_size must be at least 2",
            ),
        ],
    )
    def test_batches_that_cannot_be_are_refused(self, toy, tmp_path, change, message):
        """A batch larger than the data, and KTO or BCO with one example, are refused."""
        with pytest.raises(ValueError, match=message):
            run(toy, tmp_path / "run", **change)

    def test_epochs_run_on_over_the_seam(self, toy):
        """Every epoch holds every example once, in another order, and batches cross the seam."""
        settings = config(toy, Path("unused"))
        units, _ = read_units(
            settings, toy["pairs"], Renderer(load_policy(toy["model"], dropout=False, max_length=64)[1], "chat", 64)
        )
        stream = Stream(units, settings.objective, batch_size=7, micro_batch_size=3, seed=0, pad_id=0, max_length=64)
        drawn = [u.id for s in range(48) for m in stream.step(s).micro_batches for u in m.units]
        flat = [unit.id for unit in stream._draw(0, 48 * 7)]
        assert sorted(drawn) == sorted(flat)
        epochs = [flat[i : i + 48] for i in range(0, len(flat), 48)]
        assert all(len(set(epoch)) == 48 for epoch in epochs) and epochs[0] != epochs[1]
        assert stream.steps(1.0) == 6 and stream.steps(2.0) == 13

    def test_tokens_a_second_are_those_of_the_whole_step(self, toy, tmp_path, monkeypatch):
        """What is divided by a step's seconds is the count over all ranks, not that of this one times their number."""
        of_all, count = {}, Stream.step

        def step(stream: Stream, number: int) -> StepBatch:
            batch = count(stream, number)
            of_all[number] = batch.own_tokens + 1000
            return replace(batch, total_length=batch.total_length + 1000)  # of other ranks

        monkeypatch.setattr(Stream, "step", step)
        rows = steps(run(toy, tmp_path / "run", training={"steps": 2, "batch_size": 8}))
        assert [row["tokens_per_second"] * row["seconds"] for row in rows] == pytest.approx([of_all[0], of_all[1]])

    def test_mismatched_pairs_have_other_prompts(self, toy):
        """KTO's mismatched answers come from another prompt, for odd batches and for the two halves of a pair."""
        settings = config(toy, Path("unused"), "kto")
        tokenizer = load_policy(toy["model"], dropout=False, max_length=64)[1]
        units, _ = read_units(settings, toy["pairs"], Renderer(tokenizer, "chat", 64))
        stream = Stream(units, settings.objective, batch_size=5, micro_batch_size=5, seed=None, pad_id=0, max_length=64)
        by_name = {unit.id: unit.sequences[0] for unit in units}
        answers = {u.sequences[0].ids[u.sequences[0].prompt_length :]: u for u in units}
        for step in range(4):
            (micro,) = stream.step(step).micro_batches
            for name, ids, mask in zip(
                micro.mismatched.names, micro.mismatched.input_ids, micro.mismatched.mask, strict=True
            ):
                own = by_name[name.removesuffix("#mismatched")]
                answer = tuple(ids[1:][mask].tolist())
                assert tuple(ids[: own.prompt_length].tolist()) == own.ids[: own.prompt_length]
                other = answers[answer].sequences[0]
                assert other.ids[: other.prompt_length] != own.ids[: own.prompt_length]

    def test_a_step_with_one_prompt_borrows_answers_from_the_stream(self, toy, tmp_path):
        """KTO steps of two halves of one pair take their mismatched answers from the examples that follow."""
        rows = [{"prompt": f"p{i}", "chosen": "good", "rejected": "bad"} for i in range(2)]
        path = tmp_path / "two.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = run(toy, tmp_path / "run", "kto", data__train=str(path), training={"steps": 12, "batch_size": 2})
        assert len(steps(result)) == 12

    @pytest.mark.parametrize("where", ["train", "eval"])
    def test_data_with_one_prompt_are_refused_before_anything_is_written(self, toy, tmp_path, where):
        """KTO on a single prompt has no mismatched pair at all, in training or held-out data."""
        path = tmp_path / "same.jsonl"
        lines = [json.dumps({"prompt": "p", "chosen": f"a{i}", "rejected": "b"}) + "\n" for i in range(4)]
        path.write_text("".join(lines))
        message = "all examples have the same prompt" if where == "train" else r"held-out data .* the same prompt"
        with pytest.raises(ValueError, match=message):
            run(toy, tmp_path / "run", "kto", **{f"data__{where}": str(path)}, training={"steps": 1, "batch_size": 4})
        assert not (tmp_path / "run").exists()

    def test_pairs_cut_to_the_same_tokens_are_no_kto_examples(self, toy, tmp_path):
        """Pairs whose answers differ only after the cut are left out of KTO as of DPO."""
        rows = [{"prompt": f"p{i}", "chosen": "x" * 40 + "good", "rejected": "x" * 40 + "bad"} for i in range(6)]
        rows += [{"prompt": f"q{i}", "chosen": "good", "rejected": "bad"} for i in range(3)]
        path = tmp_path / "cut.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = {"train": str(path), "shape": "preference", "max_length": 24, "too_long": "truncate"}
        settings = config(toy, tmp_path / "run", "kto", data=data)
        tokenizer = load_policy(toy["model"], dropout=False, max_length=24)[1]
        units, report = read_units(settings, str(path), Renderer(tokenizer, "chat", 24, "truncate"))
        assert sorted(u.id for u in units) == sorted(
            f"cut.jsonl:{n}#{a}" for n in (7, 8, 9) for a in ("chosen", "rejected")
        )
        assert report.lengths.dropped_identical == 6 and "6 dropped: answers identical" in str(report)

    @pytest.mark.parametrize("epochs,expected", [(0.57, 57), (0.58, 58), (1.15, 115), (0.001, 1), (0.999, 99)])
    def test_epochs_are_not_lost_to_rounding(self, epochs, expected):
        """A fraction of an epoch gives the number of steps one would count by hand, and at least one."""
        unit = Unit("a", (TokenSequence((1, 2), 1),))
        options = {"batch_size": 1, "micro_batch_size": 1, "seed": 0, "pad_id": 0, "max_length": 8}
        assert Stream([unit] * 100, DpoObjective(), **options).steps(epochs) == expected


class TestSurroundings:
    def test_the_environment_of_accelerate_changes_nothing(self, toy, tmp_path, monkeypatch):
        """Accumulation, precision and compilation set for accelerate outside the configuration have no effect."""
        plain = run(toy, tmp_path / "plain", training__steps=3)
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
        other = run(toy, tmp_path / "other", training__steps=3)
        assert same(weights(plain), weights(other))

    def test_weights_ruined_by_the_last_update_are_not_saved(self, toy, tmp_path):
        """A last update that destroys the weights is noticed though no later loss shows it."""
        with pytest.raises(NonFiniteError, match=r"No model was saved; lower optimizer.lr"):
            run(toy, tmp_path / "run", training__steps=1, optimizer={"lr": 1e30, "warmup_fraction": 0.0})
        assert not (tmp_path / "run" / "final").exists()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_the_last_look_at_weights_takes_little_memory(self, dtype):
        """It holds no copy of a large weight, and finds one number that is nan, inf or too large for its square."""
        layer = nn.Linear(1 << 12, 1 << 12, bias=False, dtype=dtype)
        meter = Meter(counted=0, tokens=0)
        meter.leave_out(layer.weight)
        with meter:
            refuse_non_finite_model(layer, lambda value, how: value)
        assert 0 < meter.peaks["forward"] < layer.weight.numel()  # bytes, a quarter or half of the weight's
        for wrong in (math.nan, -math.inf, 1e20):
            with torch.no_grad():
                layer.weight[-1, -1] = wrong
            with pytest.raises(NonFiniteError, match="the weights weight are not finite, or far beyond use"):
                refuse_non_finite_model(layer, lambda value, how: value)

    def test_home_is_expanded(self, toy, tmp_path, monkeypatch):
        """An output under ~ goes to the home folder, not to a folder of that name."""
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        result = run(toy, Path("~/run"), training__steps=1)
        assert result.model == tmp_path / "run" / "final" and not (tmp_path / "~").exists()

    def test_what_the_data_lost_is_said(self, toy, tmp_path, capsys):
        """Dropped, cut and repeated rows are printed at the start and kept in data.json, for both sets."""
        rows = [json.loads(line) for line in Path(toy["pairs"]).read_text().splitlines()]
        rows += [rows[0], {"prompt": "long", "chosen": "x" * 200, "rejected": "y"}]
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = {"train": str(path), "eval": toy["held_out"], "max_length": 64, "too_long": "drop"}
        train(config(toy, tmp_path / "run", data=data, training__steps=1), show_progress=True)
        err = capsys.readouterr().err
        assert "49 of 50 kept, 1 dropped: too long" in err and "1 duplicates" in err and "9 of 9 kept" in err
        kept = json.loads((tmp_path / "run" / "data.json").read_text())
        assert kept["train"]["lengths"]["dropped_too_long"] == 1 and kept["held_out"]["lengths"]["kept"] == 9
        assert len(kept["template"]) == 64


def test_a_final_save_that_fails_in_a_library_loses_nothing(toy, tmp_path, monkeypatch):
    """Whatever a library raises while the finished model is written, a checkpoint has it, and --resume writes it."""
    import humanline.train.loop as loop
    from humanline.system.files import OutputError

    def fails(*_):
        raise RuntimeError("a library's own trouble")

    settings = config(toy, tmp_path / "run", training__steps=2)
    with monkeypatch.context() as broken:
        broken.setattr(loop, "save_together", fails)
        with pytest.raises(OutputError, match=r"a library's own trouble; its weights are in .*step-00000002.*--resume"):
            train(settings, show_progress=False)
    resumed = train(settings, resume=True, show_progress=False)
    whole = train(config(toy, tmp_path / "whole", training__steps=2), show_progress=False)
    assert same(weights(resumed), weights(whole))
