"""Files of choices: what is read from them, and every fault with its line, column, rule and value."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from humanline.fit import DataError
from humanline.fit.formats import lottery, read_choices
from tests.conftest import ROOT

CPC18 = ROOT.parent / "shared" / "data" / "cpc18-estimation.csv"
HEAD = "GameID,Ha,pHa,La,LotShapeA,LotNumA,Hb,pHb,Lb,LotShapeB,LotNumB,Amb,Corr,B.1,B.2,B.3"
GAMES = (
    "1,27,0.8,-37,R-skew,3,28,0.01,20,Symm,3,0,0,0.6,0.5,0.7",
    "2,7,1,7,-,1,6,0.5,-4,-,1,0,1,0.2,0.1,0.3",
    "3,39,0.4,6,Symm,5,15,0.95,12,-,1,1,1,0.3,0.3,0.3",
)
LONG = """problem,option,outcome,probability,choice,person,trial
coin,risky,10,0.5,1,ann,1
coin,risky,0,0.5,1,ann,1
coin,sure,4,1,0,ann,1
coin,risky,10,0.5,0,bob,1
coin,risky,0,0.5,0,bob,1
coin,sure,4,1,1,bob,1
loss,risky,-9,0.25,0,ann,1
loss,risky,1,0.75,0,ann,1
loss,sure,-1,1,1,ann,1
"""


def lottery_by_hand(high, prob, low, shape, number):
    """Return outcome -> probability, in fractions, from the words of the competition's paper."""
    found: dict[Fraction, Fraction] = {}

    def add(outcome, mass):
        if mass:
            found[Fraction(outcome)] = found.get(Fraction(outcome), Fraction(0)) + mass

    prob = Fraction(str(prob))
    if shape == "-":
        add(high, prob)
    elif shape == "Symm":
        for heads in range(number):
            add(Fraction(high) - Fraction(number - 1, 2) + heads, prob * comb(number - 1, heads) / 2 ** (number - 1))
    else:
        sign = 1 if shape == "R-skew" else -1
        steps = [Fraction(1, 2**i) for i in range(1, number)] + [Fraction(1, 2 ** (number - 1))]
        powers = [2**i for i in range(1, number + 1)]
        shift = sum(p * x for p, x in zip(steps, powers, strict=True))
        for mass, power in zip(steps, powers, strict=True):
            add(high + sign * (power - shift), prob * mass)
    add(low, 1 - prob)
    return found


@pytest.mark.parametrize(
    "shape,numbers", [("-", [1]), ("Symm", range(2, 12)), ("R-skew", range(1, 9)), ("L-skew", range(1, 9))]
)
def test_lotteries_are_those_of_the_competition(shape, numbers):
    """Each shape spreads around the high outcome, which stays its mean, with the probabilities that its name says."""
    for number in numbers:
        for high, prob, low in ((45, 0.75, -36), (6, 1, 6), (-8, 0.05, 3), (10, 0.25, 10)):
            outcomes, probs = lottery(high, prob, low, shape, number)
            found: dict[float, float] = {}
            for z, p in zip(outcomes, probs, strict=True):
                found[float(z)] = found.get(float(z), 0.0) + float(p)
            wanted = {float(z): float(p) for z, p in lottery_by_hand(high, prob, low, shape, number).items()}
            assert found == pytest.approx(wanted, abs=1e-15)
            assert outcomes @ probs == pytest.approx(prob * high + (1 - prob) * low, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((45, 1.2, 0), "prob must lie in [0, 1]; got 1.2"),
        ((45, -0.1, 0), "prob must lie in [0, 1]; got -0.1"),
        ((45, float("nan"), 0), "prob must be finite"),
        ((float("inf"), 0.5, 0), "high must be finite"),
        ((45, 0.5, float("nan")), "low must be finite"),
        ((45, 0.5, 0, "skew", 3), "shape must be one of '-', 'Symm', 'R-skew', 'L-skew'; got 'skew'"),
        ((45, 0.5, 0, "Symm", 0), "number must be a whole number from 1 to 50; got 0"),
        ((45, 0.5, 0, "R-skew", 2.5), "number must be a whole number from 1 to 50; got 2.5"),
        ((45, 0.5, 0, "L-skew", 51), "number must be a whole number from 1 to 50; got 51"),
        ((45, 0.5, 0, "-", 3), "number must be 1 where there is no lottery (shape '-'); got 3"),
    ],
)
def test_what_is_no_lottery(given, said):
    """What is out of range is named: a shape that is none was taken for L-skew."""
    with pytest.raises(ValueError) as error:
        lottery(*given)
    assert said in str(error.value)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def games(tmp_path, *rows, head=HEAD):
    return write(tmp_path / "games.csv", "\n".join([head, *(rows or GAMES)]) + "\n")


def refused(path, **how):
    """Return the lines of the error that reading a file gives."""
    with pytest.raises(DataError) as error:
        read_choices(path, **how)
    assert str(error.value).startswith(str(path))
    return str(error.value)


class TestCpc:
    """The format of the Choice Prediction Competitions."""

    def test_blocks_without_and_with_feedback_are_apart(self, tmp_path):
        """Block B.1 is one part, the mean of the others another, ambiguous rows are dropped and counted."""
        found = read_choices(games(tmp_path))
        without, with_feedback = found.parts
        assert (found.format, found.rows, found.dropped) == ("cpc", 3, {"ambiguous (Amb = 1)": 1})
        assert without.choices.response.tolist() == [0.6, 0.2]
        assert with_feedback.choices.response.tolist() == pytest.approx([0.6, 0.2])
        assert without.choices.problem_names == ("1", "2") and without.choices.kind == "rates"
        assert "Corr does not enter (it is not 0 in 1 of the 2 rows that are kept)" in found.notes[0]

    def test_options_are_expanded(self, tmp_path):
        """The first option is A, the second B, with their lotteries."""
        data = read_choices(games(tmp_path)).parts[0].choices
        first = slice(data.start[0], data.start[1])
        wanted = lottery_by_hand(27, 0.8, -37, "R-skew", 3)
        assert dict(zip(data.outcomes[first].tolist(), data.probs[first].tolist(), strict=True)) == pytest.approx(
            {float(z): float(p) for z, p in wanted.items()}
        )

    @pytest.mark.skipif(not CPC18.exists(), reason="shared/data is not here")
    def test_the_estimation_set_of_2018(self):
        """Of 60 games 9 are ambiguous; 51 are left in both parts, with the rates of the file."""
        found = read_choices(CPC18)
        assert found.dropped == {"ambiguous (Amb = 1)": 9}
        assert [part.choices.problems for part in found.parts] == [51, 51]
        data = found.parts[0].choices
        rates = {data.problem_names[at]: rate for at, rate in zip(data.problem, data.response, strict=True)}
        assert rates["1"] == 0.669491525 and rates["60"] == 0.638983051 and len(rates) == 51

    def test_larger_sets_with_a_row_for_each_condition(self, tmp_path):
        """Rows of bRate with Feedback and numbered shapes, as choices13k has them; variances from spreads."""
        head = "Problem,Feedback,n,Block,Ha,pHa,La,Hb,pHb,Lb,LotShapeB,LotNumB,Amb,Corr,bRate,bRate_std,BEAST_1"
        rows = (
            "5,False,15,1,26,1.0,26,45,0.75,-36,2,5,False,0,0.5866,0.45,0.4",
            "7,False,15,1,-6,1.0,-6,24,0.2,-5,1,2,False,0,0.8666,0.36,0.9",
            "7,True,16,3,-6,1.0,-6,24,0.2,-5,1,2,False,0,0.9625,0.15,0.9",
            "9,True,18,3,94,0.25,-38,-8,0.05,-9,3,3,True,0,0.1666,0.29,0.4",
        )
        without, with_feedback = read_choices(games(tmp_path, *rows, head=head)).parts
        assert without.choices.problem_names == ("5", "7") and with_feedback.choices.problem_names == ("7",)
        second = without.choices.outcomes[without.choices.start[2] : without.choices.start[3]]
        assert second.tolist() == [41.0, 43.0, 47.0, 55.0, 71.0, -36.0]
        assert without.noise == pytest.approx([0.45**2 / 14, 0.36**2 / 14])

    def test_the_noise_of_rates_is_that_of_so_many_choices(self, tmp_path):
        """With a number of choices each rate has the unbiased variance of a share."""
        part = read_choices(games(tmp_path), per_rate=25).parts[0]
        assert part.noise == pytest.approx([0.6 * 0.4 / 24, 0.2 * 0.8 / 24])

    @pytest.mark.parametrize(
        "old,new,said",
        [
            ("0.8,-37", "80,-37", "line 2, pHa must lie in [0, 1] (divide percentages by 100); got '80'"),
            ("R-skew,3", "Rskew,3", "line 2, LotShapeA must be one of -, Symm, R-skew, L-skew; got 'Rskew'"),
            ("R-skew,3", "R-skew,2.5", "line 2, LotNumA must be a whole number from 1 to 50; got '2.5'"),
            ("R-skew,3", "-,3", "line 2, LotNumA must be 1 where there is no lottery (shape -); got '3'"),
            ("R-skew,3", "1,3", "by name: sets that number them do not agree on the numbers; got '1'"),
            ("0.6,0.5", "1.6,0.5", "line 2, B.1 must lie in [0, 1] (divide percentages by 100); got '1.6'"),
            ("0.6,0.5", "-.1,0.5", "line 2, B.1 must lie in [0, 1]; got '-.1'"),
            ("0.6,0.5", ",0.5", "line 2, B.1 must be a finite number; got ''"),
            ("27,", "nan,", "line 2, Ha must be a finite number; got 'nan'"),
            ("27,", "1_000,", "line 2, Ha must be a finite number; got '1_000'"),
            ("27,", "many,", "line 2, Ha must be a finite number; got 'many'"),
            ("Symm,3,0,0", "Symm,3,2,0", "line 2, Amb must be 0 or 1; got '2'"),
            ("Symm,3,0,0", "Symm,3,0,5", "line 2, Corr must be -1, 0 or 1; got '5'"),
            (
                "\n2,",
                "\n1,",
                "line 3, GameID must have the outcomes and probabilities of the same problem on line 2; got '1'",
            ),
            ("\n2,", "\n,", "line 3, GameID must be given; got ''"),
            ("0.6,0.5,0.7", "0.6,0.5", "line 2, row must have 16 cells, as the line of names has; got 15"),
            ("pHa,La", "pHa,pHa", "line 1, pHa must be there once; got '2 columns'"),
            ("B.1,B.2,B.3", "x,y,z", "B.1, B.2, ... or bRate must be there, one of them"),
            ("GameID", "game", "GameID or Problem must be there, one of them"),
            ("LotNumA", "more", "LotShapeA and LotNumA must be there both or neither; got 'one'"),
            (
                "LotShapeB",
                "LotShape",
                "LotShape must say whose it is: LotShapeB, of option B, as in the files of CPC15",
            ),
        ],
    )
    def test_each_fault_has_its_line_column_rule_and_value(self, tmp_path, old, new, said):
        text = "\n".join([HEAD, *GAMES]) + "\n"
        assert old in text
        assert said in refused(write(tmp_path / "games.csv", text.replace(old, new, 1)))

    def test_a_problem_is_there_once(self, tmp_path):
        """The same game again, with other rates, is a fault: nobody says which counts."""
        assert "line 3, GameID must be there once; it is on line 2; got '1'" in refused(
            games(tmp_path, GAMES[0], GAMES[0])
        )

    def test_all_at_once_up_to_a_dozen(self, tmp_path):
        """Faults of all rows and columns come together, in order of lines, and those that are not shown are counted."""
        bad = [f"{i},27,80,x,-,1,28,0.01,20,-,1,0,0,0.6,0.5,7" for i in range(1, 11)]
        said = refused(games(tmp_path, *bad)).splitlines()
        assert said[0].endswith("games.csv: 30 faults") and len(said) == 14 and said[-1] == "  and 18 more"
        assert said[1].startswith("  line 2, ") and said[12].startswith("  line 5, ")

    def test_all_rows_ambiguous(self, tmp_path):
        """A file with ambiguous rows alone says why nothing is left."""
        assert "ambiguous options have no probabilities" in refused(games(tmp_path, GAMES[2]))


class TestLong:
    """The long format."""

    def test_what_is_read(self, tmp_path):
        """Answers by problem and person; the option that the file names first is the first."""
        found = read_choices(write(tmp_path / "long.csv", LONG))
        data = found.parts[0].choices
        assert (found.format, data.kind, data.problem_names, data.people) == ("long", "choices", ("coin", "loss"), 2)
        assert data.response.tolist() == [0.0, 1.0, 1.0]
        assert found.notes == ("1 of 2 people gave a single answer",)

    def test_columns_that_nothing_reads_are_said(self, tmp_path):
        """Among them a name for people that is not ours, without which all answers are one person's."""
        lines = ["problem,option,outcome,probability,choice,subject,trial,age"]
        lines += [
            f"{problem},{option},{n + 1},1,{n},s{problem},{problem},30"
            for problem in "pq"
            for n, option in enumerate("AB")
        ]
        found = read_choices(write(tmp_path / "rows.csv", "\n".join(lines) + "\n"))
        assert found.notes == (
            "Columns that are not read: subject, age",
            "There is no column person: all answers are taken for one person's",
        )

    @pytest.mark.parametrize("delimiter", [";", "\t"])
    def test_marks_and_delimiters_of_spreadsheets(self, tmp_path, delimiter):
        """A byte order mark, other delimiters and line ends, blank lines and blanks around cells change nothing."""
        text = LONG.replace(",", f" {delimiter} ").replace("\n", "\r\n").replace("loss", "\r\nloss", 1)
        path = tmp_path / "long.csv"
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        found = read_choices(path).parts[0].choices
        assert found.response.tolist() == [0.0, 1.0, 1.0]

    @pytest.mark.parametrize(
        "old,new,said",
        [
            ("10,0.5,1", "10,50,1", "line 2, probability must lie in [0, 1] (divide percentages by 100); got 50.0"),
            ("10,0.5,1", "10,0.4,1", "sum to 1 over the rows of an option; got 0.9"),
            ("10,0.5,1", "ten,0.5,1", "line 2, outcome must be a number; got 'ten'"),
            ("10,0.5,1", "nan,0.5,1", "line 2, outcome must be finite; got nan"),
            ("10,0.5,1", "10,0.5,2", "line 2, choice must be the same on all rows of an option; got 2.0"),
            ("sure,4,1,0", "sure,4,1,2", "line 4, choice must be 0 or 1; got 2.0"),
            ("10,0.5,0", "11,0.5,0", "problem must have the outcomes and probabilities of the same option on line 2"),
            ("coin,sure,4,1,0,ann,1\n", "", "line 2, option must name 2 options in each answer to a problem; got 1"),
            ("coin,sure", ",sure", "line 4, problem must be given; got ''"),
            ("probability", "p", "probability must be there"),
            ("choice", "answer", "choice or count or rate or equivalent must be there, one of them"),
            ("trial", "rate", "must be there, one of them; got ['choice', 'rate']"),
            ("person", "choice", "line 1, choice must be there once; got '2 columns'"),
        ],
    )
    def test_each_fault_has_its_line_column_rule_and_value(self, tmp_path, old, new, said):
        assert old in LONG
        assert said in refused(write(tmp_path / "long.csv", LONG.replace(old, new, 1)), format="long")

    def test_rates_outside_of_their_range(self, tmp_path):
        text = "problem,option,outcome,probability,rate\n1,a,5,1,1.2\n1,b,9,.5,-.2\n1,b,0,.5,-.2\n"
        said = refused(write(tmp_path / "long.csv", text))
        assert (
            "line 2, rate must lie in [0, 1]; got 1.2" in said and "line 3, rate must lie in [0, 1]; got -0.2" in said
        )

    def test_counts_and_their_number(self, tmp_path):
        """Counts above n, and counts that do not sum to it, are faults; without n their sum is the number."""
        text = "problem,option,outcome,probability,count,n\n1,a,5,1,{},{}\n1,b,9,.5,7,{}\n1,b,0,.5,7,{}\n"
        path = tmp_path / "long.csv"
        data = read_choices(write(path, text.format(3, 10, 10, 10))).parts[0].choices
        assert (data.response.tolist(), data.trials.tolist()) == ([7.0], [10.0])
        assert "line 3, count must be at most n, 6; got 7.0" in refused(write(path, text.format(3, 6, 6, 6)))
        said = refused(write(path, text.format(3, 12, 12, 12)))
        assert "line 2, count must sum to n, 12, over the options; got 10.0" in said
        assert "n must be the same on all rows of an answer" in refused(write(path, text.format(3, 10, 10, 11)))

    def test_columns_of_no_format_name_the_argument(self, tmp_path):
        """Python has an argument, where the command has an option."""
        said = refused(write(tmp_path / "other.csv", "a,b\n1,2\n"))
        assert "say which with format='cpc' or format='long'" in said and "--format" not in said

    def test_one_answer_has_one_number_of_choices(self, tmp_path):
        """Of rates and of counts n that differs within an answer is a fault with all its lines; between answers not."""
        text = "problem,person,option,outcome,probability,{},n\n"
        text += "1,ann,a,5,1,{},25\n1,ann,b,9,.5,{},{}\n1,ann,b,0,.5,{},25\n"
        text += "1,bob,a,5,1,{},40\n1,bob,b,9,.5,{},40\n1,bob,b,0,.5,{},40\n"
        for column, first, second in (("rate", 0.2, 0.8), ("count", 5, 20)):
            others = (0.2, 0.8, 0.8) if column == "rate" else (8, 32, 32)
            path = write(tmp_path / "long.csv", text.format(column, first, second, 30, second, *others))
            said = refused(path)
            rule = "n must be the same on all rows of an answer (25 on line 2, 30 on line 3, 25 on line 4)"
            assert f"line 2, {rule}" in said and "line 5" not in said
        good = write(tmp_path / "long.csv", text.format("rate", 0.2, 0.8, 25, 0.8, 0.2, 0.8, 0.8))
        assert read_choices(good).parts[0].noise == pytest.approx([0.16 / 24, 0.16 / 39])

    def test_the_noise_of_rates_follows_their_answers(self, tmp_path):
        """The variance of each rate is in the order of the answers, whatever the order of the rows."""
        rows = [(problem, rate, n) for problem, rate, n in (("9", 0.2, 11), ("10", 0.6, 21), ("2", 0.5, 5))]
        text = "problem,option,outcome,probability,rate,n\n"
        for problem, rate, n in rows:
            text += (
                f"{problem},a,5,1,{1 - rate},{n}\n{problem},b,9,.5,{rate},{n}\n{problem},b,{problem},.5,{rate},{n}\n"
            )
        part = read_choices(write(tmp_path / "long.csv", text)).parts[0]
        wanted = {problem: rate * (1 - rate) / (n - 1) for problem, rate, n in rows}
        names = [part.choices.problem_names[at] for at in part.choices.problem]
        assert part.noise == pytest.approx([wanted[name] for name in names])

    def test_a_person_with_one_choice(self, tmp_path):
        """Where people are fitted one by one, one with a single answer is a fault by line."""
        path = write(tmp_path / "long.csv", LONG)
        assert "line 5, person must have 2 responses or more; got 'bob'" in refused(path, least_responses=2)


class TestFiles:
    """What is no table."""

    @pytest.mark.parametrize(
        "data,said",
        [
            (b"", "must have a line of names and rows below it; got '0 bytes'"),
            (b"\xef\xbb\xbf  \n", "must have a line of names and rows below it; got '6 bytes'"),
            (LONG.splitlines()[0].encode(), "must have rows below the line of names; got 'none'"),
            (LONG.encode("utf-16"), "file must be UTF-8: save it as that; got 'UTF-16'"),
            (b"\x1f\x8b\x08", "file must be text: unpack it first; got 'a gzip archive'"),
            (b"PK\x03\x04", "file must be text: unpack it, or save the sheet as CSV"),
            (LONG.replace("ann", "ana\u00efs").encode("latin-1"), "line 2, text must be UTF-8"),
            (LONG.replace("coin", '"coin', 1).encode(), "must be well-formed; got 'unexpected end of data'"),
            (b"a,b\n1,2\n", "columns must be those of one format"),
        ],
    )
    def test_it_is_said_what_is_wrong(self, tmp_path, data, said):
        path = tmp_path / "file.csv"
        path.write_bytes(data)
        assert said in refused(path)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(OSError, match="nowhere"):
            read_choices(tmp_path / "nowhere.csv")

    def test_long_cells_are_cut(self, tmp_path):
        """What stands in a cell fills no screen."""
        text = LONG.replace("10,", "x" * 9000 + ",", 1)
        assert len(refused(write(tmp_path / "long.csv", text))) < 12_000

    def test_names_of_formats_and_numbers(self, tmp_path):
        with pytest.raises(ValueError, match="per_rate must be >= 2; got 1"):
            read_choices(games(tmp_path), per_rate=1)
        with pytest.raises(ValueError, match="format"):
            read_choices(games(tmp_path), format="json")


def test_both_formats_say_the_same(tmp_path):
    """Games written out in the long format have the same options and rates."""
    data = read_choices(games(tmp_path)).parts[0].choices
    text = "problem,option,outcome,probability,rate\n"
    for at, problem in enumerate(data.problem_names):
        for option, row, rate in (("A", at, 1 - data.response[at]), ("B", at + data.problems, data.response[at])):
            for node in range(data.start[row], data.start[row + 1]):
                outcome, prob = float(data.outcomes[node]), float(data.probs[node])
                text += f"{problem},{option},{outcome!r},{prob!r},{float(rate)!r}\n"
    again = read_choices(write(tmp_path / "long.csv", text)).parts[0].choices
    assert again.response == pytest.approx(data.response)
    for one in range(2 * data.problems):
        laws = []
        for each in (data, again):
            nodes = slice(each.start[one], each.start[one + 1])
            laws.append(np.array(sorted(zip(each.outcomes[nodes], each.probs[nodes], strict=True))))
        assert laws[0] == pytest.approx(laws[1])
