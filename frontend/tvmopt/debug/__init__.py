"""What is wrong, and where: `tvmopt compare` and `tvmopt surgeon` - for whoever has a model with wrong numbers.

graph, files    ONNX graphs cut and saved; extract, fold, sanitize, reduce: the four operations of `surgeon`
layers          every tensor of a model as a reference runtime computes it, in files
watch           every kernel of a compiled model, observed in a real run without changing what is fused
compare, blame  engines against a reference; a difference led back to a layer, a pass, a kernel
"""
