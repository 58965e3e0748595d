"""Whether a run has broken: its rows of metrics are watched, and one line says so, once, with what the paper advises.

What the paper has on it: a smaller k (reference.schedule.every) is mostly better but less stable (section 5.1); moving
the reference makes training less stable, which calls for a lower learning rate or gradient norm, while smaller ratios
call for a higher one (section 5.2.1, Table 3: factors of 0.1 to 4); with a small model and verified rewards k = 1 ended
in collapse of the reward, and k from 12 to 24 did not (section 5.2.2, Table 2).

A run has broken where one of `rules` says so. Each holds the median of the last few rows of a kind against the first
row of that kind, which is of the policy before its first update; `training.collapse` has every number. What answers are
like (length, share cut short, entropy) varies by luck alone where a round has few prompts: such rounds are taken
together until they have 32, as many are the start as are compared with it (the median of the first `rounds`), and a
change must exceed four standard errors. Longer or shorter answers are no break while the score is better than at first,
and a start that was mostly cut short says nothing of how long answers should be. Rows are all that is looked at: a
resumed run, which has those of its earlier part, finds the same. What was found is a row of metrics.jsonl itself:

    {"updates": 40, "broke": {"what": "score", "of": "round", "value": 0.11, "limit": 0.42, "before": 0.63}}

How the numbers were chosen: first on the 54 runs that examples/gsm8k then had. In its six runs that broke, KTO at a
learning rate of 1e-3, the held-out log-probability fell by 4.0 to 8.7 nats a token, in all others by 1.5 at most. The
other limits are far from anything seen in a sound run there, or, for what only rounds have, what a person would call
broken. Then they were tried on the first set of examples/collapse, and changed. Offline, policies that learn well leave
a fixed reference by 2.6 nats a token and more, since rejected answers shall become improbable: that limit is three
times as high now where the reference does not follow. A reward for length was not noticed: held-out answers are looked
at as those of rounds are, and the share that may be cut short is 0.3 in place of 0.5. What the limits are worth is
counted on the second set, of other seeds, judged after these changes: examples/collapse/results.md. What is said above
of few prompts, of a better score and of a start cut short came later still, when both sets had been seen: runs made up
to find false lines found them.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from humanline.train.config import TrainConfig
from humanline.train.run.checkpoint import Position
from humanline.train.run.checkpoints import Checkpoints
from humanline.train.run.metrics import read_metrics
from humanline.train.run.processes import Processes

Row = Mapping[str, Any]
_FIXED = 3.0  # times as far as from a reference that follows may a policy be from one that does not
_STANDARD_ERRORS = 4.0  # by which a mean must have changed: luck does it once in 30 000 looks
_PROMPTS = 32  # whose answers are looked at together, at least
_CUT_SHORT = 0.3  # share of answers cut at their limit above which their length is the limit's, not the model's


class CollapseError(Exception):
    """A run that has broken and is to stop then (training.collapse.action); a checkpoint is saved."""


class Log(Protocol):
    """Anything that keeps rows."""

    def write(self, row: dict[str, Any]) -> None:
        """Keep a row."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What breaks a run: one number of the rows of one kind.

    Parameters
    ----------
    what : str
        Its name in a row that tells of the break.
    of : {"step", "round", "held_out"}
        The kind of rows.
    words : str
        What it is, for people.
    read : callable
        Returns the number of a row, or None if it has none.
    how : {"above", "rise", "factor", "shrink", "lost"}
        above: it is larger than the limit. rise: larger than at first by more than the limit. factor: more than so
        many times as large as at first, or as small. shrink: less than this share of what it was at first. lost: a
        score that has lost more than half of what it had gained, and more than luck takes.
    limit : float or None
        None is never reached.
    of_answers : bool
        Whether it is a mean over answers, in which luck has a part.
    may_improve : bool
        Whether a change is no break while the score is better than at first.
    """

    what: str
    of: Literal["step", "round", "held_out"]
    words: str
    read: Callable[[Row], float | None]
    how: Literal["above", "rise", "factor", "shrink", "lost"]
    limit: float | None
    of_answers: bool = False
    may_improve: bool = False


@dataclass(frozen=True, slots=True)
class Break:
    """A break of a run, and after how many updates it was found."""

    what: str
    of: str
    value: float
    limit: float
    before: float
    updates: int

    def row(self) -> dict[str, Any]:
        """Return a row of metrics."""
        facts = {name: getattr(self, name) for name in ("what", "of", "value", "limit", "before")}
        return {"updates": self.updates, "broke": facts}


def rules(config: TrainConfig) -> tuple[Rule, ...]:
    """Return the rules of a run."""
    limits = config.training.collapse
    is_likelihood = not config.objective.needs_reference
    follows = config.reference.schedule.kind == "before_step"
    far = limits.log_ratio if limits.log_ratio is None or follows else _FIXED * limits.log_ratio
    worse = None if limits.loss is None else limits.loss * config.objective.loss_unit

    def of(name: str) -> Callable[[Row], float | None]:
        return lambda row: row.get(name)

    score, length, cut, nll = of("score"), of("completion_tokens"), of("truncated"), of("completion_nll")

    def clipped(row: Row) -> float | None:
        return row["clipped_low"] + row["clipped_high"] if "clipped_low" in row else None

    def surprise(row: Row) -> float | None:
        if is_likelihood:
            return row.get("loss")
        return -row["chosen_logprob"] if "chosen_logprob" in row else None

    def answers(
        what: str,
        words: str,
        read: Callable[[Row], float | None],
        how: Literal["rise", "factor", "shrink"],
        limit: float | None,
        *,
        may_improve: bool = True,
    ) -> tuple[Rule, Rule]:
        held_out = Rule(what, "held_out", words.format("held-out answers"), read, how, limit, True, may_improve)
        return held_out, Rule(what, "round", words.format("answers"), read, how, limit, True, may_improve)

    entropy = "the entropy of {}, nats a token,"
    return (
        Rule("score", "held_out", "the held-out score", score, "lost", limits.score),
        Rule("score", "round", "the score (reward) of a round", score, "lost", limits.score),
        *answers("length", "the length of {}, tokens,", length, "factor", limits.length),
        *answers("truncated", "the share of {} cut short", cut, "rise", limits.truncated),
        *answers("entropy", entropy, nll, "rise", limits.entropy_rise, may_improve=False),
        answers("entropy", entropy, nll, "shrink", limits.entropy_left)[1],
        Rule("clipped", "step", "the share of tokens outside of humanline's clip", clipped, "above", limits.clipped),
        Rule(
            "log_ratio",
            "step",
            "the distance from the reference, nats a token (rms),",
            of("log_ratio_rms"),
            "above",
            far,
        ),
        Rule("loss", "step", "the loss", of("loss"), "rise", worse),
        Rule("surprise", "held_out", "minus the held-out log-probability a token", surprise, "rise", limits.surprise),
    )


@dataclass(slots=True)
class _Group:
    """Rows taken together: how many, of how many prompts, the mean of a number, and its squared deviations' sum."""

    rows: int = 0
    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, other: _Group) -> None:
        """Take in other rows."""
        total, apart = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + apart * apart * self.count * other.count / total
        self.mean += apart * (other.count / total)
        self.rows, self.count = self.rows + other.rows, total

    @property
    def deviation(self) -> float:
        """Standard deviation of single values."""
        return math.sqrt(self.squares / self.count)


@dataclass(slots=True)
class _Series:
    """One number over the rows of its kind: at first, at best, and in its last few groups of rows."""

    recent: deque[_Group]
    least: float = 0.0  # prompts in a group; where 0, each row is one, and the first row alone is the start
    first: float = math.nan
    first_error: float = 0.0
    best: float = math.nan
    error: float = 0.0  # standard error of one of its values, the largest so far
    parts: _Group = field(default_factory=_Group)  # rows that are no whole group yet

    def take(self, value: float, error: float, deviation: float = 0.0, count: float = 1.0) -> float | None:
        """Take a row in and return the median of the last few groups, None if there is no new one or are too few."""
        self.error = max(self.error, error)
        self.parts.add(_Group(1, count, value, deviation * deviation * count))
        if self.parts.count < self.least:
            return None
        self.recent.append(self.parts)
        self.parts = _Group()
        if math.isnan(self.best):
            self.best = self.recent[0].mean
        if not self.least and math.isnan(self.first):
            self.first = value
        if len(self.recent) != self.recent.maxlen:
            return None
        now = statistics.median(group.mean for group in self.recent)
        if math.isnan(self.first):
            self.first, self.first_error = now, self.error_now()
        return now

    def error_now(self) -> float:
        """Return the standard error of the median of the last few groups."""
        whole = _Group()
        for group in self.recent:
            whole.add(group)
        of_median = math.sqrt(math.pi / 2) if len(self.recent) > 1 else 1.0  # a median varies more than a mean
        return of_median * whole.deviation / math.sqrt(whole.count)


@dataclass(slots=True)
class CollapseWatch:
    """Pass rows on to the run's log, and notice when they show a break.

    Parameters
    ----------
    config : TrainConfig
    log : Log
    say : callable
        Shows the one line about a break, once in a run.
    is_on : bool
        False only passes rows on.
    """

    config: TrainConfig
    log: Log
    say: Callable[[str], None]
    is_on: bool = True
    broken: Break | None = None
    updates: int = 0
    _spread: float = 0.0  # standard deviation of completions' scores, the largest of a round so far
    _better: dict[str, bool] = field(default_factory=dict)  # whether the last rows of a kind score better than at first
    _gains: dict[str, _Series] = field(default_factory=dict)  # the scores by which that is told
    _rules: tuple[Rule, ...] = ()
    _series: list[_Series] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = self.config.training.collapse
        lengths = {"step": limits.steps, "round": limits.rounds, "held_out": 1}
        self._rules = rules(self.config)
        self._series = [
            _Series(deque(maxlen=lengths[rule.of]), _PROMPTS if rule.of_answers else 0.0) for rule in self._rules
        ]
        self._gains = {kind: _Series(deque(maxlen=lengths[kind]), _PROMPTS) for kind in ("round", "held_out")}

    def recall(self, rows: Iterable[Row]) -> None:
        """Take in the rows of an earlier part of the run; a break that was not told of then is now."""
        told = False
        for row in rows:
            if "broke" in row:
                told, self.broken = True, self.broken or Break(**row["broke"], updates=row["updates"])
            self._look(row)
        if self.broken is not None and not told:
            self._tell(self.broken)

    def write(self, row: dict[str, Any]) -> None:
        """Write a row to the log; if it is the first that shows a break, write that, too, and say it."""
        self.log.write(row)
        if self.is_on and self.broken is None:
            self._look(row)
            if self.broken is not None:
                self._tell(self.broken)

    def _tell(self, broken: Break) -> None:
        self.log.write(broken.row())
        self.say(f"warning: {self.words(broken)}. {advice(self.config)}")

    def words(self, broken: Break) -> str:
        """Return a break in words, as half a sentence."""
        words, series = next(
            (rule.words, series)
            for rule, series in zip(self._rules, self._series, strict=True)
            if (rule.what, rule.of) == (broken.what, broken.of)
        )
        count = sum(group.rows for group in series.recent)
        median = f"median of the last {count} {broken.of}s; " if count > 1 else ""
        return (
            f"the run seems to have broken, after {broken.updates} updates: {words} is {broken.value:.3g} "
            f"({median}limit {broken.limit:.3g}, before {broken.before:.3g})"
        )

    def _look(self, row: Row) -> None:
        """Take a row in, and note the first break that it shows."""
        if "step" in row:
            kind, found, self.updates = "step", row, row["step"] + 1
        elif "round" in row:
            kind, found = "round", row
            self._spread = max(self._spread, row.get("score_std", 0.0))
        elif "held_out" in row:
            kind, found, self.updates = "held_out", row["held_out"], row["updates"]
        else:
            return
        self._compare_scores(kind, found)
        for rule, series in zip(self._rules, self._series, strict=True):
            value = rule.read(found) if rule.of == kind else None
            if value is None:
                continue
            error = found.get("score_se", found.get("score_std", 0.0) / math.sqrt(found.get("contexts", 1)))
            if not rule.of_answers:
                now = series.take(value, error)
            elif kind == "held_out" and _prompts(found) < _PROMPTS:
                continue  # two looks are too far apart for their answers to be taken together
            else:
                now = series.take(value, error, _deviation(rule.what, value, found), _prompts(found))
            if now is None:
                continue
            found_now = self._judge(rule, series, now)
            if found_now is not None and self.broken is None:
                self.broken = found_now

    def _compare_scores(self, kind: str, found: Row) -> None:
        """Note whether the last rows of a kind score better than the first; few prompts count together here, too."""
        if kind not in self._gains or found.get("score") is None:
            return
        series = self._gains[kind]
        now = series.take(found["score"], 0.0, found.get("score_std", 0.0), max(1.0, _prompts(found)))
        spread = max([self._spread, *(group.deviation for group in series.recent)])
        if now is not None:
            least = max(series.best, series.first) if kind == "round" else series.first
            self._better[kind] = now > least + (self.config.training.collapse.score or 0.0) * spread

    def _first(self, what: str, of: str) -> float:
        """Return a number of answers at first, NaN as long as it has none."""
        for rule, series in zip(self._rules, self._series, strict=True):
            if (rule.what, rule.of) == (what, of):
                return series.first
        return math.nan

    def _judge(self, rule: Rule, series: _Series, now: float) -> Break | None:
        """Return the break that the median of the last rows is by a rule, if it is one."""
        first, best = series.first, series.best
        series.best = max(best, now)
        if rule.limit is None or (rule.may_improve and self._better.get(rule.of, False)):
            return None
        before, bound, is_beyond = first, rule.limit, now > rule.limit
        if rule.how == "rise":
            bound = first + rule.limit
            is_beyond = now > bound
        elif rule.how == "factor":
            bound = first * rule.limit if now > first else first / rule.limit
            is_beyond = first > 0 and not first / rule.limit <= now <= first * rule.limit
            if now < first and self._first("truncated", rule.of) > _CUT_SHORT:
                return None
        elif rule.how == "shrink":
            bound = first * rule.limit
            is_beyond = now < bound
        elif rule.how == "lost":
            apart = math.sqrt(2) if rule.of == "round" else 1.0  # two rounds have different prompts, two looks the same
            by_luck = max(rule.limit * self._spread, _STANDARD_ERRORS * apart * series.error)
            before, bound = best, best - max(by_luck, (best - first) / 2)
            is_beyond = by_luck > 0 and now < bound
        if rule.of_answers and is_beyond:
            is_beyond = abs(now - first) > _STANDARD_ERRORS * math.hypot(series.first_error, series.error_now())
        if not is_beyond or not math.isfinite(now - bound):  # beyond what a row of metrics can hold
            return None
        return Break(rule.what, rule.of, now, bound, before, self.updates)

    def stop_if_broken(self, at: Position, checkpoints: Checkpoints, processes: Processes) -> None:
        """End the run if it has broken and is to stop then; all processes call this alike, between two updates.

        Raises
        ------
        CollapseError
            In all processes, after a checkpoint; where such a run is resumed, before anything more is trained.
        CheckpointError
            If none can be written.
        """
        if self.config.training.collapse.action != "stop":
            return
        if not processes.agree(self.broken is not None):  # in the main process, which alone has all rows
            return
        kept = checkpoints.save(at, ending=True)
        found = "the run has broken; the main process says how" if self.broken is None else self.words(self.broken)
        raise CollapseError(
            f"stopped, as training.collapse.action asks for: {found}. {advice(self.config)} That is for a new run, in "
            f"another folder. All of this one is in {kept}: to go on with it as it is, add --resume and "
            "training.collapse.action=warn to the same command"
        )


def watched(config: TrainConfig, log: Log, metrics: Path | None, say: Callable[[str], None]) -> CollapseWatch:
    """Return a log that watches what it is given.

    Parameters
    ----------
    config : TrainConfig
    log : Log
        Of the same file.
    metrics : Path or None
        The file with the rows so far; None in all processes but the main one, which watch nothing.
    say : callable
    """
    watch = CollapseWatch(config, log, say, metrics is not None and config.training.collapse.action != "ignore")
    if metrics is not None and watch.is_on:
        watch.recall(read_metrics(metrics))
    return watch


def _prompts(found: Row) -> float:
    """Return how many prompts a row is about; one without a count, of an earlier version, is taken to have enough."""
    return float(found.get("contexts", found.get("completions", _PROMPTS)))


def _deviation(what: str, value: float, found: Row) -> float:
    """Return the standard deviation of a number of single answers, as far as a row tells it."""
    if "contexts" not in found and "completions" not in found:
        return 0.0
    if what == "truncated":
        return math.sqrt(max(0.0, value * (1 - value)))
    return float(found.get("completion_tokens_std", value)) if what == "length" else 0.0  # a guess for old rows


def advice(config: TrainConfig) -> str:
    """Return the paper's advice against a break, with the run's own numbers."""
    schedule, optimizer = config.reference.schedule, config.optimizer
    lower = f"a lower optimizer.lr (now {optimizer.lr:g}) or optimizer.max_grad_norm (now {optimizer.max_grad_norm:g})"
    if schedule.kind in ("before_step", "after_step"):
        return (
            f"The paper advises a larger k (reference.schedule.every, now {schedule.every}; 12 to 24 where a small "
            f"model collapsed at 1), or {lower}."
        )
    return f"The paper advises {lower}."
