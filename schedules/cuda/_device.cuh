// What a warp does in one instruction, and the short loops around it - for the kernels of this folder.
//
// The first part is PTX, one function an instruction; the second part is plain C++.
#ifndef TVMOPT_DEVICE_CUH
#define TVMOPT_DEVICE_CUH
#include <cuda_fp16.h>
#define TVMOPT_FN static __device__ __forceinline__
#ifdef __CUDACC__  // TVM includes these only where a kernel has 16-bit buffers
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tvmopt {

TVMOPT_FN unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// BYTES (4, 8, 16) from global to shared memory, zeros where `inside` is false; arrives after cp_async_wait.
template <int BYTES>
TVMOPT_FN void cp_async(void* to, const void* from, bool inside) {
  int size = inside ? BYTES : 0;
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(size) : "memory");
  }
}
TVMOPT_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of this thread are under way.
template <int PENDING>
TVMOPT_FN void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Four 8x8 matrices of 16-bit elements; lanes 8i..8i+7 hold the addresses of the rows of matrix i.
TVMOPT_FN void ldmatrix_x4(unsigned* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
TVMOPT_FN void ldmatrix_x4_trans(unsigned* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// d += a * b, m16n8k16, fp32 accumulators; a: 4 registers, b: 2, d: 4.
TVMOPT_FN void mma_f16(float* d, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TVMOPT_FN void mma_bf16(float* d, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same, m16n8k8, operands fp32 of which the tensor core reads the upper 19 bits.
TVMOPT_FN void mma_tf32(float* d, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- plain C++ from here -------------------------------------------------------------------------------------------

// What the kernels name their operands' types by.
struct f16 {};
struct bf16 {};
struct tf32 {};    // fp32 operands rounded to tf32
struct tf32x3 {};  // fp32 operands in two tf32 parts, three products: fp32's accuracy

TVMOPT_FN int lane() { return threadIdx.x & 31; }
template <class... T>
TVMOPT_FN void include(T...) {}

// Shared tiles: rows of ROW bytes in 16-byte chunks. Eight rows of one chunk column, what ldmatrix reads at once, fall
// into eight different groups of four banks: chunk' = chunk ^ (row & 7), two rows a 128-byte line where ROW is 64.
template <int ROW>
TVMOPT_FN unsigned char* at(void* tile, int row, int byte) {
  int mix = ROW == 64 ? (row >> 1) & 3 : row & 7;
  return static_cast<unsigned char*>(tile) + row * ROW + (byte ^ (mix << 4));
}

// One element, where rows are not aligned for cp.async: a plain copy, ordered by the block's barrier.
TVMOPT_FN void copy2(void* to, const void* from, bool inside) {
  *static_cast<unsigned short*>(to) = inside ? *static_cast<const unsigned short*>(from) : (unsigned short)0;
}

template <int N>
TVMOPT_FN void zero(float* p) {
#pragma unroll
  for (int i = 0; i < N; ++i) p[i] = 0.f;
}

// A fragments of MI 16-row tiles at byte `kb` of rows row0..; 32 bytes of K: k16 of 16-bit, k8 of 32-bit elements.
template <int ROW, int MI>
TVMOPT_FN void load_a(unsigned* a, void* tile, int row0, int kb) {
#pragma unroll
  for (int i = 0; i < MI; ++i) ldmatrix_x4(a + 4 * i, at<ROW>(tile, row0 + 16 * i + (lane() & 15), kb + (lane() >> 4) * 16));
}
// B fragments of NI 8-column tiles from a tile stored [N][K].
template <int ROW, int NI>
TVMOPT_FN void load_b_nk(unsigned* b, void* tile, int col0, int kb) {
#pragma unroll
  for (int j = 0; j < NI; j += 2)
    ldmatrix_x4(b + 2 * j, at<ROW>(tile, col0 + 8 * j + (lane() & 7) + (lane() >> 4) * 8, kb + ((lane() >> 3) & 1) * 16));
}
// The same from a tile stored [K][N], 16-bit elements.
template <int ROW, int NI>
TVMOPT_FN void load_b_kn(unsigned* b, void* tile, int col0, int k0) {
#pragma unroll
  for (int j = 0; j < NI; j += 2)
    ldmatrix_x4_trans(b + 2 * j, at<ROW>(tile, k0 + (lane() & 15), (col0 + 8 * j + (lane() >> 4) * 8) * 2));
}

TVMOPT_FN void mma(float* d, const unsigned* a, const unsigned* b, f16) { mma_f16(d, a, b); }
TVMOPT_FN void mma(float* d, const unsigned* a, const unsigned* b, bf16) { mma_bf16(d, a, b); }

// To 10 bits of mantissa; the second of any number: half a step more would make an infinity of the largest, -0 of a NaN.
TVMOPT_FN unsigned nearest(unsigned x) { return (x + 0x1000u) & 0xffffe000u; }
TVMOPT_FN unsigned upper(unsigned x) { return (x + ((x & 0x7fffffffu) < 0x7f7ff000u ? 0x1000u : 0u)) & 0xffffe000u; }
TVMOPT_FN unsigned cut(unsigned x) { return x & 0xffffe000u; }
TVMOPT_FN unsigned rest(unsigned x, unsigned part) { return nearest(__float_as_uint(__uint_as_float(x) - __uint_as_float(part))); }

TVMOPT_FN void mma(float* d, const unsigned* a, const unsigned* b, tf32) {
  unsigned x[4], y[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = upper(a[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) y[i] = upper(b[i]);
  mma_tf32(d, x, y);
}
// Tensor cores cut off what they add to an accumulator: over K of 768 that is an error of 1e-5. So eight products are
// summed there, and their sum is added in fp32, rounded to nearest. The product of the rests is left out; a is rounded,
// so that its rest has either sign and what is left out does not add up, while b is cut off, which takes fewer registers.
// The products with a rest are a thousandth of the others: they are finite, but for an infinity, which needs none and
// whose rest is no number.
TVMOPT_FN void mma(float* d, const unsigned* a, const unsigned* b, tf32x3) {
  unsigned x[4], y[2], u[4], v[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = upper(a[i]), u[i] = rest(a[i], x[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) y[i] = cut(b[i]), v[i] = rest(b[i], y[i]);
  float sum[4] = {0.f, 0.f, 0.f, 0.f}, small[4] = {0.f, 0.f, 0.f, 0.f};
  mma_tf32(small, u, y);
  mma_tf32(small, x, v);
  mma_tf32(sum, x, y);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (fabsf(small[i]) < __uint_as_float(0x7f800000u)) sum[i] += small[i];
    d[i] += sum[i];
  }
}

// The warp's tile: acc[MI][NI][4] += A fragments * B fragments.
template <typename T, int MI, int NI>
TVMOPT_FN void mma_tile(float* acc, const unsigned* a, const unsigned* b) {
#pragma unroll
  for (int i = 0; i < MI; ++i)
#pragma unroll
    for (int j = 0; j < NI; ++j) mma(acc + (i * NI + j) * 4, a + 4 * i, b + 2 * j, T());
}

// Accumulators to a row-major fp32 tile of STRIDE floats a row.
template <int MI, int NI, int STRIDE>
TVMOPT_FN void stage(void* tile, const float* acc, int row0, int col0) {
  float* to = static_cast<float*>(tile);
  int row = row0 + (lane() >> 2), col = col0 + (lane() & 3) * 2;
#pragma unroll
  for (int i = 0; i < MI; ++i)
#pragma unroll
    for (int j = 0; j < NI; ++j) {
      const float* c = acc + (i * NI + j) * 4;
      float2* low = reinterpret_cast<float2*>(to + (row + 16 * i) * STRIDE + col + 8 * j);
      float2* high = reinterpret_cast<float2*>(to + (row + 16 * i + 8) * STRIDE + col + 8 * j);
      *low = make_float2(c[0], c[1]);
      *high = make_float2(c[2], c[3]);
    }
}
// N neighbours of such a tile.
template <int N, int STRIDE>
TVMOPT_FN void unstage(float* to, const void* tile, int row, int col) {
  const float* from = static_cast<const float*>(tile) + row * STRIDE + col;
  if (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x; to[i + 1] = v.y; to[i + 2] = v.z; to[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}

// ---- few rows: dot products along K, a warp for R columns ----------------------------------------------------------

// acc[m * R + r] = sum_k x[m * length + k] * w[r * pitch + k], in all lanes; w is zero from `length` to `pitch`, rows
// from `rows` on are not read. Sixteen bytes of w a lane; of x too, where ALIGNED (length is then a multiple of them);
// behind `length` there are zeros in their place: what lies behind a row may be NaN, and zero times that is NaN.
template <int M, int R, bool ALIGNED, typename T>
TVMOPT_FN void dot_rows(float* acc, const T* w, const T* x, int rows, int pitch, int length) {
  constexpr int C = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < M * R; ++i) acc[i] = 0.f;
#pragma unroll 2
  for (int k = lane() * C; k < pitch; k += 32 * C) {
    uint4 raw[R];
#pragma unroll
    for (int r = 0; r < R; ++r) raw[r] = *reinterpret_cast<const uint4*>(w + (r < rows ? r : 0) * pitch + k);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      alignas(16) T v[C];
      if (ALIGNED) {
        *reinterpret_cast<uint4*>(v) =
            k < length ? *reinterpret_cast<const uint4*>(x + m * length + k) : make_uint4(0, 0, 0, 0);
      } else {
#pragma unroll
        for (int c = 0; c < C; ++c) v[c] = k + c < length ? x[m * length + k + c] : T(0.f);
      }
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) acc[m * R + r] += float(reinterpret_cast<const T*>(raw + r)[c]) * float(v[c]);
    }
  }
#pragma unroll
  for (int i = 0; i < M * R; ++i)
#pragma unroll
    for (int far = 16; far; far >>= 1) acc[i] += __shfl_xor_sync(0xffffffffu, acc[i], far);
}
template <int N>
TVMOPT_FN void pick(float* to, const float* from, int index) {
  to[0] = from[0];
#pragma unroll
  for (int i = 1; i < N; ++i)
    if (index == i) to[0] = from[i];
}

// ---- attention: a warp holds 16 queries; scores s[NI][4] and outputs o[NO][4] lie as mma's accumulators -------------

TVMOPT_FN unsigned pack(float low, float high, f16) {
  __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<unsigned*>(&v);
}
TVMOPT_FN unsigned pack(float low, float high, bf16) {  // round to nearest even; no NaN comes here but from NaN
  unsigned a = __float_as_uint(low), b = __float_as_uint(high);
  a = (a + 0x7fffu + ((a >> 16) & 1)) >> 16;
  b = (b + 0x7fffu + ((b >> 16) & 1)) & 0xffff0000u;
  return a | b;
}

// s = Q K^T: query fragments of KC chunks of 16, keys in a tile [8*NI][..] of ROW bytes a row.
template <typename T, int ROW, int KC, int NI>
TVMOPT_FN void scores(float* s, const unsigned* q, void* keys) {
#pragma unroll
  for (int i = 0; i < NI * 4; ++i) s[i] = 0.f;
#pragma unroll
  for (int c = 0; c < KC; ++c) {
    unsigned b[NI * 2];
    load_b_nk<ROW, NI>(b, keys, 0, 32 * c);
#pragma unroll
    for (int j = 0; j < NI; ++j) mma(s + 4 * j, q + 4 * c, b + 2 * j, T());
  }
}
template <int ROW, int KC>
TVMOPT_FN void load_queries(unsigned* q, void* tile, int row0) {
#pragma unroll
  for (int c = 0; c < KC; ++c) load_a<ROW, 1>(q + 4 * c, tile, row0, 32 * c);
}

// s *= scale; -inf beyond the last key, which for causal attention (LIMIT) is the query's own place plus `offset`.
template <int NI, bool LIMIT>
TVMOPT_FN void scale_and_mask(float* s, float scale, int key0, int keys, int query0, int offset) {
#pragma unroll
  for (int j = 0; j < NI; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int key = key0 + 8 * j + (lane() & 3) * 2 + (e & 1), query = query0 + (lane() >> 2) + (e >> 1) * 8;
      bool seen = key < keys && (!LIMIT || key <= query + offset);
      s[4 * j + e] = seen ? s[4 * j + e] * scale : -INFINITY;
    }
}
// s += bias[query * pitch + key] * factor, within `queries` and `keys`.
template <int NI, typename B>
TVMOPT_FN void add_bias(float* s, const B* bias, int pitch, float factor, int key0, int keys, int query0, int queries) {
#pragma unroll
  for (int j = 0; j < NI; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int key = key0 + 8 * j + (lane() & 3) * 2 + (e & 1), query = query0 + (lane() >> 2) + (e >> 1) * 8;
      if (key < keys && query < queries) s[4 * j + e] += float(bias[query * pitch + key]) * factor;
    }
}

// The online softmax: s becomes 2^(s - top), what is in o and total is brought to the new top of each row.
template <int NI, int NO>
TVMOPT_FN void softmax_step(float* s, float* o, float* top, float* total) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float peak = top[h];
#pragma unroll
    for (int j = 0; j < NI; ++j) peak = fmaxf(peak, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
    float base = peak == -INFINITY ? 0.f : peak;
    float fade = exp2f(top[h] - base), sum = 0.f;
    top[h] = peak;
#pragma unroll
    for (int j = 0; j < NI; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float p = exp2f(s[4 * j + 2 * h + e] - base);
        s[4 * j + 2 * h + e] = p;
        sum += p;
      }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    total[h] = total[h] * fade + sum;
#pragma unroll
    for (int j = 0; j < NO; ++j) {
      o[4 * j + 2 * h] *= fade;
      o[4 * j + 2 * h + 1] *= fade;
    }
  }
}
// o += P V: accumulators of two neighbouring key tiles are an A fragment; values in a tile [8*NI][..].
template <typename T, int ROW, int NI, int NO>
TVMOPT_FN void weigh(float* o, const float* s, void* values) {
#pragma unroll
  for (int c = 0; c < NI / 2; ++c) {
    const float* p = s + 8 * c;
    unsigned a[4] = {pack(p[0], p[1], T()), pack(p[2], p[3], T()), pack(p[4], p[5], T()), pack(p[6], p[7], T())};
#pragma unroll
    for (int j = 0; j < NO; j += 2) {
      unsigned b[4];
      load_b_kn<ROW, 2>(b, values, 8 * j, 16 * c);
      mma(o + 4 * j, a, b, T());
      mma(o + 4 * j + 4, a, b + 2, T());
    }
  }
}
template <int NO>
TVMOPT_FN void divide(float* o, const float* total) {
#pragma unroll
  for (int j = 0; j < NO; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) o[4 * j + e] /= total[e >> 1];
}
TVMOPT_FN void start_softmax(float* top, float* total) {
  top[0] = top[1] = -INFINITY;
  total[0] = total[1] = 0.f;
}

}  // namespace tvmopt
#endif  // TVMOPT_DEVICE_CUH
