"""The policy as training sees it: token ids in, token log-probabilities out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from humanline.objectives import token_logprobs

_HUB = "hub:"


class ModelError(ValueError):
    """A model, or its tokenizer, that cannot be trained as it is."""


class TokenScorer(nn.Module):
    """Give the log-probability of every token from the ones before it, logits never held for a whole batch.

    Parameters
    ----------
    model : a causal language model of transformers
        With a linear output head.

    Raises
    ------
    ModelError
        If the model has no output head, or one with a bias.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        head = model.get_output_embeddings()
        if head is None or getattr(head, "weight", None) is None:
            raise ModelError(f"{type(model).__name__} has no output head to take token log-probabilities from")
        if getattr(head, "bias", None) is not None:
            raise ModelError(f"{type(model).__name__} has an output head with a bias, which is not supported")
        self.softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Compute log pi(token t+1 | tokens 0..t).

        Parameters
        ----------
        input_ids : (R, T) integer tensor
            Padded on the right; no attention mask is needed under a causal model.
        mask : (R, T - 1) bool tensor
            True = label t + 1 counts.

        Returns
        -------
        (R, T - 1) float32 tensor
            Nats; 0 where the mask is False.
        """
        decoder = self.model.get_decoder()
        hidden = decoder(input_ids=input_ids, use_cache=False).last_hidden_state[:, :-1]
        if torch.is_autocast_enabled(hidden.device.type):
            # Norms return float32 under autocast; the head computes in the narrow type like every other matmul.
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        flat = token_logprobs(
            hidden.flatten(0, 1),
            self.model.get_output_embeddings().weight,
            input_ids[:, 1:].flatten(),
            mask=mask.flatten(),
            softcap=self.softcap,
        )
        return flat.view(mask.shape)


def load_policy(path: str, *, dropout: bool, max_length: int) -> tuple[Any, Any]:
    """Load a model with float32 weights, and its tokenizer.

    Parameters
    ----------
    path : str
        A folder in Hugging Face format, or `hub:` and the name of a model on the hub: the only case that uses the
        network, and never by a mistyped path.
    dropout : bool
        False sets every dropout rate to 0.
    max_length : int
        The longest sequence training will use, tokens.

    Returns
    -------
    model, tokenizer

    Raises
    ------
    ModelError
        If the folder is missing, does not hold a causal language model or needs code of its own, the tokenizer has no
        end token, a token id exceeds the embedding, max_length exceeds what the model was built for, or its weights
        are not in safetensors files or incomplete.
    """
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(path)
    name, local = _source(path)
    with _loading(f"model {path!r}"):
        model, loaded = AutoModelForCausalLM.from_pretrained(
            name,
            local_files_only=local,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    if missing := sorted(loaded["missing_keys"]):  # the library would go on with random weights
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise ModelError(f"model {path!r}: its weight files lack {', '.join(missing[:4])}{more}")
    refuse_misfits(path, model, tokenizer, max_length)
    if not dropout:
        turn_off_dropout(model)
    return model, tokenizer


def load_tokenizer(path: str) -> Any:
    """Load the tokenizer of a model (`load_policy`) alone.

    Raises
    ------
    ModelError
        If the folder is missing or its tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    name, local = _source(path)
    with _loading(f"model {path!r}: its tokenizer"):
        return AutoTokenizer.from_pretrained(name, local_files_only=local, trust_remote_code=False)


def load_outline(path: str) -> Any:
    """Build a model (`load_policy`) without its weights: on the meta device, from its configuration.

    Raises
    ------
    ModelError
        If the folder is missing, does not hold a causal language model or needs code of its own.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    name, local = _source(path)
    with _loading(f"model {path!r}"), torch.device("meta"):
        settings = AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=False)
        return AutoModelForCausalLM.from_config(settings, dtype=torch.float32, trust_remote_code=False)


def refuse_misfits(path: str, model: Any, tokenizer: Any, max_length: int) -> None:
    """Check what can be checked of a model without running it, weights or none.

    Parameters
    ----------
    path : str
        For the message.
    model
        Whole, or an outline.
    tokenizer
    max_length : int
        The longest sequence training will use, tokens.

    Raises
    ------
    ModelError
        If the tokenizer has no end token, a token id exceeds the embedding, max_length exceeds what the model was built
        for, or the output head is missing or of an unknown kind; all that apply are named.
    """
    problems = []
    if tokenizer.eos_token_id is None:
        problems.append(f"the tokenizer of {path!r} has no end token (eos_token): answers could not be ended")
    rows, largest = model.get_input_embeddings().weight.shape[0], max(tokenizer.get_vocab().values())
    if largest >= rows:
        problems.append(f"the tokenizer of {path!r} has token ids up to {largest} but the model embeds only {rows}")
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        problems.append(f"data.max_length {max_length} exceeds the {longest} positions of the model {path!r}")
    try:
        TokenScorer(model)
    except ModelError as error:
        problems.append(str(error))
    if problems:
        raise ModelError("\n".join(problems))


def refuse_missing_weights(path: str) -> None:
    """Look for the weight files of a model in a folder, without reading weights; nothing is said of one on the hub.

    Raises
    ------
    ModelError
        If there are none, one that the index names is missing, or one is no whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    name, local = _source(path)
    folder = Path(name)
    if not local:
        return
    if any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors")):
        raise ModelError(f"model {path!r}: its weights are pickled; save them as safetensors (save_pretrained does)")
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        else:
            files = ["model.safetensors"]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"model {path!r}: {index.name} cannot be read: {error}") from error
    problems = []
    for file in files:
        if not (folder / file).is_file():
            problems.append(f"{file} is missing")
            continue
        try:
            with safe_open(folder / file, framework="pt"):  # reads the header, and compares it with the file's size
                pass
        except (SafetensorError, OSError) as error:
            problems.append(f"{file} is damaged: {error}")
    if problems:
        raise ModelError(f"model {path!r}: its weights cannot be loaded: {'; '.join(problems)}")


def _source(path: str) -> tuple[str, bool]:
    """Return the folder or hub name of a model, and whether it is a folder."""
    local, name = not path.startswith(_HUB), path.removeprefix(_HUB)
    if local and not (Path(name) / "config.json").is_file():
        raise ModelError(
            f"model {path!r}: no config.json in {Path(name).resolve()}; give a folder in Hugging Face format, "
            f"or {_HUB}organisation/name for a model on the hub"
        )
    return name, local


@contextlib.contextmanager
def _loading(what: str) -> Iterator[None]:
    """Turn whatever a damaged or foreign folder makes the libraries raise into one error."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{what} cannot be loaded: {type(error).__name__}: {reason[:400]}") from error


def turn_off_dropout(model: nn.Module) -> None:
    """Set every dropout rate of a model to 0: modules, and the numbers that other layers keep."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def check_scorer(scorer: TokenScorer, ids: Sequence[int]) -> None:
    """Compare the scorer with the model's own logits on a few tokens.

    Raises
    ------
    ModelError
        If they differ by more than a thousandth of the logits' standard deviation (and by more than rounding): the
        model does something between its last hidden state and its logits that the scorer does not know.
    """
    input_ids = torch.tensor([list(ids)], device=scorer.model.device)
    with torch.no_grad():
        logits = scorer.model(input_ids=input_ids, use_cache=False).logits[:, :-1].float()
        own = torch.log_softmax(logits, -1).gather(2, input_ids[:, 1:, None]).squeeze(2)
        gap = (scorer(input_ids, torch.ones_like(own, dtype=torch.bool)) - own).abs().max().item()
    if not gap <= 1e-3 * logits.std().item() + 1e-5:
        raise ModelError(
            f"{type(scorer.model).__name__}: token log-probabilities from the last hidden state differ from its own "
            f"logits by {gap:.3g} nats; its output head is not supported"
        )
