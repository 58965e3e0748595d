"""The policy as training sees it: token ids in, token log-probabilities out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from humanline.objectives import token_logprobs
from humanline.system.activity import HERE
from humanline.train.data.batch import Indices, find_indices
from humanline.train.policy.errors import ModelError
from humanline.train.policy.head import TokenLogprobs
from humanline.train.policy.whole_rows import whole_rows

_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES = {"logit_scale": False, "lm_head_multiplier": False, "logits_scaling": True}  # and whether logits are divided
_MULTIPLIES = ("hyperclovax",)  # kinds of models that multiply by what others divide by
_ABOUT_HEADS = ("logit", "softcap", "soft_cap", "multiplier", "unpadded")  # parts of the names of such settings
PACKED = "humanline_packed"  # under this name transformers knows attention over rows laid end to end


class LogprobModel(nn.Module):
    """Give the log-probability of every token from the ones before it, logits never held for a whole batch.

    Parameters
    ----------
    model : a causal language model of transformers
        With a linear output head.
    packed : bool
        Drop the padding and lay the rows end to end; `humanline.train.policy.packing.pack` must have prepared the
        model.
    logprobs : callable
        What turns hidden states into log-probabilities (`humanline.train.policy.head`).
    temperature : float, > 0
        Logits are divided by it.

    Raises
    ------
    ModelError
        If the model has no output head, or one with a bias, or cannot run without it, or is not prepared for packed
        rows.
    """

    def __init__(
        self, model: Any, packed: bool = False, logprobs: TokenLogprobs = token_logprobs, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.model, self.packed, self.logprobs, self.temperature = model, packed, logprobs, temperature
        head = model.get_output_embeddings()
        if head is None or getattr(head, "weight", None) is None:
            raise ModelError(f"{type(model).__name__} has no output head to take token log-probabilities from")
        if getattr(head, "bias", None) is not None:
            raise ModelError(f"{type(model).__name__} has an output head with a bias, which is not supported")
        if model.get_decoder() is model:
            raise ModelError(f"{type(model).__name__} does not let its layers run without its output head")
        if packed and _attention_of(model) != PACKED:
            raise ModelError(f"{type(model).__name__} must be prepared by humanline.train.policy.packing.pack first")
        for part in (model, model.get_decoder()):
            part.config.return_dict = True  # what they return is taken by name here, whatever config.json says
        self.softcap, self.logit_scale = softcap_of(model), logit_scale_of(model)

    def forward(
        self,
        input_ids: Tensor,
        mask: Tensor,
        lengths: Sequence[int] | None = None,
        indices: Indices | None = None,
    ) -> Tensor:
        """Compute log pi(token t+1 | tokens 0..t), of a policy whose logits are divided by the temperature.

        Parameters
        ----------
        input_ids : (R, T) integer tensor
            Padded on the right; no attention mask is needed under a causal model.
        mask : (R, T - 1) bool tensor
            True = label t + 1 counts. A row may have none.
        lengths : R integers in [1, T], optional
            Lengths of the rows without their padding, read where rows are packed; default: all are whole.
        indices : Indices, optional
            Of this mask and these lengths, on its device; default: they are found here, for which a GPU is waited for.

        Returns
        -------
        (R, T - 1) float32 tensor
            Nats; 0 where the mask is False.

        Raises
        ------
        ValueError
            If no indices are given and lengths do not fit the rows, or a label counts that is padding.
        """
        HERE.touch()
        whole = (input_ids.shape[1],) * len(input_ids)
        lengths = whole if lengths is None or not self.packed else tuple(lengths)
        found = find_indices(mask, lengths) if indices is None else indices
        rows, places = found.rows, found.places
        if self.packed:
            hidden, starts = self._packed(input_ids, lengths, found), found.bounds[:-1]
        else:
            with whole_rows():
                # Nothing else may hold on to it: the head's logits take its place.
                hidden = self.model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
            starts = torch.arange(len(input_ids), device=input_ids.device) * input_ids.shape[1]
        head_weight = self.model.get_output_embeddings().weight
        hidden = hidden.index_select(0, starts[rows] + places).to(head_weight.dtype)  # some norms return float32
        logprobs = self.logprobs(
            hidden,
            head_weight,
            input_ids[rows, places + 1],
            temperature=self.temperature / self.logit_scale,
            softcap=self.softcap,
        )
        # No view: what shards a policy hooks into its output.
        return torch.zeros(mask.shape, dtype=logprobs.dtype, device=logprobs.device).index_put((rows, places), logprobs)

    @contextlib.contextmanager
    def untempered(self, logprobs: TokenLogprobs = token_logprobs) -> Iterator[None]:
        """Give log-probabilities at temperature 1, by our own function or another, for as long as the context lasts."""
        before = self.logprobs, self.temperature
        self.logprobs, self.temperature = logprobs, 1.0
        try:
            yield
        finally:
            self.logprobs, self.temperature = before

    def own_logits(self, input_ids: Tensor) -> Tensor:
        """Return the logits that the model's own code computes, in the precision of `forward`.

        Parameters
        ----------
        input_ids : (R, T) integer tensor
            Without padding.

        Returns
        -------
        (R, T, V) floating tensor
            Before any temperature.
        """
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits

    def _packed(self, input_ids: Tensor, lengths: tuple[int, ...], indices: Indices) -> Tensor:
        """Return the last hidden states of all real tokens, (N, H)."""
        hidden: Tensor = self.model.get_decoder()(
            input_ids=input_ids.flatten()[indices.tokens][None],
            position_ids=(indices.tokens % input_ids.shape[1])[None],
            use_cache=False,
            segment_lengths=lengths,
            segment_bounds=indices.bounds.to(torch.int32),
        ).last_hidden_state
        return hidden.squeeze(0)


def softcap_of(model: Any) -> float | None:
    """Return the soft cap on a model's logits, None if there is none; the model may be an outline."""
    return next((cap for name in _SOFTCAPS if (cap := _number(model, name)) is not None), None)


def logit_scale_of(model: Any) -> float:
    """Return the factor that a model multiplies its logits by; the model may be an outline."""
    settings, scale = model.config.get_text_config(), 1.0
    for name, divides in _SCALES.items():
        if (factor := _number(model, name)) is not None:
            if factor == 0:
                raise ModelError(f"{type(model).__name__}: {name} in its config.json is 0: all logits would be equal")
            multiplies = not divides or settings.model_type in _MULTIPLIES
            scale = scale * factor if multiplies else scale / factor
    return scale


def _number(model: Any, name: str) -> float | None:
    """Return a setting of a model, None if it has none; raise ModelError if it is no finite number."""
    value = getattr(model.config.get_text_config(), name, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{type(model).__name__}: {name} in its config.json is {value!r}; only numbers are supported")
    return float(value)


def refuse_unknown_head(model: Any) -> None:
    """Look at what a model does around its output head, which takes no weights; it may be an outline, and is left so.

    The model's own code runs over hidden states that are made up, with an output head that changes nothing. Models
    whose code does not allow that are not judged: `check_logprobs` looks at them once their weights are there.

    Raises
    ------
    ModelError
        If its logits are something else than the policy takes them for.
    """
    from transformers.modeling_outputs import BaseModelOutput

    class MadeUp(BaseModelOutput):  # type: ignore[misc]
        """What a decoder returns, whatever else its model asks it for being None."""

        def __getattr__(self, name: str) -> None:
            if name.startswith("__"):
                raise AttributeError(name)

    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if getattr(head, "weight", None) is None:
        return  # which `LogprobModel` refuses
    made_up = torch.linspace(-50, 50, 2 * head.weight.shape[1]).view(1, 2, -1)
    softcap, scale = softcap_of(model), logit_scale_of(model)
    expected = made_up if softcap is None else softcap * torch.tanh(made_up / softcap)
    try:
        vars(decoder)["forward"] = lambda *_, **__: MadeUp(last_hidden_state=made_up)
        vars(head)["forward"] = lambda hidden: hidden
        with torch.no_grad():
            logits = model(input_ids=torch.zeros((1, 2), dtype=torch.long), use_cache=False).logits.float()
    except Exception:  # a decoder that returns something of its own, say
        return
    finally:
        for module in (decoder, head):
            vars(module).pop("forward", None)
    if logits.shape != expected.shape or not torch.allclose(logits, scale * expected, rtol=1e-4, atol=1e-4):
        raise ModelError(f"{type(model).__name__} does something around its output head that {_unsupported(model)}")


def _unsupported(model: Any) -> str:
    """Say that a head is not supported, and which settings of its model may be why."""
    settings = model.config.get_text_config().to_dict()
    named = [
        f"{name} {value:g}"
        for name, value in sorted(settings.items())
        if any(part in name for part in _ABOUT_HEADS) and isinstance(value, int | float) and value not in (0, 1)
    ]
    return "is not supported" + (f"; its config.json has {', '.join(named)}" if named else "")


def check_logprobs(policy: LogprobModel, ids: Sequence[int]) -> None:
    """Compare the policy with the model's own logits on a few tokens.

    Where rows are packed, two of different lengths are packed together and compared with each one alone, under the
    attention that the model's own code computes.

    Parameters
    ----------
    policy : LogprobModel
    ids : sequence of at least 2 token ids

    Raises
    ------
    ModelError
        If they differ by more than a thousandth of the logits' standard deviation (and by more than their rounding,
        and that of the layers where rows are packed, which in bf16 is a quarter of it): the model does something
        between its last hidden state and its logits that the policy does not know, or, where rows are packed, lets them
        see each other. Or if its own log-probabilities are not finite.
    """
    sequences = [list(ids)]
    if policy.packed:
        sequences.insert(0, list(ids)[: max(2, len(ids) // 2)])
    lengths = [len(one) for one in sequences]
    input_ids = torch.tensor([one + [0] * (max(lengths) - len(one)) for one in sequences], device=policy.model.device)
    mask = (
        torch.arange(1, max(lengths), device=input_ids.device) < torch.tensor(lengths, device=input_ids.device)[:, None]
    )
    with torch.no_grad():
        logprobs = policy(input_ids, mask, lengths)
        own, allowed = _own_logprobs(policy, input_ids, lengths)
        gap = (logprobs[mask] - own).abs().max().item()
    if not bool(torch.isfinite(own).all()):
        raise ModelError(
            f"{type(policy.model).__name__}: its log-probabilities are not finite before anything was trained: look at "
            "its config.json and at the scale of its weights, or train in float32 (training.precision)"
        )
    if not gap <= allowed:
        where = "the layout of packed rows, or its output head," if policy.packed else "its output head"
        raise ModelError(
            f"{type(policy.model).__name__}: token log-probabilities from the last hidden state differ from its own "
            f"logits by {gap:.3g} nats; {where} {_unsupported(policy.model)}"
        )


def refuse_random(policy: LogprobModel, ids: Sequence[int]) -> None:
    """Check that the policy computes the same in training mode as in eval mode, to the last bit.

    Raises
    ------
    ModelError
        If not: something in the model is random, though every dropout that could be found is off.
    """
    input_ids = torch.tensor([list(ids)], device=policy.model.device)
    mask = torch.ones((1, len(ids) - 1), dtype=torch.bool, device=input_ids.device)
    was_training = policy.training
    try:
        with torch.no_grad():
            equal = torch.equal(policy.train()(input_ids, mask), policy.eval()(input_ids, mask))
    finally:
        policy.train(was_training)
    if not equal:
        raise ModelError(
            f"{type(policy.model).__name__} computes something random in training, or something else than in scoring, "
            "though training.dropout is false: log-ratios would not be 0 where policy and reference are equal; set its "
            "rates (dropout, jitter) to 0 in its config.json, or training.dropout: true to accept it"
        )


def _own_logprobs(policy: LogprobModel, input_ids: Tensor, lengths: Sequence[int]) -> tuple[Tensor, float]:
    """Return the token log-probabilities of rows, one after the other, and by how much others may differ."""
    model, before = policy.model, _attention_of(policy.model)
    try:
        if policy.packed:
            model.set_attn_implementation("eager")
        logprobs, allowed = [], 0.0
        for row, length in zip(input_ids, lengths, strict=True):
            logits = policy.own_logits(row[None, :length])[0, :-1]
            eps = torch.finfo(logits.dtype).eps
            logits = logits.float() / policy.temperature
            rounding = 2 * eps * logits.abs().max().item()
            if policy.packed:  # another attention is rounded otherwise, in every layer
                rounding += 32 * eps * logits.std().item()
            logprobs.append(torch.log_softmax(logits, -1).gather(1, row[1:length, None]).squeeze(1))
            allowed = max(allowed, 1e-3 * logits.std().item() + rounding + 1e-5)
    finally:
        if policy.packed:
            model.set_attn_implementation(before)
    return torch.cat(logprobs), allowed


def _attention_of(model: Any) -> str | None:
    name: str | None = model.config.get_text_config()._attn_implementation
    return name
