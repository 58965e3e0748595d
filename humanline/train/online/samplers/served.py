"""The weights that a server samples from: saved, announced to it, and proved to be those it has (`prover.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from humanline.system.files import make_folder
from humanline.system.folders import remove_folder
from humanline.train.config.rounds import ProofConfig
from humanline.train.data.prompts import Context
from humanline.train.online.samplers.passes import AskedPasses
from humanline.train.online.samplers.prover import Prover, WrongWeights
from humanline.train.online.samplers.server import ServerSampler
from humanline.train.online.stages import read_rollouts, served_folder, served_name
from humanline.train.policy.save import save_together
from humanline.train.run.processes import Processes


class ServedWeights:
    """Give a server the policy's weights under a name, and prove that it has taken them.

    All processes of a run call its methods alike; the main one talks to the server.

    Parameters
    ----------
    sampler : ServerSampler
    weights
        The model, or the adapter, as it is when the name is told.
    passes : AskedPasses
        Tells what the policy says of texts.
    folder : Path
        In which `served/` is made (all but the newest weights in it are removed), and the proof is kept.
    proof : ProofConfig or None
        None where nothing is to be proved.
    processes : Processes
    say : callable
    """

    def __init__(
        self,
        sampler: ServerSampler,
        weights: Any,
        passes: AskedPasses,
        folder: Path,
        proof: ProofConfig | None,
        processes: Processes,
        say: Callable[[str], None],
    ) -> None:
        self.sampler, self.weights, self.passes = sampler, weights, passes
        self.folder, self.processes = folder, processes
        self.served: str | None = None
        self.proof = None if proof is None else Prover(sampler, passes, folder, proof, say)

    def publish(self, name: str) -> None:
        """Give the server the weights as they are now.

        Raises
        ------
        SamplerError
            As `ServerSampler.publish` does, and if the server proves to have other weights than these; in the main
            process, and MainProcessError in the others.
        """
        if self.processes.agree(self.served == name and not self.sampler.asleep):
            return
        if self.sampler.engine.sleeps:
            torch.cuda.empty_cache()  # what training does not use just now goes back to the GPU that it shares
        target = self.write(name)
        self.passes.on_main(lambda: self._announce(target, name))
        self.served = name

    def write(self, name: str) -> Path:
        """Write the weights as they are now, unless they are there under that name; return their folder."""
        target = served_folder(self.folder, name)
        if not self.processes.agree(target.is_dir()):
            self.processes.on_main(lambda: make_folder(target.parent))
            save_together(target, self.weights, self.sampler.renderer.tokenizer, self.processes)
        return target

    def _announce(self, target: Path, name: str) -> None:
        """Tell the server of weights that are written, let it prove that it has them, and remove older ones."""
        self.sampler.publish(target, name)
        if self.proof is not None:
            self.proof.check(name)
        for older in target.parent.iterdir():  # no longer asked for
            if older != target and older.is_dir() and not older.name.startswith("."):
                remove_folder(older)

    def sampled(self, journals: Sequence[Path], contexts: Sequence[Context]) -> None:
        """Compare the server with the policy once more; the texts of that are taken from the first samples.

        A server may have been started again while it was sampled from, or given weights by another run.

        Raises
        ------
        SamplerError
            If what the server says of them is not what the policy does; the journals are put aside.
        """
        self.passes.on_main(lambda: self._sampled(journals, contexts))

    def _sampled(self, journals: Sequence[Path], contexts: Sequence[Context]) -> None:
        if self.proof is None or self.served is None:
            return
        there = [journal for journal in journals if journal.is_file()]
        try:
            if self.proof.is_begun:
                self.proof.check(self.served, sampled=True)
                return
            rollouts = [one for path in there for one in read_rollouts(path) if served_name(one.policy) == self.served]
            self.proof.begin(self.served, rollouts, {context.id: context for context in contexts})
        except WrongWeights as error:
            aside = [str(_put_aside(journal)) for journal in there]
            raise WrongWeights(f"{error}. What it gave is now {', '.join(aside)} and will be sampled again") from None

    def rest(self) -> None:
        """Put the server to sleep until it is given weights again, if it is to leave its GPU to training."""
        if self.sampler.engine.sleeps:
            self.processes.on_main(lambda: self.sampler.rest(self.folder / "served"))

    def facts(self, name: str) -> dict[str, Any]:
        """Return the facts found when the server was given the weights of that name; empty if there are none."""
        return self.proof.facts(name) if self.proof is not None else {}


def _put_aside(file: Path) -> Path:
    """Give a file a name that no journal has, and nothing else yet; return it."""
    number = 1
    while (aside := file.with_name(f"{file.name}.refused-{number}")).exists():
        number += 1
    return file.rename(aside)
