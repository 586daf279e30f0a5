"""Packs: the best configs of one family of devices in a signed file, which other people's databases can take.

A pack holds records and never code. `pack.py` has the file, `keys.py` who signs and who is trusted, `places.py` where
packs are pulled from and pushed to. Whether a pack's configs hold on the device at hand is measured by
`tuner.session.probing`.
"""
