"""From record batches to columns. Pure: bytes in, arrays out."""
