/* Runs the model once: its inputs come from stdin one after another, its outputs go to stdout, raw numbers both.
 *
 *   cc -O2 ${name}_example.c lib$name.a -lm -pthread -o example
 *   ./example $usage < inputs.bin > outputs.bin
 */
#include <stdio.h>
#include <stdlib.h>
$includes#include "$name.h"

$arrays
int main(int count, char **words) {
  int threads = count > $given ? atoi(words[$given]) : 1;
  void *workspace = aligned_alloc(64, ${upper}_WORKSPACE(threads));
$mapping$reads  ${name}_inputs inputs = {$inputs};
  ${name}_outputs outputs = {$outputs};
  int code = ${name}_run(&inputs, &outputs, $weights, workspace, threads);
  if (code) {
    fprintf(stderr, "%s\n", ${name}_message(code));
    return 1;
  }
$writes  free(workspace);
  return 0;
}
