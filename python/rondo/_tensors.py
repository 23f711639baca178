"""Tensors of torch as rondo sees them: one run of memory, of a type and an operator that it knows."""
import torch
from torch._C._distributed_c10d import ReduceOp

_Op = ReduceOp.RedOpType
# By the operator's number: torch hashes and compares operators by calls.
_OPS = {int(op): name for op, name in (
    (_Op.SUM, "sum"), (_Op.PRODUCT, "prod"), (_Op.MIN, "min"), (_Op.MAX, "max"), (_Op.AVG, "avg"), (_Op.BAND, "band"), (_Op.BOR, "bor"),
    (_Op.BXOR, "bxor"), (_Op.PREMUL_SUM, "mulsum"))}
# As NCCL's backend has it: of truth values a sum is "any", a product "all".
_OPS_OF_BOOLS = {int(op): name for op, name in (
    (_Op.SUM, "max"), (_Op.PRODUCT, "min"), (_Op.MIN, "min"), (_Op.MAX, "max"), (_Op.BAND, "band"), (_Op.BOR, "bor"), (_Op.BXOR, "bxor"))}
_TYPES = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8,
                    torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2))


_IN_ORDER = {}  # what names the order of dimensions, where it is C's
_ORDERS = ((torch.channels_last, 4, {"layout": 0x1342}), (torch.channels_last_3d, 5, {"layout": 0x13452}))


def laid_out(tensor, what):
    """The tensor as one run of memory, and the argument that names its order, which ranks compare: channels-last will do."""
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        for layout, dimensions, named in _ORDERS:
            if tensor.dim() == dimensions and tensor.is_contiguous(memory_format=layout):
                return tensor.detach().as_strided((tensor.numel(),), (1,)), named
    return flat_of(tensor, what), _IN_ORDER


def flat_of(tensor, what):
    """The tensor as one run of memory."""
    if tensor.layout is not torch.strided:
        raise ValueError(f"{what} is sparse: only all_reduce by SUM takes it; pass x.to_dense()")
    if tensor.is_contiguous():
        return tensor.detach()
    raise ValueError(f"{what} is not contiguous: pass x.contiguous()")


def moved(tensor, what):
    """What rondo moves unseen: a type that it lacks goes as bytes."""
    return _as_known(flat_of(tensor, what))


def moved_as_laid_out(tensor, what):
    """The same in any order, and the argument that names it."""
    flat, order = laid_out(tensor, what)
    return _as_known(flat), order


def _as_known(flat):
    return flat if flat.dtype in _TYPES else flat.reshape(-1).view(torch.uint8)


def reduced(tensor, op, what, any_order=False):
    """The tensor as rondo reduces it, and the arguments that name operator and order. Complex numbers are pairs."""
    flat, order = laid_out(tensor, what) if any_order else (flat_of(tensor, what), _IN_ORDER)
    name = (_OPS if flat.dtype is not torch.bool else _OPS_OF_BOOLS).get(int(op.op))
    if name is None:
        raise ValueError(f"rondo cannot reduce {tensor.dtype} by {op.op.name}")
    if flat.is_complex():
        if name not in ("sum", "avg"):
            raise ValueError(f"rondo reduces complex numbers by SUM and AVG, not by {op.op.name}: there are no complex types")
        flat = torch.view_as_real(flat)
    if name != "mulsum":
        return flat, {"op": name, **order}
    return flat, {"op": name, "factor": op.factor.item() if isinstance(op.factor, torch.Tensor) else op.factor, **order}


def in_order(tensor):
    """What is only read may lie in any order: this has its elements in C order, copied if need be."""
    return tensor.contiguous() if tensor.layout is torch.strided else tensor


def joined(tensors):
    return torch.cat([moved(in_order(tensor), "a tensor of the list").reshape(-1) for tensor in tensors])


def counts_of(tensors):
    """Of what moved() makes of each, which may lie in any order."""
    if any(tensor.layout is not torch.strided for tensor in tensors):
        raise ValueError("a tensor of the list is sparse: only all_reduce by SUM takes it; pass x.to_dense()")
    return [tensor.numel() * (1 if tensor.dtype in _TYPES else tensor.element_size()) for tensor in tensors]


def copy_parts(tensors, flat, counts):
    """Each tensor gets its part of flat."""
    for tensor, part in zip(tensors, flat.split(counts)):
        part = part if tensor.dtype in _TYPES else part.view(tensor.dtype)
        tensor.detach().copy_(part.view(tensor.shape))


def expect_one_each(ranks, tensors, call):
    if len(tensors) != ranks:
        raise ValueError(f"{call}: the list has {len(tensors)} tensors, it needs one for each of {ranks} ranks")


def expect_like(own, tensors, call):
    """Every rank's part of a gather or scatter has the size and type of the root's own."""
    for rank, tensor in enumerate(tensors):
        if tensor.numel() != own.numel() or tensor.dtype != own.dtype:
            raise ValueError(f"{call}: the tensor for rank {rank} has {tensor.numel()} elements of {tensor.dtype}, this rank's own "
                             f"{own.numel()} of {own.dtype}; they must be alike")
