"""Layers of PyTorch Geometric, or a user's own, as parts of a model that is saved.

A saved model has the class and arguments of its layers as JSON. When it is loaded, only names of
``torch_geometric.nn.conv`` are looked up. A layer of a user's own class, or with arguments that JSON cannot hold, has
to be passed again.
"""

from __future__ import annotations

import copy
import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, conv

Layers = Callable[[int], nn.Module]
"""Makes a bipartite layer for vectors of d dimensions, such as ``lambda d: SAGEConv((d, d), d)``."""

X_DICT = "x_dict"  # the first argument of layers over all relations, such as HeteroConv


def accepts(layer: nn.Module, argument: str) -> bool:
    """Whether ``forward`` of a layer names an argument."""
    return argument in inspect.signature(layer.forward).parameters


def is_heterogeneous(layer: nn.Module) -> bool:
    """Whether a layer reads ``x_dict, edge_index_dict`` of all relations, instead of one relation."""
    return isinstance(layer, HeteroConv) or accepts(layer, X_DICT)


def make_layer(layers: Layers, dimension: int) -> nn.Module:
    """Makes a layer; raises ValueError unless it takes and returns vectors of ``dimension`` numbers."""
    with warnings.catch_warnings():  # HeteroConv expects layers that change the sources as well
        warnings.filterwarnings("ignore", "There exist node types")
        layer = layers(dimension)
    for module in layer.modules():
        if getattr(module, "add_self_loops", False):
            raise ValueError(
                f"{module!r} needs add_self_loops=False: in a bipartite graph, self-loops connect row k of the sources "
                "with row k of the targets"
            )
    if not is_heterogeneous(layer):
        output = _output(layer.eval(), dimension)  # lazy layers get their parameters
        shape = tuple(output.shape)
        if shape != (2, dimension):
            raise ValueError(
                f"{layer!r} must return {dimension} dimensions, as its input has; it returned {shape[-1]}"
            )
    return layer


def layer_meta(layer: nn.Module, dimension: int) -> dict[str, Any]:
    """Class and arguments of a layer, as JSON; the class alone if the layer cannot be made from them."""
    name = type(layer).__name__
    if isinstance(layer, HeteroConv):
        convs = []
        for edge_type, child in layer.convs.items():
            meta = layer_meta(child, dimension)
            convs.append([list(edge_type), meta])
        if all("arguments" in meta for _, meta in convs):
            arguments = {"convs": convs, "aggr": layer.aggr}
            return {"class": name, "arguments": arguments}
    elif getattr(conv, name, None) is type(layer):
        meta = {"class": name, "arguments": _arguments(layer)}
        if _is_same(meta, layer, dimension):
            return meta
    return {"class": name}


def layer_from(meta: Mapping[str, Any]) -> nn.Module:
    """The layer with this class and these arguments, with random weights."""
    name = meta["class"]
    arguments = meta["arguments"]
    if name == HeteroConv.__name__:
        convs = {}
        for edge_type, child in arguments["convs"]:
            convs[tuple(edge_type)] = layer_from(child)
        return HeteroConv(convs, arguments["aggr"])
    if name not in conv.__all__:
        raise ValueError(f"torch_geometric.nn.conv has no layer {name!r}")
    return getattr(conv, name)(**arguments)


def saved_layers(meta: Mapping[str, Any], argument: str) -> Layers:
    """Makes the layers of a saved model; raises ValueError if their class is a user's own, or has other arguments."""
    if "arguments" not in meta:
        raise ValueError(f"{meta['class']} layers are not a part of the model: give {argument}=")
    return lambda dimension: layer_from(meta)


def _arguments(layer: nn.Module) -> dict[str, Any]:
    """The arguments of a layer's constructor, which PyTorch Geometric's layers keep as attributes."""
    arguments = {}
    for name in inspect.signature(type(layer)).parameters:
        if name == "bias":  # a parameter of the layer itself, or of a linear layer in it
            weights = dict(layer.named_parameters())
            arguments[name] = any(key.endswith("bias") for key in weights)
        elif hasattr(layer, name):
            arguments[name] = getattr(layer, name)
    return arguments


def _is_same(meta: dict[str, Any], layer: nn.Module, dimension: int) -> bool:
    """Whether JSON can hold the arguments, and they make a layer with the same output."""
    try:
        meta = json.loads(json.dumps(meta))
        twin = layer_from(meta).eval()
        _output(twin, dimension)  # lazy layers get their parameters
        twin.load_state_dict(layer.state_dict())
        original = copy.deepcopy(layer).cpu().eval()
        expected = _output(original, dimension)
        return torch.equal(_output(twin, dimension), expected)
    except (TypeError, ValueError, RuntimeError):
        return False


@torch.no_grad()
def _output(layer: nn.Module, dimension: int) -> Tensor:
    """The output of a layer for two targets, one of them with two sources, shape (2, dimension)."""
    numbers = torch.linspace(-1, 1, 5 * dimension)
    vectors = numbers.reshape(5, dimension)
    sources, targets = vectors.split([3, 2])
    edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    return layer((sources, targets), edge_index)
