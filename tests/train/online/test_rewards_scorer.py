"""Scores: weights, statuses, the cache, and what is checked before a run."""

from __future__ import annotations

import itertools
import json

import pytest

from humanline.system.install import install
from humanline.train.config.rounds import ScoringConfig
from humanline.train.data.messages import Message
from humanline.train.online.rewards.cache import ScoreCache, content_key
from humanline.train.online.rewards.check import RewardError, check_scoring
from humanline.train.online.rewards.scorer import build_scorer, reward_names
from humanline.train.online.rewards.verdict import Verdict
from humanline.train.online.types import Completion, Rollout

FUNCTIONS = """
def paid(prompt, completion, **columns):
    with open("calls", "a") as file:
        file.write(completion + "\\n")
    if completion == "fail":
        raise RuntimeError("the service is down")
    return len(completion) + len(prompt) + len(columns)

def nan(prompt, completion):
    return float("nan")

def huge(prompt, completion):
    return 1e308
"""
PAID = {"kind": "function", "call": "paid_rewards:paid"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with callables, which is the current one."""
    (tmp_path / "paid_rewards.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scoring(*rewards, **settings):
    settings = {"seconds": 30.0, "memory": 256, **settings}
    return ScoringConfig.model_validate({"rewards": [dict(reward) for reward in rewards], **settings})


def rollout(name, *texts, prompt="hi", **extra):
    return Rollout(name, (Message("user", prompt),), tuple(Completion(t, (), "end") for t in texts), extra)


def scores(config, rollouts, cache=None):
    with build_scorer(config, cache=cache) as scorer:
        return collected(scorer, rollouts)


def collected(scorer, rollouts):
    found = {}
    for index, number, score in scorer.score(rollouts):
        assert (index, number) not in found
        found[index, number] = score
    assert sorted(found) == [(i, j) for i, one in enumerate(rollouts) for j in range(len(one.completions))]
    return found


def calls(here):
    return (here / "calls").read_text().splitlines() if (here / "calls").exists() else []


def test_a_score_is_the_weighted_sum_of_its_rewards():
    """Weights 8, 1 and 1 for accuracy, format and tags; the parts are unweighted, the reason says how it was read."""
    config = scoring({"kind": "number", "weight": 8.0}, {"kind": "format"}, {"kind": "tag_count", "weight": 1.0})
    whole = "<think>\nx\n</think>\n<answer>\n5\n</answer>"
    found = scores(config, [rollout("a", whole, "5", "6", answer="#### 5"), rollout("b"), rollout("c", "7", answer=7)])
    assert {item: score.value for item, score in found.items()} == {(0, 0): 10.0, (0, 1): 8.0, (0, 2): 0.0, (2, 0): 8.0}
    assert found[0, 0].parts == {"number": 1.0, "format": 1.0, "tag_count": 1.0}
    assert found[0, 2].parts == {"number": 0.0, "format": 0.0, "tag_count": 0.0}
    assert found[0, 2].status == "ok" and found[0, 2].reason == "number: read as 6"


def test_rewards_of_one_kind_have_names_of_their_own():
    """The second reward of a kind is numbered."""
    config = scoring({"kind": "format"}, {"kind": "tag_count"}, {"kind": "format", "pattern": "x", "weight": -1.0})
    assert reward_names(config.rewards) == ["format", "tag_count", "format_2"]
    assert scores(config, [rollout("a", "x")])[0, 0].parts == {"format": 0.0, "tag_count": 0.0, "format_2": 1.0}
    assert scores(config, [rollout("a", "x")])[0, 0].value == -1.0


def test_one_reward_without_a_value_leaves_no_score():
    """The score has the first failed reward's status, names it, and keeps the other parts; `failed` is not applied."""
    config = scoring(
        {"kind": "tag_count"}, {"kind": "number"}, {"kind": "function", "call": "paid_rewards:nan"}, failed=3.0
    )
    found = scores(config, [rollout("a", "5", answer="none"), rollout("b", "5", answer="5"), rollout("c", "5")])
    assert [found[i, 0].status for i in range(3)] == ["no_reference", "not_finite", "no_reference"]
    assert all(score.value is None for score in found.values())
    assert found[0, 0].parts == {"tag_count": 0.0} and found[1, 0].parts == {"tag_count": 0.0, "number": 1.0}
    assert found[0, 0].reason.startswith("source.scoring.rewards[1] (number): the reference holds no number: 'none'; ")
    assert "source.scoring.rewards[2] (function): it returned nan" in found[0, 0].reason
    assert "c has no column 'answer'" in found[2, 0].reason


def test_a_sum_beyond_floats_is_no_score():
    """Finite parts may have an infinite sum, which is a status."""
    config = scoring({"kind": "function", "call": "paid_rewards:huge", "weight": 10.0})
    score = scores(config, [rollout("a", "x")])[0, 0]
    assert (score.value, score.status, score.parts) == (None, "not_finite", {"function": 1e308})


def test_long_completions_are_not_read():
    """More than 100 000 characters are too long, and exactly as many are not."""
    found = scores(scoring({"kind": "tag_count"}), [rollout("a", "x" * 100_001, "x" * 100_000)])
    assert [found[0, j].status for j in range(2)] == ["too_long", "ok"]


def test_columns_that_are_no_json_are_said():
    """A column that cannot be sent to a worker is that completion's error."""
    config = scoring({**PAID, "columns": ["when"]})
    found = scores(config, [rollout("a", "x", when={1, 2}), rollout("b", "x", when=3)])
    assert found[0, 0].status == "error" and "prompt a is no JSON" in found[0, 0].reason
    assert found[1, 0].value == 3.0


def test_a_paid_reward_is_called_once_for_each_content(here):
    """Calls equal the number of distinct completions: within a call, in later ones, and after a new start."""
    cache = here / "folder" / "cache.jsonl"
    config = scoring({**PAID, "columns": ["answer"]})
    rollouts = [
        rollout("a", "x", "y", "x", answer=1, other=1),
        rollout("b", "y", "z", answer=1, other=2),  # y is known: the column that differs is not given to the reward
        rollout("c", "x", answer=2),
        rollout("d", "x", prompt="ho", answer=1),
    ]
    with build_scorer(config, cache=cache) as scorer:
        first = collected(scorer, rollouts)
        assert sorted(calls(here)) == ["x", "x", "x", "y", "z"]
        assert collected(scorer, rollouts) == first
    assert scores(config, rollouts, cache) == first
    assert len(calls(here)) == 5 and len(cache.read_text().splitlines()) == 5
    other = scoring({**PAID, "columns": ["answer"], "weight": 2.0})
    assert scores(other, rollouts, cache)[0, 0].value == 2 * first[0, 0].value
    assert len(calls(here)) == 5  # a weight changes no call
    (here / "paid_rewards.py").write_text(FUNCTIONS + "\n# another version\n", encoding="utf-8")
    scores(config, rollouts, cache)
    assert len(calls(here)) == 10  # another file may be another reward


def test_a_cache_in_memory_lasts_as_long_as_its_scorer(here):
    """Without a file a second call knows the first one's values too."""
    with build_scorer(scoring(PAID)) as scorer:
        assert collected(scorer, [rollout("a", "x")]) == collected(scorer, [rollout("b", "x")])
    assert calls(here) == ["x"]


def test_failures_are_asked_again(here):
    """A status is shared by identical completions of one call, and not kept for the next one."""
    with build_scorer(scoring(PAID), cache=here / "cache.jsonl") as scorer:
        for times in (1, 2):
            found = collected(scorer, [rollout("a", "fail", "fail", "x")])
            assert [found[0, j].status for j in range(3)] == ["error", "error", "ok"]
            assert "the service is down" in found[0, 0].reason
            assert calls(here).count("fail") == times and calls(here).count("x") == 1


def test_what_was_paid_is_on_disk_before_it_is_told(here):
    """Whenever a score of a callable is seen, its line is in the file."""
    cache = here / "cache.jsonl"
    with build_scorer(scoring(PAID), cache=cache) as scorer:
        for seen, _ in enumerate(scorer.score([rollout("a", *map(str, range(20)))]), start=1):
            assert len(cache.read_text().splitlines()) >= seen


def test_giving_up_keeps_what_was_scored(here):
    """A generator that is closed early has written what it had, cheap results too, and the scorer goes on."""
    cache = here / "cache.jsonl"
    many = [rollout("a", *map(str, range(50)), answer=1)]
    with build_scorer(scoring({"kind": "number"}), cache=cache) as scorer:
        running = scorer.score(many)
        seen = list(itertools.islice(running, 10))
        running.close()
        assert len(cache.read_text().splitlines()) >= len(seen)
        assert len(collected(scorer, many)) == 50
    assert len(cache.read_text().splitlines()) == 50


def test_a_torn_cache_is_read_as_far_as_it_goes(tmp_path):
    """Torn, foreign and damaged lines are passed over, and what is written next starts on a line of its own."""
    path = tmp_path / "cache.jsonl"
    keys = [content_key(i) for i in range(3)]
    cache = ScoreCache(path)
    for key, value in zip(keys, (0.5, 1.0, 2.0), strict=True):
        cache.put(key, Verdict(value, reason="r"))
    cache.put(content_key("status"), Verdict(None, "timeout"))
    cache.close()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    damaged = b'{"key": "%s", "value": NaN, "reason": ""}\n' % content_key(3).hex().encode()
    path.write_bytes(lines[0] + b"[1]\nnot json\n\xff\xfe\n" + damaged + lines[1] + lines[2][:-20])
    cache = ScoreCache(path)
    assert [cache.get(key) for key in keys] == [Verdict(0.5, reason="r"), Verdict(1.0, reason="r"), None]
    assert cache.get(content_key(3)) is None and cache.get(content_key("status")) is None
    cache.put(keys[2], Verdict(2.0))
    cache.put(keys[2], Verdict(3.0))
    cache.close()
    assert [ScoreCache(path).get(key).value for key in keys] == [0.5, 1.0, 2.0]


def test_what_another_process_has_scored_is_not_scored_again(tmp_path, monkeypatch):
    """With another number of processes answers change hands: a process reads all caches, and writes its own."""
    config, one = scoring({"kind": "tag_count"}), rollout("a", "<think>b</think>")
    own, other = tmp_path / "cache-rank-0.jsonl", tmp_path / "cache-rank-1.jsonl"
    first = scores(config, [one], cache=other)
    text = other.read_bytes()
    with build_scorer(config, cache=own, others=[other]) as scorer:
        asked = []
        monkeypatch.setattr(scorer._pool, "run", lambda tasks: (one for one in asked.extend(tasks) or ()))
        assert collected(scorer, [one]) == first and not asked
    assert own.read_bytes() == b"" and other.read_bytes() == text


def test_keys_tell_contents_apart():
    """A key is that of the content alone, whatever the order of names, and lone surrogates have one."""
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert len({content_key(what) for what in ("a", "b", 1, "1", None, ["a"], "\ud800", "a\n")}) == 8


# ---------------------------------------------------------------------------------------------------------------------
# Before a run


def problems(config, prompts):
    with pytest.raises(RewardError) as caught:
        check_scoring(config, prompts)
    return str(caught.value).splitlines()


def test_rewards_that_fit_pass_the_check():
    """Readable references, callables and patterns are let through."""
    config = scoring({"kind": "math"}, {"kind": "number"}, {"kind": "format"}, {**PAID, "columns": ["answer", "more"]})
    check_scoring(config, [rollout("a", answer="5", more=None), rollout("b", answer=r"#### 7", more=1)])


def test_what_workers_do_not_get_is_said(here, monkeypatch):
    """Variables that look like secrets are named, not shown, once; and again with a reward that fails without one."""
    prompts = [rollout("a", answer="5")]
    for name in ("A_TOKEN", "SERVICE_KEY"):
        monkeypatch.setenv(name, "the-value")
    wanted = "worker processes of scoring do not get what looks like a secret: A_TOKEN, SERVICE_KEY; a function reward"
    (remark,) = check_scoring(scoring({"kind": "number"}), prompts)
    assert remark.startswith(wanted) and "source.scoring.environment.keep" in remark and "the-value" not in remark
    (here / "paying.py").write_text("import os\nkey = os.environ['SERVICE_KEY']\ndef f(prompt, completion): return 1\n")
    paying = {"kind": "function", "call": "paying:f"}
    found = problems(scoring(paying), prompts)
    assert "KeyError: 'SERVICE_KEY'" in found[0] and found[1].startswith(wanted)
    kept = scoring(paying, environment={"keep": ["SERVICE_KEY", "NOT_SET"], "drop": ["A_TOKEN"]})
    (remark,) = check_scoring(kept, prompts)
    assert remark == "source.scoring.environment.keep: NOT_SET cannot be kept: not set in the environment"
    with pytest.raises(ValueError, match="keep and drop both name A"):
        scoring(paying, environment={"keep": ["A"], "drop": ["A"]})


def test_unknown_columns_are_named():
    """A mistyped column is named with the nearest one, for every reward at once."""
    config = scoring({"kind": "number", "answer": "anser"}, {**PAID, "columns": ["wh"]})
    found = problems(config, [rollout("a", answer="5", why="x")])
    assert found == [
        "source.scoring.rewards[0] (number): anser: no such column; did you mean answer?",
        "source.scoring.rewards[1] (function): wh: no such column; did you mean why?",
    ]
    assert "no columns but the prompt" in problems(scoring({"kind": "math"}), [rollout("a")])[0]


def test_prompts_without_a_usable_reference_are_named_and_counted():
    """Missing, empty and unreadable references are told apart, with the first few names."""
    prompts = [rollout(f"row {i}", answer=[None, " ", "x", "5"][i % 4]) for i in range(40)] + [rollout("last")]
    found = problems(scoring({"kind": "number"}), prompts)
    assert found == [
        "source.scoring.rewards[0] (number): no value in column 'answer': 21 of 41 prompts: row 0, row 1, row 4, "
        "row 5, row 8 and 16 more",
        "source.scoring.rewards[0] (number): the value in column 'answer' cannot be read: 10 of 20 prompts: row 2, "
        "row 6, row 10, row 14, row 18 and 5 more",
    ]
    found = problems(scoring({"kind": "math"}), [rollout("a", answer=r"\boxed{}"), rollout("b", answer={"x": {1}})])
    assert found == [
        "source.scoring.rewards[0] (math): the value in column 'answer' cannot be read: 2 of 2 prompts: a, b"
    ]


def test_more_prompts_without_a_reference_than_may_lack_a_score_are_refused():
    """Where failed is no error, half of the prompts may lack a reference and are told of, and one more may not."""
    prompts = [rollout(f"row {i}", answer="5" if i % 2 else "none") for i in range(10)]
    for failed in ("drop", 0.0):
        config = scoring({"kind": "number"}, failed=failed)
        (remark,) = check_scoring(config, prompts)
        assert "cannot be read: 5 of 10 prompts" in remark
        (found,) = problems(config, prompts[:-1])
        assert "5 of 9 prompts" in found and found.endswith("; a larger share than source.scoring.failed_share")
        assert len(check_scoring(config.model_copy(update={"failed_share": 1.0}), prompts[:-1])) == 1


def test_callables_patterns_and_models_are_tried(here):
    """What cannot be imported, called, compiled or found is said at once; nothing is imported here."""
    (here / "loud.py").write_text("import os\nopen('imported', 'a').write(str(os.getpid()))\ndef f(p, c): return 1\n")
    config = scoring({"kind": "function", "call": "loud:f"}, {"kind": "function", "call": "loud:g"})
    (found,) = problems(config, [rollout("a")])
    assert found.startswith("source.scoring.rewards[1] (function): loud:g cannot be imported: AttributeError")
    import os

    assert str(os.getpid()) not in (here / "imported").read_text()
    found = problems(
        scoring({"kind": "format", "pattern": "(a"}, {"kind": "model", "model": "nowhere"}), [rollout("a")]
    )
    assert found[0].startswith("source.scoring.rewards[0] (format): '(a' is no regular expression: missing )")
    assert found[1].startswith("source.scoring.rewards[1] (model): model 'nowhere': no config.json")


def test_math_verify_must_be_there(monkeypatch):
    """Without math-verify the reward `math` is refused, with the command that installs it."""
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "math_verify" else find(name))
    (found,) = problems(scoring({"kind": "math"}), [rollout("a", answer="5")])
    assert found.endswith(f"math-verify is not installed: {install('rewards')}")


def test_scores_survive_as_json(here):
    """The cache's file is JSON lines of a key, a value and a reason."""
    cache = here / "cache.jsonl"
    scores(scoring({"kind": "number"}), [rollout("a", "5", answer="5")], cache)
    (row,) = map(json.loads, cache.read_text().splitlines())
    assert row.keys() == {"key", "value", "reason"} and row["value"] == 1.0 and len(row["key"]) == 64


def test_two_scorers_of_one_file_pay_once(tmp_path):
    """What another process has written to the cache is known after a refresh; a line under way is waited for."""
    path = tmp_path / "cache.jsonl"
    one, other = ScoreCache(path), ScoreCache(path)
    key = content_key("x")
    one.put(key, Verdict(0.5))
    one.flush()
    assert other.get(key) is None
    other.refresh()
    assert other.get(key).value == 0.5
    line = json.dumps({"key": content_key("y").hex(), "value": 1.0, "reason": ""}).encode() + b"\n"
    with open(path, "ab", buffering=0) as file:
        file.write(line[:20])
        assert other.refresh() and other.get(content_key("y")) is None
        file.write(line[20:])
    assert not other.refresh() and other.get(content_key("y")).value == 1.0


def test_dear_values_are_written_at_once_and_flushed_to_the_disk_together(tmp_path, monkeypatch):
    """A kill costs no call of a function; a hundred cheap ones in a row do not wait for a hundred flushes of a disk."""
    from humanline.train.online.rewards import cache as module

    synced, now = [], [100.0]
    monkeypatch.setattr(module, "sync", lambda file, path: synced.append(path.read_bytes().count(b"\n")))
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    path = tmp_path / "cache.jsonl"
    cache = ScoreCache(path)
    for place in range(100):
        now[0] += 0.004
        cache.put(content_key(place), Verdict(float(place)))
        cache.flush(dear=True)
        assert path.read_bytes().count(b"\n") == place + 1
    assert 2 <= len(synced) <= 4
    cache.flush()
    assert synced[-1] == 100
    cache.flush()
    assert synced.count(100) == 1  # what is there already is not flushed again
    cache.close()
