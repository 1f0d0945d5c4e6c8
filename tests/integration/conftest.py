"""The default model, loaded once for all of these tests and the examples that they run."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

import cachecraft.api
import cachecraft.models
from cachecraft.models.loading import resolve_device, resolve_dtype


@pytest.fixture(scope="session", autouse=True)
def loaded_once() -> Iterator[None]:
    """Who asks for a model as another test did gets that one: loading takes longer than most of what is done."""
    load = cachecraft.models.load

    @functools.cache
    def loaded(spec: str, dtype: str, device: str) -> cachecraft.LoadedModel:
        return load(spec, dtype=dtype, device=device)

    def known(spec: str, *, dtype: str = "auto", device: str = "auto", **_: object) -> cachecraft.LoadedModel:
        target = resolve_device(device)
        return loaded(spec, resolve_dtype(dtype, target), str(target))

    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((cachecraft.models, "load"), (cachecraft.api, "load"), (cachecraft, "load_model")):
            patch.setattr(place, name, known)
        yield


@pytest.fixture(scope="session")
def smollm2(loaded_once: None) -> cachecraft.LoadedModel:
    return cachecraft.models.load("smollm2", dtype="float32", device="cpu")
