"""SASL mechanisms, message by message: what a server answers, who the client has proven to be; a client of SCRAM."""

__all__ = ("failed_logins", "login", "oauth_bearer", "plain", "scram", "scram_client", "scram_text", "token_guesses")
