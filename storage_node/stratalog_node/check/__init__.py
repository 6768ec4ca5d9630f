"""Checks data at rest against itself and against seal records: `verify` on a node, `doctor` without one."""
