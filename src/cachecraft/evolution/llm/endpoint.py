"""One call to an OpenAI-compatible chat endpoint through the `openai` package: no retries, no waiting, no counting.

A call ends at its deadline whatever the server does: it runs in a thread of its own that is left behind when a server
sends a byte a second. Errors come back as one of three kinds: try again, send it otherwise, or give up. The key goes
into the request's header and nowhere else; it is struck out of whatever a server says.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from cachecraft.evolution.llm.calls import Message, Reply
from cachecraft.evolution.llm.settings import ELSEWHERE, EndpointError, RefusedCallError

LONGEST = 4 << 20  # characters of an answer that are read
SECRET = 12  # characters; a shorter key, as "none" for a server that needs none, is a word and not struck out


class TransientError(Exception):
    """Trying again may help.

    Attributes:
        wait: Seconds that the server asks to wait; None if it does not say.
        billed: Whether the provider may bill the call all the same.
    """

    def __init__(self, sentence: str, *, wait: float | None = None, billed: bool = False) -> None:
        super().__init__(sentence)
        self.wait, self.billed = wait, billed


class UnsupportedError(Exception):
    """The endpoint wants the call without one of its options."""

    def __init__(self, option: str, sentence: str) -> None:
        super().__init__(sentence)
        self.option = option


@dataclass(frozen=True)
class Request:
    """A call: model, messages, and options that may be left out where an endpoint does not know them."""

    model: str
    messages: tuple[Message, ...]
    reply_tokens: int
    temperature: float
    seed: int


class Endpoint(Protocol):
    """Answers calls."""

    def send(self, request: Request, seconds: float) -> Reply:
        """Send a call.

        Args:
            request: The call.
            seconds: When it must be over.

        Raises:
            TransientError: It may work another time.
            UnsupportedError: It may work without an option.
            RefusedCallError: The endpoint does not take this call.
            EndpointError: It will not work.
        """
        ...


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    """What is needed of an answer; endpoints add fields of their own, so that others are not forbidden here."""

    choices: list[_Choice]
    usage: _Usage | None = None


class OpenAiEndpoint:
    """An endpoint that is spoken to through the `openai` package."""

    def __init__(self, base_url: str, key: str) -> None:
        """Prepare the client; nothing is sent.

        Raises:
            EndpointError: The package is missing.
        """
        try:
            import openai
        except ImportError:
            raise EndpointError(
                "Asking a language model needs the package openai; install it with pip install 'cachecraft-kv[llm]'."
            ) from None
        self._openai = openai
        self._url, self._key = base_url, key
        self._client = self._connected()
        self._without: dict[str, set[str]] = {}

    def _connected(self) -> Any:
        return self._openai.OpenAI(base_url=self._url, api_key=self._key, max_retries=0)

    def send(self, request: Request, seconds: float) -> Reply:
        """Send a call; see the protocol."""
        client = self._client
        done: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()

        def call() -> None:
            try:
                raw = client.chat.completions.with_raw_response.create(timeout=seconds, **self._options(request))
                done.put(str(raw.http_response.text))
            except BaseException as error:  # it is raised again where it is waited for
                done.put(error)

        # A daemon, so that a server that never ends cannot keep the program from ending.
        threading.Thread(target=call, name="cachecraft-llm", daemon=True).start()
        try:
            answer = done.get(timeout=seconds)
        except queue.Empty:
            client.close()
            self._client = self._connected()
            raise TransientError(f"no complete answer within {seconds:.0f} seconds", billed=True) from None
        if isinstance(answer, BaseException):
            raise self._explained(answer, request) from None
        return self._read(answer)

    def _options(self, request: Request) -> dict[str, Any]:
        without = self._without.get(request.model, set())
        limit = "max_completion_tokens" if "max_tokens" in without else "max_tokens"
        options: dict[str, Any] = {
            "model": request.model,
            "messages": [dict(each) for each in request.messages],
            limit: request.reply_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        return {name: value for name, value in options.items() if name not in without}

    def _read(self, answer: str) -> Reply:
        try:
            found = _Completion.model_validate(json.loads(answer[:LONGEST]))
        except (ValueError, ValidationError, RecursionError):
            raise TransientError(f"no chat completion but {self.clean(answer)[:80]!r}", billed=True) from None
        if not found.choices:
            raise TransientError("an answer without a choice", billed=True)
        first, usage = found.choices[0], found.usage or _Usage()
        return Reply(
            text=None if first.message.content is None else self._keyless(first.message.content),
            finish=first.finish_reason or "stop",
            refused=bool(first.message.refusal),
            tokens_in=_count(usage.prompt_tokens),
            tokens_out=_count(usage.completion_tokens),
        )

    def _explained(self, error: BaseException, request: Request) -> Exception:
        openai = self._openai
        if isinstance(error, openai.APITimeoutError):
            return TransientError("no answer in time", billed=not _never_sent(error.__cause__ or error))
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            # Refused before anything was sent, or dropped when the model may have been at work.
            return TransientError(f"no connection ({self.clean(cause)})", billed=not _never_sent(cause))
        if isinstance(error, openai.APIStatusError):
            return self._status(error, request)
        if isinstance(error, Exception):
            return TransientError(f"{type(error).__name__} ({self.clean(error)})", billed=True)
        raise error

    def _status(self, error: Any, request: Request) -> Exception:
        code, said = int(error.status_code), self.clean(error.message)
        where = f"{self._url} answered {code}"
        if code in (401, 403):
            return EndpointError(f"{where}: the key is not accepted ({said}); set the right one and run again.")
        if code == 404:
            return EndpointError(
                f"{where}: there is no model {request.model!r}, or the address is not one of an OpenAI-compatible "
                f"endpoint ({said}); mend --llm-base-url, or name another --llm-model, {ELSEWHERE}."
            )
        if code == 402 or "insufficient_quota" in str(error.body):
            return EndpointError(f"{where}: the account has no credit left ({said}); the run so far is kept.")
        if code in (408, 409, 425, 429) or code >= 500:
            # A gateway that gives up waiting does not stop the model, so that a 5xx may be billed.
            return TransientError(f"status {code} ({said})", wait=_wait(error.response.headers), billed=code >= 500)
        if code in (400, 413, 422):
            for option in ("max_tokens", "temperature", "seed"):
                known = self._without.setdefault(request.model, set())
                if option in said and option not in known and "context" not in said.lower():
                    known.add(option)
                    return UnsupportedError(option, f"{where}: it does not take {option}")
            return RefusedCallError(
                f"{where} ({said}); give other --llm-prompt-characters, --llm-reply-tokens or --llm-temperature, "
                f"{ELSEWHERE}."
            )
        return EndpointError(f"{where} ({said}); mend --llm-base-url, and run the same command again.")

    def clean(self, said: object, length: int = 300) -> str:
        """What somebody else said, on one line, without the key, and not longer than it is worth."""
        return " ".join(self._keyless(str(said)).split())[:length]

    def _keyless(self, text: str) -> str:
        return text if len(self._key) < SECRET else text.replace(self._key, "[key]")


def _count(tokens: int | None) -> int | None:
    return tokens if tokens is not None and tokens >= 0 else None


def _never_sent(cause: BaseException) -> bool:
    """Whether an error can only have come before the request was out."""
    return type(cause).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol")


def _wait(headers: Any) -> float | None:
    """Seconds that a server asks to wait: ``Retry-After`` as a number or a date."""
    text = str(headers.get("retry-after", "")).strip()
    try:
        seconds = float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def messages_of(*pairs: tuple[str, str]) -> tuple[Message, ...]:
    """Messages from (role, text) pairs."""
    return tuple({"role": role, "content": text} for role, text in pairs)


def most_tokens(messages: Sequence[Message], reply_tokens: int) -> int:
    """What a call can use at most: a token is at least a byte, and a template adds a few to each message."""
    return sum(len(each["content"].encode()) + 16 for each in messages) + reply_tokens
