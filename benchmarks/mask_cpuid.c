/* Hides from a process what a processor of the level x86-64-v3 has not: AVX-512, AMX, VNNI and what came with them.
 *
 *   cc -O2 -shared -fPIC mask_cpuid.c -o mask_cpuid.so
 *   LD_PRELOAD=./mask_cpuid.so python ...
 *
 * Libraries ask the CPUID instruction which kernels to take. Linux can make it fault (arch_prctl(ARCH_SET_CPUID), where
 * /proc/cpuinfo lists cpuid_fault); the handler answers in its place. Threads and children inherit that; a program that is
 * executed loads this library anew. Who asks for the signal's handler later (TVM does, to tell where a program crashed) gets
 * the faults that are none of CPUID's. It ends the process where the kernel cannot do it: a mask that is none must not be
 * measured. glibc has chosen its own functions before.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SET_CPUID = 0x1012 };

/* Bits of leaf 7 (Intel SDM vol. 2A, CPUID) that x86-64-v3 does not promise and vector code chooses kernels by. */
static const uint32_t KEPT_EBX = ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
static const uint32_t KEPT_ECX = ~(1u << 1 | 1u << 6 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 11 | 1u << 12 | 1u << 14);
static const uint32_t KEPT_EDX = ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);

static void answer(uint32_t leaf, uint32_t subleaf, uint32_t words[4]) {
  syscall(SYS_arch_prctl, SET_CPUID, 1);
  __cpuid_count(leaf, subleaf, words[0], words[1], words[2], words[3]);
  syscall(SYS_arch_prctl, SET_CPUID, 0);
  if (leaf == 7 && subleaf == 0) words[1] &= KEPT_EBX, words[2] &= KEPT_ECX, words[3] &= KEPT_EDX;
  if (leaf == 7 && subleaf > 0) words[0] = words[1] = words[2] = words[3] = 0; /* AVX-VNNI, AVX512-BF16, AVX10 */
  if (leaf == 0xD && subleaf == 0) words[0] &= 7;                             /* the registers that XSAVE saves */
  if (leaf == 0x1D || leaf == 0x1E || leaf == 0x24) words[0] = words[1] = words[2] = words[3] = 0; /* AMX, AVX10 */
}

typedef int (*Change)(int, const struct sigaction *, struct sigaction *);
static struct sigaction others; /* what is to happen with other faults */
static int handed_on;           /* one has come: from now on it is the others' signal */

static Change change(void) { return (Change)dlsym(RTLD_NEXT, "sigaction"); }

int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
  if (number != SIGSEGV || handed_on) return change()(number, new, old);
  if (old) *old = others;
  if (new) others = *new;
  return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESTART}, old = {.sa_handler = SIG_DFL};
  return sigaction(number, &new, &old) ? SIG_ERR : old.sa_handler;
}

static void fault(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *code = (const uint8_t *)registers[REG_RIP];
  (void)info;
  if (code[0] != 0x0F || code[1] != 0xA2) { /* a fault of another kind: once more, for whom it concerns */
    handed_on = 1;
    change()(number, &others, NULL);
    return;
  }
  uint32_t words[4];
  answer((uint32_t)registers[REG_RAX], (uint32_t)registers[REG_RCX], words);
  registers[REG_RAX] = words[0], registers[REG_RBX] = words[1], registers[REG_RCX] = words[2];
  registers[REG_RDX] = words[3];
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
  struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
  change()(SIGSEGV, &action, NULL);
  if (syscall(SYS_arch_prctl, SET_CPUID, 0)) {
    fputs("mask_cpuid: this kernel or processor cannot make CPUID fault\n", stderr);
    _exit(5);
  }
}
