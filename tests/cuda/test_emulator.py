"""The emulator against kernels whose answers are known, and against kernels with a planted fault."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.emulator import Fault, Race, load, run
from tests.cuda.emulator.ptx import UnknownInstruction, translate

REVERSE = """
extern "C" __global__ void __launch_bounds__(96) kernel(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float s[96];
  s[threadIdx.x] = x[blockIdx.x * 96 + threadIdx.x];
  BARRIER
  y[blockIdx.x * 96 + threadIdx.x] = s[95 - threadIdx.x];
}
"""


def test_barrier() -> None:
    x = np.arange(288, dtype="float32")
    y = np.zeros_like(x)
    load(REVERSE.replace("BARRIER", "__syncthreads();")).launch("kernel", [x, y], (3,), (96,))
    assert (y.reshape(3, 96) == x.reshape(3, 96)[:, ::-1]).all()


def test_a_missing_barrier_is_found() -> None:
    x, y = np.arange(96, dtype="float32"), np.zeros(96, "float32")
    with pytest.raises(Race, match="array 1 differs between thread orders"):
        load(REVERSE.replace("BARRIER", "")).launch("kernel", [x, y], (1,), (96,))


def test_a_barrier_that_half_the_block_misses_is_found() -> None:
    x, y = np.arange(96, dtype="float32"), np.zeros(96, "float32")
    source = REVERSE.replace("BARRIER", "if (threadIdx.x < 48) __syncthreads(); else __syncwarp();")
    with pytest.raises(Fault, match=r"different operations|different barriers"):
        load(source).launch("kernel", [x, y], (1,), (96,))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("*(float4*)(y + 4 * threadIdx.x + 2) = *(float4*)x;", "a misaligned address"),
        ("alignas(16) float row[8]; row[x[0] > 0 ? 8 : 0] = 1; y[0] = row[0];", "a place beyond an array's end"),
    ],
)
def test_what_a_gpu_traps_on_is_found(statement: str, words: str) -> None:
    x, y = np.ones(8, "float32"), np.zeros(16, "float32")
    source = f'extern "C" __global__ void kernel(float* x, float* y) {{ {statement} }}'
    with pytest.raises(Fault, match=words):
        load(source).launch("kernel", [x, y], (1,), (2,))


@pytest.mark.parametrize(("a", "b"), [("s", "s"), ("u", "s"), ("s", "u"), ("u", "u")])
def test_a_dot_product_of_bytes(a: str, b: str) -> None:
    source = f"""
    extern "C" __global__ void kernel(const int* x, const int* y, int* z) {{
      int d;
      asm volatile("dp4a.{a}32.{b}32 %0, %1, %2, %3;" : "=r"(d) : "r"(x[0]), "r"(y[0]), "r"(7));
      z[0] = d;
    }}"""
    kinds = {"s": np.int8, "u": np.uint8}
    x, y = np.array([200, 3, 127, 255], np.uint8), np.array([5, 250, 128, 1], np.uint8)
    z = np.zeros(1, "int32")
    load(source).launch("kernel", [x.view("int32"), y.view("int32"), z], (1,), (1,))
    assert z[0] == 7 + (x.view(kinds[a]).astype(int) * y.view(kinds[b])).sum()


@pytest.mark.parametrize("threads", [1, 7, 31, 32, 33, 64, 1000])
def test_shuffles_sum_a_warp(threads: int) -> None:
    source = """
    extern "C" __global__ void kernel(const float* x, float* y) {
      float v = x[threadIdx.x];
      unsigned mask = __activemask();
      for (int d = 16; d; d /= 2) {
        float other = __shfl_down_sync(mask, v, d, 32);
        if ((threadIdx.x & 31) + d < 32 && threadIdx.x + d < blockDim.x) v = v + other;
      }
      y[threadIdx.x] = __shfl_sync(mask, v, 0, 32);
    }"""
    x = np.arange(threads, dtype="float32")
    y = np.zeros_like(x)
    load(source).launch("kernel", [x, y], (1,), (threads,))
    expected = np.concatenate([np.full(len(w), w.sum()) for w in np.split(x, range(32, threads, 32))])
    assert (y == expected).all()


LDMATRIX_MMA = """
extern "C" __global__ void kernel(const T* a, const T* b, float* c) {
  __shared__ alignas(16) T sa[16 * 16];
  __shared__ alignas(16) T sb[16 * 8];
  for (int i = threadIdx.x; i < 256; i += 32) sa[i] = a[i];
  for (int i = threadIdx.x; i < 128; i += 32) sb[i] = b[i];
  __syncthreads();
  uint32_t ra[4], rb[2];
  float d[4] = {0, 0, 0, 0};
  int lane = threadIdx.x;
  unsigned at = __cvta_generic_to_shared(sa + lane % 16 * 16 + lane / 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(at) : "memory");
  at = __cvta_generic_to_shared(sb + lane % 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
    : "=r"(rb[0]), "=r"(rb[1]) : "r"(at));
  __asm__ __volatile__("{ mma.sync.aligned.m16n8k16.row.col.f32.NAME.NAME.f32 "
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13}; }"
    : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
    : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]),
      "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
  for (int i = 0; i < 4; ++i) c[(lane / 4 + 8 * (i / 2)) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
"""


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_ldmatrix_and_mma(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype, ctype = {"f16": (np.float16, "half"), "bf16": (ml_dtypes.bfloat16, "nv_bfloat16")}[name]
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 16)).astype(dtype), rng.standard_normal((16, 8)).astype(dtype)
    c = np.zeros((16, 8), "float32")
    source = LDMATRIX_MMA.replace("NAME", name).replace("T* ", f"{ctype}* ").replace("T s", f"{ctype} s")
    load(source).launch("kernel", [a, b, c], (1,), (32,))
    np.testing.assert_allclose(c, a.astype("float64") @ b.astype("float64"), rtol=1e-5, atol=1e-5)


def test_tf32_mma() -> None:
    source = """
    extern "C" __global__ void kernel(const float* a, const float* b, float* c) {
      int g = threadIdx.x / 4, t = threadIdx.x % 4;
      uint32_t ra[4], rb[2];
      for (int r = 0; r < 4; ++r) ra[r] = __float_as_uint(a[(g + 8 * (r & 1)) * 8 + t + 4 * (r / 2)]);
      for (int r = 0; r < 2; ++r) rb[r] = __float_as_uint(b[(t + 4 * r) * 8 + g]);
      float d[4] = {1, 1, 1, 1};
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
      for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + t * 2 + i % 2] = d[i];
    }"""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, s).astype("float32") for s in ((16, 8), (8, 8)))
    c = np.zeros((16, 8), "float32")
    load(source).launch("kernel", [a, b, c], (1,), (32,))
    assert (c == a @ b + 1).all()


def test_wmma() -> None:
    source = """
    #include <mma.h>
    extern "C" __global__ void kernel(const half* a, const half* b, float* c) {
      nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> fa[1];
      nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::col_major> fb[1];
      nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> fc[1];
      nvcuda::wmma::fill_fragment(fc[0], 0.0f);
      nvcuda::wmma::load_matrix_sync(fa[0], a, 16);
      nvcuda::wmma::load_matrix_sync(fb[0], b, 16);
      nvcuda::wmma::mma_sync(fc[0], fa[0], fb[0], fc[0]);
      nvcuda::wmma::store_matrix_sync(c, fc[0], 16, nvcuda::wmma::mem_row_major);
    }"""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16)).astype("float16") for _ in range(2))
    c = np.zeros((16, 16), "float32")
    load(source).launch("kernel", [a, b, c], (1,), (32,))
    np.testing.assert_allclose(c, a.astype("float64") @ b.T.astype("float64"), rtol=1e-5, atol=1e-5)


CP_ASYNC = """
extern "C" __global__ void kernel(const float* x, float* y, int real) {
  extern __shared__ __align__(1024) uchar buf[];
  float* s = reinterpret_cast<float*>(buf);
  unsigned to = __cvta_generic_to_shared(s + threadIdx.x * 4);
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2, %3;"
    :: "r"(to), "l"((void*)(x + threadIdx.x * 4)), "n"(16), "r"(threadIdx.x * 4 < real ? 16 : 0) : "memory");
  asm volatile("cp.async.commit_group;");
  WAIT
  __syncthreads();
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = s[127 - threadIdx.x * 4 - i];
}
"""


def test_cp_async() -> None:
    x, y = np.arange(128, dtype="float32"), np.zeros(128, "float32")
    source = "#define uchar unsigned char\n" + CP_ASYNC
    library = load(source.replace("WAIT", 'asm volatile("cp.async.wait_group %0;" :: "n"(0));'))
    library.launch("kernel", [x, y, 96], (1,), (32,), shared=512)
    assert (y == np.where(x < 96, x, 0)[::-1]).all()
    with pytest.raises(Race):  # the group is committed and never waited for
        load(source.replace("WAIT", "")).launch("kernel", [x, y, 96], (1,), (32,), shared=512)


def test_misaligned_ldmatrix_is_found() -> None:
    source = """
    extern "C" __global__ void kernel(uint32_t* y) {
      __shared__ alignas(16) half s[80];
      s[threadIdx.x] = 0;
      asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
        : "=r"(y[threadIdx.x]) : "r"(__cvta_generic_to_shared(s + 1)));
    }"""
    with pytest.raises(Fault, match="misaligned"):
        load(source).launch("kernel", [np.zeros(32, "uint32")], (1,), (32,))


def test_unwritten_shared_memory_is_nan() -> None:
    source = """
    extern "C" __global__ void kernel(float* y) { __shared__ float s[8]; y[threadIdx.x] = s[threadIdx.x]; }"""
    y = np.zeros(8, "float32")
    load(source).launch("kernel", [y], (1,), (8,))
    assert np.isnan(y).all()


def test_atomics_and_guards() -> None:
    source = """
    extern "C" __global__ void kernel(int* count, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= n) return;
      atomicAdd(count, i);
    }"""
    count = np.zeros(1, "int32")
    load(source).launch("kernel", [count, 100], (4,), (32,))
    assert count[0] == 4950


def test_unknown_instructions_are_named() -> None:
    with pytest.raises(UnknownInstruction, match="tcgen05"):
        translate('asm volatile("tcgen05.wait::ld.sync.aligned;");')


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_tvm_generates(dtype: str) -> None:
    """Two kernels in one function, a workspace between them: a row's sum over 32 lanes, a division."""
    import tvm
    from tvm import te

    from tvmopt.targets import Machine

    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = te.placeholder((9, 33), name="x", dtype=dtype)
    k = te.reduce_axis((0, 33), "k")
    s = te.compute((9,), lambda i: te.sum(te.exp(x[i, k].astype("float32")), axis=k), name="s")
    y = te.compute((9, 33), lambda i, j: (x[i, j].astype("float32") / s[i]).astype(dtype), name="y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y], "int64"))
    row, reduced = sch.get_loops(sch.get_sblock("s"))
    sch.bind(row, "blockIdx.x")
    sch.bind(sch.split(reduced, [None, 32])[1], "threadIdx.x")
    block, thread = sch.split(sch.fuse(*sch.get_loops(sch.get_sblock("y"))), [None, 128])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    given = np.random.default_rng(0).standard_normal((9, 33))
    given = given.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    out = np.zeros_like(given)
    emulation = run(sch.mod["main"], Machine.load("nvidia-h100"), [given], [out])
    wide = given.astype("float64")
    expected = wide / np.exp(wide).sum(1, keepdims=True)
    tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    np.testing.assert_allclose(out.astype("float64"), expected, rtol=tolerance)
    assert {launch[1:3] for launch in emulation.libraries[0].launches} == {
        ((9, 1, 1), (32, 1, 1)),
        ((3, 1, 1), (128, 1, 1)),
    }
