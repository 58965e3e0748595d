"""Results of the example -> a page of Markdown tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from humanline.stats import mean_interval

METRICS = ("accuracy", "loss", "margin", "chosen_logprob", "rejected_logprob")
COMPARED = ("accuracy", "loss", "margin")
DIGITS = {"accuracy": 3, "loss": 4, "margin": 2, "chosen_logprob": 3, "rejected_logprob": 3, "log_ratio_rms": 3}
Cell = dict[str, Any]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half-width of the 95 % Student-t interval of the mean; nan for fewer than two values."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan
    found = mean_interval(values)
    return found.mean, found.half_width


def page(results: dict[str, Any]) -> str:
    """Return the whole page.

    Parameters
    ----------
    results : dict
        What `run.py` writes to results.json.
    """
    cells, settings = results["cells"], list(dict.fromkeys(cell["setting"] for cell in results["cells"]))
    parts = [
        "# GSM8K: next-token training, then DPO, KTO and GRPO, offline and humanline",
        f"Written by `python examples/gsm8k/run.py{' --quick' if results['quick'] else ''}` ({results['versions']}); "
        "the README says what each number means.",
        "" if not results["quick"] else "**A quick run with tiny sizes: it shows that the chain works, nothing else.**",
        results.get("note", ""),  # by hand, where the rows are not all of one run
        "## 1. Start model",
        _start(results),
        "## 2. Pairs, and what trivial rules achieve on them",
        _pairs(results),
        "## 3. Held-out results, against the start model",
        _cells(cells, settings),
        "## 4. Humanline minus offline",
        _differences(cells, settings),
        "## 5. What differs and what does not",
        _verdict(cells, settings),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    numeric = ["---" if i == 0 else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, numeric, *rows])


def _start(results: dict[str, Any]) -> str:
    start = results["start"]
    rows = [[str(point["updates"]), f"{point['perplexity']:.2f}"] for point in start["perplexity"]]
    return "\n\n".join(
        [
            f"A Llama of {start['parameters']:,} weights, trained from random weights on {start['train_rows']:,} rows "
            f"of gsm8k-train. Perplexity of the answer's tokens on {start['held_out_rows']} other rows of gsm8k-train "
            "(the pairs below come from the test questions, which next-token training never saw):",
            _table(["updates", "held-out perplexity"], rows),
            "What it answers (greedy) to the first held-out question of gsm8k-train:",
            "\n".join(f"> {line}" for line in _quoted(start["sample"])),
        ]
    )


def _quoted(text: str) -> list[str]:
    """Return the lines of a model's text, so that Markdown shows them as they are."""
    return [f"`{line.replace('`', chr(39))}`  " for line in text.splitlines() if line.strip()] or ["(nothing)"]


def _pairs(results: dict[str, Any]) -> str:
    pairs = results["pairs"]
    names = {
        "longer": "longer (characters)",
        "larger_model": "from the larger model (175B, not 6B)",
        "verified": "picked by a verifier (the other was not)",
        "decimals": "writes more whole results as `18.0`",
    }
    shares = [
        [f"{text}: chosen / rejected", *(_share(pairs[part]["giveaways"][name]) for part in ("train", "held_out"))]
        for name, text in names.items()
    ]
    count = pairs["held_out"]["count"]
    rules = [
        [rule, f"{value:.3f}", f"{math.sqrt(value * (1 - value) / count):.3f}"]
        for rule, value in pairs["rules"].items()
    ]
    return "\n\n".join(
        [
            f"{pairs['train']['count']} questions to train on, {count} others held out; one right and one wrong "
            "solution each. Which answer has more of a surface feature, in shares of pairs (the rest are ties); the "
            "first three were balanced on purpose when the solutions were picked:",
            _table(["feature", "train", "held out"], shares),
            "Accuracy of rules that have learned nothing from the pairs, on the held-out ones (a tie counts one half; "
            "the standard error is that of sampling the questions):",
            _table(["rule", "accuracy", "standard error"], rules),
        ]
    )


def _variants(cells: Sequence[Cell], setting: str) -> list[str]:
    """Return a setting's variants: offline ones, then humanline."""
    return list(dict.fromkeys(cell["variant"] for cell in cells if cell["setting"] == setting))


def _comparisons(cells: Sequence[Cell], settings: Sequence[str]) -> list[tuple[str, str]]:
    """Return every offline variant of every setting: humanline is held against each."""
    return [(setting, v) for setting in settings for v in _variants(cells, setting) if v != "humanline"]


def _label(setting: str, variant: str) -> str:
    """Return the name of a comparison: that of its setting, and of the offline variant where there are several."""
    return setting if variant == "offline" else f"{setting} ({variant})"


def _share(two: Sequence[float]) -> str:
    return f"{two[0]:.3f} / {two[1]:.3f}"


def _values(cells: Sequence[Cell], setting: str, variant: str, name: str) -> dict[int, float]:
    """Return a number of the finished runs of a setting and variant, by seed."""
    found = {}
    for cell in cells:
        if (cell["setting"], cell["variant"]) == (setting, variant) and "failed" not in cell:
            value = cell[name] if name in cell else cell["held_out"][name]
            if value is not None:
                found[cell["seed"]] = value
    return found


def _with_interval(values: Iterable[float], digits: int, sign: str = "") -> str:
    mean, half = interval(list(values))
    if math.isnan(mean):
        return "-"
    return f"{mean:{sign}.{digits}f}" + ("" if math.isnan(half) else f" ± {half:.{digits}f}")


def _cells(cells: Sequence[Cell], settings: Sequence[str]) -> str:
    rows = []
    for setting in settings:
        for variant in _variants(cells, setting):
            metrics = [_values(cells, setting, variant, metric) for metric in METRICS]
            rms = _values(cells, setting, variant, "log_ratio_rms")
            shares = [_values(cells, setting, variant, name) for name in ("clip_share", "own_clip_share")]
            rows.append(
                [
                    f"{setting}, {variant}",
                    str(len(metrics[0])),
                    *(_with_interval(v.values(), DIGITS[m]) for v, m in zip(metrics, METRICS, strict=True)),
                    _with_interval(rms.values(), 3),
                    *(f"{statistics.fmean(share.values()):.2%}" if share else "-" for share in shares),
                ]
            )
    initial = next((c["initial"] for c in cells if "failed" not in c), None)
    if initial is not None:
        logprobs = [f"{initial[metric]:.3f}" for metric in METRICS[3:]]
        rows.insert(0, ["start model", "", "0.500", "", "0.00", *logprobs, "", "", ""])
    head = [
        "setting",
        "seeds",
        *(m.replace("_logprob", " log-prob/token") for m in METRICS),
        "log-ratio rms",
        "clipped",
        "own clip",
    ]
    failed = [f"- {c['setting']}, {c['variant']}, seed {c['seed']}: {c['failed']}" for c in cells if "failed" in c]
    return "\n\n".join(
        [
            "Mean ± half-width of the 95 % Student-t interval over seeds (seeds change the order of the data). Losses "
            "compare within a setting only, and GRPO's at one eps only. `log-ratio rms`, `clipped` (by humanline's "
            "range) and `own clip` (by GRPO's, eps) are means over training steps, the ratio being against the "
            "variant's own reference.",
            _table(head, rows),
            "\n".join(["Runs that stopped at a number that is not finite:", *failed]) if failed else "",
        ]
    ).rstrip()


def _paired(cells: Sequence[Cell], setting: str, variant: str, metric: str) -> list[float]:
    """Return humanline minus an offline variant, seed by seed; none for losses that are not the same function."""
    objectives = [c["objective"] for c in cells if c["setting"] == setting and c["variant"] in (variant, "humanline")]
    if metric == "loss" and any(objective != objectives[0] for objective in objectives):
        return []
    offline, humanline = (_values(cells, setting, v, metric) for v in (variant, "humanline"))
    return [humanline[seed] - offline[seed] for seed in sorted(offline.keys() & humanline.keys())]


def _differences(cells: Sequence[Cell], settings: Sequence[str]) -> str:
    rows = [
        [_label(*pair), *(_with_interval(_paired(cells, *pair, m), DIGITS[m], "+") for m in METRICS)]
        for pair in _comparisons(cells, settings)
    ]
    return "\n\n".join(
        [
            "Seed by seed, with the same start model and the same order of the data; mean ± half-width of the 95 % "
            "Student-t interval. A negative difference of losses means that humanline's is lower.",
            "GRPO's humanline runs, with an own clip of eps 0.15, are held against offline runs at several eps. The "
            "paper's Table 3 has 0.5 offline and 0.15 under humanline, since a reference that never moves needs a much "
            "larger clip. These rows share their humanline runs; losses at two eps are two functions, not compared.",
            _table(["setting", *(m.replace("_logprob", " log-prob/token") for m in METRICS)], rows),
        ]
    )


def _verdict(cells: Sequence[Cell], settings: Sequence[str]) -> str:
    lines: dict[str, list[str]] = {metric: [] for metric in COMPARED}
    looks, found = 0, 0
    for metric, said in lines.items():
        higher, lower = ("better", "worse") if metric == "accuracy" else ("higher", "lower")
        for setting, variant in _comparisons(cells, settings):
            differences = _paired(cells, setting, variant, metric)
            mean, half = interval(differences)
            if math.isnan(half):
                continue
            looks += 1
            two = [interval(list(_values(cells, setting, v, metric).values())) for v in (variant, "humanline")]
            overlap = abs(two[0][0] - two[1][0]) <= two[0][1] + two[1][1]
            word = "no difference seen"
            if abs(mean) > half:
                found += 1
                word = f"humanline {higher if mean > 0 else lower}"
            numbers = f"{mean:+.{DIGITS[metric]}f} ± {half:.{DIGITS[metric]}f}"
            own = "overlap" if overlap else "do not overlap"
            said.append(f"- {_label(setting, variant)}: **{word}** ({numbers}; the variants' own intervals {own})")
    if not looks:
        return "Fewer than two seeds: nothing can be said."
    return "\n\n".join(
        [
            f"A difference is called one where its interval excludes 0: {found} of {looks} here. Of so many looks "
            f"about {0.05 * looks:.1f} would be called one by luck alone if nothing differed (the looks are not "
            "independent, so luck comes in clusters). The intervals cover the order of the data, not the choice of "
            "held-out questions: the standard errors of part 2 say what that adds to any single accuracy.",
            "Accuracy:",
            "\n".join(lines["accuracy"]),
            "Loss against the start model. Offline trains on this very quantity and humanline does not, so a higher "
            "one under humanline says that the policy went further, not that it ranks worse. GRPO's is unbounded: one "
            "rejected token whose probability rose e-fold counts e.",
            "\n".join(lines["loss"]),
            "Margin, nats:",
            "\n".join(lines["margin"]),
            "Remarks that follow from the numbers:",
            "\n".join(_remarks(cells, settings)),
        ]
    )


def _remarks(cells: Sequence[Cell], settings: Sequence[str]) -> list[str]:
    """Return remarks that a reader needs before believing a row: the clip's part, and rows that fell apart."""
    clipped = {setting: list(_values(cells, setting, "humanline", "clip_share").values()) for setting in settings}
    shares = {setting: statistics.fmean(values) for setting, values in clipped.items() if values}
    remarks = []
    if shares:
        most = max(shares, key=lambda setting: shares[setting])
        rest = [f"{setting} ({share:.2%})" for setting, share in shares.items() if share >= 0.01]
        remarks.append(
            f"- The clip touched at most {shares[most]:.2%} of the tokens ({most}); it touched 1 % or more in: "
            f"{', '.join(rest) or 'no setting'}. Elsewhere it can have done little, and what acted is the syncing."
        )
    lost = []
    for setting in settings:
        for variant in _variants(cells, setting):
            now = list(_values(cells, setting, variant, "chosen_logprob").values())
            then = [cell["initial"]["chosen_logprob"] for cell in cells if "failed" not in cell]
            if now and statistics.fmean(now) < then[0] - 1:
                lost.append(f"{setting}, {variant} ({statistics.fmean(now) - then[0]:+.1f})")
    remarks.append(
        "- Rows that unlearned the text, the chosen answers' log-probability having fallen by more than 1 nat a token: "
        f"{'; '.join(lost) or 'none'}. "
        + ("Their learning rate is too high; read no preference into them." * bool(lost))
    )
    return remarks
