"""The only home of hypothesis strategies."""

from __future__ import annotations

import math

from hypothesis import strategies as st

#: Gammas at which the Tversky-Kahneman capacity is monotone.
monotone_gammas = st.floats(0.2793, 4.0)
probabilities = st.floats(0.0, 1.0)
#: The name of a capacity family and parameters at which it is monotone.
capacities = st.one_of(
    st.tuples(st.just("TverskyKahneman"), st.tuples(monotone_gammas)),
    st.tuples(st.just("Prelec"), st.tuples(st.floats(0.2, 3.0), st.floats(0.3, 3.0))),
    st.tuples(st.just("LinearInLogOdds"), st.tuples(st.floats(0.2, 3.0), st.floats(0.1, 5.0))),
    st.tuples(st.just("PowerWeight"), st.tuples(st.floats(0.2, 5.0))),
    st.tuples(st.just("NeoAdditive"), st.tuples(st.floats(0.1, 0.7), st.floats(0.0, 0.3))),
    st.tuples(st.just("ExponentialPower"), st.tuples(st.floats(0.2, 3.0), st.floats(-2.0, 2.0))),
    st.tuples(st.just("HyperbolicLog"), st.tuples(st.floats(0.1, 4.0), st.floats(0.2, 4.0))),
    st.tuples(st.just("Identity"), st.just(())),
)
outcomes = st.integers(-6, 6).map(lambda n: n / 2)  # few values, so that ties and the reference point come up


@st.composite
def prospects(draw: st.DrawFn, min_size: int = 1, max_size: int = 7) -> tuple[list[float], list[float]]:
    """Outcomes with ties, and probabilities of which some are 0 or tiny."""
    size = draw(st.integers(min_size, max_size))
    z = draw(st.lists(outcomes, min_size=size, max_size=size))
    shares = draw(st.lists(st.sampled_from([0.0, 1e-20, 1e-9, 1.0, 2.0, 5.0, 90.0]), min_size=size, max_size=size))
    shares[draw(st.integers(0, size - 1))] += 1.0
    return z, [share / sum(shares) for share in shares]


@st.composite
def samplers(draw: st.DrawFn, max_size: int = 6) -> tuple[list[float], list[float], list[float]]:
    """Outcomes with ties, and the probabilities of a policy and of a sampler, of which some are 0."""
    z, policy = draw(prospects(max_size=max_size))
    _, sampler = draw(prospects(min_size=len(z), max_size=len(z)))
    return z, policy, sampler


@st.composite
def laws(draw: st.DrawFn, count: int, *, size: int | None = None, zeros: bool = False) -> list[list[float]]:
    """Several distributions over the same tokens, some of them far from uniform; with zeros, never all zero."""
    size = draw(st.integers(2, 6)) if size is None else size
    parts = [1e-12, 1e-3, 0.1, 1.0, 2.0, 7.0, 40.0]
    rows = []
    for _ in range(count):
        row = draw(st.lists(st.sampled_from([0.0, *parts] if zeros else parts), min_size=size, max_size=size))
        row[draw(st.integers(0, size - 1))] += 1.0
        rows.append([share / sum(row) for share in row])
    return rows


def texts(seen: str) -> st.SearchStrategy[str]:
    """Any text without special tokens, and pieces of a text that a tokenizer was trained on, cut anywhere."""
    pieces = st.tuples(st.integers(0, 60), st.integers(1, 15)).map(lambda cut: seen[cut[0] : sum(cut)])
    return (st.text(min_size=1, max_size=40) | pieces).filter(lambda text: bool(text.strip()) and "<|" not in text)


@st.composite
def token_budgets(draw: st.DrawFn) -> dict:
    """Lengths of the rows of every unit, a batch size that the ranks can share, and tokens for the largest unit."""
    members, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch_size = ranks * draw(st.integers(1, 4))
    unit = st.tuples(*[st.integers(2, 12) | st.integers(2, 40)] * members)
    lengths = draw(st.lists(unit, min_size=batch_size, max_size=batch_size + 5))
    padding = draw(st.sampled_from(["right", "free"]))
    largest = max(members * max(rows) if padding == "right" else sum(rows) for rows in lengths)
    budget = largest + draw(st.integers(0, 3 * largest))
    return {"lengths": lengths, "batch_size": batch_size, "ranks": ranks, "padding": padding, "budget": budget}


@st.composite
def split_groups(draw: st.DrawFn) -> dict:
    """Lengths of the rows of ragged groups, ranks, and rows or tokens of a pass; often too few rows for all ranks."""
    group = st.lists(st.integers(2, 12) | st.integers(2, 40), min_size=1, max_size=6)
    lengths = draw(st.lists(group, min_size=1, max_size=5))
    batch_size, ranks = draw(st.integers(1, len(lengths))), draw(st.integers(1, 4))
    padding = draw(st.sampled_from(["right", "free"]))
    budget = max(length for rows in lengths for length in rows) + draw(st.integers(0, 120))
    limit = {"micro_batch_tokens": budget} if draw(st.booleans()) else {"micro_batch_size": draw(st.integers(1, 9))}
    return {
        "lengths": lengths,
        "ranks": ranks,
        "limit": limit,
        "options": {"batch_size": batch_size, "padding": padding},
    }


#: Uniform numbers in [0, 1), its two ends among them.
draws = st.sampled_from([0.0, 0.5, math.nextafter(1.0, 0.0)]) | st.floats(0.0, 1.0, exclude_max=True)


@st.composite
def scored_groups(draw: st.DrawFn) -> list[list[tuple[float | None, str, int]]]:
    """Prompts with completions: score or None, why it ended, and its tokens; scores have many ties."""
    value = st.sampled_from([None, -1.0, 0.0, 0.0, 0.25, 0.5, 0.5, 1.0])
    one = st.tuples(value, st.sampled_from(["end", "end", "stop", "length"]), st.sampled_from([0, 1, 2, 3]))
    return draw(st.lists(st.lists(one, min_size=2, max_size=5), min_size=1, max_size=5))
