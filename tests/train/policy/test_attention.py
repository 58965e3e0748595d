"""Attention within the segments of one long row, the models it is refused for, and the policy that runs on it."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
import transformers

from humanline.objectives import token_logprobs
from humanline.train.policy import packing as attention
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_model
from humanline.train.policy.logprobs import LogprobModel, check_logprobs
from humanline.train.policy.packing import pack, packed_attention, refuse_unpackable
from tests.helpers.paper_models import FAMILIES, WINDOW, write_paper_model

LENGTHS = (7, 1, 12, 4)
SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    return {family: write_paper_model(tmp_path_factory.mktemp("paper") / family, family) for family in FAMILIES}


def load(folder: str, dtype: torch.dtype = torch.float32):
    return load_model(folder, dtype).eval()


def outline(kind: str, **settings):
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**settings))


def qkv(groups: int = 1, *, heads: int = 4, size: int = 8, dtype=torch.float64, device="cpu", lengths=LENGTHS):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads if i == 0 else heads // groups, sum(lengths), size) for i in range(3)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x.to(device, dtype).requires_grad_() for x in tensors]


def dense(query, key, value, scaling, window, softcap, lengths=LENGTHS):
    """Attention over the whole row under a mask written token by token from the definition."""
    groups = query.shape[1] // key.shape[1]
    owner = [segment for segment, length in enumerate(lengths) for _ in range(length)]
    seen = torch.tensor(
        [
            [owner[i] == owner[j] and j <= i and (window is None or i - j < window) for j in range(len(owner))]
            for i in range(len(owner))
        ],
        device=query.device,
    )
    heads = []
    for head in range(query.shape[1]):
        logits = query[0, head] @ key[0, head // groups].T * scaling
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        heads.append(torch.where(seen, logits, -torch.inf).softmax(1) @ value[0, head // groups])
    return torch.stack(heads, 1)[None]


class TestAttention:
    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("window", [None, 1, 5, 12])
    @pytest.mark.parametrize("softcap", [None, 0.7])
    def test_equals_dense_attention_under_a_mask(self, softcap, window, groups):
        """Outputs and gradients are those of attention under a block-diagonal, causal, sliding mask."""
        tensors = qkv(groups)
        options = {"scaling": 0.3, "sliding_window": window, "softcap": softcap, "segment_lengths": LENGTHS}
        mine, weights = packed_attention(torch.nn.Module(), *tensors, None, **options)
        theirs = dense(*tensors, 0.3, window, softcap)
        assert weights is None and mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)  # float64 rounding of sums of 12 terms
        probe = torch.randn(mine.shape, dtype=mine.dtype, generator=torch.Generator().manual_seed(1))
        for a, b in zip(torch.autograd.grad((mine * probe).sum(), tensors), grads(theirs, probe, tensors), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("softcap", [None, 0.7])
    def test_scale_without_one_given(self, softcap):
        """Without a scale logits are divided by the root of the head's size."""
        tensors = qkv(lengths=LENGTHS)
        mine, _ = packed_attention(torch.nn.Module(), *tensors, None, softcap=softcap, segment_lengths=LENGTHS)
        torch.testing.assert_close(mine, dense(*tensors, 8**-0.5, None, softcap), rtol=0, atol=1e-13)

    @pytest.mark.parametrize(
        "asked",
        [
            {"s_aux": torch.zeros(4)},
            {"position_bias": torch.zeros(1)},
            {"dropout": 0.1},
            {"is_causal": False},
            {"output_attentions": True},
            {"something_new": "yes"},
        ],
        ids=lambda asked: next(iter(asked)),
    )
    def test_what_is_not_done_is_refused(self, asked):
        """A feature that a model asks its attention for and that is not done is an error that names it."""
        with pytest.raises(ModelError, match=f"{next(iter(asked))}.*training.padding: right"):
            packed_attention(torch.nn.Module(), *qkv(), None, segment_lengths=LENGTHS, **asked)

    def test_what_asks_for_nothing_is_allowed(self):
        """Switched-off features and positions change nothing."""
        plain, _ = packed_attention(torch.nn.Module(), *qkv(), None, segment_lengths=LENGTHS)
        off = {"s_aux": None, "output_attentions": False, "position_ids": torch.arange(24), "is_causal": True}
        other, _ = packed_attention(torch.nn.Module(), *qkv(), None, segment_lengths=LENGTHS, **off)
        assert torch.equal(plain, other)

    @pytest.mark.parametrize("lengths", [None, (7, 1, 12, 5), (24, 24)])
    def test_lengths_must_arrive_and_fit(self, lengths):
        """Without lengths, or with others than the row's, nothing is computed; nor under a mask."""
        with pytest.raises(ModelError, match="lengths of its segments"):
            packed_attention(torch.nn.Module(), *qkv(), None, segment_lengths=lengths)
        with pytest.raises(ModelError, match="attention_mask"):
            packed_attention(torch.nn.Module(), *qkv(), torch.ones(1, 24), segment_lengths=LENGTHS)

    def test_a_window_that_is_kept_quiet_is_refused(self):
        """A layer that slides by its mask alone, telling its attention nothing, is refused once rows are longer."""
        layer = torch.nn.Module()
        layer.config = transformers.LlamaConfig(**SMALL, sliding_window=12)
        packed_attention(layer, *qkv(), None, segment_lengths=LENGTHS)
        layer.config.sliding_window = 11
        with pytest.raises(ModelError, match="slides over 11 tokens, and there are rows of 12"):
            packed_attention(layer, *qkv(), None, segment_lengths=LENGTHS)

    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("window", [None, 1, 5, 12])
    @pytest.mark.parametrize("shares_heads", [True, False])
    def test_the_kernel_is_asked_for_the_same(self, shares_heads, window, groups):
        """A kernel that does what torch's says it does, of old or new torch, gets what it needs for the same result."""

        def old(query, key, value, bounds, key_bounds, longest, key_longest, *, scale, window_size):
            assert query.shape[1] == key.shape[1] and query.is_contiguous() and key.is_contiguous()
            assert bounds is key_bounds and longest == key_longest == max(LENGTHS)
            left, right = window_size  # how many tokens before and after the query's own
            assert right == 0
            ends = bounds.tolist()
            lengths = [b - a for a, b in itertools.pairwise(ends)]
            query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
            return dense(query, key, value, scale, None if left == -1 else left + 1, None, lengths)[0]

        def new(query, key, value, *args, enable_gqa=False, **kwargs):
            assert enable_gqa == (groups > 1)
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
            return old(query, key, value, *args, **kwargs)

        bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)])
        arguments = (*qkv(groups), 0.3, window, LENGTHS, bounds)
        mine = attention._in_one_kernel(new if shares_heads else old, *arguments)
        torch.testing.assert_close(mine, dense(*qkv(groups), 0.3, window, None), rtol=0, atol=1e-13)

    @pytest.mark.gpu
    @pytest.mark.parametrize("groups", [1, 4])
    @pytest.mark.parametrize("window", [None, 33, 200])
    def test_one_kernel_serves_all_segments_on_cuda(self, monkeypatch, window, groups):
        """In bf16 torch's kernel over segments is as near to float64 attention as a call for each segment is.

        Both round the same inputs' products to bf16 in another order, so twice the other's error, and one rounding of
        bf16 at the size of the result, is what may separate them from the truth.
        """
        lengths = (129, 1, 300, 64)
        wide = qkv(groups, size=64, lengths=lengths, device="cuda", dtype=torch.bfloat16)
        wide = [x.detach().double().requires_grad_() for x in wide]
        truth = dense(*wide, 0.125, window, None, lengths)
        probe = torch.randn(truth.shape, dtype=truth.dtype, generator=torch.Generator().manual_seed(1)).cuda()
        expected = [truth, *grads(truth, probe, wide)]
        bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
        options = {"scaling": 0.125, "sliding_window": window, "segment_lengths": lengths, "segment_bounds": bounds}

        def errors():
            tensors = [x.detach().bfloat16().requires_grad_() for x in wide]
            out, _ = packed_attention(torch.nn.Module(), *tensors, None, **options)
            results = [out, *grads(out, probe.bfloat16(), tensors)]
            return [(a.double() - b).abs().max().item() for a, b in zip(results, expected, strict=True)]

        calls = []
        kernel = attention._varlen()
        assert kernel is not None

        def counted(*args, **kwargs):
            calls.append(kwargs)
            return kernel(*args, **kwargs)

        counted.__signature__ = attention.inspect.signature(kernel)
        monkeypatch.setattr(attention, "_varlen", lambda: counted)
        fused = errors()
        assert len(calls) == 1
        monkeypatch.setattr(attention, "_varlen", lambda: None)
        for mine, other, value in zip(fused, errors(), expected, strict=True):
            assert mine <= 2 * other + value.abs().max().item() * 2**-8


def grads(output, probe, tensors):
    return torch.autograd.grad((output * probe).sum(), tensors)


def batch(vocab: int = 64):
    """Rows of four lengths, one without any label that counts."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, vocab, (4, max(LENGTHS)), generator=generator)
    mask = torch.arange(1, max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    mask[:, :2] = False
    mask[3] = False
    return ids, mask, LENGTHS


def logprobs_and_gradients(policy, inputs=None):
    """Log-probabilities of a batch, and the gradients of a sum of them."""
    inputs = batch() if inputs is None else inputs
    policy.zero_grad()
    out = policy(*inputs)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    (out * probe).sum().backward()
    return out.detach(), [p.grad.clone() for p in policy.parameters()]


@pytest.mark.parametrize("family", FAMILIES)
class TestLogprobModel:
    def test_packed_rows_score_as_padded_ones(self, folders, family):
        """Without padding log-probabilities and gradients stay the same, up to rounding.

        In float64, so that the tolerance is rounding's alone; Gemma's own attention takes its softmax in float32.
        """
        tolerance = 1e-5 if family == "gemma2" else 1e-11
        model = load(folders[family], torch.float64)
        padded, padded_grads = logprobs_and_gradients(LogprobModel(model).train())
        pack(model)
        packed, packed_grads = logprobs_and_gradients(LogprobModel(model, packed=True).train())
        torch.testing.assert_close(packed, padded, rtol=tolerance, atol=tolerance)
        assert torch.equal(packed != 0, batch()[1])
        for a, b in zip(packed_grads, padded_grads, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * b.abs().max().item())

    def test_activation_checkpointing_changes_nothing(self, folders, family):
        """Lengths reach the layers that are computed again in the backward pass: gradients are the same bits."""
        model = load(folders[family])
        pack(model)
        policy = LogprobModel(model, packed=True).train()
        plain = logprobs_and_gradients(policy)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        again = logprobs_and_gradients(policy)
        assert torch.equal(plain[0], again[0])
        assert all(torch.equal(a, b) for a, b in zip(plain[1], again[1], strict=True))

    def test_rows_do_not_see_each_other(self, folders, family):
        """Other tokens in one row leave the log-probabilities of all other rows as they are."""
        model = load(folders[family])
        pack(model)
        policy = LogprobModel(model, packed=True).eval()
        ids, mask, lengths = batch()
        with torch.no_grad():
            before = policy(ids, mask, lengths)
            for row in range(3):
                other = ids.clone()
                other[row] = 2
                after = policy(other, mask, lengths)
                rest = [r for r in range(4) if r != row]
                assert torch.equal(before[rest], after[rest])
                assert lengths[row] < 3 or not torch.equal(before[row], after[row])

    def test_no_mask_is_built_for_the_whole_row(self, folders, family, monkeypatch):
        """No layer is given a mask, and torch's attention is only called for one segment at a time."""
        masks, sizes = [], []
        inner, sdpa = attention._attend, attention.scaled_dot_product_attention

        def segment(q, k, v, **kwargs):
            sizes.append(q.shape[2])
            masks.append(kwargs.get("attn_mask"))
            return sdpa(q, k, v, **kwargs)

        def attend(*args):
            layers.append(args[0].shape[2])
            return inner(*args)

        layers: list[int] = []
        monkeypatch.setattr(attention, "scaled_dot_product_attention", segment)
        monkeypatch.setattr(attention, "_attend", attend)
        model = load(folders[family])
        pack(model)
        with torch.no_grad():
            LogprobModel(model, packed=True)(*batch())
        assert layers == [sum(LENGTHS)] * 2  # reached without the error that a mask raises
        if family != "gemma2":
            assert sizes == [*LENGTHS, *LENGTHS] and masks == [None] * 8

    @pytest.mark.parametrize("packed", [False, True])
    def test_logits_are_divided_by_the_temperature(self, folders, family, packed):
        """Log-probabilities and gradients are those of log_softmax(logits / T), soft caps inside, in either layout."""
        tolerance = 1e-5 if family == "gemma2" else 1e-11
        ids, mask, lengths = batch()
        model = load(folders[family], torch.float64)
        probe = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1)).double()
        total, expected = 0.0, torch.zeros(mask.shape, dtype=torch.float64)
        for row, length in enumerate(lengths):
            logits = model(input_ids=ids[row : row + 1, :length]).logits[0, :-1].double() / 0.6
            for place in mask[row].nonzero().flatten().tolist():
                value = torch.log_softmax(logits[place], 0)[ids[row, place + 1]]
                expected[row, place] = value.detach()
                total = total + value * probe[row, place]
        gradients = torch.autograd.grad(total, list(model.parameters()))
        if packed:
            pack(model)
        policy = LogprobModel(model, packed=packed, temperature=0.6).train()
        mine, my_gradients = logprobs_and_gradients(policy)
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)
        for a, b in zip(my_gradients, gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * b.abs().max().item())
        assert (LogprobModel(model, packed=packed)(*batch()) - mine).abs().max() > 0.1

    @pytest.mark.parametrize("packed", [False, True])
    def test_the_check_knows_the_temperature(self, folders, family, packed):
        """The check holds at a temperature, and fails where what turns hidden states into numbers leaves it out."""
        model = load(folders[family])
        if packed:
            pack(model)
        ids = list(range(3, 3 + 2 * WINDOW))
        check_logprobs(LogprobModel(model, packed=packed, temperature=0.3), ids)

        def forgets(*tensors, temperature, softcap):
            return token_logprobs(*tensors, softcap=softcap)

        with pytest.raises(ModelError, match="not supported"):
            check_logprobs(LogprobModel(model, packed=packed, temperature=0.3, logprobs=forgets), ids)

    def test_the_check_passes_and_leaves_the_model_packed(self, folders, family):
        """The policy agrees with the model's own attention, and runs on segments afterwards as before."""
        model = load(folders[family])
        pack(model)
        policy = LogprobModel(model, packed=True)
        check_logprobs(policy, list(range(3, 3 + 2 * WINDOW)))
        policy(*batch())

    def test_an_outline_is_accepted_and_left_alone(self, folders, family):
        """The models of the paper are accepted before their weights are read."""
        with torch.device("meta"):
            settings = transformers.AutoConfig.from_pretrained(folders[family])
            model = transformers.AutoModelForCausalLM.from_config(settings)
        before = model.config._attn_implementation, model.training
        refuse_unpackable("a/b", model)
        assert (model.config._attn_implementation, model.training) == before


class TestRefusals:
    def test_the_check_notices_rows_that_see_each_other(self, folders, monkeypatch):
        """Attention that treats the long row as one text fails the check."""

        def leaking(*args, segment_lengths, **kwargs):
            return packed_attention(*args, segment_lengths=(sum(segment_lengths),), **kwargs)

        monkeypatch.setattr(attention, "packed_attention", leaking)
        model = load(folders["llama3"])
        pack(model)
        with pytest.raises(ModelError, match="packed rows"):
            check_logprobs(LogprobModel(model, packed=True), range(3, 19))
        monkeypatch.undo()
        pack(load(folders["llama3"]))  # the name belongs to the right one again

    def test_a_model_must_be_prepared(self, folders):
        """A policy of packed rows over a model whose attention knows no segments is refused."""
        with pytest.raises(ModelError, match=r"prepared by humanline.*pack first"):
            LogprobModel(load(folders["llama3"]), packed=True)

    def test_lengths_and_labels_must_fit(self, folders):
        """Lengths beyond the rows, and labels beyond their row's length, are errors; without lengths rows are whole."""
        model = load(folders["llama3"])
        whole = LogprobModel(model)(*batch()[:2])
        pack(model)
        policy = LogprobModel(model, packed=True)
        ids, mask, lengths = batch()
        torch.testing.assert_close(policy(ids, mask), whole)
        for wrong in (lengths[:3], (13, *lengths[1:]), (0, *lengths[1:])):
            with pytest.raises(ValueError, match="lengths of 4 rows"):
                policy(ids, mask, wrong)
        mask[1, 0] = True  # the second row has one token, so its label would be padding
        with pytest.raises(ValueError, match="beyond the length of their row"):
            policy(ids, mask, lengths)

    def test_a_batch_without_any_label(self, folders):
        """Where no label counts the result is 0 and gradients exist, as other processes wait for them."""
        model = load(folders["qwen2.5"])
        pack(model)
        ids, mask, lengths = batch()
        out, gradients = logprobs_and_gradients(
            LogprobModel(model, packed=True), (ids, torch.zeros_like(mask), lengths)
        )
        assert not out.any() and not any(g.any() for g in gradients)

    @pytest.mark.parametrize(
        "kind,settings,message",
        [
            ("Bloom", {"vocab_size": 64, "hidden_size": 16, "n_layer": 1, "n_head": 2}, "code of its own"),
            ("Mamba", {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1}, "linear_attention"),
            ("Lfm2", SMALL | {"layer_types": ["conv", "full_attention"]}, "one row with the next: conv"),
            ("Llama4Text", SMALL | {"num_local_experts": 2}, "chunked_attention"),
            ("Gemma3Text", SMALL | {"head_dim": 8, "use_bidirectional_attention": True}, "not causal"),
            ("GptOss", SMALL | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, "s_aux"),
            (
                "Qwen2Moe",
                SMALL | {"num_experts": 2, "sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0},
                "not told by Qwen2MoeAttention whether it slides over 4 tokens",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) and " " not in value else "",
    )
    def test_unfit_models_are_refused_without_their_weights(self, kind, settings, message):
        """Models that mix rows, or ask for more than is done, are refused by their outline, with the reason."""
        with pytest.raises(ModelError, match=f"'a/b' cannot be trained without padding: .*{message}.*padding: right"):
            refuse_unpackable("a/b", outline(kind, **settings))

    def test_a_window_of_0_is_none(self):
        """Qwen2-MoE says 0 for layers without a window; its packed rows are those of its own attention."""
        torch.manual_seed(0)
        experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
        settings = SMALL | experts | {"shared_expert_intermediate_size": 16}
        model = transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**settings)).eval()
        assert model.config.sliding_window == 0
        refuse_unpackable("a/b", outline("Qwen2Moe", **settings))
        pack(model)
        check_logprobs(LogprobModel(model, packed=True), range(3, 23))

    def test_attention_dropout_is_refused(self, folders):
        """Dropout of attention weights, which cannot be had, is refused when the model is prepared."""
        model = transformers.AutoModelForCausalLM.from_pretrained(folders["llama3"], attention_dropout=0.1)
        with pytest.raises(ModelError, match="dropout: false"):
            pack(model)

    def test_a_saved_model_does_not_show_it(self, folders, tmp_path):
        """A model saved after packed training loads anywhere: its settings name no attention of ours."""
        model = load(folders["llama3"])
        pack(model)
        model.save_pretrained(tmp_path)
        assert "humanline" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
        assert load(str(tmp_path)).config._attn_implementation == "sdpa"
