"""States that processes share out are written as slices and read back by any number of processes."""

from __future__ import annotations

import contextlib
import json
from importlib.util import find_spec
from itertools import product

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from humanline.system.files import DamagedError, partial_of
from humanline.train.preflight.dry_run import Meter
from humanline.train.run import fingerprint, shares
from humanline.train.run.checkpoint import Contents, Position
from humanline.train.run.fingerprint import frozen_hash, trained_hash
from humanline.train.run.shares import Saved, Share, file_of, is_shard, share_of
from humanline.train.run.state import OptimizerState, as_dtensor, copy_in
from humanline.train.run.tensor_files import write_files
from tests.helpers import sharded_saves
from tests.helpers.kills import KILLED
from tests.helpers.ranks import as_rank, rows_of


def tensors() -> dict[str, torch.Tensor]:
    """Return tensors whose rows do not divide evenly, some with fewer rows than processes."""
    torch.manual_seed(0)
    return {
        "matrix": torch.randn(7, 3),
        "bf16": torch.randn(5, 3, 2).bfloat16(),
        "row": torch.randn(1, 4),
        "vector": torch.randn(11),
        "none": torch.zeros(0, 3),
        "bytes": torch.arange(13, dtype=torch.uint8),
    }


class Part:
    """A part of a run whose tensors are shared out, but for a scalar and a buffer."""

    def __init__(self, state):
        self.tensors = state

    def state(self):
        return self.tensors

    def load_state(self, state):
        copy_in(self.tensors, state)


def part(mesh, *, empty: bool = False) -> Part:
    whole = tensors()
    if empty:
        whole = {name: torch.full_like(tensor, 77) for name, tensor in whole.items()}
    state = whole if mesh is None else {name: rows_of(tensor, mesh) for name, tensor in whole.items()}
    plain = {"step": torch.tensor(3.0), "buffer": torch.arange(4)}
    return Part(state | {k: torch.zeros_like(v) if empty else v for k, v in plain.items()})


def contents(one, tmp_path, rank=0, ranks=1) -> Contents:
    return Contents(
        shared={"policy": one},
        own={},
        config={},
        fingerprints={},
        software={},
        metrics=tmp_path / "metrics.jsonl",
        rank=rank,
        ranks=ranks,
    )


def each(ranks):
    """Return each of so many processes in turn, with its mesh; None for one that shares nothing out."""
    for rank in range(ranks or 1):
        with as_rank(rank, ranks) if ranks else contextlib.nullcontext() as mesh:
            yield rank, mesh


def written(folder, ranks):
    """Let so many processes (0: one that shares nothing out) write a part, the last one first."""
    folder.mkdir()
    (folder.parent / "metrics.jsonl").touch()
    for rank, mesh in each(ranks):
        own = contents(part(mesh), folder.parent, rank, ranks or 1)
        assert any("slices" in file.name for file in own.files()) == bool(ranks)
        save(own, folder)
    return folder


def save(own, folder):
    """Write what a process writes into a folder that is there."""
    hidden = partial_of(folder)
    folder.rename(hidden)
    write_files(folder, own.files())
    if own.rank == 0:
        own.write_facts(hidden, Position())
    hidden.rename(folder)


def files_of(folder):
    return sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")


def test_any_number_of_processes_reads_what_any_number_wrote(tmp_path, monkeypatch):
    """States written whole or by 1 to 3 processes are bitwise those that are read whole or by 1 to 3 processes."""
    monkeypatch.setattr(shares, "_AT_ONCE", 16)  # so that no tensor is read in one go
    for ranks in (0, 1, 2, 3):
        folder = written(tmp_path / str(ranks), ranks)
        assert len(files_of(folder)) == 1 + ranks
        for readers in (0, 1, 2, 3):
            for _, mesh in each(readers):
                mine, expected = part(mesh, empty=True), part(mesh).state()
                mine.load_state(Saved.in_files(files_of(folder)))
                assert mine.state().keys() == expected.keys()
                for name, tensor in mine.state().items():
                    got, wanted = share_of(tensor), share_of(expected[name])
                    assert torch.equal(got.rows, wanted.rows) and got.rows.dtype == wanted.rows.dtype, (name, ranks)
        whole = Saved.in_files(files_of(folder))
        assert all(torch.equal(whole[name], tensor) for name, tensor in part(None).state().items())


def test_slices_are_no_pickle_and_hold_each_row_once(tmp_path):
    """The files of three processes are safetensors, together as large as the tensors, each no larger than a share."""
    folder = written(tmp_path / "saved", 3)
    sizes = {}
    for path in files_of(folder):
        assert path.read_bytes()[8:9] == b"{"
        sizes[path.name] = sum(tensor.nbytes for tensor in load_file(path).values())
    assert list(sizes) == ["policy-0.safetensors", *(f"policy-slices-{rank}-0.safetensors" for rank in range(3))]
    plain = sum(tensor.nbytes for tensor in (torch.tensor(3.0), torch.arange(4)))
    assert sizes.pop("policy-0.safetensors") == plain
    whole = sum(tensor.nbytes for tensor in tensors().values())
    assert sum(sizes.values()) == whole and max(sizes.values()) < 0.6 * whole
    (folder.parent / "metrics.jsonl").write_text("")
    for rank, mesh in each(3):
        assert contents(part(mesh), tmp_path, rank, 3).size() == whole + plain


def change(path, act):
    """Write a file of slices again, with other tensors or another account of where they belong."""
    with safe_open(path, framework="pt") as file:
        cut = json.loads(file.metadata()["slices"])
    held = load_file(path)
    held = {name: tensor.clone() for name, tensor in held.items()}
    act(held, cut)
    save_file(held, path, metadata={"slices": json.dumps(cut)})


def shift(rows):
    def act(held, cut):
        cut["matrix"]["start"] += rows

    return act


def other_type(held, cut):
    held["matrix"] = held["matrix"].double()


def other_shape(held, cut):
    held["matrix"] = held["matrix"][:, :2].contiguous()


def other_whole(held, cut):
    cut["matrix"]["whole"] = [8, 3]


def foreign(held, cut):
    held["other"] = torch.zeros(2)


def nonsense(held, cut):
    del cut["matrix"]["whole"]


@pytest.mark.parametrize(
    "act,message",
    [
        (shift(-1), r"matrix has 7 rows, of which policy-slices-1-0.safetensors holds 2 to 4: others hold some of"),
        (shift(1), r"matrix lacks row 3 of its 7|matrix has 7 rows, of which .*: others hold"),
        (shift(9), r"matrix .*(beyond its end|lacks row 3 of its 7)"),
        (shift(-9), r"matrix has 7 rows, of which policy-slices-1-0"),
        (other_type, r"matrix is float32 \(7, 3\) in policy-slices-0-0.safetensors and float64 \(7, 3\) in policy-sl"),
        (other_shape, r"matrix is \(7, 3\), but \(3, 2\) of it in policy-slices-1-0.safetensors"),
        (other_whole, r"matrix is float32 \(7, 3\) in policy-slices-0-0.safetensors and float32 \(8, 3\) in policy-s"),
        (foreign, r"it has other"),
        (nonsense, r"policy-slices-1-0.safetensors cannot be read: 'whole'"),
    ],
    ids=["earlier", "later", "beyond", "negative", "type", "shape", "whole", "foreign", "nonsense"],
)
def test_slices_that_do_not_make_up_a_tensor_are_refused(tmp_path, act, message):
    """A slice at another place, of another type or shape, or of no tensor of the run, is named, and its file."""
    folder = written(tmp_path / "saved", 3)
    change(folder / "policy-slices-1-0.safetensors", act)
    mine = part(None, empty=True)
    with pytest.raises(DamagedError, match=message):
        mine.load_state(Saved.in_files(files_of(folder)))
    assert all(not tensor.numel() or tensor.max() in (0, 77) for tensor in mine.state().values())


def test_files_that_are_missing_or_cut_off_are_refused(tmp_path):
    """Without the slices of one process rows are missing; a file that is cut off is named."""
    folder = written(tmp_path / "saved", 3)
    path = folder / "policy-slices-1-0.safetensors"
    held = path.read_bytes()
    for length in (len(held) - 3, 20, 4):
        path.write_bytes(held[:length])
        with pytest.raises(DamagedError, match=r"policy-slices-1-0\.safetensors cannot be read: "):
            Saved.in_files(files_of(folder))
    path.unlink()
    with pytest.raises(DamagedError, match=r"(matrix|bf16|vector|bytes) lacks row \d of its \d"):
        Saved.in_files(files_of(folder))


def stepped(mesh, *, steps=3):
    """Return an optimizer over what a process holds of two parameters after some steps, and the parameters."""
    torch.manual_seed(0)
    whole = {"w": torch.randn(9, 3), "v": torch.randn(5)}
    gradients = [{name: torch.randn_like(tensor) for name, tensor in whole.items()} for _ in range(steps)]
    kept = {name: tensor if mesh is None else rows_of(tensor, mesh) for name, tensor in whole.items()}
    local = rows(kept)
    optimizer = torch.optim.AdamW(local.values(), lr=1e-2)
    for gradient in gradients:
        for parameter, one in zip(local.values(), gradient.values(), strict=True):
            parameter.grad = one if mesh is None else rows_of(one, mesh).to_local()
        optimizer.step()
    return OptimizerState(optimizer, local, of(kept))


def rows(kept):
    return {name: torch.nn.Parameter(share_of(tensor).rows) for name, tensor in kept.items()}


def of(kept):
    """Return what makes a state of rows, as a policy that is shared out or whole has it."""
    return lambda name, state: as_dtensor(state, kept[name]) if is_shard(kept[name]) else state


@pytest.mark.parametrize("ranks,readers", [pair for pair in product((0, 2, 3), repeat=2) if pair != (0, 0)])
def test_optimizer_states_are_dealt_anew(tmp_path, ranks, readers):
    """An optimizer's states follow their parameters from any number of processes to any other, bit for bit."""
    for _, mesh in each(ranks):
        state = stepped(mesh).state()
        assert all(is_shard(tensor) == (mesh is not None and "step" not in name) for name, tensor in state.items())
        rank = 0 if mesh is None else mesh.get_local_rank()
        held = {name: tensor for name, tensor in state.items() if is_shard(tensor) or rank == 0}
        (tmp_path / ".run.partial").mkdir(exist_ok=True)
        write_files(tmp_path / "run", [file_of(f"{rank}.safetensors", held)])
    for _, mesh in each(readers):
        mine, expected = stepped(mesh, steps=0), stepped(mesh).state()
        mine.load_state(Saved.in_files(files_of(tmp_path / ".run.partial")))
        for name, tensor in mine.state().items():
            assert torch.equal(share_of(tensor).rows, share_of(expected[name]).rows), name
        assert mine.state().keys() == expected.keys() and len(expected) == 6


@pytest.mark.skipif(find_spec("torchao") is None, reason="torchao (extra low-memory) is not installed")
def test_states_in_blocks_stay_with_their_process(tmp_path):
    """8-bit states come back bit for bit to as many processes as wrote them, and are refused to all others."""
    from humanline.train.config.run import OptimizerConfig
    from humanline.train.policy.optimizer import make_optimizer

    def make(mesh, steps=2):
        torch.manual_seed(0)
        whole = {"w": torch.randn(41, 256), "v": torch.randn(9)}  # 21 and 20 rows, both in 8 bits; the vector is not
        kept = {name: tensor if mesh is None else rows_of(tensor, mesh) for name, tensor in whole.items()}
        local = rows(kept)
        optimizer = make_optimizer(local.values(), OptimizerConfig(lr=1e-3, states="8bit"), "float32")
        for _ in range(steps):
            for parameter in local.values():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        return OptimizerState(optimizer, local, of(kept))

    folders = {}
    for ranks in (0, 2):
        folders[ranks] = tmp_path / str(ranks)
        folders[ranks].mkdir()
        for rank, mesh in each(ranks):
            own = contents(make(mesh), tmp_path, rank, ranks or 1)
            (tmp_path / "metrics.jsonl").touch()
            save(own, folders[ranks])
    for rank, mesh in each(2):
        mine, expected = make(mesh, 0), make(mesh).state()
        mine.load_state(Saved.in_files(files_of(folders[2])))
        state = mine.state()
        assert state.keys() == expected.keys() and f"exp_avg:codes/w@{rank + 1}/2" in state
        assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())
    reason = r"8-bit states are in blocks .* written {} and are to be read {}: go on with training.sharding"
    for ranks, readers, then, now in [
        (0, 2, "whole", "sharded over 2 processes"),
        (2, 0, "sharded over 2 processes", "whole"),
        (2, 3, "sharded over 2 processes", "sharded over 3 processes"),
    ]:
        for _, mesh in each(readers):
            with pytest.raises(DamagedError, match=reason.format(then, now)):
                make(mesh, 0).load_state(Saved.in_files(files_of(folders[ranks])))


class Two(torch.nn.Module):
    def __init__(self, whole, mesh):
        super().__init__()
        for name, tensor in whole.items():
            held = tensor if mesh is None else rows_of(tensor, mesh)
            setattr(self, name, torch.nn.Parameter(held, requires_grad=not name.startswith("frozen")))


def test_the_hash_of_weights_does_not_depend_on_the_number_of_processes():
    """Hashes of trained and frozen weights are those of whole ones, which are those of earlier versions."""
    torch.manual_seed(0)
    whole = {
        "a": torch.randn(7, 3),
        "b": torch.randn(5, 3).bfloat16(),  # whose rows begin within words of eight bytes
        "c": torch.randn(13).bfloat16(),
        "d": torch.randn(1, 5),
        "frozen": torch.randn(11, 5),
    }
    alone = Two(whole, None)
    expected = trained_hash(alone), frozen_hash(alone)
    for ranks, (hashed, wanted) in product((1, 2, 3, 5), zip((trained_hash, frozen_hash), expected, strict=True)):
        sums = []

        def reduce(own, how, sums=sums):
            sums.append(own)
            assert how == "sum"
            return torch.stack(sums).sum(0)

        hashes = []
        for _, mesh in each(ranks):
            hashes.append(hashed(Two(whole, mesh), reduce))
            with pytest.raises(ValueError, match="whose sums must be added"):
                hashed(Two(whole, mesh))
        assert hashes[-1] == wanted, "the last one has the sums of all"
        assert ranks == 1 or hashes[0] != wanted
    with torch.no_grad():
        alone.a[6, 2] += 1e-6
    assert trained_hash(alone) != expected[0] and frozen_hash(alone) == expected[1]


def test_hashes_of_weights_are_those_of_earlier_versions():
    """Of whole weights, scalars and empty ones too, the hash that a version without shares gave."""
    module = torch.nn.Module()
    module.a = torch.nn.Parameter(torch.arange(21.0).reshape(7, 3))
    module.b = torch.nn.Parameter(torch.arange(13).bfloat16())
    module.c = torch.nn.Parameter(torch.tensor(2.5))
    module.f = torch.nn.Parameter(torch.arange(5).double(), requires_grad=False)
    module.e = torch.nn.Parameter(torch.zeros(0, 3), requires_grad=False)
    assert trained_hash(module) == "ec21bf96f638eb8f11d43764a97118bc3b2e89bc7fb6fc4dfaccee508af4d8d7"
    assert frozen_hash(module) == "b25938b82d24dfb40cd6b182db2c06d757067f81b6378a67a9a16203beb5844b"


def test_a_hash_holds_no_copy_of_a_large_tensor_and_is_the_same_by_pieces(monkeypatch):
    """It is taken at every round, when weights and states of the optimizer are there; no estimate counts a copy."""
    layer = torch.nn.Linear(1 << 10, 1 << 10, bias=False)
    whole, uneven = trained_hash(layer), Share(layer.weight.detach()[3:].view(torch.uint8)[:, :-3], 5, (1 << 10, 1))
    part = fingerprint._checksum(uneven)
    monkeypatch.setattr(fingerprint, "_PIECE", 1 << 16)
    meter = Meter(counted=0, tokens=0)
    meter.leave_out(layer.weight)
    with meter:
        assert trained_hash(layer) == whole
    assert 0 < meter.peaks["forward"] < 1 << 20  # bytes, of the weight's 1 << 22
    assert fingerprint._checksum(uneven) == part


@pytest.mark.parametrize(
    ("overlap", "every"),
    [(True, 6), *(pytest.param(overlap, every, marks=pytest.mark.slow) for overlap, every in ((0, 6), (0, 1), (1, 1)))],
)
def test_a_kill_at_the_writes_of_a_save_by_two_processes_costs_that_save_at_most(tmp_path, server, every, overlap):
    """Killed at write barriers of either process, a save leaves the one before it or itself, whole, and no pickle."""

    def save(name, *kill, **more):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metrics.jsonl").touch()
        job = {
            "folder": str(folder),
            "store": str(tmp_path / f"{name}.store"),
            "kill": kill,
            "overlap": overlap,
            **more,
        }
        return folder, server.play("tests.helpers.sharded_saves", job)

    _, alone = save("alone", -1, 0)
    assert alone["codes"] == [0, 0]
    names = alone["barriers"][0]
    sealed = names.index("step-00000003 named")
    assert "step-00000003: policy-slices-1-0.safetensors flushed" in alone["barriers"][1] and len(names) > 10
    taken = []
    for rank, passed in enumerate(alone["barriers"]):
        for number in range(rank % every, len(passed), every):
            folder, outcome = save(f"{rank}-{number}", rank, number)
            where = f"process {rank}, barrier {number}: {passed[number]}"
            assert outcome["codes"][rank] == KILLED, where
            assert (folder / f"{rank}.killed").read_text() == "here", where  # not for the other's failure
            refuse_pickles(folder)
            taken.append(newest(folder, where))
            assert taken[-1] == (3 if rank == 0 and number >= sealed else 2), where
    assert {2, 3} == set(taken)
    for rank in (0, 1):  # one that cannot write its rows
        folder, outcome = save(f"starved-{rank}", -1, 0, starved=rank)
        assert outcome["codes"] == [0, 0]
        said = [(folder / f"{other}.refused").read_text() for other in (0, 1)]
        assert all("no checkpoint could be written after 3 updates: " in text for text in said), said
        assert "File too large" in said[rank] and newest(folder, "starved") == 3
        assert not list((folder / "checkpoints").glob(".*"))


def refuse_pickles(folder):
    """Whatever lies in a folder is safetensors, or text; what a kill cut off may not have its header yet."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        held, cut = path.read_bytes(), any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix == ".safetensors":
            assert held[8:9] == b"{" or (cut and held[8:9] in (b"", b"\0")), path
        else:
            assert "\0" not in held.decode(), path


def newest(folder, where) -> int:
    """Return the number of updates of the checkpoint that a process alone goes on from, whose state must be whole."""
    mine = sharded_saves.Part(None, 0)
    mine.load_state = lambda saved: mine.__setattr__("loaded", dict(saved))
    run = sharded_saves.checkpoints(folder, mine, 0, 1)
    run.contents.own["own"].load_state = lambda _: None
    updates = run.restore(lambda _: None).updates
    wanted = sharded_saves.state_after(updates)
    assert mine.loaded.keys() == wanted.keys(), where
    assert all(torch.equal(mine.loaded[name], tensor) for name, tensor in wanted.items()), where
    return updates
