"""A second device that is pretended on the CPU: what would meet a tensor of another device on CUDA raises here as well.

`with PretendedDevice() as device:` and then `model.to(device.name)`. A tensor "on" the device is a wrapper around one
on the CPU; every operation of PyTorch's passes through `_run`, which refuses mixtures as CUDA does and wraps what comes
out. It says nothing about speed or rounding on a GPU. What it cannot do (operations that change a tensor's shape or
memory in place) raises NotImplementedError. Autograd is not supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

NAME = "pretend"
_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default, _aten._copy_from.default}  # between devices
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}
# Kernels that do not take a number of the CPU's for an array of their own device.
_NO_NUMBERS = {
    *(_aten.index_select.default, _aten.gather.default, _aten.scatter.src, _aten.scatter.value, _aten.cat.default),
    *(_aten.index_copy.default, _aten.index_copy_.default, _aten.index_add.default, _aten.index_add_.default),
    *(_aten.embedding.default, _aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.mv.default),
    *(_aten.scatter_.src, _aten.scatter_.value, _aten.bucketize.Tensor, _aten.searchsorted.Tensor),
}
_MASKED = {
    *(_aten.masked_fill.Tensor, _aten.masked_fill_.Tensor, _aten.masked_fill.Scalar, _aten.masked_fill_.Scalar),
    *(_aten.masked_scatter.default, _aten.masked_scatter_.default, _aten.masked_select.default),
}
# What cannot go on before the host knows a value from the device.
_WAITING = {
    *(_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default, _aten.nonzero.default),
    *(_aten.masked_select.default, _aten._unique2.default, _aten.repeat_interleave.Tensor, _aten.bincount.default),
}


class _Module(_DummyBackendModule):
    """Nothing that asks for an accelerator finds this one, so that other tests go on as before."""

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0


class _Hook(_DummyPrivateUse1Hook):
    """Nothing that asks for an accelerator finds this one."""

    def is_available(self) -> bool:
        return False


class PretendedTensor(torch.Tensor):
    """A tensor of the pretended device; `inner` holds its elements."""

    inner: Tensor
    form: tuple[torch.Size, tuple[int, ...]]  # its shape and strides, which stay

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner, made.form = inner, (inner.shape, inner.stride())
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # results keep the class that they were given here

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> PretendedTensor:
        copied = memo[id(self)] = self.clone()
        return copied  # type: ignore[return-value]

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner!r} on {NAME}:0"

    def __format__(self, form: str) -> str:
        return format(self.item() if self.dim() == 0 else self.inner, form)

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        _count(1)
        return self.inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy.")


class PretendedDevice(TorchDispatchMode):
    """While it is entered, tensors can be made on and moved to the device.

    Attributes:
        name: The device's, for `.to(…)` and `device=`.
        waits: How often the host had to wait for a value from the device: what decoding on a GPU is slow by.
    """

    name = f"{NAME}:0"

    def __init__(self) -> None:
        super().__init__()
        _register()
        self.waits = 0
        self._lifted: list[bool] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __enter__(self) -> Self:
        _entered.append(self)
        self._lifted.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor(…, device=…) asks no mode
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        torch._C._set_only_lift_cpu_tensors(self._lifted.pop())
        _entered.remove(self)


_entered: list[PretendedDevice] = []


def _register() -> None:
    """Tell PyTorch the device's name, once in a process; it stays known."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hook())


def _count(waits: int) -> None:
    for device in _entered:
        device.waits += waits


def _run(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """One operation: refused where CUDA would refuse it, else done on the elements."""
    leaves = list(_leaves((*args, *kwargs.values())))
    ours = [leaf for leaf in leaves if isinstance(leaf, PretendedTensor)]
    asked = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    here = bool(ours) if asked is None else asked.type == NAME
    if not ours and not here:
        return func(*args, **kwargs)
    plain = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, PretendedTensor)]
    if ours and plain:
        _require_one_device(func, args, plain)
    if here and any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise RuntimeError(f"{func}: Expected a {NAME!r} device type for generator but found 'cpu'")
    if ours and _waits(func, args, here):
        _count(1)
    result = func(*map(_inner, args), **{name: _inner(value) for name, value in kwargs.items()})
    for each in ours:
        if (each.inner.shape, each.inner.stride()) != each.form:
            raise NotImplementedError(f"{func} changes a tensor's shape in place, which {NAME!r} cannot pretend.")
    # What an operation writes to or hands back is the tensor that it was given, and no other around the same elements.
    known = {id(each.inner): each for each in ours} | {id(each): each for each in plain}
    return _outer(result, known, here)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _inner(value: Any) -> Any:
    if isinstance(value, PretendedTensor):
        return value.inner
    if isinstance(value, list | tuple):
        return [_inner(each) for each in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _outer(made: Any, known: Mapping[int, Tensor], here: bool) -> Any:
    if isinstance(made, list | tuple):
        return type(made)(_outer(each, known, here) for each in made)
    if not here or not isinstance(made, Tensor):
        return made if not isinstance(made, Tensor) else known.get(id(made), made)
    return known[id(made)] if id(made) in known else PretendedTensor(made)


def _written(func: Any, args: Any) -> list[Tensor]:
    """The tensors that an operation writes to."""
    pairs = zip(func._schema.arguments, args, strict=False)
    written = (value for kind, value in pairs if kind.alias_info is not None and kind.alias_info.is_write)
    return [leaf for leaf in _leaves(written) if isinstance(leaf, Tensor)]


def _indices(func: Any, args: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(args[1]) if leaf is not None] if func in _INDEXING else []


def _waits(func: Any, args: Any, here: bool) -> bool:
    """Whether the host has to wait for the device's values before it can go on."""
    if func in _COPIES:
        return not here or not all(isinstance(each, PretendedTensor) for each in _written(func, args))
    return func in _WAITING or any(index.dtype == torch.bool for index in _indices(func, args))


def _require_one_device(func: Any, args: Any, plain: Sequence[Tensor]) -> None:
    """Refuse what CUDA refuses: arrays of both devices, or a result that is to be written into the other device's.

    Allowed are copies, numbers (0-dimensional tensors) of the CPU's in most operations, and whole numbers or bools of
    the CPU's as indices of an array of the device's.
    """
    if func in _COPIES:
        return
    wrong = [each for each in plain if each.dim() > 0 or func in _NO_NUMBERS]
    if isinstance(args[0], PretendedTensor):
        indices = _indices(func, args)
        wrong = [each for each in wrong if not any(each is index for index in indices)]
    if func in _MASKED:
        wrong += [args[1]] * (not isinstance(args[1], PretendedTensor))
    if wrong or not all(isinstance(each, PretendedTensor) for each in _written(func, args)):
        raise RuntimeError(
            f"{func}: Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu "
            f"(shapes {[tuple(each.shape) for each in plain]})"
        )
