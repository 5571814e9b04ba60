"""How the fields of a request are checked: pydantic schemas that say their limit in one sentence."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from backend.errors import RequestError

# Unknown fields are refused at every level; infinities are written as strings, since JSON has none.
CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="strings")
RECORDED = "recorded"  # the context in which a request is read back from text
T = TypeVar("T")


def shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _told(schema: CoreSchema, sentence: str, kind: str = "limit") -> CoreSchema:
    return core_schema.custom_error_schema(schema, kind, custom_error_message=sentence)


def _saying(schema: CoreSchema, sentence: str, kind: str = "limit") -> GetPydanticSchema:
    return GetPydanticSchema(lambda source, handler: _told(schema, sentence, kind))


def _not_text_or_bool(value: Any) -> Any:
    if isinstance(value, str | bytes | bool):
        raise ValueError("not a number")
    return value


def number(low: float, high: float, above_zero: float = 0.0) -> GetPydanticSchema:
    """A number from low to high; one that is not 0 is at least `above_zero`."""
    within = core_schema.float_schema(strict=True, ge=low, le=high, allow_inf_nan=False)

    def not_too_small(value: float) -> float:
        if 0 < value < above_zero:
            raise PydanticCustomError("limit", f"must be 0 or at least {above_zero:g}")
        return value

    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_after_validator_function(
            not_too_small, _told(within, f"must be a number between {low:g} and {high:g}")
        )
    )


def whole(low: int, high: int | None = None) -> GetPydanticSchema:
    """A whole number from low to high, or without an upper limit; 5.0 is one."""
    schema = core_schema.int_schema(ge=low, le=high)
    checked = core_schema.no_info_before_validator_function(_not_text_or_bool, schema)
    upto = "" if high is None else f" to {high}"
    return _saying(checked, f"must be a whole number from {low}{upto}")


def text(least: int = 0) -> GetPydanticSchema:
    """Text that can be written down (half of a surrogate pair cannot), or None where the field allows it."""
    schema = core_schema.str_schema(strict=True, min_length=least)
    return GetPydanticSchema(
        lambda source, handler: _told(
            schema if source is str else core_schema.nullable_schema(schema),
            "must be text" if not least else "must not be empty",
        )
    )


def choice(*options: Any, said: str = "") -> GetPydanticSchema:
    """One of the options; `said` is how a refusal lists them."""
    names = said or f"one of {', '.join(map(str, options))}"
    return _saying(core_schema.literal_schema(list(options)), f"must be {names}")


Flag = Annotated[bool, _saying(core_schema.bool_schema(strict=True), "must be true or false")]
TokenId = Annotated[
    int,
    _saying(core_schema.int_schema(strict=True, ge=0), "token ids are whole numbers from 0 up", "item"),
]


def refusing(cls: type[T]) -> type[T]:
    """The pydantic dataclass, whose constructor raises RequestError where it would raise ValidationError."""
    checked = cls.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            checked(self, *args, **kwargs)
        except ValidationError as error:
            raise refusal(error) from None

    __init__.__wrapped__ = checked  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


_IDS: TypeAdapter[tuple[int, ...]] = TypeAdapter(tuple[TokenId, ...])


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """The value as token ids.

    Raises:
        RequestError: it is no list of whole numbers from 0 up.
    """
    try:
        return _IDS.validate_python(value)
    except ValidationError as error:
        raise refusal(error, name) from None


def refusal(error: ValidationError, *outer: str) -> RequestError:
    """The first thing that is wrong, as a sentence that names field, limit and value."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        return cause
    parts: list[Any] = [*outer, *(part for part in first["loc"] if part != "[key]")]
    name, inner = parts[0], parts[1:]
    if first["type"] == "item":
        return RequestError(f"{name} holds {shown(first['input'])}; {first['msg']}")
    if first["type"] == "unexpected_keyword_argument":
        return RequestError(f"there is no setting {name!r}")
    place = f"{name}{''.join(f'[{part}]' for part in inner)}"
    says = "must be a list of token ids" if first["type"] == "tuple_type" else first["msg"]
    return RequestError(f"{place} {says}, got {shown(first['input'])}")
