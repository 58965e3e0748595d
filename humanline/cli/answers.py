"""Commands that say what data will do, how good a model is, and whether a difference is real."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.cli.common import Commands, add_preset, add_recipe, load, quiet_libraries, say, until_stopped
from humanline.system.terminal import told, visible

if TYPE_CHECKING:
    from humanline.train.config import TrainConfig


def answer_commands(commands: Commands) -> None:
    """Add what says whether data will do, how good a model is, and whether a difference is real."""
    inspect = commands.add_parser("inspect-data", help="say how probable a model finds the answers it would learn from")
    inspect.add_argument("data", metavar="RECIPE|FILE", help="a recipe, or with --model a file of rows")
    inspect.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace values of the recipe")
    inspect.add_argument("--model", help="folder or hub:NAME; RECIPE|FILE is then a file (default: the recipe's model)")
    inspect.add_argument("--rows", type=int, metavar="N", help="score N rows drawn at random (default: all)")
    inspect.add_argument("--own-samples", type=int, default=0, metavar="N", help="answers of the model to compare with")
    inspect.add_argument(
        "--probe", type=int, metavar="STEPS", help="train a throw-away copy: drift and clipping by quartile"
    )
    inspect.add_argument("--keep-quartiles", metavar="2,3,4", help="write the rows of these quartiles to --out")
    inspect.add_argument("--scored", help="of a recipe in rounds: answers that are scored already (default: made here)")
    inspect.add_argument("--keep-pass-rate", metavar="0.2:0.8", help="write the prompts of this band to --out")
    inspect.add_argument("--out", help="folder for inspection.json, figure and scores (default: scores in FILE.scores)")
    inspect.add_argument("--quiet", action="store_true", help="show no progress")
    add_preset(inspect)
    inspect.set_defaults(run=_inspect_data)

    evaluate = commands.add_parser("evaluate", help="ask a recipe's model, score its answers and sum them up")
    add_recipe(evaluate)
    evaluate.add_argument("--out", required=True, help="folder to make, or to go on with")
    evaluate.add_argument("--prompts", help="file of prompts (default: data.eval)")
    evaluate.add_argument("--samples", help="answers that are there already, made by humanline sample")
    rated = "rate the pairs of this file, by evaluation.scoring, or with --reference by the model's implicit reward"
    evaluate.add_argument("--preferences", metavar="FILE", help=rated)
    evaluate.add_argument("--reference", metavar="MODEL", help="of --preferences: what the model was trained from")
    evaluate.add_argument("--name", help="of the model, for humanline compare (default: of its run or folder)")
    evaluate.add_argument("--seed", type=int, help="of the model's training run (default: what its run says)")
    evaluate.add_argument("--k", type=int, nargs="+", default=[], help="of pass@k, majority@k (default: powers of 2)")
    evaluate.add_argument(
        "--harness-task", action="store_true", help="only write a task of lm-evaluation-harness, and its command"
    )
    evaluate.add_argument("--quiet", action="store_true", help="say nothing but the file's name")
    add_preset(evaluate)
    evaluate.set_defaults(run=_evaluate)

    rate = commands.add_parser("win-rate", help="say how often a file's answers beat another's, by scores or a judge")
    rate.add_argument("answers", help="file of humanline sample or score, or a folder of humanline evaluate")
    rate.add_argument("overrides", nargs="*", metavar="key=value", help="replace values of the judge's file")
    rate.add_argument("--against", required=True, metavar="ANSWERS", help="the baseline's; joined by the prompts' ids")
    rate.add_argument("--judge", metavar="FILE", help="YAML file that says who judges (default: the answers' scores)")
    rate.add_argument(
        "--words", nargs="+", default=[], metavar="FOLDER", help="of other win rates: what was said there is not asked"
    )
    rate.add_argument("--out", required=True, help="folder to make, or to go on with")
    rate.add_argument("--name", help="of the model, for humanline compare (default: what its file tells)")
    rate.add_argument("--seed", type=int, help="of the model's training run (default: what its file tells)")
    rate.add_argument("--quiet", action="store_true", help="say nothing but the file's name")
    rate.set_defaults(run=_win_rate)

    alpaca = commands.add_parser("alpaca", help="AlpacaEval's files: make model_outputs.json, read annotations.json")
    ways = alpaca.add_subparsers(dest="way", required=True)
    outputs = ways.add_parser("outputs", help="make model_outputs.json of a samples file")
    outputs.add_argument("samples", help="file of humanline sample, or a folder of humanline evaluate")
    outputs.add_argument("--instructions", required=True, metavar="FILE", help="the package's set: alpaca_eval.json")
    outputs.add_argument("--answer", type=int, metavar="N", help="which of several answers (default: there is one)")
    annotations = ways.add_parser("annotations", help="read annotations.json: win rate, standard error, missing ones")
    annotations.add_argument("annotations", help="annotations.json of the package")
    annotations.add_argument("--instructions", metavar="FILE", help="the package's set, to count what is not annotated")
    annotations.add_argument("--difficulty", metavar="FILE", help="df_gamed.csv, for the length-controlled rate")
    for way in (outputs, annotations):
        way.add_argument("--out", required=True, help="file to make; nothing is overwritten")
        way.add_argument("--name", help="of the model (default: what the file tells)")
        way.add_argument("--quiet", action="store_true", help="say nothing but the file's name")
    alpaca.set_defaults(run=_alpaca)

    compare = commands.add_parser("compare", help="compare evaluations item by item: differences, intervals, margins")
    compare.add_argument("files", nargs="+", metavar="FILE", help="evaluation.json, or its folder; the baseline first")
    compare.add_argument("--plan", help="YAML file that declares test, margin and family beforehand")
    compare.add_argument("--test", choices=("difference", "non-inferiority", "equivalence"), help="without a plan")
    compare.add_argument("--margin", type=float, help="in the unit of the values; without a plan")
    compare.add_argument("--baseline", metavar="NAME", help="without a plan (default: the first file's model)")
    compare.add_argument("--unit", choices=("items", "seeds", "both"), help="without a plan (default: what files hold)")
    compare.add_argument("--out", help="folder to write comparison.json and a figure to; it must be free")
    compare.set_defaults(run=_compare)


def _inspect_data(options: argparse.Namespace) -> int:
    from humanline.evaluate.inspect_run import config_of_file

    if options.rows is not None and options.rows < 1:
        raise ValueError(f"--rows must be >= 1; got {options.rows}")
    if options.own_samples < 0:
        raise ValueError(f"--own-samples must be >= 0; got {options.own_samples}")
    if options.model is not None and options.preset:
        raise ValueError("--preset changes a recipe; with --model there is none")
    if options.model is not None and options.probe is not None:
        raise ValueError(
            "--probe trains as a recipe says, and a file with --model has none: no objective, transform, schedule or "
            f"learning rate. Give the recipe: humanline inspect-data RECIPE data.train={options.data} "
            f"model={options.model} --probe {options.probe}"
        )
    _refuse_other_kind(options.data, options.model)
    options.recipe = options.data

    def work(**how: Any) -> list[str]:
        quiet_libraries()
        if options.model is None:
            config = load(options)
        else:
            config = config_of_file(options.data, options.model, options.overrides)
        inspect = _inspect_rows if config.rounds is None else _inspect_prompts
        lines, paths = inspect(config, options, **how)
        return [told(line, keep="\n") for line in [*lines, *map(str, paths)]]

    return until_stopped(options, work)


def _refuse_other_kind(data: str, model: str | None) -> None:
    """Raise ValueError if there is a file of rows where a recipe is expected, or the other way about."""
    kind = Path(data).suffix.lower()
    if model is None and kind in (".jsonl", ".ndjson", ".parquet"):
        raise ValueError(f"{data} is no recipe; say which model finds its rows how probable: {data} --model MODEL")
    if model is not None and kind in (".yaml", ".yml"):
        raise ValueError(f"with --model a file of rows is expected; a recipe takes another model by model={model}")


def _inspect_rows(config: TrainConfig, options: argparse.Namespace, **how: Any) -> tuple[list[str], list[Path]]:
    """Inspect rows with answers; return what to say, and the files that were written."""
    from humanline.evaluate.filters import quartiles_named
    from humanline.evaluate.inspect_run import NAME, inspect_data
    from humanline.evaluate.inspection import describe
    from humanline.plots import check as check_figures
    from humanline.system.progress import ReadingProgress

    _refuse_options(options, "rows with answers", "scored", "keep_pass_rate")
    keep = quartiles_named(options.keep_quartiles) if options.keep_quartiles is not None else ()
    if options.out is not None:
        check_figures()
    counting = ReadingProgress(not options.quiet)
    given = {"out": options.out, "rows": options.rows, "own_samples": options.own_samples, "probe": options.probe}
    found = inspect_data(config, **given, keep_quartiles=keep, counting=counting, **how)
    if options.out is None:
        return list(describe(found)), []
    from humanline.plots import write_figure

    return list(describe(found)), [Path(options.out) / NAME, *write_figure(options.out, "levels", found)]


def _inspect_prompts(config: TrainConfig, options: argparse.Namespace, **how: Any) -> tuple[list[str], list[Path]]:
    """Inspect prompts by the scores of answers to them; return what to say, and the files that were written."""
    from humanline.evaluate.filters import band_named
    from humanline.evaluate.inspect_prompts import NAME, inspect_prompts
    from humanline.evaluate.probe import refuse_probe
    from humanline.evaluate.prompt_rates import describe_rates

    if options.probe is not None:
        refuse_probe(config, options.probe)
    _refuse_options(options, "prompts", "rows", "own_samples", "keep_quartiles")
    band = band_named(options.keep_pass_rate) if options.keep_pass_rate is not None else None
    found = inspect_prompts(config, out=options.out, scored=options.scored, band=band, **how)
    return list(describe_rates(found)), [] if options.out is None else [Path(options.out) / NAME]


def _refuse_options(options: argparse.Namespace, what: str, *names: str) -> None:
    """Raise ValueError if an option is given that makes no sense of such data."""
    for name in names:
        if getattr(options, name) not in (None, 0):
            raise ValueError(f"--{name.replace('_', '-')} is not for {what}")


def _evaluate(options: argparse.Namespace) -> int:
    from humanline.evaluate.accuracy import evaluate_preferences
    from humanline.evaluate.run import evaluate

    if any(k < 1 for k in options.k):
        raise ValueError(f"--k must be >= 1; got {min(options.k)}")
    if options.preferences is not None and (options.prompts or options.samples or options.k):
        raise ValueError("--preferences has answers of its own; leave out --prompts, --samples and --k")
    if options.samples is not None and options.prompts is not None:
        raise ValueError("--samples has answers with their prompts; leave out --prompts")
    if options.reference is not None and options.preferences is None:
        raise ValueError("--reference is for --preferences FILE")
    if options.harness_task:
        return _harness_task(options)

    def work(**how: Any) -> list[str]:
        config = load(options)
        quiet_libraries()
        how |= {"name": options.name, "seed": options.seed}
        if options.preferences is not None:
            path = evaluate_preferences(config, options.preferences, options.out, reference=options.reference, **how)
        else:
            path = evaluate(config, options.out, prompts=options.prompts, samples=options.samples, ks=options.k, **how)
        return [visible(str(path))]

    return until_stopped(options, work)


def _win_rate(options: argparse.Namespace) -> int:
    from humanline.evaluate.judge_config import read_judge
    from humanline.evaluate.win_rate import win_rate

    if options.judge is None and (options.overrides or options.words):
        raise ValueError("--words and key=value are about a judge: name one, --judge FILE")
    # An option that takes several files takes what replaces a value, too, where that comes after them.
    taken = [word for word in options.words if "=" in word and not Path(word).exists()]
    overrides, words = [*options.overrides, *taken], [word for word in options.words if word not in taken]
    if options.words and not words:
        raise ValueError(f"--words names no file or folder, only {', '.join(taken)}")

    def work(*, progress: Callable[[str], Any], **how: Any) -> list[str]:
        judge = None if options.judge is None else read_judge(options.judge, overrides)
        path = win_rate(
            options.answers,
            options.against,
            options.out,
            judge=judge,
            words=words,
            name=options.name,
            seed=options.seed,
            progress=None if judge is None else progress("questions"),
            **how,
        )
        return [visible(str(path))]

    return until_stopped(options, work)


def _alpaca(options: argparse.Namespace) -> int:
    from humanline.evaluate.alpaca_eval.annotations import evaluate_annotations
    from humanline.evaluate.alpaca_eval.outputs import write_model_outputs

    how = {"name": options.name, "say": say(options), "instructions": options.instructions}
    if options.way == "outputs":
        path = write_model_outputs(options.samples, out=options.out, answer=options.answer, **how)
    else:
        path = evaluate_annotations(options.annotations, options.out, difficulty=options.difficulty, **how)
    print(visible(str(path)))
    return 0


def _harness_task(options: argparse.Namespace) -> int:
    from humanline.evaluate.harness import write_task

    names = ("samples", "preferences", "reference", "name", "seed", "k")
    unused = [f"--{name}" for name in names if getattr(options, name) not in (None, [])]
    if unused:
        raise ValueError(f"--harness-task writes a task and asks nothing: leave out {', '.join(unused)}")
    config = load(options)
    quiet_libraries()
    print(visible(str(write_task(config, options.out, prompts=options.prompts, say=say(options)))))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from humanline.evaluate.compare import compare
    from humanline.evaluate.declared import declared_by
    from humanline.evaluate.records import read_evaluation
    from humanline.evaluate.report import describe, write_comparison
    from humanline.plots import check as check_figures

    if options.out is not None:
        check_figures()

    names = ("test", "margin", "baseline", "unit")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    declared = declared_by(options.plan, given)
    found = compare([read_evaluation(file) for file in options.files], declared)
    for line in describe(found):
        print(told(line))
    if options.out is not None:
        from humanline.plots import write_figure

        written = write_comparison(options.out, found)
        for path in [written, *write_figure(written.parent, "differences", found)]:
            print(visible(str(path)))
    return 0
