"""Discover, measure and ship KV-cache eviction policies for transformer language models.

    import cachecraft
    context = cachecraft.prefill(model, tokenizer, text, policy="keydiff", ratio=0.75)
    context.ask("What is the special magic number?")

    with cachecraft.compress(model, policy="snapkv", ratio=0.75):
        model.generate(**batch)

    cachecraft.evaluate("smollm2", policies=["snapkv", "keydiff"], ratios=[0.75], tasks=["ruler:niah_single_1"])

The names below are loaded on first use, so that importing the package is quick.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from cachecraft.errors import CacheCraftError

if TYPE_CHECKING:
    from cachecraft.api import Evaluation as Evaluation
    from cachecraft.api import evaluate as evaluate
    from cachecraft.api import open_evaluation as open_evaluation
    from cachecraft.budgeting import search_budgets as search_budgets
    from cachecraft.discovery import Discovery as Discovery
    from cachecraft.discovery import discover as discover
    from cachecraft.evolution.llm.settings import LlmSettings as LlmSettings
    from cachecraft.evolution.llm.settings import Price as Price
    from cachecraft.evolution.proposers.assembly import Proposing as Proposing
    from cachecraft.evolution.settings import DiscoverySettings as DiscoverySettings
    from cachecraft.evolution.settings import SearchBudget as SearchBudget
    from cachecraft.models import LoadedModel as LoadedModel
    from cachecraft.models import fetch as fetch_model
    from cachecraft.models import load as load_model
    from cachecraft.policy.check import check_policy as check_policy
    from cachecraft.policy.contract import Policy as Policy
    from cachecraft.policy.contract import builtin_policies as builtin_policies
    from cachecraft.policy.contract import load_policy as load_policy
    from cachecraft.policy.features import Features as Features
    from cachecraft.runtime.compress import CompressedPrompt as CompressedPrompt
    from cachecraft.runtime.compress import Compression as Compression
    from cachecraft.runtime.compress import compress as compress
    from cachecraft.runtime.context import CompressedContext as CompressedContext
    from cachecraft.runtime.context import load as load_context
    from cachecraft.runtime.context import prefill as prefill

_HOMES = {
    "CompressedContext": ("cachecraft.runtime.context", "CompressedContext"),
    "CompressedPrompt": ("cachecraft.runtime.compress", "CompressedPrompt"),
    "Compression": ("cachecraft.runtime.compress", "Compression"),
    "Discovery": ("cachecraft.discovery", "Discovery"),
    "DiscoverySettings": ("cachecraft.evolution.settings", "DiscoverySettings"),
    "Evaluation": ("cachecraft.api", "Evaluation"),
    "Features": ("cachecraft.policy.features", "Features"),
    "LlmSettings": ("cachecraft.evolution.llm.settings", "LlmSettings"),
    "LoadedModel": ("cachecraft.models", "LoadedModel"),
    "Policy": ("cachecraft.policy.contract", "Policy"),
    "Price": ("cachecraft.evolution.llm.settings", "Price"),
    "Proposing": ("cachecraft.evolution.proposers.assembly", "Proposing"),
    "SearchBudget": ("cachecraft.evolution.settings", "SearchBudget"),
    "builtin_policies": ("cachecraft.policy.contract", "builtin_policies"),
    "check_policy": ("cachecraft.policy.check", "check_policy"),
    "compress": ("cachecraft.runtime.compress", "compress"),
    "discover": ("cachecraft.discovery", "discover"),
    "evaluate": ("cachecraft.api", "evaluate"),
    "fetch_model": ("cachecraft.models", "fetch"),
    "load_context": ("cachecraft.runtime.context", "load"),
    "load_model": ("cachecraft.models", "load"),
    "load_policy": ("cachecraft.policy.contract", "load_policy"),
    "open_evaluation": ("cachecraft.api", "open_evaluation"),
    "prefill": ("cachecraft.runtime.context", "prefill"),
    "search_budgets": ("cachecraft.budgeting", "search_budgets"),
}

__all__ = [
    "CacheCraftError",
    "CompressedContext",
    "CompressedPrompt",
    "Compression",
    "Discovery",
    "DiscoverySettings",
    "Evaluation",
    "Features",
    "LlmSettings",
    "LoadedModel",
    "Policy",
    "Price",
    "Proposing",
    "SearchBudget",
    "__version__",
    "builtin_policies",
    "check_policy",
    "compress",
    "discover",
    "evaluate",
    "fetch_model",
    "load_context",
    "load_model",
    "load_policy",
    "open_evaluation",
    "prefill",
    "search_budgets",
]

try:
    __version__ = version("cachecraft-kv")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cachecraft' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
