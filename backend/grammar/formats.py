"""The formats of JSON Schema that are enforced, each as a pattern; a validator with formats agrees."""

from __future__ import annotations

_DAY31 = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
_DAY30 = "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
_DAY28 = "02-(0[1-9]|1[0-9]|2[0-8])"
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"
_LEAP = f"([0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DATE = f"({_YEAR}-({_DAY31}|{_DAY30}|{_DAY28})|{_LEAP}-02-29)"
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_HEX = "[0-9a-f]"
_NAME = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "ipv4": f"^{_BYTE}\\.{_BYTE}\\.{_BYTE}\\.{_BYTE}$",
    "email": f"^[a-z0-9]+([._+-][a-z0-9]+){{0,4}}@{_NAME}(\\.{_NAME}){{1,3}}$",
}
