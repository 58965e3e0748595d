"""What a worker process is prepared with, so that start models and runs depend on the processor as little as can be."""

from __future__ import annotations

import gc
import os

#: On processors with AVX-512 torch takes other code, which adds in another order; training makes another model of that
#: (instructions' second start model scores -.556 in place of -.461). Nearly every x86 processor has AVX2.
_ONE_PATH = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
#: MKL chooses by itself, and on Intel it chooses otherwise than on AMD (arithmetic's first start model scores .456 and
#: .480). Nothing that it can be asked for makes both alike: held to AVX2 each of them makes yet another model. So a
#: start model that others are to go on from is kept beside its runs (`humanline.reproduce.brought`).
_LEFT_TO_MKL = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")


def prepare_worker() -> None:
    """Prepare a worker: one path of code, one thread, quiet libraries, and these left alone by the garbage collector.

    Torch's path is that of AVX2, whatever the processor has besides and whatever the environment says. Without AVX2 (on
    ARM, say) it is what torch chooses, and start models may be others: `refuse_other_starts` compares their scores.

    Libraries are 400 000 objects that stay; each time the collector looked through them cost a quarter of a second.

    Raises
    ------
    RuntimeError
        If torch had chosen another path before.
    """
    import torch

    if torch.cpu.get_capabilities().get("avx2"):
        os.environ.update(_ONE_PATH)  # each is read when its library first computes
        for name in _LEFT_TO_MKL:
            os.environ.pop(name, None)
        if (path := torch.backends.cpu.get_cpu_capability()) != "AVX2":
            raise RuntimeError(f"torch computes with {path} already: a process that trains must not compute before")

    import humanline.train.loop  # noqa: F401 - here, to be left alone with the others
    from humanline.system.imports import quiet_libraries

    torch.set_num_threads(1)
    quiet_libraries()
    gc.collect()
    gc.freeze()
