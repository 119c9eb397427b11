/* Peaks of this machine, for the roofs of roofline plots: `peaks KIND THREADS BYTES` prints operations or bytes a
 * second, the best of many short repeats. KIND: fp32, bf16, int8, amx-bf16, amx-int8, read, triad.
 * Built by analysis/peaks.py with -O3 -march=native; kinds the processor lacks are compiled out and print 0. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
#ifdef __linux__
#include <signal.h>
#include <sys/prctl.h>
#endif
#ifdef __x86_64__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
typedef float vec __attribute__((vector_size(WIDTH)));

#define ACC 12 /* independent chains: 12 > latency 4 * ports 2, and 12 + 2 <= 16 registers; named, so none is spilled */
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#ifdef __AVX512F__
#define KEEP(x) __asm__ volatile("" : "+v"(x))
#else
#define KEEP(x) __asm__ volatile("" : "+x"(x))
#endif

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double fp32(long n) { /* returns operations done */
  vec m, c;
  for (int j = 0; j < WIDTH / 4; ++j) m[j] = 0.999f, c[j] = 0.001f;
  KEEP(m);
  KEEP(c);
#define F(i) vec a##i = c;
  EACH(F)
#undef F
#define F(i) a##i = a##i * m + c; KEEP(a##i);
  for (long k = 0; k < n; ++k) { EACH(F) }
#undef F
  return 2.0 * n * ACC * (WIDTH / 4);
}

static double bf16(long n) {
#ifdef __AVX512BF16__
  __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80), y = (__m512bh)_mm512_set1_epi16(0x3880);
#define F(i) __m512 a##i = _mm512_setzero_ps();
  EACH(F)
#undef F
#define F(i) a##i = _mm512_dpbf16_ps(a##i, x, y); KEEP(a##i);
  for (long k = 0; k < n; ++k) { EACH(F) }
#undef F
  return 2.0 * n * ACC * 32;
#else
  return 0.0 * n;
#endif
}

static double int8(long n) {
#if defined(__AVX512VNNI__)
  __m512i x = _mm512_set1_epi8(1), y = _mm512_set1_epi8(1);
#define F(i) __m512i a##i = _mm512_setzero_si512();
  EACH(F)
#undef F
#define F(i) a##i = _mm512_dpbusd_epi32(a##i, x, y); KEEP(a##i);
  for (long k = 0; k < n; ++k) { EACH(F) }
#undef F
  return 2.0 * n * ACC * 64;
#else
  return 0.0 * n;
#endif
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
static int amx_ready(void) {
  static const int ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
  if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA)) return 0;
  struct { unsigned char palette, start, zero[14]; unsigned short colsb[16]; unsigned char rows[16]; } cfg;
  memset(&cfg, 0, sizeof cfg);
  cfg.palette = 1;
  for (int i = 0; i < 8; ++i) cfg.colsb[i] = 64, cfg.rows[i] = 16;
  __asm__ volatile("" : : "r"(&cfg) : "memory"); /* GCC's _tile_loadconfig says that it reads 8 bytes of 64 */
  _tile_loadconfig(&cfg);
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
  return 1;
}
static double amx(long n, int whole) {
  if (!amx_ready()) return 0;
  for (long k = 0; k < n; ++k) {
    if (whole) {
      _tile_dpbssd(0, 4, 6); _tile_dpbssd(1, 4, 7); _tile_dpbssd(2, 5, 6); _tile_dpbssd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
  }
  return 2.0 * n * 4 * 16 * 16 * (whole ? 64 : 32);
}
#else
static double amx(long n, int whole) { return 0.0 * n * whole; }
#endif

static double read_all(const float *p, long count) { /* bytes read */
  const vec *v = (const vec *)p;
  long n = count * 4 / WIDTH;
#define F(i) vec a##i; memset(&a##i, 0, sizeof a##i);
  EACH(F)
#undef F
#define F(j) a##j += v[i + j];
  for (long i = 0; i + ACC <= n; i += ACC) { EACH(F) }
#undef F
#define F(i) KEEP(a##i);
  EACH(F)
#undef F
  return (double)(n / ACC * ACC) * WIDTH;
}

static double triad(float *p, long count) { /* STREAM's count: two reads and a write, 12 bytes an element */
  long n = count / 3;
  float *restrict a = p;
  const float *restrict b = p + n, *restrict c = p + 2 * n;
  for (long i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
  __asm__ volatile("" : : "r"(a) : "memory");
  return 12.0 * n;
}

static const char *kind;
static long bytes;
static int threads;
static pthread_barrier_t gate;
static double work[256], begin[256], end[256];
static double best;

static double once(float *buffer, long n) {
  long count = bytes / threads / 4;
  double done = 0;
  if (!strcmp(kind, "read")) {
    for (long i = 0; i < n; ++i) done += read_all(buffer, count);
    return done;
  }
  if (!strcmp(kind, "triad")) {
    for (long i = 0; i < n; ++i) done += triad(buffer, count);
    return done;
  }
  if (!strcmp(kind, "fp32")) return fp32(n);
  if (!strcmp(kind, "bf16")) return bf16(n);
  if (!strcmp(kind, "int8")) return int8(n);
  if (!strcmp(kind, "amx-bf16")) return amx(n, 0);
  if (!strcmp(kind, "amx-int8")) return amx(n, 1);
  return 0;
}

static void *thread(void *arg) {
  long id = (long)arg;
  size_t size = (size_t)(bytes / threads + 4096) / 64 * 64;
  float *buffer = bytes ? aligned_alloc(64, size) : 0;
  if (buffer) memset(buffer, 0, size);
  long n = 1;
  double start = now(), took = 0; /* calibrate to 10 ms */
  while (took < 0.01) {
    start = now();
    if (once(buffer, n) <= 0) break;
    took = now() - start;
    if (took < 0.01) n = took > 1e-6 ? (long)(n * 0.012 / took) + 1 : n * 16;
  }
  static long shared;
  if (id == 0) shared = n;
  pthread_barrier_wait(&gate);
  n = shared;
  for (int r = 0; r < 40; ++r) {
    pthread_barrier_wait(&gate);
    begin[id] = now();
    work[id] = once(buffer, n);
    end[id] = now();
    pthread_barrier_wait(&gate);
    if (id == 0) {
      double first = begin[0], last = end[0], sum = 0;
      for (int t = 0; t < threads; ++t) {
        if (begin[t] < first) first = begin[t];
        if (end[t] > last) last = end[t];
        sum += work[t];
      }
      if (sum / (last - first) > best) best = sum / (last - first);
    }
  }
  free(buffer);
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody would read the result */
#endif
  kind = argv[1];
  threads = atoi(argv[2]);
  bytes = atol(argv[3]);
  if (threads < 1 || threads > 256) return 2;
  pthread_barrier_init(&gate, 0, threads);
  pthread_t ids[256];
  for (long t = 1; t < threads; ++t) pthread_create(&ids[t], 0, thread, (void *)t);
  thread(0);
  for (int t = 1; t < threads; ++t) pthread_join(ids[t], 0);
  printf("%.6g\n", best);
  return 0;
}
