"""Play the campaign, or some of its cases, and write down what came of it.

python -m tests.campaign                          all of it, with a table in tests/campaign/results.md
python -m tests.campaign --only models:17         one case again, alone, with what it said
python -m tests.campaign --only models data:3-9   a kind, and some cases of another
python -m tests.campaign --only models --results tests/campaign    a kind again, in the table of all
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):  # a process with threads cannot be forked
    os.environ[_name] = "1"
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

from tests.campaign import table  # noqa: E402
from tests.campaign.forked import adopt_orphans, warm_up  # noqa: E402
from tests.campaign.kinds import KINDS  # noqa: E402
from tests.campaign.stage import Stage, tail  # noqa: E402
from tests.campaign.world import World  # noqa: E402


def wanted(words: list[str]) -> list[tuple[str, int]]:
    """Return the cases that words name: a kind, kind:number, or kind:first-last."""
    cases = []
    for word in words or list(KINDS):
        kind, _, numbers = word.partition(":")
        if kind not in KINDS:
            raise SystemExit(f"no kind {kind!r}; there are {', '.join(KINDS)}")
        first, _, last = numbers.partition("-")
        if numbers and not (first.isdigit() and (last or first).isdigit()):
            raise SystemExit(f"{word!r} is not KIND, KIND:NUMBER or KIND:FIRST-LAST")
        chosen = range(int(first), int(last or first) + 1) if numbers else range(KINDS[kind].COUNT)
        cases += [(kind, number) for number in chosen]
    return cases


def play(kind: str, number: int, world: World, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Play one case and return its row."""
    folder = place / f"{kind}-{number}"
    folder.mkdir(parents=True)
    stage = Stage(kind, number, options.seed, world, folder, fresh=options.full)
    try:
        KINDS[kind].play(stage)
    except Exception as error:  # of the campaign itself
        if options.verbose:
            raise
        stage.complain(f"the case itself fails: {type(error).__name__}: {error}")
    if options.verbose:
        for outcome in stage.outcomes:
            print(f"exit {outcome.code}, {outcome.seconds:.2f} s, {outcome.mib:.0f} MiB\n{outcome.out}{outcome.err}")
    if stage.complaints and options.keep:
        print(f"its files are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "case": f"{kind}:{number}",
        "name": stage.name[:100],
        "codes": [outcome.code for outcome in stage.outcomes],
        "seconds": round(max((outcome.seconds for outcome in stage.outcomes), default=0.0), 2),
        "mib": round(max((outcome.mib for outcome in stage.outcomes), default=0.0)),
        "notes": stage.notes,
        "findings": stage.complaints,
    }


def shared(cases: list[tuple[str, int]], world: World, place: Path, options: argparse.Namespace) -> Iterator[dict]:
    """Play cases in some processes, each of which takes the next one when it is free."""
    read, write = os.pipe()
    os.write(write, b"".join(struct.pack("<i", index) for index in range(len(cases))))
    os.close(write)
    rows = [place / f"rows-{number}.jsonl" for number in range(options.processes)]
    pids = []
    for path in rows:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                adopt_orphans()
                with open(path, "a", encoding="utf-8") as file:
                    while taken := os.read(read, 4):
                        kind, number = cases[struct.unpack("<i", taken)[0]]
                        file.write(json.dumps(play(kind, number, world, place, options)) + "\n")
                        file.flush()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(read)
    yield from _as_they_come(rows, pids)


def _as_they_come(paths: list[Path], pids: list[int]) -> Iterator[dict[str, Any]]:
    files: dict[Path, Any] = {}
    alive = set(pids)
    while True:
        ended = not alive
        for path in paths:
            if path not in files and path.exists():
                files[path] = open(path, encoding="utf-8")  # noqa: SIM115
        for file in files.values():
            while (line := file.readline()).endswith("\n"):
                yield json.loads(line)
            file.seek(file.tell() - len(line.encode()))
        if ended:
            break
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                alive.remove(pid)
                if status:
                    raise SystemExit(f"a process of the campaign ended with {os.waitstatus_to_exitcode(status)}")
        time.sleep(0.05)
    for file in files.values():
        file.close()


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where every promise was kept, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND[:N[-M]]", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other cases (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="cases at a time (default: 2)")
    parser.add_argument("--full", action="store_true", help="start every run afresh: many times slower")
    parser.add_argument("--keep", action="store_true", help="keep the files of cases with findings")
    parser.add_argument(
        "--results", type=Path, help="folder for results.md and results.json (default: none with --only)"
    )
    options = parser.parse_args(arguments)
    cases = wanted(options.only)
    options.verbose = len(cases) == 1
    if not options.only and options.results is None:
        options.results = Path(__file__).parent
    warm_up(many=len(cases) > 50)
    started, rows = time.monotonic(), []
    base = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        world = World(base / "world")
        if options.verbose:
            options.processes = 1
            adopt_orphans()
            rows = [play(*cases[0], world, base / "cases", options)]
        else:
            (base / "cases").mkdir()
            for row in shared(cases, world, base / "cases", options):
                rows.append(row)
                if row["findings"] or len(rows) % 100 == 0:
                    minutes = (time.monotonic() - started) / 60
                    print(f"{len(rows)} of {len(cases)} cases, {minutes:.1f} min", file=sys.stderr)
                for text in row["findings"]:
                    print(f"{row['case']} ({row['name']}): {tail(text)}", file=sys.stderr, flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(base, ignore_errors=True)
    assert len(rows) == len(cases)
    place = {f"{kind}:{number}": at for at, (kind, number) in enumerate(cases)}
    rows.sort(key=lambda row: place[row["case"]])
    made = table.Made.now(options.seed, options.full)
    if options.results is not None:
        table.write(made, rows, options.results, KINDS)
    print(table.report(made, rows))
    print(f"{(time.monotonic() - started) / 60:.0f} minutes", file=sys.stderr)
    return int(any(row["findings"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
