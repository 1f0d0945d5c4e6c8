"""The cache folder: where it is, checksums of the files in it, and plain words for a disk that is full."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from cachecraft.errors import ModelError

HASHED_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".jinja", ".txt")


def cache_home() -> Path:
    """Where models are kept: ``$CACHECRAFT_HOME``, else the platform's cache folder."""
    if chosen := os.environ.get("CACHECRAFT_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cachecraft"


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """Turn a full disk or an unwritable cache folder into one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            reason = "the disk is full"
        else:
            reason = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(
            f"The model cannot be stored in {cache_home()} ({reason}); "
            "free some space or set CACHECRAFT_HOME to another folder."
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, for use inside a sentence."""
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sha256(paths: list[Path]) -> list[str]:
    """The sha256 of each file; one whose size and times are those of its last reading is not read again.

    The record is a small file in the cache folder; where that cannot be read or written, the files are read.
    """
    record = cache_home() / "checksums.json"
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict):
        known = {}
    sums, fresh = [], {}
    for path in paths:
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        entry = known.get(str(path.resolve()))
        if isinstance(entry, list) and entry[:3] == stamp and len(entry) == 4:
            sums.append(str(entry[3]))
            continue
        sums.append(file_sha256(path))
        # A file written a moment ago may change again within the clock's grain: do not trust its times yet.
        if time.time_ns() - max(stamp[1:]) > 2_000_000_000:
            fresh[str(path.resolve())] = [*stamp, sums[-1]]
    if fresh:
        with contextlib.suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            partial = record.with_name(f".{record.name}.{os.getpid()}")
            partial.write_text(json.dumps(known | fresh), encoding="utf-8")
            partial.replace(record)
    return sums


def folder_revision(folder: Path) -> str:
    """A sha256 over names, sizes and contents of a model folder's configuration, weights and tokenizer."""
    files = sorted(path for path in folder.iterdir() if path.suffix in HASHED_SUFFIXES and path.is_file())
    digest = hashlib.sha256()
    for path, content in zip(files, cached_sha256(files), strict=True):
        digest.update(f"{path.name}\0{path.stat().st_size}\0{content}\n".encode())
    return digest.hexdigest()
