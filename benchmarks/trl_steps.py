"""The same optimizer step in TRL's DPO, KTO and GRPO trainers and in ours: time, memory, and that it is the same.

Its trainers with humanline in them (`apply_humanline`) are a side of `benchmarks.trl_inside`.

Both sides get the same random Llama, the same token ids in the same micro-batches in the same order, the same AdamW,
precision and clipping of gradients; nothing is logged, saved or evaluated by TRL, while ours writes its metrics as
always. TRL's trainers run as they are but for three things: they take token ids in place of texts, generation is
replaced by answers that exist already (its time is left out on both sides), and telemetry is off.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.interleave import interleave
from benchmarks.machine import DEVICE, installed
from benchmarks.peak import peak_mib
from benchmarks.report import Result, Row, not_measured, timing_row
from benchmarks.runs import GPU, QUICK, REFERENCES, Stepped, Workload, pause, pausing_loop, prepare, run_config
from benchmarks.runs import training_batches as batches_of
from humanline.integrations.trl import apply_humanline
from humanline.system.imports import quiet
from humanline.train.config import TrainConfig
from humanline.train.data.batch import MicroBatch
from humanline.train.loop import train
from humanline.train.policy.load import load_tokenizer
from humanline.train.run.metrics import read_metrics

# The output head holds a fifth of the weights, as in models of 1B: TRL spends more on it than we do.
CPU = Workload(hidden=256, layers=6, heads=4, vocab=4096, prompt=32, answer=64, batch=4, micro_batch=2)
# What can be set alike is set alike; the advantages are TRL's.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "dpo": {"kind": "dpo", "beta": 0.1},
    "kto": {"kind": "kto", "beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0},
    "grpo": {"kind": "grpo", "clip_eps": 0.2, "kl_coef": 0.04, "advantage_std": "sample", "advantage_eps": 1e-4},
}
CLIP = {"kind": "clip"}
OURS: dict[str, dict[str, Any]] = {
    "live": {"reference": REFERENCES["live"]},
    "ahead once": {"reference": REFERENCES["free"]},
    "humanline": {"reference": REFERENCES["ahead"], "transform": CLIP},
}
TRL: dict[str, dict[str, Any]] = {
    "TRL": {},
    "TRL precomputed": {"precompute_ref_log_probs": True},
    "TRL humanline": {},
    "TRL synced": {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0},
}
# (ours, TRL's, what is compared); GRPOTrainer cannot score before it generates; DPO alone shows the sync.
COMPARED = (
    ("live", "TRL", "offline, reference model / TRL's default"),
    ("ahead once", "TRL precomputed", "offline, scored once / TRL's precompute_ref_log_probs"),
    ("humanline", "TRL synced", "humanline, k = 1 / TRL's sync_ref_model, k = 1"),
    ("humanline", "TRL", "humanline, k = 1 / TRL's default, fixed reference"),
)
TARGET = "upper end <= 1"
#: Relative difference of losses and gradient norms that rounding explains; under bf16 TRL's logits are bf16 too.
SAME = {"float32": 1e-3, "bf16": 5e-2}
CHOSEN = (
    "TRL with fused AdamW, its fused output head, SDPA attention and our micro-batches, sorted by length; without "
    "padding-free batches or Liger, which need a GPU"
)
NOTES = {
    "TRL": CHOSEN,
    "TRL synced": "TRL copies after the update, so its log-ratios are always 0: the nearest work, not the method",
}


def compared(objective: str) -> tuple[tuple[str, str, str], ...]:
    """Return the pairs of sides that an objective has."""
    without = {"dpo": (), "kto": ("TRL synced",), "grpo": ("TRL synced", "TRL precomputed")}[objective]
    return tuple(pair for pair in COMPARED if pair[1] not in without)


def workload_of(base: Workload, objective: str) -> Workload:
    """Return the workload with as many rows for every objective: KTO counts answers, GRPO in micro-batches alone."""
    if objective == "dpo":
        return base
    return replace(base, batch=(2 if objective == "kto" else 1) * base.batch, micro_batch=2 * base.micro_batch)


def our_config(
    base: dict[str, Any],
    output: Path,
    workload: Workload,
    objective: str,
    side: str,
    *,
    steps: int,
    checkpointing: bool,
) -> TrainConfig:
    """Return the configuration of one of our sides."""
    workload = workload_of(workload, objective)
    training = {"batch_size": workload.batch, "micro_batch_size": workload.micro_batch}
    if checkpointing:
        training["activation_checkpointing"] = True
    chosen = OURS[side] | {"objective": OBJECTIVES[objective]}
    return run_config(base, output, chosen.pop("reference"), steps=steps, training=training, **chosen)


def rows_for_trl(objective: str, steps: list[tuple[MicroBatch, ...]]) -> list[dict[str, Any]]:
    """Return the rows of TRL's data set: token ids, one row a unit, in the order in which our steps have them."""
    rows: list[dict[str, Any]] = []
    for number, micro_batches in enumerate(steps):
        others = {
            name: block.input_ids[place, :length].tolist()
            for block in (micro.mismatched for micro in micro_batches)
            if block is not None
            for place, (name, length) in enumerate(zip(block.names, block.lengths, strict=True))
        }
        for micro in micro_batches:
            for unit in micro.units:
                first = unit.sequences[0]
                answers = [list(one.ids[one.prompt_length :]) for one in unit.sequences]
                row: dict[str, Any] = {"prompt_ids": list(first.ids[: first.prompt_length])}
                if objective == "dpo":
                    row |= {"chosen_ids": answers[0], "rejected_ids": answers[1]}
                elif objective == "kto":
                    other = others[f"{unit.id}#mismatched"]  # in whatever micro-batch of ours
                    row |= {"completion_ids": answers[0], "label": unit.desirable}
                    row |= {"KL_completion_ids": other[first.prompt_length :]}
                else:  # the prompt's text is a name, under which the generation that is replaced finds the rest
                    row |= {"prompt": f"{number}/{unit.id}", "answers": answers, "scores": list(unit.scores)}
                rows.append(row)
    return rows


def make_trainer(
    base: dict[str, Any],
    folder: Path,
    workload: Workload,
    objective: str,
    side: str,
    *,
    steps: int,
    checkpointing: bool = False,
) -> Any:
    """Return a trainer of TRL that pauses after every step and keeps losses and gradient norms of its steps.

    Parameters
    ----------
    base : dict
        What `prepare` returned.
    folder : Path
    workload : Workload
    objective, side : str
        Keys of `OBJECTIVES` and `TRL`.
    steps : int
    checkpointing : bool
        Activation checkpointing.
    """
    with quiet():
        import trl
        from datasets import Dataset, disable_progress_bars
        from transformers import TrainerCallback

    disable_progress_bars()
    name = objective.upper()
    config = our_config(base, folder, workload, objective, "live", steps=steps, checkpointing=False)
    rows = rows_for_trl(objective, batches_of(config))
    rows_a_unit = 2 if objective == "grpo" else 1
    rows_a_step = rows_a_unit * config.training.batch_size
    rows_a_pass = config.training.micro_batch_size or rows_a_step
    ours = OBJECTIVES[objective]
    more: dict[str, Any] = {"beta": ours.get("beta", ours.get("kl_coef"))}
    if objective == "grpo":
        more |= {"epsilon": ours["clip_eps"], "loss_type": "dapo", "num_generations": 2, "shuffle_dataset": False}
        more["use_bias_correction_kl"] = side != "TRL humanline"  # which leaves the KL term alone
    else:
        more |= {"train_sampling_strategy": "sequential", "max_length": config.data.max_length}
    arguments = getattr(trl, f"{name}Config")(
        output_dir=str(folder),
        per_device_train_batch_size=rows_a_pass,
        gradient_accumulation_steps=-(-rows_a_step // rows_a_pass),
        max_steps=steps,
        learning_rate=config.optimizer.lr,
        lr_scheduler_type="constant",
        weight_decay=config.optimizer.weight_decay,
        max_grad_norm=config.optimizer.max_grad_norm,
        bf16=config.training.precision == "bf16",
        gradient_checkpointing=checkpointing,
        use_cpu=DEVICE == "cpu",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
        **TRL[side],
    )

    class Pausing(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            pause()

    class Measured(getattr(trl, f"{name}Trainer")):  # type: ignore[misc]
        def _send_telemetry(self) -> None:
            """Send nothing."""

        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset  # token ids already

        def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
            members = [place % rows_a_unit for place in range(len(prompts))]
            found = [by_prompt[prompt] for prompt in prompts]
            answers = [row["answers"][member] for row, member in zip(found, members, strict=True)]
            texts = [f"{prompt}#{member}" for prompt, member in zip(prompts, members, strict=True)]
            return [row["prompt_ids"] for row in found], answers, None, texts, None, {}, None, []

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            loss = super().training_step(*arguments, **named)
            measured["losses"].append(loss.detach())
            return loss

        def _clip_grad_norm(self, model: Any) -> Any:
            measured["norms"].append(super()._clip_grad_norm(model))
            return measured["norms"][-1]

    def score(completions: list[str], **_: Any) -> list[float]:
        found = [text.rsplit("#", 1) for text in completions]
        return [float(by_prompt[prompt]["scores"][int(member)]) for prompt, member in found]

    measured: dict[str, list[Any]] = {"losses": [], "norms": []}
    by_prompt = {row["prompt"]: row for row in rows} if objective == "grpo" else {}
    if objective == "grpo":
        more = {"reward_funcs": score}
        data = Dataset.from_list([{"prompt": row["prompt"]} for row in rows])
    else:
        more, data = {}, Dataset.from_list(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Measured(
            model=base["model"],
            args=arguments,
            train_dataset=data,
            processing_class=load_tokenizer(base["model"]),
            callbacks=[Pausing()],
            **more,
        )
    if side == "TRL humanline":
        apply_humanline(trainer)
    trainer.measured = measured
    return trainer


@dataclass(slots=True)
class Side:
    """One side's run, step by step; its losses and gradient norms are there once a step is done."""

    run: Stepped
    measured: Callable[[], tuple[list[float], list[float]]]


def start(
    base: dict[str, Any],
    folder: Path,
    workload: Workload,
    objective: str,
    side: str,
    *,
    steps: int,
    checkpointing: bool = False,
) -> Side:
    """Return a run that waits for its first step; ours pauses only under `pausing_loop`."""
    if side in OURS:
        config = our_config(base, folder, workload, objective, side, steps=steps, checkpointing=checkpointing)

        def logged() -> tuple[list[float], list[float]]:
            rows = [row for row in read_metrics(folder / "metrics.jsonl") if "step" in row]
            return [row["loss"] for row in rows], [row["grad_norm"] for row in rows]

        return Side(Stepped(lambda: train(config, show_progress=False)), logged)
    trainers: list[Any] = []

    def work() -> None:
        trainers.append(make_trainer(base, folder, workload, objective, side, steps=steps, checkpointing=checkpointing))
        trainers[0].train()

    def kept() -> tuple[list[float], list[float]]:
        losses, norms = ([float(x) for x in trainers[0].measured[key]] for key in ("losses", "norms"))
        each = len(losses) // len(norms)
        return [sum(losses[i : i + each]) for i in range(0, len(losses), each)], norms

    return Side(Stepped(work), kept)


def prepare_steps(
    folder: str, base: dict[str, Any], workload: dict[str, Any], objective: str, side: str, checkpointing: bool = False
) -> Callable[[], None]:
    """Return the first steps of one side, its model's loading included, for `benchmarks.peak`.

    Every library of both sides is loaded before, by a tiny run of each.
    """
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name, pausing_loop():
        tiny = prepare(Path(name), QUICK)
        for number, other in enumerate(("TRL", "live")):
            run = start(tiny, Path(name) / str(number), QUICK, objective, other, steps=2).run
            run.step()
            run.close()
    size = Workload(**workload)

    def work() -> None:
        started = start(
            base, Path(folder) / f"{objective} {side}", size, objective, side, steps=4, checkpointing=checkpointing
        )
        with pausing_loop():
            for _ in range(3):  # the run stands still when the peak is read, before anything is saved
                started.run.step()

    return work


def benchmark_trl(quick: bool) -> Result:
    """Compare the steps of all three objectives, then their peak memory."""
    workload = QUICK if quick else GPU if DEVICE == "cuda" else CPU
    rounds, warm_up = (3, 1) if quick else (12, 2)
    settings = asdict(workload) | {"rounds": rounds, "warm_up": warm_up, "objectives": OBJECTIVES, "trl": TRL}
    if installed("trl") is None:
        what = [f"{objective}: {text}" for objective in OBJECTIVES for _, _, text in compared(objective)]
        return Result(settings, [not_measured("TRL", text, "trl is not installed", TARGET) for text in what])
    rows: list[Row] = []
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        base = prepare(folder, workload, pairs=16 * workload.batch)
        for objective in OBJECTIVES:
            rows += _times(base, folder, workload, objective, rounds, warm_up, seconds)
        rows += _times(base, folder, workload, "dpo", rounds, warm_up, seconds, checkpointing=True)
        for objective in OBJECTIVES:
            rows += _peaks(base, folder, workload, objective)
    return Result(settings, rows, seconds)


def _times(
    base: dict[str, Any],
    folder: Path,
    workload: Workload,
    objective: str,
    rounds: int,
    warm_up: int,
    seconds: dict[str, list[float]],
    checkpointing: bool = False,
) -> list[Row]:
    """Run all sides of an objective in turns; add to `seconds`."""
    pairs = [pair for pair in compared(objective) if not checkpointing or pair[1] == "TRL"]
    steps = warm_up + rounds + 1
    label = f"{objective}{', checkpointing' if checkpointing else ''}"
    with ExitStack() as stack:
        stack.enter_context(pausing_loop())
        stack.enter_context(patch.dict(os.environ, {"TQDM_DISABLE": "1"}))
        sides: dict[str, Side] = {}
        for side in dict.fromkeys(side for pair in pairs for side in pair[:2]):
            to = folder / f"{label} {side}"
            sides[side] = start(base, to, workload, objective, side, steps=steps, checkpointing=checkpointing)
            stack.callback(sides[side].run.close)
        taken = interleave({name: side.run.step for name, side in sides.items()}, rounds=rounds, warm_up=warm_up)
        measured = {name: side.measured() for name, side in sides.items()}
    seconds |= {f"{label}, {name}": values for name, values in taken.items()}
    return [
        *(
            timing_row(
                "TRL",
                f"{label}: {text}",
                taken[ours],
                taken[theirs],
                limit=1.0,
                upper_end=True,
                note=_note(ours, theirs),
            )
            for ours, theirs, text in pairs
        ),
        _same_row(label, objective, measured["live"], measured["TRL"], SAME[workload.precision]),
    ]


def _note(ours: str, theirs: str) -> str:
    return NOTES.get(ours, "") or ("" if ours == "humanline" and theirs == "TRL" else NOTES.get(theirs, ""))


def _same_row(
    label: str,
    objective: str,
    ours: tuple[list[float], list[float]],
    theirs: tuple[list[float], list[float]],
    limit: float,
) -> Row:
    """Hold the two sides' losses and gradient norms against each other, as far as they should be equal.

    TRL takes KTO's z_0 from each micro-batch, so all steps but the first may differ a little; GRPO's ratio is to the
    weights that generated, so only the first step is the same.
    """
    count = len(ours[0]) if objective == "dpo" else 1
    gaps = [
        abs(one - other) / max(abs(other), 0.1) for one, other in zip(ours[0][:count], theirs[0][:count], strict=True)
    ]
    gaps += [abs(one / other - 1) for one, other in zip(ours[1][:count], theirs[1][:count], strict=True)]
    return Row(
        "-",
        f"{label}: loss and gradient norm, {count} step{'s' * (count > 1)}: largest gap",
        (f"{ours[1][0]:.5f}", f"{theirs[1][0]:.5f}"),
        max(gaps),
        target=f"<= {limit:g}",
        met=max(gaps) <= limit,
        note="offline, both with a reference model; the two numbers are the gradient norms of the first step",
    )


def _peaks(base: dict[str, Any], folder: Path, workload: Workload, objective: str) -> list[Row]:
    """Compare peak memory, each side in a process of its own."""
    pairs = [pair for pair in compared(objective) if pair[1] != "TRL synced"]
    if objective != "dpo":
        pairs = [pair for pair in pairs if pair[0] != "ahead once"]
    try:
        peaks = {
            side: peak_mib(
                "benchmarks.trl_steps:prepare_steps",
                folder=str(folder / "peaks"),
                base=base,
                workload=asdict(workload),
                objective=objective,
                side=side,
            )
            for side in dict.fromkeys(side for pair in pairs for side in pair[:2])
        }
    except RuntimeError as error:  # the times before it took minutes
        why = str(error).strip().splitlines()[-1]
        return [not_measured("TRL", f"{objective}, peak memory: {text}", why, "< 1") for _, _, text in pairs]
    return [
        Row(
            "TRL",
            f"{objective}, peak memory: {text}",
            (f"{peaks[ours]:.0f} MiB", f"{peaks[theirs]:.0f} MiB"),
            peaks[ours] / peaks[theirs] if peaks[theirs] else None,
            target="< 1",
            met=peaks[ours] < peaks[theirs],
        )
        for ours, theirs, text in pairs
    ]
