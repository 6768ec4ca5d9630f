"""Certificates and keys of a process, and the TLS contexts made of them; read again when their files change."""
