"""Which modules of a model are the layers that its decoder repeats."""

from __future__ import annotations

from typing import Any

from torch import nn

from humanline.train.policy.errors import ModelError


def layer_list(model: Any) -> nn.ModuleList | None:
    """Return the list right under a model's decoder that holds as many layers as its configuration counts.

    None if there is no such list, or several that the kinds of their layers do not tell apart; the model may be an
    outline.
    """
    return _counted(model, [child for child in model.get_decoder().children() if isinstance(child, nn.ModuleList)])


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the layers that a model's decoder repeats, in their order; they may be of several kinds.

    Those of `layer_list`; where there is none, what the decoder's lists hold of the kinds that the model says are
    never split over devices; where there is none of these either, the list anywhere in the decoder that is as long as
    the configuration counts.

    Parameters
    ----------
    model : a causal language model of transformers
        May be an outline, and may have an adapter.

    Raises
    ------
    ModelError
        If there are no such layers.
    """
    if (direct := layer_list(model)) is not None:
        return list(direct)
    decoder = model.get_decoder()
    lists = [module for module in decoder.modules() if isinstance(module, nn.ModuleList)]  # outer ones first
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for layer in (one for each in lists for one in each):
        if type(layer).__name__ in _whole_kinds(model) and layer not in inside:
            found.append(layer)
            inside |= set(layer.modules())
    if not found and (deep := _counted(model, lists)) is not None:
        found = list(deep)
    if not found:
        raise ModelError(
            f"{type(model).__name__}: the layers of its decoder cannot be found: {type(decoder).__name__} has neither "
            f"one list of num_hidden_layers ({_count(model)}) modules, nor any with modules of the kinds in its "
            f"_no_split_modules ({', '.join(sorted(_whole_kinds(model))) or 'none'}); only training.precision: float32 "
            "and training.sharding: none do without them"
        )
    return found


def _counted(model: Any, lists: list[nn.ModuleList]) -> nn.ModuleList | None:
    """Return the one list that is as long as a model's configuration counts layers, None if there is none."""
    found = [one for one in lists if len(one) and len(one) == _count(model)]
    if len(found) > 1:
        kinds = _whole_kinds(model)
        found = [one for one in found if all(type(layer).__name__ in kinds for layer in one)]
    return found[0] if len(found) == 1 else None


def _count(model: Any) -> int | None:
    count: int | None = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    return count


def _whole_kinds(model: Any) -> set[str]:
    """Return the names of the classes of modules that a model says are never split over devices."""
    return set(getattr(model, "_no_split_modules", None) or ())
