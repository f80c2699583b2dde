"""From a graph with condensed nodes to the file's graph; the same for torch and ONNX sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes import common

from ..ort_ops.contract import (
    BATCH_KEY,
    DEVICE_KEY,
    DOMAIN,
    DOMAIN_VERSION,
    GPU_KEY,
    PRECISION_KEY,
)
from .forms import Chooser
from .gpu_cost import GpuCostModel
from .onnx_schema import register_schemas
from .passes.access import remove_unread_constant
from .passes.attach_functions import AttachFunctionsPass
from .passes.channels_last import ChannelsLastPass
from .passes.choose_forms import ChooseFormsPass, Formed
from .passes.flat_linear import UnflattenPass
from .passes.fold_ablated import FoldAblatedPass, FoldResult
from .passes.fold_norm import FoldNormPass
from .passes.fuse_activation import FuseActivationPass
from .passes.fuse_residual import FuseResidualPass
from .passes.head_layout import OrderHeadsPass
from .passes.inlined_names import RenameInlinedPass
from .passes.local_constants import LocalConstantsPass
from .passes.nodes import our_nodes
from .passes.order_gelu import OrderGeluPass
from .passes.packed_projection import SplitProjectionPass
from .passes.pool_channels_last import PoolChannelsLastPass
from .passes.separate_projection import SeparateProjectionPass
from .passes.trim_inputs import TrimInputsPass
from .passes.unique_names import UniqueNamesPass
from .report import LayerReport


@dataclass(frozen=True)
class Lowered:
    """What the passes did.

    Attributes:
        folded: one line for each layer whose ablated neurons left the graph.
        unfolded: one line for each layer that keeps them, with the reason.
        formed: what each condensed node became, by its name before.
        fused: one line for each node that a condensed one took over.

    """

    folded: tuple[str, ...]
    unfolded: tuple[str, ...]
    formed: Mapping[str, Formed]
    fused: tuple[str, ...]

    def made_dense(self, layers: Iterable[LayerReport]) -> dict[str, str]:
        """Return why condensed nodes that no layer tells of became dense, by name."""
        told = {name for layer in layers for name in layer.nodes}
        return {
            name: entry.choice.reason
            for name, entry in self.formed.items()
            if name not in told and entry.choice.form == "dense"
        }


def lower(model: ir.Model, chooser: Chooser, *, fold: bool) -> Lowered:
    """Fold norms and ablated neurons, choose forms, fuse what follows, attach functions.

    The metadata of the model say what "auto" chose for: device, batch, precision.
    """
    register_schemas()
    # torch's exporter knows no sizes of what it transposes by way of sizes that it computes. The
    # import is taken back where nothing needs it.
    model.opset_imports[DOMAIN] = DOMAIN_VERSION
    UniqueNamesPass()(model)
    RenameInlinedPass()(model)
    LocalConstantsPass()(model)
    common.ShapeInferencePass(strict_mode=False)(model)
    fused = FoldNormPass()(model).folded
    projections = SplitProjectionPass()(model)
    OrderHeadsPass()(model)
    UnflattenPass()(model)
    folds = FoldAblatedPass()(model) if fold else FoldResult(model, modified=False)
    formed = ChooseFormsPass(chooser)(model).formed
    SeparateProjectionPass(projections.splits)(model)
    fused += FuseResidualPass()(model).fused
    fused += FuseActivationPass()(model).fused
    ChannelsLastPass()(model)
    PoolChannelsLastPass()(model)
    OrderGeluPass()(model)
    common.RemoveUnusedNodesPass()(model)
    # The pass does so for the main graph alone.
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            remove_unread_constant(value)
    AttachFunctionsPass()(model)
    UniqueNamesPass()(model)
    TrimInputsPass()(model)
    for key in (DEVICE_KEY, BATCH_KEY, PRECISION_KEY, GPU_KEY):
        model.metadata_props.pop(key, None)
    if chooser.policy == "auto" and (our_nodes(model) or formed or chooser.device != "cpu"):
        model.metadata_props.update(_chosen_for(model, chooser))
    common.ShapeInferencePass(strict_mode=False)(model)
    return Lowered(
        tuple(folds.folded),
        tuple(folds.kept),
        formed,
        tuple(fused),
    )


def _chosen_for(model: ir.Model, chooser: Chooser) -> dict[str, str]:
    """Say in metadata what the forms were chosen for."""
    said = {DEVICE_KEY: chooser.device, PRECISION_KEY: chooser.precision}
    if any(value.shape and not isinstance(value.shape[0], int) for value in model.graph.inputs):
        said[BATCH_KEY] = str(chooser.batch)
    if isinstance(chooser.costs, GpuCostModel):
        said[GPU_KEY] = chooser.costs.gpu.name
    return said


def final_layers(layers: Iterable[LayerReport], lowered: Lowered) -> tuple[LayerReport, ...]:
    """Update the reports of condensed layers to what the passes did with them."""
    final = []
    for layer in layers:
        formed = [lowered.formed[name] for name in layer.nodes if name in lowered.formed]
        if not formed:
            final.append(layer)
            continue
        first = formed[0]
        form, reason = first.choice.form, first.choice.reason
        if reason == "policy condensed":
            reason = layer.reason
        # A weight that is called twice is one part; slices of a packed one are several.
        whole = first.out_features >= layer.shape[0] or len(formed) == 1
        parts = [first] if whole else formed
        final.append(
            replace(
                layer,
                nodes=tuple(name for entry in formed for name in entry.nodes),
                active=sum(entry.active for entry in parts),
                fan_in=max(entry.fan_in for entry in parts),
                padding=sum(entry.padding for entry in parts),
                bytes_condensed=sum(entry.nbytes for entry in parts),
                decision=form,
                reason=reason,
                speedup=first.choice.speedup,
                times=first.choice.times,
                kernel=first.choice.kernel,
                stored=sum(entry.stored for entry in parts) if form != "dense" else None,
            )
        )
    return tuple(final)
