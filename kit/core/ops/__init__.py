"""Operations: each makes a node and computes nothing. Shapes in docstrings are numpy order, in round brackets."""

from kit.core.ops.arithmetic import add, div, mul, sub
from kit.core.ops.attention import flash_attn_ext, rope_ext
from kit.core.ops.matrix import matmul, mul_mat
from kit.core.ops.normalize import rms_norm, soft_max, soft_max_ext
from kit.core.ops.rows import get_rows, set_rows
from kit.core.ops.shape import cast, cont, cpy, permute, reshape, transpose
from kit.core.ops.unary import abs, neg, scale, silu, swiglu_split, with_number

__all__ = [
    "abs",
    "add",
    "cast",
    "cont",
    "cpy",
    "div",
    "flash_attn_ext",
    "get_rows",
    "matmul",
    "mul",
    "mul_mat",
    "neg",
    "permute",
    "reshape",
    "rms_norm",
    "rope_ext",
    "scale",
    "set_rows",
    "silu",
    "soft_max",
    "soft_max_ext",
    "sub",
    "swiglu_split",
    "transpose",
    "with_number",
]
