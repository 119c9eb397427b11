"""The schedule families: one a folder, grouped by the kind of target. `tvmopt.scheduling` discovers them."""
