"""Compare a server's log-probabilities with the policy's, when it got new weights and when it has sampled from them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from humanline.system.files import write_text
from humanline.train.config.rounds import ProofConfig
from humanline.train.data.messages import Message
from humanline.train.data.prompts import Context
from humanline.train.online.ledger import LedgerError
from humanline.train.online.samplers.passes import Said
from humanline.train.online.samplers.proof import (
    FEW_TEXTS,
    FEW_TOKENS,
    MANY_TEXTS,
    Reading,
    Slope,
    Text,
    Verdict,
    compare,
    pick_texts,
)
from humanline.train.online.samplers.server import ServerSampler
from humanline.train.online.types import Rollout, SamplerError
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.precision import as_kept
from humanline.train.policy.shard import let_go

STATE, CHECKS = "proof.json", "proof-checks.json"
_MEANWHILE = "Was it started again meanwhile, or does another run give it weights?"
KEPT_CHECKS = 4  # versions whose check is kept: of a round, of the next one and of evaluations in between


def text_logprobs(policy: LogprobModel, texts: Mapping[str, Text]) -> dict[str, NDArray[np.float64]]:
    """Return the policy's log-probabilities of texts' tokens from each one's start on, at temperature 1.

    They are computed row by row, in float32 where the weights are, whatever precision training computes in: the change
    of one update may be smaller than the rounding of bf16. Where the policy is shared out all processes call this
    alike, and it is computed in what its weights are gathered in.
    """
    model, was_training = policy.model, policy.model.training
    found = {}
    model.eval()
    try:
        with torch.no_grad(), as_kept(policy), policy.untempered():
            for name, text in texts.items():
                ids = torch.tensor([text.ids], device=model.device)
                mask = (torch.arange(1, len(text.ids), device=model.device) >= text.start)[None]
                logprobs = policy(ids, mask)[mask]
                found[name] = logprobs.double().cpu().numpy()
    finally:
        let_go(policy)
        model.train(was_training)
    return found


@contextlib.contextmanager
def rounded_to_bf16(policy: LogprobModel) -> Iterator[None]:
    """Round a policy's weights to bf16 in its passes, as a server may hold them; no more than a layer's are kept twice.

    Where they are shared out it is what a pass has gathered that is rounded.
    """
    kept: list[tuple[torch.nn.Parameter, torch.Tensor]] = []

    def rounded(weights: Iterable[torch.nn.Parameter]) -> None:
        for weight in weights:
            if weight.dtype in (torch.float32, torch.float64):
                kept.append((weight, weight.data))
                weight.data = weight.data.to(torch.bfloat16).to(weight.dtype)

    def restore(count: int) -> None:
        while len(kept) > count:
            weight, values = kept.pop()
            weight.data = values

    depth: list[int] = []

    def before(module: torch.nn.Module, _: Any) -> None:
        depth.append(len(kept))
        # The output head is read without a call of its module.
        owner = module.model.get_output_embeddings() if isinstance(module, LogprobModel) else module
        rounded(owner.parameters(recurse=False))

    def after(*_: Any) -> None:
        restore(depth.pop())

    handles: list[Any] = []
    try:
        for module in policy.modules():
            if module is policy or any(True for _ in module.parameters(recurse=False)):
                handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
        yield
    finally:
        for handle in handles:
            handle.remove()
        restore(0)


def computes_in_float32(model: Any) -> bool:
    """Return whether all of a model's parameters are float32 or wider; those of 4 bits are not."""
    return all(weight.dtype in (torch.float32, torch.float64) for weight in model.parameters())


def said_of(policy: LogprobModel, texts: Mapping[str, Text], *, exact: bool) -> Said:
    """Return what a policy says of texts, where it computes in float32 (`exact`) also with weights rounded to bf16."""
    rounded = None
    if exact:
        with rounded_to_bf16(policy):
            rounded = text_logprobs(policy, texts)
    return Said(text_logprobs(policy, texts), rounded)


class WrongWeights(SamplerError):
    """A server that does not have the weights that it was given."""


class Prover:
    """Compare the server with the policy on a fixed set of texts, when it has got new weights and when it has sampled.

    The policies that a server may still have are the first one, which a server that ignores new weights keeps and a
    server that was started again has, and the last one that it was proved to have. What is known of them is kept in
    the folder, so that it outlives the process.

    Parameters
    ----------
    sampler : ServerSampler
    policy : callable
        Returns what the policy says of texts, as `said_of` does.
    folder : Path
    config : ProofConfig
    say : callable
    """

    def __init__(
        self,
        sampler: ServerSampler,
        policy: Callable[[Mapping[str, Text]], Said],
        folder: Path,
        config: ProofConfig,
        say: Callable[[str], None],
    ) -> None:
        self.sampler, self.policy, self.config, self.say = sampler, policy, config, say
        self.file, self.checks = folder / STATE, folder / CHECKS
        self._unprovable = False
        self._silent = ""  # the name of weights of which the server told nothing
        self._said: tuple[str, Mapping[str, Text], Said] | None = None  # by the policy of texts, under a name

    @property
    def is_begun(self) -> bool:
        """Return whether there are texts."""
        return self._unprovable or self.file.is_file()

    def begin(self, name: str, rollouts: Sequence[Rollout], contexts: Mapping[str, Context]) -> None:
        """Fix the texts, from samples of the policy as it is, and compare for the first time.

        Raises
        ------
        WrongWeights
            If server and policy are further apart than the tolerance.
        """
        candidates = [
            [
                (f"{rollout.id}/{number}", Text((*contexts[rollout.id].ids, *one.ids), len(contexts[rollout.id].ids)))
                for number, one in enumerate(rollout.completions)
                if one.ids
            ]
            for rollout in rollouts
            if rollout.id in contexts
        ]
        # One token less than a sequence may have: servers add one to what they are given.
        texts = pick_texts(candidates, self.config.tokens, self.sampler.renderer.limits.max_length - 1)
        if not texts:
            return
        told, trouble, reading = None, "", None
        with contextlib.suppress(SamplerError):  # the samples came: what fails is this kind of request
            told = self.sampler.given_logprobs(texts)
        state = _State(texts, [])
        if told is None:
            telling = [one for one in rollouts if any(answer.logprobs is not None for answer in one.completions)]
            count = max(MANY_TEXTS, -(-self.config.tokens // self._answer_tokens))
            state = _State({}, [contexts[rollout.id] for rollout in telling[:count]])
        if told is not None or state.prompts:
            try:
                reading = self._reading(state, name, told)
            except SamplerError as error:  # such as a server that refuses temperature 0
                trouble = f" ({error})"
        if reading is None:
            self._unprovable = True
            self.say(
                "warning: the server tells no log-probabilities, neither of texts that it is given nor of its most "
                f"probable answers: nothing proves which weights it samples from{trouble}"
            )
            return
        if reading.tokens < FEW_TOKENS or len(reading.texts) < FEW_TEXTS:
            self.say(
                f"warning: a server's weights are proved by {reading.tokens} tokens of {len(reading.texts)} texts, all "
                f"that there are; fewer than {FEW_TOKENS} tokens, or {FEW_TEXTS} texts, cannot tell a small change "
                "from rounding"
            )
        self._compare(reading, [])
        state.first = state.last = reading
        self._keep(state)

    def check(self, name: str, *, sampled: bool = False) -> None:
        """Compare the server with the policy, which it was given under a name.

        Parameters
        ----------
        name : str
        sampled : bool
            Whether it has been compared under that name before, and sampled from since.

        Raises
        ------
        WrongWeights
            If the server has other weights.
        """
        state = self._load()
        if state is None:
            return
        reading = self._reading(state, name, None)
        if reading is None:
            if self._silent != name:
                self.say(
                    "warning: the server told log-probabilities before and tells none now: nothing proves that it has "
                    "the new weights"
                )
            self._silent = name
            return
        assert state.first is not None and state.last is not None
        last = state.last if state.last.version != name else state.before
        earlier = [one for one in (last, state.first) if one is not None and one.version != name]
        verdict = self._compare(reading, earlier, sampled=sampled)
        if state.last.version == name:
            return
        if verdict == "new":
            state.before, state.last = state.last, reading
            self._keep(state)

    def facts(self, name: str) -> dict[str, Any]:
        """Return the verdict, slope and difference of the check of a name; empty if there was none."""
        return self._read_checks().get(name, {})

    def _compare(self, reading: Reading, earlier: Sequence[Reading], *, sampled: bool = False) -> Verdict:
        """Return the verdict against the first of earlier readings; raise WrongWeights as `check` does."""
        found = [compare(one, reading, exact=reading.rounded is not None) for one in earlier]
        rms = reading.rms()
        where = self.sampler.shown
        for one, (verdict, slope) in zip(earlier, found, strict=True):
            if verdict == "old":
                told = (
                    f"what it says of {reading.tokens} given tokens follows the policy's change by {slope}, where 1 is "
                    "new weights and 0 old ones"
                )
                if sampled:
                    raise WrongWeights(
                        f"{where} was given the weights {reading.version}, and has those of {one.version} now that it "
                        f"was sampled from: {told}. {_MEANWHILE}"
                    )
                raise WrongWeights(
                    f"{where} was given the weights {reading.version} and took them, to judge by its answer, but it "
                    f"still has those of {one.version}: {told}; nothing was sampled since. "
                    "See to source.sampling.engine.new_weights and to the server's log"
                )
        if not rms <= self.config.tolerance:
            why = "Is another model served, or a quantised one, or do its log-probabilities come after a temperature?"
            raise WrongWeights(
                f"{where} does not have the weights {reading.version} that it was given: it differs from the policy by "
                f"{rms:.3g} nats (rms over {reading.tokens} tokens), more than source.sampling.engine.proof.tolerance: "
                f"{self.config.tolerance:g}. {_MEANWHILE if sampled else f'{why} Else raise the tolerance'}"
            )
        verdict, slope = found[0] if found else ("same", None)
        if verdict == "between" and self.facts(reading.version).get("verdict") != verdict:  # once a version
            self.say(
                f"warning: {where} has neither the weights {reading.version} that it was given nor those of "
                f"{earlier[0].version}: it follows the policy's change by {slope}, where 1 is new weights and 0 old "
                "ones. Did it load a part of them? A head tied to the embeddings is known to stay behind"
            )
        self._note(reading.version, verdict, slope, rms)
        return verdict

    def _reading(self, state: _State, name: str, told: dict[str, NDArray[np.float64]] | None) -> Reading | None:
        """Return the log-probabilities of policy and server as they are now; None if the server does not tell."""
        texts = state.texts
        if texts:
            told = told if told is not None else self.sampler.given_logprobs(texts)
        else:
            texts, told = self._answers(state.prompts)
        if not told:
            return None
        if self._said is None or self._said[:2] != (name, texts):
            self._said = name, texts, self.policy(texts)
        said = self._said[2]
        return Reading(name, texts, said.policy, told, said.rounded)

    @property
    def _answer_tokens(self) -> int:
        """Return how long an answer is made that is asked for to prove something."""
        return min(self.sampler.config.max_tokens, max(MANY_TEXTS, self.config.tokens // MANY_TEXTS))

    def _answers(self, prompts: Sequence[Context]) -> tuple[dict[str, Text], dict[str, NDArray[np.float64]]]:
        """Return the server's most probable answers, which hardly change from one policy to the next."""
        texts, told = {}, {}
        for rollouts in self.sampler.greedy(self._answer_tokens).sample(prompts, 1, key=(0, 0)):
            for rollout in rollouts:
                (one,) = rollout.completions
                if one.logprobs is not None and one.ids:
                    ids = next(prompt.ids for prompt in prompts if prompt.id == rollout.id)
                    texts[rollout.id] = Text((*ids, *one.ids), len(ids))
                    told[rollout.id] = np.asarray(one.logprobs, dtype=np.float64)
        return texts, told

    # What is kept

    def _load(self) -> _State | None:
        if not self.file.is_file():
            return None
        try:
            return _State.from_row(json.loads(self.file.read_text(encoding="utf-8")))
        except OSError as error:
            raise LedgerError(f"{self.file} cannot be read: {error.strerror}; mend that, and try again") from None
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{self.file} is damaged ({type(error).__name__}: {error}); remove it, and the proof of the server's "
                "weights begins anew"
            ) from None

    def _keep(self, state: _State) -> None:
        write_text(self.file, json.dumps(state.row()) + "\n")

    def _read_checks(self) -> dict[str, dict[str, Any]]:
        try:
            checks = json.loads(self.checks.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # for people; the proof does not read it
            return {}
        return checks if isinstance(checks, dict) else {}

    def _note(self, name: str, verdict: Verdict, slope: Slope | None, rms: float) -> None:
        checks = self._read_checks()
        if name in checks and verdict == "same":  # given again after a stop
            return
        checks.pop(name, None)
        facts: dict[str, Any] = {"verdict": verdict, "rms": rms}
        if slope is not None:
            known = math.isfinite(slope.high)  # of a single text it is not
            facts |= {"slope": slope.value, "low": slope.low if known else None, "high": slope.high if known else None}
        kept = list(checks.items())[1 - KEPT_CHECKS :]
        write_text(self.checks, json.dumps(dict([*kept, (name, facts)])) + "\n")


class _State:
    """The texts (given ones, or prompts to be answered) and the readings that later ones are held against."""

    def __init__(self, texts: dict[str, Text], prompts: Sequence[Context]) -> None:
        self.texts, self.prompts = texts, list(prompts)
        self.first: Reading | None = None
        self.last: Reading | None = None  # of the weights that the server was last proved to have
        self.before: Reading | None = None  # of those before

    def row(self) -> dict[str, Any]:
        """Return it as JSON; the texts are those of its readings."""
        readings = {"first": self.first, "last": self.last, "before": self.before}
        return {
            "given": bool(self.texts),
            "prompts": [
                {
                    "id": one.id,
                    "ids": list(one.ids),
                    "prompt": [message.as_dict() for message in one.prompt],
                    "extra": dict(one.extra),
                }
                for one in self.prompts
            ],
            "readings": {name: None if one is None else one.row() for name, one in readings.items()},
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> _State:
        """Return the state of a row that `row` made; raise KeyError, TypeError or ValueError if it is none."""
        prompts = [
            Context(one["id"], tuple(map(Message.of, one["prompt"])), tuple(one["ids"]), one["extra"])
            for one in row["prompts"]
        ]
        kept = {name: None if one is None else Reading.from_row(one) for name, one in row["readings"].items()}
        if kept["first"] is None or kept["last"] is None:
            raise ValueError("no first or last reading")
        state = cls(dict(kept["first"].texts) if row["given"] else {}, prompts)
        state.first, state.last, state.before = kept["first"], kept["last"], kept["before"]
        return state
