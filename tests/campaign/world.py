"""What the cases share: a toy model, data of every shape, and runs that nobody disturbs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from humanline.train.config import TrainConfig
from tests.conftest import make_toy
from tests.helpers.support import CLIP, REJECT, config

Tree = dict[str, Any]


class World:
    """A folder with the toy, made when there is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[Any, Any] = {}  # of this process alone
        toy = folder / "toy.json"
        if not toy.exists():
            (folder / "toy").mkdir(parents=True)
            files = make_toy(folder / "toy")
            rows = [json.loads(line) for line in Path(files["pairs"]).read_text().splitlines()]
            for name, few in (("prompts", rows), ("held_out_prompts", rows[:4])):
                files[name] = str(folder / "toy" / f"{name}.jsonl")
                text = "".join(json.dumps({"prompt": row["prompt"], "answer": "5"}) + "\n" for row in few)
                Path(files[name]).write_text(text)
            toy.write_text(json.dumps(files))
        self.toy: dict[str, str] = json.loads(toy.read_text())

    def copy_of_model(self, to: Path) -> Path:
        return Path(shutil.copytree(self.toy["model"], to))


_ROUNDS = {"contexts_per_round": 4, "samples": 2, "count": 2, "score_margin": 0.001, "steps": 2}
_SAMPLING = {"max_tokens": 8, "engine": {"kind": "generate", "batch_size": 8}}
_SCORING = {
    "rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:digits"}],
    "workers": 1,
    "seconds": 20.0,
}


def online(
    toy: dict[str, str],
    output: Path,
    objective: str = "grpo",
    *,
    rounds: Tree = _ROUNDS,
    sampling: Tree = _SAMPLING,
    scoring: Tree = _SCORING,
    **changes: Any,
) -> TrainConfig:
    """Two rounds of four prompts with two completions each."""
    return config(
        toy,
        output,
        objective,
        **{
            "data": {"train": toy["prompts"], "max_length": 64},
            "source": {"kind": "rounds", **rounds, "sampling": sampling, "scoring": scoring},
            "training": {"batch_size": 4, "micro_batch_size": 4},
            "reference": {"schedule": {"kind": "each_round"}},
            "checkpoint": {"every": 2, "minutes": None},
            **changes,
        },
    )


def tree_of(one: TrainConfig) -> Tree:
    """Return a configuration with every setting spelt out."""
    return one.model_dump(mode="json")


def write_recipe(tree: Tree, path: Path) -> Path:
    path.write_text(json.dumps(tree, indent=1), encoding="utf-8")  # JSON is YAML
    return path


def recipes(toy: dict[str, str], output: Path) -> dict[str, Tree]:
    """Return good recipes that have every section between them."""
    short = {"training": {"steps": 2, "batch_size": 4, "micro_batch_size": 4}}
    held_out = {"data__eval": toy["held_out"], "evaluation": {"every": 1}}
    server = {"kind": "server", "url": "http://127.0.0.1:9", "attempts": 1, "new_weights": {"kind": "path"}}
    return {
        "dpo": tree_of(config(toy, output, "dpo", transform=CLIP, **short, **held_out)),
        "kto": tree_of(
            config(toy, output, "kto", transform=REJECT, **short, data__train=toy["unpaired"], data__shape="unpaired")
        ),
        "lora": tree_of(config(toy, output, "dpo", adapter={"rank": 2}, **short)),
        "grpo": tree_of(config(toy, output, "grpo", transform=CLIP, **short)),
        "rounds": tree_of(online(toy, output)),
        "server": tree_of(online(toy, output, sampling={"max_tokens": 8, "engine": server})),
    }
