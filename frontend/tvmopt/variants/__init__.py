"""Models that are compiled when they are first called, for the shapes of the call, and kept.

models  from the inputs of a call to a compiled model
axes    which sizes stay open
"""

from tvmopt.variants.models import DECIDES, Variants

__all__ = ["DECIDES", "Variants"]
