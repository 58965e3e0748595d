"""The card of a finished model: what it is, how it was made and what it reached, in the form that the hub reads.

It lies beside the weights as README.md, with all that it says as JSON in humanline.json. It is made from facts alone
(`humanline.train.run.facts`); nothing is uploaded anywhere.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from humanline.system.terminal import redact, redacted, visible
from humanline.train.run.facts import FORMAT, json_numbers
from humanline.train.run.looks import interval, is_number, shown_metrics

CARD, FACTS = "README.md", "humanline.json"
_HUB = "hub:"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_LONGEST = 300  # characters of a name or setting
#: What the number is, in words; others are shown by their names in metrics.jsonl.
WORDS = {
    "score": "score",
    "accuracy": "preference accuracy",
    "margin": "margin, nats",
    "loss": "loss",
    "perplexity": "perplexity",
    "chosen_logprob": "log-probability of chosen answers, nats a token",
    "rejected_logprob": "log-probability of rejected answers, nats a token",
    "completions": "answers",
    "contexts": "prompts",
    "completion_tokens": "length of answers, tokens",
    "completion_tokens_std": "length of answers, standard deviation",
    "completion_nll": "surprise of its own answers, nats a token",
    "without_score": "answers without a score",
    "truncated": "answers cut short, share",
    "kl_from_start": "distance from the start, KL(start || policy), nats an answer",
    "kl_from_start_answers": "KL(start || policy): answers",
    "kl_from_start_truncated": "KL(start || policy): answers cut short, share",
    "kl_to_start_answers": "KL(policy || start): answers",
    "kl_to_start_truncated": "KL(policy || start): answers cut short, share",
    "kl_to_start": "distance from the start, KL(policy || start), nats an answer",
}
SETS = {"train": "training", "held_out": "held out", "distance": "prompts for the distance"}
_LOAD = {
    "whole": """from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder, or the name under which it is kept
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)""",
    "adapter": """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

folder = "."  # this folder, or the name under which it is kept
model = AutoPeftModelForCausalLM.from_pretrained(folder)  # reads the base model, whose name is in adapter_config.json
tokenizer = AutoTokenizer.from_pretrained(folder)""",
}
_LOAD["merged"] = _LOAD["whole"]
_WEIGHTS = {
    "whole": "These are whole weights.",
    "adapter": "This is an adapter: it needs its base model. `humanline merge FOLDER OUT` makes one model of both.",
    "merged": "These are whole weights, of a base model and an adapter made one by `humanline merge`.",
}


def card_files(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that tell of a model, by name: its card, and the facts in it as JSON."""
    plain = json_numbers(redacted(facts))
    return {CARD: redact(card(plain)), FACTS: json.dumps(plain, indent=1, allow_nan=False) + "\n"}


def merged_files(text: str) -> dict[str, str]:
    """Return the files of a model that was made of an adapter and its base, from the text of the adapter's facts.

    None where they cannot be read, as of another version, or there are none.
    """
    try:
        facts = json.loads(text)
        if facts["format"] == FORMAT and facts["weights"] in ("adapter", "merged"):
            return card_files(facts | {"weights": "merged"})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return {}


def card(facts: Mapping[str, Any]) -> str:
    """Return the card of a model, as Markdown behind a head of YAML."""
    title = facts["title"] or "A model trained by humanline"
    parts = [
        _head(facts),
        f"# {escaped(title)}",
        f"Trained by humanline from {_code(facts['model'] or 'a model')} in {facts['updates']} updates. "
        f"{_WEIGHTS[facts['weights']]}",
        "## How to load it",
        f"```python\n{_LOAD[facts['weights']]}\n```",
        "## Method",
        *[f"- **{escaped(name)}**: {escaped(text)}" for name, text in facts["words"].items()],
        "## Data",
        _data(facts["data"]),
        "The SHA-256 is of what training sees: names, token ids, labels and scores, in order.",
        "## Held out",
        *_held_out(facts),
        "## Software",
        _table([("what", "version"), *facts["software"].items()]) if facts["software"] else "Not known.",
        "## Settings",
        "By the names that a recipe has for them; of whole paths, the end.",
        _fenced("\n".join(f"{name}: {json.dumps(value)}" for name, value in facts["settings"].items())),
    ]
    return _spaced(parts)


def escaped(text: object) -> str:
    """Return a text from outside as Markdown that shows it, and is no markup, link or HTML."""
    plain = visible(_short(str(text)))
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", plain)
    return re.sub(r"(?i)(://|www\.|@)", lambda found: f"{found[0][0]}<!-- -->{found[0][1:]}", plain)


def number(value: object) -> str:
    """Return a number with four digits, and nothing for what is none."""
    return f"{value:.4g}" if is_number(value) and isinstance(value, float | int) else ""


def estimate(look: Mapping[str, Any], name: str) -> str:
    """Return a metric of a look with its 95 % interval, where there is one."""
    if name not in look["metrics"]:
        return ""
    ends = interval(look, name)
    return number(look["metrics"][name]) + ("" if ends is None else f" ({number(ends[0])} to {number(ends[1])})")


def look_columns(looks: Mapping[str, Any], end: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the looks that a table shows: the first, the best where it is neither end, and the last, named `end`."""
    first, best, last = looks["first"], looks["best"], looks["last"]
    columns = [("first look" if first["updates"] else "before", first)]
    if best is not None and best["updates"] not in (first["updates"], last["updates"]):
        columns.append(("at best", best))
    return columns + ([(end, last)] if last["updates"] != first["updates"] else [])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _code(text: str) -> str:
    """Return a text from outside as code in a line."""
    plain = visible(_short(text))
    ticks = "`" * (max(map(len, re.findall("`+", plain)), default=0) + 1)
    gap = " " if "`" in plain else ""
    return f"{ticks}{gap}{plain}{gap}{ticks}"


def _fenced(text: str) -> str:
    plain = visible(text, keep="\n")
    ticks = "`" * max(3, max(map(len, re.findall("`+", plain)), default=0) + 1)
    return f"{ticks}\n{plain}\n{ticks}"


def _table(rows: Sequence[Sequence[object]]) -> str:
    """Return a table, of texts from outside."""
    lines = [f"| {' | '.join(map(escaped, row))} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _spaced(parts: Sequence[str]) -> str:
    """Return parts with a blank line between them, but for the items of a list."""
    text = parts[0]
    for before, part in itertools.pairwise(parts):
        text += ("\n" if before.startswith("- ") and part.startswith("- ") else "\n\n") + part
    return text + "\n"


def _head(facts: Mapping[str, Any]) -> str:
    """Return what the hub reads: texts as JSON writes them, which YAML reads alike."""
    is_adapter = facts["weights"] == "adapter"
    lines = [f"library_name: {'peft' if is_adapter else 'transformers'}", "pipeline_tag: text-generation"]
    base = _repository(facts["model"])
    if base is not None:
        lines += [f"base_model: {json.dumps(base)}", f"base_model_relation: {'adapter' if is_adapter else 'finetune'}"]
    sets = [_repository(one["path"]) for one in facts["data"] if one["set"] == "train"]
    lines += [f"datasets: [{json.dumps(name)}]" for name in sets if name is not None]
    tags = ["humanline", *re.findall(r"^[a-z_]+$", facts["objective"] or "")]
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    return "\n".join(["---", *lines, "---"])


def _repository(name: str | None) -> str | None:
    """Return the name on the hub that a recipe's name says; None of files, and of what the hub would refuse."""
    if name is None or not name.startswith(_HUB):
        return None
    bare = re.split(r"[@#]", name.removeprefix(_HUB))[0]
    bare = "/".join(bare.split("/")[:2])  # a subset may follow
    return bare if _REPOSITORY.fullmatch(bare) else None


def _data(sets: Sequence[Mapping[str, Any]]) -> str:
    rows: list[Sequence[object]] = [("set", "file", "rows", "left out", "SHA-256")]
    for one in sets:
        left = ", ".join(f"{count} {words}" for words, count in one["left_out"].items())
        seen = one.get("prompts_in_training")
        left += f"{'; ' if left else ''}{seen} prompts also in training" if seen else ""
        rows.append((SETS[one["set"]], one["path"] or "", one.get("kept", ""), left, one["sha256"] or ""))
    return _table(rows) if sets else "Not known."


def _held_out(facts: Mapping[str, Any]) -> list[str]:
    """Return the numbers of the first, the best and the last look, and whether the run was seen to break."""
    looks, broke = facts["looks"], facts["broke"]
    # A paragraph of its own: behind words the first ticks would open no block, and the last ones would.
    broken = [] if broke is None else ["The run was seen to break:", _fenced(json.dumps(broke))]
    if not looks:
        return ["The run had no held-out data.", *broken]
    columns, last = look_columns(looks, "this model"), looks["last"]
    rows: list[Sequence[object]] = [("", *(f"{name}, {look['updates']} updates" for name, look in columns))]
    for name in shown_metrics(last["metrics"]):
        rows.append((WORDS.get(name, name), *(estimate(look, name) for _, look in columns)))
    said = [_table(rows)]
    if facts["weights"] == "merged" and facts["settings"].get("adapter.base") == "nf4":
        said.append(
            "These numbers are of the adapter on its base in 4 bits, as it was trained. The weights here were made of "
            "the base's own, so that they compute something slightly else."
        )
    if any(interval(look, name) for _, look in columns for name in look["metrics"]):
        said.append("In brackets: 95 % intervals, 1.96 standard errors to either side, over held-out rows of one run.")
    if len(columns) == 3:
        judge = WORDS.get(facts["judged_by"], facts["judged_by"])
        said.append(
            f"The best of {facts['count']} looks by {escaped(judge)} was chosen on the same held-out data, which "
            "flatters it; the weights here are those of the last look."
        )
    return said + broken
