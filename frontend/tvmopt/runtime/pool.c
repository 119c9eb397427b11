/* The threads that kernels run on, linked into every artifact's library; a process uses the copy that it loaded first.
 *
 * Generated code calls TVMBackendParallelLaunch and TVMBackendParallelBarrier through two pointers, which the loader
 * (runtime/pool.py) sets to tvmopt_pool_launch and tvmopt_pool_barrier; a third one is behind tvmopt_worth_threads. TVM's
 * own pool is one a calling thread: a server with a thread a request makes and ends a pool a request, a forked process
 * waits for workers that it does not have, and concurrent callers put more threads on the cores than there are.
 *
 * A team is some workers that one caller has at a time. The first caller gets team 0 whole; of n callers at once each
 * gets a team of 1/n of the threads it asks for, so that two callers on two cores run on one core each, without waiting
 * for each other; for 0.2 ms more they share the same way, so that a call takes as long as the one before it,
 * whether or not the others compute at this moment. Teams and workers are made when they are first needed and are kept.
 *
 * A place has teams of its own, whose workers run on its processors: models that are given different processors do not
 * share threads, models that are given the same ones do. Place 0 is everybody's, on whatever the process may use.
 *
 * A task is its own worker's unless the caller, done with its own, finds that nobody has begun it: then the caller takes
 * it. So a call goes on alone where a neighbour has a worker's core, and waits only for a task that was interrupted. Who
 * computes a task does not change it. One with a barrier is never taken: its caller is not done before all have begun.
 *
 * No thread is bound to one core: an idle core takes over a worker that waits on its caller's core, which it could not if
 * the worker were bound. To move workers away from their caller was tried: on a busy machine it made calls 1.7 times
 * slower on average. A launch takes 0.1 us between two threads, a barrier 0.06 us (TVM's pool: 0.7 and 0.3).
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("isb" ::: "memory")
#else
#define PAUSE() ((void)0)
#endif

enum {
  MOST = 1024,    /* threads a team; pool.py refuses more */
  TEAMS = 16,     /* callers with workers at once in a place; a further one runs alone */
  PLACES = 64,    /* sets of processors; pool.py refuses more */
  POLLS = 256,    /* before each further one offers the core to other threads: some 10 us */
  AWAKE = 20,     /* ms that a worker polls for its next job before it sleeps */
  RECENT = 200,   /* us for which callers that met share the threads, though one may be alone at the moment */
};

/* TVM's TVMParallelGroupEnv, FTVMParallelLambda, and the three functions of tvm_ffi that hand an error on. */
typedef struct {
  void *slots;
  int32_t tasks;
} Group;
typedef int (*Task)(int task, Group *group, void *data);
extern void TVMFFIErrorMoveFromRaised(void **error);
extern void TVMFFIErrorSetRaised(void *error);
extern int TVMFFIObjectDecRef(void *object);

typedef struct Team Team;
typedef struct Place Place;

/* What one task's thread shares with the others, on pairs of cache lines (the prefetcher fetches pairs). */
typedef struct {
  _Alignas(128) _Atomic uint32_t job;   /* written by the caller: number of the job to do */
  int index;
  uint32_t first;                       /* what `job` was when the worker was made */
  Team *team;
  pthread_t thread;
  _Alignas(128) _Atomic uint32_t done;  /* written by the worker: number of the job that is done */
  _Atomic uint32_t begun;               /* number of the last job whose task somebody has begun */
  _Atomic int asleep;
  void *error;                          /* of this job: tvm_ffi's object */
  _Alignas(128) _Atomic uint64_t meets; /* job << 32, and the barriers passed in it */
} Slot;

struct Team {
  _Alignas(128) atomic_int leased;
  uint32_t job;
  int size;                             /* slots that have a thread; the caller's is slot 0 */
  Task task;
  void *data;
  Group group;
  Slot *slots;                          /* room for MOST; made with the first worker */
  const Place *place;
};

struct Place {
  _Alignas(128) atomic_int callers;
  atomic_int crowd;                     /* the most callers at once of late */
  _Atomic int64_t met;                  /* when they were, in us */
  cpu_set_t *processors;                /* of its workers; none: those that its callers have */
  size_t bytes;
  Team teams[TEAMS];
};

static Place places[PLACES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int threads = 1;        /* that a launch of this thread may use */
static __thread Place *here = places;   /* where they are */
static __thread int favourite;          /* the team this thread had last: its workers are awake */
static __thread int unshared;           /* the next launch of this thread is not worth other threads */

/* Memory that is never given back; none where there is none. */
static void *room(size_t bytes) {
  void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return found == MAP_FAILED ? NULL : found;
}

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
  syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

/* ---- workers ------------------------------------------------------------------------------------------------- */

/* The number of the next job: polled for a while, then slept for. */
static uint32_t next_job(Slot *slot, uint32_t seen) {
  int64_t start = 0;
  for (uint32_t polls = 1;; polls++) {
    uint32_t job = atomic_load_explicit(&slot->job, memory_order_acquire);
    if (job != seen) return job;
    PAUSE();
    if (polls < POLLS) continue;
    sched_yield();
    int64_t now = now_us();
    if (!start) start = now;
    if (now - start < AWAKE * 1000) continue;
    atomic_store(&slot->asleep, 1); /* and then looks at the job; the caller writes the job, and then looks here */
    while (atomic_load(&slot->job) == seen) futex(&slot->job, FUTEX_WAIT_PRIVATE, seen);
    atomic_store(&slot->asleep, 0);
  }
}

/* Whether a job's task is the calling thread's to do: nobody else has begun it, nor any later one. */
static int take(Slot *slot, uint32_t job) {
  uint32_t last = atomic_load_explicit(&slot->begun, memory_order_relaxed);
  return (int32_t)(job - last) > 0 && atomic_compare_exchange_strong(&slot->begun, &last, job);
}

static void begin(Slot *slot, uint32_t job) {
  atomic_store_explicit(&slot->meets, (uint64_t)job << 32, memory_order_release);
}

static void *work(void *argument) {
  Slot *slot = argument;
  Team *team = slot->team;
  const Place *place = team->place;
  if (place->processors) sched_setaffinity(0, place->bytes, place->processors);
  for (uint32_t job = slot->first;;) {
    job = next_job(slot, job);
    if (!take(slot, job)) continue;
    begin(slot, job);
    slot->error = NULL;
    if (team->task(slot->index, &team->group, team->data)) TVMFFIErrorMoveFromRaised(&slot->error);
    atomic_store_explicit(&slot->done, job, memory_order_release);
  }
  return NULL;
}

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};

/* Make workers until `size` tasks have a thread; the number that have, less where the system gives no more. */
static int grow(Team *team, int size) {
  if (!team->slots) {
    team->slots = room(MOST * sizeof(Slot));
    if (!team->slots) return 1;
  }
  if (team->size == 0) team->size = 1;
  sigset_t all, old;
  sigfillset(&all); /* the user's signals are for the user's threads, faults for the thread that has them */
  for (int i = 0; i < (int)(sizeof faults / sizeof *faults); i++) sigdelset(&all, faults[i]);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  for (; team->size < size; team->size++) {
    Slot *slot = &team->slots[team->size];
    slot->team = team, slot->index = team->size;
    slot->first = slot->job = slot->done = slot->begun = team->job, slot->asleep = 0;
    if (pthread_create(&slot->thread, NULL, work, slot)) break;
    pthread_detach(slot->thread);
    pthread_setname_np(slot->thread, "tvmopt");
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return team->size < size ? team->size : size;
}

/* ---- callers ------------------------------------------------------------------------------------------------- */

static int alone(Task task, void *data) {
  Slot slot = {.meets = 0};
  Group group = {&slot, 1};
  return task(0, &group, data);
}

/* Do what nobody has begun of a job, and wait for the rest; the workers' errors become this thread's, the first found. */
static int finish(Team *team, uint32_t job, int tasks, int failed) {
  for (int i = 1; i < tasks; i++) {
    Slot *slot = &team->slots[i];
    if (!take(slot, job)) continue;
    if (!failed) failed = team->task(i, &team->group, team->data);
    slot->error = NULL;
    atomic_store_explicit(&slot->done, job, memory_order_relaxed);
  }
  for (int i = 1; i < tasks; i++) {
    Slot *slot = &team->slots[i];
    for (uint32_t polls = 1; atomic_load_explicit(&slot->done, memory_order_acquire) != job; polls++) {
      PAUSE();
      if (polls > POLLS) sched_yield();
    }
    if (!slot->error) continue;
    if (!failed) TVMFFIErrorSetRaised(slot->error);
    TVMFFIObjectDecRef(slot->error);
    failed = -1;
  }
  return failed;
}

static int together(Team *team, Task task, void *data, int tasks) {
  if (tasks > team->size) tasks = grow(team, tasks);
  if (tasks == 1) return alone(task, data);
  uint32_t job = ++team->job;
  team->task = task, team->data = data, team->group = (Group){team->slots, tasks};
  begin(&team->slots[0], job);
  for (int i = 1; i < tasks; i++) atomic_store_explicit(&team->slots[i].job, job, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
  for (int i = 1; i < tasks; i++) {
    Slot *slot = &team->slots[i];
    if (atomic_load_explicit(&slot->asleep, memory_order_relaxed)) futex(&slot->job, FUTEX_WAKE_PRIVATE, 1);
  }
  return finish(team, job, tasks, task(0, &team->group, data));
}

static Team *lease(void) {
  for (int i = 0; i < TEAMS; i++) {
    Team *team = &here->teams[(favourite + i) % TEAMS];
    if (atomic_exchange_explicit(&team->leased, 1, memory_order_acquire) == 0) {
      favourite = (int)(team - here->teams);
      team->place = here;
      return team;
    }
  }
  return NULL;
}

/* A child of fork has none of its parent's workers. */
static void forked(void) {
  for (Place *place = places; place < places + PLACES; place++) {
    if (place != places && !place->processors) break;
    place->callers = 0;
    for (int i = 0; i < TEAMS; i++) place->teams[i].leased = place->teams[i].size = 0;
  }
}

static void start(void) { pthread_atfork(NULL, NULL, forked); }

/* Among how many callers the threads are shared: those at work, or the more that were a short time ago. */
static int sharers(int others) {
  int callers = others + 1, crowd = atomic_load_explicit(&here->crowd, memory_order_relaxed);
  if (callers == 1 && crowd <= 1) return 1;
  int64_t now = now_us();
  if (callers < crowd && now - atomic_load_explicit(&here->met, memory_order_relaxed) < RECENT) return crowd;
  atomic_store_explicit(&here->crowd, callers, memory_order_relaxed);
  atomic_store_explicit(&here->met, now, memory_order_relaxed);
  return callers;
}

/* What __TVMBackendParallelLaunch points to. TVM's generated code takes its share by `group->tasks`, whatever it is. */
int tvmopt_pool_launch(Task task, void *data, int most) {
  int tasks = most > 0 && most < threads ? most : threads;
  if (unshared) unshared = 0, tasks = 1;
  if (tasks <= 1) return alone(task, data);
  tasks /= sharers(atomic_fetch_add_explicit(&here->callers, 1, memory_order_relaxed));
  Team *team = tasks > 1 ? lease() : NULL;
  int failed = team ? together(team, task, data, tasks) : alone(task, data);
  if (team) atomic_store_explicit(&team->leased, 0, memory_order_release);
  atomic_fetch_sub_explicit(&here->callers, 1, memory_order_relaxed);
  return failed;
}

/* What __tvmopt_worth_threads points to: whether the next launch of the calling thread is worth other threads. */
void tvmopt_pool_worth(int threads) { unshared = !threads; }

/* What a kernel of open sizes calls in front of a parallel loop, as only a call knows how much work it has. */
void (*__tvmopt_worth_threads)(int) = tvmopt_pool_worth;
void tvmopt_worth_threads(int threads) { __tvmopt_worth_threads(threads); }

/* What __TVMBackendParallelBarrier points to: wait until every task of the group is here. */
int tvmopt_pool_barrier(int task, Group *group) {
  Slot *slots = group->slots;
  uint64_t mine = atomic_load_explicit(&slots[task].meets, memory_order_relaxed) + 1;
  atomic_store_explicit(&slots[task].meets, mine, memory_order_release);
  for (int i = 0; i < group->tasks; i++) {
    _Atomic uint64_t *other = &slots[i].meets;
    for (uint32_t polls = 1; (int64_t)(atomic_load_explicit(other, memory_order_acquire) - mine) < 0; polls++) {
      PAUSE();
      if (polls > POLLS) sched_yield();
    }
  }
  return 0;
}

/* How many threads a launch of the calling thread may use from now on. */
void tvmopt_pool_use(int wanted) {
  pthread_once(&once, start);
  threads = wanted < MOST ? wanted : MOST;
}

/* Where launches of the calling thread take workers from now on. */
void tvmopt_pool_go(int number) { here = &places[number]; }

/* Make a place, numbered 1, 2, ... in order, of a mask of processors; 0, or -1 where there is no memory. */
int tvmopt_pool_place(int number, const void *processors, size_t bytes) {
  void *kept = room(bytes);
  if (!kept) return -1;
  places[number].bytes = bytes;
  places[number].processors = memcpy(kept, processors, bytes);
  return 0;
}
