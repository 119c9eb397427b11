/* Guard pages round every tensor: a kernel that reads or writes outside its buffers dies at that instruction.

   Preloaded. While armed, posix_memalign (TVM's tensors) and TVMBackendAllocWorkspace (buffers inside kernels) give
   memory between two inaccessible zones, filled with 0xff: NaN in every floating type, so that a value that nobody wrote
   shows. The buffer ends at the zone behind it (mode 1) or begins at the zone before it (mode 2). Freed memory becomes
   inaccessible and is not used again before guard_reset. Bytes that belong to no buffer but lie on its pages must stay
   0xff: they are looked at when the buffer is freed, and guard_violations counts those that were written. guard_tensors
   counts every posix_memalign, armed or not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define ZONE ((size_t)1 << 20)
#define ARENA ((size_t)1 << 36)
#define BLOCKS (1 << 16)

extern void __libc_free(void *);
extern void *__libc_memalign(size_t, size_t);

typedef struct {
  unsigned char *start, *body; /* the buffer; its accessible pages */
  size_t size, length;         /* bytes of the buffer; of the pages */
  int live;
} Block;

static Block blocks[BLOCKS];
static size_t count, used, living, violations, tensors;
static unsigned char *arena;
static int armed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void guard_arm(int mode) { armed = mode; }
size_t guard_violations(void) { return violations; }
size_t guard_tensors(void) { return tensors; }

void *guard_allocate(size_t size, size_t alignment, int mode) {
  unsigned char *start = NULL;
  pthread_mutex_lock(&lock);
  if (!arena) {
    arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) arena = NULL;
  }
  size_t length = (size + PAGE - 1) / PAGE * PAGE;
  if (!length) length = PAGE;
  if (arena && count < BLOCKS && size < ARENA / 4 && used + length + 2 * ZONE < ARENA) {
    unsigned char *body = arena + used + ZONE;
    if (!mprotect(body, length, PROT_READ | PROT_WRITE)) {
      used += ZONE + length;
      memset(body, 0xff, length);
      size_t room = (size + alignment - 1) / alignment * alignment;
      start = mode == 2 || room > length ? body : body + length - room;
      blocks[count++] = (Block){start, body, size, length, 1};
      living++;
    }
  }
  pthread_mutex_unlock(&lock);
  return start;
}

static int touched(const unsigned char *from, const unsigned char *to) {
  for (; from < to; from++)
    if (*from != 0xff) return 1;
  return 0;
}

/* 1 where the pointer was ours. */
int guard_release(void *pointer) {
  unsigned char *p = pointer;
  if (!arena || p < arena || p >= arena + ARENA) return 0;
  pthread_mutex_lock(&lock);
  size_t low = 0, high = count;
  while (low + 1 < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].body <= p) low = middle; else high = middle;
  }
  Block *b = &blocks[low];
  if (b->live && b->start == p) {
    b->live = 0;
    living--;
    if (touched(b->body, b->start) || touched(b->start + b->size, b->body + b->length)) violations++;
    madvise(b->body, b->length, MADV_DONTNEED);
    mprotect(b->body, b->length, PROT_NONE);
  } else {
    violations++; /* freed twice, or a pointer into a buffer */
  }
  pthread_mutex_unlock(&lock);
  return 1;
}

/* Start again where nothing lives; the number of blocks that do. */
size_t guard_reset(void) {
  pthread_mutex_lock(&lock);
  if (!living) count = used = 0;
  pthread_mutex_unlock(&lock);
  return living;
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  __sync_fetch_and_add(&tensors, 1);
  void *memory = armed ? guard_allocate(size, alignment, armed) : NULL;
  if (!memory) memory = __libc_memalign(alignment, size);
  if (!memory) return ENOMEM;
  *out = memory;
  return 0;
}

void free(void *pointer) {
  if (pointer && !guard_release(pointer)) __libc_free(pointer);
}

void *TVMBackendAllocWorkspace(int type, int id, uint64_t bytes, int code, int bits) {
  static void *(*next)(int, int, uint64_t, int, int);
  void *memory = armed ? guard_allocate(bytes, 64, armed) : NULL;
  if (memory) return memory;
  if (!next) next = (void *(*)(int, int, uint64_t, int, int))dlsym(RTLD_NEXT, "TVMBackendAllocWorkspace");
  if (!next) next = (void *(*)(int, int, uint64_t, int, int))dlsym(dlopen("libtvm_runtime.so", RTLD_NOW | RTLD_NOLOAD), "TVMBackendAllocWorkspace");
  return next(type, id, bytes, code, bits);
}

int TVMBackendFreeWorkspace(int type, int id, void *pointer) {
  static int (*next)(int, int, void *);
  if (guard_release(pointer)) return 0;
  if (!next) next = (int (*)(int, int, void *))dlsym(RTLD_NEXT, "TVMBackendFreeWorkspace");
  if (!next) next = (int (*)(int, int, void *))dlsym(dlopen("libtvm_runtime.so", RTLD_NOW | RTLD_NOLOAD), "TVMBackendFreeWorkspace");
  return next(type, id, pointer);
}
