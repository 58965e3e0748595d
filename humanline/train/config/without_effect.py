"""Settings of a configuration that do nothing beside its others."""

from __future__ import annotations

from humanline.train.config.run import TrainConfig


def without_effect(config: TrainConfig, processes: int) -> list[str]:
    """Return remarks on settings that do nothing in this combination."""
    rounds, remarks = config.rounds, list[str]()
    if config.training.sharding == "full" and processes == 1:
        remarks.append("training.sharding: one process alone has nobody to share with; several do (--processes N)")
    groups = config.objective.grouping
    if groups is not None and groups.std == "none" and groups.eps:
        remarks.append(
            "objective.advantage_eps does nothing under advantage_std: none, which divides scores by nothing"
        )
    if rounds is None:
        return remarks
    if config.keeps_groups and "score_margin" in rounds.model_fields_set:
        remarks.append("source.score_margin is for best_worst: here whole groups are kept, whatever their scores")
    if "batch_size" in config.evaluation.model_fields_set and config.evaluation.distance is None:
        remarks.append(
            "evaluation.batch_size is for fixed data: held-out prompts are answered as the engine of sampling says"
        )
    if config.data.turns == "all":
        remarks.append("data.turns is of rows that hold answers: in rounds they are prompts, and one turn is sampled")
    if config.training.temperature != 1:
        remarks.append(
            f"training.temperature ({config.training.temperature:g}): samplers tell log-probabilities at 1, so that "
            "they are not held against those of training, and source.sampling.mismatch_limit does nothing"
        )
    return remarks
