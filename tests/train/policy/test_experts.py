"""LoRA on mixtures of experts: what is adapted by name, and all that holds for other models holds for these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from humanline.system.stop import StopRequested
from humanline.train.config.run import AdapterConfig
from humanline.train.loop import train
from humanline.train.policy.adapter import adapted_weights, describe_coverage
from humanline.train.policy.build import build_policy
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_outline, load_policy
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.merge import merge
from humanline.train.preflight.dry_run import dry_run
from humanline.train.preflight.memory import static_bytes
from humanline.train.preflight.validate import validate
from humanline.train.preflight.workload import full_block
from tests.helpers.cases import StopAt
from tests.helpers.support import CLIP, config, run, same, steps, without_timing

LORA = {"rank": 2, "alpha": 4.0}
TRAINING = {"steps": 4, "batch_size": 8, "micro_batch_size": 4}
COMMON = {
    "vocab_size": 320,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
}
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
ATTENTION_ENDS = [name.rpartition(".")[2] for name in ATTENTION]
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
DENSE = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
SHARED = tuple(f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down"))
LATENT = tuple(f"self_attn.{name}" for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"))
# What sets a kind apart, and what of each of its layers gets additions.
KINDS = {
    "mixtral": ({"intermediate_size": 32, "num_local_experts": 4}, [{*ATTENTION, *EXPERTS}] * 2),
    "qwen3_moe": ({"moe_intermediate_size": 16, "num_experts": 4, "head_dim": 8}, [{*ATTENTION, *EXPERTS}] * 2),
    "gpt_oss": ({"intermediate_size": 16, "num_local_experts": 4, "head_dim": 8}, [{*ATTENTION, *EXPERTS}] * 2),
    "olmoe": ({"intermediate_size": 32, "num_experts": 4}, [{*ATTENTION, *EXPERTS}] * 2),
    # Its first layer is no mixture.
    "qwen3_moe_and_dense": (
        {
            "intermediate_size": 32,
            "moe_intermediate_size": 16,
            "num_experts": 4,
            "head_dim": 8,
            "mlp_only_layers": [0],
        },
        [{*ATTENTION, *DENSE}, {*ATTENTION, *EXPERTS}],
    ),
    "glm4_moe": (
        {
            "intermediate_size": 32,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "head_dim": 8,
            "first_k_dense_replace": 1,
        },
        [{*ATTENTION, *DENSE}, {*ATTENTION, *EXPERTS, *SHARED}],
    ),
    # Its first layer is no mixture, and the others have linear layers of the names that experts had once.
    "deepseek_v3": (
        {
            "intermediate_size": 32,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 2,
        },
        [{*LATENT, *DENSE}, {*LATENT, *EXPERTS, *SHARED}],
    ),
}


@pytest.fixture(scope="module")
def mixtures(toy, tmp_path_factory) -> dict[str, dict[str, str]]:
    """A toy task for a tiny model of each kind."""
    folder, tokenizer, tasks = tmp_path_factory.mktemp("mixtures"), AutoTokenizer.from_pretrained(toy["model"]), {}
    for kind, (settings, _) in KINDS.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind.removesuffix("_and_dense"), **COMMON | settings)
        )
        model.save_pretrained(folder / kind)
        tokenizer.save_pretrained(folder / kind)
        tasks[kind] = toy | {"model": str(folder / kind)}
    return tasks


def adapter_weights(result) -> dict[str, torch.Tensor]:
    return load_file(result.model / "adapter_model.safetensors")


def by_hand(kind: str, saved: dict[str, torch.Tensor], path: str) -> torch.nn.Module:
    """Give the model that an adapter's files make of their base, put together from the definition of LoRA.

    Of n experts of rank r, expert e has the rows e r to e r + r of the first factor, and the columns e, e + n, ... of
    the second.
    """
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, experts_implementation="eager")
    weights = dict(model.named_parameters())
    for name, first in saved.items():
        if ".lora_A." not in name:
            continue
        first, second = first.double(), saved[name.replace("lora_A", "lora_B")].double()
        place = name.removeprefix("base_model.model.").partition(".lora_A.")[0]
        if not place.endswith(("experts", "experts.base_layer")):
            weights[f"{place}.weight"].data += 2.0 * second @ first
            continue
        which = "gate_up_proj" if place.endswith(".base_layer") else "down_proj"  # the inner and the outer addition
        weight = weights[f"{place.removesuffix('.base_layer')}.{which}"].data
        for expert in range(len(weight)):
            mine = slice(LORA["rank"] * expert, LORA["rank"] * (expert + 1))
            added = 2.0 * second[:, expert :: len(weight)] @ first[mine]
            weight[expert] += added.T if kind == "gpt_oss" else added
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_experts_get_additions_by_name(mixtures, kind):
    """What is trained is two factors for each linear layer and each fused weight of experts, and nothing else."""
    policy, _ = build_policy(config(mixtures[kind], Path("unused"), adapter=LORA))
    found = [set(), set()]
    for name, module in policy.model.named_modules():
        if hasattr(module, "lora_A") and module.lora_A:
            layer, _, place = name.removeprefix("model.layers.").partition(".")
            place = place.removesuffix(".base_layer")
            found[int(layer)].add(f"{place}.{module.parameter_name}" if hasattr(module, "parameter_name") else place)
    assert found == KINDS[kind][1]


@pytest.mark.parametrize(
    "kind", [k if k in ("mixtral", "gpt_oss") else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_scoring_ahead_equals_a_second_adapter_over_experts(mixtures, tmp_path, kind):
    """Results are those of a second adapter bit for bit, and every factor of experts has moved."""
    results = [
        run(
            mixtures[kind],
            tmp_path / storage,
            adapter=LORA,
            training=TRAINING,
            transform=CLIP,
            reference={"schedule": {"kind": "before_step", "every": 2}, "storage": storage},
        )
        for storage in ("score_ahead", "model")
    ]
    assert same(*map(adapter_weights, results))
    assert without_timing(steps(results[0])) == without_timing(steps(results[1]))
    second = {
        name: tensor for name, tensor in adapter_weights(results[0]).items() if "experts" in name and "_B" in name
    }
    assert second and all(bool(tensor.any()) for tensor in second.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_merged_mixture_computes_what_the_adapter_did(mixtures, tmp_path, kind):
    """Adapter, merged model and a sum by hand have the same log-probabilities; switched off, the base's remain."""
    path = mixtures[kind]["model"]
    policy, adapter = build_policy(config(mixtures[kind], Path("unused"), adapter=LORA))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    adapter.save_pretrained(tmp_path / "adapter")
    merge(str(tmp_path / "adapter"), str(tmp_path / "whole"))
    hand = by_hand(kind, load_file(tmp_path / "adapter" / "adapter_model.safetensors"), path)
    base, whole = (
        LogprobModel(load_policy(str(one), dropout=False, max_length=64)[0]).eval()
        for one in (path, tmp_path / "whole")
    )
    ids = torch.arange(40).view(2, 20) + 30
    mask = torch.ones((2, 19), dtype=torch.bool)
    with torch.no_grad():
        expected = hand(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        for one in (policy.eval(), whole):
            torch.testing.assert_close(one(ids, mask).double(), expected, rtol=0, atol=1e-5)
        with adapter.off():
            assert torch.equal(policy(ids, mask), base(ids, mask))
        assert (base(ids, mask) - expected).abs().max() > 1e-2


PARTS = {
    "all": {},
    "experts too": {"targets": ["o_proj", "gate_proj", "up_proj", "down_proj"]},
    "one half": {"targets": ["o_proj", "up_proj"]},  # of what peft takes for one fused weight
    "dropout": {"targets": ["o_proj", "gate_proj", "up_proj"], "dropout": 0.5},
}
READ = [
    ("mixtral", "all"),
    *((kind, how) for kind in ("qwen3_moe_and_dense", "glm4_moe", "deepseek_v3") for how in PARTS),
]


@pytest.mark.parametrize(
    "kind,how",
    [one if one[0] == "glm4_moe" or one[1] == "all" else pytest.param(*one, marks=pytest.mark.slow) for one in READ],
)
def test_other_software_reads_the_adapter_of_a_mixture(mixtures, tmp_path, kind, how):
    """Plain transformers and plain peft make of the saved files what was trained, whatever is adapted."""
    path = mixtures[kind]["model"]
    policy, adapter = build_policy(config(mixtures[kind], Path("unused"), adapter=LORA | PARTS[how]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    adapter.save_pretrained(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.arange(40).view(2, 20) + 30
    with torch.no_grad():
        expected, without = policy.eval().model(ids).logits, base(ids).logits
        assert (expected - without).abs().max() > 1e-2
        for read in (AutoModelForCausalLM.from_pretrained(tmp_path), PeftModel.from_pretrained(base, tmp_path)):
            torch.testing.assert_close(read.eval()(ids).logits, expected, rtol=0, atol=1e-5)


HOW = {
    "bf16": {"precision": "bf16"},
    "checkpointing": {"activation_checkpointing": True},
    "packed": {"padding": "free"},
}


@pytest.mark.parametrize("how", [how if how == "bf16" else pytest.param(how, marks=pytest.mark.slow) for how in HOW])
def test_log_ratios_of_experts_are_zero_at_rate_zero(mixtures, tmp_path, how):
    """At learning rate 0 every log-ratio is exactly 0, however passes are made."""
    result = run(
        mixtures["qwen3_moe"],
        tmp_path / "run",
        adapter=LORA,
        training=TRAINING | {"steps": 2} | HOW[how],
        optimizer__lr=0.0,
        reference={"schedule": {"kind": "before_step", "every": 1}},
    )
    assert [row["log_ratio_rms"] for row in steps(result)] == [0.0, 0.0]


@pytest.mark.slow
def test_computing_activations_of_experts_again_changes_nothing(mixtures, tmp_path):
    """A run that computes activations again ends with the bits of one that keeps them."""
    kept, again = (
        run(mixtures["mixtral"], tmp_path / str(on), adapter=LORA, training=TRAINING | {"activation_checkpointing": on})
        for on in (False, True)
    )
    assert same(adapter_weights(kept), adapter_weights(again))


def test_adapters_over_experts_may_be_shared_out(mixtures, tmp_path):
    """Two additions in one module nest, and their base's weights are still found in the files."""
    whole, shared = (
        run(mixtures["gpt_oss"], tmp_path / how, adapter=LORA, training=TRAINING | {"sharding": how})
        for how in ("none", "full")
    )
    one, other = adapter_weights(whole), adapter_weights(shared)
    assert one.keys() == other.keys() and all((one[name] - other[name]).abs().max() < 1e-6 for name in one)


@pytest.mark.slow
def test_a_stopped_run_over_experts_goes_on_to_the_same_bits(mixtures, tmp_path):
    """Stopped in the middle and resumed, a run ends with the same bits."""
    settings = {"adapter": LORA, "training": TRAINING, "transform": CLIP}
    reference = {"schedule": {"kind": "before_step", "every": 3}}
    whole = run(mixtures["mixtral"], tmp_path / "whole", reference=reference, **settings)
    stopped = config(mixtures["mixtral"], tmp_path / "stopped", reference=reference, **settings)
    with pytest.raises(StopRequested):
        train(stopped, stop=StopAt(7), show_progress=False)
    assert same(adapter_weights(train(stopped, resume=True, show_progress=False)), adapter_weights(whole))


def test_targets_choose_among_experts(mixtures):
    """Ends of names choose weights of experts as they do linear layers, and old names of experts are no names."""
    outline = load_outline(mixtures["mixtral"]["model"])

    def chosen(*targets: str) -> list[str]:
        return list(adapted_weights(outline, AdapterConfig(targets=targets)))

    down = [f"model.layers.{layer}.mlp.experts.down_proj" for layer in range(2)]
    assert chosen("down_proj") == chosen("experts.down_proj") == down
    assert chosen("q_proj", down[1]) == ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", down[1]]
    with pytest.raises(ModelError, match=r"gate_proj: no such linear layer or weight of experts .* mean gate_up_proj"):
        chosen("gate_proj")


def test_dropout_of_experts_is_refused(mixtures, tmp_path):
    """Dropout, which their additions cannot have, is refused before weights are read, and possible without them."""
    with pytest.raises(ModelError, match=r"adapter\.dropout: the weights of experts \(mlp\.experts\.down_proj\)"):
        run(mixtures["mixtral"], tmp_path / "run", adapter=LORA | {"dropout": 0.1})
    assert not (tmp_path / "run").exists()
    run(
        mixtures["mixtral"], tmp_path / "run", adapter=LORA | {"dropout": 0.1, "targets": ["v_proj"]}, training__steps=1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_counts_the_additions_to_experts(mixtures, kind):
    """What is trained is counted exactly."""
    given = config(mixtures[kind], Path("unused"), adapter=LORA)
    _, adapter = build_policy(given)
    counted = sum(parameter.numel() for parameter in adapter.parameters())
    assert static_bytes(given, load_outline(given.model)).trained == counted


@pytest.mark.parametrize("precision", ["float32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("adapter", [None, LORA])
def test_a_dry_run_counts_what_experts_compute(mixtures, adapter, precision):
    """A token's FLOPs are two for each weight of attention, router and the two experts it goes to, and of additions.

    Additions to experts are products of their factors, whatever the tokens; peft makes them twice a pass.
    """
    given = config(mixtures["mixtral"], Path("unused"), adapter=adapter, training=TRAINING | {"precision": precision})
    outline, block = load_outline(given.model), full_block(3, 16)
    run_dry = dry_run(given, outline, block, backward=True, accumulates=False, cuda=False)
    layer, rank = outline.model.layers[0], LORA["rank"]
    plain = [p for name, p in layer.named_parameters() if p.ndim == 2]
    fused = list(layer.mlp.experts.parameters())
    a_token = sum(p.numel() for p in plain) + sum(p.numel() for p in fused) / 2  # two of four experts
    a_pass = 0
    if adapter is not None:
        a_token += sum(rank * sum(p.shape) for name, p in layer.self_attn.named_parameters())
        a_pass = 2 * sum(rank * p.numel() for p in fused)
    assert run_dry["forward linear"] == 2 * 2 * (3 * 16 * a_token + a_pass)  # two layers
    without = config(mixtures["mixtral"], Path("unused"), adapter=adapter and adapter | {"targets": ATTENTION_ENDS})
    dry = dry_run(without, outline, block, backward=True, accumulates=False, cuda=False)
    assert all(run_dry[f"{way} attention"] == dry[f"{way} attention"] for way in ("forward", "backward"))


def test_what_is_left_as_it_is_is_said(mixtures, tmp_path, capsys):
    """`validate` and `train` say by name and share of the parameters what gets additions and what does not."""
    given = config(
        mixtures["mixtral"], tmp_path / "run", adapter=LORA | {"targets": ["q_proj", "down_proj"]}, training__steps=1
    )
    outline = load_outline(given.model)
    sizes = {name: parameter.numel() for name, parameter in outline.named_parameters()}
    total = sum(sizes.values())
    share = {
        end: 100 * sum(size for name, size in sizes.items() if name.endswith(end)) / total
        for end in ("q_proj.weight", "down_proj", "gate_up_proj")
    }
    validate(given)
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("adapter      ") and "%" in line
    )
    train(given)
    assert line.removeprefix("adapter      ") in capsys.readouterr().err.replace("\n", " ")
    adapted, _, left = line.partition("; left as they are: ")
    assert f"{share['q_proj.weight'] + share['down_proj']:.3g} % of the parameters" in adapted
    assert "(self_attn.q_proj, mlp.experts.down_proj)" in adapted
    assert (
        f"mlp.experts.gate_up_proj {share['gate_up_proj']:.3g} %" in left and "mlp.gate " in left and "lm_head " in left
    )


@pytest.mark.parametrize(
    "kept_in,computed_in,said",
    [
        ("float32", "float32", []),
        ("float32", "bf16", ["2^-9"]),
        ("nf4", "float32", ["not kept in 4 bits"]),
        ("nf4", "bf16", ["not kept in 4 bits", "2^-9"]),
    ],
)
def test_what_narrow_experts_cost_is_said(mixtures, kept_in, computed_in, said):
    """Experts that stay out of 4 bits, and additions to them that bf16 would swallow, are named, and only there."""
    outline = load_outline(mixtures["mixtral"]["model"])
    lines = describe_coverage(outline, AdapterConfig(base=kept_in), kept_in, computed_in)[1:]
    assert len(lines) == len(said) and all(part in line for part, line in zip(said, lines, strict=True))
    only = AdapterConfig(targets=("q_proj",), base="bf16")
    assert len(describe_coverage(outline, only, "bf16", "bf16")) == 1


def test_float32_keeps_what_bf16_swallows(mixtures):
    """An addition of a few hundred-thousandths of experts' weights changes what float32 computes, and not bf16."""
    changed = {}
    for precision in ("float32", "bf16"):
        lora = LORA | {"base": "float32", "targets": ["experts.down_proj"]}
        given = config(mixtures["mixtral"], Path("unused"), adapter=lora, training=TRAINING | {"precision": precision})
        policy, adapter = build_policy(given)
        ids, mask = torch.arange(12)[None] + 20, torch.ones((1, 11), dtype=torch.bool)
        with torch.no_grad():
            for layer in policy.model.model.layers:
                layer.mlp.experts.get_base_layer().down_proj.fill_(0.02)
            before = policy(ids, mask)
            for parameter in adapter.parameters():
                parameter.fill_(3.5e-3)  # 2 x 2 x 1.2e-5 is added to each weight: bf16 rounds .02 alike up to 8e-5 more
            changed[precision] = (policy(ids, mask) - before).abs().max().item()
    assert changed["float32"] > 0 == changed["bf16"]
