"""What the server does once, so that no candidate pays for it or needs a file for it: imports, first uses, big pages.

Libraries load modules, generate code and read the machine's properties when a function is first used; a candidate could
not do that any more.
"""

from __future__ import annotations

import ctypes
import gc
import linecache
import re
import sys
import warnings

import torch

from cachecraft.errors import CacheCraftError
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import builtin_policies, load_policy
from cachecraft.policy.decide import decide

_COLLAPSE = 25  # MADV_COLLAPSE, Linux 6.1
_BIG_PAGE = 2 << 20


def warm() -> None:
    """Use each built-in policy and a wide choice of operations once, on one thread."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        for dtype in (torch.float32, torch.bfloat16):
            layer = synthetic_layer(300, kv_heads=3, group=3, head_dim=64, dtype=dtype)
            for name in builtin_policies():
                try:
                    decide(load_policy(name), layer, [torch.tensor([40, 40, 40])])
                except CacheCraftError:
                    continue  # a wrapper, or one that needs what a synthetic layer lacks
        _use_operations()
    # Tracebacks and warnings quote the lines of files; a candidate's are told that there are none.
    for module in list(sys.modules.values()):
        if file := getattr(module, "__file__", None):
            linecache.cache[file] = (0, None, [], file)


def _use_operations() -> None:
    functional, linalg = torch.nn.functional, torch.linalg
    square = torch.eye(24) * 3 + torch.rand(24, 24)
    for matrix in (square, square.double()):
        linalg.svd(matrix), linalg.eigh(matrix @ matrix.T), linalg.qr(matrix), linalg.inv(matrix), linalg.pinv(matrix)
        linalg.solve(matrix, matrix), linalg.lstsq(matrix, matrix), linalg.cholesky(matrix @ matrix.T)
        torch.fft.irfft(torch.fft.rfft(matrix)), torch.quantile(matrix, 0.5), torch.einsum("ij,kj->ik", matrix, matrix)
        torch.cdist(matrix, matrix), torch.histc(matrix), matrix.topk(3), matrix.unique(), matrix.std(), repr(matrix)
        row = matrix.view(1, 1, -1)
        functional.conv1d(row, row[..., :9]), functional.interpolate(row, size=100, mode="linear")
        functional.max_pool1d(row, 3, 1), functional.normalize(matrix), functional.gelu(matrix)
    half = square.bfloat16()
    half @ half, half.softmax(dim=-1), square.half() @ square.half()


def settle() -> None:
    """Make forking cheap: freeze what the collector would touch and gather memory into big pages.

    Copying page tables is most of what a fork costs; a page of 2 MiB has one entry instead of 512. Where the system
    does not offer it nothing is lost but time.
    """
    gc.collect()
    gc.freeze()
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps", encoding="utf-8") as file:
        regions = re.findall(r"^(\w+)-(\w+) rw-p \S+ \S+ 0\s", file.read(), re.MULTILINE)  # anonymous, writable
    for low, high in regions:
        first = -(-int(low, 16) // _BIG_PAGE) * _BIG_PAGE
        size = int(high, 16) // _BIG_PAGE * _BIG_PAGE - first
        if size > 0:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _COLLAPSE)
