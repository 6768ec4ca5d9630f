"""The benchmark: Stratalog beside a plain TCP server and beside Apache Kafka, same client, same disk, same run.

`make bench` runs it; docs/benchmarks.md explains the method. Nothing here is needed to run or to test Stratalog.
"""
