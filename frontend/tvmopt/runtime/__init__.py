"""Artifacts and running them: needs TVM's small runtime library only, never its compiler."""
