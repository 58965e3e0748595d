"""The scorer of completions: verifiers in worker processes, reward models here, each content once."""

from __future__ import annotations

import collections
import importlib.metadata
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.train.config.rounds import FunctionReward, MathReward, ModelReward, Reward, ScoringConfig
from humanline.train.online.rewards.cache import ScoreCache, content_key
from humanline.train.online.rewards.pool import make_pool
from humanline.train.online.rewards.tasks import how_called, messages_of, task_of
from humanline.train.online.rewards.verdict import NOT_SCORED, Verdict, described
from humanline.train.online.types import Rollout, Score

if TYPE_CHECKING:  # torch takes long to import, and verifiers do without
    from humanline.train.online.rewards.models import RewardModel

_READING = 5  # to be raised whenever a verifier reads answers differently: keys of caches hold it
Item = tuple[int, int]  # a rollout's index and a completion's number


def build_scorer(
    config: ScoringConfig,
    *,
    cache: Path | None = None,
    others: Iterable[Path] = (),
    device: Any = "cpu",
    sources: Mapping[str, str] | None = None,
) -> RewardScorer:
    """Make a scorer (`humanline.train.online.types.Scorer`) of a configuration's rewards.

    Parameters
    ----------
    config : ScoringConfig
        Its `failed` is the caller's to apply: here a completion without a score has a status.
    cache : Path or None
        File of JSON lines that keeps values between runs; None keeps them in memory.
    others : iterable of Path
        Such files of other processes, whose values count too.
    device
        Torch device on which reward models compute.
    sources : mapping, optional
        As `Pool` takes them.

    Raises
    ------
    ModelError
        If a reward model cannot be used.
    OSError
        If the cache cannot be opened.
    """
    return RewardScorer(config, cache=cache, others=others, device=device, sources=sources)


def reward_names(rewards: Sequence[Reward]) -> list[str]:
    """Return the names of rewards in scores' `parts`: their kinds, numbered from the second of a kind on."""
    counts: collections.Counter[str] = collections.Counter()
    names = []
    for reward in rewards:
        counts[reward.kind] += 1
        names.append(reward.kind if counts[reward.kind] == 1 else f"{reward.kind}_{counts[reward.kind]}")
    return names


def reward_place(number: int, name: str) -> str:
    """Return what reasons of scores call a reward, by its number and its name (`reward_names`)."""
    return f"source.scoring.rewards[{number}] ({name}): "


class RewardScorer:
    """Scores as the weighted sum of rewards; see `build_scorer`. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        config: ScoringConfig,
        *,
        cache: Path | None,
        others: Iterable[Path],
        device: Any,
        sources: Mapping[str, str] | None,
    ) -> None:
        self._config = config
        self._names = reward_names(config.rewards)
        self._calls = any(isinstance(reward, FunctionReward) for reward in config.rewards)
        self._stamp = _versions() if any(isinstance(reward, MathReward) for reward in config.rewards) else []
        self._models: dict[int, RewardModel] = {}
        for number, reward in enumerate(config.rewards):
            if isinstance(reward, ModelReward):
                from humanline.train.online.rewards.models import RewardModel

                self._models[number] = RewardModel(reward, device)
        self._cache = ScoreCache(cache, others)
        self._pool = make_pool(config, sources)

    def __enter__(self) -> RewardScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes, give back the reward models, and close the cache."""
        self._pool.close()
        self._models.clear()
        self._cache.close()

    def score(self, rollouts: Sequence[Rollout]) -> Iterator[tuple[int, int, Score]]:
        """Score every completion; what looks the same to a reward is scored by it once.

        Yields
        ------
        (index of the rollout, number of the completion, Score)
            In any order, each exactly once, as soon as it is known. If any reward gives no value, the score has none,
            but the status of the first such reward, and reasons that name them. A reward that does not score
            a completion (None, in TRL's form) is left out of its sum; where none does, the status is "not_scored".

        Raises
        ------
        PoolError
            If worker processes do not start.
        """
        known: dict[Item, dict[int, Verdict]] = {
            (index, number): {} for index, rollout in enumerate(rollouts) for number in range(len(rollout.completions))
        }
        wanting: dict[bytes, list[tuple[Item, int]]] = {}  # key -> whose verdicts it is
        tasks: dict[bytes, dict[str, Any]] = {}
        conversations: dict[int, dict[bytes, tuple[list[dict[str, Any]], str]]] = {
            number: {} for number in self._models
        }
        functions = self._pool.functions() if self._calls and known else {}
        called = how_called(self._config.rewards, functions) if functions else {}
        self._cache.refresh()  # of what another process of the run has scored meanwhile
        identities = {number: model.identity for number, model in self._models.items()}
        for item in list(known):
            rollout, completion = rollouts[item[0]], rollouts[item[0]].completions[item[1]]
            for number, reward in enumerate(self._config.rewards):
                if isinstance(reward, ModelReward):
                    conversation = [*messages_of(rollout), {"role": "assistant", "content": completion.text}]
                    tools = rollout.given.tools
                    key = content_key("model", identities[number], conversation, *([tools] if tools else []))
                    conversations[number][key] = (conversation, tools)
                else:
                    task = task_of(reward, rollout, completion, called.get(number))
                    if isinstance(task, Verdict):
                        known[item][number] = task
                        continue
                    source = {"source": functions[task["call"]]["source"]} if task["kind"] == "function" else None
                    stamp = self._stamp if task["kind"] == "math" else None
                    try:
                        key = content_key(task, source, stamp, _READING)
                    except (TypeError, ValueError, RecursionError) as error:
                        reason = f"a column of its prompt {rollout.id} is no JSON: {described(error)}"
                        known[item][number] = Verdict(None, "error", reason)
                        continue
                    tasks[key] = task
                if found := self._cache.get(key):
                    known[item][number] = found
                else:
                    wanting.setdefault(key, []).append((item, number))
        yield from self._complete(known, list(known))
        try:
            yield from self._ask_workers(tasks, wanting, known)
            for number, model in self._models.items():
                keys = [key for key in conversations[number] if key in wanting]
                asked = [conversations[number][key] for key in keys]
                for verdicts in model.run([one for one, _ in asked], [tools for _, tools in asked]):
                    done = [(keys[at], verdict) for at, verdict in verdicts]
                    yield from self._deliver(done, wanting, known, dear=True)
        finally:
            self._cache.flush()
            for model in self._models.values():
                model.rest()

    def _ask_workers(
        self,
        tasks: Mapping[bytes, dict[str, Any]],
        wanting: dict[bytes, list[tuple[Item, int]]],
        known: dict[Item, dict[int, Verdict]],
    ) -> Iterator[tuple[int, int, Score]]:
        keys = [key for key in tasks if key in wanting]
        running = self._pool.run([tasks[key] for key in keys])
        try:
            for verdicts in running:
                done = [(keys[at], verdict) for at, verdict in verdicts]
                paid = any(tasks[key]["kind"] == "function" for key, _ in done)
                yield from self._deliver(done, wanting, known, dear=paid)
        finally:
            running.close()  # type: ignore[attr-defined]

    def _deliver(
        self,
        done: Sequence[tuple[bytes, Verdict]],
        wanting: dict[bytes, list[tuple[Item, int]]],
        known: dict[Item, dict[int, Verdict]],
        *,
        dear: bool,
    ) -> Iterator[tuple[int, int, Score]]:
        items = []
        for key, verdict in done:
            self._cache.put(key, verdict)
            for item, number in wanting.pop(key, ()):
                known[item][number] = verdict
                items.append(item)
        self._cache.flush(dear=dear)  # before anyone else is told
        yield from self._complete(known, items)

    def _complete(
        self, known: dict[Item, dict[int, Verdict]], items: Sequence[Item]
    ) -> Iterator[tuple[int, int, Score]]:
        """Yield the scores of those items whose verdicts are all there, and forget them."""
        for item in items:
            if len(known.get(item, ())) == len(self._config.rewards):
                yield (*item, self._sum(known.pop(item)))

    def _sum(self, verdicts: Mapping[int, Verdict]) -> Score:
        parts, failed, passed, reasons = {}, [], [], []
        total = 0.0
        for number, (reward, name) in enumerate(zip(self._config.rewards, self._names, strict=True)):
            value, status, reason = verdicts[number]
            if status == NOT_SCORED:
                passed.append(f"{reward_place(number, name)}{reason}")
            elif value is None:
                failed.append((status, f"{reward_place(number, name)}{reason}"))
            else:
                parts[name] = value
                total += reward.weight * value
                if reason:
                    reasons.append(f"{name}: {reason}")
        if failed:
            return Score(None, failed[0][0], parts, "; ".join(reason for _, reason in failed))
        if not parts:
            return Score(None, NOT_SCORED, parts, "; ".join(passed))
        if not math.isfinite(total):
            return Score(None, "not_finite", parts, f"the weighted sum of its rewards is {total}")
        return Score(total, "ok", parts, "; ".join(reasons))


def _versions() -> list[str]:
    packages = ("math-verify", "latex2sympy2_extended", "sympy")
    try:
        return [f"{package} {importlib.metadata.version(package)}" for package in packages]
    except importlib.metadata.PackageNotFoundError:
        return []
