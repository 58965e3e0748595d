"""Write the recipes of the paper's runs from one table.

    python scripts/make_recipes.py            write humanline/recipes/*.yaml
    python scripts/make_recipes.py --check    say which committed files differ, and write nothing

A recipe is a plain, complete file that nobody has to generate; this script only keeps them alike. A number of
the paper is written down once, here, beside the table it comes from; tests/test_recipes.py holds the files against its
own copy of the tables.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "humanline" / "recipes"
SCHEMA = "# yaml-language-server: $schema=schema.json"
WIDTH = 118  # of a comment line, with its "# "
COLUMN = 50  # where comments beside values start, unless the value is longer


@dataclass(frozen=True)
class Model:
    """A start model, and how much of it goes through one pass."""

    source: str
    title: str
    tokens: int  # a forward and backward pass and process, of runs on fixed data
    note: str
    gb: int = 0  # of weights, gradients and Adam states, in float32
    online: str = ""  # where rounds fit, their weights shared
    lora: int = 0  # GiB
    cache: str = ""  # of keys and values, a token
    sampled: int = 0  # completions together
    held_out: int = 0  # units a pass without gradient


@dataclass(frozen=True)
class Data:
    """A set of preference pairs."""

    source: str
    title: str


MODELS = {
    "llama3-8b": Model(
        "hub:meta-llama/Meta-Llama-3-8B-Instruct",
        "Llama-3-8B-Instruct",
        16384,
        "Memory: float32 weights, gradients and Adam states are 16 bytes a parameter, 128 GB (120 GiB), of which each "
        "GPU holds its share (sharding: full). Computed by humanline estimate, not measured: 133 GiB on one GPU, which "
        "one of 141 GB holds; 74 GiB on each of 2, 44 on each of 4, 25 on each of 8.",
        gb=128,
        online="70 GiB on each of 2 GPUs, 40 on each of 4, 25 on each of 8",
        lora=20,
        cache="128 KiB",
        sampled=16,
        held_out=8,
    ),
    "gemma2-27b": Model(
        "hub:google/gemma-2-27b-it",
        "Gemma-2-27B-Instruct",
        4096,
        "Memory: float32 weights, gradients and Adam states are 16 bytes a parameter, 436 GB (406 GiB), of which each "
        "GPU holds its share (sharding: full). Computed by humanline estimate, not measured: 118 GiB on each of 4 "
        'GPUs, 67 on each of 8, which GPUs of 80 GB hold. One GPU takes LoRA (adapter="{rank: 16}": 67 GiB).',
        gb=436,
        online="130 GiB on each of 4 GPUs, 79 on each of 8, which takes GPUs of 141 GB",
        lora=71,
        cache="368 KiB",
        sampled=8,
        held_out=4,
    ),
}
DATA = {
    "llama3": Data("hub:princeton-nlp/llama3-ultrafeedback-armorm", "Llama 3 answers"),
    "gemma2": Data("hub:princeton-nlp/gemma2-ultrafeedback-armorm", "Gemma 2 answers"),
}
OBJECTIVES = ("dpo", "kto", "grpo")
VARIANTS = ("offline", "humanline")

# Table 3, by objective and variant: maximum gradient norm, GRPO's clip, and the learning rate of online runs.
MAX_NORM = {
    ("dpo", "offline"): "1.0",
    ("dpo", "humanline"): "1.0",
    ("kto", "offline"): "1.0",
    ("kto", "humanline"): "4.0",
    ("grpo", "offline"): "1.0",
    ("grpo", "humanline"): "1.0",
    ("dpo", "online"): "0.5",
    ("dpo", "online-humanline"): "1.0",
    ("kto", "online"): "0.5",
    ("kto", "online-humanline"): "0.1",
    ("grpo", "online"): "1.0",
    ("grpo", "online-humanline"): "0.5",
}
CLIP_EPS = {"offline": "0.5", "humanline": "0.15", "online": "0.15", "online-humanline": "0.15"}
ONLINE_LR = {"dpo": "2.5e-6", "kto": "2.5e-6", "grpo": "5e-6"}
# Tables 3 and 4: LC win rate, win rate, length, by objective, variant and data.
TABLE_4 = {
    ("kto", "offline", "llama3"): ("17.40", "14.13", "1658"),
    ("kto", "humanline", "llama3"): ("22.19", "14.70", "1407"),
    ("dpo", "offline", "llama3"): ("18.07", "16.07", "1767"),
    ("dpo", "humanline", "llama3"): ("24.82", "20.18", "1637"),
    ("grpo", "offline", "llama3"): ("15.52", "12.61", "1648"),
    ("grpo", "humanline", "llama3"): ("25.24", "18.11", "1488"),
    ("kto", "offline", "gemma2"): ("18.10", "15.28", "1698"),
    ("kto", "humanline", "gemma2"): ("22.18", "20.30", "1836"),
    ("dpo", "offline", "gemma2"): ("18.63", "15.44", "1690"),
    ("dpo", "humanline", "gemma2"): ("26.26", "21.91", "1642"),
    ("grpo", "offline", "gemma2"): ("12.64", "10.84", "1696"),
    ("grpo", "humanline", "gemma2"): ("24.24", "18.99", "1587"),
}
# Table 3, online: LC win rate, win rate, length.
TABLE_3_ONLINE = {
    ("kto", "online"): ("22.45", "19.47", "1744"),
    ("kto", "online-humanline"): ("22.79", "18.78", "1663"),
    ("dpo", "online"): ("24.96", "22.99", "1828"),
    ("dpo", "online-humanline"): ("26.84", "23.64", "1774"),
    ("grpo", "online"): ("25.05", "18.82", "1529"),
    ("grpo", "online-humanline"): ("26.10", "21.57", "1647"),
}
# Table 5, DPO on Gemma 2 27B: LC win rate, win rate, standard error, beta. The learning rate is 2.5e-6 in all rows.
TABLE_5 = {
    ("offline", "llama3"): ("48.59", "32.36", "1.58", "0.3"),
    ("humanline", "llama3"): ("56.27", "44.49", "1.67", "0.3"),
    ("offline", "gemma2"): ("56.58", "45.17", "1.68", "0.1"),
    ("humanline", "gemma2"): ("67.45", "61.37", "1.64", "0.1"),
}
TABLE_5_ONLINE = ("66.49", "74.22", "1.48", "0.1")
# Table 6 without its row (-1.5, 1.5), which is Table 3's run: bounds, then LC win rate, standard error, length.
TABLE_6 = {
    ("-2.0", "1.5"): ("23.33", "1.35", "1663"),
    ("-1.0", "1.5"): ("24.37", "1.33", "1588"),
    ("-1.0", "2.0"): ("22.55", "1.31", "1619"),
    ("-1.0", "3.0"): ("23.98", "1.33", "1636"),
}


@dataclass(frozen=True)
class Recipe:
    """One run: what differs from file to file."""

    name: str
    title: str
    model: str
    data: str
    objective: str
    variant: str
    result: str
    lr: str
    lr_from: str
    beta: str
    beta_from: str
    norm_from: str
    schedule: str = ""
    low: str = "-1.5"
    high: str = "1.5"
    clip_from: str = "Table 1"
    remarks: tuple[str, ...] = ()

    @property
    def humanline(self) -> bool:
        """Return whether the run syncs before the step and clips upstream."""
        return self.variant.endswith("humanline")

    @property
    def online(self) -> bool:
        """Return whether the run samples its own data."""
        return self.variant.startswith("online")


def _kind(objective: str, variant: str) -> str:
    online = "online" if variant.startswith("online") else "offline"
    return f"{online}{' + humanline' if variant.endswith('humanline') else ''} {objective.upper()}"


def _beta(objective: str) -> str:
    return {"dpo": "0.1", "kto": "0.25", "grpo": ""}[objective]


def _alpaca(lc: str, rate: str, length: str) -> str:
    return (
        f"The paper reports (AlpacaEval 2) a length-controlled win rate of {lc}, a win rate of {rate} and an average "
        f"length of {length}; not reproduced here."
    )


FIGURE_5 = (
    "Figure 5 (left) takes the variant apart into the sync alone and the clip alone:",
    '  transform="{kind: none}"',
    '  reference.schedule="{kind: never}"',
)
FIGURE_8 = (
    "Figure 8 syncs less often; the paper sees no loss up to 4, and a growing one beyond:",
    "  reference.schedule.every=4",
)


def llama3_8b() -> list[Recipe]:
    """Return the runs of Tables 3 and 4."""
    recipes = []
    for data in DATA:
        for objective in OBJECTIVES:
            for variant in VARIANTS:
                own = data == "llama3"
                remarks: list[str] = []
                if not own:
                    remarks.append(
                        "Table 4 prints results and no hyperparameters: that they are those of Table 3 is our reading."
                    )
                if own and variant == "humanline":
                    remarks += FIGURE_5
                    if objective == "grpo":
                        remarks += FIGURE_8
                tables = "Table 3" if own else "Table 4"
                if (objective, variant, own) == ("dpo", "humanline", True):
                    tables = "Tables 3 and 6"
                recipes.append(
                    Recipe(
                        name=f"llama3-8b-{objective}-{variant}" + ("" if own else "-gemma2-data"),
                        title=f"Llama-3-8B-Instruct, {_kind(objective, variant)} on {DATA[data].title}: {tables}.",
                        model="llama3-8b",
                        data=data,
                        objective=objective,
                        variant=variant,
                        result=_alpaca(*TABLE_4[objective, variant, data]),
                        lr="5e-6",
                        lr_from="Table 3",
                        beta=_beta(objective),
                        beta_from="Table 3",
                        norm_from="Table 3",
                        remarks=tuple(remarks),
                    )
                )
    return recipes


def gemma2_27b() -> list[Recipe]:
    """Return the runs of Table 5, and those of Figure 9 that no table has."""
    recipes = []
    for data in DATA:
        for objective in OBJECTIVES:
            for variant in VARIANTS:
                if objective == "dpo":
                    lc, rate, error, beta = TABLE_5[variant, data]
                    source, lr_from, beta_from = "Table 5", "Table 5", "Table 5"
                    result = (
                        f"The paper reports (AlpacaEval 2) a length-controlled win rate of {lc} (standard error "
                        f"{error}) and a win rate of {rate}; not reproduced here."
                    )
                    remark = (
                        "Table 5 prints learning rate and beta. Our choice: the maximum gradient norm, from the DPO "
                        "rows of Table 3."
                    )
                else:
                    beta, source = _beta(objective), "Figure 9"
                    lr_from, beta_from = "our choice: Table 5, DPO", "our choice: Table 3, 8B"
                    result = "The paper shows its result in a plot (Figure 9), without numbers; not reproduced here."
                    others = "beta, both label weights" if objective == "kto" else "clip_eps, kl_coef"
                    remark = (
                        f"The paper prints no hyperparameters for {objective.upper()} on this model, and not which of "
                        f"the two data sets Figure 9 used. Our choice: {others} and maximum gradient norm from the "
                        "same variant on Llama 3 8B (Table 3); the learning rate from DPO on this model (Table 5); the "
                        "rest from Table 1."
                    )
                recipes.append(
                    Recipe(
                        name=f"gemma2-27b-{objective}-{variant}-{data}-data",
                        title=f"Gemma-2-27B-Instruct, {_kind(objective, variant)} on {DATA[data].title}: {source}.",
                        model="gemma2-27b",
                        data=data,
                        objective=objective,
                        variant=variant,
                        result=result,
                        lr="2.5e-6",
                        lr_from=lr_from,
                        beta=beta,
                        beta_from=beta_from,
                        norm_from="our choice: Table 3, 8B",
                        remarks=(remark,),
                    )
                )
    return recipes


def table_6() -> list[Recipe]:
    """Return humanline DPO with the other clip ranges of Table 6."""
    return [
        Recipe(
            name=f"llama3-8b-dpo-humanline-clip{low}-{high}",
            title=f"Llama-3-8B-Instruct, offline + humanline DPO, clipped to [{low}, {high}]: Table 6.",
            model="llama3-8b",
            data="llama3",
            objective="dpo",
            variant="humanline",
            result=(
                f"The paper reports (AlpacaEval 2) a length-controlled win rate of {lc} (standard error {error}) and "
                f"an average length of {length}; not reproduced here."
            ),
            lr="5e-6",
            lr_from="Table 3",
            beta="0.1",
            beta_from="Table 3",
            norm_from="Table 3",
            low=low,
            high=high,
            clip_from="Table 6",
        )
        for (low, high), (lc, error, length) in TABLE_6.items()
    ]


def figure_10() -> list[Recipe]:
    """Return the trust-region run."""
    return [
        Recipe(
            name="llama3-8b-dpo-trust-region",
            title="Llama-3-8B-Instruct, offline DPO with trust-region syncing: Figure 10.",
            model="llama3-8b",
            data="llama3",
            objective="dpo",
            variant="trust-region",
            result="The paper shows its result in a plot (Figure 10), without numbers; not reproduced here.",
            lr="5e-6",
            lr_from="Table 3, offline DPO",
            beta="0.1",
            beta_from="Table 3, offline DPO",
            norm_from="Table 3, offline DPO",
            schedule="{kind: after_step, every: 1024}",
            remarks=(
                "The caption says that the reference takes over the policy after the update every 1024 steps, and "
                "names no objective: DPO, and the numbers of offline DPO, are our choice.",
                "As printed the sync never happens. 10K pairs in batches of 32 are 313 steps, the first sync would "
                "follow step 1024, and this run equals llama3-8b-dpo-offline step for step. It differs only on longer "
                "runs: training.steps=2000, say.",
                "Perhaps examples are meant: 1024 pairs are 32 steps, the length of a round in the online runs, and "
                "the released code evaluates and names its checkpoints by examples. Then the reference is synced nine "
                "times:",
                "  reference.schedule.every=32",
            ),
        )
    ]


def online() -> list[Recipe]:
    """Return the online runs of Table 3, and the one of Table 5."""
    recipes = [
        Recipe(
            name=f"llama3-8b-{objective}-{variant}",
            title=f"Llama-3-8B-Instruct, {_kind(objective, variant)}: Table 3.",
            model="llama3-8b",
            data="llama3",
            objective=objective,
            variant=variant,
            result=_alpaca(*TABLE_3_ONLINE[objective, variant]),
            lr=ONLINE_LR[objective],
            lr_from="Table 3",
            beta=_beta(objective),
            beta_from="Table 3",
            norm_from="Table 3",
        )
        for objective in OBJECTIVES
        for variant in ("online", "online-humanline")
    ]
    lc, rate, error, beta = TABLE_5_ONLINE
    recipes.append(
        Recipe(
            name="gemma2-27b-dpo-online",
            title="Gemma-2-27B-Instruct, online DPO: Table 5.",
            model="gemma2-27b",
            data="llama3",
            objective="dpo",
            variant="online",
            result=(
                f"The paper reports (AlpacaEval 2) a length-controlled win rate of {lc} (standard error {error}) and a "
                f"win rate of {rate}; not reproduced here."
            ),
            lr="2.5e-6",
            lr_from="Table 5",
            beta=beta,
            beta_from="Table 5",
            norm_from="our choice: Table 3, 8B",
            remarks=(
                "Table 5 prints learning rate and beta. Our choice: the maximum gradient norm, from online DPO in "
                "Table 3; rounds and sampling, from Table 1; the reward model, that of the 8B runs.",
            ),
        )
    )
    return recipes


UNIT = {"dpo": "pairs", "kto": "sequences", "grpo": "groups of two"}


def _header(recipe: Recipe) -> list[str]:
    """Return the comment above the first section."""
    remarks, note, differences = list(recipe.remarks), MODELS[recipe.model].note, _differences(recipe)
    if recipe.online:
        remarks += _about_rounds(recipe)
        note = _memory_online(MODELS[recipe.model])
    lines = [recipe.title, "", f"  humanline train {recipe.name}", "", *_wrap(recipe.result)]
    for remark in remarks:
        lines += _wrap(remark)
    lines += [*_wrap(note), "", "The released code differs (README.md beside this file has it all):"]
    for difference in differences:
        lines += _wrap(difference, first="- ", rest="  ")
    lines.append("`--preset halos` does as it does where settings can.")
    return [SCHEMA, *(f"# {line}".rstrip() for line in lines)]


def _differences(recipe: Recipe) -> list[str]:
    """Say what the released code for instruction following does differently in a run."""
    differences = ["AdamW runs with eps 1e-8: the 1e-5 of Table 1 never reaches it."]
    if recipe.objective == "grpo":
        differences.append(
            "1e-2 is added to the standard deviation of a group: scores of 1 and 0 give advantages of ±.98, a gap of "
            ".01 gives ±.33, and only here is it ±1. The loss is a mean per micro-batch instead of one over the step's "
            "tokens."
        )
    if recipe.humanline:
        differences.append("k is ignored, and the lower bound is -1.0 unless set.")
    if recipe.online:
        differences.append(
            "Every round is a process of its own, in which Adam's moments start from nothing. Here the optimizer goes "
            "on; the paper speaks of policy and reference alone."
        )
    differences.append(
        "Weights are pure bf16, in which most updates of this size are rounded away; in a simulation they moved about "
        "20x less than the float32 weights here. So the learning rate need not fit: try smaller ones."
    )
    if recipe.online:
        differences.append(
            "Completions are sampled with a ChatML prompt, whatever the model's template. Here sampling and training "
            "share the model's own template. Runs of spaces, which it collapses offline, stay as they are here."
        )
    else:
        differences.append(
            "Runs of spaces in the data are collapsed (code loses its indentation), and answers are sampled for "
            "evaluation with a ChatML prompt. Here text stays as it is, under the model's own template."
        )
    return differences


def _about_rounds(recipe: Recipe) -> list[str]:
    """Say how Algorithm 1 is read, how long the run gets, and how to sample elsewhere."""
    unit, pairs = UNIT[recipe.objective], "pairs" if recipe.objective != "grpo" else "groups of two"
    planned = "1024 pairs" if recipe.objective != "kto" else "2048 sequences"
    kept = {"dpo": "840 pairs", "kto": "1680 sequences", "grpo": "840 groups"}[recipe.objective]
    remarks = [
        f"Length: 12 rounds of at most 32 steps ({planned}), 384 in all, which warm-up counts. The paper says that tau "
        f"discards about 18 % of its {pairs}: with {kept} left a round has 26 steps, the run 312 (offline: 313), and "
        "warm-up is 12 % of them. How many are kept here is not known, and is reported for every round.",
        f"Steps are whole batches: what is left over at the end of a round ({unit}) is not trained on.",
    ]
    if recipe.humanline:
        remarks.append(
            "The reference is made equal to the policy at the start of a round (Algorithm 1, line 3) and before each "
            "step within it. That the first happens in humanline runs, too, is our reading."
        )
    remarks += [
        "Sampling is by transformers' generate, in the training process: slow, the same again, and needs nothing else. "
        "A vLLM server, restarted with each round's weights by a script of yours "
        "(humanline/train/online/samplers/README.md):",
        "  source.sampling.engine=\"{kind: server, url: 'http://127.0.0.1:8000', model: policy,",
        "    new_weights: {kind: command, command: [restart.sh, '{path}']}}\"",
    ]
    return remarks


def _memory_online(model: Model) -> str:
    alone = "a GPU of 141 GB holds it, and has little left for keys and values" if model.gb < 200 else "no GPU holds it"
    return (
        f"Memory: float32 weights, gradients and Adam states are 16 bytes a parameter, {model.gb} GB, before "
        f"activations and samples: {alone}. generate needs the weights whole; with a server that samples, several GPUs "
        f'share them (training.sharding=full): {model.online}. LoRA (adapter="{{rank: 16}}") takes {model.lora} GiB '
        "on one. Computed by humanline estimate, not measured. The reward model's 16 GB wait in host memory while the "
        "policy trains."
    )


def _wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    if text.startswith("  "):
        return [text]  # a command
    return textwrap.wrap(
        text, WIDTH - 2, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _body(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the lines of the file, each with its comment."""
    model, objective = MODELS[recipe.model], recipe.objective
    lines = [
        (f"model: {model.source}", "gated: accept its licence on the hub first"),
        (f"output: runs/{recipe.name}", ""),
        ("seed: 0", f"{'prompts, samples and ' if recipe.online else ''}order of the data; the paper prints none"),
        ("objective:", ""),
        (f"  kind: {objective}", ""),
    ]
    if objective == "grpo":
        lines += [
            (f"  clip_eps: {CLIP_EPS[recipe.variant]}", f"{recipe.beta_from}: GRPO's own clip, around 1"),
            ("  kl_coef: 0.01", f"{recipe.beta_from}, there called beta"),
            ("  normalise: global", "over all tokens of the step (appendix C.1.4)"),
            ("  advantage_std: population", "a group of two gets +1 and -1, whatever its scores"),
            ("  advantage_eps: 0.0", ""),
        ]
    else:
        lines += [(f"  beta: {recipe.beta}", recipe.beta_from)]
    if objective == "kto":
        lines += [
            ("  desirable_weight: 1.1", f"{recipe.beta_from}, lambda_D"),
            ("  undesirable_weight: 1.0", f"{recipe.beta_from}, lambda_U"),
        ]
    if recipe.humanline:
        lines += [
            ("transform:", ""),
            ("  kind: clip", "token log-ratios, upstream of the loss"),
            (f"  log_eps_low: {recipe.low}", f"{recipe.clip_from}, nats"),
            (f"  log_eps_high: {recipe.high}", f"{recipe.clip_from}, nats"),
        ]
    else:
        lines += [("transform: {kind: none}", "log-ratios as they are")]
    lines += [("reference:", "")]
    if recipe.variant == "online":
        lines += [("  schedule: {kind: each_round}", "Algorithm 1, line 3: the policy at the start of the round")]
    elif recipe.humanline:
        lines += [("  schedule: {kind: before_step, every: 1}", "Table 1's k: the policy one update ago")]
    elif recipe.schedule:
        lines += [(f"  schedule: {recipe.schedule}", "Figure 10; see above")]
    else:
        lines += [("  schedule: {kind: never}", "the start model stays the reference")]
    if recipe.online and recipe.humanline:
        lines += [("  round_start: sync", "and at the start of a round the policy as it is then; see above")]
    if objective == "grpo":
        lines += [("  baseline: reference", "the KL term's anchor, as in appendix C.1.4")]
    return [*lines, *(_online_data(recipe) if recipe.online else _offline_data(recipe)), *_steps(recipe)]


def _offline_data(recipe: Recipe) -> list[tuple[str, str]]:
    data, objective = DATA[recipe.data], recipe.objective
    lines = [("data:", "")]
    if objective == "kto":
        lines += [("  shape: preference", "a pair is a desirable and an undesirable sequence")]
    scored = "a pair is a group, scored 1 and 0 (no score columns)"
    train_note = scored if objective == "grpo" else "about 60,000 pairs"
    return [
        *lines,
        (f"  train: {data.source}#train", train_note),
        (f"  eval: {data.source}#test", ""),
        ("  max_length: 2048", "prompt and answer; the paper's 2048 is for answers it samples"),
        ("  too_long: drop", "a cut answer has no end, and a sixth of the pairs is used anyway"),
        ("  special_tokens: drop", "texts that hold a token such as <pad> would be read as control"),
    ]


def _online_data(recipe: Recipe) -> list[tuple[str, str]]:
    data, model = DATA[recipe.data], MODELS[recipe.model]
    pair = "Algorithm 1, lines 9 and 10: the first of them"
    kept = "groups are exactly these 2 (appendix C.1.4)" if recipe.objective == "grpo" else pair
    return [
        ("data:", ""),
        (f"  train: {data.source}#train", "its prompts alone (59.9K), of which a run sees 12,288"),
        (f"  eval: {data.source}#test", "prompts, sampled and scored at the start and at the end"),
        ("  max_length: 4096", "our choice: 2048 for the answer (Table 1), as many for the prompt"),
        ("  max_prompt_length: 2048", ""),
        ("  too_long: drop", "prompts that are longer"),
        ("  special_tokens: drop", "texts that hold a token such as <pad> would be read as control"),
        ("source:", ""),
        ("  kind: rounds", ""),
        ("  contexts_per_round: 1024", "Table 1"),
        ("  samples: 8", "Table 1: completions a prompt"),
        ("  count: 12", "Table 1: 12288 contexts; in every round one pass over its pairs"),
        ("  select: best_worst", kept),
        ("  score_margin: 0.01", "Table 1, tau: pairs whose scores differ by less are left out"),
        ("  truncated: keep", "our choice; the paper does not say"),
        ("  too_few: error", "no round should leave less than a batch"),
        ("  sampling:", ""),
        ("    temperature: 0.7", "Table 1"),
        ("    top_p: 0.95", "Table 1"),
        ("    max_tokens: 2048", "Table 1"),
        (
            f"    engine: {{kind: generate, batch_size: {model.sampled}}}",
            f"completions together; keys and values take {model.cache} a token (bf16)",
        ),
        ("  scoring:", ""),
        ("    rewards:", ""),
        ("      - kind: model", "the one that scored the offline pairs (appendix C.1.2)"),
        ("        model: hub:RLHFlow/ArmoRM-Llama3-8B-v0.1", ""),
        ("        head: armorm", "without the repository's own code"),
        ("        between_rounds: host", "our choice: the device is the policy's while it trains"),
        ("        max_length: 8192", "our choice: what a Llama 3 reads; nothing sampled here is longer"),
        ("    failed: drop", "our choice: an answer without a score is left out and counted"),
    ]


def _steps(recipe: Recipe) -> list[tuple[str, str]]:
    objective = recipe.objective
    # As many tokens a pass as fit beside everything else by `humanline estimate`, on the fewest GPUs that hold it.
    # Padding counts: rows stay padded (training.padding: right) until packed attention was verified on a GPU, and
    # layers stay plain (training.layers) until their kernels were.
    tokens, longest = (8192, 4096) if recipe.online else (MODELS[recipe.model].tokens, 2048)
    batch = 64 if objective == "kto" else 32
    volume = "10K pairs" if objective == "dpo" else "20K sequences"
    sequences = ", 64 sequences" if objective == "grpo" else ""
    micro = (f"  micro_batch_tokens: {tokens}", "a forward pass and process, padding counted; for memory alone")
    if objective == "grpo":  # rows: under `--preset halos` a micro-batch is part of the loss
        micro = (
            f"  micro_batch_size: {tokens // longest}",
            "rows, of any groups, a forward pass and process; for memory alone",
        )
    length = [] if recipe.online else [("  steps: 313", f"Table 1: {volume}, 312.5 batches")]
    lines = [
        ("training:", ""),
        *length,
        (f"  batch_size: {batch}", f"Table 1: {UNIT[objective]} a step{sequences}"),
        micro,
        ("  precision: bf16", "of compute; weights and Adam states are float32"),
        *([] if recipe.online else [("  sharding: full", "of several processes each holds its share; one holds all")]),
        ("  activation_checkpointing: true", "the same bits in less memory, a third more work"),
        ("optimizer:", ""),
        (f"  lr: {recipe.lr}", recipe.lr_from),
        ("  adam_beta1: 0.9", "Table 1, like the next four"),
        ("  adam_beta2: 0.999", ""),
        ("  adam_eps: 1e-5", ""),
        ("  weight_decay: 0.01", ""),
        ("  warmup_fraction: 0.1", f"of the {'384 planned ' if recipe.online else ''}steps, then constant"),
        (f"  max_grad_norm: {_norm(recipe)}", recipe.norm_from),
    ]
    if not recipe.online:
        held_out = f"evaluation: {{batch_size: {MODELS[recipe.model].held_out}, limit: 512}}"
        lines += [(held_out, "the first 512 held-out pairs, at the start and at the end")]
    return [*lines, ("checkpoint: {every: 50, keep: 2}", "and every 30 minutes; --resume goes on from there")]


def _norm(recipe: Recipe) -> str:
    variant = "offline" if recipe.variant == "trust-region" else recipe.variant
    return MAX_NORM[recipe.objective, variant]


def _aligned(lines: list[tuple[str, str]]) -> list[str]:
    """Put comments into one column; neighbours that reach beyond it get a common column of their own."""
    texts, i = [], 0
    while i < len(lines):
        group = [lines[i]]
        if len(lines[i][0]) > COLUMN - 2:
            while i + len(group) < len(lines) and len(lines[i + len(group)][0]) > COLUMN - 2:
                group.append(lines[i + len(group)])
        column = max(COLUMN, *(len(text) + 2 for text, _ in group), 0)
        texts += [f"{text:<{column}}# {note}" if note else text for text, note in group]
        i += len(group)
    return texts


# ---------------------------------------------------------------------------------------------------------------------
# Mathematics: Table 2

MATH = "qwen2.5-1.5b-math"
RELEASED = "released recipe"
MATH_RUNS = {  # by the end of the name: title, steps a round, k
    "online": ("online GRPO on MATH, sampled anew for every step", 1, None),
    "64x": ("GRPO on MATH, sampled every 64 steps", 64, None),
    "64x-humanline-k12": ("humanline GRPO on MATH, sampled every 64 steps, synced every 12", 64, 12),
    "64x-humanline-k16": ("humanline GRPO on MATH, sampled every 64 steps, synced every 16", 64, 16),
    "64x-humanline-k20": ("humanline GRPO on MATH, sampled every 64 steps, synced every 20", 64, 20),
}
SYSTEM_PROMPT = """\
Think the problem through step by step, then state the answer. Your reply has exactly this form, with every tag on a
line of its own:
<think>
your reasoning
</think>
<answer>
your answer
</answer>"""


def math_recipes() -> dict[str, str]:
    """Return the texts of the runs of Table 2 by name."""
    return {f"{MATH}-{end}": "\n".join([*_math_header(end), *_math_body(end)]) + "\n" for end in MATH_RUNS}


def _math_header(end: str) -> list[str]:
    title, steps, every = MATH_RUNS[end]
    if end == "64x":
        result = (
            "The paper reports, in a plot (Figure 7) and without numbers, rewards significantly worse (p < 0.05) than "
            "online; not reproduced here."
        )
    else:
        curve = " Figure 7 calls k = 20 slower and more stable; which k its other curve has is not printed."
        result = (
            "The paper reports (section 5.2.2) a Pass@1 of 0.593 ± 0.019 on the MATH-500 test set after 1600 steps, "
            "for online and humanline runs alike; not reproduced here." + (curve if every else "")
        )
    remarks = [
        "Not in the paper but in the recipes that its authors released for Open-R1 (TRL): clip_eps, kl_coef, the "
        'length of prompts, the data set, the scaling of advantages (TRL\'s own), and that "64x" is 64 updates '
        f"for each generation. Below they are marked: {RELEASED}.",
        "Table 2 speaks of 12K training contexts, which is the size of the set: 1600 steps of 32 prompts are 51,200, "
        "more than four passes.",
    ]
    if every:
        remarks += [
            "k = 1 collapses (section 5.2.2, Table 2); k in 12 .. 24 is said to work, and the released recipes have "
            f"12, 16, 20 and 25. As an argument: reference.schedule.every={every}.",
            "The reference stays what it is when a round ends, as in the released code, where a sync goes by the "
            "number of the step alone. A second model in memory does that.",
        ]
    elif steps == 1:
        remarks.append(
            "A round is one step, so that the reference is the policy itself, every ratio is 1 and neither clip acts: "
            "plain policy gradient. The KL term is against the start model, as TRL has it without humanline."
        )
    else:
        remarks.append(
            "The reference is the policy that sampled the round; the KL term is against the start model, as TRL has it "
            "without humanline. Rounds of another length: source.steps=16 source.contexts_per_round=512."
        )
    copies = "one copy of the weights" if every else "two copies of the weights (reference and KL anchor)"
    remarks.append(
        f"Memory: float32 weights, gradients and Adam states are 16 bytes a parameter, 25 GB, and {copies} "
        f"{'6' if every else '12'} GB more, in every process, before activations and samples."
    )
    differences = [
        "It trains on log-probabilities at the temperature of sampling. Here they are at temperature 1, the model's "
        "own; training.temperature=0.7 does as it does.",
        "Its system prompt asks for the same two blocks, <think> and <answer>, in other words.",
        "The mean over tokens is one of each accumulation pass, over all processes; here it is one of the whole step.",
        "The reward for the format is given also where lines follow the last tag; here the whole answer must match.",
        "vLLM samples, inside the training processes. Here transformers' generate does: slower, and the same again "
        "from the seed; servers, vLLM among them, are in humanline/train/online/samplers/README.md.",
        "Its tests draw at temperature 0.6 and top-p 0.95 with no system prompt. Here held-out answers are drawn as in "
        "training, one a problem: score/math is Pass@1 under these settings.",
    ]
    if every:
        differences.insert(
            0,
            "Its first sync follows update k, with the weights before that update; here syncs are counted from the "
            "first update, so that they come one step later. Under DeepSpeed they come after the update, when the "
            "ratio is 1 (at k = 1 always).",
        )
        differences.insert(1, "It syncs the one model that also anchors the KL term: so does `baseline: reference`.")
    name = f"{MATH}-{end}"
    lines = [f"Qwen2.5-1.5B-Instruct, {title}: Table 2.", "", f"  humanline train {name}", "", *_wrap(result)]
    for remark in remarks:
        lines += _wrap(remark)
    lines += ["", "The released code differs (README.md beside this file has more):"]
    for difference in differences:
        lines += _wrap(difference, first="- ", rest="  ")
    return [SCHEMA, *(f"# {line}".rstrip() for line in lines)]


def _math_body(end: str) -> list[str]:
    _, steps, every = MATH_RUNS[end]
    lines = [
        ("model: hub:Qwen/Qwen2.5-1.5B-Instruct", "section 5.2.2"),
        (f"output: runs/{MATH}-{end}", ""),
        ("seed: 0", "prompts, samples and order of the data; released recipe: 42"),
        ("objective:", ""),
        ("  kind: grpo", ""),
        ("  clip_eps: 0.2", f"{RELEASED}: TRL's default; GRPO's own clip, around 1"),
        ("  kl_coef: 0.0001", f"{RELEASED}, there called beta"),
        ("  normalise: global", f"{RELEASED}: loss_type dapo, over tokens"),
        ("  advantage_std: sample", f"{RELEASED}: TRL's default"),
        ("  advantage_eps: 0.0001", f"{RELEASED}: TRL's constant"),
    ]
    if every:
        lines += [
            ("transform:", ""),
            ("  kind: clip", "token log-ratios, upstream of the loss"),
            ("  log_eps_low: -1.5", "Table 2, nats"),
            ("  log_eps_high: 1.5", "Table 2, nats"),
            ("reference:", ""),
            (f"  schedule: {{kind: before_step, every: {every}}}", "Table 2: k in [12, 24]"),
            ("  round_start: keep", "see above"),
            ("  storage: model", "what a reference that outlives rounds needs"),
            ("  baseline: reference", "the KL term's anchor: the released code has no other model"),
        ]
    else:
        lines += [
            ("transform: {kind: none}", "log-ratios as they are"),
            ("reference:", ""),
            ("  schedule: {kind: each_round}", "the policy that sampled"),
            ("  storage: model", "what an anchor that outlives rounds needs"),
            ("  baseline: initial", "the KL term's anchor: the start model, our reading of TRL"),
        ]
    lines += [
        ("data:", ""),
        ("  train: hub:simplescaling/openaimath#train", f"{RELEASED}: MATH less MATH-500, 12,000 problems"),
        ("  eval: hub:simplescaling/openaimath#test", "MATH-500"),
        ("  columns: {prompt: problem}", ""),
        ("  max_length: 2560", "2048 for the answer (Table 2), 512 for the prompt"),
        ("  max_prompt_length: 512", f"{RELEASED}; the system prompt counts"),
        ("  too_long: drop", "prompts that are longer"),
        ("  special_tokens: drop", "texts that hold a token such as <|im_end|> would be read as control"),
        ("source:", ""),
        ("  kind: rounds", ""),
        (
            f"  contexts_per_round: {32 * steps}",
            "Table 2: 256 sequences in groups of 8" if steps == 1 else "64 steps of 32 prompts, sampled at once",
        ),
        ("  samples: 8", "Table 2: group size"),
        (f"  steps: {steps}", f"{'a round is a step' if steps == 1 else f'{RELEASED}: 64 updates'}"),
        ("  select: all", "a group is all 8, with their scores"),
        ("  truncated: keep", f"{RELEASED}: no masking of truncated completions"),
        ("  sampling:", ""),
        ("    temperature: 0.7", "Table 2"),
        ("    top_p: 1.0", "Table 2"),
        ("    max_tokens: 2048", "Table 2"),
        ("    # Our own words; the released prompt asks for the same two blocks.", ""),
        ("    system_prompt: |-", ""),
    ]
    texts = _aligned(lines) + [f"      {line}" for line in SYSTEM_PROMPT.splitlines()]
    lines = [
        ("    engine: {kind: generate, batch_size: 128}", "completions together; keys and values take 28 KiB a token"),
        ("  scoring:", ""),
        ("    rewards:", ""),
        ("      - {kind: math, weight: 8, answer: solution}", "Table 2's weights; the last box of the solution"),
        ("      - {kind: format, weight: 1}", "<think>, then <answer>, and nothing else"),
        ("      - {kind: tag_count, weight: 1}", "a quarter for each of the four tags"),
        ("    failed: 0.0", "our choice: an answer that keeps a verifier too busy gets 0; counted"),
        ("    seconds: 5", "our choice: limit of an answer"),
        ("training:", ""),
        ("  steps: 1600", "section 5.2.2"),
        ("  batch_size: 32", "Table 2: groups of 8 a step, 256 sequences"),
        ("  micro_batch_size: 8", "rows, of any groups, a forward pass and process; for memory alone"),
        ("  precision: bf16", "of compute; weights and Adam states are float32"),
        ("  activation_checkpointing: true", "the same bits in less memory, a third more work"),
        ("  temperature: 1.0", "our choice; see above"),
        ("optimizer:", ""),
        ("  lr: 1e-6", "Table 2, like the next six"),
        ("  adam_beta1: 0.9", ""),
        ("  adam_beta2: 0.999", ""),
        ("  adam_eps: 1e-8", ""),
        ("  weight_decay: 0.0", ""),
        ("  warmup_fraction: 0.1", "of the steps, then constant"),
        ("  max_grad_norm: 1.0", ""),
        ("evaluation: {every: 400}", "our choice: when the released recipe saves; the 500 test problems"),
        ("checkpoint: {every: 50, keep: 2}", "and every 30 minutes; --resume goes on from there"),
    ]
    return texts + _aligned(lines)


# ---------------------------------------------------------------------------------------------------------------------
# The demo's task

TINY = f"""\
{SCHEMA}
# A tiny Llama, offline + humanline DPO on the demo's preference pairs: ten seconds on a CPU.
#
# It starts from what the demo leaves behind (three minutes on two cores):
#   humanline demo
#   humanline train tiny
# The offline variant is the same command with two more arguments (and an output of its own):
#   humanline train tiny output=runs/tiny-offline transform="{{kind: none}}" reference.schedule="{{kind: never}}"
# tiny-online, beside this file, has the other two variants, and KTO and GRPO of all four.
# No run of the paper. On this task k = 1 goes further than is good: studies/frontier has all settings.
model: demo-out/start/final                       # learned to sort letters from noisy examples
output: runs/tiny
seed: 0                                           # order of the pairs
objective:
  kind: dpo
  beta: 0.1                                       # scale of the log-ratio inside the sigmoid
transform:
  kind: clip                                      # token log-ratios, upstream of the loss
  log_eps_low: -1.5                               # nats
  log_eps_high: 1.5                               # nats
reference:
  schedule: {{kind: before_step, every: 1}}         # the policy one update ago
data:
  shape: preference                               # pairs for every objective; KTO takes them apart
  train: demo-out/pairs.jsonl                     # best against worst of eight samples, by letters in place
  eval: demo-out/pairs-held-out.jsonl             # other words
  max_length: 48                                  # tokens, prompt and answer; every pair fits
training:
  steps: 150                                      # most of one pass over some 2500 pairs
  batch_size: 16                                  # pairs a step
optimizer:
  lr: 1e-4
  warmup_fraction: 0.1                            # of the steps, then constant
  max_grad_norm: 1.0
evaluation: {{every: 50, batch_size: 64}}           # steps between looks at the held-out pairs
"""


TINY_ONLINE = f"""\
{SCHEMA}
# A tiny Llama, online DPO on the demo's task, sorting letters: half a minute on a CPU.
#
# It starts from what the demo leaves behind (three minutes on two cores), samples answers to words and scores them by
# the letters in place, with a Python function:
#   humanline demo
#   humanline train tiny-online
#
# Together with tiny it has every variant of the paper's objectives; give each an output of its own. DPO:
#   humanline train tiny transform="{{kind: none}}" reference.schedule="{{kind: never}}"
#   humanline train tiny
#   humanline train tiny-online
#   humanline train tiny-online transform="{{kind: clip}}" reference.schedule="{{kind: before_step}}"
# These are offline, offline + humanline, online and online + humanline. One or two arguments more make them KTO, or
# GRPO, which online takes all eight answers with their scores:
#   objective="{{kind: kto}}" training.batch_size=32
#   objective="{{kind: grpo}}"
# Offline GRPO, whose reference never moves, needs a larger clip of its own as well (the paper's Table 3):
#   objective.clip_eps=0.5
# No run of the paper, and not tuned. One run of each of the six online ones took the held-out score from 0.544 to
# 0.664 .. 0.700 (standard error 0.02): online learns the task here, and says nothing about which variant is better.
model: demo-out/start/final                       # learned to sort letters from noisy examples
output: runs/tiny-online
seed: 0                                           # prompts, samples and order of the pairs
objective:
  kind: dpo
  beta: 0.1                                       # scale of the log-ratio inside the sigmoid
transform: {{kind: none}}                           # log-ratios as they are
reference:
  schedule: {{kind: each_round}}                    # the policy at the start of the round
data:
  train: demo-out/words.jsonl                     # 2560 words, of which the 12 rounds take 768
  eval: demo-out/words-held-out.jsonl             # other words
  max_length: 48                                  # tokens, prompt and answer
source:
  kind: rounds
  contexts_per_round: 64
  samples: 8                                      # answers to a word
  count: 12
  score_margin: 0.01                              # words whose answers score alike are left out
  sampling:
    temperature: 1.0
    max_tokens: 12                                # a word has at most 7 letters
  scoring:
    rewards:
      - {{kind: function, call: "humanline.reproduce.testbeds.letters:letters_in_place"}}  # called in a worker process
training:
  batch_size: 16                                  # pairs a step: at most 4 steps a round, 48 in all
optimizer:
  lr: 1e-4
  warmup_fraction: 0.1                            # of the 48 steps, then constant
  max_grad_norm: 1.0
"""


def files() -> dict[str, str]:
    """Return the text of every recipe by its name."""
    made = {"tiny": TINY, "tiny-online": TINY_ONLINE, **math_recipes()}
    for recipe in [*llama3_8b(), *table_6(), *figure_10(), *gemma2_27b(), *online()]:
        made[recipe.name] = "\n".join([*_header(recipe), *_aligned(_body(recipe))]) + "\n"
    return made


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description="Write the recipes of the paper's runs.")
    parser.add_argument("--check", action="store_true", help="say which committed files differ, and write nothing")
    options = parser.parse_args()
    made = files()
    committed = {path.name.removesuffix(".yaml"): path for path in FOLDER.glob("*.yaml")}
    different = sorted(
        name
        for name in made.keys() | committed.keys()
        if name not in made or name not in committed or committed[name].read_text(encoding="utf-8") != made[name]
    )
    if options.check:
        print("\n".join(different) or "the recipes are as this script makes them")
        return int(bool(different))
    for name, text in made.items():
        (FOLDER / f"{name}.yaml").write_text(text, encoding="utf-8")
    for name in committed.keys() - made.keys():
        print(f"{committed[name]} is not made by this script; remove it or add it to the table", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
