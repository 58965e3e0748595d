"""From public data to a table: next-token training, preference pairs, then DPO, KTO and GRPO, offline and humanline.

    python examples/gsm8k/run.py

Read `main` from top to bottom. What is finished is not done again; what was interrupted is removed and done again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pairs import (
    MissingData,
    build_pairs,
    decimal_sign,
    find_data,
    giveaways,
    length_sign,
    read_lines,
    size_sign,
    split_rows,
    write_lines,
)
from report import page

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1].parent / "shared" / "data"
SPLIT_SEED = 0


def humanline(every: int) -> tuple[str, ...]:
    """Return what turns an offline recipe into its humanline variant: syncing every so many steps, and the clip."""
    return (
        "transform={kind: clip, log_eps_low: -1.5, log_eps_high: 1.5}",
        f"reference.schedule={{kind: before_step, every: {every}}}",
    )


# Where the reference never moves, ratios soon leave a narrow clip of GRPO's own and teach nothing more: the paper's
# Table 3 has 0.5 offline, which is the recipe's, and 0.15 under humanline. Offline runs have that and 1, too.
OFFLINE: dict[str, dict[str, tuple[str, ...]]] = {  # recipe -> variant -> overrides
    "dpo": {"offline": ()},
    "kto": {"offline": ()},
    "grpo": {
        "offline, eps 0.15": ("objective.clip_eps=0.15",),
        "offline, eps 0.5": (),
        "offline, eps 1": ("objective.clip_eps=1.0",),
    },
}
OWN_CLIP = {"dpo": (), "kto": (), "grpo": ("objective.clip_eps=0.15",)}  # under humanline
FAST = ("optimizer.lr=1e-3",)

# Every setting is run in all of its variants, and all are in the table. Betas, learning rates and k = 1 were written
# down before any run; k = 8 and 32 (8 and 2 syncs in 66 steps) after the results of k = 1, before any run of theirs.
SETTINGS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {  # name -> recipe, overrides, k
    "DPO, beta 0.1, lr 3e-4": ("dpo", (), (1, 8, 32)),
    "DPO, beta 0.1, lr 1e-3": ("dpo", FAST, (1,)),
    "DPO, beta 1, lr 3e-4": ("dpo", ("objective.beta=1.0",), (1, 8, 32)),
    "KTO, beta 0.1, lr 3e-4": ("kto", (), (1, 8, 32)),
    "KTO, beta 0.1, lr 1e-3": ("kto", FAST, (1,)),
    "GRPO, lr 3e-4": ("grpo", (), (1, 8, 32)),
    "GRPO, lr 1e-3": ("grpo", FAST, (1,)),
}


def variants(setting: str) -> dict[str, tuple[str, ...]]:
    """Return the overrides of a setting's variants by their names: offline ones, then humanline by k."""
    recipe, _, syncs = SETTINGS[setting]
    return OFFLINE[recipe] | {f"humanline, k = {every}": humanline(every) + OWN_CLIP[recipe] for every in syncs}


@dataclass(frozen=True)
class Plan:
    """The sizes of a run of the whole chain."""

    quick: bool = False
    rows: int | None = None  # training questions; None = all
    rows_held_out: int = 400
    questions: int | None = None  # questions with graded solutions; None = all
    pairs_held_out: int = 200
    seeds: int = 3
    vocab_size: int = 2048
    hidden_size: int = 128
    layers: int = 4
    settings: tuple[str, ...] = tuple(SETTINGS)
    start: tuple[str, ...] = ()  # overrides of nll.yaml
    align: tuple[str, ...] = ()  # overrides of the other recipes


QUICK = Plan(
    quick=True,
    rows=240,
    rows_held_out=40,
    questions=120,
    pairs_held_out=24,
    seeds=2,
    hidden_size=32,
    layers=2,
    settings=("DPO, beta 0.1, lr 3e-4", "KTO, beta 0.1, lr 3e-4", "GRPO, lr 3e-4"),
    start=("training.epochs=1", "evaluation.every=5"),
    align=(
        "training={steps: 4, batch_size: 8}",
        "evaluation.distance={limit: 16, samples: 1, max_tokens: 32}",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chain and return an exit code: 0 done, 2 data missing."""
    options = _options(arguments)
    plan, work = (QUICK if options.quick else Plan()), Path(options.work)
    work = work / "quick" if options.quick else work
    if options.seeds:
        plan = replace(plan, seeds=options.seeds)
    try:
        files = find_data(Path(options.data))
    except MissingData as error:
        print(f"gsm8k: {error}", file=sys.stderr)
        return 2
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that wait must not keep a shared core busy
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - started:5.0f} s] {text}", flush=True)

    # 1. Data. Training questions for next-token training; graded solutions of test questions for the pairs.
    rows = read_lines(files["gsm8k-train.jsonl"])[: plan.rows]
    train_rows, held_out_rows = split_rows(rows, held_out=plan.rows_held_out, seed=SPLIT_SEED)
    write_lines(work / "nll-train.jsonl", train_rows)
    write_lines(work / "nll-held-out.jsonl", held_out_rows)
    write_lines(work / "questions.jsonl", [{"prompt": row["question"]} for row in held_out_rows])
    graded = read_lines(files["gsm8k-model-solutions.jsonl"])[: plan.questions]
    train_pairs, held_out_pairs = build_pairs(graded, held_out=plan.pairs_held_out, seed=SPLIT_SEED)
    write_lines(work / "pairs-train.jsonl", train_pairs)
    write_lines(work / "pairs-held-out.jsonl", held_out_pairs)
    say(f"{len(train_rows)} rows for next-token training, {len(train_pairs)} pairs, {len(held_out_pairs)} held out")

    # 2. The start model: random weights and a tokenizer of its own, then next-token training.
    with _pool(1, threads=options.processes) as pool:
        new = pool.submit(make_base, work, plan).result()
        say(f"random model: {'made' if new else 'was there'}")
        new = pool.submit(run_recipe, "nll", _start_overrides(work, plan), show=True).result()
        say(f"start model: {'trained' if new else 'was there'}")
        facts = pool.submit(look_at_start, work).result()

    # 3. Every setting, variant and seed, from the same start model.
    # Seeds outermost: what is stopped early has whole ones, of which --seeds makes a table.
    jobs = [
        (setting, variant, seed)
        for seed in range(plan.seeds)
        for setting in plan.settings
        for variant in variants(setting)
    ]
    failed: dict[tuple[str, str, int], str] = {}
    with _pool(options.processes, threads=1) as pool:
        futures = {pool.submit(run_recipe, *_cell_recipe(work, plan, *job), show=False): job for job in jobs}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                job = futures[future]
                try:
                    word = "trained" if future.result() else "was there"
                except FloatingPointError as error:
                    word, failed[job] = "stopped", str(error)
                say(f"{done}/{len(jobs)} {job[0]}, {job[1]}, seed {job[2]}: {word}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    # 4. The table.
    metrics = _metrics(work / "start")
    results = {
        "quick": plan.quick,
        "versions": facts["versions"],
        "start": {
            "parameters": facts["parameters"],
            "train_rows": len(train_rows),
            "held_out_rows": len(held_out_rows),
            "perplexity": [
                {"updates": row["updates"], "perplexity": row["held_out"]["perplexity"]}
                for row in metrics
                if "held_out" in row
            ],
            "sample": facts["sample"],
        },
        "pairs": {
            "train": {"count": len(train_pairs), "giveaways": giveaways(train_pairs)},
            "held_out": {"count": len(held_out_pairs), "giveaways": giveaways(held_out_pairs)},
            "rules": {
                "the longer answer wins": _accuracy([length_sign(pair) for pair in held_out_pairs]),
                "the larger model's answer wins": _accuracy([size_sign(pair) for pair in held_out_pairs]),
                "more whole results written as `18.0` wins": _accuracy([decimal_sign(pair) for pair in held_out_pairs]),
                **facts["rules"],
            },
        },
        "cells": [_cell(work, plan, job, failed.get(job)) for job in jobs],
    }
    out = work if plan.quick else Path(options.results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "results.md").write_text(page(results), encoding="utf-8")
    start = os.path.relpath(work / "start" / "final")
    say("done")
    print(
        f"\nTable:        {os.path.relpath(out / 'results.md')} (numbers: results.json beside it)"
        f"\nPairs:        {os.path.relpath(work)}/pairs-train.jsonl and pairs-held-out.jsonl"
        f"\nStart model:  {start}"
        f"\nAligned:      {os.path.relpath(work / 'runs')}/*/final, each run's numbers in metrics.jsonl beside it"
        "\nLoad one:\n"
        "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"    model = AutoModelForCausalLM.from_pretrained({start!r})\n"
        f"    tokenizer = AutoTokenizer.from_pretrained({start!r})"
    )
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--data", default=os.path.relpath(DATA), help="folder of the GSM8K files (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: the whole chain in under two minutes")
    parser.add_argument("--work", default=HERE / "work", help="folder for models and pairs (default: work, here)")
    parser.add_argument(
        "--results", default=HERE, help="folder for results.md (default: here; --quick: the work folder)"
    )
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, one thread each (default: 2)")
    parser.add_argument("--seeds", type=int, help="runs of each row of the table (default: 3)")
    return parser.parse_args(arguments)


# ---------------------------------------------------------------------------------------------------------------------
# What runs in other processes


def _pool(processes: int, threads: int) -> concurrent.futures.ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(processes, spawn, initializer=_start_worker, initargs=(threads,))


def _start_worker(threads: int) -> None:
    """Set the number of threads, and leave at once should the process that waits for the work be killed."""
    import torch

    torch.set_num_threads(threads)

    def leave() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


def make_base(work: Path, plan: Plan) -> bool:
    """Make the random model and its tokenizer unless they are there; return whether it was made."""
    from humanline.train.policy.new_model import new_model

    text = work / "nll-train.jsonl"
    sizes: dict[str, Any] = {
        "vocab_size": plan.vocab_size,
        "hidden_size": plan.hidden_size,
        "layers": plan.layers,
        "heads": 4,
        "max_length": 2048,
        "seed": 0,
    }

    def make() -> None:
        new_model(work / "base", text=text, **sizes)

    return once(work / "base", {"sizes": sizes, "text": _digest(text)}, ("model.safetensors",), make)


def run_recipe(name: str, overrides: list[str], *, show: bool) -> bool:
    """Train as a recipe and its overrides say unless that was done before; return whether it was trained."""
    from humanline.train.config import load_config

    config = load_config(HERE / f"{name}.yaml", overrides)

    def make() -> None:
        from humanline.train.loop import train

        train(config, show_progress=show)

    settings = config.model_dump(mode="json", exclude_defaults=True)
    inputs = [Path(config.model) / "model.safetensors", Path(config.data.train), Path(config.data.eval or "")]
    if config.evaluation.distance is not None:
        inputs.append(Path(config.evaluation.distance.prompts or ""))
        del settings["evaluation"]["distance"]["prompts"]
    for key in ("model", "output"):
        del settings[key]  # what counts is what the files hold, not where they lie
    for key in ("train", "eval"):
        del settings["data"][key]
    made_of = {"settings": settings, "inputs": [_digest(path) for path in inputs]}
    return once(Path(config.output), made_of, ("final/model.safetensors", "metrics.jsonl"), make)


def once(folder: Path, key: dict[str, Any], needed: Sequence[str], make: Callable[[], None]) -> bool:
    """Call `make`, which fills `folder`, unless it finished before with the same key; return whether it was called.

    A folder without the key's mark, or with another one, is the rest of an interrupted or different run: it is removed.
    """
    mark = folder / "done.json"
    if all((folder / name).is_file() for name in (mark.name, *needed)) and json.loads(mark.read_text("utf-8")) == key:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    make()
    partial = folder / ".done.json.partial"
    partial.write_text(json.dumps(key), encoding="utf-8")
    partial.rename(mark)
    return True


def look_at_start(work: Path) -> dict[str, Any]:
    """Return facts of the start model: size, one answer, and how well its log-probabilities rank held-out pairs."""
    import torch
    import transformers

    from humanline import __version__
    from humanline.train.data.batch import make_block
    from humanline.train.data.messages import Message
    from humanline.train.data.render import Renderer
    from humanline.train.data.rows import read_rows
    from humanline.train.data.shapes import Preference
    from humanline.train.data.tokenize import tokenize
    from humanline.train.policy.load import load_policy
    from humanline.train.policy.logprobs import LogprobModel

    model, tokenizer = load_policy(str(work / "start" / "final"), dropout=False, max_length=2048)
    renderer = Renderer(tokenizer, "chat", 2048)
    question = read_lines(work / "nll-held-out.jsonl")[0]
    prompt = renderer.render_prompt((Message("user", question["question"]),))
    with torch.inference_mode():
        output = model.eval().generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=200)[0, len(prompt) :]
        policy, means, totals = LogprobModel(model).eval(), [], []
        pairs = cast(list[Preference], read_rows(work / "pairs-held-out.jsonl", "preference"))
        for pair in tokenize(pairs, renderer).sequences:
            block = make_block(pair, ("chosen", "rejected"), tokenizer.pad_token_id)
            sums = policy(block.input_ids, block.mask).double().sum(1)
            counts = block.mask.sum(1)
            totals.append(float(sums[0] - sums[1]))
            means.append(float(sums[0] / counts[0] - sums[1] / counts[1]))
    return {
        "versions": f"humanline {__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sample": tokenizer.decode(output, skip_special_tokens=True),  # the question itself stays out of the repository
        "rules": {
            "the start model's higher mean log-probability a token wins": _accuracy(means),
            "the start model's higher total log-probability wins": _accuracy(totals),
        },
    }


# ---------------------------------------------------------------------------------------------------------------------
# Small parts


def _start_overrides(work: Path, plan: Plan) -> list[str]:
    return [*_paths(work / "base", work / "start", work / "nll-train.jsonl", work / "nll-held-out.jsonl"), *plan.start]


def _cell_recipe(work: Path, plan: Plan, setting: str, variant: str, seed: int) -> tuple[str, list[str]]:
    """Return the name of a run's recipe and its overrides."""
    recipe, overrides, _ = SETTINGS[setting]
    paths = _paths(
        work / "start" / "final",
        _cell_folder(work, setting, variant, seed),
        work / "pairs-train.jsonl",
        work / "pairs-held-out.jsonl",
    )
    questions = f"evaluation.distance.prompts={json.dumps(os.path.relpath(work / 'questions.jsonl'))}"
    return recipe, [*paths, f"seed={seed}", *overrides, *variants(setting)[variant], *plan.align, questions]


def _paths(model: Path, output: Path, train: Path, held_out: Path) -> list[str]:
    values = {"model": model, "output": output, "data.train": train, "data.eval": held_out}
    return [f"{key}={json.dumps(os.path.relpath(path))}" for key, path in values.items()]


def _cell_folder(work: Path, setting: str, variant: str, seed: int) -> Path:
    name = f"{setting}-{variant}-seed{seed}"
    return work / "runs" / name.replace(", ", "-").replace(" = ", "").replace(" ", "").lower()


def _cell(work: Path, plan: Plan, job: tuple[str, str, int], failed: str | None) -> dict[str, Any]:
    """Return the numbers of one finished run."""
    from humanline.train.config import load_config

    setting, variant, seed = job
    recipe, overrides = _cell_recipe(work, plan, *job)
    objective = load_config(HERE / f"{recipe}.yaml", overrides).objective.model_dump(mode="json")
    cell: dict[str, Any] = {"setting": setting, "variant": variant, "seed": seed, "objective": objective}
    if failed is not None:
        return cell | {"failed": failed}
    rows = _metrics(_cell_folder(work, *job))
    steps = [row for row in rows if "step" in row]
    held_out = [row["held_out"] for row in rows if "held_out" in row]

    def mean(name: str) -> float:
        return math.fsum(row[name] for row in steps) / len(steps)

    return cell | {
        "initial": held_out[0],
        "held_out": held_out[-1],
        "steps": len(steps),
        "last_loss": steps[-1]["loss"],
        "largest_grad_norm": max(row["grad_norm"] for row in steps),
        "log_ratio_rms": mean("log_ratio_rms"),
        "clip_share": mean("clipped_low") + mean("clipped_high") if "clipped_low" in steps[0] else None,
        "own_clip_share": mean("inner_clipped") if "inner_clipped" in steps[0] else None,
    }


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder / "metrics.jsonl")


def _accuracy(differences: Sequence[float]) -> float:
    return sum(0.5 if d == 0 else float(d > 0) for d in differences) / len(differences)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
