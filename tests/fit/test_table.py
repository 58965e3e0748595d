"""Tables in the long form, as data frames and dicts, and everything that can be wrong with them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from humanline.fit import Choices, DataError, Likelihood, Model, as_choices, fit_prospect
from tests.helpers.choices import answered


def long_form(data, column="choice"):
    """Return choices as a table in the long form."""
    rows = {name: [] for name in ("problem", "option", "outcome", "probability", column, "person", "trial")}
    half = data.problems
    for number, (problem, person, given) in enumerate(zip(data.problem, data.person, data.response, strict=True)):
        for option, row in (("A", problem), ("B", problem + half)):
            nodes = slice(data.start[row], data.start[row + 1])
            for outcome, prob in zip(data.outcomes[nodes], data.probs[nodes], strict=True):
                chosen = given if option == "B" else 1 - given
                for name, value in zip(rows, (problem, option, outcome, prob, chosen, person, number), strict=True):
                    rows[name].append(value)
    return rows


def small(**columns):
    """A table of one problem, answered by two people."""
    table = {
        "problem": ["p"] * 6,
        "option": ["A", "A", "B", "A", "A", "B"],
        "outcome": [10.0, 0.0, 4.0] * 2,
        "probability": [0.5, 0.5, 1.0] * 2,
        "choice": [0, 0, 1, 1, 1, 0],
        "person": ["x", "x", "x", "y", "y", "y"],
    }
    return {name: values for name, values in {**table, **columns}.items() if values is not None}


def faults_of(table, **more):
    with pytest.raises(DataError) as caught:
        as_choices(table, **more)
    return [(fault.row, fault.column, fault.value) for fault in caught.value.faults]


def test_a_table_is_the_choices_it_was_made_from():
    """Choices written in the long form and read again, as dict and as data frame, have the same fit."""
    pandas = pytest.importorskip("pandas", reason="data frames are pandas'")
    data = answered(0, 60, 3)
    rows = long_form(data)
    expected = fit_prospect(data, starts=1)
    for table in (rows, pandas.DataFrame(rows).sample(frac=1, random_state=0)):
        read = as_choices(table)
        assert (len(read), read.problems, read.people) == (len(data), data.problems, data.people)
        assert fit_prospect(table, starts=1).log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)
    assert as_choices(data) is data


@pytest.mark.parametrize("name", ["Na", "Null", "none"])
def test_names_that_only_look_like_missing_ones_are_names(name):
    assert as_choices(small(person=["x", "x", "x", name, name, name])).people == 2


@pytest.mark.parametrize("missing", ["NA", "nan", "None", "NULL", "<NA>", " "])
def test_what_programs_write_for_a_missing_name_is_no_name(missing):
    """R writes NA for a person that is not known: not one person more, who may be many."""
    assert faults_of(small(person=["x", "x", "x", missing, missing, missing]))[0][:2] == (3, "person")
    assert faults_of(small(problem=["p", "p", "p", missing, missing, missing]))[0][:2] == (3, "problem")


@pytest.mark.parametrize("missing", [None, float("nan"), "NA"])
def test_choices_have_people_with_names(missing):
    with pytest.raises(DataError, match="person must be given"):
        Choices.between(([[1.0]] * 2, [[1.0]] * 2), ([[2.0]] * 2, [[1.0]] * 2), [0, 1], person=["x", missing])


def test_trials_are_for_counts():
    """Of shares they would be divided by again, and of single choices make one of many."""
    sides = ([[1.0]] * 2, [[1.0]] * 2), ([[2.0]] * 2, [[1.0]] * 2)
    for kind, response in (("rates", [0.2, 0.4]), ("choices", [0, 1])):
        with pytest.raises(ValueError, match=f"trials must be left out with {kind}"):
            Choices.between(*sides, response, kind=kind, trials=[25, 25])
    with pytest.raises(ValueError, match="trials must be given with counts"):
        Choices.between(*sides, [5, 10], kind="counts")


def test_every_kind_of_response():
    """Choices, counts and rates are those of the option named later; equivalents have one option."""
    read = as_choices(small())
    assert (read.kind, read.response.tolist(), read.person_names) == ("choices", [1, 0], ("x", "y"))
    counts = as_choices(small(choice=None, count=[3, 3, 7, 2, 2, 0]))
    assert (counts.response.tolist(), counts.trials.tolist()) == ([7, 0], [10, 2])
    rates = as_choices(small(choice=None, rate=[0.3, 0.3, 0.7, 1, 1, 0]))
    assert (rates.kind, rates.response.tolist()) == ("rates", [0.7, 0])
    one = {"problem": [1, 1, 2], "option": ["a"] * 3, "outcome": [5, 0, 3], "probability": [0.5, 0.5, 1]}
    sure = as_choices({**one, "equivalent": [2.5, 2.5, 3]})
    assert (sure.kind, sure.response.tolist(), sure.problem_names) == ("equivalents", [2.5, 3.0], (1, 2))


def test_the_second_option_is_the_one_named_later():
    """Names do not order options, rows do: with B above A, what is counted is A."""
    table = {"problem": [1, 1], "option": ["B", "A"], "outcome": [1, 2], "probability": [1, 1], "choice": [0, 1]}
    assert as_choices(table).response.tolist() == [1.0]
    assert as_choices(table).outcomes.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (small(probability=None, outcome=None), [(None, "outcome"), (None, "probability")]),
        (small(choice=None), [(None, "choice or count or rate or equivalent")]),
        (small(rate=[0] * 6), [(None, "choice or count or rate or equivalent")]),
        (small(outcome=[10, "ten", None, 10, 0, np.nan]), [(1, "outcome"), (2, "outcome"), (5, "outcome")]),
        (small(probability=[50, 50, 100] * 2), [(r, "probability") for r in (0, 1, 2, 3, 4, 5, 0, 2, 3, 5)]),
        (small(probability=[0.5, 0.4, 1, 0.5, 0.4, 1]), [(0, "probability"), (3, "probability")]),
        (small(outcome=[10.0, 0.0, 4.0, 10.0, 0.0, 5.0]), [(5, "problem")]),
        (small(option=["A"] * 6, probability=[0.5, 0.25, 0.25] * 2, choice=[1] * 6), [(0, "option"), (3, "option")]),
        (small(choice=[0, 0, 0, 1, 1, 0]), [(0, "choice")]),
        (small(choice=[0, 1, 1, 1, 1, 0]), [(0, "choice")]),
        (small(choice=[0, 0, 2, 1, 1, 0]), [(2, "choice")]),
        (small(choice=None, rate=[0.5, 0.5, 1.5, 0.5, 0.5, 0.4]), [(2, "rate")]),
        (small(choice=None, count=[1, 1, -1, 0, 0, 0]), [(2, "count")]),
        (small(choice=None, count=[0, 0, 0, 1, 1, 0]), [(0, "count")]),
        (small(choice=[0, 0, 1, 1, 1, None]), [(5, "choice")]),
        (small(person=["x"] * 6), [(0, "probability"), (2, "probability"), (0, "choice"), (2, "choice")]),
        (small(person=["x", "x", "x", "y", "y", ""]), [(5, "person"), (3, "option"), (5, "option")]),
        (small(problem=["1", "1", "1", "1.0", "1.0", "1.0"]), [(None, "problem")]),
        (small(person=[1, 1, 1, "1.0", "1.0", "1.0"]), [(None, "person")]),
        (small(outcome=[10 + 1j, 0, 4] * 2), [(row, "outcome") for row in (0, 1, 2, 3, 4, 5)]),
        (small(choice=None, count=[3, 3, 1, 3, 3, 1], n=[4, 4, 4, 5, 5, 5]), [(3, "count")]),
        (small(choice=None, count=[3, 3, 1, 3, 3, 1], n=[4, 4, 4, 4, 4, 2]), [(3, "n")]),
        (small(person=["x", "x", "x", "y", "y", None]), [(5, "person"), (3, "option"), (5, "option")]),
        ({name: [] for name in small()}, [(None, "rows")]),
        (small(outcome=[1.0] * 5), [(None, "columns")]),
    ],
)
def test_everything_wrong_is_said_at_once(table, found):
    """Each fault names its row, column and value, and all of them stand in one error."""
    assert sorted((row, column) for row, column, _ in faults_of(table)) == sorted(found)


def test_several_kinds_of_faults_stand_together():
    """Text for a number, a law that misses 1 and a response out of its range are all in one message."""
    table = small(outcome=["?", 0, 4, 10, 0, 4], probability=[0.5, 0.4, 1, 0.5, 0.4, 1], choice=[0, 0, 1, 1, 1, 3])
    columns = [column for _, column, _ in faults_of(table)]
    assert {"outcome", "probability", "choice"} <= set(columns)


def test_percentages_are_called_so():
    """The rule of probabilities above 1 says to divide by 100."""
    with pytest.raises(DataError, match=r"divide percentages by 100"):
        as_choices(small(probability=[50, 50, 100] * 2))


def test_a_column_that_is_there_twice():
    """Of a data frame with doubled columns it is said which."""
    pandas = pytest.importorskip("pandas", reason="data frames are pandas'")
    frame = pandas.DataFrame(small())
    assert faults_of(pandas.concat([frame, frame[["outcome"]]], axis=1)) == [(None, "outcome", "2 columns")]


def test_people_with_too_few_responses_are_named():
    """Where each person needs two, those with one are named."""
    assert faults_of(small(), least_responses=2) == [(0, "person", "x"), (3, "person", "y")]


def test_choices_that_cannot_be():
    """Responses and problems that do not fit are said at once by the constructor too."""
    first, second = ([[1.0]], [[1.0]]), ([[2.0]], [[1.0]])
    with pytest.raises(DataError) as caught:
        Choices.between(first, second, [0.5, 1], problem=[0, 4])
    assert [(fault.row, fault.column) for fault in caught.value.faults] == [(0, "choices"), (1, "problem")]
    with pytest.raises(DataError, match="whole number from 0 to its trials"):
        Choices.between(first, second, [4], kind="counts", trials=[3])
    with pytest.raises(ValueError, match="trials must be given with counts"):
        Choices.between(first, second, [4], kind="counts")


@pytest.mark.parametrize("problem", [[0.5, 1.5], [0, np.nan], [None, 1], [0, -1], [0, 2], [2**64, 0]])
def test_a_problem_is_a_whole_number(problem):
    """A response to no problem of those given is a fault; .5 is not taken for 0."""
    with pytest.raises(DataError, match=r"problem must be a whole number in 0 \.\. 1; got "):
        Choices.between(([[1.0]] * 2, [[1.0]] * 2), ([[2.0]] * 2, [[1.0]] * 2), [0, 1], problem=problem)


@pytest.mark.parametrize("trials", [["a", "b"], [5, 5, 5], [[5], [5]]])
def test_numbers_of_choices_are_one_or_one_for_each_response(trials):
    with pytest.raises(ValueError, match="trials must be one number, or one for each response; got "):
        Choices.between(([[1.0]] * 2, [[1.0]] * 2), ([[2.0]] * 2, [[1.0]] * 2), [0, 1], kind="counts", trials=trials)


def test_names_of_problems_are_no_numbers_of_them():
    """Names in place of numbers are refused with a word on where they go."""
    with pytest.raises(ValueError, match=r"problem must say by number, .* names go into problem_names"):
        Choices.between(([[1.0]] * 2, [[1.0]] * 2), ([[2.0]] * 2, [[1.0]] * 2), [0, 1], problem=["a", "b"])


def test_parts_and_resamples_of_choices():
    """A part keeps its responses' problems; repeats stay; people and problems are renumbered unless asked not to."""
    data = answered(1, 20, 3)
    part = data.take([5, 5, 50])
    assert part.problem_names == (1, 16) and part.problem.tolist() == [0, 0, 1]
    assert part.response.tolist() == data.response[[5, 5, 50]].tolist()
    kept = data.take([5, 5, 50], all_problems=True)
    assert kept.problems == 20 and kept.problem.tolist() == [1, 1, 16]
    one = data.of_person(2)
    assert one.person_names == (2,) and len(one) == 20


def test_what_is_no_table_is_called_so():
    """Records, paths and nothing at all are no tables, and are not called tables without columns."""
    for wrong in ([small()], "choices.csv", None, np.zeros((3, 4))):
        with pytest.raises(TypeError, match="table must be a data frame, a dict of columns or Choices"):
            as_choices(wrong)


def test_names_that_pandas_lacks():
    """A missing name of pandas' own kind is a fault by row, as None and an empty text are; pairs may be names."""
    pandas = pytest.importorskip("pandas", reason="data frames are pandas'")
    frame = pandas.DataFrame(small())
    lacking = frame.assign(person=frame["person"].astype("string").where(frame.index != 5))
    assert faults_of(lacking)[0][:2] == (5, "person")
    assert as_choices(frame.assign(problem=[("a", 1)] * 6)).problem_names == ("('a', 1)",)


def test_what_was_prepared_does_not_outlive_a_change():
    """`dataclasses.replace` makes choices whose predictions are their own; `with_answers` keeps problems prepared."""
    first, second = ([[50.0, 0.0]] * 2, [[0.5, 0.5], [0.1, 0.9]]), ([[20.0]] * 2, [[1.0]] * 2)
    data = Choices.between(first, second, [0, 1, 1], problem=[0, 1, 1], person=["a", "a", "b"])
    at = Likelihood(data, Model()).coordinates(
        {"curvature": 0.8, "loss_aversion": 2, "gain.gamma": 0.6, "loss.gamma": 0.6, "sensitivity": 0.2}
    )
    for by_person in (False, True):
        Likelihood(data, Model(), by_person=by_person)  # prepares
    assert data.typical_size(0.0) == 35.0
    larger = dataclasses.replace(data, outcomes=2 * data.outcomes)
    fresh = Choices.between(
        ([[100.0, 0.0]] * 2, first[1]), ([[40.0]] * 2, second[1]), [0, 1, 1], problem=[0, 1, 1], person=["a", "a", "b"]
    )
    assert larger.typical_size(0.0) == 70.0
    assert (Likelihood(larger, Model()).predicted(at) == Likelihood(fresh, Model()).predicted(at)).all()
    other = data.with_answers(person=np.array([0, 1, 1]), problem=np.array([1, 0, 1]))
    both = np.stack([at, at + 0.2])
    found = Likelihood(other, Model(), by_person=True).predicted(both)
    wanted = [Likelihood(data, Model()).predicted(both[who])[place] for who, place in ((0, 1), (1, 0), (1, 1))]
    assert found == pytest.approx(wanted)
    assert other.prepared() is data.prepared() and larger.prepared() is not data.prepared()
    with pytest.raises(ValueError, match="outcomes: no such part of answers"):
        data.with_answers(outcomes=data.outcomes)
