"""`tvmopt nightly jobs.toml`: models tuned, compiled, verified and timed every night - for whoever keeps them.

plan      the jobs file
history    one line a job and night; says whether something became slower
run       one night
report    the morning after: Markdown and HTML
"""
