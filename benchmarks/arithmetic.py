"""The arithmetic that an evaluation cannot do without, and how fast this machine multiplies matrices.

Counted are the linear layers, causal attention and the output layer; norms, rotations, softmax, scoring and gathering
are not, so that the limit is one that nothing can pass. A multiply-add is two operations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from cachecraft.runtime import compat
from cachecraft.runtime.structure import ModelStructure

MEASURED_LAYERS = 4  # enough weights that none stays in the processor's cache from one pass to the next


@dataclass(frozen=True)
class Counts:
    """A model's operations.

    Attributes:
        linear: Weights of the linear layers of all decoder layers.
        attention: Query heads × head width × layers.
        output: Weights of the output layer.
    """

    linear: int
    attention: int
    output: int

    @classmethod
    def of(cls, structure: ModelStructure) -> Counts:
        """Count a model's."""
        output = structure.model.get_output_embeddings().weight
        return cls(
            sum(weight.numel() for layer in compat.decoder_layers(structure.model) for weight in _weights(layer)),
            structure.heads * structure.head_dim * structure.layers,
            int(output.numel()),
        )

    def prefill(self, tokens: int) -> int:
        """One causal pass over `tokens`, without the output layer."""
        return 2 * self.linear * tokens + 4 * self.attention * (tokens * (tokens + 1) // 2)

    def candidate(self, keep: int, forwarded: int, outputs: int) -> int:
        """New tokens over a compressed context.

        Args:
            keep: Entries of the context that are left, per layer and head.
            forwarded: New tokens that pass through the layers: the prompt's and the answer's but its last.
            outputs: Tokens that the output layer is asked for: the answer's.
        """
        seen = keep * forwarded + forwarded * (forwarded + 1) // 2
        return 2 * self.linear * forwarded + 4 * self.attention * seen + 2 * self.output * outputs


def _weights(layer: nn.Module) -> list[torch.Tensor]:
    return [module.weight.detach() for module in layer.modules() if isinstance(module, nn.Linear)]


def matrix_rate(structure: ModelStructure, rows: Sequence[int], repeats: int = 5) -> float:
    """The best rate, in operations per second, at which this machine multiplies by the model's own weights.

    Args:
        structure: The model.
        rows: Numbers of tokens to multiply at a time; the fastest counts.
        repeats: Tries of each; the best counts, since whatever disturbs only slows.
    """
    weights = [
        weight for layer in list(compat.decoder_layers(structure.model))[:MEASURED_LAYERS] for weight in _weights(layer)
    ]
    best = 0.0
    with torch.no_grad():
        for count in rows:
            inputs = {weight.shape[1]: torch.randn(count, weight.shape[1]) for weight in weights}
            work = sum(2 * count * weight.numel() for weight in weights)
            for _ in range(repeats):
                began = time.perf_counter()
                for weight in weights:
                    nn.functional.linear(inputs[weight.shape[1]], weight)
                best = max(best, work / (time.perf_counter() - began))
    return best
