"""Mark where a decoder makes its caches longer."""

from __future__ import annotations

from tvm import relax

from tvmopt.importer.relax import CACHES
from tvmopt.operators.caches import extend_cache
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, inputs_of, op_name, rewrite_pass


@rewrite_pass("tvmopt.MarkCaches")
class MarkCaches(Rewrite):
    """Write the concatenation of a cache and what a step adds as one operator.

        Before                                        After
        y = R.concat((past, new), axis=2)             y = tvmopt.extend_cache(past, new)

    Applies when   `past` is an input that the importer calls a cache.
    Gain           none by itself: no pass moves transposes through the cache, and KeepCaches finds it.
    Order          first.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a concatenation."""
        if op_name(value) != "concat" or not isinstance(value.args[0], relax.Tuple):
            return None
        parts = list(value.args[0].fields)
        if len(parts) != 2 or int(value.attrs.axis) not in (2, -2) or graph.func.attrs is None:
            return None
        caches = [inputs_of(graph.func)[int(pair[0])] for pair in graph.func.attrs.get(CACHES, ())]
        if not any(parts[0].same_as(cache) for cache in caches):
            return None
        self.applied(var)
        return extend_cache(*parts)
