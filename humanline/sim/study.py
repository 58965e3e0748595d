"""Many runs over the same seeds: in processes, kept as they finish, so that a study goes on where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from humanline._workers import worker_processes
from humanline.sim.long import LongWorld
from humanline.sim.measures import perceive, utility_gap, win_rate
from humanline.sim.run import Run, Trace, simulate
from humanline.sim.threads import one_thread
from humanline.sim.world import check_seeds, whole

#: What is kept of a run, one number a seed.
MEASURES = {
    "start": "exact true score of the start policy",
    "best": "score of the best response to every context",
    "score": "exact true score after the last update",
    "early": "the same when a quarter of the updates was done",
    "drop": "how far the score fell from its best",
    "collapsed": "1 if the score ended below its start or was not finite, 0 otherwise",
    "win_rate": "exact rate of beating the start policy (sequences too long to enumerate: from 256 drawn a context)",
    "utility": "exact subjective utility, surprisals measured from the start policy (long: nan, as the two below)",
    "distance": "half the L1 distance from the data's law to the perceived one, surprisals measured from the reference",
    "gap": "difference of utility between the two",
    "outside": "share of tokens clipped or detached",
    "saturation": "mean of DPO's sigmoid of the margin",
}
#: Modules that only read results, or that no run uses: a change in them makes no result old.
_READERS = ("worlds", "lookup", "contrasts", "claims", "judging", "report", "exact", "limit")
Result = dict[str, NDArray[np.float64]]


def measure(run: Run, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Simulate a run and return its `MEASURES`, and its scores over time as ``curve 0``, ``curve 1``, ..., per seed."""
    with one_thread():  # the bits may depend on it
        return _measure(simulate(run, seeds), run.steps)


def _measure(trace: Trace, steps: int) -> dict[str, list[float]]:
    world, broken = trace.world, ~np.isfinite(trace.scores.numpy()[:, -1])
    found = _of_scores(trace, steps, broken)
    found |= _of_samples(world, trace) if isinstance(world, LongWorld) else _of_laws(trace, broken)
    for name in ("win_rate", "utility", "distance", "gap"):
        found[name] = np.where(broken, math.nan, found[name])
    return {name: values.tolist() for name, values in found.items()}


def _of_scores(trace: Trace, steps: int, broken: NDArray[np.bool_]) -> Result:
    """Return the measures that need the run's scores and counts alone, and the scores over time."""
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
    } | {f"curve {index}": column for index, column in enumerate(scores.T)}


def _of_laws(trace: Trace, broken: NDArray[np.bool_]) -> Result:
    """Return the measures that need the laws over all responses; those of a broken seed are to be thrown away."""
    world = trace.world
    start = world.law(world.table(world.start))
    sound = torch.from_numpy(~broken)[:, None, None]
    law = torch.where(sound, world.law(trace.policy), start)
    distance = gap = np.full(len(broken), math.nan)
    if trace.behaviour is not None:
        reference = torch.where(sound, world.law(trace.reference), start)
        found_gap = utility_gap(perceive(law, reference), torch.where(sound, trace.behaviour, start))
        distance, gap = found_gap.distance.mean(-1), found_gap.gap.mean(-1)
    return {
        "win_rate": win_rate(law, start, world.scores).numpy(),
        "utility": perceive(law, start).utility.mean(-1),
        "distance": distance,
        "gap": gap,
    }


def _of_samples(world: LongWorld, trace: Trace) -> Result:
    """Return what samples say of the same; nan for what is perceived, whose weights need every probability."""
    unknown = np.full(len(trace.scores), math.nan)
    win_rate = world.estimated_win_rate(trace.policy, world.table(world.start)).numpy()
    return {"win_rate": win_rate, "utility": unknown, "distance": unknown, "gap": unknown}


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
    kept = _read(Path(store))
    missing = {key: run for key, run in by_key.items() if key not in kept}
    done = len(by_key) - len(missing)
    if progress is not None:
        progress(done, len(by_key))
    with contextlib.closing(_measured(missing, seeds, processes)) as results:
        for key, result in results:
            kept[key] = json.dumps(result)
            _keep(Path(store), key, by_key[key], kept[key])
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
    count, failure = min(processes, len(runs)), None
    with worker_processes(count, then="what is finished is kept, and the same study goes on") as pool:
        waiting = {pool.submit(measure, run, seeds): key for key, run in runs.items()}
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                yield waiting[future], future.result()
            elif failure is None:
                failure = error
                for other in waiting:
                    other.cancel()
        if failure is not None:
            raise failure


def _read(store: Path) -> dict[str, str]:
    """Return the rows that a store keeps; a missing store is made."""
    with _named(store), contextlib.closing(sqlite3.connect(store)) as database:
        with database:
            database.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, run TEXT, result TEXT)")
        return dict(database.execute("SELECT key, result FROM results"))


def _keep(store: Path, key: str, run: Run, result: str) -> None:
    with _named(store), contextlib.closing(sqlite3.connect(store)) as database, database:
        database.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?)", (key, repr(run), result))


@contextlib.contextmanager
def _named(store: Path) -> Iterator[None]:
    """Turn SQLite's errors into an OSError that names the store."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(f"{store}: {error}; what it keeps is not lost, the same study goes on") from error
    except sqlite3.DatabaseError as error:
        raise OSError(f"{store}: {error}; results of a study would be kept there, so take another folder") from error


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
