"""Turns scheduled functions into files that devices run. Start at `toolchain.build_shared` for shared objects, and at
`launches.build_launches` for boards where TVM cannot be installed."""
