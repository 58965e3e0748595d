"""One training loop for nll, DPO, KTO and GRPO, with every reference schedule: read it top to bottom.

Departures from the paper and its released code:
- No reference model. The batches of coming steps are scored by the policy while it holds the weights that the schedule
  names; `reference.storage: model` keeps the paper's second model instead, with bitwise equal results.
- Losses are normalised over the whole step (all micro-batches, all ranks), KTO's z_0 too.
- Weights and optimizer states are float32 unless asked for otherwise. Released code trains in pure bf16.
- The KL term of GRPO is taken against the reference, as in the paper, or against the initial policy.
- Held-out metrics are taken against the initial policy, so that variants can be compared; in rounds they are scores.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from humanline.schedule import Never, Schedule
from humanline.system.activity import HERE
from humanline.system.disk import of_run
from humanline.system.progress import ReadingProgress, RunProgress
from humanline.system.stop import StopRequested, StopSignal
from humanline.train.config import TrainConfig
from humanline.train.config.settings import written
from humanline.train.data.run_data import read_data, renderer_of, stream_of
from humanline.train.data.stream import Batches, FixedBatches
from humanline.train.online.rounds import Rounds, make_rounds
from humanline.train.policy.build import build_policy, checked_outline, describe_adapter
from humanline.train.policy.load import load_tokenizer
from humanline.train.policy.logprobs import check_scorer, refuse_random
from humanline.train.policy.optimizer import make_optimizer, same_rounding, set_lr
from humanline.train.policy.save import save_model
from humanline.train.preflight.disk import bytes_written
from humanline.train.preflight.fits import refuse_unfit
from humanline.train.run.checkpoint import CheckpointError, Checkpoints, Position
from humanline.train.run.collapse import watched
from humanline.train.run.fingerprint import frozen_hash, model_hash, software, tokenizer_hash, trained_hash
from humanline.train.run.folder import RunFolder
from humanline.train.run.neighbours import joined
from humanline.train.run.processes import (
    NonFiniteError,
    Processes,
    asked_to_end,
    is_agreed,
    on_device,
    on_main,
    over_ranks,
    safe_points,
)
from humanline.train.run.result import RunResult
from humanline.train.run.state import ModuleState, OptimizerState, RandomState, Stateful, trained_parameters
from humanline.train.run.tracking import check_trackers, start_trackers
from humanline.train.step.finite import Suspect, refuse_metrics, refuse_non_finite, refuse_non_finite_model
from humanline.train.step.held_out import held_out_evaluator
from humanline.train.step.loss import ObjectiveStep
from humanline.train.step.reference import BaseModel, Reference, ScoreAhead, SecondModel, scoring_pass


def train(
    config: TrainConfig, *, resume: bool = False, stop: StopSignal | None = None, show_progress: bool = True
) -> RunResult:
    """Train a policy as the configuration says and write it, with its metrics, to the output folder.

    Parameters
    ----------
    config : TrainConfig
    resume : bool
        Go on with the run in the output folder from its newest whole checkpoint, to the same result bit for bit; a
        folder without any starts from the beginning, and one that is finished is left as it is.
    stop : StopSignal, optional
        Asked at every safe point whether the run shall save and end.
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
        If no checkpoint can be resumed, with the reason of each or a table of what changed, or a stopped run cannot
        be saved.
    NonFiniteError
        If a log-probability, loss, gradient, held-out metric or final weight is not finite. Examples are named where
        there are any to name, and no model is saved; earlier checkpoints stay.
    CollapseError
        If the run has broken and `training.collapse.action` is stop; all that is needed to go on is saved.
    LockLostError
        If another run took over the output folder while this one was asleep; nothing more is written.
    StopRequested
        If `stop` was asked; all that is needed to go on is saved, if anything was begun.
    NeighbourError
        If another process of the run is gone, has failed or stands still (`neighbours.joined`).
    """
    folder = RunFolder(config.output, resume=resume, say=RunProgress(0, show_progress).say)
    how = config.training
    try:
        with (
            joined(how.precision, how.stall_minutes, stop, waits=how.disk_full == "wait") as accelerator,
            of_run(how.disk_full, folder.checkpoints, stop, HERE.held_up),
        ):
            return _train(config, accelerator, folder, stop, show_progress)
    finally:
        folder.release()


def _train(
    config: TrainConfig, accelerator: Any, folder: RunFolder, stop: StopSignal | None, show_progress: bool
) -> RunResult:
    rank, ranks, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    reduce = over_ranks(accelerator)
    check, ending = safe_points(stop, reduce, folder.lost), asked_to_end(stop, folder.lost)
    torch.manual_seed(config.seed)
    settings = written(config)
    check_trackers(config.tracking)
    if folder.resume:
        on_main(accelerator, reduce, folder.take)
        folder.refuse_other_settings(settings)
        if on_main(accelerator, reduce, folder.is_finished):
            RunProgress(0, show_progress and accelerator.is_main_process).say(f"finished already: {folder.final}")
            return RunResult.read(folder)

    # Everything that can be refused is refused before anything new is written, and most of it before weights are read.
    tokenizer = load_tokenizer(config.model)
    outline = checked_outline(config, tokenizer, device)
    renderer = renderer_of(config, tokenizer)
    data = read_data(config, renderer, ReadingProgress(show_progress and accelerator.is_main_process))
    stream, steps = stream_of(config, data, renderer, rank=rank, ranks=ranks)
    refuse_unfit(config, outline, stream, steps, device)
    scorer, adapter = build_policy(config, device)
    check_scorer(scorer, data.probe)
    if not config.training.dropout and (config.adapter is None or not config.adapter.dropout):
        refuse_random(scorer, data.probe)
    optimizer = make_optimizer(trained_parameters(scorer).values(), config.optimizer, config.training.weights)
    warmup = round(config.optimizer.warmup_fraction * steps)
    wrapped, optimizer = accelerator.prepare(scorer, optimizer)
    wrapped.train()
    policy = accelerator.unwrap_model(wrapped)
    score = scoring_pass(policy)
    fingerprints = {
        "processes": ranks,
        "template": renderer.template_hash,
        "tokenizer": tokenizer_hash(tokenizer),
        "model settings": model_hash(policy.model),
        **data.hashes(config.objective.kind),
    }
    if adapter is not None:
        fingerprints["frozen weights"] = frozen_hash(policy)
    objective = ObjectiveStep(config.objective, config.transform, config.seed, device)
    progress = RunProgress(steps, show_progress and accelerator.is_main_process)

    def tell(row: dict[str, Any]) -> None:
        """Take note of a round, and of what its sampling and scoring came to."""
        watch.write(row)
        trackers.log({f"round/{name}": value for name, value in row.items()}, at.updates)

    def pause(scoring: bool = True) -> None:
        """Stop here if that was asked, or save if it is time to."""
        check()
        checkpoints.save_if_due(at, progress.say, scoring=scoring)

    batches: Batches = FixedBatches(stream, steps)
    evaluator: Any = None
    rounds: Rounds | None = None
    if config.rounds is not None:
        processes = Processes(accelerator, reduce, check, ending)
        rounds = make_rounds(config, data, renderer, folder.rounds, policy, adapter, processes, progress, tell)
        batches, evaluator = rounds, rounds.evaluator(data.held_out)
        folder.also.append(rounds.remake)
    elif data.sets.held_out:
        evaluator = held_out_evaluator(
            config, data.sets, renderer, score, reduce, device, rank=rank, ranks=ranks, check=check
        )

    def make_reference(schedule: Schedule) -> Reference:
        if config.reference.storage == "model":
            return SecondModel(batches.schedule(schedule), policy, scoring_pass)
        if adapter is not None and schedule.kind == "never":
            return BaseModel(score, adapter.off)
        return ScoreAhead(batches.schedule(schedule), score, batches, device, reduce, progress.scoring, pause)

    references: list[Reference] = []
    if config.objective.kind != "nll":
        references.append(make_reference(config.reference.schedule))
        if config.own_baseline:
            references.append(make_reference(Never()))
    shared: dict[str, Stateful] = {
        "policy": ModuleState(policy),
        "optimizer": OptimizerState(optimizer.optimizer, policy),
    }
    if rounds is not None:
        shared["rounds"] = rounds
    own: dict[str, Stateful] = {"random": RandomState(device)}
    for index, reference in enumerate(references):
        if reference.state():  # the base of an adapter keeps nothing
            (shared if reference.shared else own)[f"reference-{index}"] = reference
    if rounds is None and evaluator is not None:  # which in rounds keeps nothing
        own["held-out"] = evaluator
    on_main(accelerator, reduce, lambda: bytes_written(config, outline, stream, steps, evaluator, ranks).refuse())
    checkpoints = Checkpoints(
        folder.checkpoints,
        config.checkpoint,
        shared=shared,
        own=own,
        config=settings,
        fingerprints=fingerprints,
        software=software(),
        metrics=folder.metrics,
        refuse_lost=folder.refuse_lost,
        ready=folder.ready,
        accelerator=accelerator,
        reduce=reduce,
    )
    for line in [*map(str, data.sets.reports.values()), *describe_adapter(config, outline)]:
        progress.say(line)
    restored = checkpoints.restore(progress.say) if folder.resume else None
    if stop is not None:
        stop.hold()  # from here on there is something to save
    if not folder.resume:
        on_main(accelerator, reduce, folder.take)
    of_data = {"template": renderer.template_hash} | {name: asdict(r) for name, r in data.sets.reports.items()}
    start = None if restored else lambda: {"start weights": trained_hash(policy), **fingerprints}
    on_main(accelerator, reduce, lambda: folder.begin(settings, of_data, start, progress.say))
    at = restored or Position()
    progress.begin(at.updates)
    log = folder.open_log(accelerator.is_main_process)
    watch = watched(config, log, folder.metrics if accelerator.is_main_process else None, progress.say)
    trackers = start_trackers(config, folder.path, accelerator, progress.say, first_step=at.updates)
    with log, progress, trackers, contextlib.ExitStack() as open_:
        if rounds is not None:
            open_.callback(rounds.close)

        def evaluate(at: Position, last: bool) -> Position:
            """Measure the held-out data if it is time to, and return the position after it."""
            every, now = config.evaluation.every, at.updates
            if evaluator is None or at.evaluated or not (last or now == 0 or (every and now % every == 0)):
                return replace(at, evaluated=True)
            metrics = evaluator() if now else evaluator.start()
            refuse_metrics(metrics, now)
            watch.write({"updates": now, "held_out": metrics})
            trackers.log({f"held_out/{name}": value for name, value in metrics.items()}, now)
            progress.say(f"held out after {now} updates: " + "  ".join(f"{k} {v:.4g}" for k, v in metrics.items()))
            return replace(at, evaluated=True, initial=at.initial or metrics, final=metrics)

        def prepared(at: Position) -> tuple[bool, Position]:
            """Have the next batch made and the policy measured; where that fails, save what was trained so far."""
            try:
                more = batches.prepare(at.updates)
                return more, evaluate(at, last=not more)
            except Exception as error:
                if is_agreed(error, ranks) and at.updates and not isinstance(error, NonFiniteError | StopRequested):
                    with contextlib.suppress(CheckpointError):
                        progress.say(f"checkpoint: {checkpoints.save(at)}")
                raise

        while True:
            # 0. Between two updates, where a run can be stopped and go on later.
            try:
                more, at = prepared(at)
                watch.stop_if_broken(at, checkpoints, accelerator, reduce)
                if not more:
                    break
                pause(scoring=False)
                step, started = at.updates, time.perf_counter()
                for reference in references:
                    reference.begin_step(step)
            except StopRequested as request:
                kept = checkpoints.save(at, ending=True)
                raise StopRequested(
                    request.signal_name,
                    f"stopped by {request.signal_name} after {at.updates} of {steps} updates; all of it is in {kept}; "
                    "add --resume to the same command to go on",
                ) from None

            # 1. Scores of this step's reference, made by `begin_step` above or earlier.
            batch = on_device(batches.step(step), device)
            scored = [
                [reference.logprobs(step, index, micro) for index, micro in enumerate(batch.micro_batches)]
                for reference in references
            ]
            facts = objective.look(step, batch, scored[0] if scored else [], score, reduce)
            of_sampler = batches.mismatch(step, batch, lambda micro: score(micro.block))

            # 2. Losses and gradients, micro-batch by micro-batch; every one of them sees the same reference.
            sums: dict[str, Tensor] = {}
            suspects: list[Suspect] = []
            for index, micro in enumerate(batch.micro_batches):
                with contextlib.nullcontext() if micro is batch.micro_batches[-1] else accelerator.no_sync(wrapped):
                    logprobs = wrapped(*micro.block.inputs)
                    ref, anchor = ([s[index][0] for s in scored] + [None, None])[:2]
                    loss, metrics = objective.loss(facts, micro, logprobs, ref, anchor)
                    accelerator.backward(loss * ranks)  # ranks' gradients are averaged, and this is a share of a sum
                suspects.append(Suspect(micro, loss.detach(), logprobs.detach()))
                for name, value in {"loss": loss, **metrics}.items():
                    sums[name] = sums.get(name, torch.zeros((), device=device)) + value.detach()

            # 3. Nothing that is not finite gets past this line.
            grad_norm = accelerator.clip_grad_norm_(policy.parameters(), config.optimizer.max_grad_norm)
            refuse_non_finite(step, suspects, grad_norm, reduce)

            # 4. The update, between the two moments at which a schedule may sync.
            for reference in references:
                reference.before_update(step)
            lr = config.optimizer.lr * min(1.0, (step + 1) / (warmup + 1))
            set_lr(optimizer, lr)
            with same_rounding(config.seed, step, config.training.weights, device):
                optimizer.step()
            optimizer.zero_grad()
            for reference in references:
                reference.after_update(step)

            # 5. What happened.
            metrics_now = dict(zip(sums, reduce(torch.stack(list(sums.values())), "sum").tolist(), strict=True))
            seconds = time.perf_counter() - started
            metrics_now |= of_sampler | {
                "grad_norm": float(grad_norm),
                "lr": lr,
                "seconds": seconds,
                "tokens_per_second": batch.own_tokens * ranks / seconds,
            }
            if "log_ratio_rms" in metrics_now:
                metrics_now["log_ratio_rms"] **= 0.5
            watch.write({"step": step, **metrics_now})
            trackers.log(metrics_now, step)
            progress.step(step, metrics_now)
            at = replace(at, updates=step + 1, evaluated=False)

    refuse_non_finite_model(policy)
    checkpoints.save_or_keep(at, lambda: save_model(folder.final, adapter or policy.model, tokenizer))
    progress.say(f"model: {folder.final}\nmetrics: {folder.metrics}")
    return RunResult(folder.final, folder.metrics, at.initial, at.final)
