"""CPU time and memory of reading a set, by this version and by the one that read row by row.

The earlier version is taken from the repository's own history, so it needs git and that history; each reading is a
fresh process. Both must come to the same units, or there is nothing to compare.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.report import Result, Row, not_measured, timing_row
from humanline.train.policy.new_tokenizer import train_tokenizer

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "bc9532a"  # the last version that read row by row
SHORT = "a word to sort"
LONG = "as long as GSM8K's"


def benchmark_reading(quick: bool) -> Result:
    """Read short rows, and rows as long as GSM8K's pairs, with both versions in turns, and many rows with this one."""
    sizes = {SHORT: 300, LONG: 100} if quick else {SHORT: 100_000, LONG: 10_000}
    most = {SHORT: 500, LONG: 200} if quick else {SHORT: 1_000_000, LONG: 200_000}
    rounds = 1 if quick else 5
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = _earlier(folder / "before")
        tokenizer = _tokenizer(folder, 400 if quick else 4000)
        order = np.random.default_rng(0)
        for kind, count in sizes.items():
            file = _write(folder / "rows.jsonl", KINDS[kind], count)
            sides = {"after": ROOT} | ({"before": before} if before else {})
            found[kind] = {side: [] for side in sides}
            for _ in range(rounds):
                for place in order.permutation(len(sides)):
                    side = list(sides)[place]
                    found[kind][side].append(_read(sides[side], tokenizer, file))
            rows += _compare(kind, count, found[kind], limit=1 / 3 if kind == SHORT else None)
        for kind, count in most.items():
            rows.append(_many(kind, count, _read(ROOT, tokenizer, _write(folder / "rows.jsonl", KINDS[kind], count))))
    seconds = {
        f"{side}, {kind}": [one["cpu"] for one in taken]
        for kind, sides in found.items()
        for side, taken in sides.items()
    }
    settings = {"before": BEFORE, "rows": sizes, "rounds": rounds, "many rows": most, "template": "chat"}
    return Result(settings, rows, seconds)


def _compare(kind: str, count: int, found: dict[str, list[dict[str, Any]]], limit: float | None) -> list[Row]:
    after = found["after"]
    what = f"CPU time of reading {count:,} preference rows, {kind}: now / row by row"
    if "before" not in found:
        return [not_measured("R1" if limit else "-", what, f"commit {BEFORE} is not here")]
    before = found["before"]
    if len({(one["hash"], one["units"], one["report"]) for one in (*after, *before)}) > 1:
        raise RuntimeError(f"the two versions do not read the same out of the same rows ({kind})")
    cpu = [[one["cpu"] for one in side] for side in (after, before)]
    mib = [median(one["mib"] for one in side) for side in (after, before)]
    speeds = " and ".join(f"{count / median(side):,.0f}" for side in cpu)
    per_row = [1024 * one / count for one in mib]
    return [
        timing_row("R1" if limit else "-", what, *cpu, limit=limit, note=f"{speeds} rows a second of CPU time"),
        Row(
            "-",
            f"peak memory of the same, {kind}: now / row by row",
            (f"{mib[0]:.0f} MiB", f"{mib[1]:.0f} MiB"),
            mib[0] / mib[1] if mib[1] else None,
            note=f"{per_row[0]:.2f} and {per_row[1]:.2f} KiB a row, above what the process has before",
        ),
    ]


def _many(kind: str, count: int, one: dict[str, Any]) -> Row:
    million = one["mib"] * 1_000_000 / count
    return Row(
        "R2",
        f"peak memory of 1,000,000 rows, {kind}, beyond that of the process, in GiB",
        (f"{million:.0f} MiB", "1024 MiB"),
        million / 1024,
        target="<= 1 GiB",
        met=million <= 1024,
        note=f"{one['mib']:.0f} MiB for {count:,} rows; {one['cpu']:.0f} s of CPU time, {count / one['cpu']:,.0f} rows "
        "a second; 2 bytes a token, since the tokenizer has fewer than 65 536; with a larger one it would be 3",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def _short(rng: random.Random, number: int) -> tuple[str, str, str]:
    word = "".join(rng.choices("abcdefgh", k=rng.randint(2, 9)))
    return f"{number} {word}", "".join(sorted(word)), word[::-1] + "!"


def _long(rng: random.Random, number: int) -> tuple[str, str, str]:
    """Return a question of about 235 characters and two answers of about 290, with numbers in them."""
    return _sentences(rng, rng.randint(3, 5)), _sentences(rng, rng.randint(4, 6)), _sentences(rng, rng.randint(4, 6))


def _sentences(rng: random.Random, count: int) -> str:
    said = []
    for _ in range(count):
        words = rng.choices(_WORDS, cum_weights=_WEIGHTS, k=rng.randint(8, 14))
        words[rng.randrange(len(words))] = str(rng.randint(1, 500))
        said.append(" ".join(words).capitalize() + ".")
    return " ".join(said)


def _vocabulary() -> list[str]:
    rng = random.Random(7)
    parts = [first + second for first in "bcdfglmnprstvw" for second in ("a", "e", "i", "o", "u", "ar", "en", "is")]
    return sorted({"".join(rng.choices(parts, k=rng.choice((1, 1, 2, 2, 3)))) for _ in range(6000)}, key=len)


_WORDS = _vocabulary()
_WEIGHTS = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(_WORDS))))
KINDS: dict[str, Callable[[random.Random, int], tuple[str, str, str]]] = {SHORT: _short, LONG: _long}


def _write(path: Path, make: Callable[[random.Random, int], tuple[str, str, str]], count: int) -> Path:
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt, chosen, rejected = make(rng, number)
            file.write(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": f"{rejected} {number}"}) + "\n")
    return path


def _tokenizer(folder: Path, count: int) -> Path:
    rng = random.Random(1)
    texts = [text for number in range(count) for make in (_short, _long) for text in make(rng, number)]
    train_tokenizer(texts, 8192).save_pretrained(folder / "tokenizer")
    return folder / "tokenizer"


# ---------------------------------------------------------------------------------------------------------------------
# Sides


def _earlier(folder: Path) -> Path | None:
    """Write the earlier version into a folder; return None where git does not have it.

    READING_BEFORE names a folder that holds it already, for a machine that has no history.
    """
    if "READING_BEFORE" in os.environ:
        return Path(os.environ["READING_BEFORE"]).resolve()
    command = ["git", "-C", str(ROOT), "archive", BEFORE, "humanline"]
    try:
        answer = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _read(root: Path, tokenizer: Path, rows: Path) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "reading_side.py"), str(tokenizer), str(rows)]
    answer = subprocess.run(command, env=environment, cwd=rows.parent, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"reading failed:\n{answer.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found
