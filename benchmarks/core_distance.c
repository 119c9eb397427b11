/* How far apart two processors are: what a line costs that both of them use.
 *
 *     mkdir -p build
 *     cc -O2 -march=native -pthread benchmarks/core_distance.c -o build/core_distance
 *     build/core_distance [first] [second]          # numbers of two processors; 0 and 1
 *
 * Prints the time of a round trip (one writes a number, the other one answers), and for pieces of memory of some sizes
 * the time to write and to read a line: of each processor's own half, and of halves that the other one reads between
 * two writes. On a rented machine processors move: run it several times. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIPS = 200000, ROUNDS = 200, LINE = 64 };
typedef double Line __attribute__((vector_size(LINE)));

static int processors[2] = {0, 1};
static _Alignas(128) _Atomic int flag;
static _Alignas(128) _Atomic int arrived;
static Line *memory;
static size_t lines; /* of each half */
static int others;   /* whether a thread reads the other's half */
static double written[2], read_[2];
static volatile double sink;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static void stay(int who) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processors[who], &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set)) {
    fprintf(stderr, "this process may not use processor %d\n", processors[who]);
    exit(2);
  }
}

static void meet(void) {
  int want = (atomic_fetch_add(&arrived, 1) / 2 + 1) * 2;
  while (atomic_load(&arrived) < want) {
  }
}

static void *answer(void *unused) {
  stay(1);
  for (int i = 0; i < TRIPS; i++) {
    while (atomic_load(&flag) != 2 * i + 1) {
    }
    atomic_store(&flag, 2 * i + 2);
  }
  return unused;
}

static void work(int who) {
  Line *own = memory + who * lines, *wanted = memory + (others ? 1 - who : who) * lines;
  for (int round = 0; round < ROUNDS; round++) {
    Line value = (Line){0} + round, sum = {0};
    meet();
    double begun = now();
    for (size_t i = 0; i < lines; i++) own[i] = value;
    written[who] += now() - begun;
    meet();
    begun = now();
    for (size_t i = 0; i < lines; i++) sum += wanted[i];
    sink = sum[0];
    read_[who] += now() - begun;
  }
}

static void *second(void *unused) {
  stay(1);
  work(1);
  return unused;
}

int main(int count, char **arguments) {
  for (int i = 1; i < count && i < 3; i++) processors[i - 1] = atoi(arguments[i]);
  stay(0);
  pthread_t thread;
  pthread_create(&thread, NULL, answer, NULL);
  double begun = now();
  for (int i = 0; i < TRIPS; i++) {
    atomic_store(&flag, 2 * i + 1);
    while (atomic_load(&flag) != 2 * i + 2) {
    }
  }
  printf("round trip %.0f ns\n", (now() - begun) / TRIPS);
  pthread_join(thread, NULL);
  printf("%-16s %8s %14s %14s\n", "reads", "KB each", "write, ns/line", "read, ns/line");
  for (others = 0; others < 2; others++)
    for (size_t size = 128; size <= 4096; size *= 4) {
      lines = size * 1024 / LINE;
      memory = aligned_alloc(4096, 2 * lines * LINE);
      memset(memory, 0, 2 * lines * LINE);
      atomic_store(&arrived, 0);
      for (int who = 0; who < 2; who++) written[who] = read_[who] = 0;
      pthread_create(&thread, NULL, second, NULL);
      work(0);
      pthread_join(thread, NULL);
      double steps = 2.0 * ROUNDS * lines;
      printf("%-16s %8zu %14.1f %14.1f\n", others ? "the other's half" : "its own half", size,
             (written[0] + written[1]) / steps, (read_[0] + read_[1]) / steps);
      free(memory);
    }
  return 0;
}
