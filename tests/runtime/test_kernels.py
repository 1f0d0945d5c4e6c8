"""The attention functions against sums written out, whatever the mask, the window and the soft-cap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cachecraft.runtime import kernels
from cachecraft.runtime.kernels import causal_attention, masked_attention, visible

SCALE = 0.7
TOLERANCE = 1e-5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def written_out(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Attention of (..., R, D) over (..., S, D), and the log-sum-exp, in double precision."""
    logits = query.double() @ keys.double().transpose(-1, -2) * SCALE
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~seen, -torch.inf)
    return logits.softmax(dim=-1) @ values.double(), logits.logsumexp(dim=-1)


def band(tokens: int, window: int | None) -> Tensor:
    away = torch.arange(tokens).unsqueeze(1) - torch.arange(tokens)
    return (away >= 0) & (away < (window or tokens))


@pytest.mark.parametrize("softcap", [None, 0.8])
@pytest.mark.parametrize("window", [None, 1, 7, 128, 129, 300, 1000])
@pytest.mark.parametrize("tokens", [1, 8, 128, 300])
def test_a_whole_sequence_attends_causally_within_its_window(tokens, window, softcap, monkeypatch) -> None:
    query, key, value = drawn(0, 2, 4, tokens, 8), drawn(1, 2, 2, tokens, 8), drawn(2, 2, 2, tokens, 8)
    wide = [each.repeat_interleave(2, dim=1) for each in (key, value)]
    output, norms = written_out(query, *wide, band(tokens, window), softcap)
    for floats in (kernels._BLOCK_FLOATS, 4000):
        monkeypatch.setattr(kernels, "_BLOCK_FLOATS", floats)
        found, logsumexp = causal_attention(query, key, value, SCALE, softcap=softcap, window=window)
        torch.testing.assert_close(found.double(), output, rtol=0, atol=TOLERANCE)
        if logsumexp is not None:
            torch.testing.assert_close(logsumexp.double(), norms, rtol=0, atol=TOLERANCE)
        else:
            assert softcap is None and (window is None or window >= tokens)


@given(entries=st.integers(1, 40), new=st.integers(1, 40), window=st.none() | st.integers(1, 50))
def test_new_tokens_see_what_a_whole_sequence_would_show_them(entries: int, new: int, window: int | None) -> None:
    new = min(new, entries)
    seen = visible(entries, new, torch.device("cpu"), window=window)
    wanted = band(entries, window)[entries - new :]
    assert torch.equal(torch.ones_like(wanted) if seen is None else seen, wanted)


@given(seed=st.integers(0, 2**31), parts=st.integers(1, 4), capped=st.booleans(), each_head=st.booleans())
def test_parts_of_the_entries_merge_to_the_whole_by_their_log_sum_exp(seed, parts, capped, each_head) -> None:
    softcap = 1.5 if capped else None
    query, keys, values = drawn(seed, 3, 5, 8), drawn(seed + 1, 3, 24, 8), drawn(seed + 2, 3, 24, 6)
    seen = drawn(seed + 3, *([3] if each_head else []), 5, 24) > 0.8  # some query sees nothing of some part
    seen[..., 0] = True
    pieces = zip(keys.chunk(parts, 1), values.chunk(parts, 1), seen.chunk(parts, -1), strict=True)
    found = [masked_attention(query, k, v, SCALE, softcap=softcap, seen=s) for k, v, s in pieces]
    norms = torch.stack([norm for _, norm in found])
    shares = norms.softmax(dim=0).unsqueeze(-1)
    output, whole = written_out(query, keys, values, seen, softcap)
    merged = sum(share * part for share, (part, _) in zip(shares, found, strict=True))
    torch.testing.assert_close(merged.double(), output, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(norms.logsumexp(dim=0).double(), whole, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    query, keys, values = (drawn(seed, 2, 9, 8).to(dtype) for seed in range(3))
    output, norms = masked_attention(query, keys, values, SCALE, softcap=2.0, seen=band(9, None))
    wanted, wanted_norms = written_out(query, keys, values, band(9, None), 2.0)
    assert output.dtype == dtype and norms.dtype == torch.float32
    torch.testing.assert_close(output, wanted.to(dtype), rtol=0, atol=torch.finfo(dtype).eps * 2)
    torch.testing.assert_close(norms.double(), wanted_norms, rtol=0, atol=TOLERANCE)
