"""No argument kills the process: every operation, called with something wrong, raises a KitError or computes."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

import kit
from kit import ops

N_TRIES = 40
LARGEST_COMPUTED_NBYTES = 32 << 20


class Valid:
    """One sound call of each operation, as (arguments, keyword arguments)."""

    def __init__(self, bench):
        self.bench = bench

    def f(self, *shape, dtype="f32"):
        return self.bench.normal(*shape, dtype=dtype)

    def i(self, values, dtype="i32"):
        return self.bench.tensor(values, dtype)

    def call(self, name):
        found = getattr(self, name, None)
        if found is not None:
            return found()
        if name.endswith(("_split",)):
            return [self.f(3, 8), self.f(3, 8)], {}
        return [self.f(3, 8)], {}  # unary functions, gates, sums

    def two(self):
        return [self.f(3, 8), self.f(3, 8)], {}

    add = sub = mul = div = two

    def add_cast(self):
        return [self.f(3, 32, dtype="q8_0"), self.f(3, 32), "f32"], {}

    def add_id(self):
        return [self.f(2, 2, 4), self.f(5, 4), self.i([[0, 1], [4, 4]])], {}

    def acc(self):
        return [self.f(4, 8), self.f(2, 4)], {"offset": 8, "nb1": 32, "nb2": 128, "nb3": 128}

    set = acc

    def count_equal(self):
        return [self.i([[1, 2]]), self.i([[1, 3]])], {}

    def repeat(self):
        return [self.f(2, 3), (4, 6)], {}

    def concat(self):
        return [self.f(2, 3), self.f(2, 4), 1], {}

    def leaky_relu(self):
        return [self.f(3, 8), 0.1], {}

    def xielu(self):
        return [self.f(3, 8), 0.1, 0.2, 0.3, 1e-6], {}

    def swiglu_oai(self):
        return [self.f(3, 8), self.f(3, 8), 1.7, 7.0], {}

    def norm(self):
        return [self.f(3, 8), 1e-5], {}

    rms_norm = l2_norm = norm

    def group_norm(self):
        return [self.f(2, 4, 3, 3), 2, 1e-5], {}

    def mul_mat(self):
        return [self.f(5, 32, dtype="q4_0"), self.f(3, 32)], {}

    def matmul(self):
        return [self.f(3, 8), self.f(8, 5)], {}

    def mul_mat_id(self):
        return [self.f(4, 6, 32, dtype="q8_0"), self.f(3, 2, 32), self.i([[0, 1], [3, 2], [0, 0]])], {}

    def out_prod(self):
        return [self.f(5, 32, dtype="q8_0"), self.f(5, 7)], {}

    def scale(self):
        return [self.f(3, 8), 2.0, 1.0], {}

    def cpy(self):
        return [self.f(3, 32), self.f(3, 32, dtype="q4_0")], {}

    def cast(self):
        return [self.f(3, 32), "q8_0"], {}

    def reshape(self):
        return [self.f(3, 8), (4, 6)], {}

    def view(self):
        return [self.f(6, 8), (3, 2, 4)], {"strides": (64, 32), "offset": 16}

    def permute(self):
        return [self.f(2, 3, 4), (2, 0, 1)], {}

    def get_rows(self):
        return [self.f(5, 32, dtype="q8_0"), self.i([0, 4])], {}

    def set_rows(self):
        return [self.f(5, 32, dtype="q8_0"), self.f(2, 32), self.i([0, 4], "i64")], {}

    def diag(self):
        return [self.f(1, 5)], {}

    def diag_mask_inf(self):
        return [self.f(3, 5), 1], {}

    diag_mask_zero = diag_mask_inf

    def tri(self):
        return [self.f(5, 5), "lower"], {}

    def solve_tri(self):
        return [self.f(4, 4), self.f(4, 2)], {}

    def soft_max_ext(self):
        return [self.f(2, 3, 8), self.f(3, 8, dtype="f16"), 0.5, 1.0], {"sinks": self.f(2)}

    def rope(self):
        return [self.f(3, 2, 8), self.i([0, 1, 2]), 8, 0], {}

    def rope_ext(self):
        return [self.f(3, 2, 8), self.i([0, 1, 2]), self.f(4)], {
            "n_dims": 8,
            "mode": 2,
            "n_ctx_orig": 64,
            "ext_factor": 1.0,
        }

    def rope_multi(self):
        positions = self.i(list(range(12)))
        return [self.f(3, 2, 8), positions, self.f(4)], {"n_dims": 8, "sections": [2, 1, 1, 0], "mode": 8}

    def clamp(self):
        return [self.f(3, 8), -1.0, 1.0], {}

    def im2col(self):
        return [self.f(4, 3, 2, 3), self.f(2, 3, 5, 6)], self.plan() | {"dtype": "f32", "is_2d": True}

    def plan(self):
        return {"stride": (2, 1), "pad": (1, 0), "dilation": (1, 2)}

    def conv_2d(self):
        return [self.f(4, 3, 2, 3), self.f(2, 3, 5, 6)], self.plan()

    conv_2d_direct = conv_2d

    def conv_2d_dw(self):
        return [self.f(3, 1, 2, 3, dtype="f16"), self.f(2, 3, 5, 6)], self.plan()

    conv_2d_dw_direct = conv_2d_dw

    def conv_2d_sk_p0(self):
        return [self.f(4, 3, 2, 3), self.f(2, 3, 5, 6)], {}

    conv_2d_s1_ph = conv_2d_sk_p0

    def conv_1d(self):
        return [self.f(4, 3, 2), self.f(1, 3, 6)], {"stride": 1, "pad": 1, "dilation": 2}

    def conv_1d_dw(self):
        return [self.f(3, 1, 2), self.f(1, 3, 6)], {"stride": 1, "pad": 1, "dilation": 2}

    def conv_1d_ph(self):
        return [self.f(4, 3, 2), self.f(1, 3, 6)], {}

    def conv_1d_dw_ph(self):
        return [self.f(3, 1, 2), self.f(1, 3, 6)], {}

    def col2im_1d(self):
        return [self.f(5, 6)], {"stride": 2, "channels": 2, "pad": 1}

    def conv_transpose_1d(self):
        return [self.f(3, 4, 2), self.f(3, 6)], {"stride": 2}

    def conv_transpose_2d_p0(self):
        return [self.f(3, 4, 2, 2), self.f(1, 3, 4, 4)], {"stride": 2}

    def im2col_3d(self):
        triples = {"stride": (1, 2, 1), "pad": (1, 0, 1), "dilation": (1, 1, 2)}
        return [self.f(12, 2, 3, 2), self.f(6, 4, 5, 6), 3], triples

    conv_3d = conv_3d_direct = im2col_3d

    def pool_1d(self):
        return [self.f(3, 9), "max", 3], {"stride": 2, "pad": 1}

    def pool_2d(self):
        return [self.f(2, 7, 9), "avg", (3, 2)], {"stride": (2, 1), "pad": (1, 1)}

    def upscale(self):
        return [self.f(3, 4), 2, "bicubic"], {}

    def interpolate(self):
        return [self.f(3, 4), (5, 7), "bilinear"], {"align_corners": True, "antialias": True}

    def pad(self):
        return [self.f(3, 4), [(1, 2), 3]], {}

    def pad_circular(self):
        return [self.f(3, 4), [(1, 2), 3]], {}

    def pad_reflect_1d(self):
        return [self.f(3, 4), 2, 3], {}

    def roll(self):
        return [self.f(3, 4), [1, -2]], {}

    def fill(self):
        return [self.f(3, 4), 2.0], {}

    def timestep_embedding(self):
        return [self.f(3), 7, 100], {}

    def argsort(self):
        return [self.f(3, 40), "desc"], {}

    def argsort_top_k(self):
        return [self.f(3, 40), 4], {}

    top_k = argsort_top_k

    def arange(self):
        return [self.bench.ctx, 0.0, 5.0, 1.0], {}

    def flash_attn_ext(self):
        arguments = [
            self.f(4, 3, 32),
            self.f(2, 8, 32, dtype="f16"),
            self.f(2, 8, 32, dtype="q8_0"),
            self.f(3, 8, dtype="f16"),
        ]
        return arguments, {"scale": 0.1, "max_bias": 1.0, "logit_softcap": 1.0, "sinks": self.f(4)}

    def ssm_conv(self):
        return [self.f(2, 5, 8), self.f(5, 4)], {}

    def ssm_scan(self):
        states = [self.f(3, 4, 8, 16), self.f(2, 3, 4, 8), self.f(2, 3, 4), self.f(4, 1)]
        return [*states, self.f(2, 3, 2, 16), self.f(2, 3, 2, 16), self.i([2, 0]), 2], {}

    def win_part(self):
        return [self.f(5, 6, 4), 4], {}

    def win_unpart(self):
        return [self.f(4, 4, 4, 3), 6, 5, 4], {}

    def get_rel_pos(self):
        return [self.f(5, 4, dtype="f16"), 3, 3], {}

    def add_rel_pos(self):
        return [self.f(2, 6, 9), self.f(2, 2, 3, 3), self.f(2, 2, 3, 3)], {}

    def rwkv_wkv6(self):
        x = [self.f(4, 2, 8) for _ in range(3)]
        return [*x, self.f(2, 8), self.f(4, 2, 8), self.f(2, 128)], {}

    def rwkv_wkv7(self):
        return [*(self.f(4, 1, 64) for _ in range(6)), self.f(2, 64 * 64)], {}

    def gated_linear_attn(self):
        return [*(self.f(4, 2, 8) for _ in range(4)), self.f(2, 128), 0.5], {}

    def gated_delta_net(self):
        x = [self.f(2, 3, 2, 8), self.f(2, 3, 2, 8), self.f(2, 3, 4, 8)]
        return [*x, self.f(2, 3, 4, 1), self.f(2, 3, 4, 1), self.f(2, 4, 8, 8), 2], {}

    def lightning_indexer(self):
        return [self.f(2, 3, 4, 32), self.f(2, 7, 1, 32), self.f(2, 1, 3, 4), self.f(1, 1, 3, 7, dtype="f16")], {}

    def dsv4_hc_comb(self):
        return [self.f(3, 24), self.f(3), self.f(24), 1e-6, 3], {}

    def dsv4_hc_pre(self):
        return [self.f(3, 4, 6), self.f(3, 4)], {}

    def dsv4_hc_post(self):
        return [self.f(3, 6), self.f(3, 4, 6), self.f(3, 4), self.f(3, 4, 4)], {}

    cross_entropy_loss = two

    def with_number(self):
        return ["mul", self.f(3, 4), 2.0], {}


SHAPES = [(1,), (3,), (8,), (32,), (3, 8), (8, 3), (1, 32), (2, 3, 8), (2, 1, 3, 8), (64, 1, 1, 1), (2, 256)]
TYPES = ["f32", "f16", "bf16", "i8", "i16", "i32", "i64", "f64", "q4_0", "q8_0", "q6_K", "iq4_nl"]
NUMBERS = [
    0, 1, 2, -1, 3, 7, 64, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 63, -(1 << 63), 10**400,
    0.5, -0.5, 1e30, 1e300, math.inf, -math.inf, math.nan, None, True, "x", b"", (), [1], (1, 2), {}, object(),
]  # fmt: skip
SEQUENCES = [
    (), (0,), (1,), (-1,), (-1, -1), (1 << 31,), (1 << 62, 4), (1 << 40, 1 << 40), (1, 1, 1, 1, 1), (0, 0), (2, 2),
    (1, 0), (0, 1, 2, 3), (3, 2, 1, 0), (1.5, 2), ("a",), (None, 1), ((1, 2), (3, 4)), ((-1, 2), 3), (1 << 20, 1 << 20),
    [2, 1, 1, 0], [0, 0, 0, 1], [-1, 1, 0, 0],
]  # fmt: skip
DATA = [math.nan, math.inf, -math.inf, 0, -1, 1, 1e38, -1e38, 2**31 - 1, -(2**31)]


class Hostility:
    """Changes one or two arguments of a call for the worse."""

    def __init__(self, bench, closed, other):
        self.bench, self.closed, self.other, self.random = bench, closed, other, bench.random

    def one_of(self, values):
        return values[self.random.integers(len(values))]

    def tensor(self, old):
        if old is self.closed or old is self.other:
            return old
        kind = self.random.integers(10)
        if kind == 0:
            return self.one_of([None, 3, "x", object(), np.ones(3), self.closed, self.other])
        if kind <= 3:
            return self.leaf(old.shape, self.one_of(TYPES))
        if kind <= 5:
            return self.leaf(self.one_of(SHAPES), self.one_of([old.dtype, "f32"]))
        if kind == 6:
            return self.view(old)
        if kind == 7:
            return self.spoiled(old)
        if kind == 8:
            return self.view(self.leaf(tuple(2 * extent for extent in old.shape), old.dtype), old.shape)
        shape = list(old.shape)
        shape[self.random.integers(len(shape))] += int(self.one_of([-1, 1, 2, 32]))
        return self.leaf(tuple(shape), old.dtype)

    def leaf(self, shape, dtype):
        with contextlib.suppress(kit.KitError):
            return self.bench.ctx.tensor(shape, dtype).set(self.random.integers(-3, 4, shape))
        return self.bench.normal(*(max(extent, 1) for extent in shape))

    def spoiled(self, old):
        if old.op != "NONE":
            return old
        values = np.full(old.shape, self.one_of(DATA))
        with contextlib.suppress(kit.KitError), np.errstate(invalid="ignore"):
            return old.set(
                values if old.dtype[0] != "i" else np.clip(np.nan_to_num(values), -(2**31), 2**31 - 1).astype(int)
            )
        return old

    def view(self, old, shape=None):
        with contextlib.suppress(kit.KitError):
            if shape is not None:
                return old[tuple(slice(None, None, 2) for _ in shape)]
            return self.one_of(
                [lambda: old.T, lambda: ops.permute(old, self.random.permutation(old.ndim).tolist()),
                 lambda: old[::2], lambda: old[..., 1:], lambda: old[..., ::2], lambda: old[None]]
            )()  # fmt: skip
        return old

    def worse(self, value):
        if isinstance(value, kit.Tensor):
            return self.tensor(value)
        if isinstance(value, (tuple, list)):
            if self.random.integers(2) and value:
                changed = list(value)
                changed[self.random.integers(len(changed))] = self.one_of(NUMBERS)
                return tuple(changed)
            return self.one_of(SEQUENCES)
        if isinstance(value, str) and self.random.integers(2):
            return self.one_of([*TYPES, "q1_0", "", "lower", "upper_diag", "desc", "nearest", "max"])
        return self.one_of(NUMBERS)

    def call(self, arguments, named):
        arguments, named = list(arguments), dict(named)
        for _ in range(self.random.integers(1, 3)):
            at = self.random.integers(len(arguments) + len(named))
            if at < len(arguments):
                arguments[at] = self.worse(arguments[at])
            else:
                key = list(named)[at - len(arguments)]
                named[key] = self.worse(named[key])
        return arguments, named


@pytest.mark.parametrize("name", ops.__all__)
def test_a_hostile_call_raises_or_computes(backend, benches, name):
    refused = computed = 0
    with kit.Backend(n_threads=1) as foreign, kit.Context(foreign) as elsewhere, kit.Context(backend) as gone:
        closed, other = gone.tensor((3, 8)).set(np.ones((3, 8))), elsewhere.tensor((3, 8)).set(np.ones((3, 8)))
        gone.close()
        for attempt in range(N_TRIES):
            with benches() as bench:
                bench.random = np.random.default_rng([attempt, *name.encode()])
                arguments, named = Hostility(bench, closed, other).call(*Valid(bench).call(name))
                try:
                    node = getattr(ops, name)(*arguments, **named)
                    if node is NotImplemented:
                        raise kit.ArgumentError("Python turns this into a TypeError")
                    graph = bench.ctx.graph(node)
                    if sum(step.nbytes for step in graph.nodes()) < LARGEST_COMPUTED_NBYTES:
                        graph.compute()
                        node.numpy()
                        computed += 1
                except kit.KitError:
                    refused += 1
    assert refused
    with benches() as bench:
        arguments, named = Valid(bench).call(name)
        assert bench.value(getattr(ops, name)(*arguments, **named)).size
        x = bench.normal(4, 8)
        assert np.allclose(bench.value(x @ x.T), x.numpy() @ x.numpy().T, atol=1e-5)
