"""What a run that does not fit is told to change, kept to one kind: each is estimated, which takes about a second."""

from __future__ import annotations

import pytest

from humanline.train.preflight import suggest


def only_smaller_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let smaller passes alone be suggested."""
    few = tuple(one for one in suggest._CHANGES if "smaller passes" in one[0])
    assert few
    monkeypatch.setattr(suggest, "_CHANGES", few)
