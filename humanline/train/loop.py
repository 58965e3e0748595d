"""One training loop for nll, DPO, KTO and GRPO, with every reference schedule: read it top to bottom.

Departures from the paper and its released code:
- No reference model. The batches of coming steps are scored by the policy while it holds the weights that the schedule
  names; `reference.storage: model` keeps the paper's second model instead, with bitwise equal results.
- Losses are normalised over the whole step (all micro-batches, all ranks), KTO's z_0 too.
- Weights and optimizer states are float32; bf16 is a matter of compute only. Released code trains in pure bf16.
- The KL term of GRPO is taken against the reference, as in the paper, or against the initial policy.
- Held-out metrics are taken against the initial policy, so that variants can be compared.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from humanline.train.config import TrainConfig
from humanline.train.device import on_device, over_ranks, scoring_pass, start_accelerator
from humanline.train.evaluate import Evaluator
from humanline.train.examples import read_units
from humanline.train.export import claim_folder, refuse_used_folder, save_model
from humanline.train.guard import NonFiniteError, Suspect, refuse_non_finite, refuse_non_finite_model
from humanline.train.metrics import MetricsLog
from humanline.train.model import TokenScorer, check_scorer, load_policy
from humanline.train.objective import ObjectiveStep
from humanline.train.progress import RunProgress
from humanline.train.reference import Reference, ScoreAhead, SecondModel
from humanline.train.schedule import Never, Schedule
from humanline.train.stream import Stream
from humanline.train.tokens import Renderer


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where a finished run left its model, and its held-out metrics before and after."""

    model: Path
    metrics: Path
    initial: dict[str, float]
    final: dict[str, float]


def train(config: TrainConfig, *, show_progress: bool = True) -> RunResult:
    """Train a policy as the configuration says and write it, with its metrics, to the output folder.

    Parameters
    ----------
    config : TrainConfig
    show_progress : bool
        Print progress to standard error.

    Returns
    -------
    RunResult

    Raises
    ------
    OutputError, ModelError, DataError, ValueError
        If the output folder is not empty, or model, data and configuration do not fit together; all before the first
        step.
    NonFiniteError
        If a log-probability, loss, gradient, held-out metric or final weight is not finite. Examples are named where
        there are any to name, and no model is saved.
    """
    folder = refuse_used_folder(config.output)
    accelerator = start_accelerator(config.training.precision)
    rank, ranks, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    torch.manual_seed(config.seed)

    # Everything that can be refused is refused before anything is written.
    model, tokenizer = load_policy(config.model, dropout=config.training.dropout, max_length=config.data.max_length)
    limits = config.data.max_length, config.data.too_long, config.data.max_prompt_length
    renderer = Renderer(tokenizer, config.data.template, *limits)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    units, report = read_units(config, config.data.train, renderer)
    stream = Stream(
        units,
        config.objective,
        batch_size=config.training.batch_size,
        micro_batch_size=config.training.micro_batch_size,
        seed=config.seed,
        pad_id=pad_id,
        max_length=config.data.max_length,
        rank=rank,
        ranks=ranks,
    )
    steps = config.training.steps or stream.steps(config.training.epochs or 0.0)
    scorer = TokenScorer(model)
    check_scorer(scorer, units[0].sequences[0].ids[:16])
    second = baseline_model = None
    uses_reference = config.objective.kind != "nll"
    # Under `never` the reference is the initial policy already.
    own_baseline = config.reference.baseline == "initial" and config.reference.schedule.kind != "never"
    if config.reference.storage == "model" and uses_reference:
        second = copy.deepcopy(scorer).to(device)  # before the policy is wrapped for its device
        baseline_model = copy.deepcopy(scorer).to(device) if own_baseline else None
    optimizer = torch.optim.AdamW(
        scorer.parameters(),
        lr=config.optimizer.lr,
        betas=(config.optimizer.adam_beta1, config.optimizer.adam_beta2),
        eps=config.optimizer.adam_eps,
        weight_decay=config.optimizer.weight_decay,
    )
    warmup = round(config.optimizer.warmup_fraction * steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / (warmup + 1)))
    policy, optimizer = accelerator.prepare(scorer, optimizer)
    policy.train()
    score, reduce = scoring_pass(accelerator.unwrap_model(policy)), over_ranks(accelerator)
    reports, evaluator = {"train": report}, None
    if config.data.eval is not None:
        held_out, reports["held_out"] = read_units(config, config.data.eval, renderer)
        from_pairs = config.objective.kind == "kto" and config.data_shape == "preference"
        evaluator = Evaluator(
            config.objective,
            held_out,
            read_units(config, config.data.eval, renderer, as_pairs=True)[0] if from_pairs else (),
            score=score,
            reduce=reduce,
            batch_size=config.evaluation.batch_size,
            pad_id=pad_id,
            max_length=config.data.max_length,
            device=device,
            rank=rank,
            ranks=ranks,
        )

    objective = ObjectiveStep(config.objective, config.transform, config.seed, device)
    progress = RunProgress(steps, show_progress and accelerator.is_main_process)
    if accelerator.is_main_process:
        claim_folder(folder)
        (folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
        facts_of_data = {"template": renderer.template_hash} | {name: asdict(r) for name, r in reports.items()}
        (folder / "data.json").write_text(json.dumps(facts_of_data, indent=2) + "\n", encoding="utf-8")
    accelerator.wait_for_everyone()
    for one in reports.values():
        progress.say(str(one))
    log = MetricsLog(folder / "metrics.jsonl" if accelerator.is_main_process else None)
    with log, progress:

        def make_reference(schedule: Schedule, copied: nn.Module | None) -> Reference:
            if copied is not None:
                return SecondModel(schedule, copied, accelerator.unwrap_model(policy), accelerator.autocast)
            return ScoreAhead(schedule, score, stream, steps, device, reduce, progress.scoring)

        references: list[Reference] = []
        if uses_reference:
            references.append(make_reference(config.reference.schedule, second))
        if own_baseline:
            references.append(make_reference(Never(), baseline_model))

        def evaluate(updates: int) -> dict[str, float]:
            if evaluator is None:
                return {}
            metrics = evaluator.start() if updates == 0 else evaluator()
            if not all(math.isfinite(value) for value in metrics.values()):
                raise NonFiniteError(
                    f"held-out metrics after {updates} updates are not finite: {metrics}; nothing saved"
                )
            log.write({"updates": updates, "held_out": metrics})
            progress.say(f"held out after {updates} updates: " + "  ".join(f"{k} {v:.4g}" for k, v in metrics.items()))
            return metrics

        initial = final = evaluate(0)
        for step in range(steps):
            started = time.perf_counter()

            # 1. Scores: the reference of this step, and whatever else theta_step has to score for later ones.
            for reference in references:
                reference.begin_step(step)
            batch = on_device(stream.step(step), device)
            scored = [
                [reference.logprobs(step, index, micro) for index, micro in enumerate(batch.micro_batches)]
                for reference in references
            ]
            facts = objective.look(step, batch, scored[0] if scored else [], score, reduce)

            # 2. Losses and gradients, micro-batch by micro-batch; every one of them sees the same reference.
            sums: dict[str, Tensor] = {}
            suspects: list[Suspect] = []
            for index, micro in enumerate(batch.micro_batches):
                last = index == len(batch.micro_batches) - 1
                with contextlib.nullcontext() if last else accelerator.no_sync(policy):
                    logprobs = policy(micro.block.input_ids, micro.block.mask)
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
            for group in optimizer.param_groups:
                lr = group["lr"]
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            for reference in references:
                reference.after_update(step)

            # 5. What happened.
            values = reduce(torch.stack(list(sums.values())), "sum").tolist()
            metrics_now = dict(zip(sums, values, strict=True))
            seconds = time.perf_counter() - started
            metrics_now |= {
                "grad_norm": float(grad_norm),
                "lr": lr,
                "seconds": seconds,
                "tokens_per_second": batch.own_tokens * ranks / seconds,
            }
            if "log_ratio_rms" in metrics_now:
                metrics_now["log_ratio_rms"] **= 0.5
            log.write({"step": step, **metrics_now})
            progress.step(step, metrics_now)
            done = step + 1
            if done == steps or (config.evaluation.every and done % config.evaluation.every == 0):
                final = evaluate(done)

    saved = folder / "final"
    refuse_non_finite_model(accelerator.unwrap_model(policy).model)
    if accelerator.is_main_process:
        save_model(saved, accelerator.unwrap_model(policy).model, tokenizer)
    accelerator.wait_for_everyone()
    progress.say(f"model: {saved}\nmetrics: {folder / 'metrics.jsonl'}")
    return RunResult(saved, folder / "metrics.jsonl", initial, final)
