"""The ledger of rounds and the journals of work: torn ends, damage, several writers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from humanline.train.online import ledger as module
from humanline.train.online.ledger import STATES, Ledger, LedgerError, append, digest, read_lines
from tests.conftest import ROOT


def table(ledger):
    """What a ledger knows, as plain values."""
    return {
        round_: {state: (entry.round, entry.state, entry.sha256) for state, entry in states.items()}
        for round_, states in ledger.entries.items()
    }


def test_states_are_kept_with_their_files(tmp_path):
    """A new ledger of the same file has every state that was recorded, and no other."""
    file = tmp_path / "samples.jsonl"
    file.write_text("a")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(0, "PLANNED")
    ledger.record(0, "SAMPLED", file)
    ledger.record(3, "DONE")
    again = Ledger(tmp_path / "ledger.jsonl")
    assert table(again) == table(ledger)
    for round_ in range(5):
        for state in STATES:
            recorded = (round_, state) in {(0, "PLANNED"), (0, "SAMPLED"), (3, "DONE")}
            assert again.has(round_, state) == recorded
            assert again.has(round_, state, file) == ((round_, state) == (0, "SAMPLED"))


def test_a_changed_file_is_not_what_was_recorded(tmp_path):
    """A state with its file changed, shortened or gone has not been reached; restored, it has."""
    file = tmp_path / "x"
    file.write_bytes(b"abc")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(1, "SCORED", file)
    for content in (b"abd", b"ab", b""):
        file.write_bytes(content)
        assert not ledger.has(1, "SCORED", file) and ledger.has(1, "SCORED")
    file.unlink()
    assert not ledger.has(1, "SCORED", file)
    file.write_bytes(b"abc")
    assert ledger.has(1, "SCORED", file)


def test_to_record_again_changes_nothing(tmp_path):
    """The same state of the same file is written once; of another file it is written anew, and that one counts."""
    path, file = tmp_path / "ledger.jsonl", tmp_path / "x"
    file.write_text("1")
    ledger = Ledger(path)
    for again in (False, False, True):
        one = Ledger(path) if again else ledger
        one.record(0, "PAIRED", file)
        one.record(0, "TRAINING")
    assert len(path.read_bytes().splitlines()) == 2
    file.write_text("2")
    assert not ledger.has(0, "PAIRED", file)
    ledger.record(0, "PAIRED", file)
    assert len(path.read_bytes().splitlines()) == 3
    assert ledger.has(0, "PAIRED", file) and Ledger(path).has(0, "PAIRED", file)


def test_a_discarded_round_begins_anew(tmp_path):
    """Nothing of a discarded round is left, others are untouched, and it can be recorded again; reasons are kept."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for round_ in (0, 1):
        ledger.record(round_, "PLANNED")
        ledger.record(round_, "SAMPLED")
    ledger.discard(1, "another plan")
    ledger.discard(7, "never was")
    assert [json.loads(line).get("reason") for line in path.read_text().splitlines()] == [None] * 4 + ["another plan"]
    for one in (ledger, Ledger(path)):
        assert one.has(0, "SAMPLED") and not any(one.has(1, state) for state in STATES)
    ledger.record(1, "PLANNED")
    again = Ledger(path)
    assert again.has(1, "PLANNED") and not again.has(1, "SAMPLED")


def test_a_torn_end_is_no_line_wherever_it_is_torn(tmp_path):
    """Cut at every byte of its last record, a ledger has the ones before it, and recording again makes it whole."""
    path, file = tmp_path / "ledger.jsonl", tmp_path / "x"
    file.write_text("1")
    ledger = Ledger(path)
    ledger.record(0, "PLANNED")
    before, known = path.read_bytes(), table(ledger)
    ledger.record(0, "SAMPLED", file)
    whole, all_known = path.read_bytes(), table(ledger)
    assert len(whole) > len(before) + 50
    for size in range(len(before), len(whole)):
        path.write_bytes(whole[:size])
        torn = Ledger(path)
        assert table(torn) == known and not torn.has(0, "SAMPLED")
        torn.record(0, "SAMPLED", file)
        assert path.read_bytes() == whole and table(Ledger(path)) == all_known
    path.write_bytes(whole[: len(before) // 2])  # nothing whole at all
    assert table(Ledger(path)) == {} and path.read_bytes() == b""


@pytest.mark.parametrize("damage", [b"{", b"[1]", b"7", b"null", b"", b"\xff\xfe", b'{"round": 0, "sta', b"\x00" * 20])
def test_a_damaged_line_before_the_end_is_an_error_with_its_place(tmp_path, damage):
    """Damage that no torn write explains names file and line, and leaves the file alone."""
    path = tmp_path / "ledger.jsonl"
    good = b'{"round": 0, "state": "PLANNED"}'
    content = b"\n".join([good, damage, good]) + b"\n"
    path.write_bytes(content)
    for read in (read_lines, Ledger):
        with pytest.raises(LedgerError, match=r"ledger\.jsonl:2: damaged"):
            read(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"round": 0},
        {"state": "DONE"},
        {"round": 0, "state": "done"},
        {"round": [], "state": "DONE"},
        {"round": 0, "state": []},
    ],
)
def test_a_row_that_is_no_entry_is_an_error_with_its_place(tmp_path, row):
    """JSON that is no entry of a ledger names file and line."""
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"round": 0, "state": "PLANNED"}\n' + json.dumps(row) + "\n")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl:2: no entry"):
        Ledger(path)


def test_texts_with_line_breaks_stay_one_line(tmp_path):
    """Every kind of line break, and characters outside ASCII, inside a text do not break its row."""
    rows = [{"text": "a\nb\rc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i 東京 🙂 \ud800"}, {"text": ""}]
    path = tmp_path / "rows.jsonl"
    append(path, rows[:1])
    append(path, [])
    append(path, rows[1:])
    assert read_lines(path) == rows
    assert len(path.read_bytes().split(b"\n")) == 3


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
    """A missing journal is an empty one, and reading does not make it."""
    assert read_lines(tmp_path / "none.jsonl") == []
    assert not (tmp_path / "none.jsonl").exists()


def test_a_write_that_stops_halfway_is_no_success(tmp_path, monkeypatch):
    """Where the system takes only part of what is written, the rest follows, so that no half a line is left behind."""
    path, real = tmp_path / "rows.jsonl", open

    class Short:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            return self.file.write(data[:7])

        def fileno(self):
            return self.file.fileno()

    monkeypatch.setattr(module, "open", lambda *args, **kwargs: Short(real(*args, **kwargs)), raising=False)
    append(path, [{"number": 1}])
    append(path, [{"number": 2}])
    monkeypatch.undo()
    assert read_lines(path) == [{"number": 1}, {"number": 2}]


def test_two_processes_that_append_lose_nothing(tmp_path):
    """Two processes that append to one file, and read it between their writes, leave every row of both, whole."""
    path, count = tmp_path / "ledger.jsonl", 120
    script = """
        import os, sys
        from pathlib import Path
        from humanline.train.online import ledger
        os.fsync = lambda file: None  # the order of bytes is looked at, not the disk
        who, path = sys.argv[1], Path(sys.argv[2])
        sys.stdin.readline()
        for number in range(int(sys.argv[3])):
            ledger.append(path, [{"who": who, "number": number, "text": "x" * (37 * number % 9000)}])
            ledger.read_lines(path)
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), who, str(path), str(count)],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for who in "ab"
    ]
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.stdin.close()
    assert [process.wait() for process in processes] == [0, 0]
    rows = read_lines(path)
    for who in "ab":
        assert [row["number"] for row in rows if row["who"] == who] == list(range(count))
    assert len(rows) == 2 * count


def test_a_digest_is_of_the_whole_file(tmp_path):
    """It is the SHA-256 that the command line tool of the system prints."""
    file = tmp_path / "x"
    file.write_bytes(b"abc")
    assert digest(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_line_that_is_being_written_is_not_cut(tmp_path, monkeypatch):
    """What another process has half written looks torn; who wants to cut it waits, and finds it whole."""
    path = tmp_path / "ledger.jsonl"
    append(path, [{"number": 0}])
    script = """
        import fcntl, os, sys, time
        with open(sys.argv[1], "ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b'{"num')
            print("half", flush=True)
            sys.stdin.readline()
            file.write(b'ber": 1}\\n')
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"half\n"
        lock = module.fcntl.flock

        def waiting(file, how):
            writer.stdin.write(b"go on\n")
            writer.stdin.flush()
            lock(file, how)

        monkeypatch.setattr(module.fcntl, "flock", waiting)
        rows = read_lines(path)
    assert rows == [{"number": 0}, {"number": 1}]
