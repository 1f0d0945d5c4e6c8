"""The model under measurement and its command-line options, the same for every benchmark."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.selections import Subject
from cachecraft.models import load
from cachecraft.models.loading import find
from cachecraft.runtime.structure import ModelStructure

EIGHT = ("random", "streaming_llm", "knorm", "keydiff", "vnorm", "vk_ratio", "snapkv", "tova")
FOUR_RATIOS = (0.5, 0.75, 0.88, 0.95)


@dataclass(frozen=True)
class Model:
    """A loaded model, and the folder it was loaded from."""

    subject: Subject
    folder: Path


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Options --model and --threads."""
    parser.add_argument("--model", default="smollm2", help="built-in name, folder or GGUF file (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: %(default)s)"
    )


def load_model(options: argparse.Namespace) -> Model:
    """Load the chosen model in float32 on the CPU; a hub id is refused, since the peer needs a folder."""
    source = find(options.model, revision=None, local_files_only=False, progress=print)
    folder = Path(source.location)
    if not folder.is_dir():
        raise CacheCraftError(f"{options.model} is not a folder here; give a built-in name, a folder or a GGUF file.")
    loaded = load(options.model, dtype="float32", device="cpu", threads=options.threads)
    structure = ModelStructure.of(loaded.model)
    return Model(Subject(structure, loaded.tokenizer, loaded.name, loaded.revision, loaded.dtype), folder)
