"""What a replay takes from the run whose replies it uses: all that decides what is searched, and where it ended.

Only settings are read here; the replies are found by the transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecraft.errors import RunError
from cachecraft.evaluation.store import read_run
from cachecraft.evolution.population import Population
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget


@dataclass(frozen=True)
class Replayed:
    """A run to be replayed.

    Attributes:
        settings: What was searched for and on what.
        models, dtypes: Names of the models, and the types they were measured in.
        diagnosis: Whether the search diagnosed itself.
        budget: Candidates after which nothing of the run is left.
    """

    settings: DiscoverySettings
    models: tuple[str, ...]
    dtypes: tuple[str, ...]
    diagnosis: bool
    budget: SearchBudget


def check_apart(replay: Path | None, run: Path) -> None:
    """Refuse to replay a run into itself.

    Raises:
        RunError: Both are one folder.
    """
    if replay is not None and replay.resolve() == run.resolve():
        raise RunError(f"The run {replay} cannot be replayed into itself; name another folder with --run.")


def recorded_settings(folder: Path) -> Mapping[str, Any]:
    """What a run's run.yaml tells.

    Raises:
        RunError: The folder holds no discovery.
    """
    store = read_run(folder)
    store.close()
    if store.settings.get("command") != "discover":
        raise RunError(f"{folder} holds no discovery; give the folder of a `cachecraft discover`.")
    return store.settings


def replayed(folder: Path) -> Replayed:
    """Read a run that is to be replayed.

    Raises:
        RunError: The folder holds no discovery, or one without candidates.
    """
    record = recorded_settings(folder)
    settings = DiscoverySettings.recorded(record)
    with Population(folder) as population:
        told = len(population.told())
    if not told:
        raise RunError(f"The discovery in {folder} has no candidates yet; run its command again first.")
    # Where models alone propose, the last batch may lack programs: it is asked for whole, and the next finds no reply.
    spare = settings.batch if record.get("proposer") == "llm" else 0
    return Replayed(
        settings,
        tuple(record["models"]),
        tuple(record["dtypes"]),
        record.get("diagnosis") != "off",
        SearchBudget(candidates=told + spare),
    )
