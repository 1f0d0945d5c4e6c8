"""Loading policies: names, files, parameters, wrappers, entry points, and what goes wrong."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cachecraft.errors import PolicyLoadError, UnknownNameError
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import Policy, builtin_policies, load_policy

KNORM = "def score_tokens(f):\n    return -f.keys.norm(dim=-1)\n"
WRAPPER = "def score_tokens(f, base, *, factor: float = 2.0):\n    return base.score(f) * factor\n"


def test_the_builtin_policies_are_the_files_of_their_folder() -> None:
    assert {"random", "snapkv", "h2o", "frc"} <= set(builtin_policies())
    assert "__init__" not in builtin_policies()


def test_a_name_shows_only_parameters_that_differ_and_can_be_loaded_again() -> None:
    assert load_policy("snapkv:window=64").name == "snapkv"
    policy = load_policy("snapkv: kernel=3 , window=32")
    assert policy.name == "snapkv:window=32,kernel=3"
    assert load_policy(policy.name).id == policy.id
    assert dict(policy.parameters) == {"window": 32, "kernel": 3}
    assert policy.protect(synthetic_layer(5).view()) == (0, 32)


def test_an_identity_follows_the_program_and_not_its_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(KNORM)
    one, two = load_policy(str(tmp_path / "one.py")), load_policy(str(tmp_path / "two.py"))
    assert (one.name, two.name) == ("one", "two")
    assert one.id == two.id
    assert len({load_policy(s).id for s in ("snapkv", "snapkv:window=32", "tova")}) == 3
    assert load_policy("snapkv", selector="chunks:20").id != load_policy("snapkv").id


@pytest.mark.parametrize(
    ("spec", "words"),
    [("snapkw", "snapkv"), ("snapkv:windw=3", "window"), ("knorm:window=3", "there are none")],
)
def test_an_unknown_name_gets_the_nearest(spec: str, words: str) -> None:
    with pytest.raises(UnknownNameError, match=words):
        load_policy(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("snapkv:window=wide", "give a whole number"),
        ("snapkv:window=2.5", "give a whole number"),
        ("frc:local=x", "give a number"),
        ("snapkv:window", "write key=value"),
        ("snapkv:window=1,window=2", "given twice"),
        ("snapkv(knorm)", "wraps nothing"),
        ("", "cannot be read"),
        ("snapkv)", "cannot be read"),
        ("no/such.py", "cannot be read: No such file"),
    ],
)
def test_a_specification_that_cannot_be_meant_is_one_sentence(spec: str, words: str) -> None:
    with pytest.raises(PolicyLoadError, match=words):
        load_policy(spec)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def score_tokens(f):\n    return (", r"mine.py, line \d+ is not valid Python"),
        ("x = 1", "no function score_tokens"),
        ("\nimport no_such_module\n" + KNORM, r"mine.py, line 3 cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(3)\n" + KNORM, r"line 2 cannot be loaded: SystemExit"),
        ("def score_tokens():\n    pass", r"must take \(f\)"),
        ("def score_tokens(f, *rest):\n    pass", r"must take \(f\)"),
        ("def score_tokens(f, *, w):\n    pass", "w without a plain default"),
        ("def score_tokens(f, *, w=[1]):\n    pass", "w without a plain default"),
        ("def protect(f, *, w=1):\n    return 0, w\ndef score_tokens(f, *, w=2):\n    pass", "one default"),
    ],
)
def test_a_file_that_cannot_be_used_names_file_and_line(
    text: str, words: str, write_policy: Callable[..., Policy]
) -> None:
    with pytest.raises(PolicyLoadError, match=words):
        write_policy(text)


def test_parameters_are_read_by_the_type_of_their_default(write_policy: Callable[..., Policy]) -> None:
    text = "def score_tokens(f, *, a=1, b=0.5, c=False, d='x'):\n    return (a, b, c, d)\n"
    policy = write_policy(text, parameters=":a=-2,b=1e-3,c=true,d=y")
    assert policy.score(synthetic_layer(1).view()) == (-2, 1e-3, True, "y")
    with pytest.raises(PolicyLoadError, match="true or false"):
        write_policy(text, parameters=":c=maybe")


def test_functions_share_parameters_and_get_only_their_own(write_policy: Callable[..., Policy]) -> None:
    policy = write_policy(
        "def protect(f, *, n=1, m=2):\n    return n, m\ndef score_tokens(f, *, n=1):\n    return n\n",
        parameters=":n=7",
    )
    f = synthetic_layer(1).view()
    assert policy.protect(f) == (7, 2)
    assert policy.score(f) == 7


def test_a_wrapper_scores_through_its_base_and_follows_its_protection(
    write_policy: Callable[..., Policy],
) -> None:
    policy = write_policy(WRAPPER, name="twice", parameters="(snapkv:window=8):factor=3.0")
    assert policy.name == "twice(snapkv:window=8):factor=3.0"
    f = synthetic_layer(30).view()
    assert policy.protect(f) == (0, 8)
    assert torch.allclose(policy.score(f), load_policy("snapkv:window=8").score(f) * 3)
    assert policy.cost == "O(wT)"
    assert "window_attention" in policy.needs
    nested = write_policy(WRAPPER, name="outer", parameters=f"({policy.origin}(knorm):factor=3.0)")
    assert nested.base is not None
    assert nested.base.name == "twice(knorm):factor=3.0"


def test_a_wrapper_needs_something_to_wrap(write_policy: Callable[..., Policy]) -> None:
    with pytest.raises(PolicyLoadError, match="name it in parentheses"):
        write_policy(WRAPPER)


def test_two_loads_share_no_state(write_policy: Callable[..., Policy]) -> None:
    text = "calls = []\ndef score_tokens(f):\n    calls.append(1)\n    return len(calls)\n"
    one = write_policy(text)
    two, three, f = load_policy(one.origin), one.reloaded(), synthetic_layer(1).view()
    assert [one.score(f), one.score(f), two.score(f), three.score(f)] == [1, 2, 1, 1]


def test_needs_and_cost_come_from_the_text(write_policy: Callable[..., Policy]) -> None:
    assert write_policy(KNORM).needs == ("keys",)
    text = "def score_tokens(f):\n    d = {}\n    d.keys()\n    return f.local_attention_received(3)\n"
    assert write_policy(text).needs == ("local_attention_received",)
    assert [load_policy(n).cost for n in ("knorm", "snapkv", "h2o")] == ["O(T)", "O(wT)", "O(T^2)"]


def test_the_docstring_gives_summary_and_paper() -> None:
    policy = load_policy("snapkv")
    assert policy.paper == "2404.14469"
    assert policy.summary.startswith("SnapKV: ")
    assert load_policy("vnorm").paper == ""


def test_what_a_file_does_not_have_is_said(write_policy: Callable[..., Policy]) -> None:
    policy = write_policy(KNORM)
    assert not policy.has_allocate
    assert not policy.custom_selector
    with pytest.raises(PolicyLoadError, match="has no allocate"):
        policy.allocate([], 1, 1)
    own = write_policy(KNORM + "def allocate(scores, total, floor):\n    return (total, floor)\n", name="own")
    assert own.allocate([], 5, 1) == (5, 1)


def test_an_installed_package_can_bring_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_policy_module.py").write_text(KNORM)
    info = tmp_path / "sample_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-policy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cachecraft.policies]\nsample = sample_policy_module\nlost = no_such_policy_module\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    policy = load_policy("sample")
    assert policy.name == "sample"
    assert policy.origin == os.path.join(str(tmp_path), "sample_policy_module.py")
    with pytest.raises(PolicyLoadError, match="cannot be found"):
        load_policy("lost")
