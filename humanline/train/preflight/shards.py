"""What each process holds beside its share of the weights under `training.sharding: full`, and what it sends.

torch's FSDP2 has one group of parameters for each decoder layer and one, the root, for the rest: embedding, final norm
and output head. A group is gathered whole before it computes, in the type of the computation. What is live then
follows the order in which torch does things, on any device:

- The root stays whole from the forward to the end of the backward pass. A layer is let go after its forward pass, and
  gathered again for its backward pass.
- What arrives is copied out of the buffer it came in: in the forward pass the buffer of a layer is let go when the
  next one's has been copied, in the backward pass at once, but there the next layer is on its way by then. Both ways
  a layer computes beside a second one's bytes.
- The gradients of a group are whole until all of its are there; then they are copied, as float32, into the buffer
  that is reduced, which is let go when the next group's gradients are there. The head's gradient waits for the
  embedding's, to the end. On a CPU (gloo) a copy of that buffer is reduced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from humanline.train.config import TrainConfig
from humanline.train.policy.adapter import factor_shapes
from humanline.train.policy.layers import decoder_layers
from humanline.train.policy.load import TYPES
from humanline.train.preflight.workload import Workload

_REDUCED_IN = 4  # bytes of a value: gradients are reduced as float32


def parts_of(config: TrainConfig, ranks: int) -> int:
    """Return into how many parts a run of so many processes splits its weights: 1 where each process has them whole."""
    return ranks if config.training.sharding == "full" else 1


def share_of(shape: Iterable[int], parts: int) -> int:
    """Return the values of a parameter that the first process holds: its rows are dealt in equal runs, rounded up."""
    rows, *rest = shape or (1,)
    count = -(-rows // parts)
    for size in rest:
        count *= size
    return count


def gathered_config(config: TrainConfig) -> TrainConfig:
    """Return the configuration whose weights are kept as those are that a process gathers, to look at its passes."""
    kept = config.training.precision
    if config.adapter is None:
        return config.model_copy(update={"training": config.training.model_copy(update={"weights": kept})})
    return config.model_copy(update={"adapter": config.adapter.model_copy(update={"base": kept})})


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are gathered together.

    Parameters
    ----------
    weights : int
        Bytes, gathered.
    gradients : int
        Bytes of the gradients of those that are trained, before they are reduced.
    buffer : int
        Bytes from which they are reduced.
    """

    weights: int
    gradients: int
    buffer: int


@dataclass(frozen=True, slots=True)
class Sharded:
    """What one process holds and receives for a moment, beside its share.

    Parameters
    ----------
    parts : int
        Into which the weights are split.
    root, layer : Group
        The root, and the largest layer.
    copies : int
        Of a buffer, in which gradients are reduced.
    weights, buffers : int
        Bytes of all groups, gathered, and of all buffers from which gradients are reduced.
    head_gradient : int
        Bytes of the head's gradient, which waits for the rest of the root; 0 where there is none, or where the head is
        the embedding, since a pass then holds it by itself.
    """

    parts: int
    root: Group
    layer: Group
    copies: int
    weights: int
    buffers: int
    head_gradient: int

    @classmethod
    def of(cls, config: TrainConfig, outline: Any, parts: int, *, cuda: bool) -> Sharded:
        """Look at a model on the meta device; raise ModelError if its layers cannot be found."""
        size, whole = TYPES[config.training.precision].itemsize, config.adapter is None

        def group(parameters: Iterable[Any], added: int) -> Group:
            values = sum(parts * share_of(parameter.shape, parts) for parameter in parameters)
            trained = values if whole else added
            return Group(size * (values + added), size * trained, _REDUCED_IN * trained)

        layers = decoder_layers(outline)
        of_layers = {id(parameter) for layer in layers for parameter in layer.parameters()}
        root = [parameter for parameter in outline.parameters() if id(parameter) not in of_layers]
        added = 0  # an adapter's factors, of a layer
        if config.adapter is not None:
            factors = sum(parts * share_of(shape, parts) for shape in factor_shapes(outline, config.adapter))
            added = -(-factors // len(layers))
        groups = [group(root, 0), *(group(layer.parameters(), added) for layer in layers)]
        head, embedding = outline.get_output_embeddings().weight, outline.get_input_embeddings().weight
        return cls(
            parts=parts,
            root=groups[0],
            layer=max(groups[1:], key=lambda one: one.weights),
            copies=int(parts > 1 and not cuda),
            weights=sum(one.weights for one in groups),
            buffers=sum(one.buffer for one in groups),
            head_gradient=size * head.numel() if whole and head is not embedding else 0,
        )

    @property
    def _arriving(self) -> int:
        """Return the bytes of a second layer; one process alone copies its weights, and receives none."""
        return self.layer.weights if self.parts > 1 else 0

    @property
    def in_forward(self) -> int:
        """Return the bytes of weights that are there while a layer goes forward."""
        return self.root.weights + self.layer.weights + self._arriving

    @property
    def at_start(self) -> int:
        """Return the bytes of weights that are there as a pass begins, before anything was computed."""
        return (1 if self.parts == 1 else 2) * self.root.weights + self.layer.weights

    @property
    def in_head(self) -> int:
        """Return the bytes of weights that are there while the head computes, forwards or backwards."""
        return self.root.weights + self._arriving

    @property
    def in_backward(self) -> int:
        """Return the bytes that are there while a layer goes back: weights, gradients and what is being reduced."""
        return self.in_forward + self.layer.gradients + (1 + self.copies) * self.layer.buffer + self.head_gradient

    @property
    def at_end(self) -> int:
        """Return the bytes that are there when the root's gradients are reduced, at the end of a backward pass."""
        before = self.root.weights + self.root.gradients + self.layer.buffer
        reducing = (1 + self.copies) * self.root.buffer + self.root.buffer // self.parts
        return max(before, self.root.gradients + reducing)

    def received(self, workload: Workload, scoring: int) -> tuple[float, float]:
        """Return the bytes of weights and of gradients that a process receives in a step; it sends as many.

        Parameters
        ----------
        workload : Workload
        scoring : int
            Passes without gradient over each micro-batch.
        """
        others = (self.parts - 1) / self.parts
        forward, backward = self.weights, self.weights - self.root.weights
        weights = others * workload.passes * ((1 + scoring) * forward + backward)
        return weights, others * workload.passes * self.buffers
