"""The only home of hypothesis strategies."""

from __future__ import annotations

from hypothesis import strategies as st

#: Gammas at which the Tversky-Kahneman capacity is monotone.
monotone_gammas = st.floats(0.2793, 4.0)
probabilities = st.floats(0.0, 1.0)
outcomes = st.integers(-6, 6).map(lambda n: n / 2)  # few values, so that ties and the reference point come up


@st.composite
def prospects(draw: st.DrawFn, min_size: int = 1, max_size: int = 7) -> tuple[list[float], list[float]]:
    """Outcomes with ties, and probabilities of which some are 0 or tiny."""
    size = draw(st.integers(min_size, max_size))
    z = draw(st.lists(outcomes, min_size=size, max_size=size))
    shares = draw(st.lists(st.sampled_from([0.0, 1e-20, 1e-9, 1.0, 2.0, 5.0, 90.0]), min_size=size, max_size=size))
    shares[draw(st.integers(0, size - 1))] += 1.0
    return z, [share / sum(shares) for share in shares]


def texts(seen: str) -> st.SearchStrategy[str]:
    """Any text without special tokens, and pieces of a text that a tokenizer was trained on, cut anywhere."""
    pieces = st.tuples(st.integers(0, 60), st.integers(1, 15)).map(lambda cut: seen[cut[0] : sum(cut)])
    return (st.text(min_size=1, max_size=40) | pieces).filter(lambda text: bool(text.strip()) and "<|" not in text)
