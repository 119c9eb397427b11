// Asynchronous copies and tensor cores: what the translated PTX calls (see ptx.py), and nvcuda::wmma.
#pragma once
#include "shim.h"

// -- asm operands: every register is 64 bits wide here, a float is its bits ------------------------------------------

template <class T> inline uint64_t emu_in(T v) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<uint64_t>(v);
  else if constexpr (std::is_same_v<T, float>) return emu_bits<uint32_t>(v);
  else if constexpr (std::is_same_v<T, double>) return emu_bits<uint64_t>(v);
  else if constexpr (sizeof(T) == 2) return emu_bits<uint16_t>(v);
  else if constexpr (sizeof(T) == 4 && std::is_integral_v<T>) return emu_bits<uint32_t>(v);
  else return uint64_t(v);
}
template <class T> inline void emu_out(T& to, uint64_t bits) { memcpy(&to, &bits, sizeof to); }
inline float emu_f(uint64_t bits) { return emu_bits<float>(uint32_t(bits)); }
inline uint64_t emu_u(float v) { return emu_bits<uint32_t>(v); }
template <class A, class B> inline uint64_t emu_dp4a(uint64_t a, uint64_t b, uint64_t c) {
  uint32_t sum = uint32_t(c);
  for (int i = 0; i < 32; i += 8) sum += uint32_t(int(A(a >> i)) * int(B(b >> i)));
  return sum;
}
inline uint64_t emu_f16x2(uint64_t hi, uint64_t lo) {
  return uint64_t(emu_bits<uint16_t>(half(emu_f(hi)))) << 16 | emu_bits<uint16_t>(half(emu_f(lo)));
}
inline uint64_t emu_bf16x2(uint64_t hi, uint64_t lo) {
  return uint64_t(nv_bfloat16(emu_f(hi)).bits) << 16 | nv_bfloat16(emu_f(lo)).bits;
}
inline uint64_t emu_rna_tf32(uint64_t v) { return (v + 0x1000) & 0xffffe000u; }

// -- cp.async --------------------------------------------------------------------------------------------------------
// Early: the copy happens at once; late: when the thread waits for its group. A kernel is right only if both are.

namespace emu {
struct Copy { char* to; const char* from; int bytes, source, group; };
constexpr int kCopies = 4096;
static Copy* copies[kMaxThreads];
static int pending[kMaxThreads], groups[kMaxThreads];
static bool late_copies;
inline void do_copy(const Copy& c) {
  memcpy(c.to, c.from, c.source);
  memset(c.to + c.source, 0, c.bytes - c.source);
}
inline void cp_async(uint64_t to, uint64_t from, int bytes, int64_t source = -1) {
  if (source < 0) source = bytes;
  if (source && from % bytes) fail("cp.async from a misaligned address");
  Copy c{shared(to, bytes), reinterpret_cast<const char*>(from), bytes, int(source), groups[current]};
  if (!late_copies) return do_copy(c);
  if (!copies[current]) copies[current] = static_cast<Copy*>(malloc(kCopies * sizeof(Copy)));
  if (pending[current] == kCopies) return fail("more cp.async in flight than the emulator holds");
  copies[current][pending[current]++] = c;
}
inline void cp_async_commit() { ++groups[current]; }
inline void cp_async_wait(int keep) {
  int left = 0;
  for (int i = 0; i < pending[current]; ++i) {
    Copy& c = copies[current][i];
    if (c.group < groups[current] - keep) do_copy(c);
    else copies[current][left++] = c;
  }
  pending[current] = left;
}
inline void cp_async_wait_all() { cp_async_commit(); cp_async_wait(0); }
inline void forget_copies() {
  memset(pending, 0, sizeof pending);
  memset(groups, 0, sizeof groups);
}
}  // namespace emu

// -- ldmatrix, stmatrix ----------------------------------------------------------------------------------------------

struct EmuMatrices { int count; bool trans; uint64_t address; uint64_t* out[4]; };

inline void emu_matrices(const char* what, int count, bool trans, uint64_t address, uint64_t* a, uint64_t* b = nullptr,
                         uint64_t* c = nullptr, uint64_t* d = nullptr) {
  EmuMatrices mine{count, trans, address, {a, b, c, d}};
  bool store = what[0] == 's';
  auto run = [](void** lanes, uint32_t mask, bool store) {
    if (mask != ~0u) return emu::fail("ldmatrix or stmatrix by part of a warp");
    auto lane = [&](int i) { return static_cast<EmuMatrices*>(lanes[i]); };
    for (int m = 0; m < lane(0)->count; ++m)
      for (int i = 0; i < 32; ++i)
        for (int e = 0; e < 2; ++e) {
          int row = i / 4, col = i % 4 * 2 + e;
          if (lane(0)->trans) std::swap(row, col);
          char* at = emu::shared(lane(8 * m + row)->address, 16) + 2 * col;
          uint16_t* half_of_register = reinterpret_cast<uint16_t*>(lane(i)->out[m]) + e;
          if (store) memcpy(at, half_of_register, 2);
          else memcpy(half_of_register, at, 2);
        }
  };
  if (store) emu::collective(what, &mine, [](void** l, uint32_t m) { decltype(run)()(l, m, true); });
  else emu::collective(what, &mine, [](void** l, uint32_t m) { decltype(run)()(l, m, false); });
}

// -- mma.sync.m16n8k* ------------------------------------------------------------------------------------------------
// A register holds E elements; g = lane / 4, t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16" and the like):
//   A register r: row g + 8 (r & 1),  k = E t + 4 E (r / 2) + j      B register r: k = E t + 4 E r + j, column g
//   C, 32 bits, register r: row g + 8 (r / 2), column 2 t + (r & 1)

enum EmuType { EMU_F16, EMU_BF16, EMU_TF32, EMU_S8, EMU_U8, EMU_F32, EMU_S32 };
struct EmuMma { int k; EmuType a, b, acc; uint64_t *d, *ra, *rb, *rc; };

inline double emu_element(EmuType type, uint64_t reg, int j) {
  switch (type) {
    case EMU_F16: return emu_bits<half>(uint16_t(reg >> 16 * j));
    case EMU_BF16: return emu_bits<nv_bfloat16>(uint16_t(reg >> 16 * j));
    case EMU_TF32: return emu_f(reg & 0xffffe000u);
    case EMU_S8: return int8_t(reg >> 8 * j);
    default: return uint8_t(reg >> 8 * j);
  }
}
inline int emu_per_register(EmuType type) { return type == EMU_TF32 ? 1 : type == EMU_F16 || type == EMU_BF16 ? 2 : 4; }

// As tensor cores do: what does not fit is cut off, not rounded, and a NaN has all bits set.
inline uint64_t emu_cut(double v) {
  if (v != v) return 0x7fffffffu;
  float f = float(v);
  return emu_u(fabs(double(f)) > fabs(v) ? nextafterf(f, 0.f) : f);
}
inline void emu_mma_warp(void** lanes, uint32_t mask) {
  if (mask != ~0u) return emu::fail("mma by part of a warp");
  auto lane = [&](int i) { return static_cast<EmuMma*>(lanes[i]); };
  const EmuMma& o = *lane(0);
  int e = emu_per_register(o.a), registers_b = o.k / (4 * e), registers_a = 2 * registers_b;
  static double a[16][32], b[32][8], c[16][8];
  for (int i = 0; i < 32; ++i) {
    int g = i / 4, t = i % 4;
    for (int j = 0; j < e; ++j) {
      for (int r = 0; r < registers_a; ++r)
        a[g + 8 * (r & 1)][e * t + 4 * e * (r / 2) + j] = emu_element(o.a, lane(i)->ra[r], j);
      for (int r = 0; r < registers_b; ++r) b[e * t + 4 * e * r + j][g] = emu_element(o.b, lane(i)->rb[r], j);
    }
    for (int r = 0; r < 4; ++r) {
      double& at = c[g + 8 * (r / 2)][2 * t + (r & 1)];
      if (o.acc == EMU_F16) at = emu_element(EMU_F16, lane(i)->rc[r / 2], r & 1);
      else if (o.acc == EMU_F32) at = emu_f(lane(i)->rc[r]);
      else at = int32_t(lane(i)->rc[r]);
    }
  }
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n)
      for (int k = 0; k < o.k; ++k) c[m][n] += a[m][k] * b[k][n];
  for (int i = 0; i < 32; ++i)
    for (int r = 0; r < 4; ++r) {
      double v = c[i / 4 + 8 * (r / 2)][2 * (i % 4) + (r & 1)];
      if (o.acc == EMU_F16) reinterpret_cast<uint16_t*>(&lane(i)->d[r / 2])[r & 1] = emu_bits<uint16_t>(half(v));
      else lane(i)->d[r] = o.acc == EMU_F32 ? emu_cut(v) : uint32_t(int32_t(v));
    }
}
inline void emu_mma(int k, EmuType a, EmuType b, EmuType acc, uint64_t* d, uint64_t* ra, uint64_t* rb, uint64_t* rc) {
  EmuMma mine{k, a, b, acc, d, ra, rb, rc};
  emu::collective("mma", &mine, emu_mma_warp);
}

// -- nvcuda::wmma: element `lane * n + i` of the row-major tile in lane's x[i] ---------------------------------------

namespace nvcuda {
namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
namespace precision { struct tf32; }
enum layout_t { mem_row_major, mem_col_major };
template <class T> struct Stored { using type = T; };
template <> struct Stored<precision::tf32> { using type = float; };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M, cols = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = rows * cols / 32;
  using element = typename Stored<T>::type;
  element x[num_elements];
};
inline float __float_to_tf32(float v) { return emu_f(emu_rna_tf32(emu_u(v))); }
template <class F, class V> inline void fill_fragment(F& f, V v) {
  for (auto& x : f.x) x = typename F::element(v);
}
template <class F> struct Load { F* f; const void* p; unsigned ld; bool col; };
template <class F, class E> inline void emu_load(F& f, const E* p, unsigned ld, bool col) {
  __syncwarp();
  for (int i = 0; i < F::num_elements; ++i) {
    int at = emu_lane() * F::num_elements + i, r = at / F::cols, c = at % F::cols;
    f.x[i] = col ? p[c * ld + r] : p[r * ld + c];
  }
  __syncwarp();
}
template <class Use, int M, int N, int K, class T, class L, class E>
inline void load_matrix_sync(fragment<Use, M, N, K, T, L>& f, const E* p, unsigned ld) {
  emu_load(f, p, ld, std::is_same_v<L, col_major>);
}
template <int M, int N, int K, class T, class E>
inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const E* p, unsigned ld, layout_t layout) {
  emu_load(f, p, ld, layout == mem_col_major);
}
template <int M, int N, int K, class T, class E>
inline void store_matrix_sync(E* p, const fragment<accumulator, M, N, K, T>& f, unsigned ld, layout_t layout) {
  __syncwarp();
  for (int i = 0; i < f.num_elements; ++i) {
    int at = emu_lane() * f.num_elements + i, r = at / N, c = at % N;
    p[layout == mem_col_major ? c * ld + r : r * ld + c] = f.x[i];
  }
  __syncwarp();
}
template <class D, class A, class B, class C> struct Product { D* d; const A* a; const B* b; const C* c; };
template <class D, class A, class B, class C> inline void mma_sync(D& d, const A& a, const B& b, const C& c) {
  using P = Product<D, A, B, C>;
  P mine{&d, &a, &b, &c};
  emu::collective("wmma", &mine, [](void** lanes, uint32_t mask) {
    if (mask != ~0u) return emu::fail("wmma by part of a warp");
    constexpr int M = A::rows, K = A::cols, N = B::cols;
    static double ma[M * K], mb[K * N];
    for (int l = 0; l < 32; ++l) {
      auto* p = static_cast<P*>(lanes[l]);
      for (int i = 0; i < A::num_elements; ++i) ma[l * A::num_elements + i] = double(p->a->x[i]);
      for (int i = 0; i < B::num_elements; ++i) mb[l * B::num_elements + i] = double(p->b->x[i]);
    }
    for (int l = 0; l < 32; ++l) {
      auto* p = static_cast<P*>(lanes[l]);
      for (int i = 0; i < D::num_elements; ++i) {
        int at = l * D::num_elements + i, m = at / N, n = at % N;
        double sum = double(p->c->x[i]);
        for (int k = 0; k < K; ++k) sum += ma[m * K + k] * mb[k * N + n];
        p->d->x[i] = typename D::element(sum);
      }
    }
  });
}
}  // namespace wmma
}  // namespace nvcuda
using namespace nvcuda;

// -- a launch --------------------------------------------------------------------------------------------------------

template <class T> static T emu_scalar(uint64_t bits) { T v; memcpy(&v, &bits, sizeof v); return v; }
static uint64_t* slots_;

extern "C" size_t emu_use_stacks(char* memory) {
  emu::stacks = memory;
  return size_t(emu::kStack) * emu::kMaxThreads;
}

static const char* emu_grid(void (*body)(), const unsigned* d, int shared, int order, int late) {
  using namespace emu;
  failed = 0;
  gridDim = {d[0], d[1], d[2]};
  blockDim = {d[3], d[4], d[5]};
  if (size_t(d[3]) * d[4] * d[5] > kMaxThreads) { fail("more than 1024 threads a block"); return message; }
  if (shared > kMaxShared) { fail("more dynamic shared memory than 228 KiB"); return message; }
  late_copies = late;
  uint64_t seed = order;
  for (unsigned z = 0; z < d[2]; ++z)
    for (unsigned y = 0; y < d[1]; ++y)
      for (unsigned x = 0; x < d[0] && !failed; ++x) {
        blockIdx = {x, y, z};
        forget_copies();
        run_block(body, order, seed);
      }
  return failed ? message : nullptr;
}
