"""List and register the templates that come with edgetune. The registry imports this module at the first look-up."""

from templates import attention, batch_matmul, four_bits
from templates.cpu.attention import TiledAttention
from templates.cpu.batch_matmul import PackedBatchMatmul
from templates.cpu.bfloat16 import BfloatConv, BfloatConvPlain, BfloatDense
from templates.cpu.dense import PackedDense
from templates.cpu.depthwise import Depthwise, IntegerDepthwise
from templates.cpu.direct import DirectConv, DirectConvPlain
from templates.cpu.four_bits import FourBitsDense
from templates.cpu.gathered import GatheredConv
from templates.cpu.grouped import GroupedConv
from templates.cpu.integer_batch_matmul import IntegerBatchMatmul
from templates.cpu.integer_dense import IntegerDense
from templates.cpu.integer_direct import IntegerConv, IntegerConvPlain
from templates.cpu.integer_grouped import IntegerGroupedConv
from templates.cpu.integer_winograd import IntegerWinograd
from templates.cpu.winograd import Winograd
from templates.gpu.attention import GpuAttention
from templates.gpu.attention_rows import RowsAttention
from templates.gpu.batch_matmul import GpuBatchMatmul
from templates.gpu.batch_matmul_tensor_core import TensorCoreMatmul, TensorCoreMatmulTf32
from templates.gpu.dense import GpuDense
from templates.gpu.depthwise import GpuDepthwise
from templates.gpu.direct import GpuDirectConv, GpuDirectConvPlain
from templates.gpu.running_attention import RunningAttention
from templates.gpu.tensor_core import GpuTensorCore, GpuTensorCoreInteger, GpuTensorCoreTf32
from templates.gpu.winograd import GpuWinograd
from templates.gpu.winograd_group import GpuWinogradGroup
from templates.intel.subgroup import SubgroupConv
from templates.mali.spatial_pack import SpatialPack
from templates.operator import register_operator
from templates.template import register

for _template in (
    DirectConv(),
    DirectConvPlain(),
    GatheredConv(),
    Winograd(),
    Depthwise(),
    IntegerDepthwise(),
    GroupedConv(),
    IntegerGroupedConv(),
    IntegerConv(),
    IntegerConvPlain(),
    IntegerWinograd(),
    PackedDense(),
    IntegerDense(),
    BfloatConv(),
    BfloatConvPlain(),
    BfloatDense(),
    PackedBatchMatmul(),
    IntegerBatchMatmul(),
    FourBitsDense(),
    TiledAttention(),
    GpuDirectConv(),
    GpuDirectConvPlain(),
    GpuDense(),
    GpuBatchMatmul(),
    TensorCoreMatmul(),
    TensorCoreMatmulTf32(),
    GpuAttention(),
    RowsAttention(),
    RunningAttention(),
    GpuWinograd(),
    GpuWinogradGroup(),
    GpuDepthwise(),
    GpuTensorCore(),
    GpuTensorCoreTf32(),
    GpuTensorCoreInteger(),
    SubgroupConv(),
    SpatialPack(),
):
    register(_template)

register_operator(attention.OPERATOR)
register_operator(batch_matmul.OPERATOR)
register_operator(four_bits.OPERATOR)
