"""The programs that compiling needs beside TVM: the C compiler that links, NVIDIA's compilers, what ptxas reports."""
