"""The command line, as a user meets it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from humanline.cli import _parser, main


@pytest.fixture
def recipe(toy, tmp_path):
    """A good recipe of two steps, with its output in tmp_path / "run"."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"model: {toy['model']}\n"
        f"output: {tmp_path / 'run'}\n"
        "objective: {kind: dpo}\n"
        f"data: {{train: {toy['pairs']}, max_length: 64}}\n"
        "training: {steps: 2, batch_size: 4}\n"
        "optimizer: {lr: 1e-3}\n"
    )
    return path


def test_train_from_the_command_line(recipe, tmp_path, capsys):
    """`humanline train` runs a recipe with overrides and leaves a model in Hugging Face format."""
    assert main(["train", str(recipe), "training.steps=3"]) == 0
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "run" / "config.json").read_text())["training"]["steps"] == 3
    err = capsys.readouterr().err
    assert "step 3/3  loss" in err and f"model: {tmp_path / 'run' / 'final'}" in err


@pytest.mark.parametrize(
    "change,message",
    [
        ("trainer.steps=3", "trainer: unknown key; did you mean training?"),
        ("data.train=nowhere.jsonl", "nowhere.jsonl"),
        ("model=./nowhere", "no config.json in"),
        ("training.batch_size=1000", "larger than the data"),
        ("data.train=" + "x" * 400, "file name too long"),
        ("data.columns={chosen: better}", "no column 'better'"),
    ],
)
def test_a_mistake_gives_a_message_and_exit_code_2(recipe, tmp_path, capsys, change, message):
    """Mistakes of a user end with exit code 2 and a message of a dozen lines at most, without a traceback."""
    assert main(["train", str(recipe), change]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err and len(err.splitlines()) <= 30
    assert not (tmp_path / "run").exists()


def test_numbers_that_are_not_finite_have_their_own_exit_code(recipe, tmp_path, capsys):
    """A run that blows up ends with exit code 3 and names examples."""
    assert main(["train", str(recipe), "--quiet", "optimizer={lr: 1e30, warmup_fraction: 0.0}"]) == 3
    assert "pairs.jsonl:" in capsys.readouterr().err


def test_a_fault_is_named_and_its_traceback_kept(recipe, tmp_path, monkeypatch, capsys):
    """A ValueError from inside a library is a fault, not a user's mistake: exit code 1, a line, and a log."""
    import torch

    def broken(*args, **kwargs):
        return int("not a number")

    monkeypatch.setattr(torch.optim, "AdamW", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["train", str(recipe), "--quiet"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "humanline train: a fault inside humanline or a library, not in your input: ValueError: invalid literal"
    )
    log = Path(second.removeprefix("The traceback is in "))
    assert log.parent == tmp_path and log.stat().st_mode & 0o077 == 0  # for its owner's eyes only
    text = log.read_text()
    assert "Traceback (most recent call last)" in text and f"humanline train {recipe} --quiet" in text
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("HUMANLINE_DEBUG", "1")
    with pytest.raises(ValueError, match="invalid literal"):
        main(["train", str(recipe), "--quiet"])


def test_a_fault_of_a_run_is_logged_in_its_folder(recipe, tmp_path, monkeypatch, capsys):
    """Once a run has its folder, error.log there holds the traceback, without secrets; the screen gets no escape."""
    import torch

    def broken(*args, **kwargs):
        raise TypeError("no \x1b[2J key sesame-open\nfits")

    monkeypatch.setenv("MY_API_KEY", "sesame-open")
    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    assert main(["train", str(recipe), "--quiet"]) == 1
    err = capsys.readouterr().err
    assert (
        "TypeError: no \\x1b[2J key *** fits" in err and f"The traceback is in {tmp_path / 'run' / 'error.log'}" in err
    )
    text = (tmp_path / "run" / "error.log").read_text()
    assert "in broken" in text and "sesame" not in text and "***" in text


def test_a_message_does_not_fill_the_screen_with_a_name_from_outside(recipe, capsys):
    """Names may be of any length; what a person sees is cut in the middle."""
    assert main(["train", str(recipe), f"model={'x' * 100_000}"]) == 2
    err = capsys.readouterr().err
    assert len(err) < 5000 and "characters" in err and "file name too long" in err


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.slow), "cpu"])
def test_running_out_of_memory_says_what_helps(recipe, tmp_path, monkeypatch, capsys, device):
    """Too little memory is told from a fault, with the setting that makes a pass smaller."""
    import torch

    from tests.helpers.few_changes import only_smaller_passes

    def broken(*args, **kwargs):
        if device == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory")
        torch.empty(1 << 58, dtype=torch.int8)

    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    only_smaller_passes(monkeypatch)
    assert main(["train", str(recipe), "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "out of memory" in err and "training.micro_batch_size" in err and "a fault" not in err


def test_the_schema_from_the_command_line(capsys):
    """`humanline schema` prints a JSON schema."""
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_new_model_from_the_command_line(toy, tmp_path, capsys):
    """`humanline new-model` makes a folder that transformers can load, and prints where it is."""
    out = tmp_path / "model"
    options = ["--vocab-size", "300", "--hidden-size", "16", "--heads", "2"]
    assert main(["new-model", str(out), "--text", toy["pairs"], *options]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(out).config.hidden_size == 16
    assert main(["new-model", str(out), "--text", toy["pairs"], *options]) == 2


LIVE = "reference.schedule={kind: before_step, every: 1}"  # nothing to score ahead but the next step


@pytest.mark.parametrize(
    "arguments, code",
    [
        pytest.param([], 0, id="whole", marks=pytest.mark.slow),
        pytest.param(["training.steps=100000", LIVE], 75, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_leaves_does_not_end_the_run(recipe, tmp_path, arguments, code):
    """With standard error a pipe that nobody reads any more, a run is trained, and stopped and saved, all the same."""
    output = tmp_path / "run"
    command = [sys.executable, "-m", "humanline.cli", "train", str(recipe), f"output={output}", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    process.stderr.readline()
    process.stderr.close()
    if code == 75:
        metrics = output / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and '"step": 3' in metrics.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(60) == code
    finally:
        process.kill()
    assert (output / ("checkpoints" if code else "final")).is_dir()


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_is_not_read_to_its_end_is_no_fault(buffered):
    """`humanline ls | head -1` says nothing of the pipe, whoever notices it, and ends as a shell says it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-m", "humanline", "ls"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | ({} if buffered else {"PYTHONUNBUFFERED": "1"}),
    )
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


def test_output_that_is_closed_is_no_fault():
    """What a shell starts with `>&-` does its work all the same."""
    words = f"exec {shlex.quote(sys.executable)} -m humanline ls >&-"
    result = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_package_is_the_command():
    """`python -m humanline` is the command line."""
    words = [sys.executable, "-m", "humanline"]
    result = subprocess.run([*words, "ls"], capture_output=True, text=True)
    assert result.returncode == 0 and "tiny-online" in result.stdout
    result = subprocess.run([*words, "cp", "no-such-recipe"], capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.startswith("humanline cp: ")


@pytest.mark.parametrize(
    "command", [[], ["train"], ["validate"], ["estimate"], ["schema"], ["new-model"], ["demo"], ["fit"]]
)
def test_help_loads_nothing_heavy(command):
    """--help imports neither torch nor transformers nor numpy."""
    code = (
        "import sys; from humanline.cli import main\n"
        f"try: main({[*command, '--help']!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "usage: humanline" in result.stdout


def leaves(parser):
    """Return the parsers of single commands."""
    commands = [action.choices for action in parser._actions if action.dest in ("command", "way")]
    return [leaf for each in commands for below in each.values() for leaf in leaves(below)] or [parser]


def test_no_command_takes_an_empty_word(capsys):
    """It is a variable that nobody set, and had meant a default, or the folder one is in."""
    seen = 0
    for leaf in leaves(_parser()):
        for action in leaf._actions:
            if action.nargs == 0:
                continue  # a flag
            name = action.option_strings[-1:]
            before = [] if name else ["x"] * [each for each in leaf._actions if not each.option_strings].index(action)
            with pytest.raises(SystemExit) as end:
                leaf.parse_args([*before, *name, ""])
            says = capsys.readouterr().err.splitlines()[-1]
            assert end.value.code == 2 and "are required" not in says, (leaf.prog, name)  # it was taken, then
            assert "variable that is not set" in says or action.type or action.choices, says
            seen += 1
    assert seen > 100


@pytest.mark.parametrize(
    "words",
    [
        ["status", ""],
        ["evaluate", "tiny-online", "--out", "o", "--preferences", "x", "--reference", ""],
        ["inspect-data", "tiny-online", "--scored", ""],
        ["sim", "--quick", "--out", ""],
        ["reproduce", "--scale", "small", "--out", ""],
        ["train", "tiny-online", "--preset", "paper", ""],
    ],
)
def test_an_empty_word_ends_a_command_before_it_writes(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr().err
    assert code == 2 and ("is empty, as a variable" in said or "'' must look like" in said)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_help_answers_in_half_a_second():
    """The best of five calls of `humanline --help` takes less than half a second."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "humanline.cli", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.5


@pytest.mark.parametrize("command", ["train", "validate"])
def test_the_crash_handler_does_not_stumble_over_the_name_it_reports(recipe, capsys, command):
    assert main([command, str(recipe), "output=~nobody-is-called-so/x"]) == 2
    assert "user who is not known" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "validate"])
def test_a_model_in_a_circle_of_links_is_named(recipe, tmp_path, capsys, command):
    (tmp_path / "round").symlink_to("round")
    assert main([command, str(recipe), f"model={tmp_path / 'round'}"]) == 2
    assert "too many levels of symbolic links" in capsys.readouterr().err


RECIPE = """\
model: {model}
output: {output}
objective: {{kind: dpo}}
data: {{train: {train}, max_length: 64}}
training: {{steps: 1, batch_size: 2}}
optimizer: {{lr: 1e-3}}
"""


@pytest.mark.parametrize("command", ["train", "validate"])
@pytest.mark.parametrize("where", ["key", "row", "file", "argument", "option"])
def test_no_escape_sequence_gets_through_the_command_line(toy, tmp_path, capfd, command, where):
    """An escape sequence in a YAML key, a data row, a file name or an argument is shown, not sent to the terminal."""
    evil = "\x1b]0;evil\x07\x1b[2J\u202e"
    train, arguments = tmp_path / "pairs.jsonl", []
    text = RECIPE.format(model=toy["model"], output=tmp_path / "run", train=train)
    rows = [{"prompt": f"p{i}", "chosen": "a", "rejected": "b"} for i in range(4)]
    if where == "key":
        text += json.dumps(evil) + ": 1\n"
    elif where == "row":
        rows[1] = {"prompt": "p", "chosen": 5, evil: 1, "rejected": evil, "id": evil}
    elif where == "file":
        text = text.replace(str(train), json.dumps(f"{tmp_path}/{evil}.jsonl"))
    else:
        arguments = [f"--{evil}"] if where == "option" else [f"{evil}=1"]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    try:
        code = main([command, str(recipe), *arguments])
    except SystemExit as error:
        code = error.code
    shown = "".join(capfd.readouterr())
    assert code == 2
    assert not set(shown) & set("\x1b\x07\u202e")
    assert where == "row" or "\\x1b" in shown


def test_messages_survive_a_narrow_terminal(tmp_path):
    """Where standard output takes ASCII alone, other characters are escaped in place of stopping the command."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(model="größe", output="o", train="t"), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "humanline.cli", "validate", "--no-data", str(recipe)],
        capture_output=True,
        text=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )
    assert result.returncode == 0 and r"gr\xf6\xdfe" in result.stdout, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="segments grow under Linux alone")
@pytest.mark.parametrize(
    "words", [["train", "no.yaml"], ["train", "no.yaml", "--processes", "2"], ["sample", "no.yaml"]]
)
def test_commands_that_load_models_let_segments_grow_before_anything_else(words, tmp_path, capsys):
    """`train`, alone or as the launcher of several, and `sample` set it; an environment that says so keeps its own."""
    words = [*words, "--out", str(tmp_path / "out")] if words[0] == "sample" else words
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        with mock.patch.dict(os.environ, {name: "max_split_size_mb:64"}):
            before = dict(os.environ)
            assert main(words) == 2
            assert dict(os.environ) == before
    with mock.patch.dict(os.environ):
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        os.environ.pop("PYTORCH_ALLOC_CONF", None)
        assert main(words) == 2
        assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
