"""Models: found by built-in name, folder, GGUF file or hub id, and loaded on a chosen device."""

from cachecraft.models.builtin import BUILT_IN, fetch
from cachecraft.models.loading import DTYPES, LoadedModel, load

__all__ = ["BUILT_IN", "DTYPES", "LoadedModel", "fetch", "load"]
