"""What a run will take, from its configuration and an outline of its model: bytes in every phase, and FLOPs a step.

Weights, gradients and optimizer states are counted; what a pass holds beyond them is looked up in a dry run of the
largest micro-batch. Under `training.sharding: none` every process holds everything; under `full` a share of it, and
for a moment what shards.py says.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from humanline.train.config import TrainConfig
from humanline.train.config.objective import BetaTransform
from humanline.train.data.batch import Block
from humanline.train.policy.adapter import expert_weights, factor_shapes, linear_layers
from humanline.train.policy.load import TYPES
from humanline.train.policy.packing import refuse_unpackable
from humanline.train.policy.precision import fit_for_gradients
from humanline.train.preflight.dry_run import BACKWARD, Quantities, dry_run, update_temporaries
from humanline.train.preflight.sampling import drawing_bytes
from humanline.train.preflight.shards import Sharded, gathered_config, parts_of, share_of
from humanline.train.preflight.workload import Drawn, Work, Workload, batches_drawn, shape_of

_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)  # bytes a weight: four bits, a byte for 64 of them, and a float32 for 256 of those
DRAWING = "drawing of completions"  # the phase in which generate does that in this process
_BLOCK = 256  # values of an 8-bit optimizer state that share a float32 scale


# ---------------------------------------------------------------------------------------------------------------------
# What is there whatever a batch looks like


@dataclass(frozen=True, slots=True)
class Static:
    """Bytes that are there in one process, the first, whatever a batch looks like."""

    parameters: int  # how many there are, over all processes
    trained: int  # how many of them are trained
    weights: int
    frozen: int
    gradients: int
    states: int
    buckets: int  # in which gradients travel between processes
    second_models: int

    @property
    def kept(self) -> int:
        """Return the bytes that stay between two steps."""
        return self.weights + self.frozen + self.states + self.second_models + self.buckets

    @property
    def saved(self) -> int:
        """Return the bytes of what a checkpoint holds of them."""
        return self.weights + self.states + self.second_models


def static_bytes(config: TrainConfig, outline: Any, *, ranks: int = 1) -> Static:
    """Count weights, gradients, optimizer states and copies of them.

    Parameters
    ----------
    config : TrainConfig
    outline
        The model on the meta device.
    ranks : int

    Raises
    ------
    ModelError
        As `adapted_weights` does.
    """
    itemsize, frozen, frozen_bytes = TYPES[config.training.weights].itemsize, 0, 0
    parts = parts_of(config, ranks)
    if config.adapter is not None:
        frozen, frozen_bytes = sum(p.numel() for p in outline.parameters()), _frozen_bytes(config, outline, parts)
    shapes = _trained_shapes(config, outline)
    sizes = [share_of(shape, parts) for shape in shapes]
    count = sum(shape.numel() for shape in shapes)
    weights = sum(sizes) * itemsize
    return Static(
        parameters=count + frozen,
        trained=count,
        weights=weights,
        frozen=frozen_bytes,
        gradients=weights,
        states=sum(_state_bytes(config, size, itemsize) for size in sizes),
        buckets=weights if ranks > parts else 0,
        second_models=config.second_models * weights,  # of what is trained
    )


def _start_bytes(config: TrainConfig, static: Static) -> int:
    """Return the bytes of the start's weights where a look reads them again; an adapter is switched off."""
    distance = config.evaluation.distance
    return 0 if distance is None or distance.to_start == "never" or config.adapter is not None else static.weights


def _shared_copies(config: TrainConfig, static: Static) -> int:
    """Return the bytes of copies of weights that passes without gradient share, 0 if they share none."""
    training = config.training
    if training.precision == "float32" or training.sharding == "full":
        return 0
    narrow = TYPES[training.precision]
    copied = static.trained if TYPES[training.weights] != narrow else 0
    copied += static.parameters - static.trained if config.kept_in == "float32" else 0
    copies = copied * narrow.itemsize
    return copies if fit_for_gradients(copies, static.gradients) else 0


def _state_bytes(config: TrainConfig, size: int, itemsize: int) -> int:
    """Return the bytes of the two states of one parameter."""
    if config.optimizer.states == "float32":
        return 8 * size
    if size >= 4096 and size % _BLOCK == 0:
        return 2 * (size + 4 * (size // _BLOCK) + 4 * 256)  # values, scales, and the table of what 8 bits stand for
    return 8 * size  # small ones are kept in float32


def _trained_shapes(config: TrainConfig, outline: Any) -> list[torch.Size]:
    """Return the shapes of what is trained: of all parameters, or of the adapter's factors."""
    if config.adapter is None:
        return [parameter.shape for parameter in outline.parameters()]
    return [torch.Size(shape) for shape in factor_shapes(outline, config.adapter)]


def _frozen_bytes(config: TrainConfig, outline: Any, parts: int) -> int:
    count = sum(share_of(p.shape, parts) for p in outline.parameters())
    if config.kept_in != "nf4":  # which is never split
        return count * TYPES[config.kept_in].itemsize
    linear: int = sum(layer.weight.numel() for layer in linear_layers(outline).values())
    return round(linear * _NF4) + (count - linear) * TYPES[config.training.precision].itemsize


# ---------------------------------------------------------------------------------------------------------------------
# The estimate


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes in each process, and FLOPs of a step over all of them.

    Parameters
    ----------
    static : Static
    sharded : Sharded or None
        What a process holds for a moment under `training.sharding: full`; None without.
    received : (float, float)
        Bytes of weights and of gradients that it receives in a step.
    activations, logits : int
        What a forward and backward pass hold at most beyond `static`, in the decoder and beyond that in the head.
    window : int
        Log-probabilities computed ahead, in host memory.
    start : int
        The start's weights, which a look at the distance from it may read again.
    drawing : int
        What drawing completions in this process holds beyond weights, at most: a cache of keys and values, copies of
        weights in the type of the computation, and a pass.
    copies : int
        What a thread writes a checkpoint from, in host memory; 0 if `checkpoint.overlap` asks for none.
    phases : dict
        All that is live at most in each phase of a step.
    flops : dict
        Of a step: `scoring` (passes without gradient), `forward`, `backward`; `layers again` under activation
        checkpointing, and `logits again`.
    """

    static: Static
    sharded: Sharded | None
    received: tuple[float, float]
    activations: int
    logits: int
    window: int
    start: int
    drawing: int
    copies: int
    phases: dict[str, int]
    flops: dict[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Return the largest number of bytes."""
        return max(self.phases.values())

    @property
    def peak_phase(self) -> str:
        """Return the phase with the peak."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def lower_bound(self) -> float:
        """Return the least number of bytes that a step takes, if the dry run counted a tenth too much.

        Completions may all end early, so what drawing them may take is left out.
        """
        base = self.static.kept + self.static.gradients
        peak = max(size for name, size in self.phases.items() if name != DRAWING)
        return base + 0.9 * max(0, peak - base) if peak > base else 0.9 * peak

    @property
    def total_flops(self) -> float:
        """Return the FLOPs of a whole step."""
        return sum(self.flops.values())


class Estimator:
    """Estimate configurations of one model; dry runs that are alike are done once.

    Parameters
    ----------
    outline
        The model on the meta device.
    cuda : bool
        Whether the run is one on CUDA.
    """

    def __init__(self, outline: Any, *, cuda: bool) -> None:
        self.outline, self.cuda = outline, cuda
        self._runs: dict[Any, Quantities] = {}
        self._drawn: dict[Any, int] = {}

    def estimate(self, config: TrainConfig, workload: Workload) -> Estimate:
        """Return the memory and compute that a run takes.

        Raises
        ------
        DryRunError
            If the model cannot be run without numbers.
        ModelError
            If there is to be no padding, and the model cannot be trained so on CUDA.
        """
        if self.cuda and config.training.padding == "free":
            refuse_unpackable(config.model, self.outline, "cuda")
        static = static_bytes(config, self.outline, ranks=workload.ranks)
        parts = parts_of(config, workload.ranks)
        sharded = (
            Sharded.of(config, self.outline, parts, cuda=self.cuda) if config.training.sharding == "full" else None
        )
        kept, unpacked, copies = static.kept, self._unpacked(config), _shared_copies(config, static)
        forward_only = self._run(
            config, workload.without_gradient, backward=False, whole=sharded is None, shares=copies > 0
        )
        passes = self._passes(config, workload, static, sharded)
        phases = {
            "forward and backward pass of the layers": max(one.before + one.layers for one in passes) + unpacked,
            "output head": max(one.before + one.head for one in passes) + unpacked,
            "update": kept + static.gradients + self._temporaries(config, parts),
        }
        if sharded is not None:
            phases["reduction of the root's gradients"] = kept + static.gradients + sharded.at_end
        if config.references:
            phases["scoring pass"] = kept + copies + unpacked + _without_gradient(forward_only, sharded)
        if workload.held_out is not None:
            held_out = self._run(config, workload.held_out, backward=False, whole=sharded is None, shares=copies > 0)
            phases["held-out evaluation"] = kept + copies + unpacked + _without_gradient(held_out, sharded)
        start = _start_bytes(config, static)
        if workload.travelled is not None:
            # The start makes copies of its own, pass by pass, where the policy's are shared.
            run = self._run(
                config, workload.travelled, backward=False, whole=sharded is None, shares=copies > 0 and not start
            )
            size = kept + copies + unpacked + start + _without_gradient(run, sharded)
            phases["distance from the start"] = size + self._hidden(config, workload.travelled)
        # Under sharding no process has a whole model to draw with.
        batches = batches_drawn(config, workload.prompts) if sharded is None else []
        drawing = max((self._drawing(config, batch) for batch in batches), default=0)
        if drawing:
            phases[DRAWING] = kept + unpacked + drawing
        window = config.window_steps(workload.steps) * workload.window
        overlaps = config.checkpoint.overlap == "always" or (config.checkpoint.overlap == "auto" and self.cuda)
        copies = static.saved if overlaps else 0
        if not self.cuda:
            phases = {name: size + window + copies for name, size in phases.items()}
        scoring, other = _passes_without_gradient(config)
        return Estimate(
            static=static,
            sharded=sharded,
            received=(0.0, 0.0) if sharded is None else sharded.received(workload, scoring + other),
            activations=unpacked + max(one.activations for one in passes),
            logits=max(round(max(one.run["head"], one.run["head backward"]) - one.run["held"]) for one in passes),
            window=window,
            start=start,
            drawing=drawing,
            copies=copies,
            phases=phases,
            flops=self._flops(config, workload, passes[-1].run, forward_only),
        )

    def _passes(self, config: TrainConfig, workload: Workload, static: Static, sharded: Sharded | None) -> list[_Pass]:
        """Return the passes of a step that differ: the first, which finds no gradients, and those that follow."""
        passes, kept = [], static.kept
        if workload.later is None or shape_of(workload.later) != shape_of(workload.first):
            if sharded is None:
                run = self._run(config, workload.first, backward=True)
                # This pass makes the gradients as it goes back; those are counted apart.
                passes.append(_Pass.whole(kept, run, activations=run["forward"]))
            else:
                run = self._run(config, workload.first, backward=True, accumulates=True, whole=False)
                passes.append(_Pass.of_shards(kept, run, sharded, gradients=static.gradients))
        if workload.later is not None:
            before, whole = kept + static.gradients, sharded is None
            run = self._run(config, workload.later, backward=True, accumulates=True, whole=whole)
            passes.append(
                _Pass.whole(before, run, activations=_in_layers(run))
                if sharded is None
                else _Pass.of_shards(before, run, sharded, gradients=0)
            )
        return passes

    def _run(
        self,
        config: TrainConfig,
        block: Block,
        *,
        backward: bool,
        accumulates: bool = False,
        whole: bool = True,
        shares: bool = False,
    ) -> Quantities:
        config = config if whole else gathered_config(config)
        training = config.training
        how = (training.precision, training.padding, training.dropout, config.adapter, config.kept_in)
        what = shape_of(block)
        checkpointing = training.activation_checkpointing and backward
        key = (how, what, checkpointing, backward, accumulates, shares)
        if key not in self._runs:
            self._runs[key] = dry_run(
                config, self.outline, block, backward=backward, accumulates=accumulates, cuda=self.cuda, shares=shares
            )
        return self._runs[key]

    def _drawing(self, config: TrainConfig, batch: Drawn) -> int:
        key = (config.training.precision, config.adapter, config.kept_in, batch)
        if key not in self._drawn:
            self._drawn[key] = drawing_bytes(config, self.outline, batch)
        return self._drawn[key]

    def _hidden(self, config: TrainConfig, block: Block) -> int:
        """Return the bytes of the policy's hidden states that wait for the start's, where kl_to_start is measured."""
        if config.evaluation.distance is None or config.evaluation.distance.to_start == "never":
            return 0
        width: int = self.outline.get_output_embeddings().weight.shape[1]
        return int(block.mask.sum()) * width * TYPES[config.training.precision].itemsize

    def _unpacked(self, config: TrainConfig) -> int:
        """Return the bytes of the largest layer kept in 4 bits, unpacked to compute with it."""
        if config.kept_in != "nf4":
            return 0
        largest = max((layer.weight.numel() for layer in linear_layers(self.outline).values()), default=0)
        return largest * TYPES[config.training.precision].itemsize

    def _temporaries(self, config: TrainConfig, parts: int) -> int:
        plain = config.training.weights == "float32" and config.optimizer.states == "float32"
        if plain or self.cuda:
            return 0  # one kernel reads and writes everything in place; on CUDA a compiled one
        size = max(share_of(shape, parts) for shape in _trained_shapes(config, self.outline))
        return update_temporaries(config, torch.empty(size, dtype=TYPES[config.training.weights], device="meta"))

    def _flops(
        self, config: TrainConfig, workload: Workload, run: Quantities, forward_only: Quantities
    ) -> dict[str, float]:
        """Return the FLOPs of a step, which grow with tokens and, in attention, with pairs of tokens."""
        vocabulary, width = self.outline.get_output_embeddings().weight.shape
        padding, head = config.training.padding, 2.0 * vocabulary * width

        def per(quantities: Quantities, block: Block, way: str) -> tuple[float, float]:
            tokens, pairs = Work.of([block], 1).laid_out(padding)
            return quantities[f"{way} linear"] / tokens, quantities[f"{way} attention"] / pairs

        def cost(rates: tuple[float, float], work: Work) -> float:
            return sum(rate * amount for rate, amount in zip(rates, work.laid_out(padding), strict=True))

        work, other = workload.work, workload.other
        trained = workload.later or workload.first
        forward = per(forward_only, workload.without_gradient, "forward")
        backward = per(run, trained, "backward")
        again = per(run, trained, "again")
        one_pass = cost(forward, work) + head * work.counted
        other_pass = cost(forward, other) + head * other.counted
        scoring, scoring_other = _passes_without_gradient(config)
        return {
            "scoring": scoring * one_pass + scoring_other * other_pass,
            "forward": one_pass,
            "backward": cost(backward, work) + (2 if config.adapter is None else 1) * head * work.counted,
            "layers again": cost(again, work),
            "logits again": head * work.counted,
        }


@dataclass(frozen=True, slots=True)
class _Pass:
    """The bytes of a forward and backward pass: those before it, and beyond them the most in layers and in the head."""

    before: int
    run: Quantities
    activations: int
    layers: int
    head: int

    @classmethod
    def whole(cls, before: int, run: Quantities, activations: float) -> _Pass:
        """Return a pass over weights that are there whole."""
        return cls(before, run, round(activations), round(_in_layers(run)), round(_in_head(run)))

    @classmethod
    def of_shards(cls, before: int, run: Quantities, sharded: Sharded, gradients: int) -> _Pass:
        """Return a pass over weights that are gathered for it; of so many bytes of gradients, it leaves its share."""
        last, first = BACKWARD[0], BACKWARD[-1]  # what is live between lies between
        back = sharded.in_backward + max(run[last], run[first] + gradients)
        layers = max(sharded.in_forward + run["forward"], back)
        return cls(before, run, round(_in_layers(run)), round(layers), round(sharded.in_head + _in_head(run)))


def _in_layers(run: Quantities) -> float:
    return max(run["forward"], *(run[name] for name in BACKWARD))


def _in_head(run: Quantities) -> float:
    return max(run["head"], run["head backward"])


def _without_gradient(run: Quantities, sharded: Sharded | None) -> int:
    """Return the bytes that a pass without gradient holds at most."""
    if sharded is None:
        return round(max(run["forward"], run["head"]))
    most = max(sharded.in_forward + run["forward"], sharded.in_head + run["head"], float(sharded.at_start))
    return round(most)


def _passes_without_gradient(config: TrainConfig) -> tuple[int, int]:
    """Return how often a step passes without gradient over its micro-batches, and over KTO's mismatched pairs."""
    bounded = isinstance(config.transform, BetaTransform) and config.transform.needs_batch_max()
    looks = bounded or config.objective.looks_at_answers
    return config.references + looks, (config.references + 1) * config.objective.mismatched


# ---------------------------------------------------------------------------------------------------------------------
# A bound that costs nothing


def generous_bytes(config: TrainConfig, outline: Any, rows: int, width: int) -> int:
    """Return more bytes than a run can need, without a dry run.

    Parameters
    ----------
    config : TrainConfig
    outline
        The model on the meta device.
    rows, width : int
        The largest block.
    """
    alone = config.training.model_copy(update={"sharding": "none"})  # which takes more
    static = static_bytes(config.model_copy(update={"training": alone}), outline, ranks=2)
    linear = itertools.chain(linear_layers(outline).values(), [outline.get_output_embeddings()])
    experts = expert_weights(outline).values()
    between: int = sum(sum(layer.weight.shape) for layer in linear)
    between += sum(weight.shape[0] * sum(weight.shape[1:]) for weight in experts)  # if each token went to all of them
    settings = outline.config.get_text_config()
    heads: int = getattr(settings, "num_attention_heads", 1) * getattr(settings, "num_hidden_layers", 1)
    head: int = outline.get_output_embeddings().weight.numel()
    narrow = TYPES[config.training.precision].itemsize if config.training.precision != "float32" else 0
    copies: int = narrow * sum(weight.numel() for weight in outline.parameters())
    sums: int = 0 if config.adapter is None else sum(weight.numel() for weight in experts)
    # Each layer's inputs and outputs and what is made of them, all pairs of tokens, copies of the head, weights of
    # experts summed with their additions, and gradients of these sums, all float32; and copies of all weights.
    passes = 4 * (8 * rows * width * between + 6 * heads * rows * width * width + 4 * head + 4 * sums) + (1 << 29)
    return static.kept + static.gradients + 2 * static.weights + passes + copies + _start_bytes(config, static)
