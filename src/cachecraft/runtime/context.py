"""A compressed context: read a text once, ask it many questions, save it, load it.

The text is compressed before any question is known. Each layer is evicted as soon as it is done, so that the dense
cache never exists as a whole; only a policy that divides its budget over the layers needs to see them all first.
Measuring policies is the evaluation's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft.chat import Frame, frame, token_ids
from cachecraft.errors import ModelError
from cachecraft.policy.contract import Policy
from cachecraft.runtime import compat
from cachecraft.runtime.attention import LayerCall, attending
from cachecraft.runtime.cache import CompressedCache, CompressedLayer
from cachecraft.runtime.context_file import ContextRecord, read_context, write_context
from cachecraft.runtime.eviction import Budgeted, Eviction, Kept
from cachecraft.runtime.features import SequenceFeatures, observe_prefill
from cachecraft.runtime.gather import window_layer
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True, eq=False)
class CompressedContext:
    """What is left of a text after eviction, ready for questions; made by `prefill` or `load`.

    Nothing that is asked changes it: each answer works on a copy of the cache.

    Attributes:
        policy: Name of the policy that chose, with the parameters that differ from their defaults.
        policy_id: SHA-256 of the policy's program, parameters and selector.
        forced: Protection filled the whole budget of every layer, so that the policy's scores decided nothing.
        scoring_seconds: What the policy's features, scores and selection took; 0.0 for a loaded context.
        allocation_note: What of the allocation had to give way, in one sentence; "" if nothing had.
    """

    policy: str
    policy_id: str
    forced: bool
    _structure: ModelStructure
    _tokenizer: Any
    _frame: Frame
    _gap: str  # what comes between the text and a question
    _cache: CompressedCache
    scoring_seconds: float = 0.0
    allocation_note: str = ""

    @property
    def tokens(self) -> int:
        """How many tokens were read: the text's and those that the model's template puts before it."""
        return self._cache.compressed[0].seen

    @property
    def kept(self) -> Tensor:
        """(L, G) int64: entries kept by each layer and kv head; in a layer with a sliding window, the window's."""
        return self._cache.lengths[:, 0]

    @property
    def compressed_layers(self) -> tuple[int, ...]:
        """The layers that the policy decided on and the budget is for; the others keep their sliding windows."""
        return self._structure.compressed

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values held, sliding windows included."""
        return self._cache.bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of memory that they really take, measured from the tensors' storage."""
        return self._cache.stored_bytes

    @property
    def full_bytes(self) -> int:
        """Bytes that they would take if nothing was evicted, sliding windows included."""
        return sum(layer.full_bytes for layer in self._cache.compressed)

    @property
    def window_bytes(self) -> int:
        """How many of both are those of layers with a sliding window, which are not compressed."""
        return sum(layer.bytes for layer in self._cache.compressed if layer.window is not None)

    @property
    def note(self) -> str:
        """What was not compressed, in one sentence; empty if all layers were."""
        return self._structure.note

    def ask(self, question: str, *, max_new_tokens: int = 128, answer_prefix: str = "") -> str:
        """Answer a question about the text, greedily.

        Args:
            question: Follows the text in the user's message; on a new line.
            max_new_tokens: The most tokens to generate; a stop token ends the answer earlier.
            answer_prefix: How the answer begins; not part of what is returned.

        Raises:
            ModelError: Context, question and answer may take more tokens than the model has positions for.
        """
        return "".join(self.stream(question, max_new_tokens=max_new_tokens, answer_prefix=answer_prefix))

    def stream(
        self,
        question: str,
        *,
        max_new_tokens: int = 128,
        answer_prefix: str = "",
        on_token: Callable[[int], None] = lambda _: None,
    ) -> Iterator[str]:
        """The same answer as `ask`, in pieces of text as they come; same arguments and errors.

        A piece may take several tokens to show; `on_token` is called with each one's id as soon as it is known.
        """
        prompt = token_ids(self._tokenizer, self._gap + question if question else "")
        prompt += token_ids(self._tokenizer, self._frame.tail + answer_prefix)
        if not prompt:
            raise ModelError("There is nothing to answer; give a question or an answer_prefix.")
        if max_new_tokens < 1:
            raise ModelError(f"An answer of {max_new_tokens} tokens is none; let max_new_tokens be at least 1.")
        total = self.tokens + len(prompt) + max_new_tokens
        if total > self._structure.context:
            raise ModelError(
                f"Context ({self.tokens} tokens), question ({len(prompt)}) and answer (up to {max_new_tokens}) exceed "
                f"the model's context of {self._structure.context}; ask for less or read a shorter text."
            )
        self._structure.require_room(total, read=self.tokens)
        return self._pieces(prompt, max_new_tokens, on_token)

    def _pieces(self, prompt: tuple[int, ...], max_new_tokens: int, on_token: Callable[[int], None]) -> Iterator[str]:
        answer: list[int] = []
        told = ""
        for token in self._greedy(prompt, max_new_tokens):
            on_token(token)
            answer.append(token)
            text = self._text(answer)
            # A character of several tokens shows as a replacement character until it is complete.
            if not text.endswith("\ufffd") and text.startswith(told) and text != told:
                yield text[len(told) :]
                told = text
        rest = self._text(answer)
        if rest.startswith(told) and rest != told:
            yield rest[len(told) :]

    def _text(self, answer: list[int]) -> str:
        # Without clean-up, which may change what was already told.
        text: str = self._tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _greedy(self, prompt: tuple[int, ...], max_new_tokens: int) -> Iterator[int]:
        model = self._structure.model
        cache = self._cache.fork(len(prompt) + max_new_tokens)
        feed, position = list(prompt), self.tokens
        for _ in range(max_new_tokens):
            ids = torch.tensor([feed], device=model.device)
            positions = torch.arange(position, position + len(feed), device=model.device).unsqueeze(0)
            # The model's attention is ours during a step only: between two tokens the caller may use the model.
            with torch.no_grad(), attending(model, cache=cache):
                hidden = compat.hidden_states(model, ids, positions, cache)
                chosen = int(compat.logits(model, hidden[:, -1]).argmax())
            if chosen in self._structure.stop_ids:
                return
            yield chosen
            position += len(feed)
            feed = [chosen]

    def save(self, path: str | Path) -> None:
        """Write the context to one file, whole or not at all.

        Raises:
            ModelError: The file cannot be written.
        """
        record = ContextRecord(self.policy, self.policy_id, self.forced, self._frame, self._gap, self.allocation_note)
        write_context(Path(path), self._structure, self._cache, record)


def load(path: str | Path, model: PreTrainedModel, tokenizer: Any, *, force: bool = False) -> CompressedContext:
    """Read a context that `CompressedContext.save` wrote.

    Args:
        path: The file.
        model: The model that the context was made with; its device may be another.
        tokenizer: Its tokenizer.
        force: Accept a class of models that CacheCraft was not tested with.

    Raises:
        ModelError: The file is damaged, is no context, or was made with another model, dtype or chat template.
    """
    structure = ModelStructure.of(model, force=force)
    cache, record = read_context(Path(path), structure)
    around = frame(tokenizer)
    if around != record.frame:
        raise ModelError(
            f"{path} was made with another tokenizer or chat template; load it with the one it was made with."
        )
    return CompressedContext(
        record.policy,
        record.policy_id,
        record.forced,
        structure,
        tokenizer,
        around,
        record.gap,
        cache,
        allocation_note=record.allocation_note,
    )


def prefill(
    model: PreTrainedModel,
    tokenizer: Any,
    text: str,
    *,
    policy: str | Policy = "keydiff",
    ratio: float | None = None,
    keep: int | None = None,
    selector: str | None = None,
    allocation: str | None = None,
    force: bool = False,
) -> CompressedContext:
    """Read a text and keep only what a policy chooses of its keys and values.

    Args:
        model: A causal language model, from `cachecraft.load_model` or straight from transformers; float32,
            bfloat16 or float16.
        tokenizer: Its tokenizer; the text goes into its chat template, if it has one, as a user's message that the
            question will complete.
        text: The text; it is compressed before any question is known.
        policy: What chooses: a name, a file or a specification such as ``"snapkv:window=32"``.
        ratio: Share of the entries to evict, from 0 up to, but not including, 1.
        keep: Entries to keep per kv head on average, instead of a ratio.
        selector: ``"tokens"``, ``"chunks:20"`` or ``"pages:16"`` instead of the policy's own.
        allocation: ``"uniform"``, ``"pyramid"``, ``"reversed_pyramid"``, ``"adaptive"``, ``"global"`` or a budgets
            file: how many entries each layer and head keeps; their total is the budget's.
        force: Go on with a class of models that CacheCraft was not tested with.

    Raises:
        BudgetError: Both or neither of ratio and keep are given, or the number means nothing, or budgets are for
            another model.
        ModelError: The model is not supported, or the text is longer than its context.
        PolicyError: The policy cannot be loaded or breaks the contract.
    """
    asked = Budgeted.of(policy, ratio, keep, selector, allocation)
    structure = ModelStructure.of(model, force=force)
    asked.require_model(structure)
    around = frame(tokenizer)
    ids = around.first_ids + token_ids(tokenizer, around.head + text)
    if not ids:
        raise ModelError("The text has no tokens; give one that is not empty.")
    eviction = Eviction(asked, SequenceFeatures.of(structure, tokenizer, ids))
    layers: dict[int, CompressedLayer] = {}

    def take(layer: int, kept: Kept) -> None:
        layers[layer] = CompressedLayer(kept.keys, kept.values, kept.counts.unsqueeze(0), len(ids))

    def see(call: LayerCall) -> None:
        window = structure.windows[call.layer]
        if window is not None:
            layers[call.layer] = window_layer(call.keys[0], call.values[0], window)
        elif (kept := eviction.see(call.layer, *call.alone())) is not None:
            take(call.layer, kept)

    observe_prefill(structure, ids, see)
    for layer, kept in eviction.rest():
        take(layer, kept)
    gap = "" if not text or text.endswith("\n") else "\n"
    return CompressedContext(
        asked.policy.name,
        asked.policy.id,
        eviction.forced,
        structure,
        tokenizer,
        around,
        gap,
        CompressedCache([layers[layer] for layer in range(structure.layers)]),
        eviction.seconds,
        eviction.note,
    )
