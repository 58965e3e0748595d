"""What models do to the product of their output head: scaled, soft-capped, or refused with the setting that says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from humanline.train.policy import build
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_outline, load_policy
from humanline.train.policy.logprobs import (
    LogprobModel,
    check_logprobs,
    logit_scale_of,
    refuse_unknown_head,
    softcap_of,
)
from tests.helpers.support import run, steps

COMMON = {
    "vocab_size": 320,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "head_dim": 8,
    "initializer_range": 0.3,  # logits as large as those of trained models, so that caps and scales matter
}
_GRIFFIN = {"logits_soft_cap": 2.0, "w_init_variance_scale": 1.0, "lru_width": 16, "attention_window_size": 64}
# What a kind calls its scale or soft cap, and what both are.
KINDS = {
    "cohere": ({"logit_scale": 0.25}, 0.25, None),
    "cohere2": ({"logit_scale": 3.0}, 3.0, None),
    "granite": ({"logits_scaling": 6.0}, 1 / 6.0, None),
    "granitemoe": ({"logits_scaling": 8.0, "num_local_experts": 2, "num_experts_per_tok": 1}, 0.125, None),
    "hyperclovax": ({"logits_scaling": 2.0}, 2.0, None),
    "recurrent_gemma": (_GRIFFIN | {"block_types": ["recurrent", "attention"]}, 1.0, 2.0),
}


def tiny(kind: str) -> torch.nn.Module:
    settings = COMMON | KINDS[kind][0]
    if kind != "cohere2" and kind != "recurrent_gemma":
        settings = {name: value for name, value in settings.items() if name != "head_dim"}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).eval()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_scaled_and_capped_logits(kind, temperature):
    """Token log-probabilities are those of plain transformers, which they are not without the scale or the cap."""
    model = tiny(kind)
    refuse_unknown_head(model)
    policy = LogprobModel(model, temperature=temperature)
    assert (logit_scale_of(model), softcap_of(model)) == KINDS[kind][1:]
    ids = torch.arange(40).view(2, 20) + 30
    mask = torch.ones((2, 19), dtype=torch.bool)
    with torch.no_grad():
        expected = (model(ids).logits[:, :-1] / temperature).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        torch.testing.assert_close(policy(ids, mask), expected, rtol=0, atol=1e-5)
        policy.logit_scale, policy.softcap = 1.0, None
        assert (policy(ids, mask) - expected).abs().max() > 1e-2


@pytest.mark.parametrize(
    "kind", ["cohere", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("granite", "recurrent_gemma"))]
)
def test_models_with_scaled_logits_train(toy, tmp_path, kind):
    """A whole run goes through, and at learning rate 0 log-ratios are exactly 0."""
    tiny(kind).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(toy["model"]).save_pretrained(tmp_path / "model")
    settings = {"model": str(tmp_path / "model"), "training__steps": 2}
    reference = {"schedule": {"kind": "before_step", "every": 1}}
    still = run(toy, tmp_path / "still", optimizer__lr=0.0, reference=reference, **settings)
    assert [row["log_ratio_rms"] for row in steps(still)] == [0.0, 0.0]
    moved = run(toy, tmp_path / "moved", reference=reference, **settings)
    assert steps(moved)[1]["log_ratio_rms"] > 0


class TestUnknownHeads:
    @pytest.fixture
    def doubled(self, toy, monkeypatch) -> dict[str, str]:
        """Make every Llama double its logits, as a setting of its config.json says under a name of its own."""
        whole = LlamaForCausalLM.forward

        def forward(self, *args, **kwargs):
            output = whole(self, *args, **kwargs)
            output.logits = output.logits * self.config.final_logit_gain
            return output

        monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
        monkeypatch.setattr(LlamaForCausalLM.config_class, "final_logit_gain", 2.0, raising=False)
        return toy

    def test_are_refused_by_their_setting_before_weights_are_read(self, doubled, tmp_path, monkeypatch):
        """A model that does what is not known to its logits is refused, with the setting that may be why."""
        outline = load_outline(doubled["model"])
        outline.config.final_logit_gain = 2.0
        monkeypatch.setattr(build, "load_outline", lambda path: outline)
        monkeypatch.setattr(build, "load_weights", lambda *a, **k: pytest.fail("the weights were read"))
        with pytest.raises(ModelError, match=r"around its output head .* its config\.json has final_logit_gain 2"):
            run(doubled, tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_are_found_by_their_logits_too(self, doubled):
        """Where a model's code does not let its head be looked at alone, its logits are compared once it is loaded."""
        model, _ = load_policy(doubled["model"], dropout=False, max_length=64)
        model.config.final_logit_gain = 2.0
        with pytest.raises(ModelError, match=r"differ from its own logits by .* has final_logit_gain 2"):
            check_logprobs(LogprobModel(model), range(3, 23))

    def test_looking_leaves_a_model_as_it_is(self, toy):
        """The look at a head changes nothing: neither what a model computes nor what it holds."""
        model, _ = load_policy(toy["model"], dropout=False, max_length=64)
        ids = torch.arange(20)[None] + 30
        before = model(ids).logits
        refuse_unknown_head(model)
        assert torch.equal(model(ids).logits, before)
        assert "forward" not in {**vars(model.get_decoder()), **vars(model.get_output_embeddings())}


class TestBrokenWeights:
    @pytest.fixture
    def broken(self, toy, tmp_path):
        """Give a function that writes a model with one number changed, and its task."""
        model, _ = load_policy(toy["model"], dropout=False, max_length=64)
        AutoTokenizer.from_pretrained(toy["model"]).save_pretrained(tmp_path / "model")

        def write(name: str, value: float) -> dict[str, str]:
            model.save_pretrained(tmp_path / "model")
            weights = load_file(tmp_path / "model" / "model.safetensors")
            weights[name].view(-1)[3] = value
            save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
            return toy | {"model": str(tmp_path / "model")}

        return write

    @pytest.mark.parametrize("base", ["float32", "nf4"])
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_are_named(self, broken, tmp_path, value, base):
        """A weight that is not finite is named as that, also where it is one of many kept in 4 bits together."""
        if base == "nf4":
            pytest.importorskip("bitsandbytes")
        name = "model.layers.1.mlp.up_proj.weight"
        with pytest.raises(ModelError, match=rf"weights in its files are nan or infinite: {name}"):
            run(broken(name, value), tmp_path / "run", adapter={"rank": 2, "base": base})
        assert not (tmp_path / "run").exists()

    def test_that_no_check_would_run_over_are_named(self, broken, tmp_path):
        """A nan in the embedding of the pad token, of which no log-probability depends, is found all the same."""
        with pytest.raises(ModelError, match=r"nan or infinite: model\.embed_tokens\.weight"):
            run(broken("model.embed_tokens.weight", float("nan")), tmp_path / "run")


def test_weights_that_a_model_has_no_place_for_are_refused(toy, tmp_path):
    """Tensors under a name that the model does not know are named, where no header tells that they are too many."""
    model, tokenizer = load_policy(toy["model"], dropout=False, max_length=64)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    file = Path(tmp_path / "model" / "model.safetensors")
    save_file(load_file(file) | {"v_head.summary.weight": torch.ones(1, 16)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"hold what config\.json has no place for: v_head\.summary\.weight"):
        run(toy, tmp_path / "run", model=str(tmp_path / "model"))
    assert not (tmp_path / "run").exists()


def old_gpt2(folder: Path, toy, layers: int = 2) -> str:
    """Write a model with buffers that files of former versions hold, for so many layers, and give its folder."""
    settings = {"vocab_size": 320, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **settings)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(toy["model"]).save_pretrained(folder)
    file = folder / "model.safetensors"
    old = {f"transformer.h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(layers)}
    old |= {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 128, 128).tril() for layer in range(2)}
    save_file(load_file(file) | old, file, metadata={"format": "pt"})
    return str(folder)


def test_buffers_of_former_versions_are_no_foreign_weights(toy, tmp_path):
    """Files with the buffers that attention once had load, and compute what those without them do."""
    path = old_gpt2(tmp_path, toy)
    model, _ = load_policy(path, dropout=False, max_length=64)
    stored = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(weight, stored[name]) for name, weight in model.named_parameters())


def test_only_missing_layers_are_called_missing(toy, tmp_path):
    """A buffer of a layer that is not there is refused with advice on layers, any other stray tensor without it."""
    with pytest.raises(ModelError, match=r"no place for: transformer\.h\.2\.attn\.masked_bias; .*fewer layers"):
        load_policy(old_gpt2(tmp_path / "layers", toy, layers=3), dropout=False, max_length=64)
    path = old_gpt2(tmp_path / "stray", toy)
    file = Path(path) / "model.safetensors"
    save_file(load_file(file) | {"transformer.h.0.attn.extra": torch.ones(2)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no place for: transformer\.h\.0\.attn\.extra; ") as caught:
        load_policy(path, dropout=False, max_length=64)
    assert "fewer layers" not in str(caught.value)


@pytest.mark.parametrize("value", ["inv_sqrt_d_model", float("nan"), 0.0])
def test_a_scale_that_is_no_number_is_refused(value):
    """What a configuration gives in place of a number to scale logits by is named, with its setting."""
    settings = {"vocab_size": 320, "d_model": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 64}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mpt", **settings, logit_scale=value))
    with pytest.raises(ModelError, match=rf"MptForCausalLM: logit_scale in its config\.json is '?{value or 0}"):
        LogprobModel(model)


def test_outputs_are_taken_by_name_whatever_config_json_says(toy, tmp_path):
    """A model whose files ask for tuples in place of named outputs is scored as it is without that."""
    settings = AutoConfig.from_pretrained(toy["model"])
    ids, mask = torch.arange(20).view(2, 10), torch.ones((2, 9), dtype=torch.bool)
    logprobs = []
    for named in (True, False):
        settings.return_dict = named
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(settings).eval()
        logprobs.append(LogprobModel(model)(ids, mask))
        check_logprobs(LogprobModel(model), list(range(8)))
    assert torch.equal(*logprobs)
