"""Segments that other nodes lead: asks for them, writes what comes, promises fences, proves copies."""
