"""One training loop for every objective and every reference schedule: read it top to bottom.

Departures from the paper and its released code:
- No reference model. The policy computes the reference's log-probabilities of coming steps while it holds the weights
  that the schedule names; `reference.storage: model` keeps the paper's second model, with bitwise equal results.
- Losses are normalised over the whole step (all micro-batches, all ranks), KTO's z_0 too.
- Weights and optimizer states are float32 unless asked for otherwise. Released code trains in pure bf16.
- The KL term of GRPO is taken against the reference, as in the paper, or against the initial policy.
- Held-out metrics are taken against the initial policy, so that variants can be compared; in rounds they are scores.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import replace

import torch
from torch import Tensor

from humanline.system.stop import StopRequested, StopSignal
from humanline.train.config import TrainConfig
from humanline.train.policy.optimizer import lr_of_step, same_rounding, set_lr
from humanline.train.policy.save import save_together
from humanline.train.run.checkpoint import CheckpointError, Position
from humanline.train.run.processes import NonFiniteError, is_agreed, on_device
from humanline.train.run.result import RunResult
from humanline.train.setup import Run, set_up
from humanline.train.step.finite import Suspect, refuse_metrics, refuse_non_finite, refuse_non_finite_model
from humanline.train.step.reference import Reference


def train(
    config: TrainConfig, *, resume: bool = False, stop: StopSignal | None = None, show_progress: bool = True
) -> RunResult:
    """Train a policy as the configuration says and write it, with its metrics, to the output folder.

    Parameters
    ----------
    config : TrainConfig
    resume : bool
        Go on with the run in the output folder from its newest whole checkpoint, to the same result: by as many
        processes bit for bit. A folder without any starts from the beginning; one that is finished is left as it is.
    stop : StopSignal, optional
        Polled at every safe point: whether the run is to save and end.
    show_progress : bool
        Print progress to standard error.

    Returns
    -------
    RunResult

    Raises
    ------
    OutputError, ModelError, DataError, ValueError
        If the output folder is in use, or model, data and configuration do not fit together; all before the first
        step, and for a new run before anything is written.
    CheckpointError
        If none can be resumed, with the reason of each or a table of what changed, or a stopped run cannot be saved.
    NonFiniteError
        If a log-probability, loss, gradient, held-out metric or final weight is not finite. Examples are named where
        there are any to name, and no model is saved; earlier checkpoints stay.
    CollapseError
        If the run has broken and `training.collapse.action` is stop; all that is needed to go on is saved.
    LockLostError
        If another run took over the output folder while this one was asleep; nothing more is written.
    StopRequested
        If `stop` was set; all that is needed to go on is saved, if anything was begun.
    NeighbourError, MemoryRanOutError
        If another process is gone, has failed or stands still (`neighbours.joined`); if memory has run out.
    """
    with set_up(config, resume=resume, stop=stop, show_progress=show_progress) as run:
        return run if isinstance(run, RunResult) else take_steps(run)


def take_steps(run: Run) -> RunResult:
    """Take the steps of a run from where it starts to its end, save the model, and return where it is."""
    at = run.start
    with run.log, run.progress, run.trackers, run.checkpoints, contextlib.closing(run.batches):
        while True:
            # 0. Between two updates, where a run can be stopped and go on later.
            try:
                more, at = _prepared(run, at)
                run.watch.stop_if_broken(at, run.checkpoints, run.processes)
                if not more:
                    break
                _pause(run, at)
                started = time.perf_counter()
                for reference in run.references:
                    reference.begin_step(at.updates, functools.partial(_pause, run, at, scoring=reference))
            except StopRequested as request:
                kept = run.checkpoints.save(at, ending=True)
                raise StopRequested(
                    request.signal_name,
                    f"stopped by {request.signal_name} after {at.updates} of {run.steps} updates; all of it is in "
                    f"{kept}; add --resume to the same command to go on",
                ) from None
            _step(run, at.updates, started)
            at = replace(at, updates=at.updates + 1, evaluated=False)

    refuse_non_finite_model(run.trained.policy, run.processes.reduce)
    whole, folder, card = run.trained.adapter or run.trained.policy.model, run.folder, run.folder.card
    run.checkpoints.save_or_keep(at, lambda: save_together(folder.final, whole, run.tokenizer, run.processes, card))
    run.progress.say(f"model: {folder.final}\nmetrics: {folder.metrics}")
    return RunResult(folder.final, folder.metrics, at.initial, at.final)


def _step(run: Run, step: int, started: float) -> None:
    """Take one step; its references have begun it."""
    config, accelerator, reduce = run.config, run.processes.accelerator, run.processes.reduce
    ranks, device, trained = run.processes.ranks, run.processes.device, run.trained

    # 1. Log-probabilities of this step's reference, made by `begin_step` just now or earlier.
    batch = on_device(run.batches.step(step), device)
    ref_logprobs = [
        [reference.logprobs(step, index, micro) for index, micro in enumerate(batch.micro_batches)]
        for reference in run.references
    ]
    facts = run.objective.look(step, batch, ref_logprobs[0] if ref_logprobs else [], trained.logprobs_of, reduce)
    of_sampler = run.batches.mismatch(step, batch, lambda micro: trained.logprobs_of(micro.block))

    # 2. Losses and gradients, micro-batch by micro-batch; every one of them sees the same reference.
    sums: dict[str, Tensor] = {}
    suspects: list[Suspect] = []
    for index, micro in enumerate(batch.micro_batches):
        with trained.spread.accumulating(last=micro is batch.micro_batches[-1]):
            logprobs = trained.spread.wrapped(*micro.block.inputs)
            ref, anchor = ([one[index][0] for one in ref_logprobs] + [None, None])[:2]
            loss, metrics = run.objective.loss(facts, micro, logprobs, ref, anchor)
            accelerator.backward(loss * ranks)  # ranks' gradients are averaged, and this is a share of a sum
        suspects.append(Suspect(micro, loss.detach(), logprobs.detach()))
        for name, value in {"loss": loss, **metrics}.items():
            sums[name] = sums.get(name, torch.zeros((), device=device)) + value.detach()

    # 3. Nothing that is not finite gets past this line.
    grad_norm = trained.spread.clip(config.optimizer.max_grad_norm)
    refuse_non_finite(step, suspects, grad_norm, run.processes)

    # 4. The update, between the two moments at which a schedule may sync.
    for reference in run.references:
        reference.before_update(step)
    lr = lr_of_step(config.optimizer, step, run.steps)
    set_lr(trained.optimizer, lr)
    with same_rounding(config.seed, step, config.training.weights, device):
        trained.optimizer.step()
    trained.optimizer.zero_grad()
    for reference in run.references:
        reference.after_update(step)

    # 5. What happened: read together, so that the device is waited for once.
    summed = reduce(torch.stack(list(sums.values())), "sum")
    read = torch.cat([summed, grad_norm.reshape(1), *run.data_level.unread(suspects)]).tolist()
    seconds = time.perf_counter() - started
    metrics_now = dict(zip([*sums, "grad_norm"], read, strict=False)) | of_sampler | {"lr": lr, "seconds": seconds}
    metrics_now["tokens_per_second"] = batch.total_length / seconds
    if "log_ratio_rms" in metrics_now:
        metrics_now["log_ratio_rms"] **= 0.5
    run.watch.write({"step": step, **metrics_now})
    run.trackers.log(metrics_now, step)
    run.data_level.take(read[len(sums) + 1 :])
    run.progress.step(step, metrics_now)


def _prepared(run: Run, at: Position) -> tuple[bool, Position]:
    """Prepare the next batch, and measure the policy if it is time; where that fails, save what was trained so far."""
    try:
        try:
            more = run.batches.prepare(at.updates)
        finally:
            while run.told:
                row = run.told.pop(0)
                run.watch.write(row)
                run.trackers.log({f"round/{name}": value for name, value in row.items()}, at.updates)
        return more, _evaluated(run, at, last=not more)
    except Exception as error:
        known = isinstance(error, NonFiniteError | StopRequested)
        if is_agreed(error, run.processes.ranks) and at.updates and not known:
            with contextlib.suppress(CheckpointError):
                run.progress.say(f"checkpoint: {run.checkpoints.save(at)}")
        raise


def _evaluated(run: Run, at: Position, last: bool) -> Position:
    """Measure the held-out data if it is time to, and return the position after it."""
    every, now = run.config.evaluation.every, at.updates
    if at.evaluated or not run.looks or not (last or now == 0 or (every and now % every == 0)):
        return replace(at, evaluated=True)
    metrics = run.look(now, last)
    refuse_metrics(metrics, now)
    run.watch.write({"updates": now, "held_out": metrics})
    run.trackers.log({f"held_out/{name}": value for name, value in metrics.items()}, now)
    run.progress.say(run.travel.words(now, metrics))
    return replace(at, evaluated=True, initial=at.initial or metrics, final=metrics)


def _pause(run: Run, at: Position, scoring: Reference | None = None) -> None:
    """Stop here if that was asked, or save if it is time to; `scoring` is what is scoring ahead."""
    run.processes.check()
    run.checkpoints.save_if_due(at, run.progress.say, scoring=None if scoring is None else scoring.settle)
