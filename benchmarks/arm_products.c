/* What Arm's 2x2 products of bytes and bfloat16 would save beside its dot products: counted, since no Arm clock is here.
 *
 *     aarch64-linux-gnu-gcc -O2 -static -march=armv8.6-a+i8mm+bf16 arm_products.c -o arm_products
 *     qemu-aarch64-static -cpu max ./arm_products             # right for random numbers and extremes: exit code 0
 *     aarch64-linux-gnu-objdump -d arm_products --disassemble=bytes_dot      # and bytes_mmla, pairs_dot, pairs_mmla
 *
 * Four inner loops of a tile of 8 rows and 8 columns, the size whose sums both forms keep in 16 registers. Rows lie as
 * tvmopt's kernels find them, one after the other: a 2x2 product wants 8 bytes of each of two rows in a register, which two
 * loads and two zips make for two steps. Weights are packed as each form wants them, at compile time.
 *
 * bytes_dot    usdot   4 terms a lane:  8 rows x 2 vectors of columns; rows by lane
 * bytes_mmla   usmmla  8 terms a lane:  4 pairs of rows x 4 pairs of columns
 * pairs_dot    bfdot   2 terms a lane
 * pairs_mmla   bfmmla  4 terms a lane
 */
#include <arm_neon.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 8, N = 8, K = 64 };

#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)
#define LOOP __attribute__((noipa)) void

/* Rows lane by lane: `dot` takes a vector of weights and one lane of a row. b: words of each column, step by step. */
#define DOT(name, type, weight, sum, load, load_row, dot, terms)                                 \
  LOOP name(const type *a, const weight *b, sum *c, long k) {                                    \
    sum##x4 s[M][2] = {0};                                                                       \
    for (long i = 0; i < k; i += 4 * terms, b += 4 * N * terms) {                                \
      EACH(r, M) {                                                                               \
        __auto_type x = load_row(a + r * k + i);                                                 \
        EACH(v, 2) {                                                                             \
          s[r][v] = dot(s[r][v], load(b + 4 * terms * v), x, 0);                                 \
          s[r][v] = dot(s[r][v], load(b + terms * (N + 4 * v)), x, 1);                           \
          s[r][v] = dot(s[r][v], load(b + terms * (2 * N + 4 * v)), x, 2);                       \
          s[r][v] = dot(s[r][v], load(b + terms * (3 * N + 4 * v)), x, 3);                       \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
    EACH(r, M) EACH(v, 2) memcpy(c + r * N + 4 * v, &s[r][v], 16);                               \
  }

/* Two rows by two columns: `mmla` of eight bytes of each. b: eight bytes of each column, step by step. */
#define MMLA(name, type, weight, sum, load, load_row, zip, mmla, terms)                          \
  LOOP name(const type *a, const weight *b, sum *c, long k) {                                    \
    sum##x4 s[M / 2][N / 2] = {0};                                                               \
    for (long i = 0; i < k; i += 2 * terms, b += 2 * N * terms) {                                \
      EACH(r, M / 2) {                                                                           \
        __auto_type x = load_row(a + 2 * r * k + i);                                             \
        __auto_type y = load_row(a + (2 * r + 1) * k + i);                                       \
        __auto_type first = zip(1, x, y);                                                        \
        __auto_type second = zip(2, x, y);                                                       \
        EACH(v, N / 2) {                                                                         \
          s[r][v] = mmla(s[r][v], first, load(b + 2 * terms * v));                               \
          s[r][v] = mmla(s[r][v], second, load(b + terms * (N + 2 * v)));                        \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
    EACH(r, M / 2) EACH(v, N / 2) {                                                              \
      memcpy(c + 2 * r * N + 2 * v, &s[r][v], 8);                                                \
      memcpy(c + (2 * r + 1) * N + 2 * v, (char *)&s[r][v] + 8, 8);                              \
    }                                                                                            \
  }

typedef int32_t i32;
typedef int32x4_t i32x4;
typedef float f32;
typedef float32x4_t f32x4;
#define WORDS(n, x, y) vreinterpretq_u8_u64(vzip##n##q_u64(vreinterpretq_u64_u8(x), vreinterpretq_u64_u8(y)))
#define HALVES(n, x, y) (bfloat16x8_t) vzip##n##q_u64((uint64x2_t)(x), (uint64x2_t)(y))
#define SUDOT(s, w, x, lane) vsudotq_laneq_s32(s, w, x, lane)
#define USMMLA(s, x, w) vusmmlaq_s32(s, x, w)
#define BFDOT(s, w, x, lane) vbfdotq_laneq_f32(s, w, x, lane)
#define BFMMLA(s, x, w) vbfmmlaq_f32(s, x, w)

DOT(bytes_dot, uint8_t, int8_t, i32, vld1q_s8, vld1q_u8, SUDOT, 4)
MMLA(bytes_mmla, uint8_t, int8_t, i32, vld1q_s8, vld1q_u8, WORDS, USMMLA, 8)
DOT(pairs_dot, bfloat16_t, bfloat16_t, f32, vld1q_bf16, vld1q_bf16, BFDOT, 2)
MMLA(pairs_mmla, bfloat16_t, bfloat16_t, f32, vld1q_bf16, vld1q_bf16, HALVES, BFMMLA, 4)

static uint16_t half(int value) { /* a small whole number as the bits of a bfloat16, exactly */
  float exact = (float)value;
  uint32_t bits;
  memcpy(&bits, &exact, 4);
  return (uint16_t)(bits >> 16);
}

int main(void) {
  static uint8_t a[M * K];
  static int8_t w[K * N], b[K * N];
  static uint16_t ah[M * K], bh[K * N];
  int wrong = 0;
  for (int round = 0; round < 100; round++) {
    int extreme = round % 4 == 0;
    for (int i = 0; i < M * K; i++) a[i] = extreme ? 255 : rand() & 255, ah[i] = half(a[i] >> 2);
    for (int i = 0; i < K * N; i++) w[i] = extreme ? -128 : (rand() & 255) - 128;
    for (int form = 0; form < 4; form++) {
      static const int terms[] = {4, 8, 2, 4};
      int t = terms[form];
      for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++) {
          int at = k / t * N * t + n * t + k % t;
          b[at] = w[k * N + n], bh[at] = half(w[k * N + n] >> 2);
        }
      i32 c[M * N];
      f32 f[M * N];
      if (form == 0) bytes_dot(a, b, c, K);
      if (form == 1) bytes_mmla(a, b, c, K);
      if (form == 2) pairs_dot((bfloat16_t *)ah, (bfloat16_t *)bh, f, K);
      if (form == 3) pairs_mmla((bfloat16_t *)ah, (bfloat16_t *)bh, f, K);
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
          long expected = 0;
          for (int k = 0; k < K; k++)
            expected += form < 2 ? a[m * K + k] * w[k * N + n] : (a[m * K + k] >> 2) * (w[k * N + n] >> 2);
          wrong += form < 2 ? c[m * N + n] != expected : f[m * N + n] != (float)expected;
        }
    }
  }
  printf("%d wrong\n", wrong);
  return wrong != 0;
}
