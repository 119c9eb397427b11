"""One compile from an ONNX file to a module that is ready to load: what `tvmopt.compile` calls.

request    what a compile is asked for; it can be written for another process
driver     the one way through: import, lower, generate code, link, manifest and report - for every kind of machine
backend    what differs between kinds of machines; llvm, cuda: the two there are
flow       the compiled run as data
results    the manifest and the report
carchive   the same kernels as a static library for C
accuracy   the compiled module compared with the model's own numbers
"""
