"""Answers a GraphQL query from nested values by field name, with null for an unknown name.

So the server need not know the queries of W&B's client.
"""

from collections.abc import Mapping
from typing import Any

from graphql import (
    FragmentDefinitionNode,
    FragmentSpreadNode,
    InlineFragmentNode,
    OperationDefinitionNode,
    SelectionSetNode,
    parse,
    value_from_ast_untyped,
)


def answer(request: Mapping[str, Any], roots: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `data` of the response.

    Args:
        request: The query.
        roots: The values of `query` and of `mutation`: dicts, lists, plain values, and functions of a field's
            arguments.
    """
    definitions = parse(request["query"]).definitions
    fragments = {d.name.value: d for d in definitions if isinstance(d, FragmentDefinitionNode)}
    (operation,) = (d for d in definitions if isinstance(d, OperationDefinitionNode))
    variables = request.get("variables") or {}

    def select(value: Any, wanted: SelectionSetNode | None, kind: str) -> Any:
        """Return the part of a value that a selection set asks for; without one, the value itself."""
        if value is None or wanted is None:
            return value
        if isinstance(value, list):
            return [select(item, wanted, kind) for item in value]
        found: dict[str, Any] = {}
        for node in wanted.selections:
            if isinstance(node, FragmentSpreadNode):
                found |= select(value, fragments[node.name.value].selection_set, kind)
            elif isinstance(node, InlineFragmentNode):
                found |= select(value, node.selection_set, kind)
            else:
                name, key = node.name.value, (node.alias or node.name).value
                inner = value.get(name, kind if name == "__typename" else None)
                if callable(inner):
                    words = {a.name.value: a.value for a in node.arguments or ()}
                    inner = inner({k: value_from_ast_untyped(v, variables) for k, v in words.items()})
                found[key] = select(inner, node.selection_set, name[0].upper() + name[1:])
        return found

    return select(roots[operation.operation.value], operation.selection_set, "Query")


def connection(nodes: list[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of `nodes` as Relay writes it: `first` of them after the cursor `after`."""
    start = int(given.get("after") or 0)
    page = nodes[start:][: given.get("first") or given.get("limit")]
    end = start + len(page)
    return {
        "totalCount": len(nodes),
        "edges": [{"node": node, "cursor": str(start + n)} for n, node in enumerate(page, 1)],
        "pageInfo": {"endCursor": str(end), "hasNextPage": end < len(nodes)},
    }
