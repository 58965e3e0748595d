"""What one run came to: a row of the results."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from humanline.reproduce.cells import Cell

STATUSES = ("done", "not finite")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a cell.

    An outcome is what the same seeds give again. A run that was killed, or found no disk, no memory or no judge, has
    none: that is an error, which ends the suite, and the run is made again.

    Parameters
    ----------
    testbed : str
    cell : Cell
    start, draw : int
        Seeds of the start model, and of the pairs drawn and their order; draws are nested in start models.
    status : "done" or "not finite"
        done: trained to its end and measured; also a run whose rounds left no pair to train on, which has no updates
        from there on. not finite: a loss, a gradient, or the probability of an answer was no longer finite, and what
        the run has not is nan; it has collapsed.
    start_score : float
        Mean true score of the start model's answers at temperature 1.
    score, judged, greedy, matched : float
        Mean true score of the policy's answers to the same held-out prompts: at temperature 1; by the judge, of the
        same answers; at temperature 0; at the temperature at which its tokens have the start's entropy.
    temperature : float
        That temperature.
    kl_to_start, kl_to_start_se, kl_from_start, kl_from_start_se : float
        KL(policy || start) and KL(start || policy), nats an answer, on other held-out prompts, with standard errors.
    truncated : float
        Share of the policy's answers that ran into their limit.
    length : float
        Mean tokens of an answer.
    entropy : float
        Mean entropy of the policy's next token along its answers, nats.
    clipped : float
        Share of tokens of all steps whose log-ratio the humanline clip changed; nan where there is none.
    saturation : float
        Mean sigmoid of the margin in the last tenth of steps; nan where the objective has none.
    updates : int
    scorer_calls : int
        Answers that the judge was asked about: to make the pairs, of which rounds of the grid have as many; where
        `Cell.round_steps` is given, those of the run's own rounds, counted.
    seconds : float
        Of one core, training and measuring; for planning, no result.
    task : str
        Digest of the testbed and number of the protocol (`made_by`): outcomes that differ in it are not comparable.
    """

    testbed: str
    cell: Cell
    start: int
    draw: int
    status: str
    start_score: float
    score: float
    judged: float
    greedy: float
    matched: float
    temperature: float
    kl_to_start: float
    kl_to_start_se: float
    kl_from_start: float
    kl_from_start_se: float
    truncated: float
    length: float
    entropy: float
    clipped: float
    saturation: float
    updates: int
    scorer_calls: int
    seconds: float
    task: str = ""


def as_text(outcome: Outcome) -> str:
    """Return an outcome as JSON."""
    return json.dumps(asdict(outcome))


def from_text(text: str) -> Outcome:
    """Return the outcome that `as_text` wrote."""
    fields = json.loads(text)
    return Outcome(**{**fields, "cell": Cell(**fields["cell"])})
