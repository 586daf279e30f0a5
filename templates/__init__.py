"""The ways an operator can be computed and scheduled. Start at `template.Template`; built-in ones are listed here."""

from templates.cpu.direct import DirectConv, DirectConvPlain
from templates.template import register

for _template in (DirectConv(), DirectConvPlain()):
    register(_template)
