"""The command line. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_EXIT_USER_ERROR = 2
_EXIT_NOT_FINITE = 3
_EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 bad input, 3 a number not finite, 130 interrupted."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command == "train" and not any(word.startswith("-") for word in rest):
        options.overrides += rest  # overrides after an option, which argparse by itself does not take
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print(f"humanline {options.command}: interrupted; no model was saved", file=sys.stderr)
        return _EXIT_INTERRUPTED
    except FloatingPointError as error:
        print(f"humanline {options.command}: stopped: {error}", file=sys.stderr)
        return _EXIT_NOT_FINITE
    except (ValueError, OSError) as error:
        if not (isinstance(error, OSError) or _is_for_users(error)):
            raise
        print(f"humanline {options.command}: {error}", file=sys.stderr)
        return _EXIT_USER_ERROR
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "humanline":
            raise
        print(
            f"humanline {options.command}: the package {error.name!r} is missing; "
            "install the training extra: pip install 'humanline[train]'",
            file=sys.stderr,
        )
        return _EXIT_USER_ERROR


def _is_for_users(error: Exception) -> bool:
    """Return whether an error was raised by humanline about its input, so that its message alone is enough."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("humanline.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="humanline", description="Perceptual alignment: humanline DPO, KTO and GRPO.")
    commands = parser.add_subparsers(dest="command", required=True)

    train = commands.add_parser("train", help="train a model as a recipe says")
    train.add_argument("recipe", help="YAML recipe")
    train.add_argument("overrides", nargs="*", metavar="section.key=value", help="replace values of the recipe")
    train.add_argument("--quiet", action="store_true", help="show no progress")
    train.set_defaults(run=_train)

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

    demo = commands.add_parser("demo", help="train and align tiny models on a task made on the spot, and compare")
    demo.add_argument("--out", default="demo-out", help="folder to create (default: demo-out)")
    demo.add_argument("--seeds", type=int, default=4, help="runs of each cell of the table")
    demo.add_argument("--processes", type=int, default=2, help="runs at a time")
    demo.set_defaults(run=_demo)
    return parser


def _quiet_libraries() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # ours says what a run is doing


def _train(options: argparse.Namespace) -> int:
    from humanline.train.config import load_config

    config = load_config(options.recipe, options.overrides)
    from humanline.train.device import leave_processes
    from humanline.train.loop import train

    _quiet_libraries()
    train(config, show_progress=not options.quiet)
    leave_processes()
    return 0


def _new_model(options: argparse.Namespace) -> int:
    from humanline.train.new_model import new_model

    _quiet_libraries()
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
    print(path)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from humanline.demo import demo

    demo(options.out, seeds=options.seeds, processes=options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
