"""An issuer of tokens for a test, with its key set in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm


class Issuer:
    def __init__(self, folder: Path, *, is_rsa: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "jwks.json"
        self._is_rsa = is_rsa
        self._keys: dict[str, Any] = {}
        self.rotate("one")

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def rotate(self, kid: str, *, keeps_others: bool = False) -> None:
        """Sign with a new key from now on."""
        self._key = rsa.generate_private_key(65_537, 2_048) if self._is_rsa else ec.generate_private_key(ec.SECP256R1())
        self._kid = kid
        of_type = RSAAlgorithm if self._is_rsa else ECAlgorithm
        public = of_type.to_jwk(self._key.public_key(), as_dict=True)
        self._keys = (self._keys if keeps_others else {}) | {kid: public | {"kid": kid, "use": "sig"}}
        self.path.write_text(json.dumps({"keys": list(self._keys.values())}))

    @property
    def public_pem(self) -> bytes:
        return self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def token(self, user: str = "alice", *, ends_in_s: float = 600, kid: str | None = None, **claims: Any) -> str:
        now = time.time()
        body = {"sub": user, "iat": int(now), "exp": int(now + ends_in_s)} | claims
        return jwt.encode(
            {name: value for name, value in body.items() if value is not None},
            self._key,
            algorithm="RS256" if self._is_rsa else "ES256",
            headers={"kid": kid or self._kid},
        )
