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
_LABELS = f"{_NAME}(\\.{_NAME}){{0,3}}"
_GROUP = "[0-9a-f]{1,4}"
_IPV6 = "|".join(
    [
        "::",
        f"({_GROUP}:){{7}}{_GROUP}",
        f"({_GROUP}:){{1,7}}:",
        f":(:{_GROUP}){{1,7}}",
        *(f"({_GROUP}:){{1,{7 - after}}}(:{_GROUP}){{1,{after}}}" for after in range(1, 7)),
    ]
)
_DAYS = "[0-9]{1,9}D"
_MONTHS = f"[0-9]{{1,9}}M({_DAYS})?"
_YEARS = f"[0-9]{{1,9}}Y({_MONTHS})?"
_MINUTES = "[0-9]{1,9}M([0-9]{1,9}S)?"
_CLOCK = f"T([0-9]{{1,9}}H({_MINUTES})?|{_MINUTES}|[0-9]{{1,9}}S)"
_DURATION = f"P(({_DAYS}|{_MONTHS}|{_YEARS})({_CLOCK})?|{_CLOCK}|[0-9]{{1,9}}W)"
_UNRESERVED = "A-Za-z0-9._~!$&'()*+,;=\\-"
_ESCAPED = "%[0-9A-Fa-f]{2}"
_PATH_CHARACTER = f"([{_UNRESERVED}:@]|{_ESCAPED})"
_AFTER_PATH = f"(\\?([{_UNRESERVED}:@/?]|{_ESCAPED})*)?(#([{_UNRESERVED}:@/?]|{_ESCAPED})*)?"
_HOST = f"([{_UNRESERVED}]|{_ESCAPED})*(:[0-9]{{1,5}})?"
_ABSOLUTE = f"(//{_HOST})?(/{_PATH_CHARACTER}+)*/?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:({_ABSOLUTE}|{_PATH_CHARACTER}+(/{_PATH_CHARACTER}*)*){_AFTER_PATH}"
_FIRST_SEGMENT = f"([{_UNRESERVED}@]|{_ESCAPED})+(/{_PATH_CHARACTER}*)*"
_ATOM = "([A-Za-z0-9_ ,:;@/-]|\\\\[dws.]|\\.|\\[(a-z|A-Z|0-9|_){1,4}\\])"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "ipv4": f"^{_BYTE}\\.{_BYTE}\\.{_BYTE}\\.{_BYTE}$",
    "email": f"^[a-z0-9]+([._+-][a-z0-9]+){{0,4}}@{_NAME}(\\.{_NAME}){{1,3}}$",
    "hostname": f"^{_LABELS}$",
    "ipv6": f"^({_IPV6})$",
    "duration": f"^{_DURATION}$",
    "uri": f"^{_URI}$",
    "uri-reference": f"^({_URI}|({_ABSOLUTE}|{_FIRST_SEGMENT}){_AFTER_PATH})$",
    "json-pointer": '^(/([^/~"\\\\\\x00-\\x1f]|~[01])*)*$',
    "relative-json-pointer": '^(0|[1-9][0-9]{0,8})(#|(/([^/~"\\\\\\x00-\\x1f]|~[01])*)*)$',
    "regex": f"^\\^?({_ATOM}([*+?]|\\{{[0-9]\\}})?)*\\$?$",
}
PATTERNS |= {
    "iri": PATTERNS["uri"],
    "iri-reference": PATTERNS["uri-reference"],
    "idn-hostname": PATTERNS["hostname"],
    "idn-email": PATTERNS["email"],
}
# Of which the pattern has only a part of the valid texts.
NARROWED = ("regex", "iri", "iri-reference", "idn-hostname", "idn-email")
