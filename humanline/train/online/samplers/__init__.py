"""Samplers, one file each: transformers in this process, its continuous batching, or a server."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.train.config import TrainConfig
from humanline.train.config.rounds import SamplingConfig
from humanline.train.data.render import Renderer
from humanline.train.online.stages import RoundStages, SamplingStages
from humanline.train.online.trainable import Trainable, vocabulary_of
from humanline.train.online.types import Sampler, Scorer
from humanline.train.policy.load import TYPES
from humanline.train.policy.precision import narrowed
from humanline.train.policy.told_apart import refuse_changed_rewards
from humanline.train.run.processes import Processes
from humanline.train.run.shares import is_shard

if TYPE_CHECKING:
    from humanline.train.online.samplers.served import ServedWeights


def make_sampler(
    config: TrainConfig, model: Any, renderer: Renderer, processes: Processes, say: Callable[[str], None]
) -> Sampler:
    """Return the sampler that the configuration names.

    Parameters
    ----------
    config : TrainConfig
    model
        The policy, a causal language model of transformers; where a server samples, only its size is looked at.
    renderer : Renderer
    processes : Processes
    say : callable
        Shows what a person should know.

    Raises
    ------
    ValueError
        If the engine cannot be used here.
    """
    assert config.rounds is not None
    if config.rounds.sampling.engine.kind == "server":
        from humanline.train.online.samplers.server import ServerSampler

        vocabulary, stopping = vocabulary_of(model), processes.stopping
        return ServerSampler(config.rounds.sampling, renderer, vocabulary=vocabulary, say=say, stopping=stopping)
    return _own_sampler(config, config.rounds.sampling, model, renderer, processes)


def _own_sampler(
    config: TrainConfig, sampling: SamplingConfig, model: Any, renderer: Renderer, processes: Processes
) -> Sampler:
    """Return the sampler in this process that settings of sampling name."""
    computing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    if config.training.precision != "float32":
        computing = functools.partial(narrowed, model, TYPES[config.training.precision])
    if sampling.engine.kind == "continuous":
        from humanline.train.online.samplers.continuous import ContinuousSampler

        return ContinuousSampler(model, renderer, sampling, computing=computing, stopping=processes.stopping)
    from humanline.train.online.samplers.generate import GenerateSampler

    return GenerateSampler(model, renderer, sampling, computing=computing, stopping=processes.stopping)


def make_served(
    config: TrainConfig,
    sampler: Any,
    policy: Any,
    adapter: Any,
    folder: Path,
    processes: Processes,
    say: Callable[[str], None],
) -> ServedWeights | None:
    """Return the way to give a server the policy's weights; None for other engines, which have them.

    Parameters
    ----------
    config : TrainConfig
    sampler : ServerSampler
    policy : LogprobModel
        Whose model is the policy.
    adapter : Adapter or None
        What is served in place of the whole model.
    folder : Path
        In which the weights lie for the server.
    processes : Processes
    say : callable
    """
    assert config.rounds is not None
    engine = config.rounds.sampling.engine
    if engine.kind != "server":
        return None
    from humanline.train.online.samplers.passes import AskedPasses
    from humanline.train.online.samplers.prover import computes_in_float32, said_of
    from humanline.train.online.samplers.served import ServedWeights

    shared = any(map(is_shard, policy.parameters()))
    exact = computes_in_float32(policy.model) and not (shared and config.training.precision == "bf16")
    passes = AskedPasses(processes, functools.partial(said_of, policy, exact=exact), shared=shared)
    return ServedWeights(sampler, adapter or policy.model, passes, folder, engine.proof, processes, say)


def make_stages(
    config: TrainConfig,
    policy: Any,
    adapter: Any,
    renderer: Renderer,
    folder: Path,
    processes: Processes,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> RoundStages:
    """Return the stages that sample and score the rounds of a run.

    Parameters
    ----------
    config : TrainConfig
    policy : LogprobModel
        Whose model is the policy.
    adapter : Adapter or None
    renderer : Renderer
    folder : Path
        The folder of all rounds.
    processes : Processes
    say, progress : callable

    Raises
    ------
    ValueError
        As samplers and scorers do.
    """
    from humanline.train.online.rewards.scorer import build_scorer

    assert config.rounds is not None
    rounds, scoring, cache = config.rounds, config.rounds.scoring, folder / f"cache-rank-{processes.rank}.jsonl"

    def make_scorer() -> Scorer:
        others = [path for path in sorted(folder.glob("cache-rank-*.jsonl")) if path != cache]
        refuse_changed_rewards(scoring)  # as hours may pass between the beginning and the first answers
        called = [reward for reward in scoring.rewards if reward.kind == "function"]
        sources = {reward.call: reward.source for reward in called if reward.source is not None}
        return build_scorer(scoring, cache=cache, others=others, device=processes.device, sources=sources)

    sampler: Any = make_sampler(config, policy.model, renderer, processes, say)

    return RoundStages(
        rounds.samples,
        config.seed,
        sampler,
        make_scorer,
        processes,
        scoring=scoring,
        trainable=Trainable(renderer, rounds.sampling.max_tokens, vocabulary_of(policy.model)),
        served=make_served(config, sampler, policy, adapter, folder, processes, say),
        progress=progress,
    )


def make_held_out_stages(
    config: TrainConfig, policy: Any, renderer: Renderer, stages: RoundStages, processes: Processes
) -> RoundStages:
    """Return the stages that sample and score answers to held-out prompts: those of rounds, or under other settings.

    Parameters
    ----------
    config : TrainConfig
        Under evaluation.sampling a server is asked with these settings, for the weights that the stages of rounds give
        it; an engine in this process has the policy's.
    policy : LogprobModel
        Whose model is the policy.
    renderer : Renderer
    stages : RoundStages
        Of rounds, whose scorer it has.
    processes : Processes

    Raises
    ------
    ValueError
        As samplers do.
    """
    sampling = config.evaluation.sampling
    if sampling is None:
        return stages
    return RoundStages(
        config.evaluation.samples,
        config.seed,
        _sampler_under(config, sampling, policy.model, renderer, stages, processes),
        lambda: stages.scorer,
        processes,
        scoring=stages.scoring,
        trainable=Trainable(renderer, sampling.max_tokens, vocabulary_of(policy.model)),
        served=stages.served if sampling.engine.kind == "server" else None,
        progress=stages.progress,
    )


def make_distance_stages(
    config: TrainConfig,
    policy: Any,
    renderer: Renderer,
    stages: RoundStages | None,
    processes: Processes,
    progress: Callable[[str, int, int], None] | None = None,
) -> SamplingStages:
    """Return the stages that draw the answers by which the distance from the start is measured.

    Parameters
    ----------
    config : TrainConfig
        With a section evaluation.distance.
    policy, renderer, processes
        As in `make_held_out_stages`.
    stages : RoundStages or None
        Of rounds, where the run has any.
    progress : callable, optional

    Raises
    ------
    ValueError
        As samplers do.
    """
    assert config.evaluation.distance is not None
    sampling = config.travelling
    return SamplingStages(
        config.evaluation.distance.samples,
        config.seed,
        _sampler_under(config, sampling, policy.model, renderer, stages, processes),
        processes,
        trainable=Trainable(renderer, sampling.max_tokens, vocabulary_of(policy.model)),
        served=stages.served if stages is not None and sampling.engine.kind == "server" else None,
        progress=progress,
    )


def _sampler_under(
    config: TrainConfig,
    sampling: SamplingConfig,
    model: Any,
    renderer: Renderer,
    stages: RoundStages | None,
    processes: Processes,
) -> Sampler:
    """Return a sampler under other settings than those of rounds; a server is the one that these have."""
    if sampling.engine.kind != "server":
        return _own_sampler(config, sampling, model, renderer, processes)
    from humanline.train.online.samplers.server import OtherSettings, ServerSampler

    assert stages is not None and isinstance(stages.sampler, ServerSampler)  # of the same engine (`refuse_engine`)
    return OtherSettings(stages.sampler, sampling)
