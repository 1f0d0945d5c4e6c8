"""Find a model by what the user typed and load it: a built-in name, a folder, a GGUF file or a hub id.

Also decides data type, device and threads. It knows nothing of caches or policies; the other files of
this package see to what lies on disk.
"""

from __future__ import annotations

import re
import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cachecraft.errors import ModelError, UnknownNameError
from cachecraft.models.builtin import BUILT_IN, fetch
from cachecraft.models.gguf_files import Progress, check_gguf, convert_gguf, quiet
from cachecraft.models.store import cached_sha256, first_line, folder_revision
from cachecraft.runtime import compat

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OFFLINE_ADVICE = f"without a connection use {', '.join(BUILT_IN)}, a local folder or a GGUF file"


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for use, and what names it in a result.

    Attributes:
        model: In eval mode, without gradients, on `device`.
        tokenizer: Its tokenizer.
        name: What the user called it; for a folder or a file, the last part of its path.
        revision: What tells two models of one name apart: the hub's commit; a folder's checksum over
            configuration, weights and tokenizer; a GGUF file's sha256.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        device: For example ``"cpu"`` or ``"cuda:0"``.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str
    dtype: str
    device: str


@dataclass(frozen=True)
class Source:
    """Where a model was found: what `from_pretrained` takes, and the model's name and revision."""

    location: str
    arguments: dict[str, Any]
    name: str
    revision: str


def load(
    spec: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Args:
        spec: A built-in name (``"smollm2"``), a local folder, a GGUF file, or a hub id (``"owner/name"``),
            looked for in this order.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"``: bfloat16 on CUDA, else float32.
        device: A torch device, or ``"auto"``: CUDA where there is one, else the CPU.
        threads: CPU threads that torch uses from now on in this process; None leaves them as they are.
        revision: A hub model's branch, tag or commit.
        local_files_only: Never ask the hub; take what its cache holds.
        progress: Told each stage of a download or conversion as it begins.

    Raises:
        ModelError: The model cannot be found, fetched or read; the device is not there; transformers is of a
            release that is not supported.
        UnknownNameError: There is no such dtype.
    """
    compat.require_transformers()
    target = resolve_device(device)
    kind = resolve_dtype(dtype, target)
    if threads is not None:
        if threads < 1:
            raise ModelError(f"threads must be at least 1, not {threads}.")
        torch.set_num_threads(threads)
    source = find(spec, revision=revision, local_files_only=local_files_only, progress=progress)
    try:
        with quiet():
            require_causal(source)
            tokenizer = AutoTokenizer.from_pretrained(source.location, **source.arguments)
            model: Any = AutoModelForCausalLM.from_pretrained(source.location, dtype=DTYPES[kind], **source.arguments)
            model = model.to(target).eval().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{spec} does not fit into the memory of {target} as {kind}.") from error
    except ModelError:
        raise
    except Exception as error:  # safetensors, json and transformers each raise their own kinds for a damaged file
        raise ModelError(
            f"{spec} cannot be loaded ({type(error).__name__}: {first_line(error)}); "
            "check that its folder holds config, weights and tokenizer, all complete."
        ) from error
    return LoadedModel(model, tokenizer, source.name, source.revision, kind, str(model.device))


def find(spec: str, *, revision: str | None, local_files_only: bool, progress: Progress | None = None) -> Source:
    """Say where a model is, fetching or converting it first where that is needed; see `load`."""
    path = Path(spec).expanduser()
    if revision is not None and (spec in BUILT_IN or path.exists()):
        raise ModelError(f"A revision ({revision}) goes with a hub id only; {spec} is not one.")
    if spec in BUILT_IN:
        return Source(str(fetch(spec, progress)), {"local_files_only": True}, spec, BUILT_IN[spec][2])
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"The folder {spec} holds no config.json, so it is not a model.")
        return Source(str(path), {"local_files_only": True}, path.resolve().name, folder_revision(path))
    if path.is_file():
        check_gguf(path)
        (sha256,) = cached_sha256([path])
        folder = convert_gguf(path.resolve(), sha256, progress)
        return Source(str(folder), {"local_files_only": True}, path.name, sha256)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", spec) and path.suffix.lower() != ".gguf":
        return find_on_hub(spec, revision=revision, local_files_only=local_files_only)
    raise ModelError(
        f"There is no model {spec!r}: it is no built-in name ({', '.join(BUILT_IN)}), no folder or file "
        "here, and no hub id, which has the form owner/name."
    )


def find_on_hub(spec: str, *, revision: str | None, local_files_only: bool) -> Source:
    """Pin a hub id to the commit it stands for now, so that all its files and every result agree on it."""
    from huggingface_hub import errors, hf_hub_download

    offline = local_files_only or not hub_is_resolvable()
    wanted = f"{spec} at revision {revision}" if revision else spec
    try:
        with quiet():
            config = hf_hub_download(spec, "config.json", revision=revision, local_files_only=offline)
    except errors.GatedRepoError as error:
        raise ModelError(f"{spec} on the hub asks for an agreement first; log in to it and accept.") from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{spec} is on the hub, but has no revision {revision!r}.") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"There is no model {spec!r}: it is no built-in name ({', '.join(BUILT_IN)}), no folder or file "
            "here, and not on the hub (or private)."
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise ModelError(f"{spec} is on the hub, but holds no config.json; it is no transformers model.") from error
    except Exception as error:  # offline comes as an HTTP client's, the operating system's or the hub's own error
        raise ModelError(
            f"{wanted} is not here as a folder, file or cached hub model, and the hub cannot be reached "
            f"({type(error).__name__}); {OFFLINE_ADVICE}."
        ) from error
    commit = Path(config).parent.name  # the hub's cache keeps each commit's files in a folder of its name
    return Source(spec, {"revision": commit, "local_files_only": offline}, spec, commit)


def hub_is_resolvable() -> bool:
    """Whether the hub's name can be looked up: without it, its client would retry for half a minute first."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():  # a proxy does the looking up
        return True
    try:
        socket.getaddrinfo(urllib.parse.urlparse(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def require_causal(source: Source) -> None:
    """Refuse, before any weights are read, a model that does not generate text or cannot be built."""
    config = AutoConfig.from_pretrained(source.location, **source.arguments)
    compat.require_buildable_rotary(config)
    names = config.architectures or []
    if names and not any(name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in names):
        raise ModelError(f"{source.name} is a {', '.join(names)}, not a causal language model.")


def resolve_device(device: str) -> torch.device:
    """Turn ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, … into a device that is there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise UnknownNameError("device", device, ("auto", "cpu", "cuda", "mps")) from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"There is no device {device!r} here ({torch.cuda.device_count()} CUDA devices); use cpu.")
    if target.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("There is no device 'mps' here; use cpu.")
    return target


def resolve_dtype(dtype: str, device: torch.device) -> str:
    """Turn ``"auto"`` into bfloat16 on CUDA and float32 elsewhere; refuse unknown names."""
    if dtype == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    if dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, ("auto", *DTYPES))
    return dtype
