"""Recorded layers in files that several processes map read-only: arrays, heavy features and nothing else.

A trusted process writes an item once. Every process that opens it builds the same `LayerFeatures` on the mapped arrays,
so that a policy sees what it would see in process, bit for bit: strides and alignment are kept, since matrix products
may differ in their last bit with either. The mapping cannot be written to. No token ids, no text and no answers belong
into such a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cachecraft.errors import FeatureError
from cachecraft.policy.features import Features, LayerFeatures, RotaryTable
from cachecraft.sandbox.array_file import ArrayWriter, MappedArrays, Place, path_descriptor, written_whole
from cachecraft.sandbox.verdict import SandboxError

_GIVEN = ("keys", "values", "queries", "positions", "logsumexp", "special_mask", "punctuation_mask")
_COMMON = ("positions", "special_mask", "punctuation_mask")
# Whatever else a layer is made of: numbers, which are kept under the names that the constructor has for them.
_SETTINGS = tuple(
    name
    for name in inspect.signature(LayerFeatures).parameters
    if name not in {*_GIVEN, "output_projection", "rotary", "strict"}
)


def share(
    path: Path,
    layers: Iterable[LayerFeatures],
    *,
    warm: Callable[[Features], object] | None = None,
    weights: Path | None = None,
) -> SharedItem:
    """Write an item's layers to a file and open it.

    Args:
        path: The file; one that is there is replaced.
        layers: The item's layers in order, all of one shape.
        warm: Asks for the heavy features that the item shall bring, for example
            ``lambda f: (f.attention_received(), f.local_attention_received(32))``. Called once for each layer; what it
            had computed is stored and costs no candidate anything.
        weights: A file in the same folder for the output projections, which all items of a model share; written if it
            is not there. Without it they are stored with the item.

    Raises:
        SandboxError: A file cannot be written, the layers have different shapes, or the weights are another model's.
    """
    described: list[dict[str, Any]] = []
    projections: list[Place | None] = []
    known = None if weights is None or not weights.exists() else _projections(weights)
    matching = True
    with written_whole(path) as own, written_whole(weights) if weights and known is None else nullcontext(own) as home:
        for index, layer in enumerate(layers):
            projection = _given(layer, "output_projection")
            if known is None:
                projections.append(None if projection is None else home.add(projection))
            else:
                matching &= index < len(known) and _equal(projection, known[index])
            described.append(_described(layer, own, warm))
        if not matching:
            raise SandboxError(
                f"The output projections in {weights} are another model's; give each model its own file."
            )
        shapes = {tuple(each["shape"]) for each in described}
        if len(shapes) != 1:
            raise SandboxError(
                f"The layers of {path.name} have the shapes {shapes or 'of nothing'}; share one model's."
            )
        description = {"shape": [len(described), *shapes.pop()], "layers": described}
        if weights is None:
            own.finish(description | {"weights": None, "projections": projections})
        else:
            own.finish(description | {"weights": weights.name})
            if known is None:
                home.finish({"projections": projections})
    return SharedItem.open(path)


def _projections(weights: Path) -> list[Tensor | None]:
    with path_descriptor(weights) as file:
        mapped = MappedArrays(file, str(weights))
    return [None if place is None else mapped.array(place) for place in mapped.description["projections"]]


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.cpu(), other)


def _given(layer: LayerFeatures, name: str) -> Tensor | None:
    try:
        return layer.given(name)
    except FeatureError:
        return None


def _described(layer: LayerFeatures, writer: ArrayWriter, warm: Callable[[Features], object] | None) -> dict[str, Any]:
    """Write one layer's arrays and say what else makes it up."""
    given = {name: _given(layer, name) for name in _GIVEN}
    try:
        rotary = [writer.add_common(layer.rotary.cos), writer.add_common(layer.rotary.sin)]
    except FeatureError:
        rotary = []
    if warm is not None:
        with torch.no_grad():
            warm(layer.view())
    # Copies in float32 are cheap to make again and would double the file.
    derived = {
        name: array
        for name, array in layer.computed().items()
        if given.get(name) is None and name != "output_projection"
    }
    return {
        "shape": [layer.kv_heads, layer.tokens],
        "settings": {name: getattr(layer, name) for name in _SETTINGS},
        "given": {
            name: writer.add_common(array) if name in _COMMON else writer.add(array)
            for name, array in given.items()
            if array is not None
        },
        "derived": {name: writer.add(array) for name, array in derived.items()},
        "rotary": rotary,
    }


class SharedLayer(LayerFeatures):
    """A layer on mapped arrays that knows which heavy features it had to compute itself."""

    heavy: list[str]

    def cached(self, name: str, build: Callable[[], Tensor]) -> Tensor:
        """As `LayerFeatures.cached`; notes what is built."""

        def noted() -> Tensor:
            self.heavy.append(name)
            return build()

        return super().cached(name, noted)


class SharedItem:
    """An item's layers, opened from its file.

    Attributes:
        shape: (L, G, T): layers, kv heads, entries.
        files: The files that hold its arrays.
    """

    def __init__(self, descriptors: list[int], files: tuple[Path, ...] = ()) -> None:
        """Map open files; the descriptors may be closed afterwards."""
        self.files = files
        names = [str(file) for file in files] or ["received"] * len(descriptors)
        mapped = [MappedArrays(descriptor, name) for descriptor, name in zip(descriptors, names, strict=True)]
        own, last = mapped[0], mapped[-1]
        self.shape: tuple[int, int, int] = tuple(own.description["shape"])
        self._layers: list[dict[str, Any]] = own.description["layers"]
        self._arrays: list[dict[str, Tensor]] = []
        for layer, projection in zip(self._layers, last.description["projections"], strict=True):
            named = {name: own.array(place) for name, place in {**layer["given"], **layer["derived"]}.items()}
            for name, place in zip(("rotary.cos", "rotary.sin"), layer["rotary"], strict=False):
                named[name] = own.array(place)
            if projection is not None:
                named["output_projection"] = last.array(projection)
            self._arrays.append(named)

    @classmethod
    def open(cls, path: Path) -> SharedItem:
        """Open the item that `share` wrote.

        Raises:
            SandboxError: The file is missing or something else, or its weights' file is.
        """
        with path_descriptor(path) as own:
            weights = MappedArrays(own, str(path)).description["weights"]
            if weights is None:
                return cls([own], (path,))
            beside = path.with_name(weights)
            with path_descriptor(beside) as other:
                return cls([own, other], (path, beside))

    def array(self, layer: int, name: str) -> Tensor:
        """An array of a layer: ``"keys"``, ``"values"``, ``"queries"``, …; KeyError if the item has none."""
        return self._arrays[layer][name]

    def layers(self) -> Iterator[SharedLayer]:
        """The layers in order, with fresh caches that hold the heavy features which the item brings."""
        for described, arrays in zip(self._layers, self._arrays, strict=True):
            settings: dict[str, Any] = {name: arrays[name] for name in described["given"]} | described["settings"]
            rotary = RotaryTable(arrays["rotary.cos"], arrays["rotary.sin"]) if described["rotary"] else None
            layer = SharedLayer(**settings, rotary=rotary, output_projection=arrays.get("output_projection"))
            layer.heavy = []
            for name in described["derived"]:
                layer.cached(name, partial(arrays.__getitem__, name))
            layer.heavy.clear()
            yield layer

    def whose(self, address: int) -> str | None:
        """Which array an address of this process lies in, in words."""
        for described, arrays in zip(self._layers, self._arrays, strict=True):
            for name, array in arrays.items():
                if 0 <= address - array.data_ptr() < array.numel() * array.element_size():
                    return f"{name} of layer {described['settings']['layer']}"
        return None
