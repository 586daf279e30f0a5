"""Vision operators in one IR for CUDA, OpenCL and CPU. Start at `kernels.Emitter`; operators are listed here."""

from templates.operator import register_operator
from templates.template import register
from vision_ops.argsort import ArgsortOperator, ArgsortTemplate
from vision_ops.compact import CompactOperator, CompactTemplate
from vision_ops.nms import NmsOperator, NmsTemplate
from vision_ops.roi_align import RoiAlignOperator, RoiAlignTemplate
from vision_ops.scan import ScanOperator, ScanTemplate

for _operator in (ScanOperator(), ArgsortOperator(), CompactOperator(), NmsOperator(), RoiAlignOperator()):
    register_operator(_operator)

for _template in (ScanTemplate(), ArgsortTemplate(), CompactTemplate(), NmsTemplate(), RoiAlignTemplate()):
    register(_template)
