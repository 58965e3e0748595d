"""Write pairs.jsonl and held-out.jsonl: letters to be sorted, the right answer against one with two letters swapped."""

from __future__ import annotations

import json
import random
from pathlib import Path


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Return preference rows, the same for the same seed."""
    rng = random.Random(seed)
    made = []
    while len(made) < count:
        word = rng.sample("abcdefgh", rng.randint(3, 7))
        right = sorted(word)
        wrong = list(right)
        at = rng.randrange(len(wrong) - 1)
        wrong[at], wrong[at + 1] = wrong[at + 1], wrong[at]
        made.append({"prompt": f"sort {''.join(word)}: ", "chosen": "".join(right), "rejected": "".join(wrong)})
    return made


def main() -> None:
    """Write both files beside this one."""
    folder = Path(__file__).resolve().parent
    for name, count, seed in (("pairs.jsonl", 160, 0), ("held-out.jsonl", 40, 1)):
        lines = (json.dumps(row) + "\n" for row in rows(count, seed))
        (folder / name).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
