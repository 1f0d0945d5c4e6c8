"""Recorded items in files, one warmed sandbox, and the canaries: small programs that cheat or break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import Policy, policy_from_source
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.sequence import decide_sequence
from cachecraft.sandbox import Limits, Program, Sandbox, SharedItem, share

CANARIES = Path(__file__).parent / "canaries"
LAYERS, TOKENS = 4, 400
KNORM = "def score_tokens(f):\n    return -f.keys.norm(dim=-1)\n"
ENDLESS = "def score_tokens(f):\n    while True:\n        pass\n"


def policy_of(source: str) -> Policy:
    """A policy from its text, run in this process."""
    return policy_from_source(source, name="mine", origin="mine.py")


def in_process(policy: Policy, layers: list[LayerFeatures], keeps: tuple[int, ...]) -> list[Tensor]:
    """What evaluation decides: (L, G, T) bool for each budget."""
    decided = decide_sequence(policy, lambda: iter(layers), keeps)
    return [torch.stack([decision.mask for decision in decisions]) for decisions in decided]


def recorded_layers(seed: int, tokens: int = TOKENS) -> list[LayerFeatures]:
    """Layers of random content on one model's output projections, longer and wider than those of `check_policy`."""
    sizes = {"kv_heads": 3, "group": 3, "head_dim": 32, "layers": LAYERS}
    layers = []
    for index in range(LAYERS):
        drawn = synthetic_layer(tokens, layer=index, seed=100 * seed + index, **sizes)
        layers.append(
            LayerFeatures(
                drawn.given("keys"),
                drawn.given("values"),
                drawn.given("queries"),
                layer=index,
                layers=LAYERS,
                rotary=drawn.rotary,
                output_projection=synthetic_layer(1, seed=index, **sizes).given("output_projection"),
                special_mask=drawn.given("special_mask"),
                punctuation_mask=drawn.given("punctuation_mask"),
                seed=drawn.seed,
            )
        )
    return layers


@pytest.fixture(scope="session")
def items(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SharedItem]:
    """Two items of one length that bring two heavy features and share their output projections."""
    folder = tmp_path_factory.mktemp("items")
    return {
        name: share(
            folder / f"{name}.item",
            recorded_layers(seed),
            warm=lambda f: (f.attention_received(), f.local_attention_received(32)),
            weights=folder / "weights",
        )
        for seed, name in enumerate(("one", "two"))
    }


@pytest.fixture(scope="session")
def sandbox(items: dict[str, SharedItem]) -> Iterator[Sandbox]:
    """A started sandbox that has the items."""
    with Sandbox(Limits(seconds=20, memory_bytes=192 << 20)) as started:
        for name, item in items.items():
            started.load(name, item)
        yield started


@pytest.fixture(scope="session")
def canary() -> Callable[[str], Program]:
    """A canary by the name of its file."""
    return lambda name: Program(name, (CANARIES / f"{name}.py").read_text())
