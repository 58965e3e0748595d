"""Rewards as people have them: functions of TRL's form and of ours, told apart, tried, and called with their own rows.

The functions of TRL's form are called here as TRL 1.16 calls them; no package of TRL's is needed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys

import pytest

from humanline.system.files import OutputError
from humanline.system.stop import StopRequested
from humanline.train.config.own_sources import reward_sources
from humanline.train.config.rounds import ScoringConfig
from humanline.train.data.messages import Message
from humanline.train.loop import train
from humanline.train.online.ledger import read_lines
from humanline.train.online.rewards.check import RewardError, check_scoring
from humanline.train.online.rewards.forms import FormError, described_signature, taken
from humanline.train.online.rewards.scorer import build_scorer
from humanline.train.online.select import refuse_unscored
from humanline.train.online.types import Completion, Rollout, Score
from humanline.train.preflight.validate import NotReadyError, validate
from humanline.train.run.checkpoint import CheckpointError
from humanline.train.run.fingerprint import comparable, same_settings
from humanline.train.run.processes import RoundError
from tests.helpers.cases import StopAt
from tests.helpers.rounds import online

FUNCTIONS = '''
import json
import random

def letters(completions, **kwargs):
    """The reward of a quick start, for conversations."""
    return [float(len(set(completion[0]["content"]))) for completion in completions]

def accuracy(completions, ground_truth, **kwargs):
    """The reward of a quick start, for plain texts."""
    return [1.0 if truth in completion else 0.0 for completion, truth in zip(completions, ground_truth)]

def everything(prompts, completions, completion_ids, log_metric, log_extra=None, **kwargs):
    log_metric("letters", 3.0)
    log_extra("letters", [3.0])
    with open("seen", "a") as file:
        file.write(json.dumps([prompts, completions, completion_ids, kwargs]) + "\\n")
    return [len(ids) for ids in completion_ids]

def tokens(completions, completion_ids=None, **kwargs):
    return [None if completion_ids is None else float(len(ids)) for ids in completion_ids or [None]]

def of_math(completions, task, **kwargs):
    return [1.0 if one == "math" else None for one in task]

def of_code(completions, task, **kwargs):
    return [2.0 if one == "code" else None for one in task]

def own(prompts, completions, ground_truth, **kwargs):
    """Fail where a row's columns are another row's."""
    assert all(f"{truth} abc" == prompt for prompt, truth in zip(prompts, ground_truth)), (prompts, ground_truth)
    with open("seen", "a") as file:
        file.write(json.dumps([prompts[0], completions[0], ground_truth[0]]) + "\\n")
    return [len(set(completion)) + int(truth) for completion, truth in zip(completions, ground_truth)]

def as_tensor(completions, **kwargs):
    import numpy
    return numpy.array([len(one) for one in completions], dtype="float32")

def among_others(completions, **kwargs):
    return [sorted(completions).index(one) for one in completions]

def by_chance(completions, **kwargs):
    return [random.random() for _ in completions]

def three(completions, **kwargs):
    return [1.0, 1.0, 1.0]

def one_number(completions, **kwargs):
    return 1.0

def nothing(completions, **kwargs):
    return None

def nan(completions, **kwargs):
    return [float("nan")]

def down(completions, **kwargs):
    raise RuntimeError("the service is down")

def down_for_some(completions, **kwargs):
    if "know" in completions[0]:
        raise RuntimeError("no answer")
    return [1.0]

def ours(prompt, completion, **columns):
    return len(completion) + len(columns)
'''


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with the functions, which is the current one."""
    (tmp_path / "theirs.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scoring(*names, failed="error", **settings):
    rewards = [{"kind": "function", "call": f"theirs:{name}", **settings} for name in names]
    return ScoringConfig.model_validate({"rewards": rewards, "workers": 1, "seconds": 30.0, "failed": failed})


def prompt(*texts, plain=True, **extra):
    completions = tuple(Completion(text, tuple(range(len(text) + 1)), "end") for text in texts)
    return Rollout("a", (Message("system", "be brief"), Message("user", "hi", plain=plain)), completions, extra)


def scores(config, *rollouts):
    with build_scorer(config) as scorer:
        found = {(index, number): score for index, number, score in scorer.score(rollouts)}
    return [found[item] for item in sorted(found)]


def test_a_text_alone_has_no_token_ids_that_a_function_could_count():
    """Preferences and answers from elsewhere: what needs ids says so, what can do without is given none."""
    told, alone = Completion("abc", (1, 2), "end"), Completion("abc", (), "end")
    rollout = Rollout("a", (Message("user", "hi", plain=True),), (told, alone))
    known, unknown = scores(scoring("tokens"), rollout)
    assert known.value == 2 and (unknown.value, unknown.status) == (None, "not_scored")
    known, unknown = scores(scoring("everything"), rollout)
    assert known.value == 2 and unknown.value is None
    assert "it is a text alone, and theirs:everything needs its completion_ids" in unknown.reason


# ---------------------------------------------------------------------------------------------------------------------
# Signatures


def form(function, signature=None, columns=()):
    return taken("f", described_signature(function), signature, columns).form


def test_the_names_of_parameters_tell_the_form():
    """Lists are TRL's, one prompt and one completion ours; nameless pairs are ours, and nothing but keywords TRL's."""

    class Judge:
        def __call__(self, completions, **kwargs):
            return [0.0]

    trl = (
        lambda completions, **kwargs: [],
        lambda completions: [],
        lambda prompts, completions, ground_truth, **kwargs: [],
        lambda completion_ids, log_metric=None, **kwargs: [],
        lambda *, completions, solution: [],
        lambda **kwargs: [],
        lambda answer, **kwargs: [],
        Judge(),
    )
    ours = (
        lambda prompt, completion: 0,
        lambda prompt, completion, **columns: 0,
        lambda prompt, text: 0,
        lambda a, b: 0,
        lambda a, b=None: 0,
        lambda *given: 0,
    )
    assert [form(one) for one in trl] == ["trl"] * len(trl)
    assert [form(one) for one in ours] == ["ours"] * len(ours)
    assert form(lambda prompt, completion, answer: 0, columns=["answer"]) == "ours"


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, **columns: 0,
        lambda *args, **kwargs: 0,
        lambda completions, prompt=None, **kwargs: [],
    ],
)
def test_what_may_be_either_is_refused_with_what_to_write(function):
    """The message names both settings; with either of them the function is called so."""
    with pytest.raises(FormError, match="may be called in two ways") as caught:
        form(function)
    assert "signature: ours" in str(caught.value) and "signature: trl" in str(caught.value)
    if "completions" not in described_signature(function)["names"]:
        assert form(function, "ours") == "ours"


async def _waits(completions, **kwargs):
    return []


class _Waits:
    async def __call__(self, completions, **kwargs):
        return []


@pytest.mark.parametrize(
    "function,signature,columns,said",
    [
        (_waits, None, (), "asynchronous"),
        (_Waits(), "trl", (), "asynchronous"),
        (lambda x: 0, None, (), r"expected call\(prompt, completion, .*signature: trl.*found \(x\)"),
        (lambda completions, trainer_state, **more: [], None, (), "trainer_state of TRL's trainer"),
        (lambda completions, environments, **more: [], None, (), "environments of TRL's trainer"),
        (lambda prompt, completion, answer: 0, None, (), r"columns: \[answer\].*found \(prompt, completion, answer\)"),
        (lambda prompt, completion: 0, None, ("answer",), "does not take answer"),
        (lambda prompt, completion: 0, "trl", (), "needs prompt, completion, of which TRL's form gives lists"),
        (lambda completions, **more: [], "ours", (), "does not take a prompt and a completion by position"),
        (lambda completions, /, **more: [], "trl", (), "does not take completions by keyword"),
        (lambda completions: [], None, ("answer",), "is not given answer"),
        (lambda completions, **more: [], None, ("prompts",), "is not given prompts"),
    ],
)
def test_what_cannot_be_called_is_refused_with_what_was_expected_and_found(function, signature, columns, said):
    """Each of TRL's cannot, and each mismatch of ours."""
    with pytest.raises(FormError, match=said):
        form(function, signature, columns)


def test_a_signature_that_cannot_be_read_must_be_told():
    """Compiled functions may have none."""
    unknown = described_signature(min)
    with pytest.raises(FormError, match="a signature that Python cannot read"):
        taken("f", unknown, None, ())
    assert taken("f", unknown, "trl", ()).form == "trl"


# ---------------------------------------------------------------------------------------------------------------------
# Calls


def test_a_quick_start_reward_scores_conversations():
    """Where the prompt is a list of messages, a completion is a list of one."""
    found = scores(scoring("letters"), prompt("abca", "zz", plain=False))
    assert [(one.value, one.status) for one in found] == [(3.0, "ok"), (1.0, "ok")]


def test_a_quick_start_reward_scores_texts_by_a_column():
    """Where the prompt is a text, a completion is one, too."""
    found = scores(scoring("accuracy"), prompt("it is 7", "8", ground_truth="7"), prompt("8", ground_truth="8"))
    assert [one.value for one in found] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("plain", [True, False])
def test_all_that_trl_gives_is_given(here, plain):
    """Prompts, completions, ids as sampled, every other column, and somewhere to log; not TRL's own names."""
    row = prompt("abc", plain=plain, task="math", answer=None, completion="of the file", trainer_state=1)
    (score,) = scores(scoring("everything"), row)
    assert score.value == 4.0
    prompts, completions, ids, kwargs = json.loads((here / "seen").read_text())
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert prompts == (["hi"] if plain else [messages])
    assert completions == (["abc"] if plain else [[{"role": "assistant", "content": "abc"}]])
    assert ids == [[0, 1, 2, 3]]
    assert kwargs == {"task": ["math"], "answer": [None]}


def test_columns_choose_what_is_given(here):
    """The recipe's columns, where it names some, are all that a function of TRL's form is given."""
    scores(scoring("everything", columns=["task"]), prompt("abc", task="math", answer=1))
    assert json.loads((here / "seen").read_text())[3] == {"task": ["math"]}


def test_what_a_reward_does_not_score_is_left_out_of_the_sum():
    """None is no zero: the others' sum is the score; where there are none, the status says so."""
    config = scoring("of_math", "of_code")
    found = scores(config, *(prompt("x", task=task) for task in ("math", "code", "poems")))
    assert [(one.value, one.status, dict(one.parts)) for one in found] == [
        (1.0, "ok", {"function": 1.0}),
        (2.0, "ok", {"function_2": 2.0}),
        (None, "not_scored", {}),
    ]
    assert found[2].reason.count("it returned None") == 2


def test_a_reward_that_has_nothing_to_say_is_not_to_blame_for_another():
    """Counts by reward name the one that failed; where the sum alone is no number, none did."""
    config = scoring("of_math", "down", "nan")
    beyond = Score(None, "not_finite", {"function": 1e308, "function_2": 1e308, "function_3": 0.0}, "the sum is inf")
    rollouts = [prompt("x", task="poems"), prompt("x", task="math")]
    scored = [[one] for one in scores(config, *rollouts)]
    assert [list(one.parts) for (one,) in scored] == [[], ["function"]]
    for found, counts in ((scored, "2 error; by reward: 2 function_2, 2 function_3"), ([[beyond]], "1 not_finite")):
        with pytest.raises(RoundError, match=re.escape(f"have no score ({counts}),")):
            refuse_unscored(rollouts[: len(found)], found, config, of="round 0", mend="Mend it.")


@pytest.mark.parametrize(
    "name,status,said",
    [
        ("three", "error", "3 values for 1 completions"),
        ("one_number", "error", "returned float; expected a list"),
        ("nothing", "error", "returned NoneType; expected a list"),
        ("nan", "not_finite", "it returned nan"),
        ("down", "error", "the service is down"),
    ],
)
def test_what_is_no_list_of_values_is_no_score(name, status, said):
    """As for our form: a status and a reason, never a silent zero."""
    (score,) = scores(scoring(name), prompt("x"))
    assert (score.value, score.status) == (None, status) and said in score.reason


def test_arrays_are_lists():
    """TRL takes whatever can be walked through."""
    assert [one.value for one in scores(scoring("as_tensor"), prompt("xyz", "x"))] == [3.0, 1.0]


def test_a_prompt_stays_a_text_on_the_disk():
    """What a row's prompt was is kept with its samples."""
    for plain in (True, False):
        row = json.loads(json.dumps(prompt("x", plain=plain).row()))
        assert Rollout.from_row(row).plain is plain and Rollout.from_row(row).row() == row
        assert ("plain" in row) is plain


# ---------------------------------------------------------------------------------------------------------------------
# Before a run


def tried(config, *prompts):
    lines = []
    remarks = check_scoring(config, prompts, show=lines.append, encode=lambda text: [1] * len(text))
    return lines, remarks


def test_each_reward_is_tried_on_two_answers():
    """The values are shown, with the form and the columns of a function, and with the row's own reference."""
    config = ScoringConfig.model_validate(
        {
            "rewards": [
                {"kind": "number"},
                {"kind": "function", "call": "theirs:everything"},
                {"kind": "function", "call": "theirs:ours", "columns": ["answer"]},
                {"kind": "function", "call": "theirs:of_math"},
            ],
            "workers": 1,
            "seconds": 30.0,
        }
    )
    lines, remarks = tried(config, prompt(answer="so #### 18", task="code"), prompt(answer="1", task="math"))
    where = "source.scoring.rewards"
    assert lines == [
        f"{where}[0] (number): 1 for 'so #### 18', 0 for 'I do not know.'",
        f"{where}[1] (function): theirs:everything of TRL's form, given answer, task: "
        r"25 for 'The answer is \\boxed{42}.', 14 for 'I do not know.'",
        f"{where}[2] (function): theirs:ours of our form, given answer: "
        r"26 for 'The answer is \\boxed{42}.', 15 for 'I do not know.'",
        f"{where}[3] (function): theirs:of_math of TRL's form, given answer, task: "
        r"None (not scored) for 'The answer is \\boxed{42}.', None (not scored) for 'I do not know.'",
    ]
    assert remarks == []


def test_nothing_is_called_unless_asked_for(here):
    """A run's own check calls no function: that may cost something."""
    check_scoring(scoring("everything"), [prompt()])
    assert not (here / "seen").exists()


def test_a_missing_column_is_refused_by_name():
    """Of TRL's form the parameters without a default are the columns that prompts must have."""
    with pytest.raises(RewardError, match=r"theirs:accuracy needs ground_truth: no such column"):
        check_scoring(scoring("accuracy"), [prompt(truth="7")])
    with pytest.raises(RewardError, match=r"no value in column 'ground_truth': 1 of 2 prompts"):
        check_scoring(scoring("accuracy"), [prompt(ground_truth="7"), prompt()])


def test_a_function_that_looks_at_other_answers_is_refused():
    """TRL gives it a batch, humanline one answer: such values would be other ones, without a word."""
    with pytest.raises(RewardError, match=r"may not depend on the other answers"):
        tried(scoring("among_others"), prompt())
    assert "other values when it is called again" in tried(scoring("by_chance"), prompt())[1][0]


def test_a_function_that_gives_nothing_is_refused_or_remarked_upon():
    """Where no answer gets a value and that would end a run, it is refused; else it is said."""
    with pytest.raises(RewardError, match="gave no value for a stand-in answer: RuntimeError: the service is down"):
        tried(scoring("down"), prompt())
    assert "the service is down" in tried(scoring("down", failed="drop"), prompt())[1][0]
    assert "RuntimeError: no answer" in tried(scoring("down_for_some"), prompt())[1][0]


# ---------------------------------------------------------------------------------------------------------------------
# Runs


@pytest.fixture
def rows(here):
    """Write six prompts with their own ground truth, as texts or as conversations."""
    path = here / "prompts.jsonl"
    lines = [{"prompt": f"{i} abc", "ground_truth": str(i), "id_of_row": i} for i in range(6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def run_of(toy, rows, output, name, count=3, **reward):
    reward = {"kind": "function", "call": f"theirs:{name}", **reward}
    rounds = {"contexts_per_round": 4, "samples": 2, "count": count, "steps": 1}
    return online(
        toy,
        rows,
        output,
        rounds=rounds,
        sampling={"max_tokens": 6, "engine": {"kind": "generate", "batch_size": 3}},
        scoring={"rewards": [reward], "workers": 2, "seconds": 30.0},
        training={"batch_size": 4, "micro_batch_size": 4},
    )


def test_a_row_s_columns_stay_its_own_in_every_pass(toy, rows, here):
    """Prompts are shuffled anew in each pass and sorted by length; a file of TRL's form gets each one's own truth."""
    config = run_of(toy, rows, here / "run", "own", count=4)
    train(config, show_progress=False)
    orders = []
    for number in range(4):
        folder = next((here / "run/rounds").glob(f"*{number:05d}"))
        rollouts = [Rollout.from_row(row) for row in read_lines(folder / "samples.jsonl")]
        orders.append([one.extra["ground_truth"] for one in rollouts])
        for rollout, own in zip(rollouts, read_lines(folder / "scores.jsonl"), strict=True):
            assert rollout.plain and rollout.prompt[-1].content == f"{rollout.extra['ground_truth']} abc"
            want = [len(set(one.text)) + int(rollout.extra["ground_truth"]) for one in rollout.completions]
            assert [score["value"] for score in own["scores"]] == want
    assert len({tuple(order) for order in orders}) > 1
    seen = [json.loads(line) for line in (here / "seen").read_text().splitlines()]
    assert {truth for _, _, truth in seen} == {truth for order in orders for truth in order} and len(seen) > 8


def test_validate_shows_what_rewards_give(toy, rows, here, capsys):
    """The report has a line a reward; a wrong signature ends it with what was expected and what was found."""
    validate(run_of(toy, rows, here / "run", "accuracy"))
    out = capsys.readouterr().out
    assert "reward       source.scoring.rewards[0] (function): theirs:accuracy of TRL's form, given ground_truth" in out
    assert "for 'I do not know.'" in out
    assert "ignored: 'ground_truth', 'id_of_row' (but by function rewards of TRL's form" in out
    (here / "theirs.py").write_text("def accuracy(x): return 1", encoding="utf-8")
    with pytest.raises(NotReadyError, match=r"expected call\(prompt, completion.*found \(x\)"):
        validate(run_of(toy, rows, here / "run", "accuracy"))


def test_runs_of_before_go_on(toy, rows, here):
    """A recipe that does not say the signature has the settings of one from before there was such a field."""
    now = run_of(toy, rows, here / "run", "own")
    tree = now.model_dump(mode="json")
    before = json.loads(json.dumps(tree))
    assert before["source"]["scoring"]["rewards"][0].pop("signature", 1) is None
    assert same_settings(before) == same_settings(tree)
    said = run_of(toy, rows, here / "run", "own", signature="trl").model_dump(mode="json")
    assert same_settings(said) != same_settings(tree)


def test_a_changed_reward_is_refused_by_name(toy, rows, here):
    """`--resume` names the file of a reward that changed, also one that it imports; with the old text it goes on."""
    (here / "helper.py").write_text("x = 1\n")
    (here / "theirs.py").write_text(FUNCTIONS + "\nimport helper\n", encoding="utf-8")
    config = run_of(toy, rows, here / "run", "own", count=2)
    config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"every": 1})})
    with pytest.raises(StopRequested):
        train(config, stop=StopAt(8), show_progress=False)
    assert list((here / "run" / "checkpoints").iterdir())
    (here / "helper.py").write_text("x = 2\n")
    with pytest.raises(CheckpointError, match="code of rewards: helper "):
        train(config, resume=True, show_progress=False)
    (here / "helper.py").write_text("x = 1\n")
    train(config, resume=True, show_progress=False)
    assert (here / "run" / "final").is_dir()


@pytest.mark.parametrize("name", ["helper", "theirs"])
def test_a_finished_run_is_not_taken_for_one_of_another_reward(toy, rows, here, name, capsys):
    """`--resume` of a finished run names the reward's file that changed or is gone; with the old text it goes."""
    (here / "helper.py").write_text("x = 1\n")
    (here / "theirs.py").write_text(FUNCTIONS + "\nimport helper\n", encoding="utf-8")
    config = run_of(toy, rows, here / "run", "own", count=1)
    made = train(config, show_progress=False)
    before = written(here / "run")
    path = here / f"{name}.py"
    text = path.read_text()
    for change in (lambda: path.write_text(text + "\n# another text\n"), path.unlink):
        change()
        said = rf"(?s)is finished, and was made by other code.*code of rewards: {name} "
        with pytest.raises(OutputError, match=said):
            train(config, resume=True, show_progress=False)
    path.write_text(text)
    assert train(config, resume=True).final == made.final
    assert "finished already, and its data were not read again" in capsys.readouterr().err
    assert written(here / "run") == before and before


def written(folder) -> dict[str, int]:
    """Return when each file of a run was written, but for its log and its locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(("run.lock", "run.log")))
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_the_code_of_rewards_is_not_imported_to_be_known(toy, rows, here):
    """Files are known by their digests, in the order of the search; runs from before kept none, and go on."""
    (here / "theirs.py").write_text("raise RuntimeError", encoding="utf-8")
    config = run_of(toy, rows, here / "run", "own")
    now = reward_sources(config)
    assert now == {"code of rewards: theirs": hashlib.sha256(b"raise RuntimeError").hexdigest()}
    assert comparable({"data": "x"}, {"data": "y", **now}) == {"data": "y"}
    assert comparable(now, now) == now and "theirs" not in sys.modules
