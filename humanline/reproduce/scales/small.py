"""One model of half a billion parameters on one GPU, for a day: offline runs, and humanline ones with several k."""

from __future__ import annotations

from collections.abc import Iterator

from humanline.reproduce.cells import OBJECTIVES, SYNCS, Objective
from humanline.reproduce.scales.plan import Asked, PlannedRun, Scale, reckoned_hours

LRS = ("5e-6", "2e-5")
SEEDS = (0, 1)
_MODEL, _JUDGE = "hub:Qwen/Qwen2.5-0.5B-Instruct", "hub:RLHFlow/ArmoRM-Llama3-8B-v0.1"
_ASKED = (
    "evaluation={batch_size: 8, limit: 512, samples: 1, "
    "sampling: {temperature: 0.7, top_p: 0.95, max_tokens: 1024, engine: {kind: generate, batch_size: 64}}, "
    f"scoring: {{rewards: [{{kind: model, model: '{_JUDGE}', head: armorm, max_length: 8192}}], failed: drop}}}}"
)
_DIFFERS = (
    "Qwen2.5 0.5B in place of Llama 3 8B; two learning rates, two seeds; the reward model that has scored the data "
    "scores the answers, in place of a judge of AlpacaEval, and answers end at 1024 tokens"
)


def small_scale() -> Scale:
    """Return the plan: 3 objectives, offline and three k, two learning rates, two seeds."""
    return Scale(
        name="small",
        title="Qwen2.5 0.5B on public pairs of answers, scored by a public reward model: one GPU, about a day",
        runs=tuple(run for seed in SEEDS for run in _runs(seed)),
        asked=tuple(_asked()),
        evaluation="scored",
        starts={"start": f"dpo/offline/lr{LRS[0]}/seed{SEEDS[0]}"},
        hardware="one A100 of 80 GB, at 100 Tflop/s",
        counted="training, drawing answers and scoring them",
        memory="11 GiB of the GPU while a run trains, 16 GB for the reward model while answers are scored",
        remarks=(
            "the licences of model, reward model and data are theirs",
            "scores are of the reward model that chose between the answers which are learned from: a policy may please "
            "it and nobody else",
        ),
    )


def _runs(seed: int) -> Iterator[PlannedRun]:
    for objective in OBJECTIVES:
        for name in ("offline", *(f"k{every}" for every in SYNCS)):
            for lr in LRS:
                recipe = f"llama3-8b-{objective}-{'offline' if name == 'offline' else 'humanline'}"
                changes = [f"model={_MODEL}", f"seed={seed}", f"optimizer.lr={lr}", "training.sharding=none", _ASKED]
                if name != "offline":
                    changes.append(f"reference.schedule.every={name.removeprefix('k')}")
                full = f"{objective}/{name}/lr{lr}/seed{seed}"
                hours = reckoned_hours(objective, 0.494e9, answering=0.2)
                yield PlannedRun(full, recipe, tuple(changes), _DIFFERS, hours)


def _stems(objective: Objective, *names: str) -> tuple[str, ...]:
    return tuple(f"{objective}/{name}/lr{lr}" for name in names for lr in LRS)


def _asked() -> Iterator[Asked]:
    every = tuple(f"k{one}" for one in SYNCS)
    for objective in OBJECTIVES:
        offline, first, tuned = (_stems(objective, *names) for names in (("offline",), ("k1",), every))
        yield Asked("offline + humanline, k = 1, is better than offline", objective, first, offline)
        yield Asked("offline + humanline, its own k, is better than offline", objective, tuned, offline)
        yield Asked("offline + humanline gives shorter answers than offline", objective, tuned, offline)
    first, eight, longest = (_stems("grpo", name) for name in ("k1", "k8", "k32"))
    yield Asked("humanline with a larger k, here 8, is as good as with k = 1", "grpo", eight, first)
    yield Asked("past that point a larger k, here 32, is worse", "grpo", longest, eight)
