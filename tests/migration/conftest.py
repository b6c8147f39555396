"""Programs that are migrated are read and started, not imported to look for examples in them."""

collect_ignore = ["programs"]
