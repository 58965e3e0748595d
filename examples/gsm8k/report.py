"""Results of the example -> a page of Markdown tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from humanline.stats import mean_interval

METRICS = ("accuracy", "kl_to_start", "loss", "margin", "chosen_logprob", "rejected_logprob")
COMPARED = ("accuracy", "kl_to_start")
DIGITS = {"accuracy": 3, "loss": 4, "margin": 2, "chosen_logprob": 3, "rejected_logprob": 3, "kl_to_start": 2}
SHARES = ("kl_to_start_truncated", "clip_share", "own_clip_share")
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
        "## 6. Accuracy by distance from the start",
        _by_distance(cells, settings),
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


def _title(metric: str) -> str:
    return {"kl_to_start": "distance"}.get(metric, metric.replace("_logprob", " log-prob/token"))


def _variants(cells: Sequence[Cell], setting: str) -> list[str]:
    """Return a setting's variants: offline ones, then humanline."""
    return list(dict.fromkeys(cell["variant"] for cell in cells if cell["setting"] == setting))


def _is_humanline(variant: str) -> bool:
    return variant.startswith("humanline")


def _comparisons(cells: Sequence[Cell], settings: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return (setting, humanline variant, offline variant) of every two that are held against each other."""
    found = []
    for setting in settings:
        names = _variants(cells, setting)
        offline = [name for name in names if not _is_humanline(name)]
        found += [(setting, name, other) for name in names if _is_humanline(name) for other in offline]
    return found


def _label(setting: str, variant: str, offline: str) -> str:
    """Return the name of a comparison: the offline variant is named where there are several."""
    name = f"{setting}, {variant.removeprefix('humanline, ')}"
    return name if offline == "offline" else f"{name} ({offline})"


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
            shares = [_values(cells, setting, variant, name) for name in SHARES]
            rows.append(
                [
                    f"{setting}, {variant}",
                    str(len(metrics[0])),
                    *(_with_interval(v.values(), DIGITS[m]) for v, m in zip(metrics, METRICS, strict=True)),
                    *(f"{statistics.fmean(share.values()):.2%}" if share else "-" for share in shares),
                ]
            )
    initial = next((c["initial"] for c in cells if "failed" not in c), None)
    if initial is not None:
        logprobs = [f"{initial[metric]:.3f}" for metric in METRICS[4:]]
        rows.insert(0, ["start model", "", "0.500", "0.00", "", "0.00", *logprobs, "", "", ""])
    head = [
        "setting",
        "seeds",
        *map(_title, METRICS),
        "truncated",
        "clipped",
        "own clip",
    ]
    failed = [f"- {c['setting']}, {c['variant']}, seed {c['seed']}: {c['failed']}" for c in cells if "failed" in c]
    return "\n\n".join(
        [
            "Mean ± half-width of the 95 % Student-t interval over seeds (seeds change the order of the data). Losses "
            "compare within a setting only, and GRPO's at one eps only. `distance` is KL(policy || start) of an answer "
            "to other questions, nats; `truncated` the share of these answers that the limit of tokens ended. "
            "`clipped` (by humanline's range) and `own clip` (by GRPO's, eps) are means over training steps, the ratio "
            "being against the variant's own reference.",
            _table(head, rows),
            "\n".join(["Runs that stopped at a number that is not finite:", *failed]) if failed else "",
        ]
    ).rstrip()


def _paired(cells: Sequence[Cell], setting: str, variant: str, offline: str, metric: str) -> list[float]:
    """Return humanline minus offline, seed by seed; none for losses that are not the same function."""
    objectives = [c["objective"] for c in cells if c["setting"] == setting and c["variant"] in (variant, offline)]
    if metric == "loss" and any(objective != objectives[0] for objective in objectives):
        return []
    one, other = (_values(cells, setting, v, metric) for v in (variant, offline))
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def _differences(cells: Sequence[Cell], settings: Sequence[str]) -> str:
    rows = [
        [_label(*pair), *(_with_interval(_paired(cells, *pair, m), DIGITS[m], "+") for m in METRICS)]
        for pair in _comparisons(cells, settings)
    ]
    return "\n\n".join(
        [
            "Seed by seed, with the same start model and the same order of the data; mean ± half-width of the 95 % "
            "Student-t interval. A negative difference of losses means that humanline's is lower. Rows of one setting "
            "share runs.",
            "GRPO's humanline runs, with an own clip of eps 0.15, are held against offline runs at several eps. The "
            "paper's Table 3 has 0.5 offline and 0.15 under humanline, since a reference that never moves needs a much "
            "larger clip. Losses at two eps are two functions, not compared.",
            _table(["setting", *map(_title, METRICS)], rows),
        ]
    )


def _verdict(cells: Sequence[Cell], settings: Sequence[str]) -> str:
    lines: dict[str, list[str]] = {metric: [] for metric in COMPARED}
    looks, found = 0, 0
    for metric, said in lines.items():
        higher, lower = ("better", "worse") if metric == "accuracy" else ("further", "nearer")
        for comparison in _comparisons(cells, settings):
            mean, half = interval(_paired(cells, *comparison, metric))
            if math.isnan(half):
                continue
            looks += 1
            word = "no difference seen"
            if abs(mean) > half:
                found += 1
                word = f"humanline {higher if mean > 0 else lower}"
            said.append(f"- {_label(*comparison)}: **{word}** ({mean:+.{DIGITS[metric]}f} ± {half:.{DIGITS[metric]}f})")
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
            "Distance from the start, nats an answer:",
            "\n".join(lines["kl_to_start"]),
            "Remarks that follow from the numbers:",
            "\n".join(_remarks(cells, settings)),
        ]
    )


def _by_distance(cells: Sequence[Cell], settings: Sequence[str]) -> str:
    """Return each objective's variants in the order of their distance: what lies beside what, and no test of it."""
    parts = [
        "From near to far: what a variant gained, and how far it went for that. Means over seeds; least and most of "
        "single seeds. Shown, not tested: so few offline variants draw no curve that others could be held against.",
    ]
    for objective in dict.fromkeys(cell["objective"]["kind"] for cell in cells):
        rows = []
        for setting, variant in dict.fromkeys((c["setting"], c["variant"]) for c in cells):
            if setting not in settings or _kind(cells, setting) != objective:
                continue
            far, gained = (list(_values(cells, setting, variant, m).values()) for m in ("kl_to_start", "accuracy"))
            if far:
                rows.append((statistics.fmean(far), f"{setting}, {variant}", far, gained))
        shown = [[name, _range(far, 2), _range(gained, 3)] for _, name, far, gained in sorted(rows, key=lambda r: r[0])]
        if shown:
            parts.append(_table([objective.upper(), "distance, nats", "accuracy"], shown))
    return "\n\n".join(parts)


def _kind(cells: Sequence[Cell], setting: str) -> str:
    return next(str(cell["objective"]["kind"]) for cell in cells if cell["setting"] == setting)


def _range(values: Sequence[float], digits: int) -> str:
    ends = f"{min(values):.{digits}f} .. {max(values):.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ({ends})"


def _remarks(cells: Sequence[Cell], settings: Sequence[str]) -> list[str]:
    """Return remarks that a reader needs before believing a row: the clip's part, and rows that fell apart."""
    clipped = {
        f"{setting}, {variant}": list(_values(cells, setting, variant, "clip_share").values())
        for setting in settings
        for variant in _variants(cells, setting)
        if _is_humanline(variant)
    }
    shares = {name: statistics.fmean(values) for name, values in clipped.items() if values}
    remarks = []
    if shares:
        most = max(shares, key=lambda name: shares[name])
        rest = [f"{name} ({share:.2%})" for name, share in shares.items() if share >= 0.01]
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
