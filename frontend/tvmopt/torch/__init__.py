"""PyTorch models, compiled: as a backend of `torch.compile`, or as an artifact.

    fast = torch.compile(model, backend="tvmopt")             # inference; compiled when it is first called
    with torch.inference_mode():
        y = fast(x)

    tvmopt.from_torch(model, (x,), output="model.tvmopt")     # one file that runs without PyTorch

PyTorch is imported when one of them is called.
"""

from __future__ import annotations

from tvmopt.torch.dynamo import backend
from tvmopt.torch.export import from_torch

__all__ = ["backend", "from_torch"]
