"""The deterministic simulator: real machines, a simulated world, one seed per history. See docs/simulator.md.

Development only: nothing of the product imports it, and the wheel does not carry it.
"""
