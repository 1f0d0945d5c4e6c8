"""No feature and no policy's scoring takes more than 64 MB beside the trace, at 8k tokens of SmolLM2-135M's shape.

Measured as a person would: the growth of the process's peak resident size, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

LIMIT = 64e6
TOKENS = 8192
FEATURES = {
    "attention_received": "f.attention_received()",
    "attention_received, normalisers unknown": "unknown.attention_received()",
    "local_attention_received": "f.local_attention_received(32)",
    "local_attention_received, wide": "f.local_attention_received(2000)",
    "window_attention": "f.window_attention(64)",
    "chunk_attention": "f.chunk_attention(256)",
    "chunk_attention, long chunks": "f.chunk_attention(2048)",
    "projected_values": "f.projected_values()",
    "keys_unrotated": "f.keys_unrotated",
    "queries_unrotated": "f.queries_unrotated",
    "mean_rotation": "f.mean_rotation(512)",
}
POLICIES = (
    *("scissorhands", "expected_attention", "lagkv", "leverage", "noncausal", "compactor", "cur", "q_filter", "frc"),
    *("snapkv", "caote(snapkv)", "criticalkv(snapkv)"),
)
PROGRAM = """
import json, sys
import torch
from pathlib import Path
from cachecraft.policy import LayerFeatures, RotaryTable, load_policy, score

torch.set_num_threads(1)

def memory(field):
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) * 1024

def made(tokens, known=True):
    draw = torch.Generator().manual_seed(0)
    k, v, q = (torch.randn(heads, tokens, 64, generator=draw) for heads in (3, 3, 9))
    angles = torch.arange(tokens + 512.0)[:, None] * (10000.0 ** -(torch.arange(0, 64, 2) / 64)).repeat(2)
    return LayerFeatures(
        k, v, q, layer=0, layers=30, rotary=RotaryTable(angles.cos(), angles.sin()),
        output_projection=torch.randn(9, 64, 576, generator=draw),
        logsumexp=torch.full((9, tokens), 9.5) if known else None,
    )

def growth(run, layer):
    layer.release()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size again
    before = memory("VmRSS")
    run()
    return memory("VmHWM") - before

features, policies, tokens = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
small, small_unknown = made(600), made(600, known=False)
layer, open_layer = made(tokens), made(tokens, known=False)
found = {}
for name, code in features.items():
    for one, other in ((small, small_unknown), (layer, open_layer)):  # the small one loads what torch loads once
        f, unknown = one.view(), other.view()
        found[name] = growth(lambda: eval(code), other if "unknown" in code else one)
for name in policies:
    policy = load_policy(name)
    for one in (small, layer):
        found[name] = growth(lambda: score(policy, one, torch.full((3,), one.tokens // 8)), one)
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak can be reset on Linux only")
def test_no_feature_and_no_policy_takes_more_than_64_mb_at_8k_tokens() -> None:
    found = measured(FEATURES, POLICIES)
    assert set(found) == {*FEATURES, *POLICIES}
    for _ in range(2):  # the system may give a process more than it asked for; what is needed is needed every time
        large = {name for name, size in found.items() if size > LIMIT}
        if large:
            again = {name: code for name, code in FEATURES.items() if name in large}
            found |= measured(again, [name for name in POLICIES if name in large])
    assert {name: size for name, size in found.items() if size > LIMIT} == {}


def measured(features: Mapping[str, str], policies: Sequence[str]) -> dict[str, int]:
    """Growth in bytes of a process of its own."""
    arguments = [json.dumps(features), json.dumps(policies), str(TOKENS)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
