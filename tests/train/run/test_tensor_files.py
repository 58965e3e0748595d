"""Tensor files: the bytes of safetensors' own writer, hashed as they are written, in memory that is bounded."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from humanline.system import hashing
from humanline.system.files import partial_of
from humanline.system.hashing import BEHIND, facts_of
from humanline.train.run import tensor_files
from humanline.train.run.tensor_files import HostCopies, TensorFile, write_files

TYPES = (
    "uint64",
    "int64",
    "float64",
    "complex64",
    "float32",
    "uint32",
    "int32",
    "bfloat16",
    "float16",
    "uint16",
    "int16",
)
TYPES += ("float8_e4m3fn", "float8_e5m2")


def state() -> dict[str, torch.Tensor]:
    """Return tensors of every type, and of every shape and layout that states have."""
    torch.manual_seed(0)
    fill = torch.randint(0, 255, (9 * 16,), dtype=torch.uint8)
    tensors = {f"of {name}": fill.view(getattr(torch, name))[:5].clone() for name in TYPES}
    whole = torch.randn(40, 30)
    return tensors | {
        "int8": fill.view(torch.int8).clone(),
        "bytes": fill,
        "bool": fill > 100,
        "number": torch.tensor(2.5),
        "step": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "rows": whole[3:20],
        "turned": whole.T,
        "every third": whole[::3, 1::2],
        "of a vector": whole.flatten()[::7],
        "bf16": whole.bfloat16()[5:],
        'ä "quoted" \\ name\n': whole + 1,
        "trained": torch.nn.Parameter(whole - 1),
    }


def in_bytes(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), flat.numpy().tobytes()


@pytest.mark.parametrize("staged", [False, True], ids=["in place", "through buffers"])
@pytest.mark.parametrize("metadata", [{}, {"slices": '{"ä": [1, 2]}'}], ids=["plain", "metadata"])
def test_files_are_those_of_safetensors_and_hashed(tmp_path, monkeypatch, staged, metadata):
    """Byte for byte what safetensors writes, also where tensors pass through buffers; facts are those of the file."""
    if staged:  # as those of a GPU
        monkeypatch.setattr(tensor_files, "_in_host_memory", lambda _: False)
    monkeypatch.setattr(tensor_files, "PIECE", 256)  # so that most tensors are of several
    partial_of(tmp_path / "saved").mkdir()
    tensors = state()
    facts = write_files(
        tmp_path / "saved",
        [TensorFile("all", tensors, metadata), TensorFile("none", {}), TensorFile("few", {"a": tensors["rows"]})],
    )
    for name, held in (("all", tensors), ("none", {}), ("few", {"a": tensors["rows"]})):
        path = partial_of(tmp_path / "saved") / name
        plain = {key: tensor.detach().contiguous().clone() for key, tensor in held.items()}
        save_file(plain, tmp_path / "theirs", metadata=(metadata or None) if name == "all" else None)
        assert path.read_bytes() == (tmp_path / "theirs").read_bytes(), name
        assert facts[name] == facts_of(path)
        assert path.stat().st_mode & 0o777 == (tmp_path / ".saved.partial").stat().st_mode & 0o666
        assert {key: in_bytes(tensor) for key, tensor in load_file(path).items()} == {
            key: in_bytes(tensor) for key, tensor in plain.items()
        }


def test_a_type_without_a_name_is_refused(tmp_path):
    """A tensor that the format cannot hold is named."""
    with pytest.raises(TypeError, match=r"odd: tensors of torch\.complex128 cannot be written"):
        TensorFile("a", {"odd": torch.zeros(2, dtype=torch.complex128)}).head()


def test_copies_hold_while_the_state_changes(monkeypatch):
    """What was copied stays as it was, and the next copies lie in the same memory."""
    monkeypatch.setattr(tensor_files, "PIECE", 64)
    live, copies = state(), HostCopies()
    before = {name: in_bytes(tensor) for name, tensor in live.items()}
    held = copies.of([TensorFile("a", live, {"x": "y"})])[0]
    places = {name: tensor.data_ptr() for name, tensor in held.tensors.items()}
    for tensor in live.values():
        tensor.detach().copy_(torch.zeros_like(tensor))
    assert held.metadata == {"x": "y"} and {name: in_bytes(one) for name, one in held.tensors.items()} == before
    assert copies.nbytes == sum(tensor.nbytes for tensor in live.values())
    again = copies.of([TensorFile("a", live)])[0].tensors
    assert {name: tensor.data_ptr() for name, tensor in again.items()} == places
    assert not any(any(in_bytes(tensor)[2]) for tensor in again.values())
    copies.let_go()
    assert copies.nbytes == 0


def peak_above_now(act) -> float:
    """Return the MiB by which this process's memory rises at most meanwhile."""

    def status(name: str) -> float:
        text = Path("/proc/self/status").read_text()
        return int(text.split(f"{name}:")[1].split()[0]) / 1024

    Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
    before = status("VmRSS")
    act()
    return status("VmHWM") - before


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
@pytest.mark.parametrize("staged", [False, True], ids=["in place", "through buffers"])
def test_a_save_holds_nothing_of_a_large_state_twice(tmp_path, monkeypatch, staged):
    """Writing 96 MiB in two files takes a small part of that, buffers included."""
    if staged:
        monkeypatch.setattr(tensor_files, "_in_host_memory", lambda _: False)
    monkeypatch.setattr(tensor_files, "PIECE", 2**19)
    partial_of(tmp_path / "saved").mkdir()
    files = [TensorFile(str(n), {"a": torch.ones(2**22), "b": torch.ones(2**23).view(2**11, -1).T}) for n in range(2)]
    write_files(tmp_path / "saved", [TensorFile("first", {"a": torch.ones(9)})])  # what threads take once
    assert peak_above_now(lambda: write_files(tmp_path / "saved", files)) < 2 * 2 * (BEHIND + 1) / 2 + 16


def test_files_are_written_by_several_threads(tmp_path, monkeypatch):
    """Two files are written at the same time, by a process that has two processors."""
    monkeypatch.setattr(hashing.os, "cpu_count", lambda: 2)
    partial_of(tmp_path / "saved").mkdir()
    both = threading.Barrier(2, timeout=60)
    files = [TensorFile(name, {"a": torch.zeros(3)}) for name in "ab"]
    met = threading.local()

    def each() -> None:
        if not hasattr(met, "other"):
            met.other = both.wait()

    assert list(write_files(tmp_path / "saved", files, each)) == ["a", "b"]


def test_a_disk_that_fails_is_an_error_of_the_disk(tmp_path, monkeypatch):
    """The number of the error is kept, whichever file it was and whether written or flushed, and no thread is left."""
    partial_of(tmp_path / "saved").mkdir()
    files = [TensorFile(name, {"a": torch.zeros(3)}) for name in "abc"]
    before = set(threading.enumerate())  # of other tests too: they may end meanwhile
    for name in ("write_all", "sync"):

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as broken, pytest.raises(OSError, match="No space left") as error:
            broken.setattr(hashing, name, full)
            write_files(tmp_path / "saved", files)
        assert error.value.errno == errno.ENOSPC and set(threading.enumerate()) <= before


@pytest.mark.gpu
def test_tensors_of_a_gpu_pass_through_page_locked_buffers(tmp_path):
    """What is written, and what is copied, of tensors on a GPU has the bits of those in host memory."""
    partial_of(tmp_path / "saved").mkdir()
    live = state() | {"large": torch.randn(3, 2**20)}
    on_gpu = {name: tensor.detach().cuda() for name, tensor in live.items()}
    on_gpu |= {"turned": live["rows"].cuda().T, "of a vector": live["large"].cuda().flatten()[::7]}
    live |= {"turned": live["rows"].T, "of a vector": live["large"].flatten()[::7]}
    copies = HostCopies().of([TensorFile("copied", on_gpu)])
    write_files(tmp_path / "saved", [TensorFile("gpu", on_gpu), TensorFile("host", live), *copies])
    gpu, host, copied = ((tmp_path / ".saved.partial" / name).read_bytes() for name in ("gpu", "host", "copied"))
    assert gpu == host == copied
