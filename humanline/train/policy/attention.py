"""Which attention a model runs with, where its own code caps attention's logits softly, as Gemma 2 does.

Torch's attention (`sdpa`) knows no such cap, and some versions of transformers choose it for these models all the
same: they compute something else then, and nobody is told. The model's own code (`eager`) has the cap.
"""

from __future__ import annotations

from typing import Any

from humanline.train.policy.errors import ModelError

_OWN = "eager"  # what transformers calls the code of a model itself
_SETTING = "attn_logit_softcapping"


def attention_softcap_of(model: Any) -> float | None:
    """Return the soft cap on the logits of a model's attention, None if it has none; the model may be an outline."""
    cap: float | None = getattr(model.config.get_text_config(), _SETTING, None)
    return cap


def usual_attention(model: Any) -> str:
    """Return the name of the attention that a model should run with on padded rows, and to sample."""
    capped = attention_softcap_of(model) is not None
    return "sdpa" if not capped and getattr(model, "_supports_sdpa", False) else _OWN


def keep_softcap(model: Any) -> None:
    """Let a model whose attention has a soft cap run with its own code, in place, whatever it was loaded with."""
    if attention_softcap_of(model) is not None:
        model.set_attn_implementation(_OWN)


def refuse_paged(model: Any) -> None:
    """Refuse a model, or an outline, that continuous batching would sample from without the soft cap of its attention.

    Raises
    ------
    ModelError
        If its attention has one: neither way in which transformers attends to a cache of pages computes it.
    """
    if (cap := attention_softcap_of(model)) is not None:
        raise ModelError(
            f"{type(model).__name__} caps attention's logits softly ({_SETTING} {cap:g} in its config.json), which "
            "continuous batching leaves out, so that it would sample from another model: set "
            "source.sampling.engine.kind: generate, or server"
        )
