"""An adapter and its base made one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from humanline.system.imports import quiet
from humanline.train.policy.adapter import adapter_base, names_as_given, refuse_other_base, refuse_other_weights
from humanline.train.policy.errors import ModelError
from humanline.train.run.card import FACTS, merged_files


def merge(adapter: str, out: str, base: str | None = None) -> Path:
    """Write the model that an adapter makes of its base, whole, with its tokenizer and card, and return its folder.

    Tokenizer and template are those beside the adapter, which it was trained with; else the base's.

    ``weight + alpha / rank * B A``, computed in float32 and rounded once, to the type of the base's own weights.

    Parameters
    ----------
    adapter : str
        Folder of a finished run with an adapter.
    out : str
        Folder to create.
    base : str, optional
        The base model, where it is not where the adapter's files say.

    Raises
    ------
    ModelError
        If the folder holds no adapter, or base and adapter cannot be loaded or do not fit together, in their tensors
        or in the settings or, of a folder, the weights of the base that the adapter was trained on.
    OutputError
        If `out` is in use.
    """
    import torch
    from safetensors import safe_open

    from humanline.system.files import refuse_used_folder
    from humanline.train.policy.load import load_model, load_tokenizer, loading, stored_type
    from humanline.train.policy.save import create_model

    named = adapter_base(adapter)
    if named is None:
        final = Path(adapter) / "final"
        hint = f"; did you mean {str(final)!r}?" if adapter_base(final) is not None else ""
        raise ModelError(f"{adapter!r} holds no adapter: no adapter_config.json in {Path(adapter).resolve()}{hint}")
    refuse_used_folder(out)
    refuse_other_weights(adapter, base or named)
    kept = stored_type(base or named)
    model = load_model(base or named, torch.float32)
    refuse_other_base(adapter, model)
    with loading(f"adapter {adapter!r}"):
        with quiet():
            from peft import PeftModel, get_peft_model_state_dict

            with names_as_given():
                whole = PeftModel.from_pretrained(model, adapter, local_files_only=True)
        wanted = set(get_peft_model_state_dict(whole, save_embedding_layers=False))
        with safe_open(Path(adapter) / "adapter_model.safetensors", framework="pt") as tensors:
            there = set(tensors.keys())
    if wanted != there:  # the library would leave out what finds no place, and fill up what is missing
        raise ModelError(
            f"adapter {adapter!r} does not fit the model {base or named!r}: {len(there - wanted)} of its tensors have "
            f"no place there, and {len(wanted - there)} are missing (such as {min(wanted ^ there)})"
        )
    merged = whole.merge_and_unload(safe_merge=True).to(kept)
    tokenizer = _own_tokenizer(adapter)
    if tokenizer is None or len(tokenizer) > merged.get_input_embeddings().weight.shape[0]:  # of other software
        tokenizer = load_tokenizer(base or named)
    return create_model(out, merged, tokenizer, lambda: _card(Path(adapter)))


def _own_tokenizer(adapter: str) -> Any:
    """Return the tokenizer, with the template, that an adapter was trained with, where its folder has it; else None."""
    if not (Path(adapter) / "tokenizer_config.json").is_file():
        return None
    from transformers import AutoTokenizer

    from humanline.train.policy.load import loading

    with loading(f"adapter {adapter!r}: its tokenizer"):
        return AutoTokenizer.from_pretrained(adapter, local_files_only=True, trust_remote_code=False)


def _card(adapter: Path) -> dict[str, str]:
    """Return the files that tell of the merged model, as far as those of the adapter can be read."""
    try:
        return merged_files((adapter / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
