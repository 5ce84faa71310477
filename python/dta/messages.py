"""The messages of `dta.v1`, generated from the `.proto` files (`proto/`, which is `dta-proto/proto`).

They are read when a collector is first asked: nothing is generated when this package is built, no compiler is needed,
and there is no second copy of them that could be out of date. What is understood is what these files use: messages,
enums and services one under another, `oneof`, `optional` and `repeated`; anything else is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Tuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FOLDER = Path(__file__).parent / "proto"
_TOKEN = re.compile(r'//[^\n]*|\s+|"[^"]*"|[\w.]+|[{}();=<>,]')
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _FIELD.TYPE_DOUBLE,
    "float": _FIELD.TYPE_FLOAT,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}


class Messages:
    """Message classes."""

    def __init__(self, *names: str) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in files(names):
            self._pool.Add(file)

    def classes(self, service: str, method: str) -> Tuple[Any, Any]:
        """The classes of a method's request and response."""
        found = self._pool.FindServiceByName(service).methods_by_name[method]
        return self._class(found.input_type), self._class(found.output_type)

    def _class(self, descriptor: Any) -> Any:
        # For protobuf from 4.22, and earlier.
        get = getattr(message_factory, "GetMessageClass", None)
        return get(descriptor) if get else message_factory.MessageFactory(self._pool).GetPrototype(descriptor)


@lru_cache(maxsize=None)
def collector_messages() -> Messages:
    """The messages of a collector."""
    return Messages("dta/v1/collector.proto")


def files(names: Tuple[str, ...]) -> List[Any]:
    """These files and all that they import, each after its imports."""
    found: Dict[str, Any] = {}

    def add(name: str) -> None:
        if name not in found:
            file = parse(name, (_FOLDER / name).read_text())
            for imported in file.dependency:
                add(imported)
            found[name] = file

    for name in names:
        add(name)
    _resolve(list(found.values()))
    return list(found.values())


def parse(name: str, text: str) -> Any:
    """One file. Type names are as written, and only scalar types are known: `_resolve` completes them."""
    return _Parser(name, text).file


class _Parser:
    def __init__(self, name: str, text: str) -> None:
        self.file = descriptor_pb2.FileDescriptorProto(name=name)
        self.tokens: List[str] = []
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                raise ValueError(f"{name}: cannot read {text[at : at + 20]!r}")
            at = token.end()
            if not (token[0].isspace() or token[0].startswith("//")):
                self.tokens.append(token[0])
        self.at = 0
        while self.at < len(self.tokens):
            self._statement()

    def _next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            found = self._next()
            if found != token:
                raise ValueError(f"{self.file.name}: found {found!r} in place of {token!r}")

    def _statement(self) -> None:
        what = self._next()
        if what == "syntax":
            self._expect("=", '"proto3"', ";")
            self.file.syntax = "proto3"
        elif what == "package":
            self.file.package = self._next()
            self._expect(";")
        elif what == "import":
            self.file.dependency.append(self._next().strip('"'))
            self._expect(";")
        elif what == "message":
            self._message()
        elif what == "enum":
            self._enum()
        elif what == "service":
            self._service()
        else:
            raise ValueError(f"{self.file.name}: {what!r} is not supported")

    def _is_end(self) -> bool:
        if self.tokens[self.at] == "}":
            self.at += 1
            return True
        return False

    def _message(self) -> None:
        message = self.file.message_type.add(name=self._next())
        self._expect("{")
        optional = []
        while not self._is_end():
            if self.tokens[self.at] == "oneof":
                self.at += 1
                message.oneof_decl.add(name=self._next())
                self._expect("{")
                while not self._is_end():
                    self._field(message).oneof_index = len(message.oneof_decl) - 1
            elif self.tokens[self.at] == "optional":
                self.at += 1
                optional.append(self._field(message))
            elif self.tokens[self.at] == "map":
                self._map_field(message)
            else:
                self._field(message)
        # An optional field is alone in a oneof, which comes after the others.
        for field in optional:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _map_field(self, message: Any) -> None:
        """A map is a repeated message of keys and values, which is in the message that has it."""
        self._expect("map", "<")
        kinds = {"key": self._next()}
        self._expect(",")
        kinds["value"] = self._next()
        self._expect(">")
        if any(kind not in _SCALARS for kind in kinds.values()):
            raise ValueError(f"{self.file.name}: maps of messages are not supported")
        name = self._next()
        self._expect("=")
        camel = "".join(word.capitalize() for word in name.split("_"))
        entry = message.nested_type.add(name=f"{camel}Entry")
        entry.options.map_entry = True
        for number, (part, kind) in enumerate(kinds.items(), 1):
            entry.field.add(
                name=part, number=number, label=_FIELD.LABEL_OPTIONAL, type=_SCALARS[kind], json_name=part
            )
        message.field.add(
            name=name,
            number=int(self._next()),
            label=_FIELD.LABEL_REPEATED,
            type_name=f"{message.name}.{entry.name}",
            json_name=_json_name(name),
        )
        self._expect(";")

    def _field(self, message: Any) -> Any:
        label = _FIELD.LABEL_OPTIONAL
        if self.tokens[self.at] == "repeated":
            self.at += 1
            label = _FIELD.LABEL_REPEATED
        kind, name = self._next(), self._next()
        self._expect("=")
        field = message.field.add(name=name, number=int(self._next()), label=label, json_name=_json_name(name))
        self._expect(";")
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type_name = kind
        return field

    def _enum(self) -> None:
        enum = self.file.enum_type.add(name=self._next())
        self._expect("{")
        while not self._is_end():
            name = self._next()
            self._expect("=")
            enum.value.add(name=name, number=int(self._next()))
            self._expect(";")

    def _service(self) -> None:
        service = self.file.service.add(name=self._next())
        self._expect("{")
        while not self._is_end():
            self._expect("rpc")
            method = service.method.add(name=self._next())
            self._expect("(")
            method.input_type = self._next()
            self._expect(")", "returns", "(")
            kind = self._next()
            if kind == "stream":
                method.server_streaming = True
                kind = self._next()
            method.output_type = kind
            self._expect(")", ";")


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _resolve(found: List[Any]) -> None:
    """Sets the full names of types, and the kinds of fields."""
    enums = {f".{file.package}.{enum.name}" for file in found for enum in file.enum_type}
    for file in found:
        for field in (field for message in file.message_type for field in message.field if field.type_name):
            field.type_name = f".{file.package}.{field.type_name}"
            field.type = _FIELD.TYPE_ENUM if field.type_name in enums else _FIELD.TYPE_MESSAGE
        for method in (method for service in file.service for method in service.method):
            method.input_type = f".{file.package}.{method.input_type}"
            method.output_type = f".{file.package}.{method.output_type}"
