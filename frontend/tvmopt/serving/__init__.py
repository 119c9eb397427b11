"""`tvmopt serve`: compiled models over the Open Inference Protocol v2, by HTTP and gRPC.

    protocol    requests and answers: JSON, and the extension for binary tensors
    messages    the protocol's gRPC messages, made from a table
    batcher     one queue and its threads: bounded, with deadlines, requests put together where the model allows
    texts       what a decoder goes on with, token by token, each a step in the queue
    repository  models and versions in folders; loaded, unloaded, exchanged while they serve
    metrics     what Prometheus reads
    rest, rpc   the two ways in
    server      both on one machine: start, drain, end
    ray         HTTP on the machines of a Ray cluster

The protocol is handled here and not by kserve's server: that one listens on all interfaces, turns binary tensors into
Python lists (some 40 ms for a picture), knows no versions, and wants older versions of protobuf and psutil than others.
"""
