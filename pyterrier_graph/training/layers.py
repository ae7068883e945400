"""Layers of PyTorch Geometric, or a user's own, as parts of a model that is saved.

A saved model has the class and arguments of its layers as JSON. When it is loaded, only names of
``torch_geometric.nn.conv`` are looked up. A layer of another class, or with arguments that JSON cannot hold, is given
again.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    layer = layers(dimension)
    for module in layer.modules():
        if getattr(module, "add_self_loops", False):
            raise ValueError(
                f"{module!r} needs add_self_loops=False: in a bipartite graph, self-loops connect row k of the sources "
                "with row k of the targets"
            )
    if not is_heterogeneous(layer):
        shape = tuple(_output(layer.eval(), dimension).shape)  # lazy layers get their parameters
        if shape != (2, dimension):
            raise ValueError(f"{layer!r} must return {dimension} dimensions, returned {shape[-1]}")
    return layer


def layer_meta(layer: nn.Module) -> dict[str, Any]:
    """Class and arguments of a layer, as JSON; the class alone if JSON cannot hold the arguments."""
    meta: dict[str, Any] = {"class": type(layer).__name__}
    if getattr(conv, meta["class"], None) is type(layer):
        arguments = _arguments(layer)
        with suppress(TypeError):  # such as a module
            json.dumps(arguments)
            meta["arguments"] = arguments
    return meta


def layer_from(meta: Mapping[str, Any]) -> nn.Module:
    """The layer with this class and these arguments, with random weights."""
    name = meta["class"]
    if name not in conv.__all__:
        raise ValueError(f"torch_geometric.nn.conv has no layer {name!r}")
    return getattr(conv, name)(**meta["arguments"])


def saved_layers(meta: Mapping[str, Any], argument: str) -> Layers:
    """Makes the layers of a saved model; raises ValueError if they have to be given again."""
    if "arguments" not in meta:
        raise ValueError(f"{meta['class']} layers are not a part of the model: give {argument}=")
    return lambda dimension: layer_from(meta)


def _arguments(layer: nn.Module) -> dict[str, Any]:
    """The arguments of a layer's constructor, which PyTorch Geometric's layers keep as attributes."""
    arguments = {}
    for name in inspect.signature(type(layer)).parameters:
        if name == "bias":  # a parameter of the layer itself, or of a linear layer in it
            arguments[name] = any(key.endswith("bias") for key, _ in layer.named_parameters())
        elif hasattr(layer, name):
            arguments[name] = getattr(layer, name)
    return arguments


@torch.no_grad()
def _output(layer: nn.Module, dimension: int) -> Tensor:
    """The output of a layer for two targets, one of them with two sources, shape (2, dimension)."""
    vectors = torch.linspace(-1, 1, 5 * dimension).reshape(5, dimension)
    edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    return layer((vectors[:3], vectors[3:]), edge_index)
