"""All that comes before the first step of a run: refusals, reading data and model, building the parts.

The parts come together here, and nowhere else: `set_up` gives them as one frozen `Run`, and `loop.py` takes its steps.
Everything that can be refused is refused before anything new is written, and most of it before weights are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from humanline.schedule import Never
from humanline.system.activity import HERE
from humanline.system.disk import of_run
from humanline.system.log import kept_log
from humanline.system.progress import ReadingProgress, RunProgress
from humanline.system.stop import StopSignal
from humanline.train.config import TrainConfig
from humanline.train.config.own_schedule import AnySchedule
from humanline.train.config.own_sources import own_digests
from humanline.train.config.secrets import written
from humanline.train.data.pack import pack, unpack
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import RunData, left_of_a_pass, read_data, stream_of
from humanline.train.data.sets import Report
from humanline.train.data.stream import Batches, FixedBatches, Stream
from humanline.train.online.distance import Distance, make_distance
from humanline.train.online.held_out import RolloutEvaluator, refuse_engine
from humanline.train.online.rewards.check import check_scoring
from humanline.train.online.rounds import Rounds, make_rounds
from humanline.train.policy.build import (
    CheckedModel,
    build_policy,
    build_sharded_policy,
    checked_model,
    describe_adapter,
    remarks_on,
)
from humanline.train.policy.fused import check_fused
from humanline.train.policy.logprobs import check_logprobs, refuse_random
from humanline.train.policy.optimizer import make_optimizer
from humanline.train.policy.reached import tell_unreached
from humanline.train.policy.shard import Shards, leave_alone, let_go
from humanline.train.policy.spread import Spread, Whole
from humanline.train.policy.told_apart import settle_reward_models
from humanline.train.preflight.disk import bytes_written
from humanline.train.preflight.exhausted import Known, explaining
from humanline.train.preflight.fits import refuse_unfit
from humanline.train.preflight.still_reference import still_reference
from humanline.train.run.alike import refuse_unlike
from humanline.train.run.checkpoint import Contents, Position
from humanline.train.run.checkpoints import Checkpoints, Unsaved
from humanline.train.run.collapse import CollapseWatch, watched
from humanline.train.run.fingerprint import run_facts, software, trained_hash
from humanline.train.run.folder import RunFolder
from humanline.train.run.metrics import MetricsLog, read_metrics
from humanline.train.run.neighbours import joined
from humanline.train.run.processes import Processes, asked_to_end, over_ranks, safe_points
from humanline.train.run.result import RunResult
from humanline.train.run.state import ModuleState, OfEach, OptimizerState, RandomState, Stateful
from humanline.train.run.tracking import Trackers, check_trackers, start_trackers
from humanline.train.run.travel import Travel
from humanline.train.step.data_level import DataLevel, data_level_of
from humanline.train.step.held_out import Evaluator, held_out_evaluator
from humanline.train.step.loss import ObjectiveStep
from humanline.train.step.own_check import check_together
from humanline.train.step.reference import BaseModel, LogprobsAhead, LogprobsOf, Reference, SecondModel, logprobs_pass
from humanline.train.step.trained import Trained
from humanline.train.step.trial import Trial


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that the steps of a run work with.

    Parameters
    ----------
    config : TrainConfig
    folder : RunFolder
        Locked, with what the run was given written down.
    processes : Processes
    tokenizer
    trained : Trained
    objective : ObjectiveStep
    batches : Batches
    references : sequence of Reference
        The reference of the objective, where it has one, and the anchor of its KL term, where that is another.
    data_level : DataLevel
        Of the run's own data, told after step 0.
    evaluator : optional
        What measures the policy on held-out data.
    distance : Distance or None
        What measures how far it has travelled.
    travel : Travel
        What says so at each look.
    steps : int
        In rounds, at most.
    start : Position
        Where the run begins or goes on.
    checkpoints : Checkpoints
    log : MetricsLog
        Written through `watch`, which looks whether the run has broken.
    watch : CollapseWatch
    trackers : Trackers
    progress : RunProgress
    told : list of dict
        Rows about rounds that are not yet in the metrics.
    """

    config: TrainConfig
    folder: RunFolder
    processes: Processes
    tokenizer: Any
    trained: Trained
    objective: ObjectiveStep
    batches: Batches
    references: Sequence[Reference]
    data_level: DataLevel
    evaluator: Evaluator | RolloutEvaluator | None
    distance: Distance | None
    travel: Travel
    steps: int
    start: Position
    checkpoints: Checkpoints
    log: MetricsLog
    watch: CollapseWatch
    trackers: Trackers
    progress: RunProgress
    told: list[dict[str, Any]]

    @property
    def looks(self) -> bool:
        """Return whether there is anything to look at the policy by."""
        return self.evaluator is not None or self.distance is not None

    def look(self, updates: int, last: bool) -> dict[str, float]:
        """Return the held-out metrics of the policy as it is after so many updates, and how far it has travelled."""
        metrics: dict[str, float] = {}
        if self.evaluator is not None:
            metrics |= self.evaluator() if updates else self.evaluator.start()
        if self.distance is not None:
            metrics |= self.distance(updates, last)
        return metrics


@contextlib.contextmanager
def set_up(
    config: TrainConfig,
    *,
    resume: bool = False,
    stop: StopSignal | None = None,
    show_progress: bool = True,
    trial: Trial | None = None,
) -> Iterator[Run | RunResult]:
    """Give a run that is ready for its next step, or the result of one that is finished already.

    The output folder is locked, and the run's processes watch each other, until the context ends.

    Parameters
    ----------
    config, resume, stop, show_progress
        As in `humanline.train.loop.train`.
    trial : Trial, optional
        Give the first steps of a run on fixed data, to be looked at; default: the whole run.

    Raises
    ------
    OutputError, ModelError, DataError, ValueError, CheckpointError, NeighbourError, StopRequested, MemoryRanOutError
        As `humanline.train.loop.train` does.
    """
    if trial is not None and config.rounds is not None:
        raise ValueError("a trial needs fixed data: the answers of rounds do not exist before they are drawn")
    folder = RunFolder(config.output, resume=resume, say=RunProgress(0, show_progress).say)
    try:
        with (
            kept_log(),
            explaining(config, folder.checkpoints),  # a device is first used where processes join
            joined(config.training.stall_minutes, stop) as (accelerator, meeting),
            explaining(config, folder.checkpoints) as known,  # first: once others hear of it, this one is ended soon
            of_run(config.training.disk_full, folder.checkpoints, stop, HERE.held_up),
        ):
            check, ending = safe_points(stop, meeting.reduce, folder.lost), asked_to_end(stop, folder.lost)
            processes = Processes(accelerator, over_ranks(accelerator), check, ending, meeting)
            with contextlib.ExitStack() as begun:
                show = show_progress and processes.rank == 0
                run = _set_up(config, folder, processes, stop, show, known, begun, trial)
                begun.pop_all()  # it is the run's from here on
            yield run
    finally:
        leave_alone()
        folder.leave()


def _set_up(
    config: TrainConfig,
    folder: RunFolder,
    processes: Processes,
    stop: StopSignal | None,
    show: bool,
    known: Known,
    begun: contextlib.ExitStack,
    trial: Trial | None,
) -> Run | RunResult:
    """Return a run, or its result; what has threads or processes of its own by then is ended by `begun`."""
    torch.manual_seed(config.seed)
    settings = written(config)
    refuse_unlike(config, settings, folder.resume, processes)
    processes.on_main(folder.refuse_unfit)
    check_trackers(config.tracking)
    if folder.resume:
        processes.on_main(folder.take)
        folder.refuse_other_settings(settings)
        if processes.on_main(folder.is_finished):
            processes.on_main(lambda: folder.refuse_other_code(own_digests(config)))
            RunProgress(0, show).say(f"finished already, and its data were not read again: {folder.final}")
            return RunResult.read(folder)
    given = _read(config, processes, show, saves=trial is None)
    known.of_model(given.model.outline, given.stream, given.steps, processes.device)
    trained = _load(config, given.data, processes, given.remarks)
    RandomState(processes.device, config.seed).begin(processes.rank)
    hashes = {"template": given.model.renderer.template_hash, **given.data.hashes(config.objective)}
    hashes |= settle_reward_models(config, folder.began(), processes.meeting.texts)
    fingerprints = run_facts(config, given.model.tokenizer, trained.policy, hashes, processes)
    steps, observe = (given.steps, None) if trial is None else (min(given.steps, trial.steps), trial.observe)
    objective = ObjectiveStep(config.objective, config.transform, config.seed, processes.device, observe)
    progress = RunProgress(steps, show)
    told: list[dict[str, Any]] = []
    batches: Batches = FixedBatches(given.stream, steps, processes.device)
    evaluator: Evaluator | RolloutEvaluator | None = None
    if config.rounds is not None:
        rounds = _rounds(config, given, folder, trained, processes, progress, told)
        batches, evaluator = rounds, rounds.evaluator(given.data.held_out)
    elif given.data.sets.held_out:
        evaluator = _evaluator(config, given, trained.logprobs_of, processes)
    distance = make_distance(
        config, given.data.travelled, given.model.renderer, folder, trained, batches, processes, progress
    )
    data_level = data_level_of(config, len(given.data.sets.train), folder, processes, progress.say)
    references = _references(config, batches, trained, processes, progress, data_level)
    shared, own = _states(trained, batches, evaluator, distance, references, processes, config.seed)
    kind = Checkpoints if trial is None else Unsaved
    checkpoints = _checkpoints(kind, config, settings, folder, shared, own, fingerprints, processes)
    reports = given.data.sets.reports
    read = [*map(str, reports.values()), *_passed_over(reports)]
    for line in [*read, *describe_adapter(config, given.model.outline), *given.remarks]:
        progress.say(line)
    begun.callback(batches.close)  # for which reading a window, or a round, may be the beginning
    restored = checkpoints.restore(progress.say) if folder.resume else None
    if stop is not None:
        stop.hold()  # from here on there is something to save
    if not folder.resume:
        processes.on_main(folder.take)
    of_data = {"template": given.model.renderer.template_hash} | {name: asdict(r) for name, r in reports.items()}
    start = None
    if restored is None:
        start = {"start weights": trained_hash(trained.policy, processes.reduce), **fingerprints}
    processes.on_main(lambda: folder.begin(settings, of_data | {"steps": steps}, start, progress.say))
    at = restored or Position()
    data_level.begin(at.updates)
    progress.begin(at.updates)
    is_main, first_step = processes.accelerator.is_main_process, None if restored is None else restored.updates
    log = folder.open_log(is_main)
    return Run(
        config=config,
        folder=folder,
        processes=processes,
        tokenizer=given.model.tokenizer,
        trained=trained,
        objective=objective,
        batches=batches,
        references=references,
        data_level=data_level,
        evaluator=evaluator,
        distance=distance,
        travel=Travel(read_metrics(folder.metrics) if is_main and restored is not None else ()),
        steps=given.steps,
        start=at,
        checkpoints=checkpoints,
        log=log,
        watch=watched(config, log, folder.metrics if is_main else None, progress.say),
        trackers=start_trackers(config, folder.path, processes.accelerator, progress.say, first_step=first_step),
        progress=progress,
        told=told,
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """What a run is given, before its weights are read."""

    model: CheckedModel
    data: RunData
    stream: Stream
    steps: int
    remarks: list[str]


def _read(config: TrainConfig, processes: Processes, show: bool, *, saves: bool) -> _Given:
    """Read all but the weights, and refuse what cannot be trained, or not here."""
    check_together(config, processes)
    model = processes.alike(lambda: checked_model(config, processes.device))
    for remark in remarks_on(config, model.outline, model.renderer, processes.device, processes.ranks):
        RunProgress(0, show).say(f"remark: {remark}")
    data = _data(config, model.renderer, processes, show)

    def batches() -> tuple[Stream, int]:
        stream, steps = stream_of(config, data, model.renderer, rank=processes.rank, ranks=processes.ranks)
        refuse_unfit(config, model.outline, stream, steps, processes.device, data.travelled)
        return stream, steps

    stream, steps = processes.alike(batches)
    for remark in [*still_reference(config, steps), *left_of_a_pass(config, len(data.contexts))]:
        RunProgress(0, show).say(f"remark: {remark}")
    remarks: list[str] = []

    def refuse() -> None:
        sets, ranks = data.sets, processes.ranks
        if saves:
            bytes_written(config, model.outline, stream, steps, sets.held_out, ranks, len(data.held_out)).refuse()
        if config.rounds is not None:
            refuse_engine(config)
            remarks.extend(check_scoring(config.rounds.scoring, [*data.contexts, *data.held_out]))

    processes.on_main(refuse)
    return _Given(model, data, stream, steps, remarks)


def _data(config: TrainConfig, renderer: Renderer, processes: Processes, show: bool) -> RunData:
    """Read and tokenise the data in the main process; the others get what it has made."""
    found: list[RunData] = []

    def make() -> bytes:
        found.append(read_data(config, renderer, ReadingProgress(show)))
        return pack(found[0]) if processes.ranks > 1 else b""

    packed = processes.made_by_main(make)
    return found[0] if found else unpack(packed, config, renderer)


def _load(config: TrainConfig, data: RunData, processes: Processes, remarks: list[str]) -> Trained:
    """Load the policy, look whether training would work on it, say what would not, and make its optimizer."""
    sharded = config.training.sharding == "full"
    policy, adapter = (build_sharded_policy if sharded else build_policy)(config, processes.device)
    check_logprobs(policy, data.probe)
    check_fused(policy, data.probe, gradient=not sharded)
    if not config.training.dropout and (config.adapter is None or not config.adapter.dropout):
        refuse_random(policy, data.probe)
    if sharded:
        let_go(policy)  # after the checks
        spread: Spread = Shards(policy)
    else:
        looks = processes.ranks > 1 or config.adapter is not None
        missed = looks and tell_unreached(policy, data.probe, remarks, processes.meeting.reduce)
        spread = Whole(policy, processes.accelerator, unreached=missed)
        policy = spread.policy
    spread.wrapped.train()
    optimizer = make_optimizer(spread.rows.values(), config.optimizer, config.training.weights)
    optimizer = processes.accelerator.prepare(optimizer)
    return Trained(policy, spread, optimizer, adapter, logprobs_pass(policy, spread.without_gradient()))


def _passed_over(reports: Mapping[str, Report]) -> list[str]:
    """Return lines about columns that nothing reads, such as a system prompt that no setting names."""
    found = [(report.path, report.columns) for report in reports.values() if report.columns is not None]
    return [f"{path}: columns {columns}" for path, columns in found if columns.ignored or columns.nowhere]


def _rounds(
    config: TrainConfig,
    given: _Given,
    folder: RunFolder,
    trained: Trained,
    processes: Processes,
    progress: RunProgress,
    told: list[dict[str, Any]],
) -> Rounds:
    """Return the rounds of a run; each of them adds a row about itself to `told`."""
    rounds = make_rounds(
        config,
        given.data,
        given.model.renderer,
        folder.rounds,
        trained.policy,
        trained.adapter,
        processes,
        progress,
        told.append,
    )
    folder.also.append(rounds.remake)
    return rounds


def _evaluator(config: TrainConfig, given: _Given, logprobs_of: LogprobsOf, processes: Processes) -> Evaluator | None:
    """Return the evaluator of held-out data that are there from the start."""
    return held_out_evaluator(
        config,
        given.data.sets,
        given.model.renderer,
        logprobs_of,
        processes.reduce,
        processes.device,
        rank=processes.rank,
        ranks=processes.ranks,
        check=processes.check,
    )


def _references(
    config: TrainConfig,
    batches: Batches,
    trained: Trained,
    processes: Processes,
    progress: RunProgress,
    data_level: DataLevel,
) -> list[Reference]:
    """Return the reference of the objective, if it has one, and then the anchor of its KL term, if that is another."""

    def make(schedule: AnySchedule) -> Reference:
        if config.reference.storage == "model":
            return SecondModel(batches.schedule(schedule), trained.policy, trained.spread)
        if trained.adapter is not None and schedule.kind == "never":
            return BaseModel(trained.logprobs_of, trained.adapter.off)
        return LogprobsAhead(
            batches.schedule(schedule),
            trained.logprobs_of,
            batches,
            processes.device,
            processes.reduce,
            progress.scoring,
            data_level.hear,
        )

    if not config.objective.needs_reference:
        return []
    return [make(config.reference.schedule), *([make(Never())] if config.own_baseline else [])]


def _states(
    trained: Trained,
    batches: Batches,
    evaluator: Evaluator | RolloutEvaluator | None,
    distance: Distance | None,
    references: Sequence[Reference],
    processes: Processes,
    seed: int,
) -> tuple[Mapping[str, Stateful], Mapping[str, OfEach]]:
    """Return the parts of a checkpoint: those that all processes share, and those of this one alone."""
    shared: dict[str, Stateful] = {
        "policy": ModuleState(trained.policy),
        "optimizer": OptimizerState(trained.optimizer.optimizer, trained.spread.rows, trained.spread.state_of),
    }
    if isinstance(batches, Rounds):
        shared["rounds"] = batches
    if distance is not None:
        shared["distance"] = distance
    own: dict[str, OfEach] = {"random": RandomState(processes.device, seed)}
    for index, reference in enumerate(references):  # the base of an adapter keeps nothing
        if isinstance(reference, SecondModel):
            shared[f"reference-{index}"] = reference
        elif isinstance(reference, LogprobsAhead):
            own[f"reference-{index}"] = reference
    if isinstance(evaluator, Evaluator):  # the other one keeps nothing
        own["held-out"] = evaluator
    return shared, own


def _checkpoints(
    kind: type[Checkpoints],
    config: TrainConfig,
    settings: Mapping[str, Any],
    folder: RunFolder,
    shared: Mapping[str, Stateful],
    own: Mapping[str, OfEach],
    fingerprints: Mapping[str, Any],
    processes: Processes,
) -> Checkpoints:
    """Return the checkpoints of the run, new ones and those to go on from."""
    contents = Contents(
        shared=shared,
        own=own,
        config=settings,
        fingerprints=fingerprints,
        software=software(),
        metrics=folder.metrics,
        rank=processes.rank,
        ranks=processes.ranks,
    )
    return kind(
        folder.checkpoints,
        config.checkpoint,
        contents,
        refuse_lost=folder.refuse_lost,
        ready=folder.ready,
        accelerator=processes.accelerator,
        meet=processes.meeting.reduce,
    )
