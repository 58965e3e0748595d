"""`humanline fit`: prospect theory fitted to a file of choices."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from humanline.cli.common import EXIT_NOT_FINITE, EXIT_USER_ERROR, Commands, complain
from humanline.system.terminal import show, visible

if TYPE_CHECKING:
    from humanline.fit.job import Asked, Extra
    from humanline.fit.model import Model

#: What numpy must not be imported for, to show the help; a test holds them to what the fit has.
PLAIN = ("expected-value", "expected-utility")
FAMILIES = (
    *("tversky-kahneman", "prelec", "linear-in-log-odds", "power"),
    *("neo-additive", "exponential-power", "hyperbolic-log"),
)
VALUES = ("power", "exponential", "logarithmic", "logistic")
ERRORS = ("auto", "information", "robust", "problem", "person")
INTERVALS = ("standard", "profile", "bootstrap")


def fit_commands(commands: Commands) -> None:
    """Add what fits prospect theory to choices."""
    fit = commands.add_parser("fit", help="fit prospect theory to a file of people's choices, and say how sure that is")
    fit.add_argument("file", metavar="FILE", help="CSV in the format of the Choice Prediction Competitions, or long")
    fit.add_argument("--format", choices=("cpc", "long"), help="of the file (default: told by its columns)")
    fit.add_argument(
        "--part", choices=("without-feedback", "with-feedback"), help="of a cpc file (default: both, apart)"
    )
    fit.add_argument("--per-rate", type=int, metavar="N", help="how many independent choices each rate is of")
    model = fit.add_argument_group("model")
    model.add_argument(
        "--model", choices=(*PLAIN, *FAMILIES), default=FAMILIES[0], metavar="MODEL",
        help=f"{' or '.join(PLAIN)}, or the capacity: {', '.join(FAMILIES)} (default: {FAMILIES[0]})",
    )  # fmt: skip
    model.add_argument("--loss", choices=FAMILIES, metavar="FAMILY", help="capacity of losses (default: that of gains)")
    model.add_argument("--value", choices=VALUES, default="power", help="value function (default: power)")
    model.add_argument(
        "--weights", choices=("cumulative", "separable"), default="cumulative", help="default: cumulative"
    )
    model.add_argument("--rule", choices=("logit", "probit"), default="logit", help="choice rule (default: logit)")
    model.add_argument("--contextual", action="store_true", help="divide utility differences by the problem's range")
    model.add_argument("--lapse", action="store_true", help="estimate a rate of answers given without looking")
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}  # given twice they add up
    model.add_argument("--fix", **several, metavar="NAME=NUMBER", help="parameters that are not estimated")
    model.add_argument("--equal", **several, metavar="NAME=NAME", help="parameters that are another's")
    model.add_argument("--free", **several, metavar="NAME", help="estimate it by itself: loss_curvature")
    model.add_argument(
        "--reference-point", type=float, default=0.0, metavar="X", help="zero of gain and loss (default: 0)"
    )
    how = fit.add_argument_group("estimation")
    how.add_argument(
        "--objective", choices=("likelihood", "least-squares"), default="likelihood", help="default: likelihood"
    )
    how.add_argument("--starts", type=int, default=10, metavar="N", help="climbs from different starts (default: 10)")
    how.add_argument("--seed", type=int, default=0, help="of starts, folds, resamples and bands (default: 0)")
    how.add_argument(
        "--errors", choices=ERRORS, default="auto", help="standard errors; problem, person: clustered by these"
    )
    how.add_argument("--intervals", choices=INTERVALS, default="standard", help="what intervals are made from")
    how.add_argument("--draws", type=int, metavar="N", help="of the bootstrap (default: 200)")
    how.add_argument(
        "--confidence", type=float, default=0.95, help="of intervals; tests are at 1 less it (default: .95)"
    )
    more = fit.add_argument_group("what else")
    more.add_argument(
        "--compare", action="store_true", help="all families, on what they had not seen, against expected value"
    )
    more.add_argument("--folds", type=int, metavar="K", help="of --compare (default: 10)")
    more.add_argument(
        "--held-out", choices=("problem", "person"), help="of --compare: what is held out (default: problem)"
    )
    more.add_argument(
        "--baseline", metavar="TITLE", help="of --compare, by its title in the table (default: expected value)"
    )
    more.add_argument("--by", choices=("person",), help="also fit each person, alone and pooled with the others")
    more.add_argument("--map-to-rejection", action="store_true", help="also say what the capacities mean for training")
    more.add_argument("--spread", type=float, metavar="NATS", help="of --map-to-rejection: of log-ratios (default: 1)")
    proposes = "of --map-to-rejection: who proposes tokens (default: ref)"
    more.add_argument("--proposal", choices=("ref", "policy"), help=proposes)
    more.add_argument(
        "--dry-run", action="store_true", help="say what is in the file and what it can tell; fit nothing"
    )
    more.add_argument(
        "--out", metavar="DIR", help="folder to make: fit.json, tables as CSV, figures as CSV, PNG and SVG"
    )
    more.add_argument("--quiet", action="store_true", help="show no progress")
    fit.set_defaults(run=_fit)


def _fit(options: argparse.Namespace) -> int:
    from humanline.system.files import refuse_used_folder

    asked = _asked(options)
    extras = _extras(options, asked)
    if options.out is not None:
        from humanline.plots import check as check_figures

        refuse_used_folder(options.out)
        check_figures()  # now, and not when all is fitted
    file = _read(options, asked)
    if options.dry_run:
        return _dry_run(options, file, asked)
    from humanline.fit.faults import NotConverged, NotIdentified
    from humanline.fit.job import fit_file

    try:
        report = fit_file(file, asked, extras=extras, progress=_progress(options))
    except NotConverged as error:
        complain(options, f"no fit, and nothing written: {error}")
        return EXIT_NOT_FINITE
    except NotIdentified as error:
        here = "fixed={'NAME': NUMBER} is --fix NAME=NUMBER here, and gain='identity' is --model expected-utility"
        complain(options, f"{error}\n{here}")
        return EXIT_USER_ERROR
    written = []
    if options.out is not None:
        from humanline.cli.fit_files import write_report

        written = write_report(options.out, report)
    show("\n".join(report.lines()))
    for path in written:
        print(visible(str(path)))
    if report.not_converged:
        complain(
            options, f"models without an optimum, which the comparison leaves out: {'; '.join(report.not_converged)}"
        )
        return EXIT_NOT_FINITE
    return 0


def _read(options: argparse.Namespace, asked: Asked) -> Any:
    import dataclasses

    from humanline.fit.faults import DataError
    from humanline.fit.formats import SAY_WHICH, read_choices

    least = 2 if options.by == "person" else 1
    try:
        file = read_choices(options.file, format=options.format, least_responses=least, per_rate=options.per_rate)
    except DataError as error:
        raise ValueError(str(error).replace(SAY_WHICH, "say which with --format")) from None
    if options.by == "person":
        from humanline.fit.people.pool import check_people

        if file.parts[0].choices.people < 2:
            raise ValueError("--by person needs a column person with two people or more")
        for part in file.parts:  # now, and not when all is fitted
            check_people(part.choices, asked.model)
    if options.part is None:
        return file
    parts = tuple(part for part in file.parts if part.name == options.part)
    if not parts:
        there = ", ".join(part.name for part in file.parts)
        raise ValueError(f"--part {options.part}: {options.file} holds {there} alone")
    return dataclasses.replace(file, parts=parts)


def _dry_run(options: argparse.Namespace, file: Any, asked: Asked) -> int:
    from humanline.fit.dry_run import dry_run

    lines, good = dry_run(file, asked)
    show("\n".join(lines))
    if not good:
        complain(options, "this model cannot be fitted to these data: see what cannot be, above")
    return 0 if good else EXIT_USER_ERROR


def _asked(options: argparse.Namespace) -> Asked:
    from humanline.fit.job import Asked

    for name in ("folds", "held_out", "baseline"):
        if getattr(options, name) is not None and not options.compare:
            raise ValueError(f"--{name.replace('_', '-')} is of --compare")
    for name in ("spread", "proposal"):
        if getattr(options, name) is not None and not options.map_to_rejection:
            raise ValueError(f"--{name} is of --map-to-rejection")
    if options.dry_run and options.out is not None:
        raise ValueError("--out is of a fit; --dry-run writes nothing")
    if options.draws is not None and options.intervals != "bootstrap":
        raise ValueError("--draws is of --intervals bootstrap")
    return Asked(
        model=_model(options),
        objective=options.objective.replace("-", " "),
        reference_point=options.reference_point,
        starts=options.starts,
        seed=options.seed,
        errors=options.errors,
        intervals=options.intervals,
        draws=200 if options.draws is None else options.draws,
        confidence=options.confidence,
        compare=options.compare,
        folds=10 if options.folds is None else options.folds,
        held_out=options.held_out or "problem",
        baseline=options.baseline,
    )


def _model(options: argparse.Namespace) -> Model:
    """Return the model that the options say."""
    import dataclasses

    from humanline.fit import Model, expected_utility, expected_value

    settings: dict[str, Any] = {"rule": options.rule, "contextual": options.contextual, "lapse": options.lapse}
    if options.model in PLAIN and (options.loss is not None or options.weights != "cumulative"):
        raise ValueError(f"--loss and --weights are of prospect theory, not of {options.model}")
    if options.model == "expected-value":
        if options.value != "power":
            raise ValueError("--value is not for expected-value, which values outcomes as they are")
        model = expected_value(**settings)
    elif options.model == "expected-utility":
        model = expected_utility(options.value, **settings)
    else:
        model = Model(value=options.value, gain=options.model, loss=options.loss, weights=options.weights, **settings)
    fixed, equal = dict(model.fixed), dict(model.equal)
    to_fix, to_equal = _held(options, model)
    for name in options.free:
        if name not in fixed and name not in equal:
            raise ValueError(
                f"--free {name}: it is free, or no parameter; those of the model: {', '.join(model.parameters())}"
            )
        fixed.pop(name, None)
        equal.pop(name, None)
    for name in to_fix:
        equal.pop(name, None)
    for name in to_equal:
        fixed.pop(name, None)
    return dataclasses.replace(model, fixed={**fixed, **to_fix}, equal={**equal, **to_equal})


def _held(options: argparse.Namespace, model: Model) -> tuple[dict[str, float], dict[str, str]]:
    """Return the parameters that are to be fixed and to be equal; raise where the options contradict each other."""
    said: dict[str, str] = {}  # what was said of a parameter first
    fixed: dict[str, float] = {}
    equal: dict[str, str] = {}

    def say(name: str, words: str, same: bool = False) -> None:
        if said.setdefault(name, words) != words and not same:
            raise ValueError(f"{said[name]} and {words} contradict each other; give one of them")

    if options.lapse:
        say("lapse", "--lapse")
    for name in options.free:
        say(name, f"--free {name}")
    for word in options.fix:
        name, number = _pair("--fix", word)
        try:
            value = float(number)
        except ValueError:
            raise ValueError(f"--fix {word}: {number!r} is no number") from None
        say(name, f"--fix {word}", same=fixed.get(name) == value)
        fixed[name] = value
    for word in options.equal:
        name, other = _pair("--equal", word)
        # "loss" is all parameters of the capacity of losses
        for one in (each for each in model.parameters() if each == name or each.startswith(f"{name}.")):
            say(one, f"--equal {word}")
        say(name, f"--equal {word}")
        equal[name] = other
    return fixed, equal


def _pair(option: str, word: str) -> tuple[str, str]:
    name, sign, rest = word.partition("=")
    if not (name and sign and rest):
        raise ValueError(f"{option} {word}: write NAME=..., such as loss_aversion=2.25")
    return name, rest


def _extras(options: argparse.Namespace, asked: Asked) -> Mapping[str, Extra]:
    found: dict[str, Extra] = {}
    if options.by == "person":
        found["people"] = _by_person(asked)
    if options.map_to_rejection:
        found["rejection"] = _map_to_rejection(options, asked)
    return found


def _by_person(asked: Asked) -> Extra:
    """Return what fits each person of a part, alone and pooled with the others."""
    from humanline.fit.job import More
    from humanline.fit.people import fit_people

    if asked.objective != "likelihood":
        raise ValueError("--by person is for --objective likelihood")

    def people(part: Any, fit: Any, errors: str) -> More:
        found = fit_people(part.choices, asked.model, seed=asked.seed, reference_point=asked.reference_point)
        rows, everything = [], found.to_dict()
        for each in everything["people"]:
            why = (each["undetermined"] or {}).get("why", "")
            for name in found.names:
                alone = None if each["alone"] is None else each["alone"]["parameters"][name]
                ends = found.interval(each["person"], name, confidence=asked.confidence)
                pooled = each["pooled"]["parameters"][name]
                rows.append((each["person"], name, alone, pooled, ends.low, ends.high, each["own_weight"][name], why))
        header = "person parameter alone pooled low high own_weight undetermined"
        lines = found.table(confidence=asked.confidence).splitlines()
        return More(lines, everything, {"people.csv": (header, rows)})

    return people


def _map_to_rejection(options: argparse.Namespace, asked: Asked) -> Extra:
    """Return what says of a part's capacities what they mean for training."""
    from humanline.fit.job import More
    from humanline.fit.rejection import map_to_rejection

    def rejection(part: Any, fit: Any, errors: str) -> More:
        found = map_to_rejection(
            fit,
            spread=1.0 if options.spread is None else options.spread,
            proposal=options.proposal or "ref",
            errors=errors,
            confidence=asked.confidence,
        )
        header = "side low high sup area l1 kl kept"
        return More(found.told(), found.to_dict(), {"clip_ranges.csv": (header, found.clip_rows())})

    return rejection


def _progress(options: argparse.Namespace) -> Callable[[int, int], None]:
    """Return what says on standard error, ten times, how many fits are done."""
    said = -1

    def progress(done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // max(total, 1)
        if tenth > said and not options.quiet:
            said = tenth
            print(f"fits {done}/{total}", file=sys.stderr, flush=True)

    return progress
