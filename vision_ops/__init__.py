"""Vision operators that are written once, in one IR, for CUDA, OpenCL and CPUs.

Start at `kernels.Emitter`. The operators and their templates are listed and registered here.
"""

from templates.operator import register_operator
from templates.template import register
from vision_ops import multibox_decode, multibox_prior, proposal, resize, roi_align, roi_pool, yolo
from vision_ops.argsort import ArgsortOperator, ArgsortTemplate
from vision_ops.compact import CompactOperator, CompactTemplate
from vision_ops.multibox_decode import MultiboxDecodeOperator
from vision_ops.multibox_prior import MultiboxPriorOperator
from vision_ops.nms import NmsOperator, NmsTemplate
from vision_ops.proposal import ProposalOperator
from vision_ops.resize import ResizeOperator
from vision_ops.roi_align import RoiAlignOperator
from vision_ops.roi_pool import RoiPoolOperator
from vision_ops.scan import ScanOperator, ScanTemplate
from vision_ops.yolo import YoloDecodeOperator

for _operator in (
    ScanOperator(),
    ArgsortOperator(),
    CompactOperator(),
    NmsOperator(),
    RoiAlignOperator(),
    RoiPoolOperator(),
    MultiboxPriorOperator(),
    MultiboxDecodeOperator(),
    YoloDecodeOperator(),
    ProposalOperator(),
    ResizeOperator(),
):
    register_operator(_operator)

for _template in (
    ScanTemplate(),
    ArgsortTemplate(),
    CompactTemplate(),
    NmsTemplate(),
    roi_align.TEMPLATE,
    roi_pool.TEMPLATE,
    multibox_prior.TEMPLATE,
    multibox_decode.TEMPLATE,
    yolo.TEMPLATE,
    proposal.TEMPLATE,
    resize.TEMPLATE,
):
    register(_template)
