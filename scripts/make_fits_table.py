"""Write the table of which GPUs hold which of the paper's models into the recipes' README.

    python scripts/make_fits_table.py            write it
    python scripts/make_fits_table.py --check    say whether the committed one differs, and write nothing

Every number is what `humanline estimate` says of a recipe, each row as long as it may be: computed, not measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from humanline import recipes
from humanline.system.imports import quiet_libraries
from humanline.train.config import load_config
from humanline.train.policy.hub import read_shape
from humanline.train.policy.load import load_outline
from humanline.train.preflight.hardware import CUDA_ITSELF, GIB
from humanline.train.preflight.memory import Estimator
from humanline.train.preflight.workload import Workload

README = Path(__file__).resolve().parent.parent / "humanline" / "recipes" / "README.md"
BEGIN, END = "<!-- made by scripts/make_fits_table.py -->\n", "<!-- end -->\n"
GPUS = (1, 2, 4, 8)
SIZES = {"80 GB": 79, "141 GB": 139}  # GiB that programs see
LORA = ("adapter={rank: 16}",)
# Where weights are split, a server samples (humanline/train/online/samplers/README.md).
SERVER = (
    "source.sampling.engine={kind: server, url: 'http://127.0.0.1:8000', model: policy, "
    "new_weights: {kind: command, command: [restart.sh, '{path}']}}",
)
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Llama 3 8B, offline": ("llama3-8b-dpo-humanline", ()),
    "Llama 3 8B, online": ("llama3-8b-dpo-online-humanline", SERVER),
    "Llama 3 8B, offline, LoRA": ("llama3-8b-dpo-humanline", LORA),
    "Gemma 2 27B, offline": ("gemma2-27b-dpo-humanline-gemma2-data", ()),
    "Gemma 2 27B, offline, LoRA": ("gemma2-27b-dpo-humanline-gemma2-data", LORA),
    "Gemma 2 27B, online": ("gemma2-27b-dpo-online", SERVER),
    "Qwen2.5 1.5B, mathematics": ("qwen2.5-1.5b-math-64x-humanline-k12", SERVER),
}


def table() -> str:
    """Return the table, in Markdown."""
    quiet_libraries()
    estimators: dict[str, Estimator] = {}
    heads = [f"{gpus} GPU{'s' if gpus > 1 else ''}" for gpus in GPUS]
    lines = [f"| run | {' | '.join(heads)} |", f"|---|{'---|' * len(GPUS)}"]
    for title, (recipe, overrides) in ROWS.items():
        model = load_config(recipes.path(recipe), overrides).model
        if model not in estimators:
            estimators[model] = Estimator(load_outline(model, read_shape(model)), cuda=True)
        cells = [cell(peak(estimators[model], recipe, overrides, gpus)) for gpus in GPUS]
        lines.append(f"| {title} (`{recipe}`) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(needed: float) -> str:
    """Return what is needed on each GPU, and the smallest that holds it."""
    fits = next((name for name, memory in SIZES.items() if needed <= memory), None)
    return f"{needed:.0f} GiB: {fits}" if fits else f"{needed:.0f} GiB: neither"


def peak(estimator: Estimator, recipe: str, overrides: tuple[str, ...], gpus: int) -> float:
    """Return the GiB that each of so many GPUs needs, CUDA itself included."""
    config = load_config(recipes.path(recipe), (*overrides, "training.sharding=full"))
    workload = Workload.at_limits(config, ranks=gpus, why="the table is of no data")
    return (estimator.estimate(config, workload).peak + CUDA_ITSELF) / GIB


def main() -> int:
    """Write the table, or compare it."""
    parser = argparse.ArgumentParser(description="Write the table of which GPUs hold which of the paper's models.")
    parser.add_argument("--check", action="store_true", help="say whether the committed table differs")
    options = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    committed, after = rest.split(END)
    made = table()
    if options.check:
        print("the table is as this script makes it" if committed == made else "the table differs")
        return int(committed != made)
    README.write_text(before + BEGIN + made + END + after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
