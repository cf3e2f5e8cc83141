"""Answers a GraphQL query from nested values: dictionaries, lists, plain values, functions of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphql import (
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    InlineFragmentNode,
    OperationDefinitionNode,
    SelectionSetNode,
    parse,
    value_from_ast_untyped,
)


def answer(request: Mapping[str, Any], roots: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The `data` of the response. `roots` has the values of `query` and of `mutation`."""
    document = parse(request["query"])
    operations = [d for d in document.definitions if isinstance(d, OperationDefinitionNode)]
    wanted = request.get("operationName")  # may be empty
    operation = next((o for o in operations if wanted and o.name and o.name.value == wanted), operations[0])
    fragments = {d.name.value: d for d in document.definitions if isinstance(d, FragmentDefinitionNode)}
    variables = {
        d.variable.name.value: value_from_ast_untyped(d.default_value)
        for d in operation.variable_definitions or ()
        if d.default_value is not None
    } | (request.get("variables") or {})
    return Walk(fragments, variables).select(
        roots[operation.operation.value], operation.selection_set, "Query"
    )


class Walk:
    """One walk over a query's selection sets."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode], variables: dict[str, Any]) -> None:
        self.fragments, self.variables = fragments, variables

    def select(self, value: Any, wanted: SelectionSetNode | None, type_name: str) -> Any:
        """The part of `value` that the selection set asks for; without one, the value itself."""
        if value is None or wanted is None:
            return value
        if isinstance(value, list | tuple):
            return [self.select(item, wanted, type_name) for item in value]
        found: dict[str, Any] = {}
        for node in wanted.selections:
            if self.is_skipped(node):
                continue
            if isinstance(node, FieldNode):
                key = node.alias.value if node.alias else node.name.value
                found[key] = self.field(value, node, type_name)
            elif isinstance(node, InlineFragmentNode):
                found |= self.select(value, node.selection_set, type_name)
            elif isinstance(node, FragmentSpreadNode):
                found |= self.select(value, self.fragments[node.name.value].selection_set, type_name)
        return found

    def field(self, value: Mapping[str, Any], node: FieldNode, type_name: str) -> Any:
        name = node.name.value
        if name == "__typename":
            return value.get(name, type_name)
        inner = value.get(name)
        if callable(inner):
            inner = inner(
                {a.name.value: value_from_ast_untyped(a.value, self.variables) for a in node.arguments or ()}
            )
        return self.select(inner, node.selection_set, name[0].upper() + name[1:])  # pageInfo -> PageInfo

    def is_skipped(self, node: Any) -> bool:
        for directive in node.directives or ():
            if directive.name.value in ("include", "skip"):
                condition = value_from_ast_untyped(directive.arguments[0].value, self.variables)
                if bool(condition) == (directive.name.value == "skip"):
                    return True
        return False


def connection(nodes: list[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A page of `nodes` as Relay writes it: `first` of them (or `limit`) after the cursor `after`."""
    start = int(arguments.get("after") or 0)
    size = arguments.get("first") or arguments.get("limit") or len(nodes)
    end = start + int(size)
    page = nodes[start:end]
    return {
        "totalCount": len(nodes),
        "edges": [{"node": node, "cursor": str(start + n)} for n, node in enumerate(page, 1)],
        "pageInfo": {"endCursor": str(start + len(page)), "hasNextPage": end < len(nodes)},
    }
