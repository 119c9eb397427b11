"""`tvmopt compile --emit c-archive`: a model as a static library and a header for programs in C, without TVM or Python.

asked      what an archive can be made of, and what was made
program    the run as calls of kernels on places in memory, read off the planned `main`
arena      where each tensor lies in the workspace
scratch    how much memory kernels ask for themselves
source     the header, the tables in C, an example
support.h  what the tables stand on: calls, threads, errors, the processor's instructions
check      the archive beside the artifact, on the same inputs
emit       all of it together: a folder
"""
