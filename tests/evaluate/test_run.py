"""`humanline evaluate` and `humanline compare`, from prompts to a verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.evaluate import model_files
from humanline.evaluate import run as evaluating
from humanline.evaluate.model_files import files_at_hand, files_of
from humanline.evaluate.records import read_evaluation
from humanline.system.lock import FolderLock
from humanline.train.online.ledger import read_lines
from humanline.train.policy.errors import ModelError
from tests.helpers.recipes import recipe_that_evaluates
from tests.helpers.rounds import SCORED
from tests.helpers.scripted_server import GIVEN, NO_TEXTS, Asked, Reply, serving


@pytest.fixture
def recipe(toy, tmp_path, monkeypatch) -> str:
    """A recipe of fixed data in the current folder, whose evaluation asks two answers each of 48 prompts."""
    sampling = {"max_tokens": 10, "engine": {"kind": "generate", "batch_size": 96}}
    evaluation = {"samples": 2, "sampling": sampling, "scoring": SCORED}
    monkeypatch.chdir(tmp_path)
    return recipe_that_evaluates(toy, tmp_path, data={"eval": toy["prompts"]}, evaluation=evaluation)


def run(*words: str) -> int:
    return main(list(words))


def test_from_prompts_to_a_verdict(recipe, tmp_path, capsys, monkeypatch):
    """Two models are asked and compared; the files say what the answers were worth, and nothing is asked twice."""
    assert run("evaluate", recipe, "--out", "a", "--name", "a", "--quiet") == 0
    assert run("evaluate", recipe, "seed=1", "--out", "b", "--name", "b", "--quiet") == 0
    found = read_evaluation("a")
    rows = read_lines(tmp_path / "a" / "scored.jsonl")
    assert [list(item.values) for item in found.items] == [[s["value"] for s in row["scores"]] for row in rows]
    means = [sum(s["value"] for s in row["scores"]) / 2 for row in rows]
    assert found.summary["score"]["value"] == pytest.approx(sum(means) / len(means), abs=1e-12)
    assert (found.name, found.seed, found.settings["sampling"]["samples"]) == ("a", None, 2)

    capsys.readouterr()
    assert run("compare", "a", "b/evaluation.json", "--out", "found") == 0
    said = capsys.readouterr().out
    assert "no plan: what follows was not declared" in said and "sign flips" in said
    written = json.loads(Path("found/comparison.json").read_text())
    assert written["contrasts"][0]["name"] == "b" and not written["declared"]["before"]
    assert {path.name for path in Path("found").iterdir()} >= {"comparison.json", "differences.png"}

    for stage in ("sample", "score"):
        monkeypatch.setattr(evaluating, stage, lambda *_, **__: pytest.fail("asked again"))
    before = Path("a/evaluation.json").read_bytes()
    assert run("evaluate", recipe, "--out", "a", "--name", "a", "--quiet") == 0
    assert Path("a/evaluation.json").read_bytes() == before


def test_answers_that_are_there_are_only_scored(recipe, tmp_path, capsys):
    """A samples file gives what sampling gave, and is not compared with answers that were drawn as is known."""
    assert run("evaluate", recipe, "--out", "a", "--quiet") == 0
    assert run("evaluate", recipe, "--out", "again", "--samples", "a/samples.jsonl", "--name", "again", "--quiet") == 0
    ours, theirs = read_evaluation("a"), read_evaluation("again")
    assert ours.items == theirs.items and ours.summary == theirs.summary | {"template": "chat"}
    assert run("evaluate", recipe, "data.eval=null", "--out", "b", "--samples", "a/samples.jsonl", "--quiet") == 0
    assert read_evaluation("b").items == ours.items
    words = ("--samples", "a/samples.jsonl", "--prompts", "none.jsonl", "--out", "c")
    assert run("evaluate", recipe, *words, "--quiet") == 2
    assert "leave out --prompts" in capsys.readouterr().err and not Path("c").exists()
    assert ours.name == "model"
    assert run("compare", "a", "again") == 2
    said = capsys.readouterr().err
    assert "the answers of 'again' were given, so that nobody knows how they were drawn" in said


def test_answers_that_had_less_room_are_not_compared(recipe, capsys):
    """data.max_length cuts answers as max_tokens does."""
    assert run("evaluate", recipe, "--out", "a", "--name", "a", "--quiet") == 0
    assert run("evaluate", recipe, "data.max_length=17", "--out", "b", "--name", "b", "--quiet") == 0
    assert read_evaluation("b").summary["tokens"] < read_evaluation("a").summary["tokens"]
    assert run("compare", "a", "b") == 2
    assert "were not evaluated alike: limits.max_length: 64 and 17" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reward", "reads"),
    [
        ({"kind": "number"}, "b"),
        ({"kind": "format", "pattern": "1"}, ""),
        (SCORED["rewards"][0], "bc"),  # a function that may be given every column
    ],
    ids=["number", "format", "function"],
)
def test_answers_scored_against_other_references_are_not_compared(recipe, capsys, reward, reads):
    """Whose prompts and ids are the same; a column that no reward reads may differ."""
    for name, answers, note in (("a", "123", "x"), ("b", "124", "x"), ("c", "123", "y")):
        rows = [
            {"id": str(n), "policy": "p", "prompt": [{"role": "user", "content": f"q{n}"}]}
            | {"extra": {"answer": answer, "note": note}}
            | {"completions": [{"text": answer, "ids": [], "finish": "end", "logprobs": None}]}
            for n, answer in enumerate(answers)
        ]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        scoring = f"evaluation.scoring={json.dumps({'rewards': [reward], 'failed': 'drop', 'failed_share': 1})}"
        words = ("--samples", f"{name}.jsonl", "--out", name, "--name", name, "--quiet")
        assert run("evaluate", recipe, scoring, *words) == 0
    for name, column in (("b", "answer"), ("c", "note")):
        assert run("compare", "a", name) == (2 if name in reads else 0)
        assert (f"were not evaluated alike: columns.{column}" in capsys.readouterr().err) == (name in reads)


def test_a_declared_plan_stands_in_the_result(recipe, capsys):
    for name in "ab":
        assert run("evaluate", recipe, f"seed={ord(name)}", "--out", name, "--name", name, "--quiet") == 0
    Path("plan.yaml").write_text("test: equivalence\nmargin: 0.5\n")
    capsys.readouterr()
    assert run("compare", "a", "b", "--plan", "plan.yaml", "--out", "found") == 0
    said = capsys.readouterr().out
    assert "declared in plan.yaml, sha256" in said and "equal within 0.5" in said
    assert run("compare", "a", "b", "--test", "equivalence", "--margin", "0.5") == 0
    assert "chosen by options, afterwards" in capsys.readouterr().out
    assert run("compare", "a", "b", "--plan", "plan.yaml", "--margin", "0.1") == 2
    assert "leave out --margin" in capsys.readouterr().err
    assert run("compare", "a", "b", "--test", "equivalence", "--margin", "-0.5") == 2
    assert "--margin" in capsys.readouterr().err


def test_what_cannot_be_evaluated_leaves_nothing(recipe, tmp_path, capsys):
    """Each mistake is one message, with exit code 2, and no folder is left."""
    cases = [
        (["evaluation.scoring=null"], "nothing says how answers are scored"),
        (["data.eval=null"], "there are no prompts to ask"),
        (["model=nowhere"], "nowhere"),
        (["--prompts", "none.jsonl"], "none.jsonl"),
        (["--prompts", "."], "is a directory; expected a file"),
        (["--samples", "none.jsonl"], "'none.jsonl' is no file"),
        (["evaluation.sampling.temperature=0"], "set samples: 1, or a temperature"),
        (["--k", "0"], "--k must be >= 1"),
        (["evaluation.scoring={rewards: [{kind: function, call: 'nowhere:f'}]}"], "nowhere:f cannot be imported"),
        (["evaluation.scoring={rewards: [{kind: number, answer: gold}]}"], "gold: the prompts have no columns"),
    ]
    for words, message in cases:
        assert run("evaluate", recipe, *words, "--out", "bad", "--quiet") == 2, words
        assert message in capsys.readouterr().err
        assert not os.path.exists("bad"), words
    Path("long.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "a" * 300}) + "\n")
    words = ["--prompts", "long.jsonl", "data.too_long=drop"]
    words += ["evaluation.scoring.rewards=[{kind: number, answer: gold}]"]
    assert run("evaluate", recipe, *words, "--out", "bad", "--quiet") == 2
    assert "gold: the prompts have" in capsys.readouterr().err and not os.path.exists("bad")
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    assert run("evaluate", recipe, "--out", "full", "--quiet") == 2
    assert "is not empty and no evaluation" in capsys.readouterr().err


def test_a_folder_of_another_evaluation_is_left_alone(recipe, capsys):
    assert run("evaluate", recipe, "--out", "a", "--quiet") == 0
    before = Path("a/evaluation.json").read_bytes()
    others = ["evaluation.samples=3", "evaluation.sampling.temperature=0.5", "seed=5", "data.template=plain"]
    for other in [*others, "data.max_length=63", "data.ignore=[else]", "adapter={base: nf4}"]:
        assert run("evaluate", recipe, other, "--out", "a", "--quiet") == 2
        assert "another model, other prompts or other settings" in capsys.readouterr().err
    assert Path("a/evaluation.json").read_bytes() == before


def test_prompts_that_were_left_out_are_counted(recipe, toy):
    """Also by a call that finds the answers there."""
    rows = [json.loads(line) for line in Path(toy["prompts"]).read_text().splitlines()]
    content = [{"role": "user", "content": "a" * 300}]
    rows[3] = rows[3] | {"prompt": content if isinstance(rows[3]["prompt"], list) else content[0]["content"]}
    Path("prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("evaluate", recipe, "--prompts", "prompts.jsonl", "data.too_long=drop", "--out", "a", "--quiet")
    for _ in range(2):
        assert run(*words) == 0
        found = read_evaluation("a")
        assert found.summary["left_out"] == {"too_long": 1, "special_tokens": 0, "bad_rows": 0}
        assert len(found.items) == len(rows) - 1
        Path("a/evaluation.json").unlink()


def test_the_count_of_prompts_left_out_is_there_before_the_answers(recipe, toy, monkeypatch, capsys):
    """So that no kill parts them: the next call finds answers, and asks nothing about rows again."""
    from humanline.evaluate import run as module

    with Path("prompts.jsonl").open("w") as file:
        file.write(Path(toy["prompts"]).read_text())
        file.write(json.dumps({"prompt": "a" * 300, "id": "long"}) + "\n")

    def killed(*given, **how):
        sample(*given, **how)
        raise OSError("ended here")

    sample = module.sample
    words = ("evaluate", recipe, "--prompts", "prompts.jsonl", "data.too_long=drop", "--out", "a", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(module, "sample", killed)
        assert run(*words) == 2 and "ended here" in capsys.readouterr().err
    assert run(*words) == 0
    assert read_evaluation("a").summary["left_out"] == {"too_long": 1, "special_tokens": 0, "bad_rows": 0}


def test_a_count_of_prompts_left_out_alone_is_no_evaluation(recipe, toy, monkeypatch, capsys):
    """Where the model cannot be loaded nothing is left, so that a mended recipe can have the folder."""
    from humanline.train.policy import build

    with Path("prompts.jsonl").open("w") as file:
        file.write(Path(toy["prompts"]).read_text())
        file.write(json.dumps({"prompt": "a" * 300, "id": "long"}) + "\n")

    def full(*given):
        assert Path("a/left-out.json").is_file()
        raise OSError("no memory is left")

    words = ("evaluate", recipe, "--prompts", "prompts.jsonl", "data.too_long=drop", "--out", "a", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(build, "build_policy", full)
        assert run(*words) == 2 and "no memory is left" in capsys.readouterr().err
    assert not os.path.exists("a")
    assert run(*words, "seed=5") == 0 and os.path.exists("a/left-out.json")


@pytest.mark.parametrize("given", [False, True])
def test_what_fails_before_the_first_answer_or_score_stands_in_no_way(recipe, monkeypatch, capsys, given):
    """As where memory runs out in the first batch: nothing is left, so that the mended recipe can have the folder."""
    from humanline.train.online import commands
    from humanline.train.online.samplers.generate import GenerateSampler

    words: tuple[str, ...] = ("evaluate", recipe, "--out", "a", "--quiet")
    if given:
        answer = {"text": "a", "ids": [], "finish": "end", "logprobs": None}
        row = {"id": "0", "policy": "p", "prompt": [{"role": "user", "content": "q"}], "extra": {"answer": "a"}}
        Path("given.jsonl").write_text(json.dumps(row | {"completions": [answer]}) + "\n")
        words += ("--samples", "given.jsonl")
    seen = []

    def full(*given, **how):
        seen.extend(path.name for path in Path("a").rglob("plan.json"))
        raise MemoryError("no memory is left")

    with monkeypatch.context() as patch:
        patch.setattr(*((commands, "score_share") if given else (GenerateSampler, "_generate")), full)
        assert run(*words) == 2
    said = capsys.readouterr().err
    assert "no memory is left" in said and "micro_batch_size" not in said  # which an evaluation does not read
    assert "evaluation.sampling.engine.batch_size draws fewer answers at a time, and a smaller batch_size of a" in said
    assert len(seen) == 2 and not os.path.exists("a")  # the evaluation's, and its stage's


def test_a_model_of_the_hub_is_the_same_before_and_after_it_was_fetched(tmp_path, monkeypatch):
    """Told by its settings, which are asked for first: other files come into the cache one by one."""
    import huggingface_hub

    from humanline.train.policy import hub

    snapshot = tmp_path / "snapshots" / "abc123"
    settings = snapshot / "config.json"
    asked: list[str] = []

    def fetch(name: str, file: str) -> str:
        asked.append(f"{name}/{file}")
        snapshot.mkdir(parents=True, exist_ok=True)
        settings.write_text("{}")
        return str(settings)

    found = lambda *_: str(settings) if settings.is_file() else None  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", found)
    monkeypatch.setattr(hub, "ask_hub", lambda *_: None)
    assert files_of("hub:org/name") == {}
    before = files_at_hand("hub:org/name")
    assert asked == ["org/name/config.json"] and list(before) == ["config.json", "commit"]
    assert before["commit"] == "abc123"
    (snapshot / "model.safetensors").write_text("weights")
    assert files_of("hub:org/name") | {"commit": "abc123"} == before
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: 1 / 0)
    with pytest.raises(ModelError, match="model 'hub:org/name' cannot be loaded: ZeroDivisionError"):
        files_at_hand("hub:org/name")


def test_scores_of_a_reward_model_that_has_changed_are_no_scores(recipe, capsys, monkeypatch):
    """Another one in the same folder is told by its files; what is kept is said to be kept."""
    monkeypatch.setattr(evaluating, "score", lambda config, samples, out, **_: _score_all(samples, out))
    Path("judge").mkdir()
    Path("judge/model.safetensors").write_text("one")
    write_answers([("1", ["b"])])
    scoring = "evaluation.scoring={rewards: [{kind: model, model: judge}]}"
    words = ("evaluate", recipe, scoring, "--samples", "some.jsonl", "--out", "a")
    assert run(*words) == 0
    assert "scores are those in" not in capsys.readouterr().err
    assert run(*words) == 0
    assert "scores are those in" in capsys.readouterr().err
    Path("judge/model.safetensors").write_text("other")
    assert run(*words) == 2
    assert "another model, other prompts or other settings" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["judge", "hub:org/judge"])
def test_evaluations_by_other_weights_under_one_name_are_not_compared(recipe, model, capsys, monkeypatch):
    """A folder is told by its weights, a model of the hub by its commit, at which it is then loaded."""
    now, used = Path("judge/model.safetensors"), []

    def score(config, samples, out, **_):
        used.append(config.rounds.scoring.rewards[0].revision)
        _score_all(samples, out)

    monkeypatch.setattr(evaluating, "score", score)
    monkeypatch.setattr(model_files, "fetch_settings", lambda name, what: f"commit-{now.read_text()}")
    now.parent.mkdir()
    write_answers([("1", ["b"]), ("2", ["b"])])
    scoring = f"evaluation.scoring={{rewards: [{{kind: model, model: '{model}'}}]}}"
    words = ["evaluate", recipe, scoring, "--samples", "some.jsonl", "--quiet"]
    for name in ("one", "two"):
        now.write_text(name)
        assert run(*words, "--out", name, "--name", name) == 0
    assert used == ([None, None] if model == "judge" else ["commit-one", "commit-two"])
    assert run("compare", "one", "two") == 2
    assert f"not evaluated alike: reward models.{model}: " in capsys.readouterr().err
    assert run(*words, "--out", "one", "--name", "one") == 2
    told = capsys.readouterr().err
    assert "holds an evaluation of another model" in told
    rows = [line.split()[0] for line in told.splitlines() if line.startswith("  ")]
    assert rows == ["what", "files"], told  # of rewards
    Path("one/plan.json").write_text("{}")
    assert run(*words, "--out", "one", "--name", "one") == 2
    assert "plan.json is damaged: it holds no plan of an evaluation; choose another" in capsys.readouterr().err
    assert run("win-rate", "one", "--against", "two", "--out", "rate", "--quiet") == 2
    assert "were not scored alike: reward models" in capsys.readouterr().err
    now.write_text("one")
    assert run(*words, "--out", "three", "--name", "three") == 0
    assert run("compare", "one", "three") == 0


def write_answers(answers: list[tuple[str, list[str]]]) -> None:
    drawn = {"ids": [], "finish": "end", "logprobs": None}
    asked = {"policy": "p", "prompt": [{"role": "user", "content": "a"}], "extra": {}}
    rows = [{"id": name, **asked, "completions": [{"text": one, **drawn} for one in own]} for name, own in answers]
    Path("some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _score_all(samples: str, out: str) -> None:
    rows = read_lines(Path(samples))
    for row in rows:
        row["scores"] = [{"value": 1.0, "status": "ok", "parts": {}} for _ in row["completions"]]
    Path(out).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_one_process_at_a_time_works_in_a_folder(recipe, toy, capsys, monkeypatch):
    """Another one ends at once, and leaves what the first has begun as it is."""
    for stage in ("sample", "score"):
        monkeypatch.setattr(evaluating, stage, lambda *_, **__: pytest.fail("two at once"))
    Path("a").mkdir()
    lock = FolderLock(Path("a"))
    lock.take(wait=False, say=lambda text: None)
    try:
        for words in ([], ["--preferences", toy["pairs"]]):
            assert run("evaluate", recipe, *words, "--out", "a", "--quiet") == 2
            assert "in use" in capsys.readouterr().err
        lock.refuse_lost()
    finally:
        lock.release()


def test_answers_that_cannot_be_summed_up_are_not_scored_first(recipe, capsys, monkeypatch):
    """A repeated item, and one without an answer, is named with file and line before any work, and nothing is left."""
    monkeypatch.setattr(evaluating, "score", lambda *_, **__: pytest.fail("scored"))
    for answers, message in (
        ([("a", ["x"]), ("b", ["x"]), ("a", ["y"])], "some.jsonl:3: the prompt 'a' is there twice, first in line 1"),
        ([("a", ["x"]), ("b", [])], "some.jsonl:2: the prompt 'b' has no answer"),
        ("\n", "some.jsonl:2: damaged: it is blank; mend this line, or leave it out"),
        ("[" * 100_000, "some.jsonl:2: damaged: maximum recursion depth exceeded"),
    ):
        write_answers([("a", ["x"])] if isinstance(answers, str) else answers)
        if isinstance(answers, str):
            with open("some.jsonl", "a") as file:
                file.write(f"{answers}\n{{}}\n")
        assert run("evaluate", recipe, "--samples", "some.jsonl", "--out", "a", "--quiet") == 2
        assert message in capsys.readouterr().err
        assert not Path("a").exists()


def test_the_most_probable_answer_alone(recipe):
    """Temperature 0 and one sample, which rounds refuse, can be evaluated."""
    words = ("evaluation.samples=1", "evaluation.sampling.temperature=0")
    assert run("evaluate", recipe, *words, "--out", "greedy", "--quiet") == 0
    assert read_evaluation("greedy").summary["samples"] == [1, 1]


@pytest.mark.parametrize("adapter", [True, False])
def test_what_a_run_has_left_is_evaluated_under_its_name(recipe, tmp_path, adapter, capsys):
    """The final of a run, a model or an adapter; an adapter is worth what the merged model is, and nothing stays."""
    words = ["adapter={rank: 2}", "optimizer.lr=0.5"] if adapter else []
    assert run("train", recipe, "--quiet", *words, "data.eval=null") == 0
    final = tmp_path / "run" / "final"
    assert (final / "adapter_config.json").is_file() == adapter
    capsys.readouterr()
    assert run("evaluate", recipe, f"model={final}", *words, "--out", "found") == 0
    assert ("is an adapter of" in capsys.readouterr().err) == adapter
    found = read_evaluation("found")
    assert (found.name, found.seed) == ("run", 0)
    assert {path.name for path in Path("found").iterdir()} == {
        "evaluation.json",
        "plan.json",
        "run.lock.1",
        "samples.jsonl",
        "scored.jsonl",
    }
    if adapter:
        assert run("merge", str(final), "merged") == 0
        assert run("evaluate", recipe, "model=merged", "--out", "whole", "--quiet") == 0
        assert read_evaluation("whole").items == found.items
        assert run("evaluate", recipe, "--out", "start", "--quiet") == 0
        assert read_evaluation("start").items != found.items


@pytest.mark.parametrize(("at", "model"), [("run", "final"), ("run/final", "."), ("run/final", "../../run/final/")])
def test_a_model_has_the_name_of_its_run_wherever_it_is_named_from(tmp_path, monkeypatch, at, model):
    """`final` and `.` stand for folders whose names and parents' names are not written there."""
    (tmp_path / "run" / "final").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text('{"seed": 7}')
    monkeypatch.chdir(tmp_path / at)
    assert evaluating.whose(Path(model)) == ("run", 7)
    assert evaluating.whose(Path("hub:org/tiny")) == ("tiny", None)


def test_a_server_answers(recipe, tmp_path):
    """It is given the model's weights, asked under the settings of the section, and its answers are scored."""

    def answer(asked: Asked) -> Reply:
        if not asked.path.endswith("/completions"):
            return Reply({})
        if asked.path == GIVEN:
            return NO_TEXTS
        message = {"role": "assistant", "content": f"{asked.body['seed'] % 1000}a"}
        return Reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    with serving(answer) as server:
        tree = {"kind": "server", "url": server.url, "new_weights": {"kind": "path"}}
        engine = f"evaluation.sampling.engine={json.dumps(tree)}"
        assert run("evaluate", recipe, engine, "evaluation.sampling.temperature=0.5", "--out", "a", "--quiet") == 0
    chats = server.chats()
    assert len(chats) == 96 and {one.body["temperature"] for one in chats} == {0.5}
    assert all(Path(one.body["model"]).name.startswith("policy-") for one in chats)
    found = read_evaluation("a")
    assert found.summary["answers"] == 96 and "engine" not in found.settings["sampling"]
    assert 0.5 <= found.summary["score"]["value"] <= 0.75  # one letter behind one to three digits
