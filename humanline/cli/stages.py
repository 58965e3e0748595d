"""The stages of a round, each as a command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from humanline.cli.common import Commands, add_preset, load, quiet_libraries, say, set_up_allocator, until_stopped
from humanline.system.terminal import visible


def stage_commands(commands: Commands) -> None:
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
        add_preset(stage)
        stage.set_defaults(run=run)
    sample.add_argument("--limit", type=int, metavar="N", help="sample from the first N prompts only")


def _sample(options: argparse.Namespace) -> int:
    set_up_allocator()
    from humanline.train.online.commands import sample

    if options.limit is not None and options.limit < 1:
        raise ValueError(f"--limit must be >= 1; got {options.limit}")
    return _stage(options, "prompts", lambda config, **how: sample(config, options.out, limit=options.limit, **how))


def _score(options: argparse.Namespace) -> int:
    set_up_allocator()
    from humanline.train.online.commands import score

    return _stage(options, "completions", lambda config, **how: score(config, options.samples, options.out, **how))


def _stage(options: argparse.Namespace, what: str, stage: Callable[..., Path]) -> int:
    """Run a stage that can be stopped and gone on with."""

    def work(*, progress: Callable[[str], Any], **how: Any) -> list[str]:
        config = load(options)
        quiet_libraries()
        return [visible(str(stage(config, progress=progress(what), **how)))]

    return until_stopped(options, work)


def _pair(options: argparse.Namespace) -> int:
    from humanline.train.online.commands import pair

    print(visible(str(pair(load(options), options.scored, options.out, say=say(options)))))
    return 0
