"""Held-out prompts: the scores of the policy's answers to them, before, during and after a run in rounds.

One answer a prompt, drawn with the settings of sampling and always with the same random numbers, so that two looks
differ by the policy alone.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from humanline.system.activity import HERE
from humanline.system.files import make_folder
from humanline.train.data.prompts import Context
from humanline.train.online.stages import RoundStages, read_rollouts, read_scores
from humanline.train.online.types import OwnTokens, Score

_KEY = 2**40  # in place of a round's number


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
    """

    def __init__(
        self, contexts: Sequence[Context], stages: RoundStages, folder: Path, version: Callable[[], str]
    ) -> None:
        self.contexts, self.stages, self.folder, self.version = list(contexts), stages, folder, version

    def start(self) -> dict[str, float]:
        """Return the metrics of the initial policy, which the policy must still be."""
        return self()

    @HERE.doing("evaluating")
    def __call__(self) -> dict[str, float]:
        """Return the metrics of the policy as it is now.

        Returns
        -------
        dict
            ``score`` (mean), its standard error ``score_se``, the mean of every reward as ``score/<name>``,
            ``completions`` (count), ``completion_tokens`` (mean), ``completion_tokens_std`` (standard deviation of
            single answers), ``truncated`` (share), ``completion_nll`` (`OwnTokens`), and
            ``without_score`` (count), which no mean of scores has in it.
        """
        version = self.version()
        folder = self.folder / f"held-out-{version[:16]}"
        self.stages.processes.on_main(lambda: make_folder(folder))
        self.stages.sample(folder, self.contexts, _KEY, version, samples=1)
        self.stages.score(folder, "held-out prompts")
        metrics: dict[str, float] = {}

        def look() -> None:
            rollouts = read_rollouts(folder / "samples.jsonl")
            metrics.update(_means([score for (score,) in read_scores(folder / "scores.jsonl", rollouts)]))
            answers = [rollout.completions[0] for rollout in rollouts]
            lengths = [len(answer.ids) for answer in answers]
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


def _means(scores: Sequence[Score]) -> dict[str, float]:
    right = [score for score in scores if score.value is not None]
    metrics = {"without_score": float(len(scores) - len(right))}
    if right:
        values = [score.value for score in right if score.value is not None]
        mean = math.fsum(values) / len(values)
        spread = math.fsum((value - mean) ** 2 for value in values)
        metrics = {"score": mean, "score_se": math.sqrt(spread / max(1, len(values) - 1) / len(values))} | metrics
        names = sorted({name for score in right for name in score.parts})
        for name in names if len(names) > 1 else ():
            parts = [score.parts[name] for score in right if name in score.parts]
            metrics[f"score/{name}"] = math.fsum(parts) / len(parts)
    return metrics
