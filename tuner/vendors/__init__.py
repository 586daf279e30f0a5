"""Let kernels of other libraries compete with ours. Start at `open_vendor`.

Liu et al., "Woodpecker-DL: Accelerating Deep Neural Networks via Hardware-Aware Multifaceted Optimizations", section 2,
lets third-party libraries compete per operator. A vendor is one file here (with TEMPLATES), one line in `registry` and
one module in `enabled`. It is a template (`base.VendorTemplate`) whose one config per workload calls the library. So
its kernels are measured, checked, stored and chosen like any other, but only where a user asks for them.
"""

from tuner.vendors.registry import VENDORS, open_vendor, require, vendor_of, vendor_template, vendors_of

__all__ = ["VENDORS", "open_vendor", "require", "vendor_of", "vendor_template", "vendors_of"]
