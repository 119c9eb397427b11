/* $model for $target ($precision, tasks for $threads threads), compiled by tvmopt.
 *
 * Link with lib$name.a -lm -pthread. A run allocates nothing and keeps nothing: any number of threads may run the
 * model at once, each with a workspace of its own.
 */
#ifndef TVMOPT_${upper}_H
#define TVMOPT_${upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The elements of each tensor. */
$counts
/* Bytes of the workspace of a run with so many threads. It begins at a multiple of 64; what is in it does not matter. */
#define ${upper}_WORKSPACE(threads) ($workspace + (uint64_t)(threads) * $scratch)

typedef struct { /* each at any address that its elements allow */
$inputs} ${name}_inputs;

typedef struct { /* each at a multiple of 64, apart from the workspace and the inputs */
$outputs} ${name}_outputs;

$weights
/* One inference, by the calling thread and, if `threads` is more than 1, by threads that the library starts once, keeps,
 * and divides among its callers. Returns 0 or one of these codes. */
enum {
  ${upper}_OK,
  ${upper}_MISSING,    /* a pointer is null */
  ${upper}_MISALIGNED, /* workspace, weights or an output are not at a multiple of 64, or an input not at its elements' */
  ${upper}_THREADS,    /* the number of threads is not from 1 to 1024 */
  ${upper}_PROCESSOR,  /* this processor lacks instructions that the code has */
  ${upper}_REFUSED     /* the model refuses the data, such as an index out of range; the outputs are undefined */
};
int ${name}_run(const ${name}_inputs *inputs, const ${name}_outputs *outputs, const void *weights, void *workspace,
    int threads);

/* What a code that the calling thread's last run returned means. */
const char *${name}_message(int code);

#ifdef __cplusplus
}
#endif
#endif
