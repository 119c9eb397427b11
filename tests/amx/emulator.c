/* Runs AMX machine code on a processor without AMX: each tile instruction traps (SIGILL), is decoded from the very
 * bytes that a Sapphire Rapids would run, and is computed here. So what is tested is what is shipped.
 *
 * Semantics: Intel SDM vol. 2 (LDTILECFG, STTILECFG, TILELOADD, TILELOADDT1, TILESTORED, TILEZERO, TILERELEASE,
 * TDPBF16PS, TDPBUSD) and vol. 1 ch. 18. What the processor answers by #UD or #GP ends the process with exit code 97 and a line
 * on stderr that starts with "AMX:". Memory is read and written by plain accesses, so that a tile beyond a guarded
 * page faults as it would there.
 *
 * gcc -O2 -shared -fPIC -mavx512f -mfma emulator.c -o emulator.so; see __init__.py. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { LDCFG, STCFG, LOAD, STORE, ZERO, RELEASE, DP, DPB, KINDS };

typedef struct {
  uint8_t config[64]; /* as LDTILECFG read it; config[0]: palette, 0 is "not configured" */
  uint8_t data[8][16][64];
} Tiles;

/* a pointer only: a library loaded late gets little static TLS */
static __thread Tiles *mine __attribute__((tls_model("initial-exec")));
static long counts[KINDS], configured;

static void fail(const char *what, const uint8_t *at) {
  char line[200];
  int n = snprintf(line, sizeof line, "AMX: %s (at %p: %02x %02x %02x %02x %02x %02x)\n", what, (void *)at, at[0], at[1],
                   at[2], at[3], at[4], at[5]);
  if (write(2, line, (size_t)n) < 0) _exit(98);
  _exit(97);
}

static int rows(const Tiles *t, int tile) { return t->config[48 + tile]; }
static int colsb(const Tiles *t, int tile) { return t->config[16 + 2 * tile] | t->config[17 + 2 * tile] << 8; }

static void use(const Tiles *t, int tile, const uint8_t *at) {
  if (!t->config[0]) fail("a tile is used before LDTILECFG or after TILERELEASE", at);
  if (tile > 7) fail("palette 1 has tiles 0 to 7", at);
  if (!rows(t, tile)) fail("the tile is not configured", at);
}

static void release(Tiles *t) {
  if (t->config[0]) __atomic_sub_fetch(&configured, 1, __ATOMIC_RELAXED);
  memset(t, 0, sizeof *t);
}

static void load_config(Tiles *t, const uint8_t *from, const uint8_t *at) {
  uint8_t c[64];
  memcpy(c, from, 64);
  release(t); /* also: tile data is zeroed */
  if (c[0] == 0) return;
  if (c[0] != 1) fail("LDTILECFG: the palette is neither 0 nor 1", at);
  if (c[1]) fail("LDTILECFG: start_row", at);
  for (int i = 2; i < 16; ++i)
    if (c[i]) fail("LDTILECFG: a reserved byte is not zero", at);
  for (int i = 0; i < 16; ++i) {
    int wide = c[16 + 2 * i] | c[17 + 2 * i] << 8, high = c[48 + i];
    if (i > 7 && (wide || high)) fail("LDTILECFG: palette 1 has 8 tiles", at);
    if (wide > 64 || high > 16) fail("LDTILECFG: a tile has at most 16 rows of 64 bytes", at);
    if (!wide != !high) fail("LDTILECFG: rows without columns, or columns without rows", at);
  }
  memcpy(t->config, c, 64);
  __atomic_add_fetch(&configured, 1, __ATOMIC_RELAXED);
}

static void load(Tiles *t, int tile, const uint8_t *base, int64_t stride) {
  memset(t->data[tile], 0, sizeof t->data[tile]);
  for (int r = 0; r < rows(t, tile); ++r) memcpy(t->data[tile][r], base + r * stride, (size_t)colsb(t, tile));
}

static void store(const Tiles *t, int tile, uint8_t *base, int64_t stride) {
  for (int r = 0; r < rows(t, tile); ++r) memcpy(base + r * stride, t->data[tile][r], (size_t)colsb(t, tile));
}

/* What both products ask of their three tiles. */
static void fit(const Tiles *t, int c, int a, int b, const uint8_t *at) {
  if (c == a || c == b || a == b) fail("a product: the three tiles must differ", at);
  if (colsb(t, a) % 4 || colsb(t, c) % 4) fail("a product: columns are no whole words", at);
  if (colsb(t, a) / 4 != rows(t, b)) fail("a product: the words of A are not the rows of B", at);
  if (rows(t, a) != rows(t, c)) fail("a product: the rows of A are not the rows of C", at);
  if (colsb(t, b) != colsb(t, c)) fail("a product: the columns of B are not the columns of C", at);
}

/* C += A * B of four unsigned by four signed bytes a word, in 32 bits that wrap. */
static void dot_bytes(Tiles *t, int c, int a, int b) {
  for (int m = 0; m < rows(t, c); ++m)
    for (int k = 0; k < colsb(t, a) / 4; ++k)
      for (int n = 0; n < colsb(t, c) / 4; ++n) {
        uint32_t sum = ((uint32_t *)t->data[c][m])[n];
        for (int i = 0; i < 4; ++i)
          sum += (uint32_t)(t->data[a][m][4 * k + i] * (int8_t)t->data[b][k][4 * n + i]);
        ((uint32_t *)t->data[c][m])[n] = sum;
      }
  for (int m = 0; m < rows(t, c); ++m) memset(t->data[c][m] + colsb(t, c), 0, (size_t)(64 - colsb(t, c)));
}

/* C += A * B. Even and odd elements of the pairs have sums of their own, starting at zero, each by fused
 * multiply-adds that round to nearest even; then even + odd, then C + that. Denormals are zero on both sides. */
static void dot(Tiles *t, int c, int a, int b) {
  unsigned control = _mm_getcsr();
  _mm_setcsr(0x9fc0); /* flush to zero, denormals are zero, nearest even, nothing traps */
  __m512i high = _mm512_set1_epi32((int)0xffff0000);
  __mmask16 columns = (__mmask16)((1u << (colsb(t, c) / 4)) - 1);
  for (int m = 0; m < rows(t, c); ++m) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < colsb(t, a) / 4; ++k) {
      __m512i x = _mm512_set1_epi32(((int *)t->data[a][m])[k]), w = _mm512_loadu_si512(t->data[b][k]);
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                             _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                            _mm512_castsi512_ps(_mm512_and_si512(w, high)), odd);
    }
    __m512 sum = _mm512_add_ps(_mm512_loadu_ps(t->data[c][m]), _mm512_add_ps(even, odd));
    _mm512_storeu_ps(t->data[c][m], _mm512_maskz_mov_ps(columns, sum));
  }
  _mm_setcsr(control);
}

/* The memory operand: its address without the index, and the index (the stride of a tile). Returns its length. */
static int operand(const greg_t *g, const uint8_t *p, int rex_x, int rex_b, uint8_t **address, int64_t *stride,
                   int need_sib) {
  static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  int mod = p[0] >> 6, rm = p[0] & 7, length = 1;
  int64_t at = 0;
  *stride = 0;
  if (rm == 4) {
    int base = p[1] & 7, index = (p[1] >> 3 & 7) | rex_x << 3;
    length = 2;
    if (index != 4) *stride = (int64_t)((uint64_t)g[order[index]] << (p[1] >> 6));
    if (base == 5 && mod == 0) {
      int32_t d;
      memcpy(&d, p + 2, 4);
      at = d, length = 6;
    } else {
      at = g[order[base | rex_b << 3]];
    }
  } else if (need_sib) {
    fail("a tile's address needs a SIB byte", p - 4);
  } else if (mod == 0 && rm == 5) { /* relative to the next instruction */
    int32_t d;
    memcpy(&d, p + 1, 4);
    *address = (uint8_t *)(p + 5 + d);
    return 5;
  } else {
    at = g[order[rm | rex_b << 3]];
  }
  if (mod == 1) at += (int8_t)p[length], length += 1;
  if (mod == 2) {
    int32_t d;
    memcpy(&d, p + length, 4);
    at += d, length += 4;
  }
  *address = (uint8_t *)at;
  return length;
}

/* Executes the instruction at `p`; its length, or 0 if it is not AMX. */
static int execute(greg_t *g, const uint8_t *p) {
  if (p[0] != 0xc4 || (p[1] & 31) != 2 || (p[2] & 0x84)) return 0; /* VEX, map 0F38, W = 0, L = 0 */
  int pp = p[2] & 3, rex_x = !(p[1] & 0x40), rex_b = !(p[1] & 0x20), third = ~p[2] >> 3 & 15;
  int op = p[3], mod = p[4] >> 6, reg = p[4] >> 3 & 7, rm = p[4] & 7, kind;
  if (op == 0x49)
    kind = pp == 3 ? ZERO : pp == 1 ? STCFG : pp == 0 ? (mod == 3 ? RELEASE : LDCFG) : KINDS;
  else if (op == 0x4b)
    kind = pp == 2 ? STORE : pp ? LOAD : KINDS;
  else
    kind = mod != 3 ? KINDS : op == 0x5c && pp == 2 ? DP : op == 0x5e && pp == 1 ? DPB : KINDS;
  if (kind == KINDS) return 0;
  if (!mine) {
    mine = mmap(0, sizeof *mine, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mine == MAP_FAILED) fail("no memory", p);
  }
  __atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED);
  uint8_t *address = 0;
  int64_t stride = 0;
  int length = 5;
  if (kind == LDCFG || kind == STCFG || kind == LOAD || kind == STORE)
    length = 4 + operand(g, p + 4, rex_x, rex_b, &address, &stride, kind == LOAD || kind == STORE);
  if (kind == LOAD || kind == STORE || kind == ZERO || kind == DP || kind == DPB) use(mine, reg, p);
  switch (kind) {
    case LDCFG: load_config(mine, address, p); break;
    case STCFG: memcpy(address, mine->config, 64); break;
    case LOAD: load(mine, reg, address, stride); break;
    case STORE: store(mine, reg, address, stride); break;
    case ZERO: memset(mine->data[reg], 0, sizeof mine->data[reg]); break;
    case RELEASE: release(mine); break;
    default:
      use(mine, rm, p);
      use(mine, third, p);
      fit(mine, reg, rm, third, p);
      kind == DP ? dot(mine, reg, rm, third) : dot_bytes(mine, reg, rm, third);
  }
  return length;
}

static void trap(int signal, siginfo_t *info, void *context) {
  greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
  (void)signal, (void)info;
  int length = execute(g, (const uint8_t *)g[REG_RIP]);
  if (length)
    g[REG_RIP] += length;
  else
    fail("an instruction that this processor lacks and that is not AMX's", (const uint8_t *)g[REG_RIP]);
}

int amx_install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = trap;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, 0);
}

/* Instructions executed so far, by kind, in the order of the enum; then threads whose tiles are still configured. */
void amx_counts(long *out) {
  memcpy(out, counts, sizeof counts);
  out[KINDS] = configured;
}
