"""Commands that train, or look at what would be trained."""

from __future__ import annotations

import argparse
import os
import sys

from humanline.cli.common import (
    EXIT_BROKEN,
    EXIT_USER_ERROR,
    Commands,
    add_preset,
    add_recipe,
    complain,
    load,
    quiet_libraries,
    set_up_allocator,
)
from humanline.system.terminal import told


def run_commands(commands: Commands) -> None:
    """Add what trains, or looks at what would be trained."""
    train = commands.add_parser("train", help="train a model as a recipe says")
    add_recipe(train)
    train.add_argument("--resume", action="store_true", help="go on with the run in the output folder, or start it")
    train.add_argument("--quiet", action="store_true", help="show no progress")
    several = (
        "processes that share each batch on this machine, a GPU or a part of the CPU for each (default: one); with "
        "training.sharding=full they share weights, gradients and optimizer states too"
    )
    train.add_argument("--processes", type=int, metavar="N", help=several)
    add_preset(train)
    train.set_defaults(run=_train)

    validate = commands.add_parser("validate", help="check recipe, model, data and disk; train nothing, write nothing")
    add_recipe(validate)
    validate.add_argument("--no-data", action="store_true", help="check the configuration alone")
    validate.add_argument("--processes", type=int, default=1, help="how many processes will train (default: 1)")
    add_preset(validate)
    validate.set_defaults(run=_validate)

    estimate = commands.add_parser("estimate", help="say what memory and compute a run takes, and whether it fits")
    add_recipe(estimate)
    estimate.add_argument("--gpu-memory", type=float, metavar="GIB", help="of each GPU (default: this machine's)")
    estimate.add_argument("--gpus", type=int, default=1, help="how many GPUs share a batch (default: 1)")
    estimate.add_argument("--tflops", type=float, help="rate of a large matmul there (default: measured if here)")
    add_preset(estimate)
    estimate.set_defaults(run=_estimate)

    status = commands.add_parser("status", help="say where a run stands, also while it goes on; change nothing")
    status.add_argument("folder", help="the run's output folder")
    status.set_defaults(run=_status)


def _train(options: argparse.Namespace) -> int:
    from humanline.system.launcher import LAUNCHED_BY, from_slurm
    from humanline.system.parent import die_with_parent
    from humanline.system.stop import outlive

    os.environ |= from_slurm(os.environ)
    set_up_allocator()
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
            config = load(options)
            options.folder = config.output  # where a fault is logged
            from humanline.train.loop import train
            from humanline.train.run.collapse import CollapseError
            from humanline.train.run.processes import MainProcessError, leave_processes

            quiet_libraries()
            try:
                train(config, resume=options.resume, stop=stop, show_progress=not options.quiet)
            except CollapseError as broken:
                complain(options, str(broken))
                leave_processes()
                return EXIT_BROKEN
            except MainProcessError as error:
                complain(options, str(error))
                return EXIT_FOLLOWED if LAUNCHED_BY in os.environ else EXIT_USER_ERROR
            leave_processes()
        except NeighbourError as error:
            complain(options, str(error))
            sys.stdout.flush()
            os._exit(EXIT_NEIGHBOUR)  # what waits for the other process at the exit would wait in vain
        except StopRequested as request:
            while_loading = "" if stop.holding else " while loading; no step was begun by this call"
            complain(options, f"{request}{while_loading}")
            if stop.holding:  # so that all processes have come here
                from humanline.train.run.processes import leave_processes

                leave_processes()
            return EXIT_STOPPED
    return 0


def _launch(options: argparse.Namespace) -> int:
    """Train in several processes, once the recipe was read."""
    config = load(options)
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

    from humanline.train.preflight.validate import validate

    config = load(options)
    command = ["humanline", "train", options.recipe, *options.overrides]
    command += ["--preset", options.preset] if options.preset else []
    command += ["--processes", str(options.processes)] if options.processes > 1 else []
    if options.no_data:
        from humanline.train.config.describe import describe_config

        print(told(describe_config(config), keep="\n"))
        print(told(f"the configuration is valid; model, data and disk were not looked at: {shlex.join(command)}"))
        return 0
    quiet_libraries()
    result = validate(config, processes=options.processes)
    if result.resumable:
        command.append("--resume")
    print(told(f"ready: {shlex.join(command)}"))
    return 0


def _estimate(options: argparse.Namespace) -> int:
    config = load(options)
    from humanline.train.preflight.fits import estimate_run

    quiet_libraries()
    lines, fits = estimate_run(config, gpu_memory=options.gpu_memory, gpus=options.gpus, tflops=options.tflops)
    for line in lines:
        print(told(line))
    return 0 if fits else EXIT_USER_ERROR


def _status(options: argparse.Namespace) -> int:
    from humanline.train.run.status import read_status

    for line in read_status(options.folder).lines():
        print(line)
    return 0
