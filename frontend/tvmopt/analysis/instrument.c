/* The native instrument of `tvmopt profile`: two clock readings around every call of TVM's virtual machine.
 * In Python the same costs microseconds a call and pushes the kernels' data out of the caches between them.
 * Functions follow tvm-ffi's C calling convention; built and loaded by analysis/recorder.py. */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

typedef struct { /* TVMFFIAny of tvm/ffi/c_api.h */
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t v_int64;
    void *v_ptr;
  };
} any;

enum { INT = 1, CAPACITY = 1 << 16, DEPTH = 64 };
static int64_t begin_at[CAPACITY], end_at[CAPACITY];
static int64_t open_at[DEPTH]; /* a call may call back into the machine, as that of a loop does: a stack */
static int64_t inner[DEPTH];   /* what the calls inside have taken, which is no time of the call around them */
static int32_t count, depth;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int answer(any *result, int64_t value) {
  result->type_index = INT;
  result->padding = 0;
  result->v_int64 = value;
  return 0;
}

/* (function, symbol, before, result, arguments...) -> 0: go on */
int __tvm_ffi_tvmopt_instrument(void *self, const any *args, int32_t n, any *result) {
  (void)self;
  if (n >= 3 && args[2].v_int64) {
    if (depth < DEPTH) {
      inner[depth] = 0;
      open_at[depth] = now();
    }
    ++depth;
  } else if (depth > 0) {
    int64_t end = now();
    --depth;
    if (depth < DEPTH && count < CAPACITY) {
      begin_at[count] = open_at[depth] + inner[depth];
      end_at[count] = end;
    }
    if (depth && depth < DEPTH) inner[depth - 1] += end - open_at[depth];
    ++count;
  }
  return answer(result, 0);
}

/* () -> how many calls were seen since the last reset */
int __tvm_ffi_tvmopt_count(void *self, const any *args, int32_t n, any *result) {
  (void)self, (void)args, (void)n;
  return answer(result, count);
}

int __tvm_ffi_tvmopt_reset(void *self, const any *args, int32_t n, any *result) {
  (void)self, (void)args, (void)n;
  count = depth = 0;
  return answer(result, 0);
}

/* (address of int64[2 * count]) -> calls copied: all beginnings, then all ends, in nanoseconds */
int __tvm_ffi_tvmopt_take(void *self, const any *args, int32_t n, any *result) {
  (void)self;
  int32_t kept = count < CAPACITY ? count : CAPACITY;
  if (n < 1) return answer(result, 0);
  int64_t *out = (int64_t *)(intptr_t)args[0].v_int64;
  for (int32_t i = 0; i < kept; ++i) out[i] = begin_at[i], out[kept + i] = end_at[i];
  return answer(result, kept);
}
