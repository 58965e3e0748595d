"""Models on the hub: at hand in its cache, known by a shape that ships with humanline, or refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from humanline import recipes
from humanline.train.data.reach import ask_hub, is_out_of_reach
from humanline.train.policy.errors import ModelError

HUB = "hub:"
MAIN = "main"  # the revision that is taken where none is named


def is_at_hand(name: str) -> bool:
    """Return whether the configuration of a model, organisation/name, is in the cache of the hub."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def read_shape(path: str) -> dict[str, Any] | None:
    """Return the architecture of a model, as its config.json has it, if that ships with humanline.

    Parameters
    ----------
    path : str
        As recipes name models; only one that begins with `hub:` has a shape.
    """
    file = recipes.shape(path.removeprefix(HUB)) if path.startswith(HUB) else None
    if file is None:
        return None
    settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return settings


def shipped_shape(path: str) -> dict[str, Any] | None:
    """Return the shape of a model (`read_shape`) that is not at hand."""
    shape = read_shape(path)
    return None if shape is None or is_at_hand(path.removeprefix(HUB)) else shape


def refuse_out_of_reach(name: str, what: str) -> None:
    """Ask the hub once for a model that is not at hand, where its own client would ask six times.

    Parameters
    ----------
    name : str
        organisation/name.
    what : str
        The model, in messages.

    Raises
    ------
    ModelError
        If the hub cannot be reached, or does not give the model to this user; with what to do.
    """
    from huggingface_hub.errors import GatedRepoError

    if is_at_hand(name):
        return
    answer = ask_hub(name, "config.json", "model")
    if isinstance(answer, GatedRepoError):
        raise ModelError(
            f"{what} is gated: accept its licence at https://huggingface.co/{name}, and log in (hf auth login)"
        ) from answer
    if is_out_of_reach(answer):
        reason = f"{type(answer).__name__}: {' '.join(str(answer).split())[:200]}"
        raise ModelError(
            f"{what} is not in the cache of the hub, and the hub cannot be reached ({reason}): "
            f"run `hf download {name}` where there is a network, or give the folder of a copy in place of {HUB}{name}"
        ) from answer


def fetch_settings(name: str, what: str) -> str:
    """Have the config.json of a model in the cache of the hub, of the revision that loading the model will take.

    Parameters
    ----------
    name, what : str
        As in `refuse_out_of_reach`.

    Returns
    -------
    str
        The commit of that revision.

    Raises
    ------
    ModelError
        If the hub does not give it, and the cache has none.
    """
    from huggingface_hub import hf_hub_download

    refuse_out_of_reach(name, what)
    try:
        return Path(hf_hub_download(name, "config.json")).parent.name
    except Exception as error:  # of whatever kind the client has
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{what} cannot be loaded: {type(error).__name__}: {reason}") from error
