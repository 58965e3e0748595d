"""What a report says, as one tree of plain JSON, and the page that shows it.

The page is rendered from that tree and from charts, and from nothing else, so that no number is on it that is not in
the files beside it. It needs no network and no script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from humanline import __version__
from humanline.plots.learning_curves import LOOKS
from humanline.report.answers import AnswerSet, Block, cut
from humanline.report.runs import RunReport
from humanline.report.studies import Study
from humanline.system.terminal import redacted, visible
from humanline.train.run.card import SETS, WORDS, look_columns, number
from humanline.train.run.facts import json_numbers, placeless, placeless_text
from humanline.train.run.looks import interval, is_number, shown_metrics

if TYPE_CHECKING:
    from markupsafe import Markup

FORMAT, VERSION = "humanline report", 1
#: Distances from the start, that of the policy's own answers first: two numbers, none of which stands for the other.
_DISTANCES = {"kl_to_start": "policy || start", "kl_from_start": "start || policy"}

#: What a held-out score depends on beside model and prompts: by what it is given, and how its answers are drawn.
_REWARDS, _ASKED = "source.scoring.rewards", ("temperature", "top_p", "max_tokens", "stop", "system_prompt")
_LONGEST_VALUE = 160  # characters of a setting in a note


def run_trees(runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    """Return what a report says of runs, their distances in one direction where all that have any have that one."""
    had = [own for run in runs if (own := _distances_of(run))]
    shared = next((name for name in _DISTANCES if all(name in own for own in had)), None)
    return [_run_tree(run, shared) for run in runs]


def _distances_of(run: RunReport) -> list[str]:
    """Return the distances that a run's last look has, by the names of their metrics."""
    return [name for name in _DISTANCES if run.looks and name in run.looks[-1]["metrics"]]


def _run_tree(run: RunReport, shared: str | None) -> dict[str, Any]:
    facts = run.facts
    looks = facts["looks"]
    columns = look_columns(looks, "at the end" if run.state == "finished" else "last look") if looks else []
    names = list(dict.fromkeys(name for _, look in columns for name in shown_metrics(look["metrics"])))
    table = [
        {
            "name": WORDS.get(name, name),
            "values": [_estimate(look, name) if name in look["metrics"] else None for _, look in columns],
        }
        for name in names
    ]
    judge = facts["judged_by"]
    return {
        "name": run.name,
        "title": facts["title"] or "a run",
        "state": run.state,
        "notes": notes_of(run.notes),
        "objective": facts["objective"],
        "words": facts["words"],
        "model": facts["model"],
        "weights": facts["weights"],
        "updates": facts["updates"],
        "data": [{"kept": None, **one, "set": SETS[one["set"]]} for one in facts["data"]],
        "columns": [{"name": name, "updates": look["updates"]} for name, look in columns],
        "held_out": table,
        "looks": facts["count"],
        "judged_by": WORDS.get(judge, judge),
        "ends": _ends(looks, judge) if judge is not None else [],
        "distance": _distance(run, shared),
        "level": _level(run.level),
        "software": facts["software"],
        "settings": facts["settings"],
    }


def notes_of(notes: Iterable[str]) -> list[str]:
    """Return what is to be said, for a page that may be handed on: without the places of files on this machine."""
    return [placeless_text(note) for note in notes]


def _ends(looks: Mapping[str, Any], judge: str) -> list[dict[str, Any] | None]:
    """Return what runs are judged by, at the start and at the last look; None where that look does not have it."""
    before = looks["first"] if not looks["first"]["updates"] else None
    last = looks["last"] if looks["last"]["updates"] else None
    return [_estimate(one, judge) if one is not None and judge in one["metrics"] else None for one in (before, last)]


def _estimate(look: Mapping[str, Any], name: str) -> dict[str, Any]:
    ends = interval(look, name)
    return {"value": look["metrics"][name]} | ({} if ends is None else {"low": ends[0], "high": ends[1]})


def _distance(run: RunReport, shared: str | None) -> dict[str, Any] | None:
    """Return the distance from the start at the last look: the one that all runs share, or else the run's first."""
    name = next((name for name in _distances_of(run) if shared in (name, None)), None)
    return None if name is None else {"which": _DISTANCES[name], **_estimate(run.looks[-1], name)}


def _level(tree: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return how probable the start finds the answers of the data, each part of them."""
    levels = (tree or {}).get("levels")
    found = []
    for name, one in levels.items() if isinstance(levels, Mapping) else ():
        known = one.get("nats_per_token") if isinstance(one, Mapping) else None
        if isinstance(known, Mapping):
            found.append({"name": name, **{key: known.get(key) for key in ("value", "low", "high")}})
    return found


def group_trees(runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    """Return the kinds of runs, each with its runs: those of one objective share axes."""
    groups: dict[str | None, list[str]] = {}
    for run in runs:
        groups.setdefault(run.facts["kind"], []).append(run.name)
    return [{"title": kind or "settings that cannot be read", "names": names} for kind, names in groups.items()]


def unlike_data(runs: Sequence[RunReport]) -> list[str]:
    """Return where runs were not measured on the same data, so that their numbers are not of the same thing."""
    notes = []
    for name in ("held_out", "distance"):
        found: dict[str, list[str]] = {}
        for run in runs:
            for one in run.facts["data"]:
                if one["set"] == name and one["sha256"] is not None:
                    found.setdefault(one["sha256"], []).append(run.name)
        if len(found) > 1:
            listed = "; ".join(f"SHA-256 {digest[:12]} {', '.join(names)}" for digest, names in found.items())
            notes.append(
                f"Not all of these runs were measured on the same data ({SETS[name]}), and numbers of those that were "
                f"not cannot be held against each other: {listed}."
            )
    return notes


def unlike_scores(runs: Sequence[RunReport]) -> list[str]:
    """Return where scores of runs were given or asked for in other ways, so that their numbers are not of one thing."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        settings = run.facts["settings"]
        if _REWARDS in settings and any("score" in look["metrics"] for look in run.looks):
            own = any(name.startswith("evaluation.sampling.") for name in settings)
            asked = "evaluation.sampling" if own else "source.sampling"
            ways = {_REWARDS: settings[_REWARDS]} | {name: settings.get(f"{asked}.{name}") for name in _ASKED}
            for name, value in ways.items():
                # Of no stop texts earlier versions say nothing, or an empty list.
                found.setdefault(name, {}).setdefault(json.dumps(value or None, sort_keys=True), []).append(run.name)
    notes = []
    for name, values in found.items():
        if len(values) > 1:
            what = "rewards" if name == _REWARDS else f"held-out answers ({name})"
            listed = "; ".join(f"{cut(value, _LONGEST_VALUE)} {', '.join(names)}" for value, names in values.items())
            notes.append(
                f"The scores of these runs are of other {what}, and cannot be held against each other: {listed}."
            )
    return notes


def answers_tree(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return answers side by side."""
    return [
        {
            "names": list(block.names),
            "prompts": [
                {"prompt": [list(message) for message in prompt], "answers": [answer.row() for answer in answers]}
                for prompt, answers in block.prompts
            ],
        }
        for block in blocks
    ]


def evaluation_tree(one: AnswerSet) -> dict[str, Any]:
    """Return what an evaluation says: its numbers with their intervals, its counts, and what it was made with."""
    measures = one.measures()
    estimates = {
        name: {key: fact.get(key) for key in ("value", "low", "high", "problems")} for name, fact in measures.items()
    }
    counts: dict[str, Any] = {}
    for name, fact in (one.evaluation.summary if one.evaluation is not None else {}).items():
        if isinstance(fact, int | float | str):
            counts[name] = fact
        elif isinstance(fact, Mapping) and name not in measures:  # such as answers without a score, by their status
            own = {key: value.get("value") if isinstance(value, Mapping) else value for key, value in fact.items()}
            counts |= {f"{name}: {key}": value for key, value in own.items() if is_number(value)}
    return {
        "name": one.name,
        "estimates": estimates,
        "counts": counts,
        "settings": {} if one.evaluation is None else placeless(one.evaluation.settings),
        "notes": notes_of(one.notes),
    }


def study_tree(study: Study) -> dict[str, Any]:
    """Return the tables of a suite of runs."""
    tables = [
        {"file": one.file, "title": one.title, "head": one.head, "rows": one.rows, "count": one.count}
        for one in study.tables
    ]
    return {
        "name": study.name,
        "notes": notes_of(study.notes),
        "claims": study.claims,
        "tables": tables,
        "text": study.text,
    }


def whole_tree(**parts: Any) -> dict[str, Any]:
    """Return the whole of a report, without what is a secret or a number that JSON does not have."""
    whole = {"format": FORMAT, "version": VERSION, "humanline": __version__, **parts}
    tree: dict[str, Any] = json_numbers(redacted(whole))
    return tree


def render(tree: Mapping[str, Any], charts: Mapping[str, Sequence[Mapping[str, str]]], files: Sequence[str]) -> str:
    """Return the page.

    Parameters
    ----------
    tree : mapping
        As `whole_tree` has made it.
    charts : mapping
        By "curves-N" of the N-th group and "study-N" of the N-th suite: charts, each a ``title`` and an ``svg``.
    files : sequence of str
        Names of the files beside the page.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    room = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True
    )
    room.filters |= {"number": number, "estimate": _told, "cell": _cell}
    source = (resources.files("humanline.report") / "page.html.jinja").read_text(encoding="utf-8")
    drawn = {key: [{"title": one["title"], "svg": Markup(one["svg"])} for one in own] for key, own in charts.items()}
    looks = [{"colour": _ink(colour), "dashes": dashes} for colour, dashes in LOOKS]
    return room.from_string(source).render(**tree, charts=drawn, files=files, line_looks=looks)


def _ink(colour: str) -> str:
    return "currentColor" if colour == "#000000" else colour


def _shown(value: object) -> str | Markup:
    """Return what a page shows of a value: every character that would not be seen as itself as an escape."""
    from markupsafe import Markup

    return value if isinstance(value, Markup) else visible("" if value is None else str(value), keep="\n\t")


def _told(fact: Mapping[str, Any] | None) -> str:
    """Return a number with its interval."""
    if fact is None:
        return ""
    low, high = fact.get("low"), fact.get("high")
    return number(fact["value"]) + (f" ({number(low)} to {number(high)})" if number(low) and number(high) else "")


def _cell(text: str) -> str:
    """Return a cell of a CSV: of a number with many digits the first four, if a float can hold it."""
    return (number(float(text)) if re.fullmatch(r"-?\d+\.\d{4,}(e[-+]?\d+)?", text) else "") or text
