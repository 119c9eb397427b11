/* What LLVM calls to round one float to bfloat16, linked into libraries that need it: libgcc has it from version 13 on.
 *
 * To the nearest, ties to even; NaN stays NaN. The result is the low half of the register that returns a float: that is
 * where x86-64 and AArch64 return a bfloat16, a type that older C compilers lack.
 */
#include <stdint.h>
#include <string.h>

__attribute__((visibility("hidden"))) float __truncsfbf2(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  memcpy(&x, &bits, sizeof bits);
  return x;
}
