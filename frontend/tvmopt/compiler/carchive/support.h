/* What the program of a C archive stands on, in place of TVM's virtual machine and runtime: it is compiled with the tables
 * that `source.py` writes. Nothing here allocates memory, and nothing is kept between two calls.
 *
 * A kernel is a function of TVM's packed calling convention. It reads of each argument where its data is; sizes are part
 * of its code. What it calls back stands under "for kernels".
 */
#include <stdint.h>
#include <string.h>

/* TVM's DLTensor, TVMFFIAny, and what its parallel loops are called with. */
typedef struct {
  void *data;
  int32_t device, number, axes;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} Tensor;
typedef struct {
  int32_t type;
  uint32_t padding;
  void *value;
} Any;
enum { IS_TENSOR = 7, CPU = 1 };
typedef int (*Kernel)(void *self, const Any *arguments, int32_t count, Any *result);
typedef struct {
  void *slots;
  int32_t tasks;
} Group;
typedef int (*Task)(int task, Group *group, void *data);

/* The tables: a call is a kernel and its arguments, an argument a place: a pointer of the caller's, and bytes from it. */
typedef struct {
  uint16_t base;
  uint64_t offset;
} Place;
typedef struct {
  Kernel kernel;
  uint32_t first, count;
} Call;
typedef struct {
  Place from, to;
  uint64_t bytes;
} Copy;

#if defined(__x86_64__)
typedef struct { /* a bit of what the CPUID instruction answers */
  uint32_t leaf, subleaf, word, bit;
} Feature;
#else
typedef struct { /* bits of an entry of the auxiliary vector, which the kernel gives each process */
  uint64_t entry, bits;
} Feature;
#endif

typedef struct {
  const Call *calls;
  uint32_t call_count;
  const Place *places;
  const Copy *copies;
  uint32_t copy_count;
  const Feature *features;
  uint32_t feature_count;
  uint64_t registers;         /* that the system must save when it changes threads: bits of XCR0 */
  const uint16_t *alignments; /* of each pointer of the caller's: workspace, weights, inputs, outputs; 0: not used */
  uint32_t base_count;
  uint64_t scratch_at; /* where in the workspace the kernels' own memory begins */
} Model;

enum { OK, MISSING, MISALIGNED, THREADS, PROCESSOR, REFUSED };

static __thread char raised[256]; /* what the last kernel of this thread that refused its data said */

static const char *message(int code) {
  switch (code) {
    case OK: return "no error";
    case MISSING: return "a pointer is null";
    case MISALIGNED: return "workspace, weights and outputs begin at multiples of 64 bytes, inputs at multiples of an element's";
    case THREADS: return "the number of threads is not from 1 to 1024";
    case PROCESSOR: return "this processor lacks instructions that the model was compiled for";
    case REFUSED: return raised[0] ? raised : "a kernel failed";
  }
  return "no such code";
}

/* ---- for kernels --------------------------------------------------------------------------------------------- */

/* Memory that a kernel asks for lies behind the tensors in the workspace, a part for each thread. */
typedef struct {
  unsigned char *begin;
  uint64_t used;
} Scratch;
static __thread Scratch scratch;

static void *allocate(int device, int number, uint64_t bytes, int code, int bits) {
  uint64_t end = scratch.used + (bytes + 63) / 64 * 64;
  if (end > SCRATCH) return NULL; /* the size was read off the kernels: this does not happen */
  void *found = scratch.begin + scratch.used;
  scratch.used = end;
  return found;
}

static int release(int device, int number, void *memory) { /* the last one that was allocated */
  scratch.used = (uint64_t)((unsigned char *)memory - scratch.begin);
  return 0;
}

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t used = 0;
  for (int i = 0; i < count && used < sizeof raised - 1; i++) {
    size_t length = strlen(parts[i]), room = sizeof raised - 1 - used;
    memcpy(raised + used, parts[i], length < room ? length : room);
    used += length < room ? length : room;
  }
  raised[used] = 0;
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) { TVMFFIErrorSetRaisedFromCStrParts(kind, &text, 1); }

void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = release;

#if PARALLEL
/* pool.c, and what it hands errors on with: here they are texts, in the memory of the thread that met them. */
extern int tvmopt_pool_launch(Task task, void *data, int most);
extern int tvmopt_pool_barrier(int task, Group *group);
extern void tvmopt_pool_use(int threads);
void TVMFFIErrorMoveFromRaised(void **error) { *error = raised; }
void TVMFFIErrorSetRaised(void *error) { memmove(raised, error, sizeof raised); }
int TVMFFIObjectDecRef(void *object) { return 0; }

typedef struct {
  Task task;
  void *data;
  unsigned char *begin;
} Job;

/* Task 0 is the caller's, with what it has asked for so far. A caller also does tasks that no worker has begun, and goes on
 * with its own memory afterwards. */
static int with_scratch(int task, Group *group, void *data) {
  Job *job = data;
  Scratch before = scratch;
  if (task) scratch = (Scratch){job->begin + (uint64_t)task * SCRATCH, 0};
  int failed = job->task(task, group, job->data);
  scratch = before;
  return failed;
}

static int launch(Task task, void *data, int most) {
  Job job = {task, data, scratch.begin};
  return tvmopt_pool_launch(with_scratch, &job, most);
}

int (*__TVMBackendParallelLaunch)(Task, void *, int) = launch;
int (*__TVMBackendParallelBarrier)(int, Group *) = tvmopt_pool_barrier;
#endif

/* ---- the processor -------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <cpuid.h>

static int has(Feature f) {
  uint32_t words[4] = {0}, most[4] = {0};
  if (f.leaf == 7 && (!__get_cpuid_count(7, 0, most, most + 1, most + 2, most + 3) || f.subleaf > most[0])) return 0;
  return __get_cpuid_count(f.leaf, f.subleaf, words, words + 1, words + 2, words + 3) && words[f.word] >> f.bit & 1;
}

static uint64_t saved(void) {
  uint32_t low, high;
  if (!has((Feature){1, 0, 2, 27})) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static int has(Feature f) { return (getauxval(f.entry) & f.bits) == f.bits; }
static uint64_t saved(void) { return 0; }
#endif

#if TILES
#include <sys/syscall.h>
#include <unistd.h>
/* Linux gives AMX's tiles to a process that asks for them. */
static int granted(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#else
static int granted(void) { return 1; }
#endif

static int fits(const Model *model) {
  static _Atomic int known; /* 1: the processor runs the code, 2: it does not */
  if (!known) {
    int fit = (saved() & model->registers) == model->registers;
    for (uint32_t i = 0; i < model->feature_count; i++) fit &= has(model->features[i]);
    known = fit && granted() ? 1 : 2;
  }
  return known == 1;
}

/* ---- a run ---------------------------------------------------------------------------------------------------- */

static int run(const Model *model, unsigned char *const *bases, int threads) {
  for (uint32_t i = 0; i < model->base_count; i++) {
    if (!model->alignments[i]) continue;
    if (!bases[i]) return MISSING;
    if ((uintptr_t)bases[i] % model->alignments[i]) return MISALIGNED;
  }
  if (threads < 1 || threads > 1024) return THREADS;
  if (!fits(model)) return PROCESSOR;
#if PARALLEL
  tvmopt_pool_use(threads);
#endif
  scratch = (Scratch){bases[0] + model->scratch_at, 0};
  raised[0] = 0;
  for (const Call *call = model->calls; call < model->calls + model->call_count; call++) {
    Tensor tensors[MOST_ARGUMENTS] = {{0}};
    Any arguments[MOST_ARGUMENTS], result = {0};
    for (uint32_t i = 0; i < call->count; i++) {
      const Place *place = &model->places[call->first + i];
      tensors[i].data = bases[place->base] + place->offset;
      tensors[i].device = CPU;
      arguments[i] = (Any){IS_TENSOR, 0, &tensors[i]};
    }
    if (call->kernel(NULL, arguments, (int32_t)call->count, &result)) return REFUSED;
  }
  for (const Copy *copy = model->copies; copy < model->copies + model->copy_count; copy++) {
    memcpy(bases[copy->to.base] + copy->to.offset, bases[copy->from.base] + copy->from.offset, copy->bytes);
  }
  return OK;
}
