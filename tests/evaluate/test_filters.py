"""Rows that are kept, byte for byte and in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from humanline.cli import main
from humanline.evaluate.filters import JsonLines, band_named, quartiles_named
from humanline.evaluate.records import EvaluationError
from humanline.system.files import OutputError

LINES = b'{"a":  1}\r\n\n{"b": "\xc3\xa9"}\n{"a": 1.50}\n{"last": true}'


def test_lines_are_kept_as_they_are(tmp_path):
    """Spacing, line ends and characters stay, in order; a row that nothing is known of leaves, and blank lines do."""
    file = tmp_path / "rows.jsonl"
    file.write_bytes(LINES)
    found = JsonLines(str(file)).keep({1: None, 3: "quartile 1", 5: None}, tmp_path, "kept")
    assert found.kept.read_bytes() == b'{"a":  1}\r\n{"last": true}'
    left = [json.loads(line) for line in found.left.read_text().splitlines()]
    assert [row["row"] for row in left] == ["rows.jsonl:3", "rows.jsonl:4"]
    assert (found.count, found.why["quartile 1"], sum(found.why.values())) == (2, 1, 2)
    assert "kept 2 of 4 rows; 1 left: quartile 1" in str(found)


def test_nothing_is_overwritten_or_written_by_half(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(LINES)
    JsonLines(str(file)).keep({1: None}, tmp_path, "kept")
    JsonLines(str(file)).keep({1: None}, tmp_path, "kept")  # the same rows once more
    with pytest.raises(OutputError, match="holds other rows"):
        JsonLines(str(file)).keep({3: None}, tmp_path, "kept")
    assert (tmp_path / "kept.jsonl").read_bytes() == b'{"a":  1}\r\n'
    with pytest.raises(EvaluationError, match=r"no row of .* would be kept"):
        JsonLines(str(file)).keep({1: "quartile 1"}, tmp_path, "none")
    changed = JsonLines(str(file))
    file.write_bytes(LINES + b"\n{}\n")
    with pytest.raises(EvaluationError, match="has changed"):
        changed.keep({1: None}, tmp_path, "changed")
    assert not (tmp_path / "none.jsonl").exists() and not (tmp_path / "changed.jsonl").exists()


@pytest.mark.parametrize("text", ["", "0", "5", "2,2", "2;3", "a", "1.5"])
def test_only_quartiles_are_quartiles(text):
    with pytest.raises(EvaluationError, match="--keep-quartiles must be"):
        quartiles_named(text)


@pytest.mark.parametrize("text", ["", "0.2", "0.8:0.2", "-1:1", "0:2", "a:b", "nan:1"])
def test_only_bands_are_bands(text):
    with pytest.raises(EvaluationError, match="--keep-pass-rate must be"):
        band_named(text)
    assert band_named("0.2:0.8") == (0.2, 0.8)


def test_names_of_another_file_are_refused(tmp_path):
    with pytest.raises(EvaluationError, match="is no row of"):
        JsonLines(str(tmp_path / "rows.jsonl")).line_of("others.jsonl:3")
    for other in ("hub:a/b", "rows.parquet"):
        with pytest.raises(EvaluationError, match="byte for byte"):
            JsonLines(other)


def test_quartiles_of_a_file_are_kept(toy, tmp_path, capsys):
    """The lowest quarter of the rows leaves, and what stays is that of the file."""
    words = ["inspect-data", toy["pairs"], "--model", toy["model"], "--out", str(tmp_path / "found")]
    assert main([*words, "--keep-quartiles", "2,3,4"]) == 0
    assert "kept 36 of 48 rows; 12 left: quartile 1" in capsys.readouterr().err
    kept = (tmp_path / "found/kept-quartiles-2-3-4.jsonl").read_bytes().splitlines(keepends=True)
    rows = Path(toy["pairs"]).read_bytes().splitlines(keepends=True)
    assert len(kept) == 36 and kept == [row for row in rows if row in set(kept)]
    for more, message in [(["--rows", "9"], "no --rows"), (["--keep-quartiles", "7"], "from 1")]:
        assert main([*words, "--keep-quartiles", "2,3", *more]) == 2
        assert message in capsys.readouterr().err
