"""Gathers what a pass rests on. It decides nothing: what cannot be read is an error, and never nothing."""
