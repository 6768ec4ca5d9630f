"""SASL mechanisms, message by message: what a server answers, and who the client has proven to be."""

__all__ = ("failed_logins", "login", "oauth_bearer", "plain", "scram", "scram_text")
