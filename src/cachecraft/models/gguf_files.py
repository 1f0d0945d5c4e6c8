"""GGUF files made loadable: checked, then converted once to float32 safetensors with their tokenizer.

The conversion writes to a temporary folder beside the final one and renames it when it is finished, so that
whatever a killed conversion leaves is never mistaken for a model.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from cachecraft.errors import ModelError
from cachecraft.models.store import cache_home, first_line, storing

Progress = Callable[[str], None]
"""Called with a few words at the start of each stage, for example ``"converting smollm2.gguf (once)"``."""

CONVERSION = "v1"  # part of a converted folder's name: raise it when the conversion's result changes


def converted_folder(sha256: str) -> Path:
    """Where the converted copy of the GGUF file with this checksum lies, or will lie."""
    return cache_home() / "models" / f"{sha256[:20]}-{CONVERSION}"


def is_finished(folder: Path) -> bool:
    """Whether a converted folder is there; the rename that makes it is the last step, so there is no half."""
    return (folder / "config.json").is_file()


def check_gguf(path: Path) -> None:
    """Look at a file's first bytes and its size.

    Raises:
        ModelError: It is not a GGUF file, is of an unknown version, or is too short for what it announces.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(24)
    if head[:4] != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file (it begins with {head[:4]!r}); give a .gguf model file.")
    if len(head) < 24:
        raise ModelError(f"{path} is truncated ({size} bytes); download it again.")
    version, tensors, fields = struct.unpack("<IQQ", head[4:])
    if version not in (2, 3):
        raise ModelError(f"{path} is GGUF version {version}; versions 2 and 3 can be read.")
    # A tensor's entry takes at least 32 bytes, a field's at least 13.
    if not 0 < tensors < 1 << 24 or size < 24 + 32 * tensors + 13 * fields:
        raise ModelError(f"{path} is truncated ({size} bytes for {tensors} tensors); download it again.")


def convert_gguf(path: Path, sha256: str, progress: Progress | None = None) -> Path:
    """Return a folder with the float32 weights and the tokenizer of a GGUF file, converting it if need be.

    Two processes that ask at once do the work once: the second waits on a file lock.

    Raises:
        ModelError: The file is no readable GGUF, its architecture is unknown, or the disk is full.
    """
    check_gguf(path)
    folder = converted_folder(sha256)
    with storing():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if is_finished(folder):
                return folder
            for leftover in folder.parent.glob(f".{folder.name}.partial-*"):  # of a killed conversion
                shutil.rmtree(leftover, ignore_errors=True)
            if progress:
                progress(f"converting {path.name} (once)")
            partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
            try:
                write_converted(path, partial)
                if folder.exists():  # emptied by hand, say: os.replace refuses a folder that holds anything
                    shutil.rmtree(folder)
                partial.replace(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def write_converted(path: Path, folder: Path) -> None:
    """Read a GGUF file with transformers and save it as an ordinary float32 model folder."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet())
        # transformers parses the whole file three times and rebuilds the table of names for every module:
        # keeping both saves most of the time. It also shows a bar that its own switch does not hide.
        for owner, name, change in (
            (gguf, "GGUFReader", functools.cache),
            (gguf, "get_tensor_name_map", functools.cache),
            (modeling_gguf_pytorch_utils, "tqdm", lambda bar: functools.partial(bar, disable=True)),
        ):
            stack.enter_context(replaced(owner, name, change))
        source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(dtype=torch.float32, **source)
            tokenizer = AutoTokenizer.from_pretrained(**source)
        except Exception as error:  # the parser raises whatever the bytes provoke
            raise ModelError(
                f"{path} cannot be read as a model ({type(error).__name__}: {first_line(error)}); "
                "the file is damaged or of an architecture that this transformers release does not know."
            ) from error
        # The weights are plain float32 now; transformers would refuse to save what it still calls quantised.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        folder.mkdir(parents=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def replaced(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Put ``change(original)`` in an attribute's place inside the context; a missing one is left alone."""
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    setattr(owner, name, change(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside the context, transformers and the hub client show no bars and log errors only."""
    import huggingface_hub
    import transformers

    loggers = (transformers.logging, huggingface_hub.logging)
    levels = [logger.get_verbosity() for logger in loggers]
    bars = transformers.logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.set_verbosity(level)
            if bars:
                transformers.logging.enable_progress_bar()
