"""What draws completions: transformers in this process, its continuous batching, or a server (one file each)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from humanline.train.config import TrainConfig
from humanline.train.device import Processes
from humanline.train.durable import remove_folder
from humanline.train.export import save_model
from humanline.train.rollout import Sampler
from humanline.train.stages import RoundStages
from humanline.train.tokens import Renderer
from humanline.train.trainable import Trainable, vocabulary_of


def make_sampler(
    config: TrainConfig, model: Any, renderer: Renderer, processes: Processes, say: Callable[[str], None]
) -> Sampler:
    """Return what samples as the configuration says.

    Parameters
    ----------
    config : TrainConfig
    model
        The policy, a causal language model of transformers; where a server samples, only its size is looked at.
    renderer : Renderer
    processes : Processes
    say : callable
        Told what a person should know.

    Raises
    ------
    ValueError
        If the engine cannot be used here.
    """
    engine = config.sampling.engine
    if engine.kind == "server":
        from humanline.train.rollouts.server import ServerSampler

        return ServerSampler(
            config.sampling, renderer, vocabulary=vocabulary_of(model), say=say, stopping=processes.stopping
        )
    autocast = processes.accelerator.autocast
    if engine.kind == "continuous":
        from humanline.train.rollouts.continuous import ContinuousSampler

        return ContinuousSampler(model, renderer, config.sampling, autocast=autocast, stopping=processes.stopping)
    from humanline.train.rollouts.generate import GenerateSampler

    return GenerateSampler(model, renderer, config.sampling, autocast=autocast, stopping=processes.stopping)


def make_server_publisher(
    config: TrainConfig, sampler: Any, weights: Any, renderer: Renderer, folder: Path
) -> Callable[[str], None] | None:
    """Return what makes weights known to a server under a name; None for other engines, which have them.

    Parameters
    ----------
    config : TrainConfig
    sampler : ServerSampler
    weights
        The model, or the adapter, as it is when the name is told.
    renderer : Renderer
    folder : Path
        In which `served/` is made; all but the newest weights in it are removed.
    """
    engine = config.sampling.engine
    if engine.kind != "server":
        return None
    sleeps = engine.sleeps
    served: list[str] = []

    def publish(name: str) -> None:
        if served == [name] and not sampler.asleep:
            return
        if sleeps:
            torch.cuda.empty_cache()  # what training does not use just now goes back to the GPU that it shares
        target = folder / "served" / name
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            save_model(target, weights, renderer.tokenizer)
        sampler.publish(target, name)
        served[:] = [name]
        for older in target.parent.iterdir():  # no longer asked for
            if older != target and older.is_dir() and not older.name.startswith("."):
                remove_folder(older)

    return publish


def make_server_rest(config: TrainConfig, sampler: Any, folder: Path) -> Callable[[], None] | None:
    """Return what puts a server to sleep until weights are made known to it again; None where it stays awake.

    Parameters
    ----------
    config : TrainConfig
    sampler : ServerSampler
    folder : Path
        As `make_server_publisher` takes it.
    """
    engine = config.sampling.engine
    if engine.kind != "server" or not engine.sleeps:
        return None
    return lambda: sampler.rest(folder / "served")


def make_stages(
    config: TrainConfig,
    scorer: Any,
    adapter: Any,
    renderer: Renderer,
    folder: Path,
    processes: Processes,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> RoundStages:
    """Return what samples and scores the rounds of a run.

    Parameters
    ----------
    config : TrainConfig
    scorer : TokenScorer
        Whose model is the policy.
    adapter : Adapter or None
    renderer : Renderer
    folder : Path
        Of all rounds.
    processes : Processes
    say, progress : callable

    Raises
    ------
    ValueError
        As samplers and scorers do.
    """
    from humanline.train.rewards import build_scorer

    assert config.rounds is not None and config.scoring is not None
    scoring, cache = config.scoring, folder / f"cache-rank-{processes.rank}.jsonl"
    sampler: Any = make_sampler(config, scorer.model, renderer, processes, say)

    return RoundStages(
        config.rounds.samples,
        config.seed,
        sampler,
        lambda: build_scorer(scoring, cache=cache, device=processes.device),
        processes,
        strict=scoring.failed == "error",
        trainable=Trainable(renderer, config.sampling.max_tokens, vocabulary_of(scorer.model)),
        publish=make_server_publisher(config, sampler, adapter or scorer.model, renderer, folder),
        rest=make_server_rest(config, sampler, folder),
        progress=progress,
    )
