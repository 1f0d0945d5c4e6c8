"""The policy contract: what a policy is, what it may see, and what its choices must satisfy."""

from cachecraft.policy.check import check_policy
from cachecraft.policy.contract import Policy, builtin_policies, builtin_wrappers, load_policy
from cachecraft.policy.decide import Decision, Scored, decide, keep_count, score, select
from cachecraft.policy.features import Features, LayerFeatures, RotaryTable
from cachecraft.policy.selectors import Selector, parse_selector

__all__ = [
    "Decision",
    "Features",
    "LayerFeatures",
    "Policy",
    "RotaryTable",
    "Scored",
    "Selector",
    "builtin_policies",
    "builtin_wrappers",
    "check_policy",
    "decide",
    "keep_count",
    "load_policy",
    "parse_selector",
    "score",
    "select",
]
