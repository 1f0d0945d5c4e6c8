"""The static gate: what may be run, and a sentence for what may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachecraft.evolution.gate import DEEPEST, MOST_CHARACTERS, MOST_NODES, check_source
from cachecraft.policy.contract import load_policy

POLICIES = Path(load_policy.__code__.co_filename).parents[1] / "policies"
EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"
KNORM = "def score_tokens(f):\n    return -f.keys.norm(dim=-1)\n"


@pytest.mark.parametrize("path", sorted(POLICIES.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_every_built_in_policy_passes(path: Path) -> None:
    assert check_source(path.read_text()) == []


def test_the_example_of_the_guide_passes() -> None:
    assert check_source(EXAMPLE.read_text()) == []


def body(*lines: str) -> str:
    """A policy whose score_tokens has these lines."""
    return "import torch\n\ndef score_tokens(f):\n" + "".join(f"    {line}\n" for line in lines)


REFUSED = {
    "no Python": ("def score_tokens(f)\n    return 1", "line 1: expected ':'"),
    "a null byte": ("x = '\0'", "null bytes"),
    "no scorer": ("def protect(f):\n    return 0, 1", "no function score_tokens"),
    "a misspelt function": (KNORM + "def select_token_to_keep(s, k, f):\n    return s", "did you mean select_tokens"),
    "other arguments": ("def score_tokens():\n    return 1", "must take"),
    "a second definition": (KNORM + KNORM, "defines score_tokens again"),
    "a file": (body("return open('/etc/passwd')"), "Line 4 uses the name open"),
    "an import of the system": ("import os\n" + KNORM, "Line 1 imports os"),
    "an import inside": (body("import math", "return f.keys"), "inside a function"),
    "everything of a module": ("from torch import *\n" + KNORM, r"imports \* from torch"),
    "a saved file": (body("torch.save(f.keys, 'x')"), "reads torch.save"),
    "custom operators": (body("torch.ops.load_library('x')"), "torch.ops.load_library"),
    "the global seed": (body("torch.manual_seed(0)"), "torch.manual_seed"),
    "chance": (body("return torch.rand(f.kv_heads, f.tokens)"), "pass generator=f.generator"),
    "chance from nothing": (body("return torch.rand(2, 3, generator=None)"), "pass generator=f.generator"),
    "chance by another name": ("from torch import rand\n" + body("return rand(2, 3)"), "pass generator=f.generator"),
    "chance handed on": (body("draw = torch.rand", "return draw(2, 3)"), "passes torch.rand around"),
    "a module as a value": (body("t = torch", "return t.load('x')"), "module torch as a value"),
    "a part of a module as a value": (body("l = torch.linalg", "return f.keys"), "module torch.linalg as a value"),
    "a module of a module": (body("return torch.os.environ"), "torch.os"),
    "dunder attributes": (body("return f.keys.__class__.__bases__"), "__class__"),
    "dunder names": (body("return __builtins__"), "__builtins__"),
    "private attributes": (body("return f._layer.given('keys')"), "attribute _layer"),
    "getattr": (body("return getattr(f, 'keys')"), "name getattr"),
    "a hidden keyword": (body("return torch.sum(**{'input': f.keys})"), r"passes \*\*"),
    "an output argument": (body("return torch.abs(f.keys, out=f.keys)"), "passes out="),
    "hooks": (body("f.keys.register_hook(print)"), "register_hook"),
    "memory addresses": (body("return f.keys.data_ptr()"), "data_ptr"),
    "numpy": (body("return f.keys.numpy()"), "attribute numpy"),
    "a set attribute": (body("f.keys.mine = 1", "return f.keys"), "sets the attribute mine"),
    "a write into a feature": (body("f.keys[0] = 0", "return f.keys"), "writes into keys"),
    "a write by a method": (body("return f.attention_received().mul_(2)"), "writes into attention_received"),
    "a list at the top": ("seen = []\n" + KNORM, "could change"),
    "a call at the top": ("print(1)\n" + KNORM, "runs at the top level"),
    "a tensor at the top": ("import torch\nw = torch.ones(3)\n" + KNORM, "could change"),
    "a default that changes": ("def score_tokens(f, *, seen=[]):\n    return f.keys", "default that could change"),
    "a decorator": ("import torch\n\n@torch.no_grad\n" + KNORM, "decorates score_tokens"),
    "a class": ("class A:\n    pass\n" + KNORM, "a class"),
    "while": (body("while True:", "    pass"), "while loop"),
    "try": (body("try:", "    pass", "except ValueError:", "    pass"), "uses try"),
    "raise": (body("raise ValueError"), "uses raise"),
    "global": (body("global x", "x = 1", "return f.keys"), "uses global"),
    "with": (body("with torch.no_grad():", "    return f.keys"), "uses with"),
    "formatted text": (body("return f'{f.keys}'"), "formatted text"),
    "sets": (body("return {1, 2}"), "order is not defined"),
    "yield": (body("yield f.keys"), "uses yield"),
    "async": ("async def score_tokens(f):\n    return 1", "async"),
    "bytes": (body("return b'abc'"), "numbers and texts only"),
    "a builtin renamed": (body("open = f.keys", "return open"), "gives open another meaning"),
    "a module renamed": (body("torch = f", "return torch.keys"), "gives torch another meaning"),
    "names that look alike": (body("k\u0435ys = f.keys", "return k\u0435ys"), "use ASCII letters"),
    "the harness": ("from cachecraft.policy.contract import load_policy\n" + KNORM, "imports load_policy"),
    "the sandbox": ("from cachecraft.evolution import sandbox\n" + KNORM, "imports from cachecraft.evolution"),
    "a module through a module": ("from cachecraft.policy.selectors import torch\n" + KNORM, "imports torch from"),
    "a relative import": ("from . import x\n" + KNORM, r"imports from \."),
    "too much text": ("#" * (MOST_CHARACTERS + 1), f"at most {MOST_CHARACTERS}"),
    "too many nodes": (body(*["x = 1"] * (MOST_NODES // 3), "return f.keys"), f"at most {MOST_NODES}"),
    "too deep": (body(f"return {'(' * 0}{'-' * (2 * DEEPEST)}f.keys"), f"at most {DEEPEST}"),
    "deeper than Python reads": ("x = " + "-" * 15000 + "1", "nested too deeply"),
    "a number too long to be read": ("x = " + "9" * 9000, "not valid Python"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_allowed_is_refused_in_a_sentence(case: str) -> None:
    source, words = REFUSED[case]
    found = check_source(source)
    assert found
    assert any(re.search(words, sentence) for sentence in found), found
    assert all(sentence.endswith(".") for sentence in found)


ACCEPTED = {
    "functions of torch": body(
        "return torch.nn.functional.softmax(torch.einsum('gtd,gtd->gt', f.keys, f.keys), dim=-1)"
    ),
    "a module by another name": "import torch.nn.functional as F\n"
    + body("return F.normalize(f.keys, dim=-1)[..., 0]"),
    "a module of a package": "from torch.nn import functional as F\n" + body("return F.relu(f.keys)[..., 0]"),
    "chance from the content": body("return torch.rand(f.kv_heads, f.tokens, generator=f.generator())"),
    "constants": "WEIGHTS = (0.5, -1.0, 2**3)\nNAME: str = 'x'\n" + KNORM,
    "work in place on one's own": body("s = f.keys.norm(dim=-1)", "s[:, 0] = 0", "s.clamp_(min=1)", "return s"),
    "a sort's own values": body("s = f.keys.sort()", "s.values.mul_(2)", "return s.values[..., 0]"),
    "loops, lambdas and comprehensions": body(
        "s = sum(f.keys[..., i] for i in range(4))",
        "for i, w in enumerate([1, 2]):",
        "    s = s + w * i",
        "best = max([s, -s], key=lambda x: float(x.sum()))",
        "return best if f.layer < 3 else {k: v for k, v in zip('a', [s])}['a']",
    ),
    "a wrapper": "def score_tokens(f, *, base):\n    return base.score(f) * f.values.norm(dim=-1)\n",
    "selectors": "from cachecraft.policy.selectors import chunks\n"
    + KNORM
    + "def select_tokens_to_keep(scores, keep, f):\n"
    "    return chunks(scores, keep, f.protected, size=8)\n",
    "pure functions of the contract": "from cachecraft.policy.protection import clip_protection\n"
    "def score_tokens(f):\n    return clip_protection(1, 2, f.keep, f.tokens).float()\n",
    "annotations": "from __future__ import annotations\nfrom typing import Any\nfrom torch import Tensor\n"
    "def score_tokens(f: Any) -> Tensor | None:\n    return f.keys[..., 0]\n",
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_plain_programs_pass(case: str) -> None:
    assert check_source(ACCEPTED[case]) == []


def test_a_program_with_many_faults_gives_a_dozen_sentences_in_order() -> None:
    found = check_source(body(*[f"x = open({number})" for number in range(30)]))
    assert len(found) == 12
    assert [int(sentence.split()[1]) for sentence in found] == list(range(4, 16))


@pytest.mark.parametrize(
    "expression",
    [
        "torch.os.environ.copy()",
        "torch.os.environ.get('HOME')",
        "torch.sum.__globals__.get('x')",
        "torch.Tensor.__subclasses__()",
        "torch.nn.functional.torch.os.environ.items()",
        "math.__loader__.name",
    ],
)
def test_an_allowed_last_name_does_not_excuse_the_way_to_it(expression: str) -> None:
    assert any("may not use" in sentence for sentence in check_source("import math\n" + body(f"return {expression}")))
