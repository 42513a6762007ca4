"""flash-linear-attention's layers, small, for `packproof model`."""

from torch import nn

WIDTH = 32


def mesa_net() -> nn.Module:
    from fla.layers.mesa_net import MesaNet  # noqa: PLC0415

    layer: nn.Module = MesaNet(hidden_size=WIDTH, num_heads=2, head_dim=16, layer_idx=0)
    return layer
