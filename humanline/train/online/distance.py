"""How far a policy has travelled from its start: two divergences of answers, in nats an answer.

    kl_from_start = KL(start || policy) = E_{y ~ start}  sum_t log start(y_t | ..) - log policy(y_t | ..)
    kl_to_start   = KL(policy || start) = E_{y ~ policy} sum_t KL(policy(. | ..) || start(. | ..))

Answers are drawn at temperature 1 from the whole distribution and end as answers do, at an end token, a stop text or
their limit of length; the laws that are compared are of these, so that a limit that cuts many (`truncated`) hides a
part of the distance. For the first the start's answers are drawn once, before the first update, and lie in the run's
folder with the log-probabilities that training's own pass gives them: no weights of the start are needed later. For the
second the policy draws, and the sum over the vocabulary is exact at every position, which leaves far less variance than
log-ratios; the start's weights are read again for it, or an adapter is switched off. Random numbers are keyed and the
same at every look, and none of training's is touched.

No control variate is taken to the first, though sum_t policy(y_t) / start(y_t) - 1 needs no more than what is kept and
has mean 0. Very near the start it would help, but not where runs end: on policies of `humanline demo`, by 256 answers,
the standard deviation with coefficient 1 is that without at 0.7 nats (11.4 % and 11.6 %), and ten times that without at
13 (44 % and 4 %), since the ratio has a heavy right tail; a coefficient fitted to the same answers makes the mean 2 to
19 % too small.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from humanline.objectives import token_logprobs
from humanline.stats import mean_estimate
from humanline.system.activity import HERE
from humanline.system.files import DamagedError, make_folder, write_text
from humanline.system.progress import RunProgress
from humanline.train.config import TrainConfig
from humanline.train.data.batch import IDLE, Block, idle_sequence, make_block
from humanline.train.data.prompts import Context, contexts_hash
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import pad_id
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.stream import Batches
from humanline.train.online.own_law import OwnLaw, refuse_other_law
from humanline.train.online.rounds import Rounds
from humanline.train.online.samplers import make_distance_stages
from humanline.train.online.stages import SamplingStages, read_rollouts
from humanline.train.online.types import Rollout
from humanline.train.policy.adapter import Adapter
from humanline.train.policy.divergence import Pass, divergence_pass, freed, other_start, read_start
from humanline.train.policy.head import TokenLogprobs
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.run.fingerprint import trained_hash
from humanline.train.run.folder import RunFolder
from humanline.train.run.processes import NonFiniteError, Processes
from humanline.train.step.kept import KeptLogprobs
from humanline.train.step.reference import logprobs_pass
from humanline.train.step.trained import Trained

_KEY = 2**41  # in place of a round's number
_ADVICE = (
    "Nothing of them is kept. Does the server go by settings of its own (generation_config.json, its command line), or "
    "has it other weights? Mend that, then add --resume to the same command; or leave evaluation.distance out, or, at "
    "the end of a run, set evaluation.distance.to_start: never"
)
TARGET = 0.03  # of a distance that its standard error should be at most


class Distance:
    """Measure how far the policy is from the one that the run began with.

    Parameters
    ----------
    config : TrainConfig
        With a section evaluation.distance.
    contexts : non-empty sequence of Context
        The prompts.
    stages : SamplingStages
        Draw answers from the policy as it is.
    folder : Path
        Of what is kept: `start.jsonl`, the start's answers with their token log-probabilities.
    policy : LogprobModel
    logprobs_of : callable
        Gives its token log-probabilities of a block, without gradient.
    adapter : Adapter or None
    version : callable
        Returns the version of the policy's weights as they are now.
    files : str, optional
        The version of the weights that the model's files hold, where a resumed run has read them.
    pad_id : int
    say : callable
        Shows what a person should know.
    """

    def __init__(
        self,
        config: TrainConfig,
        contexts: Sequence[Context],
        stages: SamplingStages,
        folder: Path,
        policy: LogprobModel,
        logprobs_of: Pass,
        adapter: Adapter | None,
        *,
        version: Callable[[], str],
        files: str | None = None,
        pad_id: int,
        say: Callable[[str], None],
    ) -> None:
        assert config.evaluation.distance is not None
        self.config, self.settings, self.contexts = config, config.evaluation.distance, list(contexts)
        self.stages, self.processes, self.folder = stages, stages.processes, folder
        self.policy, self.logprobs_of, self.adapter = policy, logprobs_of, adapter
        self.version, self.files, self.pad_id, self.say = version, files, pad_id, say
        self._start: _StartAnswers | None = None

    @HERE.doing("measuring the distance from the start")
    def __call__(self, updates: int, last: bool) -> dict[str, float]:
        """Return the distances of the policy as it is after so many updates.

        Returns
        -------
        dict
            ``kl_from_start`` (nats an answer, mean over prompts of the mean over a prompt's answers), its standard
            error over prompts ``kl_from_start_se``, left out of a single prompt, ``kl_from_start_answers`` (count) and
            ``kl_from_start_truncated`` (share of them that ran into their limit); the same of ``kl_to_start`` at the
            looks that evaluation.distance.to_start names, or ``kl_to_start_left_out``, 1, where the start's weights
            have gone meanwhile: an error would keep the policy from being saved, since no run is resumed without them.

        Raises
        ------
        NonFiniteError
            If a log-probability is not finite.
        SamplerError
            If answers cannot be drawn, or are not those of the policy's own law.
        OSError, ValueError
            Before the first update, as `read_start` does, if the start's weights will be wanted.
        """
        if not updates:
            self._begin()
            if self._reads_start and self.settings.to_start == "end":
                with freed(self.processes.device):
                    self._read_start(self._known.policy)  # fails better now than when all is trained
        start = self._known
        now = self._token_values(start.rollouts, self._untempered)
        gained = [before - after for before, after in zip(start.logprobs, now, strict=True)]
        metrics = self._measured("kl_from_start", start.rollouts, gained, last)
        if self.settings.to_start == "looks" or (last and self.settings.to_start == "end"):
            metrics |= self._to_start(start.policy, updates, last)
        return metrics

    # What is kept of the start.

    @property
    def _known(self) -> _StartAnswers:
        assert self._start is not None  # before the first update, or taken over from a checkpoint
        return self._start

    @property
    def _reads_start(self) -> bool:
        return self.adapter is None and self.settings.to_start != "never"

    @property
    def file(self) -> Path:
        """Return the file of the start's answers."""
        return self.folder / "start.jsonl"

    def state(self) -> dict[str, Tensor]:
        """Return a digest of the start's answers, which lie in the run's folder; empty before they are drawn."""
        digest = b"" if self._start is None else self._start.digest.encode()
        return {"answers": torch.tensor(list(digest), dtype=torch.uint8)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Read the start's answers again.

        Raises
        ------
        DamagedError
            If they are not those that the run had.
        ModelError
            If the start's weights will be wanted, and the model's files hold others by now.
        """
        digest = bytes(state["answers"].tolist()).decode()
        self._start = None
        if not digest:
            return
        try:
            self._start = self._read()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"the start's answers in {self.file} cannot be read: {error}") from None
        if self._start.digest != digest:
            raise DamagedError(f"the start's answers in {self.file} are not those that the run had")
        if self._reads_start and self.files not in (None, self._start.policy):
            raise other_start(self.config)

    def remake(self) -> None:
        """Write the start's answers again if they are gone; for the main process."""
        if self._start is not None and not self.file.is_file():
            make_folder(self.folder)
            write_text(self.file, self._start.text)

    def _begin(self) -> None:
        """Have the start's answers: those that an earlier beginning of the run has drawn, or new ones."""
        if self._start is not None:
            return
        version = self.version()
        self.processes.on_main(lambda: make_folder(self.folder))
        if not self.processes.agree(self._is_there(version)):
            self._draw_start(version)
        self.processes.on_main(lambda: shutil.rmtree(self.folder / "drawn", ignore_errors=True))
        self.processes.each(lambda: setattr(self, "_start", self._read()))

    def _is_there(self, version: str) -> bool:
        if self.processes.rank or not self.file.is_file():
            return False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return self._read().policy == version
        return False

    def _draw_start(self, version: str) -> None:
        """Draw the start's answers and write them down with the log-probabilities that training's pass gives them."""
        rollouts, logprobs = self._draw(self.folder / "drawn", version, _KEY)
        found = iter(logprobs)
        scored = [
            replace(
                rollout,
                completions=tuple(replace(one, logprobs=next(found).tolist()) for one in rollout.completions),
            )
            for rollout in rollouts
        ]
        rows = "".join(json.dumps(rollout.row()) + "\n" for rollout in scored)
        head = {"policy": version, "prompts": contexts_hash(self.contexts), "sha256": _sha256(rows)}
        self.processes.on_main(lambda: write_text(self.file, json.dumps(head) + "\n" + rows))

    def _read(self) -> _StartAnswers:
        """Return the start's answers as the file has them; raise ValueError if it is damaged, or of other prompts."""
        text = self.file.read_text(encoding="utf-8")
        first, _, rows = text.partition("\n")
        head = json.loads(first)
        if head["sha256"] != _sha256(rows):
            raise ValueError("it is damaged")
        if head["prompts"] != contexts_hash(self.contexts):
            raise ValueError("it has answers to other prompts")
        rollouts = [Rollout.from_row(json.loads(line)) for line in rows.splitlines()]
        return _StartAnswers(rollouts, head["policy"], text)

    # Distances.

    def _untempered(self, block: Block, logprobs: TokenLogprobs = token_logprobs) -> Tensor:
        with self.policy.untempered(logprobs):
            return self.logprobs_of(block)

    def _to_start(self, version: str, updates: int, last: bool) -> dict[str, float]:
        """Return KL(policy || start) of new answers of the policy; without the start a warning, and that it is so."""
        folder = self.folder / "look"
        rollouts, _ = self._draw(folder, self.version(), _KEY + 1)
        self.processes.on_main(lambda: shutil.rmtree(folder, ignore_errors=True))
        with freed(self.processes.device):
            try:
                of = self._divergence(version)
            except (OSError, ValueError) as error:
                if not updates:
                    raise
                self.say(f"warning: kl_to_start is left out, since the start's weights cannot be read again: {error}")
                return {"kl_to_start_left_out": 1.0}
            found = self._token_values(rollouts, of)
            del of
        return self._measured("kl_to_start", rollouts, found, last)

    def _divergence(self, version: str) -> Pass:
        if self.adapter is not None:
            return divergence_pass(self.policy, self.logprobs_of, self.policy, self.logprobs_of, self.adapter.off)
        start = self._read_start(version)
        return divergence_pass(self.policy, self.logprobs_of, start, logprobs_pass(start))

    def _read_start(self, version: str) -> LogprobModel:
        return self.processes.alike(lambda: read_start(self.config, self.processes.device, version))

    def _draw(self, folder: Path, version: str, key: int) -> tuple[list[Rollout], list[Tensor]]:
        """Return answers of the policy as it is, in all processes, and their token log-probabilities.

        Raises
        ------
        NonFiniteError
            If one of these is not finite.
        SamplerError
            As stages do, and if they are not from its own law (`own_law`); then they are drawn again the next time.
        """
        self.processes.on_main(lambda: make_folder(folder))
        self.stages.sample(folder, self.contexts, key, version)
        found: list[Rollout] = []
        self.processes.each(lambda: found.extend(read_rollouts(folder / "samples.jsonl")))
        law = OwnLaw()
        logprobs = self._token_values(found, lambda block: self._untempered(block, law))
        if not all(bool(torch.isfinite(one).all()) for one in logprobs):
            raise NonFiniteError("answers that were drawn from the policy have log-probabilities that are not finite")
        log_odds = self.processes.reduce(law.log_odds, "sum").cpu()
        try:
            self.processes.alike(lambda: refuse_other_law(log_odds, sum(map(len, logprobs)), _ADVICE))
        except ValueError:
            self.processes.on_main(lambda: shutil.rmtree(folder, ignore_errors=True))
            raise
        return found, logprobs

    def _token_values(self, rollouts: Sequence[Rollout], of: Pass) -> list[Tensor]:
        """Return what a pass gives of each token of each answer, in all processes, each of which passes over a share.

        The rows of a pass are the same however many processes there are, and so is what they give.
        """
        sequences = [
            TokenSequence((*context.ids, *answer.ids), len(context.ids))
            for context, rollout in zip(self.contexts, rollouts, strict=True)
            for answer in rollout.completions
        ]
        lengths = [one.completion_length for one in sequences]
        values = torch.split(torch.zeros(sum(lengths)), lengths)
        order = sorted(range(len(sequences)), key=lambda place: -len(sequences[place].ids))
        size, rank, ranks = self.config.evaluation.batch_size, self.processes.rank, self.processes.ranks
        cuts = [order[i : i + size] for i in range(0, len(order), size)]
        for turn in range(-(-len(cuts) // ranks)):  # the same number in every process
            own = cuts[turn * ranks + rank] if turn * ranks + rank < len(cuts) else []
            rows = [sequences[place] for place in own] or [idle_sequence(sequences)]
            names = [str(place) for place in own] or [IDLE]
            block = make_block(rows, names, self.pad_id).to(self.processes.device)
            kept = KeptLogprobs.of(block, of(block)).to_host()
            counted = [place for place in own if lengths[place]]
            for place, found in zip(counted, torch.split(kept.values, list(kept.counts)), strict=True):
                values[place].copy_(found)
            self.processes.check()
        together = self.processes.reduce(torch.cat(values), "sum").cpu().double()
        return list(torch.split(together, lengths))

    def _measured(
        self, name: str, rollouts: Sequence[Rollout], tokens: Sequence[Tensor], last: bool
    ) -> dict[str, float]:
        """Return the mean over prompts of the mean over answers of the sum over tokens, and what is said of it."""
        answers = [answer for rollout in rollouts for answer in rollout.completions]
        sums = iter([float(one.sum()) for one in tokens])
        means = [math.fsum(next(sums) for _ in rollout.completions) / len(rollout.completions) for rollout in rollouts]
        if not all(map(math.isfinite, means)):
            return {name: math.nan}  # which the run refuses
        found = mean_estimate(means)
        metrics = {name: found.mean}
        if math.isfinite(found.error):
            metrics[f"{name}_se"] = found.error
            if last:
                self._tell_coarse(name, found.mean, found.error, len(answers))
        metrics[f"{name}_answers"] = float(len(answers))
        metrics[f"{name}_truncated"] = sum(answer.truncated for answer in answers) / len(answers)
        return metrics

    def _tell_coarse(self, name: str, value: float, error: float, answers: int) -> None:
        """Say how many answers would be enough, where these are not."""
        if error <= TARGET * abs(value):
            return
        said = f"{name}: {value:.3g} nats an answer, with a standard error of {error:.2g} from {answers} answers"
        if value <= 2 * error:
            self.say(f"{said}: it cannot be told from 0; more prompts (evaluation.distance.limit) would tell more")
            return
        wanted = math.ceil(answers * (error / (TARGET * value)) ** 2)
        self.say(
            f"{said}; about {wanted:,} answers, to more prompts (evaluation.distance.limit), would bring it to 3 %"
        )


class _StartAnswers:
    """The start's answers: to each prompt, with log-probabilities (nats) of training's pass; and their file's text."""

    def __init__(self, rollouts: Sequence[Rollout], policy: str, text: str) -> None:
        self.rollouts, self.policy, self.text = list(rollouts), policy, text
        self.digest = _sha256(text)
        self.logprobs = [
            torch.tensor(list(one.logprobs or ()), dtype=torch.float64)
            for rollout in rollouts
            for one in rollout.completions
        ]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_distance(
    config: TrainConfig,
    contexts: Sequence[Context],
    renderer: Renderer,
    folder: RunFolder,
    trained: Trained,
    batches: Batches,
    processes: Processes,
    progress: RunProgress,
) -> Distance | None:
    """Return what measures the distance from the start, if a run is to; raise ValueError as samplers do.

    Parameters
    ----------
    config : TrainConfig
    contexts : sequence of Context
        The prompts that are kept for it.
    renderer : Renderer
    folder : RunFolder
        Which sees to it that what is kept of the start stays there.
    trained : Trained
    batches : Batches
        Of rounds the server answers, where one samples.
    processes : Processes
    progress : RunProgress
    """
    if config.evaluation.distance is None:
        return None
    rounds = batches.maker.stages if isinstance(batches, Rounds) else None
    settings = config.evaluation.distance
    reads = folder.resume and trained.adapter is None and settings.to_start != "never"
    distance = Distance(
        config,
        contexts,
        make_distance_stages(config, trained.policy, renderer, rounds, processes, progress.working),
        folder.distance,
        trained.policy,
        trained.logprobs_of,
        trained.adapter,
        version=lambda: trained_hash(trained.policy, processes.reduce),
        files=trained_hash(trained.policy, processes.reduce) if reads else None,
        pad_id=pad_id(renderer),
        say=progress.say,
    )
    folder.also.append(distance.remake)
    return distance
