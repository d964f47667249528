"""The lab: task files, data sets, batches of runs, tables, pages and the command line. The library never imports it."""
