"""History and summary records with anything in them, most as W&B's client writes them."""

from __future__ import annotations

import json

from hypothesis import strategies as st
from wandb.proto.wandb_internal_pb2 import Record

KEYS = ("loss", "_step", "eval/accuracy", "a.b", "a", "ü", "a-key-of-more-than-eight-bytes", "x" * 200, "")
TEXTS = ('"NaN"', "NaN", "-Infinity", "1e999", "9" * 400, "-0", "1_0", "+1", ".5", "1,2", '1,"', '2"')
TEXTS += ("{}", "[[]]", '"ü"', "null", "true", '{"a": {"b": 1}}', "", "[", "\0", "1 ", "0x1", "١")
VALUES = st.floats(allow_nan=False).map(json.dumps) | st.integers().map(str)
ODD = st.sampled_from(TEXTS) | st.text(max_size=6) | VALUES


@st.composite
def records(draw: st.DrawFn, keys: tuple[str, ...] = KEYS, values: st.SearchStrategy[str] = ODD) -> bytes:
    """A history or summary record, mostly as the client writes it."""
    record = Record()
    is_row = draw(st.booleans())
    items = record.history.item if is_row else record.summary.update
    (record.history if is_row else record.summary).SetInParent()
    for key in draw(st.lists(st.sampled_from(keys), max_size=5)):
        item = items.add(value_json=draw(values))
        if draw(st.integers(0, 9)):
            item.nested_key.extend(key.split("."))
        else:
            item.key = key
    if not is_row and not draw(st.integers(0, 9)):
        record.summary.remove.add(nested_key=draw(st.sampled_from(keys)).split("."))
    number = b"\x08" + draw(
        st.sampled_from([b"\x01", b"\x80\x01", b"\xff\xff\xff\x7f", b"\x80" * 6 + b"\x01"])
    )
    info = draw(st.sampled_from([b"", b"\xc2\x0c\x02\x0a\x00", b"\x82\x01\x00"]))
    return draw(st.permutations([number, info, record.SerializeToString()]).map(b"".join))
