#define SCRATCH UINT64_C($scratch)
#define PARALLEL $parallel
#define TILES $tiles
#define MOST_ARGUMENTS $most
#include "support.h"
#include "$name.h"

$kernels
static const _Alignas(64) unsigned char numbers[] = {$numbers};
static const Place places[] = {
  $places
};
static const Call calls[] = {
  $calls
};
static const Copy copies[] = {
  $copies
};
static const Feature features[] = {
  $features
};
static const uint16_t alignments[] = {$alignments};
static const Model model = {
  calls, $call_count, places, copies, $copy_count, features, $feature_count, UINT64_C($registers),
  alignments, $base_count, UINT64_C($scratch_at)
};

int ${name}_run(const ${name}_inputs *inputs, const ${name}_outputs *outputs, const void *weights, void *workspace,
    int threads) {
  if (!inputs || !outputs) return MISSING;
  unsigned char *const bases[] = {
    $bases
  };
  return run(&model, bases, threads);
}

const char *${name}_message(int code) { return message(code); }
