"""How often `training.collapse` speaks of sound runs, and how often of broken ones: many short runs of the demo's task.

    python examples/collapse/run.py                # both sets of runs: about 10 minutes of one free core
    python examples/collapse/run.py --set second   # one of them

Sound runs are settings of the letters task and of the recipe tiny-online whose models do not get worse, with other
orders of the data and lengths. Broken ones have what breaks a run on purpose: learning rates 30 to 500 times as large,
gradient norms of 1000, rewards that pay for length or for nothing. The limits are those that recipes have when they say
nothing. What a run came to is judged by something the watch does not see: the share of right letters in its final
model's answers to words never seen.

What is finished is not done again, as long as its settings are what the script asks for; --work holds it. After a
change of limits, --again judges the same rows anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SETS = {"first": (0, 1), "second": (100, 101, 102)}  # seeds; the first set was looked at when limits were chosen
HUMANLINE = {"kind": "clip", "log_eps_low": -1.5, "log_eps_high": 1.5}


def before_step(every: int) -> dict[str, Any]:
    """Return the settings that make a run humanline, with its k."""
    return {"transform": HUMANLINE, "reference": {"schedule": {"kind": "before_step", "every": every}}}


@dataclass(frozen=True, slots=True)
class Job:
    """A run: its name, whether it is broken on purpose, and its configuration but for paths."""

    name: str
    is_broken: bool
    tree: dict[str, Any]


def offline(objective: dict[str, Any], lr: float, steps: int, *, held_out: bool = True, **more: Any) -> dict[str, Any]:
    """Return a run on the demo's pairs."""
    batch = 32 if objective["kind"] == "kto" else 16
    return {
        "objective": objective,
        "data": {"train": "pairs.jsonl", "shape": "preference", "max_length": 48}
        | ({"eval": "pairs-held-out.jsonl"} if held_out else {}),
        "training": {"steps": steps, "batch_size": batch},
        "optimizer": {"lr": lr, "warmup_fraction": 0.1, "max_grad_norm": more.pop("norm", 1.0)},
        "evaluation": {"every": 20, "batch_size": 256} if held_out else {"batch_size": 256},
    } | more


def online(objective: dict[str, Any], lr: float, rounds: int, **more: Any) -> dict[str, Any]:
    """Return a run in rounds, as tiny-online is."""
    reward = more.pop("reward", "humanline.reproduce.testbeds.letters:letters_in_place")
    return {
        "objective": objective,
        "data": {"train": "words.jsonl", "eval": "words-held-out.jsonl", "max_length": 48},
        "source": {
            "kind": "rounds",
            "contexts_per_round": 32,
            "samples": 8,
            "count": rounds,
            "too_few": "skip",
            "sampling": {"max_tokens": 12, "engine": {"kind": "generate", "batch_size": 256}},
            "scoring": {"rewards": [{"kind": "function", "call": reward}], "workers": 1},
        },
        "reference": {"schedule": {"kind": "each_round"}},
        "training": {"batch_size": 16 if objective["kind"] == "kto" else 8},
        "optimizer": {"lr": lr, "warmup_fraction": 0.1, "max_grad_norm": more.pop("norm", 1.0)},
        "evaluation": {"every": 12},
    } | more


DPO, KTO, GRPO = {"kind": "dpo", "beta": 0.1}, {"kind": "kto"}, {"kind": "grpo"}
BEGUN = "starts/letters/near-0"  # where `start` makes the start model, beside the rows it is trained on
NLL = {"train": f"{BEGUN}/train.jsonl", "eval": f"{BEGUN}/held-out.jsonl", "max_length": 48}


def sound(seed: int, turn: int, *, rounds: int) -> Iterable[Job]:
    """Give the sound runs of a seed, which is the turn-th of its set; those in rounds only where rounds is not 0."""
    steps = (40, 50, 60)[turn]
    settings = {
        "dpo-beta0.1": (DPO, DPO, 1e-4),
        "dpo-beta3": (DPO | {"beta": 3.0}, DPO | {"beta": 3.0}, 1e-4),
        "kto": (KTO, KTO, 3e-4),
        "grpo": (GRPO | {"clip_eps": (0.15, 0.5, 1.0)[turn]}, GRPO, 3e-4),
    }
    for name, (fixed, moving, lr) in settings.items():
        yield Job(f"{name}-offline-{seed}", False, offline(fixed, lr, steps))
        for k in (1, 4):
            yield Job(f"{name}-humanline-k{k}-{seed}", False, offline(moving, lr, steps, **before_step(k)))
    for name, objective in {"dpo": DPO, "kto": KTO, "grpo": GRPO}.items() if rounds else ():
        yield Job(f"{name}-online-{seed}", False, online(objective, 1e-4, rounds))
        yield Job(f"{name}-online-humanline-{seed}", False, online(objective, 1e-4, rounds, **before_step(1)))
    nll = offline({"kind": "nll"}, 3e-4, steps) | {"data": NLL}
    yield Job(f"nll-{seed}", False, nll)


def broken(seed: int) -> Iterable[Job]:
    """Give the runs that are broken on purpose."""
    hot = {"norm": 1e3}
    runs = {
        "dpo-offline-lr-x100": offline(DPO, 1e-2, 50),
        "dpo-offline-lr-x100-no-held-out": offline(DPO, 1e-2, 50, held_out=False),
        "dpo-humanline-k1-lr-x100": offline(DPO, 1e-2, 50, **before_step(1)),
        "dpo-beta3-humanline-k1-lr-x30-norm-1000": offline(DPO | {"beta": 3.0}, 3e-3, 50, **before_step(1), **hot),
        "kto-offline-lr-x30": offline(KTO, 1e-2, 50),
        "kto-humanline-k1-lr-x100": offline(KTO, 3e-2, 50, **before_step(1)),
        "grpo-offline-lr-x100": offline(GRPO | {"clip_eps": 0.5}, 3e-2, 50),
        "grpo-humanline-k1-lr-x30-norm-1000": offline(GRPO, 1e-2, 50, **before_step(1), **hot),
        "dpo-online-lr-x100": online(DPO, 1e-2, 8),
        "kto-online-humanline-lr-x100": online(KTO, 1e-2, 8, **before_step(1)),
        "grpo-online-lr-x30": online(GRPO, 3e-3, 8),
        "grpo-online-humanline-lr-x100-norm-1000": online(GRPO, 1e-2, 8, **before_step(1), **hot),
        "grpo-online-reward-for-length": online(GRPO, 1e-3, 10, reward="rewards:longer"),
        "grpo-online-reward-at-random": online(GRPO | {"kl_coef": 0.0}, 2e-3, 12, reward="rewards:chance"),
        "nll-lr-x500": offline({"kind": "nll"}, 0.15, 50) | {"data": NLL},
    }
    for name, tree in runs.items():
        yield Job(f"{name}-{seed}", True, tree)


def jobs(name: str) -> list[Job]:
    """Return all runs of a set: sound ones of all its seeds, but in rounds, which take longer, of all but the last."""
    seeds = SETS[name]
    found = [*broken(seeds[0])]
    for turn, seed in enumerate(seeds):
        found += sound(seed, turn, rounds=0 if seed == seeds[-1] else 6 + turn)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the start model, run what is missing, judge, and write the tables; return 1 if a run failed, else 0."""
    parser = argparse.ArgumentParser(description="How often training.collapse speaks of sound and of broken runs.")
    parser.add_argument("--set", choices=SETS, action="append", help="which runs (default: all)")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="folder for models and metrics")
    parser.add_argument("--results", type=Path, default=HERE, help="folder for results.json and results.md")
    parser.add_argument("--again", action="store_true", help="run nothing, judge the rows of finished runs anew")
    parser.add_argument("--only", default="", help="only runs whose name has this in it; writes no results")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"  # workers import rewards
    sys.path.insert(0, str(HERE))
    import torch

    torch.set_num_threads(1)
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "start" / "final" / "manifest.json").is_file():
        in_child(lambda: start(work), work / "start.log")
    if not options.again:
        warm_up(work / "start" / "final")
    results = {"first": [], "second": []} if not (file := options.results / "results.json").is_file() else read(file)
    failed = 0
    for name in options.set or SETS:
        found = []
        for job in jobs(name):
            if options.only not in job.name:
                continue
            folder = work / name / job.name
            if not options.again and not is_finished(work, job, folder):
                in_child(lambda job=job, folder=folder: run(work, job, folder), Path(f"{folder}.log"))
            if is_finished(work, job, folder):
                found.append(judge(job, folder))
                print(f"{name}: {json.dumps(found[-1])}", flush=True)
            else:
                failed += 1
                print(f"{name}: {job.name} has no outcome with these settings: see {folder}.log", flush=True)
        results[name] = found
    if failed:
        print(f"Runs without an outcome: {failed}. Nothing is written: counts without them would be others")
        return 1
    if not options.only:
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (options.results / "results.md").write_text(page(results), encoding="utf-8")
    return 0


def read(file: Path) -> Any:
    """Return the contents of a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def in_child(act: Any, log: Path) -> None:
    """Call a function in a forked process, which has all imports already, with what it prints in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(log, "w", encoding="utf-8") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                act()
                code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.waitpid(pid, 0)


def warm_up(model: Path) -> None:
    """Import what runs import, once for all children, by loading a model; nothing that starts a thread."""
    import torch

    import humanline.train.loop  # noqa: F401
    from humanline.train.online.samplers import make_stages  # noqa: F401
    from humanline.train.policy.load import load_policy
    from humanline.train.policy.logprobs import LogprobModel
    from humanline.train.run.fingerprint import software
    from humanline.train.run.processes import start_accelerator

    start_accelerator()
    policy, _ = load_policy(str(model), dropout=False, max_length=48)
    ids = torch.arange(4)[None]
    with torch.no_grad():
        LogprobModel(policy)(ids, torch.ones((1, 3), dtype=torch.bool))
        policy.generate(ids, max_new_tokens=2, do_sample=False)
    torch.optim.AdamW(policy.parameters())
    software()


def start(work: Path) -> None:
    """Make the demo's start model, its pairs and its words."""
    from humanline.reproduce.quick import leave_for_recipes
    from humanline.reproduce.start import make_pairs, make_start
    from humanline.reproduce.testbeds.letters import SMALL

    begun = make_start(SMALL, "near", 0, work / "starts")
    print(begun, make_pairs(SMALL, "near", 0, 0, work / "starts"))
    leave_for_recipes(work, begun)


def config_of(work: Path, job: Job, folder: Path) -> Any:
    """Return the configuration of a job."""
    from humanline.train.config import TrainConfig

    data = {k: str(work / v) if k in ("train", "eval") else v for k, v in job.tree["data"].items()}
    paths = {"model": str(work / "start" / "final"), "output": str(folder), "data": data}
    return TrainConfig.model_validate(job.tree | paths | {"seed": int(job.name.rsplit("-", 1)[1])})


def is_finished(work: Path, job: Job, folder: Path) -> bool:
    """Return whether a folder has the outcome of a job with today's settings, but for the limits of the watch."""
    from humanline.train.config import TrainConfig

    if not (folder / "outcome.json").is_file():
        return False
    then = read(folder / "config.used.json")
    now = config_of(work, job, folder).model_dump(mode="json")
    for one in (then, now):
        one["training"].pop("collapse")
    return TrainConfig.model_validate(then) == TrainConfig.model_validate(now)


def run(work: Path, job: Job, folder: Path) -> None:
    """Run one job, and note how its model answers words it has never seen."""
    from humanline.reproduce.answers import Model
    from humanline.reproduce.testbeds.letters import SMALL
    from humanline.train.loop import train

    shutil.rmtree(folder, ignore_errors=True)
    config = config_of(work, job, folder)
    outcome: dict[str, Any] = {}
    try:
        result = train(config)
        scores = Model(SMALL, result.model).draw("score", 1, 0).scores(SMALL)
        outcome["score"] = sum(scores) / len(scores)
        shutil.rmtree(result.model)
    except FloatingPointError as error:  # a run may also end by itself; every other error is one of this script
        outcome["error"] = str(error).splitlines()[0][:200]
    (folder / "config.used.json").write_text(config.model_dump_json(), encoding="utf-8")
    (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


def judge(job: Job, folder: Path) -> dict[str, Any]:
    """Return the watch's verdict on a run's rows, and how the run ended."""
    from humanline.train.config import TrainConfig
    from humanline.train.run.collapse import CollapseWatch
    from humanline.train.run.metrics import read_metrics

    tree = read(folder / "config.used.json")
    tree["training"].pop("collapse")  # as recipes have it that say nothing
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "broke" not in row]
    watch = CollapseWatch(TrainConfig.model_validate(tree), _Nowhere(), lambda line: None)
    for row in rows:
        watch.write(row)
    broke = watch.broken
    return {
        "name": job.name,
        "broken": job.is_broken,
        "line": None if broke is None else f"{broke.what} ({broke.of.replace('_', '-')}), {broke.value:.3g}",
        "after": None if broke is None else broke.updates,
        "updates": max((row["step"] + 1 for row in rows if "step" in row), default=0),
        **read(folder / "outcome.json"),
    }


class _Nowhere:
    def write(self, row: dict[str, Any]) -> None:
        """Keep nothing."""


def gsm8k() -> list[dict[str, Any]]:
    """Return the watch's verdict on the first and last look of each run of examples/gsm8k, from its results.json."""
    from humanline.train.config import TrainConfig
    from humanline.train.run.collapse import CollapseWatch

    found = []
    for cell in read(HERE.parent / "gsm8k" / "results.json")["cells"]:
        tree = {
            "objective": cell["objective"],
            "data": {"train": "-"},
            "training": {"epochs": 1},
            "optimizer": {"lr": 0},
        }
        watch = CollapseWatch(TrainConfig.model_validate({"model": "-", "output": "-"} | tree), _Nowhere(), str)
        for updates, look in ((0, cell["initial"]), (cell["steps"], cell["held_out"])):
            watch.write({"updates": updates, "held_out": look})
        name = f"{cell['setting']}, {cell['variant']}, seed {cell['seed']}"
        found.append({"name": name, "line": watch.broken is not None})
    return found


def share(count: int, total: int) -> str:
    """Return a count with the exact 95 % interval (Clopper and Pearson) of its share."""
    from scipy.stats import beta

    low = beta.ppf(0.025, count, total - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, total - count) if count < total else 1.0
    return f"{count} of {total} ({100 * low:.1f} to {100 * high:.1f} %)"


def page(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables."""
    lines = [
        "# Lines of training.collapse on sound and on broken runs",
        "",
        "Written by `python examples/collapse/run.py`, which says what is run. A line to a sound run is a false one.",
        "Shares have the exact 95 % interval. Score: the share of right letters in the final model's answers to words",
        "never seen, of which the watch knows nothing; the start model's is about 0.56.",
        "",
        "| set | sound runs with a line | broken runs with a line | lowest score of a sound run |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, found in results.items():
        sound_runs, broken_runs = ([one for one in found if one["broken"] == kind] for kind in (False, True))
        if not found:
            continue
        told = [sum(one["line"] is not None for one in runs) for runs in (sound_runs, broken_runs)]
        lowest = min((one["score"] for one in sound_runs if "score" in one), default=float("nan"))
        lines.append(
            f"| {name} | {share(told[0], len(sound_runs))} | {share(told[1], len(broken_runs))} | {lowest:.3f} |"
        )
    of_gsm8k = gsm8k()
    told_of = [one["name"] for one in of_gsm8k if one["line"]]
    hot = [name for name in told_of if name.startswith("KTO, beta 0.1, lr 1e-3")]
    lines += [
        "",
        f"On the {len(of_gsm8k)} runs of examples/gsm8k, whose results.json keeps the first and the last look at",
        f"held-out pairs: {len(told_of)} lines, {len(hot)} of them to its six runs of KTO at lr 1e-3. The limit was",
        "chosen on an earlier making of all of them but those with k = 8 and 32.",
    ]
    for name, found in results.items():
        lines += ["", f"## Broken on purpose, and sound with a line: {name} set", ""]
        lines += ["| run | updates | line after | what | score |", "| --- | ---: | ---: | --- | ---: |"]
        for one in found:
            if one["broken"] or one["line"] is not None:
                score = f"{one['score']:.3f}" if "score" in one else one["error"].replace("|", "/")[:60]
                after = "no line" if one["line"] is None else one["after"]
                what = one["line"] or ""
                label = one["name"] if one["broken"] else f"SOUND: {one['name']}"
                lines.append(f"| {label} | {one['updates']} | {after} | {what} | {score} |")
    counts = Counter(one["name"].rsplit("-", 1)[0] for found in results.values() for one in found if not one["broken"])
    lines += ["", "Sound runs, by setting: " + ", ".join(f"{name} {count}" for name, count in counts.items()) + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
