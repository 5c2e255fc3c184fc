"""Dataclasses and named tuples as plain data that can be written as JSON, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
_Reader = Callable[[Any], Any]


def fields_of(value: object) -> dict[str, Any] | None:
    """Return the fields of a dataclass or a named tuple by name; None for any other object."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return None


def to_plain(value: object) -> Any:
    """Return a value as dictionaries, lists, texts and numbers."""
    named = fields_of(value)
    if named is not None:
        return {name: to_plain(each) for name, each in named.items()}
    return [to_plain(each) for each in value] if isinstance(value, list | tuple) else value


def from_plain(kind: type[Kind], data: object) -> Kind:
    """Read plain data as a dataclass or a named tuple. Unknown fields are ignored.

    Raises:
        ValueError: A value has the wrong type.
        TypeError: A field is missing.
    """
    made: Kind = _reader_of(cast(Any, kind))(data)
    return made


@functools.cache
def _reader_of(form: Any) -> _Reader:
    origin, arguments = get_origin(form), get_args(form)
    if origin in (list, tuple):
        return functools.partial(_read_list, origin, _reader_of(arguments[0]))
    if origin is UnionType:  # a type or None
        return functools.partial(_read_optional, _reader_of(arguments[0]))
    if origin is Literal:
        return functools.partial(_read_choice, arguments)
    if form in (bool, int, float, str):
        return functools.partial(_read_word, (int, float) if form is float else form)
    return functools.partial(_read_fields, form)


def _read_fields(form: Callable[..., Any], data: Any) -> Any:
    if not isinstance(data, dict):
        raise ValueError("not a dictionary")
    return form(**{name: read(data[name]) for name, read in _readers_of_fields(form).items() if name in data})


@functools.cache
def _readers_of_fields(form: Any) -> dict[str, _Reader]:
    """Return the reader of each field. They are made when they are first needed: a class may contain itself."""
    return {name: _reader_of(each) for name, each in get_type_hints(form).items()}


def _read_list(kind: Callable[..., Any], read: _Reader, data: Any) -> Any:
    if not isinstance(data, list):
        raise ValueError("not a list")
    return kind(map(read, data))


def _read_optional(read: _Reader, data: Any) -> Any:
    return None if data is None else read(data)


def _read_choice(choices: tuple[str, ...], data: Any) -> Any:
    if data not in choices:
        raise ValueError("it is none of the possible values")
    return data


def _read_word(kind: type | tuple[type, ...], data: Any) -> Any:
    if not isinstance(data, kind):
        raise ValueError("it has another type")
    if isinstance(data, int | float) and not _SMALLEST <= data <= _LARGEST:  # NaN fails both comparisons
        raise ValueError("phalanx does not write such a number")
    return data
