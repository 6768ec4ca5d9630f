"""Segments that other nodes lead: requests them, writes the answers, promises fences, proves copies."""
