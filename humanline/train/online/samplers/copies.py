"""Completions that are copies of one another, though each was asked for with a seed of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.prompts import Context
from humanline.train.online.types import Completion, SamplerError

GREEDY_AFTER = 4  # contexts whose completions are all alike before that is said
CHANCE = math.log(1e-12)  # of equal completions, below which they are copies


class Copies:
    """Look for copies among what a server draws.

    Parameters
    ----------
    config : SamplingConfig
    say : callable
        Shows, once each, what may be wrong though work goes on.

    Attributes
    ----------
    one_by_one : bool
        Whether this server draws the same n times, so that completions are to be asked for one by one.
    """

    def __init__(self, config: SamplingConfig, say: Callable[[str], None]) -> None:
        self.config, self.say = config, say
        self.one_by_one = False
        self._alike: int | None = 0  # contexts whose completions were all the same; None once some were not

    def under(self, config: SamplingConfig) -> Copies:
        """Return a copy of this for other settings of sampling."""
        other = copy.copy(self)
        other.config = config
        return other

    def drawn_apart(self, completions: list[Completion]) -> list[Completion]:
        """Return the completions of one request; only the first of them where the server drew it n times."""
        if not self._copies(completions):
            return completions
        if not self.one_by_one:
            self.one_by_one = True
            self.say(
                "the server draws the same completion n times (SGLang does so in its deterministic mode): from now on "
                "they are asked for one by one, as with source.sampling.engine.samples_per_request: 1"
            )
        return completions[:1]

    def refuse(self, context: Context, completions: Sequence[Completion]) -> None:
        """Raise SamplerError if completions that were asked for with seeds of their own are one and the same."""
        if self._copies(completions):
            raise SamplerError(
                f"context {context.id!r}: its {len(completions)} completions are the same though chance would not make "
                "them so: the server draws the same whatever the seed. SGLang does so in its deterministic mode where "
                "it does not read the seed: start it without --enable-deterministic-inference, or try the other "
                "source.sampling.engine.endpoint"
            )

    def _copies(self, completions: Sequence[Completion]) -> bool:
        """Return whether completions are equal that independent draws would make so less than once in 10^12 times."""
        if len(completions) < 2 or len({one.ids for one in completions}) > 1:
            return False
        logprobs = completions[0].logprobs
        if logprobs is None or self.config.temperature != 1 or self.config.top_p != 1:
            return False  # how probable they are is not known
        return (len(completions) - 1) * sum(logprobs) < CHANCE

    def look_for_greed(self, texts: Sequence[str]) -> None:
        """Warn once if the texts of context after context are all alike, though they are drawn at random."""
        if self._alike is None or self.config.temperature == 0 or len(texts) < 2:
            return
        self._alike = self._alike + 1 if len(set(texts)) == 1 else None
        if self._alike == GREEDY_AFTER:
            self.say(
                f"warning: the completions of each of the first {GREEDY_AFTER} prompts are all the same, though "
                f"source.sampling.temperature is {self.config.temperature:g}: the server seems to take the most "
                "probable token. transformers serve does so unless the model's generation_config.json has "
                '"do_sample": true; SGLang draws alike in its deterministic mode, for the n of a request '
                "(source.sampling.engine.samples_per_request) or where it does not read seeds"
            )
