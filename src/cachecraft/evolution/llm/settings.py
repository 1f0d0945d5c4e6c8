"""How a language model is asked: address, models, prices, limits. The key is no setting: it is never stored."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cachecraft.errors import CacheCraftError

KEY_VARIABLES = ("CACHECRAFT_LLM_KEY", "OPENAI_API_KEY")


# When settings that decide what models answer cannot be changed any more, and where they still can.
ELSEWHERE = "in another run folder with --run if this one holds replies"


class EndpointError(CacheCraftError):
    """The endpoint cannot be used as asked; what the run has so far is kept."""


class RefusedCallError(EndpointError):
    """The endpoint works, and does not take this one call, as one that is longer than the model's context."""


@dataclass(frozen=True)
class Price:
    """Dollars for a million tokens of a prompt and of a reply."""

    prompt: float
    reply: float

    def __post_init__(self) -> None:
        """Refuse what is no price.

        Raises:
            EndpointError: A price is negative or not finite.
        """
        for value in (self.prompt, self.reply):
            if not math.isfinite(value) or value < 0:
                raise EndpointError(f"A price of {value} means nothing; give dollars per million tokens, as 0.15,0.6.")

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """Dollars."""
        return (tokens_in * self.prompt + tokens_out * self.reply) / 1e6


def parse_price(text: str) -> Price:
    """A price from ``"0.15,0.6"``: dollars for a million tokens of prompts and of replies.

    Raises:
        EndpointError: It is none.
    """
    parts = text.split(",")
    try:
        prompt, reply = (float(part) for part in parts)
    except ValueError:
        raise EndpointError(
            f"--llm-price {text!r} is no price; give dollars per million tokens of prompts and of replies, as 0.15,0.6."
        ) from None
    return Price(prompt, reply)


@dataclass(frozen=True)
class LlmSettings:
    """How language models are asked.

    Attributes:
        base_url: Address of an OpenAI-compatible endpoint, such as ``http://localhost:8000/v1``.
        models: Names of models there.
        prices: A price for each model, or none at all.
        temperature: How freely they choose.
        reply_tokens: Tokens that a reply may have.
        prompt_characters: Characters that the parts of a prompt may have together; the least important are left out.
        deadline: Seconds for one proposal, all its tries and its repair together.
        most_tokens: Tokens of prompts and replies that the run may use; None for any number.
        most_money: Dollars that the run may spend; None for any number.
    """

    base_url: str
    models: tuple[str, ...]
    prices: tuple[Price, ...] = ()
    temperature: float = 0.8
    reply_tokens: int = 2048
    prompt_characters: int = 18_000
    deadline: float = 300.0
    most_tokens: int | None = None
    most_money: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be asked or limited.

        Raises:
            EndpointError: No or an unusable address, no model, prices for some models only, or a money limit without.
        """
        address = split_address(self.base_url)
        if address.username or address.password or address.query or address.fragment:
            raise EndpointError(
                f"The address of {address.hostname} holds more than scheme, host and path; put a key into "
                f"{KEY_VARIABLES[0]} or {KEY_VARIABLES[1]} instead."
            )
        if not self.models or not all(name.strip() for name in self.models):
            raise EndpointError("No model is named; give one with --llm-model.")
        if len(set(self.models)) < len(self.models):
            raise EndpointError(f"The models {', '.join(self.models)} repeat themselves; give each once.")
        if self.prices and len(self.prices) != len(self.models):
            raise EndpointError(
                f"There are {len(self.prices)} prices for {len(self.models)} models; give --llm-price for each or none."
            )
        if self.most_money is not None and not self.prices:
            raise EndpointError("A limit of money needs prices to measure it; give --llm-price for each --llm-model.")
        if self.most_money is not None and not any(each.prompt or each.reply for each in self.prices):
            raise EndpointError("A limit of money is never reached at prices of 0; give --budget candidates or a time.")
        positive: dict[str, float] = {"reply tokens": self.reply_tokens, "prompt characters": self.prompt_characters}
        positive |= {"seconds for a proposal": self.deadline}
        positive |= {"dollars": self.most_money} if self.most_money is not None else {}
        positive |= {"tokens": self.most_tokens} if self.most_tokens is not None else {}
        for what, value in positive.items():
            if not 0 < value < math.inf:
                raise EndpointError(f"{value:g} {what} mean nothing; give a number above 0.")
        if not 0 <= self.temperature <= 2:
            raise EndpointError(f"A temperature of {self.temperature:g} means nothing; give 0 to 2.")

    def price(self, model: str) -> Price | None:
        """A model's price; None where it is unknown."""
        return self.prices[self.models.index(model)] if self.prices else None

    def record(self) -> dict[str, Any]:
        """As written to run.yaml: all that decides what is proposed."""
        return {
            "base_url": self.base_url,
            "llm_models": list(self.models),
            "llm_prices": [[each.prompt, each.reply] for each in self.prices],
            "temperature": self.temperature,
            "reply_tokens": self.reply_tokens,
            "prompt_characters": self.prompt_characters,
        }


def split_address(text: str) -> Any:
    """The parts of an http address.

    Raises:
        EndpointError: It is none.
    """
    try:
        address = urlsplit(text.strip())
        good = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise EndpointError(f"--llm-base-url {text!r} is no address; give one such as http://localhost:8000/v1.")
    return address


def key_from_environment() -> str:
    """The key for the endpoint.

    Raises:
        EndpointError: There is none.
    """
    for name in KEY_VARIABLES:
        if key := os.environ.get(name, "").strip():
            return key
    raise EndpointError(
        f"There is no key for the endpoint; set {' or '.join(KEY_VARIABLES)} (to anything where none is needed)."
    )
