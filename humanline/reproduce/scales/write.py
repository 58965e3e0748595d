"""A plan as files: a configuration for each run, plan.json, and run.sh, which makes what is not there yet."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from humanline import __version__, recipes
from humanline.reproduce.scales.plan import PlannedRun, Scale, picked, said_cost
from humanline.system.files import OutputError, make_folder, refuse_used_folder, write_text
from humanline.train.config import ConfigError, TrainConfig, load_config
from humanline.train.config.rounds import SamplingConfig
from humanline.train.run.fingerprint import differences, same_settings

FORMAT = 1
PLAN, SCRIPT = "plan.json", "run.sh"
CONFIGS, RUNS, EVALUATIONS = "configs", "runs", "evaluations"
ANSWERS, ANSWERED = "answers.yaml", "answers"
INSTRUCTIONS, DIFFICULTY, ANNOTATOR = "alpaca_eval.json", "df_gamed.csv", "weighted_alpaca_eval_gpt4.1"
_ALPACA = ("humanline", "alpaca")
#: Of AlpacaEval's instructions: one answer each, drawn as the paper draws (its Table 1).
ANSWERING, ANSWERS_EACH = SamplingConfig(temperature=0.7, top_p=0.95, max_tokens=2048), 1
ANSWERS_LENGTH = 4096  # tokens, with the prompt
_ANSWERED = f"""\
# How a model is asked AlpacaEval's instructions: one answer each. The score of their form is of no interest here.
model: named on the command line
output: never written
objective: {{kind: nll}}
data:
  train: {INSTRUCTIONS}
  eval: {INSTRUCTIONS}
  columns: {{prompt: instruction}}
  max_length: {ANSWERS_LENGTH}
training: {{steps: 1, batch_size: 1, precision: bf16}}
optimizer: {{lr: 0}}
evaluation:
  samples: {ANSWERS_EACH}
  sampling:
    temperature: {ANSWERING.temperature}
    top_p: {ANSWERING.top_p}
    max_tokens: {ANSWERING.max_tokens}
    engine: {{kind: generate, batch_size: 16}}
  scoring: {{rewards: [{{kind: format}}]}}
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan whose configurations are read.

    Attributes
    ----------
    scale : Scale
    folder : Path
    runs : tuple of PlannedRun
        Those that were asked for.
    changes : tuple of "section.key=value"
        What replaces settings of every run: it is no longer the plan as it was declared.
    configs : mapping of str to TrainConfig
        Of every run of the scale, by name.
    """

    scale: Scale
    folder: Path
    runs: tuple[PlannedRun, ...]
    changes: tuple[str, ...]
    configs: Mapping[str, TrainConfig]


def prepare(scale: Scale, folder: Path, only: Sequence[str] = (), changes: Sequence[str] | None = None) -> Prepared:
    """Read every configuration of a plan, and hold it against what a folder has of it; nothing is written.

    Parameters
    ----------
    scale : Scale
    folder : Path
        To be made, or with a plan of this scale.
    only : sequence of str
        Names, or their beginnings.
    changes : sequence of "section.key=value", optional
        Of every run; default: those of the folder's plan, or none.

    Raises
    ------
    ValueError
        If `only` picks nothing.
    ConfigError
        With the problems of every run whose configuration is not valid; if changes say where runs go, or make one run
        of several.
    OutputError
        If the folder holds something else, a plan with other changes or of another version, or configurations that are
        not the plan's.
    """
    runs = picked(scale, only)
    before = _changes_of(scale, folder)
    if changes is not None and before is not None and tuple(changes) != before:
        raise OutputError(
            f"{folder} holds a plan with other changes (--set {' '.join(before) or 'nothing'}): leave --set out to go "
            "on with it, or give another --out"
        )
    wanted = tuple(before if before is not None else changes or ())
    if any(change.partition("=")[0].strip() == "output" for change in wanted):
        raise ConfigError(f"--set output: a plan says itself where its runs go, to {folder / RUNS}; give another --out")
    configs = _read(scale, wanted)
    if wanted:
        _refuse_alike(configs, _read(scale, ()))
    _refuse_edited(folder, configs)
    return Prepared(scale, folder, runs, wanted, configs)


def _read(scale: Scale, changes: Sequence[str]) -> dict[str, TrainConfig]:
    """Return the configuration of every run; raise ConfigError with each problem, and whose it is."""
    configs: dict[str, TrainConfig] = {}
    problems: dict[str, list[str]] = {}
    for run in scale.runs:
        own = [*run.overrides, *changes, f"output={RUNS}/{run.name}"]
        try:
            configs[run.name] = load_config(recipes.path(run.recipe), own)
        except ConfigError as error:
            problems.setdefault(str(error), []).append(run.name)
    if problems:
        raise ConfigError("\n".join(f"{_few(names)}: {text}" for text, names in problems.items()))
    return configs


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _refuse_alike(configs: Mapping[str, TrainConfig], declared: Mapping[str, TrainConfig]) -> None:
    """Raise ConfigError if changes have made one run of several that the plan tells apart, such as its seeds.

    Runs that are alike in the plan as well, since two figures show them, stay so.
    """
    before = {name: _said(config) for name, config in declared.items()}
    found: dict[str, list[str]] = {}
    for name, config in configs.items():
        found.setdefault(_said(config), []).append(name)
    for names in found.values():
        if len({before[name] for name in names}) > 1:
            raise ConfigError(
                f"--set makes {len(names)} runs of the plan the same run ({_few(names)}): it replaces "
                "what tells them apart, and their results would be counted as several; leave that out of --set"
            )


def _said(config: TrainConfig) -> str:
    return json.dumps(settings_of(config), sort_keys=True, default=str)


def write_plan(plan: Prepared) -> list[Path]:
    """Write the configurations of the runs that were asked for, plan.json and run.sh; return the last two.

    Raises
    ------
    OSError
        If something cannot be written.
    """
    folder = plan.folder
    make_folder(folder)
    for run in plan.runs:
        path = config_file(folder, run.name)
        make_folder(path.parent)
        write_text(path, config_text(plan, run))
    if plan.scale.evaluation == "alpaca":
        write_text(folder / CONFIGS / ANSWERS, _ANSWERED)
    write_text(folder / PLAN, json.dumps(_tree(plan), indent=1) + "\n")
    write_text(folder / SCRIPT, _script(plan))
    (folder / SCRIPT).chmod(0o755)
    return [folder / PLAN, folder / SCRIPT]


def config_file(folder: Path, name: str) -> Path:
    """Return the file of a run's configuration."""
    return folder / CONFIGS / f"{name}.yaml"


def config_text(plan: Prepared, run: PlannedRun) -> str:
    """Return a run's configuration as YAML: what the recipe and the plan set, and no defaults."""
    from ruamel.yaml import YAML

    out, yaml = io.StringIO(), YAML(typ="safe")
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(plan.configs[run.name].model_dump(mode="json", exclude_unset=True), out)
    head = [
        f"# {run.name} of `humanline reproduce --scale {plan.scale.name}`: the shipped recipe {run.recipe}, whose",
        "# comments say where numbers are from, with the changes of plan.json. Paths are seen from beside that file.",
    ]
    return "\n".join(head) + "\n" + out.getvalue()


def commands(plan: Prepared, run: PlannedRun) -> list[list[str]]:
    """Return the commands of a run, each as the file that it makes and its words."""
    name, config = run.name, f"{CONFIGS}/{run.name}.yaml"
    final = f"{RUNS}/{name}/final"
    train = [final, "humanline", "train", config, "--resume"]
    return [train, *_asking(plan, name, config, final)]


def start_commands(plan: Prepared) -> dict[str, list[list[str]]]:
    """Return, by name, the commands that ask the models that the runs begin with, before any training."""
    models = {plan.configs[run.name].model: f"{CONFIGS}/{run.name}.yaml" for run in reversed(plan.runs)}
    asked = {name: plan.configs[run].model for name, run in plan.scale.starts.items()}
    return {name: _asking(plan, name, models[model], model) for name, model in asked.items() if model in models}


def _asking(plan: Prepared, name: str, config: str, model: str) -> list[list[str]]:
    place = f"{EVALUATIONS}/{name}"
    result = f"{place}/evaluation.json"
    if plan.scale.evaluation == "scored":
        return [[result, "humanline", "evaluate", config, f"model={model}", "--out", place, "--name", name]]
    answers, outputs, notes = f"{place}/{ANSWERED}", f"{place}/model_outputs.json", f"{place}/{ANNOTATOR}"
    asked, named = f"{CONFIGS}/{ANSWERS}", ("--name", name)
    given = ("--instructions", INSTRUCTIONS, "--difficulty", DIFFICULTY)
    return [
        [f"{answers}/evaluation.json", "humanline", "evaluate", asked, f"model={model}", "--out", answers],
        [outputs, *_ALPACA, "outputs", answers, "--instructions", INSTRUCTIONS, *named, "--out", outputs],
        [f"{notes}/annotations.json", "alpaca_eval", "--model_outputs", outputs, "--annotators_config", ANNOTATOR],
        [result, *_ALPACA, "annotations", f"{notes}/annotations.json", *given, *named, "--out", result],
    ]


def reckoned(plan: Prepared) -> str:
    """Return what the runs that were asked for cost, in words; what ``--set`` changes is not in it."""
    changed = ", of the plan as declared" if plan.changes else ""
    return f"Reckoned{changed}, and not measured: {said_cost(plan.scale, plan.runs)}"


def _tree(plan: Prepared) -> dict[str, Any]:
    scale = plan.scale
    return {
        "format": FORMAT,
        "humanline": __version__,
        "scale": scale.name,
        "title": scale.title,
        "changes": list(plan.changes),
        "remarks": list(scale.remarks),
        "cost": reckoned(plan),
        "starts": {name: [one[1:] for one in steps] for name, steps in start_commands(plan).items()},
        "runs": [{**asdict(run), "commands": [one[1:] for one in commands(plan, run)]} for run in plan.runs],
    }


def _changes_of(scale: Scale, folder: Path) -> tuple[str, ...] | None:
    """Return the changes of the plan that a folder holds; None if the folder is free."""
    file = folder / PLAN
    if not file.is_file():
        refuse_used_folder(folder)
        return None
    other = "give another --out"
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        form, name, changes = tree["format"], tree["scale"], tuple(map(str, tree["changes"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{file} cannot be read as a plan ({type(error).__name__}: {error}): it is damaged, or of another version "
            f"of humanline; {other}"
        ) from None
    if form != FORMAT:
        raise OutputError(f"{file} has format {form!r}, and this version of humanline reads {FORMAT}; {other}")
    if name != scale.name:
        raise OutputError(f"{folder} holds a plan of the scale {name!r}, not {scale.name!r}; {other}")
    return changes


def _refuse_edited(folder: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Raise OutputError with a table of every configuration of a folder that is not the plan's."""
    tables = []
    for name, config in configs.items():
        file = config_file(folder, name)
        if not file.is_file():
            continue
        try:
            table = differences(settings_of(load_config(file)), settings_of(config))
        except ConfigError as error:
            table = f"  {error}"
        if table:
            tables.append(f"{file}:\n{table}")
    if tables:
        listed = "\n".join(tables)
        raise OutputError(
            f"{len(tables)} configurations are not those of this plan (then: the file; now: the plan):\n{listed}\nThey "
            "were edited, or are of another version of humanline. Make them anew in another --out; what is to be other "
            "in all runs goes into --set"
        )


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """Return what of a configuration decides what is learned."""
    return same_settings(config.model_dump(mode="json"))


_HEAD = """\
#!/usr/bin/env bash
# {title}.
#
# {count} runs, one after the other. What is there is not made again, and a run that was stopped goes on: start this as
# often as it takes. `humanline reproduce --scale {name} --out HERE` says where it stands, and what has come of it.
#   DRY_RUN=1  check every configuration; no model, no data, no training
#   GPUS=n     n processes a run, one GPU each
# {cost}.
set -uo pipefail
cd "$(dirname "$0")" || exit 2
failed=()

# Make a file by a command, unless it is there. NAME FILE COMMAND...
make_file() {{
  local name=$1 file=$2 code=0
  shift 2
  if [[ -e $file ]]; then
    return 0
  fi
  printf '%s:' "$name"
  printf ' %q' "$@"
  printf '\\n'
  "$@" || code=$?
  if ((code == 75 || code == 130)); then # stopped: by a signal, or by a person
    exit "$code"
  fi
  if ((code == 0)) && [[ ! -e $file ]]; then
    printf '%s: %s is still missing\\n' "$name" "$file" >&2
    code=1
  fi
  if ((code != 0)); then
    failed+=("$name")
  fi
  return "$code"
}}

check() {{
  if ! humanline validate --no-data "$1" > /dev/null; then
    failed+=("$1")
  fi
}}

more=()
if [[ ${{GPUS:-1}} != 1 ]]; then
  more=(--processes "$GPUS")
fi
"""
_END = """
if ((${#failed[@]})); then
  printf 'not done: %s\\n' "${failed[*]}" >&2
  exit 1
fi
"""


def _script(plan: Prepared) -> str:
    scale = plan.scale
    head = {"title": scale.title, "count": len(plan.runs), "name": scale.name, "cost": reckoned(plan)}
    lines = [_HEAD.format(**head), "if [[ ${DRY_RUN:-0} == 1 ]]; then"]
    lines += [f"  check {CONFIGS}/{shlex.quote(run.name)}.yaml" for run in plan.runs]
    lines.append("else")
    for name, steps in [*start_commands(plan).items(), *((run.name, commands(plan, run)) for run in plan.runs)]:
        chained = []
        for file, *words in steps:
            parallel = ' ${more[@]+"${more[@]}"}' if words[1] == "train" else ""
            chained.append(f"make_file {shlex.quote(name)} {shlex.quote(file)} {shlex.join(words)}{parallel}")
        result = f"{EVALUATIONS}/{name}/evaluation.json"
        lines.append(f"  [[ -e {shlex.quote(result)} ]] || {{ {' && '.join(chained)}; }}")
    return "\n".join([*lines, "fi"]) + _END
