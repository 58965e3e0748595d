"""Whether a run could start: recipe, model, template, data, disk and output folder, without training or writing.

Every check is the one that training makes; what can be looked at independently is, so that one call names as many
problems as possible. Not looked at: whether the run fits into memory, which `humanline estimate` tells, and, because
that takes the weights, whether token log-probabilities from the last hidden state equal the model's own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from humanline.system.terminal import shorten, told
from humanline.train.config import TrainConfig
from humanline.train.config.describe import describe_config, units_in_words
from humanline.train.config.secrets import written
from humanline.train.config.without_effect import without_effect
from humanline.train.preflight.example import show_example, shown_unit

if TYPE_CHECKING:
    from rich.console import Console

    from humanline.train.data.render import Renderer
    from humanline.train.data.run_data import RunData
    from humanline.train.data.stream import Stream


_LONGEST_LINE = 4000  # characters


class NotReadyError(ValueError):
    """A run that would not start; the message lists every problem found."""


@dataclass(frozen=True, slots=True)
class Validation:
    """The facts about a run that would start."""

    parameters: int
    steps: int
    resumable: bool  # the output folder holds a run that `train --resume` would continue
    remarks: tuple[str, ...] = ()


class _Findings:
    """What validation shows, its problems, each under the name of what it is about, and remarks that stop nothing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.problems: list[str] = []
        self.remarks: list[str] = []

    def show(self, text: str) -> None:
        """Print lines, in which what a configuration or data say is shortened and shown as plain text."""
        shown = "\n".join(shorten(line, _LONGEST_LINE) for line in told(text, keep="\n").split("\n"))
        self.console.print(shown)

    @contextlib.contextmanager
    def about(self, what: str) -> Iterator[None]:
        """Keep the message of an error that would stop a run, once, and go on."""
        try:
            yield
        except (ValueError, OSError) as error:
            problem = str(error) if str(error).startswith(what) else f"{what}: {error}"
            if problem not in self.problems:
                self.problems.append(problem)

    def refuse(self) -> None:
        """Raise NotReadyError if there is any problem."""
        if self.problems:
            count = len(self.problems)
            listed = "\n".join("- " + problem.replace("\n", "\n  ") for problem in self.problems)
            raise NotReadyError(f"not ready, {count} problem{'s' if count > 1 else ''}:\n{listed}")


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
    from rich.console import Console

    from humanline.system.launcher import launched_processes
    from humanline.train.run.tracking import check_trackers

    if processes < 1:
        raise NotReadyError(f"--processes must be >= 1; got {processes}")
    findings = _Findings(Console(soft_wrap=True, highlight=False, markup=False, emoji=False))
    findings.show(describe_config(config))
    with findings.about("launcher"):
        launched_processes()
    with findings.about("tracking"):
        check_trackers(config.tracking)
    _look_at_own_parts(config, findings)
    outline, renderer = _look_at_model(config, processes, findings)
    data: RunData | None = None
    batches: _Batches | None = None
    if renderer is None:
        _look_at_rows(config, findings)
    else:
        data = _look_at_data(config, renderer, findings)
    if renderer is not None and data is not None:
        batches = _look_at_batches(config, data, renderer, processes, findings)
    parameters = 0 if outline is None else sum(parameter.numel() for parameter in outline.parameters())
    sized = outline is not None and _look_at_size(config, outline, parameters, findings)
    resumable = _look_at_output(config, findings)
    if resumable and renderer is not None and data is not None:
        _look_at_start(config, renderer, data, findings)
    if sized and data is not None and batches is not None and resumable is not None:  # else that was said
        _look_at_disk(config, outline, data, batches, processes, findings)
    if renderer is not None and data is not None:
        show_example(findings.console, config, shown_unit(data), renderer)
    for remark in findings.remarks:
        findings.show(f"remark       {remark}")
    findings.refuse()
    steps = (config.training.steps or 0) if batches is None else batches.steps
    return Validation(parameters, steps, bool(resumable), tuple(findings.remarks))


def _look_at_own_parts(config: TrainConfig, findings: _Findings) -> None:
    """Import and try losses, transforms and schedules of the user's own."""
    import torch

    from humanline.train.step.own_check import check_own_parts

    with findings.about("own code"):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for line in check_own_parts(config, device):
            findings.show(f"own code     {line}")


def _look_at_model(config: TrainConfig, processes: int, findings: _Findings) -> tuple[Any, Renderer | None]:
    """Make all checks of a model that take no weights, and return outline and template path where there are any."""
    import torch

    from humanline.train.policy.build import look_at_model, remarks_on

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, outline, renderer = look_at_model(config, device, findings.about)
    if tokenizer is not None:
        tokens = {name: getattr(tokenizer, f"{name}_token") for name in ("pad", "eos", "bos")}
        findings.show("tokens       " + ", ".join(f"{name} {token!r}" for name, token in tokens.items()))
        if tokens["pad"] == tokens["eos"] is not None:
            findings.remarks.append(
                "pad and eos are the same token: fine here, masks go by position, so the end of an answer is trained"
            )
    if outline is None or findings.problems:
        findings.remarks += without_effect(config, processes)
    else:
        findings.remarks += remarks_on(config, outline, renderer, device, processes)
    if renderer is not None:
        with findings.about("template"):
            findings.show(f"template     {config.data.template}, SHA-256 {renderer.template_hash}")
    return outline, renderer


def _look_at_rows(config: TrainConfig, findings: _Findings) -> None:
    """Look at the rows alone, which needs no template."""
    from humanline.train.data.layout import shape_of
    from humanline.train.data.prompts import offers_columns, scored_columns
    from humanline.train.data.rows import SetReader
    from humanline.train.data.travelled import as_prompts

    for name, path in (("data.train", config.data.train), ("data.eval", config.data.eval)):
        with findings.about(name):
            if path is not None:
                reader = SetReader.of(config.data, path, shape_of(config, path))
                count = sum(1 for _ in reader)
                left_out = reader.left_out()
                bad = f"; {left_out}" if left_out else ""
                findings.show(f"data         {path}: {count} rows, not tokenised{bad}")
                given, ours = scored_columns(config), config.data.columns
                columns = reader.columns.also_read(given, ours, offered=offers_columns(config))
                findings.show(f"columns      {columns}")
    distance = config.evaluation.distance
    with findings.about("evaluation.distance.prompts"):
        if distance is not None and distance.prompts is not None:
            data = config.data if config.rounds is not None else as_prompts(config.data)
            count = sum(1 for _ in SetReader.of(data, distance.prompts, "prompt"))
            findings.show(f"data         {distance.prompts}: {count} rows, not tokenised")


def _look_at_data(config: TrainConfig, renderer: Renderer, findings: _Findings) -> RunData | None:
    """Read and tokenise the data, and show what became of them."""
    from humanline.system.progress import ReadingProgress
    from humanline.train.data.run_data import read_data

    data = None
    with findings.about("data"):
        data = read_data(config, renderer, ReadingProgress(show=True))
    for report in () if data is None else data.sets.reports.values():
        twice = report.duplicates.duplicates or report.duplicates.contradictions
        findings.show(f"data         {report}{'' if twice else '; no duplicates or contradictions'}")
        findings.show(f"columns      {report.columns}")
    return data


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of training, as far as they can be made."""

    steps: int
    stream: Stream | None


def _look_at_batches(
    config: TrainConfig, data: RunData, renderer: Renderer, processes: int, findings: _Findings
) -> _Batches:
    """Make batches of training and evaluation, as far as that can be done, and see whether answers can be scored."""
    import torch

    from humanline.train.data.run_data import left_of_a_pass, stream_of
    from humanline.train.online.held_out import refuse_engine
    from humanline.train.online.rewards.check import check_scoring
    from humanline.train.preflight.still_reference import still_reference
    from humanline.train.step.held_out import held_out_evaluator

    steps, stream = config.training.steps or 0, None
    with findings.about("training"):
        stream, steps = stream_of(config, data, renderer, ranks=processes)
        findings.show(_describe_steps(config, stream, steps))
        findings.remarks += still_reference(config, steps) + left_of_a_pass(config, len(data.contexts))
    with findings.about("evaluation"):
        if config.rounds is None:
            held_out_evaluator(config, data.sets, renderer, _never, _never, torch.device("cpu"))
        refuse_engine(config)
    if config.rounds is not None:
        with findings.about("source.scoring"):
            prompts = [*data.contexts, *data.held_out]
            findings.remarks += check_scoring(
                config.rounds.scoring,
                prompts,
                show=lambda line: findings.show(f"reward       {line}"),
                encode=lambda text: renderer.tokenizer(text, add_special_tokens=False)["input_ids"],
            )
    return _Batches(steps, stream)


def _look_at_size(config: TrainConfig, outline: Any, parameters: int, findings: _Findings) -> bool:
    """Show how large the model is, and return whether that can be told."""
    from humanline.train.policy.build import describe_adapter
    from humanline.train.preflight.memory import static_bytes

    sizes, adapted = None, ""
    with findings.about("model"):
        sizes = static_bytes(config, outline)
        if config.adapter is not None:
            adapted = f" and {sizes.trained:,} of an adapter, which alone are trained"
            for line in describe_adapter(config, outline):
                findings.show(line.replace("adapter: ", "adapter      ", 1))
    findings.show(f"parameters   {parameters:,} ({type(outline).__name__}){adapted}")
    findings.show("fits         not looked at here: humanline estimate tells, and train refuses a run that does not")
    return sizes is not None


def _never(*_: Any) -> Any:
    raise AssertionError("validation scores nothing")


def _describe_steps(config: TrainConfig, stream: Stream, steps: int) -> str:
    from humanline.train.data.units import count_tokens

    batch, count = stream.batch_size, len(stream.units)
    if config.rounds is not None:
        return (
            f"steps        at most {steps} of {batch} {units_in_words(config)}, {config.round_steps} a round, "
            "if no round leaves anything out; warm-up is a share of these"
        )
    a_step, trained = (round(batch * tokens / count) for tokens in count_tokens(stream.units))
    passes = stream.step(0).total_micro_batches // stream.ranks
    about = "about " if stream.micro_batch_tokens is not None else ""  # steps differ
    shared = f" on each of {stream.ranks} processes" if stream.ranks > 1 else ""
    return (
        f"steps        {steps} of {batch} {units_in_words(config)} ({steps * batch / count:.2f} epochs); about "
        f"{a_step:,} tokens a step, {trained:,} of them in the loss; {about}{passes} pass(es) a step{shared}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Output and disk


def _look_at_output(config: TrainConfig, findings: _Findings) -> bool | None:
    """Show what the output folder is; return whether it holds a run to go on with, and None if it is no path."""
    from humanline.system.files import output_path

    resumable = None
    with findings.about("output"):
        output_path(config.output)
        resumable = False
        resumable, state = _state_of_output(config)
        findings.show(f"output       {config.output}: {state}")
    return resumable


def _look_at_start(config: TrainConfig, renderer: Renderer, data: RunData, findings: _Findings) -> None:
    """See whether data, template and code are those that the run in the output folder began with."""
    from humanline.train.config.own_sources import own_digests
    from humanline.train.policy.told_apart import reward_models
    from humanline.train.run.fingerprint import tokenizer_hash
    from humanline.train.run.folder import RunFolder

    folder = RunFolder(config.output, resume=True)
    if folder.final.exists():  # it is left as it is, and its data are not read
        with findings.about("output"):
            folder.refuse_other_code(own_digests(config))
        return
    with findings.about("output"):
        facts = {"template": renderer.template_hash, "tokenizer": tokenizer_hash(renderer.tokenizer)}
        folder.refuse_other_start(facts | data.hashes(config.objective) | own_digests(config) | reward_models(config))


def _state_of_output(config: TrainConfig) -> tuple[bool, str]:
    """Return whether the output folder holds a run to go on with, and what it is; raise if it cannot be used."""
    from humanline.system.disk import nearest
    from humanline.system.files import OutputError
    from humanline.train.run.folder import RunFolder

    resumable = False
    try:
        RunFolder(config.output, resume=False).refuse_unfit()
    except OutputError:
        folder = RunFolder(config.output, resume=True)
        folder.refuse_unfit()
        folder.refuse_other_settings(written(config))
        resumable = True
    there = nearest(config.output)
    if not there.is_dir():
        raise OutputError(f"output {config.output!r} cannot be made: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"output {config.output!r} cannot be written: no permission in {there}")
    if resumable and folder.final.exists():
        return True, "holds a finished run, which --resume would leave as it is"
    return resumable, "holds a run that --resume would continue" if resumable else "free"


def _look_at_disk(
    config: TrainConfig, outline: Any, data: RunData, batches: _Batches, processes: int, findings: _Findings
) -> None:
    """Show how much a run would write, if its batches can be made, and whether its disk holds that."""
    from humanline.system.disk import in_words
    from humanline.train.preflight.disk import bytes_written

    if batches.stream is None:
        return
    with findings.about("disk"):
        writes = bytes_written(
            config, outline, batches.stream, batches.steps, data.sets.held_out, processes, len(data.held_out)
        )
        findings.show(f"disk         {writes.describe()}; {in_words(writes.free())} free")
        writes.refuse()
