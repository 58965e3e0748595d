"""A secret of a recipe reaches whom it is for, and nothing else: no file, no line, no tracker, no error."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from humanline.cli import main
from humanline.system import terminal
from humanline.system.files import OutputError, write_text
from humanline.system.progress import RunProgress
from humanline.train.config import TrainConfig
from humanline.train.config.secrets import hidden, learn, written
from humanline.train.online.commands import ToolError, _claimed
from humanline.train.online.make import Plan
from humanline.train.run.checkpoint import FORMAT, CheckpointError, Contents
from humanline.train.run.fingerprint import same_settings
from humanline.train.run.folder import RunFolder
from tests.helpers.model_server import ModelServer
from tests.helpers.scripted_server import Reply, serving
from tests.train.online.test_served import online
from tests.train.run.test_tracking import fakes  # noqa: F401

CANARY = "kanarie-5f3a/+1"
EACH = [f"{number}{CANARY}" for number in range(8)]


@pytest.fixture(autouse=True)
def forgetting(monkeypatch):
    """Secrets of one test are not those of the next."""
    monkeypatch.setattr(terminal, "_remembered", set())


def recipe_of(toy, prompts, tmp_path, url, secrets, engine=(), **changes) -> list[str]:
    """The arguments of a run whose recipe holds eight secrets: seven of its own, and one on the command line."""
    query, key, header, option, body, login, _, argument = secrets  # and a variable
    new_weights = {
        "kind": "request",
        "requests": [
            {
                "path": f"/update?api_key={query}",
                "body": {"folder": "{path}", "auth": {"apiKey": key}, "headers": {"Authorization": f"Bearer {header}"}},
            }
        ],
    }
    argv = {"argv": ["run", "--token", option], "env": f"HF_TOKEN={body} DEBUG=1"}
    new_weights["requests"].append({"path": "/other", "body": argv})
    engine = {
        "url": url.replace("http://", f"http://user:{quote(login, safe='')}@"),
        "key_variable": "MY_LOGIN",
        "new_weights": new_weights,
    } | dict(engine)
    config = online(toy, prompts, tmp_path / "run", url, rounds={"count": 2}, **changes)
    tree = config.model_dump(mode="json")
    tree["source"]["sampling"]["engine"] = engine | {"kind": "server", "concurrency": 2, "attempts": 1}
    tree["tracking"] = {"trackers": ["wandb"]}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(tree))
    sleep = [{"path": "/sleep", "body": {"password": argument}}]
    return [str(recipe), f"source.sampling.engine.new_weights.sleep={json.dumps(sleep)}"]


def hits(folder: Path, *texts: str, canary: str = CANARY) -> list[str]:
    """Where a canary is, in any of the ways it may be written."""
    forms = {canary, json.dumps(canary)[1:-1], canary.replace("/", "%2F").replace("+", "%2B")}
    files = {str(path): path.read_text("latin1") for path in folder.rglob("*") if path.is_file()}
    files |= {f"text {number}": text for number, text in enumerate(texts)}
    return [f"{form} in {name}" for name, text in files.items() for form in forms if form in text]


def test_no_secret_of_a_recipe_gets_into_a_run(toy, prompts, tmp_path, capfd, monkeypatch, fakes):  # noqa: F811
    """Eight secrets, a server that repeats them, a fault that does: none is in the folder, the output or a tracker.

    A key that was replaced does not keep the run from going on.
    """
    monkeypatch.setenv("MY_LOGIN", EACH[6])
    refusing = True

    class Echo(ModelServer):
        def __call__(self, asked):
            asked.path = asked.path.partition("?")[0]
            if asked.path == "/update" and refusing and self.updates == 1:
                said = [asked.body, EACH[0], asked.headers.get("Authorization"), EACH[6], EACH[7]]
                return Reply({"error": {"message": f"not allowed: {said}"}}, status=403)
            return super().__call__(asked)

    with serving(Echo(toy["model"])) as server:
        words = recipe_of(toy, prompts, tmp_path, server.url, EACH)
        assert main(["validate", *words]) == 0
        assert main(["train", *words]) == 2
        said = "".join(capfd.readouterr())
        assert "403" in said and "not allowed" in said and "***" in said
        assert not hits(tmp_path / "run", said, str(fakes.made["wandb"].given))
        plan = json.loads((tmp_path / "run/rounds/00000/plan.json").read_text())
        sent = plan["settings"]["source.sampling.engine.new_weights.requests"][0]
        assert sent["path"] == "/update?api_key=***" and sent["body"]["headers"] == {"Authorization": "Bearer ***"}

        refusing = False
        others = [secret.replace("5f3a", "9b8c") for secret in EACH]
        monkeypatch.setenv("MY_LOGIN", others[6])
        words = recipe_of(toy, prompts, tmp_path, server.url, others)
        with monkeypatch.context() as patch:

            def fault(self, step, metrics):
                raise RuntimeError(f"a library that tells: {others}")

            patch.setattr(RunProgress, "step", fault)
            patch.delenv("HUMANLINE_DEBUG", raising=False)
            assert main(["train", *words, "--resume"]) == 1
        assert main(["train", *words, "--resume"]) == 0
    said = "".join(capfd.readouterr())
    assert (tmp_path / "run/error.log").is_file() and "a library that tells" in said
    assert not hits(tmp_path / "run", said, str(fakes.made["wandb"].given))
    assert not hits(tmp_path / "run", said, str(fakes.made["wandb"].given), canary=CANARY.replace("5f3a", "9b8c"))
    assert any("9b8c" in str(asked.headers) + str(asked.body) for asked in server.asked)  # it is sent as it is


COMMAND = ["push", "--token", CANARY, f"--api-key={CANARY}", f"TOKEN={CANARY}", "-H", f"Authorization: Bearer {CANARY}"]
COMMAND += ["-u", f"me:{CANARY}", f"bash -c 'A_TOKEN={CANARY} x --password {CANARY} body: api_key={CANARY}'"]
COMMAND += [f"http://me:{CANARY.replace('/', '%2F')}@host/x?b=1&sig={CANARY}"]
COMMAND += ["-d", json.dumps({"api_key": CANARY, "n": 1})]


@pytest.mark.parametrize(
    "tree,clean",
    [
        (
            {"api_key": "x", "a": {"b": [{"Authorization": "Basic x"}]}},
            {"api_key": "***", "a": {"b": [{"Authorization": "Basic ***"}]}},
        ),
        (
            {"max_tokens": 16, "stop_tokens": "a", "password": 1234, "token": None},
            {"max_tokens": 16, "stop_tokens": "a", "password": "***", "token": None},
        ),
        (
            {"headers": [["X-Api-Key", "x"]], "env": [{"name": "TOKEN", "value": "x"}]},
            {"headers": [["X-Api-Key", "***"]], "env": [{"name": "TOKEN", "value": "***"}]},
        ),
        ({"key": "{name}", "secret": "$HOME_KEY", "path": "{path}"}, None),
        ({"author": "me", "tokenizer": "gpt", "passage": "x", "design": "y"}, None),
    ],
)
def test_names_tell_secrets(tree, clean):
    """Keys, pairs and headers tell what is a secret; counts and what stands for something else are none."""
    assert hidden({"new_weights": {"body": tree}})["new_weights"]["body"] == (clean or tree)


def test_words_of_a_command_are_hidden_and_the_rest_can_be_read():
    """Every way in which a command names a secret is known, and a message that repeats one later hides it."""
    config = {"source.sampling.engine.new_weights.command": COMMAND}
    text = json.dumps(hidden(config))
    assert "kanarie" not in text and all(word in text for word in ("push", "--token", "-H", "host/x?b=1", "bash -c"))
    learn(config)
    assert terminal.told(f"curl: no access with {CANARY}") == "curl: no access with ***"


def test_free_form_settings_are_all_where_names_count():
    """No section takes any JSON, or a command, but those in which names tell what is a secret."""
    found: list[str] = []

    def walk(schema, names):
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name not in names:
                walk(definitions[name], [*names, name])
        for key, part in schema.get("properties", {}).items():
            takes_any = not {"type", "$ref", "anyOf", "oneOf", "const", "enum", "allOf"} & set(part)
            by_name = key in ("command", "headers", "arguments", "environment")
            if takes_any or (by_name and "$ref" not in part):  # a section has fields of its own, looked at below
                found.append(".".join([*names, key]))
            walk(part, names)
        for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for part in schema.get(key, ()):
                walk(part, names)
        if isinstance(schema.get("items"), dict):
            walk(schema["items"], names)

    definitions = (schema := TrainConfig.model_json_schema())["$defs"]
    walk(schema, [])
    places = {one.split(".", 2)[-1] if "ServerEngine" in one else one for one in found}
    assert found and all("ServerEngine" in one for one in found), places
    assert {one.split("ServerEngine.")[1].split(".")[0] for one in found} == {"ByRequest", "ByCommand"}


@pytest.mark.parametrize(
    "override",
    [
        f"source.sampling.engine.new_weights={{kind: command, command: push --token {CANARY}}}",
        f"source.sampling.engine.new_weights={{kind: request, body: {{api_key: '{CANARY}'}}}}",
        f"source.sampling.engine.new_weights={{kind: post, headers: {{Authorization: '{CANARY}'}}}}",
        f"source.sampling.engine.model={{password: '{CANARY}'}}",
        f"source.sampling.engine.url='ftp://me:{CANARY}@host'",
        f"source.sampling.engine.url='http://me:{CANARY}@host'",
        f"source.sampling.engine.new_weights.body.api_key={{{CANARY}",
        f"--api-key={CANARY}",
    ],
)
def test_problems_of_a_recipe_do_not_show_its_secrets(toy, prompts, tmp_path, capfd, override):
    """What is wrong with a setting is said without the secret that is in it, and train and validate agree."""
    recipe, _ = recipe_of(toy, prompts, tmp_path, "http://127.0.0.1:1", EACH)
    for command in ("train", "validate"):
        try:
            assert main([command, recipe, override]) == 2
        except SystemExit as error:
            assert error.code == 2
    said = "".join(capfd.readouterr())
    assert said
    assert "kanarie" not in said.replace(recipe, "")


def test_a_command_that_fails_is_told_of_without_its_secrets(toy, prompts, tmp_path, capfd):
    """A command's words and its last words are shown with the secrets taken out; it gets them as they are."""
    seen = tmp_path / "seen"
    script = f"import sys; open({str(seen)!r}, 'w').write(str(sys.argv)); print(sys.argv); sys.exit(3)"
    how = {"kind": "command", "command": [sys.executable, "-c", script, *COMMAND, "{path}"]}
    recipe, _ = recipe_of(
        toy, prompts, tmp_path, "http://127.0.0.1:1", EACH, {"new_weights": how, "key_variable": None}
    )
    assert main(["train", recipe, "tracking.trackers=[]"]) == 2
    said = "".join(capfd.readouterr())
    assert "ended with status 3" in said and CANARY in seen.read_text()
    assert not hits(tmp_path / "run", said)


def plan_of(settings) -> Plan:
    return Plan(3, "abc", ("a", "b"), settings)


def test_plans_are_compared_as_they_truly_are(tmp_path, monkeypatch):
    """A plan written with an environment that hides a part of it is known again without, and another part is not."""
    file = tmp_path / "plan.json"
    monkeypatch.setenv("SOME_KEY", "models-of-2026-07")
    before = plan_of({"source.sampling.engine.model": "models-of-2026-07/small", "seed": 1})
    file.write_text(before.text())
    assert "models-of-2026-07" not in file.read_text() and before.is_in(file)
    monkeypatch.delenv("SOME_KEY")
    assert before.is_in(file)
    monkeypatch.setenv("SOME_KEY", "models-of-2026-08")
    other = plan_of({"source.sampling.engine.model": "models-of-2026-08/small", "seed": 1})
    assert json.loads(other.text())["settings"] == json.loads(file.read_text())["settings"]
    assert not other.is_in(file)


def test_plans_of_before_are_gone_on_with(tmp_path):
    """A plan that was written in clear, without a digest or with a setting that is free now, is the same plan."""
    file = tmp_path / "plan.json"
    body, name = {"api_key": "old-secret", "folder": "{path}"}, "source.sampling.engine.new_weights.body"
    now = plan_of({f"{name}.api_key": "***", f"{name}.folder": "{path}", "seed": 1})
    old = {f"{name}.{key}": value for key, value in body.items()} | {"seed": 1}
    facts = {"round": 3, "policy": "abc", "contexts": ["a", "b"]}
    file.write_text(json.dumps(facts | {"settings": old}))
    assert now.is_in(file)
    file.write_text(json.dumps(facts | {"settings": old | {"source.sampling.engine.url": "http://x"}, "digest": "0"}))
    assert now.is_in(file)
    file.write_text(json.dumps(facts | {"settings": old | {"seed": 2}}))
    assert not now.is_in(file)


def test_settings_in_python_are_known_too(toy, prompts, tmp_path):
    """A configuration that was made in Python hides its secrets as one that was read does."""
    config = online(toy, prompts, tmp_path / "run", f"http://me:{CANARY.replace('/', '%2F')}@127.0.0.1:1")
    assert "kanarie" not in json.dumps(written(config)) and terminal.told(f"x {CANARY}") == "x ***"


def test_work_of_a_stage_holds_no_secret_and_goes_on_with_another(tmp_path):
    """The plan beside a stage's output is without the key; another key goes on with it, another command does not."""

    def plan(command: list[str]) -> dict:
        learn(settings := {"engine": {"new_weights": {"command": command}}})
        return {"seed": 1, **same_settings({"source": {"sampling": settings}})}

    def work(command: list[str], fault: type[BaseException] | None = None) -> Path:
        with _claimed(str(target), target, None, print) as work:
            folder = work.begin(plan(command))
            if fault is not None:
                write_text(folder / "samples.journal.jsonl", "{}\n")  # with a plan alone there is no work to go on with
                raise fault
            write_text(work.finished, "{}\n")
            work.publish()
        return folder

    target = tmp_path / "samples.jsonl"
    with pytest.raises(KeyError):
        work(["push", "--token", CANARY], KeyError)
    plan_file = tmp_path / "samples.jsonl.partial/plan.json"
    assert not hits(tmp_path) and "--token" in plan_file.read_text()
    with pytest.raises(ToolError, match="begun with another model") as caught:
        work(["pull", "--token", "a-third-one"])
    told = str(caught.value)  # what differs, and that alone
    assert (
        '["push", "--token", "***"]  ["pull", "--token", "***"]' in told and "seed" not in told and not hits(tmp_path)
    )
    kept = plan_file.read_text()
    plan_file.write_text("[]")
    with pytest.raises(ToolError, match=r"another --out\n  plan\.json there is damaged, or is gone"):
        work(["push", "--token", CANARY])
    plan_file.write_text(kept)
    assert not work(["push", "--token", "another"]).exists() and target.is_file()


@pytest.mark.parametrize("secret", ["review2", "a-long-word-of-16-letters"])
def test_a_replaced_key_that_is_a_word_of_a_path_resumes(tmp_path, monkeypatch, secret):
    """The same recipe goes on with another key or environment, whatever the old one hid; another model does not."""

    def settings(model: str, key: str, **environment: str) -> dict:
        body = {"password": key, "folder": "{path}", "note": ["keep", f"as {secret}"]}
        new_weights = {"kind": "request", "path": "/update", "body": body}
        toy, engine = {"model": model, "pairs": "x"}, {"new_weights": new_weights}
        config = online(toy, "x", tmp_path, "http://127.0.0.1:1", engine)
        with monkeypatch.context() as patch:
            patch.setattr(terminal, "_remembered", set())
            for name, value in environment.items():
                patch.setenv(name, value)
            return written(config)

    def resume(before: dict, now: dict, refused: str | None = None) -> None:
        def fails(error):
            return contextlib.nullcontext() if refused is None else pytest.raises(error, match=refused)

        (tmp_path / "config.json").write_text(json.dumps(before))
        with fails(OutputError):
            folder.refuse_other_settings(now)
        facts = {"format": FORMAT, "config": before, "fingerprints": {}}
        contents = Contents(shared={}, own={}, config=now, fingerprints={}, software={}, metrics=tmp_path)
        with fails(CheckpointError):
            contents.refuse_another_run(tmp_path, facts)

    folder, model = RunFolder(tmp_path, resume=True), f"/tmp/{secret}/model"
    first = settings(model, secret)
    assert "password" in str(first) and f"as {secret}" not in str(first)
    in_dir = settings(model, "other", MY_KEY_DIR=f"/tmp/{secret}")
    for other in (settings(model, "another-key"), in_dir):
        resume(first, other)
        resume(other, first)
    resume(settings("/x/else", secret), first, r"model +/x/else")
    resume(settings("/x/else", "another-key"), in_dir, r"model +/x/else")
    resume(settings("/x/else", "another-key"), settings(model, "another-key"), r"model +/x/else")
    if secret == "review2":  # too short to be taken out of a path
        resume(settings("/tmp/else/model", secret), first, r"model +/tmp/else/model +/tmp/review2/model")
