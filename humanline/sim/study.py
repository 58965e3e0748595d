"""Many runs over the same seeds: in processes, kept as they finish, so that a study goes on where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from humanline._workers import as_made, worker_processes
from humanline.sim.long import LongWorld
from humanline.sim.measures import perceive, utility_gap, win_rate
from humanline.sim.run import Run, Trace, simulate
from humanline.sim.threads import one_thread
from humanline.sim.world import check_seeds, whole
from humanline.system.kept import KeptResults
from humanline.theory import Identity, total_variation

#: What is kept of a run, one number a seed.
MEASURES = {
    "start": "exact true score of the start policy",
    "best": "score of the best response to every context",
    "score": "exact true score after the last update",
    "early": "the same when a quarter of the updates was done",
    "drop": "how far the score fell from its best",
    "collapsed": "1 if the score ended below its start or was not finite, 0 otherwise",
    "kl": "exact KL divergence of the policy from the start policy, nats a response",
    "win_rate": "exact rate of beating the start policy (sequences too long to enumerate: from 256 drawn a context)",
    "utility": "exact subjective utility, surprisals measured from the start policy (long: nan, as the two below)",
    "distance": "half the L1 distance from the data's law to the perceived one, surprisals measured from the reference",
    "distance literal": "the same distance from the policy itself, which nothing distorts",
    "distance undistorted": "the same by way of perception with capacities that distort nothing (a placebo)",
    "gap": "difference of utility between data's law and the perceived one",
    "outside": "share of tokens clipped or detached",
    "saturation": "mean of DPO's sigmoid of the margin",
}
#: Points in time before the first measurement, each at half the time of the next.
EARLY = 5
#: Modules that only read results, or that no run uses: a change in them makes no result old.
_READERS = (
    *("worlds", "people", "people_tables"),
    *("lookup", "contrasts", "distances", "claims", "dependence", "findings", "judging", "tables", "report"),
    *("exact", "limit"),
)
#: Measures that the last policy must be sound for.
_LAWS = ("kl", "win_rate", "utility", "distance", "distance literal", "distance undistorted", "gap")
Result = dict[str, NDArray[np.float64]]


def measure(run: Run, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Simulate a run and return its `MEASURES` per seed, and what it was over time.

    Over time: ``curve 0``, ``curve 1``, ... are the scores that the run takes, ``kl curve 0``, ... how far it was then;
    ``early curve 1`` to ``early curve 5`` and ``early kl curve 1``, ... the same at 1/32, 1/16, 1/8, 1/4 and 1/2 of the
    time to ``curve 1``, in which a run goes far.
    """
    times = [round(run.steps * i / run.measurements) for i in range(run.measurements + 1)]
    early = [max(1, round(run.steps / run.measurements / 2**halvings)) for halvings in range(EARLY, 0, -1)]
    kept: dict[int, Tensor] = {}

    def keep(step: int, params: Tensor) -> None:
        if step in times or step in early:
            kept[step] = params

    with one_thread():  # the bits may depend on it
        trace = simulate(run, seeds, each_step=keep)
        return _measure(trace, run.steps) | _over_time(trace, kept, times, early)


def _over_time(trace: Trace, kept: dict[int, Tensor], times: list[int], early: list[int]) -> dict[str, list[float]]:
    """Return scores and divergences at some steps, from the parameters that were kept there."""
    world, found = trace.world, {}
    start = world.table(world.start)
    tables = ((step, world.table(params)) for step, params in kept.items())
    passed = {step: (world.expected_score(table), world.divergence(table, start)) for step, table in tables}
    for index, step in enumerate(times):
        found[f"curve {index}"] = trace.scores[:, trace.measured_at.index(step)].tolist()
        found[f"kl curve {index}"] = passed[step][1].tolist()
    for index, step in enumerate(early, 1):
        found[f"early curve {index}"], found[f"early kl curve {index}"] = (x.tolist() for x in passed[step])
    return found


def _measure(trace: Trace, steps: int) -> dict[str, list[float]]:
    world, broken = trace.world, ~np.isfinite(trace.scores.numpy()[:, -1])
    found = _of_scores(trace, steps, broken)
    found["kl"] = world.divergence(trace.policy, world.table(world.start)).numpy()
    found |= _of_samples(world, trace) if isinstance(world, LongWorld) else _of_laws(trace, broken)
    for name in _LAWS:
        found[name] = np.where(broken, math.nan, found[name])
    return {name: values.tolist() for name, values in found.items()}


def _of_scores(trace: Trace, steps: int, broken: NDArray[np.bool_]) -> Result:
    """Return the measures that need the run's scores and counts alone."""
    scores = trace.scores.numpy()
    quarter = min(range(len(trace.measured_at)), key=lambda i: abs(4 * trace.measured_at[i] - steps))
    return {
        "start": scores[:, 0],
        "best": trace.world.best_score().numpy(),
        "score": scores[:, -1],
        "early": scores[:, quarter],
        "drop": np.fmax.reduce(scores, axis=1) - scores[:, -1],
        "collapsed": (broken | (scores[:, -1] < scores[:, 0])).astype(float),
        "outside": trace.outside.numpy(),
        "saturation": trace.saturation.numpy(),
    }


def _of_laws(trace: Trace, broken: NDArray[np.bool_]) -> Result:
    """Return the measures that need the laws over all responses; those of a broken seed are to be thrown away."""
    world = trace.world
    start = world.law(world.table(world.start))
    sound = torch.from_numpy(~broken)[:, None, None]
    law = torch.where(sound, world.law(trace.policy), start)
    distance = literal = undistorted = gap = np.full(len(broken), math.nan)
    if trace.behaviour is not None:
        reference = torch.where(sound, world.law(trace.reference), start)
        source = torch.where(sound, trace.behaviour, start)
        found_gap = utility_gap(perceive(law, reference), source)
        distance, gap = found_gap.distance.mean(-1), found_gap.gap.mean(-1)
        literal = total_variation(law.exp().numpy(), source.exp().numpy()).mean(-1)
        plain = perceive(law, reference, gain=Identity(), loss=Identity())
        undistorted = total_variation(plain.weights, source.exp().numpy()).mean(-1)
    return {
        "win_rate": win_rate(law, start, world.scores).numpy(),
        "utility": perceive(law, start).utility.mean(-1),
        "distance": distance,
        "distance literal": literal,
        "distance undistorted": undistorted,
        "gap": gap,
    }


def _of_samples(world: LongWorld, trace: Trace) -> Result:
    """Return what samples say of the same; nan for what is perceived, whose weights need every probability."""
    unknown = np.full(len(trace.scores), math.nan)
    win_rate = world.estimated_win_rate(trace.policy, world.table(world.start)).numpy()
    return {name: unknown for name in _LAWS if name != "kl"} | {"win_rate": win_rate}


def run_study(
    runs: Mapping[str, Run],
    seeds: Sequence[int],
    store: str | Path,
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Result]:
    """Measure every run that is not measured yet, and return all results.

    Parameters
    ----------
    runs : mapping from a name to a Run
        Equal runs are measured once.
    seeds : sequence of distinct int >= 0
    store : path
        SQLite file; created if it does not exist. A result is committed as soon as it is there, under a key made of
        the run, the seeds, the code of this package and the versions of numpy and torch.
    processes : int >= 1
    progress : callable, optional
        Called with (done, total), once at the beginning and after every run.

    Returns
    -------
    dict from a name to a dict from a measure to an (S,) array

    Raises
    ------
    ValueError
        If seeds repeat or `processes` < 1.
    OSError
        If the store is not such a file, or cannot be read or written.
    """
    seeds, processes = check_seeds(seeds), whole("processes", processes, 1)
    keys = {name: _key(run, seeds) for name, run in runs.items()}
    by_key = {key: runs[name] for name, key in keys.items()}
    file = KeptResults(Path(store))
    kept = file.read()
    missing = {key: run for key, run in by_key.items() if key not in kept}
    done = len(by_key) - len(missing)
    if progress is not None:
        progress(done, len(by_key))
    with contextlib.closing(_measured(missing, seeds, processes)) as results:
        for key, result in results:
            kept[key] = json.dumps(result)
            file.keep(key, repr(by_key[key]), kept[key])
            done += 1
            if progress is not None:
                progress(done, len(by_key))
    found = {key: {name: np.array(values) for name, values in json.loads(kept[key]).items()} for key in by_key}
    return {name: found[key] for name, key in keys.items()}


def _measured(
    runs: dict[str, Run], seeds: list[int], processes: int
) -> Generator[tuple[str, dict[str, list[float]]], None, None]:
    """Yield each result as it is there; if a run fails, those under way are yielded before its error is raised."""
    if min(processes, len(runs)) <= 1:
        for key, run in runs.items():
            yield key, measure(run, seeds)
        return
    count = min(processes, len(runs))
    with worker_processes(count, then="what is finished is kept, and the same study goes on") as pool:
        each = as_made(runs.items(), lambda keyed: pool.submit(measure, keyed[1], seeds), at_once=count)
        yield from ((key, result) for (key, _), result in each)


def _key(run: Run, seeds: Sequence[int]) -> str:
    return hashlib.sha256(f"{run!r} {list(seeds)!r} {_code()}".encode()).hexdigest()


def _code() -> str:
    """Return a digest of everything that a result depends on, settings aside."""
    package = Path(__file__).parent.parent
    files = [package / "schedule.py", package / "_checks.py"]
    files += [path for part in ("sim", "objectives", "theory") for path in (package / part).rglob("*.py")]
    digest = hashlib.sha256(f"{np.__version__} {torch.__version__}".encode())
    for path in sorted(files):
        if path.parent.name != "sim" or path.stem not in _READERS:
            digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
