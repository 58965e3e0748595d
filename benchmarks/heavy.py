"""What most parts import, loaded once for all of those that are only to be quick; nothing is computed here."""

from __future__ import annotations

import contextlib

with contextlib.suppress(Exception):  # then each part finds out for itself
    from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: F401

    import benchmarks.runs  # noqa: F401
    import humanline.train.loop  # noqa: F401
