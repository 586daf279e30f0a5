"""Vision operators in one IR for CUDA, OpenCL and CPU. Start at `kernels.Emitter`; operators are listed here."""

from templates.operator import register_operator
from templates.template import register
from vision_ops.argsort import ArgsortOperator, ArgsortTemplate
from vision_ops.compact import CompactOperator, CompactTemplate
from vision_ops.multibox_decode import MultiboxDecodeOperator, MultiboxDecodeTemplate
from vision_ops.multibox_prior import MultiboxPriorOperator, MultiboxPriorTemplate
from vision_ops.nms import NmsOperator, NmsTemplate
from vision_ops.proposal import ProposalOperator, ProposalTemplate
from vision_ops.resize import ResizeOperator, ResizeTemplate
from vision_ops.roi_align import RoiAlignOperator, RoiAlignTemplate
from vision_ops.roi_pool import RoiPoolOperator, RoiPoolTemplate
from vision_ops.scan import ScanOperator, ScanTemplate
from vision_ops.yolo import YoloDecodeOperator, YoloDecodeTemplate

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
    RoiAlignTemplate(),
    RoiPoolTemplate(),
    MultiboxPriorTemplate(),
    MultiboxDecodeTemplate(),
    YoloDecodeTemplate(),
    ProposalTemplate(),
    ResizeTemplate(),
):
    register(_template)
