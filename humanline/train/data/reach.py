"""Whether the Hugging Face hub can be reached, asked once: its own clients try six times before they say that not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def ask_hub(name: str, file: str, kind: str) -> Exception | None:
    """Ask the hub for a file of a repository, and return the error if it does not give it.

    Parameters
    ----------
    name : str
        organisation/name.
    file : str
    kind : {"model", "dataset"}

    Returns
    -------
    Exception or None
        An HfHubHTTPError if the hub has answered; any other means that it cannot be reached.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, file, repo_type=kind))
    except Exception as error:  # whatever the network, a proxy or a setting says
        return error
    return None


def is_out_of_reach(answer: Exception | None) -> bool:
    """Return whether what `ask_hub` returned means that the hub cannot be reached."""
    from huggingface_hub.errors import HfHubHTTPError

    return answer is not None and not isinstance(answer, HfHubHTTPError)


@contextlib.contextmanager
def from_cache_alone() -> Iterator[None]:
    """Let `datasets` and `huggingface_hub` use what their caches hold, and nothing else, while the context lasts."""
    import datasets
    import huggingface_hub.constants

    settings = [datasets.config, huggingface_hub.constants]
    before = [module.HF_HUB_OFFLINE for module in settings]
    try:
        for module in settings:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, was in zip(settings, before, strict=True):
            module.HF_HUB_OFFLINE = was
