"""Which rows of a step go through the model together, and in which process.

All processes make the same number of passes, one in each *turn*. Where weights are sharded they wait for each other in
every layer, so the micro-batches of a turn are of like size, and each process gets nearly as many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from humanline.train.data.sequences import TokenSequence

Pieces = Sequence[tuple[TokenSequence, ...]]  # of a step, each with the sequences that stay together
_Cuts = list[list[int]]  # micro-batches, as numbers of pieces
_Weigh = Callable[[Sequence[TokenSequence], int], int]  # what a piece adds to a micro-batch whose rows have a width

# How many budgets a forward pass without gradient may take: it holds the activations of one layer at a time, where
# training holds the inputs of all layers and everything of one.
_UNKEPT = 4


class Dealer:
    """Cut the pieces of a step into micro-batches and deal these to processes.

    Pieces are sorted by length, so that little is padded. Under a budget as many of them as fit make a micro-batch, and
    the largest ones are halved until all processes have as many; several processes first lower the budget, as far as it
    gives no more than that. Where a size counts, the pieces of a turn are dealt to its micro-batches to and fro. Then
    the largest micro-batch of each turn goes to the process that has the fewest tokens so far.

    Parameters
    ----------
    size : int or None
        Pieces of a micro-batch, or rows where groups are kept whole; None = the whole share of a process at once.
    budget : int or None
        The most tokens of a micro-batch; then there is no size.
    padding : "right" or "free"
        Whether tokens of padding count.
    ranks : int
    groups_whole : bool
        The loss is a mean of each micro-batch, which is therefore as full as it may be.
    """

    def __init__(
        self, size: int | None, budget: int | None, padding: Literal["right", "free"], ranks: int, *, groups_whole: bool
    ) -> None:
        self.size, self.budget, self.padding = size, budget, padding
        self.ranks, self.groups_whole = ranks, groups_whole

    def deal(self, pieces: Pieces, mismatched: Pieces) -> tuple[_Cuts, _Cuts]:
        """Return for every micro-batch of a step the numbers of its pieces and of its mismatched pairs.

        Turn by turn, and in each of them those of process 0, 1, ...; one that is empty has nothing that counts.
        """
        if self.budget is not None:
            return self._by_weight(pieces, mismatched, self.budget, self._weigh)
        if self.size is not None and self.groups_whole:
            return self._by_weight(pieces, mismatched, self.size, lambda piece, _: len(piece))
        size = self.size or -(-len(pieces) // self.ranks)
        cuts, others = (self._dealt(self._by_size(one, size), one) for one in (pieces, mismatched))
        return cuts, others or [[]] * len(cuts)

    def tokens(self, lengths: Sequence[int]) -> int:
        """Return the tokens of one forward pass over sequences of these lengths."""
        return sum(lengths) if self.padding == "free" else len(lengths) * max(lengths, default=0)

    def _by_size(self, pieces: Pieces, size: int) -> _Cuts:
        """Return micro-batches of at most so many pieces, as many for every process."""
        order, ranks = longest_first(pieces), self.ranks
        if ranks == 1:
            return [order[i : i + size] for i in range(0, len(order), size)]
        turns = -(-len(order) // (size * ranks))
        cuts: _Cuts = []
        for turn in range(turns):  # of like size, so that the last one is not left with too few for all
            own = order[len(order) * turn // turns : len(order) * (turn + 1) // turns]
            cuts += [[own[i] for i in range(len(own)) if _to_and_fro(i, ranks) == n] for n in range(ranks)]
        return cuts

    def _by_weight(self, pieces: Pieces, mismatched: Pieces, limit: int, weigh: _Weigh) -> tuple[_Cuts, _Cuts]:
        cuts, others = _greedy(pieces, limit, weigh), _greedy(mismatched, _UNKEPT * limit, weigh)
        count = -(-max(len(cuts), len(others)) // self.ranks) * self.ranks
        cuts = self._dealt(self._more(cuts, pieces, limit, weigh, count), pieces)
        if mismatched:
            others = self._dealt(self._more(others, mismatched, _UNKEPT * limit, weigh, count), mismatched)
        return cuts, others or [[]] * count

    def _more(self, cuts: _Cuts, pieces: Pieces, limit: int, weigh: _Weigh, count: int) -> _Cuts:
        """Return so many micro-batches in place of fewer."""
        low, high = 1, limit  # the lowest that gives no more is in between
        while self.ranks > 1 and not self.groups_whole and len(cuts) < count and low < high:
            middle = (low + high) // 2
            found = _greedy(pieces, middle, weigh)
            low, high, cuts = (low, middle, found) if len(found) <= count else (middle + 1, high, cuts)
        while len(cuts) < count:
            several = [n for n, cut in enumerate(cuts) if len(cut) > 1]
            if not several:
                cuts.append([])
                continue
            largest = max(several, key=lambda n: self._size_of(cuts[n], pieces))
            half = len(cuts[largest]) // 2
            cuts[largest : largest + 1] = cuts[largest][:half], cuts[largest][half:]
        return cuts

    def _dealt(self, cuts: _Cuts, pieces: Pieces) -> _Cuts:
        """Return micro-batches turn by turn, in each the largest for the process with the fewest tokens so far."""
        if self.ranks == 1:
            return cuts
        sizes = [self._size_of(cut, pieces) for cut in cuts]
        order = sorted(range(len(cuts)), key=lambda n: -sizes[n])
        tokens, dealt = [0] * self.ranks, list(cuts)
        for turn in range(0, len(cuts), self.ranks):
            fewest_first = sorted(range(self.ranks), key=tokens.__getitem__)
            for rank, n in zip(fewest_first, order[turn : turn + self.ranks], strict=True):
                dealt[turn + rank] = cuts[n]
                tokens[rank] += sizes[n]
        return dealt

    def _size_of(self, cut: Sequence[int], pieces: Pieces) -> int:
        return self.tokens([len(sequence.ids) for i in cut for sequence in pieces[i]])

    def _weigh(self, piece: Sequence[TokenSequence], width: int) -> int:
        """Return the tokens that a piece takes in a pass over rows of a width."""
        return sum(len(sequence.ids) for sequence in piece) if self.padding == "free" else len(piece) * width


def longest_first(pieces: Pieces) -> list[int]:
    """Return the numbers of pieces by their longest sequences."""
    return sorted(range(len(pieces)), key=lambda i: -max(len(sequence.ids) for sequence in pieces[i]))


def _greedy(pieces: Pieces, limit: int, weigh: _Weigh) -> _Cuts:
    """Cut pieces, the longest first, whenever the next one would exceed the limit."""
    cuts: _Cuts = []
    weight = width = 0
    for i in longest_first(pieces):
        weight += weigh(pieces[i], width)
        if cuts and weight <= limit:
            cuts[-1].append(i)
        else:
            width = max(len(sequence.ids) for sequence in pieces[i])  # of all that follow none is longer
            weight = weigh(pieces[i], width)
            cuts.append([i])
    return cuts


def _to_and_fro(place: int, ranks: int) -> int:
    """Return who takes a place where 0, 1, 2 take one each, then 2, 1, 0, then 0, 1, 2, and so on."""
    lap, rank = divmod(place, ranks)
    return ranks - 1 - rank if lap % 2 else rank
