"""The state of a loader as text: what JSON has, and bytes, arrays, tuples and keys of any kind."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError


def encoded(state: Any) -> str:
    """The state as text.

    Raises
    ------
    ArgumentError
        It holds something that has no such form.
    """
    return json.dumps(_encoded(state))


def decoded(text: str) -> Any:
    """The state that a text says."""
    return _decoded(json.loads(text))


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    # Not ``isinstance``: a subclass, such as an enumeration's, would come back as another type.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        # Pairs, since in JSON keys are text.
        return {"dict": [[_encoded(key), _encoded(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(each) for each in value]}
    if isinstance(value, list):
        return [_encoded(each) for each in value]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        of_torch = type(value).__module__.startswith("torch")
        array = np.asarray(value.detach().cpu() if of_torch else value)
        if array.dtype.kind in "biuf":
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            form = {"shape": list(array.shape), "dtype": array.dtype.str, "torch": of_torch}
            return {"array": data, **form}
    raise ArgumentError(
        "Expected the loader's state to be made of numbers, text, bytes, arrays, lists, tuples and "
        f"dictionaries, found {type(value).__name__}: it cannot be saved with the run's state. "
        "Give the loader a state of these, or none, and it is advanced by reading its batches."
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "dict" in value:
        return {_decoded(key): _decoded(each) for key, each in value["dict"]}
    if "tuple" in value:
        return tuple(_decoded(each) for each in value["tuple"])
    array = np.frombuffer(base64.b64decode(value["array"]), np.dtype(value["dtype"]))
    array = array.reshape(value["shape"]).copy()
    # A tensor is in the state of torch's own loaders, so that torch is there.
    return sys.modules["torch"].from_numpy(array) if value["torch"] else array
