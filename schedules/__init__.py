"""The schedule families: one a file, grouped by the kind of target. `tvmopt.scheduling` discovers them."""
