"""The command line. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

if TYPE_CHECKING:
    from humanline.train.config import TrainConfig

_LONGEST_LINE = 4000  # characters of a message; names and texts from outside may be of any length
_EXIT_FAULT = 1
_EXIT_USER_ERROR = 2
_EXIT_NOT_FINITE = 3
_EXIT_BROKEN = 4
_EXIT_INTERRUPTED = 130
_EXIT_UNREAD = 141  # what a shell makes of SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done, 1 a fault of humanline or a library, 2 bad input, or too little room on the disk or in memory, 3 a number
    not finite, 4 a training run that has broken and was to stop then (training.collapse), 69 another process of a
    training run gone, failed or standing still (go on with --resume), 75 a training run or a study stopped on request
    with all of it saved, 130 another command interrupted, 141 the output not read to its end. A traceback, of a fault
    or of memory that ran out, goes to a log file, whose name is printed; with HUMANLINE_DEBUG=1 in the environment it
    is raised.
    """
    try:
        from humanline.system.imports import shown_safely

        try:
            with shown_safely():
                return _run(arguments)
        finally:
            sys.stdout.flush()  # here, where it can be told that nobody reads any more, as behind `| head`
    except BrokenPipeError:
        if not _is_unread():
            raise
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the exit
        return _EXIT_UNREAD


def _is_unread() -> bool:
    """Return whether the standard output is a pipe that nobody reads any more."""
    import select

    try:
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in pipe.poll(0))
    except (OSError, ValueError):  # it is closed, or no file
        return False


def _run(arguments: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a narrow encoding is no reason to stop
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if hasattr(options, "overrides") and not any(word.startswith("-") for word in rest):
        options.overrides += rest  # overrides after an option, which argparse by itself does not take
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    from humanline.system.stop import EXIT_STOPPED, StopRequested

    try:
        return int(options.run(options))
    except StopRequested as request:  # before the command was ready for one
        _complain(options, f"{request} before anything was begun")
        return EXIT_STOPPED
    except KeyboardInterrupt:
        _complain(options, "interrupted; no model was saved")
        return _EXIT_INTERRUPTED
    except FloatingPointError as error:
        _complain(options, f"stopped: {error}")
        return _EXIT_NOT_FINITE
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            raise
        if isinstance(error, OSError) or (isinstance(error, ValueError) and _is_for_users(error)):
            _complain(options, str(error))
            return _EXIT_USER_ERROR
        if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] != "humanline":
            extra = "notebooks" if error.name.split(".")[0] == "matplotlib" else "train"
            kind = {"notebooks": "notebooks", "train": "training"}[extra]
            install = f"install the {kind} extra: pip install 'humanline[{extra}]'"
            _complain(options, f"the package {error.name!r} is missing; {install}")
            return _EXIT_USER_ERROR
        if os.environ.get("HUMANLINE_DEBUG", "0") not in ("", "0"):
            raise
        from humanline.system.out_of_memory import is_out_of_memory

        _complain(options, _report_fault(error, options, sys.argv[1:] if arguments is None else arguments))
        return _EXIT_USER_ERROR if is_out_of_memory(error) else _EXIT_FAULT


def _complain(options: argparse.Namespace, text: str) -> None:
    """Print a message that may hold names and texts from outside."""
    from humanline.system.terminal import shorten, told

    lines = told(f"humanline {options.command}: {text}", keep="\n").split("\n")
    try:
        print("\n".join(shorten(line, _LONGEST_LINE) for line in lines), file=sys.stderr, flush=True)
    except OSError:  # nobody reads any more; the exit code says it all the same
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _report_fault(error: Exception, options: argparse.Namespace, words: Sequence[str]) -> str:
    """Write the traceback to a log file and return what to say about it."""
    import shlex
    import tempfile
    import traceback
    from datetime import datetime

    from humanline import __version__
    from humanline.system.out_of_memory import MemoryRanOutError, is_out_of_memory
    from humanline.system.paths import absolute
    from humanline.system.terminal import redact
    from humanline.train.config.secrets import hidden

    reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))
    what = f"a fault inside humanline or a library, not in your input: {reason[:400]}"
    if is_out_of_memory(error):
        what = f"out of memory: {reason[:400]}\nA smaller training.micro_batch_size makes each pass smaller."
    if isinstance(error, MemoryRanOutError):
        what = redact(str(error))
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    head = f"{now}, version {__version__}: humanline {shlex.join(hidden(list(words), sent=True))}\n"
    text = redact(head + "".join(traceback.format_exception(error))) + "\n"
    # Set by a command that has an output folder.
    folder = Path(os.devnull)
    with contextlib.suppress(ValueError):  # a name that no folder can have may be what the fault is about
        folder = absolute(getattr(options, "folder", None) or os.devnull)
    is_run = (folder / "config.json").is_file() and (folder / "metrics.jsonl").is_file()
    with contextlib.suppress(OSError):
        if is_run:
            log = folder / "error.log"
            with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        else:
            handle, name = tempfile.mkstemp(prefix="humanline-error-", suffix=".log")
            log = Path(name)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        return f"{what}\nThe traceback is in {log}"
    return f"{what}\n{text}"  # nowhere to write it


def _is_for_users(error: Exception) -> bool:
    """Return whether an error was raised by humanline about its input, so that its message alone is enough."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("humanline.")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        from humanline.system.terminal import told
        from humanline.train.config.secrets import hidden

        super().error(told(hidden(message, sent=True)))


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="humanline", description="Perceptual alignment: humanline DPO, KTO and GRPO.")
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_run_commands, _stage_commands, _answer_commands, _recipe_commands, _model_commands, _study_commands):
        add(commands)
    return parser


def _run_commands(commands: _Commands) -> None:
    """Add what trains, or looks at what would be trained."""
    train = commands.add_parser("train", help="train a model as a recipe says")
    _add_recipe(train)
    train.add_argument("--resume", action="store_true", help="go on with the run in the output folder, or start it")
    train.add_argument("--quiet", action="store_true", help="show no progress")
    several = (
        "processes that share each batch on this machine, a GPU or a part of the CPU for each (default: one); with "
        "training.sharding=full they share weights, gradients and optimizer states too"
    )
    train.add_argument("--processes", type=int, metavar="N", help=several)
    _add_preset(train)
    train.set_defaults(run=_train)

    validate = commands.add_parser("validate", help="check recipe, model, data and disk; train nothing, write nothing")
    _add_recipe(validate)
    validate.add_argument("--no-data", action="store_true", help="check the configuration alone")
    validate.add_argument("--processes", type=int, default=1, help="how many processes will train (default: 1)")
    _add_preset(validate)
    validate.set_defaults(run=_validate)

    estimate = commands.add_parser("estimate", help="say what memory and compute a run takes, and whether it fits")
    _add_recipe(estimate)
    estimate.add_argument("--gpu-memory", type=float, metavar="GIB", help="of each GPU (default: this machine's)")
    estimate.add_argument("--gpus", type=int, default=1, help="how many GPUs share a batch (default: 1)")
    estimate.add_argument("--tflops", type=float, help="rate of a large matmul there (default: measured if here)")
    _add_preset(estimate)
    estimate.set_defaults(run=_estimate)


def _stage_commands(commands: _Commands) -> None:
    """Add the stages of a round, each as a command."""
    sample = commands.add_parser("sample", help="draw completions of a recipe's prompts, as its rounds do")
    score = commands.add_parser("score", help="score the completions of a samples file as a recipe says")
    pair = commands.add_parser("pair", help="make preference pairs of scored completions: best against worst")
    for stage, given, run in ((sample, None, _sample), (score, "samples", _score), (pair, "scored", _pair)):
        stage.add_argument("recipe", help="YAML recipe whose source is rounds, or the name of a shipped one")
        if given is not None:
            stage.add_argument(given, help=f"file made by humanline {'sample' if given == 'samples' else 'score'}")
        stage.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace values of the recipe")
        stage.add_argument("--out", required=True, help="file to make; nothing is overwritten")
        stage.add_argument("--quiet", action="store_true", help="show no progress")
        _add_preset(stage)
        stage.set_defaults(run=run)
    sample.add_argument("--limit", type=int, metavar="N", help="sample from the first N prompts only")


def _answer_commands(commands: _Commands) -> None:
    """Add what says whether data will do, how good a model is, and whether a difference is real."""
    inspect = commands.add_parser("inspect-data", help="say how probable a model finds the answers it would learn from")
    inspect.add_argument("data", metavar="RECIPE|FILE", help="a recipe, or with --model a file of rows")
    inspect.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace values of the recipe")
    inspect.add_argument("--model", help="folder or hub:NAME; RECIPE|FILE is then a file (default: the recipe's model)")
    inspect.add_argument("--rows", type=int, metavar="N", help="score N rows drawn at random (default: all)")
    inspect.add_argument("--own-samples", type=int, default=0, metavar="N", help="answers of the model to compare with")
    inspect.add_argument("--keep-quartiles", metavar="2,3,4", help="write the rows of these quartiles to --out")
    inspect.add_argument("--scored", help="of a recipe in rounds: answers that are scored already (default: made here)")
    inspect.add_argument("--keep-pass-rate", metavar="0.2:0.8", help="write the prompts of this band to --out")
    inspect.add_argument("--out", help="folder for inspection.json, figure and scores (default: scores in FILE.scores)")
    inspect.add_argument("--quiet", action="store_true", help="show no progress")
    _add_preset(inspect)
    inspect.set_defaults(run=_inspect_data)

    evaluate = commands.add_parser("evaluate", help="ask a recipe's model, score its answers and sum them up")
    _add_recipe(evaluate)
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
    evaluate.add_argument("--quiet", action="store_true", help="show no progress")
    _add_preset(evaluate)
    evaluate.set_defaults(run=_evaluate)

    rate = commands.add_parser("win-rate", help="say how often a file's answers beat another's, by scores or a judge")
    rate.add_argument("answers", help="file of humanline sample or score, or a folder of humanline evaluate")
    rate.add_argument("overrides", nargs="*", metavar="key=value", help="replace values of the judge's file")
    rate.add_argument("--against", required=True, metavar="ANSWERS", help="the baseline's; joined by the prompts' ids")
    rate.add_argument("--judge", metavar="FILE", help="YAML file that says who judges (default: the answers' scores)")
    rate.add_argument("--words", nargs="+", default=[], metavar="FILE", help="words.jsonl of folders: not asked again")
    rate.add_argument("--out", required=True, help="folder to make, or to go on with")
    rate.add_argument("--name", help="of the model, for humanline compare (default: what its file tells)")
    rate.add_argument("--seed", type=int, help="of the model's training run (default: what its file tells)")
    rate.add_argument("--quiet", action="store_true", help="show no progress")
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


def _recipe_commands(commands: _Commands) -> None:
    """Add what shows and copies recipes."""
    schema = commands.add_parser("schema", help="print the JSON schema of a recipe, for editors")
    schema.set_defaults(run=_schema)

    listing = commands.add_parser("ls", help="list the shipped recipes")
    listing.set_defaults(run=_ls)

    cp = commands.add_parser("cp", help="copy a shipped recipe, to be edited; nothing is overwritten")
    cp.add_argument("name", help="a name that ls lists")
    cp.add_argument("destination", nargs="?", default=".", help="file to create, or a folder (default: this one)")
    cp.set_defaults(run=_cp)


def _model_commands(commands: _Commands) -> None:
    """Add what makes models without training."""
    new = commands.add_parser("new-model", help="make a tiny Llama with a tokenizer trained on a text")
    new.add_argument("out", help="folder to create")
    new.add_argument("--text", required=True, help="a .txt or .jsonl file to train the tokenizer on")
    new.add_argument("--fields", nargs="+", help="the .jsonl fields to use; default: every string")
    new.add_argument("--vocab-size", type=int, default=2048)
    new.add_argument("--hidden-size", type=int, default=128)
    new.add_argument("--layers", type=int, default=2)
    new.add_argument("--heads", type=int, default=4)
    new.add_argument("--max-length", type=int, default=1024, help="positions the model is built for")
    new.add_argument("--seed", type=int, default=0)
    new.set_defaults(run=_new_model)

    merged = commands.add_parser("merge", help="make one whole model of an adapter and its base")
    merged.add_argument("adapter", help="folder of a finished run that trained an adapter")
    merged.add_argument("out", help="folder to create")
    merged.add_argument("--base", help="the base model, if it is not where the adapter's files say")
    merged.set_defaults(run=_merge)


def _study_commands(commands: _Commands) -> None:
    """Add what shows the method and the paper's claims on small problems."""
    from humanline.plots import FIGURES

    demo = commands.add_parser("demo", help="train and align tiny models on a task made on the spot, and compare")
    demo.add_argument("--out", default="demo-out", help="folder to create (default: demo-out)")
    demo.add_argument("--seeds", type=int, default=4, help="runs of each cell of the table")
    demo.add_argument("--processes", type=int, default=2, help="runs at a time")
    demo.set_defaults(run=_demo)

    sim = commands.add_parser("sim", help="judge the paper's claims on problems small enough to be exact")
    sim.add_argument("claims", nargs="*", metavar="CLAIM", help="judge these alone (default: all, with figures)")
    sim.add_argument("--quick", action="store_true", help="few seeds and one learning rate: a minute, wide intervals")
    sim.add_argument("--out", help="folder to write to (default: sim-out, or sim-quick)")
    sim.add_argument("--processes", type=int, help="runs at a time (default: one for each core)")
    sim.add_argument("--quiet", action="store_true", help="show no progress")
    sim.set_defaults(run=_sim)

    figures = commands.add_parser("figures", help="make the figures of theory and simulator: CSV, SVG, PNG")
    figures.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(FIGURES)}")
    figures.add_argument("--out", default="figures", help="folder to write to, made if need be (default: figures)")
    figures.set_defaults(run=_figures)


def _add_recipe(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", help="YAML recipe, or the name of a shipped one")
    command.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace values of the recipe")


def _add_preset(command: argparse.ArgumentParser) -> None:
    from humanline.recipes import PRESETS

    command.add_argument("--preset", choices=PRESETS, help="the paper's numbers, or what its released code does")


def _load(options: argparse.Namespace) -> TrainConfig:
    """Return the configuration that recipe, preset and overrides make, in this order."""
    from humanline.recipes import preset_overrides, resolve
    from humanline.train.config import load_config

    recipe = resolve(options.recipe)
    preset = preset_overrides(options.preset, recipe, options.overrides) if options.preset else []
    return load_config(recipe, [*preset, *options.overrides])


def _quiet_libraries() -> None:
    from humanline.system.imports import quiet_libraries

    quiet_libraries()


def _set_up_allocator() -> None:
    """Set up how torch takes memory, for this process and those that it starts; before torch is imported."""
    from humanline.system.allocator import growing_segments

    os.environ |= growing_segments(os.environ, sys.platform)


def _train(options: argparse.Namespace) -> int:
    from humanline.system.launcher import LAUNCHED_BY, from_slurm
    from humanline.system.parent import die_with_parent
    from humanline.system.stop import outlive

    os.environ |= from_slurm(os.environ)
    _set_up_allocator()
    if options.processes is not None:
        if options.processes < 1:
            raise ValueError(f"--processes must be >= 1; got {options.processes}")
        if options.processes > 1:
            return _launch(options)
    if os.environ.get(LAUNCHED_BY) != str(os.getppid()):
        return _train_here(options)
    die_with_parent(os.getppid())
    try:
        return _train_here(options)
    finally:
        outlive()  # a signal that the launcher passes on would otherwise end in another code what has come to its end


def _train_here(options: argparse.Namespace) -> int:
    """Train in this process, alone or as one of several."""
    from humanline.system.activity import EXIT_FOLLOWED, EXIT_NEIGHBOUR, NeighbourError
    from humanline.system.launcher import LAUNCHED_BY
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal

    with StopSignal() as stop:
        try:
            config = _load(options)
            options.folder = config.output  # where a fault is logged
            from humanline.train.loop import train
            from humanline.train.run.collapse import CollapseError
            from humanline.train.run.processes import MainProcessError, leave_processes

            _quiet_libraries()
            try:
                train(config, resume=options.resume, stop=stop, show_progress=not options.quiet)
            except CollapseError as broken:
                _complain(options, str(broken))
                leave_processes()
                return _EXIT_BROKEN
            except MainProcessError as error:
                _complain(options, str(error))
                return EXIT_FOLLOWED if LAUNCHED_BY in os.environ else _EXIT_USER_ERROR
            leave_processes()
        except NeighbourError as error:
            _complain(options, str(error))
            sys.stdout.flush()
            os._exit(EXIT_NEIGHBOUR)  # what waits for the other process at the exit would wait in vain
        except StopRequested as request:
            while_loading = "" if stop.holding else " while loading; no step was begun by this call"
            _complain(options, f"{request}{while_loading}")
            if stop.holding:  # so that all processes have come here
                from humanline.train.run.processes import leave_processes

                leave_processes()
            return EXIT_STOPPED
    return 0


def _launch(options: argparse.Namespace) -> int:
    """Train in several processes, once the recipe was read."""
    config = _load(options)
    from humanline.system.files import output_path
    from humanline.train.run.launch import launch

    output_path(config.output)
    words = ["train", options.recipe, *options.overrides]
    words += ["--resume"] if options.resume else []
    words += ["--quiet"] if options.quiet else []
    words += ["--preset", options.preset] if options.preset else []
    return launch(words, options.processes)


def _validate(options: argparse.Namespace) -> int:
    import shlex

    from humanline.system.terminal import told
    from humanline.train.preflight.validate import validate

    config = _load(options)
    command = ["humanline", "train", options.recipe, *options.overrides]
    command += ["--preset", options.preset] if options.preset else []
    command += ["--processes", str(options.processes)] if options.processes > 1 else []
    if options.no_data:
        from humanline.train.config.describe import describe_config

        print(told(describe_config(config), keep="\n"))
        print(told(f"the configuration is valid; model, data and disk were not looked at: {shlex.join(command)}"))
        return 0
    _quiet_libraries()
    result = validate(config, processes=options.processes)
    if result.resumable:
        command.append("--resume")
    print(told(f"ready: {shlex.join(command)}"))
    return 0


def _estimate(options: argparse.Namespace) -> int:
    from humanline.system.terminal import told

    config = _load(options)
    from humanline.train.preflight.fits import estimate_run

    _quiet_libraries()
    lines, fits = estimate_run(config, gpu_memory=options.gpu_memory, gpus=options.gpus, tflops=options.tflops)
    for line in lines:
        print(told(line))
    return 0 if fits else _EXIT_USER_ERROR


def _sample(options: argparse.Namespace) -> int:
    _set_up_allocator()
    from humanline.train.online.commands import sample

    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit must be >= 1; got {options.limit}")
    return _stage(options, "prompts", lambda config, **how: sample(config, options.out, limit=options.limit, **how))


def _score(options: argparse.Namespace) -> int:
    _set_up_allocator()
    from humanline.train.online.commands import score

    return _stage(options, "completions", lambda config, **how: score(config, options.samples, options.out, **how))


def _stage(options: argparse.Namespace, what: str, work: Callable[..., Path]) -> int:
    """Run a stage that can be stopped and gone on with."""
    from humanline.system.progress import CountProgress
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal
    from humanline.system.terminal import visible

    with StopSignal() as stop:
        try:
            config = _load(options)
            _quiet_libraries()
            with CountProgress(what, show=not options.quiet) as progress:
                path = work(config, stop=stop, say=_say(options), progress=progress)
        except StopRequested as request:
            _complain(options, str(request))
            return EXIT_STOPPED
    print(visible(str(path)))
    return 0


def _inspect_data(options: argparse.Namespace) -> int:
    from humanline.evaluate.inspect_run import config_of_file
    from humanline.system.progress import CountProgress
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal
    from humanline.system.terminal import told

    if options.rows is not None and options.rows < 1:
        raise ValueError(f"--rows must be >= 1; got {options.rows}")
    if options.own_samples < 0:
        raise ValueError(f"--own-samples must be >= 0; got {options.own_samples}")
    if options.model is not None and options.preset:
        raise ValueError("--preset changes a recipe; with --model there is none")
    options.recipe = options.data
    with StopSignal() as stop, contextlib.ExitStack() as shown:

        def counted(what: str) -> CountProgress:
            return shown.enter_context(CountProgress(what, show=not options.quiet))

        try:
            _quiet_libraries()
            if options.model is None:
                config = _load(options)
            else:
                config = config_of_file(options.data, options.model, options.overrides)
            inspect = _inspect_rows if config.rounds is None else _inspect_prompts
            lines, paths = inspect(config, options, stop=stop, say=_say(options), progress=counted)
        except StopRequested as request:
            _complain(options, str(request))
            return EXIT_STOPPED
    for line in [*lines, *map(str, paths)]:
        print(told(line, keep="\n"))
    return 0


def _inspect_rows(config: TrainConfig, options: argparse.Namespace, **how: Any) -> tuple[list[str], list[Path]]:
    """Inspect rows with answers; return what to say, and the files that were written."""
    from humanline.evaluate.filters import quartiles_named
    from humanline.evaluate.inspect_run import NAME, inspect_data
    from humanline.evaluate.inspection import describe
    from humanline.system.progress import ReadingProgress

    _refuse_options(options, "rows with answers", "scored", "keep_pass_rate")
    keep = quartiles_named(options.keep_quartiles) if options.keep_quartiles is not None else ()
    counting = ReadingProgress(not options.quiet)
    given = {"out": options.out, "rows": options.rows, "own_samples": options.own_samples}
    found = inspect_data(config, **given, keep_quartiles=keep, counting=counting, **how)
    if options.out is None:
        return list(describe(found)), []
    from humanline.plots import write_levels

    return list(describe(found)), [Path(options.out) / NAME, *write_levels(options.out, found)]


def _inspect_prompts(config: TrainConfig, options: argparse.Namespace, **how: Any) -> tuple[list[str], list[Path]]:
    """Inspect prompts by the scores of answers to them; return what to say, and the files that were written."""
    from humanline.evaluate.filters import band_named
    from humanline.evaluate.inspect_prompts import NAME, inspect_prompts
    from humanline.evaluate.prompt_rates import describe_rates

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
    from humanline.system.progress import CountProgress
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal
    from humanline.system.terminal import visible

    if any(k < 1 for k in options.k):
        raise ValueError(f"--k must be >= 1; got {min(options.k)}")
    if options.preferences is not None and (options.prompts or options.samples or options.k):
        raise ValueError("--preferences has answers of its own; leave out --prompts, --samples and --k")
    if options.reference is not None and options.preferences is None:
        raise ValueError("--reference is for --preferences FILE")
    if options.harness_task:
        return _harness_task(options)
    with StopSignal() as stop, contextlib.ExitStack() as shown:
        try:
            config = _load(options)
            _quiet_libraries()
            how: dict[str, Any] = {"name": options.name, "seed": options.seed, "stop": stop, "say": _say(options)}
            how["progress"] = lambda what: shown.enter_context(CountProgress(what, show=not options.quiet))
            if options.preferences is not None:
                path = evaluate_preferences(
                    config, options.preferences, options.out, reference=options.reference, **how
                )
            else:
                path = evaluate(
                    config, options.out, prompts=options.prompts, samples=options.samples, ks=options.k, **how
                )
        except StopRequested as request:
            _complain(options, str(request))
            return EXIT_STOPPED
    print(visible(str(path)))
    return 0


def _win_rate(options: argparse.Namespace) -> int:
    from humanline.evaluate.judge_config import read_judge
    from humanline.evaluate.win_rate import win_rate
    from humanline.system.progress import CountProgress
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal
    from humanline.system.terminal import visible

    if options.judge is None and (options.overrides or options.words):
        raise ValueError("--words and key=value are about a judge: name one, --judge FILE")
    with StopSignal() as stop:
        try:
            judge = None if options.judge is None else read_judge(options.judge, options.overrides)
            with CountProgress("questions", show=judge is not None and not options.quiet) as progress:
                path = win_rate(
                    options.answers,
                    options.against,
                    options.out,
                    judge=judge,
                    words=options.words,
                    name=options.name,
                    seed=options.seed,
                    stop=stop,
                    say=_say(options),
                    progress=progress,
                )
        except StopRequested as request:
            _complain(options, str(request))
            return EXIT_STOPPED
    print(visible(str(path)))
    return 0


def _alpaca(options: argparse.Namespace) -> int:
    from humanline.evaluate.alpaca_eval.annotations import evaluate_annotations
    from humanline.evaluate.alpaca_eval.outputs import write_model_outputs
    from humanline.system.terminal import visible

    how = {"name": options.name, "say": _say(options), "instructions": options.instructions}
    if options.way == "outputs":
        path = write_model_outputs(options.samples, out=options.out, answer=options.answer, **how)
    else:
        path = evaluate_annotations(options.annotations, options.out, difficulty=options.difficulty, **how)
    print(visible(str(path)))
    return 0


def _harness_task(options: argparse.Namespace) -> int:
    from humanline.evaluate.harness import write_task
    from humanline.system.terminal import visible

    unused = [f"--{name}" for name in ("samples", "name", "seed", "k") if getattr(options, name) not in (None, [])]
    if unused:
        raise ValueError(f"--harness-task writes a task and asks nothing: leave out {', '.join(unused)}")
    config = _load(options)
    _quiet_libraries()
    print(visible(str(write_task(config, options.out, prompts=options.prompts, say=_say(options)))))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from humanline.evaluate.compare import compare
    from humanline.evaluate.declared import declared_by
    from humanline.evaluate.records import read_evaluation
    from humanline.evaluate.report import describe, write_comparison
    from humanline.system.terminal import told, visible

    names = ("test", "margin", "baseline", "unit")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    declared = declared_by(options.plan, given)
    found = compare([read_evaluation(file) for file in options.files], declared)
    for line in describe(found):
        print(told(line))
    if options.out is not None:
        from humanline.plots import write_differences

        written = write_comparison(options.out, found)
        for path in [written, *write_differences(written.parent, found)]:
            print(visible(str(path)))
    return 0


def _pair(options: argparse.Namespace) -> int:
    from humanline.system.terminal import visible
    from humanline.train.online.commands import pair

    print(visible(str(pair(_load(options), options.scored, options.out, say=_say(options)))))
    return 0


def _say(options: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line to standard error, or nothing if the command is to be quiet."""
    from humanline.system.terminal import told

    return lambda text: None if options.quiet else print(told(text, keep="\n"), file=sys.stderr, flush=True)


def _schema(options: argparse.Namespace) -> int:
    from humanline.train.config.schema import schema_text

    print(schema_text(), end="")
    return 0


def _ls(options: argparse.Namespace) -> int:
    from humanline import recipes

    width = max(map(len, recipes.names()))
    for name in recipes.names():
        print(f"{name:<{width}}  {recipes.describe(name)}")
    return 0


def _cp(options: argparse.Namespace) -> int:
    from humanline.recipes import copy
    from humanline.system.terminal import visible

    print(visible(str(copy(options.name, options.destination))))
    return 0


def _new_model(options: argparse.Namespace) -> int:
    _quiet_libraries()
    from humanline.train.policy.new_model import new_model

    path = new_model(
        options.out,
        text=options.text,
        fields=options.fields,
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        layers=options.layers,
        heads=options.heads,
        max_length=options.max_length,
        seed=options.seed,
    )
    from humanline.system.terminal import visible

    print(visible(str(path)))
    return 0


def _demo(options: argparse.Namespace) -> int:
    _quiet_libraries()
    from humanline.demo import demo

    demo(options.out, seeds=options.seeds, processes=options.processes)
    return 0


def _sim(options: argparse.Namespace) -> int:
    from humanline.sim.report import FULL, QUICK, study
    from humanline.system.progress import CountProgress
    from humanline.system.stop import EXIT_STOPPED, StopRequested, StopSignal
    from humanline.system.terminal import visible

    processes = options.processes if options.processes is not None else len(os.sched_getaffinity(0))
    out = options.out or ("sim-quick" if options.quick else "sim-out")
    scale = QUICK if options.quick else FULL
    progress = CountProgress("runs", show=not options.quiet)
    with StopSignal() as stop:

        def finished(done: int, total: int) -> None:
            progress(done, total)
            if stop.requested is not None:
                raise StopRequested(stop.requested)

        stop.hold()  # an exception in the middle of torch's or SQLite's work would be a fault
        try:
            with progress:
                report = study(out, claims=options.claims, scale=scale, processes=processes, progress=finished)
        except StopRequested as request:
            kept = f"{progress.done} of {progress.total} runs are kept in {out}; the same command goes on"
            _complain(options, f"{request}: {kept}")
            return EXIT_STOPPED
        figures = []
        if not options.claims:
            from humanline.plots import write_study_figures

            figures = write_study_figures(out, report)
    width = max(len(judgement.claim.name) for judgement in report.judgements)
    for judgement in report.judgements:
        print(f"{judgement.claim.name:<{width}}  {judgement.verdict:<13}  {judgement.summary}")
    for path in [Path(out) / "claims.md", *figures]:
        print(visible(str(path)))
    return 0


def _merge(options: argparse.Namespace) -> int:
    from humanline.system.terminal import visible
    from humanline.train.policy.merge import merge

    _quiet_libraries()
    print(visible(f"model: {merge(options.adapter, options.out, options.base)}"))
    return 0


def _figures(options: argparse.Namespace) -> int:
    from humanline.plots import write_figures
    from humanline.system.terminal import visible

    for path in write_figures(options.out, options.names):
        print(visible(str(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
