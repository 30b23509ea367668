"""Operators of tensors in PyTorch: arithmetic, reductions, products, creation, indexing and rearrangement.

Arithmetic includes comparisons and functions of each element. Reductions include cumulative sums, sorting and
searching; products include linear algebra. Functions that copy replace functions that return a view, such as
``torch.permute_copy`` for ``torch.permute``. Their outputs are contiguous. There is also a custom autograd
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import isqrt
from typing import Any

import torch
from torch import distributions

from inferometer.agent.frameworks.pytorch.operators.runner import Form, Function, function
from inferometer.agent.operators.operator import Case


def _method(name: str, *covers: str) -> Form:
    found = getattr(torch.Tensor, name)
    return Form(f"torch.Tensor.{name}", lambda _: found, covers)


_ADD = function("add")
_SUBTRACT = function("sub", "subtract")
_MULTIPLY = function("mul", "multiply")
_DIVIDE = function("div", "divide", "true_divide")


# its own names are the table's
_SAME = (
    "fmod maximum minimum hypot logical_and logical_or logical_xor logical_not sign exp log log2 log10 sqrt "
    "rsqrt square reciprocal sin cos tan sinh cosh ceil floor"
)
_NO_CUBE_ROOT = "PyTorch has no cube root; torch.pow(x, 1/3) is NaN for negative numbers"


def _reduced(name: str, *covers: str, **arguments: Any) -> Form:
    return function(name, *covers, dim="axis", keepdim="keepdims", **arguments)


def _moments(case: Case) -> Function:
    whole = partial(torch.var_mean, dim=case["axis"], correction=0, keepdim=case["keepdims"])
    return lambda data: whole(data)[::-1]


def _factor(matrix: Any, transpose: object) -> Any:
    """Returns a transposed view, which the product reads without a copy."""
    return matrix.mT if transpose else matrix


def _product(function: Function, case: Case, *, scaled: bool = False) -> Function:
    left, right = case["transpose_lhs"], case["transpose_rhs"]
    if scaled:
        return lambda lhs, rhs: case["alpha"] * function(_factor(lhs, left), _factor(rhs, right))
    if left or right:
        return lambda lhs, rhs: function(_factor(lhs, left), _factor(rhs, right))
    return function


def _gemm(case: Case) -> Function:
    left, right, alpha, beta = (case[name] for name in ("transpose_lhs", "transpose_rhs", "alpha", "beta"))
    return lambda lhs, rhs, addend: torch.addmm(
        addend, _factor(lhs, left), _factor(rhs, right), beta=beta, alpha=alpha
    )


def _extract_triangle(case: Case) -> Function:
    size = case.shapes["data"][-1]
    rows, columns = torch.tril_indices(size, size)
    return lambda data: data[..., rows, columns]


def _make_triangle(case: Case) -> Function:
    *batch, entries = case.shapes["data"]
    size = isqrt(2 * entries)
    rows, columns = torch.tril_indices(size, size)

    def make(data: torch.Tensor) -> torch.Tensor:
        found = data.new_zeros((*batch, size, size))
        found[..., rows, columns] = data
        return found

    return make


def _lq(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, r = torch.linalg.qr(data.mT)
    return q.mT.contiguous(), r.mT.contiguous()


def _range(case: Case) -> Any:
    start, stop, step, repeat = (case[name] for name in ("start", "stop", "step", "repeat"))
    if repeat == 1:
        return lambda **where: torch.arange(start, stop, step, **where)
    return lambda **where: torch.arange(start, stop, step, **where).repeat_interleave(repeat)


def _drawn_in_place(name: str, *parameters: str) -> Form:
    """Returns the form of a method that fills a new tensor."""
    method = getattr(torch.Tensor, name)

    def make(case: Case) -> Any:
        given = [case[each] for each in parameters]
        shape = case["shape"]
        return lambda **where: method(torch.empty(shape, **where), *given)

    return Form(f"torch.Tensor.{name}", make, (name.rstrip("_"), "empty"), creates=True)


def _class_of(name: str, *given: Any, scales: bool = False) -> tuple[Any, Sequence[Any]]:
    """Returns PyTorch's class of a distribution and its parameters; ``scales`` says that beta is a scale."""
    if name == "gamma" and scales:
        given = given[0], 1 / given[1]
    if name == "generalized_negative_binomial":
        mu, alpha = given
        name, given = "negative_binomial", (1 / alpha, 1 / (1 + mu * alpha))
    if name == "negative_binomial":  # the class counts the successes, so that one there is a failure here
        given = given[0], 1 - given[1]
    return getattr(distributions, name.title().replace("_", "")), given


def _drawn_from(name: str, *parameters: str) -> Form:
    """Returns the form that samples a ``torch.distributions`` class without validating its parameters."""

    def make(case: Case) -> Any:
        kind, given = _class_of(name, *(case[each] for each in parameters), scales=True)
        shape = torch.Size(case["shape"])

        def draw(**where: Any) -> Any:
            tensors = [torch.tensor(each, **where) for each in given]
            return kind(*tensors, validate_args=False).sample(shape)

        return draw

    kind, _ = _class_of(name, *(1.0 for _ in parameters))
    return Form(f"torch.distributions.{kind.__name__}", make, ("_standard_gamma", "poisson"), creates=True)


def _integers(case: Case) -> Any:
    low, high, shape = (case[name] for name in ("low", "high", "shape"))
    return lambda dtype, device: torch.randint(low, high, shape, device=device)  # int64, whatever the type


class _AddOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        return data + 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


_INDEXED = "torch.Tensor.__getitem__"


def _scatter(case: Case) -> Function:
    rows = case["rows"]

    def scatter(data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return data.new_zeros((rows, *data.shape[1:])).index_copy(0, indices[0], data)

    return scatter


def _slice(case: Case) -> Function:
    ranges = tuple(slice(low, high) for low, high in zip(case["begin"], case["end"], strict=True))
    return lambda data: data[ranges].clone(memory_format=torch.contiguous_format)


def _slice_like(data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    ranges = tuple(slice(size) for size in like.shape)
    return data[ranges].clone(memory_format=torch.contiguous_format)


def _unravel_index(case: Case) -> Function:
    return lambda indices: torch.stack(torch.unravel_index(indices, case["shape"]))


def _sample(name: str) -> Form:
    def sample(case: Case, *tensors: torch.Tensor) -> Any:
        kind, given = _class_of(name, *tensors, scales=True)
        return kind(*given, validate_args=False).sample((case["draws"],)).movedim(0, -1)

    return Form("torch.distributions.Distribution.sample", lambda case: partial(sample, case))


def _density(name: str) -> Form:
    def density(sample: torch.Tensor, *tensors: torch.Tensor) -> Any:
        kind, given = _class_of(name, *(each.unsqueeze(1) for each in tensors))
        return kind(*given, validate_args=False).log_prob(sample).exp()

    return Form("torch.distributions.Distribution.log_prob torch.exp", lambda _: density)


_COUNTS = ("poisson", "negative_binomial", "generalized_negative_binomial")
_DISTRIBUTIONS = ("uniform", "normal", "gamma", "exponential", *_COUNTS)
_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}


def _pad(case: Case) -> Function:
    """Pads with widths in PyTorch's order, the last axis first; they are 0 for the first two axes."""
    top, bottom, left, right = case["pad_width"][4:]
    mode = _MODES[case["mode"]]
    value = {"value": case["value"]} if mode == "constant" else {}
    return partial(torch.nn.functional.pad, pad=(left, right, top, bottom), mode=mode, **value)


def _blocks_apart(case: Case) -> Function:
    """Moves blocks explicitly: PyTorch's pixel_shuffle expects the block's axes last in the channels."""
    n, c, h, w = case.shapes["data"]
    size = case["block_size"]
    apart = (n, size, size, c // size**2, h, w)
    whole = (n, c // size**2, h * size, w * size)
    return lambda data: torch.permute_copy(data.view(apart), (0, 3, 4, 1, 5, 2)).view(whole)


def _blocks_joined(case: Case) -> Function:
    n, c, h, w = case.shapes["data"]
    size = case["block_size"]
    apart = (n, c, h // size, size, w // size, size)
    whole = (n, c * size**2, h // size, w // size)
    return lambda data: torch.permute_copy(data.view(apart), (0, 3, 5, 1, 2, 4)).view(whole)


def _expanded(case: Case) -> Function:
    shape = list(case.shapes["data"])
    shape[case["axis"]] = case["size"]
    return lambda data: torch.expand_copy(data, shape)


def _split(case: Case) -> Function:
    size = case.shapes["data"][case["axis"]] // case["num_outputs"]
    return partial(torch.split_copy, split_size=size, dim=case["axis"])


def _split_at(case: Case) -> Function:
    bounds = (0, *case["indices"], case.shapes["data"][case["axis"]])
    sizes = [high - low for low, high in pairwise(bounds)]
    return partial(torch.split_with_sizes_copy, split_sizes=sizes, dim=case["axis"])


def _listed(function: Callable[..., Any], case: Case) -> Function:
    return lambda *data: function(data, dim=case["axis"])


_NUMBERS = "PyTorch has shapes as Python's integers, and makes no tensors of them outside of a trace"


FORMS: Mapping[str, Form] = {
    "all_finite": Form("torch.isfinite torch.all", lambda _: lambda data: data.isfinite().all()),
    "add": _ADD,
    "subtract": _SUBTRACT,
    "multiply": _MULTIPLY,
    "divide": _DIVIDE,
    **{name: function(name) for name in _SAME.split()},
    "modulo": function("remainder"),
    "power": function("pow"),
    "broadcast_add": _ADD,
    "broadcast_subtract": _SUBTRACT,
    "broadcast_multiply": _MULTIPLY,
    "broadcast_divide": _DIVIDE,
    "iadd": _method("add_", "add"),
    "isub": _method("sub_", "sub", "subtract"),
    "imul": _method("mul_", "mul", "multiply"),
    "idiv": _method("div_", "div", "divide", "true_divide"),
    "imod": _method("remainder_", "remainder"),
    "negative": function("neg", "negative"),
    "equal": function("eq"),
    "not_equal": function("ne", "not_equal"),
    "greater": function("gt", "greater"),
    "greater_equal": function("ge", "greater_equal"),
    "less": function("lt", "less"),
    "less_equal": function("le", "less_equal"),
    "abs": function("abs", "absolute"),
    "expm1": function("expm1", "special_expm1"),
    "log1p": function("log1p", "special_log1p"),
    "arcsin": function("asin", "arcsin"),
    "arccos": function("acos", "arccos"),
    "arctan": function("atan", "arctan"),
    "arcsinh": function("asinh", "arcsinh"),
    "arccosh": function("acosh", "arccosh"),
    "arctanh": function("atanh", "arctanh"),
    "degrees": function("rad2deg"),
    "radians": function("deg2rad"),
    "erf": function("erf", "special_erf"),
    "erfinv": function("erfinv", "special_erfinv"),
    "gammaln": function("lgamma", "special_gammaln"),
    "rint": function("round", "special_round"),
    "trunc": function("trunc", "fix"),
    "clip": function("clamp", "clip", min="low", max="high"),
    "copy": function("clone"),
    "cast": Form(
        "torch.Tensor.to", lambda case: lambda data: data.to(getattr(torch, case["to"])), ("type_as",)
    ),
    **{name: _reduced(name) for name in ("sum", "mean", "nansum", "prod")},
    "max": _reduced("amax", "max"),
    "min": _reduced("amin", "min"),
    "norm": _reduced(
        "linalg.vector_norm", "linalg_vector_norm", "linalg_norm", "norm", "frobenius_norm", ord="ord"
    ),
    "logsumexp": _reduced("logsumexp", "special_logsumexp"),
    "moments": Form("torch.var_mean", _moments, ("var",)),
    **{name: function(name, dim="axis") for name in ("cumsum", "argmax", "argmin", "argsort")},
    "sort": Form(
        "torch.sort", lambda case: lambda data: torch.sort(data, dim=case["axis"]).values, ("msort",)
    ),
    "topk": function("topk", k="k", dim="axis"),
    "dot": Form("torch.mm", lambda case: _product(torch.mm, case), ("matmul", "linalg_matmul")),
    "batch_dot": Form("torch.bmm", lambda case: _product(torch.bmm, case)),
    "khatri_rao": Form(
        "torch.mul, torch.flatten", lambda _: lambda lhs, rhs: (lhs[:, None] * rhs).flatten(0, 1)
    ),
    "gemm": Form("torch.addmm", _gemm),
    "gemm2": Form("torch.matmul, torch.mul", lambda case: _product(torch.matmul, case, scaled=True)),
    "syrk": Form("torch.matmul", lambda _: lambda data: torch.matmul(data, data.mT)),
    "trmm": Form("torch.tril, torch.matmul", lambda _: lambda lower, data: torch.matmul(lower.tril(), data)),
    "trsm": Form(
        "torch.linalg.solve_triangular",
        lambda _: lambda lower, data: torch.linalg.solve_triangular(lower, data, upper=False),
        ("linalg_solve_triangular", "triangular_solve"),
    ),
    "cholesky": function("linalg.cholesky", "linalg_cholesky", "linalg_cholesky_ex"),
    "cholesky_inverse": Form(
        # without tril its gradient has values for what it does not read
        "torch.tril, torch.cholesky_inverse",
        lambda _: lambda data: torch.cholesky_inverse(data.tril()),
    ),
    "det": function("linalg.det", "linalg_det"),
    "slogdet": function("linalg.slogdet", "linalg_slogdet"),
    "inverse": function("linalg.inv", "inverse", "linalg_inv", "linalg_inv_ex"),
    "eigh": Form(
        "torch.linalg.eigh", lambda _: lambda data: torch.linalg.eigh(data).eigenvalues, ("linalg_eigh",)
    ),
    "lq": Form("torch.linalg.qr, torch.Tensor.contiguous", lambda _: _lq, ("linalg_qr",)),
    "sum_log_diagonal": Form(
        "torch.diagonal, torch.log, torch.sum",
        lambda _: lambda data: data.diagonal(dim1=-2, dim2=-1).log().sum(-1),
    ),
    "extract_diagonal": function(
        "diagonal_copy", "diagonal", "linalg_diagonal", fixed={"dim1": -2, "dim2": -1}
    ),
    "make_diagonal": function("diag_embed"),
    "extract_triangle": Form("torch.Tensor.__getitem__", _extract_triangle, ("index",)),
    "make_triangle": Form("torch.Tensor.new_zeros, torch.Tensor.__setitem__", _make_triangle, ("index_put",)),
    "zeros": Form(
        "torch.zeros", lambda case: lambda **where: torch.zeros(case["shape"], **where), creates=True
    ),
    "ones": Form("torch.ones", lambda case: lambda **where: torch.ones(case["shape"], **where), creates=True),
    "full": Form(
        "torch.full",
        lambda case: lambda **where: torch.full(case["shape"], case["value"], **where),
        creates=True,
    ),
    "zeros_like": function("zeros_like"),
    "ones_like": function("ones_like"),
    "reset_arrays": Form("torch.Tensor.zero_", lambda _: lambda *tensors: [each.zero_() for each in tensors]),
    "arange": Form("torch.arange, torch.Tensor.repeat_interleave", _range, creates=True),
    "random_uniform": _drawn_in_place("uniform_", "low", "high"),
    "random_normal": _drawn_in_place("normal_", "loc", "scale"),
    "random_exponential": _drawn_in_place("exponential_", "lam"),
    "random_gamma": _drawn_from("gamma", "alpha", "beta"),
    "random_poisson": _drawn_from("poisson", "lam"),
    "random_negative_binomial": _drawn_from("negative_binomial", "k", "p"),
    "random_generalized_negative_binomial": _drawn_from("generalized_negative_binomial", "mu", "alpha"),
    **{f"sample_{name}": _sample(name) for name in _DISTRIBUTIONS},
    **{f"random_pdf_{name}": _density(name) for name in (*_DISTRIBUTIONS, "dirichlet")},
    "random_randint": Form("torch.randint", _integers, creates=True),
    "bernoulli": function("bernoulli"),
    "multinomial": function("multinomial", num_samples="draws", fixed={"replacement": True}),
    "shuffle": Form(
        "torch.randperm, torch.index_select",
        lambda _: lambda data: data.index_select(0, torch.randperm(len(data), device=data.device)),
    ),
    "custom_add_one": Form("torch.autograd.Function", lambda _: _AddOne.apply),
    "take": Form("torch.index_select", lambda _: lambda data, indices: torch.index_select(data, 0, indices)),
    "pick": Form("torch.gather", lambda _: lambda data, indices: torch.gather(data, -1, indices)),
    "gather": Form(
        "torch.gather", lambda _: lambda data, indices: torch.gather(data, -1, indices), ("take_along_dim",)
    ),
    "gather_nd": Form(_INDEXED, lambda _: lambda data, indices: data[tuple(indices.unbind())], ("index",)),
    "scatter_nd": Form("torch.Tensor.new_zeros, torch.index_copy", _scatter),
    "index_copy": Form(
        "torch.index_copy", lambda _: lambda data, indices, source: torch.index_copy(data, 0, indices, source)
    ),
    "one_hot": function("nn.functional.one_hot", num_classes="depth"),
    "fill_element": Form(
        "torch.scatter",
        lambda _: lambda data, source, indices: data.scatter(1, indices.unsqueeze(1), source.unsqueeze(1)),
    ),
    "where": function("where"),
    "boolean_mask": Form(_INDEXED, lambda _: lambda data, mask: data[mask], ("index",)),
    "slice": Form(f"{_INDEXED}, torch.clone", _slice, ("slice", "slice_copy")),
    "slice_axis": function("slice_copy", "slice", dim="axis", start="begin", end="end"),
    "slice_like": Form(f"{_INDEXED}, torch.clone", lambda _: _slice_like, ("slice", "slice_copy")),
    "unravel_index": Form("torch.unravel_index, torch.stack", _unravel_index),
    "diag": function("diagonal_copy", "diag"),
    "tril": function("tril"),
    "transpose": function("permute_copy", "permute", "t", "t_copy", dims="axes"),
    "swapaxes": function("transpose_copy", "transpose", "swapaxes", "swapdims", dim0="dim1", dim1="dim2"),
    "reshape": function("view_copy", "view", "reshape", size="shape"),
    "reshape_like": Form(
        "torch.view_copy",
        lambda _: lambda data, like: torch.view_copy(data, like.shape),
        ("view_as", "reshape_as"),
    ),
    "expand_dims": function("unsqueeze_copy", "unsqueeze", dim="axis"),
    "squeeze": function("squeeze_copy", "squeeze", dim="axis"),
    "flip": Form("torch.flip", lambda case: partial(torch.flip, dims=(case["axis"],)), ("fliplr",)),
    "tile": function("tile", "repeat", dims="reps"),
    "repeat": function("repeat_interleave", repeats="repeats", dim="axis"),
    "pad": Form(
        "torch.nn.functional.pad", _pad, ("constant_pad_nd", "reflection_pad2d", "replication_pad2d")
    ),
    "broadcast_to": function("expand_copy", "expand", "broadcast_to", size="shape"),
    "broadcast_axis": Form("torch.expand_copy", _expanded),
    "broadcast_like": Form(
        "torch.expand_copy", lambda _: lambda data, like: torch.expand_copy(data, like.shape), ("expand_as",)
    ),
    "depth_to_space": Form("torch.permute_copy", _blocks_apart),
    "space_to_depth": Form("torch.permute_copy", _blocks_joined),
    "concat": Form("torch.cat", lambda case: _listed(torch.cat, case), ("concat", "concatenate", "hstack")),
    "stack": Form("torch.stack", lambda case: _listed(torch.stack, case)),
    "split": Form("torch.split_copy", _split, ("split", "chunk")),
    "split_v2": Form("torch.split_with_sizes_copy", _split_at, ("split_with_sizes", "tensor_split")),
}


MISSING: Mapping[str, str] = {
    "cast_storage": "PyTorch's tensors of compressed rows are a beta version, and torch.compile returns none",
    "add_n": "PyTorch has no sum of several tensors; torch.sum takes a torch.stack of them, which copies",
    "cbrt": _NO_CUBE_ROOT,
    "rcbrt": _NO_CUBE_ROOT,
    "gamma": "PyTorch has the logarithm of the gamma function only, torch.lgamma",
    "round": "torch.round rounds halves to even, as rint does",
    "nanprod": "PyTorch has nansum, and no product that leaves out what is not a number",
    "ravel_index": "PyTorch has unravel_index, and not its inverse",
    "shape_array": _NUMBERS,
    "size_array": _NUMBERS,
}
