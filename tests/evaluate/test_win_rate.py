"""Win rates of two files of answers, by a judge that is asked in both orders, or by scores."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from humanline.cli import main
from humanline.evaluate.preference import Judged, summarise_verdicts
from humanline.evaluate.records import EvaluationError, read_evaluation
from humanline.train.online.ledger import read_lines
from humanline.train.online.rewards.verdict import Verdict
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
        (Reply({"error": "busy"}, status=429), "server"),
        (Reply({"error": "broken"}, status=500), "server"),
        (Reply(b"no json"), "server"),
        (Reply({"choices": []}), "server"),
        (Reply({"error": "too long"}, status=400), "refused"),
    ],
)
def test_what_is_no_verdict_is_a_status_and_no_preference(files, reply, status, capsys):
    """A judge that fails on answers to half of the prompts is counted; on all, nothing is written and the reason said."""

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
        again = "--words", "out/words.jsonl", "out2/words.jsonl"
        assert run("--judge", judge_file(url), "verdict=(?i)(?P<first>left)|(?P<second>right)", *again, out="out3") == 0
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
    assert f"1 not_asked, {0} server" in (said := capsys.readouterr().err) or "not_asked" in said
    assert "status 500" in said


def test_a_wrong_key_ends_it_at_once(files, capsys):
    """What every request is refused for is no status of a pair: nothing more is asked, and the settings are named."""
    code, asked = judged(lambda asked: Reply({"error": "no such key"}, status=401), concurrency=1)
    assert code == 2 and len(asked) == 1
    assert "judge.key_variable" in capsys.readouterr().err
    assert not Path("out").exists()
