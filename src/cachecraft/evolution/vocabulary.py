"""The words that a policy file may use: modules, functions, tensor methods and builtins, as plain sets of names.

Everything here turns arrays into arrays. What is left out touches files, processes, threads, devices, autograd, custom
operators, serialization, global settings or the global random state, or is not an array's business. gate.py reads a
program against these sets; they hold no rules.
"""

from __future__ import annotations

import math
from types import MappingProxyType

from cachecraft.policy.features import Features


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods of a tensor that are functions of torch, too.
_ON_BOTH = _words(
    """
    abs acos acosh add addbmm addcdiv addcmul addmm addmv all allclose amax amin aminmax any argmax argmin
    argsort argwhere asin asinh atan atan2 atanh baddbmm bincount bitwise_and bitwise_not bitwise_or bitwise_xor
    bmm broadcast_to ceil chunk clamp clip clone copysign corrcoef cos cosh count_nonzero cov cross cummax
    cummin cumprod cumsum det detach diag diag_embed diagonal diff digamma dist div dot eq equal erf erfc erfinv
    exp exp2 expm1 flatten flip floor floor_divide fmax fmin fmod frac gather ge gt heaviside histc hypot
    index_add index_copy index_fill index_put index_select inner inverse isclose isfinite isinf isnan kron
    kthvalue ldexp le lerp lgamma log log10 log1p log2 logaddexp logcumsumexp logdet logical_and logical_not
    logical_or logical_xor logit logsumexp lt masked_fill masked_scatter masked_select matmul matrix_exp
    matrix_power max maximum mean median min minimum mm mode moveaxis movedim mul mv nan_to_num nanmean
    nanmedian nanquantile nansum narrow ne neg nextafter nonzero norm not_equal numel outer permute pinverse
    polygamma pow prod qr quantile ravel reciprocal relu remainder renorm repeat_interleave reshape roll rot90
    round rsqrt scatter scatter_add scatter_reduce select sgn sigmoid sign signbit sin sinc sinh slogdet softmax
    log_softmax sort split sqrt square squeeze std sub sum svd swapaxes swapdims take take_along_dim tan tanh
    tensor_split tile topk trace transpose tril triu trunc unbind unflatten unique unique_consecutive unsqueeze
    var vdot where xlogy
    """
)

_ONLY_TORCH = _words(
    """
    arange as_tensor atleast_1d atleast_2d atleast_3d avg_pool1d block_diag broadcast_shapes broadcast_tensors
    bucketize cartesian_prod cat cdist chain_matmul column_stack combinations concat conv1d conv2d
    cosine_similarity cumulative_trapezoid dstack einsum empty empty_like eye full full_like hstack isin
    is_tensor layer_norm linspace logspace max_pool1d meshgrid numel ones ones_like pairwise_distance rand
    randint randn randperm bernoulli multinomial row_stack scalar_tensor searchsorted stack std_mean tensor
    tensordot trapezoid tril_indices triu_indices vander var_mean vstack zeros zeros_like Tensor Size dtype
    device finfo iinfo inf pi e nan newaxis bool int8 int16 int32 int64 int long short uint8 float float16
    float32 float64 bfloat16 half double
    """
)

# Drawing without a generator depends on the global random state.
RANDOM = frozenset(f"torch.{name}" for name in ("rand", "randint", "randn", "randperm", "bernoulli", "multinomial"))

_FUNCTIONAL = _words(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d celu
    conv1d conv2d cosine_similarity elu fold gelu glu hardshrink hardsigmoid hardswish hardtanh interpolate
    kl_div l1_loss layer_norm leaky_relu linear log_softmax logsigmoid lp_pool1d max_pool1d max_pool2d mish
    mse_loss normalize one_hot pad pairwise_distance pdist relu relu6 rms_norm selu sigmoid silu smooth_l1_loss
    softmax softmin softplus softshrink softsign tanh tanhshrink threshold unfold
    """
)
_LINALG = _words(
    """
    cholesky cond cross det diagonal eigh eigvalsh inv lstsq lu_factor lu_solve matmul matrix_exp matrix_norm
    matrix_power matrix_rank multi_dot norm pinv qr slogdet solve solve_triangular svd svdvals vecdot
    vector_norm
    """
)
_SPECIAL = _words(
    "digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammaln i0 i0e i1 i1e log1p log_ndtr log_softmax logit "
    "logsumexp ndtr ndtri softmax sinc xlog1py xlogy"
)
_FFT = _words("fft fftfreq fftshift ifft ifftshift irfft rfft rfftfreq")

# Modules and what may be read of each; reading a module itself is allowed only on the way to one of these.
MODULES = MappingProxyType(
    {
        "torch": _ON_BOTH | _ONLY_TORCH,
        "torch.nn.functional": _FUNCTIONAL,
        "torch.linalg": _LINALG,
        "torch.special": _SPECIAL,
        "torch.fft": _FFT,
        "math": frozenset(name for name in vars(math) if not name.startswith("_")),
        "typing": _words("Any Final Literal Optional Union cast"),
        "collections.abc": _words("Callable Iterable Iterator Mapping Sequence"),
        "__future__": _words("annotations"),
        "cachecraft.policy": _words("Features Policy Selector"),
        "cachecraft.policy.contract": _words("Policy"),
        "cachecraft.policy.features": _words("Features"),
        "cachecraft.policy.selectors": _words(
            "Selector chunks keep_first pages parse_selector token_order token_ranks tokens"
        ),
    }
)
# Modules of pure functions on arrays: whatever they define themselves may be imported.
PURE_MODULES = frozenset(
    {
        "cachecraft.policy.allocation",
        "cachecraft.policy.attention",
        "cachecraft.policy.protection",
        "cachecraft.policy.signals",
    }
)

# Attributes of tensors, of lists and dictionaries, of a base policy and of what torch functions return.
_ONLY_METHODS = _words(
    """
    bfloat16 bool contiguous cpu device dim double dtype element_size expand expand_as fill float half H int
    is_complex is_contiguous is_floating_point item itemsize long mT nbytes ndim nelement new_empty new_full
    new_ones new_tensor new_zeros repeat reshape_as shape short size stride T t to tolist type_as unfold view
    view_as zero
    """
)
_CONTAINERS = _words("append clear copy count extend get index insert items keys pop reverse setdefault update values")
_RESULTS = _words(
    "indices values eigenvalues eigenvectors U S Vh Q R L LU pivots solution logabsdet min max eps tiny bits"
)
_POLICY = _words("allocate custom_selector has_allocate name protect score select")
FEATURES = frozenset(name for name in vars(Features) if not name.startswith("_")) - {"read_keep"}
ATTRIBUTES = _ON_BOTH | _ONLY_METHODS | _CONTAINERS | _RESULTS | _POLICY | FEATURES
# ``name_`` writes into its tensor; it is allowed where ``name`` is a method and nothing was handed out.
IN_PLACE = frozenset(f"{name}_" for name in _ON_BOTH | {"fill", "zero", "copy"})

BUILTINS = _words(
    """
    abs all any bool dict divmod enumerate filter float int isinstance len list map max min pow range reversed
    round slice sorted str sum tuple zip True False None
    """
)
