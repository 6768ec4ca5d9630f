"""What a client's certificate makes its name: `ssl.principal.mapping.rules`. Pure.

Rules are tried in order; the first that matches the whole distinguished name decides:
`RULE:pattern/replacement/[LU]` replaces groups (`$1`) and then writes all in small (L) or large (U) letters; `DEFAULT`
takes the name as it is. A slash or backslash in a pattern is written with a backslash before it. Patterns are Python's
regular expressions, which for such rules are those of Java.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,\s*|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)
_LONGEST_TEXT: Final = 16_384


@dataclass(frozen=True, slots=True)
class NameRule:
    """`pattern` is None for DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    letters: str = ""
    """L, U, or empty: as they are."""

    def name_of(self, distinguished_name: str) -> str | None:
        """None: the rule does not match."""
        if self.pattern is None:
            return distinguished_name
        if self.pattern.fullmatch(distinguished_name) is None:
            return None
        # Each match within the name, as Kafka does: ".*" also matches the empty rest behind it.
        name = self.pattern.sub(self._replacement_of, distinguished_name)
        match self.letters:
            case "L":
                return name.lower()
            case "U":
                return name.upper()
        return name

    def _replacement_of(self, found: re.Match[str]) -> str:
        return _REFERENCE.sub(lambda reference: _replaced(reference, found), self.replacement)


def parse_name_rules(text: str) -> tuple[NameRule, ...]:
    """An empty text is DEFAULT. (In Kafka it has no rule, and refuses every client.)

    Raises: ValueError with the part that is not a rule.
    """
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"expected at most {_LONGEST_TEXT} characters, not {len(text)}")
    rules: list[NameRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None or found.end() == position:
            if not text[position:].strip():
                break
            raise ValueError(
                f"expected DEFAULT or RULE:pattern/replacement/[LU], with commas between, not {text[position:][:80]!r}"
            )
        position = found.end()
        if found[1]:
            rules.append(NameRule())
            continue
        try:
            pattern = re.compile(found[2])
        except re.error as wrong:
            raise ValueError(f"expected a regular expression, not {found[2][:80]!r}: {wrong}") from None
        if not pattern.groups and any(reference[2] for reference in _REFERENCE.finditer(found[3])):
            raise ValueError(f"expected a pattern with the groups that {found[3][:80]!r} names, not {found[2][:80]!r}")
        rules.append(NameRule(pattern, found[3], found[4]))
    return tuple(rules) or (NameRule(),)


def name_of(rules: Sequence[NameRule], distinguished_name: str) -> str | None:
    """None: no rule matches, and the client is refused."""
    for rule in rules:
        name = rule.name_of(distinguished_name)
        if name is not None:
            return name
    return None


def _replaced(reference: re.Match[str], found: re.Match[str]) -> str:
    """`$12` is group 12, or group 1 and a 2 where there are fewer; a reference to no group is the text itself."""
    if reference[1] is not None:
        return reference[1]
    digits = reference[2]
    groups = found.re.groups
    kept = len(digits)
    while kept > 1 and int(digits[:kept]) > groups:
        kept -= 1
    if int(digits[:kept]) > groups:
        return reference[0]
    return (found[int(digits[:kept])] or "") + digits[kept:]
