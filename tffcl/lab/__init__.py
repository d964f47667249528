"""The lab: task files, data sets, many runs, tables, pages and the command line. The library never imports it."""
