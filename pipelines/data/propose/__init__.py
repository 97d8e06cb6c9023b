"""A look at a file of rows, and a config that runs on it: every guess with its evidence.

proposal     all of it, in order
topics       Kafka topics: a sample of each, as files
guess        what was taken, why, and what else it could be
times        the event time: its column, its unit, the order of rows
feedback     labels from a file of their own
labels       what is to be predicted, which values count, how late they come
roles        id, vertical, user, item, propensity, value
features     what becomes of every other column
asof         as-of rates that pay, and labels that were set in hindsight
regressions  NE of small regressions, progressive, several at once
sizes        tables, widths, batches, blocks, rates
prepared     the rows as one Parquet file, and the file that the config names
config_text  the config, section by section
yaml_text    YAML with comments
"""
