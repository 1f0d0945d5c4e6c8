"""Puts proposers together as a discovery asks for them: mutations, language models, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cachecraft.errors import RunError, UnknownNameError
from cachecraft.evolution.llm.calls import Calls, open_recorded
from cachecraft.evolution.llm.endpoint import OpenAiEndpoint
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings, Price, key_from_environment, parse_price
from cachecraft.evolution.llm.transport import Transport
from cachecraft.evolution.prompts import load_prompts
from cachecraft.evolution.proposers.llm import LlmProposer
from cachecraft.evolution.proposers.mix import MixProposer
from cachecraft.evolution.proposers.mutate import mutations
from cachecraft.evolution.proposers.protocol import Conduct, Proposer
from cachecraft.evolution.replaying import recorded_settings

Kind = Literal["mutate", "llm", "mix"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Make = Callable[[Conduct], Proposer]


@dataclass(frozen=True)
class Proposing:
    """Where a discovery's programs come from.

    Attributes:
        kind: ``mutate`` (no language model), ``llm``, or ``mix`` of both.
        llm: How language models are asked; None exactly for ``mutate``.
        prompts: A folder with prompt files of the user's.
        replay: A run whose recorded replies are used; no endpoint is asked.
    """

    kind: Kind = "mutate"
    llm: LlmSettings | None = None
    prompts: Path | None = None
    replay: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together.

        Raises:
            UnknownNameError: No such kind.
            EndpointError: Language models without settings, or settings without language models.
        """
        if self.kind not in KINDS:
            raise UnknownNameError("proposer", self.kind, KINDS)
        if self.kind == "mutate" and (self.llm or self.prompts or self.replay):
            raise EndpointError("The proposer mutate asks no language model; add --proposer llm or --proposer mix.")
        if self.kind != "mutate" and self.llm is None:
            raise EndpointError(
                f"The proposer {self.kind} needs an endpoint and a model; give --llm-base-url and --llm-model."
            )

    def check(self) -> None:
        """Look for what asking will need, before anything dear is begun: prompts, a key and the package that asks.

        Raises:
            CacheCraftError: Something is missing.
        """
        load_prompts(self.prompts)
        if self.llm is not None and self.replay is None:
            OpenAiEndpoint(self.llm.base_url, key_from_environment())

    def record(self) -> dict[str, Any]:
        """As written to run.yaml: nothing for mutations alone."""
        if self.llm is None:
            return {}
        return {"proposer": self.kind, **self.llm.record(), "prompts": load_prompts(self.prompts).digest}


def proposing_from(
    given: Mapping[str, Any],
    *,
    kind: str | None = None,
    prices: Sequence[str] = (),
    prompts: Path | None = None,
    replay: Path | None = None,
) -> Proposing:
    """What a person asks for; what is left open is taken from the run that is replayed, if there is one.

    Args:
        given: Settings of `LlmSettings` by name, None for those that are left open.
        kind: Which proposer; None to leave it open.
        prices: As `parse_price` reads them.
        prompts: A folder with prompt files.
        replay: A run whose recorded replies are used.

    Raises:
        CacheCraftError: Something is missing, means nothing or does not go together; or the run to be replayed asked
            no language model.
    """
    llm = {name: value for name, value in given.items() if value is not None}
    if prices:
        llm["prices"] = tuple(parse_price(each) for each in prices)
    if replay is not None:
        before = recorded_settings(replay)
        if "proposer" not in before:
            raise RunError(f"{replay} asked no language model; name a run whose replies can be replayed.")
        kind = kind or before.get("proposer")
        llm = {name: before[key] for name, key in _RECORDED.items() if key in before} | llm
        llm["models"] = tuple(llm.get("models", ()))
        llm["prices"] = tuple(each if isinstance(each, Price) else Price(*each) for each in llm.get("prices", ()))
    kind = kind or "mutate"
    if kind not in KINDS:
        raise UnknownNameError("proposer", kind, KINDS)
    if kind == "mutate":
        if llm.pop("most_money", None) is not None:
            raise EndpointError("A budget of money needs a language model to spend it; give candidates or a time.")
        if llm:
            raise EndpointError("The proposer mutate asks no language model; add --proposer llm or --proposer mix.")
    elif "base_url" not in llm or not llm.get("models"):
        raise EndpointError(f"The proposer {kind} needs an endpoint and a model; give --llm-base-url and --llm-model.")
    settings = LlmSettings(**llm) if llm else None
    found = Proposing(kind, settings, prompts, replay)
    found.check()
    return found


# Names of settings, and what run.yaml calls them.
_RECORDED = {
    "base_url": "base_url",
    "models": "llm_models",
    "prices": "llm_prices",
    "temperature": "temperature",
    "reply_tokens": "reply_tokens",
    "prompt_characters": "prompt_characters",
}


@contextmanager
def proposing(
    how: Proposing, folder: Path, say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[Make, Calls | None]]:
    """What makes the proposer for a conduct, and the calls of the run where models are asked.

    Args:
        how: Where programs come from.
        folder: The run's folder.
        say: Told in a line when the run waits for the endpoint.

    Raises:
        EndpointError: There is no key, or the package that asks is missing.
        RunError: The run to be replayed holds no replies.
    """
    if how.llm is None:
        yield mutations, None
        return
    settings, prompts = how.llm, load_prompts(how.prompts)
    with ExitStack() as stack:
        replay = open_recorded(how.replay) if how.replay is not None else None
        if replay is not None:
            stack.callback(replay.close)
        endpoint = None if replay else OpenAiEndpoint(settings.base_url, key_from_environment())
        calls = Calls(folder)
        stack.callback(calls.close)
        transport = Transport(settings, calls, endpoint, replay=replay, say=say)

        def make(conduct: Conduct) -> Proposer:
            models = [LlmProposer(name, conduct, transport, prompts) for name in settings.models]
            if how.kind == "llm" and len(models) == 1:
                return models[0]
            return MixProposer(models, transport, mutations(conduct) if how.kind == "mix" else None)

        yield make, calls
