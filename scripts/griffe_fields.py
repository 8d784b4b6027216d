"""An extension of griffe: fields in docstrings and in settings, as the API reference shows them.

Docstrings here describe fields and arguments in two columns:

    rounds    how many rounds to play
    seed      everything random comes from it; the same seed
              gives the same bytes
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

FIELD = re.compile(r"^(?P<names>\w[\w., ]*?) {2,}(?P<text>\S.*)$")


def fields_to_markdown(text: str) -> str:
    """Turn lines of two columns into a Markdown list; leave all other lines alone."""
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        field = FIELD.match(line)
        if field:
            if not in_list:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in field["names"].split(", "))
            lines.append(f"- {names}: {field['text']}")
            in_list = True
        elif in_list and line.startswith("   "):
            lines.append(f"    {line.strip()}")
        else:
            in_list = False
            lines.append(line)
    return "\n".join(lines)


def describe_field(annotation: ast.expr | None) -> str | None:
    """Return the description in `Annotated[type, Field(description="...")]`, None without one."""
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.keyword) and node.arg == "description":
            return ast.literal_eval(node.value) if isinstance(node.value, ast.Constant) else None
    return None


def resolve_annotation(attr: griffe.Attribute) -> griffe.ExprSubscript | None:
    """Return an annotation with brackets; that of `Name = Annotated[...]` if it is such a name."""
    annotation = attr.annotation
    if isinstance(annotation, griffe.ExprName):
        named = attr.module.members.get(annotation.name)
        if isinstance(named, griffe.Alias) and named.target_path.startswith("udjfl."):
            named = named.final_target  # imported from another module of the package
        annotation = named.value if isinstance(named, griffe.Attribute) else None
    return annotation if isinstance(annotation, griffe.ExprSubscript) else None


def describe_attributes(obj: griffe.Object) -> None:
    """Move the descriptions in the annotations of all attributes below to their docstrings."""
    for member in obj.members.values():
        if isinstance(member, griffe.Attribute):
            describe_attribute(member)
        elif isinstance(member, griffe.Module | griffe.Class):
            describe_attributes(member)


def describe_attribute(attr: griffe.Attribute) -> None:
    """Move the description in an annotation to the attribute's docstring."""
    annotation = resolve_annotation(attr)
    if annotation is None:
        return
    description = describe_field(ast.parse(str(annotation), mode="eval").body)
    if description is None:
        return
    first, *_rest = getattr(annotation.slice, "elements", [annotation.slice])
    attr.annotation = first
    attr.docstring = attr.docstring or griffe.Docstring(description, parent=attr)


class FieldLists(griffe.Extension):
    """Rewrites the docstrings of one package as they are read; fields of settings get theirs."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fields_to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        describe_attributes(pkg)  # names are imported from modules that are read later
