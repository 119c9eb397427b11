"""The schedule families: one per folder, grouped by the kind of target. `tvmopt.scheduling` discovers them."""
