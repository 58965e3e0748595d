"""Win rates of two files of answers, by a judge that is asked in both orders, or by scores."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from humanline.cli import main
from humanline.evaluate.preference import Judged, summarise_verdicts
from humanline.evaluate.records import Evaluation, EvaluationError, Item, read_evaluation, write_evaluation
from humanline.train.online.ledger import read_lines
from humanline.train.online.rewards.verdict import Verdict
from tests.conftest import ROOT
from tests.helpers.scripted_server import Asked, Reply, serving

N = 12
SHOWN = re.compile(r"<answer_A>\n(.*)\n</answer_A>.*<answer_B>\n(.*)\n</answer_B>", re.DOTALL)


def write_answers(name: str, answers: dict[str, list[str]], **more: Any) -> str:
    rows = [
        {
            "id": key,
            "policy": "",
            "prompt": [{"role": "user", "content": f"Question {key}?"}],
            "extra": {},
            "completions": [{"text": text, "ids": [], "finish": "end", "logprobs": None} for text in texts],
        }
        | {field: values[key] for field, values in more.items()}
        for key, texts in answers.items()
    ]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


@pytest.fixture
def files(tmp_path, monkeypatch) -> None:
    """Two files of answers in the current folder, all of them different."""
    monkeypatch.chdir(tmp_path)
    write_answers("ours.jsonl", {str(n): [f"good {n}"] for n in range(N)})
    write_answers("theirs.jsonl", {str(n): [f"bad {n}"] for n in range(N)})


def says(text: str | None, finish: str = "stop") -> Reply:
    return Reply({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]})


def shown(asked: Asked) -> tuple[str, str]:
    """The answers as they were shown."""
    found = SHOWN.search(asked.body["messages"][-1]["content"])
    assert found is not None
    return found[1], found[2]


def honest(asked: Asked) -> Reply:
    return says(f"Because.\nVerdict: {'A' if shown(asked)[0].startswith('good') else 'B'}")


def judge_file(url: str, **changes: Any) -> str:
    tree = {"url": url, "model": "judge", "attempts": 1, "concurrency": 4, "seconds": 5.0} | changes
    Path("judge.yaml").write_text(yaml.safe_dump(tree))
    return "judge.yaml"


def run(*words: str, out: str = "out") -> int:
    return main(["win-rate", "ours.jsonl", "--against", "theirs.jsonl", "--out", out, "--quiet", *words])


def judged(answer, *words: str, out: str = "out", **changes: Any) -> tuple[int, list[Asked]]:
    with serving(answer) as server:
        code = run("--judge", judge_file(server.url, **changes), *words, out=out)
        return code, server.asked


def test_a_judge_who_looks_at_the_answers_gives_the_true_rate(files):
    """Every pair is shown in both orders at temperature 0; the model wins all of them, and no bias is reported."""
    code, asked = judged(honest)
    assert code == 0
    found = read_evaluation("out")
    assert [item.values for item in found.items] == [(1.0,)] * N
    assert found.summary["win_rate"]["value"] == 1.0 and found.summary["wins"] == N
    position = found.summary["position"]
    assert (position["disagree"]["value"], position["first_shown"]["value"]) == (0.0, 0.5)
    assert not position["biased"] and position["p"] == 1.0
    assert Counter(map(shown, asked)) == Counter(
        pair for n in range(N) for pair in [(f"good {n}", f"bad {n}"), (f"bad {n}", f"good {n}")]
    )
    assert {(one.body["temperature"], one.body["model"]) for one in asked} == {(0.0, "judge")}


@pytest.mark.parametrize("place", ["A", "B"])
def test_a_judge_who_always_prefers_one_place_gives_one_half_and_is_reported(files, place, capsys):
    code, _ = judged(lambda asked: says(f"Verdict: {place}"))
    capsys.readouterr()
    found = read_evaluation("out")
    assert code == 0 and found.summary["win_rate"]["value"] == 0.5 and found.summary["ties"] == N
    position = found.summary["position"]
    assert position["disagree"]["value"] == 1.0 and position["biased"] and position["p"] < 0.001
    assert position["first_shown"]["value"] == float(place == "A")
    assert position["lean_first" if place == "A" else "lean_second"] == N


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (says("purple"), "unread"),
        (says("Verdict: A or B"), "unread"),
        (says(""), "empty"),
        (says(None), "empty"),
        (says("Verdict: A", "length"), "truncated"),
        (says("x" * 300_000 + "\nVerdict: A"), "too_long"),
        (Reply({"error": "busy"}, status=429), "server"),
        (Reply({"error": "broken"}, status=500), "server"),
        (Reply(b"no json"), "server"),
        (Reply({"choices": []}), "server"),
        (Reply({"error": "too long"}, status=400), "refused"),
    ],
)
def test_what_is_no_verdict_is_a_status_and_no_preference(files, reply, status, capsys):
    """A judge that fails on half of the prompts is counted; on all, nothing is written and the reason said."""

    def half(asked: Asked) -> Reply:
        number = int(shown(asked)[0].split()[1])
        return reply if number % 2 else honest(asked)

    assert judged(half)[0] == 0
    found = read_evaluation("out")
    assert found.summary["without_verdict"] == {status: N // 2} and found.summary["without_verdict_share"] == 0.5
    assert found.summary["win_rate"]["value"] == 1.0 and found.summary["win_rate"]["problems"] == N // 2
    assert [item.status for item in found.items] == [("ok",), (status,)] * (N // 2)

    capsys.readouterr()
    assert judged(lambda asked: reply, out="none")[0] == 2
    assert f"none of {N} pairs of answers has a verdict: {N} {status}" in capsys.readouterr().err
    assert not Path("none/evaluation.json").exists()


def test_a_pair_of_which_one_order_has_no_verdict_has_no_value(files):
    """One order alone would bring the bias to a place back."""
    code, _ = judged(lambda asked: says("Verdict: A") if shown(asked)[0].startswith("good") else says("?"))
    assert code == 2  # so none has one


def test_what_was_said_is_not_asked_again(files, capsys):
    """What a server did not answer is asked by the next command, what it did is not, whatever is read in it then."""
    count = Counter()

    def tired(asked: Asked) -> Reply:
        count["all"] += 1
        return says("I like the Left one") if count["all"] <= 7 else Reply({}, status=503)

    with serving(tired) as server:
        url = server.url
        assert run("--judge", judge_file(url, concurrency=1)) == 2
        port = server.port
    assert len(read_lines(Path("out/words.jsonl"))) == 7
    with serving(lambda asked: says("I like the left one"), port=port) as server:
        assert run("--judge", judge_file(url), "verdict=(?P<first>left)|(?P<second>right)", out="out2") == 0
        assert run("--judge", judge_file(url)) == 2  # another rule in the folder that was begun: nothing is read in it
        assert len(server.asked) == 2 * N + (2 * N - 7)
        again = "--words", "out/words.jsonl", "out2"
        assert run("--judge", judge_file(url), "--words", "out2/verdicts.jsonl", out="out3") == 2
        assert run("--judge", judge_file(url), *again, "verdict=(?i)(?P<first>left)|(?P<second>right)", out="out3") == 0
        assert len(server.asked) == 2 * N + (2 * N - 7)
    assert read_evaluation("out3").summary["win_rate"]["value"] == 0.5


def test_a_budget_is_kept_to_and_the_rest_is_not_asked(files):
    """Requests that are tried again count; the next command goes on, and nothing is asked twice."""
    code, asked = judged(honest, budget=10, concurrency=1)
    found = read_evaluation("out")
    assert code == 0 and len(asked) == 10
    assert found.summary["without_verdict"] == {"not_asked": N - 5} and found.summary["wins"] == 5
    left = 2 * N - 10
    with serving(honest) as server:
        # The same judge at another address would be another one, so its words are handed over as if it were not.
        rows = read_lines(Path("out/words.jsonl"))
        assert len(rows) == 10 and len({row["key"] for row in rows}) == 10
        assert run("--judge", judge_file(server.url, budget=left), out="new") == 0
        assert len(server.asked) == left
        assert run("--judge", judge_file(server.url, budget=left), out="new") == 0
        assert len(server.asked) == 2 * N and len({shown(one) for one in server.asked}) == 2 * N
    assert read_evaluation("new").summary["without_verdict"] == {}


def test_requests_that_are_tried_again_count_against_the_budget(files, monkeypatch):
    monkeypatch.setattr("humanline.train.online.samplers.http.LONGEST_WAIT", 0.0)
    code, asked = judged(lambda asked: Reply({}, status=429), attempts=3, budget=8, concurrency=1)
    assert code == 2 and len(asked) == 8


def test_a_server_that_is_gone_is_not_asked_for_ever(files, capsys):
    code, asked = judged(lambda asked: Reply({}, status=500), give_up=3, concurrency=1)
    assert code == 2 and len(asked) == 3
    said = capsys.readouterr().err
    assert f"{N - 2} not_asked, 2 server" in said and "status 500" in said


def test_a_wrong_key_ends_it_at_once(files, capsys):
    """What every request is refused for is no status of a pair: nothing more is asked, and the settings are named."""
    code, asked = judged(lambda asked: Reply({"error": "no such key"}, status=401), concurrency=1)
    assert code == 2 and len(asked) == 1
    assert "judge.key_variable" in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_stopped_judge_goes_on_and_asks_nothing_twice(files):
    """A signal between two answers: what was said is kept, the exit code says so, and the rest is asked then."""
    count, stopped = Counter(), threading.Event()

    def stopping(asked: Asked) -> Reply:
        count["all"] += 1
        if count["all"] == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        if count["all"] > 9:
            stopped.wait(2)  # as judges take their time
        return honest(asked)

    with serving(stopping) as server:
        judge = judge_file(server.url, concurrency=1)
        assert run("--judge", judge) == 75
        stopped.set()
        kept = len(read_lines(Path("out/words.jsonl")))
        assert 8 <= kept < 2 * N and not Path("out/evaluation.json").exists()
        before = len(server.asked)
        assert run("--judge", judge) == 0
        assert len(server.asked) - before == 2 * N - kept
    assert read_evaluation("out").summary["win_rate"]["value"] == 1.0


@pytest.mark.slow
def test_a_killed_judge_goes_on_and_asks_nothing_twice(files):
    """Only the request that was under way at the kill is sent again; a torn line at the end is passed over."""
    command = [sys.executable, "-m", "humanline", "win-rate", "ours.jsonl", "--against", "theirs.jsonl", "--out", "out"]
    process: list[subprocess.Popen[bytes]] = []

    def killing(asked: Asked) -> Reply:
        if len(server.asked) == 9:
            process[0].kill()
            process[0].wait()
        return honest(asked)

    with serving(killing) as server:
        command += ["--judge", judge_file(server.url, concurrency=1)]
        process.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}))
        assert process[0].wait() == -signal.SIGKILL
        with open("out/words.jsonl", "a") as file:
            file.write('{"key": "torn')
        assert run("--judge", "judge.yaml") == 0
        asked = Counter(map(shown, server.asked))
    assert len(asked) == 2 * N and sorted(asked.values()) == [1] * (2 * N - 1) + [2]
    assert read_evaluation("out").summary["win_rate"]["value"] == 1.0


def verdicts(*pairs: tuple[float | None, ...]) -> Judged:
    """One prompt; of each pair the worth of the model's answer in each order."""
    return Judged(str(pairs), "", tuple(tuple(Verdict(v, "ok" if v is not None else "x") for v in p) for p in pairs))


def test_verdicts_are_summed_up_by_prompt():
    """Hand-made verdicts: a prompt counts once however many pairs it has, and a half-judged pair not at all."""
    found = summarise_verdicts(
        [
            verdicts((1.0, 1.0), (0.0, 0.0)),
            verdicts((1.0, 0.0)),
            verdicts((1.0, 0.5)),
            verdicts((1.0, None)),
            verdicts((0.5,)),
        ]
    )
    assert found["win_rate"]["value"] == (0.5 + 0.5 + 0.75 + 0.5) / 4
    assert (found["wins"], found["ties"], found["losses"]) == (2, 2, 1)
    assert found["without_verdict"] == {"x": 1} and found["without_verdict_share"] == 1 / 6
    position = found["position"]
    assert position["pairs"] == 4 and position["disagree"]["value"] == (0 + 1 + 1) / 3
    # Of the first place: won 1 of 2 in agreeing pairs; both in the second; and once, with a tie, in the third.
    assert position["first_shown"]["value"] == (0.5 + 1.0 + 0.75) / 3
    assert (position["lean_first"], position["lean_second"]) == (2, 0)
    with pytest.raises(EvaluationError, match="none of 1 pairs"):
        summarise_verdicts([verdicts((1.0, None))])


def test_a_judge_who_contradicts_itself_without_bias_is_not_called_biased():
    """Coins for verdicts: in 1000 sets of 50 prompts the test at .05 calls at most 82 biased (Hoeffding, 1e-3)."""
    random = np.random.default_rng(0)
    called = 0
    for _ in range(1000):
        coins = random.integers(0, 2, size=(50, 2)).astype(float).tolist()
        called += summarise_verdicts([verdicts((a, b)) for a, b in coins])["position"]["biased"]
    assert called <= 1000 * 0.05 + math.sqrt(1000 * math.log(1000) / 2)


def scored(name: str, values: list[list[float | None]], part: str = "model") -> None:
    rows = {
        str(n): [
            {"value": v, "status": "ok", "parts": {part: v}}
            if v is not None
            else {"value": v, "status": "timeout", "parts": {}}
            for v in own
        ]
        for n, own in enumerate(values)
    }
    write_answers(name, {key: [f"{name} {n}" for n in range(len(own))] for key, own in rows.items()}, scores=rows)


def test_scores_decide_where_no_judge_is_named(files, capsys):
    """Larger scores win, equal ones tie, what has no score has a status; several answers meet the baseline's one."""
    scored("ours.jsonl", [[0.5, 0.2], [0.1, None], [0.3, 0.3]])
    scored("theirs.jsonl", [[0.2], [0.4], [0.1]])
    assert run() == 0
    found = read_evaluation("out")
    assert [item.values for item in found.items] == [(1.0, 0.5), (0.0, None), (1.0, 1.0)]
    assert found.items[1].status == ("ok", "timeout")
    assert found.summary["win_rate"]["value"] == (0.75 + 0.0 + 1.0) / 3
    assert found.summary["margin"]["value"] == pytest.approx((0.15 - 0.3 + 0.2) / 3, abs=1e-15)
    assert "position" not in found.summary


def test_scores_that_differ_by_rounding_alone_are_a_tie(files):
    """A weighted sum of .1 and .2 is no better than one of .3 and 0; a hair more than rounding is."""
    assert 0.1 + 0.2 > 0.3
    scored("ours.jsonl", [[0.1 + 0.2], [0.3], [0.3 + 1e-12], [0.0], [-5e-324]])
    scored("theirs.jsonl", [[0.3], [0.1 + 0.2], [0.3], [0.0], [5e-324]])
    assert run() == 0
    assert [item.values for item in read_evaluation("out").items] == [(0.5,), (0.5,), (1.0,), (0.5,), (0.0,)]


def test_prompts_that_are_there_more_than_once_are_said(files, capsys):
    """As an evaluation says them: the interval of the rate takes all prompts for independent."""
    for repeated in (0, 2):
        for name, value in (("ours.jsonl", 1.0), ("theirs.jsonl", 0.0)):
            scored(name, [[value]] * 3)
            if repeated:
                Path(name).write_text(re.sub(r"Question \d", "Question 0", Path(name).read_text()))
        assert main(["win-rate", "ours.jsonl", "--against", "theirs.jsonl", "--out", f"out{repeated}"]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert ("2 of 3 problems have the prompt of an earlier one" in said) is bool(repeated)
        assert read_evaluation(f"out{repeated}").summary.get("repeated_prompts", 0) == repeated


def test_how_files_were_scored_is_not_taken_on_trust_without_a_word(files, capsys):
    """Two reward models are both called "model"; folders of an evaluation say how they were scored."""
    scored("ours.jsonl", [[1.0]] * 3)
    scored("theirs.jsonl", [[-3.0]] * 3)
    assert main(["win-rate", "ours.jsonl", "--against", "theirs.jsonl", "--out", "out"]) == 0
    assert "how ours.jsonl and theirs.jsonl were scored is not known" in re.sub(r"\S*/", "", capsys.readouterr().err)
    assert read_evaluation("out").settings["scoring"]["scored"] == "not known"


def test_win_rates_against_one_baseline_are_compared(files):
    scored("theirs.jsonl", [[0.3]] * 8)
    for name, value in (("a", 0.2), ("b", 0.4)):
        scored("ours.jsonl", [[value]] * 8)
        assert run("--name", name, out=name) == 0
    assert main(["compare", "a", "b"]) == 0
    scored("theirs.jsonl", [[0.35]] * 7 + [[0.1]])
    write_answers(
        "other.jsonl",
        {str(n): ["another"] for n in range(8)},
        scores={str(n): [{"value": 0.3, "status": "ok", "parts": {"model": 0.3}}] for n in range(8)},
    )
    assert main(["win-rate", "ours.jsonl", "--against", "other.jsonl", "--out", "c", "--name", "c", "--quiet"]) == 0
    assert main(["compare", "a", "c"]) == 2  # they were held against other answers


def test_equal_answers_are_tied_unseen(files):
    write_answers("theirs.jsonl", {str(n): [f"good {n}" if n else "bad 0"] for n in range(N)})
    code, asked = judged(honest)
    assert code == 0 and len(asked) == 2
    assert read_evaluation("out").summary["ties"] == N - 1


def test_equal_answers_are_no_result_of_a_judge_who_says_nothing(files, capsys):
    """A dead judge leaves no rate of one half; one whose budget ends, a rate of a part of all pairs, equal ones too."""
    write_answers("theirs.jsonl", {str(n): [f"{'bad' if n % 3 else 'good'} {n}"] for n in range(N)})
    for reply, status in ((Reply({}, status=500), "server"), (says("purple"), "unread")):
        assert judged(lambda asked, reply=reply: reply, out=status)[0] == 2
        assert f"none of {N} pairs of answers has a verdict: {N} {status}" in capsys.readouterr().err
    assert judged(lambda asked: Reply({}, status=500), give_up=2, concurrency=1, out="ended")[0] == 2
    assert "2 requests in a row failed (judge.give_up); the last: " in capsys.readouterr().err
    counted = []
    for budget in (2, 6, 10, 14, 16, 18):
        with serving(honest) as server:
            words = "--judge", judge_file(server.url, budget=budget, concurrency=1)
            assert (
                main(["win-rate", "ours.jsonl", "--against", "theirs.jsonl", "--out", f"budget-{budget}", *words]) == 0
            )
        said = capsys.readouterr().err
        assert ("the budget of" in said) == (budget < 16) and ("draws the rate" not in said or budget < 16)
        found = read_evaluation(f"budget-{budget}").summary
        assert found["wins"] == min(budget // 2, 8)
        assert found["wins"] + found["ties"] + found["without_verdict"].get("not_asked", 0) == N
        counted.append(found["ties"])
    assert counted == sorted(counted) and counted[0] < 4 == counted[-1]


def test_nothing_in_an_answer_stands_for_another_part(files):
    """An answer that spells a placeholder is shown as it is."""
    write_answers("ours.jsonl", {"0": ["good {second} {prompt}"]})
    _, asked = judged(honest)
    assert {frozenset(map(str, shown(one))) for one in asked} == {frozenset(["good {second} {prompt}", "bad 0"])}


def test_prompts_that_only_one_file_has_are_counted(files, capsys):
    write_answers("theirs.jsonl", {str(n): [f"bad {n}"] for n in range(3, N + 1)} | {"x": ["bad x"]})
    write_answers("ours.jsonl", {str(n): [f"good {n}"] for n in range(N)})
    with serving(honest) as server:
        assert (
            main(
                [
                    "win-rate",
                    "ours.jsonl",
                    "--against",
                    "theirs.jsonl",
                    "--out",
                    "out",
                    "--judge",
                    judge_file(server.url),
                ]
            )
            == 0
        )
    assert read_evaluation("out").summary["only_one_has"] == {"model": 3, "baseline": 2}
    assert "left out: 3 prompts that only the model answered, 2 the baseline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"y": ["bad"]}, "have no prompt in common"),
        ({"0": ["bad", "worse"]}, "'0' has 1 and 2 answers"),
    ],
)
def test_files_that_cannot_be_joined_are_refused(files, theirs, message, capsys):
    write_answers("theirs.jsonl", theirs)
    assert judged(honest) == (2, [])
    assert message in capsys.readouterr().err and not Path("out").exists()


def test_bad_input_is_refused_before_anything_is_asked(files, capsys):
    cases = [
        ([], "ours.jsonl has no scores, and no judge was named"),
        (["--words", "w"], "name one, --judge FILE"),
        (["--judge", "none.yaml"], "none.yaml"),
        (["--judge", "judge.yaml", "verdict=x"], "must have the groups"),
        (["--judge", "judge.yaml", "verdict=("], "is no regular expression"),
        (["--judge", "judge.yaml", "question=which?"], "has no {prompt}, {first}, {second}"),
        (["--judge", "judge.yaml", "body={n: 2}"], "must leave n alone"),
        (["--judge", "judge.yaml", "url=http://10.0.0.7"], "set judge.allow_hosts: [10.0.0.7]"),
        (
            ["--judge", "judge.yaml", "key_variable=NO_SUCH_KEY"],
            "judge.key_variable: the environment variable NO_SUCH_KEY",
        ),
        (["--judge", "judge.yaml", "buget=1"], "did you mean budget?"),
        (["--judge", "judge.yaml", "--words", "none.jsonl"], "none.jsonl"),
        (["--judge", "judge.yaml", "--words", "budget=1"], "--words names no file or folder, only budget=1"),
    ]
    with serving(honest) as server:
        judge_file(server.url)
        for words, message in cases:
            assert run(*words) == 2, words
            assert message in capsys.readouterr().err, words
            assert not Path("out").exists(), words
        assert server.asked == []
    rows = read_lines(Path("ours.jsonl"))
    rows[0]["prompt"][0]["content"] = "Another?"
    Path("ours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert judged(honest) == (2, [])
    assert "is another prompt in each" in capsys.readouterr().err


def test_a_key_stays_in_the_request(files, monkeypatch, capsys):
    """The API key is sent as a header, and is in no file and no message; nor is what a field's name makes a secret."""
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret-1234")
    code, asked = judged(honest, key_variable="JUDGE_KEY", body={"api_key": "sk-very-secret-5678", "seed": 1})
    assert {one.body["api_key"] for one in asked} == {"sk-very-secret-5678"}
    assert read_evaluation("out").settings["scoring"]["body"] == {"api_key": "***", "seed": 1}
    assert code == 0 and {one.headers["Authorization"] for one in asked} == {"Bearer sk-very-secret-1234"}
    for path in Path("out").iterdir():
        assert "sk-very-secret" not in path.read_text()


def test_files_scored_by_different_rewards_are_refused(files, capsys):
    scored("ours.jsonl", [[0.5]])
    scored("theirs.jsonl", [[0.2]], part="math")
    assert run() == 2
    assert "was scored by model and" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "status"), [(None, "ok"), (0.5, "timeout")])
def test_a_score_is_there_where_its_status_says_so(files, value, status, capsys):
    """Of a file from elsewhere too: else the evaluation would be one that no comparison reads."""
    scored("ours.jsonl", [[0.5]] * N)
    scored("theirs.jsonl", [[0.2]] * N)
    rows = read_lines(Path("theirs.jsonl"))
    rows[3]["scores"][0] |= {"value": value, "status": status}
    Path("theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run() == 2
    assert "theirs.jsonl: no rows of scores" in capsys.readouterr().err


def test_folders_of_evaluations_tell_name_seed_and_scoring(files, capsys):
    """Name and seed go into the result; answers that were scored in different ways are not held against each other."""

    def folder(name: str, seed: int, weight: float) -> None:
        scored(f"{name}.jsonl", [[0.5 + seed]] * 4)
        Path(name).mkdir()
        Path(f"{name}.jsonl").rename(f"{name}/scored.jsonl")
        settings = {"prompts": "", "sampling": "given", "scoring": {"rewards": weight}}
        write_evaluation(
            Path(name, "evaluation.json"), Evaluation("dpo", seed, settings, (Item("0", "", (1.0,), ("ok",)),))
        )

    for name, seed, weight in (("a", 1, 1.0), ("b", 0, 1.0), ("c", 0, 2.0)):
        folder(name, seed, weight)
    assert main(["win-rate", "a", "--against", "b", "--out", "out", "--quiet"]) == 0
    found = read_evaluation("out")
    assert (found.name, found.seed, found.summary["win_rate"]["value"]) == ("dpo", 1, 1.0)
    assert main(["win-rate", "a", "--against", "c", "--out", "other", "--quiet"]) == 2
    assert "were not scored alike: rewards" in capsys.readouterr().err


def test_answers_scored_against_other_references_are_refused(files, capsys):
    """A reference of one prompt that was mended between two evaluations is named; other columns may differ."""
    for name, reference, note in (("a", "1", ""), ("b", "1", "other"), ("c", "2", "")):
        write_answers(
            f"{name}.jsonl",
            {str(n): ["1"] for n in range(4)},
            extra={str(n): {"answer": reference if n == 3 else "0", "note": note} for n in range(4)},
            scores={str(n): [{"value": 1.0, "status": "ok", "parts": {"math": 1.0}}] for n in range(4)},
        )
        Path(name).mkdir()
        Path(f"{name}.jsonl").rename(f"{name}/scored.jsonl")
        settings = {"sampling": "given", "columns": {"answer": name}, "scoring": {"rewards": "math"}}
        write_evaluation(
            Path(name, "evaluation.json"), Evaluation(name, 0, settings, (Item("0", "", (1.0,), ("ok",)),))
        )
    assert main(["win-rate", "a", "--against", "b", "--out", "out", "--quiet"]) == 0
    assert main(["win-rate", "a", "--against", "c", "--out", "other", "--quiet"]) == 2
    assert "'3' has another answer in each" in capsys.readouterr().err
    with serving(lambda asked: says("Verdict: tie")) as server:  # a judge is shown no reference
        words = ("win-rate", "a", "--against", "c", "--judge", judge_file(server.url), "--out", "other", "--quiet")
        assert main(list(words)) == 0


def test_a_conversation_is_shown_turn_by_turn(files):
    """All turns of a prompt stand in the question, under their roles."""
    for name in ("ours.jsonl", "theirs.jsonl"):
        row = read_lines(Path(name))[0]
        row["prompt"] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello?"}]
        Path(name).write_text(json.dumps(row) + "\n")
    _, asked = judged(honest)
    assert all("[system]\nBe kind.\n\n[user]\nHello?" in one.body["messages"][-1]["content"] for one in asked)
    assert len(asked) == 2
