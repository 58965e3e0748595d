"""Write the recipes of the paper's offline runs from one table.

    python scripts/make_recipes.py            write humanline/recipes/*.yaml
    python scripts/make_recipes.py --check    say which committed files differ, and write nothing

A recipe is a plain, complete file that nobody has to generate; this script only keeps thirty of them alike. A number of
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
    """A start model, and how many sequences of it go through one forward pass."""

    source: str
    title: str
    rows: int
    note: str


@dataclass(frozen=True)
class Data:
    """A set of preference pairs."""

    source: str
    title: str


MODELS = {
    "llama3-8b": Model(
        "hub:meta-llama/Meta-Llama-3-8B-Instruct",
        "Llama-3-8B-Instruct",
        4,
        "Memory: float32 weights, gradients and Adam states are 16 bytes a parameter, 128 GB (120 GiB) in every "
        "process, before activations.",
    ),
    "gemma2-27b": Model(
        "hub:google/gemma-2-27b-it",
        "Gemma-2-27B-Instruct",
        2,
        "Memory: float32 weights, gradients and Adam states are 16 bytes a parameter, 436 GB (406 GiB) in every "
        "process: this does not run before the weights can be sharded over processes.",
    ),
}
DATA = {
    "llama3": Data("hub:princeton-nlp/llama3-ultrafeedback-armorm", "Llama 3 answers"),
    "gemma2": Data("hub:princeton-nlp/gemma2-ultrafeedback-armorm", "Gemma 2 answers"),
}
OBJECTIVES = ("dpo", "kto", "grpo")
VARIANTS = ("offline", "humanline")

# Table 3, by objective and variant: maximum gradient norm, and GRPO's clip.
MAX_NORM = {
    ("dpo", "offline"): "1.0",
    ("dpo", "humanline"): "1.0",
    ("kto", "offline"): "1.0",
    ("kto", "humanline"): "4.0",
    ("grpo", "offline"): "1.0",
    ("grpo", "humanline"): "1.0",
}
CLIP_EPS = {"offline": "0.5", "humanline": "0.15"}
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
# Table 5, DPO on Gemma 2 27B: LC win rate, win rate, standard error, beta. The learning rate is 2.5e-6 in all rows.
TABLE_5 = {
    ("offline", "llama3"): ("48.59", "32.36", "1.58", "0.3"),
    ("humanline", "llama3"): ("56.27", "44.49", "1.67", "0.3"),
    ("offline", "gemma2"): ("56.58", "45.17", "1.68", "0.1"),
    ("humanline", "gemma2"): ("67.45", "61.37", "1.64", "0.1"),
}
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
        return self.variant == "humanline"


def _kind(objective: str, variant: str) -> str:
    return f"{'offline + humanline' if variant == 'humanline' else 'offline'} {objective.upper()}"


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


UNIT = {"dpo": "pairs", "kto": "sequences", "grpo": "groups of two"}
ONE_UNIT = {"dpo": "pair", "kto": "sequence", "grpo": "group of two"}


def _header(recipe: Recipe) -> list[str]:
    """Return the comment above the first section."""
    differences = [
        "AdamW runs with eps 1e-8: the 1e-5 of Table 1 never reaches it.",
        "Weights are pure bf16, in which most updates of this size are rounded away; in a simulation they moved about "
        "20x less than the float32 weights here. So the learning rate need not fit: try smaller ones.",
        "Runs of spaces in the data are collapsed (code loses its indentation), and answers are sampled for evaluation "
        "with a ChatML prompt. Here text stays as it is, under the model's own template.",
    ]
    if recipe.humanline:
        differences.insert(1, "k is ignored, and the lower bound is -1.0 unless set.")
    if recipe.objective == "grpo":
        differences.insert(
            1,
            "1e-2 is added to the standard deviation of a group: scores of 1 and 0 give advantages of ±.98, a gap of "
            ".01 gives ±.33, and only here is it ±1. The loss is a mean per micro-batch instead of one over the step's "
            "tokens.",
        )
    lines = [recipe.title, "", f"  humanline train {recipe.name}", "", *_wrap(recipe.result)]
    for remark in recipe.remarks:
        lines += _wrap(remark)
    lines += [
        *_wrap(MODELS[recipe.model].note),
        "",
        "The released code differs (README.md beside this file has it all):",
    ]
    for difference in differences:
        lines += _wrap(difference, first="- ", rest="  ")
    lines.append("`--preset halos` does as it does where settings can.")
    return [SCHEMA, *(f"# {line}".rstrip() for line in lines)]


def _wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    if text.startswith("  "):
        return [text]  # a command
    return textwrap.wrap(
        text, WIDTH - 2, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _body(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the lines of the file, each with its comment."""
    model, data, objective = MODELS[recipe.model], DATA[recipe.data], recipe.objective
    lines = [
        (f"model: {model.source}", "gated: accept its licence on the hub first"),
        (f"output: runs/{recipe.name}", ""),
        ("seed: 0", "order of the data; the paper prints none"),
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
    if recipe.humanline:
        lines += [("  schedule: {kind: before_step, every: 1}", "Table 1's k: the policy one update ago")]
    elif recipe.schedule:
        lines += [(f"  schedule: {recipe.schedule}", "Figure 10; see above")]
    else:
        lines += [("  schedule: {kind: never}", "the start model stays the reference")]
    if objective == "grpo":
        lines += [("  baseline: reference", "the KL term's anchor, as in appendix C.1.4")]
    lines += [("data:", "")]
    if objective == "kto":
        lines += [("  shape: preference", "a pair is a desirable and an undesirable sequence")]
    scored = "a pair is a group, scored 1 and 0 (no score columns)"
    train_note = scored if objective == "grpo" else "about 60,000 pairs"
    lines += [
        (f"  train: {data.source}#train", train_note),
        (f"  eval: {data.source}#test", ""),
        ("  max_length: 2048", "prompt and answer; the paper's 2048 is for answers it samples"),
        ("  too_long: drop", "a cut answer has no end, and a sixth of the pairs is used anyway"),
        ("  special_tokens: drop", "texts that hold a token such as <pad> would be read as control"),
    ]
    batch, micro = (64, model.rows) if objective == "kto" else (32, model.rows // 2)
    volume = "10K pairs" if objective == "dpo" else "20K sequences"
    sequences = ", 64 sequences" if objective == "grpo" else ""
    unit = UNIT[objective] if micro > 1 else ONE_UNIT[objective]
    lines += [
        ("training:", ""),
        ("  steps: 313", f"Table 1: {volume}, 312.5 batches"),
        (f"  batch_size: {batch}", f"Table 1: {UNIT[objective]} a step{sequences}"),
        (f"  micro_batch_size: {micro}", f"{unit} a forward pass ({model.rows} rows) and process; for memory alone"),
        ("  precision: bf16", "of compute; weights and Adam states are float32"),
        ("  activation_checkpointing: true", "the same bits in less memory, a third more work"),
        ("optimizer:", ""),
        (f"  lr: {recipe.lr}", recipe.lr_from),
        ("  adam_beta1: 0.9", "Table 1, like the next four"),
        ("  adam_beta2: 0.999", ""),
        ("  adam_eps: 1e-5", ""),
        ("  weight_decay: 0.01", ""),
        ("  warmup_fraction: 0.1", "of the steps, then constant"),
        (f"  max_grad_norm: {_norm(recipe)}", recipe.norm_from),
        (f"evaluation: {{batch_size: {2 * model.rows}}}", "held-out metrics at the start and at the end"),
        ("checkpoint: {every: 50, keep: 2}", "and every 30 minutes; --resume goes on from there"),
    ]
    return lines


def _norm(recipe: Recipe) -> str:
    return MAX_NORM[recipe.objective, "humanline" if recipe.humanline else "offline"]


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


TINY = f"""\
{SCHEMA}
# A tiny Llama, offline + humanline DPO on the demo's preference pairs: ten seconds on a CPU.
#
# It starts from what the demo leaves behind (three minutes on two cores, about one with --seeds 1):
#   humanline demo
#   humanline train tiny
# The offline variant is the same command with two more arguments (and an output of its own):
#   humanline train tiny output=runs/tiny-offline transform="{{kind: none}}" reference.schedule="{{kind: never}}"
# No run of the paper. On this task humanline is not better: the demo's table says by how much.
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
  train: demo-out/pairs.jsonl                     # best against worst of eight samples, by letters in place
  eval: demo-out/pairs-held-out.jsonl             # other words
  max_length: 48                                  # tokens, prompt and answer; every pair fits
training:
  steps: 150
  batch_size: 16                                  # pairs a step
optimizer:
  lr: 1e-4
  warmup_fraction: 0.1                            # of the steps, then constant
  max_grad_norm: 1.0
evaluation: {{every: 50, batch_size: 64}}           # steps between looks at the held-out pairs
"""


def files() -> dict[str, str]:
    """Return the text of every recipe by its name."""
    made = {"tiny": TINY}
    for recipe in [*llama3_8b(), *table_6(), *figure_10(), *gemma2_27b()]:
        made[recipe.name] = "\n".join([*_header(recipe), *_aligned(_body(recipe))]) + "\n"
    return made


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description="Write the recipes of the paper's offline runs.")
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
