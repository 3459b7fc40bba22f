"""Long results written to their places in a graph, and views that do nothing taken out of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Memory:
    """Memory for a long result, which the caller may lend, for one use.

    Memory that a program holds already is several times faster to write than memory that the
    system has to hand out, and a result of the last evaluation is often of no use any more.
    """

    def __init__(self) -> None:
        self._lent: Tensor | None = None

    def lend(self, tensor: Tensor | None) -> None:
        """Let the next result be written into ``tensor``, if it fits; None takes it back."""
        self._lent = tensor

    def empty(self, shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor with any content: the lent one or a new one."""
        lent, self._lent = self._lent, None
        if (
            lent is not None
            and list(lent.shape) == shape
            and (lent.dtype, lent.device) == (dtype, device)
            and lent.is_contiguous()
        ):
            return lent
        return torch.empty(shape, dtype=dtype, device=device)


def materialize_accumulators(graph: torch.fx.Graph) -> None:
    """Give every tensor that is accumulated into memory of its own.

    Zeros that are expanded over particles share their memory, and Inductor (torch 2.13) adds all
    particles' entries into it.
    """
    for node in list(graph.nodes):
        name = str(node.target)
        if name.startswith(("aten.index_add.", "aten.index_put.", "aten.scatter")):
            with graph.inserting_before(node):
                own = graph.call_function(
                    torch.ops.aten.clone.default,
                    (node.args[0],),
                    {"memory_format": torch.contiguous_format},
                )
            node.update_arg(0, own)


#: Entries from which on a copy costs more than the calls that avoid it.
LONG = 2**14
_ATEN: Any = torch.ops.aten
_VIEWS = (
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.transpose.int,
    _ATEN.squeeze.dim,
    _ATEN.unsqueeze.default,
)


_SAME = (
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.expand.default,
    _ATEN.permute.default,
    _ATEN.detach.default,
    _ATEN.alias.default,
)


def drop_identities(graph: torch.fx.Graph) -> None:
    """Take out views that are the tensor that they are of.

    Vectorizing and differentiating leave many, and for small models each costs as much as an
    operation.
    """
    for node in list(graph.nodes):
        if node.target not in _SAME or not node.all_input_nodes:
            continue
        source = node.args[0]
        ours, theirs = node.meta["val"], source.meta.get("val")
        if (
            isinstance(theirs, Tensor)
            and ours.shape == theirs.shape
            and ours.stride() == theirs.stride()
        ):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def join_in_place(graph: torch.fx.Graph, memory: Memory) -> None:
    """Write the pieces of a joined result to their places as soon as each is computed.

    The gradient of a flat vector is joined from those of the sites, at the end and by copying, so
    that it is in memory twice. Here the joined tensor is made first, every piece is copied into it
    and freed, and matrix products, the gradients of large sites, are computed in it. Nothing may
    remove dead code from the graph afterwards.
    """
    order = {node: position for position, node in enumerate(graph.nodes)}
    (output,) = (node for node in graph.nodes if node.op == "output")
    for join in output.all_input_nodes:
        if join.target is not _ATEN.cat.default or join.args[1:] != (1,) or len(join.users) != 1:
            continue
        pieces: list[Any] = list(join.args[0])
        whole = join.meta["val"]
        if whole.numel() < LONG:
            continue
        # Each piece is a view, or a view of a view, of what its source has computed.
        views = {piece: _views_of_source(piece) for piece in pieces}
        sources = {piece: (chain[-1].args[0] if chain else piece) for piece, chain in views.items()}
        # A piece that is joined twice has two places, and an input is not computed here.
        if len(views) < len(pieces) or any(
            sources[piece].op == "placeholder" or piece.meta["val"].dtype != whole.dtype
            for piece in pieces
        ):
            continue
        # The place has to be there before the first piece is computed.
        with graph.inserting_before(min(sources.values(), key=order.__getitem__)):
            description = (list(whole.shape), whole.dtype, whole.device)
            joined = graph.call_function(memory.empty, description)
        join.replace_all_uses_with(joined)
        graph.erase_node(join)
        stop = 0
        for piece in pieces:
            start, stop = stop, stop + piece.meta["val"].shape[1]
            source, chain = sources[piece], views[piece]
            with graph.inserting_before(source):
                place = graph.call_function(_ATEN.slice.Tensor, (joined, 1, start, stop))
            if _same_memory(source, piece) and source.target is _ATEN.bmm.default:
                with graph.inserting_before(source):
                    shape = list(source.meta["val"].shape)
                    out = graph.call_function(_ATEN.view.default, (place, shape))
                    graph.call_function(_ATEN.bmm.out, source.args, {"out": out})
                for node in (*chain, source):
                    graph.erase_node(node)
                continue
            latest = source
            # Views follow their source at once, so that the piece can be copied and freed there.
            for node in reversed(chain):
                latest.append(node)
                latest = node
            with graph.inserting_after(piece):
                graph.call_function(_ATEN.copy_.default, (place, piece))


def _views_of_source(piece: Any) -> list[Any]:
    """The views that lead to ``piece``, and to nothing else, last one first."""
    chain, node = [], piece
    while node.target in _VIEWS and len(node.users) == 1:
        chain.append(node)
        node = node.args[0]
    return chain


def _same_memory(source: torch.fx.Node, piece: torch.fx.Node) -> bool:
    """Whether a piece, a view of its source, has the source's entries in the source's order."""
    alone = len(source.users) == (0 if source is piece else 1)
    return alone and source.meta["val"].is_contiguous() and piece.meta["val"].is_contiguous()
