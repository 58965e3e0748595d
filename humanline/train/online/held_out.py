"""Held-out prompts: the scores of the policy's answers to them, before, during and after a run in rounds.

Answers are drawn with the settings of the section evaluation, and always with the same random numbers, so that two
looks differ by the policy alone.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from humanline.stats import mean_estimate, pass_at_k, usual_ks
from humanline.system.activity import HERE
from humanline.system.files import make_folder
from humanline.train.config import TrainConfig
from humanline.train.data.prompts import Context
from humanline.train.online.stages import RoundStages, read_rollouts, read_scores
from humanline.train.online.types import OwnTokens, Score

_KEY = 2**40  # in place of a round's number


def refuse_engine(config: TrainConfig) -> None:
    """Raise ValueError if held-out prompts of a run in rounds cannot be answered by the engine that they name."""
    if config.rounds is None or config.data.eval is None:
        return
    engine, rounds = config.asking.engine, config.rounds.sampling.engine
    if engine.kind == "server" and engine != rounds:
        raise ValueError(
            "evaluation.sampling.engine: a run gives new weights to the server of source.sampling alone, so that "
            "another one, or the same with other settings, would answer held-out prompts with other weights; leave it "
            "out, which takes the engine of source.sampling, or set {kind: generate} (`humanline evaluate` takes any)"
        )
    if engine.kind != "server" and config.training.sharding == "full":
        raise ValueError(
            f"training.sharding: full leaves no process with a whole model, which evaluation.sampling.engine.kind: "
            f"{engine.kind} samples with; leave evaluation.sampling.engine out, which takes the server of "
            "source.sampling"
        )


class RolloutEvaluator:
    """Sample answers to held-out prompts and score them.

    Parameters
    ----------
    contexts : non-empty sequence of Context
    stages : RoundStages
    folder : Path
        The folder of all rounds; a folder in it is made, and removed again.
    version : callable
        Returns the version of the policy's weights as they are now.
    samples : int
        Answers a prompt.
    """

    def __init__(
        self,
        contexts: Sequence[Context],
        stages: RoundStages,
        folder: Path,
        version: Callable[[], str],
        samples: int = 1,
    ) -> None:
        self.contexts, self.stages, self.folder, self.version = list(contexts), stages, folder, version
        self.samples = samples

    def start(self) -> dict[str, float]:
        """Return the metrics of the initial policy, which the policy must still be."""
        return self()

    @HERE.doing("evaluating")
    def __call__(self) -> dict[str, float]:
        """Return the metrics of the policy as it is now.

        Returns
        -------
        dict
            ``score`` (mean over prompts of the mean over a prompt's answers), its standard error ``score_se``, the
            mean of every reward as ``score/<name>``, ``completions`` (count), ``completion_tokens`` (mean),
            ``completion_tokens_std`` (standard deviation of single answers), ``truncated`` (share),
            ``completion_nll`` (`OwnTokens`), and ``without_score`` (count), which no mean of scores has in it. With
            several answers a prompt ``contexts`` (count of prompts) too and, where all scores are 0 or 1, ``pass@k``
            with its standard error ``pass@k_se`` for k = 2, 4, ... (`usual_ks`), over the prompts that have k scored
            answers; ``pass@1`` is the score.

        Notes
        -----
        Answers to one prompt are not independent of each other: with several, standard errors are over prompts
        (`humanline.stats.mean_estimate`). Where a single prompt has a score, which tells nothing of its error, there is
        no ``score_se``.
        """
        version = self.version()
        folder = self.folder / f"held-out-{version[:16]}"
        self.stages.processes.on_main(lambda: make_folder(folder))
        self.stages.sample(folder, self.contexts, _KEY, version, samples=self.samples)
        self.stages.score(folder, "held-out prompts")
        metrics: dict[str, float] = {}

        def look() -> None:
            rollouts = read_rollouts(folder / "samples.jsonl")
            metrics.update(_means(read_scores(folder / "scores.jsonl", rollouts)))
            answers = [answer for rollout in rollouts for answer in rollout.completions]
            lengths = [len(answer.ids) for answer in answers]
            if self.samples > 1:
                metrics["contexts"] = float(len(rollouts))
            metrics["completions"] = float(len(answers))
            metrics["completion_tokens"] = sum(lengths) / len(answers)
            metrics["completion_tokens_std"] = statistics.pstdev(lengths)
            metrics["truncated"] = sum(answer.truncated for answer in answers) / len(answers)
            own = OwnTokens()
            for answer in answers:
                own.add(answer)
            metrics.update(own.facts())

        self.stages.processes.each(look)  # and only when all have looked
        self.stages.processes.on_main(lambda: shutil.rmtree(folder, ignore_errors=True))
        return metrics


def _means(scores: Sequence[Sequence[Score]]) -> dict[str, float]:
    """Return the means of scores, given prompt by prompt, and their standard errors over prompts."""
    right = [[score for score in own if score.value is not None] for own in scores]
    metrics = {"without_score": float(sum(map(len, scores)) - sum(map(len, right)))}
    if any(right):
        values = [[score.value for score in own if score.value is not None] for own in right if own]
        means = _each(values)
        mean = math.fsum(means) / len(means)
        if max(map(len, scores)) == 1:
            spread = math.fsum((value - mean) ** 2 for value in means)
            found = {"score": mean}
            if len(means) > 1:
                found["score_se"] = math.sqrt(spread / (len(means) - 1) / len(means))
        else:
            found = {"score": mean} | _error("score", means) | _passed(values)
        metrics = found | metrics
        names = sorted({name for own in right for score in own for name in score.parts})
        for name in names if len(names) > 1 else ():
            parts = _each([[score.parts[name] for score in own if name in score.parts] for own in right])
            metrics[f"score/{name}"] = math.fsum(parts) / len(parts)
    return metrics


def _each(values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each prompt that has values."""
    return [math.fsum(own) / len(own) for own in values if own]


def _passed(values: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return pass@k for k above 1, where all values are 0 or 1."""
    found: dict[str, float] = {}
    if all(value in (0.0, 1.0) for own in values for value in own):
        for k in usual_ks(max(map(len, values)))[1:]:
            shares = [pass_at_k(int(sum(own)), len(own), k) for own in values if len(own) >= k]
            found |= {f"pass@{k}": math.fsum(shares) / len(shares)} | _error(f"pass@{k}", shares)
    return found


def _error(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the standard error of a mean over prompts; nothing where there is one, which tells none."""
    error = mean_estimate(values).error
    return {f"{name}_se": error} if math.isfinite(error) else {}
