/* The pool of threads by itself, for test_pool.py: `cc -pthread pool_alone.c && ./a.out`, 0 where all is right. */
#include "pool.c"

#include <stdio.h>
#include <stdlib.h>

static int raised, dropped;
void TVMFFIErrorMoveFromRaised(void **error) { *error = &raised; }
void TVMFFIErrorSetRaised(void *error) { raised += error == &raised; }
int TVMFFIObjectDecRef(void *object) { return dropped += object == &raised; }

static atomic_int seen[MOST];
static int wrong_task = -1, meets;

static int count(int task, Group *group, void *data) {
  atomic_fetch_add(&seen[task], 1);
  if (meets) tvmopt_pool_barrier(task, group);
  if (meets && atomic_load(&seen[group->tasks - 1]) != *(int *)data) return -2;
  return task == wrong_task ? -1 : 0;
}

#define CHECK(what) if (!(what)) return printf("line %d: " #what "\n", __LINE__), 1

/* A team whose workers never run: the caller does it all, each task once, and stops at an error. */
static int without_workers(void) {
  Place *place = &places[1];
  Team *team = &place->teams[0];
  team->slots = calloc(8, sizeof(Slot)), team->size = 8, team->place = place;
  CHECK(together(team, count, NULL, 8) == 0);
  for (int i = 0; i < 8; i++) CHECK(seen[i] == 1);
  wrong_task = 3;
  CHECK(together(team, count, NULL, 8) == -1);
  for (int i = 0; i < 8; i++) CHECK(seen[i] == (i <= 3 ? 2 : 1));
  wrong_task = -1;
  CHECK(together(team, count, NULL, 5) == 0);
  CHECK(seen[4] == 2 && seen[5] == 1);
  Slot slot = {.begun = 4};
  CHECK(!take(&slot, 3) && !take(&slot, 4) && take(&slot, 9) && !take(&slot, 9) && slot.begun == 9);
  slot.begun = UINT32_MAX; /* the number begins again */
  CHECK(!take(&slot, UINT32_MAX - 1) && take(&slot, 0) && slot.begun == 0);
  return 0;
}

/* More threads than cores, many launches of changing size: each task is done once, also by those that meet inside. */
static int many(int launches) {
  static const int sizes[] = {8, 2, 5, 8, 3, 1, 6};
  memset(seen, 0, sizeof seen);
  int expected[8] = {0};
  for (int at = 0; at < launches; at++) {
    int size = sizes[at % 7];
    tvmopt_pool_use(size);
    for (int i = 0; i < size; i++) expected[i]++;
    meets = at % 5 == 0;
    CHECK(tvmopt_pool_launch(count, &expected[size - 1], 0) == 0);
    for (int i = 0; i < 8; i++) CHECK(seen[i] == expected[i]);
  }
  meets = 0;
  tvmopt_pool_use(8);
  tvmopt_worth_threads(0); /* of the next launch only */
  for (int at = 0; at < 3; at++) {
    for (int i = 0; i < (at ? 8 : 1); i++) expected[i]++;
    CHECK(tvmopt_pool_launch(count, NULL, 0) == 0);
    for (int i = 0; i < 8; i++) CHECK(seen[i] == expected[i]);
    if (at == 1) tvmopt_worth_threads(1);
  }
  wrong_task = 2;
  tvmopt_pool_use(4);
  CHECK(tvmopt_pool_launch(count, NULL, 0) == -1);
  return 0;
}

/* Callers that met a short time ago share the threads still; after that, one that is alone has them all. */
static int sharing(void) {
  CHECK(sharers(0) == 1 && sharers(3) == 4);
  here->met = now_us() + 1000000000; /* so that it stays a short time ago while this test waits for a core */
  CHECK(sharers(0) == 4 && sharers(2) == 4 && sharers(5) == 6);
  here->met = 0;
  CHECK(sharers(1) == 2);
  here->met = 0;
  CHECK(sharers(0) == 1 && sharers(0) == 1);
  return 0;
}

int main(int count, char **words) { return sharing() || without_workers() || many(count > 1 ? atoi(words[1]) : 3000); }
