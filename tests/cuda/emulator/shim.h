// CUDA C++ on a CPU, for the tests: qualifiers, types and intrinsics that TVM's generated kernels use.
//
// Blocks run one after another, the threads of a block as fibers. A fiber runs until it waits at a barrier or at an
// operation of its warp (a shuffle, ldmatrix, mma); the order in which fibers are resumed is the caller's choice, so
// a missing barrier shows as a different result. Shared memory is filled with 0xFF (NaN) before every block.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __cluster_dims__(...)
#define __grid_constant__
#define __shared__ static __attribute__((section("emushared"), used))

struct uint3 { unsigned x, y, z; };
using dim3 = uint3;
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

// -- 16-bit floats ---------------------------------------------------------------------------------------------------

using half = _Float16;
using __half = half;
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  nv_bfloat16(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    bits = v != v ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  nv_bfloat16(double v) : nv_bfloat16(float(v)) {}
  nv_bfloat16(int v) : nv_bfloat16(float(v)) {}
  nv_bfloat16(unsigned v) : nv_bfloat16(float(v)) {}
  nv_bfloat16(int64_t v) : nv_bfloat16(float(v)) {}
  nv_bfloat16(const nv_bfloat16&) = default;
  nv_bfloat16& operator=(const nv_bfloat16&) = default;
  nv_bfloat16(const volatile nv_bfloat16& v) : bits(v.bits) {}  // TVM reads shared memory as volatile
  void operator=(const nv_bfloat16& v) volatile { bits = v.bits; }
  void operator=(const volatile nv_bfloat16& v) volatile { bits = v.bits; }
  operator float() const {
    uint32_t u = uint32_t(bits) << 16;
    float v;
    memcpy(&v, &u, 4);
    return v;
  }
  operator float() const volatile { return nv_bfloat16(*this); }
};
using __nv_bfloat16 = nv_bfloat16;
#define EMU_BF16_OP(op) \
  inline nv_bfloat16 operator op(nv_bfloat16 a, nv_bfloat16 b) { return nv_bfloat16(float(a) op float(b)); }
EMU_BF16_OP(+) EMU_BF16_OP(-) EMU_BF16_OP(*) EMU_BF16_OP(/)
#define EMU_BF16_CMP(op) \
  inline bool operator op(nv_bfloat16 a, nv_bfloat16 b) { return float(a) op float(b); }
EMU_BF16_CMP(<) EMU_BF16_CMP(>) EMU_BF16_CMP(<=) EMU_BF16_CMP(>=) EMU_BF16_CMP(==) EMU_BF16_CMP(!=)

struct alignas(4) half2 { half x, y; };
using __half2 = half2;
struct alignas(4) nv_bfloat162 {
  nv_bfloat16 x, y;
  nv_bfloat162() = default;
  nv_bfloat162(nv_bfloat16 a, nv_bfloat16 b) : x(a), y(b) {}
};
using __nv_bfloat162 = nv_bfloat162;

template <class To, class From> inline To emu_bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  memcpy(&r, &v, sizeof r);
  return r;
}
inline float __half2float(half v) { return v; }
inline half __float2half(float v) { return v; }
inline half __float2half_rn(float v) { return v; }
inline half __double2half(double v) { return v; }
inline unsigned short __half_as_ushort(half v) { return emu_bits<uint16_t>(v); }
inline half __ushort_as_half(unsigned short v) { return emu_bits<half>(v); }
inline float __bfloat162float(nv_bfloat16 v) { return v; }
inline nv_bfloat16 __float2bfloat16(float v) { return v; }
inline nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 v) { return v.bits; }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return emu_bits<nv_bfloat16>(v); }
inline float __int_as_float(int v) { return emu_bits<float>(v); }
inline int __float_as_int(float v) { return emu_bits<int>(v); }
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
inline double __longlong_as_double(int64_t v) { return emu_bits<double>(v); }
inline float __uint_as_float(unsigned v) { return emu_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return emu_bits<unsigned>(v); }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {nv_bfloat16(x), nv_bfloat16(y)}; }
inline bool __hgt(half a, half b) { return a > b; }
inline bool __hlt(half a, half b) { return a < b; }
inline bool __hgt(nv_bfloat16 a, nv_bfloat16 b) { return a > b; }
inline bool __hlt(nv_bfloat16 a, nv_bfloat16 b) { return a < b; }
#define EMU_H2(name, expr)                                                            \
  inline half name(half a, half b) { return half(expr); }                             \
  inline nv_bfloat16 name(nv_bfloat16 a_, nv_bfloat16 b_) { float a = a_, b = b_; return nv_bfloat16(expr); }
EMU_H2(__hadd, a + b) EMU_H2(__hsub, a - b) EMU_H2(__hmul, a * b) EMU_H2(__hdiv, a / b)
EMU_H2(__hmax, a > b ? a : b) EMU_H2(__hmin, a < b ? a : b)
inline half __hfma(half a, half b, half c) { return half(fma(double(a), double(b), double(c))); }
inline half __hneg(half a) { return -a; }
inline half __habs(half a) { return a < 0 ? half(-a) : a; }
inline half2 __hadd2(half2 a, half2 b) { return {half(a.x + b.x), half(a.y + b.y)}; }
inline half2 __hmul2(half2 a, half2 b) { return {half(a.x * b.x), half(a.y * b.y)}; }
inline half2 __hfma2(half2 a, half2 b, half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
#define EMU_H1(name, fn)                                          \
  inline half name(half v) { return half(fn(float(v))); }         \
  inline nv_bfloat16 name(nv_bfloat16 v) { return nv_bfloat16(fn(float(v))); }
EMU_H1(hexp, expf) EMU_H1(hexp2, exp2f) EMU_H1(hlog, logf) EMU_H1(hlog2, log2f) EMU_H1(hsqrt, sqrtf)
EMU_H1(hceil, ceilf) EMU_H1(hfloor, floorf) EMU_H1(htrunc, truncf) EMU_H1(hrint, rintf) EMU_H1(hcos, cosf)
EMU_H1(hsin, sinf) EMU_H1(emu_htanh, tanhf)
inline half hrsqrt(half v) { return half(1 / sqrtf(v)); }
inline nv_bfloat16 hrsqrt(nv_bfloat16 v) { return nv_bfloat16(1 / sqrtf(v)); }
#define htanh emu_htanh
inline float rsqrtf(float v) { return 1 / sqrtf(v); }
inline double rsqrt(double v) { return 1 / sqrt(v); }
inline float __expf(float v) { return expf(v); }
inline float __exp10f(float v) { return exp10f(v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __log10f(float v) { return log10f(v); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __tanf(float v) { return tanf(v); }
inline float __powf(float a, float b) { return powf(a, b); }
template <class T> inline T emu_rounded(T v) {  // no part of another operation
  asm volatile("" : "+x"(v));
  return v;
}
inline float __fmul_rn(float a, float b) { return emu_rounded(a * b); }
inline double __dmul_rn(double a, double b) { return emu_rounded(a * b); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __frsqrt_rn(float a) { return 1 / sqrtf(a); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;  // as CUDA's fmax: a NaN gives way
  if constexpr (std::is_floating_point_v<C>) return std::fmax(C(a), C(b));
  else return C(a) < C(b) ? C(b) : C(a);
}
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return std::fmin(C(a), C(b));
  else return C(b) < C(a) ? C(b) : C(a);
}

// -- vectors ---------------------------------------------------------------------------------------------------------

#define EMU_VEC(T, name, a2, a4)                                                                        \
  struct alignas(sizeof(T)) name##1 { T x; };                                                           \
  struct alignas(a2) name##2 { T x, y; };                                                               \
  struct name##3 { T x, y, z; };                                                                        \
  struct alignas(a4) name##4 { T x, y, z, w; };                                                         \
  inline name##1 make_##name##1(T x) { return {x}; }                                                    \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                            \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                    \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define uint3 emu_uint3
EMU_VEC(float, float, 8, 16) EMU_VEC(int, int, 8, 16) EMU_VEC(unsigned, uint, 8, 16) EMU_VEC(double, double, 16, 16)
EMU_VEC(short, short, 4, 8) EMU_VEC(unsigned short, ushort, 4, 8) EMU_VEC(signed char, char, 2, 4)
EMU_VEC(unsigned char, uchar, 2, 4) EMU_VEC(long long, longlong, 16, 16) EMU_VEC(unsigned long long, ulonglong, 16, 16)
EMU_VEC(long, long, 16, 16) EMU_VEC(unsigned long, ulong, 16, 16)
#undef uint3
#define EMU_ASSIGN(op, T) inline T& operator op##=(T& a, T b) { a = a op b; return a; }
EMU_ASSIGN(+, nv_bfloat16) EMU_ASSIGN(*, nv_bfloat16)
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }

// -- fibers ----------------------------------------------------------------------------------------------------------

namespace emu {

constexpr int kStack = 128 << 10, kMaxThreads = 1024, kMaxShared = 228 << 10;
alignas(1024) static char dynamic_shared[kMaxShared] __attribute__((section("emushared"), used));
extern "C" char __start_emushared[], __stop_emushared[];

static char message[512];
static int failed;
inline void fail(const char* text) {
  if (!failed) snprintf(message, sizeof message, "%s (block %u,%u,%u thread %u,%u,%u)", text, blockIdx.x, blockIdx.y,
                        blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  failed = 1;
}

using Run = void (*)(void** lanes, uint32_t mask);
struct Warp {
  uint32_t alive = 0, arrived = 0;
  uint64_t generation = 0;
  const char* what = nullptr;
  Run run = nullptr;
  void* lanes[32];
};
struct Fiber {
  void* sp;
  int state;  // 0 can run, 1 waits at a barrier of the block, 2 at an operation of its warp, 3 done
  uint64_t generation;
  uint3 index;
};

static Fiber fibers[kMaxThreads];
static Warp warps[kMaxThreads / 32];
static char* stacks;
static void* scheduler;
static int current, threads, alive, at_barrier;
static uint64_t barriers;
static void (*body)();

extern "C" void emu_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.type emu_switch,@function
.hidden emu_switch
.globl emu_switch
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
#else
#error "the emulator's fibers are written for x86-64"
#endif

inline void yield() { emu_switch(&fibers[current].sp, scheduler); }
inline void trap(const char* text) {  // the launch ends: no thread runs on
  fail(text);
  for (;;) yield();
}
}  // namespace emu
// GCC calls these for vectors at places that are no multiple of their alignment, and for places beyond an array's end.
extern "C" inline __attribute__((used)) void __ubsan_handle_type_mismatch_v1(void*, void*) {
  emu::trap("a misaligned address");
}
extern "C" inline __attribute__((used)) void __ubsan_handle_out_of_bounds(void*, void*) {
  emu::trap("a place beyond an array's end");
}
namespace emu {

inline void release_barrier() {
  if (at_barrier && at_barrier == alive) { at_barrier = 0; ++barriers; }
}
inline void release_warp(Warp& w) {
  if (w.arrived && w.arrived == w.alive) {
    if (w.run) w.run(w.lanes, w.arrived);
    w.arrived = 0;
    ++w.generation;
  }
}
inline void entry() {
  body();
  Fiber& f = fibers[current];
  f.state = 3;
  --alive;
  Warp& w = warps[current / 32];
  w.alive &= ~(1u << (current & 31));
  release_warp(w);
  release_barrier();
  yield();
  abort();
}

/// Every lane of a warp comes here with its operands; the last to arrive computes for all of them.
inline void collective(const char* what, void* operands, Run run) {
  Warp& w = warps[current / 32];
  if (w.arrived && w.what != what && strcmp(w.what, what)) fail("lanes of one warp at different operations");
  w.what = what;
  w.run = run;
  w.lanes[current & 31] = operands;
  w.arrived |= 1u << (current & 31);
  Fiber& f = fibers[current];
  f.generation = w.generation;
  if (w.arrived == w.alive) return release_warp(w);
  f.state = 2;
  do yield(); while (w.generation == f.generation && !failed);
  f.state = 0;
}

inline bool can_run(const Fiber& f, int t) {
  if (f.state == 3) return false;
  if (f.state == 1) return f.generation != barriers;
  if (f.state == 2) return f.generation != warps[t / 32].generation;
  return true;
}

static int order[kMaxThreads];
inline void make_order(int mode, uint64_t& seed) {
  for (int i = 0; i < threads; ++i) order[i] = mode == 1 ? threads - 1 - i : i;
  if (mode < 2) return;
  for (int i = threads - 1; i > 0; --i) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(order[i], order[(seed >> 33) % (i + 1)]);
  }
}

/// Run one block; `mode`: 0 threads in order, 1 in reverse, 2 and above shuffled anew after every round.
inline void run_block(void (*fn)(), int mode, uint64_t& seed) {
  memset(__start_emushared, 0xff, __stop_emushared - __start_emushared);
  body = fn;
  threads = blockDim.x * blockDim.y * blockDim.z;
  alive = threads;
  at_barrier = 0;
  for (auto& w : warps) w = Warp{};
  for (int t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    f.state = 0;
    f.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    warps[t / 32].alive |= 1u << (t & 31);
    void** sp = reinterpret_cast<void**>(stacks + size_t(t + 1) * kStack) - 1;
    *--sp = reinterpret_cast<void*>(&entry);
    sp -= 6;
    f.sp = sp;
  }
  while (alive && !failed) {
    make_order(mode, seed);
    bool progress = false;
    for (int i = 0; i < threads && !failed; ++i) {
      int t = order[i];
      if (!can_run(fibers[t], t)) continue;
      progress = true;
      current = t;
      threadIdx = fibers[t].index;
      emu_switch(&scheduler, fibers[t].sp);
    }
    if (!progress) fail("deadlock: threads wait at different barriers");
  }
}

inline uint32_t shared_address(const void* p) {
  std::ptrdiff_t at = static_cast<const char*>(p) - __start_emushared;
  if (at < 0 || static_cast<const char*>(p) >= __stop_emushared) fail("not an address in shared memory");
  return uint32_t(at);
}
inline char* shared(uint64_t address, int bytes) {
  if (address % bytes) fail("misaligned access to shared memory");
  return __start_emushared + uint32_t(address);
}

}  // namespace emu

inline void __syncthreads() {
  emu::Fiber& f = emu::fibers[emu::current];
  f.generation = emu::barriers;
  ++emu::at_barrier;
  emu::release_barrier();
  if (f.generation != emu::barriers) return;
  f.state = 1;
  do emu::yield(); while (f.generation == emu::barriers && !emu::failed);
  f.state = 0;
}
inline void __syncwarp(unsigned = ~0u) { emu::collective("__syncwarp", nullptr, nullptr); }
inline unsigned __activemask() { return emu::warps[emu::current / 32].alive; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline unsigned __cvta_generic_to_shared(const void* p) { return emu::shared_address(p); }

template <class T> struct EmuShuffle { T value; int source; T result; };
template <class T> inline T emu_shuffle(const char* what, T value, int source) {
  EmuShuffle<T> mine{value, source, value};
  emu::collective(what, &mine, [](void** lanes, uint32_t mask) {
    for (int i = 0; i < 32; ++i) {
      if (!(mask >> i & 1)) continue;
      auto* lane = static_cast<EmuShuffle<T>*>(lanes[i]);
      if (mask >> lane->source & 1) lane->result = static_cast<EmuShuffle<T>*>(lanes[lane->source])->value;
    }
  });
  return mine.result;
}
inline int emu_lane() { return emu::current & 31; }
template <class T> inline T __shfl_sync(unsigned, T v, int source, int width = 32) {
  return emu_shuffle("shfl", v, (emu_lane() & ~(width - 1)) + (source & (width - 1)));
}
template <class T> inline T __shfl_down_sync(unsigned, T v, unsigned delta, int width = 32) {
  int in = (emu_lane() & (width - 1)) + int(delta);
  return emu_shuffle("shfl_down", v, in < width ? emu_lane() + int(delta) : emu_lane());
}
template <class T> inline T __shfl_up_sync(unsigned, T v, unsigned delta, int width = 32) {
  int in = (emu_lane() & (width - 1)) - int(delta);
  return emu_shuffle("shfl_up", v, in >= 0 ? emu_lane() - int(delta) : emu_lane());
}
template <class T> inline T __shfl_xor_sync(unsigned, T v, int mask, int = 32) {
  return emu_shuffle("shfl_xor", v, emu_lane() ^ mask);
}

template <class T> inline T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }
template <class T> inline T atomicMax(T* p, T v) { T old = *p; *p = old < v ? v : old; return old; }
template <class T> inline T atomicMin(T* p, T v) { T old = *p; *p = v < old ? v : old; return old; }
template <class T> inline T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }
template <class T> inline T atomicCAS(T* p, T c, T v) { T old = *p; if (old == c) *p = v; return old; }
