"""Whether a run could start: recipe, model, template, data, disk and output folder, without training or writing.

Every check is the one that training makes; what can be looked at independently is, so that one call names as many
problems as possible. Not looked at: whether the run fits into memory, which `humanline estimate` tells, and, because
that takes the weights, whether token log-probabilities from the last hidden state equal the model's own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from humanline.train.config import AdapterConfig, TrainConfig
from humanline.train.settings import written
from humanline.train.terminal import shorten, told, visible

if TYPE_CHECKING:  # torch, transformers and rich take seconds to import, and --no-data needs none of them
    from rich.console import Console

    from humanline.train.assemble import RunData
    from humanline.train.batch import Unit
    from humanline.train.stream import Stream
    from humanline.train.tokens import Renderer, TokenSequence

_LONGEST_LINE = 4000  # characters

_VARIANTS = {
    ("none", "never"): "offline",
    ("none", "before_step"): "sync only (no transform)",
    ("none", "after_step"): "trust region",
    ("none", "each_round"): "round by round",
    ("clip", "never"): "clip only (no sync)",
    ("clip", "before_step"): "humanline",
    ("beta_rejection", "before_step"): "humanline sampling",
}
_UNITS = {"nll": "examples", "dpo": "pairs", "kto": "examples", "grpo": "groups of answers"}


class NotReadyError(ValueError):
    """A run that would not start; the message lists every problem found."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found out about a run that would start."""

    parameters: int
    steps: int
    resumable: bool  # the output folder holds a run that `train --resume` would continue
    remarks: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------------------------------------------
# The configuration in words


def describe_config(config: TrainConfig) -> str:
    """Say in a few lines what a configuration asks for; needs no model, no data and no network."""
    training, batch = config.training, config.training.batch_size
    length = f"{training.steps} steps" if training.steps else f"{training.epochs or 0:g} epoch(s)"
    if config.rounds is not None and config.rounds.count is not None:
        length = f"{config.rounds.count} rounds of at most {config.round_steps} steps"
    counted = f"{training.micro_batch_size}{' rows' if config.objective.kind == 'grpo' else ''}"
    micro = "" if training.micro_batch_size is None else f", {counted} a pass and process"
    if training.micro_batch_tokens is not None:
        micro = f", {training.micro_batch_tokens:,} tokens a pass and process"
    how = f"{training.precision} compute"
    how += "" if training.temperature == 1 else f", logits divided by {training.temperature:g}"
    kept = [f"{config.kept_in} {'weights' if config.adapter is None else 'frozen weights'}"]
    kept += ["8-bit optimizer states"] if config.optimizer.states == "8bit" else []
    kept += ["activations computed again"] if training.activation_checkpointing else []
    kept += ["no padding"] if training.padding == "free" else []
    kept += ["log-probabilities by cut cross-entropy"] if training.logprobs != "chunked" else []
    when = [f"every {config.checkpoint.every} steps"] if config.checkpoint.every else []
    when += [f"every {config.checkpoint.minutes:g} minutes"] if config.checkpoint.minutes else []
    lines = {"variant": describe_variant(config)}
    if config.objective.kind != "nll":
        lines |= {"transform": _transform(config), "reference": _reference(config)}
    lines |= {
        "training": f"{length} of {batch} {_UNITS[config.objective.kind]}{micro}; {how}; "
        f"lr {config.optimizer.lr:g}, clipped at gradient norm {config.optimizer.max_grad_norm:g}; seed {config.seed}",
        "model": config.model,
        "memory": ", ".join(kept),
        "data": f"{config.data.train}, held out: {config.data.eval or 'none'}",
        "checkpoints": f"{' and '.join([*when, 'when stopped'])}; the last {config.checkpoint.keep} are kept",
        "output": config.output,
    }
    if config.rounds is not None and config.scoring is not None:
        lines |= {"rounds": _describe_rounds(config), "sampling": _sampling(config), "scoring": _scoring(config)}
    if config.adapter is not None:
        lines["adapter"] = _adapter(config.adapter)
    if config.tracking.trackers:
        lines["trackers"] = ", ".join(config.tracking.trackers)
    return "\n".join(f"{name:<12} {told(str(text))}" for name, text in lines.items())


def _describe_rounds(config: TrainConfig) -> str:
    rounds = config.rounds
    assert rounds is not None
    kept = "all of them" if config.keeps_groups else f"best against worst, at least {rounds.score_margin:g} apart"
    length = f"{rounds.steps} steps each" if rounds.steps else "one pass over what they make"
    what = f"{rounds.contexts_per_round} prompts, {rounds.samples} completions each, of which {kept}; {length}"
    how = "made equal to the policy" if config.reference.round_start == "sync" else "kept"
    if config.reference.schedule.kind in ("before_step", "after_step"):
        what += f"; at each start the reference is {how}"
    return what + ("; the next one sampled meanwhile, one round stale" if rounds.overlap else "")


def _sampling(config: TrainConfig) -> str:
    sampling = config.sampling
    engine = sampling.engine
    where = f"server {engine.url}, new weights by {engine.new_weights.kind}" if engine.kind == "server" else engine.kind
    top_p = "" if sampling.top_p == 1 else f", top-p {sampling.top_p:g}"
    stops = f", stops at {', '.join(map(repr, sampling.stop))}" if sampling.stop else ""
    return f"temperature {sampling.temperature:g}{top_p}, at most {sampling.max_tokens} tokens{stops}; by {where}"


def _scoring(config: TrainConfig) -> str:
    scoring = config.scoring
    assert scoring is not None
    names = {"model": "model", "function": "call"}
    parts = [
        f"{reward.weight:g} x {reward.kind}"
        + (f" {getattr(reward, names[reward.kind])}" if reward.kind in names else "")
        for reward in scoring.rewards
    ]
    failed = {"error": "ends the run", "drop": "is left out"}.get(str(scoring.failed), f"counts as {scoring.failed}")
    return f"{' + '.join(parts)}; a completion without a score {failed}"


def _adapter(adapter: AdapterConfig) -> str:
    where = "all linear layers and experts but the head" if adapter.targets is None else ", ".join(adapter.targets)
    dropped = f", dropout {adapter.dropout:g}" if adapter.dropout else ""
    return f"LoRA of rank {adapter.rank}, alpha {adapter.alpha:g}{dropped}, on {where}"


def describe_variant(config: TrainConfig) -> str:
    """Name the variant as the paper does: "humanline DPO", "offline KTO"."""
    if config.objective.kind == "nll":
        return "next-token training (no reference)"
    kinds = config.transform.kind, config.reference.schedule.kind
    name = _VARIANTS.get(kinds, f"{kinds[0]} with {kinds[1]}")
    if config.rounds is not None:
        name = "online" if kinds == ("none", "each_round") else f"online, {name}"
    return f"{config.objective.kind.upper()}, {name}"


def _transform(config: TrainConfig) -> str:
    transform = config.transform
    if transform.kind == "clip":
        return f"token log-ratios clipped to [{transform.log_eps_low:g}, {transform.log_eps_high:g}] nats"
    if transform.kind == "beta_rejection":
        bounds = f"{transform.policy_ratio_bound} and {transform.ref_ratio_bound}"
        return f"tokens detached by Beta rejection (rule: {transform.rule}; ratio bounds {bounds})"
    return "none: log-ratios as they are"


def _reference(config: TrainConfig) -> str:
    schedule = config.reference.schedule
    if schedule.kind == "never":
        what = "the initial policy throughout"
    elif schedule.kind == "before_step":
        what = f"the policy as it was before an update, synced every {schedule.every} step(s)"
    elif schedule.kind == "after_step":
        what = f"the policy as it was after every {schedule.every} step(s)"
    else:
        what = f"the policy at the start of each round of {schedule.round_steps or config.round_steps} steps"
    how = "a second model in memory" if config.reference.storage == "model" else "scored ahead, no second model"
    anchor = "; KL against the initial policy" if config.reference.baseline == "initial" else ""
    return f"{what}; {how}{anchor}"


# ---------------------------------------------------------------------------------------------------------------------
# Everything else


@dataclass(slots=True)
class _Findings:
    """Problems, each under the name of what it is about, and remarks that stop nothing."""

    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def about(self, what: str) -> Iterator[None]:
        """Take note of what would stop a run, once, and go on."""
        try:
            yield
        except (ValueError, OSError) as error:
            self.add(what, str(error))

    def add(self, what: str, text: str) -> None:
        problem = text if text.startswith(what) else f"{what}: {text}"
        if problem not in self.problems:
            self.problems.append(problem)


def validate(config: TrainConfig, *, processes: int = 1) -> Validation:
    """Look at everything that could keep a run from starting, and print what was found to standard output.

    Parameters
    ----------
    config : TrainConfig
    processes : int
        How many processes will share a batch.

    Returns
    -------
    Validation

    Raises
    ------
    NotReadyError
        If anything would keep it from starting; all that was found is in the message, after the report was printed.

    Notes
    -----
    The network is used for what is named `hub:...` alone: a model's configuration and tokenizer, and data sets.
    """
    import torch
    from rich.console import Console

    from humanline.train.assemble import held_out_evaluator, read_data, renderer_of, stream_of
    from humanline.train.contexts import scored_columns
    from humanline.train.data import read_set
    from humanline.train.disk import in_words
    from humanline.train.estimate import static_bytes
    from humanline.train.export import output_path
    from humanline.train.launcher import launched_processes
    from humanline.train.model import load_outline, load_tokenizer
    from humanline.train.policy import describe_adapter, outline_checks, package_checks
    from humanline.train.progress import ReadingProgress
    from humanline.train.rewards import check_scoring
    from humanline.train.room import bytes_written
    from humanline.train.tracking import check_trackers

    if processes < 1:
        raise NotReadyError(f"--processes must be >= 1; got {processes}")
    findings, console = _Findings(), Console(soft_wrap=True, highlight=False, markup=False, emoji=False)

    def show(text: str) -> None:
        console.print("\n".join(shorten(line, _LONGEST_LINE) for line in told(text, keep="\n").split("\n")))

    show(describe_config(config))
    with findings.about("launcher"):
        launched_processes()
    with findings.about("tracking"):
        check_trackers(config.tracking)

    tokenizer = outline = renderer = stream = evaluator = None
    with findings.about("model"):
        tokenizer = load_tokenizer(config.model)
    for check in package_checks(config, torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        with findings.about("packages"):
            check()
    with findings.about("model"):
        outline = load_outline(config.model)
    if tokenizer is not None:
        tokens = {name: getattr(tokenizer, f"{name}_token") for name in ("pad", "eos", "bos")}
        show("tokens       " + ", ".join(f"{name} {token!r}" for name, token in tokens.items()))
        if tokens["pad"] == tokens["eos"] is not None:
            findings.remarks.append(
                "pad and eos are the same token: fine here, masks go by position, so the end of an answer is trained"
            )
    if outline is not None:
        for check in outline_checks(config, outline, tokenizer):
            with findings.about("model"):
                check()
    if tokenizer is not None and (outline is None or tokenizer.eos_token is not None):
        with findings.about("template"):
            renderer = renderer_of(config, tokenizer)
            show(f"template     {config.data.template}, SHA-256 {renderer.template_hash}")

    steps, data = config.training.steps or 0, None
    if renderer is not None:
        with findings.about("data"):
            data = read_data(config, renderer, ReadingProgress(show=True))
    else:  # without a template, the rows alone
        for name, path in (("data.train", config.data.train), ("data.eval", config.data.eval)):
            with findings.about(name):
                if path is not None:
                    ours, ignore = config.data.columns, config.data.ignore
                    rows, columns = read_set(path, config.data_shape, columns=ours, ignore=ignore)
                    show(f"data         {path}: {len(rows)} rows, not tokenised")
                    show(f"columns      {columns.also_read(scored_columns(config), ours)}")
    if renderer is not None and data is not None:
        for report in data.sets.reports.values():
            twice = report.duplicates.duplicates or report.duplicates.contradictions
            show(f"data         {report}{'' if twice else '; no duplicates or contradictions'}")
            show(f"columns      {report.columns}")
        with findings.about("training"):
            stream, steps = stream_of(config, data, renderer, ranks=processes)
            show(_describe_steps(config, stream, steps))
        with findings.about("evaluation"):
            if config.rounds is None:
                evaluator = held_out_evaluator(config, data.sets, renderer, _never, _never, torch.device("cpu"))
        if config.scoring is not None:
            with findings.about("scoring"):
                findings.remarks += check_scoring(config.scoring, [*data.contexts, *data.held_out])

    parameters = 0 if outline is None else sum(parameter.numel() for parameter in outline.parameters())
    sizes, adapted = None, ""
    if outline is not None:
        with findings.about("model"):
            sizes = static_bytes(config, outline)
            if config.adapter is not None:
                adapted = f" and {sizes.trained:,} of an adapter, which alone are trained"
                for line in describe_adapter(config, outline):
                    show(line.replace("adapter: ", "adapter      ", 1))
        show(f"parameters   {parameters:,} ({type(outline).__name__}){adapted}")
        show("fits         not looked at here: humanline estimate tells, and train refuses a run that does not")
    is_path = resumable = False
    with findings.about("output"):
        output_path(config.output)
        is_path = True
        resumable = _look_at_output(config, show)
    if sizes is not None and stream is not None and is_path:  # else that was said of the output
        with findings.about("disk"):
            writes = bytes_written(config, outline, stream, steps, evaluator, processes)
            show(f"disk         {writes.describe()}; {in_words(writes.free())} free")
            writes.refuse()
    if renderer is not None and data is not None:
        _show_example(console, config, _shown_unit(data), renderer)
    findings.remarks += _without_effect(config)
    for remark in findings.remarks:
        show(f"remark       {remark}")
    if findings.problems:
        count = len(findings.problems)
        listed = "\n".join("- " + problem.replace("\n", "\n  ") for problem in findings.problems)
        raise NotReadyError(f"not ready, {count} problem{'s' if count > 1 else ''}:\n{listed}")
    return Validation(parameters, steps, resumable, tuple(findings.remarks))


def _without_effect(config: TrainConfig) -> list[str]:
    """Say which settings of rounds do nothing in this combination."""
    rounds, remarks = config.rounds, []
    if rounds is None:
        return []
    if config.keeps_groups and "score_margin" in rounds.model_fields_set:
        remarks.append("rounds.score_margin is for best_worst: here whole groups are kept, whatever their scores")
    if "batch_size" in config.evaluation.model_fields_set:
        remarks.append("evaluation.batch_size is for fixed data: held-out prompts are answered as sampling.engine says")
    return remarks


def _never(*_: Any) -> Any:
    raise AssertionError("validation scores nothing")


def _describe_steps(config: TrainConfig, stream: Stream, steps: int) -> str:
    from humanline.train.units import count_tokens

    batch, count = stream.batch_size, len(stream.units)
    if config.rounds is not None:
        return (
            f"steps        at most {steps} of {batch} {_UNITS[config.objective.kind]}, {config.round_steps} a round, "
            "if no round leaves anything out; warm-up is a share of these"
        )
    a_step, trained = (round(batch * tokens / count) for tokens in count_tokens(stream.units))
    passes = stream.step(0).total_micro_batches // stream.ranks
    about = "about " if stream.micro_batch_tokens is not None else ""  # steps differ
    shared = f" on each of {stream.ranks} processes" if stream.ranks > 1 else ""
    return (
        f"steps        {steps} of {batch} {_UNITS[config.objective.kind]} ({steps * batch / count:.2f} epochs); about "
        f"{a_step:,} tokens a step, {trained:,} of them in the loss; {about}{passes} pass(es) a step{shared}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Output and disk


def _look_at_output(config: TrainConfig, show: Any) -> bool:
    """Say what the output folder is and return whether it holds a run to go on with; raise if it cannot be used."""
    from humanline.train.disk import nearest
    from humanline.train.export import OutputError
    from humanline.train.run_folder import RunFolder

    resumable = False
    try:
        RunFolder(config.output, resume=False)
    except OutputError:
        folder = RunFolder(config.output, resume=True)
        folder.refuse_other_settings(written(config))
        resumable = True
    there = nearest(config.output)
    if not there.is_dir():
        raise OutputError(f"output {config.output!r} cannot be made: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"output {config.output!r} cannot be written: no permission in {there}")
    state = "holds a run that --resume would continue" if resumable else "free"
    if resumable and folder.final.exists():
        state = "holds a finished run, which --resume would leave as it is"
    show(f"output       {config.output}: {state}")
    return resumable


# ---------------------------------------------------------------------------------------------------------------------
# One example, as the loss sees it


def _shown_unit(data: RunData) -> Unit:
    """Return the first unit of training; in rounds, the first prompt."""
    from humanline.train.batch import Unit
    from humanline.train.tokens import TokenSequence

    if not data.contexts:
        return data.sets.train[0]
    first = data.contexts[0]
    return Unit(first.id, (TokenSequence(first.ids, len(first.ids)),))


def _show_example(console: Console, config: TrainConfig, unit: Unit, renderer: Renderer) -> None:
    """Print the text of a unit with what counts in the loss marked: by colour, or between marks the text lacks."""
    from rich.text import Text

    colour = console.is_terminal and not console.no_color and console.color_system is not None
    parts = [_parts(renderer, sequence) for sequence in unit.sequences]
    whole = "".join(text for one in parts for text, _ in one)
    opening, closing = next(m for m in ("«»", "⟦⟧", "⸢⸥", "⁅⁆", "┫┣") if not set(m) & set(whole) or m == "┫┣")
    legend = "green" if colour else f"between {opening} and {closing}"
    console.print(Text(f"example      {visible(unit.id)}; what counts in the loss is {legend}:"))
    seen = None
    for name, sequence, runs in zip(_names(config, unit), unit.sequences, parts, strict=True):
        prompt = sequence.ids[: sequence.prompt_length]
        counted = sequence.completion_length
        cut = ", cut at max_length" if sequence.truncated else ""
        console.print(Text(f"  {name}: {len(sequence.ids)} tokens, {counted} in the loss{cut}"))
        shown = Text()
        for index, (text, counts) in enumerate(runs):
            if index == 0 and not counts and prompt == seen:
                shown.append("[the same prompt] ", style="dim")
                continue
            text = visible(shorten(text), keep="\n\t").replace("\t", "    ")
            marked = text if colour or not counts else f"{opening}{text}{closing}"
            shown.append(marked, style="green" if colour and counts else "")
        for line in shown.split("\n", allow_blank=True):
            console.print(Text("  | ") + line)
        seen = prompt


def _names(config: TrainConfig, unit: Unit) -> list[str]:
    if not unit.tokens:
        return ["prompt"]
    if config.objective.kind == "dpo":
        return ["chosen", "rejected"]
    if unit.scores:
        return [f"answer with score {score:g}" for score in unit.scores]
    if config.objective.kind == "kto":
        return ["desirable" if unit.desirable else "undesirable"]
    return ["answer"] * len(unit.sequences)


def _parts(renderer: Renderer, sequence: TokenSequence) -> list[tuple[str, bool]]:
    """Return the text of a sequence in runs of tokens that count in the loss, or do not."""
    parts, end, before = [], 0, ""
    for counts, run in groupby(sequence.mask):
        start, end = end, end + len(list(run))
        so_far = _text(renderer, sequence.ids[:end])
        # A decoder may treat the first token of a text in its own way, so the run is what the text grows by.
        grown = so_far[len(before) :] if so_far.startswith(before) else _text(renderer, sequence.ids[start:end])
        parts.append((grown, counts))
        before = so_far
    return parts


def _text(renderer: Renderer, ids: Sequence[int]) -> str:
    text: Any = renderer.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return str(text)
