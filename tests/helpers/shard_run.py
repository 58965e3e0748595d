"""Runs of several processes, forked or under `python -m torch.distributed.run`: for test_sharded_processes.py.

    shard_run.py OUT JOBS.json

`OUT/NAME.pt` gets the policy's whole weights at the end of each job, by its name, and `OUT/counts-RANK.json` the
collectives of a sharded policy's passes and update, and what is said of numbers that are not finite.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor.debug import CommDebugMode

from humanline.train.config import TrainConfig
from humanline.train.loop import take_steps
from humanline.train.policy.layers import decoder_layers
from humanline.train.policy.shard import whole_tensors
from humanline.train.run.processes import NonFiniteError
from humanline.train.run.shares import share_of
from humanline.train.setup import Run, set_up
from humanline.train.step.finite import Suspect, refuse_non_finite, refuse_non_finite_model


def collectives(act: Callable[[], object]) -> dict[str, int]:
    """Return how many collectives of each kind something takes."""
    with warnings.catch_warnings(), CommDebugMode() as counted:
        warnings.simplefilter("ignore")
        act()
    return {str(kind): number for kind, number in counted.get_comm_counts().items() if number}


def count(run: Run) -> dict[str, object]:
    """Count the collectives of a pass without gradient, of the passes of a micro-batch, and of an update."""
    micro, trained = run.batches.step(0).micro_batches[0], run.trained

    def passes() -> None:
        with trained.spread.accumulating(last=False):
            trained.spread.wrapped(*micro.block.inputs).sum().backward()

    trained.logprobs_of(micro.block)  # the first pass looks for the groups
    found: dict[str, object] = {"groups": len(decoder_layers(trained.policy.model)) + 1}
    found["scoring"] = collectives(lambda: trained.logprobs_of(micro.block))
    found["training"] = collectives(passes)
    found["clip"] = collectives(lambda: trained.spread.clip(1e-9))
    found["update"] = collectives(trained.optimizer.step)
    return found


def complaints(run: Run) -> list[str]:
    """Return what this process says where the second one alone finds numbers that are not finite."""
    micro, spread, processes = run.batches.step(0).micro_batches[0], run.trained.spread, run.processes
    nan = torch.tensor(torch.nan if processes.rank == 1 else 1.0)
    logprobs = spread.wrapped(*micro.block.inputs)
    logprobs.sum().backward()
    fine = Suspect(micro, torch.tensor(1.0), logprobs.detach())
    first = next(iter(spread.rows))
    shared = dict(run.trained.policy.named_parameters())[first]
    share_of(shared.grad).rows.view(-1)[0] *= nan
    norm = spread.clip(1.0)
    with torch.no_grad():
        spread.rows[first].view(-1)[0] *= nan
    said = []
    for refuse in (
        lambda: refuse_non_finite(0, [replace(fine, logprobs=fine.logprobs * nan)], torch.tensor(1.0), processes),
        lambda: refuse_non_finite(0, [replace(fine, logprobs=fine.logprobs * nan, loss=nan)], nan, processes),
        lambda: refuse_non_finite(0, [replace(fine, loss=nan)], nan, processes),
        lambda: refuse_non_finite(0, [fine], norm, processes),
        lambda: refuse_non_finite_model(run.trained.policy, processes.reduce),
    ):
        try:
            refuse()
            said.append("")
        except NonFiniteError as error:
            said.append(str(error))
    return said


def run_jobs(out: Path, jobs: dict[str, Any]) -> None:
    """Run jobs one after the other; all processes call this."""
    for name, tree in jobs.items():
        with set_up(TrainConfig.model_validate(tree), show_progress=False) as run:
            assert isinstance(run, Run)
            if name == "counts":
                found = count(run) | {"said": complaints(run)}
                (out / f"counts-{run.processes.rank}.json").write_text(json.dumps(found), encoding="utf-8")
                continue
            take_steps(run)
            weights = whole_tensors(dict(run.trained.policy.named_parameters()), keep=run.processes.rank == 0)
            if run.processes.rank == 0:
                torch.save(weights, out / f"{name}.pt")


def main() -> None:
    """Run the jobs of a file."""
    run_jobs(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    sys.stderr.flush()
    os._exit(0)  # without the group's teardown, in which gloo aborts now and then


if __name__ == "__main__":
    main()
